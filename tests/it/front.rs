//! Clients of the stateless era in front of servers with sessions: every method, what is changed on the way, and what
//! happens when either side goes away.

use std::sync::Arc;

use hyper::StatusCode;
use taskgate::app::Timing;
use taskgate::demo::server::Options;

use super::support::{
    Gateway, Modern, RawUpstream, Value, json,
    modern::{CLIENT_KEY, LEVEL_KEY, MODERN, SERVER_KEY, TASKS},
    raw_upstream::{Step, event, events_head, gate, json_body, last_chunk, whole, with_session},
    within,
};

/// A client that declares nothing.
fn plain(gateway: &Gateway) -> Modern {
    Modern::new(gateway).declares(json!({}))
}

/// What a result of such a server says beside what the server said.
#[track_caller]
fn check(result: &Value, is_cacheable: bool) {
    assert_eq!(result["resultType"], "complete", "{result}");
    assert!(result["_meta"][SERVER_KEY]["name"].is_string(), "{result}");
    let hints = is_cacheable.then(|| (json!(0), json!("private")));
    assert_eq!(result.get("ttlMs").cloned().zip(result.get("cacheScope").cloned()), hints, "{result}");
}

#[tokio::test]
async fn a_call_is_answered_as_its_server_answers() {
    let gateway = Gateway::start().await;
    let client = plain(&gateway);
    let result = client.result_of("exact", json!({})).await;
    check(&result, false);
    let failed = client.result_of("fail", json!({})).await;
    check(&failed, false);
    assert_eq!(failed["isError"], true);
    let (status, error) = client.error("tools/call", json!({"name": "nothing"})).await;
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)));
}

#[tokio::test]
async fn the_server_sees_its_own_protocol_and_nothing_of_the_clients() {
    let gateway = Gateway::start().await;
    let client = plain(&gateway).with_tasks();
    // Nobody has to say who they are.
    for who in [json!({"name": "test", "version": "0"}), Value::Null] {
        let meta = json!({"com.example/kept": 1.5, "traceparent": "t", CLIENT_KEY: who});
        let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": {}, "inputResponses": {}, "zz": 1,
            "_meta": meta});
        client.result("tools/call", params).await;
        let stats = gateway.upstream.stats();
        let mut seen: Value = serde_json::from_slice(&stats.last_call).unwrap();
        // What may become a task tells how far it is.
        seen["_meta"].as_object_mut().unwrap().remove("progressToken");
        assert_eq!(
            seen,
            json!({"name": "echo", "arguments": {"text": "x"}, "zz": 1, "_meta": {"com.example/kept": 1.5, "traceparent": "t"}})
        );
        assert!(!stats.task_seen && !stats.extension_seen && !stats.related_task_seen);
    }
}

#[tokio::test]
async fn a_server_is_discovered_by_its_handshake() {
    let gateway = Gateway::start().await;
    let result = plain(&gateway).result("server/discover", json!({})).await;
    check(&result, true);
    assert_eq!(result["supportedVersions"], json!([MODERN]));
    assert_eq!(result["capabilities"]["extensions"][TASKS], json!({}));
    assert!(result["capabilities"]["tools"].is_object() && result["capabilities"].get("tasks").is_none(), "{result}");
}

#[tokio::test]
async fn tools_are_listed_without_what_the_other_era_means_by_them() {
    let gateway = Gateway::setup()
        .server(Options { task_support: Some(taskgate::demo::server::TaskSupport::Optional), ..Options::default() })
        .tools("deny: [\"fa*\"]")
        .start()
        .await;
    let result = plain(&gateway).result("tools/list", json!({})).await;
    check(&result, true);
    let tools = result["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool.get("execution").is_none()), "{result}");
    assert!(tools.iter().any(|tool| tool["name"] == "echo"));
    assert!(!tools.iter().any(|tool| tool["name"] == "fail"));
}

#[tokio::test]
async fn pages_of_a_session_that_ends_become_one() {
    let gateway = Gateway::setup().server(Options { page_size: Some(3), ..Options::default() }).start().await;
    let result = plain(&gateway).result("tools/list", json!({})).await;
    assert!(result["tools"].as_array().unwrap().len() > 10 && result.get("nextCursor").is_none(), "{result}");
    let (status, error) = plain(&gateway).error("tools/list", json!({"cursor": "3"})).await;
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)));
}

#[tokio::test]
async fn cursors_are_the_callers_and_the_sessions() {
    let gateway = Gateway::setup()
        .server(Options { page_size: Some(3), ..Options::default() })
        .callers(&["acme/alice", "acme/bob"])
        .start()
        .await;
    let alice = plain(&gateway).caller("alice");
    let (mut names, mut params) = (Vec::new(), json!({}));
    loop {
        let page = alice.result("tools/list", params).await;
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()));
        let Some(cursor) = page.get("nextCursor") else { break };
        params = json!({"cursor": cursor});
        let theirs = plain(&gateway).caller("bob").error("tools/list", params.clone()).await;
        assert_eq!(theirs.1["code"], -32602);
        let other_list = alice.error("prompts/list", params.clone()).await;
        assert_eq!(other_list.1["code"], -32602);
    }
    assert!(names.len() > 10);
    let first = alice.result("tools/list", json!({})).await;
    gateway.upstream.forget_sessions();
    alice.result_of("echo", json!({"text": "x"})).await;
    let (_, error) = alice.error("tools/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn progress_comes_under_the_clients_token_and_nothing_unasked() {
    let gateway = Gateway::start().await;
    let client = plain(&gateway);
    let mut params = json!({"name": "report", "arguments": {"seconds": 0, "sections": 3}});
    let silent = client.request("tools/call", params.clone()).await;
    assert!(!silent.is_events(), "{silent:?}");
    params["_meta"] = json!({"progressToken": "mine"});
    let reply = client.request("tools/call", params).await;
    assert!(reply.is_events() && reply.headers["x-accel-buffering"] == "no", "{reply:?}");
    check(&reply.result, false);
    let progress = reply.events;
    assert!(progress.len() >= 2);
    for pair in progress.windows(2) {
        assert!(pair[0]["params"]["progress"].as_f64() < pair[1]["params"]["progress"].as_f64());
    }
    assert!(progress.iter().all(|message| message["params"]["progressToken"] == "mine"));
}

/// A server whose tools log at every level, whatever it was told.
async fn chatty() -> RawUpstream {
    RawUpstream::start(|heard| match heard.method.as_str() {
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "raw", "version": "0"}});
            Some(vec![with_session(&heard.answer(&result.to_string()))])
        }
        "tools/call" => {
            let levels = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "odd"];
            let log = |level: &str| {
                let params = json!({"level": level, "data": "x"});
                event(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).to_string())
            };
            let events = levels.into_iter().map(log);
            Some([events_head()].into_iter().chain(events).chain([event(&heard.says("x")), last_chunk()]).collect())
        }
        _ => None,
    })
    .await
}

/// The levels of the log messages that a call of such a tool brings, whose client wants those from a level on.
async fn levels_of(client: &Modern, wanted: Option<&str>) -> Vec<String> {
    let reply = client.request("tools/call", json!({"name": "x", "_meta": {LEVEL_KEY: wanted}})).await;
    assert!(reply.error.is_null(), "{reply:?}");
    reply.events.iter().filter_map(|message| message["params"]["level"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn logs_come_from_the_level_that_the_request_names() {
    let server = chatty().await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = plain(&gateway);
    assert_eq!(levels_of(&client, Some("debug")).await.len(), 8);
    assert_eq!(levels_of(&client, Some("error")).await, ["error", "critical", "alert", "emergency"]);
    assert_eq!(levels_of(&client, None).await, [""; 0]);
}

#[tokio::test]
async fn one_session_is_told_a_level_once_and_each_request_gets_its_own() {
    let server = chatty().await;
    let gateway = Gateway::setup().callers(&["acme/alice"]).in_front_of(&server.url()).start().await;
    for (level, count) in [("error", 4), ("error", 4), ("info", 7), ("error", 4)] {
        let client = plain(&gateway).caller("alice");
        assert_eq!(levels_of(&client, Some(level)).await.len(), count, "{level}");
    }
    let told: Vec<Value> =
        server.heard("logging/setLevel", 2).await.iter().map(|heard| heard.body["params"]["level"].clone()).collect();
    assert_eq!(told, ["error", "info"]);
}

#[tokio::test]
async fn errors_of_the_other_era_are_not_passed_on_as_they_are() {
    let cases = [
        (
            json!({"code": -32002, "message": "gone", "data": {"uri": "x:y"}}),
            StatusCode::OK,
            json!({"code": -32602, "message": "gone", "data": {"uri": "x:y"}}),
        ),
        (json!({"code": -32601, "message": "no"}), StatusCode::NOT_FOUND, json!({"code": -32601, "message": "no"})),
        (
            json!({"code": -32050, "message": "odd"}),
            StatusCode::OK,
            json!({"code": -32603, "message": "odd", "data": {"upstream": {"code": -32050, "message": "odd"}}}),
        ),
        (json!({"code": -32005, "message": "own"}), StatusCode::OK, json!({"code": -32005, "message": "own"})),
        (
            json!({"code": 7, "message": "own", "data": 1.0}),
            StatusCode::OK,
            json!({"code": 7, "message": "own", "data": 1.0}),
        ),
    ];
    for (error, status, expected) in cases {
        let told = error.to_string();
        let server = RawUpstream::start(move |heard| {
            let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{told}}}", heard.id);
            (heard.method == "resources/read").then(|| vec![json_body(&answer)])
        })
        .await;
        let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
        assert_eq!(plain(&gateway).error("resources/read", json!({"uri": "x:y"})).await, (status, expected));
    }
}

#[tokio::test]
async fn results_that_may_be_kept_say_so_and_others_do_not() {
    let server = RawUpstream::start(|heard| match heard.method.as_str() {
        "resources/read" => Some(vec![json_body(&heard.answer(r#"{"contents":[]}"#))]),
        "prompts/get" => Some(vec![json_body(&heard.answer(r#"{"messages":[]}"#))]),
        "completion/complete" => Some(vec![json_body(&heard.answer(r#"{"completion":{"values":[]}}"#))]),
        "resources/templates/list" => Some(vec![json_body(&heard.answer(r#"{"resourceTemplates":[]}"#))]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = plain(&gateway);
    check(&client.result("resources/read", json!({"uri": "a:b"})).await, true);
    check(&client.result("resources/templates/list", json!({})).await, true);
    check(&client.result("prompts/get", json!({"name": "p"})).await, false);
    check(
        &client
            .result(
                "completion/complete",
                json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}),
            )
            .await,
        false,
    );
}

#[tokio::test]
async fn questions_outside_of_calls_are_refused() {
    let open = gate();
    let gating = Arc::clone(&open);
    let server = RawUpstream::start(move |heard| {
        if heard.http_method == "GET" {
            let questions = [
                json!({"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": {"message": "?"}}),
                json!({"jsonrpc": "2.0", "id": "s", "method": "sampling/createMessage", "params": {}}),
                json!({"jsonrpc": "2.0", "id": "r", "method": "roots/list"}),
            ];
            let events = questions.iter().map(|question| event(&question.to_string()));
            let before = [events_head(), Step::Gate(Arc::clone(&gating))];
            return Some(before.into_iter().chain(events).chain([Step::Stall]).collect());
        }
        None
    })
    .await;
    let gateway = Gateway::setup().callers(&["acme/alice"]).in_front_of(&server.url()).start().await;
    let client =
        Modern::new(&gateway).caller("alice").declares(json!({"elicitation": {}, "sampling": {}, "roots": {}}));
    client.result_of("x", json!({})).await;
    open.add_permits(1);
    let answers = server
        .until(|heard| {
            heard.iter().filter(|heard| heard.body["id"].is_string() && heard.method.is_empty()).count() >= 3
        })
        .await;
    let answer = |id: &str| answers.iter().find(|heard| heard.body["id"] == id).unwrap().body.clone();
    assert_eq!(answer("e")["result"], json!({"action": "cancel"}));
    assert_eq!(answer("s")["error"]["code"], -1);
    assert_eq!(answer("r")["error"]["code"], -32603);
}

#[tokio::test]
async fn a_client_that_goes_away_has_cancelled() {
    let gateway = Gateway::start().await;
    let client = plain(&gateway);
    let calling = client.open("tools/call", json!({"name": "hold", "arguments": {"seconds": null}}));
    tokio::select! {
        _ = calling => panic!("nobody released it"),
        _ = gateway.started("hold", 1) => {}
    }
    // Dropped by the select: the connection closes.
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    gateway.seen(|stats| stats.deleted == 1).await;
}

#[tokio::test]
async fn a_client_that_goes_away_from_its_stream_has_cancelled() {
    let timing = Timing { keep_alive: std::time::Duration::from_millis(20), ..Timing::default() };
    let gateway = Gateway::setup().timing(timing).start().await;
    let client = plain(&gateway);
    let answer = client.open("tools/call", json!({"name": "hold", "arguments": {"seconds": null}})).await;
    // Committed by silence alone.
    assert!(answer.is_events());
    gateway.started("hold", 1).await;
    drop(answer);
    drop(client);
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
}

#[tokio::test]
async fn a_server_that_dies_under_a_call_is_an_error_of_its_own() {
    for (steps, reason) in [
        (vec![Step::Reset], "outcome_unknown"),
        (vec![events_head(), last_chunk()], "outcome_unknown"),
        (
            vec![events_head(), event("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}"), Step::Reset],
            "outcome_unknown",
        ),
        (vec![whole(200, "text/plain", "no")], "upstream_protocol"),
        (vec![json_body("{\"jsonrpc\":\"2.0\"}")], "upstream_protocol"),
    ] {
        let steps = Arc::new(std::sync::Mutex::new(Some(steps)));
        let server = RawUpstream::calling(move |_| steps.lock().unwrap().take().unwrap_or_default()).await;
        let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
        let (status, error) = plain(&gateway).error("tools/call", json!({"name": "x"})).await;
        assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32603)), "{error}");
        assert_eq!(error["data"]["reason"], reason, "{error}");
    }
}

#[tokio::test]
async fn the_deadline_bounds_a_plain_call() {
    let gateway = Gateway::setup().tasks("deadline: 100ms, retention: 1s, ttl: {default: 1m, max: 1h}").start().await;
    let (status, error) =
        plain(&gateway).error("tools/call", json!({"name": "hold", "arguments": {"seconds": null}})).await;
    assert_eq!((status, &error["data"]), (StatusCode::OK, &json!({"reason": "deadline", "started": true})));
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
}

#[tokio::test]
async fn a_big_result_that_nothing_came_before_is_json() {
    let gateway = Gateway::setup().server(Options { always_sse: true, ..Options::default() }).start().await;
    let answer = plain(&gateway).open("tools/call", json!({"name": "big", "arguments": {"bytes": 3_000_000}})).await;
    assert!(answer.is_json());
    assert!(answer.bytes().await.len() > 3_000_000);
}

#[tokio::test]
async fn methods_that_the_era_has_not_are_not_served() {
    let gateway = Gateway::start().await;
    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/list", "tasks/result"] {
        let (status, error) = plain(&gateway).error(method, json!({})).await;
        assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!(-32601)), "{method}");
    }
    let (status, error) = plain(&gateway).error("vendor/thing", json!({})).await;
    assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!(-32601)), "{error}");
}

#[tokio::test]
async fn an_answer_in_a_stream_is_an_answer() {
    let server = RawUpstream::calling(|heard| vec![events_head(), event(&heard.says("streamed")), last_chunk()]).await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let result = within(plain(&gateway).result_of("x", json!({}))).await;
    assert_eq!(result["content"][0]["text"], "streamed");
    assert_eq!(server.count("tools/call"), 1);
}

#[tokio::test]
async fn what_the_era_has_no_word_for_is_dropped_or_refused() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |heard| {
        let notifications =
            ["notifications/elicitation/complete", "notifications/tools/list_changed", "notifications/tasks/status"];
        let notifications =
            notifications.map(|method| event(&json!({"jsonrpc": "2.0", "method": method, "params": {}}).to_string()));
        let task = json!({"jsonrpc": "2.0", "id": "t", "method": "tasks/get", "params": {"taskId": "x"}});
        let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
        let requests = [task, ping].map(|request| event(&request.to_string()));
        let rest = [Step::Gate(Arc::clone(&held)), event(&heard.says("done")), last_chunk()];
        [events_head()].into_iter().chain(notifications).chain(requests).chain(rest).collect()
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway).declares(json!({"elicitation": {}}));
    let (reply, answers) = tokio::join!(client.request("tools/call", json!({"name": "x"})), async {
        let answers = server.until(|heard| {
            heard.iter().filter(|heard| heard.method.is_empty() && heard.body["id"].is_string()).count() >= 2
        });
        let answers = answers.await;
        open.add_permits(1);
        answers
    });
    assert!(!reply.is_events() && reply.error.is_null(), "{reply:?}");
    let answered = |id: &str| answers.iter().find(|heard| heard.body["id"] == id).unwrap().body.clone();
    assert_eq!(answered("t")["error"]["code"], -32601);
    assert_eq!(answered("p")["result"], json!({}));
}

#[tokio::test]
async fn a_client_that_goes_away_before_its_call_is_sent_leaves_nothing_behind() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::start(move |heard| {
        (heard.method == "initialize").then(|| {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "0"}});
            vec![Step::Gate(Arc::clone(&held)), with_session(&heard.answer(&result.to_string()))]
        })
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = plain(&gateway);
    tokio::select! {
        _ = client.open("tools/call", json!({"name": "x"})) => panic!("nothing was sent"),
        _ = server.heard("initialize", 1) => {}
    }
    open.add_permits(1);
    // The session that was begun is ended, and the tool was never called.
    server.until(|heard| heard.iter().any(|heard| heard.http_method == "DELETE")).await;
    assert_eq!(server.count("tools/call"), 0);
}

#[tokio::test]
async fn a_wish_that_nobody_can_grant_is_refused_before_anything_is_sent() {
    let gateway = Gateway::start().await;
    for (key, value) in [(LEVEL_KEY, json!("loud")), ("progressToken", json!([1]))] {
        let params = json!({"name": "echo", "arguments": {"text": "x"}, "_meta": {key: value}});
        let (_, error) = plain(&gateway).error("tools/call", params).await;
        assert_eq!(error["code"], -32602, "{key}");
    }
    assert_eq!(gateway.upstream.stats().tool("echo").started, 0);
}

#[tokio::test]
async fn headers_of_this_era_stay_here() {
    let server = RawUpstream::start(|_| None).await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    plain(&gateway).result_of("x", json!({})).await;
    let heard = server.until(|heard| heard.iter().any(|heard| heard.method == "tools/call")).await;
    for request in heard.iter().filter(|heard| matches!(heard.method.as_str(), "initialize" | "tools/call")) {
        assert!(
            !request.headers.contains_key("mcp-method") && !request.headers.contains_key("mcp-name"),
            "{request:?}"
        );
    }
}
