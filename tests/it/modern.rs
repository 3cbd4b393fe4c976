//! Clients of the modern era in front of a server of the same era: what passes, what is looked at, and what ends with the
//! client.

use serde_json::json;

use taskgate::demo::server::{Era, Options};

use crate::support::Gateway;
use crate::support::modern::{MODERN, Modern, TASKS};

async fn start() -> Gateway {
    Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).start().await
}

#[tokio::test]
async fn a_server_is_shown_as_it_is_with_the_extension_in_place_of_its_own() {
    let gateway = start().await;
    let client = Modern::new(&gateway);
    let discovered = client.result("server/discover", json!({})).await;
    assert_eq!(discovered["supportedVersions"], json!([MODERN]));
    assert_eq!(discovered["capabilities"]["extensions"][TASKS], json!({}));
    assert!(discovered["capabilities"].get("tasks").is_none(), "{discovered}");
    let tools = client.result("tools/list", json!({})).await;
    assert!(tools["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{tools}");
}

#[tokio::test]
async fn a_question_passes_as_it_is_and_its_state_is_the_callers_alone() {
    let gateway = Gateway::setup()
        .server(Options { era: Era::Modern, ..Options::default() })
        .callers(&["acme/alice", "acme/bob"])
        .start()
        .await;
    let [alice, bob] = ["alice", "bob"].map(|name| Modern::new(&gateway).caller(name));
    let asked = alice.call("ask", json!({})).await;
    assert_eq!(asked.result["resultType"], "input_required", "{asked:?}");
    let key = asked.key();
    let answers = json!({key: {"action": "accept", "content": {"name": "x", "ok": true}}});
    let foreign = bob.answer("ask", json!({}), &asked.result, answers.clone()).await;
    assert_eq!(foreign.refusal(), (200, -32602));
    let mut changed = asked.result.clone();
    changed["requestState"] = json!("made up");
    assert_eq!(alice.answer("ask", json!({}), &changed, answers.clone()).await.refusal(), (200, -32602));
    let done = alice.answer("ask", json!({}), &asked.result, answers).await;
    assert_eq!(done.result["resultType"], "complete", "{done:?}");
}

#[tokio::test]
async fn a_client_that_goes_away_has_cancelled() {
    let gateway = start().await;
    // Before anything has come of the answer.
    let client = Modern::new(&gateway);
    let mut call = Box::pin(client.open("tools/call", json!({"name": "hold", "arguments": {"seconds": 600}})));
    tokio::select! {
        answer = &mut call => panic!("{}", answer.status),
        _ = gateway.started("hold", 1) => {}
    }
    drop(call);
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    // After the stream has begun.
    let params = json!({"name": "report", "arguments": {"sections": 3}, "_meta": {"progressToken": 1}});
    let mut call = Box::pin(client.open("tools/call", params));
    tokio::select! {
        answer = &mut call => panic!("{}", answer.status),
        _ = gateway.started("report", 1) => {}
    }
    client.call("release", json!({})).await;
    let mut answer = call.await;
    assert_eq!(answer.message().await["method"], "notifications/progress");
    drop(answer);
    gateway.seen(|stats| stats.tool("report").cancelled == 1).await;
}
