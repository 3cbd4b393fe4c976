//! Bodies that are no message, or one that can't be taken: a clear error, the right status, and the session goes on.

use http::StatusCode;
use taskgate::jsonrpc::Message;

use crate::support::{Client, Gateway, Value, json, text_of};

/// Posts a body that must be refused with HTTP 400 and this code; the error.
async fn refused(client: &Client, body: impl Into<bytes::Bytes>, code: i64) -> Value {
    let body = body.into();
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let answer = client.post(body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{shown}");
    let mut message = answer.json().await;
    assert_eq!(message["error"]["code"], code, "{shown}: {message}");
    let said = message["error"]["message"].as_str().unwrap();
    assert!(!said.is_empty() && said.len() < 300, "{said}");
    message.take()
}

/// Shows that nothing was lost: the session still serves.
async fn still_serves(client: &Client) {
    assert_eq!(text_of(&client.call("echo", json!({"text": "still here"})).await), "still here");
}

fn utf16(text: &str, bytes_of: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(bytes_of).collect()
}

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

#[tokio::test]
async fn what_is_no_json_is_a_parse_error() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for body in
        ["", " ", "{", "nope", r#"{"jsonrpc":}"#, &PING[..PING.len() - 1], &format!("{PING}{PING}"), "'x'", "{]"]
    {
        let message = refused(&client, body.to_owned(), -32700).await;
        assert!(message.get("id").is_none(), "{message}");
    }
    for body in [
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xffing\"}".to_vec(),
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"x\":\"\xed\xa0\x80\"}}".to_vec(),
        utf16(PING, u16::to_le_bytes),
        utf16(PING, u16::to_be_bytes),
        [b"\xff\xfe".to_vec(), utf16(PING, u16::to_le_bytes)].concat(),
        [b"\xef\xbb\xbf", PING.as_bytes()].concat(),
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"unknown\":\"\xff\"}".to_vec(),
        b"\0".to_vec(),
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{}", "[".repeat(10_000)).into_bytes(),
    ] {
        refused(&client, body, -32700).await;
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn json_that_is_no_message_is_an_invalid_request() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for body in [
        "5",
        "\"ping\"",
        "null",
        "true",
        "{}",
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":null,"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":["ping"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#,
    ] {
        refused(&client, body, -32600).await;
    }
    // Ten thousand arrays in each other are an array all the same, and no batch on this version.
    refused(&client, format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), -32600).await;
    still_serves(&client).await;
}

#[tokio::test]
async fn deep_nesting_passes_where_nothing_needs_to_be_read() {
    // Given a server that reads no deeper than it must, and a client with ten thousand arrays inside its arguments,
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for (place, params) in [
        ("arguments", format!(r#"{{"name":"exact","arguments":{{"x":{deep}}}}}"#)),
        ("arguments of a task", format!(r#"{{"name":"exact","arguments":{{"x":{deep}}},"task":{{}}}}"#)),
        ("_meta", format!(r#"{{"name":"exact","_meta":{{"x":{deep}}}}}"#)),
        ("_meta of a task", format!(r#"{{"name":"exact","_meta":{{"x":{deep}}},"task":{{}}}}"#)),
        ("a member of task", format!(r#"{{"name":"exact","task":{{"x":{deep}}}}}"#)),
        ("an unknown member", format!(r#"{{"name":"exact","x":{deep}}}"#)),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
        let response = client.post(body).await.response().await;
        assert!(response["result"].is_object(), "{place}: {response}");
    }
    // then each call arrived.
    gateway.seen(|stats| stats.tool("exact").finished == 6).await;
    for (method, params) in
        [("tools/call", format!("{{\"name\":{deep}}}")), ("tasks/get", format!("{{\"taskId\":{deep}}}"))]
    {
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#);
        assert_eq!(client.post(body).await.response().await["error"]["code"], -32602);
    }
    still_serves(&client).await;
}

/// The id in a message, as it is spelled there.
fn id_of(body: &str) -> String {
    match Message::parse(body.as_bytes()).unwrap() {
        Message::Response { id: Some(id), .. } => id.as_json().to_owned(),
        other => panic!("no response with an id: {other:?}"),
    }
}

#[tokio::test]
async fn every_usable_id_comes_back_as_it_was_spelled() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let long = format!("\"{}\"", "x".repeat(1022));
    for id in ["1", "\"1\"", "0", "-7", "9007199254740993", "\"\"", r#""\u0041\/é""#, "\"tg.x\"", &long] {
        for (method, params) in [
            ("ping", "{}"),
            ("tools/call", r#"{"name":"echo","arguments":{"text":"x"}}"#),
            ("tools/call", r#"{"name":"echo","arguments":{"text":"x"},"task":{}}"#),
            ("tools/call", r#"{"name":"log"}"#),
            ("tools/list", "{}"),
            ("tasks/get", r#"{"taskId":"none"}"#),
            ("tasks/list", "{}"),
            ("nobody/knows", "{}"),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
            let answer = client.post(body).await;
            assert_eq!(answer.status, StatusCode::OK, "{id} {method}");
            let last = match answer.is_events() {
                true => answer.events().await.pop().unwrap().data,
                false => answer.text().await,
            };
            assert_eq!(id_of(&last), id, "{method}");
        }
    }
}

#[tokio::test]
async fn every_other_id_is_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let long = [format!("\"{}\"", "x".repeat(4096)), "1".repeat(4096), format!("\"{}\"", "x".repeat(1023))];
    let short = ["null", "1.5", "1e3", "1.0", "-", "true", "[]", "{}", "[1]", "{\"a\":1}"].map(str::to_owned);
    for id in short.into_iter().chain(long) {
        let code = if id == "-" { -32700 } else { -32600 };
        for (method, params) in
            [("ping", "{}"), ("tools/call", r#"{"name":"count","task":{}}"#), ("tools/call", r#"{"name":"count"}"#)]
        {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
            let message = refused(&client, body, code).await;
            assert!(message.get("id").is_none(), "{message}");
        }
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}}}}}}"#
        );
        refused(&gateway.client().silent(), body, code).await;
    }
    assert_eq!(gateway.upstream.stats().counter, 0);
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
    still_serves(&client).await;
}

#[tokio::test]
async fn a_repeated_member_that_decides_is_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    // Before the id is known it can't be named.
    for body in [
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":5,"id":6,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"ping","m\u0065thod":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"count"},"params":{"name":"count"}}"#,
        r#"{"jsonrpc":"2.0","id":5,"result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","method":"ping"}"#,
    ] {
        refused(&client, body, -32600).await;
    }
    for (method, params) in [
        ("tools/call", r#"{"name":"echo","name":"count"}"#),
        ("tools/call", r#"{"name":"echo","na\u006de":"count"}"#),
        ("tools/call", r#"{"name":"count","task":{},"name":"count"}"#),
        ("tools/call", r#"{"name":"count","_meta":{},"_meta":{"progressToken":1}}"#),
        ("tools/call", r#"{"name":"count","task":{},"task":{"ttl":1}}"#),
        ("resources/read", r#"{"uri":"demo://greeting","uri":"demo://greeting"}"#),
        ("tasks/get", r#"{"taskId":"a","taskId":"b"}"#),
        ("tasks/result", r#"{"taskId":"a","taskId":"b"}"#),
        ("tasks/cancel", r#"{"taskId":"a","taskId":"b"}"#),
        ("nobody/knows", r#"{"protocolVersion":"a","protocolVersion":"b"}"#),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{params}}}"#);
        let message = refused(&client, body, -32600).await;
        assert_eq!(message["id"], 5, "{message}");
    }
    let twice = r#"{"protocolVersion":"2025-11-25","protocolVersion":"2025-06-18","capabilities":{}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"initialize","params":{twice}}}"#);
    refused(&gateway.client().silent(), body, -32600).await;
    assert_eq!(gateway.upstream.stats().counter, 0);
    // What decides nothing here may be repeated: it is the upstream's business.
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"count","x":1,"x":2},"y":1,"y":2}"#;
    assert_eq!(text_of(&client.post(body).await.response().await), "1");
    assert_eq!(gateway.upstream.stats().last_body, body);
}

#[tokio::test]
async fn wrong_types_of_parameters_are_invalid_params() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let wrong = [json!(null), json!(5), json!(true), json!([]), json!({"x": 1})];
    for value in &wrong {
        for params in [json!({"name": value}), json!({"name": value, "task": {}})] {
            assert_eq!(client.error("tools/call", params).await["code"], -32602, "name: {value}");
        }
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let error = client.error(method, json!({"taskId": value})).await;
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!("Task not found")), "{value}");
        }
        let error = client.error("tasks/list", json!({"cursor": value})).await;
        assert_eq!(error["code"], -32602, "cursor: {value}");
    }
    for value in [json!(null), json!(5), json!(true), json!("x"), json!([])] {
        let params = json!({"name": "count", "task": value});
        assert_eq!(client.error("tools/call", params).await["code"], -32602, "task: {value}");
        let params = json!({"name": "count", "arguments": value, "task": {}});
        assert_eq!(client.error("tools/call", params).await["code"], -32602, "arguments: {value}");
    }
    for (method, params) in
        [("tools/call", "{}"), ("tools/call", r#"{"task":{}}"#), ("tasks/get", "{}"), ("tasks/get", "[]")]
    {
        let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{params}}}"#);
        assert_eq!(client.post(body).await.response().await["error"]["code"], -32602, "{method} {params}");
    }
    for method in ["tools/call", "tasks/get", "tasks/result", "tasks/cancel"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{method}"}}"#);
        assert_eq!(client.post(body).await.response().await["error"]["code"], -32602, "{method}");
    }
    // Then nothing was run and nothing is kept.
    assert_eq!(gateway.upstream.stats().tool("count").started, 0);
    assert_eq!(client.result("tasks/list", json!({})).await["tasks"], json!([]));
    still_serves(&client).await;
}

#[tokio::test]
async fn a_meta_that_is_no_object_is_the_upstreams_business() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for meta in ["null", "5", "\"x\"", "[]", "true"] {
        for (task, params) in [
            (false, format!(r#"{{"name":"exact","_meta":{meta}}}"#)),
            (true, format!(r#"{{"name":"exact","_meta":{meta},"task":{{}}}}"#)),
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}"#);
            let response = client.post(body).await.response().await;
            if task {
                let id = response["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{response}"));
                client.outcome(id).await;
            }
            assert_eq!(gateway.upstream.stats().last_call, format!(r#"{{"name":"exact","_meta":{meta}}}"#));
        }
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tasks/get","params":{{"taskId":"x","_meta":{meta}}}}}"#);
        assert_eq!(client.post(body).await.response().await["error"]["code"], -32602);
    }
}

#[tokio::test]
async fn a_progress_token_is_a_string_or_an_integer() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for token in [json!(true), json!({}), json!([1]), json!(1.5), json!("x".repeat(2000))] {
        let params = json!({"name": "count", "task": {}, "_meta": {"progressToken": token}});
        assert_eq!(client.error("tools/call", params).await["code"], -32602, "{token}");
    }
    assert_eq!(gateway.upstream.stats().counter, 0);
}

#[tokio::test]
async fn a_tool_name_has_a_bound_where_it_would_be_kept() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"name": "x".repeat(100_000), "task": {}});
    assert_eq!(client.error("tools/call", params).await["code"], -32602);
    gateway.counted(|metrics| metrics.value("taskgate_tasks_created_total", &[]) == 0.0).await;
}

#[tokio::test]
async fn ttls_are_granted_within_bounds_or_refused() {
    let gateway = Gateway::setup().tasks("deadline: 30m, retention: 10m, ttl: {default: 1h, max: 24h}").start().await;
    let client = gateway.open().await;
    let minute = 60_000;
    for (task, granted) in [
        ("{}", 60 * minute),
        (r#"{"ttl":null}"#, 60 * minute),
        (r#"{"ttl":0}"#, 40 * minute),
        (r#"{"ttl":-0}"#, 40 * minute),
        (r#"{"ttl":1.5}"#, 40 * minute),
        (r#"{"ttl":60000}"#, 40 * minute),
        (r#"{"ttl":2400001}"#, 40 * minute + 1),
        (r#"{"ttl":2400001.9}"#, 40 * minute + 1),
        (r#"{"ttl":7.2e6}"#, 120 * minute),
        (r#"{"ttl":86400001}"#, 1440 * minute),
        (r#"{"ttl":1e308}"#, 1440 * minute),
        (r#"{"ttl":1,"vendor":1}"#, 40 * minute),
    ] {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"exact","task":{task}}}}}"#);
        let response = client.post(body).await.response().await;
        assert_eq!(response["result"]["task"]["ttl"], granted, "{task}: {response}");
    }
    gateway.seen(|stats| stats.tool("exact").finished == 12).await;
    for task in [
        r#"{"ttl":-1}"#,
        r#"{"ttl":-1e-9}"#,
        r#"{"ttl":"60000"}"#,
        r#"{"ttl":true}"#,
        r#"{"ttl":[]}"#,
        r#"{"ttl":{}}"#,
        r#"{"ttl":1e999}"#,
        r#"{"ttl":1,"ttl":2}"#,
    ] {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"exact","task":{task}}}}}"#);
        let response = client.post(body).await.response().await;
        assert_eq!(response["error"]["code"], -32602, "{task}: {response}");
    }
    assert_eq!(gateway.metrics().await.value("taskgate_tasks_created_total", &[]), 12.0);
}

#[tokio::test]
async fn a_request_without_an_id_goes_nowhere() {
    // Given a tool that the route denies, and a server that would run it unasked,
    let gateway = Gateway::setup().tools("deny: [count]").start().await;
    let client = gateway.open().await;
    // When the call is sent as a notification, and other requests as well,
    for method in ["tools/call", "tasks/cancel", "initialize", "resources/read", "server/discover"] {
        let body =
            json!({"jsonrpc": "2.0", "method": method, "params": {"name": "count", "arguments": {}, "task": {}}});
        refused(&client, body.to_string(), -32600).await;
    }
    // Then none of them has reached the server.
    assert_eq!(gateway.upstream.stats().counter, 0);
    assert_eq!(gateway.upstream.stats().method("tools/call"), 0);
    assert_eq!(client.error("tools/call", json!({"name": "count"})).await["message"], "Unknown tool");
}
