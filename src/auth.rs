//! From a request's credentials to a caller. What a credential is worth is decided here and nowhere else.
//!
//! All refusals are alike towards the caller: nothing tells a missing key from one that used to be valid, except that a
//! challenge names an error only where there was something to be wrong (RFC 6750, 3.1).

pub mod algorithm;
pub mod claims;
pub mod introspection;
pub mod jwt;
pub mod keys;
pub mod resource;

mod api_key;
mod cache;
mod members;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::{Clock, Timestamp};
use crate::jobs::Jobs;
use crate::oauth::fetch::Fetcher;
use crate::tenant::{Caller, Principal};

use cache::{Cache, Key};
use claims::Why;
use introspection::Introspector;
use jwt::Issuers;
use resource::Resource;

pub use api_key::{ApiKey, same_digest, sha256};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The longest credential in bytes. Nobody's token comes near, and a head has no room for many more.
const LONGEST: usize = 16 << 10;
/// Tokens that are remembered.
const REMEMBERED: usize = 10_000;

/// Which credentials are taken.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The keys.
    pub api_keys: Vec<ApiKey>,
    /// The issuers whose signed tokens are taken.
    pub issuers: Vec<jwt::Issuer>,
    /// The server that knows of all other tokens.
    pub introspection: Option<introspection::Config>,
    /// The scopes that every token must have.
    pub required_scopes: Vec<String>,
}

/// A request whose credentials are not good for what it wants, or can't be told from such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has none, or only a kind that is not taken: HTTP 401.
    #[error("the request has no credentials that are taken here")]
    Missing,
    /// It has some, and they are malformed, contradictory, unknown, expired or meant for others: HTTP 401.
    #[error("the request's credentials are not valid")]
    Invalid,
    /// They lack scopes that every request needs: HTTP 403.
    #[error("the request's credentials lack scopes")]
    Scopes,
    /// Nobody can tell at the moment: HTTP 503. A 401 would make the client throw away a token that may be good.
    #[error("the server that knows the request's credentials can't be reached")]
    Unavailable,
}

/// Why a token has no bearer.
#[derive(Debug)]
enum Failure {
    Refused(Why),
    Unavailable,
}

/// What is remembered of a token that was good. It stays, as long as there is room, when it has to be checked again.
#[derive(Debug, Clone)]
struct Entry {
    /// Its bearer.
    caller: Arc<Caller>,
    /// From then on it has to be checked again.
    until: Timestamp,
    /// By which issuer's keys it was checked, and in which generation of them.
    checked: Option<(usize, u64)>,
}

/// Decides who calls.
#[derive(Debug)]
pub struct Authenticator {
    anonymous: Arc<Caller>,
    /// `None`: callers are not authenticated.
    checks: Option<Checks>,
}

#[derive(Debug)]
struct Checks {
    keys: Vec<([u8; 32], Arc<Caller>)>,
    /// `None`: only keys are taken.
    tokens: Option<Tokens>,
    required: Vec<String>,
}

#[derive(Debug)]
struct Tokens {
    clock: Clock,
    cache: Arc<Cache<Entry>>,
    issuers: Issuers,
    introspector: Option<Arc<Introspector>>,
}

/// What can be said of a request's credentials at once.
#[derive(Debug)]
pub enum Seen<'a> {
    /// Whose they are.
    Caller(Arc<Caller>),
    /// A token that has to be checked: [`Authenticator::verify`].
    New(NewToken<'a>),
}

/// A token that is not known.
pub struct NewToken<'a> {
    text: &'a str,
    digest: [u8; 32],
}

impl std::fmt::Debug for NewToken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewToken")
    }
}

impl Authenticator {
    /// One that takes the configured credentials, or without a configuration lets everybody in as nobody. Keys in files are
    /// read now; jobs fetch the others when they are needed.
    ///
    /// # Errors
    /// [`keys::Unusable`] for a file without keys.
    pub fn new(config: Option<Config>, clock: Clock, jobs: &Jobs) -> Result<Self, keys::Unusable> {
        let anonymous = Arc::new(Caller::of(Arc::new(Principal::anonymous())));
        let checks = config.map(|config| Checks::new(config, clock, jobs)).transpose()?;
        Ok(Self { anonymous, checks })
    }

    /// Looks at a request's credentials: a key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`, or a token as
    /// `Authorization: Bearer TOKEN`. What is known is found here, by one digest and one look-up.
    ///
    /// # Errors
    /// [`Refused::Missing`], or [`Refused::Invalid`] for anything but exactly one credential that may be good.
    pub fn see<'a>(&self, resource: &Resource, headers: &'a HeaderMap) -> Result<Seen<'a>, Refused> {
        let Some(checks) = &self.checks else { return Ok(Seen::Caller(Arc::clone(&self.anonymous))) };
        let shown = credential(headers)?;
        if shown.text.len() > LONGEST {
            return Err(Refused::Invalid);
        }
        let digest = sha256(shown.text);
        if let Some(caller) = api_key::find(&checks.keys, &digest) {
            return Ok(Seen::Caller(caller));
        }
        let (Some(tokens), true) = (&checks.tokens, shown.is_bearer) else { return Err(Refused::Invalid) };
        match tokens.recall(&Key { digest, resource: resource.number() }) {
            Some(Some(caller)) => Ok(Seen::Caller(caller)),
            Some(None) => Err(Refused::Invalid),
            None => {
                let text = str::from_utf8(shown.text).map_err(|_| Refused::Invalid)?;
                Ok(Seen::New(NewToken { text, digest }))
            }
        }
    }

    /// Finds out whose a token is. It is remembered from then on.
    ///
    /// # Errors
    /// [`Refused::Invalid`] for a token that is not valid for this resource now, [`Refused::Unavailable`] when that can't be
    /// told.
    pub async fn verify(&self, resource: &Arc<Resource>, token: NewToken<'_>) -> Result<Arc<Caller>, Refused> {
        let tokens = self.checks.as_ref().and_then(|checks| checks.tokens.as_ref()).ok_or(Refused::Invalid)?;
        let key = Key { digest: token.digest, resource: resource.number() };
        let verified = match &tokens.introspector {
            _ if !tokens.issuers.is_empty() && jwt::is_shaped(token.text) => {
                tokens.issuers.verify(token.text, key, resource).await
            }
            Some(introspector) => introspector.ask(token.text, key, resource).await,
            None => Err(Failure::Refused("it is no JWT")),
        };
        verified.map_err(|failure| match failure {
            Failure::Refused(why) => {
                tracing::debug!(why, resource = resource.url(), "a token is refused");
                Refused::Invalid
            }
            Failure::Unavailable => Refused::Unavailable,
        })
    }

    /// Checks that a caller has the scopes that every token must have.
    ///
    /// # Errors
    /// [`Refused::Scopes`]
    pub fn permit(&self, caller: &Caller) -> Result<(), Refused> {
        let required = self.checks.iter().flat_map(|checks| &checks.required);
        let has_all = required.into_iter().all(|scope| caller.scopes.contain(scope));
        if has_all { Ok(()) } else { Err(Refused::Scopes) }
    }
}

impl Checks {
    fn new(config: Config, clock: Clock, jobs: &Jobs) -> Result<Self, keys::Unusable> {
        let of_key = |key: ApiKey| {
            let principal = Principal::of_api_key(key.tenant, key.subject);
            (key.sha256, Arc::new(Caller::of(Arc::new(principal))))
        };
        let has_tokens = !config.issuers.is_empty() || config.introspection.is_some();
        let keys = config.api_keys.into_iter().map(of_key).collect();
        let tokens = has_tokens.then(|| Tokens::new(config.issuers, config.introspection, clock, jobs)).transpose()?;
        Ok(Self { keys, tokens, required: config.required_scopes })
    }
}

impl Tokens {
    fn new(
        issuers: Vec<jwt::Issuer>,
        introspection: Option<introspection::Config>,
        clock: Clock,
        jobs: &Jobs,
    ) -> Result<Self, keys::Unusable> {
        let (fetcher, cache) = (Fetcher::new(), Arc::new(Cache::new(REMEMBERED)));
        let others = issuers.iter().map(|issuer| Arc::clone(&issuer.issuer)).collect();
        let issuers = Issuers::new(issuers, &fetcher, Arc::clone(&cache), clock)?;
        for keys in issuers.keys() {
            jobs.spawn("keys of an issuer", Arc::clone(keys).run(jobs.stopping().clone()));
        }
        let parts = introspection::Parts { others, fetcher, cache: Arc::clone(&cache), clock, jobs: jobs.clone() };
        let introspector = introspection.map(|config| Introspector::new(config, parts));
        Ok(Self { clock, cache, issuers, introspector })
    }

    /// What is known of a token: its bearer, or that it is none.
    fn recall(&self, key: &Key) -> Option<Option<Arc<Caller>>> {
        let is_good = |entry: &Entry| {
            entry.until > self.clock.now()
                && entry.checked.is_none_or(|(issuer, generation)| self.issuers.is_current(issuer, generation))
        };
        match self.cache.get(key).filter(is_good) {
            Some(entry) => Some(Some(entry.caller)),
            None => self.introspector.as_ref()?.refuses(key).map(|_| None),
        }
    }
}

/// What a request shows.
struct Credential<'a> {
    text: &'a [u8],
    /// As a bearer token; keys alone may come in another way.
    is_bearer: bool,
}

/// The one credential that a request shows. Saying the same twice is no contradiction.
fn credential(headers: &HeaderMap) -> Result<Credential<'_>, Refused> {
    let bearers = headers.get_all(AUTHORIZATION).iter().filter_map(bearer).map(|text| (text, true));
    let keys = headers.get_all(X_API_KEY).iter().map(|value| (value.as_bytes().trim_ascii(), false));
    let mut shown: Option<Credential<'_>> = None;
    for (text, is_bearer) in bearers.chain(keys) {
        let well_formed = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
        if !well_formed || shown.as_ref().is_some_and(|shown| shown.text != text) {
            return Err(Refused::Invalid);
        }
        let is_bearer = is_bearer || shown.is_some_and(|shown| shown.is_bearer);
        shown = Some(Credential { text, is_bearer });
    }
    shown.ok_or(Refused::Missing)
}

/// What follows the scheme, or `None` where the scheme is another one. The scheme has no case (RFC 9110, 11.1).
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let value = value.as_bytes().trim_ascii();
    let (scheme, rest) = value.split_at_checked(6)?;
    let ends = rest.first().is_none_or(|byte| *byte == b' ');
    (ends && scheme.eq_ignore_ascii_case(b"bearer")).then(|| rest.trim_ascii_start())
}
