//! HTTP/2 as an attacker speaks it: what ends a request, what ends the connection, and that nobody else notices.

use std::time::Duration;

use taskgate::app::Timing;
use taskgate::demo::server::{Options, Server};
use taskgate::downstream::patience::Patience;

use crate::support::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, PING, RST_STREAM, block, frame,
};
use crate::support::{Binary, Client, Gateway, json, text_of};

/// Codes of RFC 9113, 7.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

const PINGED: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

async fn still_serves(client: &Client) {
    assert_eq!(text_of(&client.call("echo", json!({"text": "still here"})).await), "still here");
}

/// The code with which a stream was reset.
fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.try_into().unwrap())
}

/// RFC 9113, 8.2: such requests are malformed. The connection may go on, and so does this one.
#[tokio::test]
async fn fields_that_http_2_forbids_end_their_request() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let session = client.session.clone().unwrap();
    let mut connection = Http2::open(gateway.address).await;
    let usual = [("content-type", "application/json"), ("mcp-session-id", session.as_str())];
    for field in [
        ("connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("keep-alive", "timeout=5"),
        ("upgrade", "h2c"),
        ("proxy-connection", "close"),
        ("te", "gzip"),
        (":path", "/again"),
    ] {
        let stream = connection.request(0, &[&usual[..], &[field]].concat()).await;
        connection.send(&frame(DATA, END_STREAM, stream, PINGED.as_bytes())).await;
        let ended = connection.until(&[RST_STREAM, DATA], stream).await;
        let ended = ended.unwrap_or_else(|| panic!("the connection ended with {field:?}"));
        assert_eq!((ended.kind, code(&ended.payload)), (RST_STREAM, PROTOCOL_ERROR), "{field:?}");
    }
    let stream = connection.request(0, &usual).await;
    connection.send(&frame(DATA, END_STREAM, stream, PINGED.as_bytes())).await;
    let answer = connection.until(&[DATA], stream).await.unwrap();
    assert_eq!(answer.payload, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    // What is no field at all may end the connection with it; in no case is it answered.
    for field in [("X-Upper", "1"), ("x y", "1"), ("x", "a\r\nb: c"), ("x", "a\0b"), (":unknown", "1"), ("", "1")] {
        let mut connection = Http2::open(gateway.address).await;
        let stream = connection.request(0, &[&usual[..], &[field]].concat()).await;
        connection.send(&frame(DATA, END_STREAM, stream, PINGED.as_bytes())).await;
        let ended = connection.until(&[RST_STREAM, DATA, HEADERS], stream).await;
        assert!(ended.as_ref().is_none_or(|frame| frame.kind == RST_STREAM), "{field:?}: {ended:?}");
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn lengths_and_names_that_contradict_each_other_are_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Http2::open(gateway.address).await;
    for (length, sent) in [("5", PINGED), ("500", PINGED), ("0", PINGED)] {
        let stream = connection.request(0, &[("content-type", "application/json"), ("content-length", length)]).await;
        connection.send(&frame(DATA, END_STREAM, stream, sent.as_bytes())).await;
        let ended = connection.until(&[RST_STREAM], stream).await.unwrap();
        assert_eq!(code(&ended.payload), PROTOCOL_ERROR, "{length}");
    }
    for (fields, said) in [
        (&[("host", "evil.example")][..], "This Host is not served\n"),
        (&[("host", "localhost"), ("host", "localhost")], "one Host"),
    ] {
        let stream = connection.request(END_STREAM, fields).await;
        let answer = connection.until(&[DATA], stream).await.unwrap();
        assert!(String::from_utf8_lossy(&answer.payload).contains(said), "{answer:?}");
    }
    still_serves(&client).await;
}

/// CVE-2023-44487: streams that are opened and reset at once cost the other side more than their sender.
#[tokio::test]
async fn streams_that_are_reset_at_once_end_the_connection() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Http2::open(gateway.address).await;
    let mut flood = Vec::new();
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", "/mcp"), (":authority", "localhost")];
    for _ in 0..10_000 {
        let stream = connection.next_stream();
        flood.extend(frame(HEADERS, END_HEADERS, stream, &block(&usual)));
        flood.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    connection.send(&flood).await;
    assert_eq!(connection.given_up().await, Some(ENHANCE_YOUR_CALM));
    still_serves(&client).await;
}

/// The other way to the same end: requests that the gateway itself has to reset.
#[tokio::test]
async fn streams_that_have_to_be_reset_end_the_connection_in_the_end() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Http2::open(gateway.address).await;
    let mut flood = Vec::new();
    for _ in 0..10_000 {
        let stream = connection.next_stream();
        flood.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[(":method", "POST"), ("te", "gzip")])));
    }
    connection.send(&flood).await;
    assert_eq!(connection.given_up().await, Some(ENHANCE_YOUR_CALM));
    still_serves(&client).await;
}

#[tokio::test]
async fn more_requests_at_once_than_may_be_are_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Http2::open(gateway.address).await;
    let (mut first, mut last) = (0, 0);
    for number in 0..260 {
        last = connection.request(0, &[("content-type", "application/json")]).await;
        first = if number == 0 { last } else { first };
    }
    let refused = connection.until(&[RST_STREAM], last).await.unwrap();
    assert_eq!(code(&refused.payload), REFUSED_STREAM);
    // Those that were taken are served.
    connection.send(&frame(DATA, END_STREAM, first, b"no json")).await;
    let answer = connection.until(&[DATA], first).await.unwrap();
    assert!(answer.payload.starts_with(b"{\"jsonrpc\":\"2.0\""), "{answer:?}");
    still_serves(&client).await;
}

/// CVE-2024-27316 and its kind: a head that never ends.
#[tokio::test]
async fn heads_without_an_end_end_the_connection() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for part in [Vec::new(), block(&[("x", &"y".repeat(1000))])] {
        let mut connection = Http2::open(gateway.address).await;
        let stream = connection.next_stream();
        let begin = block(&[(":method", "POST"), (":scheme", "http"), (":path", "/mcp")]);
        connection.send(&frame(HEADERS, 0, stream, &begin)).await;
        let more = frame(CONTINUATION, 0, stream, &part).repeat(1000);
        let mut rounds = 0;
        while connection.send(&more).await && rounds < 20 {
            rounds += 1;
        }
        // It ends, with words or without, though the head does not.
        assert!(connection.given_up().await.is_none_or(|code| code == ENHANCE_YOUR_CALM || code == PROTOCOL_ERROR));
    }
    still_serves(&client).await;
}

#[tokio::test]
async fn a_head_that_is_too_big_is_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Http2::open(gateway.address).await;
    let stream = connection.next_stream();
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", "/mcp"), (":authority", "localhost")];
    let big = "y".repeat(1000);
    let fields: Vec<(&str, &str)> = usual.into_iter().chain((0..100).map(|_| ("x", big.as_str()))).collect();
    let block = block(&fields);
    let mut parts = block.chunks(16_000).peekable();
    let mut kind = HEADERS;
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
        let flags = if kind == HEADERS { flags | END_STREAM } else { flags };
        connection.send(&frame(kind, flags, stream, part)).await;
        kind = CONTINUATION;
    }
    // 431 where the head could be read to its end, else the end of the connection.
    if let Some(answer) = connection.until(&[HEADERS, RST_STREAM], stream).await
        && answer.kind == HEADERS
    {
        let digits = answer.payload.windows(3).any(|window| window == b"431");
        assert!(digits || answer.payload.len() < 12, "{answer:?}");
    }
    assert_eq!(gateway.metrics().await.value("taskgate_requests_total", &[("route", "other")]), 0.0);
    still_serves(&client).await;
}

/// The window of a stream is 64 KiB until its client opens it further: what is behind it is held, here and at the server.
#[tokio::test]
async fn answers_whose_windows_stay_shut_end_the_connection() {
    let patience = Patience { reader: Duration::from_millis(100), ..Patience::default() };
    let timing = Timing { patience, ..Timing::default() };
    let gateway = Gateway::setup().upstream("max_in_flight: 1").timing(timing).start().await;
    let client = gateway.open().await;
    let patient = gateway.client().http2().open().await;
    let mut stream = patient.listen().await;
    let session = client.session.clone().unwrap();
    // One that passes and one that is read whole first.
    for bytes in [32 * 1024 * 1024, 200_000] {
        let mut connection = Http2::open(gateway.address).await;
        let fields = [("content-type", "application/json"), ("mcp-session-id", session.as_str())];
        let stalled = connection.request(0, &fields).await;
        let params = json!({"name": "big", "arguments": {"bytes": bytes}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        connection.send(&frame(DATA, END_STREAM, stalled, call.as_bytes())).await;
        while connection.next().await.is_some() {}
        gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
        still_serves(&client).await;
    }
    // A stream on which nothing happens is not one that nobody reads.
    gateway.upstream.announce("notifications/tools/list_changed", None);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
}

/// Whoever asks and asks, and never reads the answers, fills nothing but the socket.
#[tokio::test]
async fn answers_that_nobody_reads_do_not_pile_up() {
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let routes = format!("routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]", server.url());
    let binary = Binary::start(&routes).await;
    let client = binary.client().open().await;
    let before = binary.resident();
    let mut connection = Http2::open(binary.address).await;
    // 34 MB of questions, unless the gateway stops to read.
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(1000);
    let asking = async {
        for _ in 0..2000 {
            if !connection.send(&pings).await {
                return;
            }
        }
    };
    let served = async {
        for _ in 0..50 {
            still_serves(&client).await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = served => {}
    }
    still_serves(&client).await;
    let grown = binary.resident().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
}
