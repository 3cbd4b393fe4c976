//! HTTP: header fields, methods, paths, sizes, and pages that have no business here.

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use taskgate::demo::server::Options;

use crate::support::{Answer, Client, Connection, Gateway, json, text_of};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// An answer of the transport's own: -32600 without an id.
async fn refused(answer: Answer, status: StatusCode) {
    assert_eq!(answer.status, status);
    let message = answer.json().await;
    assert_eq!(message["error"]["code"], -32600, "{message}");
    assert!(message.get("id").is_none(), "{message}");
}

async fn still_serves(client: &Client) {
    assert_eq!(text_of(&client.call("echo", json!({"text": "still here"})).await), "still here");
}

/// A whole POST as text, with these fields besides the session's.
fn post(client: &Client, fields: &str, body: &str) -> String {
    let session = client.session.as_deref().unwrap();
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\n\
         {fields}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_decisive_field_that_is_repeated_is_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let session = client.session.clone().unwrap();
    let again = format!("mcp-session-id: {session}\r\n");
    let versions = "mcp-protocol-version: 2025-11-25\r\nmcp-protocol-version: 2025-11-25\r\n";
    for fields in [&again, "MCP-SESSION-ID: other\r\n", versions] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(post(&client, fields, PING)).await;
        let answer = connection.answer().await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32600)), "{fields}");
    }
    let mut connection = Connection::open(gateway.address).await;
    let get = format!(
        "GET /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-session-id: {session}\r\nlast-event-id: a\r\nlast-event-id: a\r\n\r\n"
    );
    connection.send(get).await;
    assert_eq!(connection.answer().await.status, 400);
    still_serves(&client).await;
}

#[tokio::test]
async fn heads_that_http_does_not_allow_are_refused_before_anything_is_read() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for head in [
        "GARBAGE\r\n\r\n",
        "POST /mcp\r\n\r\n",
        "POST /mcp HTTP/9.9\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nbad name: x\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: a\rb\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n",
    ] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(head).await;
        assert_eq!(connection.answer().await.status, 400, "{head}");
        connection.closed().await;
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn endless_heads_are_cut_off() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let long = "x".repeat(80 * 1024);
    let many: String = (0..1000).map(|number| format!("x-{number}: y\r\n")).collect();
    for head in [
        // No line end ever comes.
        long.clone(),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {long}"),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {long}\r\n\r\n"),
        format!("POST /{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
    ] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(&head).await;
        let status = connection.try_answer().await.map(|answer| answer.status);
        assert!(matches!(status, Some(400 | 414 | 431)), "{status:?} {}", &head[..60]);
        connection.closed().await;
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn two_framings_of_one_body_smuggle_nothing() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let session = client.session.clone().unwrap();
    // Given a body that is a ping when read in chunks, and that hides a call after it when its length is believed,
    let hidden = post(&client, "", r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count"}}"#);
    let chunked = format!("{:x}\r\n{PING}\r\n0\r\n\r\n", PING.len());
    for (first, second) in [
        ("content-length: 4\r\n", "transfer-encoding: chunked\r\n"),
        ("transfer-encoding: chunked\r\n", "content-length: 4\r\n"),
    ] {
        let mut connection = Connection::open(gateway.address).await;
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\n\
             {first}{second}\r\n"
        );
        connection.send(format!("{head}{chunked}")).await;
        // then it is refused, or read as the chunks that RFC 9112, 6.3 says it is.
        match connection.try_answer().await {
            Some(answer) if answer.status == 200 => assert_eq!(answer.json()["result"], json!({})),
            other => assert!(other.is_none_or(|answer| answer.status == 400)),
        }
    }
    // And a length that is shorter than the body ends the message there: the rest is no request.
    let mut connection = Connection::open(gateway.address).await;
    connection.send(format!("{}{}", post(&client, "", PING), hidden.replace("POST", "GARBAGE"))).await;
    assert_eq!(connection.answer().await.status, 200);
    assert_eq!(gateway.upstream.stats().counter, 0);
    still_serves(&client).await;
}

#[tokio::test]
async fn values_that_are_not_ascii_match_nothing() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let session = client.session.clone().unwrap();
    let unknown = [format!("{session}é"), "é".repeat(30), "\u{80}".to_owned()];
    for session in &unknown {
        refused_with(&client, &[("mcp-session-id", session)], StatusCode::NOT_FOUND).await;
    }
    refused_with(&client, &[("mcp-protocol-version", "2025-11-25é")], StatusCode::BAD_REQUEST).await;
    let answer = client.get(Some("é")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    still_serves(&client).await;
}

async fn refused_with(client: &Client, changes: &[(&'static str, &str)], status: StatusCode) {
    let answer = client.post_with(changes, PING).await;
    assert_eq!(answer.status, status, "{changes:?}");
    assert_eq!(answer.json().await["error"]["code"], -32600);
}

#[tokio::test]
async fn bodies_must_be_json_as_they_stand() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for changes in [
        ("content-type", ""),
        ("content-type", "text/plain"),
        ("content-type", "application/json-patch+json"),
        ("content-type", "application/jsonx"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-encoding", "gzip"),
        ("content-encoding", "br"),
        ("content-encoding", "identity, gzip"),
    ] {
        refused(client.post_with(&[changes], PING).await, StatusCode::UNSUPPORTED_MEDIA_TYPE).await;
    }
    for changes in [
        ("content-type", "application/json; charset=utf-8"),
        ("content-type", "Application/JSON"),
        ("content-type", "application/json;charset=UTF-8;x=y"),
        ("content-encoding", "identity"),
    ] {
        assert_eq!(client.post_with(&[changes], PING).await.status, StatusCode::OK, "{changes:?}");
    }
}

#[tokio::test]
async fn every_accept_that_can_be_served_is() {
    // Given a server that answers with events,
    let gateway = Gateway::setup().server(Options { always_sse: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"log"}}"#;
    for (accept, events) in [
        ("application/json, text/event-stream", true),
        ("text/event-stream, application/json", true),
        ("application/json;q=0.9, text/event-stream;q=0.1", true),
        ("APPLICATION/JSON, Text/Event-Stream", true),
        ("*/*", true),
        ("text/*, application/*", true),
        ("", true),
        ("text/event-stream", true),
        ("application/json", false),
        ("application/*", false),
        ("application/json, text/event-stream;q=0", false),
        ("application/json, text/html", false),
    ] {
        // when the client takes this,
        let answer = client.post_with(&[("accept", accept)], call).await;
        // then it gets that, and the answer is the same.
        assert_eq!(answer.is_events(), events, "{accept}");
        assert_eq!(text_of(&answer.response().await), "logged", "{accept}");
        assert_eq!(gateway.upstream.stats().header("accept"), Some("application/json, text/event-stream"), "{accept}");
    }
    let mut headers = client.headers_with(&[("accept", "text/html, application/json")]);
    headers.append("accept", HeaderValue::from_static("text/event-stream"));
    let answer = client.send(Method::POST, headers, call).await.unwrap();
    assert!(answer.is_events());
    answer.response().await;
    for accept in ["text/html", "image/*", "application/json;q=0, text/event-stream;q=0.0", "nonsense"] {
        refused(client.post_with(&[("accept", accept)], call).await, StatusCode::NOT_ACCEPTABLE).await;
    }
}

#[tokio::test]
async fn a_stream_needs_an_accept_that_takes_one() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for (accept, status) in [
        ("text/event-stream", StatusCode::OK),
        ("*/*", StatusCode::OK),
        ("", StatusCode::OK),
        ("application/json", StatusCode::NOT_ACCEPTABLE),
        ("text/html", StatusCode::NOT_ACCEPTABLE),
    ] {
        let headers = client.headers_with(&[("accept", accept), ("content-type", "")]);
        let answer = client.send(Method::GET, headers, Bytes::new()).await.unwrap();
        assert_eq!(answer.status, status, "{accept}");
        assert_eq!(answer.is_events(), status == StatusCode::OK, "{accept}");
    }
}

#[tokio::test]
async fn upstream_every_post_takes_both_kinds_and_every_get_takes_events() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let both = Some("application/json, text/event-stream");
    client.post_with(&[("accept", "application/json")], PING).await;
    assert_eq!(gateway.upstream.stats().header("accept"), both);
    client.notify("notifications/roots/list_changed", json!({})).await;
    assert_eq!(gateway.upstream.stats().header("accept"), both);
    assert_eq!(client.try_answer(&json!("none"), json!({})).await.status, StatusCode::ACCEPTED);
    let stats = gateway.upstream.stats();
    assert_eq!((stats.header("accept"), stats.header("content-type")), (both, Some("application/json")));
    assert_eq!(stats.header("accept-encoding"), Some("identity"));
    let stream = client.listen().await;
    let stats = gateway.seen(|stats| stats.get_streams == 1).await;
    assert_eq!((stats.header(":method"), stats.header("accept")), (Some("GET"), Some("text/event-stream")));
    drop(stream);
}

#[tokio::test]
async fn bodies_have_a_largest_size() {
    let gateway = Gateway::setup().listen("max_body: 1KiB").start().await;
    let client = gateway.open().await;
    let body = |size: usize| {
        let around =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":""}}}"#;
        around.replace(r#""text":"""#, &format!(r#""text":"{}""#, "x".repeat(size - around.len())))
    };
    for size in [1023, 1024] {
        assert_eq!(client.post(body(size)).await.status, StatusCode::OK, "{size}");
    }
    let calls = gateway.upstream.stats().tool("echo").started;
    for size in [1025, 5000, 200_000] {
        refused(client.post(body(size)).await, StatusCode::PAYLOAD_TOO_LARGE).await;
    }
    // Announced, it is refused before it is sent; in chunks, once it is too much.
    let mut connection = Connection::open(gateway.address).await;
    let session = client.session.as_deref().unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\n"
    );
    connection.send(format!("{head}content-length: 1000000000\r\n\r\n")).await;
    assert_eq!(connection.answer().await.status, 413);
    let mut connection = Connection::open(gateway.address).await;
    let chunk = format!("{:x}\r\n{}\r\n", 600, " ".repeat(600));
    connection.send(format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}{chunk}")).await;
    assert_eq!(connection.answer().await.status, 413);
    assert_eq!(gateway.upstream.stats().tool("echo").started, calls);
    still_serves(&client).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_does_nothing() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count"}}"#;
    let whole = post(&client, "", call);
    let mut connection = Connection::open(gateway.address).await;
    connection.send(&whole[..whole.len() - 1]).await;
    connection.finish().await;
    connection.closed().await;
    still_serves(&client).await;
    assert_eq!(gateway.upstream.stats().counter, 0);
    let dropped = [("method", "unread"), ("outcome", "dropped")];
    gateway.counted(|metrics| metrics.value("taskgate_requests_total", &dropped) == 1.0).await;
}

#[tokio::test]
async fn only_the_endpoints_and_their_methods_are_there() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for path in
        ["/", "/mcp/", "/mcp/x", "/MCP", "/metrics", "/livez", "/.well-known/oauth-protected-resource", "/%6dcp"]
    {
        for method in ["GET", "POST", "DELETE", "PUT"] {
            let mut connection = Connection::open(gateway.address).await;
            connection.send(format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")).await;
            assert_eq!(connection.answer().await.status, 404, "{method} {path}");
        }
    }
    for method in ["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "PROPFIND"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let answer = client.send(method.clone(), client.headers(), Bytes::new()).await.unwrap();
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.header("allow"), Some("POST, GET, DELETE"), "{method}");
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn foreign_pages_and_names_are_turned_away() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost.evil.example"),
        ("host", "evil.example"),
        ("host", "localhost.evil.example:80"),
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let answer = client.send(method.clone(), client.headers_with(&[(name, value)]), PING).await.unwrap();
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {name}: {value}");
        }
    }
    for (name, value) in [("origin", "http://localhost:3000"), ("origin", "http://127.0.0.1"), ("host", "localhost:1")]
    {
        assert_eq!(client.post_with(&[(name, value)], PING).await.status, StatusCode::OK, "{name}: {value}");
    }
    // A page that is not welcome has ended nothing.
    still_serves(&client).await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("taskgate_rejected_total", &[("reason", "origin")]), 9.0);
    assert_eq!(metrics.value("taskgate_rejected_total", &[("reason", "host")]), 6.0);
}

#[tokio::test]
async fn pages_of_allowed_origins_may_ask_beforehand_and_read_answers() {
    let gateway = Gateway::start().await;
    let client = gateway.client().silent();
    let asked = |origin: &str| {
        let headers = client.headers_with(&[
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type, mcp-param-region"),
        ]);
        client.send(Method::OPTIONS, headers, Bytes::new())
    };
    let mut connection = Connection::open(gateway.address).await;
    let preflight = "OPTIONS /mcp HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:3000\r\n\
                     access-control-request-method: POST\r\naccess-control-request-headers: mcp-param-region\r\n\r\n";
    connection.send(preflight).await;
    let granted = connection.answer().await;
    assert_eq!(granted.status, 204);
    let field = |name: &str| granted.field(name).unwrap_or_default().to_owned();
    assert_eq!(field("access-control-allow-origin"), "http://localhost:3000");
    assert!(field("access-control-allow-headers").ends_with("mcp-param-region"));
    assert_eq!(asked("http://evil.example").await.unwrap().status, StatusCode::FORBIDDEN);
    let answer = client.post_with(&[("origin", "http://localhost:3000")], PING).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("http://localhost:3000"));
    assert_eq!(answer.header("vary"), Some("Origin"));
}

#[tokio::test]
async fn listed_pages_and_names_replace_the_loopback_ones() {
    let keys = "allowed_origins: [\"https://app.example.com\"], allowed_hosts: [mcp.example.com]";
    let gateway = Gateway::setup().listen(keys).start().await;
    let client = gateway.client().silent();
    let body =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
    for (host, origin, status) in [
        ("mcp.example.com", "", StatusCode::OK),
        ("mcp.example.com:443", "https://app.example.com", StatusCode::OK),
        ("mcp.example.com", "https://evil.example", StatusCode::FORBIDDEN),
        ("mcp.example.com", "http://localhost", StatusCode::FORBIDDEN),
        ("localhost", "", StatusCode::FORBIDDEN),
    ] {
        let answer = client.post_with(&[("host", host), ("origin", origin)], body).await;
        assert_eq!(answer.status, status, "{host} {origin}");
    }
}

#[tokio::test]
async fn what_is_only_this_hops_stays_here() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).upstream("headers: {x-ours: mine}").start().await;
    let client = gateway.open_as("ann").await;
    let sent = [
        ("x-ours", "theirs"),
        ("cookie", "secret"),
        ("proxy-authorization", "secret"),
        ("x-forwarded-for", "10.1.1.1"),
        ("forwarded", "for=10.1.1.1"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("accept-encoding", "gzip"),
        ("origin", "http://localhost"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("mcp-param-region", "eu"),
        ("x_ours", "theirs"),
    ];
    client.post_with(&sent, PING).await;
    let stats = gateway.upstream.stats();
    assert_eq!(stats.header("x-ours"), Some("mine"));
    assert_eq!(stats.header("mcp-param-region"), None, "nobody has compared it with the body");
    assert_eq!(stats.header("x_ours"), None, "many servers would take it for x-ours");
    assert!(stats.header("traceparent").is_some_and(|value| value.starts_with("00-4bf9")));
    assert_eq!(stats.header("accept-encoding"), Some("identity"));
    for gone in [
        "authorization",
        "cookie",
        "proxy-authorization",
        "x-forwarded-for",
        "forwarded",
        "x-hop",
        "origin",
        "x-api-key",
    ] {
        assert_eq!(stats.header(gone), None, "{gone}");
    }
    assert_ne!(stats.header("mcp-session-id"), client.session.as_deref());
    assert!(stats.header("host").is_some_and(|host| host == gateway.upstream.addr().to_string()));
}

#[tokio::test]
async fn http_2_is_spoken_as_well() {
    let gateway = Gateway::start().await;
    let client = gateway.client().http2().open().await;
    let mut stream = client.listen().await;
    // Given many calls on one connection, then none waits for another,
    let held = client.start("hold", json!({})).await;
    let waiting = client.wait_for(&held).await;
    let calls = (0..100).map(|number| client.call("echo", json!({"text": number.to_string()})));
    for (number, response) in futures_util::future::join_all(calls).await.iter().enumerate() {
        assert_eq!(text_of(response), number.to_string());
    }
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    gateway.started("hold", 1).await;
    gateway.upstream.release();
    assert_eq!(text_of(&waiting.response().await), "held to the end");
    // and the checks are the same.
    assert_eq!(client.post_with(&[("origin", "http://evil.example")], PING).await.status, StatusCode::FORBIDDEN);
    assert_eq!(client.post_with(&[("host", "evil.example")], PING).await.status, StatusCode::FORBIDDEN);
    refused(client.post_with(&[("content-type", "text/plain")], PING).await, StatusCode::UNSUPPORTED_MEDIA_TYPE).await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert!(stream.messages().await.iter().all(|message| message["method"] == "notifications/tasks/status"));
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let whole = post(&client, "expect: 100-continue\r\n", PING);
    let (head, body) = whole.split_at(whole.len() - PING.len());
    let mut connection = Connection::open(gateway.address).await;
    connection.send(head).await;
    assert_eq!(connection.answer().await.status, 100);
    connection.send(body).await;
    assert_eq!(connection.answer().await.status, 200);
}

#[tokio::test]
async fn requests_may_follow_each_other_on_one_connection() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.send([post(&client, "", PING), post(&client, "", "no json"), post(&client, "", PING)].concat()).await;
    for status in [200, 400, 200] {
        assert_eq!(connection.answer().await.status, status);
    }
}
