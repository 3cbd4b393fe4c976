//! What credentials are worth: keys here, tokens and their issuers' keys below.

mod keys;
#[path = "../../tests/it/support/keys.rs"]
mod signing;
mod sources;
mod tokens;

use super::*;

fn key(secret: &str, tenant: &str, subject: &str) -> ApiKey {
    ApiKey { sha256: sha256(secret.as_bytes()), tenant: Arc::from(tenant), subject: Arc::from(subject) }
}

fn resource(number: u32, url: &str) -> Arc<Resource> {
    Arc::new(Resource::new(number, &resource::Config { url: url.to_owned(), ..Default::default() }))
}

fn with(config: Option<Config>) -> Authenticator {
    Authenticator::new(config, Clock::system(), &Jobs::default()).unwrap()
}

fn authenticator() -> Authenticator {
    let api_keys = vec![key("one", "acme", "ci"), key("two", "acme", "ops"), key("three", "other", "ci")];
    with(Some(Config { api_keys, required_scopes: vec!["mcp".to_owned()], ..Config::default() }))
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    map
}

fn seen(authenticator: &Authenticator, headers: &HeaderMap) -> Result<Arc<Caller>, Refused> {
    match authenticator.see(&resource(0, "http://a/mcp"), headers)? {
        Seen::Caller(caller) => Ok(caller),
        Seen::New(token) => panic!("{token:?}"),
    }
}

fn authenticate(fields: &[(&str, &str)]) -> Result<String, Refused> {
    let caller = seen(&authenticator(), &headers(fields))?;
    let principal = &caller.principal;
    assert!(principal.authenticated && authenticator().permit(&caller).is_ok());
    Ok(format!("{}/{}", principal.tenant, principal.subject))
}

#[tokio::test]
async fn a_known_key_is_taken_in_either_header() {
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

#[tokio::test]
async fn everything_else_is_refused() {
    for headers in [vec![], vec![("authorization", "Basic b25lOg==")], vec![("authorization", "one")]] {
        assert_eq!(authenticate(&headers), Err(Refused::Missing), "{headers:?}");
    }
    let long = format!("Bearer {}", "x".repeat(LONGEST + 1));
    for headers in [
        vec![("authorization", "Bearer")],
        vec![("authorization", "Bearer ")],
        vec![("authorization", "Bearer four")],
        vec![("authorization", long.as_str())],
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

#[tokio::test]
async fn bytes_that_are_no_text_are_refused() {
    let mut headers = HeaderMap::new();
    headers.append(AUTHORIZATION, HeaderValue::from_bytes(b"Bearer \xff\xfe").unwrap());
    assert_eq!(seen(&authenticator(), &headers).unwrap_err(), Refused::Invalid);
}

#[tokio::test]
async fn without_a_configuration_everybody_is_nobody() {
    let authenticator = with(None);
    for headers in [headers(&[("authorization", "Bearer one")]), HeaderMap::new()] {
        let caller = seen(&authenticator, &headers).unwrap();
        assert_eq!(*caller.principal, Principal::anonymous());
        assert_eq!(authenticator.permit(&caller), Ok(()));
    }
}

#[tokio::test]
async fn a_configuration_without_keys_lets_nobody_in() {
    let authenticator = with(Some(Config::default()));
    assert_eq!(seen(&authenticator, &HeaderMap::new()).unwrap_err(), Refused::Missing);
    assert_eq!(seen(&authenticator, &headers(&[("x-api-key", "one")])).unwrap_err(), Refused::Invalid);
}
