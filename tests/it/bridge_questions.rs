//! What a server of the modern era asks inside its answers, as requests to a legacy client and back.

use std::time::Duration;

use taskgate::app::Timing;

use crate::support::raw_upstream::{Heard, Step, event, events_head, gate, json_body, last_chunk};
use crate::support::stateless::{calling, form, stateless, stream_of};
use crate::support::{Answer, Gateway, RawUpstream, Value, json, text_of};

async fn in_front_of(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).start().await
}

fn sampling() -> Value {
    json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}})
}

fn url(address: &str) -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "url", "message": "open", "url": address}})
}

/// Says what it was given for a question, as text.
fn tells_given(heard: &Heard, key: &str) -> Vec<Step> {
    vec![json_body(&heard.tells(&heard.given(key).to_string()))]
}

/// The questions of a stream, so many; each must be there before any is answered.
async fn questions(answer: &mut Answer, count: usize) -> Vec<Value> {
    let mut asked = Vec::new();
    while asked.len() < count {
        let message = answer.message().await;
        if message.get("method").is_some() && message.get("id").is_some() {
            asked.push(message);
        }
    }
    asked
}

#[tokio::test]
async fn a_question_becomes_a_request_and_its_answer_goes_back_in_the_next_round() {
    let upstream = calling(|heard| match heard.body["params"]["requestState"].as_str() {
        None => vec![json_body(&heard.asks(&json!({"k": form("name?")}), "a\u{e4}\"1"))],
        Some("a\u{e4}\"1") => tells_given(heard, "k"),
        Some(other) => panic!("not the state that was given: {other}"),
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut answer = client.request("tools/call", json!({"name": "a", "arguments": {"x": 1.0}})).await;
    let question = answer.until_method("elicitation/create").await;
    assert_eq!(question["params"]["message"], "name?");
    assert!(question["id"].is_string() && question.get("resultType").is_none(), "{question}");
    client.answer(&question, json!({"action": "accept", "content": {"n": 1}, "_meta": {"x": 1}})).await;
    let response = answer.response().await;
    assert_eq!(text_of(&response), r#"{"action":"accept","content":{"n":1}}"#);
    let heard = upstream.heard("tools/call", 2).await;
    assert_ne!(heard[0].id, heard[1].id);
    assert_eq!(heard[1].body["params"]["arguments"], heard[0].body["params"]["arguments"]);
    assert_eq!(heard[1].headers["mcp-name"], "a");
}

#[tokio::test]
async fn the_questions_of_a_round_are_asked_at_once_and_answered_in_any_order() {
    let upstream = calling(|heard| {
        if heard.given("a").is_null() {
            let roots = json!({"method": "roots/list"});
            return vec![json_body(&heard.asks(&json!({"a": form("?"), "b": sampling(), "c": roots}), ""))];
        }
        let given = &heard.body["params"]["inputResponses"];
        assert_eq!(heard.body["params"]["requestState"], "");
        vec![json_body(&heard.tells(&given.to_string()))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let mut asked = questions(&mut answer, 3).await;
    asked.sort_by_key(|question| question["method"].as_str().map(str::to_owned));
    client
        .answer(&asked[2], json!({"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}))
        .await;
    client.answer(&asked[1], json!({"roots": [{"uri": "file:///x"}]})).await;
    assert_eq!(upstream.count("tools/call"), 1);
    client.answer(&asked[0], json!({"action": "decline"})).await;
    let text = text_of(&answer.response().await).to_owned();
    let given: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(given["a"], json!({"action": "decline"}));
    assert_eq!(given["c"], json!({"roots": [{"uri": "file:///x"}]}));
    assert_eq!(given["b"]["model"], "m");
}

#[tokio::test]
async fn prompts_and_resources_ask_as_well() {
    let upstream = stateless(json!({"prompts": {}, "resources": {}}), |heard| match heard.method.as_str() {
        "prompts/get" | "resources/read" if heard.given("k").is_null() => {
            Some(vec![json_body(&heard.asks(&json!({"k": form("?")}), "s"))])
        }
        "prompts/get" => Some(vec![json_body(&heard.completes(json!({"messages": []})))]),
        "resources/read" => {
            Some(vec![json_body(&heard.completes(json!({"contents": [], "ttlMs": 5, "cacheScope": "public"})))])
        }
        _ => None,
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    for (method, params, result) in [
        ("prompts/get", json!({"name": "p"}), json!({"messages": []})),
        ("resources/read", json!({"uri": "a:/b"}), json!({"contents": []})),
    ] {
        let mut answer = client.request(method, params).await;
        let question = answer.until_method("elicitation/create").await;
        client.accept(&question, json!({})).await;
        assert_eq!(answer.response().await["result"], result);
    }
}

#[tokio::test]
async fn a_form_that_is_not_answered_well_is_cancelled() {
    let upstream = calling(|heard| {
        if heard.given("k").is_null() {
            return vec![json_body(&heard.asks(&json!({"k": form("?")}), "s"))];
        }
        tells_given(heard, "k")
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let error = json!({"error": {"code": -1, "message": "no"}});
    for reply in [error, json!({"result": {"action": "perhaps"}}), json!({"result": {}})] {
        let mut answer = client.request("tools/call", json!({"name": "a"})).await;
        let mut reply = reply;
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = answer.until_method("elicitation/create").await["id"].take();
        client.post(reply.to_string()).await;
        assert_eq!(text_of(&answer.response().await), r#"{"action":"cancel"}"#);
    }
}

#[tokio::test]
async fn sampling_and_roots_that_are_refused_end_the_call() {
    let upstream = stateless(json!({"tools": {}, "prompts": {}}), |heard| {
        let asked = if heard.method == "tools/call" { sampling() } else { json!({"method": "roots/list"}) };
        let may_ask = heard.method == "tools/call" || heard.method == "prompts/get";
        may_ask.then(|| vec![json_body(&heard.asks(&json!({"k": asked}), "s"))])
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let refuse = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "User rejected"}});
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let question = answer.until_method("sampling/createMessage").await;
    client.post(refuse(&question["id"]).to_string()).await;
    let response = answer.response().await;
    assert_eq!(response["result"]["isError"], true);
    assert!(text_of(&response).contains("sampling"), "{response}");
    let mut answer = client.request("prompts/get", json!({"name": "p"})).await;
    let question = answer.until_method("roots/list").await;
    client.post(refuse(&question["id"]).to_string()).await;
    let response = answer.response().await;
    assert_eq!(response["error"]["code"], -32603, "{response}");
    assert!(response["error"]["message"].as_str().unwrap().contains("roots"), "{response}");
    assert_eq!((upstream.count("tools/call"), upstream.count("prompts/get")), (1, 1));
}

#[tokio::test]
async fn a_question_that_nobody_answers_in_time_ends_the_call() {
    let upstream = calling(|heard| vec![json_body(&heard.asks(&json!({"k": form("?")}), "s"))]).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("input_timeout: 300ms").start().await;
    let client = gateway.open().await;
    let answer = client.request("tools/call", json!({"name": "a"})).await;
    let messages = answer.messages().await;
    let [question, void, response] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((&void["method"], &void["params"]["requestId"]), (&json!("notifications/cancelled"), &question["id"]));
    assert_eq!(response["error"]["data"]["reason"], "input_timeout");
    // Whoever answers now is late, and that is all.
    client.answer(question, json!({"action": "decline"})).await;
    assert_eq!(upstream.count("tools/call"), 1);
}

#[tokio::test]
async fn progress_with_a_question_gives_it_more_time() {
    let upstream = calling(|heard| {
        if heard.given("k").is_null() {
            return vec![json_body(&heard.asks(&json!({"k": form("?")}), "s"))];
        }
        tells_given(heard, "k")
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("input_timeout: 1500ms").start().await;
    let client = gateway.open().await;
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let question = answer.until_method("elicitation/create").await;
    let token = &question["params"]["_meta"]["progressToken"];
    // Longer than the time for an answer: it is time itself that has to pass.
    for progress in 0..20 {
        client.notify("notifications/progress", json!({"progressToken": token, "progress": progress})).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.answer(&question, json!({"action": "decline"})).await;
    assert_eq!(text_of(&answer.response().await), r#"{"action":"decline"}"#);
    assert_eq!(upstream.count("notifications/progress"), 0);
}

#[tokio::test]
async fn a_url_that_is_being_visited_is_waited_for_and_then_asked_for_again() {
    let upstream = calling(|heard| {
        let state = heard.body["params"]["requestState"].as_str().unwrap_or("0");
        let round: u32 = state.parse().unwrap();
        match round {
            // Agreed to in round 0; asked for again until it has been seen.
            0..3 => vec![json_body(&heard.asks(&json!({"k": url("https://x.example/1")}), &(round + 1).to_string()))],
            3 => vec![json_body(&heard.asks(&json!({"k": form("and?")}), "4"))],
            _ => tells_given(heard, "k"),
        }
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let question = answer.until_method("elicitation/create").await;
    let id = question["params"]["elicitationId"].as_str().unwrap().to_owned();
    assert_eq!(question["params"]["url"], "https://x.example/1");
    client.answer(&question, json!({"action": "accept"})).await;
    // The client is not asked again, and hears when the server has what it wanted.
    let next = questions(&mut answer, 1).await.remove(0);
    assert_eq!(next["params"]["message"], "and?");
    client.answer(&next, json!({"action": "decline"})).await;
    let messages = answer.messages().await;
    let complete = messages.iter().find(|message| message["method"] == "notifications/elicitation/complete");
    assert_eq!(complete.unwrap()["params"]["elicitationId"], id.as_str(), "{messages:?}");
    assert_eq!(text_of(messages.last().unwrap()), r#"{"action":"decline"}"#);
}

#[tokio::test]
async fn progress_rises_over_all_rounds_under_the_clients_token() {
    let upstream = calling(|heard| {
        let is_first = heard.given("k").is_null();
        let last = if is_first { heard.asks(&json!({"k": form("?")}), "s") } else { heard.tells("done") };
        let steps: [u32; 3] = if is_first { [1, 5, 7] } else { [2, 7, 9] };
        let mut messages: Vec<String> = steps.iter().map(|progress| heard.progress(*progress)).collect();
        messages.push(last);
        stream_of(&messages)
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let params = json!({"name": "a", "_meta": {"progressToken": "mine"}});
    let mut answer = client.request("tools/call", params).await;
    let mut seen = answer.until(|message| message["method"] == "elicitation/create").await;
    client.answer(seen.last().unwrap(), json!({"action": "decline"})).await;
    seen.extend(answer.messages().await);
    let progress: Vec<&Value> = seen.iter().filter(|m| m["method"] == "notifications/progress").collect();
    assert!(progress.iter().all(|message| message["params"]["progressToken"] == "mine"), "{progress:?}");
    let values: Vec<u64> = progress.iter().map(|message| message["params"]["progress"].as_u64().unwrap()).collect();
    assert_eq!(values, [1, 5, 7, 9]);
    let heard = upstream.heard("tools/call", 2).await;
    let token = |heard: &Heard| heard.body["params"]["_meta"]["progressToken"].clone();
    assert_ne!(token(&heard[0]), token(&heard[1]));
}

#[tokio::test]
async fn log_lines_come_at_the_level_that_the_session_asked_for() {
    let upstream = calling(|heard| {
        let line = |level: &str| {
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": level, "data": level}})
                .to_string()
        };
        stream_of(&[line("debug"), line("error"), heard.tells("done")])
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let lines = |messages: Vec<Value>| -> Vec<Value> {
        messages.into_iter().filter(|m| m["method"] == "notifications/message").collect()
    };
    // 2026-07-28: nobody asked for any.
    let messages = client.request("tools/call", json!({"name": "a"})).await.messages().await;
    assert_eq!(lines(messages), Vec::<Value>::new());
    client.result("logging/setLevel", json!({"level": "warning"})).await;
    let messages = client.request("tools/call", json!({"name": "a"})).await.messages().await;
    let lines = lines(messages);
    assert_eq!((lines.len(), &lines[0]["params"]["level"]), (1, &json!("error")));
}

#[tokio::test]
async fn roots_are_asked_for_once_until_they_change() {
    let upstream = calling(|heard| {
        if heard.given("k").is_null() {
            return vec![json_body(&heard.asks(&json!({"k": {"method": "roots/list"}}), "s"))];
        }
        tells_given(heard, "k")
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({"roots": {"listChanged": true}})).open().await;
    let roots = json!({"roots": [{"uri": "file:///a"}]});
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let question = answer.until_method("roots/list").await;
    client.answer(&question, roots.clone()).await;
    assert_eq!(text_of(&answer.response().await), roots.to_string());
    // Not asked again, so that nothing has to be streamed.
    let answer = client.request("tools/call", json!({"name": "a"})).await;
    assert!(answer.is_json());
    assert_eq!(text_of(&answer.response().await), roots.to_string());
    client.notify("notifications/roots/list_changed", json!({})).await;
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    let question = answer.until_method("roots/list").await;
    client.answer(&question, json!({"roots": []})).await;
    assert_eq!(text_of(&answer.response().await), r#"{"roots":[]}"#);
}

#[tokio::test]
async fn a_server_that_only_wants_to_be_asked_again_is() {
    let upstream = calling(|heard| match heard.body["params"]["requestState"].as_str() {
        None => vec![json_body(&heard.answer(r#"{"resultType":"input_required","requestState":"later"}"#))],
        Some(_) => vec![json_body(&heard.tells("done"))],
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let answer = client.request("tools/call", json!({"name": "a"})).await;
    // Nothing was said to the client meanwhile.
    assert!(answer.is_json());
    assert_eq!(text_of(&answer.response().await), "done");
}

#[tokio::test]
async fn a_slow_answer_is_begun_as_a_stream_that_can_still_ask() {
    let open = gate();
    let held = open.clone();
    let upstream = calling(move |heard| {
        if heard.given("k").is_null() {
            let asks = heard.asks(&json!({"k": form("?")}), "s");
            return vec![events_head(), Step::Gate(held.clone()), event(&asks), last_chunk()];
        }
        tells_given(heard, "k")
    })
    .await;
    let timing = Timing { keep_alive: Duration::from_millis(50), ..Timing::default() };
    let gateway = Gateway::setup().in_front_of(&upstream.url()).timing(timing).start().await;
    let client = gateway.open().await;
    // The answer's head comes although the server has said nothing.
    let mut answer = client.request("tools/call", json!({"name": "a"})).await;
    assert!(answer.is_events());
    open.add_permits(1);
    let question = answer.until_method("elicitation/create").await;
    client.answer(&question, json!({"action": "decline"})).await;
    assert_eq!(text_of(&answer.response().await), r#"{"action":"decline"}"#);
}
