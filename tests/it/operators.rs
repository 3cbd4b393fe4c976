//! What operators see: alive, ready, and what is counted, with every gauge back at zero in the end.

use http::StatusCode;

use crate::support::{Connection, Gateway, json};

/// Asks the admin address; status, body and the fields.
async fn ask(gateway: &Gateway, request: &str, fields: &str) -> crate::support::RawAnswer {
    let mut connection = Connection::open(gateway.admin).await;
    connection.send(format!("{request} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n")).await;
    connection.answer().await
}

#[tokio::test]
async fn it_is_alive_and_ready() {
    let gateway = Gateway::start().await;
    for (path, body) in [("/livez", "alive\n"), ("/readyz", "ready\n")] {
        let answer = ask(&gateway, &format!("GET {path}"), "").await;
        assert_eq!((answer.status, answer.text().as_str()), (200, body));
        assert_eq!(answer.field("cache-control"), Some("no-store"));
    }
    for path in ["/", "/mcp", "/metrics/", "/api/tasks"] {
        assert_eq!(ask(&gateway, &format!("GET {path}"), "").await.status, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let answer = ask(&gateway, &format!("{method} /metrics"), "content-length: 0\r\n").await;
        assert_eq!((answer.status, answer.field("allow")), (405, Some("GET, HEAD")));
    }
    // Clients never reach it.
    assert_eq!(gateway.client().path("/livez").silent().post("").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_want_the_token_where_there_is_one() {
    let gateway = Gateway::setup().admin("token: open-sesame").start().await;
    for (fields, status) in [
        ("", 401),
        ("authorization: Bearer wrong\r\n", 401),
        ("authorization: Basic open-sesame\r\n", 401),
        ("authorization: Bearer open-sesame\r\nauthorization: Bearer open-sesame\r\n", 401),
        ("authorization: Bearer open-sesame\r\n", 200),
    ] {
        let answer = ask(&gateway, "GET /metrics", fields).await;
        assert_eq!(answer.status, status, "{fields}");
        assert_eq!(answer.field("www-authenticate").is_some(), status == 401, "{fields}");
    }
    assert_eq!(ask(&gateway, "GET /livez", "").await.status, 200);
    assert_eq!(ask(&gateway, "GET /readyz", "").await.status, 200);
}

#[tokio::test]
async fn every_name_is_there_and_counts() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let stream = client.listen().await;
    // Given one task of each ending,
    for (tool, status) in [("exact", "completed"), ("fail", "failed"), ("broken", "failed")] {
        let id = client.start(tool, json!({})).await;
        client.until(&id, status).await;
    }
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    client.cancel(&id).await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 2).await;
    let asking = client.start("ask", json!({})).await;
    client.until(&asking, "input_required").await;
    client.call("exact", json!({})).await;
    client.call("broken", json!({})).await;
    client.error("tasks/get", json!({"taskId": "x"})).await;
    client.request("vendor/odd", json!({})).await;
    let metrics = gateway.metrics().await;
    // then each is counted under its own name,
    for (status, reason) in
        [("completed", "returned"), ("failed", "tool_error"), ("failed", "upstream_error"), ("cancelled", "cancelled")]
    {
        let labels = [("status", status), ("reason", reason)];
        assert_eq!(metrics.value("taskgate_tasks_ended_total", &labels), 1.0, "{status} {reason}");
    }
    assert_eq!(metrics.value("taskgate_tasks_created_total", &[("route", "main")]), 6.0);
    // What has ended is not held any more.
    assert_eq!(metrics.value("taskgate_tasks", &[("route", "main")]), 2.0);
    for (status, count) in [("queued", 0.0), ("working", 1.0), ("input_required", 1.0)] {
        assert_eq!(metrics.value("taskgate_tasks", &[("route", "main"), ("status", status)]), count, "{status}");
    }
    assert_eq!(metrics.value("taskgate_task_seconds_count", &[("route", "main")]), 4.0);
    assert_eq!(metrics.value("taskgate_task_queue_seconds_count", &[("route", "main")]), 6.0);
    assert_eq!(metrics.value("taskgate_upstream_in_flight", &[("route", "main")]), 2.0);
    assert_eq!(metrics.value("taskgate_sessions", &[("route", "main")]), 1.0);
    assert_eq!(metrics.value("taskgate_streams", &[("route", "main")]), 1.0);
    assert_eq!(metrics.value("taskgate_rejected_total", &[("tenant", "acme"), ("reason", "task")]), 1.0);
    for (method, outcome, count) in [
        ("initialize", "ok", 1.0),
        ("tools/call", "ok", 8.0),
        ("tasks/cancel", "ok", 1.0),
        ("tasks/get", "rejected", 1.0),
        ("other", "ok", 1.0),
    ] {
        let labels = [("route", "main"), ("era", "legacy"), ("method", method), ("outcome", outcome)];
        assert_eq!(metrics.value("taskgate_requests_total", &labels), count, "{method} {outcome}");
    }
    assert!(metrics.value("taskgate_upstream_requests_total", &[("route", "main"), ("outcome", "answered")]) >= 4.0);
    for name in [
        "taskgate_requests_total",
        "taskgate_request_seconds",
        "taskgate_tasks",
        "taskgate_tasks_created_total",
        "taskgate_tasks_ended_total",
        "taskgate_task_seconds",
        "taskgate_task_queue_seconds",
        "taskgate_upstream_requests_total",
        "taskgate_upstream_in_flight",
        "taskgate_sessions",
        "taskgate_rejected_total",
        "taskgate_store_seconds",
        "taskgate_store_bytes",
    ] {
        let has = metrics.has(name) || metrics.has(name.trim_end_matches("_total"));
        assert!(has, "{name}");
    }
    for op in ["create", "get", "update"] {
        assert!(metrics.value("taskgate_store_seconds_count", &[("op", op)]) > 0.0, "{op}");
    }
    assert!(metrics.value("taskgate_store_bytes", &[]) > 0.0);
    // and every gauge goes back to zero.
    client.cancel(&asking).await;
    gateway.upstream.release();
    client.outcome(&held).await;
    drop(stream);
    client.delete().await;
    for name in ["taskgate_upstream_in_flight", "taskgate_sessions", "taskgate_streams"] {
        gateway.counted(|metrics| metrics.value(name, &[]) == 0.0).await;
    }
    gateway.counted(|metrics| metrics.value("taskgate_tasks", &[("status", "working")]) == 0.0).await;
    gateway.seen(|stats| stats.sessions == 0 && stats.streams == 0).await;
}

#[tokio::test]
async fn what_a_caller_sends_never_becomes_a_label() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    client.call("secret-tool", json!({})).await;
    client.start("secret-tool", json!({})).await;
    client.request("secret-method", json!({})).await;
    client.notify("secret-notification", json!({})).await;
    gateway.client().path("/secret-path").silent().post("").await;
    let metrics = gateway.metrics().await;
    let leaks: Vec<&str> = metrics.0.lines().filter(|line| line.contains("secret")).collect();
    assert_eq!(leaks, Vec::<&str>::new());
    assert_eq!(metrics.value("taskgate_requests_total", &[("route", "other")]), 1.0);
}

#[tokio::test]
async fn while_it_stops_it_is_not_ready_and_begins_nothing() {
    let mut gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let app = gateway.take_app();
    let running = app.run_until(async { drop(stopped.await) });
    let watching = async {
        stop.send(()).unwrap();
        // While a held call has time to finish, operators are told, and whoever wants to begin something is, too;
        crate::support::within(async { while ask(&gateway, "GET /readyz", "").await.status != 503 {} }).await;
        assert_eq!(ask(&gateway, "GET /livez", "").await.status, 200);
        let error = client.error("tools/call", json!({"name": "exact", "task": {}})).await;
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("shutdown")));
        let (_, answer) = gateway.client().initialize().await;
        assert_eq!(answer.response().await["error"]["data"]["reason"], "shutdown");
        // what is there can still be read,
        assert_eq!(client.task(&id).await["status"], "working");
        let waiting = client.wait_for(&id).await;
        gateway.upstream.release();
        assert_eq!(waiting.response().await["result"]["content"][0]["text"], "held to the end");
    };
    crate::support::within(async { tokio::join!(running, watching) }).await;
    // and in the end nothing is left at the server.
    gateway.seen(|stats| stats.sessions == 0 && stats.streams == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_be_asked_while_tasks_come_and_go() {
    let callers: Vec<String> = (0..8).map(|number| format!("tenant{number}/caller{number}")).collect();
    let callers: Vec<&str> = callers.iter().map(String::as_str).collect();
    let keys = "deadline: 1s, retention: 200ms, ttl: {default: 1200ms, max: 1200ms}";
    let gateway = Gateway::setup().tasks(keys).callers(&callers).start().await;
    // Given callers of many tenants whose tasks end, are cancelled and expire,
    let working = (0..callers.len()).map(|number| {
        let gateway = &gateway;
        async move {
            let client = gateway.open_as(&format!("caller{number}")).await;
            for _ in 0..15 {
                client.start("exact", json!({})).await;
                client.start("fail", json!({})).await;
                let id = client.start("hold", json!({})).await;
                client.cancel(&id).await;
            }
        }
    });
    // when operators ask all the time, then everybody is answered.
    let asking = (0..4).map(|_| async {
        for _ in 0..100 {
            gateway.metrics().await;
        }
    });
    let (working, asking) = (futures_util::future::join_all(working), futures_util::future::join_all(asking));
    crate::support::within(async { tokio::join!(working, asking) }).await;
    gateway.counted(|metrics| metrics.value("taskgate_tasks", &[]) == 0.0).await;
}
