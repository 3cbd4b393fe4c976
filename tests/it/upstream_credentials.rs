//! What the server behind a route is shown: taskgate's own token, or what the caller showed; and who hears that it was refused.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use taskgate::demo::server::{Era, Options};
use taskgate::jobs::Jobs;
use taskgate::jsonrpc::Id;
use taskgate::oauth::secret::SubjectToken;
use taskgate::oauth::token::{Client as OAuthClient, Method};
use taskgate::upstream::credentials::{Config, Credentials, Exchanged, Own};
use taskgate::upstream::http::{self as transport, Http};
use taskgate::upstream::{Error, Kind, Outgoing, Reply, Upstream};

use crate::support::authorization::AuthServer;
use crate::support::{Gateway, Issuer, Modern, Setup, Value, json, text_of, within};

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

async fn authority(era: Era) -> AuthServer {
    AuthServer::start(Options { era, ..Options::default() }).await
}

/// A gateway in front of it that has client credentials there.
fn with_own(authority: &AuthServer) -> Setup {
    let oauth = format!(
        "oauth: {{token_url: \"{}/token\", client_id: gate, client_secret: pass word, scope: tools}}",
        authority.url()
    );
    Gateway::setup().in_front_of(&authority.mcp()).upstream(&oauth)
}

/// A gateway in front of it that passes on what callers show.
fn passing(authority: &AuthServer) -> Setup {
    Gateway::setup().in_front_of(&authority.mcp()).upstream("pass_authorization: true")
}

#[tokio::test]
async fn the_gateways_own_token_goes_with_every_message() {
    for era in ERAS {
        let authority = authority(era).await;
        let gateway = with_own(&authority).tasks("defer: 0s").start().await;
        let client = gateway.client().token("of the client").open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a");
        let task = client.start("echo", json!({"text": "b"})).await;
        assert_eq!(text_of(&client.outcome(&task).await), "b");
        let modern = Modern::new(&gateway).declares(json!({}));
        assert_eq!(modern.text("echo", json!({"text": "c"})).await, "c");
        client.delete().await;
        if era == Era::Legacy {
            authority.until_called("DELETE", 1).await;
        }
        let shown: Vec<_> = authority.asked("/mcp").iter().map(|request| request.authorization().to_owned()).collect();
        assert!(shown.iter().all(|shown| shown == "Bearer access-1"), "{era:?} {shown:?}");
        let [asked] = authority.asked("/token").try_into().unwrap();
        // `gate:pass%20word`
        assert_eq!(asked.authorization(), "Basic Z2F0ZTpwYXNzJTIwd29yZA==");
        let fields = ["grant_type", "scope", "resource"].map(|name| asked.field(name).to_owned());
        assert_eq!(fields, ["client_credentials".to_owned(), "tools".to_owned(), authority.mcp()]);
    }
}

#[tokio::test]
async fn without_a_token_nothing_is_sent() {
    let authority = authority(Era::Legacy).await;
    authority.change(|ways| ways.token = Some((400, json!({"error": "invalid_client", "error_description": "hush"}))));
    let gateway = with_own(&authority).start().await;
    let (_, answer) = gateway.client().initialize().await;
    assert_eq!(answer.status, StatusCode::OK);
    let response = answer.response().await;
    assert_eq!(response["error"]["code"], -32603, "{response}");
    assert_eq!(response["error"]["data"]["reason"], "upstream_unreachable");
    assert!(!response.to_string().contains("hush") && !response.to_string().contains("token_url"), "{response}");
    let modern = Modern::new(&gateway).declares(json!({}));
    let (status, error) = modern.error("tools/call", json!({"name": "echo", "arguments": {}})).await;
    assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("upstream_unreachable")));
    assert!(authority.asked("/mcp").is_empty());
}

/// A session's POST of a method, with the params that it needs.
async fn asked(client: &crate::support::Client, method: &str) -> (StatusCode, Option<String>, Value) {
    let answer = client.request(method, json!({"name": "echo", "arguments": {"text": "x"}})).await;
    let (status, challenge) = (answer.status, answer.header("www-authenticate").map(str::to_owned));
    let is_json = answer.is_json();
    (status, challenge, if is_json { answer.response().await } else { Value::Null })
}

#[tokio::test]
async fn what_the_gateway_shows_is_its_own_affair() {
    for own in [true, false] {
        for status in [401, 403] {
            let authority = authority(Era::Legacy).await;
            // Without credentials of its own the gateway needs a server that takes whatever it gets but these.
            let token = authority.token("tools");
            let setup = if own {
                with_own(&authority)
            } else {
                let headers = format!("headers: {{Authorization: Bearer {token}}}");
                Gateway::setup().in_front_of(&authority.mcp()).upstream(&headers)
            };
            let gateway = setup.start().await;
            let refuse = |methods: &[&'static str]| {
                let refused = methods.iter().map(|method| (*method, status)).collect();
                authority.change(|ways| ways.refused = refused);
            };
            refuse(&["initialize"]);
            let (_, answer) = gateway.client().initialize().await;
            assert_eq!((answer.status, answer.header("www-authenticate")), (StatusCode::OK, None));
            assert_eq!(answer.response().await["error"]["data"]["reason"], "upstream_protocol");
            refuse(&[]);
            let client = gateway.open().await;
            refuse(&["tools/call", "GET"]);
            let (status, challenge, response) = asked(&client, "tools/call").await;
            assert_eq!((status, challenge), (StatusCode::OK, None));
            assert_eq!(response["error"]["data"]["reason"], "upstream_protocol", "{response}");
            let task = client.start("echo", json!({"text": "x"})).await;
            let outcome = client.outcome(&task).await;
            assert_eq!(outcome["error"]["data"]["reason"], "upstream_protocol", "{outcome}");
            // The client's own stream is the gateway's, whatever the server has.
            assert!(client.get(None).await.header("www-authenticate").is_none());
            let modern = Modern::new(&gateway).declares(json!({}));
            let (status, error) = modern.error("tools/call", json!({"name": "echo", "arguments": {}})).await;
            assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("upstream_protocol")));
        }
    }
}

#[tokio::test]
async fn what_the_caller_shows_goes_on_as_it_is() {
    for era in ERAS {
        let authority = authority(era).await;
        let gateway = passing(&authority).tasks("defer: 0s").start().await;
        let (one, other) = (authority.token("tools"), authority.token("tools"));
        let client = gateway.client().token(&one).open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a");
        let task = client.start("hold", json!({})).await;
        within(authority.server().until(|stats| stats.tool("hold").started == 1)).await;
        // Whoever shows another token is somebody else.
        let stranger = gateway.client().token(&other).open().await;
        let refused = stranger.error("tasks/get", json!({"taskId": task})).await;
        assert_eq!(refused["code"], -32602, "{refused}");
        let mut thief = gateway.client().token(&other).silent();
        (thief.session, thief.version) = (client.session.clone(), client.version.clone());
        assert_eq!(thief.request("ping", json!({})).await.status, StatusCode::NOT_FOUND);
        client.cancel(&task).await;
        if era == Era::Legacy {
            authority.until_called("notifications/cancelled", 1).await;
            client.delete().await;
            authority.until_called("DELETE", 1).await;
        }
        let shown: Vec<_> = authority.asked("/mcp").iter().map(|request| request.authorization().to_owned()).collect();
        let (mine, theirs) = (format!("Bearer {one}"), format!("Bearer {other}"));
        assert!(shown.iter().all(|shown| *shown == mine || *shown == theirs), "{era:?} {shown:?}");
        for method in ["tools/call", "notifications/cancelled", "DELETE"] {
            assert!(authority.shown(method).iter().all(|shown| *shown == mine), "{era:?} {method}");
        }
    }
}

#[tokio::test]
async fn what_strangers_show_is_held_against_nobody_else() {
    let authority = authority(Era::Modern).await;
    let good = authority.token("tools");
    for round in 0..8 {
        // It knows nothing of the server yet, so all of them wait to hear of its era.
        let gateway = passing(&authority).start().await;
        let call = async |token: &str| {
            let client = Modern::new(&gateway).token(token);
            client.open("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await.status
        };
        let mine = async {
            let client = gateway.client().token(&good).open().await;
            assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a", "{round}");
        };
        let (first, second, asked, third, fourth, ()) =
            tokio::join!(call("junk-1"), call("junk-2"), call(&good), call("junk-3"), call("junk-4"), mine);
        assert_eq!([first, second, third, fourth], [StatusCode::UNAUTHORIZED; 4], "{round}");
        assert_eq!(asked, StatusCode::OK, "{round}");
    }
}

#[tokio::test]
async fn what_the_server_told_one_caller_answers_nobody_else() {
    let authority = authority(Era::Modern).await;
    let gateway = passing(&authority).start().await;
    for token in [authority.token("tools"), authority.token("tools")] {
        let client = gateway.client().token(&token).open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a");
        assert_eq!(authority.shown("server/discover").pop().unwrap(), format!("Bearer {token}"));
    }
    let (_, answer) = gateway.client().token("junk").initialize().await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_refusal_of_what_the_caller_showed_is_theirs_to_hear() {
    for era in ERAS {
        let authority = authority(era).await;
        let gateway = passing(&authority).start().await;
        let theirs = format!("resource_metadata=\"{}/.well-known/", authority.url());
        let (_, answer) = gateway.client().initialize().await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{era:?}");
        assert!(answer.header("www-authenticate").unwrap().contains(&theirs), "{:?}", answer.headers);
        let modern = Modern::new(&gateway).declares(json!({}));
        let answer = modern.open("tools/call", json!({"name": "echo", "arguments": {}})).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{era:?}");
        assert!(answer.header("www-authenticate").unwrap().contains(&theirs), "{:?}", answer.headers);
        let client = gateway.client().token(&authority.token("tools")).open().await;
        authority.change(|ways| ways.refused = vec![("tools/call", 403)]);
        let (status, challenge, _) = asked(&client, "tools/call").await;
        assert_eq!((status, challenge.as_deref()), (StatusCode::FORBIDDEN, Some("Bearer realm=\"theirs\"")), "{era:?}");
        let modern = Modern::new(&gateway).token(&authority.token("tools"));
        let answer = modern.open("tools/call", json!({"name": "echo", "arguments": {}})).await;
        assert_eq!(
            (answer.status, answer.header("www-authenticate")),
            (StatusCode::FORBIDDEN, Some("Bearer realm=\"theirs\"")),
            "{era:?}"
        );
        // A task has been announced by then: it fails, and its outcome is an answer like any other.
        let task = client.start("echo", json!({"text": "x"})).await;
        let outcome = client.outcome(&task).await;
        assert_eq!(outcome["error"]["data"]["reason"], "upstream_protocol", "{era:?} {outcome}");
        let headers = client.headers_with(&[("authorization", "")]);
        let mut twice = headers.clone();
        twice.append("authorization", HeaderValue::from_static("Bearer a"));
        twice.append("authorization", HeaderValue::from_static("Bearer b"));
        let answer = client.send(http::Method::POST, twice, "{}").await.unwrap();
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    }
}

/// The server alone, as a route addresses it.
fn server(authority: &AuthServer, credentials: Arc<dyn Credentials>) -> Http {
    Http::new(transport::Config {
        url: authority.mcp().parse().unwrap(),
        headers: HeaderMap::new(),
        credentials: Some(credentials),
        tls: None,
        connect_timeout: Duration::from_secs(10),
        max_message: 1 << 20,
        jobs: Jobs::default(),
    })
}

fn config(authority: &AuthServer) -> Config {
    Config {
        token_url: format!("{}/token", authority.url()).parse().unwrap(),
        client: OAuthClient { id: "gate".to_owned(), secret: Some("secret".into()), method: Method::Basic },
        scope: Some("tools".to_owned()),
        resource: Some(authority.mcp()),
        audience: Some("reports".to_owned()),
    }
}

const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"0"}}"#;

async fn pinged(server: &Http, session: &taskgate::upstream::SessionKey) -> Result<Reply, Error> {
    let body = taskgate::jsonrpc::request(&Id::number(1), "ping", None);
    let kind = Kind::Request { id: Id::number(1), progress_token: None };
    within(server.send(session, Outgoing { kind, body, headers: HeaderMap::new() })).await
}

async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_message_that_was_refused_is_sent_once_more_with_a_new_token() {
    let authority = authority(Era::Legacy).await;
    let server = server(&authority, Arc::new(Own::new(config(&authority), Jobs::default())));
    let opened = within(server.open(INITIALIZE, HeaderMap::new(), None)).await.unwrap();
    pass(60).await;
    authority.change(|ways| ways.revoked = vec![1]);
    assert!(pinged(&server, &opened.session).await.is_ok());
    assert_eq!(authority.shown("ping"), ["Bearer access-1", "Bearer access-3"]);
    // A second refusal is the end of it.
    pass(60).await;
    authority.change(|ways| ways.refused = vec![("ping", 401)]);
    let refused = pinged(&server, &opened.session).await;
    assert!(matches!(&refused, Err(Error::Denied(denied)) if !denied.is_for_client), "{:?}", refused.err());
    assert_eq!(authority.shown("ping").len(), 4);
    // What they may not do, no token of theirs changes.
    authority.change(|ways| ways.refused = vec![("ping", 403)]);
    pass(60).await;
    assert!(pinged(&server, &opened.session).await.is_err());
    assert_eq!(authority.shown("ping").len(), 5);
}

#[tokio::test]
async fn callers_tokens_are_exchanged_each_for_one_of_its_own() {
    let authority = authority(Era::Legacy).await;
    let server = server(&authority, Arc::new(Exchanged::new(config(&authority), Jobs::default())));
    let subject = |text: &str| Arc::new(SubjectToken::new(HeaderValue::from_str(text).unwrap()));
    let (ann, bob) = (subject("Bearer ann"), subject("Bearer bob"));
    let of_ann = within(server.open(INITIALIZE, HeaderMap::new(), Some(&ann))).await.unwrap().session;
    assert!(pinged(&server, &of_ann).await.is_ok());
    assert!(pinged(&server, &of_ann.clone().on_behalf_of(Some(&bob))).await.is_ok());
    assert!(pinged(&server, &of_ann).await.is_ok());
    assert_eq!(authority.shown("ping"), ["Bearer access-1", "Bearer access-3", "Bearer access-1"]);
    let asked = authority.asked("/token");
    let fields = ["grant_type", "subject_token", "subject_token_type", "audience", "resource", "scope"];
    assert_eq!(
        fields.map(|name| asked[0].field(name).to_owned()),
        [
            "urn:ietf:params:oauth:grant-type:token-exchange",
            "ann",
            "urn:ietf:params:oauth:token-type:access_token",
            "reports",
            &*authority.mcp(),
            "tools"
        ]
    );
    assert_eq!((asked[1].field("subject_token"), asked.len()), ("bob", 2));
    // What was exchanged is used as long as it is good, whatever has become of the caller's own.
    authority.change(|ways| ways.token = Some((400, json!({"error": "invalid_grant"}))));
    assert!(pinged(&server, &of_ann).await.is_ok());
    pass(3601).await;
    let failed = pinged(&server, &of_ann).await;
    assert!(matches!(failed, Err(Error::Credentials(_))), "{:?}", failed.err());
    let nobody = pinged(&server, &of_ann.clone().on_behalf_of(None)).await;
    assert!(matches!(nobody, Err(Error::Credentials(_))), "{:?}", nobody.err());
    assert_eq!(authority.shown("ping").len(), 4);
}

/// A gateway in front of it that exchanges the tokens of an issuer's callers.
fn exchanging(authority: &AuthServer, issuer: &Issuer) -> Setup {
    let oauth = format!(
        "oauth: {{token_url: \"{}/token\", client_id: gate, client_secret: secret, scope: tools, exchange: true}}",
        authority.url()
    );
    let auth = format!("jwt: [{{issuer: \"{}\"}}]", issuer.url());
    Gateway::setup().in_front_of(&authority.mcp()).upstream(&oauth).auth(&auth).callers(&["acme/bot"])
}

/// What was exchanged, in its order.
fn exchanged(authority: &AuthServer) -> Vec<String> {
    authority.asked("/token").iter().map(|asked| asked.field("subject_token").to_owned()).collect()
}

#[tokio::test]
async fn each_callers_messages_carry_a_token_of_theirs() {
    for era in ERAS {
        let (authority, issuer) = (authority(era).await, Issuer::start().await);
        let gateway = exchanging(&authority, &issuer).tasks("defer: 0s").start().await;
        let here = format!("http://{}/mcp", gateway.address);
        let of = |subject: &str, number: u32| issuer.token(&here, json!({"sub": subject, "jti": number.to_string()}));
        let (ann, bob) = (of("ann", 1), of("bob", 1));
        let client = gateway.client().token(&ann).open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a");
        let task = client.start("echo", json!({"text": "b"})).await;
        assert_eq!(text_of(&client.outcome(&task).await), "b");
        let before = authority.asked("/mcp").len();
        assert_eq!(exchanged(&authority), [ann.as_str()], "{era:?}");
        let modern = Modern::new(&gateway).with_tasks().token(&bob);
        let task = modern.start("hold", json!({})).await;
        within(authority.server().until(|stats| stats.tool("hold").started == 1)).await;
        authority.server().release();
        modern.until(&task, "completed").await;
        assert_eq!(exchanged(&authority), [ann.as_str(), &bob], "{era:?}");
        let shown: Vec<_> = authority.asked("/mcp").iter().map(|request| request.authorization().to_owned()).collect();
        let (of_ann, of_bob) = shown.split_at(before);
        assert!(of_ann.iter().all(|shown| shown == "Bearer access-1"), "{era:?} {of_ann:?}");
        // What is the same for everybody may be asked on behalf of either.
        assert!(of_bob.iter().any(|shown| shown == "Bearer access-3"), "{era:?} {of_bob:?}");
        assert!(!shown.iter().any(|shown| shown.contains(&ann) || shown.contains(&bob)), "{era:?}");
        // A key of the gateway's own means nothing elsewhere.
        let calls = authority.asked("/mcp").len();
        let bot = Modern::new(&gateway).declares(json!({})).caller("bot");
        let (status, error) = bot.error("tools/call", json!({"name": "echo", "arguments": {}})).await;
        assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("upstream_unreachable")), "{era:?}");
        assert_eq!(authority.asked("/mcp").len(), calls, "{era:?}");
    }
}

#[tokio::test]
async fn what_goes_on_goes_on_with_the_newest_token() {
    let (authority, issuer) = (authority(Era::Legacy).await, Issuer::start().await);
    let gateway = exchanging(&authority, &issuer).start().await;
    let here = format!("http://{}/mcp", gateway.address);
    let of = |number: u32| issuer.token(&here, json!({"jti": number.to_string()}));
    let (first, second) = (of(1), of(2));
    let mut client = gateway.client().token(&first).open().await;
    let task = client.start("hold", json!({})).await;
    within(authority.server().until(|stats| stats.tool("hold").started == 1)).await;
    client.set_token(&second);
    assert_eq!(client.task(&task).await["status"], "working");
    // The first one is worth nothing any more, and neither is what it was exchanged for.
    client.cancel(&task).await;
    authority.until_called("notifications/cancelled", 1).await;
    client.delete().await;
    authority.until_called("DELETE", 1).await;
    assert_eq!(exchanged(&authority), [first, second]);
    assert_eq!(authority.shown("tools/call"), ["Bearer access-1"]);
    assert_eq!(authority.shown("notifications/cancelled"), ["Bearer access-3"]);
    assert_eq!(authority.shown("DELETE"), ["Bearer access-3"]);
}

#[tokio::test]
async fn a_task_whose_caller_has_no_good_token_any_more_fails_in_words() {
    let (authority, issuer) = (authority(Era::Legacy).await, Issuer::start().await);
    // What comes of an exchange ends at once.
    authority.change(|ways| ways.tokens = json!({"expires_in": 0}));
    let gateway = exchanging(&authority, &issuer).start().await;
    let here = format!("http://{}/mcp", gateway.address);
    let client = gateway.client().token(&issuer.token(&here, json!({}))).open().await;
    authority.change(|ways| ways.token = Some((400, json!({"error": "invalid_grant", "error_description": "hush"}))));
    let task = client.start("echo", json!({"text": "x"})).await;
    let failed = client.until(&task, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("no credentials that are good"), "{failed}");
    let outcome = client.outcome(&task).await;
    assert_eq!(outcome["error"]["data"]["reason"], "upstream_unreachable", "{outcome}");
    assert!(!outcome.to_string().contains("hush"), "{outcome}");
}
