//! Sealed tokens: what the gateway hands to a client to have back, such that nobody else can read, make or change it.
//!
//! AES-256-GCM under a key that all replicas share. A token is the key's id, a random nonce and the ciphertext, in
//! base64url; what it is for is bound in, so that a cursor is never taken for a session.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{Context, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};

/// No token is longer, but for those that carry what an upstream gave (see `Purpose::longest`).
pub const MAX_TOKEN: usize = 2048;
/// As many bytes fit into a token.
pub const MAX_PLAIN: usize = MAX_TOKEN / 4 * 3 - ID_LEN - NONCE_LEN - TAG_LEN;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
const ID_LEN: usize = 4;
const TAG_LEN: usize = 16;

/// What the signing key is derived for (RFC 5869, 3.2).
const SIGNING: &[u8] = b"requests between replicas";

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A session id.
    Session = 1,
    /// A cursor of `tasks/list`.
    Cursor = 2,
    /// An event id of a `tasks/result` stream.
    EventId = 3,
    /// A cursor of an upstream's list.
    ListCursor = 4,
    /// The `requestState` of an upstream.
    State = 5,
    /// The `requestState` of a call that waits for its client's answers.
    Parked = 6,
}

impl Purpose {
    /// The longest token for it.
    const fn longest(self) -> usize {
        match self {
            Self::Session | Self::Cursor | Self::EventId | Self::Parked => MAX_TOKEN,
            Self::ListCursor => 16 * 1024,
            Self::State => 2 * 1024 * 1024,
        }
    }
}

/// Stands for texts where one need only know whether they are the same.
#[must_use]
pub fn fingerprint(texts: &[&str]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for text in texts {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(context.finish().as_ref());
    fingerprint
}

/// Seals and opens tokens.
pub struct Sealer {
    current: Key,
    previous: Vec<Key>,
    random: SystemRandom,
}

struct Key {
    id: [u8; ID_LEN],
    key: LessSafeKey,
    /// For what the processes that share the key tell each other.
    signing: hmac::Key,
}

impl Sealer {
    /// One with a key of its own, whose tokens end with the process.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    #[must_use]
    pub fn random() -> Self {
        let random = SystemRandom::new();
        Self { current: Key::new(&random_bytes(&random)), previous: Vec::new(), random }
    }

    /// A new key.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    #[must_use]
    pub fn draw_key() -> [u8; KEY_LEN] {
        random_bytes(&SystemRandom::new())
    }

    /// One that seals with `key` and also opens what `previous` keys sealed.
    #[must_use]
    pub fn new(key: [u8; KEY_LEN], previous: impl IntoIterator<Item = [u8; KEY_LEN]>) -> Self {
        Self {
            current: Key::new(&key),
            previous: previous.into_iter().map(|key| Key::new(&key)).collect(),
            random: SystemRandom::new(),
        }
    }

    /// What stands for the key that it seals with, and for each that it knows, that one first. None says anything of a key
    /// but whether two are the same.
    #[must_use]
    pub fn known_keys(&self) -> Vec<String> {
        let keys = std::iter::once(&self.current).chain(&self.previous);
        keys.map(|key| key.id.iter().map(|byte| format!("{byte:02x}")).collect()).collect()
    }

    /// A token for `plain`. More than fits ([`MAX_PLAIN`] bytes for most purposes) makes a token that is never opened.
    ///
    /// Nonces are random: with 2^32 tokens under one key, two share one with a probability of 2^-33.
    ///
    /// # Panics
    /// When the system gives no random bytes.
    #[must_use]
    pub fn seal(&self, purpose: Purpose, plain: &[u8]) -> String {
        let nonce: [u8; NONCE_LEN] = random_bytes(&self.random);
        let mut token = Vec::with_capacity(ID_LEN + NONCE_LEN + plain.len() + TAG_LEN);
        token.extend_from_slice(&self.current.id);
        token.extend_from_slice(&nonce);
        let mut body = plain.to_vec();
        self.current
            .key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(bound(purpose, self.current.id)),
                &mut body,
            )
            .expect("the message is far below the cipher's limit");
        token.append(&mut body);
        URL_SAFE_NO_PAD.encode(token)
    }

    /// What was sealed in `token` for this purpose; `None` for everything that this sealer's keys have not made.
    #[must_use]
    pub fn open(&self, purpose: Purpose, token: &str) -> Option<Vec<u8>> {
        if token.len() > purpose.longest() {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (id, rest) = bytes.split_first_chunk::<ID_LEN>()?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>()?;
        let known = |key: &&Key| key.id == *id;
        std::iter::once(&self.current).chain(&self.previous).filter(known).find_map(|key| {
            let mut body = body.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let plain = key.key.open_in_place(nonce, Aad::from(bound(purpose, *id)), &mut body).ok()?.len();
            body.truncate(plain);
            Some(body)
        })
    }
}

impl Sealer {
    /// Signs a text for those who have the same key: HMAC-SHA256 under a key that is derived for this alone.
    #[must_use]
    pub fn sign(&self, text: &[u8]) -> [u8; 32] {
        let mut signature = [0; 32];
        signature.copy_from_slice(hmac::sign(&self.current.signing, text).as_ref());
        signature
    }

    /// Whether somebody signed it who has one of the keys. How long that takes tells nothing of the signature.
    #[must_use]
    pub fn is_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        let is_by = |key: &Key| hmac::verify(&key.signing, text, signature).is_ok();
        is_by(&self.current) || self.previous.iter().any(is_by)
    }

    /// As many random bytes.
    ///
    /// # Panics
    /// When the system gives none.
    #[must_use]
    pub fn nonce(&self) -> [u8; 16] {
        random_bytes(&self.random)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl Key {
    fn new(key: &[u8; KEY_LEN]) -> Self {
        let id = *digest(&SHA256, key).as_ref().first_chunk().expect("SHA-256 has 32 bytes");
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"taskgate");
        let derived = salt.extract(key);
        let signing = derived.expand(&[SIGNING], hmac::HMAC_SHA256).expect("one block is not too long").into();
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes"));
        Self { id, key, signing }
    }
}

/// What a token can't be moved away from.
fn bound(purpose: Purpose, id: [u8; ID_LEN]) -> [u8; 1 + ID_LEN] {
    let [a, b, c, d] = id;
    [purpose as u8, a, b, c, d]
}

fn random_bytes<const N: usize>(random: &SystemRandom) -> [u8; N] {
    let mut bytes = [0; N];
    random.fill(&mut bytes).expect("a system without random bytes keeps no secrets");
    bytes
}

#[cfg(test)]
mod tests;
