//! Clients that go, cancel and end their sessions at every moment: what they began goes on exactly as far as it should,
//! and nothing of them is left.

use http::StatusCode;
use serde_json::Value;
use taskgate::demo::server::Options;

use crate::support::{Client, Connection, Gateway, json, text_of, within};

/// A request of a well-behaved client, as bytes.
fn bytes_of(client: &Client, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    format!("{head}\r\n{body}").into_bytes()
}

fn call(id: u64, tool: &str, task: bool) -> Value {
    let mut params = json!({"name": tool, "arguments": {}});
    if task {
        params["task"] = json!({});
    }
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// Waits until nothing is under way any more.
async fn at_rest(gateway: &Gateway) {
    gateway
        .counted(|metrics| {
            let value = |name: &str, labels: &[(&str, &str)]| metrics.value(name, labels);
            value("taskgate_tasks", &[("status", "working")]) == 0.0
                && value("taskgate_tasks", &[("status", "input_required")]) == 0.0
                && value("taskgate_upstream_in_flight", &[]) == 0.0
                && value("taskgate_streams", &[]) == 0.0
        })
        .await;
}

/// B13: the work belongs to the task, not to the connection that began it.
#[tokio::test]
async fn a_task_outlives_the_connection_that_made_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut connection = Connection::open(gateway.address).await;
    connection.send(bytes_of(&client, &call(1, "hold", true))).await;
    let created = connection.answer().await.json();
    drop(connection);
    let id = created["result"]["task"]["taskId"].as_str().unwrap();
    gateway.started("hold", 1).await;
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(id).await), "held to the end");
    at_rest(&gateway).await;
}

/// B11: a handle that nobody took. Whether the task came to be or not, it is counted, ends and was run at most once.
#[tokio::test]
async fn clients_that_vanish_before_the_handle_leave_nothing_running() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for id in 0..50 {
        let mut connection = Connection::open(gateway.address).await;
        let bytes = bytes_of(&client, &call(id, "count", true));
        // Some go within the body, some after it.
        let sent = if id % 2 == 0 { &bytes[..bytes.len() - 1] } else { &bytes[..] };
        connection.send(sent).await;
    }
    gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) <= 1.0).await;
    at_rest(&gateway).await;
    let created = gateway.metrics().await.value("taskgate_tasks_created_total", &[]);
    let ended = gateway.metrics().await.value("taskgate_tasks_ended_total", &[("status", "completed")]);
    let ran = gateway.upstream.stats().counter;
    assert!(created <= 25.0, "half a request made a task: {created}");
    assert_eq!((created, ended), (ran as f64, ran as f64));
}

/// B54, 2025-11-25 transports, "Sending Messages to the Server" 7: going away is not a cancel.
#[tokio::test]
async fn a_plain_call_runs_to_its_end_without_its_client() {
    for options in [Options::default(), Options { always_sse: true, ..Options::default() }] {
        let gateway = Gateway::setup().server(options).start().await;
        let client = gateway.open().await;
        let mut connection = Connection::open(gateway.address).await;
        connection.send(bytes_of(&client, &call(1, "hold", false))).await;
        gateway.started("hold", 1).await;
        drop(connection);
        gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) <= 1.0).await;
        assert_eq!(gateway.metrics().await.value("taskgate_upstream_in_flight", &[]), 1.0);
        gateway.upstream.release();
        let seen = gateway.seen(|stats| stats.tool("hold").finished == 1).await;
        assert_eq!((seen.tool("hold").cancelled, seen.cancelled.len()), (0, 0));
        at_rest(&gateway).await;
    }
}

/// B03, B17: the wait goes with its client, the task does not.
#[tokio::test]
async fn a_dropped_wait_leaves_the_task_and_a_second_one_gets_the_result() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    let mut wait = client.wait_for(&id).await;
    let primed = wait.next().await.unwrap().unwrap();
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 1.0).await;
    drop(wait);
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 0.0).await;
    assert_eq!(client.task(&id).await["status"], "working");
    // The lost stream can be taken up again too.
    let resumed = client.get(primed.id.as_deref()).await;
    let second = client.wait_for(&id).await;
    gateway.upstream.release();
    assert_eq!(text_of(&second.response().await), "held to the end");
    // Either may be told of the status before.
    assert_eq!(text_of(&resumed.response().await), "held to the end");
    at_rest(&gateway).await;
}

/// Design 5: the session's calls go on; the upstream hears of its end only when the last one is over.
#[tokio::test]
async fn a_deleted_session_ends_upstream_after_its_last_held_call() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let stream = client.listen().await;
    let first = client.start("hold", json!({})).await;
    let second = client.start("report", json!({"sections": 2})).await;
    gateway.seen(|stats| stats.tool("hold").started == 1 && stats.tool("report").started == 1).await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert!(stream.events().await.is_empty());
    assert_eq!(client.delete().await, StatusCode::NOT_FOUND);
    assert_eq!(client.post(call(9, "count", false).to_string()).await.status, StatusCode::NOT_FOUND);

    let next = gateway.open().await;
    assert_eq!(next.task(&first).await["status"], "working");
    gateway.upstream.release();
    assert_eq!(text_of(&next.outcome(&first).await), "held to the end");
    assert_eq!(gateway.upstream.stats().deleted, 0);
    gateway.upstream.release();
    assert_eq!(next.outcome(&second).await["result"]["structuredContent"]["sections"], 2);
    let seen = gateway.seen(|stats| stats.deleted > 0).await;
    assert_eq!((seen.deleted, seen.sessions), (1, 1));
    assert_eq!((seen.tool("hold").cancelled, seen.tool("report").cancelled), (0, 0));
    at_rest(&gateway).await;
}

#[tokio::test]
async fn a_deleted_session_without_calls_ends_upstream_at_once() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("echo", json!({"text": "kept"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "kept");
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    gateway.seen(|stats| stats.deleted == 1 && stats.sessions == 0).await;
    // B39: tasks belong to their owner, not to the session.
    assert_eq!(text_of(&gateway.open().await.outcome(&id).await), "kept");
}

/// B53, B55: the cancel of a plain call goes upstream with its id, and no response follows, whatever form was due.
#[tokio::test]
async fn a_cancelled_plain_call_gets_no_response() {
    for options in [Options::default(), Options { always_sse: true, ..Options::default() }] {
        let gateway = Gateway::setup().server(options).start().await;
        let client = gateway.open().await;
        let running = client.post(call(101, "hold", false).to_string());
        let cancelling = async {
            gateway.started("hold", 1).await;
            client.notify("notifications/cancelled", json!({"requestId": 101, "reason": "tired"})).await;
        };
        let (answer, ()) = within(async { tokio::join!(running, cancelling) }).await;
        let is_stream = answer.is_events();
        assert_eq!(answer.status, if is_stream { StatusCode::OK } else { StatusCode::ACCEPTED });
        if is_stream {
            assert!(answer.events().await.is_empty());
        } else {
            assert_eq!(answer.bytes().await, "");
        }
        let seen = gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
        assert_eq!(seen.cancelled, ["101"]);
        at_rest(&gateway).await;
    }
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_stream_ends_it_without_a_response() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"name": "report", "arguments": {"sections": 2}, "_meta": {"progressToken": "p"}});
    let report = json!({"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": params});
    let running = client.post(report.to_string());
    let (mut answer, _) = tokio::join!(running, async {
        gateway.started("report", 1).await;
        gateway.upstream.release();
    });
    assert_eq!(answer.message().await["params"]["progress"], 1);
    client.notify("notifications/cancelled", json!({"requestId": "r"})).await;
    assert!(answer.events().await.is_empty());
    assert_eq!(gateway.seen(|stats| stats.tool("report").cancelled == 1).await.cancelled, ["\"r\""]);
}

/// 2025-11-25 cancellation: the cancel of a blocked `tasks/result` ends the wait and nothing else.
#[tokio::test]
async fn a_cancelled_wait_ends_and_its_task_runs_on() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let wait = json!({"jsonrpc": "2.0", "id": "w", "method": "tasks/result", "params": {"taskId": id}});
    let mut stream = client.post(wait.to_string()).await;
    assert!(stream.next().await.unwrap().is_some());
    client.notify("notifications/cancelled", json!({"requestId": "w"})).await;
    assert!(stream.events().await.is_empty());
    // One that waits for JSON ends as well, with nothing.
    let waiting = client.post_with(&[("accept", "application/json")], wait.to_string());
    let cancelling = async {
        loop {
            client.notify("notifications/cancelled", json!({"requestId": "w"})).await;
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::select! {
        answer = waiting => answer,
        () = cancelling => unreachable!(),
    };
    assert_eq!((answer.status, answer.bytes().await.len()), (StatusCode::ACCEPTED, 0));
    assert_eq!(client.task(&id).await["status"], "working");
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&id).await), "held to the end");
    assert_eq!(gateway.upstream.stats().tool("hold").cancelled, 0);
}

/// B53: only `tasks/cancel` cancels a task; a late cancel of the request that made it means nothing.
#[tokio::test]
async fn a_late_cancel_of_the_creating_request_means_nothing() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let created = client.post(call(42, "hold", true).to_string()).await.response().await;
    let id = created["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    gateway.started("hold", 1).await;
    client.notify("notifications/cancelled", json!({"requestId": 42})).await;
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&id).await), "held to the end");
    assert_eq!(gateway.upstream.stats().tool("hold").cancelled, 0);
}

#[tokio::test]
async fn a_cancelled_task_is_cancelled_upstream_by_the_id_of_its_call() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"name": "hold", "arguments": {}, "task": {}, "_meta": {"progressToken": "mine"}});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    let other = client.start("hold", json!({})).await;
    let seen = gateway.started("hold", 2).await;
    drop(seen);
    assert_eq!(client.cancel(&id).await["status"], "cancelled");
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    let error = client.error("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(error["code"], -32602);
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!((&error["code"], &error["data"]["taskId"]), (&json!(-32602), &json!(id)));
    assert_eq!(client.task(&other).await["status"], "working");
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&other).await), "held to the end");
    at_rest(&gateway).await;
}

/// A task that waits for its place is cancelled without the upstream ever hearing of it, and its place goes on.
#[tokio::test]
async fn a_queued_task_is_cancelled_unseen() {
    let gateway = Gateway::setup().tenants("default: {running_tasks: 1, queued_tasks: 2}").start().await;
    let client = gateway.open().await;
    let first = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let second = client.start("count", json!({})).await;
    let third = client.start("count", json!({})).await;
    let wait = client.wait_for(&second).await;
    assert_eq!(client.cancel(&second).await["status"], "cancelled");
    assert_eq!(wait.response().await["error"]["code"], -32602);
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&first).await), "held to the end");
    assert_eq!(text_of(&client.outcome(&third).await), "1");
    assert_eq!(gateway.upstream.stats().tool("count").started, 1);
    assert!(gateway.upstream.stats().cancelled.is_empty());
}

/// One client's share of the race between a cancel and the end of the call.
async fn race(rounds: u32, client: Client) -> (u32, u32) {
    let (mut cancelled, mut completed) = (0, 0);
    for round in 0..rounds {
        // Some surely still run, some have surely ended, the others are somewhere between.
        let id = match round % 10 {
            0 => client.start("hold", json!({})).await,
            _ => client.start("echo", json!({"text": "done"})).await,
        };
        if round % 10 == 9 {
            client.outcome(&id).await;
        }
        for _ in 0..round % 37 {
            tokio::task::yield_now().await;
        }
        let response = client.response("tasks/cancel", json!({"taskId": id})).await;
        let status = client.task(&id).await["status"].take();
        let outcome = client.outcome(&id).await;
        if response.get("error").is_some() {
            assert_eq!(response["error"]["code"], -32602, "{response}");
            assert_eq!(status, "completed");
            assert_eq!(text_of(&outcome), "done");
            completed += 1;
        } else {
            assert_eq!((&response["result"]["status"], &status), (&json!("cancelled"), &json!("cancelled")));
            assert_eq!(outcome["error"]["code"], -32602, "{outcome}");
            cancelled += 1;
        }
    }
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    (cancelled, completed)
}

/// The first terminal state stays, 10,000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancel_against_a_completion_has_one_winner() {
    const CLIENTS: u32 = 20;
    const ROUNDS: u32 = 500;
    let tenants = "default: {running_tasks: 100, kept_tasks: 100000}";
    let gateway = Gateway::setup().tenants(tenants).start().await;
    let clients = futures_util::future::join_all((0..CLIENTS).map(|_| gateway.open())).await;
    let races = clients.into_iter().map(|client| race(ROUNDS, client));
    let won = futures_util::future::join_all(races).await;
    let (cancelled, completed) = won.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert_eq!(cancelled + completed, CLIENTS * ROUNDS);
    at_rest(&gateway).await;
    let metrics = gateway.metrics().await;
    let ended = |status: &str| metrics.value("taskgate_tasks_ended_total", &[("status", status)]);
    assert_eq!((ended("cancelled"), ended("completed")), (f64::from(cancelled), f64::from(completed)));
    assert_eq!(metrics.value("taskgate_tasks_created_total", &[]), f64::from(CLIENTS * ROUNDS));
    // Every tenth call could only end by a cancel, and every tenth had ended before it.
    let least = CLIENTS * ROUNDS / 10;
    assert!(cancelled >= least && completed >= least, "{cancelled} {completed}");
    gateway.seen(|stats| stats.tool("hold").finished == stats.tool("hold").started).await;
}
