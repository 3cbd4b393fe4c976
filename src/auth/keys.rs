//! The keys of an issuer: a set as it is published (RFC 7517), and which of them a token may be checked with.

pub(super) mod source;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::algorithm::{Algorithm, PublicKey};

pub use source::Source;

/// The most bytes of a file with keys.
const LONGEST_FILE: u64 = 1 << 20;
/// The most keys of a set; further ones are left out.
const MOST: usize = 256;
/// RSA keys below are not safe any more (RFC 7518, 3.3), and above are not checked by ring.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// The usable keys of an issuer; at least one.
#[derive(Debug, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug, PartialEq, Eq)]
struct Key {
    id: Option<Box<str>>,
    /// The one that it is for, where it says so.
    algorithm: Option<Algorithm>,
    key: PublicKey,
}

/// What came of checking a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// A key that may be used has made it.
    Good,
    /// None has.
    Bad,
    /// The set does not have the key; a newer set might.
    Unknown,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file can't be read.
    #[error("the file with keys can't be read: {0}")]
    File(#[from] std::io::Error),
    /// It is no key set.
    #[error("this is no JSON Web Key Set: an object with a list `keys`")]
    Form,
    /// No key in it can check a signature that is supported.
    #[error(
        "none of its keys can be used: RSA of 2048 bits or more, P-256, P-384 and Ed25519 can, unless they are for encryption"
    )]
    Empty,
}

impl KeySet {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Unusable`]
    pub fn read(path: &Path) -> Result<Self, Unusable> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LONGEST_FILE).read_to_end(&mut bytes)?;
        Self::of(&serde_json::from_slice(&bytes).map_err(|_| Unusable::Form)?)
    }

    /// Reads a set. A key that can't be used is left out: a set may hold keys for others (RFC 7517, 5).
    ///
    /// # Errors
    /// [`Unusable::Form`], [`Unusable::Empty`]
    pub fn of(document: &Value) -> Result<Self, Unusable> {
        let all = document.get("keys").and_then(Value::as_array).ok_or(Unusable::Form)?;
        let keys: Vec<Key> = all.iter().take(MOST).filter_map(Key::of).collect();
        if keys.is_empty() { Err(Unusable::Empty) } else { Ok(Self { keys }) }
    }

    /// Checks a signature with the key of that id, or, where the token names none, with the only key for its algorithm.
    pub(super) fn check(&self, id: Option<&str>, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> Check {
        let verifies = |key: &Key| key.fits(algorithm) && key.key.verifies(algorithm, message, signature);
        let good_or = |is_good, otherwise| if is_good { Check::Good } else { otherwise };
        match id {
            Some(id) => {
                let mut named = self.keys.iter().filter(|key| key.id.as_deref() == Some(id)).peekable();
                if named.peek().is_none() { Check::Unknown } else { good_or(named.any(verifies), Check::Bad) }
            }
            None => {
                let mut fitting = self.keys.iter().filter(|key| key.fits(algorithm));
                match (fitting.next(), fitting.next()) {
                    // Its issuer may have changed it: without names nothing else tells.
                    (Some(only), None) => good_or(verifies(only), Check::Unknown),
                    (Some(_), Some(_)) => Check::Bad,
                    (None, _) => Check::Unknown,
                }
            }
        }
    }
}

impl Key {
    fn of(jwk: &Value) -> Option<Self> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let id = text("kid").map(Into::into);
        if jwk.get("use").is_some_and(|its_use| its_use != "sig") {
            return None;
        }
        if jwk
            .get("key_ops")
            .is_some_and(|all| !all.as_array().is_some_and(|all| all.iter().any(|one| one == "verify")))
        {
            return None;
        }
        let algorithm = match jwk.get("alg") {
            None => None,
            Some(name) => Some(Algorithm::named(name.as_str()?)?),
        };
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let key = match (text("kty")?, text("crv")) {
            ("RSA", _) => rsa(bytes("n")?, bytes("e")?, id.as_deref())?,
            ("EC", Some("P-256")) => PublicKey::P256(point(&bytes("x")?, &bytes("y")?, 32)?),
            ("EC", Some("P-384")) => PublicKey::P384(point(&bytes("x")?, &bytes("y")?, 48)?),
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes("x").filter(|x| x.len() == 32)?.into()),
            _ => return None,
        };
        let key = Self { id, algorithm, key };
        key.algorithm.is_none_or(|algorithm| key.key.fits(algorithm)).then_some(key)
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.key.fits(algorithm) && self.algorithm.is_none_or(|own| own == algorithm)
    }
}

fn rsa(n: Vec<u8>, e: Vec<u8>, id: Option<&str>) -> Option<PublicKey> {
    let trimmed = |mut bytes: Vec<u8>| {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes.drain(..zeros);
        bytes
    };
    let (n, e) = (trimmed(n), trimmed(e));
    let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        tracing::warn!(
            kid = id.unwrap_or(""),
            bits,
            "an issuer's RSA key is ignored: it has fewer than 2048 or more than 8192 bits"
        );
        return None;
    }
    Some(PublicKey::Rsa(n.into(), e.into()))
}

/// An uncompressed point (SEC 1, 2.3.3). Both coordinates have all of their bytes (RFC 7518, 6.2.1.2).
fn point(x: &[u8], y: &[u8], length: usize) -> Option<Box<[u8]>> {
    (x.len() == length && y.len() == length).then(|| [&[4], x, y].concat().into())
}
