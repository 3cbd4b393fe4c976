//! HTTP/1.1 as an attacker speaks it: two readings of one message, names that contradict each other, fields that are given
//! twice, answers that are bigger than they look.

use taskgate::demo::server::{Era, Options};

use crate::support::modern::{MODERN, Modern};
use crate::support::raw_upstream::{Heard, Step, send};
use crate::support::{Client, Connection, Gateway, RawUpstream, Value, json, text_of};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const COUNT: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count"}}"#;

async fn still_serves(client: &Client) {
    assert_eq!(text_of(&client.call("echo", json!({"text": "still here"})).await), "still here");
}

/// The head of a POST in that session, with these lines and without an end.
fn head(client: &Client, lines: &str) -> String {
    let session = client.session.as_deref().unwrap();
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\n{lines}"
    )
}

fn whole(client: &Client, body: &str) -> String {
    format!("{}content-length: {}\r\n\r\n{body}", head(client, ""), body.len())
}

/// Every answer until the connection ends: the sender says nothing more.
async fn answers(mut connection: Connection) -> Vec<u16> {
    connection.finish().await;
    let mut statuses = Vec::new();
    while let Some(answer) = connection.try_answer().await {
        statuses.push(answer.status);
    }
    statuses
}

/// However a body's end is obscured, what is hidden behind one reading of it is never done.
#[tokio::test]
async fn no_reading_of_a_body_hides_a_request() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let hidden = whole(&client, COUNT);
    let chunked = format!("{:x}\r\n{PING}\r\n0\r\n\r\n", PING.len());
    let both = format!("{}{hidden}", PING);
    for (lines, body) in [
        ("content-length: 40\r\ntransfer-encoding: chunked\r\n", chunked.as_str()),
        ("content-length: 40\r\ncontent-length: 400\r\n", &both),
        ("content-length: 40, 400\r\n", &both),
        ("content-length: 40\r\ntransfer-encoding: identity\r\n", &both),
        ("transfer-encoding: identity\r\n", &both),
        ("transfer-encoding: chunked, identity\r\n", &chunked),
        ("transfer-encoding: identity, gzip\r\n", &chunked),
        ("transfer-encoding: xchunked\r\n", &chunked),
        ("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", &chunked),
        ("transfer-encoding : chunked\r\n", &chunked),
        ("transfer-encoding\u{b}: chunked\r\n", &chunked),
        (" transfer-encoding: chunked\r\n", &chunked),
        ("x: y\r\n transfer-encoding: chunked\r\n", &chunked),
        ("transfer-encoding:\r\n chunked\r\n", &chunked),
        ("content-length: +40\r\n", &both),
        ("content-length: 0x28\r\n", &both),
        ("content-length: 4 0\r\n", &both),
        ("content-length:\r\n", &both),
    ] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(format!("{}\r\n{body}", head(&client, lines))).await;
        let statuses = answers(connection).await;
        // Refused, or read as what it must be, and then the rest is what it is: no second request.
        assert!(statuses.iter().all(|status| matches!(status, 200 | 400)), "{lines:?}: {statuses:?}");
        assert!(statuses.iter().filter(|status| **status == 200).count() <= 1, "{lines:?}: {statuses:?}");
        assert_eq!(gateway.upstream.stats().tool("count").started, 0, "{lines:?}");
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn chunks_that_are_none_end_the_request() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let hidden = whole(&client, COUNT);
    let long = "x".repeat(100_000);
    for body in [
        format!("+28\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("0x28\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("-1\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("fffffffffffffffff\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("ffffffffffffffff\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("28 {PING}\r\n0\r\n\r\n{hidden}"),
        format!("28\r\n{PING}0\r\n\r\n{hidden}"),
        format!("28;{long}\r\n{PING}\r\n0\r\n\r\n{hidden}"),
        format!("28\r\n{PING}\r\n0\r\nx: {long}\r\n\r\n{hidden}"),
        format!("\r\n{PING}\r\n0\r\n\r\n{hidden}"),
    ] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(format!("{}\r\n{body}", head(&client, "transfer-encoding: chunked\r\n"))).await;
        let statuses = answers(connection).await;
        assert!(statuses.iter().all(|status| *status >= 400), "{:?}: {statuses:?}", &body[..20]);
        assert_eq!(gateway.upstream.stats().tool("count").started, 0, "{:?}", &body[..20]);
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn line_ends_and_zeros_stay_out_of_fields() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for lines in [
        "x: a\r\n b: c\r\n",
        "x: a\r\n\tb\r\n",
        "x: a\rb: c\r\n",
        "x: a\0b\r\n",
        "x\0: a\r\n",
        "x: \u{7f}\r\n",
        ": a\r\n",
        "x\r\n",
    ] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(format!("{}content-length: 40\r\n\r\n{PING}", head(&client, lines))).await;
        assert_eq!(connection.answer().await.status, 400, "{lines:?}");
        connection.closed().await;
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn a_request_is_for_one_host() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for (target, hosts, status) in [
        ("/mcp", "", 400),
        ("/mcp", "host: localhost\r\nhost: localhost\r\n", 400),
        ("/mcp", "host: localhost\r\nhost: evil.example\r\n", 400),
        ("http://evil.example/mcp", "host: localhost\r\n", 403),
        ("http://localhost/mcp", "host: evil.example\r\n", 403),
        ("http://localhost@evil.example/mcp", "host: localhost\r\n", 403),
        ("/mcp", "host: localhost@evil.example\r\n", 403),
        ("/mcp", "host: localhost evil.example\r\n", 403),
        ("/mcp", "host: localhost:80:evil.example\r\n", 403),
        ("/mcp", "host: \r\n", 403),
        ("http://localhost/mcp", "host: localhost\r\n", 200),
    ] {
        let session = client.session.as_deref().unwrap();
        let mut connection = Connection::open(gateway.address).await;
        let fields = format!("content-type: application/json\r\nmcp-session-id: {session}\r\ncontent-length: 40\r\n");
        connection.send(format!("POST {target} HTTP/1.1\r\n{hosts}{fields}\r\n{PING}")).await;
        assert_eq!(connection.answer().await.status, status, "{target} {hosts:?}");
    }
    still_serves(&client).await;
}

/// Fields that decide: two of them could be read differently here and behind the gateway.
#[tokio::test]
async fn fields_of_the_protocol_that_are_repeated_are_refused() {
    let gateway = Gateway::setup().server(Options { era: Era::Both, ..Options::default() }).start().await;
    let client = Modern::new(&gateway);
    let params = client.params(json!({"name": "count", "arguments": {}}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let usual = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\ncontent-type: \
         application/json\r\nmcp-protocol-version: {MODERN}\r\nmcp-method: tools/call\r\nmcp-name: count\r\n\
         content-length: {}\r\n",
        body.len()
    );
    let send = |lines: &str| {
        let request = format!("{usual}{lines}\r\n{body}");
        let opening = Connection::open(gateway.address);
        async {
            let mut connection = opening.await;
            connection.send(request).await;
            connection.answer().await
        }
    };
    let before = gateway.upstream.stats().tool("count").started;
    for lines in [
        "mcp-method: tools/call\r\n",
        "Mcp-Method: tools/list\r\n",
        "mcp-name: count\r\n",
        "Mcp-Name: other\r\n",
        "mcp-name: =?base64?Y291bnQ=?=\r\n",
        "mcp-protocol-version: 2026-07-28\r\n",
        "mcp-protocol-version: 2025-11-25\r\n",
        "content-type: application/json\r\n",
        "content-type: text/plain\r\n",
        "content-encoding: identity\r\ncontent-encoding: gzip\r\n",
    ] {
        let answer = send(lines).await;
        assert!(matches!(answer.status, 400 | 415), "{lines:?}: {answer:?}");
        assert_eq!(answer.json()["error"]["code"].as_i64().map(|code| code < 0), Some(true), "{lines:?}");
    }
    assert_eq!(gateway.upstream.stats().tool("count").started, before);
    assert_eq!(send("").await.status, 200);
}

/// What a client of the older era writes into fields of the newer one is not what a server of the newer one reads.
#[tokio::test]
async fn fields_are_written_anew_from_what_was_read() {
    let gateway = Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"count","arguments":{}}}"#;
    let lies = [("mcp-name", "exact"), ("mcp-method", "tools/list"), ("mcp-param-x", "1")];
    client.post_with(&lies, body).await.response().await;
    let stats = gateway.upstream.stats();
    assert_eq!((stats.header("mcp-name"), stats.header("mcp-method")), (Some("count"), Some("tools/call")));
    // A name that would be several lines is none.
    let name = "count\r\nx-injected: 1\r\n\r\nPOST /mcp HTTP/1.1";
    let answered = client.call(name, json!({})).await;
    assert!(answered["error"].is_object(), "{answered}");
    assert_eq!(gateway.upstream.stats().header("x-injected"), None);
    assert_eq!(text_of(&client.call("echo", json!({"text": "still here"})).await), "still here");
}

fn compressed(encodings: &str) -> impl Fn(&Heard) -> Vec<Step> {
    let encodings = encodings.to_owned();
    move |heard| {
        let body = heard.says("x");
        vec![send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{encodings}content-length: {}\r\n\r\n{body}",
            body.len()
        ))]
    }
}

/// Nothing is inflated here, on neither side: what is compressed is refused by its name.
#[tokio::test]
async fn compressed_bodies_are_refused_on_both_sides() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    // A gigabyte of zeros begins so.
    let bomb = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xec, 0xc1].repeat(1000);
    for encoding in ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip", "x-gzip"] {
        let answer = client.post_with(&[("content-encoding", encoding)], bomb.clone()).await;
        assert_eq!(answer.status, 415, "{encoding}");
    }
    still_serves(&client).await;
    for encodings in [
        "content-encoding: gzip\r\n",
        "content-encoding: identity, gzip\r\n",
        "content-encoding: identity\r\ncontent-encoding: gzip\r\n",
    ] {
        let upstream = RawUpstream::calling(compressed(encodings)).await;
        let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
        let client = gateway.open().await;
        let response: Value = client.call("x", json!({})).await;
        assert_eq!(response["error"]["data"]["reason"], "upstream_protocol", "{encodings:?}: {response}");
    }
}
