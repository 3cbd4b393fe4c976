//! What a server asks in the middle of a call: whom it reaches, when, how often, and where the answer goes.

use http::StatusCode;
use taskgate::demo::server::Options;

use crate::support::{Gateway, Value, json, related, text_of};

const ELICIT: &str = "elicitation/create";

/// Where a question's text is, and what the tool makes of the answer.
fn name(name: &str) -> Value {
    json!({"name": name})
}

#[tokio::test]
async fn a_question_comes_at_once_where_a_stream_is_open() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({"message": "Who are you?"})).await;
    let question = stream.until_method(ELICIT).await;
    // 2025-11-25 tasks, "Related Task Metadata": it names its task, and is as the server wrote it.
    assert_eq!(related(&question), Some(&*id));
    assert_eq!(question["params"]["message"], "Who are you?");
    assert_eq!(question["params"]["_meta"]["vendor.example/n"], 1);
    assert!(question["id"].as_str().is_some_and(|question| question.starts_with(&format!("tg.{id}."))), "{question}");
    client.until(&id, "input_required").await;
    client.accept(&question, name("Ann")).await;
    let outcome = client.outcome(&id).await;
    assert_eq!(text_of(&outcome), "Hello, Ann");
    assert_eq!(client.task(&id).await["status"], "completed");
    assert_eq!(gateway.upstream.stats().stray_answers, 0);
}

#[tokio::test]
async fn without_a_stream_it_waits_for_tasks_result() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    let mut waiting = client.wait_for(&id).await;
    let question = waiting.until_method(ELICIT).await;
    assert_eq!(related(&question), Some(&*id));
    client.accept(&question, name("Bob")).await;
    let rest = waiting.messages().await;
    assert_eq!(text_of(rest.last().unwrap()), "Hello, Bob");
    assert!(!rest.iter().any(|message| message["method"] == ELICIT), "{rest:?}");
}

#[tokio::test]
async fn a_wait_that_is_there_already_gets_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask_twice", json!({})).await;
    let mut waiting = client.wait_for(&id).await;
    let first = waiting.until_method(ELICIT).await;
    client.accept(&first, name("Ann")).await;
    let second = waiting.until_method(ELICIT).await;
    assert_ne!(second["id"], first["id"]);
    client.accept(&second, json!({"colour": "red"})).await;
    assert_eq!(text_of(&waiting.response().await), "Hello, Ann; colour: red");
}

#[tokio::test]
async fn a_stream_that_opens_later_gets_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    let mut stream = client.listen().await;
    let question = stream.until_method(ELICIT).await;
    client.accept(&question, name("Ann")).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

#[tokio::test]
async fn it_is_asked_exactly_once_however_many_could_hear_it() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    // Given two streams of the session and three waits,
    let (mut one, mut two) = (client.listen().await, client.listen().await);
    let id = client.start("ask", json!({})).await;
    let waits = [client.wait_for(&id).await, client.wait_for(&id).await, client.wait_for(&id).await];
    // when the server asks, then one of the streams is asked, and nobody else.
    let question = tokio::select! {
        question = one.until_method(ELICIT) => question,
        question = two.until_method(ELICIT) => question,
    };
    client.accept(&question, name("Ann")).await;
    let mut seen = Vec::new();
    for wait in waits {
        seen.extend(wait.messages().await);
    }
    assert_eq!(seen.iter().filter(|message| message.get("result").is_some()).count(), 3);
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    seen.extend(one.messages().await);
    seen.extend(two.messages().await);
    assert!(!seen.iter().any(|message| message["method"] == ELICIT), "{seen:?}");
    assert_eq!(gateway.upstream.stats().answers, 1);
}

#[tokio::test]
async fn two_questions_at_once_are_answered_in_any_order() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask_two", json!({})).await;
    let first = stream.until_method(ELICIT).await;
    let second = stream.until_method(ELICIT).await;
    assert_ne!(first["id"], second["id"]);
    client.accept(&second, json!({"confirm": true})).await;
    // One of them is open still.
    gateway.seen(|stats| stats.answers == 1).await;
    assert_eq!(client.task(&id).await["status"], "input_required");
    client.accept(&first, name("Ann")).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann; confirmed: true");
}

#[tokio::test]
async fn each_kind_of_question_has_its_answer() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    for (tool, arguments, method, answer, said) in [
        ("ask", json!({}), ELICIT, json!({"action": "decline"}), "No name was given (decline)"),
        ("ask", json!({}), ELICIT, json!({"action": "cancel"}), "No name was given (cancel)"),
        ("ask_url", json!({}), ELICIT, json!({"action": "accept"}), "the client chose: accept"),
        (
            "summarize",
            json!({"text": "long"}),
            "sampling/createMessage",
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "short"}}),
            "short",
        ),
        (
            "roots",
            json!({}),
            "roots/list",
            json!({"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}),
            "file:///a\nfile:///b",
        ),
    ] {
        let id = client.start(tool, arguments).await;
        let question = stream.until_method(method).await;
        assert_eq!(related(&question), Some(&*id), "{tool}");
        client.answer(&question, answer).await;
        assert_eq!(text_of(&client.outcome(&id).await), said, "{tool}");
    }
}

#[tokio::test]
async fn an_answer_that_is_an_error_goes_to_the_server() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("summarize", json!({"text": "x"})).await;
    let question = stream.until_method("sampling/createMessage").await;
    let body = json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "User rejected"}});
    assert_eq!(client.post(body.to_string()).await.status, StatusCode::ACCEPTED);
    let outcome = client.outcome(&id).await;
    assert_eq!(text_of(&outcome), "the client refused the question: User rejected");
    assert_eq!(outcome["result"]["isError"], true);
}

#[tokio::test]
async fn the_answer_arrives_byte_for_byte() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    let result =
        r#"{"action":"accept","content":{"name":"\u0041nn","n":[1E3,-0,1.10,9007199254740993]},"zz":{"b":1,"a":2}}"#;
    let body = format!(r#"{{"result":{result},"id":{},"jsonrpc":"2.0"}}"#, question["id"]);
    assert_eq!(client.post(body).await.status, StatusCode::ACCEPTED);
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    let sent = gateway.upstream.stats().last_body;
    let sent = std::str::from_utf8(&sent).unwrap();
    assert_eq!(sent, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
}

#[tokio::test]
async fn what_the_client_did_not_declare_it_is_not_asked() {
    let gateway = Gateway::start().await;
    for (capabilities, tool, arguments) in [
        (json!({}), "ask", json!({})),
        (json!({}), "roots", json!({})),
        (json!({"elicitation": {}}), "summarize", json!({"text": "x"})),
        (json!({"elicitation": {}}), "ask_url", json!({})),
        (json!({"elicitation": {"url": {}}}), "ask", json!({})),
    ] {
        let client = gateway.client().capabilities(capabilities).open().await;
        let mut stream = client.listen().await;
        let id = client.start(tool, arguments).await;
        let seen = stream.until(|message| message["params"]["status"] == "failed").await;
        assert_eq!(seen.len(), 1, "{tool}: {seen:?}");
        assert_eq!(client.outcome(&id).await["result"]["isError"], true, "{tool}");
    }
}

#[tokio::test]
async fn it_is_asked_again_only_when_the_stream_that_asked_is_gone() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    let mut first = client.wait_for(&id).await;
    let asked = first.until_method(ELICIT).await;
    // Given another wait beside the one that asked, then it is not asked;
    let mut second = client.wait_for(&id).await;
    let third = client.wait_for(&id).await;
    drop(third);
    // when the one that asked goes, then the other is, under a new id, and hears that the old one is void.
    drop(first);
    let void = second.until_method("notifications/cancelled").await;
    assert_eq!((&void["params"]["requestId"], related(&void)), (&asked["id"], Some(&*id)));
    let again = second.until_method(ELICIT).await;
    assert_ne!(again["id"], asked["id"]);
    assert_eq!(again["params"], asked["params"]);
    assert_eq!(client.task(&id).await["status"], "input_required");
    client.accept(&again, name("Ann")).await;
    assert_eq!(text_of(&second.response().await), "Hello, Ann");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.questions, stats.answers), (1, 1));
}

#[tokio::test]
async fn it_waits_for_whoever_comes_when_nobody_is_left() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let asked = stream.until_method(ELICIT).await;
    drop(stream);
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 0.0).await;
    let mut stream = client.listen().await;
    let again = stream.until_method(ELICIT).await;
    assert_ne!(again["id"], asked["id"]);
    client.accept(&again, name("Ann")).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

#[tokio::test]
async fn an_answer_counts_even_if_its_stream_is_gone() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    let mut waiting = client.wait_for(&id).await;
    let question = waiting.until_method(ELICIT).await;
    // The answer is a request of its own, on any connection.
    client.accept(&question, name("Ann")).await;
    drop(waiting);
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

#[tokio::test]
async fn a_second_session_of_the_same_caller_can_answer() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let maker = gateway.open_as("ann").await;
    let id = maker.start("ask", json!({})).await;
    maker.until(&id, "input_required").await;
    let other = gateway.open_as("ann").await;
    // Its own stream belongs to another session: nothing is asked there. Its tasks/result is.
    let mut stream = other.listen().await;
    let mut waiting = other.wait_for(&id).await;
    let question = waiting.until_method(ELICIT).await;
    other.accept(&question, name("Ann")).await;
    assert_eq!(text_of(&waiting.response().await), "Hello, Ann");
    other.delete().await;
    assert!(stream.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_second_session_is_asked_only_what_it_declared() {
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let maker = gateway.open_as("ann").await;
    let id = maker.start("ask", json!({})).await;
    maker.until(&id, "input_required").await;
    let mute = gateway.client().caller("ann").capabilities(json!({})).open().await;
    let mut mute_waits = mute.wait_for(&id).await;
    let priming = mute_waits.next().await.unwrap().unwrap();
    assert!(priming.data.is_empty());
    let able = gateway.open_as("ann").await;
    let mut able_waits = able.wait_for(&id).await;
    let question = able_waits.until_method(ELICIT).await;
    able.accept(&question, name("Ann")).await;
    let seen = mute_waits.messages().await;
    assert!(!seen.iter().any(|message| message["method"] == ELICIT), "{seen:?}");
    assert_eq!(text_of(seen.last().unwrap()), "Hello, Ann");
}

#[tokio::test]
async fn answers_that_fit_nothing_are_told_apart() {
    let gateway = Gateway::setup().callers(&["acme/ann", "acme/bob"]).start().await;
    let client = gateway.open_as("ann").await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    let accept = json!({"action": "accept", "content": {"name": "Eve"}});
    // Never asked: a number that was not given out, a task that is unknown, somebody else's task.
    let bob = gateway.open_as("bob").await;
    for (who, never) in [
        (&client, format!("tg.{id}.99")),
        (&client, "tg.00000000-0000-4000-8000-000000000000.0".to_owned()),
        (&bob, question["id"].as_str().unwrap().to_owned()),
    ] {
        let answer = who.try_answer(&json!(never), accept.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{never}");
        assert_eq!(answer.json().await["error"]["code"], -32600, "{never}");
    }
    assert_eq!(client.task(&id).await["status"], "input_required");
    // Too late: answered already, or over.
    client.accept(&question, name("Ann")).await;
    assert_eq!(client.try_answer(&question["id"], accept.clone()).await.status, StatusCode::ACCEPTED);
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    assert_eq!(client.try_answer(&question["id"], accept.clone()).await.status, StatusCode::ACCEPTED);
    let stats = gateway.upstream.stats();
    assert_eq!((stats.answers, stats.stray_answers), (1, 0));
    // What is no answer to the gateway's own questions is the server's to judge.
    assert_eq!(client.try_answer(&json!("x"), accept).await.status, StatusCode::ACCEPTED);
    gateway.seen(|stats| stats.stray_answers == 1).await;
}

#[tokio::test]
async fn a_cancelled_tasks_question_is_void() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    client.cancel(&id).await;
    let void = stream.until_method("notifications/cancelled").await;
    assert_eq!((&void["params"]["requestId"], related(&void)), (&question["id"], Some(&*id)));
    // An answer that comes all the same is nobody's fault, and changes nothing.
    client.accept(&question, name("Ann")).await;
    gateway.seen(|stats| stats.tool("ask").cancelled == 1).await;
    assert_eq!(client.task(&id).await["status"], "cancelled");
    assert_eq!(gateway.upstream.stats().answers, 0);
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_answered_with_an_error() {
    let gateway = Gateway::setup().tasks("input_timeout: 100ms").start().await;
    let client = gateway.open().await;
    // Given one that was put to a client, and one that was not,
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    let void = stream.until_method("notifications/cancelled").await;
    assert_eq!(void["params"]["requestId"], question["id"]);
    let outcome = client.outcome(&id).await;
    assert_eq!(outcome["result"]["isError"], true);
    assert!(text_of(&outcome).contains("Nobody answered"), "{outcome}");
    drop(stream);
    let other = gateway.open().await;
    let id = other.start("ask", json!({})).await;
    let task = other.until(&id, "failed").await;
    assert!(task["statusMessage"].as_str().unwrap().contains("Nobody answered"), "{task}");
    assert_eq!(gateway.upstream.stats().answers, 2);
}

#[tokio::test]
async fn a_question_that_the_server_withdraws_is_void() {
    let gateway = Gateway::setup()
        .server(Options { answer_timeout: std::time::Duration::from_millis(100), ..Options::default() });
    let gateway = gateway.start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    let void = stream.until_method("notifications/cancelled").await;
    assert_eq!((&void["params"]["requestId"], related(&void)), (&question["id"], Some(&*id)));
    client.until(&id, "failed").await;
    assert_eq!(text_of(&client.outcome(&id).await), "the client did not answer");
}

#[tokio::test]
async fn a_question_on_the_servers_own_stream_finds_the_only_call() {
    for server in
        [Options { ask_on_get: true, ..Options::default() }, Options { always_json: true, ..Options::default() }]
    {
        let gateway = Gateway::setup().server(server).start().await;
        let client = gateway.open().await;
        let mut stream = client.listen().await;
        let id = client.start("ask", json!({})).await;
        let question = stream.until_method(ELICIT).await;
        assert_eq!(related(&question), Some(&*id));
        client.until(&id, "input_required").await;
        client.accept(&question, name("Ann")).await;
        assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    }
}

#[tokio::test]
async fn of_several_calls_nobody_guesses_whose_a_question_is() {
    let gateway = Gateway::setup().server(Options { ask_on_get: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    assert_eq!(related(&question), None);
    assert_eq!(client.task(&id).await["status"], "working");
    assert_eq!(client.task(&held).await["status"], "working");
    client.accept(&question, name("Ann")).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

#[tokio::test]
async fn an_exclusive_tool_runs_alone() {
    let gateway = Gateway::setup()
        .server(Options { ask_on_get: true, ..Options::default() })
        .tasks("tools: [{match: ask, exclusive: true}]")
        .start()
        .await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let id = client.start("ask", json!({})).await;
    // Another session is another conversation: it need not wait.
    let other = gateway.open().await;
    assert_eq!(text_of(&other.call("echo", json!({"text": "x"})).await), "x");
    gateway.upstream.release();
    client.outcome(&held).await;
    let question = stream.until_method(ELICIT).await;
    assert_eq!(related(&question), Some(&*id));
    client.accept(&question, name("Ann")).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

#[tokio::test]
async fn plain_calls_ask_as_the_server_asks() {
    let gateway = Gateway::start().await;
    for version in ["2025-11-25", "2025-06-18"] {
        let client = gateway.client().version(version).open().await;
        let mut call = client.request("tools/call", json!({"name": "ask"})).await;
        let question = call.message().await;
        assert_eq!((&question["method"], related(&question)), (&json!(ELICIT), None));
        client.accept(&question, name("Ann")).await;
        assert_eq!(text_of(&call.response().await), "Hello, Ann", "{version}");
    }
}

#[tokio::test]
async fn a_stream_that_is_taken_up_again_asks_again() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    let body = json!({"jsonrpc": "2.0", "id": "the-wait", "method": "tasks/result", "params": {"taskId": id}});
    let mut waiting = client.post(body.to_string()).await;
    let begun = waiting.next().await.unwrap().unwrap().id.unwrap();
    let asked = waiting.until_method(ELICIT).await;
    drop(waiting);
    // Given a client that lost its stream and comes back for it, then the question is put once more, under a new id,
    let mut again = client.get(Some(&begun)).await;
    let question = again.until_method(ELICIT).await;
    assert_ne!(question["id"], asked["id"]);
    client.accept(&question, name("Ann")).await;
    // and the answer is that of the request which it made.
    let response = again.response().await;
    assert_eq!((text_of(&response), &response["id"]), ("Hello, Ann", &json!("the-wait")));
    // The id under which it was asked first means nothing any more.
    assert_eq!(client.try_answer(&asked["id"], json!({"action": "decline"})).await.status, StatusCode::ACCEPTED);
    assert_eq!(gateway.upstream.stats().answers, 1);
}

#[tokio::test]
async fn a_void_id_answers_nothing() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    let mut waiting = client.wait_for(&id).await;
    let asked = waiting.until_method(ELICIT).await;
    drop(waiting);
    let mut again = client.wait_for(&id).await;
    let question = again.until_method(ELICIT).await;
    let late = client.try_answer(&asked["id"], json!({"action": "accept", "content": {"name": "Eve"}})).await;
    assert_eq!(late.status, StatusCode::ACCEPTED);
    client.accept(&question, name("Ann")).await;
    assert_eq!(text_of(&again.response().await), "Hello, Ann");
}

#[tokio::test]
async fn a_call_whose_client_takes_no_events_is_asked_elsewhere_or_not_at_all() {
    for always_sse in [true, false] {
        let gateway = Gateway::setup().server(Options { always_sse, ..Options::default() }).start().await;
        let client = gateway.open().await;
        let body = r#"{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":"ask"}}"#;
        let only_json = [("accept", "application/json")];
        // Given no stream on which it could be asked, then the server hears so at once;
        let response = client.post_with(&only_json, body).await.json().await;
        assert!(text_of(&response).starts_with("the client refused the question"), "{response}");
        // and with one, it is asked there.
        let mut stream = client.listen().await;
        let answering = async {
            let question = stream.until_method(ELICIT).await;
            assert_eq!(related(&question), None);
            client.accept(&question, name("Ann")).await;
        };
        let (answer, ()) = tokio::join!(client.post_with(&only_json, body), answering);
        assert_eq!(text_of(&answer.json().await), "Hello, Ann");
    }
}

#[tokio::test]
async fn every_question_of_a_stream_that_is_gone_is_void_before_it_is_asked_again() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut first = client.listen().await;
    let id = client.start("ask_two", json!({})).await;
    // Given one stream that has asked both,
    let asked = [first.until_method(ELICIT).await, first.until_method(ELICIT).await];
    let mut second = client.listen().await;
    // when it goes, then the other says of each that it is void, and then asks it.
    drop(first);
    let mut messages = Vec::new();
    while messages.iter().filter(|message: &&Value| message["method"] == ELICIT).count() < 2 {
        messages.push(second.message().await);
    }
    let place_of = |wanted: &dyn Fn(&Value) -> bool| {
        let mut places = (0..messages.len()).filter(|place| wanted(&messages[*place]));
        let place = places.next().unwrap_or_else(|| panic!("{asked:?}: {messages:?}"));
        assert_eq!(places.next(), None, "{messages:?}");
        place
    };
    for old in &asked {
        let void = place_of(&|message| {
            message["method"] == "notifications/cancelled" && message["params"]["requestId"] == old["id"]
        });
        let again = place_of(&|message| message["method"] == ELICIT && message["params"] == old["params"]);
        assert!(void < again, "{messages:?}");
        assert!(asked.iter().all(|old| old["id"] != messages[again]["id"]), "{messages:?}");
        assert_eq!(related(&messages[void]), Some(&*id));
    }
    for question in messages.iter().filter(|message| message["method"] == ELICIT) {
        client.accept(question, json!({"name": "Ann", "confirm": true})).await;
    }
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann; confirmed: true");
    assert_eq!(gateway.upstream.stats().answers, 2);
}
