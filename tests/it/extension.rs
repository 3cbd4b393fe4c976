//! Tasks across the eras: made in one, read, answered and cancelled in the other, in the dialect of whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::modern::SERVER_KEY;
use crate::support::raw_upstream::{RawUpstream, Step, event, events_head, gate, json_body, last_chunk};
use crate::support::stateless::{calling, form};
use crate::support::{Gateway, Modern, RELATED, Value, json, related, text_of};

const ELICIT: &str = "elicitation/create";

fn modern(gateway: &Gateway) -> Modern {
    Modern::new(gateway).with_tasks()
}

fn accepted(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

#[tokio::test]
async fn a_task_is_shown_in_the_dialect_of_whoever_asks() {
    let gateway = Gateway::start().await;
    let (legacy, modern) = (gateway.open().await, modern(&gateway));
    let id = legacy.start("hold", json!({})).await;
    let (theirs, ours) = (legacy.task(&id).await, modern.task(&id).await);
    assert_eq!(ours["status"], "working");
    for (here, there) in [
        ("taskId", "taskId"),
        ("createdAt", "createdAt"),
        ("lastUpdatedAt", "lastUpdatedAt"),
        ("ttlMs", "ttl"),
        ("pollIntervalMs", "pollInterval"),
    ] {
        assert_eq!(ours[here], theirs[there], "{ours} {theirs}");
    }
    gateway.upstream.release();
    let done = modern.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "held to the end");
    assert_eq!((&done["resultType"], &done["result"]["resultType"]), (&json!("complete"), &json!("complete")));
    // The server is named as in its own results, and what a task came to is the same whoever tells it.
    for named in [&ours, &done] {
        assert_eq!(named["_meta"][SERVER_KEY]["name"], "taskgate-demo", "{named}");
    }
    assert!(done["result"].get("_meta").is_none(), "{done}");
    assert_eq!(modern.update(&id, json!({})).await.result, json!({"resultType": "complete"}));
    let outcome = legacy.outcome(&id).await;
    assert!(outcome["result"].get("resultType").is_none() && outcome["result"]["_meta"][RELATED].is_object());
}

#[tokio::test]
async fn a_question_is_answered_from_the_other_era() {
    let gateway = Gateway::start().await;
    let (legacy, modern) = (gateway.open().await, modern(&gateway));
    // Given a question that a legacy client has on its screen,
    let mut stream = legacy.listen().await;
    let id = legacy.start("ask", json!({"message": "Who?"})).await;
    let question = stream.until_method(ELICIT).await;
    let asked = modern.task(&id).await;
    let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!((&request["method"], &request["params"]["message"]), (&json!(ELICIT), &json!("Who?")));
    assert!(request["params"].get("_meta").is_none(), "{request}");
    // when a modern client answers it,
    modern.update(&id, json!({key.as_str(): accepted(json!({"name": "Ann"}))})).await;
    // then the legacy one hears that it is void, and the call goes on.
    let void = stream.until_method("notifications/cancelled").await;
    assert_eq!((&void["params"]["requestId"], related(&void)), (&question["id"], Some(&*id)));
    let done = modern.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Ann");
    assert!(done.get("inputRequests").is_none());
    assert_eq!(text_of(&legacy.outcome(&id).await), "Hello, Ann");
    assert_eq!(gateway.upstream.stats().stray_answers, 0);
}

#[tokio::test]
async fn answers_may_be_partial_stale_or_unknown_and_keys_never_come_again() {
    let gateway = Gateway::start().await;
    let (legacy, modern) = (gateway.open().await, modern(&gateway));
    let id = legacy.start("ask_two", json!({})).await;
    let both = loop {
        let asked = modern.until(&id, "input_required").await["inputRequests"].take();
        if asked.as_object().unwrap().len() == 2 {
            break asked;
        }
    };
    let keys: Vec<&String> = both.as_object().unwrap().keys().collect();
    // Nothing, and what nobody asked.
    modern.update(&id, json!({})).await;
    modern.update(&id, json!({"q99": {"whatever": 1}, "x": 5})).await;
    // A value that is none: not even the good one beside it is taken.
    for bad in [json!({"action": "perhaps"}), json!({"result": {"action": "accept"}}), json!("yes"), json!(null)] {
        let refused = modern
            .update(&id, json!({keys[0].as_str(): accepted(json!({"name": "Ann"})), keys[1].as_str(): bad}))
            .await;
        assert_eq!(refused.refusal(), (200, -32602));
        assert!(refused.error["message"].as_str().unwrap().contains(keys[1].as_str()), "{}", refused.error);
    }
    assert_eq!(modern.task(&id).await["inputRequests"], both);
    // One of two.
    modern.update(&id, json!({keys[0].as_str(): accepted(json!({"name": "Ann"}))})).await;
    let left = modern.task(&id).await;
    assert_eq!(left["status"], "input_required");
    assert_eq!(left["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), [keys[1]]);
    // The same again comes too late, whatever it says.
    modern.update(&id, json!({keys[0].as_str(): {"action": "decline"}})).await;
    modern.update(&id, json!({keys[1].as_str(): {"action": "accept", "content": {"confirm": true}}})).await;
    modern.until(&id, "completed").await;
    modern.update(&id, json!({keys[1].as_str(): {"action": "decline"}})).await;
    for wrong in [json!([]), json!("x"), json!(null)] {
        let refused = modern.request("tasks/update", json!({"taskId": id, "inputResponses": wrong})).await;
        assert_eq!(refused.refusal(), (200, -32602));
    }
    assert_eq!(modern.request("tasks/update", json!({"taskId": id})).await.refusal(), (200, -32602));

    let id = legacy.start("ask_twice", json!({})).await;
    let asked = modern.until(&id, "input_required").await["inputRequests"].take();
    let first = asked.as_object().unwrap().keys().next().unwrap().clone();
    modern.update(&id, json!({first.as_str(): accepted(json!({"name": "Ann"}))})).await;
    let asked = modern.until(&id, "input_required").await["inputRequests"].take();
    let second = asked.as_object().unwrap().keys().next().unwrap().clone();
    assert_ne!(first, second);
    modern.update(&id, json!({second.as_str(): accepted(json!({"colour": "red"}))})).await;
    let done = modern.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "Hello, Ann; colour: red");
}

#[tokio::test]
async fn a_cancel_is_acknowledged_however_often_it_comes() {
    let gateway = Gateway::start().await;
    let (legacy, modern) = (gateway.open().await, modern(&gateway));
    let id = legacy.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    for _ in 0..2 {
        assert!(modern.cancel(&id).await.error.is_null());
    }
    assert_eq!(legacy.task(&id).await["status"], "cancelled");
    assert_eq!(modern.task(&id).await["status"], "cancelled");
    gateway.seen(|stats| stats.cancelled.len() == 1).await;
    // An ended task is as it was.
    let id = legacy.start("echo", json!({"text": "x"})).await;
    modern.until(&id, "completed").await;
    assert!(modern.cancel(&id).await.error.is_null());
    assert_eq!(legacy.task(&id).await["status"], "completed");
}

#[tokio::test]
async fn somebody_elses_task_does_not_exist_in_this_era_either() {
    let gateway = Gateway::setup().callers(&["acme/ann", "umbrella/eve"]).start().await;
    let id = gateway.open_as("ann").await.start("hold", json!({})).await;
    let (ann, eve) = (modern(&gateway).caller("ann"), modern(&gateway).caller("eve"));
    assert_eq!(ann.task(&id).await["status"], "working");
    let never = "6f1d2ce4-56ab-4d0c-a4a4-0f8f4f3ee4b1";
    let mut answers = Vec::new();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for id in [&*id, never, "no id at all"] {
            let reply = eve.request(method, json!({"taskId": id, "inputResponses": {}})).await;
            assert_eq!(reply.refusal(), (200, -32602), "{method} {id}");
            answers.push(reply.error.to_string());
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(ann.task(&id).await["status"], "working");
}

/// Tasks extension: each request declares for itself, and the gate comes before the look.
#[tokio::test]
async fn without_the_extension_there_is_nothing_to_see() {
    let gateway = Gateway::start().await;
    let id = gateway.open().await.start("hold", json!({})).await;
    let without = Modern::new(&gateway);
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for id in [&*id, "never"] {
            let reply = without.request(method, json!({"taskId": id, "inputResponses": {}})).await;
            assert_eq!(reply.refusal(), (400, -32021), "{method} {id}");
            let required = &reply.error["data"]["requiredCapabilities"];
            assert_eq!(*required, json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}));
        }
    }
}

/// Each hop has its own names for a question: the server's key, the gateway's key, and an id that is neither.
#[tokio::test]
async fn a_round_of_a_deferred_call_is_answered_through_the_task() {
    let open = gate();
    let go = Arc::clone(&open);
    let upstream = calling(move |heard| match heard.body["params"].get("inputResponses") {
        None => {
            let asked = heard.asks(&json!({"theirs": form("who?")}), "s3cret-state");
            let progress = heard.progress(1).replace("\"progress\":1", "\"progress\":1,\"total\":3");
            vec![events_head(), Step::Gate(Arc::clone(&go)), event(&progress), event(&asked), last_chunk()]
        }
        Some(given) => vec![json_body(&heard.tells(&given.to_string()))],
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("defer: 1ms, questions: in_task").start().await;
    let modern = modern(&gateway);
    let id = modern.start("a", json!({})).await;
    assert_eq!(modern.task(&id).await["status"], "working");
    open.add_permits(1);
    let asked = modern.until(&id, "input_required").await;
    // Tasks extension: progress is told in the message, and nowhere else.
    assert_eq!(asked["statusMessage"], "1/3");
    assert!(!asked.to_string().contains("s3cret") && !asked.to_string().contains("theirs"), "{asked}");
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    modern.update(&id, json!({key.as_str(): accepted(json!({"name": "Ann"}))})).await;
    let done = modern.until(&id, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], json!({"theirs": accepted(json!({"name": "Ann"}))}).to_string());
    assert!(!done.to_string().contains("s3cret"), "{done}");
    let heard = upstream.heard("tools/call", 2).await;
    assert_eq!(heard[1].body["params"]["requestState"], "s3cret-state");
}

/// 2025-11-25 elicitation, "URL Elicitation Required Error": to the other era it is a question like any other.
#[tokio::test]
async fn a_url_that_must_be_visited_first_is_a_question_of_the_task() {
    let visited = Arc::new(AtomicUsize::new(0));
    let calls = Arc::clone(&visited);
    let upstream = RawUpstream::calling(move |heard| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => {
            let elicitations = json!([{"mode": "url", "elicitationId": "theirs", "url": "http://x/", "message": "m"}]);
            let error = json!({"code": -32042, "message": "first", "data": {"elicitations": elicitations}});
            vec![json_body(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{error}}}", heard.id))]
        }
        _ => vec![json_body(&heard.says("done"))],
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("defer: 0s").start().await;
    let modern = modern(&gateway);
    let id = modern.start("a", json!({})).await;
    let asked = modern.until(&id, "input_required").await;
    let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(request["params"], json!({"mode": "url", "url": "http://x/", "message": "m"}));
    modern.update(&id, json!({key.as_str(): {"action": "accept"}})).await;
    assert_eq!(modern.until(&id, "completed").await["result"]["content"][0]["text"], "done");
    let heard = upstream.heard("tools/call", 2).await;
    assert_ne!(heard[0].id, heard[1].id);
    assert!(heard[1].body["params"].get("inputResponses").is_none());
}
