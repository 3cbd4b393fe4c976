//! Sessions of upstreams behind clients that have none: how many there are, who shares them, and when they end.

use http::StatusCode;
use taskgate::demo::server::{Options, Stats};

use super::support::{
    Gateway, Modern, RawUpstream, Value, json,
    raw_upstream::{bare, json_body, whole, with_session},
    within,
};

/// A gateway in front of a server with sessions, with two callers.
async fn with_callers() -> Gateway {
    Gateway::setup().callers(&["acme/alice", "acme/bob"]).start().await
}

/// A caller's client that declares nothing.
fn caller(gateway: &Gateway, subject: &str) -> Modern {
    Modern::new(gateway).declares(json!({})).caller(subject)
}

fn forms() -> Value {
    json!({"elicitation": {}})
}

fn count_of(stats: &Stats, method: &'static str) -> u64 {
    stats.methods.get(method).copied().unwrap_or_default()
}

#[tokio::test]
async fn a_pooled_session_adds_no_round_trip_after_the_first_call() {
    let gateway = with_callers().await;
    let alice = caller(&gateway, "alice");
    alice.result_of("echo", json!({"text": "a"})).await;
    let before = gateway.upstream.stats();
    for text in ["b", "c", "d"] {
        let result = alice.result_of("echo", json!({"text": text})).await;
        assert_eq!(result["content"][0]["text"], text);
    }
    alice.result("tools/list", json!({})).await;
    let after = gateway.upstream.stats();
    assert_eq!(after.http_requests - before.http_requests, 4);
    assert_eq!((after.sessions_opened, after.sessions), (1, 1));
}

#[tokio::test]
async fn an_interactive_session_is_one_calls_at_a_time_and_kept_for_the_next() {
    let gateway = with_callers().await;
    let alice = caller(&gateway, "alice").declares(forms());
    let (held, _) = tokio::join!(alice.result_of("hold", json!({"seconds": null})), async {
        gateway.started("hold", 1).await;
        alice.result_of("echo", json!({"text": "beside"})).await;
        assert_eq!(gateway.upstream.stats().sessions_opened, 2);
        alice.result_of("release", json!({})).await;
    });
    assert_eq!(held["resultType"], "complete");
    let before = gateway.seen(|stats| stats.get_streams == 2).await;
    alice.result_of("echo", json!({"text": "again"})).await;
    let after = gateway.upstream.stats();
    assert_eq!((after.sessions_opened, after.http_requests), (2, before.http_requests + 1));
}

#[tokio::test]
async fn callers_and_capabilities_have_sessions_of_their_own() {
    let gateway = with_callers().await;
    let (alice, bob) = (caller(&gateway, "alice"), caller(&gateway, "bob"));
    alice.result_of("count", json!({})).await;
    bob.result_of("count", json!({})).await;
    assert_eq!(gateway.upstream.stats().sessions_opened, 2);
    let asked = caller(&gateway, "alice").declares(json!({"sampling": {}, "elicitation": {"url": {}}}));
    asked.result_of("count", json!({})).await;
    let stats = gateway.upstream.stats();
    assert_eq!(stats.sessions_opened, 3);
    let told: Value = serde_json::from_slice(&stats.last_initialize).unwrap();
    assert_eq!(told["capabilities"], json!({"elicitation": {"url": {}}, "sampling": {}}));
    assert_eq!(told["clientInfo"]["name"], "taskgate");
}

#[tokio::test]
async fn callers_who_cannot_be_told_apart_get_a_session_for_each_call() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway).declares(json!({}));
    for _ in 0..2 {
        client.result_of("echo", json!({"text": "x"})).await;
    }
    let stats = gateway.seen(|stats| stats.deleted == 2).await;
    assert_eq!((stats.sessions_opened, stats.sessions), (2, 0));
    assert_eq!((count_of(&stats, "initialize"), count_of(&stats, "notifications/initialized")), (2, 2));
}

#[tokio::test]
async fn a_server_without_sessions_is_greeted_once() {
    let gateway = Gateway::setup().server(Options { stateless: true, ..Options::default() }).start().await;
    let client = Modern::new(&gateway).declares(json!({}));
    client.result_of("echo", json!({"text": "x"})).await;
    let before = gateway.upstream.stats();
    client.result_of("echo", json!({"text": "y"})).await;
    let after = gateway.upstream.stats();
    assert_eq!((after.http_requests - before.http_requests, count_of(&after, "initialize")), (1, 1));
}

#[tokio::test]
async fn concurrent_first_calls_open_one_session() {
    let gateway = with_callers().await;
    let alice = caller(&gateway, "alice");
    let calls = (0..20).map(|n| alice.result_of("echo", json!({"text": n.to_string()})));
    let results = futures_util::future::join_all(calls).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result["content"][0]["text"], n.to_string());
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
}

#[tokio::test]
async fn a_forgotten_session_is_opened_anew_and_the_call_sent_once_more() {
    let gateway = with_callers().await;
    let alice = caller(&gateway, "alice");
    alice.result_of("count", json!({})).await;
    gateway.upstream.forget_sessions();
    let result = alice.result_of("count", json!({})).await;
    // Once: it was not executed the first time.
    assert_eq!(result["content"][0]["text"], "2");
    assert_eq!(gateway.upstream.stats().sessions_opened, 2);
}

#[tokio::test]
async fn a_task_on_a_forgotten_session_is_begun_on_another() {
    let gateway = Gateway::setup().callers(&["acme/alice"]).tasks("defer: 0s").start().await;
    let alice = caller(&gateway, "alice").with_tasks();
    for count in ["1", "2"] {
        let id = alice.start("count", json!({})).await;
        assert_eq!(alice.until(&id, "completed").await["result"]["content"][0]["text"], count);
        gateway.upstream.forget_sessions();
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 2);
}

#[tokio::test]
async fn a_server_that_was_started_anew_costs_nobody_an_answer_however_many_sessions_were_idle() {
    let gateway = with_callers().await;
    let alice = caller(&gateway, "alice").declares(forms());
    // As many as are in use at once are idle afterwards, up to a bound.
    let many = futures_util::future::join_all((0..20).map(|_| alice.result_of("hold", json!({}))));
    tokio::join!(many, async {
        gateway.started("hold", 20).await;
        gateway.upstream.release();
    });
    let kept = gateway.seen(|stats| stats.deleted == 4).await;
    assert_eq!((kept.sessions_opened, kept.sessions), (20, 16));
    gateway.upstream.forget_sessions();
    for count in ["1", "2", "3", "4"] {
        assert_eq!(alice.result_of("count", json!({})).await["content"][0]["text"], count);
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 21);
}

#[tokio::test]
async fn a_call_that_waits_for_a_place_has_no_session_yet() {
    let gateway = Gateway::setup().callers(&["acme/alice"]).upstream("max_in_flight: 1").start().await;
    let alice = caller(&gateway, "alice").declares(forms());
    let tasks = Modern::new(&gateway).with_tasks().caller("alice");
    let waiting = async {
        // Only now: whichever came first would have the place.
        gateway.started("hold", 1).await;
        let meanwhile = async {
            // What needs no place comes through; the call that waits has had time for a greeting by then.
            for _ in 0..20 {
                assert_eq!(tasks.request("tasks/get", json!({"taskId": "nobody's"})).await.refusal(), (200, -32602));
            }
            assert_eq!(gateway.upstream.stats().sessions_opened, 1);
            gateway.upstream.release();
        };
        tokio::join!(alice.result_of("echo", json!({"text": "x"})), meanwhile)
    };
    within(async { tokio::join!(alice.result_of("hold", json!({})), Box::pin(waiting)) }).await;
}

#[tokio::test]
async fn a_server_that_forgets_every_session_at_once_is_not_asked_for_ever() {
    let server = RawUpstream::start(|heard| (heard.method == "tools/call").then(|| vec![bare(404)])).await;
    let gateway = Gateway::setup().callers(&["acme/alice"]).in_front_of(&server.url()).start().await;
    let (status, error) = caller(&gateway, "alice").error("tools/call", json!({"name": "x"})).await;
    assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("upstream_unreachable")), "{error}");
    assert_eq!((server.count("initialize"), server.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn idle_sessions_end() {
    let gateway = Gateway::setup().callers(&["acme/alice"]).sections("sessions: {idle: 100ms}").start().await;
    caller(&gateway, "alice").declares(forms()).result_of("echo", json!({"text": "x"})).await;
    caller(&gateway, "alice").result_of("echo", json!({"text": "x"})).await;
    let stats = gateway.seen(|stats| stats.deleted == 2).await;
    assert_eq!((stats.sessions_opened, stats.sessions), (2, 0));
}

#[tokio::test]
async fn the_one_that_was_idle_longest_makes_room() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).sections("sessions: {max: 1}").start().await;
    for subject in ["alice", "bob", "alice"] {
        caller(&gateway, subject).result_of("echo", json!({"text": "x"})).await;
    }
    let stats = gateway.seen(|stats| stats.deleted == 2).await;
    assert_eq!((stats.sessions_opened, stats.sessions), (3, 1));
    let alice = caller(&gateway, "alice");
    tokio::join!(alice.result_of("hold", json!({"seconds": null})), async {
        gateway.started("hold", 1).await;
        let (_, error) = caller(&gateway, "bob").error("tools/call", json!({"name": "echo"})).await;
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(429), &json!("sessions")));
        alice.result_of("release", json!({})).await;
    });
}

#[tokio::test]
async fn sessions_end_with_the_gateway() {
    let mut gateway = with_callers().await;
    caller(&gateway, "alice").result_of("echo", json!({"text": "x"})).await;
    caller(&gateway, "bob").declares(forms()).result_of("echo", json!({"text": "x"})).await;
    gateway.stop().await;
    let stats = gateway.seen(|stats| stats.deleted == 2).await;
    assert_eq!(stats.sessions, 0);
}

#[tokio::test]
async fn a_server_that_chooses_an_older_version_is_told_what_it_can_read() {
    let server = RawUpstream::start(|heard| {
        let older = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "0"}});
        (heard.method == "initialize").then(|| vec![with_session(&heard.answer(&older.to_string()))])
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway).declares(json!({"elicitation": {"url": {}}}));
    client.result_of("x", json!({})).await;
    let told = server.heard("initialize", 2).await;
    assert_eq!(told[0].body["params"]["capabilities"], json!({"elicitation": {"url": {}}}));
    assert_eq!(told[1].body["params"]["capabilities"], json!({}));
    let called = server.heard("tools/call", 1).await;
    assert_eq!(called[0].headers["mcp-protocol-version"], "2025-06-18");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_or_refuses_is_an_error_and_is_tried_again() {
    let server = RawUpstream::start(|heard| (heard.method == "initialize").then(|| vec![bare(500)])).await;
    let gateway = Gateway::setup().callers(&["acme/alice"]).in_front_of(&server.url()).start().await;
    let alice = caller(&gateway, "alice");
    for tries in 1..3 {
        let reply = within(alice.request("tools/call", json!({"name": "x"}))).await;
        assert_eq!(reply.refusal(), (200, -32603), "{reply:?}");
        assert_eq!(server.count("initialize"), tries);
    }
}

#[tokio::test]
async fn a_server_over_stdio_has_a_process_for_each_caller() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).stdio(&[]).start().await;
    for (subject, count) in [("alice", "1"), ("alice", "2"), ("bob", "1"), ("alice", "3")] {
        assert_eq!(caller(&gateway, subject).text("count", json!({})).await, count, "{subject}");
    }
}

#[tokio::test]
async fn a_pinned_session_is_all_that_a_caller_has() {
    let gateway = Gateway::setup().upstream("sessions: pinned").callers(&["acme/alice"]).start().await;
    let client = caller(&gateway, "alice").declares(forms());
    client.result_of("count", json!({})).await;
    client.result("tools/list", json!({})).await;
    // Calls that may ask take turns; lists don't wait for them.
    let (first, second, ()) = tokio::join!(
        client.result_of("hold", json!({"seconds": null})),
        async {
            gateway.started("hold", 1).await;
            client.result_of("count", json!({})).await
        },
        async {
            gateway.started("hold", 1).await;
            client.result("tools/list", json!({})).await;
            gateway.upstream.release();
        }
    );
    assert_eq!((&first["resultType"], &second["content"][0]["text"]), (&json!("complete"), &json!("2")));
    let stats = gateway.upstream.stats();
    assert_eq!((stats.sessions_opened, count_of(&stats, "tools/list")), (1, 2));
    // Callers who can't be told apart may share one where the route says so.
    let gateway = Gateway::setup().upstream("sessions: pinned").start().await;
    for _ in 0..2 {
        Modern::new(&gateway).declares(json!({})).result_of("count", json!({})).await;
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
}

#[tokio::test]
async fn a_route_may_want_a_session_for_each_call() {
    let gateway = Gateway::setup().upstream("sessions: per_call").callers(&["acme/alice"]).start().await;
    let client = caller(&gateway, "alice").declares(forms());
    for _ in 0..2 {
        client.result_of("echo", json!({"text": "x"})).await;
    }
    let stats = gateway.seen(|stats| stats.deleted == 2).await;
    assert_eq!((stats.sessions_opened, stats.sessions, stats.get_streams), (2, 0, 0));
}

#[tokio::test]
async fn a_call_that_waits_for_its_turn_ends_with_its_client() {
    let gateway = Gateway::setup().upstream("sessions: pinned").callers(&["acme/alice"]).start().await;
    let client = caller(&gateway, "alice").declares(forms());
    let other = caller(&gateway, "alice").declares(forms());
    let (held, ()) = tokio::join!(client.result_of("hold", json!({"seconds": null})), async {
        gateway.started("hold", 1).await;
        {
            let waiting = other.result_of("echo", json!({"text": "never"}));
            tokio::select! {
                _ = waiting => panic!("it was not its turn"),
                // Whatever takes a round trip.
                _ = other.result("tools/list", json!({})) => {}
            }
        }
        gateway.upstream.release();
    });
    assert_eq!(held["resultType"], "complete");
    client.result_of("count", json!({})).await;
    assert_eq!(gateway.upstream.stats().tool("echo").started, 0);
}

#[tokio::test]
async fn a_server_that_wants_sessions_from_now_on_is_greeted_again() {
    let greetings = std::sync::atomic::AtomicUsize::new(0);
    let server = RawUpstream::start(move |heard| match heard.method.as_str() {
        // Without a session the first time.
        "initialize" if greetings.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "0"}});
            Some(vec![json_body(&heard.answer(&result.to_string()))])
        }
        "tools/call" if heard.body["params"]["name"] == "refused" => {
            let error = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no session"}});
            Some(vec![whole(400, "application/json", &error.to_string())])
        }
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().callers(&["acme/alice"]).in_front_of(&server.url()).start().await;
    let alice = caller(&gateway, "alice");
    alice.result_of("a", json!({})).await;
    alice.result_of("b", json!({})).await;
    assert_eq!(server.count("initialize"), 1);
    let (_, error) = alice.error("tools/call", json!({"name": "refused"})).await;
    assert_eq!(error["code"], -32600);
    alice.result_of("c", json!({})).await;
    assert_eq!(server.count("initialize"), 2);
}

#[tokio::test]
async fn a_server_over_stdio_that_dies_is_started_again() {
    let gateway = Gateway::setup().callers(&["acme/alice"]).stdio(&[]).start().await;
    let alice = caller(&gateway, "alice").declares(forms());
    alice.result_of("count", json!({})).await;
    assert_eq!(alice.call("fault", json!({"kind": "exit"})).await.refusal(), (200, -32603));
    assert_eq!(alice.text("count", json!({})).await, "1");
}
