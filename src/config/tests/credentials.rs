//! What the server behind a route is shown: mistakes and meanings.

use super::{mistakes, settings, upstream_with};
use crate::config::{UpstreamCredentials, describe};

#[track_caller]
fn one(lines: &str, expected: &str) {
    assert_eq!(mistakes(&upstream_with(lines)), [expected], "{lines}");
}

const OAUTH: &str = "    oauth: {token_url: https://as.example/token, client_id: gate, client_secret: hush";

#[test]
fn a_server_is_shown_one_thing() {
    let both = format!("{OAUTH}}}\n    pass_authorization: true\n");
    one(
        &both,
        "7:25: routes[0].upstream.pass_authorization: the server is shown either a token of `oauth` or the caller's, not both",
    );
    one(
        "    headers: {AUTHORIZATION: x}\n    pass_authorization: true\n",
        "6:30: routes[0].upstream.headers.AUTHORIZATION: fixed, and therefore never what `oauth` or `pass_authorization` \
         would show",
    );
    let text = "routes: [{name: a, path: /mcp, upstream: {command: [x], pass_authorization: true}}]";
    assert_eq!(mistakes(text), ["1:77: routes[0].upstream.pass_authorization: means nothing for a `command`"]);
}

#[test]
fn callers_tokens_go_on_only_where_they_are_nobody_elses() {
    let hash = "0".repeat(63) + "1";
    let auth = format!("auth: {{api_keys: [{{sha256: \"{hash}\", tenant: t, subject: s}}]}}\n");
    let text = auth + &upstream_with("    pass_authorization: true\n");
    assert_eq!(
        mistakes(&text),
        [
            "7:25: routes[0].upstream.pass_authorization: only without `auth`: a token that is good here must not go to another \
             server"
        ]
    );
    one(
        &format!("{OAUTH}, exchange: true}}\n"),
        "6:98: routes[0].upstream.oauth.exchange: callers have no tokens that could be exchanged: needs `auth.jwt` or \
         `auth.introspection`",
    );
    assert_eq!(mistakes(&upstream_with(&format!("{OAUTH}, exchange: false}}\n"))), [""; 0]);
    let word = mistakes(&upstream_with(&format!("{OAUTH}, exchange: maybe}}\n")));
    assert_eq!(word.len(), 1, "{word:?}");
}

#[test]
fn passwords_cross_no_network_in_the_clear() {
    one(
        "    oauth: {token_url: http://as.example/token, client_id: gate, client_secret: hush}\n",
        "6:24: routes[0].upstream.oauth.token_url: it is neither https nor, between programs of this machine, on a loopback \
         address",
    );
    assert_eq!(
        mistakes(&upstream_with(
            "    oauth: {token_url: http://127.0.0.1/token, client_id: gate, client_secret: hush}\n"
        )),
        [""; 0]
    );
    one(
        &format!("{OAUTH}, resource: reports}}\n"),
        "6:98: routes[0].upstream.oauth.resource: not an absolute URI without a fragment",
    );
    let missing = mistakes(&upstream_with("    oauth: {client_id: gate}\n"));
    assert_eq!(missing.len(), 2, "{missing:?}");
}

#[test]
fn a_token_is_for_the_server_unless_said_otherwise() {
    let shown = |more: &str| {
        let settings = settings(&upstream_with(&format!("{OAUTH}{more}}}\n")));
        let words = describe(&settings);
        assert!(!words.contains("hush") && !format!("{settings:?}").contains("hush"), "{words}");
        match settings.routes.into_iter().next().unwrap().upstream.credentials {
            UpstreamCredentials::Own(config) => (config, words),
            other => panic!("{other:?}"),
        }
    };
    let (config, words) = shown(", scope: a b");
    assert_eq!((config.scope.as_deref(), config.resource.as_deref()), (Some("a b"), Some("http://u/mcp")));
    assert!(words.contains("taskgate's own token, made at as.example for client `gate`, for http://u/mcp"), "{words}");
    let text = upstream_with(&format!("{OAUTH}}}\n")).replace("http://u/mcp", "https://U:443/mcp/");
    match settings(&text).routes.into_iter().next().unwrap().upstream.credentials {
        UpstreamCredentials::Own(config) => assert_eq!(config.resource.as_deref(), Some("https://u/mcp")),
        other => panic!("{other:?}"),
    }
    assert_eq!(shown(", resource: \"\"").0.resource, None);
    assert_eq!(shown(", resource: urn:x").0.resource.as_deref(), Some("urn:x"));
    let passed = settings(&upstream_with("    pass_authorization: true\n    sessions: pinned\n"));
    assert!(passed.warnings.is_empty(), "{:?}", passed.warnings);
    assert!(describe(&passed).contains("the caller's own Authorization"));
    let exchange = |what: &str| {
        let auth = "auth: {jwt: [{issuer: https://as.example, audiences: [https://g.example/mcp]}]}\n";
        let text = format!("{auth}{}", upstream_with(&format!("{OAUTH}, exchange: {what}}}\n")));
        match settings(&text).routes.into_iter().next().unwrap().upstream.credentials {
            UpstreamCredentials::Exchanged(config) => config.audience,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((exchange("true"), exchange("{audience: reports}")), (None, Some("reports".to_owned())));
}
