//! Each hop speaks its own version: what one side lacks, the other is not shown.

use http::StatusCode;
use taskgate::demo::server::Options;
use taskgate::mcp::version::ProtocolVersion;

use crate::support::{Client, Gateway, Value, json, text_of};

const CLIENTS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

fn server(version: ProtocolVersion) -> Options {
    Options { version, ..Options::default() }
}

#[tokio::test]
async fn every_pair_of_versions_works() {
    for newest in ProtocolVersion::LEGACY {
        let gateway = Gateway::setup().server(server(newest)).start().await;
        for version in CLIENTS {
            // Given a client of one version in front of a server of another,
            let client = gateway.client().version(version).open().await;
            // then each has its own version,
            assert_eq!(client.welcome["protocolVersion"], version);
            let spoken = newest.as_str().min(version);
            let header = (spoken >= "2025-06-18").then_some(spoken);
            assert_eq!(text_of(&client.call("echo", json!({"text": "x"})).await), "x", "{version} {newest}");
            assert_eq!(gateway.upstream.stats().header("mcp-protocol-version"), header, "{version} {newest}");
            // and tasks are there for those who know them, whatever the server speaks.
            let has_tasks = version == "2025-11-25";
            assert_eq!(client.welcome["capabilities"].get("tasks").is_some(), has_tasks, "{version} {newest}");
            let tools = client.result("tools/list", json!({})).await;
            let said = tools["tools"].as_array().unwrap().iter().all(|tool| tool.get("execution").is_some());
            assert_eq!(said, has_tasks, "{version} {newest}");
            let call = json!({"name": "echo", "arguments": {"text": "y"}, "task": {}});
            let response = client.response("tools/call", call).await;
            assert_eq!(response["result"].get("task").is_some(), has_tasks, "{version} {newest}");
            if has_tasks {
                let id = response["result"]["task"]["taskId"].as_str().unwrap();
                assert_eq!(text_of(&client.outcome(id).await), "y");
            } else {
                assert_eq!(text_of(&response), "y");
                for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
                    assert_eq!(client.error(method, json!({"taskId": "x"})).await["code"], -32601, "{method}");
                }
            }
        }
        assert!(!gateway.upstream.stats().task_seen);
    }
}

#[tokio::test]
async fn a_version_that_nobody_knows_is_answered_with_the_newest() {
    let gateway = Gateway::setup().server(server(ProtocolVersion::V2025_06_18)).start().await;
    for version in ["2099-01-01", "2026-07-28", "", "1"] {
        let client = gateway.client().version(version).open().await;
        assert_eq!(client.welcome["protocolVersion"], "2025-11-25", "{version}");
        assert!(client.welcome["capabilities"].get("tasks").is_some());
    }
}

/// The capabilities that a server of that version hears of.
async fn heard(version: ProtocolVersion, capabilities: Value) -> Value {
    let gateway = Gateway::setup().server(server(version)).start().await;
    let client = gateway.client().capabilities(capabilities).open().await;
    let stats = gateway.seen(|stats| stats.sessions == 1).await;
    let sent: Value = serde_json::from_slice(&stats.last_initialize).unwrap();
    assert_eq!(client.call("echo", json!({"text": "x"})).await["error"], Value::Null);
    sent["capabilities"].clone()
}

#[tokio::test]
async fn a_server_hears_of_no_capability_that_its_version_lacks() {
    use ProtocolVersion::{V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25};
    let all = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {"listChanged": true},
        "tasks": {"list": {}}, "experimental": {"x": {}}});
    let kept = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {"listChanged": true},
        "experimental": {"x": {}}});
    assert_eq!(heard(V2025_11_25, all.clone()).await, kept);
    let older = json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}, "experimental": {"x": {}}});
    assert_eq!(heard(V2025_06_18, all.clone()).await, older);
    let oldest = json!({"sampling": {}, "roots": {"listChanged": true}, "experimental": {"x": {}}});
    assert_eq!(heard(V2025_03_26, all.clone()).await, oldest);
    assert_eq!(heard(V2024_11_05, all).await, oldest);
    // A client that takes URLs only would look to an older server like one that takes forms.
    let url_only = json!({"elicitation": {"url": {}}});
    assert_eq!(heard(V2025_11_25, url_only.clone()).await, url_only);
    assert_eq!(heard(V2025_06_18, url_only).await, json!({}));
    assert_eq!(heard(V2025_06_18, json!({"elicitation": {}})).await, json!({"elicitation": {}}));
}

#[tokio::test]
async fn a_url_only_client_is_asked_for_no_form_by_an_older_server() {
    let gateway = Gateway::setup().server(server(ProtocolVersion::V2025_06_18)).start().await;
    let client = gateway.client().capabilities(json!({"elicitation": {"url": {}}})).open().await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "failed").await;
    assert_eq!(gateway.upstream.stats().questions, 0);
    // The session that was opened only to learn the version is closed.
    gateway.seen(|stats| stats.sessions_opened == 2 && stats.sessions == 1).await;
}

#[tokio::test]
async fn an_event_without_data_goes_only_to_the_newest_clients() {
    let options = Options { priming: true, event_ids: true, always_sse: true, ..Options::default() };
    let gateway = Gateway::setup().server(options).start().await;
    for version in CLIENTS {
        let client = gateway.client().version(version).open().await;
        let answer = client.request("tools/call", json!({"name": "log"})).await;
        let events = answer.events().await;
        assert_eq!(events.iter().any(|event| event.data.is_empty()), version == "2025-11-25", "{version}");
        // Ids are the server's, marked as such.
        assert!(events.iter().all(|event| event.id.as_ref().is_some_and(|id| id.starts_with("u."))), "{events:?}");
        assert_eq!(text_of(&events.last().unwrap().message()), "logged");
    }
}

#[tokio::test]
async fn arrays_of_an_older_server_are_taken_apart_for_newer_clients() {
    let options = Options { batches: true, always_sse: true, event_ids: true, ..server(ProtocolVersion::V2025_03_26) };
    for event_ids in [false, true] {
        let gateway = Gateway::setup().server(Options { event_ids, ..options.clone() }).start().await;
        for version in CLIENTS {
            let client = gateway.client().version(version).open().await;
            let call = json!({"name": "log", "arguments": {"messages": 3}});
            let events = client.request("tools/call", call.clone()).await.events().await;
            let values: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
            let splits = version >= "2025-06-18";
            assert_eq!(values.iter().any(Value::is_array), !splits && version == "2025-03-26", "{version}: {values:?}");
            let flat = values.iter().flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]));
            let flat: Vec<Value> = flat.collect();
            assert_eq!(flat.len(), 4, "{version}: {flat:?}");
            assert_eq!(text_of(&flat[3]), "logged");
        }
    }
}

#[tokio::test]
async fn arrays_inside_a_task_are_taken_apart() {
    let options = Options { batches: true, always_sse: true, ..server(ProtocolVersion::V2025_03_26) };
    let gateway = Gateway::setup().server(options).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("log", json!({"messages": 3})).await;
    let messages = stream.until(|message| message["params"]["status"] == "completed").await;
    let logged = messages.iter().filter(|message| message["method"] == "notifications/message").count();
    assert_eq!(logged, 3, "{messages:?}");
    assert_eq!(text_of(&client.outcome(&id).await), "logged");
}

#[tokio::test]
async fn only_clients_of_2025_03_26_and_before_may_send_arrays() {
    let gateway = Gateway::start().await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count"}}]"#;
    for version in ["2025-11-25", "2025-06-18"] {
        let client = gateway.client().version(version).open().await;
        let answer = client.post(batch).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{version}");
        assert_eq!(answer.json().await["error"]["code"], -32600, "{version}");
    }
    assert_eq!(gateway.upstream.stats().counter, 0);
    for version in ["2025-03-26", "2024-11-05"] {
        let client = gateway.client().version(version).open().await;
        assert_eq!(client.post(batch).await.messages().await.len(), 1, "{version}");
    }
    assert_eq!(gateway.upstream.stats().counter, 2);
}

async fn batching() -> (Gateway, Client) {
    let gateway = Gateway::start().await;
    let client = gateway.client().version("2025-03-26").open().await;
    (gateway, client)
}

#[tokio::test]
async fn each_request_of_an_array_is_answered_and_nothing_else() {
    let (gateway, client) = batching().await;
    let batch = r#"[
        {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a"}}},
        {"jsonrpc":"2.0","method":"notifications/vendor"},
        {"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"echo","arguments":{"text":"b"}}},
        {"jsonrpc":"2.0","id":2,"method":"nobody/knows"},
        {"jsonrpc":"2.0","id":3,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}},
        {"jsonrpc":"2.0","id":1.5,"method":"ping"},
        5
    ]"#;
    for accept in ["application/json, text/event-stream", "application/json"] {
        let answer = client.post_with(&[("accept", accept)], batch).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.is_json(), accept == "application/json");
        let messages = answer.messages().await;
        let messages = match messages.as_slice() {
            [Value::Array(all)] => all.clone(),
            _ => messages,
        };
        let of = |id: Value| messages.iter().find(|message| message.get("id") == Some(&id)).unwrap();
        assert_eq!(messages.len(), 6, "{messages:?}");
        assert_eq!(text_of(of(json!(1))), "a");
        assert_eq!(text_of(of(json!("1"))), "b");
        assert_eq!(of(json!(2))["error"]["code"], -32601);
        // 2025-03-26 lifecycle, "Initialization": never part of a batch.
        assert_eq!(of(json!(3))["error"]["code"], -32600);
        assert_eq!(messages.iter().filter(|message| message.get("id").is_none()).count(), 2, "{messages:?}");
    }
    gateway.seen(|stats| stats.method("other") == 4).await;
}

#[tokio::test]
async fn an_array_without_requests_is_accepted() {
    let (gateway, client) = batching().await;
    for batch in [
        r#"[{"jsonrpc":"2.0","method":"notifications/vendor"},{"jsonrpc":"2.0","method":"notifications/vendor"}]"#,
        r#"[{"jsonrpc":"2.0","id":"x","result":{}}]"#,
    ] {
        let answer = client.post(batch).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!(answer.bytes().await, "");
    }
    gateway.seen(|stats| stats.method("other") == 2 && stats.stray_answers == 1).await;
}

#[tokio::test]
async fn an_array_that_is_empty_broken_or_too_long_is_refused() {
    let (gateway, client) = batching().await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count"}}"#;
    let of = |length: usize| format!("[{}]", vec![call; length].join(","));
    for (batch, code) in
        [("[]".to_owned(), -32600), ("[5".to_owned(), -32700), (format!("[{call},]"), -32700), (of(101), -32600)]
    {
        let answer = client.post(batch).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.json().await["error"]["code"], code);
    }
    assert_eq!(gateway.upstream.stats().counter, 0);
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let messages = client.post(deep).await.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["error"]["code"], -32600, "{messages:?}");
}
