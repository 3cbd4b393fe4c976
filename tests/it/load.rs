//! Many at once, and what is left of them afterwards: nothing.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use http::StatusCode;
use taskgate::demo::server::{Options, Server};

use crate::support::{Binary, Client, Exposition, Gateway, Value, json, text_of, within};

async fn server() -> Server {
    Server::start_on_loopback(Options::default()).await.unwrap()
}

/// What grows and must not stay so.
#[derive(Debug, PartialEq)]
struct Held {
    jobs: f64,
    connections: f64,
    streams: f64,
    sessions: f64,
    in_flight: f64,
    working: f64,
    asking: f64,
}

impl Held {
    fn of(metrics: &Exposition) -> Self {
        let value = |name: &str| metrics.value(name, &[]);
        Self {
            jobs: value("taskgate_jobs"),
            connections: value("taskgate_connections"),
            streams: value("taskgate_streams"),
            sessions: value("taskgate_sessions"),
            in_flight: value("taskgate_upstream_in_flight"),
            working: metrics.value("taskgate_tasks", &[("status", "working")]),
            asking: metrics.value("taskgate_tasks", &[("status", "input_required")]),
        }
    }

    /// What was held before may have had an end since: a connection that its client had closed was counted still.
    fn is_within(&self, before: &Self) -> bool {
        let each = |held: &Self| {
            let Self { jobs, connections, streams, sessions, in_flight, working, asking } = *held;
            [jobs, connections, streams, sessions, in_flight, working, asking]
        };
        each(self).iter().zip(each(before)).all(|(now, before)| *now <= before)
    }
}

/// Waits until the process holds no more than it held.
async fn back_to(binary: &Binary, before: &Held, files: usize) {
    within(async {
        loop {
            let now = Held::of(&binary.metrics().await);
            // The gateway's own idle connections to the server are kept for a while.
            if now.is_within(before) && binary.open_files() <= files {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// B16, B17: as many waits as there may be, none in the way of anybody, none left when their clients are gone, all
/// answered when the task ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_waiters_come_and_go() {
    const WAITERS: usize = 300;
    let server = server().await;
    let url = server.url();
    let binary =
        Binary::start(&format!("routes:\n  - {{name: main, path: /mcp, upstream: {{url: \"{url}\"}}}}\n")).await;
    let client = binary.client().open().await;
    let id = client.start("hold", json!({})).await;
    within(server.until(|stats| stats.tool("hold").started == 1)).await;
    // Every connection that is ever needed at rest has been made.
    client.result("tools/list", json!({})).await;
    let (before, files) = (Held::of(&binary.metrics().await), binary.open_files());

    let waits = join_all((0..WAITERS).map(|_| client.wait_for(&id))).await;
    assert!(waits.iter().all(|wait| wait.status == StatusCode::OK && wait.is_events()));
    let metrics = binary.metrics().await;
    assert_eq!(metrics.value("taskgate_streams", &[]), WAITERS as f64);
    assert!(binary.open_files() > files + WAITERS / 2);
    assert!(client.result("tools/list", json!({})).await["tools"].is_array());
    assert_eq!(text_of(&client.call("echo", json!({"text": "free"})).await), "free");
    drop(waits);
    back_to(&binary, &before, files + 2).await;
    assert_eq!(client.task(&id).await["status"], "working");

    // Once more, and to the end.
    let waits = join_all((0..WAITERS).map(|_| client.wait_for(&id))).await;
    server.release();
    let outcomes = join_all(waits.into_iter().map(|wait| wait.response())).await;
    assert!(outcomes.iter().all(|outcome| text_of(outcome) == "held to the end"));
    assert_eq!(within(server.until(|_| true)).await.tool("hold").started, 1);
}

/// B16: whoever begins to wait in the very moment of the end is told of it like all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wait_misses_the_end() {
    let gateway = Gateway::setup().tenants("default: {running_tasks: 100, kept_tasks: 10000}").start().await;
    let clients = join_all((0..10).map(|_| gateway.open())).await;
    for round in 0..60 {
        let lives = clients.iter().map(|client| async move {
            let id = client.start("echo", json!({"text": "done"})).await;
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            let body = json!({"jsonrpc": "2.0", "id": "j", "method": "tasks/result", "params": {"taskId": id}});
            let as_json = client.post_with(&[("accept", "application/json")], body.to_string());
            let (first, second, third) = tokio::join!(client.outcome(&id), client.outcome(&id), as_json);
            for outcome in [first, second, third.json().await] {
                assert_eq!(text_of(&outcome), "done");
            }
        });
        within(join_all(lives)).await;
    }
    assert_eq!(gateway.upstream.stats().tool("echo").started, 600);
}

/// Callers of several tenants, each over every limit of its own.
const STORM: [&str; 6] = [
    "default: {running_tasks: 3, queued_tasks: 4, kept_tasks: 1000}",
    "few: {running_tasks: 2, queued_tasks: 0}",
    "kept: {kept_tasks: 6}",
    "bytes: {kept_bytes: 4KiB}",
    "creates: {creates: {rate: 1/m, burst: 3}}",
    "requests: {requests: {rate: 1/m, burst: 30}}",
];

/// One refusal, if it is one, by its reason, once its form is as it should be.
async fn refused(client: &Client, params: Value) -> Result<String, String> {
    let answer = client.request("tools/call", params).await;
    let (status, retry_after) = (answer.status, answer.header("retry-after").map(str::to_owned));
    let mut message = answer.messages().await.pop().unwrap();
    if let Some(id) = message["result"]["task"]["taskId"].as_str() {
        return Ok(id.to_owned());
    }
    if message.get("result").is_some() {
        return Ok(String::new());
    }
    let error = message["error"].take();
    assert_eq!(error["code"], 429, "{error}");
    let reason = error["data"]["reason"].as_str().unwrap().to_owned();
    assert!(error["data"]["retryAfterMs"].as_u64().is_some_and(|millis| millis > 0), "{error}");
    if reason == "requests" {
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(retry_after.is_some_and(|seconds| seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0)));
    } else {
        assert_eq!((status, retry_after), (StatusCode::OK, None));
        assert!(error["data"]["limit"].as_u64().is_some(), "{error}");
    }
    Err(reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one storm, read from its beginning to its end")]
async fn a_storm_over_every_quota_passes() {
    const CALLS: usize = 40;
    let tenants = ["plain", "few", "kept", "bytes", "creates", "requests"];
    let callers: Vec<String> = tenants.iter().map(|tenant| format!("{tenant}/{tenant}-bot")).collect();
    let callers: Vec<&str> = callers.iter().map(String::as_str).collect();
    let gateway = Gateway::setup()
        .callers(&callers)
        .tenants(&STORM.join(", "))
        .upstream("max_in_flight: 4, queue: 5")
        .start()
        .await;
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut accepted = 0;
    let mut clients = Vec::new();
    for tenant in tenants {
        clients.push(gateway.open_as(&format!("{tenant}-bot")).await);
    }
    // Half are tasks that wait for a release, half are plain calls that do.
    let storm = clients.iter().zip(tenants).map(|(client, tenant)| async move {
        let calls = (0..CALLS).map(|number| async move {
            let (tool, bytes) = if tenant == "bytes" { ("big", 3000) } else { ("hold", 0) };
            let mut params = json!({"name": tool, "arguments": {"bytes": bytes}});
            // Results are counted when they are there, so these come one after the other.
            if number % 2 == 0 || tenant == "bytes" {
                params["task"] = json!({});
            }
            let outcome = refused(client, params).await;
            if let ("bytes", Ok(id)) = (tenant, &outcome) {
                // Only then do its bytes count.
                client.outcome(id).await;
            }
            outcome
        });
        let at_once = if tenant == "bytes" { 1 } else { CALLS };
        let outcomes: Vec<_> = stream::iter(calls).buffer_unordered(at_once).collect().await;
        (tenant, outcomes)
    });
    let releasing = async {
        loop {
            gateway.upstream.release();
            tokio::task::yield_now().await;
        }
    };
    let outcomes = tokio::select! {
        outcomes = within(join_all(storm)) => outcomes,
        () = releasing => unreachable!(),
    };
    for (tenant, outcomes) in outcomes {
        for outcome in outcomes {
            match outcome {
                Ok(id) => accepted += usize::from(!id.is_empty()),
                Err(reason) => reasons.entry(tenant.to_owned()).or_default().push(reason),
            }
        }
    }
    let has = |tenant: &str, reason: &str| reasons.get(tenant).is_some_and(|all| all.iter().any(|one| one == reason));
    assert!(has("creates", "creates") && has("requests", "requests") && has("kept", "kept_tasks"), "{reasons:?}");
    assert!(has("bytes", "kept_bytes"), "{reasons:?}");
    assert!(accepted > 0);
    // The last ones end as well, and then nobody has anything.
    let metrics = within(async {
        loop {
            gateway.upstream.release();
            let metrics = gateway.metrics().await;
            let held = Held::of(&metrics);
            if held.working + held.asking + held.in_flight + held.streams == 0.0 {
                return metrics;
            }
        }
    })
    .await;
    assert_eq!(metrics.value("taskgate_tasks_created_total", &[]), accepted as f64);
    assert_eq!(metrics.value("taskgate_tasks_ended_total", &[]), accepted as f64);
    assert_eq!(metrics.value("taskgate_tasks", &[]), 0.0);
    // A tenant whose tasks have ended starts new ones, up to the same limit as before.
    for (tenant, running, queued) in [("plain", 3, 4), ("few", 2, 0)] {
        let client = gateway.open_as(&format!("{tenant}-bot")).await;
        let mut ids = Vec::new();
        for _ in 0..running + queued {
            ids.push(refused(&client, json!({"name": "hold", "arguments": {}, "task": {}})).await.unwrap());
        }
        let over = refused(&client, json!({"name": "hold", "arguments": {}, "task": {}})).await.unwrap_err();
        assert_eq!(over, if queued == 0 { "running_tasks" } else { "queued_tasks" });
        for id in ids {
            client.cancel(&id).await;
        }
    }
}

/// Plain calls over the route's queue are refused; those in it are served in time, and each tenant gets its share.
#[tokio::test]
async fn the_route_s_queue_is_bounded_and_served() {
    let gateway = Gateway::setup().upstream("max_in_flight: 1, queue: 2").start().await;
    let client = gateway.open().await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let calls = (0..10).map(|_| refused(&client, json!({"name": "count", "arguments": {}})));
    let mut calls: stream::FuturesUnordered<_> = calls.collect();
    for _ in 0..8 {
        assert_eq!(within(calls.next()).await.unwrap(), Err("upstream_queue".to_owned()));
    }
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&held).await), "held to the end");
    for _ in 0..2 {
        assert_eq!(within(calls.next()).await.unwrap(), Ok(String::new()));
    }
    assert_eq!(gateway.upstream.stats().counter, 2);
}

/// A round of everything: tasks to their end, cancelled, failed and expired, sessions with and without DELETE, streams,
/// plain calls. When it is over nothing of it is kept.
async fn round(binary: &Binary, server: &Server) {
    const SESSIONS: usize = 20;
    let clients = join_all((0..SESSIONS).map(|_| binary.client().open())).await;
    let working = clients.iter().enumerate().map(|(number, client)| async move {
        let stream = client.listen().await;
        let big = client.start("big", json!({"bytes": 100_000})).await;
        let cancelled = client.start("hold", json!({})).await;
        let params = json!({"name": "log", "arguments": {"messages": 20}, "task": {}, "_meta": {"progressToken": 1}});
        client.create_with(params).await;
        let broken = client.start("broken", json!({})).await;
        assert_eq!(text_of(&client.outcome(&big).await).len(), 100_000);
        assert_eq!(client.cancel(&cancelled).await["status"], "cancelled");
        assert_eq!(client.outcome(&broken).await["error"]["code"], -32000);
        let asked = client.start("ask", json!({})).await;
        let wait = client.wait_for(&asked).await;
        client.until(&asked, "input_required").await;
        drop((wait, stream));
        client.cancel(&asked).await;
        for _ in 0..5 {
            assert_eq!(text_of(&client.call("big", json!({"bytes": 100_000})).await).len(), 100_000);
        }
        if number % 2 == 0 {
            assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
        }
    });
    within(join_all(working)).await;
    // The others are ended when they are idle, and the tasks when their ttl is over.
    drop(clients);
    within(async {
        loop {
            let metrics = binary.metrics().await;
            if metrics.value("taskgate_sessions", &[]) + metrics.value("taskgate_tasks", &[]) == 0.0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    within(server.until(|stats| stats.sessions == 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_round_takes_no_more_memory_than_the_first() {
    let server = server().await;
    let binary = Binary::start(&format!(
        "sessions: {{idle: 5s}}\nroutes:\n  - name: main\n    path: /mcp\n    upstream: {{url: \"{}\"}}\n    \
         tasks: {{deadline: 8s, retention: 1s, ttl: {{default: 9s, max: 9s}}}}\n",
        server.url()
    ))
    .await;
    // What is made once is made in a round that does not count.
    round(&binary, &server).await;
    round(&binary, &server).await;
    let first = binary.resident();
    let before = Held::of(&binary.metrics().await);
    let files = binary.open_files();
    round(&binary, &server).await;
    let mut second = binary.resident();
    if second * 10 > first * 11 {
        // The allocator keeps more or less of the same work; what leaks grows from round to round.
        round(&binary, &server).await;
        second = second.min(binary.resident());
    }
    back_to(&binary, &before, files + 2).await;
    assert_eq!((before.working, before.streams, before.in_flight, before.sessions), (0.0, 0.0, 0.0, 0.0));
    assert!(second * 10 <= first * 11, "{first} KiB after one round, {second} KiB after two");
}
