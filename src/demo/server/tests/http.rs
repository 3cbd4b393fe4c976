//! The transport: sessions, versions, streams.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::mcp::version::ProtocolVersion;

use super::super::{Fault, Options};
use super::peer::{Peer, text_of};
use super::{everything, pair, start};

fn speaking(version: ProtocolVersion) -> Options {
    Options { version, ..Options::default() }
}

#[tokio::test]
async fn negotiates_at_or_below_its_newest() {
    for newest in ProtocolVersion::LEGACY {
        let server = start(speaking(newest)).await;
        for asked in ProtocolVersion::LEGACY {
            let peer = Peer::open(&server, asked.as_str(), &json!({})).await;
            assert_eq!(peer.version, asked.min(newest).as_str());
            assert_eq!(peer.text(1, "echo", json!({"text": "x"})).await, "x");
        }
        assert_eq!(Peer::open(&server, "2099-01-01", &json!({})).await.version, newest.as_str());
    }
}

#[tokio::test]
async fn another_version_header_than_the_negotiated_one_is_refused() {
    let server = start(speaking(ProtocolVersion::V2025_06_18)).await;
    let mut peer = Peer::open(&server, "2025-11-25", &json!({})).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(peer.post(ping).await.status, StatusCode::OK);
    for wrong in ["2025-11-25", "2026-07-28", "9"] {
        peer.version = wrong.to_owned();
        assert_eq!(peer.post(ping).await.status, StatusCode::BAD_REQUEST);
    }
    peer.version.clear();
    assert_eq!(peer.post(ping).await.status, StatusCode::OK);
}

#[tokio::test]
async fn sessions_begin_and_end() {
    let (server, mut peer) = pair(Options::default()).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let again = peer.request(json!(1), "initialize", json!({"protocolVersion": "2025-11-25"})).await;
    assert_eq!(again.status, StatusCode::BAD_REQUEST);
    let mut held = peer.get(None).await;
    let hold = async { peer.call(2, "hold", json!({})).await.bytes().await };
    let end = async {
        server.until(|stats| stats.tool("hold").started == 1 && stats.get_streams == 1).await;
        let ended = peer.send(Method::DELETE, peer.headers(), Bytes::new()).await.unwrap();
        assert_eq!(ended.status, StatusCode::NO_CONTENT);
    };
    let (cut, ()) = tokio::join!(hold, end);
    assert!(cut.is_empty());
    assert!(held.next().await.unwrap().is_none());
    assert_eq!(peer.post(ping).await.status, StatusCode::NOT_FOUND);
    assert_eq!(peer.get(None).await.status, StatusCode::NOT_FOUND);
    peer.session = None;
    assert_eq!(peer.post(ping).await.status, StatusCode::BAD_REQUEST);
    let stats = server.until(|stats| stats.streams == 0).await;
    assert_eq!((stats.sessions, stats.sessions_opened, stats.deleted), (0, 1, 1));
}

#[tokio::test]
async fn other_requests_are_served() {
    let (_server, peer) = pair(Options::default()).await;
    let ask = async |method: &str, params: Value| peer.request(json!("x"), method, params).await.messages().await;
    assert_eq!(ask("ping", json!({})).await[0]["result"], json!({}));
    assert_eq!(ask("resources/list", json!({})).await[0]["result"]["resources"][0]["name"], "greeting");
    assert_eq!(ask("resources/templates/list", json!({})).await[0]["result"]["resourceTemplates"], json!([]));
    let read = ask("resources/read", json!({"uri": "demo://greeting"})).await;
    assert_eq!(read[0]["result"]["contents"][0]["text"], "Hello");
    assert_eq!(ask("resources/read", json!({"uri": "x"})).await[0]["error"]["code"], -32002);
    assert_eq!(ask("prompts/list", json!({})).await[0]["result"]["prompts"][0]["name"], "greet");
    let prompt = ask("prompts/get", json!({"name": "greet", "arguments": {"name": "Ada"}})).await;
    assert_eq!(prompt[0]["result"]["messages"][0]["content"]["text"], "Say hello to Ada");
    assert_eq!(ask("vendor/unknown", json!({})).await[0]["error"]["code"], -32601);
    assert_eq!(ask("tasks/get", json!({"taskId": "1"})).await[0]["error"]["code"], -32601);
}

#[tokio::test]
async fn answers_take_the_form_that_is_chosen() {
    let (_server, peer) = pair(Options { always_sse: true, ..Options::default() }).await;
    let answer = peer.call(1, "echo", json!({"text": "x"})).await;
    assert!(answer.is_events());
    assert_eq!(text_of(answer.messages().await.last().unwrap()), "x");

    let (server, peer) = pair(Options { always_json: true, ..Options::default() }).await;
    let mut stream = peer.get(None).await;
    server.until(|stats| stats.get_streams == 1).await;
    let answer = peer.call(1, "report", json!({"seconds": 0, "sections": 1})).await;
    assert!(!answer.is_events());
    assert_eq!(text_of(&answer.messages().await[0]), "The report has 1 sections.");
    assert_eq!(stream.message().await["params"]["progressToken"], "t1");
}

#[tokio::test]
async fn questions_may_come_on_the_get_stream() {
    let (server, peer) = pair(Options { ask_on_get: true, ..Options::default() }).await;
    let mut stream = peer.get(None).await;
    let answering = async {
        let question = stream.message().await;
        peer.answer(&question, json!({"action": "accept", "content": {"name": "Ada"}})).await;
    };
    let (said, ()) = tokio::join!(peer.text(1, "ask", json!({})), answering);
    assert_eq!(said, "Hello, Ada");
    server.announce("notifications/tools/list_changed", None);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_new_get_stream_takes_over() {
    let (server, peer) = pair(Options::default()).await;
    let mut first = peer.get(None).await;
    let mut second = peer.get(None).await;
    assert!(first.next().await.unwrap().is_none());
    server.announce("notifications/tools/list_changed", None);
    assert_eq!(second.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn stateless_servers_remember_nothing() {
    let (_server, mut peer) = pair(Options { stateless: true, ..Options::default() }).await;
    assert_eq!(peer.session, None);
    assert_eq!(peer.get(None).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(peer.text(1, "echo", json!({"text": "x"})).await, "x");
    assert!(peer.text(2, "ask", json!({})).await.contains("without sessions"));
    peer.version = "2026-07-28".to_owned();
    let refused = peer.call(3, "echo", json!({"text": "x"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn leaving_does_not_cancel() {
    let (server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(1, "ask", json!({})).await;
    let question = answer.message().await;
    drop(answer);
    server.until(|stats| stats.streams == 0).await;
    peer.answer(&question, json!({"action": "accept", "content": {"name": "Ada"}})).await;
    let stats = server.until(|stats| stats.tool("ask").finished == 1).await;
    assert_eq!(stats.tool("ask").cancelled, 0);
}

#[tokio::test]
async fn streams_are_resumed_where_they_broke() {
    let (server, peer) = pair(Options { event_ids: true, ..Options::default() }).await;
    server.fail("tools/call", Fault::Reset, 1);
    let mut answer = peer.call(1, "report", json!({"seconds": 0, "sections": 2})).await;
    let first = answer.next().await.unwrap().unwrap();
    assert!(answer.next().await.is_err());
    let resumed = peer.get(first.id.as_deref()).await;
    let rest = resumed.messages().await;
    assert_eq!(rest.len(), 2);
    assert_eq!(rest[0]["params"]["progress"], 2);
    assert_eq!(text_of(&rest[1]), "The report has 2 sections.");
    for over in [first.id.unwrap().replace(".1", ".3").as_str(), "99.1", "0.7", "x", "1.", ""] {
        assert_eq!(peer.get(Some(over)).await.status, StatusCode::BAD_REQUEST, "{over}");
    }
    assert_eq!(server.stats().resumed, 1);
}

#[tokio::test]
async fn only_the_newest_version_is_primed() {
    let options = Options { event_ids: true, priming: true, always_sse: true, ..Options::default() };
    let (server, peer) = pair(options).await;
    let mut answer = peer.call(1, "echo", json!({"text": "x"})).await;
    let priming = answer.next().await.unwrap().unwrap();
    assert_eq!(priming.data, "");
    assert!(priming.id.is_some());
    assert_eq!(text_of(&answer.message().await), "x");
    let older = Peer::open(&server, "2025-06-18", &json!({})).await;
    assert_eq!(text_of(&older.call(1, "echo", json!({"text": "x"})).await.message().await), "x");
}

#[tokio::test]
async fn batches_belong_to_2025_03_26() {
    let options = Options { batches: true, ..Options::default() };
    let server = start(options).await;
    let peer = Peer::open(&server, "2025-03-26", &everything()).await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},
        {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}]"#;
    let arrays = peer.post(batch).await.messages().await;
    let ids: Vec<&Value> = arrays.iter().flat_map(|array| array.as_array().unwrap()).map(|one| &one["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!(2)]);
    let news = peer.post(r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#).await;
    assert_eq!(news.status, StatusCode::ACCEPTED);
    let mut answer = peer.call(3, "ask", json!({})).await;
    assert_eq!(answer.message().await[0]["method"], "elicitation/create");
    for refused in ["[]", "[1]", r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#, "["] {
        assert_eq!(peer.post(refused).await.status, StatusCode::BAD_REQUEST, "{refused}");
    }
    let newer = Peer::open(&server, "2025-06-18", &json!({})).await;
    assert_eq!(newer.post(batch).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn stopping_closes_everything_and_the_port_is_free_again() {
    let (server, peer) = pair(Options::default()).await;
    let address = server.addr();
    let mut stream = peer.get(None).await;
    let hold = async { peer.send(Method::POST, peer.headers(), call("hold")).await.map(|_| ()) };
    let stop = async {
        server.until(|stats| stats.tool("hold").started == 1).await;
        server.stop().await;
    };
    let (held, ()) = tokio::join!(hold, stop);
    assert!(held.is_err());
    assert!(!matches!(stream.next().await, Ok(Some(_))));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let again = super::super::Server::start(listener, Options::default()).unwrap();
    assert_eq!(peer.post(call("count")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(again.stats().counter, 0);
}

fn call(tool: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}).to_string()
}
