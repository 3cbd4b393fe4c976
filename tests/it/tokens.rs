//! Callers who show tokens: what is taken, what is refused and in which words, in both eras.

use std::time::Duration;

use http::{Method, StatusCode};
use taskgate::app::Timing;
use taskgate::demo::server::{Era, Options};

use crate::support::keys::base64url;
use crate::support::{Answer, Gateway, Issuer, Key, Modern, Setup, Value, json, text_of, within};

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

/// A gateway that takes the issuer's tokens.
fn setup(issuer: &Issuer) -> Setup {
    Gateway::setup().auth(&format!("jwt: [{{issuer: \"{}\", leeway: 0s}}]", issuer.url()))
}

/// What tokens for a route are issued for.
fn here(gateway: &Gateway) -> String {
    format!("http://{}/mcp", gateway.address)
}

/// Where the metadata of a route are, in a challenge.
fn pointer(gateway: &Gateway) -> String {
    format!("resource_metadata=\"http://{}/.well-known/oauth-protected-resource/mcp\"", gateway.address)
}

async fn posted(gateway: &Gateway, token: &str) -> Answer {
    gateway.client().token(token).silent().post(PING).await
}

/// Whether a token is taken. A ping without a session is no request that can be served; whoever hears that was let in.
async fn status(gateway: &Gateway, token: &str) -> u16 {
    match posted(gateway, token).await.status.as_u16() {
        400 => 200,
        status => status,
    }
}

#[tokio::test]
async fn a_token_is_taken_in_both_eras_and_its_successor_is_the_same_caller() {
    for era in [Era::Legacy, Era::Modern] {
        let issuer = Issuer::start().await;
        let gateway = setup(&issuer).server(Options { era, ..Options::default() }).start().await;
        let of = |claims: Value| issuer.token(&here(&gateway), claims);
        let (first, second) = (of(json!({"jti": "1"})), of(json!({"jti": "2"})));
        let mut client = gateway.client().token(&first).open().await;
        let id = client.start("exact", json!({})).await;
        client.set_token(&second);
        client.until(&id, "completed").await;
        // The other era's client of the same caller has the same tasks.
        let modern = Modern::new(&gateway).with_tasks().token(&second);
        assert_eq!(modern.task(&id).await["status"], "completed");
        let task = modern.start("hold", json!({})).await;
        gateway.started("hold", 1).await;
        gateway.upstream.release();
        client.until(&task, "completed").await;
        // Somebody else, another client of hers, and she without a client are not she.
        for other in [json!({"sub": "bob"}), json!({"client_id": "other"}), json!({"client_id": Value::Null})] {
            let stranger = Modern::new(&gateway).with_tasks().token(&of(other));
            assert_eq!(stranger.request("tasks/get", json!({"taskId": id})).await.refusal(), (200, -32602));
        }
        // All those tokens took one look at the keys.
        assert_eq!(issuer.asked("/keys").len(), 1);
    }
}

/// Tokens that are not good at `here`, for as many reasons as there are.
fn bad_tokens(issuer: &Issuer, other: &Issuer, here: &str) -> Vec<String> {
    let good = issuer.token(here, json!({}));
    let now = issuer.claims(here)["iat"].as_u64().unwrap();
    let key = issuer.key();
    let header = |changes: Value| {
        let mut header = key.header();
        header.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        header
    };
    let claims = issuer.claims(here);
    let jwk = key.jwk();
    let hs256 = |secret: &[u8]| {
        let input = format!("{}.{}", base64url(r#"{"alg":"HS256","kid":"one"}"#), base64url(claims.to_string()));
        let signature = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret), input.as_bytes());
        format!("{input}.{}", base64url(signature))
    };
    let own = Key::new("mine", "ES256");
    let mut brought = own.header();
    brought["jwk"] = own.jwk();
    brought["jku"] = json!(issuer.at("/evil"));
    brought["x5u"] = json!(issuer.at("/evil"));
    let unsigned = format!("{}.{}.", base64url(r#"{"alg":"none"}"#), base64url(claims.to_string()));
    vec![
        "opaque".to_owned(),
        "a.b.c".to_owned(),
        good.replace('.', ".."),
        good[..good.len() - 4].to_owned(),
        issuer.token(here, json!({"exp": now - 1})),
        issuer.token(here, json!({"nbf": now + 1000})),
        issuer.token(here, json!({"iat": now + 1000})),
        issuer.token(here, json!({"aud": Value::Null})),
        issuer.token(&here.replace("/mcp", "/second"), json!({})),
        issuer.token("https://elsewhere.example.com/mcp", json!({})),
        issuer.token(here, json!({"iss": "https://nobody.example.com"})),
        other.token(here, json!({})),
        other.key().sign(&key.header(), &claims),
        unsigned,
        hs256(jwk.to_string().as_bytes()),
        hs256(jwk["x"].as_str().unwrap().as_bytes()),
        own.sign(&brought, &claims),
        key.sign(&header(json!({"kid": "../../../etc/passwd"})), &claims),
        key.sign(&header(json!({"kid": "one' OR '1'='1"})), &claims),
        key.sign(&header(json!({"crit": ["x"], "x": 1})), &claims),
        key.sign(&header(json!({"typ": "dpop+jwt"})), &claims),
        key.sign(&header(json!({"alg": "ES384"})), &claims),
    ]
}

#[tokio::test]
async fn every_refusal_is_the_same() {
    let (issuer, other) = (Issuer::start().await, Issuer::start().await);
    let gateway = setup(&issuer).second_route().callers(&["acme/ann"]).start().await;
    let here = here(&gateway);
    let good = issuer.token(&here, json!({}));
    let tokens = bad_tokens(&issuer, &other, &here);
    let metadata = pointer(&gateway);
    let invalid = format!(r#"Bearer realm="taskgate", error="invalid_token", {metadata}"#);
    let mut bodies = Vec::new();
    for token in &tokens {
        let client = gateway.client().token(token).silent();
        let modern = Modern::new(&gateway).token(token);
        let mut answers = vec![client.post(PING).await, client.get(None).await];
        answers.push(modern.open("server/discover", json!({})).await);
        answers.push(client.send(Method::DELETE, client.headers(), "").await.unwrap());
        for answer in answers {
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{token}");
            assert_eq!(answer.header("www-authenticate"), Some(invalid.as_str()), "{token}");
            bodies.push(answer.text().await);
        }
    }
    // Nothing shown, or shown where it does not belong: no error is named.
    for changes in [vec![], vec![("authorization", "Basic eDp5")]] {
        for path in ["/mcp", &format!("/mcp?access_token={good}")] {
            let answer = gateway.client().path(path).silent().post_with(&changes, PING).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            let challenge = format!(r#"Bearer realm="taskgate", {metadata}"#);
            assert_eq!(answer.header("www-authenticate"), Some(challenge.as_str()));
            bodies.push(answer.text().await);
        }
    }
    let as_key = gateway.client().silent().post_with(&[("x-api-key", &good)], PING).await;
    assert_eq!(as_key.header("www-authenticate"), Some(invalid.as_str()));
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    // Nobody was asked what a token said to ask; and the good one and the key are taken.
    assert!(issuer.asked("/evil").is_empty() && other.asked("/keys").is_empty());
    assert_eq!(status(&gateway, &good).await, 200);
    assert_eq!(
        text_of(&gateway.open_as("ann").await.call("exact", json!({})).await),
        text_of(&gateway.client().token(&good).open().await.call("exact", json!({})).await)
    );
}

#[tokio::test]
async fn a_new_key_is_found_and_an_old_one_is_forgotten() {
    let issuer = Issuer::start().await;
    let gateway = setup(&issuer).start().await;
    let here = here(&gateway);
    let old = issuer.token(&here, json!({}));
    assert_eq!((status(&gateway, &old).await, status(&gateway, &old).await), (200, 200));
    issuer.rotate(Key::new("two", "EdDSA"));
    // What is known needs nobody; whoever names a new key has it fetched.
    assert_eq!((status(&gateway, &old).await, issuer.asked("/keys").len()), (200, 1));
    let new = issuer.token(&here, json!({}));
    assert_eq!((status(&gateway, &new).await, issuer.asked("/keys").len()), (200, 2));
    assert_eq!(status(&gateway, &old).await, 401);
    // Not again so soon, whatever names are invented.
    for name in ["three", "four", "five"] {
        let key = Key::new(name, "EdDSA");
        assert_eq!(status(&gateway, &key.sign(&key.header(), &issuer.claims(&here))).await, 401);
    }
    assert_eq!((status(&gateway, &new).await, issuer.asked("/keys").len()), (200, 2));
}

#[tokio::test]
async fn an_issuer_that_is_down_or_broken_takes_nothing_away() {
    let issuer = Issuer::start().await;
    let gateway = setup(&issuer).start().await;
    let here = here(&gateway);
    assert_eq!(status(&gateway, &issuer.token(&here, json!({"jti": "1"}))).await, 200);
    let unknown = Key::new("two", "ES256");
    let unknown = unknown.sign(&unknown.header(), &issuer.claims(&here));
    issuer.publish(&[]);
    assert_eq!(status(&gateway, &unknown).await, 401);
    issuer.until_asked("/keys", 2).await;
    assert_eq!(status(&gateway, &issuer.token(&here, json!({"jti": "2"}))).await, 200);
    issuer.set_down(true);
    assert_eq!(status(&gateway, &issuer.token(&here, json!({"jti": "3"}))).await, 200);
}

#[tokio::test]
async fn before_there_are_keys_nobody_can_tell() {
    let issuer = Issuer::start().await;
    issuer.set_down(true);
    let gateway = setup(&issuer).start().await;
    let token = issuer.token(&here(&gateway), json!({}));
    let answer = posted(&gateway, &token).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((answer.header("www-authenticate"), answer.header("retry-after")), (None, Some("5")));
    // What can be told without keys is told.
    assert_eq!(status(&gateway, &issuer.token("https://elsewhere.example.com", json!({}))).await, 401);
    issuer.set_down(false);
    within(async { while status(&gateway, &token).await != 200 {} }).await;
}

#[tokio::test]
async fn an_issuer_that_speaks_for_another_or_leads_elsewhere_has_no_keys() {
    for (name, value) in [("issuer", json!("https://login.example.com")), ("jwks_uri", json!("ftp://127.0.0.1/keys"))] {
        let issuer = Issuer::start().await;
        let mut metadata = json!({"issuer": issuer.url(), "jwks_uri": issuer.at("/keys")});
        metadata[name] = value;
        issuer.answer("/.well-known/oauth-authorization-server", 200, &metadata);
        let gateway = setup(&issuer).start().await;
        assert_eq!(status(&gateway, &issuer.token(&here(&gateway), json!({}))).await, 503, "{name}");
        assert!(issuer.asked("/keys").is_empty());
    }
    // The other place of metadata will do as well.
    let issuer = Issuer::start().await;
    issuer.answer("/.well-known/oauth-authorization-server", 404, &json!({}));
    let metadata = json!({"issuer": issuer.url(), "jwks_uri": issuer.at("/keys")});
    issuer.answer("/.well-known/openid-configuration", 200, &metadata);
    let gateway = setup(&issuer).start().await;
    assert_eq!(status(&gateway, &issuer.token(&here(&gateway), json!({}))).await, 200);
}

#[tokio::test]
async fn those_who_wait_for_keys_wait_together() {
    let issuer = Issuer::start().await;
    let gateway = setup(&issuer).start().await;
    issuer.set_held(true);
    let tokens: Vec<String> = (0..20).map(|number| issuer.token(&here(&gateway), json!({"jti": number}))).collect();
    let waiting = futures_util::future::join_all(tokens.iter().map(|token| status(&gateway, token)));
    let opening = async {
        issuer.until_asked("/.well-known/oauth-authorization-server", 1).await;
        issuer.set_held(false);
    };
    let (statuses, ()) = tokio::join!(waiting, opening);
    assert_eq!(statuses, vec![200; 20]);
    assert_eq!(issuer.asked("/keys").len(), 1);
}

#[tokio::test]
async fn keys_at_a_url_and_audiences_of_ones_own() {
    let issuer = Issuer::start().await;
    let auth =
        format!("jwt: [{{issuer: robots, jwks_url: \"{}\", audiences: [api], tenant_claim: org}}]", issuer.at("/keys"));
    let gateway = Gateway::setup().auth(&auth).start().await;
    let of = |claims: Value| issuer.token("api", claims);
    assert_eq!(status(&gateway, &of(json!({"iss": "robots", "org": "acme"}))).await, 200);
    for bad in [
        json!({"iss": "robots"}),
        json!({"iss": "robots", "org": ""}),
        json!({"iss": "robots", "org": 1}),
        json!({"org": "acme"}),
        json!({"iss": "robots", "org": "acme", "aud": here(&gateway)}),
    ] {
        assert_eq!(status(&gateway, &of(bad.clone())).await, 401, "{bad}");
    }
    // A name that is no URL is nowhere to go.
    let answer = gateway.client().silent().post(PING).await;
    assert_eq!(answer.header("www-authenticate"), Some(r#"Bearer realm="taskgate""#));
}

#[tokio::test]
async fn scopes_are_asked_for_in_challenges_and_metadata() {
    let issuer = Issuer::start().await;
    let auth = format!("jwt: [{{issuer: \"{}\"}}], required_scopes: [mcp, read]", issuer.url());
    let gateway = Gateway::setup().auth(&auth).callers(&["acme/ann"]).start().await;
    let of = |scope: &str| issuer.token(&here(&gateway), json!({"scope": scope}));
    assert_eq!(status(&gateway, &of("read other mcp")).await, 200);
    assert_eq!(gateway.open_as("ann").await.post(PING).await.status, StatusCode::OK);
    let metadata = pointer(&gateway);
    for scope in ["", "mcp", "mcp READ"] {
        for _ in 0..2 {
            let answer = posted(&gateway, &of(scope)).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{scope}");
            let challenge =
                format!(r#"Bearer realm="taskgate", error="insufficient_scope", {metadata}, scope="mcp read""#);
            assert_eq!(answer.header("www-authenticate"), Some(challenge.as_str()));
        }
    }
    let answer = gateway.client().silent().post(PING).await;
    let challenge = format!(r#"Bearer realm="taskgate", {metadata}, scope="mcp read""#);
    assert_eq!(answer.header("www-authenticate"), Some(challenge.as_str()));
    let document = document(&gateway, "/.well-known/oauth-protected-resource/mcp").await.unwrap();
    assert_eq!(document["scopes_supported"], json!(["mcp", "read"]));
}

#[tokio::test]
async fn scopes_of_tools_are_asked_for_together_with_all_others() {
    let issuer = Issuer::start().await;
    let auth = format!("jwt: [{{issuer: \"{}\"}}], required_scopes: [mcp]", issuer.url());
    let gateway = Gateway::setup().auth(&auth).authorize("{match: exact, scopes: [\"tools:exact\"]}").start().await;
    let of = |scope: &str| issuer.token(&here(&gateway), json!({"scope": scope}));
    let mut client = gateway.client().token(&of("mcp")).open().await;
    let call = json!({"name": "exact", "arguments": {}});
    for answer in [
        client.request("tools/call", call.clone()).await,
        Modern::new(&gateway).token(&of("mcp")).open("tools/call", call.clone()).await,
    ] {
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        let metadata = pointer(&gateway);
        let challenge =
            format!(r#"Bearer realm="taskgate", error="insufficient_scope", {metadata}, scope="mcp tools:exact""#);
        assert_eq!(answer.header("www-authenticate"), Some(challenge.as_str()));
    }
    client.set_token(&of("tools:exact mcp"));
    assert!(client.result("tools/call", call).await.is_object());
    let document = document(&gateway, "/.well-known/oauth-protected-resource/mcp").await.unwrap();
    assert_eq!(document["scopes_supported"], json!(["mcp", "tools:exact"]));
}

async fn document(gateway: &Gateway, path: &str) -> Option<Value> {
    let client = gateway.client().path(path).silent();
    let headers = client.headers_with(&[("origin", "https://page.example.com"), ("content-type", "")]);
    let answer = client.send(Method::GET, headers, "").await.unwrap();
    if answer.status == StatusCode::NOT_FOUND {
        return None;
    }
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("cache-control"), Some("max-age=3600"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    Some(serde_json::from_str(&answer.text().await).unwrap())
}

#[tokio::test]
async fn clients_are_told_where_tokens_come_from() {
    let issuer = Issuer::start().await;
    let root = "/.well-known/oauth-protected-resource";
    let gateway = setup(&issuer).start().await;
    let expected = json!({"resource": here(&gateway), "authorization_servers": [issuer.url()],
        "bearer_methods_supported": ["header"], "resource_name": "main"});
    assert_eq!(document(&gateway, &format!("{root}/mcp")).await, Some(expected.clone()));
    assert_eq!(document(&gateway, root).await, Some(expected));
    // The gateway is no authorization server.
    for path in ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration", "/authorize"] {
        assert_eq!(document(&gateway, path).await, None, "{path}");
    }
    let client = gateway.client().path(root).silent();
    let head = client.send(Method::HEAD, client.headers(), "").await.unwrap();
    assert_eq!((head.status, head.text().await.len()), (StatusCode::OK, 0));
    assert_eq!(client.post(PING).await.status, StatusCode::METHOD_NOT_ALLOWED);
    // Several routes: each has its own, and the root belongs to none of them.
    let gateway =
        setup(&issuer).second_route().listen("public_url: \"https://MCP.example.com:443/base/\"").start().await;
    let second = document(&gateway, &format!("{root}/base/second")).await.unwrap();
    assert_eq!(second["resource"], "https://mcp.example.com/base/second");
    assert_eq!(document(&gateway, &format!("{root}/second")).await, Some(second));
    assert_eq!((document(&gateway, root).await, document(&gateway, &format!("{root}/other")).await), (None, None));
    let token = issuer.token("https://mcp.example.com/base/mcp", json!({}));
    assert_eq!(status(&gateway, &token).await, 200);
    // With keys alone there is nowhere to go.
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    assert_eq!(document(&gateway, root).await, None);
}

/// Lets time pass at once. The gateway must run on the test's own thread.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn streams_end_with_their_token_and_tasks_go_on() {
    for era in [Era::Legacy, Era::Modern] {
        let issuer = Issuer::start().await;
        let timing = Timing { threads: 0, ..Timing::default() };
        let options = Options { era, ..Options::default() };
        let gateway = setup(&issuer).server(options).timing(timing).start().await;
        let here = here(&gateway);
        let now = issuer.claims(&here)["iat"].as_u64().unwrap();
        let short = issuer.token(&here, json!({"exp": now + 300}));
        let mut client = gateway.client().token(&short).open().await;
        let task = client.start("hold", json!({})).await;
        let standalone = client.listen().await;
        let mut waiting = client.wait_for(&task).await;
        let event = waiting.next().await.unwrap().unwrap().id.unwrap();
        let modern = Modern::new(&gateway).with_tasks().token(&short);
        let (listening, _) = modern.listen(json!({"taskIds": [task], "toolsListChanged": true})).await;
        gateway.started("hold", 1).await;
        pass(Duration::from_secs(301)).await;
        // The stream of its own ends, the wait ends without an answer, and what was listened to says that it is over.
        assert!(standalone.messages().await.is_empty(), "{era:?}");
        assert!(waiting.messages().await.is_empty(), "{era:?}");
        let last = listening.messages().await.pop().unwrap();
        assert_eq!(last["result"]["resultType"], "complete", "{era:?} {last}");
        assert_eq!(client.post(PING).await.status, StatusCode::UNAUTHORIZED);
        // With another token she goes on where she was.
        client.set_token(&issuer.token(&here, json!({})));
        let resumed = client.get(Some(&event)).await;
        gateway.upstream.release();
        assert_eq!(text_of(&resumed.response().await), "held to the end", "{era:?}");
    }
}

/// A gateway that asks a server about tokens.
fn introspecting(issuer: &Issuer, keys: &str) -> Setup {
    let url = issuer.at("/introspect");
    Gateway::setup()
        .auth(&format!("introspection: {{url: \"{url}\", client_id: \"gate way\", client_secret: \"a:b&é\"{keys}}}"))
}

#[tokio::test]
async fn an_opaque_token_is_looked_up_once() {
    let issuer = Issuer::start().await;
    let gateway = introspecting(&issuer, &format!(", issuer: \"{}\"", issuer.url())).start().await;
    let mut answer = issuer.claims(&here(&gateway));
    answer["active"] = json!(true);
    answer["scope"] = json!("mcp");
    issuer.answer("/introspect", 200, &answer);
    issuer.set_held(true);
    let (one, two) = ("opaque token".replace(' ', "+"), "0.1.2");
    let waiting = futures_util::future::join_all((0..20).map(|_| status(&gateway, &one)));
    let opening = async {
        issuer.until_asked("/introspect", 1).await;
        issuer.set_held(false);
    };
    let (statuses, ()) = tokio::join!(waiting, opening);
    assert_eq!(statuses, vec![200; 20]);
    assert_eq!(status(&gateway, two).await, 200);
    let asked = issuer.asked("/introspect");
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].body, "token=opaque%2Btoken&token_type_hint=access_token");
    // `gate%20way:a%3Ab%26%C3%A9`
    assert_eq!(asked[0].headers["authorization"], "Basic Z2F0ZSUyMHdheTphJTNBYiUyNiVDMyVBOQ==");
    // The issuer that is named is where clients go.
    let document = document(&gateway, "/.well-known/oauth-protected-resource").await.unwrap();
    assert_eq!(document["authorization_servers"], json!([issuer.url()]));
    // The caller has tasks of her own.
    let ann = Modern::new(&gateway).with_tasks().token(&one);
    let task = ann.start("hold", json!({})).await;
    answer["sub"] = json!("bob");
    issuer.answer("/introspect", 200, &answer);
    let bob = Modern::new(&gateway).with_tasks().token("three");
    assert_eq!(bob.request("tasks/get", json!({"taskId": task})).await.refusal(), (200, -32602));
}

#[tokio::test]
async fn what_a_server_says_of_a_token_is_judged() {
    let issuer = Issuer::start().await;
    let gateway = introspecting(&issuer, ", tenant_claim: org").start().await;
    let mut good = issuer.claims(&here(&gateway));
    good["active"] = json!(true);
    good["org"] = json!("acme");
    let now = good["iat"].as_u64().unwrap();
    let mut number = 0;
    let mut next = |changes: Value| {
        let mut answer = good.clone();
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => answer.as_object_mut().unwrap().remove(name),
                value => answer.as_object_mut().unwrap().insert(name.clone(), value.clone()),
            };
        }
        issuer.answer("/introspect", 200, &answer);
        number += 1;
        format!("token{number}")
    };
    for good in [json!({}), json!({"exp": Value::Null}), json!({"iss": "https://somebody.example.com"})] {
        let token = next(good.clone());
        assert_eq!(status(&gateway, &token).await, 200, "{good}");
    }
    for bad in [
        json!({"active": false}),
        json!({"exp": now - 1}),
        json!({"nbf": now + 1000}),
        json!({"aud": Value::Null}),
        json!({"aud": "https://elsewhere.example.com"}),
        json!({"org": Value::Null}),
        json!({"sub": Value::Null, "client_id": Value::Null}),
        json!({"iss": 7}),
        json!({"iss": ""}),
        json!({"iss": "a\nb"}),
        json!({"iss": "x".repeat(1025)}),
    ] {
        let token = next(bad.clone());
        assert_eq!(status(&gateway, &token).await, 401, "{bad}");
        // Also the next time, and nobody is asked again so soon.
        let asked = issuer.asked("/introspect").len();
        assert_eq!((status(&gateway, &token).await, issuer.asked("/introspect").len()), (401, asked), "{bad}");
    }
    for broken in [json!({"active": "true"}), json!({"active": Value::Null})] {
        let token = next(broken.clone());
        assert_eq!(status(&gateway, &token).await, 503, "{broken}");
    }
    let twice = format!("{{\"active\":false,{}", &good.to_string()[1..]);
    for (code, body) in [(500, "{}"), (401, "{}"), (200, "no json"), (200, "[]"), (200, twice.as_str())] {
        issuer.answer_with("/introspect", code, "", body);
        let answer = posted(&gateway, "broken").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{code} {body}");
        assert_eq!((answer.header("www-authenticate"), answer.header("retry-after")), (None, Some("5")));
    }
    issuer.answer("/introspect", 200, &good);
    assert_eq!(status(&gateway, "broken").await, 200);
}

#[tokio::test]
async fn an_answer_is_believed_for_a_while_only() {
    let issuer = Issuer::start().await;
    let timing = Timing { threads: 0, ..Timing::default() };
    let gateway = introspecting(&issuer, ", audiences: []").timing(timing).start().await;
    let answer = json!({"active": true, "sub": "ann"});
    issuer.answer("/introspect", 200, &answer);
    assert_eq!(status(&gateway, "one").await, 200);
    issuer.set_down(true);
    pass(Duration::from_secs(59)).await;
    assert_eq!(status(&gateway, "one").await, 200);
    pass(Duration::from_secs(2)).await;
    assert_eq!(status(&gateway, "one").await, 503);
    issuer.set_down(false);
    issuer.answer("/introspect", 200, &json!({"active": false}));
    assert_eq!(status(&gateway, "one").await, 401);
    issuer.answer("/introspect", 200, &answer);
    assert_eq!(status(&gateway, "one").await, 401);
    pass(Duration::from_secs(11)).await;
    assert_eq!(status(&gateway, "one").await, 200);
}

#[tokio::test]
async fn each_kind_of_token_has_one_judge() {
    let issuer = Issuer::start().await;
    let url = issuer.at("/introspect");
    let auth = format!("jwt: [{{issuer: \"{}\"}}], introspection: {{url: \"{url}\", audiences: []}}", issuer.url());
    let gateway = Gateway::setup().auth(&auth).callers(&["acme/ann"]).start().await;
    issuer.answer("/introspect", 200, &json!({"active": true, "sub": "ann"}));
    assert_eq!(status(&gateway, "opaque").await, 200);
    assert_eq!(issuer.asked("/introspect").len(), 1);
    // What an issuer has signed, or should have, is nobody else's business; neither are keys.
    assert_eq!(status(&gateway, &issuer.token(&here(&gateway), json!({}))).await, 200);
    let own = Key::new("one", "ES256");
    assert_eq!(status(&gateway, &own.sign(&own.header(), &issuer.claims(&here(&gateway)))).await, 401);
    assert_eq!(status(&gateway, "key-of-ann").await, 200);
    assert_eq!(
        gateway.client().silent().post_with(&[("x-api-key", "other")], PING).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(issuer.asked("/introspect").len(), 1);
    // Nor does a server speak for an issuer whose tokens are checked by their signature.
    issuer.answer("/introspect", 200, &json!({"active": true, "sub": "ann", "iss": issuer.url()}));
    assert_eq!(status(&gateway, "impostor").await, 401);
}
