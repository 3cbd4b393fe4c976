//! Signed tokens: every rule, and every way around it that is known.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::signing::{Key, base64url};
use super::{headers, resource};
use crate::auth::algorithm::Algorithm;
use crate::auth::claims::Terms;
use crate::auth::keys::Source;
use crate::auth::{Authenticator, Config, LONGEST, Refused, Resource, Seen, jwt};
use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::tenant::Caller;
use std::sync::Arc;

const ISSUER: &str = "https://login.example.com";
const HERE: &str = "https://mcp.example.com/mcp";

/// An authenticator that takes tokens of one issuer, and a few of another.
struct Stand {
    authenticator: Authenticator,
    here: Arc<Resource>,
    key: Key,
    now: u64,
    _files: TempDir,
}

fn issuer(files: &TempDir, name: &str, keys: &[Value], terms: Terms) -> jwt::Issuer {
    let path = files.path().join(name.rsplit('/').next().unwrap());
    std::fs::write(&path, json!({"keys": keys}).to_string()).unwrap();
    let algorithms = vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];
    jwt::Issuer { issuer: name.into(), source: Source::File(path), algorithms, terms }
}

fn stand_with(key: Key, other: &Key, terms: Terms) -> Stand {
    let files = TempDir::new().unwrap();
    let own = issuer(&files, ISSUER, &[key.jwk()], terms);
    let others = issuer(&files, "https://other.example.com", &[other.jwk()], Terms::default());
    let config = Config { issuers: vec![own, others], ..Config::default() };
    let clock = Clock::system();
    let authenticator = Authenticator::new(Some(config), clock, &Jobs::default()).unwrap();
    Stand { authenticator, here: resource(0, HERE), key, now: clock.now().as_millis() / 1000, _files: files }
}

fn stand() -> Stand {
    let terms = Terms { leeway: Duration::from_secs(30), ..Terms::default() };
    stand_with(Key::new("one", "ES256"), &Key::new("one", "ES256"), terms)
}

impl Stand {
    fn claims(&self) -> Value {
        json!({"iss": ISSUER, "sub": "ann", "aud": HERE, "iat": self.now, "exp": self.now + 600})
    }

    fn token(&self, header: Value, claims: Value) -> String {
        self.key.sign(&with(self.key.header(), header), &with(self.claims(), claims))
    }

    async fn shown_at(&self, resource: &Arc<Resource>, token: &str) -> Result<Arc<Caller>, Refused> {
        let headers = headers(&[("authorization", &format!("Bearer {token}"))]);
        match self.authenticator.see(resource, &headers)? {
            Seen::Caller(caller) => Ok(caller),
            Seen::New(token) => self.authenticator.verify(resource, token).await,
        }
    }

    async fn shown(&self, token: &str) -> Result<Arc<Caller>, Refused> {
        self.shown_at(&self.here, token).await
    }

    #[track_caller]
    fn refuses(&self, token: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move { assert_eq!(self.shown(token).await.err(), Some(Refused::Invalid), "{caller}: {token}") }
    }

    fn is_known(&self, token: &str) -> bool {
        let headers = headers(&[("authorization", &format!("Bearer {token}"))]);
        matches!(self.authenticator.see(&self.here, &headers), Ok(Seen::Caller(_)))
    }
}

/// An object with members changed; `null` takes one away.
fn with(mut object: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("{changes}") };
    let members = object.as_object_mut().unwrap();
    for (name, value) in changes {
        match value {
            Value::Null => members.remove(&name),
            value => members.insert(name, value),
        };
    }
    object
}

#[tokio::test(start_paused = true)]
async fn a_good_token_is_checked_once_and_known_until_it_expires() {
    let stand = stand();
    let token = stand.token(json!({}), json!({"scope": "mcp read"}));
    assert!(!stand.is_known(&token));
    let caller = stand.shown(&token).await.unwrap();
    assert_eq!((&*caller.principal.issuer, &*caller.principal.subject), (ISSUER, "ann"));
    assert!(caller.scopes.contain("read") && caller.claims["aud"] == HERE);
    // The very same caller, so no signature has been checked again.
    assert!(stand.is_known(&token) && Arc::ptr_eq(&caller, &stand.shown(&token).await.unwrap()));
    let end = caller.expires.unwrap();
    assert_eq!(end.as_millis() / 1000, stand.now + 630);
    tokio::time::advance(Duration::from_secs(628)).await;
    assert!(stand.is_known(&token));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(!stand.is_known(&token));
    stand.refuses(&token).await;
}

#[tokio::test]
async fn types_of_other_tokens_are_refused() {
    let stand = stand();
    for typ in [json!("JWT"), json!("jwt"), json!("at+jwt"), json!("application/at+jwt"), json!("AT+JWT"), json!(null)]
    {
        assert!(stand.shown(&stand.token(json!({"typ": typ}), json!({}))).await.is_ok(), "{typ}");
    }
    for typ in
        [json!("id_token+jwt"), json!("dpop+jwt"), json!("logout+jwt"), json!("JOSE"), json!(""), json!(7), json!([])]
    {
        stand.refuses(&stand.token(json!({"typ": typ}), json!({}))).await;
    }
    for claims in [json!({"at_hash": "x"}), json!({"c_hash": "x"}), json!({"typ": "ID"})] {
        for typ in [json!("JWT"), json!(null)] {
            stand.refuses(&stand.token(json!({"typ": typ}), claims.clone())).await;
        }
    }
}

#[tokio::test]
async fn claims_decide() {
    let stand = stand();
    let now = stand.now;
    for good in [
        json!({"exp": now - 20}),
        json!({"nbf": now + 20, "iat": now + 20}),
        json!({"iat": null}),
        json!({"aud": ["x", HERE]}),
        json!({"aud": format!("{HERE}/")}),
    ] {
        assert!(stand.shown(&stand.token(json!({}), good.clone())).await.is_ok(), "{good}");
    }
    for bad in [
        json!({"exp": now - 31}),
        json!({"exp": null}),
        json!({"exp": "9999999999"}),
        json!({"nbf": now + 40}),
        json!({"iat": now + 40}),
        json!({"aud": null}),
        json!({"aud": []}),
        json!({"aud": "https://mcp.example.com/other"}),
        json!({"aud": "https://mcp.example.com"}),
        json!({"aud": {"0": HERE}}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": {"a": 1}}),
        json!({"scope": 7}),
        json!({"iss": null}),
        json!({"iss": "https://login.example.com/"}),
        json!({"iss": "https://LOGIN.example.com"}),
        json!({"iss": [ISSUER]}),
        json!({"iss": "https://other.example.com"}),
    ] {
        stand.refuses(&stand.token(json!({}), bad)).await;
    }
}

#[tokio::test]
async fn members_that_are_there_twice_are_refused() {
    let stand = stand();
    let header = stand.key.header().to_string();
    let claims = stand.claims().to_string();
    assert!(stand.shown(&stand.key.sign_text(&header, &claims)).await.is_ok());
    for twice in ["\"exp\":9999999999", "\"sub\":\"bob\"", "\"\\u0073ub\":\"bob\"", "\"aud\":\"x\""] {
        let claims = format!("{{{twice},{}", &claims[1..]);
        stand.refuses(&stand.key.sign_text(&header, &claims)).await;
    }
    let twice = format!("{{\"alg\":\"none\",{}", &header[1..]);
    stand.refuses(&stand.key.sign_text(&twice, &claims)).await;
    for text in ["[]", "null", "\"x\"", "{}", "", "{\"iss\":"] {
        stand.refuses(&stand.key.sign_text(&header, text)).await;
        stand.refuses(&stand.key.sign_text(text, &claims)).await;
    }
}

#[tokio::test]
async fn a_token_without_a_signature_is_none() {
    let stand = stand();
    for alg in ["none", "None", "nOnE", "", "HS256", "ES384", "RS512", "PS256"] {
        let token = stand.token(json!({"alg": alg}), json!({}));
        let (input, _) = token.rsplit_once('.').unwrap();
        stand.refuses(&token).await;
        stand.refuses(&format!("{input}.")).await;
    }
    for header in [json!({"alg": null}), json!({"alg": ["ES256"]}), json!({"alg": 1})] {
        stand.refuses(&stand.token(header, json!({}))).await;
    }
    let token = stand.token(json!({}), json!({}));
    let (input, signature) = token.rsplit_once('.').unwrap();
    for other in [
        String::new(),
        base64url([0; 64]),
        signature[..40].to_owned(),
        format!("{signature}=="),
        format!("{signature}AA"),
    ] {
        stand.refuses(&format!("{input}.{other}")).await;
    }
    let parts: Vec<&str> = token.split('.').collect();
    for other in [
        parts[1..].join("."),
        format!("{token}."),
        format!(".{token}"),
        format!("{}..{}", parts[0], parts[2]),
        format!("{}.{}.{}", parts[0], parts[0], parts[2]),
        "a.b.c".to_owned(),
        "..".to_owned(),
        "a".repeat(LONGEST),
        format!("{token}{}", "A".repeat(LONGEST)),
    ] {
        stand.refuses(&other).await;
    }
    assert!(stand.shown(&token).await.is_ok());
}

#[tokio::test]
async fn a_public_key_is_no_secret() {
    let terms = Terms::default();
    let stand = stand_with(Key::new("one", "RS256"), &Key::new("x", "EdDSA"), terms);
    let jwk = stand.key.jwk();
    assert!(stand.shown(&stand.token(json!({}), json!({}))).await.is_ok());
    let modulus = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, jwk["n"].as_str().unwrap());
    for secret in [jwk.to_string().into_bytes(), jwk["n"].as_str().unwrap().as_bytes().to_vec(), modulus.unwrap()] {
        for (alg, typ) in [("HS256", "JWT"), ("RS256", "JWT"), ("hs256", "at+jwt")] {
            let header = json!({"alg": alg, "typ": typ, "kid": "one"}).to_string();
            let input = format!("{}.{}", base64url(header), base64url(stand.claims().to_string()));
            let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
            let signature = ring::hmac::sign(&hmac, input.as_bytes());
            stand.refuses(&format!("{input}.{}", base64url(signature))).await;
        }
    }
}

#[tokio::test]
async fn only_the_issuers_own_keys_count() {
    let other = Key::new("one", "ES256");
    let stand = stand_with(Key::new("one", "ES256"), &other, Terms::default());
    let header = stand.key.header();
    // The other issuer's key, under the same name; its own tokens are its own.
    stand.refuses(&other.sign(&header, &stand.claims())).await;
    let theirs = with(stand.claims(), json!({"iss": "https://other.example.com"}));
    stand.refuses(&stand.key.sign(&header, &theirs)).await;
    let (one, two) =
        (stand.shown(&stand.token(json!({}), json!({}))).await, stand.shown(&other.sign(&header, &theirs)).await);
    assert_ne!(one.unwrap().principal.digest(), two.unwrap().principal.digest());
    // Keys that a token brings along, or says where to find.
    let own = Key::new("mine", "ES256");
    for brought in [
        json!({"jwk": own.jwk()}),
        json!({"jku": "https://attacker.example.com/keys"}),
        json!({"x5u": "https://attacker.example.com/cert", "x5c": ["AAAA"]}),
    ] {
        for kid in [json!("one"), json!("mine"), json!(null)] {
            stand
                .refuses(&own.sign(&with(with(header.clone(), brought.clone()), json!({"kid": kid})), &stand.claims()))
                .await;
        }
        // They are not looked at either way.
        assert!(stand.shown(&stand.token(brought, json!({}))).await.is_ok());
    }
    for kid in [
        json!("../../etc/passwd"),
        json!("one' OR '1'='1"),
        json!("one\u{0}"),
        json!("/dev/null"),
        json!(1),
        json!(["one"]),
    ] {
        stand.refuses(&stand.token(json!({"kid": kid}), json!({}))).await;
    }
    for crit in [json!(["exp"]), json!([]), json!("b64")] {
        stand.refuses(&stand.token(json!({"crit": crit}), json!({}))).await;
    }
    assert!(stand.shown(&stand.token(json!({"kid": null}), json!({}))).await.is_ok());
}

#[tokio::test]
async fn a_token_is_for_one_resource_and_for_configured_audiences() {
    let stand = stand();
    let token = stand.token(json!({}), json!({}));
    assert!(stand.shown(&token).await.is_ok());
    let elsewhere = resource(1, "https://mcp.example.com/other");
    assert_eq!(stand.shown_at(&elsewhere, &token).await.unwrap_err(), Refused::Invalid);
    let terms = Terms { audiences: Some(vec!["api".to_owned()]), ..Terms::default() };
    let stand = stand_with(Key::new("one", "EdDSA"), &Key::new("x", "EdDSA"), terms);
    stand.refuses(&stand.token(json!({}), json!({}))).await;
    let token = stand.token(json!({}), json!({"aud": "api"}));
    assert!(stand.shown(&token).await.is_ok() && stand.shown_at(&elsewhere, &token).await.is_ok());
}

#[tokio::test]
async fn keys_take_no_tokens_and_tokens_come_in_one_field() {
    let stand = stand();
    let token = stand.token(json!({}), json!({}));
    let see = |fields: &[(&str, &str)]| {
        let headers = headers(fields);
        stand.authenticator.see(&stand.here, &headers).map(drop)
    };
    let bearer = format!("Bearer {token}");
    assert_eq!(see(&[("x-api-key", &token)]), Err(Refused::Invalid));
    assert_eq!(see(&[("authorization", &bearer)]), Ok(()));
    assert_eq!(see(&[("authorization", &bearer), ("x-api-key", &token)]), Ok(()));
    assert_eq!(see(&[("authorization", &bearer), ("x-api-key", "one")]), Err(Refused::Invalid));
    assert_eq!(see(&[("authorization", &format!("DPoP {token}"))]), Err(Refused::Missing));
}

#[tokio::test]
async fn scopes_that_every_token_must_have() {
    let files = TempDir::new().unwrap();
    let key = Key::new("one", "EdDSA");
    let issuers = vec![issuer(&files, ISSUER, &[key.jwk()], Terms::default())];
    let required_scopes = vec!["mcp".to_owned(), "read".to_owned()];
    let config = Config { issuers, required_scopes, ..Config::default() };
    let mut stand = stand();
    stand.authenticator = Authenticator::new(Some(config), Clock::system(), &Jobs::default()).unwrap();
    stand.key = key;
    for (scope, expected) in
        [("mcp read", Ok(())), ("read x mcp", Ok(())), ("mcp", Err(Refused::Scopes)), ("", Err(Refused::Scopes))]
    {
        let caller = stand.shown(&stand.token(json!({}), json!({"scope": scope}))).await.unwrap();
        assert_eq!(stand.authenticator.permit(&caller), expected, "{scope}");
    }
}
