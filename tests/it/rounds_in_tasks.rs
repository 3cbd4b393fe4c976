//! Rounds of questions inside tasks, for clients of either era: what a modern server asks in several requests is one task,
//! its keys are never used twice, and its state comes back as it was given.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use taskgate::demo::server::{Era, Options};

use crate::support::{Gateway, Modern, Value, json, text_of, within};

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// Strange, and allowed.
fn strange() -> [Options; 4] {
    let modern = Options { era: Era::Modern, ..Options::default() };
    [
        Options { reuse_keys: true, ..modern.clone() },
        Options { state_rounds: 2, ..modern.clone() },
        Options { reuse_keys: true, state_rounds: 1, always_sse: true, ..modern.clone() },
        Options { always_json: true, ..modern },
    ]
}

async fn start(options: Options) -> Gateway {
    Gateway::setup().server(options).tasks("defer: 0s, questions: in_task").start().await
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Answers whatever a task asks until it has ended; its end, and every key that it asked under.
async fn answer_all(client: &Modern, id: &str, name: &str) -> (Value, Vec<String>) {
    let mut keys = Vec::new();
    let answering = async {
        loop {
            let task = client.task(id).await;
            match task["status"].as_str().unwrap() {
                "working" => tokio::task::yield_now().await,
                "input_required" => {
                    for (key, asked) in task["inputRequests"].as_object().unwrap() {
                        let wanted = &asked["params"]["requestedSchema"]["properties"];
                        let fields = json!({"name": name, "confirm": true, "colour": "red"});
                        let fields =
                            wanted.as_object().unwrap().keys().map(|field| (field.clone(), fields[field].clone()));
                        keys.push(key.clone());
                        let answers = json!({key: accept(Value::Object(fields.collect()))});
                        assert!(client.update(id, answers).await.error.is_null());
                        // An answered question is gone at once.
                        let now = client.task(id).await;
                        assert!(now["inputRequests"].get(key).is_none(), "{now}");
                    }
                }
                _ => return task,
            }
        }
    };
    let task = within(answering).await;
    (task, keys)
}

#[tokio::test]
async fn a_task_asks_round_after_round_and_never_under_the_same_key() {
    for options in strange() {
        let told = format!("{options:?}");
        let gateway = start(options).await;
        let client = Modern::new(&gateway).with_tasks();
        for (tool, asks, said) in [
            ("ask", 1, "Hello, Ada"),
            ("ask_two", 2, "Hello, Ada; confirmed: true"),
            ("ask_twice", 2, "Hello, Ada; colour: red"),
        ] {
            let id = client.start(tool, json!({})).await;
            let (task, keys) = answer_all(&client, &id, "Ada").await;
            assert_eq!(task["result"]["content"][0]["text"], said, "{told} {task}");
            assert_eq!((keys.len(), keys.iter().collect::<HashSet<_>>().len()), (asks, asks), "{told} {keys:?}");
        }
        assert_eq!(gateway.upstream.stats().refused, 0, "{told}");
    }
}

#[tokio::test]
async fn a_session_is_asked_round_after_round() {
    for options in strange() {
        let told = format!("{options:?}");
        let gateway = start(options).await;
        let client = gateway.open().await;
        // It had no handshake to give.
        let refused = gateway.upstream.stats().refused;
        for in_task in [false, true] {
            for (tool, said) in [("ask_two", "Hello, Ada; confirmed: true"), ("ask_twice", "Hello, Ada; colour: red")] {
                let mut stream = match in_task {
                    true => client.wait_for(&client.start(tool, json!({})).await).await,
                    false => client.request("tools/call", json!({"name": tool, "arguments": {}})).await,
                };
                for _ in 0..2 {
                    let asked = stream.until_method("elicitation/create").await;
                    let field = asked["params"]["requestedSchema"]["required"][0].as_str().unwrap().to_owned();
                    let fields = json!({"name": "Ada", "confirm": true, "colour": "red"});
                    client.accept(&asked, json!({&field: fields[&field]})).await;
                }
                assert_eq!(text_of(&stream.response().await), said, "{told} {in_task}");
            }
        }
        assert_eq!(gateway.upstream.stats().refused, refused, "{told}");
    }
}

#[tokio::test]
async fn a_server_that_keeps_no_state_gets_none() {
    let options = Options { era: Era::Modern, no_request_state: true, ..Options::default() };
    let gateway = start(options).await;
    let client = Modern::new(&gateway).with_tasks();
    let id = client.start("ask_two", json!({})).await;
    assert_eq!(answer_all(&client, &id, "Ada").await.0["status"], "completed");
    let plain = Modern::new(&gateway);
    let asked = plain.call("ask", json!({})).await;
    let answers = json!({asked.key(): accept(json!({"name": "Ada"}))});
    assert_eq!(plain.answer("ask", json!({}), &asked.result, answers).await.text(), "Hello, Ada");
    assert_eq!(gateway.upstream.stats().refused, 0);
}

/// Many tasks that ask at once: each answer goes to the question that it was given for.
#[tokio::test]
async fn many_tasks_ask_at_once_and_each_hears_its_own_answer() {
    for era in ERAS {
        let setup = Gateway::setup().server(Options { era, ..Options::default() }).callers(&["acme/ada"]);
        let gateway = setup.tasks("defer: 0s, questions: in_task").start().await;
        let client = Modern::new(&gateway).with_tasks().caller("ada");
        let all = stream::iter(0..30).map(|number| {
            let client = &client;
            async move {
                let name = format!("Ada {number}");
                let tool = if number % 2 == 0 { "ask" } else { "ask_twice" };
                let id = client.start(tool, json!({"message": format!("Who is {number}?")})).await;
                let (task, _) = answer_all(client, &id, &name).await;
                let said = task["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned();
                assert!(said == format!("Hello, {name}") || said == format!("Hello, {name}; colour: red"), "{task}");
            }
        });
        all.buffer_unordered(10).collect::<Vec<()>>().await;
        assert_eq!(gateway.upstream.stats().stray_answers, 0, "{era:?}");
    }
}

/// Two eras answer one question at the same moment: the server hears one answer.
#[tokio::test]
async fn of_two_answers_at_once_the_server_hears_one() {
    for era in ERAS {
        let gateway = start(Options { era, ..Options::default() }).await;
        let (legacy, modern) = (gateway.open().await, Modern::new(&gateway).with_tasks());
        let refused = gateway.upstream.stats().refused;
        for _ in 0..10 {
            let id = legacy.start("ask", json!({})).await;
            let task = modern.until(&id, "input_required").await;
            let key = task["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            let mut stream = legacy.wait_for(&id).await;
            let asked = stream.until_method("elicitation/create").await;
            let by_update = modern.update(&id, json!({key: accept(json!({"name": "Ada"}))}));
            let by_response = legacy.try_answer(&asked["id"], accept(json!({"name": "Bob"})));
            let (updated, _) = tokio::join!(by_update, by_response);
            assert!(updated.error.is_null(), "{updated:?}");
            let said = text_of(&stream.response().await).to_owned();
            assert!(["Hello, Ada", "Hello, Bob"].contains(&&*said), "{said}");
            assert_eq!(modern.until(&id, "completed").await["result"]["content"][0]["text"], said);
        }
        let seen = gateway.upstream.stats();
        assert_eq!((seen.answers, seen.stray_answers, seen.refused), (10, 0, refused), "{era:?}");
    }
}
