//! A gateway that is started again: what a client holds is good as long as the key is.

use std::path::Path;

use http::StatusCode;
use taskgate::app::App;
use taskgate::clock::Clock;
use taskgate::config;
use taskgate::demo::server::{Era, Options, Server};

use crate::support::{Client, Opening, json, text_of, within};

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

const OLD: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const NEW: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// A gateway with those keys in front of a server that stays.
async fn start(upstream: &Server, secrets: &str) -> App {
    let yaml = format!(
        "listen: {{address: \"127.0.0.1:0\"}}\nadmin: {{address: \"127.0.0.1:0\"}}\nsecrets: {{{secrets}}}\n\
         routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]\n",
        upstream.url()
    );
    let settings = config::parse(&yaml, "test.yaml", Path::new(""), &|_| None);
    App::start(&settings.unwrap_or_else(|errors| panic!("{errors}"))).await.unwrap()
}

/// The same session, in the hands of a client that has moved to another gateway.
fn moved(client: &Client, app: &App) -> Client {
    let mut moved = Opening::at(app.address).silent();
    moved.session.clone_from(&client.session);
    moved.version.clone_from(&client.version);
    moved
}

#[tokio::test]
async fn a_session_goes_on_while_its_key_is_known() {
    let upstream = Server::start_on_loopback(Options::default()).await.unwrap();
    let first = start(&upstream, &format!("key: \"{OLD}\"")).await;
    let client = Opening::at(first.address).open().await;
    // Ids carry the time in milliseconds, and real processes don't follow each other within one.
    let clock = Clock::system();
    let opened = clock.now();
    while clock.now() <= opened {
        tokio::task::yield_now().await;
    }
    // Given a process that is gone without having ended its sessions, then the next takes them up by the same key,
    let second = start(&upstream, &format!("key: \"{OLD}\"")).await;
    let next = moved(&client, &second);
    assert_eq!(text_of(&next.call("echo", json!({"text": "x"})).await), "x");
    // also by one that is no longer used for new ones,
    let third = start(&upstream, &format!("key: \"{NEW}\", previous: [\"{OLD}\"]")).await;
    let next = moved(&client, &third);
    assert_eq!(next.post(PING).await.status, StatusCode::OK);
    // at the version that was agreed on, with the client's capabilities.
    let mut stream = next.listen().await;
    let id = next.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    next.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&next.outcome(&id).await), "Hello, Ann");
    assert_eq!(upstream.stats().sessions_opened, 1);
    // One that does not know the key knows no session, nor one that was ended there.
    for secrets in [format!("key: \"{NEW}\""), String::new()] {
        let stranger = start(&upstream, &secrets).await;
        assert_eq!(moved(&client, &stranger).post(PING).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(next.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(next.post(PING).await.status, StatusCode::NOT_FOUND);
    within(upstream.until(|stats| stats.deleted == 1)).await;
}

#[tokio::test]
async fn stopping_ends_what_was_open() {
    let mut gateway = crate::support::Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    gateway.seen(|stats| stats.get_streams == 1).await;
    gateway.stop().await;
    assert!(stream.next().await.unwrap().is_none());
    gateway.seen(|stats| stats.sessions == 0 && stats.deleted == 1 && stats.get_streams == 0).await;
}

#[tokio::test]
async fn a_session_on_a_server_without_sessions_goes_on_as_well() {
    let upstream = Server::start_on_loopback(Options { era: Era::Modern, ..Options::default() }).await.unwrap();
    let first = start(&upstream, &format!("key: \"{OLD}\"")).await;
    let client = Opening::at(first.address).open().await;
    assert_eq!(text_of(&client.call("echo", json!({"text": "before"})).await), "before");
    within(first.run_until(async {})).await;
    // When the gateway is another process with the same key,
    let second = start(&upstream, &format!("key: \"{OLD}\"")).await;
    let moved = moved(&client, &second);
    // then the session still knows what its client can be asked,
    let mut answer = moved.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
    let question = answer.until_method("elicitation/create").await;
    moved.accept(&question, json!({"name": "Ada"})).await;
    assert!(text_of(&answer.response().await).contains("Ada"));
    // and what its server offers.
    assert_eq!(moved.result("logging/setLevel", json!({"level": "info"})).await, json!({}));
    assert_eq!(moved.delete().await, StatusCode::NO_CONTENT);
    within(second.run_until(async {})).await;
}
