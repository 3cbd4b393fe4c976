//! The client against the demo server, and against a scripted server that has tasks.

mod modern;
mod scripted;

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{Client, Config, Error, Event, TaskStatus};
use crate::demo::server::{EXACT, Fault, Options, Server};
use crate::jobs::Jobs;
use crate::mcp::version::ProtocolVersion;
use scripted::{Answer, Scripted};

fn config(url: &str) -> Config {
    Config {
        url: url.parse().unwrap(),
        headers: HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer key"))]),
        credentials: None,
        tls: None,
        connect_timeout: Duration::from_secs(5),
        max_message: 16 << 20,
        jobs: Jobs::default(),
    }
}

async fn connect(url: &str) -> (Client, mpsc::Receiver<Event>) {
    Client::connect(config(url), Jobs::default()).await.unwrap()
}

async fn pair(options: Options) -> (Server, Client, mpsc::Receiver<Event>) {
    let server = Server::start_on_loopback(options).await.unwrap();
    let (client, events) = connect(&server.url()).await;
    (server, client, events)
}

fn name(name: &str) -> Map<String, Value> {
    Map::from_iter([("name".to_owned(), json!(name))])
}

/// Answers the next question with a name.
async fn answer_with(events: &mut mpsc::Receiver<Event>, with: &str) {
    loop {
        if let Event::Question(question) = events.recv().await.unwrap() {
            return question.accept(name(with));
        }
    }
}

fn text(result: &str) -> String {
    let result: Value = serde_json::from_str(result).unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn speaks_every_version_and_sends_its_headers() {
    for version in ProtocolVersion::LEGACY {
        let (server, client, _events) = pair(Options { version, ..Options::default() }).await;
        assert_eq!(client.version(), version);
        assert!(client.welcome().contains("taskgate-demo"));
        assert_eq!(text(&client.call(client.new_call(), "echo", Some(r#"{"text":"x"}"#)).await.unwrap()), "x");
        let stats = server.stats();
        assert_eq!(stats.header("authorization"), Some("Bearer key"));
        assert_eq!(stats.method("notifications/initialized"), 1);
        client.close().await;
        server.until(|stats| stats.deleted == 1 && stats.get_streams == 0).await;
    }
}

#[tokio::test]
async fn lists_every_page_and_keeps_results_to_the_byte() {
    let (_server, client, _events) = pair(Options { page_size: Some(4), ..Options::default() }).await;
    let tools = client.tools().await.unwrap();
    assert_eq!(tools.first().unwrap().name, "echo");
    assert_eq!(tools.last().unwrap().name, "fault");
    assert!(tools.iter().all(|tool| tool.task_support.is_none()));
    assert_eq!(client.call(client.new_call(), "exact", None).await.unwrap(), EXACT);
}

#[tokio::test]
async fn progress_and_logs_come_as_events() {
    for options in [Options::default(), Options { event_ids: true, priming: true, ..Options::default() }] {
        let (_server, client, mut events) = pair(options).await;
        let arguments = r#"{"seconds":0,"sections":2}"#;
        client.call(client.new_call(), "report", Some(arguments)).await.unwrap();
        for section in 1..=2 {
            let Event::Progress(progress) = events.recv().await.unwrap() else { panic!("no progress") };
            assert_eq!((progress.progress, progress.total), (f64::from(section), Some(2.0)));
            assert_eq!(progress.message, Some(format!("Section {section} of 2 is written")));
        }
        client.call(client.new_call(), "log", None).await.unwrap();
        let Event::Log { level, data } = events.recv().await.unwrap() else { panic!("no log") };
        assert_eq!((level.as_str(), data.as_str()), ("info", r#"{"number":1,"text":"working on it"}"#));
    }
}

#[tokio::test]
async fn answers_questions_once_on_either_stream() {
    for ask_on_get in [false, true] {
        let (server, client, mut events) = pair(Options { ask_on_get, ..Options::default() }).await;
        let asked = client.call(client.new_call(), "ask", None);
        let (result, ()) = tokio::join!(asked, answer_with(&mut events, "Ada"));
        assert_eq!(text(&result.unwrap()), "Hello, Ada");
        let asked = client.call(client.new_call(), "ask_two", None);
        let answers = async {
            answer_with(&mut events, "Ada").await;
            answer_with(&mut events, "Bob").await;
        };
        let (result, ()) = tokio::join!(asked, answers);
        assert_eq!(text(&result.unwrap()), "Hello, Ada; confirmed: accept");
        let stats = server.stats();
        assert_eq!((stats.answers, stats.stray_answers), (3, 0));
    }
}

#[tokio::test]
async fn declines_what_it_does_not_offer() {
    let (server, client, events) = pair(Options::default()).await;
    drop(events);
    let result = client.call(client.new_call(), "ask", None).await.unwrap();
    assert_eq!(text(&result), "No name was given (cancel)");
    let result = client.call(client.new_call(), "summarize", Some(r#"{"text":"x"}"#)).await.unwrap();
    assert!(text(&result).contains("does not offer"));
    assert_eq!(server.stats().questions, 1);
}

#[tokio::test]
async fn cancelled_calls_stop_and_their_questions_are_withdrawn() {
    let (server, client, mut events) = pair(Options::default()).await;
    let call = client.new_call();
    let asked = client.call(call, "ask", None);
    let cancel = async {
        let Event::Question(question) = events.recv().await.unwrap() else { panic!("no question") };
        client.cancel(call, "enough").await.unwrap();
        question.withdrawn().cancelled().await;
        question.decline();
    };
    let (result, ()) = tokio::join!(asked, cancel);
    assert!(matches!(result, Err(Error::Lost(_))), "{result:?}");
    assert_eq!(server.stats().tool("ask").cancelled, 1);
    assert_eq!(server.stats().answers, 0);
}

#[tokio::test]
async fn resumes_a_call_whose_stream_broke() {
    let (server, client, _events) = pair(Options { event_ids: true, priming: true, ..Options::default() }).await;
    server.fail("tools/call", Fault::Reset, 1);
    let result = client.call(client.new_call(), "report", Some(r#"{"seconds":0,"sections":3}"#)).await;
    assert_eq!(text(&result.unwrap()), "The report has 3 sections.");
    let stats = server.stats();
    assert_eq!((stats.tool("report").started, stats.resumed), (1, 1));
}

#[tokio::test]
async fn opens_the_get_stream_again() {
    let (server, client, mut events) = pair(Options { ask_on_get: true, ..Options::default() }).await;
    server.until(|stats| stats.get_streams == 1).await;
    server.drop_get_streams();
    server.until(|stats| stats.get_streams_opened == 2).await;
    let asked = client.call(client.new_call(), "ask", None);
    let (result, ()) = tokio::join!(asked, answer_with(&mut events, "Ada"));
    assert_eq!(text(&result.unwrap()), "Hello, Ada");
}

#[tokio::test]
async fn every_fault_is_a_clear_error() {
    let (server, client, _events) = pair(Options::default()).await;
    let faults = [
        (Fault::Status(500), "HTTP status 500"),
        (Fault::Status(401), "HTTP status 401"),
        (Fault::Html, "neither JSON nor an event stream"),
        (Fault::Redirect, "HTTP status 307"),
        (Fault::CutJson, "can't be read"),
        (Fault::Close, "the answer was lost"),
        (Fault::Reset, "the answer was lost"),
        (Fault::EndEarly, "the answer was lost"),
        (Fault::Gzip, "compressed"),
        (Fault::WrongId, "not to this request"),
        (Fault::Garbage, "can't be read"),
        (Fault::Flood, "longer than"),
        (Fault::SessionGone, "the server ended the session"),
    ];
    for (fault, said) in faults {
        server.fail("tools/call", fault, 1);
        let error = client.call(client.new_call(), "report", Some(r#"{"seconds":0}"#)).await.unwrap_err();
        let error = error.with_causes();
        assert!(error.contains(said), "{fault:?}: {error}");
    }
    let error = Client::connect(config(&server.url()), Jobs::default());
    server.fail("initialize", Fault::Status(500), 1);
    assert!(error.await.unwrap_err().with_causes().contains("HTTP status 500"));
    let nowhere = Client::connect(config(&server.url()), Jobs::default());
    server.fail("initialize", Fault::Status(404), 1);
    assert_eq!(nowhere.await.unwrap_err().with_causes(), "there is no MCP endpoint at this path (HTTP status 404)");
    let address = server.url();
    server.stop().await;
    let error = Client::connect(config(&address), Jobs::default()).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
}

#[tokio::test]
async fn server_errors_are_kept_whole() {
    let (_server, client, _events) = pair(Options::default()).await;
    let Err(Error::Server(error)) = client.call(client.new_call(), "broken", None).await else { panic!("no error") };
    assert_eq!((error.code, error.message.as_str()), (-32000, "the server fell over"));
    assert!(error.json.contains("9007199254740993"));
}

#[tokio::test]
async fn a_server_without_tasks_is_told_apart() {
    let (server, client, _events) = pair(Options::default()).await;
    assert!(!client.has_tasks());
    let error = client.create_task(client.new_call(), "echo", None, None).await.unwrap_err();
    assert!(matches!(error, Error::NoTasks("2025-11-25")), "{error}");
    assert!(!server.stats().task_seen);
}

fn task(status: &str) -> Value {
    json!({"taskId": "t-1", "status": status, "statusMessage": "busy", "createdAt": "2025-11-25T00:00:00Z",
        "lastUpdatedAt": "2025-11-25T00:00:00Z", "ttl": 60000, "pollInterval": 10})
}

#[tokio::test]
async fn follows_a_task_to_its_result() {
    let server = Scripted::start(|request| match request.method {
        "tools/call" => Answer::result(json!({"task": task("working")})),
        "tasks/get" => Answer::result(task(if request.times < 3 { "working" } else { "completed" })),
        "tasks/result" => Answer::result(json!({"content": [{"type": "text", "text": "done"}]})),
        _ => Answer::nothing(),
    })
    .await;
    let (client, mut events) = connect(&server.url).await;
    let call = client.new_call();
    let created = client.create_task(call, "slow", None, Some(Duration::from_secs(60))).await.unwrap();
    assert_eq!((created.id.as_str(), created.status), ("t-1", TaskStatus::Working));
    assert_eq!(created.poll_interval, Duration::from_millis(10));
    assert_eq!(text(&client.follow(call, created).await.unwrap()), "done");
    let Event::Status(last) = events.recv().await.unwrap() else { panic!("no status") };
    assert_eq!((last.status, last.message.as_deref()), (TaskStatus::Completed, Some("busy")));
    let sent = server.sent("tools/call");
    assert_eq!(sent[0]["params"]["task"], json!({"ttl": 60000}));
    assert_eq!(server.sent("tasks/get").len(), 3);
}

#[tokio::test]
async fn answers_a_question_on_the_result_stream_and_comes_back_when_it_breaks() {
    let question = json!({"jsonrpc": "2.0", "id": "tg.1", "method": "elicitation/create", "params": {
        "message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}}});
    let server = Scripted::start(move |request| match request.method {
        "tools/call" => Answer::result(json!({"task": task("working")})),
        "tasks/get" => Answer::result(task("input_required")),
        // The first stream breaks after the question; the second asks the same again, then has the result.
        "tasks/result" if request.times == 1 => Answer::events([question.clone()]).without_response(),
        "tasks/result" => Answer::events([question.clone()])
            .after_answer()
            .with_result(json!({"content": [{"type": "text", "text": "done"}]})),
        _ => Answer::nothing(),
    })
    .await;
    let (client, mut events) = connect(&server.url).await;
    let call = client.new_call();
    let created = client.create_task(call, "ask", None, None).await.unwrap();
    let (result, ()) = tokio::join!(client.follow(call, created), answer_with(&mut events, "Ada"));
    assert_eq!(text(&result.unwrap()), "done");
    let answers = server.sent("response");
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["id"], "tg.1");
    assert_eq!(answers[0]["result"]["content"], json!({"name": "Ada"}));
    assert_eq!(answers[0]["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], "t-1");
}

#[tokio::test]
async fn an_announced_end_is_fetched_before_the_next_poll() {
    let slowly = |status: &str| {
        let mut task = task(status);
        task["pollInterval"] = json!(3_600_000);
        task
    };
    let ended = json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task("completed")});
    let server = Scripted::start(move |request| match request.method {
        "tools/call" => Answer::events([ended.clone()]).with_result(json!({"task": slowly("working")})),
        "tasks/get" => Answer::result(slowly("completed")),
        "tasks/result" => Answer::result(json!({"content": [{"type": "text", "text": "done"}]})),
        _ => Answer::nothing(),
    })
    .await;
    let (client, _events) = connect(&server.url).await;
    let call = client.new_call();
    let created = client.create_task(call, "slow", None, None).await.unwrap();
    assert_eq!(text(&client.follow(call, created).await.unwrap()), "done");
    assert_eq!(server.sent("tasks/get").len(), 1);
}

#[tokio::test]
async fn cancels_a_task_and_reports_how_it_ended() {
    let server = Scripted::start(|request| match request.method {
        "tools/call" => Answer::result(json!({"task": task("working")})),
        "tasks/cancel" | "tasks/get" => Answer::result(task("cancelled")),
        "tasks/result" => Answer::error(json!({"code": -32602, "message": "Task was cancelled"})),
        _ => Answer::nothing(),
    })
    .await;
    let (client, _events) = connect(&server.url).await;
    let call = client.new_call();
    let created = client.create_task(call, "slow", None, None).await.unwrap();
    assert_eq!(client.cancel_task(&created.id).await.unwrap().status, TaskStatus::Cancelled);
    let Err(Error::Server(error)) = client.follow(call, created).await else { panic!("no error") };
    assert_eq!(error.to_string(), "Task was cancelled (-32602)");
}

#[tokio::test]
async fn bad_tasks_are_clear_errors() {
    let shapes = [
        (json!({"content": []}), "ran the call at once"),
        (json!({"task": 1}), "is no object"),
        (json!({"task": {"status": "working"}}), "has no taskId"),
        (json!({"task": {"taskId": "1", "status": "dancing"}}), "has no status"),
        (json!({"task": {"taskId": "1", "status": 7, "pollInterval": -1}}), "has no status"),
        (json!([]), "can't be read"),
    ];
    for (shape, said) in shapes {
        let answer = shape.clone();
        let server = Scripted::start(move |request| match request.method {
            "tools/call" => Answer::result(answer.clone()),
            _ => Answer::nothing(),
        })
        .await;
        let (client, _events) = connect(&server.url).await;
        let error = client.create_task(client.new_call(), "x", None, None).await.unwrap_err();
        assert!(error.to_string().contains(said), "{shape}: {error}");
    }
}
