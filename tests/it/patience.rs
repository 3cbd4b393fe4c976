//! Clients and servers that take their time: who is waited for, who is kept warm, who is let go.

use std::time::Duration;

use taskgate::app::Timing;
use taskgate::demo::server::{Fault, Options};
use taskgate::downstream::patience::Patience;

use crate::support::raw_upstream::{Step, event, events_head, gate, last_chunk};
use crate::support::{Connection, Gateway, RawUpstream, json, text_of, within};

/// Short enough to be seen, for one time; the others stay long.
const SHORT: Duration = Duration::from_millis(50);

fn warm() -> Timing {
    Timing { keep_alive: SHORT, ..Timing::default() }
}

fn patience(change: impl FnOnce(&mut Patience)) -> Timing {
    let mut patience = Patience::default();
    change(&mut patience);
    Timing { patience, ..Timing::default() }
}

/// The bytes of a stream's body up to and with the first keep-alive.
async fn until_warm(body: &mut hyper::body::Incoming) {
    let mut seen = Vec::new();
    while !seen.ends_with(b":\n\n") {
        let frame = within(http_body_util::BodyExt::frame(body)).await.expect("the stream ended").unwrap();
        seen.extend_from_slice(&frame.into_data().unwrap());
    }
}

/// B04, B96: the gateway begins the answer itself when the server does not, and it is still the server's answer.
#[tokio::test]
async fn a_slow_plain_call_is_kept_warm_and_answered() {
    let gateway = Gateway::setup().timing(warm()).start().await;
    let client = gateway.open().await;
    let answer = client.request("tools/call", json!({"name": "hold", "arguments": {}})).await;
    assert!(answer.is_events(), "the server has sent nothing yet");
    let mut body = answer.into_body();
    until_warm(&mut body).await;
    until_warm(&mut body).await;
    gateway.upstream.release();
    let rest = within(http_body_util::BodyExt::collect(body)).await.unwrap().to_bytes();
    let rest = String::from_utf8(rest.to_vec()).unwrap();
    assert!(rest.contains("data: {") && rest.contains("held to the end"), "{rest}");
    // No event but the response, and no progress that nobody made (B05).
    assert_eq!(rest.matches("data:").count(), 1, "{rest}");
}

/// What goes wrong after that becomes the response on the stream.
#[tokio::test]
async fn a_fault_after_the_answer_has_begun_is_told_on_it() {
    for (fault, expected) in [(Fault::Close, "outcome_unknown"), (Fault::Gzip, "upstream_protocol")] {
        let gateway = Gateway::setup().timing(warm()).start().await;
        let client = gateway.open().await;
        let opened = gate();
        let until = opened.clone();
        let upstream = RawUpstream::calling(move |heard| {
            let end = match fault {
                Fault::Close => Step::Close,
                _ => crate::support::raw_upstream::whole(200, "text/html", &heard.says("no")),
            };
            vec![Step::Gate(until.clone()), end]
        })
        .await;
        drop((client, gateway));
        let gateway = Gateway::setup().in_front_of(&upstream.url()).timing(warm()).start().await;
        let client = gateway.open().await;
        let answer = client.request("tools/call", json!({"name": "x"})).await;
        assert!(answer.is_events());
        opened.add_permits(1);
        assert_eq!(answer.response().await["error"]["data"]["reason"], expected);
    }
}

/// Where only JSON is taken, nothing can be sent before the answer; it comes all the same.
#[tokio::test]
async fn a_client_that_takes_no_events_waits_for_its_answer() {
    let gateway = Gateway::setup().timing(warm()).start().await;
    let client = gateway.open().await;
    let params = json!({"name": "report", "arguments": {"sections": 2}, "_meta": {"progressToken": 1}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let release = async {
        gateway.started("report", 1).await;
        gateway.upstream.release();
        gateway.upstream.release();
    };
    let (answer, ()) = tokio::join!(client.post_with(&[("accept", "application/json")], body), release);
    assert_eq!(answer.json().await["result"]["structuredContent"]["sections"], 2);
}

#[tokio::test]
async fn silent_streams_are_kept_warm() {
    let gateway = Gateway::setup().timing(warm()).start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    let (wait, listening) = (client.wait_for(&id).await, client.listen().await);
    for answer in [wait, listening] {
        let mut body = answer.into_body();
        until_warm(&mut body).await;
        until_warm(&mut body).await;
    }
    // A stream of the server's that falls silent, too.
    let opened = gate();
    let until = opened.clone();
    let upstream = RawUpstream::calling(move |heard| {
        vec![
            events_head(),
            event(&heard.progress(1)),
            Step::Gate(until.clone()),
            event(&heard.says("late")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).timing(warm()).start().await;
    let client = gateway.open().await;
    let params = json!({"name": "x", "_meta": {"progressToken": 1}});
    let mut body = client.request("tools/call", params).await.into_body();
    until_warm(&mut body).await;
    opened.add_permits(1);
    let rest = within(http_body_util::BodyExt::collect(body)).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&rest).contains("late"));
}

/// The server's own keep-alive comments are no messages, and no reason to lose patience.
#[tokio::test]
async fn comments_of_the_server_are_nothing() {
    use crate::support::raw_upstream::chunk;
    let upstream = RawUpstream::calling(|heard| {
        let mut steps = vec![events_head()];
        steps.extend((0..200).map(|_| chunk(": still here\n\n")));
        steps.extend([event(&heard.says("done")), last_chunk()]);
        steps
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    assert_eq!(text_of(&client.call("x", json!({})).await), "done");
    let id = client.start("x", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "done");
}

/// A head that never ends closes its connection; the others stay.
#[tokio::test]
async fn a_slow_head_and_an_idle_connection_are_let_go() {
    let gateway = Gateway::setup().timing(patience(|patience| patience.head = SHORT)).start().await;
    let client = gateway.open().await;
    let (mut idle, mut slow, mut kept) = (
        Connection::open(gateway.address).await,
        Connection::open(gateway.address).await,
        Connection::open(gateway.address).await,
    );
    slow.send("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ").await;
    kept.send("GET /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await;
    assert_eq!(kept.answer().await.status, 404);
    // One that has said nothing, one that stopped within its head, one that was kept after an answer.
    idle.closed().await;
    slow.closed().await;
    kept.closed().await;
    // On a connection of its own: the client's last one is being let go as well.
    let again = gateway.client().with_session_of(&client);
    assert_eq!(text_of(&again.call("echo", json!({"text": "served"})).await), "served");
}

#[tokio::test]
async fn a_body_that_stops_is_answered_and_let_go() {
    let gateway = Gateway::setup().timing(patience(|patience| patience.body = SHORT)).start().await;
    let client = gateway.open().await;
    let mut head = String::from("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n");
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut connection = Connection::open(gateway.address).await;
    connection.send(format!("{head}\r\n{{\"jsonrpc\"")).await;
    let answer = connection.answer().await;
    assert_eq!(answer.status, 408);
    assert_eq!(answer.json()["error"]["code"], -32600);
    connection.closed().await;
}

/// One that comes in drops, never pausing for long, does not come for ever.
#[tokio::test]
async fn a_body_in_drops_is_let_go() {
    let gateway = Gateway::setup().timing(patience(|patience| patience.body = SHORT)).start().await;
    let client = gateway.open().await;
    let mut head = String::from("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10000000\r\n");
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut connection = Connection::open(gateway.address).await;
    connection.send(format!("{head}\r\n")).await;
    within(async {
        while gateway.metrics().await.value("taskgate_rejected_total", &[("reason", "message")]) == 0.0 {
            connection.send(" ").await;
        }
    })
    .await;
    assert_eq!(connection.answer().await.status, 408);
}

/// A long call is no idle connection, and a client that waits is not slow.
#[tokio::test]
async fn waiting_is_not_idling() {
    let timing =
        Timing { patience: Patience { head: SHORT, body: SHORT, reader: SHORT, ..Patience::default() }, ..warm() };
    let gateway = Gateway::setup().timing(timing).start().await;
    let client = gateway.open().await;
    let answer = client.request("tools/call", json!({"name": "hold", "arguments": {}})).await;
    let mut body = answer.into_body();
    for _ in 0..5 {
        until_warm(&mut body).await;
    }
    gateway.upstream.release();
    let rest = within(http_body_util::BodyExt::collect(body)).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&rest).contains("held to the end"));
}

/// Whoever reads nothing is let go, and what they held is free again: the place upstream above all.
#[tokio::test]
async fn a_client_that_stops_reading_gives_its_place_back() {
    let gateway = Gateway::setup()
        .upstream("max_in_flight: 1")
        .timing(patience(|patience| patience.reader = SHORT))
        .start()
        .await;
    let client = gateway.open().await;
    let params = json!({"name": "big", "arguments": {"bytes": 32 * 1024 * 1024}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut stalled = Connection::open(gateway.address).await;
    stalled.send(format!("{head}\r\n{body}")).await;
    gateway.started("big", 1).await;
    // Its place is the only one.
    assert_eq!(text_of(&client.call("echo", json!({"text": "free"})).await), "free");
    gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
    gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) == 1.0).await;
}

/// B70: sessions that nobody ends are ended when they are idle, upstream as well; one that works or listens is not idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_end_here_and_upstream() {
    const SESSIONS: usize = 5000;
    let gateway = Gateway::setup().sections("sessions: {idle: 2s, max: 6000}").start().await;
    let (working, listening) = (gateway.open().await, gateway.open().await);
    let id = working.start("hold", json!({})).await;
    let mut stream = listening.listen().await;
    for _ in 0..SESSIONS / 50 {
        let opened = futures_util::future::join_all((0..50).map(|_| gateway.client().initialize())).await;
        for (client, answer) in opened {
            assert_eq!(answer.status, 200);
            drop((client, answer));
        }
    }
    let seen = gateway.seen(|stats| stats.deleted >= SESSIONS as u64).await;
    assert_eq!((seen.deleted, seen.sessions), (SESSIONS as u64, 2));
    gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 2.0).await;
    // Those two live.
    gateway.upstream.announce("notifications/tools/list_changed", None);
    assert_eq!(stream.message().await["method"], "notifications/tools/list_changed");
    assert_eq!(working.task(&id).await["status"], "working");
    gateway.upstream.release();
    assert_eq!(text_of(&working.outcome(&id).await), "held to the end");
    drop(stream);
    let seen = gateway.seen(|stats| stats.deleted >= 2 + SESSIONS as u64).await;
    assert_eq!((seen.deleted, seen.sessions), (2 + SESSIONS as u64, 0));
    gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
    assert_eq!(working.get(None).await.status, 404);
}

/// Messages that are no requests wait for nobody either: the server takes the client's answer or does not.
#[tokio::test]
async fn a_server_without_sessions_is_served_alike() {
    let gateway = Gateway::setup().server(Options { stateless: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let id = client.start("count", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "1");
    assert_eq!(text_of(&client.call("count", json!({})).await), "2");
    let stream = client.listen().await;
    assert_eq!(client.delete().await, 204);
    assert!(stream.events().await.is_empty());
}
