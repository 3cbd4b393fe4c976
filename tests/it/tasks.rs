//! The life of a task: made, read, waited for, cancelled, listed, gone.

use http::StatusCode;
use taskgate::demo::server::{Options, Server};

use crate::support::{Client, Gateway, Value, json, related, text_of, within};

const NOT_FOUND: &str = "Task not found";

#[tokio::test]
async fn a_task_works_until_its_call_is_over() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let task = client.create("hold", json!({})).await;
    let id = task["taskId"].as_str().unwrap();
    // Design, "Ids and tokens": a UUID of version 4, which fits a header.
    assert!(id.len() == 36 && id.as_bytes()[14] == b'4', "{id}");
    gateway.started("hold", 1).await;
    assert_eq!(client.task(id).await, task);
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(id).await), "held to the end");
    assert_eq!(client.task(id).await["status"], "completed");
}

#[tokio::test]
async fn creation_says_working_whatever_has_happened() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for tool in ["exact", "fail", "broken", "nobody"] {
        let task = client.create(tool, json!({})).await;
        assert_eq!(task["createdAt"], task["lastUpdatedAt"], "{task}");
        assert_eq!(task.get("statusMessage"), None, "{task}");
    }
}

#[tokio::test]
async fn every_read_says_the_same_until_the_end_of_the_ttl() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let created = client.create("exact", json!({})).await;
    let id = created["taskId"].as_str().unwrap().to_owned();
    let task = client.until(&id, "completed").await;
    for constant in ["taskId", "createdAt", "ttl", "pollInterval"] {
        assert_eq!(task[constant], created[constant], "{constant}");
    }
    let body = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":9,"method":"tasks/result","params":{{"taskId":"{id}"}}}}"#);
    let result = client.post(body(&id)).await.text().await;
    for _ in 0..3 {
        assert_eq!(client.task(&id).await, task);
        assert_eq!(client.post(body(&id)).await.text().await, result);
        assert_eq!(client.result("tasks/list", json!({})).await["tasks"], json!([task]));
    }
    // 2025-11-25 tasks, "Task Cancellation" 2: what is over stays as it is.
    let error = client.error("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(error["code"], -32602);
    assert_eq!(client.task(&id).await, task);
    assert_eq!(client.post(body(&id)).await.text().await, result);
}

#[tokio::test]
async fn times_move_with_the_status_alone() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let created = client.create("hold", json!({})).await;
    let id = created["taskId"].as_str().unwrap();
    gateway.started("hold", 1).await;
    for _ in 0..3 {
        assert_eq!(client.task(id).await, created);
    }
    gateway.upstream.release();
    let task = client.until(id, "completed").await;
    assert!(task["lastUpdatedAt"].as_str() >= created["lastUpdatedAt"].as_str());
}

#[tokio::test]
async fn durations_are_integer_milliseconds() {
    let keys = "deadline: 1h, retention: 1h, ttl: {default: 2h}, poll_interval: 2s, \
                tools: [{match: echo, poll_interval: 500ms, ttl: {default: 3h}}]";
    let gateway = Gateway::setup().tasks(keys).start().await;
    let client = gateway.open().await;
    let task = client.create("exact", json!({})).await;
    assert_eq!((&task["ttl"], &task["pollInterval"]), (&json!(7_200_000), &json!(2000)));
    let task = client.create("echo", json!({"text": "x"})).await;
    assert_eq!((&task["ttl"], &task["pollInterval"]), (&json!(10_800_000), &json!(500)));
}

#[tokio::test]
async fn a_text_for_the_model_comes_with_the_handle() {
    let key = "io.modelcontextprotocol/model-immediate-response";
    let tasks = "immediate_response: \"On its \\\"way\\\".\", tools: [{match: exact, immediate_response: null}]";
    let gateway = Gateway::setup().tasks(tasks).start().await;
    let client = gateway.open().await;
    let answer = client.response("tools/call", json!({"name": "log", "task": {}})).await;
    assert_eq!(answer["result"]["_meta"][key], "On its \"way\".");
    let answer = client.response("tools/call", json!({"name": "exact", "task": {}})).await;
    assert_eq!(answer["result"]["_meta"].get(key), None);
    assert!(answer["result"].get("content").is_none());
}

#[tokio::test]
async fn waiting_lasts_until_the_end_and_wakes_everybody() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let mut waiting = Vec::new();
    for accept in ["application/json, text/event-stream", "text/event-stream"] {
        for _ in 0..5 {
            let body =
                json!({"jsonrpc": "2.0", "id": client.next_id(), "method": "tasks/result", "params": {"taskId": id}});
            waiting.push(client.post_with(&[("accept", accept)], body.to_string()).await);
        }
    }
    assert!(waiting.iter().all(|answer| answer.is_events()));
    // One that takes JSON only waits for its answer's head.
    let json_only = async {
        let body = json!({"jsonrpc": "2.0", "id": "json", "method": "tasks/result", "params": {"taskId": id}});
        client.post_with(&[("accept", "application/json")], body.to_string()).await.json().await
    };
    let release = async {
        gateway
            .counted(|metrics| metrics.value("taskgate_requests_total", &[("method", "tasks/result")]) >= 10.0)
            .await;
        gateway.upstream.release();
    };
    let (answer, ()) = tokio::join!(json_only, release);
    assert_eq!((text_of(&answer), &answer["id"]), ("held to the end", &json!("json")));
    assert_eq!(related(&answer), Some(&*id));
    for answer in waiting {
        let response = answer.response().await;
        assert_eq!((text_of(&response), related(&response)), ("held to the end", Some(&*id)));
    }
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 0.0).await;
}

#[tokio::test]
async fn a_wait_can_be_given_up_and_taken_up_again() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    // Given a wait that the client cancels, then it ends without a response;
    let waiting = client
        .post(json!({"jsonrpc": "2.0", "id": "w", "method": "tasks/result", "params": {"taskId": id}}).to_string())
        .await;
    client.notify("notifications/cancelled", json!({"requestId": "w"})).await;
    assert!(waiting.events().await.iter().all(|event| event.data.is_empty()));
    // and one whose connection the client drops is no cancel either.
    drop(client.wait_for(&id).await);
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 0.0).await;
    assert_eq!(client.task(&id).await["status"], "working");
    assert!(gateway.upstream.stats().cancelled.is_empty());
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&id).await), "held to the end");
}

#[tokio::test]
async fn cancelling_the_answered_request_is_not_cancelling_the_task() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let body = r#"{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":"hold","task":{}}}"#;
    let created = client.post(body).await.response().await;
    let id = created["result"]["task"]["taskId"].as_str().unwrap();
    gateway.started("hold", 1).await;
    client.notify("notifications/cancelled", json!({"requestId": "call", "reason": "timeout"})).await;
    assert_eq!(client.task(id).await["status"], "working");
    assert_eq!(gateway.upstream.stats().tool("hold").cancelled, 0);
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(id).await), "held to the end");
}

#[tokio::test]
async fn progress_that_comes_after_the_end_stays_here() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": {}, "_meta": {"progressToken": "mine"}});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    client.until(&id, "completed").await;
    // Given a server that goes on about a call that is over, and about one that is a plain call's,
    let call: Value = serde_json::from_slice(&gateway.upstream.stats().last_call).unwrap();
    let late = json!({"progressToken": call["_meta"]["progressToken"], "progress": 1});
    let theirs = json!({"progressToken": "mine", "progress": 2});
    gateway.seen(|stats| stats.get_streams == 1).await;
    for params in [late, theirs] {
        gateway.upstream.announce("notifications/progress", Some(&params.to_string()));
    }
    // then the client hears of its own token alone.
    let heard = stream.until_method("notifications/progress").await;
    assert_eq!(heard["params"]["progressToken"], "mine");
}

#[tokio::test]
async fn a_cancel_reaches_the_server_and_stays() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let waiting = client.wait_for(&id).await;
    let task = client.cancel(&id).await;
    // 2025-11-25 tasks, "Task Cancellation" 3: cancelled before it is answered.
    assert_eq!((&task["status"], &task["taskId"]), (&json!("cancelled"), &json!(id)));
    let stats = gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    assert_eq!(stats.cancelled.len(), 1);
    // Whoever waits learns of it, and so does whoever asks later.
    let gone = json!({"code": -32602, "message": "Task was cancelled", "data": {"taskId": id, "status": "cancelled"}});
    assert_eq!(waiting.response().await["error"], gone);
    assert_eq!(client.error("tasks/result", json!({"taskId": id})).await, gone);
    assert_eq!(client.error("tasks/cancel", json!({"taskId": id})).await["code"], -32602);
    assert_eq!(client.task(&id).await, task);
}

#[tokio::test]
async fn of_many_cancels_one_counts() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    let cancels = (0..20).map(|_| client.response("tasks/cancel", json!({"taskId": id})));
    let answers = futures_util::future::join_all(cancels).await;
    assert_eq!(answers.iter().filter(|answer| answer["result"]["status"] == "cancelled").count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer["error"]["code"] == -32602).count(), 19);
}

#[tokio::test]
async fn what_the_tool_failed_at_is_kept_and_told() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let plain = client.call("fail", json!({"text": "no such file"})).await;
    let id = client.start("fail", json!({"text": "no such file"})).await;
    let task = client.until(&id, "failed").await;
    assert_eq!(task["statusMessage"], "no such file");
    let mut result = client.outcome(&id).await["result"].take();
    assert_eq!(result["isError"], true);
    result.as_object_mut().unwrap().remove("_meta");
    assert_eq!(result, plain["result"]);
    // A message for people has a bound.
    let id = client.start("fail", json!({"text": "é".repeat(5000)})).await;
    let task = client.until(&id, "failed").await;
    assert!(task["statusMessage"].as_str().unwrap().len() <= 1024, "{task}");
}

#[tokio::test]
async fn unknown_ids_are_one_answer() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let known = client.start("exact", json!({})).await;
    let upper = known.to_uppercase();
    let spaced = format!(" {known}");
    let long = "x".repeat(100_000);
    let wrong =
        ["", "x", "00000000-0000-4000-8000-000000000000", &known[1..], &upper, &spaced, &long, "../x", "é\u{0}"];
    for id in wrong {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let error = client.error(method, json!({"taskId": id})).await;
            assert_eq!(error, json!({"code": -32602, "message": NOT_FOUND}), "{method}");
        }
    }
}

#[tokio::test]
async fn the_word_task_on_task_operations_means_nothing() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let id = client.start("exact", json!({})).await;
    let task = client.until(&id, "completed").await;
    for task_member in [json!({}), json!({"ttl": -1}), json!(5)] {
        let params = json!({"taskId": id, "task": task_member, "_meta": {"progressToken": 1, crate::support::RELATED: {"taskId": "other"}}});
        assert_eq!(client.result("tasks/get", params.clone()).await, task);
        assert!(client.result("tasks/result", params.clone()).await["content"].is_array());
        assert_eq!(client.result("tasks/list", json!({"task": task_member, "limit": 0})).await["tasks"], json!([task]));
        assert_eq!(client.error("tasks/cancel", params).await["code"], -32602);
    }
}

/// All tasks over all pages, as ids.
async fn listed(client: &Client) -> (Vec<String>, usize) {
    let (mut ids, mut pages, mut params) = (Vec::new(), 0, json!({}));
    loop {
        let mut page = client.result("tasks/list", params).await;
        pages += 1;
        let tasks = page["tasks"].as_array().unwrap();
        ids.extend(tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()));
        match page.get_mut("nextCursor").map(Value::take) {
            Some(cursor) => params = json!({"cursor": cursor, "limit": 1}),
            None => return (ids, pages),
        }
    }
}

#[tokio::test]
async fn lists_go_page_by_page_and_miss_nothing() {
    let gateway = Gateway::setup().callers(&["acme/ann", "acme/bob"]).start().await;
    let client = gateway.open_as("ann").await;
    assert_eq!(client.result("tasks/list", json!({})).await, json!({"tasks": []}));
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/list"}"#;
    assert_eq!(client.post(body).await.response().await["result"], json!({"tasks": []}));
    let mut made = Vec::new();
    for count in [50, 1, 50] {
        for _ in 0..count {
            made.push(client.start("exact", json!({})).await);
        }
        let (mut ids, pages) = listed(&client).await;
        assert_eq!(pages, made.len().div_ceil(50), "{}", made.len());
        ids.sort_unstable();
        let mut wanted = made.clone();
        wanted.sort_unstable();
        assert_eq!(ids, wanted);
    }
    // A page is stable while new tasks come.
    let first = client.result("tasks/list", json!({})).await;
    let cursor = &first["nextCursor"];
    let second = client.result("tasks/list", json!({"cursor": cursor})).await;
    client.start("exact", json!({})).await;
    let again = client.result("tasks/list", json!({"cursor": cursor})).await;
    let ids = |page: &Value| -> Vec<Value> {
        page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].clone()).collect()
    };
    assert_eq!(ids(&again), ids(&second));
    // And a cursor is its owner's alone.
    let text = cursor.as_str().unwrap();
    let (cut, lengthened) = (&text[..text.len() - 1], format!("{text}x"));
    for cursor in ["", "x", cut, &lengthened, client.session.as_deref().unwrap()] {
        assert_eq!(client.error("tasks/list", json!({"cursor": cursor})).await["code"], -32602, "{cursor}");
    }
    let bob = gateway.open_as("bob").await;
    let foreign = bob.error("tasks/list", json!({"cursor": text})).await;
    assert_eq!(foreign, bob.error("tasks/list", json!({"cursor": "x"})).await);
}

#[tokio::test]
async fn an_expired_task_never_was() {
    // Given tasks that are kept for no longer than their call may take,
    let keys = "deadline: 40ms, retention: 10ms, ttl: {default: 50ms, max: 50ms}";
    let gateway = Gateway::setup().tasks(keys).callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    let task = client.create("exact", json!({})).await;
    assert_eq!(task["ttl"], 50);
    let id = task["taskId"].as_str().unwrap();
    // when their time is over, then get, result, cancel and list know nothing of them, all at once and for good;
    within(async { while client.response("tasks/get", json!({"taskId": id})).await["error"].is_null() {} }).await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let error = client.error(method, json!({"taskId": id})).await;
        assert_eq!(error, json!({"code": -32602, "message": NOT_FOUND}));
    }
    assert_eq!(client.result("tasks/list", json!({})).await["tasks"], json!([]));
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_stopped_and_says_so() {
    let keys = "deadline: 500ms, retention: 1h";
    let gateway = Gateway::setup().tasks(keys).start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    let task = client.until(&id, "failed").await;
    assert!(task["statusMessage"].is_string());
    let error = client.outcome(&id).await["error"].take();
    assert_eq!((&error["code"], &error["data"]), (&json!(-32603), &json!({"reason": "deadline", "started": true})));
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    // One that the server never saw says that as well.
    let keys = "deadline: 1h, retention: 1h, tools: [{match: count, deadline: 100ms}]";
    let gateway = Gateway::setup().tasks(keys).tenants("default: {running_tasks: 1}").start().await;
    let client = gateway.open().await;
    client.start("hold", json!({})).await;
    let id = client.start("count", json!({})).await;
    client.until(&id, "failed").await;
    let error = client.outcome(&id).await["error"].take();
    assert_eq!(error["data"], json!({"reason": "deadline", "started": false}));
    assert_eq!(gateway.upstream.stats().counter, 0);
}

#[tokio::test]
async fn a_plain_call_that_takes_too_long_is_stopped_too() {
    let gateway = Gateway::setup().tasks("deadline: 100ms, retention: 1h").start().await;
    let client = gateway.open().await;
    let error = client.error("tools/call", json!({"name": "hold"})).await;
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("deadline")));
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
}

#[tokio::test]
async fn bad_arguments_of_a_task_fail_as_they_do_plainly() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let plain = client.call("echo", json!({"text": 5})).await;
    let id = client.start("echo", json!({"text": 5})).await;
    client.until(&id, "failed").await;
    let mut outcome = client.outcome(&id).await;
    outcome["result"].as_object_mut().unwrap().remove("_meta");
    assert_eq!(outcome["result"], plain["result"]);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_not_to_be() {
    // Given a gateway in front of a port on which nothing listens,
    let gone = Server::start_on_loopback(Options::default()).await.unwrap();
    let url = gone.url();
    gone.stop().await;
    let gateway = Gateway::setup().in_front_of(&url).start().await;
    let (_, answer) = gateway.client().initialize().await;
    assert_eq!(answer.status, StatusCode::OK);
    let error = answer.response().await["error"].take();
    assert_eq!((&error["code"], &error["data"]), (&json!(-32603), &json!({"reason": "upstream_unreachable"})));
    let said = error["message"].as_str().unwrap();
    assert!(!said.contains("127.0.0.1") && !said.contains("refused"), "{said}");
}

#[tokio::test]
async fn a_server_that_goes_away_fails_the_calls_that_it_never_saw() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    gateway.upstream.stop().await;
    let id = client.start("count", json!({})).await;
    client.until(&id, "failed").await;
    let error = client.outcome(&id).await["error"].take();
    assert_eq!((&error["code"], &error["data"]), (&json!(-32603), &json!({"reason": "upstream_unreachable"})));
    let plain = client.error("tools/call", json!({"name": "count"})).await;
    assert_eq!(plain["data"]["reason"], "upstream_unreachable");
}
