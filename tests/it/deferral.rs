//! When a modern client's call becomes a task: by what the route says, by time and by questions; and what becomes of a
//! handle that nobody got.

use std::sync::Arc;

use hyper::StatusCode;
use taskgate::demo::server::{Era, Options};

use super::support::{
    Gateway, Modern, RawUpstream, Value, json,
    modern::{LEVEL_KEY, TASKS},
    raw_upstream::{Step, bare, event, events_head, gate, json_body, last_chunk},
    stateless::{calling, form},
    within,
};

/// The capabilities of a client that can be asked for a form.
fn forms() -> Value {
    json!({"elicitation": {}})
}

fn declaring(gateway: &Gateway) -> Modern {
    Modern::new(gateway).declares(forms()).with_tasks()
}

async fn with_tasks(keys: &str) -> Gateway {
    Gateway::setup().tasks(keys).start().await
}

/// The id out of a task's handle.
#[track_caller]
fn task_of(handle: &Value) -> String {
    assert_eq!((&handle["resultType"], &handle["status"]), (&json!("task"), &json!("working")), "{handle}");
    for absent in ["result", "error", "inputRequests", "task", "requestState"] {
        assert!(handle.get(absent).is_none(), "{handle}");
    }
    handle["taskId"].as_str().unwrap().to_owned()
}

/// Answers every open question of a task with a name.
async fn answer(client: &Modern, id: &str, asked: &Value) {
    let given = |key: &String| (key.clone(), json!({"action": "accept", "content": {"name": "Ada"}}));
    let answers: serde_json::Map<_, _> = asked["inputRequests"].as_object().unwrap().keys().map(given).collect();
    client.result("tasks/update", json!({"taskId": id, "inputResponses": answers})).await;
}

fn hold() -> Value {
    json!({"name": "hold", "arguments": {"seconds": null}})
}

#[tokio::test]
async fn a_required_tool_is_a_task_at_once_or_not_called_at_all() {
    let gateway = with_tasks("support: required").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("echo", json!({"text": "x"})).await);
    let done = client.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "x");
    assert_eq!(done["result"]["resultType"], "complete");
    let (status, error) = Modern::new(&gateway).declares(forms()).error("tools/call", json!({"name": "echo"})).await;
    assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!(-32021)));
    assert_eq!(error["data"], json!({"requiredCapabilities": {"extensions": {TASKS: {}}}}));
    // Not its requests: the end of the first call's session may come at any time.
    assert_eq!(gateway.upstream.stats().tool("echo").started, 1);
}

#[tokio::test]
async fn an_optional_tool_is_a_task_when_it_takes_long() {
    let gateway = with_tasks("defer: 50ms").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result("tools/call", hold()).await);
    assert_eq!(gateway.upstream.stats().tool("hold").started, 1);
    assert_eq!(client.task(&id).await["status"], "working");
    gateway.upstream.release();
    let done = client.until(&id, "completed").await;
    assert_eq!(done["result"]["resultType"], "complete");
    // It ran once.
    assert_eq!(gateway.upstream.stats().tool("hold").started, 1);
}

#[tokio::test]
async fn an_optional_tool_that_is_quick_is_answered_plainly() {
    let gateway = with_tasks("defer: 1m").await;
    let result = declaring(&gateway).result_of("echo", json!({"text": "x"})).await;
    assert_eq!(result["resultType"], "complete");
    // Zero is at once, whatever it would take.
    let gateway = with_tasks("defer: 0s").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("echo", json!({"text": "x"})).await);
    client.until(&id, "completed").await;
}

#[tokio::test]
async fn who_does_not_declare_the_extension_waits_for_the_answer() {
    for (keys, is_declared) in [("defer: 0s", false), ("support: forbidden, defer: 0s", true), ("defer: never", true)] {
        let gateway = with_tasks(keys).await;
        let client = if is_declared { declaring(&gateway) } else { Modern::new(&gateway).declares(forms()) };
        let (held, ()) = tokio::join!(client.result("tools/call", hold()), async {
            gateway.started("hold", 1).await;
            gateway.upstream.release();
        });
        assert_eq!(held["resultType"], "complete", "{keys}");
    }
    // What was declared a request ago counts for nothing, nor does the other era's way of asking.
    let gateway = with_tasks("defer: 0s").await;
    task_of(&declaring(&gateway).result_of("echo", json!({"text": "x"})).await);
    let core = Modern::new(&gateway).declares(json!({"tasks": {}}));
    let result = core.result("tools/call", json!({"name": "echo", "arguments": {"text": "x"}, "task": {}})).await;
    assert_eq!(result["resultType"], "complete");
    assert!(!gateway.upstream.stats().task_seen);
}

#[tokio::test]
async fn the_other_eras_way_of_asking_forces_no_task() {
    let gateway = with_tasks("defer: 1m").await;
    let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": {"ttl": 1}});
    assert_eq!(declaring(&gateway).result("tools/call", params).await["resultType"], "complete");
}

#[tokio::test]
async fn a_question_makes_the_call_a_task_with_the_question_inside() {
    // In front of such a server this is the default.
    for keys in ["defer: 1m", "defer: 1m, questions: in_task", "defer: never, questions: in_task"] {
        let gateway = with_tasks(keys).await;
        let client = declaring(&gateway);
        let id = task_of(&client.result_of("ask", json!({})).await);
        let asked = client.until(&id, "input_required").await;
        let request = asked["inputRequests"].as_object().unwrap().values().next().unwrap();
        assert_eq!(request["method"], "elicitation/create", "{keys}");
        answer(&client, &id, &asked).await;
        let done = client.until(&id, "completed").await;
        assert_eq!(done["result"]["content"][0]["text"], "Hello, Ada", "{keys}");
        assert_eq!(gateway.upstream.stats().tool("ask").started, 1);
    }
}

#[tokio::test]
async fn a_question_in_the_call_is_its_answer_and_the_retry_is_deferred() {
    let gateway = with_tasks("defer: 50ms, questions: in_call").await;
    let client = declaring(&gateway);
    let asked = client.result_of("ask_twice", json!({})).await;
    assert_eq!(asked["resultType"], "input_required");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let retry = json!({"name": "ask_twice", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}});
    // The next question comes within the time, and so goes the same way.
    let again = client.result("tools/call", retry).await;
    assert_eq!(again["resultType"], "input_required");

    // A question that takes the time makes it a task all the same.
    let (first, second) = (gate(), gate());
    let (one, two) = (Arc::clone(&first), Arc::clone(&second));
    let server = RawUpstream::calling(move |heard| {
        let ask = |id: &str| {
            let params = json!({"message": id, "requestedSchema": {"type": "object"}});
            event(&json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params}).to_string())
        };
        vec![
            events_head(),
            ask("a"),
            Step::Gate(Arc::clone(&one)),
            ask("b"),
            Step::Gate(Arc::clone(&two)),
            event(&heard.says("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().tasks("defer: 50ms, questions: in_call").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let asked = client.result_of("x", json!({})).await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let retry = json!({"name": "x", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "cancel"}}});
    let id = task_of(&client.result("tools/call", retry).await);
    first.add_permits(1);
    let asked = client.until(&id, "input_required").await;
    answer(&client, &id, &asked).await;
    second.add_permits(1);
    assert_eq!(client.until(&id, "completed").await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn in_the_call_at_once_is_after_the_first_question() {
    let gateway = with_tasks("defer: 0s, questions: in_call").await;
    let client = declaring(&gateway);
    // Quick enough for the time that a first question has.
    assert_eq!(client.result_of("echo", json!({"text": "x"})).await["resultType"], "complete");
    let asked = client.result_of("ask", json!({})).await;
    assert_eq!(asked["resultType"], "input_required");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let retry = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}});
    let id = task_of(&client.result("tools/call", retry).await);
    assert_eq!(client.until(&id, "completed").await["result"]["content"][0]["text"], "Hello, Ada");
}

#[tokio::test]
async fn a_retry_that_does_not_declare_the_extension_gets_no_task() {
    let gateway = with_tasks("defer: 0s, questions: in_call").await;
    let asked = declaring(&gateway).result_of("ask_twice", json!({})).await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let retry = json!({"name": "ask_twice", "arguments": {}, "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}});
    let next = Modern::new(&gateway).declares(forms()).result("tools/call", retry).await;
    assert_eq!(next["resultType"], "input_required");
}

#[tokio::test]
async fn the_handle_ends_a_stream_that_progress_began() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |heard| {
        vec![
            events_head(),
            event(&heard.progress(1)),
            Step::Gate(Arc::clone(&held)),
            event(&heard.progress(2)),
            event(&heard.says("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().tasks("defer: 200ms").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let reply = client.request("tools/call", json!({"name": "x", "_meta": {"progressToken": 7}})).await;
    let [progress] = reply.events.as_slice() else { panic!("{reply:?}") };
    assert_eq!(progress["params"], json!({"progressToken": 7, "progress": 1}));
    let id = task_of(&reply.result);
    open.add_permits(1);
    client.until(&id, "completed").await;
}

#[tokio::test]
async fn the_failure_of_a_tool_is_a_completed_task_and_an_error_a_failed_one() {
    let gateway = with_tasks("support: required").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("fail", json!({})).await);
    assert_eq!(client.until(&id, "completed").await["result"]["isError"], true);
    let id = task_of(&client.result_of("nothing", json!({})).await);
    let failed = client.until(&id, "failed").await;
    assert_eq!(failed["error"]["code"], -32602);
}

#[tokio::test]
async fn a_handle_that_nobody_got_is_a_call_that_was_cancelled() {
    // Nobody reads: the connection goes before the answer's head does.
    let gateway = with_tasks("defer: 100ms").await;
    let client = declaring(&gateway);
    tokio::select! {
        _ = client.open("tools/call", hold()) => panic!("the handle came first"),
        _ = gateway.started("hold", 1) => {}
    }
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    gateway.counted(|metrics| metrics.value("taskgate_tasks", &[("status", "working")]) == 0.0).await;
}

#[tokio::test]
async fn a_client_that_goes_away_after_the_handle_keeps_its_task() {
    let gateway = with_tasks("defer: 20ms").await;
    let id = {
        let client = declaring(&gateway);
        task_of(&client.result("tools/call", hold()).await)
    };
    let client = declaring(&gateway);
    assert_eq!(client.task(&id).await["status"], "working");
    gateway.upstream.release();
    client.until(&id, "completed").await;
    assert_eq!(gateway.upstream.stats().tool("hold").cancelled, 0);
}

#[tokio::test]
async fn a_cancelled_task_is_cancelled_at_its_server_and_its_session_goes_to_nobody_else() {
    let gateway = Gateway::setup().tasks("defer: 20ms").callers(&["acme/alice"]).start().await;
    let client = declaring(&gateway).caller("alice");
    let id = task_of(&client.result("tools/call", hold()).await);
    client.result("tasks/cancel", json!({"taskId": id})).await;
    gateway.seen(|stats| stats.tool("hold").cancelled == 1 && stats.deleted == 1).await;
    assert_eq!(client.task(&id).await["status"], "cancelled");
    // One that ended well goes to the next.
    for _ in 0..2 {
        client.result_of("echo", json!({"text": "x"})).await;
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 2);
}

#[tokio::test]
async fn a_tenant_that_may_have_no_more_tasks_is_answered_plainly() {
    let gateway = Gateway::setup().tasks("defer: 20ms").tenants("default: {kept_tasks: 1}").start().await;
    let client = declaring(&gateway);
    task_of(&client.result("tools/call", hold()).await);
    let (held, ()) = tokio::join!(client.result("tools/call", hold()), async {
        gateway.started("hold", 2).await;
        gateway.upstream.release();
    });
    // It may not have waited long enough to be refused, but a task it is not.
    assert_eq!(held["resultType"], "complete");
    // Where it has to be a task, there is none.
    let gateway = Gateway::setup().tasks("support: required").tenants("default: {kept_tasks: 1}").start().await;
    let client = declaring(&gateway);
    task_of(&client.result_of("echo", json!({"text": "x"})).await);
    let (status, error) = client.error("tools/call", json!({"name": "echo"})).await;
    assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("kept_tasks")));
}

#[tokio::test]
async fn a_queued_task_holds_no_session() {
    let gateway = Gateway::setup().tasks("support: required").tenants("default: {running_tasks: 1}").start().await;
    let client = declaring(&gateway);
    let first = task_of(&client.result("tools/call", hold()).await);
    gateway.started("hold", 1).await;
    let second = task_of(&client.result("tools/call", hold()).await);
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
    gateway.upstream.release();
    client.until(&first, "completed").await;
    gateway.started("hold", 2).await;
    gateway.upstream.release();
    client.until(&second, "completed").await;
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_fails_the_task_and_not_the_request() {
    let server = RawUpstream::start(|heard| (heard.method == "initialize").then(|| vec![bare(500)])).await;
    let gateway = Gateway::setup().tasks("support: required").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("x", json!({})).await);
    let failed = client.until(&id, "failed").await;
    assert_eq!(failed["error"]["code"], -32603);
}

#[tokio::test]
async fn a_server_that_dies_under_a_task_fails_it() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |_| vec![events_head(), Step::Gate(Arc::clone(&held)), Step::Reset]).await;
    let gateway = Gateway::setup().tasks("defer: 20ms").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("x", json!({})).await);
    open.add_permits(1);
    let failed = client.until(&id, "failed").await;
    assert_eq!(failed["error"]["data"]["reason"], "outcome_unknown");
}

#[tokio::test]
async fn a_task_of_this_era_is_there_for_the_other() {
    let gateway = Gateway::setup().tasks("defer: 20ms").start().await;
    let id = task_of(&declaring(&gateway).result("tools/call", hold()).await);
    let legacy = gateway.open().await;
    assert_eq!(legacy.task(&id).await["status"], "working");
    gateway.upstream.release();
    legacy.until(&id, "completed").await;
}

/// A gateway in front of a server of the same era.
async fn same_era(keys: &str) -> Gateway {
    Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).tasks(keys).start().await
}

#[tokio::test]
async fn a_stateless_servers_call_is_deferred_all_the_same() {
    let gateway = same_era("defer: 50ms, questions: in_task").await;
    let client = declaring(&gateway);
    assert_eq!(client.result_of("echo", json!({"text": "x"})).await["resultType"], "complete");
    let id = task_of(&client.result("tools/call", hold()).await);
    gateway.upstream.release();
    assert_eq!(client.until(&id, "completed").await["result"]["resultType"], "complete");
    assert_eq!(gateway.upstream.stats().tool("hold").started, 1);
    assert!(!gateway.upstream.stats().extension_seen);
    // At once, too.
    let gateway = same_era("support: required").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("echo", json!({"text": "x"})).await);
    assert_eq!(client.until(&id, "completed").await["result"]["content"][0]["text"], "x");
}

#[tokio::test]
async fn a_stateless_servers_question_goes_where_the_route_says() {
    // In the call, which is the default in front of such a server; its state comes back to it byte for byte.
    let state = r#""st\u0061te""#;
    let server = calling(move |heard| {
        if heard.body["params"].get("requestState").is_none() {
            let question = form("Who?");
            return vec![json_body(&heard.answer(&format!(
                r#"{{"resultType":"input_required","inputRequests":{{"k":{question}}},"requestState":{state}}}"#
            )))];
        }
        assert_eq!(heard.body["params"]["requestState"], "state");
        let said = heard.given("k")["action"].as_str().unwrap().to_owned();
        vec![json_body(&heard.tells(&said))]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let asked = client.result_of("x", json!({})).await;
    assert_eq!(asked["inputRequests"]["k"], form("Who?"));
    assert_ne!(asked["requestState"], "state");
    let retry = |state: &Value| json!({"name": "x", "arguments": {}, "requestState": state, "inputResponses": {"k": {"action": "decline"}}});
    let done = client.result("tools/call", retry(&asked["requestState"])).await;
    assert_eq!(done["content"][0]["text"], "decline");
    let (status, error) = client.error("tools/call", retry(&json!("state"))).await;
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)));

    // In a task, where the server is called once more with what was said there.
    let gateway = same_era("defer: 1m, questions: in_task").await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("ask", json!({})).await);
    let asked = client.until(&id, "input_required").await;
    answer(&client, &id, &asked).await;
    assert_eq!(client.until(&id, "completed").await["result"]["content"][0]["text"], "Hello, Ada");
}

#[tokio::test]
async fn a_question_after_the_handle_is_the_tasks_whatever_the_era() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = calling(move |heard| {
        if heard.body["params"].get("inputResponses").is_some() {
            return vec![json_body(&heard.tells("answered"))];
        }
        let asks = heard.asks(&json!({"k": form("Late?")}), "s");
        vec![events_head(), Step::Gate(Arc::clone(&held)), event(&asks), last_chunk()]
    })
    .await;
    let gateway = Gateway::setup().tasks("defer: 20ms, questions: in_task").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let id = task_of(&client.result_of("x", json!({})).await);
    open.add_permits(1);
    let asked = client.until(&id, "input_required").await;
    // The server's own name for it may come again in the next round; the client's never does.
    assert!(!asked["inputRequests"].as_object().unwrap().contains_key("k"), "{asked}");
    answer(&client, &id, &asked).await;
    assert_eq!(client.until(&id, "completed").await["result"]["content"][0]["text"], "answered");
}

#[tokio::test]
async fn a_stateless_servers_own_task_is_none() {
    let server = calling(|heard| {
        vec![json_body(&heard.answer(r#"{"resultType":"task","taskId":"theirs","status":"working"}"#))]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    for client in [declaring(&gateway), Modern::new(&gateway).declares(json!({}))] {
        let (status, error) = client.error("tools/call", json!({"name": "x"})).await;
        assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32603)), "{error}");
    }
}

#[tokio::test]
async fn a_stateless_servers_call_ends_with_its_client_until_there_is_a_handle() {
    let gateway = same_era("defer: 1m").await;
    let client = declaring(&gateway);
    tokio::select! {
        _ = client.open("tools/call", hold()) => panic!("nobody released it"),
        _ = gateway.started("hold", 1) => {}
    }
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
}

#[tokio::test]
async fn a_tasks_progress_is_its_status_message_and_its_log_is_nobodys() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |heard| {
        let token = &heard.body["params"]["_meta"]["progressToken"];
        let params = json!({"progressToken": token, "progress": 1, "message": "half way"});
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        let log =
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": "x"}});
        vec![
            events_head(),
            Step::Gate(Arc::clone(&held)),
            event(&progress.to_string()),
            event(&log.to_string()),
            Step::Gate(Arc::clone(&held)),
            event(&heard.says("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().tasks("defer: 20ms").in_front_of(&server.url()).start().await;
    let client = declaring(&gateway);
    let reply = client.request("tools/call", json!({"name": "x", "_meta": {LEVEL_KEY: "debug"}})).await;
    let id = task_of(&reply.result);
    open.add_permits(1);
    within(async {
        while client.task(&id).await["statusMessage"] != "half way" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    open.add_permits(1);
    client.until(&id, "completed").await;
    assert!(reply.events.is_empty(), "{reply:?}");
}
