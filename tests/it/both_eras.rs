//! Clients of either era at one endpoint: a task belongs to its principal, whichever era it was made in, and each answer
//! to the one who asked.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use taskgate::demo::server::{Era, Fault, Options};

use crate::support::{Client, Gateway, Modern, Setup, Value, json, text_of};

const ERAS: [Era; 3] = [Era::Legacy, Era::Modern, Era::Both];
/// A task at once.
const AT_ONCE: &str = "defer: 0s, questions: in_task";

/// A gateway in front of a server of that era, with two callers and two routes.
async fn gateway(era: Era) -> Gateway {
    let options = Options { era, ..Options::default() };
    let setup = Gateway::setup().server(options).tasks(AT_ONCE).callers(&["acme/ada", "acme/bob"]);
    setup.second_route().start().await
}

/// The same caller in both eras.
async fn ada(gateway: &Gateway) -> (Client, Modern) {
    (gateway.open_as("ada").await, Modern::new(gateway).with_tasks().caller("ada"))
}

fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// The only question that a task asks.
fn question(task: &Value) -> (String, &Value) {
    let asked = task["inputRequests"].as_object().unwrap();
    assert_eq!(asked.len(), 1, "{task}");
    let (key, question) = asked.iter().next().unwrap();
    (key.clone(), question)
}

#[tokio::test]
async fn a_tool_that_fails_is_completed_to_one_era_and_failed_to_the_other() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let ids = [
            legacy.start("fail", json!({"text": "no luck"})).await,
            modern.start("fail", json!({"text": "no luck"})).await,
        ];
        for id in ids {
            let seen = modern.until(&id, "completed").await;
            assert_eq!(
                (&seen["result"]["isError"], &seen["statusMessage"]),
                (&json!(true), &json!("no luck")),
                "{era:?}"
            );
            assert_eq!(seen["result"]["content"][0]["text"], "no luck");
            let seen = legacy.until(&id, "failed").await;
            assert_eq!(seen["statusMessage"], "no luck", "{era:?}");
            let outcome = legacy.outcome(&id).await;
            assert_eq!((&outcome["result"]["isError"], text_of(&outcome)), (&json!(true), "no luck"));
            assert!(outcome["result"].get("resultType").is_none(), "{outcome}");
        }
    }
}

#[tokio::test]
async fn an_error_of_the_server_is_failed_to_both() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        for id in [legacy.start("broken", json!({})).await, modern.start("broken", json!({})).await] {
            let seen = modern.until(&id, "failed").await;
            assert_eq!(seen["error"]["code"], -32000, "{era:?}");
            assert_eq!(seen["error"]["data"]["big"], json!(9_007_199_254_740_993_u64));
            assert_eq!(legacy.until(&id, "failed").await["status"], "failed");
            assert_eq!(legacy.outcome(&id).await["error"], seen["error"]);
        }
    }
}

#[tokio::test]
async fn a_result_is_read_in_the_words_of_the_reader() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let arguments = json!({"seconds": 0, "sections": 2});
        for id in [legacy.start("report", arguments.clone()).await, modern.start("report", arguments.clone()).await] {
            let seen = modern.until(&id, "completed").await;
            assert_eq!((&seen["result"]["resultType"], seen.get("ttl")), (&json!("complete"), None), "{era:?}");
            assert_eq!(seen["result"]["vendor.example/pages"], json!(9_007_199_254_740_993_u64));
            let outcome = legacy.outcome(&id).await;
            assert!(outcome["result"].get("resultType").is_none(), "{era:?}: {outcome}");
            assert_eq!(outcome["result"]["_meta"][crate::support::RELATED]["taskId"], id);
            assert_eq!(text_of(&outcome), "The report has 2 sections.");
            let listed = legacy.result("tasks/list", json!({})).await;
            assert!(listed["tasks"].as_array().unwrap().iter().any(|task| task["taskId"] == id), "{listed}");
        }
        let seen = gateway.upstream.stats();
        assert!(!seen.task_seen && !seen.extension_seen && !seen.related_task_seen, "{era:?}");
    }
}

#[tokio::test]
async fn a_task_is_cancelled_from_the_other_era() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let begun = legacy.start("hold", json!({})).await;
        gateway.started("hold", 1).await;
        assert!(modern.cancel(&begun).await.error.is_null());
        gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
        assert_eq!(legacy.task(&begun).await["status"], "cancelled", "{era:?}");
        assert_eq!(legacy.outcome(&begun).await["error"]["code"], -32602);
        let begun = modern.start("hold", json!({})).await;
        gateway.started("hold", 2).await;
        assert_eq!(legacy.cancel(&begun).await["status"], "cancelled");
        gateway.seen(|stats| stats.tool("hold").cancelled == 2).await;
        assert_eq!(modern.task(&begun).await["status"], "cancelled", "{era:?}");
        // It has ended: an error to one era, an acknowledgement to the other.
        assert_eq!(legacy.error("tasks/cancel", json!({"taskId": begun})).await["code"], -32602);
        assert!(modern.cancel(&begun).await.error.is_null());
    }
}

#[tokio::test]
async fn a_question_of_a_session_s_task_is_answered_by_a_modern_client() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let id = legacy.start("ask", json!({"message": "Who?"})).await;
        let seen = modern.until(&id, "input_required").await;
        let (key, asked) = question(&seen);
        assert_eq!((&asked["method"], &asked["params"]["message"]), (&json!("elicitation/create"), &json!("Who?")));
        modern.update(&id, json!({&key: named("Ada")})).await;
        assert_eq!(text_of(&legacy.outcome(&id).await), "Hello, Ada", "{era:?}");
        // Once more: it is acknowledged and changes nothing.
        assert!(modern.update(&id, json!({&key: named("Bob")})).await.error.is_null());
        assert_eq!(gateway.upstream.stats().stray_answers, 0);
    }
}

#[tokio::test]
async fn a_question_of_a_modern_task_is_answered_by_a_session() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let id = modern.start("ask", json!({"message": "Who?"})).await;
        modern.until(&id, "input_required").await;
        let mut stream = legacy.wait_for(&id).await;
        let asked = stream.until_method("elicitation/create").await;
        assert_eq!(asked["params"]["message"], "Who?", "{era:?}");
        legacy.accept(&asked, json!({"name": "Ada"})).await;
        assert_eq!(text_of(&stream.response().await), "Hello, Ada", "{era:?}");
        assert_eq!(modern.until(&id, "completed").await["result"]["content"][0]["text"], "Hello, Ada");
    }
}

#[tokio::test]
async fn two_questions_may_be_answered_from_two_eras() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let id = modern.start("ask_two", json!({})).await;
        let asked = loop {
            let seen = modern.until(&id, "input_required").await;
            if seen["inputRequests"].as_object().unwrap().len() == 2 {
                break seen["inputRequests"].clone();
            }
        };
        let name = asked.as_object().unwrap().iter().find(|(_, asked)| asked["params"]["message"] != "Go on?");
        modern.update(&id, json!({name.unwrap().0: named("Ada")})).await;
        let left = modern.until(&id, "input_required").await;
        assert_eq!(question(&left).1["params"]["message"], "Go on?", "{era:?}");
        let mut stream = legacy.wait_for(&id).await;
        let asked = stream.until(|message| message["params"]["message"] == "Go on?").await.pop().unwrap();
        legacy.accept(&asked, json!({"confirm": true})).await;
        assert_eq!(text_of(&stream.response().await), "Hello, Ada; confirmed: true", "{era:?}");
    }
}

#[tokio::test]
async fn somebody_else_s_task_does_not_exist_in_either_era() {
    let gateway = gateway(Era::Both).await;
    let (legacy, modern) = ada(&gateway).await;
    let (other, modern_other) = (gateway.open_as("bob").await, Modern::new(&gateway).with_tasks().caller("bob"));
    let ids = [legacy.start("ask", json!({})).await, modern.start("ask", json!({})).await];
    let unknown = "00000000-0000-4000-8000-000000000000";
    for id in &ids {
        modern.until(id, "input_required").await;
        for method in ["tasks/get", "tasks/cancel", "tasks/result"] {
            let mut errors = Vec::new();
            for id in [id.as_str(), unknown] {
                errors.push(other.error(method, json!({"taskId": id})).await);
            }
            assert_eq!(errors[0], errors[1], "{method}");
        }
        for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
            let mut errors = Vec::new();
            for id in [id.as_str(), unknown] {
                let params = json!({"taskId": id, "inputResponses": {"q1": named("Bob")}});
                errors.push(modern_other.request(method, params).await);
            }
            assert_eq!(errors[0].refusal(), (200, -32602), "{method}");
            assert_eq!(errors[0].error, errors[1].error, "{method}");
        }
        let elsewhere = Modern::new(&gateway).with_tasks().caller("ada").path("/second");
        assert_eq!(elsewhere.request("tasks/get", json!({"taskId": id})).await.refusal(), (200, -32602));
        assert_eq!(modern.task(id).await["status"], "input_required");
    }
    // Who does not declare the extension is told so before anything is looked up.
    let plain = Modern::new(&gateway).caller("ada");
    for id in [ids[0].as_str(), unknown] {
        assert_eq!(plain.request("tasks/get", json!({"taskId": id})).await.refusal(), (400, -32021));
    }
}

/// Either client on either server: what it calls, what it is asked, and what it gets.
#[tokio::test]
async fn every_pairing_of_eras_works() {
    for era in ERAS {
        let gateway = Gateway::setup().server(Options { era, ..Options::default() }).start().await;
        let legacy = gateway.open().await;
        assert_eq!(text_of(&legacy.call("echo", json!({"text": "x"})).await), "x", "{era:?}");
        let mut stream = legacy.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
        let asked = stream.until_method("elicitation/create").await;
        legacy.accept(&asked, json!({"name": "Ada"})).await;
        assert_eq!(text_of(&stream.response().await), "Hello, Ada", "{era:?}");
        let modern = Modern::new(&gateway);
        assert_eq!(modern.text("echo", json!({"text": "x"})).await, "x", "{era:?}");
        let asked = modern.call("ask", json!({})).await;
        let answered = modern.answer("ask", json!({}), &asked.result, json!({asked.key(): named("Ada")})).await;
        assert_eq!(answered.text(), "Hello, Ada", "{era:?}");
        // Each sees the same tools, and reads the same resource.
        let here = legacy.result("tools/list", json!({})).await["tools"].take();
        let there = modern.result("tools/list", json!({})).await["tools"].take();
        let names = |tools: &Value| -> Vec<Value> {
            tools.as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect()
        };
        assert_eq!(names(&here), names(&there), "{era:?}");
        let uri = json!({"uri": "demo://greeting"});
        assert_eq!(legacy.result("resources/read", uri.clone()).await["contents"][0]["text"], "Hello");
        assert_eq!(modern.result("resources/read", uri).await["contents"][0]["text"], "Hello");
    }
}

/// One task after the other, from both sides.
#[tokio::test]
async fn a_task_of_one_era_is_read_answered_and_cancelled_from_the_other() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let made_in_session = legacy.start("ask", json!({})).await;
        let seen = modern.until(&made_in_session, "input_required").await;
        modern.update(&made_in_session, json!({question(&seen).0: named("Ada")})).await;
        assert_eq!(text_of(&legacy.outcome(&made_in_session).await), "Hello, Ada", "{era:?}");
        let made_without = modern.start("ask", json!({})).await;
        modern.until(&made_without, "input_required").await;
        assert_eq!(legacy.task(&made_without).await["status"], "input_required");
        legacy.cancel(&made_without).await;
        assert_eq!(modern.task(&made_without).await["status"], "cancelled", "{era:?}");
    }
}

/// Nobody asks for a task: what takes longer than the configuration says becomes one.
#[tokio::test]
async fn a_slow_call_becomes_a_task_and_a_quick_one_does_not() {
    for era in ERAS {
        let gateway = Gateway::setup().server(Options { era, ..Options::default() }).start().await;
        let client = Modern::new(&gateway).with_tasks();
        assert_eq!(client.text("echo", json!({"text": "quick"})).await, "quick", "{era:?}");
        let handle = client.create("hold", json!({})).await;
        let id = handle["taskId"].as_str().unwrap();
        assert_eq!(client.task(id).await["status"], "working");
        gateway.upstream.release();
        assert_eq!(client.until(id, "completed").await["result"]["content"][0]["text"], "held to the end");
        assert_eq!(gateway.upstream.stats().tool("hold").started, 1, "{era:?}");
    }
}

/// What each client calls, and what it must get for that.
fn params(owner: &str, number: u64) -> Value {
    match number % 4 {
        0 => {
            // As many steps as no other call around has.
            let sections = 1 + number % 3 + if owner == "legacy" { 0 } else { 3 };
            let meta = json!({"progressToken": number});
            json!({"name": "report", "arguments": {"seconds": 0, "sections": sections}, "_meta": meta})
        }
        _ => json!({"name": "echo", "arguments": {"text": format!("{owner} {number}")}}),
    }
}

#[track_caller]
fn check(owner: &str, number: u64, messages: &[Value]) {
    let (response, news) = messages.split_last().unwrap();
    assert_eq!(response["id"], number, "{owner}");
    match number % 4 {
        0 => {
            let sections = params(owner, number)["arguments"]["sections"].as_u64().unwrap();
            assert_eq!(text_of(response), format!("The report has {sections} sections."), "{owner} {number}");
            let steps: Vec<u64> = news.iter().filter_map(|told| told["params"]["progress"].as_u64()).collect();
            assert_eq!(steps, (1..=sections).collect::<Vec<_>>(), "{owner} {number}: {news:?}");
            assert!(news.iter().all(|told| told["params"]["progressToken"] == number), "{news:?}");
        }
        _ => assert_eq!((text_of(response), news.len()), (format!("{owner} {number}").as_str(), 0)),
    }
}

/// Two clients of different eras with the same ids and progress tokens, many calls at once: each answer, and each step of
/// progress, comes to its owner.
async fn collide(gateway: &Gateway, calls: u64) {
    let (legacy, modern) = (gateway.open_as("ada").await, Modern::new(gateway).caller("bob"));
    let of_legacy = stream::iter(1..=calls).for_each_concurrent(32, |number| {
        let legacy = &legacy;
        async move {
            let call =
                json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params("legacy", number)});
            check("legacy", number, &legacy.post(call.to_string()).await.messages().await);
        }
    });
    let of_modern = stream::iter(1..=calls).for_each_concurrent(32, |number| {
        let modern = &modern;
        async move {
            let answer = modern.open_with(&[], json!(number), "tools/call", params("modern", number)).await;
            check("modern", number, &answer.messages().await);
        }
    });
    tokio::join!(of_legacy, of_modern);
}

fn for_two() -> Setup {
    Gateway::setup().callers(&["acme/ada", "acme/bob"]).tasks("defer: never").upstream("max_in_flight: 64")
}

#[tokio::test]
async fn colliding_ids_and_tokens_of_two_eras_are_kept_apart() {
    for era in ERAS {
        let gateway = for_two().server(Options { era, ..Options::default() }).start().await;
        collide(&gateway, 1000).await;
        let seen = gateway.upstream.stats();
        let calls = seen.tool("echo").finished + seen.tool("report").finished;
        assert_eq!((calls, seen.tool("echo").cancelled), (2000, 0), "{era:?}");
    }
}

#[tokio::test]
async fn the_same_over_pipes() {
    for era in ["legacy", "modern", "both"] {
        let gateway = for_two().stdio(&["--era", era]).start().await;
        collide(&gateway, 500).await;
    }
}

/// The same with tasks and questions among them, all of one principal.
#[tokio::test]
async fn tasks_of_two_eras_have_one_name_space() {
    const EACH: usize = 40;
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        let made = stream::iter(0..2 * EACH).map(|number| {
            let (legacy, modern) = (&legacy, &modern);
            async move {
                let text = json!({"text": format!("task {number}")});
                let id = match number % 2 {
                    0 => legacy.start("echo", text).await,
                    _ => modern.start("echo", text).await,
                };
                (number, id)
            }
        });
        let made: Vec<(usize, String)> = made.buffer_unordered(16).collect().await;
        let distinct: HashSet<&String> = made.iter().map(|(_, id)| id).collect();
        assert_eq!(distinct.len(), 2 * EACH);
        for (number, id) in &made {
            let said = format!("task {number}");
            assert_eq!(modern.until(id, "completed").await["result"]["content"][0]["text"], said);
            assert_eq!(text_of(&legacy.outcome(id).await), said, "{era:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_its_handle_has_cancelled_and_after_it_has_not() {
    for era in ERAS {
        let options = Options { era, ..Options::default() };
        let gateway = Gateway::setup().server(options).tasks("defer: 1h").start().await;
        let client = Modern::new(&gateway).with_tasks();
        tokio::select! {
            reply = client.call("hold", json!({})) => panic!("nothing released it: {reply:?}"),
            _ = gateway.started("hold", 1) => {}
        }
        gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
        let gateway = self::gateway(era).await;
        let id = {
            let client = Modern::new(&gateway).with_tasks().caller("ada");
            client.start("hold", json!({})).await
        };
        gateway.started("hold", 1).await;
        gateway.upstream.release();
        let client = Modern::new(&gateway).with_tasks().caller("ada");
        let ended = client.until(&id, "completed").await;
        assert_eq!(ended["result"]["content"][0]["text"], "held to the end", "{era:?}");
        assert_eq!(gateway.upstream.stats().tool("hold").cancelled, 0);
    }
}

/// A fault of the server's, the reason that it gives, and whether the tool has run.
const FAULTS: [(Fault, &str, u64); 9] = [
    (Fault::Status(503), "outcome_unknown", 0),
    (Fault::Status(429), "upstream_protocol", 0),
    (Fault::Html, "upstream_protocol", 0),
    (Fault::Redirect, "upstream_protocol", 0),
    (Fault::CutJson, "upstream_protocol", 0),
    (Fault::Close, "outcome_unknown", 1),
    (Fault::Gzip, "upstream_protocol", 1),
    (Fault::Reset, "outcome_unknown", 1),
    (Fault::EndEarly, "outcome_unknown", 1),
];

/// What goes wrong at the server is told as an error with its reason, plainly and inside a task, and nothing runs twice.
#[tokio::test]
async fn a_server_that_breaks_is_told_of_in_the_dialect_of_the_reader() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        assert_eq!(plain(&gateway).text("echo", json!({"text": "x"})).await, "x");
        let arguments = json!({"seconds": 0, "sections": 2});
        let mut ran = 0;
        for (fault, reason, runs) in FAULTS {
            gateway.upstream.fail("tools/call", fault, 1);
            let id = modern.start("report", arguments.clone()).await;
            let seen = modern.until(&id, "failed").await;
            let error = &seen["error"];
            assert_eq!(
                (&error["code"], &error["data"]["reason"]),
                (&json!(-32603), &json!(reason)),
                "{era:?} {fault:?}"
            );
            assert_eq!(seen["statusMessage"], error["message"]);
            assert_eq!(legacy.outcome(&id).await["error"], *error);
            gateway.upstream.fail("tools/call", fault, 1);
            // Its progress is what the connection breaks after.
            let params = json!({"name": "report", "arguments": arguments, "_meta": {"progressToken": 1}});
            let reply = plain(&gateway).request("tools/call", params).await;
            assert_eq!(reply.refusal(), (200, -32603), "{era:?} {fault:?}");
            let begun = matches!(fault, Fault::Reset | Fault::EndEarly);
            assert_eq!((reply.is_events(), reply.events.len()), (begun, usize::from(begun)), "{era:?} {fault:?}");
            assert_eq!(reply.error["data"]["reason"], reason, "{era:?} {fault:?}");
            ran += 2 * runs;
            assert_eq!(gateway.upstream.stats().tool("report").started, ran, "{era:?} {fault:?}");
        }
        assert_eq!(plain(&gateway).text("echo", json!({"text": "x"})).await, "x", "{era:?}");
    }
}

/// Noise between the events, and a response that comes twice, are no reason to fail.
#[tokio::test]
async fn what_need_not_be_understood_is_survived() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (_, modern) = ada(&gateway).await;
        for fault in [Fault::Garbage, Fault::Twice] {
            gateway.upstream.fail("tools/call", fault, 1);
            let id = modern.start("echo", json!({"text": "through"})).await;
            let seen = modern.until(&id, "completed").await;
            assert_eq!(seen["result"]["content"][0]["text"], "through", "{era:?} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable_to_both() {
    for era in ERAS {
        let gateway = gateway(era).await;
        let (legacy, modern) = ada(&gateway).await;
        assert_eq!(plain(&gateway).text("echo", json!({"text": "x"})).await, "x");
        gateway.upstream.stop().await;
        let reply = plain(&gateway).call("echo", json!({"text": "x"})).await;
        assert_eq!(reply.refusal(), (200, -32603), "{era:?}");
        assert_eq!(reply.error["data"]["reason"], "upstream_unreachable");
        let error = legacy.error("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
        assert_eq!(error["data"]["reason"], "upstream_unreachable", "{era:?}");
        let reply = modern.call("echo", json!({"text": "x"})).await;
        let error = match reply.result["taskId"].as_str() {
            Some(id) => modern.until(id, "failed").await["error"].take(),
            None => reply.error,
        };
        assert_eq!(error["data"]["reason"], "upstream_unreachable", "{era:?}");
    }
}

/// A client without the extension.
fn plain(gateway: &Gateway) -> Modern {
    Modern::new(gateway).caller("ada")
}

#[tokio::test]
async fn a_running_gateway_follows_the_server_from_one_era_to_the_other() {
    for (first, then) in [(Era::Legacy, Era::Modern), (Era::Modern, Era::Legacy)] {
        let gateway = gateway(first).await;
        let client = plain(&gateway);
        assert_eq!(client.text("echo", json!({"text": "before"})).await, "before");
        gateway.upstream.set_era(then);
        gateway.upstream.forget_sessions();
        // The first call after it may be refused; it ran at most once.
        let reply = client.call("count", json!({})).await;
        let counted = gateway.upstream.stats().counter;
        assert!(counted <= 1 && (reply.error.is_null() == (counted == 1)), "{then:?}: {reply:?}");
        assert_eq!(client.text("echo", json!({"text": "after"})).await, "after", "{then:?}");
        let fresh = gateway.open_as("ada").await;
        assert_eq!(text_of(&fresh.call("echo", json!({"text": "legacy"})).await), "legacy");
    }
}
