//! From a request's credentials to a caller. What a credential is worth is decided here and nowhere else.
//!
//! All refusals are alike towards the caller: nothing tells a missing key from one that used to be valid, except that a
//! challenge names an error only where there was something to be wrong (RFC 6750, 3.1).

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};

use crate::tenant::{Caller, Principal};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Which credentials are taken.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The keys. With none, every request is refused.
    pub api_keys: Vec<ApiKey>,
}

/// A key, known by its digest alone.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// The tenant of whoever shows it.
    pub tenant: Arc<str>,
    /// The name of whoever shows it.
    pub subject: Arc<str>,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("tenant", &self.tenant).field("subject", &self.subject).finish_non_exhaustive()
    }
}

/// A request without credentials that are good for anything: HTTP 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has none, or only a kind that is not taken.
    #[error("the request has no credentials that are taken here")]
    Missing,
    /// It has some, and they are malformed, contradictory or unknown.
    #[error("the request's credentials are not valid")]
    Invalid,
}

impl Refused {
    /// The value of `WWW-Authenticate`. RFC 6750, 3: the scheme is followed by at least one parameter; 3.1: no error
    /// where there were no credentials.
    #[must_use]
    pub const fn challenge(self) -> &'static str {
        match self {
            Self::Missing => r#"Bearer realm="taskgate""#,
            Self::Invalid => r#"Bearer realm="taskgate", error="invalid_token""#,
        }
    }
}

/// The value of `WWW-Authenticate` for a credential that is valid and not good for this (RFC 6750, 3.1): HTTP 403.
#[must_use]
pub fn insufficient_scope(needed: &str) -> String {
    format!(r#"Bearer realm="taskgate", error="insufficient_scope", scope="{needed}""#)
}

/// Decides who calls.
#[derive(Debug)]
pub struct Authenticator {
    anonymous: Arc<Caller>,
    /// `None`: callers are not authenticated.
    keys: Option<Vec<([u8; 32], Arc<Caller>)>>,
}

impl Authenticator {
    /// One that takes the configured credentials, or without a configuration lets everybody in as nobody.
    #[must_use]
    pub fn new(config: Option<Config>) -> Self {
        let caller = |principal| Arc::new(Caller::of(Arc::new(principal)));
        let of_key = |key: ApiKey| (key.sha256, caller(Principal::of_api_key(key.tenant, key.subject)));
        let keys = config.map(|config| config.api_keys.into_iter().map(of_key).collect());
        Self { anonymous: caller(Principal::anonymous()), keys }
    }

    /// Whether callers have to show who they are.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.keys.is_some()
    }

    /// The caller behind a request, who shows a key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`.
    ///
    /// # Errors
    /// [`Refused`] for anything but exactly one known key.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Arc<Caller>, Refused> {
        let Some(keys) = &self.keys else { return Ok(Arc::clone(&self.anonymous)) };
        let shown = sha256(credential(headers)?);
        find(keys, &shown).ok_or(Refused::Invalid)
    }
}

/// The SHA-256 of a secret.
#[must_use]
pub fn sha256(secret: &[u8]) -> [u8; 32] {
    *digest(&SHA256, secret).as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// Compares digests in a time that does not depend on where they differ.
#[must_use]
pub fn same_digest(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right));
    black_box(difference) == 0
}

/// Looks at every key whether or not one was found, so that time does not tell which one it was.
fn find(keys: &[([u8; 32], Arc<Caller>)], shown: &[u8; 32]) -> Option<Arc<Caller>> {
    let mut found = usize::MAX;
    for (index, (known, _)) in keys.iter().enumerate() {
        let mask = usize::from(same_digest(known, shown)).wrapping_neg();
        found = (found & !mask) | (index & mask);
    }
    keys.get(found).map(|(_, caller)| Arc::clone(caller))
}

/// The one credential that a request shows. Saying the same twice is no contradiction.
fn credential(headers: &HeaderMap) -> Result<&[u8], Refused> {
    let bearers = headers.get_all(AUTHORIZATION).iter().filter_map(bearer);
    let keys = headers.get_all(X_API_KEY).iter().map(|value| value.as_bytes().trim_ascii());
    let mut shown = None;
    for credential in bearers.chain(keys) {
        let well_formed = !credential.is_empty() && credential.iter().all(u8::is_ascii_graphic);
        if !well_formed || shown.is_some_and(|shown| shown != credential) {
            return Err(Refused::Invalid);
        }
        shown = Some(credential);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str, tenant: &str, subject: &str) -> ApiKey {
        ApiKey { sha256: sha256(secret.as_bytes()), tenant: Arc::from(tenant), subject: Arc::from(subject) }
    }

    fn authenticator() -> Authenticator {
        let api_keys = vec![key("one", "acme", "ci"), key("two", "acme", "ops"), key("three", "other", "ci")];
        Authenticator::new(Some(Config { api_keys }))
    }

    fn authenticate(headers: &[(&str, &str)]) -> Result<String, Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        let principal = Arc::clone(&authenticator().authenticate(&map)?.principal);
        assert!(principal.authenticated);
        Ok(format!("{}/{}", principal.tenant, principal.subject))
    }

    #[test]
    fn sha_256_is_the_one_that_people_compute() {
        let hex: String = sha256(b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_known_key_is_taken_in_either_header() {
        for (headers, who) in [
            (vec![("authorization", "Bearer one")], "acme/ci"),
            (vec![("authorization", "bearer two")], "acme/ops"),
            (vec![("authorization", "BEARER   three  ")], "other/ci"),
            (vec![("x-api-key", "one")], "acme/ci"),
            (vec![("x-api-key", " three ")], "other/ci"),
            (vec![("authorization", "Bearer one"), ("x-api-key", "one")], "acme/ci"),
            (vec![("authorization", "Basic b25lOg=="), ("x-api-key", "one")], "acme/ci"),
        ] {
            assert_eq!(authenticate(&headers).as_deref(), Ok(who), "{headers:?}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for headers in [vec![], vec![("authorization", "Basic b25lOg==")], vec![("authorization", "one")]] {
            assert_eq!(authenticate(&headers), Err(Refused::Missing), "{headers:?}");
        }
        for headers in [
            vec![("authorization", "Bearer")],
            vec![("authorization", "Bearer ")],
            vec![("authorization", "Bearer four")],
            vec![("authorization", "Bearer one two")],
            vec![("authorization", "Bearer One")],
            vec![("x-api-key", "")],
            vec![("x-api-key", "Bearer one")],
            vec![("x-api-key", "one\ttwo")],
            vec![("authorization", "Bearer one"), ("x-api-key", "two")],
            vec![("authorization", "Bearer one"), ("authorization", "Bearer two")],
            vec![("x-api-key", "one"), ("x-api-key", "four")],
            vec![("authorization", "Bearer one"), ("x-api-key", "")],
        ] {
            assert_eq!(authenticate(&headers), Err(Refused::Invalid), "{headers:?}");
        }
        for tokens in ["Bearerone", "Bearer\tone"] {
            assert!(authenticate(&[("authorization", tokens)]).is_err(), "{tokens}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_bytes(b"Bearer \xff\xfe").unwrap());
        assert_eq!(authenticator().authenticate(&headers).unwrap_err(), Refused::Invalid);
    }

    #[test]
    fn without_a_configuration_everybody_is_nobody() {
        let authenticator = Authenticator::new(None);
        assert!(!authenticator.is_required());
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer one"));
        for headers in [headers, HeaderMap::new()] {
            assert_eq!(*authenticator.authenticate(&headers).unwrap().principal, Principal::anonymous());
        }
    }

    #[test]
    fn a_configuration_without_keys_lets_nobody_in() {
        let authenticator = Authenticator::new(Some(Config::default()));
        assert!(authenticator.is_required());
        let mut headers = HeaderMap::new();
        assert_eq!(authenticator.authenticate(&headers).unwrap_err(), Refused::Missing);
        headers.append(X_API_KEY, HeaderValue::from_static("one"));
        assert_eq!(authenticator.authenticate(&headers).unwrap_err(), Refused::Invalid);
    }

    #[test]
    fn digests_differ_wherever_they_differ() {
        let digest = sha256(b"x");
        assert!(same_digest(&digest, &digest));
        for bit in 0..256 {
            let mut other = digest;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!same_digest(&digest, &other), "{bit}");
        }
    }

    #[test]
    fn neither_keys_nor_digests_are_shown() {
        let shown = format!("{:?} {:?}", authenticator().keys.is_some(), key("one", "acme", "ci"));
        assert_eq!(shown, r#"true ApiKey { tenant: "acme", subject: "ci", .. }"#);
    }
}
