//! What the gateway has no reason to change passes byte for byte, and what upstreams must not see does not pass.

use taskgate::demo::server::{EXACT, Options};

use crate::support::{Gateway, RELATED, json, related};

/// A request as no library would spell it: white space, odd numbers, escapes, unknown members before and after.
const ODD: &str = concat!(
    " {\"zz\" : [1E3 , -0, 1.10, 9007199254740993],\r\n\t\"params\":{\"y\":{\"b\":1,\"a\":2},\"name\":\"ex\\u0061ct\",",
    "\"arguments\":{\"n\":9007199254740993,\"e\":1e-7,\"s\":\"\\u00e9\\/é\"},\"_meta\":{\"vendor/x\":1.0}},",
    "\"method\":\"tools/call\",\"id\":\"\\u0031\",\"jsonrpc\":\"2.0\",\"after\":null}\n",
);

#[tokio::test]
async fn a_plain_request_arrives_byte_for_byte() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let answer = client.post(ODD).await;
    assert_eq!(answer.text().await, format!("{{\"jsonrpc\":\"2.0\",\"id\":\"\\u0031\",\"result\":{EXACT}}}"));
    assert_eq!(gateway.upstream.stats().last_body, ODD);
}

#[tokio::test]
async fn a_result_passes_byte_for_byte_whatever_carries_it() {
    for (server, accept) in [
        (Options::default(), "application/json, text/event-stream"),
        (Options { always_sse: true, ..Options::default() }, "application/json, text/event-stream"),
        (Options { always_sse: true, event_ids: true, ..Options::default() }, "application/json, text/event-stream"),
        (Options { always_sse: true, ..Options::default() }, "application/json"),
        (Options { always_json: true, ..Options::default() }, "application/json"),
    ] {
        let shown = format!("{server:?} {accept}");
        let gateway = Gateway::setup().server(server).start().await;
        let client = gateway.open().await;
        let answer = client.post_with(&[("accept", accept)], ODD).await;
        let message = match answer.is_events() {
            true => answer.events().await.pop().unwrap().data,
            false => answer.text().await,
        };
        assert_eq!(message, format!("{{\"jsonrpc\":\"2.0\",\"id\":\"\\u0031\",\"result\":{EXACT}}}"), "{shown}");
    }
}

#[tokio::test]
async fn a_tasks_result_is_the_same_bytes_with_the_task_named() {
    for server in [Options::default(), Options { always_sse: true, ..Options::default() }] {
        let gateway = Gateway::setup().server(server).start().await;
        let client = gateway.open().await;
        let task = ODD.replace("\"y\":", "\"task\":{},\"y\":");
        let created = client.post(task).await.response().await;
        let id = created["result"]["task"]["taskId"].as_str().unwrap().to_owned();
        assert_eq!(created["id"], "1");
        client.until(&id, "completed").await;
        let meta = "\"_meta\":{\"vendor.example/key\":{\"z\":1,\"a\":2}";
        let named = EXACT.replace(meta, &format!("{meta},\"{RELATED}\":{{\"taskId\":\"{id}\"}}"));
        assert_ne!(named, EXACT);
        for request in ["7", "\"x\""] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{request},"method":"tasks/result","params":{{"taskId":"{id}"}}}}"#);
            let answer = client.post(body).await.text().await;
            assert_eq!(answer, format!("{{\"jsonrpc\":\"2.0\",\"id\":{request},\"result\":{named}}}"));
        }
        // The call itself: the members and their spelling as they were, without the task.
        let sent = gateway.upstream.stats().last_call;
        let sent = std::str::from_utf8(&sent).unwrap();
        assert_eq!(
            sent,
            "{\"y\":{\"b\":1,\"a\":2},\"name\":\"ex\\u0061ct\",\
             \"arguments\":{\"n\":9007199254740993,\"e\":1e-7,\"s\":\"\\u00e9\\/é\"},\"_meta\":{\"vendor/x\":1.0}}"
        );
    }
}

#[tokio::test]
async fn an_error_is_the_same_plainly_and_through_a_task() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let error = r#"{"code":-32000,"message":"no\nluck é","data":{"big":9007199254740993,"hint":"try another tool"}}"#;
    let call = |task: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"broken","arguments":{{"message":"no\nluck é"}}{task}}}}}"#
        )
    };
    let plain = client.post(call("")).await.text().await;
    assert_eq!(plain, format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{error}}}"));
    let created = client.post(call(r#","task":{}"#)).await.response().await;
    let id = created["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    let task = client.until(&id, "failed").await;
    assert_eq!(task["statusMessage"], "no\nluck é");
    let body = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tasks/result","params":{{"taskId":"{id}"}}}}"#);
    assert_eq!(client.post(body).await.text().await, format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{error}}}"));
}

#[tokio::test]
async fn methods_that_nobody_knows_pass_both_ways() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let body = r#"{"jsonrpc":"2.0","id":1.0e0,"method":"vendor/odd"}"#.replace("1.0e0", "17");
    let answer = client.post(body.clone()).await.text().await;
    assert_eq!(answer, r#"{"jsonrpc":"2.0","id":17,"error":{"code":-32601,"message":"Method not found: vendor/odd"}}"#);
    assert_eq!(gateway.upstream.stats().last_body, body);
    // 2025-11-25 has no such method: it is the server's to refuse.
    let error = client.error("tasks/update", json!({"taskId": "x"})).await;
    assert_eq!(error["message"], "Method not found: tasks/update");
    let body =
        r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"n":1.10,"m":[1E3]}, "x":9007199254740993}"#;
    assert_eq!(client.post(body).await.status, 202);
    assert_eq!(gateway.upstream.stats().last_body, body);
    // And from the server to the client.
    let mut stream = client.listen().await;
    gateway.seen(|stats| stats.get_streams == 1).await;
    for (method, params) in [
        ("notifications/vendor", r#"{"n":1.10,"m":[1E3,-0],"big":9007199254740993,"é":"\u0041"}"#),
        ("notifications/tools/list_changed", r#"{"x":1.0}"#),
        ("notifications/resources/updated", r#"{"uri":"demo://greeting","z":1,"a":2}"#),
    ] {
        gateway.upstream.announce(method, Some(params));
        let seen = stream.next().await.unwrap().unwrap();
        assert_eq!(seen.data, format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params}}}"));
    }
}

#[tokio::test]
async fn unknown_members_of_the_handshake_pass_both_ways() {
    let gateway = Gateway::start().await;
    let capabilities = json!({"roots": {"listChanged": true, "vendor": 1}, "experimental": {"x": {}}, "vendor": [1]});
    let client = gateway.client().capabilities(capabilities).open().await;
    assert_eq!(client.welcome["vendor.example/unknown"], json!({"kept": true}));
    assert_eq!(client.welcome["serverInfo"]["name"], "taskgate-demo");
    let sent = gateway.upstream.stats().last_initialize;
    let sent = std::str::from_utf8(&sent).unwrap();
    for kept in [r#""roots":{"listChanged":true,"vendor":1}"#, r#""experimental":{"x":{}}"#, r#""vendor":[1]"#] {
        assert!(sent.contains(kept), "{sent}");
    }
}

#[tokio::test]
async fn upstreams_never_hear_of_tasks() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    // Given a client that speaks of tasks wherever it can,
    let capabilities = json!({
        "tasks": {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}}},
        "extensions": {"io.modelcontextprotocol/tasks": {}, "vendor.example/other": {"x": 1}},
        "elicitation": {}, "sampling": {}, "roots": {},
    });
    let client = gateway.client().caller("ann").capabilities(capabilities).open().await;
    let meta = json!({RELATED: {"taskId": "x"}, "vendor.example/kept": 1});
    let task = json!({"ttl": 60000});
    for (method, params) in [
        ("tools/call", json!({"name": "exact", "task": task, "_meta": meta})),
        ("tools/call", json!({"name": "exact", "_meta": meta})),
        ("tools/list", json!({"task": task, "_meta": meta})),
        ("resources/list", json!({"task": task})),
        ("prompts/get", json!({"name": "greet", "_meta": {RELATED: {"taskId": "x"}}, "task": task})),
        ("ping", json!({"task": task, "_meta": meta})),
        ("vendor/odd", json!({"task": task, "_meta": meta})),
        ("tasks/get", json!({"taskId": "x", "task": task, "_meta": meta})),
        ("tasks/list", json!({"task": task})),
    ] {
        client.request(method, params).await.response().await;
    }
    for method in
        ["notifications/progress", "notifications/cancelled", "notifications/tasks/status", "notifications/vendor"]
    {
        client.notify(method, json!({"progressToken": 1, "requestId": "none", "task": task, "_meta": meta})).await;
    }
    // however it spells it,
    let meta = r#""_meta":{"io.modelcontextprotocol/related\u002dtask":{"taskId":"x"}}"#;
    for message in [
        format!(r#"{{"jsonrpc":"2.0","id":"e1","method":"tools/call","params":{{"name":"exact",{meta}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"e2","method":"prompts/get","params":{{"name":"greet",{meta}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":1,{meta}}}}}"#),
    ] {
        drop(client.post(message).await.text().await);
    }
    // when it answers the server's questions, inside a task and outside,
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!(related(&question), Some(&*id));
    client
        .answer(&question, json!({"action": "accept", "content": {"name": "Ann"}, "_meta": {RELATED: {"taskId": id}}}))
        .await;
    client.outcome(&id).await;
    let mut call = client.request("tools/call", json!({"name": "ask"})).await;
    let question = call.until_method("elicitation/create").await;
    assert_eq!(related(&question), None);
    client.answer(&question, json!({"action": "decline", "_meta": {RELATED: {"taskId": id}, "x": 1}})).await;
    call.response().await;
    client.try_answer(&json!("nobody-asked"), json!({"_meta": {RELATED: {"taskId": id}}})).await;
    // then the server has heard nothing of it, and everything else.
    let stats = gateway.upstream.stats();
    assert!(!stats.task_seen, "a task was seen");
    assert!(!stats.extension_seen, "the extension was seen");
    assert!(!stats.related_task_seen, "a related task was seen");
    let sent = String::from_utf8(stats.last_initialize.to_vec()).unwrap();
    assert!(sent.contains(r#""extensions":{"vendor.example/other":{"x":1}}"#), "{sent}");
}

#[tokio::test]
async fn a_task_is_not_named_upstream_however_its_key_is_spelled() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let meta = r#"{"io.modelcontextprotocol\/related-task":{"taskId":"x"},"k":1.0}"#;
    for body in [
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{meta}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/vendor","params":{{"_meta":{meta}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{meta}}}}}"#),
    ] {
        assert!(client.post(body.clone()).await.status.is_success());
        assert_eq!(gateway.upstream.stats().last_body, body.replace(meta, r#"{"k":1.0}"#));
    }
}

#[tokio::test]
async fn removing_the_task_leaves_the_rest_of_the_message_as_it_was() {
    let gateway = Gateway::start().await;
    let client = gateway.client().version("2025-06-18").open().await;
    let body = r#"{"a":1.10,"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":1E3,"name":"exact","task":{"ttl":1},"_meta":{"k":-0},"z":9007199254740993},"b":null}"#;
    client.post(body).await.response().await;
    assert_eq!(gateway.upstream.stats().last_body, body.replace(r#""task":{"ttl":1},"#, ""));
}

#[tokio::test]
async fn big_results_go_out_as_json() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let bytes = 3 * 1024 * 1024;
    let id = client.start("big", json!({"bytes": bytes})).await;
    client.until(&id, "completed").await;
    let answer = client.wait_for(&id).await;
    assert!(answer.is_json());
    let response = answer.response().await;
    assert_eq!(response["result"]["content"][0]["text"].as_str().map(str::len), Some(bytes));
    let plain = client.request("tools/call", json!({"name": "big", "arguments": {"bytes": bytes}})).await;
    assert!(plain.is_json());
    assert_eq!(plain.response().await["result"]["content"][0]["text"].as_str().map(str::len), Some(bytes));
}
