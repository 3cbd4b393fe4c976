//! Whatever is sent, the server answers with the right status and goes on.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

use super::super::Options;
use super::pair;

#[tokio::test]
async fn headers_are_checked() {
    let (_server, peer) = pair(Options::default()).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let with = |name: &'static str, value: &str| -> HeaderMap {
        let mut headers = peer.headers();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let status = async |headers| peer.send(Method::POST, headers, ping).await.unwrap().status;
    assert_eq!(status(with("origin", "https://evil.example")).await, StatusCode::FORBIDDEN);
    assert_eq!(status(with("origin", "http://localhost:1")).await, StatusCode::OK);
    assert_eq!(status(with("accept", "application/json")).await, StatusCode::NOT_ACCEPTABLE);
    assert_eq!(status(with("accept", "*/*")).await, StatusCode::OK);
    assert_eq!(status(with("content-type", "text/plain")).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(status(with("content-type", "application/json; charset=utf-8")).await, StatusCode::OK);
    assert_eq!(status(with("mcp-session-id", "nobody")).await, StatusCode::NOT_FOUND);
    let json_only = peer.send(Method::GET, with("accept", "application/json"), "").await.unwrap();
    assert_eq!(json_only.status, StatusCode::NOT_ACCEPTABLE);
    let put = peer.send(Method::PUT, peer.headers(), ping).await.unwrap();
    assert_eq!((put.status, put.header("allow").is_some()), (StatusCode::METHOD_NOT_ALLOWED, true));
}

#[tokio::test]
async fn bodies_that_are_no_message_are_refused() {
    let (_server, peer) = pair(Options::default()).await;
    let deep = "[".repeat(10_000);
    let utf16: Vec<u8> = "{\"jsonrpc\":\"2.0\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let bodies: Vec<Bytes> = [
        "",
        " ",
        "{",
        "null",
        "1",
        "\"x\"",
        "[]",
        "{}",
        "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":3}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1}",
        deep.as_str(),
    ]
    .into_iter()
    .map(|text| Bytes::copy_from_slice(text.as_bytes()))
    .chain([
        Bytes::from(utf16),
        Bytes::from_static(b"\xff\xfe{}"),
        Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xc3\x28\"}"),
    ])
    .collect();
    for body in bodies {
        let answer = peer.post(body.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body:?}");
        let error = &answer.messages().await[0];
        assert!(error["error"]["code"].is_i64() && error.get("id").is_none(), "{error}");
    }
    assert_eq!(peer.text(1, "echo", json!({"text": "alive"})).await, "alive");
}

#[tokio::test]
async fn parameters_of_every_shape_get_an_error_or_a_result() {
    let (_server, peer) = pair(Options::default()).await;
    let shapes = [
        json!([]),
        json!({}),
        json!({"name": null}),
        json!({"name": 1}),
        json!({"name": "echo", "arguments": []}),
        json!({"name": "echo", "arguments": {"text": []}}),
        json!({"name": "report", "arguments": {"seconds": -1, "sections": 1}}),
        json!({"name": "report", "arguments": {"seconds": 0, "sections": 4_000_000_000_u32}}),
        json!({"name": "report", "arguments": {"seconds": "x"}}),
        json!({"name": "big", "arguments": {"bytes": u64::MAX}}),
        json!({"name": "big", "arguments": {"bytes": -1}}),
        json!({"name": "log", "arguments": {"messages": 1_000_000}}),
        json!({"name": "log", "arguments": {"level": "loud"}}),
        json!({"name": "echo", "_meta": 1, "arguments": {"text": "x"}}),
        json!({"name": "hold", "arguments": {"seconds": -1e308}}),
        json!({"name": "fault", "arguments": {"kind": 7}}),
        json!({"cursor": 1}),
        json!({"level": {}}),
        json!({"uri": {}}),
        json!({"requestId": {}}),
        json!({"protocolVersion": 1}),
    ];
    let methods =
        ["tools/call", "tools/list", "logging/setLevel", "resources/read", "prompts/get", "ping", "a\u{1F600}"];
    for (id, (shape, method)) in shapes.iter().flat_map(|shape| methods.map(|method| (shape, method))).enumerate() {
        let answer = peer.request(json!(id), method, shape.clone()).await.messages().await;
        let last = answer.last().unwrap();
        assert_eq!(last["id"], json!(id), "{method} {shape}");
        assert!(last.get("result").is_some() != last.get("error").is_some(), "{last}");
    }
    let nobody = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#;
    assert_eq!(peer.post(nobody).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn an_id_that_is_in_use_is_refused() {
    let (server, peer) = pair(Options::default()).await;
    let both = async {
        let first = peer.text(1, "hold", json!({}));
        let second = async {
            server.until(|stats| stats.tool("hold").started == 1).await;
            let refused = peer.call(1, "echo", json!({"text": "x"})).await.messages().await;
            server.release();
            refused
        };
        tokio::join!(first, second)
    };
    let (held, refused) = both.await;
    assert_eq!(held, "held to the end");
    assert_eq!(refused[0]["error"]["code"], -32600);
}
