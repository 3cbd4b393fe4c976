//! `auth`: the rules about tokens, and what is said of them.

use std::path::Path;
use std::time::Duration;

use super::{ROUTE, mistakes, read_with, settings};
use crate::auth::algorithm::Algorithm;
use crate::auth::keys::Source;
use crate::config::{AuthSettings, Settings, describe, describe_callers, parse};

/// The mistakes of an `auth` section, without their places in the file.
fn wrong(auth: &str) -> Vec<String> {
    let all = mistakes(&format!("auth: {{{auth}}}\n{ROUTE}"));
    all.iter().map(|mistake| mistake.split_once(": ").unwrap().1.to_owned()).collect()
}

#[track_caller]
fn one(auth: &str, expected: &str) {
    assert_eq!(wrong(auth), [expected], "{auth}");
}

fn auth(auth: &str) -> AuthSettings {
    settings(&format!("auth: {{{auth}}}\n{ROUTE}")).auth.unwrap()
}

fn warnings(sections: &str) -> Vec<String> {
    let Settings { warnings, .. } = settings(&format!("{sections}\n{ROUTE}"));
    warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect()
}

const PUBLIC: &str = "listen: {public_url: https://mcp.example.com}\n";

#[test]
fn tokens_are_understood() {
    let of = auth(
        "jwt: [{issuer: https://a.example.com/t1}, {issuer: any text, jwks_url: https://k/keys?x=1, audiences: [api], \
         algorithms: [ES384, PS512], tenant_claim: org, leeway: 0s}], introspection: {url: https://b/introspect, \
         client_id: gate, client_secret: hush, issuer: https://b, audiences: [], tenant_claim: org}, \
         required_scopes: [mcp, read, mcp]",
    );
    let [first, second] = of.jwt.as_slice() else { panic!("{of:?}") };
    assert_eq!((first.issuer.as_str(), &first.source), ("https://a.example.com/t1", &Source::Discovery));
    assert_eq!((&first.audiences, &first.tenant_claim, first.leeway), (&None, &None, Duration::from_secs(30)));
    assert_eq!(first.algorithms, [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa]);
    assert_eq!(second.source, Source::Url("https://k/keys?x=1".parse().unwrap()));
    assert_eq!(second.algorithms, [Algorithm::Es384, Algorithm::Ps512]);
    assert_eq!((second.audiences.as_deref(), second.leeway), (Some(["api".to_owned()].as_slice()), Duration::ZERO));
    let introspection = of.introspection.as_ref().unwrap();
    let (client, secret) = introspection.client.as_ref().unwrap();
    assert_eq!((client.as_str(), secret.as_ref().unwrap().reveal()), ("gate", "hush"));
    assert_eq!(introspection.audiences.as_deref(), Some([].as_slice()));
    assert_eq!(of.required_scopes, ["mcp", "read"]);
    assert_eq!(of.authorization_servers(), ["https://a.example.com/t1", "https://b"]);
    assert!(of.has_tokens() && of.has_open_tenants());
    assert!(!format!("{of:?}").contains("hush"));
}

#[test]
fn issuers_are_checked() {
    one("jwt: [{}]", "auth.jwt[0].issuer: `issuer` is missing");
    one("jwt: []", "auth: has no `api_keys`, `jwt` or `introspection`, so that nobody could call");
    one("jwt: [{issuer: \"\"}]", "auth.jwt[0].issuer: expected 1 to 1024 bytes without control characters");
    let not_url = "auth.jwt[0].issuer: without `jwks_url` or `jwks_file` the issuer is a URL with metadata, but";
    for (issuer, why) in [
        ("some body", "it is not a URL"),
        ("https://a?x=1", "it has parts that it must not have"),
        (
            "http://login.example.com",
            "it is neither https nor, between programs of this machine, on a loopback address",
        ),
    ] {
        one(&format!("jwt: [{{issuer: \"{issuer}\"}}]"), &format!("{not_url} {why}"));
    }
    assert!(wrong("jwt: [{issuer: http://127.0.0.1:9}, {issuer: \"http://[::1]:9\"}]").is_empty());
    one("jwt: [{issuer: https://a}, {issuer: https://a}]", "auth.jwt[1].issuer: the same as `auth.jwt[0].issuer`");
    one(
        "jwt: [{issuer: a, jwks_url: https://a/k, jwks_file: k.json}]",
        "auth.jwt[0].jwks_file: keys come from one place: `jwks_url` or `jwks_file`",
    );
    one(
        "jwt: [{issuer: a, jwks_url: \"ftp://a/k\"}]",
        "auth.jwt[0].jwks_url: a URL must start with `http://` or `https://`",
    );
    let algorithms = |list: &str, expected: &str| {
        one(
            &format!("jwt: [{{issuer: https://a, algorithms: [{list}]}}]"),
            &format!("auth.jwt[0].algorithms{expected}"),
        );
    };
    let known = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA";
    algorithms("", ": an empty list accepts no token");
    algorithms(
        "RS256, HS256",
        &format!("[1]: algorithms with shared secrets are never accepted; expected one of {known}"),
    );
    algorithms("none", &format!("[0]: tokens without a signature are never accepted; expected one of {known}"));
    algorithms("ES512", &format!("[0]: `ES512` is none of {known}"));
    one(
        "jwt: [{issuer: https://a, audiences: []}]",
        "auth.jwt[0].audiences: an empty list accepts no token; without the key it is the route's public URL",
    );
    one(
        "jwt: [{issuer: https://a, leeway: 301s}]",
        "auth.jwt[0].leeway: at most 5m: what has expired must not be good for long",
    );
    one(
        "jwt: [{issuer: https://a, tenant_claim: \"\"}]",
        "auth.jwt[0].tenant_claim: a name has 1 to 128 bytes and no control characters",
    );
}

#[test]
fn a_file_with_keys_is_read_beforehand() {
    let folder = tempfile::TempDir::new().unwrap();
    let text = format!("auth: {{jwt: [{{issuer: a, jwks_file: keys.json}}]}}\n{ROUTE}");
    let check = || parse(&text, "taskgate.yaml", folder.path(), &|_| None);
    let mistake = |expected: &str| {
        let errors = check().unwrap_err();
        assert!(errors.to_string().contains(expected), "{errors}");
    };
    mistake("auth.jwt[0].jwks_file: the file with keys can't be read");
    std::fs::write(folder.path().join("keys.json"), "{}").unwrap();
    mistake("this is no JSON Web Key Set");
    std::fs::write(folder.path().join("keys.json"), "{\"keys\": [{\"kty\": \"oct\", \"k\": \"aHVzaA\"}]}").unwrap();
    mistake("none of its keys can be used");
    let key = "{\"keys\": [{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"x\": \"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}";
    std::fs::write(folder.path().join("keys.json"), key).unwrap();
    let found = check().unwrap().auth.unwrap().jwt.remove(0).source;
    assert_eq!(found, Source::File(folder.path().join(Path::new("keys.json"))));
}

#[test]
fn introspection_and_scopes_are_checked() {
    one("introspection: {}", "auth.introspection.url: `url` is missing");
    one(
        "introspection: {url: https://a, client_secret: x}",
        "auth.introspection.client_secret: needs `client_id`, the name that it belongs to",
    );
    one(
        "introspection: {url: https://a, client_id: a, client_secret: \"\"}",
        "auth.introspection.client_secret: is empty",
    );
    one(
        "introspection: {url: \"https://u:p@a\"}",
        "auth.introspection.url: a URL must not have a user or password; credentials belong in `headers`",
    );
    let scope = "a scope has 1 to 128 visible ASCII characters, no spaces, `\"` or `\\`; found";
    for (text, shown) in [("a b", "a b"), ("", ""), ("é", "é"), ("a\\\"b", "a\\\"b")] {
        one(
            &format!("jwt: [{{issuer: https://a}}], required_scopes: [\"{text}\"]"),
            &format!("auth.required_scopes[0]: {scope} `{shown}`"),
        );
    }
}

#[test]
fn tokens_and_keys_do_not_cross_a_network_in_the_clear() {
    let plain = "it is neither https nor, between programs of this machine, on a loopback address";
    one("jwt: [{issuer: a, jwks_url: \"http://keys:8080/k\"}]", &format!("auth.jwt[0].jwks_url: {plain}"));
    one("introspection: {url: \"http://b/x\"}", &format!("auth.introspection.url: {plain}"));
    for host in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://b"] {
        let auth = format!("jwt: [{{issuer: a, jwks_url: \"{host}/k\"}}], introspection: {{url: \"{host}/x\"}}");
        assert!(wrong(&auth).is_empty(), "{host}");
    }
}

#[test]
fn what_is_probably_not_meant_is_told() {
    let keys = "api_keys: [{sha256: 0000000000000000000000000000000000000000000000000000000000000001, subject: a}]";
    assert_eq!(warnings(&format!("{PUBLIC}auth: {{jwt: [{{issuer: https://a}}]}}")), Vec::<String>::new());
    assert_eq!(
        warnings("auth: {jwt: [{issuer: https://a}]}"),
        [
            "auth: without `listen.public_url` tokens have to be issued for http://127.0.0.1:8080 and the route's path, and \
          clients that know another URL refuse the metadata"
        ]
    );
    assert_eq!(warnings(&format!("auth: {{{keys}}}")), Vec::<String>::new());
    assert_eq!(
        warnings(&format!("auth: {{{keys}, required_scopes: [a]}}")),
        ["auth.required_scopes: only tokens have scopes, and none are accepted: API keys have every scope"]
    );
    let both = |issuer: &str| {
        warnings(&format!(
            "{PUBLIC}auth: {{jwt: [{{issuer: https://a}}], introspection: {{url: https://a/x{issuer}}}}}"
        ))
    };
    assert_eq!(both(", issuer: https://a"), Vec::<String>::new());
    assert_eq!(
        both(""),
        [
            "auth.introspection: without `issuer` answers that name an issuer of `auth.jwt` are refused: if this server is one \
          of theirs, name it"
        ]
    );
    // Tokens may name any tenant.
    let tenants = "tenants: {acme: {}}\n";
    let claim = |claim: &str| warnings(&format!("{PUBLIC}{tenants}auth: {{jwt: [{{issuer: https://a{claim}}}]}}"));
    assert_eq!(claim(""), ["tenants.acme: no caller belongs to this tenant"]);
    assert_eq!(claim(", tenant_claim: org"), Vec::<String>::new());
}

#[test]
fn callers_are_described_without_secrets() {
    let text = format!(
        "{PUBLIC}auth: {{jwt: [{{issuer: https://a, tenant_claim: org}}, {{issuer: b, jwks_url: \"https://k/keys?x=hush\", \
         audiences: [api, web], leeway: 1m}}], introspection: {{url: \"https://c/i?x=hush\", client_id: gate, \
         client_secret: hush}}, required_scopes: [mcp]}}\n{ROUTE}"
    );
    let settings = read_with(&text, &[]).unwrap();
    let described = describe(&settings);
    let line = described.lines().find(|line| line.starts_with("callers")).unwrap();
    assert_eq!(
        line,
        "callers      by JWT of https://a (RS256, ES256, EdDSA), keys where its metadata say, for the route's URL, tenant: \
         claim `org`, leeway 30s; JWT of b (RS256, ES256, EdDSA), keys at https://k/keys?..., for api, web, tenant: \
         default, leeway 1m; introspection at https://c/i?..., for the route's URL, tenant: default; tokens must have mcp"
    );
    let short = describe_callers(settings.auth.as_ref());
    assert_eq!(short, "authenticated by JWT of https://a, JWT of b, introspection at https://c/i?...");
    assert_eq!(describe_callers(None), "not authenticated");
    assert!(!described.contains("hush") && !format!("{settings:?}").contains("hush"));
}

#[test]
fn replicas_that_can_t_reach_each_other_are_worth_a_warning() {
    let keys = "store: {kind: redis, url: redis://u}\nsecrets: {key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}\n";
    let of = |replica: &str| warnings(&format!("{keys}{replica}"));
    assert_eq!(of("replica: {address: \"10.0.0.5:7070\"}"), Vec::<String>::new());
    let apart = of("");
    assert!(apart.len() == 1 && apart[0].starts_with("replica.address: without it each replica serves"), "{apart:?}");
}
