//! The server behind the gateway breaks: for plain calls and for tasks, the client hears what is known, soon, and no tool
//! runs twice.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use taskgate::demo::server::{Fault, Options};

use crate::support::raw_upstream::{
    Heard, Step, bare, chunk, event, event_with_id, events_head, gate, json_body, last_chunk, send, whole,
};
use crate::support::{Client, Gateway, RawUpstream, Value, json, text_of, within};

const REFUSED: &str = "upstream_unreachable";
const PROTOCOL: &str = "upstream_protocol";
const UNKNOWN: &str = "outcome_unknown";
const DEADLINE: &str = "deadline";

/// The reason in an error of the gateway's own.
#[track_caller]
fn reason(response: &Value) -> &str {
    assert_eq!(response["error"]["code"], -32603, "{response}");
    response["error"]["data"]["reason"].as_str().unwrap_or_else(|| panic!("no reason: {response}"))
}

/// Calls a tool as a task that fails: the reason, once the record, the outcome and the outcome read again agree on it.
async fn failed_task(client: &Client, tool: &str, arguments: Value) -> String {
    let id = client.start(tool, arguments).await;
    let response = client.outcome(&id).await;
    let task = client.task(&id).await;
    assert_eq!(task["status"], "failed", "{response}");
    assert_eq!(task["statusMessage"], response["error"]["message"]);
    assert_eq!(client.outcome(&id).await["error"], response["error"]);
    reason(&response).to_owned()
}

/// A client with a call in flight of each kind, which nothing that happens to others may touch.
struct Bystander {
    client: Client,
    task: String,
}

impl Bystander {
    async fn watch(gateway: &Gateway) -> Self {
        let client = gateway.open().await;
        let task = client.start("hold", json!({})).await;
        gateway.started("hold", 1).await;
        Self { client, task }
    }

    async fn expect_unhurt(self, gateway: &Gateway) {
        assert_eq!(self.client.task(&self.task).await["status"], "working");
        assert_eq!(text_of(&self.client.call("echo", json!({"text": "still here"})).await), "still here");
        gateway.upstream.release();
        assert_eq!(text_of(&self.client.outcome(&self.task).await), "held to the end");
    }
}

/// A fault of the fixture's, what the gateway makes of it, and whether the tool has run.
const FAULTS: [(Fault, &str, u64); 12] = [
    (Fault::Status(500), UNKNOWN, 0),
    (Fault::Status(502), UNKNOWN, 0),
    (Fault::Status(503), UNKNOWN, 0),
    (Fault::Status(400), PROTOCOL, 0),
    (Fault::Status(401), PROTOCOL, 0),
    (Fault::Status(429), PROTOCOL, 0),
    (Fault::Html, PROTOCOL, 0),
    (Fault::Redirect, PROTOCOL, 0),
    (Fault::CutJson, PROTOCOL, 0),
    (Fault::Close, UNKNOWN, 1),
    (Fault::Gzip, PROTOCOL, 1),
    (Fault::Flood, PROTOCOL, 1),
];

#[tokio::test]
async fn each_fault_has_its_reason_and_the_tool_runs_once() {
    let gateway = Gateway::setup().listen("max_body: 256KiB").start().await;
    let bystander = Bystander::watch(&gateway).await;
    let client = gateway.open().await;
    let mut ran = 0;
    for (fault, expected, runs) in FAULTS {
        let before = gateway.upstream.stats().http_requests;
        gateway.upstream.fail("tools/call", fault, 1);
        let response = client.call("count", json!({})).await;
        assert_eq!(reason(&response), expected, "{fault:?}");
        // One more would be a redirect that was followed, or a second try.
        assert_eq!(gateway.upstream.stats().http_requests, before + 1, "{fault:?}");
        gateway.upstream.fail("tools/call", fault, 1);
        assert_eq!(failed_task(&client, "count", json!({})).await, expected, "{fault:?}");
        ran += 2 * runs;
        assert_eq!(gateway.upstream.stats().counter, ran, "{fault:?}");
    }
    // The sessions are as good as before.
    assert_eq!(client.call("count", json!({})).await["result"]["structuredContent"]["count"], ran + 1);
    bystander.expect_unhurt(&gateway).await;
}

#[tokio::test]
async fn streams_that_end_before_the_response_leave_the_outcome_unknown() {
    let gateway = Gateway::start().await;
    let bystander = Bystander::watch(&gateway).await;
    let client = gateway.open().await;
    let mut runs = 0;
    for fault in [Fault::Reset, Fault::EndEarly] {
        gateway.upstream.fail("tools/call", fault, 1);
        let answer = client.request("tools/call", json!({"name": "log", "arguments": {}})).await;
        assert!(answer.is_events());
        let messages = answer.messages().await;
        assert_eq!(messages[0]["method"], "notifications/message", "{fault:?}");
        assert_eq!(messages.len(), 2);
        assert_eq!(reason(&messages[1]), UNKNOWN, "{fault:?}");
        gateway.upstream.fail("tools/call", fault, 1);
        assert_eq!(failed_task(&client, "log", json!({})).await, UNKNOWN, "{fault:?}");
        runs += 2;
        assert_eq!(gateway.upstream.stats().tool("log").started, runs, "{fault:?}");
    }
    bystander.expect_unhurt(&gateway).await;
}

/// Noise between the events, and a response that comes twice, are no reason to fail.
#[tokio::test]
async fn a_task_survives_what_it_need_not_understand() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for fault in [Fault::Garbage, Fault::Twice] {
        gateway.upstream.fail("tools/call", fault, 1);
        let id = client.start("echo", json!({"text": "through"})).await;
        assert_eq!(text_of(&client.outcome(&id).await), "through", "{fault:?}");
        assert_eq!(client.task(&id).await["status"], "completed", "{fault:?}");
    }
    gateway.upstream.fail("tools/call", Fault::WrongId, 1);
    assert_eq!(failed_task(&client, "echo", json!({"text": "whose?"})).await, UNKNOWN);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_unreachable() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let working = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    gateway.upstream.stop().await;
    // The call in flight broke off, the later ones were never sent.
    assert_eq!(reason(&client.outcome(&working).await), UNKNOWN);
    assert_eq!(reason(&client.call("count", json!({})).await), REFUSED);
    assert_eq!(failed_task(&client, "count", json!({})).await, REFUSED);
    let (_, answer) = gateway.client().initialize().await;
    assert_eq!(reason(&answer.response().await), REFUSED);
    assert_eq!(gateway.upstream.stats().counter, 0);
}

#[tokio::test]
async fn a_session_that_the_upstream_has_forgotten_ends_for_its_client_alone() {
    let gateway = Gateway::start().await;
    let bystander = Bystander::watch(&gateway).await;
    let client = gateway.open().await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 2).await;
    gateway.upstream.fail("tools/call", Fault::SessionGone, 1);
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "count", "arguments": {}}});
    let answer = client.post(call.to_string()).await;
    // 2025-11-25 transports, "Session Management" 3 and 4: the client initialises anew.
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let error = answer.json().await;
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32600)));
    assert_eq!(client.post(call.to_string()).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(None).await.status, StatusCode::NOT_FOUND);
    // What it held is over, and can be read on the client's next session.
    let next = gateway.open().await;
    assert_eq!(reason(&next.outcome(&held).await), UNKNOWN);
    assert_eq!(next.call("count", json!({})).await["result"]["structuredContent"]["count"], 1);
    bystander.expect_unhurt(&gateway).await;
}

/// B09: the upstream forgets the session while a call of it runs on: the call may still end, on its open stream.
#[tokio::test]
async fn a_call_that_runs_on_after_its_session_ended_is_heard_to_its_end() {
    let opened = gate();
    let until = opened.clone();
    let upstream = RawUpstream::start(move |heard| match &*heard.method {
        "tools/list" => Some(vec![whole(404, "text/plain", "no such session")]),
        "tools/call" => Some(vec![
            events_head(),
            event(&heard.progress(1)),
            Step::Gate(until.clone()),
            event(&heard.says("all the same")),
            last_chunk(),
        ]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let id = client.start("x", json!({})).await;
    upstream.heard("tools/call", 1).await;
    assert_eq!(client.request("tools/list", json!({})).await.status, StatusCode::NOT_FOUND);
    let next = gateway.open().await;
    assert_eq!(next.task(&id).await["status"], "working");
    opened.add_permits(1);
    assert_eq!(text_of(&next.outcome(&id).await), "all the same");
    assert_eq!(upstream.count("tools/call"), 1);
}

#[tokio::test]
async fn a_task_whose_call_is_refused_with_404_has_not_run() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    gateway.upstream.fail("tools/call", Fault::SessionGone, 1);
    let id = client.start("count", json!({})).await;
    let next = gateway.open().await;
    assert_eq!(reason(&next.outcome(&id).await), REFUSED);
    assert_eq!(client.get(None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(gateway.upstream.stats().counter, 0);
}

/// The upstream was restarted: the listener notices even where the client sends nothing.
#[tokio::test]
async fn a_forgotten_session_closes_its_client_s_stream() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let stream = client.listen().await;
    gateway.seen(|stats| stats.get_streams == 1).await;
    gateway.upstream.forget_sessions();
    gateway.upstream.drop_get_streams();
    assert!(stream.events().await.is_empty());
    assert_eq!(client.get(None).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn silence_ends_at_the_deadline_and_is_cancelled_upstream() {
    let gateway = Gateway::setup().tasks("tools: [{match: hold, deadline: 300ms}]").start().await;
    let bystander = gateway.open().await;
    let other = bystander.start("report", json!({"sections": 1})).await;
    gateway.started("report", 1).await;
    let client = gateway.open().await;
    let call = json!({"jsonrpc": "2.0", "id": "mine", "method": "tools/call",
        "params": {"name": "hold", "arguments": {}}});
    let response = client.post(call.to_string()).await.response().await;
    assert_eq!((reason(&response), &response["error"]["data"]["started"]), (DEADLINE, &json!(true)));
    let seen = gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    assert_eq!(seen.cancelled, ["\"mine\""]);

    let params = json!({"name": "hold", "arguments": {}, "task": {}, "_meta": {"progressToken": 1}});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    let response = client.outcome(&id).await;
    assert_eq!((reason(&response), &response["error"]["data"]["started"]), (DEADLINE, &json!(true)));
    let seen = gateway.seen(|stats| stats.tool("hold").cancelled == 2).await;
    let call: Value = serde_json::from_slice(&seen.last_call).unwrap();
    // The request id upstream is the progress token there.
    assert_eq!(seen.cancelled[1], call["_meta"]["progressToken"].to_string());

    gateway.upstream.release();
    assert_eq!(bystander.outcome(&other).await["result"]["structuredContent"]["sections"], 1);
}

/// A deadline that passes while the task waits for a place: the upstream has seen nothing, and the client learns that.
#[tokio::test]
async fn a_deadline_in_the_queue_says_that_nothing_was_started() {
    let gateway =
        Gateway::setup().upstream("max_in_flight: 1").tasks("tools: [{match: count, deadline: 200ms}]").start().await;
    let client = gateway.open().await;
    let first = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let id = client.start("count", json!({})).await;
    for response in [client.outcome(&id).await, client.call("count", json!({})).await] {
        assert_eq!((reason(&response), &response["error"]["data"]["started"]), (DEADLINE, &json!(false)));
    }
    assert!(gateway.upstream.stats().cancelled.is_empty());
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&first).await), "held to the end");
    assert_eq!(gateway.upstream.stats().counter, 0);
}

type Answering = fn(&Heard) -> Vec<Step>;

/// Answers that are no answers, to the byte.
const BROKEN: [(&str, Answering, &str, bool); 14] = [
    ("202 to a request", |_| vec![bare(202)], PROTOCOL, true),
    ("204 to a request", |_| vec![bare(204)], PROTOCOL, true),
    // B10: it may have run.
    ("an error of a proxy in between", |_| vec![whole(503, "text/html", "<h1>no</h1>")], UNKNOWN, true),
    ("another content type", |heard| vec![whole(200, "application/xml", &heard.says("x"))], PROTOCOL, true),
    ("no content type", |_| vec![send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")], PROTOCOL, true),
    ("no HTTP", |_| vec![send("SSH-2.0-OpenSSH_9.6\r\n"), Step::Close], UNKNOWN, true),
    ("a reset before the head", |_| vec![Step::Reset], UNKNOWN, true),
    (
        "JSON cut by a closed connection",
        |_| {
            vec![
                send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"jsonrpc\":"),
                Step::Close,
            ]
        },
        UNKNOWN,
        true,
    ),
    ("an empty body", |_| vec![json_body("")], PROTOCOL, true),
    (
        "a stream that is reset after progress",
        |heard| vec![events_head(), event(&heard.progress(1)), Step::Reset],
        UNKNOWN,
        true,
    ),
    (
        "a stream that ends within an event",
        |heard| vec![events_head(), chunk(&format!("data: {}", heard.says("x"))), last_chunk()],
        UNKNOWN,
        true,
    ),
    // What a plain caller is told of a result is the server's affair, but in a task it would pass for success.
    ("a result that is null", |heard| vec![json_body(&heard.answer("null"))], PROTOCOL, false),
    (
        "a result of a later protocol",
        |heard| vec![json_body(&heard.answer("{\"resultType\":\"input_required\",\"inputRequests\":{}}"))],
        PROTOCOL,
        false,
    ),
    (
        "a task of the server's own",
        |heard| vec![json_body(&heard.answer("{\"task\":{\"taskId\":\"x\",\"status\":\"working\"}}"))],
        PROTOCOL,
        false,
    ),
];

#[tokio::test]
async fn answers_that_are_none_are_told_as_such() {
    for (what, answering, expected, is_plain_too) in BROKEN {
        let upstream = RawUpstream::calling(answering).await;
        let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
        let client = gateway.open().await;
        if is_plain_too {
            let params = json!({"name": "x", "arguments": {}, "_meta": {"progressToken": "p"}});
            let response = client.response("tools/call", params).await;
            assert_eq!(reason(&response), expected, "{what}");
            assert_eq!(upstream.count("tools/call"), 1, "{what}");
        }
        let before = upstream.count("tools/call");
        assert_eq!(failed_task(&client, "x", json!({})).await, expected, "{what}");
        assert_eq!(upstream.count("tools/call"), before + 1, "{what}");
        // Another session of the same client is served as ever.
        assert!(gateway.open().await.result("tools/list", json!({})).await["tools"].is_array(), "{what}");
    }
}

/// A JSON answer stops half-way and nothing closes: only the deadline ends that.
#[tokio::test]
async fn half_an_answer_and_then_silence_ends_at_the_deadline() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    for (length, is_whole) in [("content-length: 900", true), ("content-length: 900000", false)] {
        let bytes = format!("{head}{length}\r\n\r\n{{\"jsonrpc\":\"2.0\",");
        let upstream = RawUpstream::calling(move |_| vec![send(bytes.clone()), Step::Stall]).await;
        let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("deadline: 300ms").start().await;
        let client = gateway.open().await;
        assert_eq!(failed_task(&client, "x", json!({})).await, DEADLINE);
        let answer = client.request("tools/call", json!({"name": "x"})).await;
        if is_whole {
            assert_eq!(reason(&answer.response().await), DEADLINE);
        } else {
            // A long answer has begun; it breaks off and can't be taken for a whole one.
            let body = http_body_util::BodyExt::collect(answer.into_body());
            assert!(within(body).await.is_err());
        }
        let cancelled = upstream.heard("notifications/cancelled", 2).await;
        let calls = upstream.heard("tools/call", 2).await;
        for (cancelled, call) in cancelled.iter().zip(calls) {
            assert_eq!(cancelled.body["params"]["requestId"], call.body["id"]);
        }
        gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
    }
}

/// A server that always has something to say and never the answer: the deadline holds all the same.
#[tokio::test]
async fn endless_talk_ends_at_the_deadline() {
    let comment = "4\r\n:hi\n\r\n";
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    let event = format!("data: {log}\n\n");
    let event = format!("{:x}\r\n{event}\r\n", event.len());
    let json = "1\r\n \r\n".to_owned();
    for (kind, talk) in
        [("text/event-stream", comment.to_owned()), ("text/event-stream", event), ("application/json", json)]
    {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let script = talk.clone();
        let upstream =
            RawUpstream::calling(move |_| vec![send(head.clone()), Step::Endless(script.clone().into())]).await;
        let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("deadline: 300ms").start().await;
        let client = gateway.open().await;
        assert_eq!(failed_task(&client, "x", json!({})).await, DEADLINE, "{talk}");
        let answer = client.request("tools/call", json!({"name": "x"})).await;
        if answer.is_events() {
            assert_eq!(reason(answer.messages().await.last().unwrap()), DEADLINE, "{talk}");
        } else {
            assert!(within(http_body_util::BodyExt::collect(answer.into_body())).await.is_err());
        }
        upstream.heard("notifications/cancelled", 2).await;
        gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
    }
}

/// The server reads a call and closes without a word: whether it was run is not known, so it is not sent again.
#[tokio::test]
async fn a_connection_that_closes_on_a_call_is_not_tried_again() {
    let upstream = RawUpstream::calling(|_| vec![Step::Close]).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    for calls in 1..=5 {
        assert_eq!(reason(&client.call("x", json!({})).await), UNKNOWN);
        assert_eq!(upstream.count("tools/call"), calls);
    }
}

/// A kept connection that the server closes between two calls: the next call goes on a new one, once. Where the close
/// crosses the call on the wire, the client hears that the outcome is not known.
#[tokio::test]
async fn a_stale_connection_costs_no_call_and_repeats_none() {
    let upstream = RawUpstream::calling(|heard| vec![json_body(&heard.says("once")), Step::Close]).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let mut answered = 0;
    for call in 0..100 {
        let response = client.response("tools/call", json!({"name": "x", "arguments": {"call": call}})).await;
        if response.get("error").is_some() {
            assert_eq!(reason(&response), UNKNOWN);
        } else {
            answered += 1;
        }
        let came = upstream.until(|_| true).await;
        let came = came.iter().filter(|heard| heard.body["params"]["arguments"]["call"] == call).count();
        assert!(came <= 1, "call {call} came {came} times");
    }
    assert!(answered > 0);
}

/// The stream breaks after an event with an id: it is taken up again, for a task by the gateway.
#[tokio::test]
async fn a_broken_stream_with_event_ids_is_taken_up_again() {
    let options = Options { event_ids: true, priming: true, ..Options::default() };
    let gateway = Gateway::setup().server(options).start().await;
    let client = gateway.open().await;
    for (count, fault) in [Fault::Reset, Fault::EndEarly].into_iter().enumerate() {
        gateway.upstream.fail("tools/call", fault, 1);
        let id = client.start("log", json!({"messages": 3})).await;
        assert_eq!(text_of(&client.outcome(&id).await), "logged", "{fault:?}");
        let stats = gateway.upstream.stats();
        assert_eq!((stats.resumed, stats.tool("log").started), (count as u64 + 1, count as u64 + 1), "{fault:?}");
    }
}

/// For a plain call the client comes back itself, with the id that it was given.
#[tokio::test]
async fn a_client_takes_its_broken_stream_up_again() {
    let options = Options { event_ids: true, ..Options::default() };
    let gateway = Gateway::setup().server(options).start().await;
    let client = gateway.open().await;
    gateway.upstream.fail("tools/call", Fault::EndEarly, 1);
    let answer = client.request("tools/call", json!({"name": "log", "arguments": {"messages": 2}})).await;
    let events = answer.events().await;
    let [first] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(first.message()["params"]["data"]["number"], 1);
    let rest = client.get(first.id.as_deref()).await.messages().await;
    assert_eq!(rest.len(), 2);
    assert_eq!(rest[0]["params"]["data"]["number"], 2);
    assert_eq!(text_of(&rest[1]), "logged");
    assert_eq!(gateway.upstream.stats().tool("log").started, 1);
}

#[tokio::test]
async fn a_resumption_that_fails_leaves_the_outcome_unknown() {
    for fault in [Fault::Status(400), Fault::Status(503), Fault::Html, Fault::Close] {
        let options = Options { event_ids: true, priming: true, ..Options::default() };
        let gateway = Gateway::setup().server(options).start().await;
        let client = gateway.open().await;
        gateway.upstream.fail("tools/call", Fault::EndEarly, 1);
        gateway.upstream.fail("GET", fault, 100);
        assert_eq!(failed_task(&client, "log", json!({})).await, UNKNOWN, "{fault:?}");
        let stats = gateway.upstream.stats();
        assert_eq!((stats.resumed, stats.tool("log").started), (0, 1), "{fault:?}");
    }
}

/// A server that closes the stream after every event and wants to be polled (2025-11-25 transports, "Sending Messages to
/// the Server" 6): each event that comes renews the patience with it.
#[tokio::test]
async fn a_server_that_is_polled_by_resumption_gets_there() {
    // Given a server that cuts each of its streams after no more than an event id, by a proper end or without one, far
    // more often than a resumption may fail in a row,
    const CUTS: usize = 17;
    let (asked, streams) = (Mutex::new(String::new()), AtomicUsize::new(0));
    let upstream = RawUpstream::start(move |heard| {
        let number = streams.load(Ordering::SeqCst);
        let primed = chunk(&format!("id: {number}\nretry: 1\ndata: \n\n"));
        if heard.method == "tools/call" {
            heard.id.clone_into(&mut asked.lock().unwrap());
            return Some(vec![events_head(), primed, last_chunk()]);
        }
        let after = heard.headers.get("last-event-id").filter(|_| heard.http_method == "GET")?;
        assert_eq!(after, &number.to_string());
        let number = streams.fetch_add(1, Ordering::SeqCst) + 1;
        let primed = chunk(&format!("id: {number}\nretry: 1\ndata: \n\n"));
        Some(if number > CUTS {
            let id = asked.lock().unwrap().clone();
            let answer = Heard { id, ..heard.clone() }.says("at last");
            vec![events_head(), primed, event(&answer), last_chunk()]
        } else {
            vec![events_head(), primed, if number % 2 == 0 { last_chunk() } else { Step::Close }]
        })
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let id = client.start("x", json!({})).await;
    // then the call is heard to its end, and runs once.
    assert_eq!(text_of(&client.outcome(&id).await), "at last");
    let is_resumption = |heard: &&Heard| heard.headers.contains_key("last-event-id");
    let heard = upstream.until(|_| true).await;
    assert_eq!((heard.iter().filter(is_resumption).count(), upstream.count("tools/call")), (CUTS + 1, 1));
}

/// Who waits for a task hears of its deadline even if the server does not take the cancel that follows from it.
#[tokio::test]
async fn a_cancel_that_the_server_does_not_take_keeps_nobody_waiting() {
    let taken = gate();
    let opened = taken.clone();
    let upstream = RawUpstream::start(move |heard| match &*heard.method {
        "tools/call" if heard.body["params"]["name"] == "x" => Some(vec![Step::Stall]),
        "notifications/cancelled" => Some(vec![Step::Gate(opened.clone()), bare(202)]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tasks("deadline: 1s").start().await;
    let client = gateway.open().await;
    let next = gateway.open().await;
    let id = client.start("x", json!({})).await;
    upstream.heard("tools/call", 1).await;
    // Given a session that is ended at the server as soon as the cancel is through,
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(reason(&next.outcome(&id).await), DEADLINE);
    assert_eq!(next.task(&id).await["status"], "failed");
    upstream.heard("notifications/cancelled", 1).await;
    for _ in 0..20 {
        next.call("usual", json!({})).await;
    }
    // then it was not when the waiter had its answer.
    let is_delete = |heard: &Heard| heard.http_method == "DELETE";
    assert!(!upstream.until(|_| true).await.iter().any(is_delete));
    taken.add_permits(1);
    upstream.until(move |heard| heard.iter().any(is_delete)).await;
}

/// Events that come again after a resumption change nothing, and a result that comes after a cancel is dropped.
#[tokio::test]
async fn a_result_that_comes_after_the_cancel_is_dropped() {
    let opened = gate();
    let until = opened.clone();
    let upstream = RawUpstream::calling(move |heard| {
        vec![
            events_head(),
            event_with_id("1", &heard.progress(1)),
            Step::Gate(until.clone()),
            event_with_id("2", &heard.progress(2)),
            event(&heard.says("too late")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let params = json!({"name": "x", "task": {}, "_meta": {"progressToken": "mine"}});
    let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    let progress = stream.until_method("notifications/progress").await;
    assert_eq!(progress["params"]["progressToken"], "mine");
    let call = upstream.heard("tools/call", 1).await.remove(0);
    assert_eq!(client.cancel(&id).await["status"], "cancelled");
    let cancelled = upstream.heard("notifications/cancelled", 1).await.remove(0);
    assert_eq!(cancelled.body["params"]["requestId"], call.body["id"]);
    opened.add_permits(1);
    gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
    assert_eq!(client.task(&id).await["status"], "cancelled");
    let error = client.outcome(&id).await["error"].take();
    assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!("Task was cancelled")));
    // Nothing of what came after the end reaches the client: the next that it hears is another task's.
    let next = client.create_with(json!({"name": "x", "task": {}, "_meta": {"progressToken": "next"}})).await;
    opened.add_permits(1);
    loop {
        let message = stream.until_method("notifications/progress").await;
        assert_eq!(message["params"]["progressToken"], "next");
        if message["params"]["progress"] == 2 {
            break;
        }
    }
    assert_eq!(text_of(&client.outcome(next["taskId"].as_str().unwrap()).await), "too late");
}
