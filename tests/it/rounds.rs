//! Tasks on servers of the modern era, which ask inside their results and are called once more with the answers.

use std::sync::Arc;

use http::HeaderMap;

use crate::support::modern::CAPABILITIES_KEY;
use crate::support::raw_upstream::{Heard, RawUpstream, Step, event, event_with_id, events_head, gate, json_body};
use crate::support::stateless::{calling, form, stream_of};
use crate::support::{Client, Gateway, RELATED, Value, json, related, text_of, within};

async fn in_front_of(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).start().await
}

/// One that can be asked anything.
async fn open(gateway: &Gateway) -> Client {
    let all = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}});
    gateway.client().capabilities(all).open().await
}

/// Which sending of the call it is, told by the answers and the state that it brings.
fn round(heard: &Heard) -> usize {
    let state = heard.body["params"].get("requestState");
    state.map_or(0, |state| state.as_str().unwrap().rsplit('-').next().unwrap().parse().unwrap())
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers[name].to_str().unwrap()
}

#[tokio::test]
async fn a_task_is_asked_in_rounds_and_its_call_goes_on() {
    let requests = json!({"a": form("who?"), "b": form("sure?")});
    let upstream = calling(move |heard| match round(heard) {
        0 => stream_of(&[heard.progress(1), heard.asks(&requests, "first-1")]),
        _ => stream_of(&[heard.progress(1), heard.progress(2), heard.tells("done")]),
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let task = client
        .create_with(json!({"name": "a", "arguments": {"n": 1.50}, "task": {}, "_meta": {"progressToken": "mine"}}))
        .await;
    let id = task["taskId"].as_str().unwrap();
    let mut stream = client.wait_for(id).await;
    let is_question = |message: &Value| message["method"] == "elicitation/create";
    let (first, second) =
        (stream.until(is_question).await.pop().unwrap(), stream.until(is_question).await.pop().unwrap());
    assert_eq!((related(&first), &first["params"]["message"]), (Some(id), &json!("who?")));
    assert_eq!(client.task(id).await["status"], "input_required");
    let answered = json!({"action": "accept", "content": {"name": "x"}, "_meta": {RELATED: {"taskId": id}, "y/z": 1}});
    client.answer(&first, answered).await;
    // Half of the answers are none: the call waits for the other.
    assert_eq!((client.task(id).await["status"].clone(), upstream.count("tools/call")), (json!("input_required"), 1));
    client.answer(&second, json!({"action": "decline"})).await;
    let rest = stream.messages().await;
    let progress: Vec<&Value> = rest.iter().filter(|message| message["method"] == "notifications/progress").collect();
    // It rises over all rounds, under the client's own token.
    assert_eq!(progress.len(), 1, "{rest:?}");
    assert_eq!(progress[0]["params"]["progressToken"], "mine");
    assert_eq!(progress[0]["params"]["progress"], 2);
    let outcome = rest.last().unwrap();
    assert_eq!(text_of(outcome), "done");
    assert_eq!(outcome["result"]["_meta"], json!({RELATED: {"taskId": id}}));
    assert!(outcome["result"].get("resultType").is_none(), "{outcome}");

    let heard = upstream.heard("tools/call", 2).await;
    let [first, second] = [&heard[0], &heard[1]];
    assert_ne!(first.id, second.id);
    let token = |heard: &Heard| heard.body["params"]["_meta"]["progressToken"].to_string();
    assert_eq!((token(first), token(second)), (first.id.clone(), second.id.clone()));
    assert!(first.body["params"].get("inputResponses").is_none() && first.body["params"].get("task").is_none());
    assert_eq!(second.body["params"]["requestState"], "first-1");
    assert_eq!(
        second.body["params"]["inputResponses"],
        json!({"a": {"action": "accept", "content": {"name": "x"}}, "b": {"action": "decline"}})
    );
    assert_eq!(second.body["params"]["arguments"], first.body["params"]["arguments"]);
    assert_eq!((header(&second.headers, "mcp-method"), header(&second.headers, "mcp-name")), ("tools/call", "a"));
    assert_eq!(second.claim(CAPABILITIES_KEY)["sampling"], json!({}));
}

#[tokio::test]
async fn a_key_that_a_server_uses_again_is_another_question() {
    let upstream = calling(|heard| match round(heard) {
        round @ 0..3 => vec![json_body(&heard.asks(&json!({"k": form("again?")}), &format!("s-{}", round + 1)))],
        _ => vec![json_body(&heard.tells(&heard.body["params"]["inputResponses"].to_string()))],
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    let mut stream = client.wait_for(&id).await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let question = stream.until_method("elicitation/create").await;
        client.accept(&question, json!({"n": number})).await;
        ids.push(question["id"].to_string());
    }
    ids.dedup();
    assert_eq!(ids.len(), 3);
    // The answers of a round are that round's alone.
    let given = json!({"k": {"action": "accept", "content": {"n": 2}}});
    assert_eq!(text_of(&stream.response().await), given.to_string());
}

/// 2026-07-28 patterns, "Multi Round-Trip Requests": what comes is echoed as it came, and what does not come is absent.
#[tokio::test]
async fn a_state_goes_back_byte_for_byte_or_not_at_all() {
    let upstream = calling(|heard| {
        let params = heard.body["params"].as_object().unwrap();
        let ask = |state: Option<&str>| {
            let mut result = json!({"resultType": "input_required", "inputRequests": {"k": form("?")}});
            if let Some(state) = state {
                result["requestState"] = json!(state);
            }
            vec![json_body(&heard.answer(&result.to_string()))]
        };
        match (params.get("requestState"), params.get("inputResponses")) {
            (None, None) => ask(Some("")),
            (Some(state), Some(_)) if state == "" => ask(None),
            (None, Some(_)) => vec![json_body(&heard.tells("as it was"))],
            other => vec![json_body(&heard.tells(&format!("{other:?}")))],
        }
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    let mut stream = client.wait_for(&id).await;
    for _ in 0..2 {
        let question = stream.until_method("elicitation/create").await;
        client.answer(&question, json!({"action": "cancel"})).await;
    }
    assert_eq!(text_of(&stream.response().await), "as it was");
}

#[tokio::test]
async fn a_round_without_questions_is_repeated_a_few_times_and_no_more() {
    let upstream = calling(|heard| {
        let state = |round: usize| {
            heard.answer(&json!({"resultType": "input_required", "requestState": format!("s-{round}")}).to_string())
        };
        match (heard.body["params"]["name"].as_str(), round(heard)) {
            (Some("busy"), round @ 0..3) => vec![json_body(&state(round + 1))],
            (Some("busy"), _) => vec![json_body(&heard.tells("at last"))],
            (_, round) => vec![json_body(&state(round + 1))],
        }
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("busy", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "at last");
    let before = upstream.count("tools/call");
    let id = client.start("endless", json!({})).await;
    assert_eq!(client.outcome(&id).await["error"]["data"]["reason"], "upstream_protocol");
    assert_eq!(upstream.count("tools/call") - before, 4);
}

#[tokio::test]
async fn a_call_that_asks_without_end_is_given_up() {
    let upstream = calling(|heard| {
        vec![json_body(&heard.asks(&json!({"k": {"method": "roots/list"}}), &format!("s-{}", round(heard) + 1)))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    let mut stream = client.wait_for(&id).await;
    for _ in 0..10 {
        let question = stream.until_method("roots/list").await;
        client.answer(&question, json!({"roots": []})).await;
    }
    assert_eq!(stream.response().await["error"]["data"]["reason"], "upstream_protocol");
    assert_eq!(upstream.count("tools/call"), 11);
}

#[tokio::test]
async fn what_no_server_may_answer_ends_the_task() {
    let upstream = calling(|heard| {
        let answer = match heard.body["params"]["name"].as_str().unwrap() {
            "unknown" => json!({"resultType": "later", "content": []}),
            "task" => json!({"resultType": "task", "taskId": "t", "status": "working"}),
            "empty" => json!({"resultType": "input_required"}),
            "odd" => {
                json!({"resultType": "input_required", "inputRequests": {"k": {"method": "tools/call", "params": {}}}})
            }
            "undeclared" => json!({"resultType": "input_required", "inputRequests": {"k": {"method": "roots/list"}}}),
            _ => json!({"resultType": "input_required", "requestState": 5}),
        };
        vec![json_body(&heard.answer(&answer.to_string()))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({"elicitation": {}})).open().await;
    for tool in ["unknown", "task", "empty", "odd", "undeclared", "state"] {
        let id = client.start(tool, json!({})).await;
        assert_eq!(client.outcome(&id).await["error"]["data"]["reason"], "upstream_protocol", "{tool}");
    }
}

/// 2026-07-28 patterns: an answer has no form for an error, except that of an elicitation.
#[tokio::test]
async fn a_client_that_refuses_ends_the_call_unless_the_answer_can_say_so() {
    let upstream = calling(|heard| {
        if let Some(given) = heard.body["params"].get("inputResponses") {
            return vec![json_body(&heard.tells(&given.to_string()))];
        }
        let request = match heard.body["params"]["name"].as_str().unwrap() {
            "elicit" => form("?"),
            "sample" => json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}),
            _ => json!({"method": "roots/list"}),
        };
        vec![json_body(&heard.asks(&json!({"k": request}), "s-1"))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    for (tool, method) in
        [("elicit", "elicitation/create"), ("sample", "sampling/createMessage"), ("roots", "roots/list")]
    {
        let id = client.start(tool, json!({})).await;
        let mut stream = client.wait_for(&id).await;
        let question = stream.until_method(method).await;
        let refusal = json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "no"}});
        client.post(refusal.to_string()).await;
        let response = stream.response().await;
        if tool == "elicit" {
            assert_eq!(text_of(&response), json!({"k": {"action": "cancel"}}).to_string());
        } else {
            assert_eq!(response["result"]["isError"], true, "{response}");
            assert!(text_of(&response).contains("refused"), "{response}");
            assert_eq!(client.task(&id).await["status"], "failed");
        }
    }
    assert_eq!(upstream.count("tools/call"), 4);
}

#[tokio::test]
async fn a_question_that_nobody_answers_in_time_ends_the_call() {
    let upstream = calling(|heard| vec![json_body(&heard.asks(&json!({"k": form("?")}), "s-1"))]).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("input_timeout: 100ms").start().await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    assert_eq!(client.outcome(&id).await["error"]["data"]["reason"], "input_timeout");
    assert_eq!(upstream.count("tools/call"), 1);
}

/// 2026-07-28 cancellation: on HTTP the stream's end is the cancel, and there is no notification.
#[tokio::test]
async fn a_cancelled_task_closes_its_stream_and_sends_nothing() {
    let closed = gate();
    let tell = Arc::clone(&closed);
    let upstream = calling(move |heard| {
        vec![events_head(), event(&heard.progress(1)), Step::Stall, Step::Tell(Arc::clone(&tell))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    upstream.heard("tools/call", 1).await;
    assert_eq!(client.cancel(&id).await["status"], "cancelled");
    within(closed.acquire()).await.unwrap().forget();
    assert_eq!(upstream.count("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_url_has_an_id_for_clients_that_know_it_by_one() {
    let upstream = calling(|heard| match round(heard) {
        0 => {
            let visit =
                json!({"method": "elicitation/create", "params": {"mode": "url", "message": "m", "url": "http://x/"}});
            vec![json_body(&heard.asks(&json!({"k": visit}), "s-1"))]
        }
        _ => vec![json_body(&heard.tells(&heard.given("k").to_string()))],
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    let mut stream = client.wait_for(&id).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!((&question["params"]["mode"], &question["params"]["url"]), (&json!("url"), &json!("http://x/")));
    assert!(question["params"]["elicitationId"].is_string(), "{question}");
    client.answer(&question, json!({"action": "accept"})).await;
    assert_eq!(text_of(&stream.response().await), json!({"action": "accept"}).to_string());
}

/// A stream without event ids can't be taken up again, and one with ids must not be: its request is lost.
#[tokio::test]
async fn a_broken_stream_is_not_taken_up_again() {
    let upstream = calling(|heard| vec![events_head(), event_with_id("1", &heard.progress(1)), Step::Close]).await;
    let gateway = in_front_of(&upstream).await;
    let client = open(&gateway).await;
    let id = client.start("a", json!({})).await;
    assert_eq!(client.outcome(&id).await["error"]["data"]["reason"], "outcome_unknown");
    assert_eq!(upstream.count("tools/call"), 1);
}

/// -32021 says that the request lacked a capability: of a client that has none of it there is nothing more to be had.
#[tokio::test]
async fn what_a_server_says_of_the_hop_is_not_the_clients_business() {
    let upstream = calling(|heard| {
        let error = match heard.body["params"]["name"].as_str().unwrap() {
            "lacking" => json!({"code": -32021, "message": "m", "data": {"requiredCapabilities": {"sampling": {}}}}),
            "declared" => {
                json!({"code": -32021, "message": "m", "data": {"requiredCapabilities": {"elicitation": {}}}})
            }
            "version" => json!({"code": -32022, "message": "m", "data": {"supported": [], "requested": ""}}),
            _ => json!({"code": -32020, "message": "m"}),
        };
        vec![heard.refuses(400, &error)]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({"elicitation": {}})).open().await;
    let id = client.start("lacking", json!({})).await;
    let response = client.outcome(&id).await;
    assert_eq!(response["result"]["isError"], true, "{response}");
    for tool in ["declared", "version", "headers"] {
        let id = client.start(tool, json!({})).await;
        assert_eq!(client.outcome(&id).await["error"]["code"], -32603, "{tool}");
    }
}
