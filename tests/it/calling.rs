//! The project's own client, as `taskgate call` uses it, through the gateway: in the era that it finds out for itself.

use std::time::Duration;

use http::HeaderMap;
use taskgate::client::{self, Config, Connected, Era, Event, Modern};
use taskgate::demo::server::{self, Options};
use taskgate::jobs::Jobs;
use tokio::sync::mpsc;

use crate::support::{Gateway, Value, json, within};

const ERAS: [server::Era; 2] = [server::Era::Legacy, server::Era::Modern];

async fn start(era: server::Era, tasks: &str) -> (Gateway, Modern, mpsc::Receiver<Event>) {
    let gateway = Gateway::setup().server(Options { era, ..Options::default() }).tasks(tasks).start().await;
    let config = Config {
        url: format!("http://{}/mcp", gateway.address).parse().unwrap(),
        headers: HeaderMap::new(),
        credentials: None,
        tls: None,
        connect_timeout: Duration::from_secs(10),
        max_message: 1 << 24,
        jobs: Jobs::default(),
    };
    match within(client::connect(config, Era::Auto, Jobs::default())).await.unwrap() {
        (Connected::Modern(modern), events) => (gateway, modern, events),
        (Connected::Legacy(_), _) => panic!("the gateway speaks both eras, and the newer is preferred"),
    }
}

fn text(result: &str) -> String {
    let result: Value = serde_json::from_str(result).unwrap();
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}")).to_owned()
}

/// Answers so many forms, and says whether a task was made.
async fn answer(events: &mut mpsc::Receiver<Event>, forms: usize) -> bool {
    let (mut made, mut answered) = (false, 0);
    while answered < forms {
        match within(events.recv()).await.unwrap() {
            Event::Created(_) => made = true,
            Event::Question(question) => {
                let schema: Value = serde_json::from_str(&question.schema).unwrap();
                let fields = json!({"name": "Ada", "confirm": true, "colour": "red"});
                let wanted = schema["properties"].as_object().unwrap().keys();
                question.accept(wanted.map(|field| (field.clone(), fields[field].clone())).collect());
                answered += 1;
            }
            Event::Progress(_) | Event::Status(_) | Event::Log { .. } => {}
        }
    }
    made
}

#[tokio::test]
async fn questions_are_answered_in_the_call_or_in_its_task() {
    for era in ERAS {
        for (tasks, in_task) in
            [("defer: never, questions: in_call", false), ("defer: 0s, questions: in_task, poll_interval: 50ms", true)]
        {
            for (tool, forms, said) in [
                ("ask", 1, "Hello, Ada"),
                ("ask_two", 2, "Hello, Ada; confirmed: true"),
                ("ask_twice", 2, "Hello, Ada; colour: red"),
            ] {
                let (_gateway, client, mut events) = start(era, tasks).await;
                client.require_tasks().unwrap();
                let called = within(client.call(tool, None));
                let (result, made) = tokio::join!(called, answer(&mut events, forms));
                assert_eq!((text(&result.unwrap()).as_str(), made), (said, in_task), "{era:?} {tool}");
            }
        }
    }
}

#[tokio::test]
async fn a_call_is_cancelled_before_and_after_it_has_become_a_task() {
    for era in ERAS {
        for tasks in ["defer: 1h", "defer: 0s"] {
            let (gateway, client, mut events) = start(era, tasks).await;
            let begun = async {
                gateway.started("hold", 1).await;
                if tasks == "defer: 0s" {
                    assert!(matches!(within(events.recv()).await, Some(Event::Created(_))));
                }
            };
            tokio::select! {
                result = client.call("hold", None) => panic!("nothing released it: {result:?}"),
                () = begun => {}
            }
            within(client.cancel()).await.unwrap();
            gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
        }
    }
}

#[tokio::test]
async fn a_tool_with_mirrored_arguments_runs_once() {
    for era in ERAS {
        let (gateway, client, _events) = start(era, "").await;
        let deployed = within(client.call("deploy", Some(r#"{"region":"Zürich","target":{"zone":"a"}}"#))).await;
        assert_eq!(text(&deployed.unwrap()), "Zürich, a", "{era:?}");
        assert_eq!(gateway.upstream.stats().tool("deploy").started, 1, "{era:?}");
    }
}
