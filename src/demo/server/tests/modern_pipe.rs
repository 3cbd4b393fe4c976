//! The modern era over stdio.

use serde_json::{Value, json};

use super::super::{Era, Options};
use super::modern::claimed;
use super::stdio::Pipe;

fn request(id: i64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": claimed(params)})
}

fn cancelled(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

fn pipe(era: Era) -> Pipe {
    Pipe::with(Options { era, ..Options::default() })
}

#[tokio::test]
async fn requests_run_side_by_side_and_are_cancelled() {
    let mut pipe = pipe(Era::Modern);
    pipe.send(&request(1, "server/discover", json!({}))).await;
    assert_eq!(pipe.next().await["result"]["supportedVersions"], json!(["2026-07-28"]));
    for id in [2, 3] {
        pipe.send(&request(id, "tools/call", json!({"name": "hold"}))).await;
    }
    pipe.send(&request(2, "tools/call", json!({"name": "count"}))).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600);
    pipe.send(&cancelled(2)).await;
    pipe.send(&request(4, "tools/call", json!({"name": "release"}))).await;
    let mut ids = [pipe.next().await["id"].take(), pipe.next().await["id"].take()];
    ids.sort_by_key(Value::as_i64);
    assert_eq!(ids, [3, 4]);
    pipe.send(&json!({"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": {}})).await;
    assert_eq!(pipe.next().await["error"]["data"]["supported"], json!(["2026-07-28"]));
    pipe.send(&request(6, "tools/call", json!({"name": "ask", "arguments": {}}))).await;
    assert_eq!(pipe.next().await["result"]["resultType"], "input_required");
}

#[tokio::test]
async fn subscriptions_last_until_they_are_cancelled() {
    let mut pipe = pipe(Era::Modern);
    for round in 0..2 {
        pipe.send(&request(1, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}))).await;
        assert_eq!(pipe.next().await["method"], "notifications/subscriptions/acknowledged", "{round}");
        pipe.send(&request(2, "tools/call", json!({"name": "stats"}))).await;
        assert_eq!(pipe.next().await["result"]["structuredContent"]["listens"], 1);
        pipe.send(&cancelled(1)).await;
    }
    pipe.send(&request(2, "tools/call", json!({"name": "stats"}))).await;
    assert_eq!(pipe.next().await["result"]["structuredContent"]["listens"], 0);
}

#[tokio::test]
async fn both_eras_share_a_pipe() {
    let mut pipe = pipe(Era::Both);
    pipe.send(&request(1, "tools/call", json!({"name": "count"}))).await;
    assert_eq!(pipe.next().await["result"]["resultType"], "complete");
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    pipe.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": params})).await;
    assert_eq!(pipe.next().await["result"]["protocolVersion"], "2025-11-25");
    pipe.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "count"}})).await;
    assert_eq!(pipe.next().await["result"].get("resultType"), None);
}
