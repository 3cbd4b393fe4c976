//! Several clients, several calls, one server: whose each message is.

use serde_json::Value;
use taskgate::demo::server::Options;

use crate::support::raw_upstream::{Step, event, events_head, gate, json_body, last_chunk};
use crate::support::{Answer, Client, Gateway, RawUpstream, json, related, text_of};

/// B49, B57: clients count alike, and each gets its own answer and its own progress.
#[tokio::test]
async fn the_same_ids_and_tokens_of_two_clients_do_not_meet() {
    for options in [Options::default(), Options { stateless: true, ..Options::default() }] {
        let is_stateless = options.stateless;
        let gateway = Gateway::setup().server(options).start().await;
        let (a, b) = (gateway.open().await, gateway.open().await);
        let report = |sections: u32| {
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "report", "arguments": {"sections": sections}, "_meta": {"progressToken": 1}}})
            .to_string()
        };
        let release = async {
            gateway.started("report", 2).await;
            for _ in 0..3 {
                gateway.upstream.release();
            }
        };
        let calls = async { tokio::join!(a.post(report(1)), b.post(report(3))) };
        let ((of_a, of_b), ()) = tokio::join!(calls, release);
        for (answer, sections) in [(of_a, 1), (of_b, 3)] {
            let messages = answer.messages().await;
            let (response, progress) = messages.split_last().unwrap();
            assert_eq!(response["id"], 1);
            assert_eq!(response["result"]["structuredContent"]["sections"], sections, "stateless: {is_stateless}");
            assert_eq!(progress.len(), sections);
            for (number, message) in progress.iter().enumerate() {
                assert_eq!(message["params"]["progressToken"], 1);
                assert_eq!(message["params"]["progress"], number + 1);
                assert_eq!(message["params"]["total"], sections);
            }
        }
    }
}

/// Without sessions the server can't tell its clients apart but by the ids: none is used twice, each client gets its own
/// back, and a cancel names the canceller's call alone.
#[tokio::test]
async fn clients_of_a_server_without_sessions_share_no_ids() {
    let opened = gate();
    let until = opened.clone();
    let upstream = RawUpstream::start(move |heard| match &*heard.method {
        "initialize" => Some(vec![json_body(&heard.answer(
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "0"}})
                .to_string(),
        ))]),
        "tools/call" => Some(vec![
            events_head(),
            event(&heard.progress(1)),
            Step::Gate(until.clone()),
            event(&heard.says(heard.body["params"]["arguments"]["who"].as_str().unwrap())),
            last_chunk(),
        ]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let (a, b) = (gateway.open().await, gateway.open().await);
    let call = |who: &str| {
        let params = json!({"name": "x", "arguments": {"who": who}, "_meta": {"progressToken": "t", "kept": 1}});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
    };
    let (mut of_a, mut of_b) = (a.post(call("A")).await, b.post(call("B")).await);
    for answer in [&mut of_a, &mut of_b] {
        assert_eq!(answer.message().await["params"]["progressToken"], "t");
    }
    let heard = upstream.heard("tools/call", 2).await;
    assert_ne!(heard[0].id, heard[1].id);
    for call in &heard {
        assert_eq!(call.body["params"]["_meta"]["progressToken"].to_string(), call.id);
        assert_eq!(call.body["params"]["_meta"]["kept"], 1);
    }
    // One that has ended, or never was, cancels nobody's call.
    a.notify("notifications/cancelled", json!({"requestId": 2})).await;
    a.notify("notifications/cancelled", json!({"requestId": 1})).await;
    let cancelled = upstream.heard("notifications/cancelled", 1).await;
    let by_a = heard.iter().find(|call| call.body["params"]["arguments"]["who"] == "A").unwrap();
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0].body["params"]["requestId"].to_string(), by_a.id);
    assert!(of_a.events().await.is_empty());
    opened.add_permits(2);
    let response = of_b.message().await;
    assert_eq!((&response["id"], text_of(&response)), (&json!(1), "B"));
    // Lists and errors come back under the client's id as well.
    let list = json!({"jsonrpc": "2.0", "id": "list", "method": "tools/list"}).to_string();
    assert_eq!(b.post(list).await.response().await["id"], "list");
}

/// The types of ids and tokens come back as they were sent, on one session and at the same time.
#[tokio::test]
async fn ids_that_look_alike_stay_apart() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let ids = [json!(1), json!("1"), json!(9_007_199_254_740_993_u64), json!("")];
    let calls = ids.iter().map(|id| {
        let params = json!({"name": "report", "arguments": {"sections": 1}, "_meta": {"progressToken": id}});
        client.post(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string())
    });
    let release = async {
        gateway.started("report", 4).await;
        gateway.upstream.release();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), release);
    for (answer, id) in answers.into_iter().zip(ids) {
        let messages = answer.messages().await;
        assert_eq!((&messages[0]["params"]["progressToken"], &messages[1]["id"]), (&id, &id));
    }
}

/// As above for tasks: the token is the client's own on every stream, whatever another task or call uses.
#[tokio::test]
async fn the_same_token_in_two_tasks_and_a_call_stays_with_each() {
    let gateway = Gateway::start().await;
    let clients = [gateway.open().await, gateway.open().await];
    let mut streams = Vec::new();
    for (client, sections) in clients.iter().zip([1, 2]) {
        let params = json!({"name": "report", "arguments": {"sections": sections}, "task": {},
            "_meta": {"progressToken": "t"}});
        let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
        streams.push((client.wait_for(&id).await, id, sections));
    }
    gateway.started("report", 2).await;
    gateway.upstream.release();
    gateway.upstream.release();
    for (stream, id, sections) in streams {
        let messages = stream.messages().await;
        let progress: Vec<&Value> =
            messages.iter().filter(|message| message["method"] == "notifications/progress").collect();
        assert!(!progress.is_empty() && progress.len() <= sections);
        for message in progress {
            assert_eq!((&message["params"]["progressToken"], related(message)), (&json!("t"), Some(&*id)));
            assert_eq!(message["params"]["total"], sections);
        }
        assert_eq!(messages.last().unwrap()["result"]["structuredContent"]["sections"], sections);
    }
}

async fn ask(client: &Client, message: &str) -> Answer {
    client.request("tools/call", json!({"name": "ask", "arguments": {"message": message}})).await
}

/// B60: the server's questions have the same ids on both sessions; each reaches its own client, and the answer its own
/// call.
#[tokio::test]
async fn questions_of_two_clients_do_not_cross() {
    let gateway = Gateway::start().await;
    let (a, b) = (gateway.open().await, gateway.open().await);
    let (mut of_a, mut of_b) = (ask(&a, "A?").await, ask(&b, "B?").await);
    let (asked_a, asked_b) = (of_a.message().await, of_b.message().await);
    assert_eq!(asked_a["id"], asked_b["id"], "the ids collide, or this test shows nothing");
    assert_eq!((&asked_a["params"]["message"], &asked_b["params"]["message"]), (&json!("A?"), &json!("B?")));
    b.accept(&asked_b, json!({"name": "Bea"})).await;
    assert_eq!(text_of(&of_b.message().await), "Hello, Bea");
    a.accept(&asked_a, json!({"name": "Abe"})).await;
    assert_eq!(text_of(&of_a.message().await), "Hello, Abe");
    assert_eq!(gateway.upstream.stats().stray_answers, 0);
}

/// The same inside tasks of two callers: another's answer to a question is refused as one that was never asked for.
#[tokio::test]
async fn only_the_owner_answers_a_task_s_question() {
    let gateway = Gateway::setup().callers(&["acme/ann", "acme/bob"]).start().await;
    let (ann, bob) = (gateway.open_as("ann").await, gateway.open_as("bob").await);
    let (of_ann, of_bob) = (ann.start("ask", json!({"message": "A?"})).await, bob.start("ask", json!({})).await);
    let mut stream = ann.wait_for(&of_ann).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!((&question["params"]["message"], related(&question)), (&json!("A?"), Some(&*of_ann)));
    let forged = bob.try_answer(&question["id"], json!({"action": "accept", "content": {"name": "Bob"}})).await;
    assert_eq!(forged.status, 400);
    bob.until(&of_bob, "input_required").await;
    ann.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&stream.response().await), "Hello, Ann");
    let mut stream = bob.wait_for(&of_bob).await;
    let question = stream.until_method("elicitation/create").await;
    bob.accept(&question, json!({"name": "Bob"})).await;
    assert_eq!(text_of(&stream.response().await), "Hello, Bob");
}

/// 2025-11-25 transports, "Multiple Connections" 2; B62: once for each session, whatever it has open.
#[tokio::test]
async fn a_change_of_the_lists_reaches_each_session_once() {
    let gateway = Gateway::start().await;
    let (a, b) = (gateway.open().await, gateway.open().await);
    let mut of_a = a.listen().await;
    let (mut first, mut second) = (b.listen().await, b.listen().await);
    gateway.seen(|stats| stats.get_streams == 2).await;
    gateway.upstream.announce("notifications/tools/list_changed", None);
    gateway.upstream.announce("notifications/resources/list_changed", None);
    for method in ["notifications/tools/list_changed", "notifications/resources/list_changed"] {
        assert_eq!(of_a.message().await["method"], method);
    }
    // Whatever is on either stream of the second session is there when they have ended.
    let mut heard = Vec::new();
    let (to_first, to_second) = tokio::join!(
        async {
            let mut messages = Vec::new();
            while let Some(seen) = first.next().await.unwrap() {
                messages.push(seen.message());
            }
            messages
        },
        async {
            let mut messages = Vec::new();
            for _ in 0..2 {
                messages.push(second.message().await);
            }
            b.delete().await;
            while let Some(seen) = second.next().await.unwrap() {
                messages.push(seen.message());
            }
            messages
        }
    );
    heard.extend(to_first);
    heard.extend(to_second);
    assert_eq!(heard.len(), 2, "{heard:?}");
}

/// Design 6, attribution: one call in flight is asked for, wherever the question comes.
#[tokio::test]
async fn a_question_on_the_session_s_stream_belongs_to_the_only_call() {
    let gateway = Gateway::setup().server(Options { ask_on_get: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    assert_eq!(client.until(&id, "input_required").await["taskId"], json!(id));
    let mut stream = client.wait_for(&id).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!(related(&question), Some(&*id));
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&stream.response().await), "Hello, Ann");
    assert_eq!(client.task(&id).await["status"], "completed");
}

/// With several it is the session's: put to its stream as it is, and no task waits for it.
#[tokio::test]
async fn a_question_on_the_session_s_stream_among_several_calls_is_nobody_s() {
    let gateway = Gateway::setup().server(Options { ask_on_get: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let other = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!(related(&question), None);
    assert_eq!(question["id"], 1, "the server's own id");
    for task in [&id, &other] {
        assert_eq!(client.task(task).await["status"], "working");
    }
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&other).await), "held to the end");
}

/// The same with a plain call in flight beside the task, and without anybody to put it to: the server is told at once.
#[tokio::test]
async fn a_question_that_nobody_can_be_asked_is_refused_at_once() {
    let gateway = Gateway::setup().server(Options { ask_on_get: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let other = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let id = client.start("ask", json!({})).await;
    let response = client.outcome(&id).await;
    assert_eq!(response["result"]["isError"], true, "{response}");
    assert!(text_of(&response).starts_with("the client refused the question"), "{response}");
    client.cancel(&other).await;
}

/// `exclusive: true`: the tool runs alone, so that its question is surely its own.
#[tokio::test]
async fn exclusive_tools_own_their_questions() {
    let gateway = Gateway::setup()
        .server(Options { ask_on_get: true, ..Options::default() })
        .tasks("tools: [{match: \"ask*\", exclusive: true}]")
        .start()
        .await;
    let client = gateway.open().await;
    let first = client.start("ask", json!({"message": "first"})).await;
    client.until(&first, "input_required").await;
    // Both wait until the first is over, and neither makes its question uncertain.
    let second = client.start("ask", json!({"message": "second"})).await;
    let plain = client.call("echo", json!({"text": "after the first"}));
    let answering = async {
        gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 1.0).await;
        for (id, name) in [(&first, "Ann"), (&second, "Bob")] {
            client.until(id, "input_required").await;
            let mut stream = client.wait_for(id).await;
            let question = stream.until_method("elicitation/create").await;
            assert_eq!(related(&question), Some(id.as_str()));
            client.accept(&question, json!({"name": name})).await;
            assert_eq!(text_of(&stream.response().await), format!("Hello, {name}"));
        }
    };
    let (plain, ()) = tokio::join!(plain, answering);
    assert_eq!(text_of(&plain), "after the first");
}

/// B46: the server never hears of tasks, whatever the client sends.
#[tokio::test]
async fn no_word_of_tasks_reaches_the_server() {
    let gateway = Gateway::start().await;
    let capabilities = json!({"elicitation": {}, "tasks": {"requests": {"elicitation": {"create": {}}}},
        "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = gateway.client().capabilities(capabilities).open().await;
    let mut stream = client.listen().await;
    let meta = json!({"io.modelcontextprotocol/related-task": {"taskId": "x"}, "progressToken": 5, "kept": 1});
    let params = json!({"name": "ask", "arguments": {}, "task": {"ttl": 60000}, "_meta": meta});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    let question = stream.until_method("elicitation/create").await;
    let answer = json!({"action": "accept", "content": {"name": "Ann"},
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": id}}});
    client.answer(&question, answer).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    let seen = gateway.upstream.stats();
    let call: Value = serde_json::from_slice(&seen.last_call).unwrap();
    assert_eq!((&call["name"], &call["arguments"], &call["_meta"]["kept"]), (&json!("ask"), &json!({}), &json!(1)));
    assert!(!seen.task_seen && !seen.related_task_seen);
}
