//! Quotas that are true: every way of making a task counts once, a refusal counts for nothing, what is said of the time
//! holds, and whoever asks for what is not there is slowed without anybody else.

use http::StatusCode;
use taskgate::app::Timing;

use crate::support::{Client, Gateway, Modern, Setup, Value, json, text_of, within};

const STRANGER: &str = "00000000-0000-4000-8000-000000000000";

/// A server of each transport.
fn transports() -> [(&'static str, Setup); 2] {
    [("http", Gateway::setup()), ("stdio", Gateway::setup().stdio(&[]))]
}

/// The code and the reason of an error, or nulls.
fn refused(error: &Value) -> (Value, Value) {
    (error["code"].clone(), error["data"]["reason"].clone())
}

fn over(reason: &str) -> (Value, Value) {
    (json!(429), json!(reason))
}

async fn created(gateway: &Gateway) -> f64 {
    gateway.metrics().await.value("taskgate_tasks_created_total", &[("route", "main")])
}

#[tokio::test]
async fn tasks_of_the_core_dialect_count_once() {
    for (transport, setup) in transports() {
        let gateway = setup.tenants("default: {creates: {rate: 1/m, burst: 2}}").start().await;
        let client = gateway.open().await;
        for _ in 0..2 {
            client.start("exact", json!({})).await;
        }
        let error = client.error("tools/call", json!({"name": "exact", "task": {}})).await;
        assert_eq!((refused(&error), &error["data"]["limit"]), (over("creates"), &json!(2)), "{transport}");
        assert_eq!(created(&gateway).await, 2.0, "{transport}");
    }
}

#[tokio::test]
async fn tasks_of_the_extension_count_once_whatever_makes_them() {
    // What makes the task, and what becomes of a call that can't be one: a refusal, or the type of its plain result.
    for (tasks, tool, arguments, third) in [
        ("support: required", "exact", json!({}), None),
        ("defer: 0s", "exact", json!({}), None),
        ("defer: 20ms", "hold", json!({"seconds": 1}), Some("complete")),
        ("defer: never, questions: in_task", "ask", json!({}), Some("input_required")),
    ] {
        for (transport, setup) in transports() {
            let gateway = setup.tasks(tasks).tenants("default: {creates: {rate: 1/m, burst: 2}}").start().await;
            let client = Modern::new(&gateway).with_tasks();
            for _ in 0..2 {
                client.start(tool, arguments.clone()).await;
            }
            let reply = client.call(tool, arguments.clone()).await;
            match third {
                Some(kind) => assert_eq!(reply.result["resultType"], kind, "{tasks} {transport}"),
                None => assert_eq!((refused(&reply.error), reply.status), (over("creates"), StatusCode::OK), "{tasks}"),
            }
            assert_eq!(created(&gateway).await, 2.0, "{tasks} {transport}");
        }
    }
}

#[tokio::test]
async fn what_is_refused_for_another_limit_is_no_creation() {
    let tenants = "default: {running_tasks: 1, queued_tasks: 0, creates: {rate: 1/m, burst: 2}}";
    for (transport, setup) in transports() {
        let gateway = setup.tasks("defer: 0s").tenants(tenants).start().await;
        let (legacy, modern) = (gateway.open().await, Modern::new(&gateway).with_tasks());
        let id = legacy.start("hold", json!({})).await;
        for _ in 0..5 {
            let error = legacy.error("tools/call", json!({"name": "hold", "task": {}})).await;
            assert_eq!(refused(&error), over("running_tasks"), "{transport}");
            assert_eq!(refused(&modern.call("hold", json!({})).await.error), over("running_tasks"), "{transport}");
        }
        // Nor is one whose parameters are wrong, or whose tool is not there to be called.
        legacy.error("tools/call", json!({"name": "hold", "task": {"ttl": "x"}})).await;
        legacy.cancel(&id).await;
        modern.start("hold", json!({})).await;
        // Only now the burst is used up.
        let error = legacy.error("tools/call", json!({"name": "hold", "task": {}})).await;
        assert_eq!(refused(&error), over("creates"), "{transport}");
    }
}

#[tokio::test]
async fn who_keeps_all_they_may_is_told_when_the_next_of_it_goes() {
    let keys = "ttl: {default: 2h, max: 24h}";
    for tenants in ["acme: {kept_tasks: 2}", "acme: {kept_bytes: 1KiB}"] {
        let gateway = Gateway::setup().callers(&["acme/ann", "acme/bob"]).tasks(keys).tenants(tenants).start().await;
        let (ann, bob) = (gateway.open_as("ann").await, gateway.open_as("bob").await);
        for (client, ttl) in [(&ann, json!({})), (&bob, json!({"ttl": 3_600_000}))] {
            let call = json!({"name": "big", "arguments": {"bytes": 600}, "task": ttl});
            let id = client.create_with(call).await["taskId"].as_str().unwrap().to_owned();
            client.until(&id, "completed").await;
        }
        let error = ann.error("tools/call", json!({"name": "exact", "task": {}})).await;
        let retry = error["data"]["retryAfterMs"].as_u64().unwrap();
        // Bob's, which goes first, an hour after it was made.
        assert!((3_000_000..=3_600_000).contains(&retry), "{error}");
    }
}

#[tokio::test]
async fn a_full_queue_does_not_promise_what_nobody_knows() {
    let gateway = Gateway::setup().tenants("default: {running_tasks: 1, queued_tasks: 1}").start().await;
    let client = gateway.open().await;
    for _ in 0..2 {
        client.start("hold", json!({})).await;
    }
    let error = client.error("tools/call", json!({"name": "hold", "task": {}})).await;
    assert_eq!((refused(&error), &error["data"]["retryAfterMs"]), (over("queued_tasks"), &json!(1000)));
}

#[tokio::test]
async fn weights_share_a_servers_places() {
    // On one thread, so that calls join the queue in the order in which they were made.
    let timing = Timing { threads: 0, ..Timing::default() };
    let setup = Gateway::setup().callers(&["acme/ann", "umbrella/eve"]).upstream("max_in_flight: 1");
    let gateway = setup.tenants("acme: {weight: 2}").timing(timing).start().await;
    let (ann, eve) = (gateway.open_as("ann").await, gateway.open_as("eve").await);
    let first = ann.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let mut hers = Vec::new();
    for _ in 0..3 {
        hers.push(eve.start("count", json!({})).await);
    }
    for _ in 0..6 {
        ann.start("count", json!({})).await;
    }
    // The last of them is in line by now.
    eve.result("ping", json!({})).await;
    gateway.upstream.release();
    ann.outcome(&first).await;
    let mut served = Vec::new();
    for id in &hers {
        served.push(text_of(&eve.outcome(id).await).to_owned());
    }
    assert_eq!(served, ["2", "5", "8"]);
}

/// A request of a client's in either era, as often as it takes to be refused for asking too often for what is not there.
async fn until_over(request: impl AsyncFn() -> (StatusCode, Value)) -> Value {
    within(async {
        loop {
            let (status, error) = request().await;
            if status == StatusCode::TOO_MANY_REQUESTS {
                return error;
            }
            assert!(status == StatusCode::OK || status == StatusCode::NOT_FOUND, "{status} {error}");
        }
    })
    .await
}

async fn legacy_error(client: &Client, method: &str, params: Value) -> (StatusCode, Value) {
    let answer = client.request(method, params).await;
    let (status, retry) = (answer.status, answer.header("retry-after").map(str::to_owned));
    let error = answer.messages().await.pop().unwrap()["error"].take();
    assert_eq!(retry.is_some(), status == StatusCode::TOO_MANY_REQUESTS, "{error}");
    (status, error)
}

async fn modern_error(client: &Modern, method: &str, params: Value) -> (StatusCode, Value) {
    let reply = client.request(method, params).await;
    (reply.status, reply.error)
}

#[tokio::test]
async fn who_asks_for_what_is_not_there_is_slowed_and_nobody_else_is() {
    let gateway = Gateway::setup().callers(&["acme/ann", "acme/eve", "umbrella/bob"]).start().await;
    let (ann, eve) = (gateway.open_as("ann").await, gateway.open_as("eve").await);
    let modern = Modern::new(&gateway).caller("eve").with_tasks();
    let (hers, own) = (ann.start("hold", json!({})).await, eve.start("hold", json!({})).await);
    // Given one who asks again and again for tasks that are unknown or somebody else's: first with the truth,
    let mut told = 0;
    let error = loop {
        let id = if told % 2 == 0 { STRANGER } else { &hers };
        let (status, error) = legacy_error(&eve, "tasks/get", json!({"taskId": id})).await;
        if status == StatusCode::TOO_MANY_REQUESTS {
            break error;
        }
        assert_eq!(
            (status, &error["code"], &error["message"]),
            (StatusCode::OK, &json!(-32602), &json!("Task not found"))
        );
        told += 1;
    };
    // and then with a rate, as over that of polls.
    assert!(told >= 100, "{told}");
    assert_eq!(refused(&error), over("lookups"));
    assert!(error["data"]["retryAfterMs"].as_u64().is_some_and(|retry| (1..=100).contains(&retry)), "{error}");
    // It is the same whatever is asked, in whatever way, and of whom.
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        for id in [STRANGER, &hers, "x"] {
            let error = until_over(async || legacy_error(&eve, method, json!({"taskId": id})).await).await;
            assert_eq!(refused(&error), over("lookups"), "{method} {id}");
        }
    }
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for id in [STRANGER, &hers] {
            let params = json!({"taskId": id, "inputResponses": {}});
            let error = until_over(async || modern_error(&modern, method, params.clone()).await).await;
            assert_eq!(refused(&error), over("lookups"), "{method} {id}");
        }
    }
    let many: Vec<String> = (0..1000).map(|number| format!("{number:08}-0000-4000-8000-000000000000")).collect();
    let many = [many, vec![own.clone()]].concat();
    let wanted = json!({"notifications": {"taskIds": many}});
    let (status, error) = modern_error(&modern, "subscriptions/listen", wanted).await;
    assert_eq!((status, refused(&error)), (StatusCode::TOO_MANY_REQUESTS, over("lookups")));
    // When they ask for what is their own, then they get it,
    for _ in 0..20 {
        assert_eq!(eve.task(&own).await["status"], "working");
        assert_eq!(modern.task(&own).await["status"], "working");
    }
    assert_eq!(modern.listen(json!({"taskIds": [own]})).await.1, json!({"taskIds": [own]}));
    // and others of the tenant, who are told the truth, never notice.
    assert_eq!(ann.task(&hers).await["status"], "working");
    assert_eq!(ann.error("tasks/get", json!({"taskId": own})).await["code"], -32602);
    let rejected = [("tenant", "acme"), ("reason", "lookups")];
    assert!(gateway.metrics().await.value("taskgate_rejected_total", &rejected) >= 16.0);
}

#[tokio::test]
async fn sessions_that_are_not_there_count_as_well() {
    let gateway = Gateway::setup().callers(&["acme/ann", "acme/eve"]).start().await;
    let (ann, mut eve) = (gateway.open_as("ann").await, gateway.open_as("eve").await);
    let own = eve.session.replace("made-up".to_owned());
    for session in ["made-up", ann.session.as_deref().unwrap()] {
        eve.session = Some(session.to_owned());
        let error = until_over(async || legacy_error(&eve, "ping", json!({})).await).await;
        assert_eq!(refused(&error), over("lookups"));
    }
    within(async { while eve.delete().await != StatusCode::TOO_MANY_REQUESTS {} }).await;
    eve.session = own;
    eve.result("ping", json!({})).await;
    ann.result("ping", json!({})).await;
}

#[tokio::test]
async fn callers_who_cannot_be_told_apart_do_not_lock_each_other_out() {
    let gateway = Gateway::start().await;
    let (one, other) = (gateway.open().await, gateway.open().await);
    let id = other.start("hold", json!({})).await;
    let listening = Modern::new(&gateway).with_tasks();
    // Given one that has asked for a thousand tasks which are not there,
    let many: Vec<String> = (0..1000).map(|number| format!("{number:08}-0000-4000-8000-000000000000")).collect();
    let (stream, honoured) = listening.listen(json!({"taskIds": many})).await;
    assert_eq!(honoured, json!({"taskIds": []}));
    drop(stream);
    until_over(async || legacy_error(&one, "tasks/get", json!({"taskId": STRANGER})).await).await;
    // then all others read what is there.
    for _ in 0..20 {
        assert_eq!(other.task(&id).await["status"], "working");
        assert_eq!(listening.task(&id).await["status"], "working");
    }
    gateway.open().await;
}
