//! Calls that ask their clients in the answer: the state that goes out, everything that can come back, and what becomes of
//! the server's call.

use std::sync::Arc;

use hyper::StatusCode;
use taskgate::demo::server::Options;

use super::support::{
    Gateway, Modern, RawUpstream, Value, json,
    raw_upstream::{Step, event, events_head, gate, json_body, last_chunk},
};

fn call(tool: &str) -> Value {
    json!({"name": tool, "arguments": {}})
}

/// The call that goes on with an answer for each question.
#[track_caller]
fn retry(tool: &str, asked: &Value, answers: &[Value]) -> Value {
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let keys: Vec<&String> = asked["inputRequests"].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), answers.len(), "{asked}");
    let answers: Value =
        keys.into_iter().cloned().zip(answers.iter().cloned()).collect::<serde_json::Map<_, _>>().into();
    json!({"name": tool, "arguments": {}, "inputResponses": answers, "requestState": asked["requestState"]})
}

fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

#[tokio::test]
async fn a_question_is_the_answer_and_the_next_call_brings_what_was_said() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask", json!({})).await;
    let requests = asked["inputRequests"].as_object().unwrap();
    let request = requests.values().next().unwrap();
    assert_eq!(request["method"], "elicitation/create");
    assert_eq!(request["params"]["message"], "What is your name?");
    assert!(request.get("id").is_none() && request["params"].get("_meta").is_none(), "{request}");
    assert!(asked.get("ttlMs").is_none() && asked["_meta"]["io.modelcontextprotocol/serverInfo"].is_object());
    let done = client.result("tools/call", retry("ask", &asked, &[named("Ada")])).await;
    assert_eq!(done["content"][0]["text"], "Hello, Ada");
    assert_eq!(done["resultType"], "complete");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.tool("ask").started, stats.answers), (1, 1));
}

#[tokio::test]
async fn each_round_has_its_own_state_and_key() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let first = client.result_of("ask_twice", json!({})).await;
    let answered = retry("ask_twice", &first, &[named("Ada")]);
    let second = client.result("tools/call", answered.clone()).await;
    let key = |asked: &Value| asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    assert_ne!(key(&first), key(&second));
    assert_ne!(first["requestState"], second["requestState"]);
    // The round is over.
    assert_stale(client.error("tools/call", answered).await);
    let blue = json!({"action": "accept", "content": {"colour": "blue"}});
    let done = client.result("tools/call", retry("ask_twice", &second, &[blue])).await;
    assert_eq!(done["content"][0]["text"], "Hello, Ada; colour: blue");
    assert_eq!(gateway.upstream.stats().tool("ask_twice").started, 1);
}

#[track_caller]
fn assert_stale((status, error): (StatusCode, Value)) {
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)), "{error}");
    assert!(error.get("data").is_none(), "{error}");
    assert_eq!(error["message"], "This `requestState` is not valid, or not any more; call again without it");
}

#[tokio::test]
async fn two_questions_at_once_are_asked_together_or_one_after_the_other() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let mut asked = client.result_of("ask_two", json!({})).await;
    while asked["resultType"] == "input_required" {
        let answers: Vec<Value> = asked["inputRequests"]
            .as_object()
            .unwrap()
            .values()
            .map(|request| match request["params"]["message"].as_str() {
                Some("Go on?") => json!({"action": "accept", "content": {"confirm": true}}),
                _ => named("Ada"),
            })
            .collect();
        asked = client.result("tools/call", retry("ask_two", &asked, &answers)).await;
    }
    assert_eq!(asked["content"][0]["text"], "Hello, Ada; confirmed: true");
}

#[tokio::test]
async fn urls_samples_and_roots_are_asked_for_as_well() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask_url", json!({})).await;
    let request = asked["inputRequests"].as_object().unwrap().values().next().unwrap();
    assert_eq!(request["params"]["mode"], "url");
    assert!(request["params"].get("elicitationId").is_none(), "{request}");
    let done = client.result("tools/call", retry("ask_url", &asked, &[json!({"action": "accept"})])).await;
    assert_eq!(done["content"][0]["text"], "the client chose: accept");

    let asked = client.result("tools/call", json!({"name": "summarize", "arguments": {"text": "x"}})).await;
    let sample = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "short"}});
    let mut again = retry("summarize", &asked, &[sample]);
    again["arguments"] = json!({"text": "x"});
    assert_eq!(client.result("tools/call", again).await["content"][0]["text"], "short");

    let asked = client.result_of("roots", json!({})).await;
    let roots = json!({"roots": [{"uri": "file:///a"}]});
    let done = client.result("tools/call", retry("roots", &asked, &[roots])).await;
    assert_eq!(done["content"][0]["text"], "file:///a");
}

#[tokio::test]
async fn missing_and_foreign_keys_get_the_same_questions_and_a_fresh_state() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let first = client.result_of("ask", json!({})).await;
    let mut asked = first.clone();
    for answers in [json!({}), json!({"other": named("Eve")}), Value::Null] {
        let mut again = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"]});
        if !answers.is_null() {
            again["inputResponses"] = answers;
        }
        let next = client.result("tools/call", again).await;
        assert_eq!(next["inputRequests"], first["inputRequests"]);
        assert_ne!(next["requestState"], asked["requestState"]);
        asked = next;
    }
    let done = client.result("tools/call", retry("ask", &asked, &[named("Ada")])).await;
    assert_eq!(done["content"][0]["text"], "Hello, Ada");
    assert_eq!(gateway.upstream.stats().answers, 1);
}

#[tokio::test]
async fn a_malformed_answer_is_refused_and_uses_nothing_up() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask", json!({})).await;
    for answer in [json!(1), json!({"action": "maybe"}), json!({"result": named("Ada")})] {
        let (status, error) = client.error("tools/call", retry("ask", &asked, &[answer])).await;
        assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)), "{error}");
    }
    let mut no_map = retry("ask", &asked, &[named("Ada")]);
    no_map["inputResponses"] = json!([]);
    assert_eq!(client.error("tools/call", no_map).await.1["code"], -32602);
    client.result("tools/call", retry("ask", &asked, &[named("Ada")])).await;
}

#[tokio::test]
async fn a_state_is_good_only_for_its_caller_its_route_and_its_call() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).second_route().start().await;
    let forms = json!({"elicitation": {}});
    let alice = Modern::new(&gateway).caller("alice").declares(forms.clone());
    let asked = alice.result_of("ask", json!({})).await;
    let good = retry("ask", &asked, &[named("Ada")]);
    // Somebody else.
    assert_stale(Modern::new(&gateway).caller("bob").declares(forms.clone()).error("tools/call", good.clone()).await);
    // Somewhere else.
    let elsewhere = Modern::new(&gateway).caller("alice").path("/second").declares(forms);
    assert_stale(elsewhere.error("tools/call", good.clone()).await);
    // Something else.
    for (key, value) in [("name", json!("ask_twice")), ("arguments", json!({"message": "Another?"}))] {
        let mut other = good.clone();
        other[key] = value;
        assert_stale(alice.error("tools/call", other).await);
    }
    // Tampered with.
    let state = asked["requestState"].as_str().unwrap();
    let flipped = if state.ends_with('A') { "B" } else { "A" };
    for tampered in [&state[1..], &format!("{}{flipped}", &state[..state.len() - 1]), "", "x"] {
        let mut other = good.clone();
        other["requestState"] = json!(tampered);
        assert_stale(alice.error("tools/call", other).await);
    }
    let mut number = good.clone();
    number["requestState"] = json!(7);
    assert_stale(alice.error("tools/call", number).await);
    // None of that has used it up; the same call spelt another way is the same call.
    let done = alice.result("tools/call", good.clone()).await;
    assert_eq!(done["content"][0]["text"], "Hello, Ada");
    assert_stale(alice.error("tools/call", good).await);
    assert_eq!(gateway.upstream.stats().tool("ask").started, 1);
}

#[tokio::test]
async fn of_two_retries_of_one_round_one_goes_on() {
    let gateway = Gateway::start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask", json!({})).await;
    let again = retry("ask", &asked, &[named("Ada")]);
    let (one, other) = tokio::join!(client.request("tools/call", again.clone()), client.request("tools/call", again));
    let (done, stale) = if one.error.is_null() { (one, other) } else { (other, one) };
    assert!(done.result.is_object(), "{done:?}");
    assert_eq!(stale.refusal(), (200, -32602));
    assert_eq!(gateway.upstream.stats().answers, 1);
}

#[tokio::test]
async fn a_call_that_nobody_goes_on_with_is_cancelled_and_its_question_answered() {
    let gateway = Gateway::setup().tasks("input_timeout: 100ms").start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask", json!({})).await;
    let stats = gateway.seen(|stats| stats.tool("ask").finished == 1 && stats.deleted == 1).await;
    assert_eq!((stats.answers, stats.sessions), (1, 0));
    assert_stale(client.error("tools/call", retry("ask", &asked, &[named("Ada")])).await);
}

#[tokio::test]
async fn a_client_that_leaves_during_its_retry_has_cancelled() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |_| {
        let question = json!({"jsonrpc": "2.0", "id": "theirs", "method": "elicitation/create",
            "params": {"message": "?", "requestedSchema": {"type": "object"}}});
        vec![events_head(), event(&question.to_string()), Step::Gate(Arc::clone(&held)), last_chunk()]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("x", json!({})).await;
    let again = client.open("tools/call", retry("x", &asked, &[json!({"action": "decline"})]));
    tokio::select! {
        answer = again => panic!("nothing more was said: {:?}", answer.status),
        _ = server.until(|heard| heard.iter().any(|heard| heard.body["result"]["action"] == "decline")) => {}
    }
    server.heard("notifications/cancelled", 1).await;
    open.add_permits(1);
}

#[tokio::test]
async fn what_happens_while_nobody_waits_is_there_for_the_retry() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |heard| {
        let question = json!({"jsonrpc": "2.0", "id": "theirs", "method": "elicitation/create",
            "params": {"message": "?", "requestedSchema": {"type": "object"}}});
        let steps = [events_head(), event(&question.to_string()), Step::Gate(Arc::clone(&held))];
        steps.into_iter().chain([event(&heard.says("without you")), last_chunk()]).collect()
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("x", json!({})).await;
    open.add_permits(1);
    let done = client.result("tools/call", retry("x", &asked, &[json!({"action": "cancel"})])).await;
    assert_eq!(done["content"][0]["text"], "without you");
}

#[tokio::test]
async fn a_question_that_its_server_withdraws_is_not_waited_for() {
    let (first, second) = (gate(), gate());
    let (one, two) = (Arc::clone(&first), Arc::clone(&second));
    let server = RawUpstream::calling(move |heard| {
        let ask = |id: &str| {
            event(
                &json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create",
                "params": {"message": id, "requestedSchema": {"type": "object"}}})
                .to_string(),
            )
        };
        let withdraw = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}});
        vec![
            events_head(),
            ask("a"),
            Step::Gate(Arc::clone(&one)),
            event(&withdraw.to_string()),
            ask("b"),
            Step::Gate(Arc::clone(&two)),
            event(&heard.says("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let mut asked = client.result_of("x", json!({})).await;
    first.add_permits(1);
    second.add_permits(1);
    let mut rounds = 0;
    while asked["resultType"] == "input_required" {
        let open = asked["inputRequests"].as_object().unwrap().len();
        asked = client.result("tools/call", retry("x", &asked, &vec![json!({"action": "cancel"}); open])).await;
        rounds += 1;
    }
    assert!(rounds <= 2, "{rounds}");
    assert_eq!(asked["content"][0]["text"], "done");
}

#[tokio::test]
async fn what_the_client_did_not_declare_ends_the_call() {
    let gateway = Gateway::start().await;
    for (tool, arguments, required) in [
        ("ask", json!({}), json!({"elicitation": {"form": {}}})),
        ("ask_url", json!({}), json!({"elicitation": {"url": {}}})),
        ("summarize", json!({"text": "x"}), json!({"sampling": {}})),
        ("roots", json!({}), json!({"roots": {}})),
    ] {
        let server = asks_whatever_is_declared(tool).await;
        let strict = Gateway::setup().in_front_of(&server.url()).start().await;
        let client = Modern::new(&strict).declares(json!({}));
        let (status, error) = client.error("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!(-32021)), "{tool}: {error}");
        assert_eq!(error["data"], json!({"requiredCapabilities": required}), "{tool}");
        // Its question was refused, and it hears that nobody waits.
        server.heard("notifications/cancelled", 1).await;
    }
    // A well-behaved server asks nothing then, and says so itself.
    let result = Modern::new(&gateway).declares(json!({})).result_of("ask", json!({})).await;
    assert_eq!(result["isError"], true);
}

/// A server that asks what its client never said it could be asked.
async fn asks_whatever_is_declared(tool: &'static str) -> RawUpstream {
    RawUpstream::calling(move |_| {
        let (method, params) = match tool {
            "ask" => ("elicitation/create", json!({"message": "?", "requestedSchema": {"type": "object"}})),
            "ask_url" => ("elicitation/create", json!({"mode": "url", "message": "?", "url": "https://x.example"})),
            "summarize" => ("sampling/createMessage", json!({"messages": [], "maxTokens": 1})),
            _ => ("roots/list", json!({})),
        };
        let question = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        vec![events_head(), event(&question.to_string()), Step::Stall]
    })
    .await
}

#[tokio::test]
async fn lists_and_completions_ask_nothing() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::start(move |heard| {
        let is_asking = matches!(heard.method.as_str(), "tools/list" | "completion/complete");
        is_asking.then(|| {
            let question =
                json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {"message": "?"}});
            let result =
                if heard.method == "tools/list" { r#"{"tools":[]}"# } else { r#"{"completion":{"values":[]}}"# };
            let answer = event(&heard.answer(result));
            vec![events_head(), event(&question.to_string()), Step::Gate(Arc::clone(&held)), answer, last_chunk()]
        })
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let argument = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}});
    for (count, (method, params)) in
        [("tools/list", json!({})), ("completion/complete", argument)].into_iter().enumerate()
    {
        let is_refusal =
            |heard: &&super::support::raw_upstream::Heard| heard.body["id"] == "q" && heard.method.is_empty();
        let refused = server.until(move |heard| heard.iter().filter(is_refusal).count() > count);
        let (result, refused) = tokio::join!(client.result(method, params), async {
            let refused = refused.await;
            open.add_permits(1);
            refused
        });
        assert_eq!(result["resultType"], "complete");
        let refused = &refused.iter().rfind(is_refusal).unwrap().body;
        match method {
            "tools/list" => assert_eq!(refused["result"], json!({"action": "cancel"})),
            _ => assert_eq!(refused["error"]["code"], -32601),
        }
    }
    // The list is that of a client which can be asked; else nothing is declared, so that a server has nothing to ask.
    let initialized = server.heard("initialize", 2).await;
    let declared: Vec<_> = initialized.iter().map(|heard| &heard.body["params"]["capabilities"]).collect();
    assert!(declared[0].get("elicitation").is_some() && *declared[1] == json!({}), "{declared:?}");
}

#[tokio::test]
async fn prompts_and_resources_ask_too() {
    let server = RawUpstream::start(|heard| {
        let is_asking = matches!(heard.method.as_str(), "prompts/get" | "resources/read");
        is_asking.then(|| {
            let question = json!({"jsonrpc": "2.0", "id": 9, "method": "elicitation/create",
                "params": {"message": "?", "requestedSchema": {"type": "object"}}});
            let result = r#"{"messages":[],"contents":[]}"#;
            // The question and the answer come together: nothing is left to be asked.
            let is_over = heard.body["params"]["name"] == "over";
            let stall = if is_over { event(&heard.answer(result)) } else { Step::Stall };
            vec![events_head(), event(&question.to_string()), stall]
        })
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    for (method, params) in [("prompts/get", json!({"name": "p"})), ("resources/read", json!({"uri": "a:b"}))] {
        let asked = client.result(method, params).await;
        assert_eq!(asked["resultType"], "input_required");
        assert!(asked.get("ttlMs").is_none(), "{asked}");
    }
}

/// A server whose tool needs a URL to be visited first: it has been once it was asked for.
async fn needs_a_url() -> RawUpstream {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    RawUpstream::calling(move |heard| {
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            return vec![json_body(&heard.says("linked"))];
        }
        let error = json!({"code": -32042, "message": "link first", "data": {"elicitations": [
            {"mode": "url", "elicitationId": "e", "message": "Link it", "url": "https://x.example/link"}]}});
        vec![json_body(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{error}}}", heard.id))]
    })
    .await
}

#[tokio::test]
async fn a_url_that_is_needed_first_is_asked_for_and_the_call_sent_again() {
    let server = needs_a_url().await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("x", json!({})).await;
    let request = asked["inputRequests"].as_object().unwrap().values().next().unwrap();
    assert_eq!(
        *request,
        json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Link it", "url": "https://x.example/link"}})
    );
    let done = client.result("tools/call", retry("x", &asked, &[json!({"action": "accept"})])).await;
    assert_eq!(done["content"][0]["text"], "linked");
    // On the session that asked for it.
    let calls = server.heard("tools/call", 2).await;
    assert_eq!(calls[0].headers["mcp-session-id"], calls[1].headers["mcp-session-id"]);
}

#[tokio::test]
async fn a_url_that_is_declined_or_cannot_be_asked_for_ends_the_call() {
    let server = needs_a_url().await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let asked = Modern::new(&gateway).result_of("x", json!({})).await;
    let declined =
        Modern::new(&gateway).result("tools/call", retry("x", &asked, &[json!({"action": "decline"})])).await;
    assert_eq!(declined["isError"], true);
    assert_eq!(server.count("tools/call"), 1);
    let server = needs_a_url().await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway).declares(json!({"elicitation": {}}));
    let (status, error) = client.error("tools/call", json!({"name": "x"})).await;
    assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!(-32021)));
    assert_eq!(error["data"]["requiredCapabilities"], json!({"elicitation": {"url": {}}}));
}

#[tokio::test]
async fn calls_that_wait_leave_most_of_a_route_to_others() {
    let callers = &["acme/alice", "acme/bob", "acme/carol"];
    let gateway = Gateway::setup().callers(callers).upstream("max_in_flight: 4").start().await;
    let [alice, bob, carol] =
        ["alice", "bob", "carol"].map(|name| Modern::new(&gateway).caller(name).declares(json!({"elicitation": {}})));
    assert_eq!(alice.result_of("ask", json!({})).await["resultType"], "input_required");
    assert_eq!(alice.error("tools/call", call("ask")).await.1["data"]["reason"], "parked_calls");
    assert_eq!(bob.result_of("ask", json!({})).await["resultType"], "input_required");
    assert_eq!(carol.error("tools/call", call("ask")).await.1["data"]["reason"], "parked_calls");
    assert_eq!(carol.result_of("echo", json!({"text": "still"})).await["content"][0]["text"], "still");
}

#[tokio::test]
async fn only_so_many_calls_of_one_caller_wait() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).upstream("max_in_flight: 256").start().await;
    let forms = || json!({"elicitation": {}});
    let alice = Modern::new(&gateway).caller("alice").declares(forms());
    let mut last = Value::Null;
    for _ in 0..64 {
        last = alice.result_of("ask", json!({})).await;
        assert_eq!(last["resultType"], "input_required");
    }
    let (status, error) = alice.error("tools/call", call("ask")).await;
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(429)), "{error}");
    assert_eq!(error["data"]["reason"], "parked_calls");
    // Its server's question was answered all the same.
    gateway.seen(|stats| stats.tool("ask").finished == 1).await;
    Modern::new(&gateway).caller("bob").declares(forms()).result_of("ask", json!({})).await;
    alice.result("tools/call", retry("ask", &last, &[named("Ada")])).await;
    assert_eq!(alice.result_of("ask", json!({})).await["resultType"], "input_required");
}

#[tokio::test]
async fn a_question_on_the_servers_own_stream_reaches_the_client() {
    let gateway = Gateway::setup().server(Options { ask_on_get: true, ..Options::default() }).start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("ask", json!({})).await;
    let done = client.result("tools/call", retry("ask", &asked, &[named("Ada")])).await;
    assert_eq!(done["content"][0]["text"], "Hello, Ada");
}

#[tokio::test]
async fn a_server_that_dies_while_its_call_waits_is_an_error_for_the_retry() {
    let open = gate();
    let held = Arc::clone(&open);
    let server = RawUpstream::calling(move |_| {
        let question = json!({"jsonrpc": "2.0", "id": 9, "method": "elicitation/create",
            "params": {"message": "?", "requestedSchema": {"type": "object"}}});
        vec![events_head(), event(&question.to_string()), Step::Gate(Arc::clone(&held)), Step::Reset]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    let asked = client.result_of("x", json!({})).await;
    open.add_permits(1);
    let (status, error) = client.error("tools/call", retry("x", &asked, &[json!({"action": "cancel"})])).await;
    assert_eq!((status, &error["data"]["reason"]), (StatusCode::OK, &json!("outcome_unknown")));
}
