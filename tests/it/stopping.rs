//! The end of the process (design: stopping): told once it ends what it has begun, told twice it goes at once.

use http::StatusCode;
use rustix::process::Signal;
use taskgate::demo::server::{Options, Server};

use crate::support::processes::until_there_are;
use crate::support::{Binary, Gateway, Value, json, text_of, within};

async fn server() -> Server {
    Server::start_on_loopback(Options::default()).await.unwrap()
}

fn sections(server: &Server, drain: &str) -> String {
    format!(
        "shutdown: {{drain: {drain}}}\nroutes:\n  - {{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}\n",
        server.url()
    )
}

#[tokio::test]
async fn sigterm_lets_held_calls_finish_and_takes_no_new_ones() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "60s")).await;
    assert_eq!(binary.asked("/readyz").await.0, 200);
    let client = binary.client().open().await;
    let stream = client.listen().await;
    let id = client.start("hold", json!({})).await;
    let wait = client.wait_for(&id).await;
    within(server.until(|stats| stats.tool("hold").started == 1)).await;

    binary.signal(Signal::TERM);
    binary.says("stopping").await;
    let (status, text) = binary.asked("/readyz").await;
    assert_eq!((status, text.trim()), (503, "stopping"));
    assert_eq!(binary.asked("/livez").await.0, 200);
    // What is there can be read, nothing new begins.
    assert_eq!(client.task(&id).await["status"], "working");
    let error = client.error("tools/call", json!({"name": "count", "arguments": {}, "task": {}})).await;
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("shutdown")));
    let (_, answer) = binary.client().initialize().await;
    assert_eq!(answer.response().await["error"]["data"]["reason"], "shutdown");

    server.release();
    assert_eq!(text_of(&wait.response().await), "held to the end");
    // The client's stream ends properly, its session upstream is ended.
    stream.events().await;
    assert!(binary.exit().await.success());
    let seen = within(server.until(|stats| stats.sessions == 0 && stats.connections == 0)).await;
    assert_eq!((seen.tool("hold").cancelled, seen.deleted, seen.counter), (0, 1, 0));
}

#[tokio::test]
async fn what_is_left_after_the_drain_is_cancelled_upstream_and_failed() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "300ms")).await;
    let client = binary.client().open().await;
    let (hold, ask) = (client.start("hold", json!({})).await, client.start("ask", json!({})).await);
    let waits = [client.wait_for(&hold).await, client.wait_for(&ask).await];
    within(server.until(|stats| stats.tool("hold").started == 1 && stats.tool("ask").started == 1)).await;
    binary.signal(Signal::TERM);
    for wait in waits {
        let response = wait.response().await;
        assert_eq!(response["error"]["data"]["reason"], "shutdown", "{response}");
    }
    assert!(binary.exit().await.success());
    let seen = within(server.until(|stats| stats.sessions == 0)).await;
    assert_eq!((seen.tool("hold").cancelled, seen.tool("ask").cancelled, seen.cancelled.len()), (1, 1, 2));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "1h")).await;
    let client = binary.client().open().await;
    client.start("hold", json!({})).await;
    within(server.until(|stats| stats.tool("hold").started == 1)).await;
    binary.signal(Signal::TERM);
    binary.says("stopping").await;
    binary.signal(Signal::INT);
    assert!(binary.exit().await.success());
}

#[tokio::test]
async fn an_idle_gateway_stops_at_once_whatever_the_drain() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "1h")).await;
    let client = binary.client().open().await;
    assert_eq!(text_of(&client.call("count", json!({})).await), "1");
    let stream = client.listen().await;
    binary.signal(Signal::INT);
    stream.events().await;
    assert!(binary.exit().await.success());
    within(server.until(|stats| stats.sessions == 0 && stats.deleted == 1)).await;
}

/// B107: servers that it started end with it, on both kinds of end.
#[tokio::test]
async fn servers_of_its_own_end_with_it() {
    let program = env!("CARGO_BIN_EXE_demo_server");
    for (marker, signals) in [("906s", 1), ("907s", 2)] {
        let command = json!([program, "--stdio", "--answer-timeout", marker]);
        let route = format!("routes:\n  - {{name: main, path: /mcp, upstream: {{command: {command}}}}}\n");
        let mut binary = Binary::start(&format!("shutdown: {{drain: 200ms}}\n{route}")).await;
        let client = binary.client().open().await;
        until_there_are(1, marker).await;
        client.start("hold", json!({})).await;
        for _ in 0..signals {
            binary.signal(Signal::TERM);
        }
        assert!(binary.exit().await.success());
        until_there_are(0, marker).await;
    }
}

/// Nobody can do anything then but the servers themselves: their stdin ends.
#[tokio::test]
async fn servers_of_its_own_end_even_when_it_is_killed() {
    let marker = "908s";
    let command = json!([env!("CARGO_BIN_EXE_demo_server"), "--stdio", "--answer-timeout", marker]);
    let binary =
        Binary::start(&format!("routes:\n  - {{name: main, path: /mcp, upstream: {{command: {command}}}}}\n")).await;
    let client = binary.client().open().await;
    client.start("hold", json!({})).await;
    until_there_are(1, marker).await;
    binary.signal(Signal::KILL);
    until_there_are(0, marker).await;
}

/// A plain call in flight is answered before the connection goes.
#[tokio::test]
async fn plain_calls_in_flight_are_answered() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "60s")).await;
    let client = binary.client().open().await;
    let call = client.call("hold", json!({}));
    let stopping = async {
        within(server.until(|stats| stats.tool("hold").started == 1)).await;
        binary.signal(Signal::TERM);
        binary.says("stopping").await;
        server.release();
    };
    let (response, ()) = tokio::join!(call, stopping);
    assert_eq!(text_of(&response), "held to the end");
    assert!(binary.exit().await.success());
}

/// The same in this process, where what is left can be counted: no job, no stream, no session.
#[tokio::test]
async fn nothing_is_left_of_a_stopped_gateway() {
    let mut gateway = Gateway::setup().sections("shutdown: {drain: 100ms}").start().await;
    let client = gateway.open().await;
    let mut waits = Vec::new();
    for tool in ["hold", "ask", "report"] {
        let id = client.start(tool, json!({})).await;
        waits.push(client.wait_for(&id).await);
    }
    let stream = client.listen().await;
    let other = gateway.open().await;
    assert_eq!(other.delete().await, StatusCode::NO_CONTENT);
    gateway.seen(|stats| stats.tools.values().map(|tool| tool.started).sum::<u64>() == 3).await;
    gateway.stop().await;
    for wait in waits {
        let last: Value = wait.response().await;
        assert_eq!(last["error"]["data"]["reason"], "shutdown", "{last}");
    }
    stream.events().await;
    let seen = gateway.seen(|stats| stats.sessions == 0 && stats.connections == 0 && stats.streams == 0).await;
    assert_eq!(seen.cancelled.len(), 3);
}

#[tokio::test]
async fn sighup_ends_nothing() {
    let server = server().await;
    let mut binary = Binary::start(&sections(&server, "60s")).await;
    let client = binary.client().open().await;
    let id = client.start("hold", json!({})).await;
    let wait = client.wait_for(&id).await;
    binary.signal(Signal::HUP);
    binary.says("the rest of the configuration needs a restart").await;
    within(server.until(|stats| stats.tool("hold").started == 1)).await;
    server.release();
    assert_eq!(text_of(&wait.response().await), "held to the end");
}
