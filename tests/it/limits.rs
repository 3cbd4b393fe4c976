//! Every limit at, under and over its bound: what is refused says why, and what comes free can be had again.

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::StatusCode;

use taskgate::app::Timing;

use crate::support::{Client, Exposition, Gateway, Value, json, text_of, within};

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

/// Asks for a task that must be refused for that reason.
async fn refused(client: &Client, tool: &str, reason: &str, limit: u64) {
    let mut error = client.error("tools/call", json!({"name": tool, "arguments": {"text": "x"}, "task": {}})).await;
    assert_eq!(error["code"], 429, "{error}");
    let retry = error["data"]["retryAfterMs"].take();
    assert!(retry.as_u64().is_some_and(|retry| retry > 0), "{retry}");
    assert_eq!(error["data"], json!({"reason": reason, "limit": limit, "retryAfterMs": null}));
}

/// Waits until the server has no call in hand, by what the gateway counts.
async fn all_quiet(gateway: &Gateway) {
    gateway
        .counted(|metrics| {
            let running = |status| metrics.value("taskgate_tasks", &[("status", status)]);
            running("working") + running("input_required") + metrics.value("taskgate_upstream_in_flight", &[]) == 0.0
        })
        .await;
}

#[tokio::test]
async fn tasks_over_the_running_ones_wait_and_then_run() {
    let gateway = Gateway::setup().tenants("default: {running_tasks: 2, queued_tasks: 2}").start().await;
    let client = gateway.open().await;
    // Given two that run and two that wait, all of which say that they work,
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(client.start("hold", json!({})).await);
    }
    gateway.started("hold", 2).await;
    for id in &ids {
        assert_eq!(client.task(id).await["status"], "working");
    }
    let counted = |status| move |metrics: &Exposition| metrics.value("taskgate_tasks", &[("status", status)]) == 2.0;
    gateway.counted(counted("queued")).await;
    gateway.counted(counted("working")).await;
    // when there is one more, then it is refused.
    refused(&client, "hold", "queued_tasks", 2).await;
    assert_eq!(gateway.upstream.stats().tool("hold").started, 2);
    // A queued one that is cancelled never reaches the server, and its place in the queue is free.
    client.cancel(&ids[2]).await;
    let late = client.start("count", json!({})).await;
    refused(&client, "hold", "queued_tasks", 2).await;
    gateway.upstream.release();
    gateway.started("hold", 3).await;
    gateway.upstream.release();
    for id in [&ids[0], &ids[1], &ids[3]] {
        assert_eq!(text_of(&client.outcome(id).await), "held to the end");
    }
    assert_eq!(text_of(&client.outcome(&late).await), "1");
    assert_eq!(gateway.upstream.stats().tool("hold").started, 3);
    assert!(gateway.upstream.stats().cancelled.is_empty());
    // And then all of it can be had again.
    all_quiet(&gateway).await;
    for _ in 0..4 {
        client.start("hold", json!({})).await;
    }
    refused(&client, "hold", "queued_tasks", 2).await;
}

#[tokio::test]
async fn without_a_queue_the_limit_is_that_of_running_tasks() {
    let gateway = Gateway::setup().tenants("default: {running_tasks: 1, queued_tasks: 0}").start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    refused(&client, "hold", "running_tasks", 1).await;
    // A task that waits for input runs all the same; one that has ended does not.
    client.cancel(&id).await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    refused(&client, "hold", "running_tasks", 1).await;
    client.cancel(&id).await;
    client.start("hold", json!({})).await;
    let rejected = [("tenant", "default"), ("reason", "running_tasks")];
    gateway.counted(|metrics| metrics.value("taskgate_rejected_total", &rejected) == 2.0).await;
}

#[tokio::test]
async fn kept_tasks_count_until_they_expire() {
    let keys = "deadline: 1s, retention: 500ms, ttl: {default: 1500ms, max: 1500ms}";
    let gateway = Gateway::setup().tasks(keys).tenants("default: {kept_tasks: 3}").start().await;
    let client = gateway.open().await;
    for tool in ["exact", "fail", "hold"] {
        client.start(tool, json!({})).await;
    }
    refused(&client, "exact", "kept_tasks", 3).await;
    gateway.counted(|metrics| metrics.value("taskgate_tasks_ended_total", &[]) == 3.0).await;
    gateway.counted(|metrics| metrics.value("taskgate_store_bytes", &[]) == 0.0).await;
    for _ in 0..3 {
        client.start("exact", json!({})).await;
    }
    refused(&client, "exact", "kept_tasks", 3).await;
}

#[tokio::test]
async fn kept_bytes_stop_new_tasks_never_a_result() {
    let keys = "deadline: 1s, retention: 500ms, ttl: {default: 1500ms, max: 1500ms}";
    let gateway = Gateway::setup().tasks(keys).tenants("default: {kept_bytes: 1KiB}").start().await;
    let client = gateway.open().await;
    // Given results that are under the limit together, then one more is taken, whatever it returns;
    for bytes in [400, 4000] {
        let id = client.start("big", json!({"bytes": bytes})).await;
        assert_eq!(text_of(&client.outcome(&id).await).len(), bytes);
    }
    // after that none is, until what is kept has expired.
    refused(&client, "exact", "kept_bytes", 1024).await;
    gateway.counted(|metrics| metrics.value("taskgate_store_bytes", &[]) == 0.0).await;
    client.start("exact", json!({})).await;
    // Nor may questions and their answers take more.
    let metrics = gateway.counted(|metrics| metrics.value("taskgate_tasks", &[]) == 0.0).await;
    assert_eq!(metrics.value("taskgate_rejected_total", &[("reason", "kept_bytes")]), 1.0);
}

/// Whether a request was refused for its rate; checks the form.
async fn over_rate(client: &Client, body: &str, reason: &str) -> bool {
    let answer = client.post(body.to_owned()).await;
    if answer.status != StatusCode::TOO_MANY_REQUESTS {
        assert_eq!(answer.header("retry-after"), None);
        return false;
    }
    let retry: u64 = answer.header("retry-after").expect("no Retry-After").parse().unwrap();
    let message = answer.json().await;
    let data = &message["error"]["data"];
    assert_eq!((&message["error"]["code"], &data["reason"]), (&json!(429), &json!(reason)), "{message}");
    let millis = data["retryAfterMs"].as_u64().unwrap();
    // Retry-After counts whole seconds, rounded up.
    assert!(
        retry >= 1 && (millis.div_ceil(1000)).abs_diff(retry) <= 1 && data.get("limit").is_none(),
        "{retry} {message}"
    );
    assert_eq!(message.get("id").is_some(), body.contains("\"id\""), "{message}");
    true
}

#[tokio::test]
async fn requests_have_a_rate() {
    let gateway = Gateway::setup().tenants("default: {requests: {rate: 1/m, burst: 6}}").start().await;
    // initialize and initialized are two of the six.
    let client = gateway.open().await;
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#;
    for body in [PING, notification] {
        assert!(!over_rate(&client, body, "requests").await);
    }
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    assert!(!over_rate(&client, PING, "requests").await);
    for body in [PING, notification, r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"count"}}"#] {
        assert!(over_rate(&client, body, "requests").await, "{body}");
    }
    assert_eq!(client.get(None).await.status, StatusCode::TOO_MANY_REQUESTS);
    let new = gateway.client().initialize().await.1;
    assert_eq!(new.status, StatusCode::TOO_MANY_REQUESTS);
    // Polls have a rate of their own, and answers and DELETE none.
    assert_eq!(client.task(&id).await["status"], "working");
    assert_eq!(client.try_answer(&json!("x"), json!({})).await.status, StatusCode::ACCEPTED);
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(gateway.upstream.stats().counter, 0);
    let rejected = [("tenant", "default"), ("reason", "requests")];
    gateway.counted(|metrics| metrics.value("taskgate_rejected_total", &rejected) == 5.0).await;
}

#[tokio::test]
async fn creations_have_a_rate() {
    let gateway = Gateway::setup().tenants("default: {creates: {rate: 1/m, burst: 2}}").start().await;
    let client = gateway.open().await;
    for _ in 0..2 {
        client.start("exact", json!({})).await;
    }
    for _ in 0..2 {
        refused(&client, "exact", "creates", 2).await;
    }
    // What is refused for another reason, and what is plain, is no creation.
    assert!(client.call("exact", json!({})).await["result"].is_object());
    gateway.seen(|stats| stats.tool("exact").finished == 3).await;
}

#[tokio::test]
async fn polls_over_their_rate_are_delayed() {
    let gateway = Gateway::setup().tenants("default: {polls: {rate: 1/s, burst: 1}}").start().await;
    let client = gateway.open().await;
    let id = client.start("exact", json!({})).await;
    // Given more polls than come free within the longest delay, which is five seconds,
    let polls = (0..40).map(|_| client.request("tasks/get", json!({"taskId": id})));
    let mut served = 0;
    for answer in futures_util::future::join_all(polls).await {
        match answer.status {
            StatusCode::OK => {
                assert_eq!(answer.response().await["result"]["taskId"], *id);
                served += 1;
            }
            status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
        }
    }
    // then those wait for their turn, beside the one that is there at once, and those over it are refused.
    assert!((6..40).contains(&served), "{served}");
}

#[tokio::test]
async fn polls_far_over_their_rate_are_refused() {
    let gateway =
        Gateway::setup().tenants("default: {polls: {rate: 1/m, burst: 3}}").callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let id = client.start("exact", json!({})).await;
    let poll = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{"taskId":"{id}"}}}}"#);
    for method in ["tasks/get", "tasks/list", "tasks/result"] {
        assert!(!over_rate(&client, &poll(method), "polls").await, "{method}");
    }
    for method in ["tasks/get", "tasks/list", "tasks/result"] {
        assert!(over_rate(&client, &poll(method), "polls").await, "{method}");
    }
    // A cancel is no poll, nor is anything else.
    assert!(!over_rate(&client, &poll("tasks/cancel"), "polls").await);
    assert!(!over_rate(&client, PING, "polls").await);
}

#[tokio::test]
async fn calls_over_those_in_flight_wait_and_then_are_refused() {
    let gateway = Gateway::setup().upstream("max_in_flight: 1, queue: 1").start().await;
    let client = gateway.open().await;
    // Given room for one call with the server and one that waits, when three come at once, then one is refused,
    let hold = || client.call("hold", json!({}));
    let mut calls = FuturesUnordered::from_iter([hold(), hold(), hold()]);
    let refused = within(calls.next()).await.unwrap();
    let error = &refused["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(429), &json!("upstream_queue")), "{refused}");
    assert_eq!(error["data"]["limit"], 1);
    assert!(error["data"]["retryAfterMs"].is_u64());
    // what ends a wait never waits itself,
    gateway.started("hold", 1).await;
    client.notify("notifications/vendor", json!({})).await;
    assert_eq!(client.try_answer(&json!("x"), json!({})).await.status, StatusCode::ACCEPTED);
    // tasks wait under their own limit,
    let task = client.start("count", json!({})).await;
    assert_eq!(client.task(&task).await["status"], "working");
    assert_eq!(gateway.upstream.stats().counter, 0);
    // and everything that waits has its turn.
    gateway.upstream.release();
    gateway.started("hold", 2).await;
    gateway.upstream.release();
    for _ in 0..2 {
        assert_eq!(text_of(&within(calls.next()).await.unwrap()), "held to the end");
    }
    assert_eq!(text_of(&client.outcome(&task).await), "1");
    all_quiet(&gateway).await;
}

#[tokio::test]
async fn without_a_queue_the_second_call_is_refused_at_once() {
    let gateway = Gateway::setup().upstream("max_in_flight: 1, queue: 0").start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let error = client.error("tools/call", json!({"name": "log"})).await;
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(429), &json!("upstream_queue")));
    // Two tasks share the one place, one after the other.
    let second = client.start("count", json!({})).await;
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&id).await), "held to the end");
    assert_eq!(text_of(&client.outcome(&second).await), "1");
    assert_eq!(text_of(&client.call("count", json!({})).await), "2");
}

#[tokio::test]
async fn sessions_have_a_number() {
    let gateway = Gateway::setup().sections("sessions: {max: 2}").start().await;
    let (one, _two) = (gateway.open().await, gateway.open().await);
    for _ in 0..2 {
        let (_, answer) = gateway.client().initialize().await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("mcp-session-id"), None);
        let error = answer.response().await["error"].take();
        assert_eq!(error["code"], 429);
        assert_eq!((&error["data"]["reason"], &error["data"]["limit"]), (&json!("sessions"), &json!(2)));
    }
    // Nothing is left open at the server for it,
    gateway.seen(|stats| stats.sessions == 2).await;
    // and one that ends makes room.
    one.delete().await;
    gateway.open().await;
}

#[tokio::test]
async fn idle_sessions_end_and_busy_ones_do_not() {
    let gateway = Gateway::setup().sections("sessions: {idle: 1s}").start().await;
    // Given one session with a stream, one with a task at work, one with a plain call, and then one that does nothing,
    let streaming = gateway.open().await;
    let stream = streaming.listen().await;
    let working = gateway.open().await;
    let id = working.start("hold", json!({})).await;
    let calling = gateway.open().await;
    gateway.started("hold", 1).await;
    let (plain, ()) = tokio::join!(calling.call("hold", json!({})), async {
        gateway.started("hold", 2).await;
        let idle = gateway.open().await;
        // when that one has been idle for long enough, then it is ended, here and at the server,
        gateway.seen(|stats| stats.deleted == 1).await;
        assert_eq!(idle.post(PING).await.status, StatusCode::NOT_FOUND);
        // and none of the others, though they are older.
        assert_eq!(gateway.upstream.stats().sessions, 3);
        assert_eq!(working.task(&id).await["status"], "working");
        assert_eq!(streaming.post(PING).await.status, StatusCode::OK);
        gateway.upstream.release();
    });
    assert_eq!(text_of(&plain), "held to the end");
    // When what kept them is over, then they end as well.
    drop(stream);
    gateway.seen(|stats| stats.deleted == 4 && stats.sessions == 0).await;
    gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
    let next = gateway.open().await;
    assert_eq!(text_of(&next.outcome(&id).await), "held to the end");
}

#[tokio::test]
async fn one_tenant_over_its_limits_does_not_hinder_another() {
    let tenants =
        "acme: {running_tasks: 1, queued_tasks: 1, requests: {rate: 1/m, burst: 6}, polls: {rate: 1/m, burst: 1}}";
    let gateway = Gateway::setup().callers(&["acme/ann", "umbrella/eve"]).tenants(tenants).start().await;
    let (ann, eve) = (gateway.open_as("ann").await, gateway.open_as("eve").await);
    for _ in 0..2 {
        ann.start("hold", json!({})).await;
    }
    refused(&ann, "hold", "queued_tasks", 1).await;
    assert!(!over_rate(&ann, PING, "requests").await);
    assert!(over_rate(&ann, PING, "requests").await);
    for _ in 0..10 {
        let id = eve.start("count", json!({})).await;
        eve.until(&id, "completed").await;
        assert!(!over_rate(&eve, PING, "requests").await);
    }
    assert_eq!(gateway.upstream.stats().counter, 10);
}

#[tokio::test]
async fn an_upstreams_places_go_round_among_tenants() {
    // On one thread, so that calls join the queue in the order in which they were made.
    let timing = Timing { threads: 0, ..Timing::default() };
    let setup = Gateway::setup().callers(&["acme/ann", "umbrella/eve"]).upstream("max_in_flight: 1");
    let gateway = setup.timing(timing).start().await;
    let (ann, eve) = (gateway.open_as("ann").await, gateway.open_as("eve").await);
    // Given a tenant with a call at work and many that wait,
    let mut hers = vec![ann.start("hold", json!({})).await];
    gateway.started("hold", 1).await;
    for _ in 0..10 {
        hers.push(ann.start("hold", json!({})).await);
    }
    let other = eve.start("count", json!({})).await;
    // when places come free, then the other tenant's call has its turn before the second of them is over.
    gateway.upstream.release();
    gateway.started("hold", 2).await;
    gateway.upstream.release();
    assert_eq!(text_of(&eve.outcome(&other).await), "1");
    assert!(gateway.upstream.stats().tool("hold").started <= 3);
    for id in &hers {
        let _: Value = ann.response("tasks/cancel", json!({"taskId": id})).await;
    }
    all_quiet(&gateway).await;
}

#[tokio::test]
async fn each_member_of_an_array_counts() {
    let gateway = Gateway::setup().tenants("default: {requests: {rate: 1/m, burst: 6}}").start().await;
    let client = gateway.client().version("2025-03-26").open().await;
    let call = |id: u32| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"count"}}}}"#);
    let batch = format!("[{}]", (1..=6).map(call).collect::<Vec<_>>().join(","));
    let messages = client.post(batch).await.messages().await;
    assert_eq!(messages.len(), 6, "{messages:?}");
    assert_eq!(messages.iter().filter(|message| message["error"]["data"]["reason"] == "requests").count(), 2);
    assert_eq!(gateway.upstream.stats().counter, 4);
}

/// A client that hears nothing to its ping takes the connection for dead (2025-11-25 ping).
#[tokio::test]
async fn a_ping_waits_for_no_place() {
    let gateway = Gateway::setup().upstream("max_in_flight: 2, queue: 0").start().await;
    let client = gateway.open().await;
    let ids = [client.start("hold", json!({})).await, client.start("hold", json!({})).await];
    gateway.started("hold", 2).await;
    let refused = client.error("tools/call", json!({"name": "log"})).await;
    assert_eq!(refused["data"]["reason"], "upstream_queue");
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    gateway.upstream.release();
    for id in &ids {
        assert_eq!(text_of(&client.outcome(id).await), "held to the end");
    }
}
