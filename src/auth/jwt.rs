//! Tokens that are signed by an issuer (RFC 7519; RFC 9068; RFC 8725).
//!
//! A token's own word decides one thing only: which issuer is asked. Keys, algorithms and audiences are that issuer's as they
//! are configured; a key or a place of keys in a token's header is never looked at.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::clock::{Clock, Timestamp};
use crate::oauth::fetch::Fetcher;
use crate::tenant::Caller;

use super::algorithm::Algorithm;
use super::cache::{Cache, Key};
use super::claims::{self, Audience, Terms, Why};
use super::keys::source::Keys;
use super::keys::{Check, KeySet, Source, Unusable};
use super::members;
use super::resource::Resource;
use super::{Entry, Failure};

/// An issuer whose tokens are accepted.
#[derive(Debug, Clone)]
pub struct Issuer {
    /// Its name, exactly as its tokens spell it.
    pub issuer: Arc<str>,
    /// Where its keys are.
    pub source: Source,
    /// How its tokens may be signed.
    pub algorithms: Vec<Algorithm>,
    /// What is asked of its tokens.
    pub terms: Terms,
}

/// The issuers.
#[derive(Debug)]
pub(super) struct Issuers {
    all: Vec<(Issuer, Arc<Keys>)>,
    cache: Arc<Cache<Entry>>,
    clock: Clock,
    /// Signatures are checked in turn by those who show the same token: only the first one has to.
    turns: [Mutex<()>; TURNS],
}

const TURNS: usize = 64;

/// A token in its parts.
#[derive(Debug)]
struct Token<'a> {
    /// What is signed.
    input: &'a [u8],
    signature: Vec<u8>,
    algorithm: Algorithm,
    key: Option<String>,
    claims: Map<String, Value>,
}

/// Whether a credential has the form of such a token: three parts, and the first is a header.
pub(super) fn is_shaped(token: &str) -> bool {
    let mut parts = token.split('.');
    let (header, rest) = (parts.next().unwrap_or_default(), parts.count());
    rest == 2 && URL_SAFE_NO_PAD.decode(header).is_ok_and(|header| members::read(&header).is_some())
}

impl Issuers {
    /// The issuers. Keys in files are read now.
    pub(super) fn new(
        issuers: Vec<Issuer>,
        fetcher: &Fetcher,
        cache: Arc<Cache<Entry>>,
        clock: Clock,
    ) -> Result<Self, Unusable> {
        let with_keys = |issuer: Issuer| {
            let keys = Keys::new(Arc::clone(&issuer.issuer), issuer.source.clone(), fetcher.clone())?;
            Ok((issuer, Arc::new(keys)))
        };
        let all = issuers.into_iter().map(with_keys).collect::<Result<_, Unusable>>()?;
        Ok(Self { all, cache, clock, turns: std::array::from_fn(|_| Mutex::new(())) })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The keys of each, which have a job to do.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Arc<Keys>> {
        self.all.iter().map(|(_, keys)| keys)
    }

    /// Whether an issuer's keys are still those of then.
    pub(super) fn is_current(&self, issuer: usize, generation: u64) -> bool {
        self.all.get(issuer).is_some_and(|(_, keys)| keys.generation() == generation)
    }

    /// Who shows this token; remembered until it expires.
    pub(super) async fn verify(&self, token: &str, key: Key, resource: &Resource) -> Result<Arc<Caller>, Failure> {
        let token = Token::parse(token).map_err(Failure::Refused)?;
        let its_issuer = token.claims.get("iss").and_then(Value::as_str).unwrap_or_default();
        let known = self.all.iter().enumerate().find(|(_, (issuer, _))| *issuer.issuer == *its_issuer);
        let Some((number, (issuer, keys))) = known else {
            return Err(Failure::Refused("its issuer is not one of those that are configured"));
        };
        let expires = issuer.check(&token, resource, self.clock.now()).map_err(Failure::Refused)?;
        let trial = Trial { token: &token, key, issuer, number, expires };
        let mut has_waited = keys.current().is_none() && keys.refetched().await;
        loop {
            // In this order: a set that comes in between makes what is remembered old, never new.
            let generation = keys.generation();
            let set = keys.current().ok_or(Failure::Unavailable)?;
            match self.settle(&trial, &set, generation) {
                Some(settled) => return settled,
                None if !has_waited && keys.refetched().await => has_waited = true,
                None => return Err(Failure::Refused("its key is not among its issuer's")),
            }
        }
    }

    /// Checks the signature, unless somebody else has done so by now; `None` when the key is not there.
    fn settle(&self, trial: &Trial<'_>, set: &KeySet, generation: u64) -> Option<Result<Arc<Caller>, Failure>> {
        let Trial { token, key, issuer, number, expires } = trial;
        let [first, ..] = key.digest;
        let turn = self.turns.get(usize::from(first) % TURNS)?;
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.cache.get(key).filter(|entry| entry.checked == Some((*number, generation)));
        if let Some(entry) = known {
            return Some(Ok(entry.caller));
        }
        match set.check(token.key.as_deref(), token.algorithm, token.input, &token.signature) {
            Check::Good => {}
            Check::Bad => return Some(Err(Failure::Refused("its signature is not its issuer's"))),
            Check::Unknown => return None,
        }
        let caller = claims::caller(token.claims.clone(), &issuer.issuer, &issuer.terms, Some(*expires));
        let caller = match caller {
            Ok(caller) => Arc::new(caller),
            Err(why) => return Some(Err(Failure::Refused(why))),
        };
        let checked = Some((*number, generation));
        self.cache.put(*key, Entry { caller: Arc::clone(&caller), until: *expires, checked });
        Some(Ok(caller))
    }
}

/// A token whose claims would do, before its signature has been checked.
struct Trial<'a> {
    token: &'a Token<'a>,
    key: Key,
    issuer: &'a Issuer,
    number: usize,
    expires: Timestamp,
}

impl Issuer {
    /// Everything but the signature: cheap, so that it comes first. Gives the moment from which the token is not valid.
    fn check(&self, token: &Token<'_>, resource: &Resource, now: Timestamp) -> Result<Timestamp, Why> {
        if !self.algorithms.contains(&token.algorithm) {
            return Err("its algorithm is not one of those that are configured");
        }
        let expires = claims::expiry(&token.claims, self.terms.leeway)?.ok_or("it never expires")?;
        if expires <= now {
            return Err("it has expired");
        }
        claims::check_begun(&token.claims, self.terms.leeway, now)?;
        match claims::audience(&token.claims, &self.terms, resource)? {
            Audience::Here => Ok(expires),
            Audience::Elsewhere => Err("it is for others"),
            Audience::Nobody => Err("it has no audience"),
        }
    }
}

impl<'a> Token<'a> {
    fn parse(token: &'a str) -> Result<Self, Why> {
        let (input, signature) = token.rsplit_once('.').ok_or("it is no JWT")?;
        let (header, claims) = input.split_once('.').ok_or("it is no JWT")?;
        let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not in base64url");
        let header = members::read(&bytes(header)?).ok_or("its header is no object with each member once")?;
        let claims = members::read(&bytes(claims)?).ok_or("its claims are no object with each member once")?;
        // RFC 7515, 4.1.11: whoever does not understand one of them must refuse. None is understood.
        if header.contains_key("crit") {
            return Err("it has critical extensions");
        }
        if !is_access_token(&header, &claims) {
            return Err("it is a token of another kind");
        }
        let key = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err("the name of its key is no text"),
        };
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::named);
        let algorithm = algorithm.ok_or("it is not signed by an algorithm with public keys")?;
        Ok(Self { input: input.as_bytes(), signature: bytes(signature)?, algorithm, key, claims })
    }
}

/// Explicit types tell kinds of tokens apart (RFC 8725, 3.11; RFC 9068, 2.1); media types have no case. Without one, what
/// only ID tokens have (OpenID Connect Core, 3.1.3.6 and 3.3.2.11; `typ` as some issuers write it) tells them.
fn is_access_token(header: &Map<String, Value>, claims: &Map<String, Value>) -> bool {
    let kind = match header.get("typ") {
        None => "JWT",
        Some(Value::String(kind)) => kind,
        Some(_) => return false,
    };
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|known| known.eq_ignore_ascii_case(kind));
    let is_id_token = ["at_hash", "c_hash"].iter().any(|claim| claims.contains_key(*claim))
        || claims.get("typ").is_some_and(|kind| kind == "ID");
    is_one_of(&["at+jwt", "application/at+jwt"]) || (is_one_of(&["JWT"]) && !is_id_token)
}
