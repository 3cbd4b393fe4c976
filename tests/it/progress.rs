//! What a client hears while a call runs: progress under its own token, log lines, status.

use taskgate::demo::server::Options;

use crate::support::{Gateway, Value, json, related, text_of};

/// Progress among the messages.
fn progress(messages: &[Value]) -> Vec<&Value> {
    messages.iter().filter(|message| message["method"] == "notifications/progress").collect()
}

fn is_over(message: &Value) -> bool {
    message["method"] == "notifications/tasks/status" && message["params"]["status"] == "completed"
}

/// `params` of a report as a task.
fn report(token: &Value, sections: u32) -> Value {
    json!({"name": "report", "arguments": {"sections": sections, "seconds": 0}, "task": {}, "_meta": {"progressToken": token, "x": 1}})
}

#[tokio::test]
async fn progress_comes_under_the_clients_own_token_until_the_end() {
    let servers = [
        Options::default(),
        Options { always_sse: true, event_ids: true, ..Options::default() },
        // Then it comes on the server's own stream, and only the token tells whose it is.
        Options { always_json: true, ..Options::default() },
    ];
    for server in servers {
        let is_ordered = !server.always_json;
        let gateway = Gateway::setup().server(server).start().await;
        let client = gateway.open().await;
        let mut stream = client.listen().await;
        gateway.seen(|stats| stats.get_streams == 1).await;
        for token in [json!("p-1"), json!("7"), json!(7), json!(9_007_199_254_740_993_u64), json!("é\"\\")] {
            let task = client.create_with(report(&token, 4)).await;
            let messages = stream.until(is_over).await;
            let progress = progress(&messages);
            // On the server's own stream all of it may come after the answer, and then it is told to nobody.
            assert!(
                (!progress.is_empty() || !is_ordered)
                    && progress.is_sorted_by_key(|told| told["params"]["progress"].as_u64()),
                "{messages:?}"
            );
            for told in &progress {
                // 2025-11-25 tasks, "Task Progress Notifications": the token of the call, with the JSON type it had.
                assert_eq!(told["params"]["progressToken"], token, "{told}");
                assert_eq!(related(told), task["taskId"].as_str(), "{told}");
            }
            for told in &progress {
                assert_eq!(told["params"]["total"], 4);
            }
            assert!(!is_ordered || progress.last().is_some_and(|last| last["params"]["progress"] == 4), "{messages:?}");
            // Upstream the token was another, which no client counts up to.
            let sent: Value = serde_json::from_slice(&gateway.upstream.stats().last_call).unwrap();
            let minted = sent["_meta"]["progressToken"].as_u64().unwrap();
            assert!(((1 << 32)..(1 << 53)).contains(&minted), "{sent}");
            assert_eq!(sent["_meta"]["x"], 1);
        }
    }
}

#[tokio::test]
async fn without_a_token_there_is_no_progress() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    for meta in [json!({}), json!({"progressToken": null}), json!({"x": 1})] {
        let params = json!({"name": "report", "arguments": {"seconds": 0}, "task": {}, "_meta": meta});
        client.create_with(params).await;
        let messages = stream.until(is_over).await;
        assert_eq!(progress(&messages).len(), 0, "{messages:?}");
    }
}

#[tokio::test]
async fn the_token_of_another_request_gets_none_of_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.create_with(report(&json!("call"), 3)).await["taskId"].as_str().unwrap().to_owned();
    let params = json!({"taskId": id, "_meta": {"progressToken": "wait"}});
    let messages = client.request("tasks/result", params).await.messages().await;
    assert!(progress(&messages).iter().all(|told| told["params"]["progressToken"] == "call"), "{messages:?}");
}

#[tokio::test]
async fn it_goes_to_whoever_waits_for_the_result() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let stream = client.listen().await;
    let params = json!({"name": "report", "arguments": {"sections": 3}, "task": {}, "_meta": {"progressToken": 1}});
    let task = client.create_with(params).await;
    let id = task["taskId"].as_str().unwrap();
    gateway.started("report", 1).await;
    let mut waiting = client.wait_for(id).await;
    // Given a wait that has begun, then each section is told there, once;
    assert!(waiting.next().await.unwrap().unwrap().data.is_empty());
    for section in 1..=3 {
        gateway.upstream.release();
        if section < 3 {
            let told = waiting.until_method("notifications/progress").await;
            assert_eq!((&told["params"]["progress"], related(&told)), (&json!(section), Some(id)));
        }
    }
    let rest = waiting.messages().await;
    assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "The report has 3 sections.");
    client.delete().await;
    // and nowhere else.
    assert_eq!(progress(&stream.messages().await).len(), 0);
}

#[tokio::test]
async fn after_the_end_nothing_is_told() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let params = json!({"name": "report", "arguments": {"sections": 3}, "task": {}, "_meta": {"progressToken": 1}});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    gateway.started("report", 1).await;
    gateway.upstream.release();
    stream.until_method("notifications/progress").await;
    client.cancel(&id).await;
    gateway.upstream.release();
    let cancelled = stream.until(|message| message["params"]["status"] == "cancelled").await;
    assert_eq!(progress(&cancelled).len(), 0, "{cancelled:?}");
    gateway.seen(|stats| stats.tool("report").cancelled == 1).await;
    client.delete().await;
    let rest = stream.messages().await;
    assert_eq!(rest.len(), 0, "{rest:?}");
}

#[tokio::test]
async fn its_message_becomes_the_status_message() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"name": "report", "arguments": {"sections": 2}, "task": {}, "_meta": {"progressToken": 1}});
    let created = client.create_with(params).await;
    let id = created["taskId"].as_str().unwrap();
    gateway.started("report", 1).await;
    gateway.upstream.release();
    let told = crate::support::within(async {
        loop {
            let task = client.task(id).await;
            if task.get("statusMessage").is_some() {
                return task;
            }
        }
    })
    .await;
    assert_eq!((&told["status"], &told["statusMessage"]), (&json!("working"), &json!("Section 1 of 2 is written")));
    gateway.upstream.release();
    // What told of work under way is gone with it.
    assert_eq!(client.until(id, "completed").await.get("statusMessage"), None);
}

#[tokio::test]
async fn plain_calls_keep_their_token() {
    let gateway = Gateway::start().await;
    for version in ["2025-11-25", "2025-03-26"] {
        let client = gateway.client().version(version).open().await;
        for token in ["\"p\"", "7", "9007199254740993"] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"report","arguments":{{"seconds":0}},"_meta":{{"progressToken":{token}}}}}}}"#
            );
            let events = client.post(body.clone()).await.events().await;
            assert_eq!(events.len(), 5);
            assert!(events[0].data.contains(&format!("\"progressToken\":{token},")), "{events:?}");
            assert_eq!(gateway.upstream.stats().last_body, body);
        }
    }
}

#[tokio::test]
async fn log_lines_name_their_task() {
    for server in [Options::default(), Options { always_json: true, ..Options::default() }] {
        let is_json = server.always_json;
        let gateway = Gateway::setup().server(server).start().await;
        let client = gateway.open().await;
        let mut stream = client.listen().await;
        gateway.seen(|stats| stats.get_streams == 1).await;
        let id = client.start("log", json!({"messages": 3, "level": "warning"})).await;
        let messages = stream.until(is_over).await;
        let lines = messages.iter().filter(|message| message["method"] == "notifications/message");
        let mut numbers = Vec::new();
        for line in lines {
            assert_eq!(line["params"]["level"], "warning", "{line}");
            // On the server's own stream a line may come when the call is over, and then nobody can say whose it was.
            let named = related(line);
            assert!(named == Some(&*id) || (is_json && named.is_none()), "{line}");
            numbers.push(line["params"]["data"]["number"].as_u64().unwrap());
        }
        if is_json {
            assert!(numbers.is_sorted() && numbers.len() <= 3, "{numbers:?}");
        } else {
            assert_eq!(numbers, [1, 2, 3]);
        }
        assert_eq!(text_of(&client.outcome(&id).await), "logged");
    }
}

#[tokio::test]
async fn every_log_line_on_the_calls_own_stream_is_the_tasks() {
    let gateway = Gateway::setup().server(Options { always_sse: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("log", json!({"messages": 20})).await;
    let messages = stream.until(is_over).await;
    let lines = messages.iter().filter(|message| message["method"] == "notifications/message");
    let numbers: Vec<&Value> =
        lines.filter(|line| related(line) == Some(&*id)).map(|line| &line["params"]["data"]["number"]).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<u32>>());
}

#[tokio::test]
async fn the_level_that_a_client_sets_is_the_servers() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    assert_eq!(client.result("logging/setLevel", json!({"level": "error"})).await, json!({}));
    let messages = client.request("tools/call", json!({"name": "log"})).await.messages().await;
    assert_eq!(messages.len(), 1);
    let mut stream = client.listen().await;
    client.start("log", json!({})).await;
    let messages = stream.until(is_over).await;
    assert!(messages.iter().all(|message| message["method"] == "notifications/tasks/status"), "{messages:?}");
}

#[tokio::test]
async fn each_status_is_told_to_the_session_that_made_the_task() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let other = gateway.open().await;
    let (mut stream, others) = (client.listen().await, other.listen().await);
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    client.accept(&question, json!({"name": "Ann"})).await;
    let end = stream.until(is_over).await.pop().unwrap();
    // 2025-11-25 tasks, "Task Status Notification": the whole task, without related-task metadata.
    assert_eq!(end["params"], client.task(&id).await);
    let id = client.start("fail", json!({})).await;
    let failed = stream.until(|message| message["params"]["status"] == "failed").await.pop().unwrap();
    assert_eq!(failed["params"], client.task(&id).await);
    other.delete().await;
    assert_eq!(others.messages().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_question_shows_in_the_status_that_is_told() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    client.start("ask_twice", json!({})).await;
    let mut told = Vec::new();
    for content in [json!({"name": "Ann"}), json!({"colour": "red"})] {
        let messages = stream.until(|message| message["method"] == "elicitation/create").await;
        client.accept(messages.last().unwrap(), content).await;
        told.extend(messages);
    }
    told.extend(stream.until(is_over).await);
    let statuses: Vec<&str> = told.iter().filter_map(|message| message["params"]["status"].as_str()).collect();
    assert_eq!(statuses, ["input_required", "working", "input_required", "working", "completed"]);
}

#[tokio::test]
async fn the_server_is_asked_for_its_stream_while_somebody_needs_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let stream = client.listen().await;
    let second = client.listen().await;
    gateway.seen(|stats| stats.get_streams == 1).await;
    drop(stream);
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 1.0).await;
    assert_eq!(gateway.upstream.stats().get_streams, 1);
    drop(second);
    gateway.seen(|stats| stats.get_streams == 0).await;
    // A call that runs may hear something there, too.
    let id = client.start("hold", json!({})).await;
    gateway.seen(|stats| stats.get_streams == 1).await;
    gateway.upstream.release();
    client.outcome(&id).await;
    gateway.seen(|stats| stats.get_streams == 0).await;
}

#[tokio::test]
async fn a_message_goes_to_one_stream_of_several() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let (one, two) = (client.listen().await, client.listen().await);
    gateway.seen(|stats| stats.get_streams == 1).await;
    for number in 0..5 {
        gateway.upstream.announce("notifications/vendor", Some(&format!("{{\"n\":{number}}}")));
    }
    // The session's end comes after what was sent before it.
    let mut heard = Vec::new();
    let read = async {
        let (mut one, mut two) = (one, two);
        loop {
            let message = tokio::select! {
                message = one.message() => message,
                message = two.message() => message,
            };
            heard.push(message["params"]["n"].as_u64().unwrap());
            if heard.len() == 5 {
                break (one, two);
            }
        }
    };
    let (one, two) = crate::support::within(read).await;
    assert_eq!(heard, [0, 1, 2, 3, 4]);
    client.delete().await;
    assert_eq!((one.messages().await.len(), two.messages().await.len()), (0, 0));
}
