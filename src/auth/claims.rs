//! What a token's claims are worth, wherever they were read: whether it is valid now, whom it is for, and who its bearer is.
//! Pure; every answer that is no says why, for the log of whoever looks for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::clock::Timestamp;
use crate::tenant::{Caller, DEFAULT_TENANT, Principal, Scopes};

use super::resource::Resource;

/// Why a token is refused.
pub(super) type Why = &'static str;

/// The longest name of a caller or client, in bytes.
const LONGEST_NAME: usize = 1 << 10;
/// The longest name of a tenant, in bytes: as in the configuration.
const LONGEST_TENANT: usize = 128;

/// What is asked of claims.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Audiences that are accepted; `None` for the resource itself.
    pub audiences: Option<Vec<String>>,
    /// The claim that names the tenant; without it the tenant is `default`.
    pub tenant_claim: Option<String>,
    /// How far clocks may differ.
    pub leeway: Duration,
}

/// Whether a token is for somebody.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// It names this resource.
    Here,
    /// It names others.
    Elsewhere,
    /// It names nobody.
    Nobody,
}

/// The moment from which a token is not valid any more, leeway included; `None` where it does not say (RFC 7519, 4.1.4).
pub(super) fn expiry(claims: &Map<String, Value>, leeway: Duration) -> Result<Option<Timestamp>, Why> {
    Ok(moment(claims, "exp")?.map(|exp| exp.plus(leeway)))
}

/// Checks `nbf` and `iat` (RFC 7519, 4.1.5 and 4.1.6): what comes from the future is not valid yet.
pub(super) fn check_begun(claims: &Map<String, Value>, leeway: Duration, now: Timestamp) -> Result<(), Why> {
    let latest = now.plus(leeway);
    if moment(claims, "nbf")?.is_some_and(|nbf| nbf > latest) {
        return Err("it is not valid yet");
    }
    if moment(claims, "iat")?.is_some_and(|iat| iat > latest) {
        return Err("it was issued in the future");
    }
    Ok(())
}

/// Compares `aud` (RFC 7519, 4.1.3; RFC 8707).
pub(super) fn audience(claims: &Map<String, Value>, terms: &Terms, resource: &Resource) -> Result<Audience, Why> {
    let is_here = |audience: &str| match &terms.audiences {
        Some(accepted) if !accepted.is_empty() => accepted.iter().any(|accepted| accepted == audience),
        _ => resource.is_named(audience),
    };
    let audiences: Vec<&str> = match claims.get("aud") {
        None => return Ok(Audience::Nobody),
        Some(Value::String(audience)) => vec![audience],
        Some(Value::Array(audiences)) => {
            let texts: Option<Vec<&str>> = audiences.iter().map(Value::as_str).collect();
            texts.ok_or("`aud` is neither a text nor a list of texts")?
        }
        Some(_) => return Err("`aud` is neither a text nor a list of texts"),
    };
    Ok(if audiences.into_iter().any(is_here) { Audience::Here } else { Audience::Elsewhere })
}

/// Who the bearer is. The claims have been believed before.
pub(super) fn caller(
    claims: Map<String, Value>,
    issuer: &Arc<str>,
    terms: &Terms,
    expires: Option<Timestamp>,
) -> Result<Caller, Why> {
    let client = match name(&claims, "client_id")? {
        Some(client) => Some(client),
        None => name(&claims, "azp")?,
    };
    let subject = name(&claims, "sub")?.or(client).ok_or("it names neither a subject nor a client")?;
    let tenant = match &terms.tenant_claim {
        None => DEFAULT_TENANT,
        Some(claim) => text(&claims, claim, LONGEST_TENANT)?.ok_or("it names no tenant")?,
    };
    let principal = Principal::of_token(tenant.into(), Arc::clone(issuer), subject.into(), client.unwrap_or("").into());
    let scopes = scopes(&claims)?;
    Ok(Caller { principal: Arc::new(principal), scopes, claims: Arc::new(Value::Object(claims)), expires })
}

/// `scope` (RFC 9068, 2.2.3), or else `scp`, as some issuers call it.
fn scopes(claims: &Map<String, Value>) -> Result<Scopes, Why> {
    match (claims.get("scope"), claims.get("scp")) {
        (Some(Value::String(scopes)), _) | (None, Some(Value::String(scopes))) => Ok(Scopes::listed(scopes)),
        (None, Some(Value::Array(scopes))) => {
            let scopes: Option<Vec<&str>> = scopes.iter().map(Value::as_str).collect();
            Ok(Scopes::listed(&scopes.ok_or("`scp` is no list of texts")?.join(" ")))
        }
        (None, None) => Ok(Scopes::listed("")),
        _ => Err("its scopes are no text"),
    }
}

/// Somebody's name; `None` where the claim is absent.
pub(super) fn name<'a>(claims: &'a Map<String, Value>, claim: &str) -> Result<Option<&'a str>, Why> {
    text(claims, claim, LONGEST_NAME)
}

/// A claim that can stand in a line of a log.
fn text<'a>(claims: &'a Map<String, Value>, claim: &str, longest: usize) -> Result<Option<&'a str>, Why> {
    match claims.get(claim) {
        None => Ok(None),
        Some(Value::String(text)) if (1..=longest).contains(&text.len()) && !text.contains(char::is_control) => {
            Ok(Some(text))
        }
        Some(_) => Err("a claim that names somebody is no text, empty, too long, or has control characters"),
    }
}

/// A `NumericDate`: seconds since the epoch, maybe with a fraction (RFC 7519, 2).
fn moment(claims: &Map<String, Value>, claim: &str) -> Result<Option<Timestamp>, Why> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0).ok_or("a moment is no number")?;
    // Far past any year that is written with four digits, and exact in milliseconds.
    let seconds = Duration::try_from_secs_f64(seconds.min(1e12)).map_err(|_| "a moment is no number")?;
    Ok(Some(Timestamp::from_millis(0).plus(seconds)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource;
    use super::*;

    fn of(value: Value) -> Map<String, Value> {
        let Value::Object(members) = value else { panic!("{value}") };
        members
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    const LEEWAY: Duration = Duration::from_secs(30);

    #[test]
    fn moments_are_seconds_and_may_have_fractions() {
        let expires = |exp: Value| expiry(&of(json!({"exp": exp})), LEEWAY);
        assert_eq!(expires(json!(100)), Ok(Some(at(130))));
        assert_eq!(expires(json!(100.5)), Ok(Some(Timestamp::from_millis(130_500))));
        assert!(expires(json!(1e300)).unwrap().unwrap() > at(4_000_000_000));
        assert_eq!(expiry(&Map::new(), LEEWAY), Ok(None));
        for bad in [json!("100"), json!(-1), json!(null), json!([100]), json!(true)] {
            assert!(expires(bad).is_err());
        }
    }

    #[test]
    fn what_comes_from_the_future_is_not_valid_yet() {
        let check = |claims: Value| check_begun(&of(claims), LEEWAY, at(100));
        for good in [json!({}), json!({"nbf": 130}), json!({"iat": 130}), json!({"nbf": 0, "iat": 0})] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in [json!({"nbf": 131}), json!({"iat": 131}), json!({"nbf": "0"}), json!({"iat": null})] {
            assert!(check(bad).is_err());
        }
    }

    #[test]
    fn a_token_is_for_those_whom_it_names() {
        let resource = Resource::new(0, &resource::Config { url: "https://a/mcp".to_owned(), ..Default::default() });
        let check = |accepted: Option<&[&str]>, claims: Value| {
            let audiences = accepted.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            audience(&of(claims), &Terms { audiences, ..Terms::default() }, &resource)
        };
        assert_eq!(check(None, json!({"aud": "https://a/mcp"})), Ok(Audience::Here));
        assert_eq!(check(None, json!({"aud": ["x", "https://a/mcp/"]})), Ok(Audience::Here));
        assert_eq!(check(None, json!({"aud": "https://a/other"})), Ok(Audience::Elsewhere));
        assert_eq!(check(None, json!({"aud": []})), Ok(Audience::Elsewhere));
        assert_eq!(check(None, json!({})), Ok(Audience::Nobody));
        assert_eq!(check(Some(&["api"]), json!({"aud": "api"})), Ok(Audience::Here));
        // Configured audiences are compared as they are, and stand in the resource's place.
        for aud in ["https://a/mcp", "api/", "API", ""] {
            assert_eq!(check(Some(&["api"]), json!({"aud": aud})), Ok(Audience::Elsewhere), "{aud}");
        }
        for bad in [json!({"aud": 1}), json!({"aud": ["https://a/mcp", 1]}), json!({"aud": null}), json!({"aud": {}})] {
            assert!(check(None, bad).is_err());
        }
    }

    fn who(claims: Value, tenant_claim: Option<&str>) -> Result<Caller, Why> {
        let terms = Terms { tenant_claim: tenant_claim.map(str::to_owned), ..Terms::default() };
        caller(of(claims), &"https://i".into(), &terms, Some(at(5)))
    }

    #[test]
    fn claims_name_their_bearer() {
        let caller = who(json!({"sub": "ann", "client_id": "app", "azp": "x", "org": "acme"}), Some("org")).unwrap();
        let Principal { tenant, issuer, subject, client, authenticated, .. } = &*caller.principal;
        assert_eq!((&**tenant, &**issuer, &**subject, &**client), ("acme", "https://i", "ann", "app"));
        assert!(*authenticated && caller.expires == Some(at(5)) && caller.claims["org"] == "acme");
        let caller = who(json!({"azp": "robot"}), None).unwrap();
        let Principal { tenant, subject, client, .. } = &*caller.principal;
        assert_eq!((&**tenant, &**subject, &**client), ("default", "robot", "robot"));
        let long = "x".repeat(1025);
        for bad in [
            json!({}),
            json!({"sub": ""}),
            json!({"sub": 7}),
            json!({"sub": "a\nb"}),
            json!({"sub": long}),
            json!({"sub": "a", "client_id": long}),
            json!({"sub": "a", "client_id": ["b"]}),
        ] {
            assert!(who(bad.clone(), None).is_err(), "{bad}");
        }
        let long = "x".repeat(129);
        for org in [json!(null), json!(""), json!(1), json!(long), json!(["acme"]), json!("a\u{0}")] {
            assert!(who(json!({"sub": "a", "org": org}), Some("org")).is_err(), "{org}");
        }
        assert!(who(json!({"sub": "a"}), Some("org")).is_err());
    }

    #[test]
    fn scopes_are_read_in_either_place() {
        let scopes = |claims: Value| {
            let mut claims = claims;
            claims["sub"] = json!("a");
            who(claims, None).map(|caller| caller.scopes)
        };
        assert_eq!(scopes(json!({"scope": "b a"})), Ok(Scopes::listed("a b")));
        assert_eq!(scopes(json!({"scope": "a", "scp": ["b"]})), Ok(Scopes::listed("a")));
        assert_eq!(scopes(json!({"scp": ["a", "b"]})), Ok(Scopes::listed("a b")));
        assert_eq!(scopes(json!({"scp": "a b"})), Ok(Scopes::listed("a b")));
        assert_eq!(scopes(json!({})), Ok(Scopes::listed("")));
        for bad in [json!({"scope": ["a"]}), json!({"scope": null}), json!({"scp": 1}), json!({"scp": ["a", 1]})] {
            assert!(scopes(bad.clone()).is_err(), "{bad}");
        }
    }
}
