//! The client in the modern era: what it asks first, and how a call comes to its end.

use super::super::{Connected, Era, Modern, connect as connect_to};
use super::*;
use crate::demo::server;

async fn connected(url: &str, era: Era) -> Result<(Connected, mpsc::Receiver<Event>), Error> {
    connect_to(config(url), era, Jobs::default()).await
}

async fn modern(url: &str) -> (Modern, mpsc::Receiver<Event>) {
    match connected(url, Era::Auto).await.unwrap() {
        (Connected::Modern(modern), events) => (modern, events),
        (Connected::Legacy(_), _) => panic!("a session was opened"),
    }
}

fn speaking(era: server::Era) -> Options {
    Options { era, ..Options::default() }
}

/// The result of `server/discover` of a server with tasks.
fn discovered() -> Value {
    json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}})
}

#[expect(clippy::needless_pass_by_value, reason = "a call reads best with its JSON in place")]
fn task(status: &str, more: Value) -> Value {
    let mut task = json!({"resultType": "complete", "taskId": "t-1", "status": status, "statusMessage": "busy",
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z", "ttlMs": 60000,
        "pollIntervalMs": 10});
    for (member, value) in more.as_object().unwrap() {
        task[member] = value.clone();
    }
    task
}

fn handle() -> Value {
    task("working", json!({"resultType": "task"}))
}

fn done() -> Value {
    task("completed", json!({"result": {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}}))
}

#[tokio::test]
async fn the_era_is_what_the_server_says() {
    for (spoken, wanted, is_modern) in [
        (server::Era::Legacy, Era::Auto, false),
        (server::Era::Modern, Era::Auto, true),
        (server::Era::Both, Era::Auto, true),
        (server::Era::Both, Era::Legacy, false),
        (server::Era::Both, Era::Modern, true),
    ] {
        let server = Server::start_on_loopback(speaking(spoken)).await.unwrap();
        let (connected, _events) = connected(&server.url(), wanted).await.unwrap();
        assert_eq!(matches!(connected, Connected::Modern(_)), is_modern, "{spoken:?} {wanted:?}");
        assert_eq!(server.stats().sessions_opened, u64::from(!is_modern));
    }
    let legacy = Server::start_on_loopback(speaking(server::Era::Legacy)).await.unwrap();
    let error = connected(&legacy.url(), Era::Modern).await.unwrap_err();
    assert!(matches!(error, Error::OtherEra(Era::Legacy)), "{error:?}");
    let modern = Server::start_on_loopback(speaking(server::Era::Modern)).await.unwrap();
    let error = connected(&modern.url(), Era::Legacy).await.unwrap_err();
    assert!(matches!(error, Error::OtherEra(Era::Modern)), "{error:?}");
    let both = Server::start_on_loopback(speaking(server::Era::Both)).await.unwrap();
    both.fail("server/discover", Fault::Status(404), 1);
    let error = connected(&both.url(), Era::Modern).await.unwrap_err();
    assert!(matches!(error, Error::NoEndpoint), "{error:?}");
}

#[tokio::test]
async fn what_says_nothing_of_the_era_is_an_error() {
    let server = Server::start_on_loopback(speaking(server::Era::Both)).await.unwrap();
    for status in [401, 403, 408, 429, 500, 503] {
        server.fail("server/discover", Fault::Status(status), 1);
        assert!(connected(&server.url(), Era::Auto).await.is_err(), "{status}");
    }
    assert_eq!(server.stats().sessions_opened, 0);
    for fault in [Fault::Status(400), Fault::Status(404), Fault::Status(405), Fault::Html] {
        server.fail("server/discover", fault, 1);
        let (connected, _events) = connected(&server.url(), Era::Auto).await.unwrap();
        assert!(matches!(connected, Connected::Legacy(_)), "{fault:?}");
    }
    let disjoint = Scripted::start(|request| match request.method {
        "server/discover" => {
            Answer::error(json!({"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"]}}))
        }
        _ => Answer::nothing(),
    })
    .await;
    let error = connected(&disjoint.url, Era::Auto).await.unwrap_err();
    assert!(error.to_string().contains("only versions that are not spoken"), "{error}");
    assert!(disjoint.sent("initialize").is_empty());
}

#[tokio::test]
async fn plain_results_progress_and_failures() {
    let server = Server::start_on_loopback(speaking(server::Era::Modern)).await.unwrap();
    let (client, mut events) = modern(&server.url()).await;
    assert!(matches!(client.require_tasks(), Err(Error::NoTasks("2026-07-28"))));
    assert_eq!(text(&client.call("echo", Some(r#"{"text":"x"}"#)).await.unwrap()), "x");
    client.call("report", Some(r#"{"seconds":0,"sections":2}"#)).await.unwrap();
    let Event::Progress(progress) = events.recv().await.unwrap() else { panic!("no progress") };
    assert_eq!((progress.progress, progress.total), (1.0, Some(2.0)));
    let Err(Error::Server(error)) = client.call("broken", None).await else { panic!("no error") };
    assert_eq!(error.code, -32000);
    let deploy = client.call("deploy", Some(r#"{"region":"Zürich","shard":7,"target":{"zone":"a"}}"#)).await.unwrap();
    assert_eq!(text(&deploy), "Zürich, 7, a");
    let stats = server.stats();
    assert_eq!((stats.header("authorization"), stats.tool("deploy").started), (Some("Bearer key"), 1));
    server.fail("tools/call", Fault::Close, 1);
    assert!(matches!(client.call("count", None).await, Err(Error::Lost(_))));
    server.until(|stats| stats.tool("count").started == 1).await;
}

#[tokio::test]
async fn questions_are_answered_round_by_round() {
    for (reuse_keys, state_rounds, no_request_state) in [(false, 0, false), (true, 2, false), (false, 0, true)] {
        let options = Options { reuse_keys, state_rounds, no_request_state, ..speaking(server::Era::Modern) };
        let server = Server::start_on_loopback(options).await.unwrap();
        let (client, mut events) = modern(&server.url()).await;
        let (result, ()) = tokio::join!(client.call("ask", None), answer_with(&mut events, "Ada"));
        assert_eq!(text(&result.unwrap()), "Hello, Ada");
        if !no_request_state {
            let answers = async {
                answer_with(&mut events, "Ada").await;
                answer_with(&mut events, "Bob").await;
            };
            let (result, ()) = tokio::join!(client.call("ask_twice", None), answers);
            assert_eq!(text(&result.unwrap()), "Hello, Ada; colour: accept");
        }
        drop(events);
        assert_eq!(text(&client.call("ask", None).await.unwrap()), "No name was given (cancel)");
        let Err(Error::Server(error)) = client.call("summarize", Some(r#"{"text":"x"}"#)).await else {
            panic!("a result")
        };
        assert_eq!((error.code, server.stats().refused), (-32021, 0));
    }
}

#[tokio::test]
async fn leaving_a_call_cancels_it() {
    let server = Server::start_on_loopback(speaking(server::Era::Modern)).await.unwrap();
    let (client, _events) = modern(&server.url()).await;
    tokio::select! {
        _ = client.call("hold", None) => panic!("nothing released it"),
        _ = server.until(|stats| stats.tool("hold").started == 1) => {}
    }
    client.cancel().await.unwrap();
    server.until(|stats| stats.tool("hold").cancelled == 1).await;
}

#[tokio::test]
async fn a_task_is_followed_and_its_questions_answered() {
    let form = json!({"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}});
    let server = Scripted::start(move |request| match request.method {
        "server/discover" => Answer::result(discovered()),
        "tools/call" => Answer::result(handle()),
        "tasks/get" if request.times < 3 => Answer::result(task("working", json!({}))),
        // The same key again, though it was answered: each is put once.
        "tasks/get" if request.times < 6 => {
            Answer::result(task("input_required", json!({"inputRequests": {"q1": form}})))
        }
        "tasks/get" => Answer::result(done()),
        _ => Answer::result(json!({"resultType": "complete"})),
    })
    .await;
    let (client, mut events) = modern(&server.url).await;
    client.require_tasks().unwrap();
    let watching = async {
        let Event::Created(created) = events.recv().await.unwrap() else { panic!("no task") };
        assert_eq!((created.id.as_str(), created.poll_interval), ("t-1", Duration::from_millis(10)));
        assert_eq!(created.ttl, Some(Duration::from_secs(60)));
        answer_with(&mut events, "Ada").await;
    };
    let (result, ()) = tokio::join!(client.call("slow", None), watching);
    assert_eq!(text(&result.unwrap()), "done");
    let answered = server.sent("tasks/update");
    assert_eq!(answered.len(), 1, "{answered:?}");
    assert_eq!(answered[0]["params"]["taskId"], "t-1");
    let answer = json!({"q1": {"action": "accept", "content": {"name": "Ada"}}});
    assert_eq!(answered[0]["params"]["inputResponses"], answer);
    let call = &server.sent("tools/call")[0]["params"];
    assert!(call.get("task").is_none());
    let declared = &call["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"];
    assert_eq!(*declared, json!({"io.modelcontextprotocol/tasks": {}}));
}

#[tokio::test]
async fn tasks_end_in_every_way() {
    let ends = [
        (task("failed", json!({"error": {"code": -32603, "message": "lost"}})), "lost (-32603)"),
        (task("failed", json!({})), "without an error"),
        (task("completed", json!({})), "without a result"),
        (task("cancelled", json!({})), "the task was cancelled: busy"),
        (task("dancing", json!({})), "has no status"),
        (task("input_required", json!({})), "neither `inputRequests` nor"),
    ];
    for (end, said) in ends {
        let server = Scripted::start(move |request| match request.method {
            "server/discover" => Answer::result(discovered()),
            "tools/call" => Answer::result(handle()),
            _ => Answer::result(end.clone()),
        })
        .await;
        let (client, _events) = modern(&server.url).await;
        let error = client.call("slow", None).await.unwrap_err();
        assert!(error.with_causes().contains(said), "{said}: {error}");
    }
}

#[tokio::test]
async fn a_task_is_cancelled_by_its_id() {
    let server = Scripted::start(|request| match request.method {
        "server/discover" => Answer::result(discovered()),
        "tools/call" => Answer::result(handle()),
        "tasks/get" => Answer::result(task("working", json!({}))),
        _ => Answer::result(json!({"resultType": "complete"})),
    })
    .await;
    let (client, mut events) = modern(&server.url).await;
    tokio::select! {
        _ = client.call("slow", None) => panic!("it ended"),
        _ = events.recv() => {}
    }
    client.cancel().await.unwrap();
    assert_eq!(server.sent("tasks/cancel")[0]["params"]["taskId"], "t-1");
}

#[tokio::test]
async fn results_of_any_shape_are_clear_errors() {
    let shapes = [
        (json!({"resultType": "party"}), "unknown type"),
        (json!({"resultType": "input_required"}), "neither"),
        (json!({"resultType": "input_required", "inputRequests": {"q": 1}}), "not a map"),
        (json!({"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}), "does not offer"),
        (json!({"resultType": "task"}), "has no taskId"),
    ];
    for (shape, said) in shapes {
        let server = Scripted::start(move |request| match request.method {
            "server/discover" => Answer::result(discovered()),
            _ => Answer::result(shape.clone()),
        })
        .await;
        let (client, _events) = modern(&server.url).await;
        let error = client.call("x", None).await.unwrap_err();
        assert!(error.to_string().contains(said), "{said}: {error}");
    }
}
