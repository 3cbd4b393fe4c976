//! The checks that a request of the modern era passes before anything is done with it, in their order, and which era a
//! message is of.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use taskgate::demo::server::{Era, Options};

use crate::support::Gateway;
use crate::support::modern::{CAPABILITIES_KEY, MODERN, Modern, VERSION_KEY};

async fn start() -> Gateway {
    Gateway::setup().server(Options { era: Era::Both, ..Options::default() }).start().await
}

/// Sends a request as it stands.
async fn post(client: &Modern, changes: &[(&'static str, &str)], body: Value) -> (u16, Value) {
    let method = body["method"].as_str().unwrap_or_default();
    let answer = client.send(client.headers(method, &body["params"]), changes, body.to_string()).await.unwrap();
    let status = answer.status.as_u16();
    let text = answer.text().await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": "r-1", "method": method, "params": params})
}

#[tokio::test]
async fn claims_come_before_headers_and_headers_before_versions() {
    let gateway = start().await;
    let client = Modern::new(&gateway);
    let capable = json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}});
    let garbage = json!({VERSION_KEY: "v999.0.0", CAPABILITIES_KEY: {}});
    for (what, changes, meta, code) in [
        ("no claims under a modern header", &[][..], json!({}), -32602),
        ("no capabilities", &[], json!({VERSION_KEY: MODERN}), -32602),
        ("a version that is no string", &[], json!({VERSION_KEY: 5, CAPABILITIES_KEY: {}}), -32602),
        ("capabilities that are no object", &[], json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: []}), -32602),
        ("claims that are incomplete, and a wrong method", &[("mcp-method", "x")], json!({}), -32602),
        ("no version header", &[("mcp-protocol-version", "")], capable.clone(), -32020),
        ("a legacy version header", &[("mcp-protocol-version", "2025-11-25")], capable.clone(), -32020),
        ("another version in the body", &[], garbage.clone(), -32020),
        ("the same unknown version twice", &[("mcp-protocol-version", "v999.0.0")], garbage, -32022),
        ("no method header", &[("mcp-method", "")], capable.clone(), -32020),
        ("another method header", &[("mcp-method", "tools/call")], capable.clone(), -32020),
        ("a method header in capitals", &[("mcp-method", "TOOLS/LIST")], capable.clone(), -32020),
    ] {
        let (status, error) = post(&client, changes, request("tools/list", json!({"_meta": meta}))).await;
        assert_eq!((status, &error["error"]["code"]), (400, &json!(code)), "{what}: {error}");
        assert_eq!(error["id"], "r-1", "{what}");
    }
    let old = json!({VERSION_KEY: "2025-11-25", CAPABILITIES_KEY: {}});
    let legacy = &[("mcp-protocol-version", "2025-11-25")];
    let (status, error) = post(&client, legacy, request("tools/list", json!({"_meta": old}))).await;
    assert_eq!((status, &error["error"]["code"]), (400, &json!(-32022)), "{error}");
    assert_eq!(error["error"]["data"], json!({"supported": [MODERN], "requested": "2025-11-25"}));
    let (status, _) =
        post(&client, &[("mcp-method", " tools/list\t")], request("tools/list", json!({"_meta": capable}))).await;
    assert_eq!(status, 200, "white space around a field's value is no part of it");
}

#[tokio::test]
async fn names_in_headers_are_decoded_and_must_be_those_of_the_body() {
    let gateway = start().await;
    let client = Modern::new(&gateway).with_tasks();
    let call = |name: &str| client.params(json!({"name": name, "arguments": {}}));
    for (header, name, code) in [
        ("", "echo", Some(-32020)),
        ("Echo", "echo", Some(-32020)),
        ("=?base64?ZWNobw==?=", "echo", None),
        ("=?base64?ZWNobw?=", "echo", Some(-32020)),
        ("=?BASE64?ZWNobw==?=", "echo", Some(-32020)),
        ("=?base64?w6k=?=", "\u{e9}", None),
        ("=?base64?ZWNobw==", "=?base64?ZWNobw==", None),
    ] {
        let (_, answer) = post(&client, &[("mcp-name", header)], request("tools/call", call(name))).await;
        // A tool that is not there is the upstream's to refuse: the header was taken.
        let refused = answer["error"]["code"].as_i64().filter(|code| *code == -32020);
        assert_eq!(refused, code, "{header} for {name}: {answer}");
    }
    // FastMCP 4 and the Python SDK 2 leave it out for tasks; a wrong one is wrong for every operation.
    let id = "01234567-89ab-4cde-8f01-23456789abcd";
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({"taskId": id, "inputResponses": {}});
        let reply = client.request_with(&[("mcp-name", "")], method, params.clone()).await;
        assert_eq!(reply.refusal(), (200, -32602), "{method}");
        let reply = client.request_with(&[("mcp-name", "another")], method, params).await;
        assert_eq!(reply.refusal(), (400, -32020), "{method}");
    }
    assert_eq!(gateway.metrics().await.value("taskgate_unnamed_requests_total", &[("route", "main")]), 3.0);
}

#[tokio::test]
async fn what_the_era_has_dropped_is_not_there() {
    let gateway = start().await;
    let client = Modern::new(&gateway).with_tasks();
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "no/such/method",
    ] {
        let reply = client.request(method, json!({"taskId": "x", "uri": "x:y", "level": "info"})).await;
        assert_eq!(reply.refusal(), (404, -32601), "{method}");
    }
}

#[tokio::test]
async fn tasks_need_the_extension_before_they_are_looked_up() {
    let gateway = start().await;
    let required = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    // What the core dialect declares is no declaration of the extension.
    let core_only = json!({"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}});
    for client in [Modern::new(&gateway), Modern::new(&gateway).declares(core_only)] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let reply = client.request(method, json!({"taskId": "nobody's", "inputResponses": {}})).await;
            assert_eq!(reply.refusal(), (400, -32021), "{method}");
            assert_eq!(reply.error["data"]["requiredCapabilities"], required, "{method}");
        }
        let params = json!({"notifications": {"taskIds": ["nobody's"]}});
        let reply = client.request("subscriptions/listen", params).await;
        assert_eq!(reply.refusal(), (400, -32021));
    }
}

#[tokio::test]
async fn each_message_is_of_the_era_that_its_body_says() {
    let gateway = start().await;
    let client = Modern::new(&gateway);
    let modern = json!({VERSION_KEY: MODERN, CAPABILITIES_KEY: {}});
    let no_header = &[("mcp-protocol-version", "")][..];
    let handshake =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    for (what, changes, body, status, code) in [
        ("a handshake under a modern header", &[][..], request("initialize", handshake.clone()), 400, -32020),
        ("discovery without claims or header", no_header, request("server/discover", json!({})), 400, -32602),
        ("a response", &[], json!({"jsonrpc": "2.0", "id": 1, "result": {}}), 400, -32600),
        ("a batch", &[], json!([request("tools/list", json!({"_meta": modern}))]), 400, -32600),
        ("a batch without header", no_header, json!([request("tools/list", json!({"_meta": modern}))]), 400, -32600),
        ("no session and no claim", no_header, request("tools/list", json!({})), 400, -32600),
    ] {
        let (answered, error) = post(&client, changes, body).await;
        assert_eq!((answered, &error["error"]["code"]), (status, &json!(code)), "{what}: {error}");
    }
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(post(&client, &[], cancel).await.0, 202, "a notification is taken and dropped");
    let session = [("mcp-session-id", "of another era")];
    let (status, answer) = post(&client, &session, request("tools/list", client.params(json!({})))).await;
    assert_eq!(status, 200, "a session id means nothing here: {answer}");
    // What asks in one era may go on in the other: nothing is remembered of it.
    let legacy = gateway.open().await;
    let answer = legacy.call("echo", json!({"text": "there"})).await;
    assert_eq!(answer["result"]["content"][0]["text"], "there", "{answer}");
}

#[tokio::test]
async fn there_is_nothing_to_get_or_delete() {
    let gateway = start().await;
    let client = gateway.client().silent();
    for method in [Method::GET, Method::DELETE] {
        let headers = client.headers_with(&[("mcp-protocol-version", MODERN)]);
        let answer = client.send(method.clone(), headers, "").await.unwrap();
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.header("allow"), Some("POST"), "{method}");
    }
}
