//! Servers that the gateway starts itself and talks to over their pipes: all that works over HTTP, and what only pipes
//! can do wrong.

use std::time::Duration;

use http::StatusCode;
use rustix::process::Signal;
use taskgate::app::Timing;

use crate::support::processes::{exists, signal, until_there_are};
use crate::support::{Client, Connection, Gateway, Value, json, related, text_of, within};

/// Arguments that no other test's server has: how long its questions wait, which no test comes to see.
macro_rules! marked {
    ($seconds:literal) => {
        ["--answer-timeout", concat!($seconds, "s")]
    };
}

/// What the session's own server has seen.
async fn stats(client: &Client) -> Value {
    client.call("stats", json!({})).await["result"]["structuredContent"].take()
}

/// Waits until the session's own server has seen what is wanted.
async fn seen(client: &Client, wanted: impl Fn(&Value) -> bool) -> Value {
    within(async {
        loop {
            let stats = stats(client).await;
            if wanted(&stats) {
                return stats;
            }
        }
    })
    .await
}

async fn started(client: &Client, tool: &str, calls: u64) -> Value {
    seen(client, |stats| stats["tools"][tool]["started"].as_u64().unwrap_or(0) >= calls).await
}

#[tokio::test]
async fn tasks_live_as_they_do_over_http() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    assert!(client.welcome["capabilities"]["tasks"]["requests"]["tools"]["call"].is_object());
    let tools = client.result("tools/list", json!({})).await;
    let supports = tools["tools"].as_array().unwrap().iter().map(|tool| &tool["execution"]["taskSupport"]);
    assert!(supports.clone().count() > 10 && supports.clone().all(|support| support == "optional"));

    let id = client.start("exact", json!({})).await;
    let mut result = client.outcome(&id).await["result"].take();
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], json!(id));
    result["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/related-task");
    assert_eq!(result, client.call("exact", json!({})).await["result"]);

    let id = client.start("fail", json!({"text": "no luck"})).await;
    assert_eq!(client.outcome(&id).await["result"]["isError"], true);
    assert_eq!(client.task(&id).await["statusMessage"], "no luck");
    let id = client.start("broken", json!({})).await;
    assert_eq!(client.outcome(&id).await["error"], client.call("broken", json!({})).await["error"]);
}

#[tokio::test]
async fn progress_goes_to_the_task_that_it_is_of() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let mut streams = Vec::new();
    for sections in [1, 2, 3] {
        let params = json!({"name": "report", "arguments": {"sections": sections}, "task": {},
            "_meta": {"progressToken": 7}});
        let id = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
        streams.push((client.wait_for(&id).await, id, sections));
    }
    started(&client, "report", 3).await;
    for _ in 0..3 {
        client.call("release", json!({})).await;
    }
    for (stream, id, sections) in streams {
        let messages = stream.messages().await;
        let progress = messages.iter().filter(|message| message["method"] == "notifications/progress");
        for message in progress {
            assert_eq!((&message["params"]["progressToken"], related(message)), (&json!(7), Some(&*id)));
            assert_eq!(message["params"]["total"], sections);
        }
        assert_eq!(messages.last().unwrap()["result"]["structuredContent"]["sections"], sections);
    }
}

#[tokio::test]
async fn plain_calls_stream_what_comes_before_their_answer() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let answer = client.request("tools/call", json!({"name": "log", "arguments": {"messages": 20}})).await;
    let messages = answer.messages().await;
    let numbers: Vec<u64> = messages.iter().filter_map(|m| m["params"]["data"]["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<u64>>());
    assert_eq!(text_of(messages.last().unwrap()), "logged");
    // A client that takes no events gets the answer alone.
    let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call",
        "params": {"name": "log", "arguments": {"messages": 2}}});
    let answer = client.post_with(&[("accept", "application/json")], body.to_string()).await;
    assert_eq!(text_of(&answer.json().await), "logged");
}

#[tokio::test]
async fn a_question_of_the_only_call_is_its_own() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let id = client.start("ask_two", json!({})).await;
    client.until(&id, "input_required").await;
    let mut stream = client.wait_for(&id).await;
    for content in [json!({"name": "Ann"}), json!({"confirm": true})] {
        let question = stream.until_method("elicitation/create").await;
        assert_eq!(related(&question), Some(&*id));
        client.accept(&question, content).await;
    }
    assert_eq!(text_of(&stream.response().await), "Hello, Ann; confirmed: true");
    // In a plain call it comes on the call's own stream, with the server's id.
    let mut answer = client.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
    let question = answer.message().await;
    assert_eq!((related(&question), question["id"].is_number()), (None, true));
    client.accept(&question, json!({"name": "Bob"})).await;
    assert_eq!(text_of(&answer.message().await), "Hello, Bob");
}

/// Design 6, attribution: never guessed.
#[tokio::test]
async fn a_question_among_several_calls_is_the_session_s() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let other = client.start("hold", json!({})).await;
    started(&client, "hold", 1).await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method("elicitation/create").await;
    assert_eq!(related(&question), None);
    assert_eq!(client.task(&id).await["status"], "working");
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    client.call("release", json!({})).await;
    assert_eq!(text_of(&client.outcome(&other).await), "held to the end");
}

#[tokio::test]
async fn exclusive_tools_own_their_questions_on_a_pipe() {
    let gateway = Gateway::setup().stdio(&[]).tasks("tools: [{match: ask, exclusive: true}]").start().await;
    let client = gateway.open().await;
    let ids = [client.start("ask", json!({})).await, client.start("ask", json!({})).await];
    let mut streams = futures_util::future::join_all(ids.iter().map(|id| client.wait_for(id))).await;
    let (second, first) = (streams.pop().unwrap(), streams.pop().unwrap());
    // Whichever is first, each question names its task, and the other waits.
    let answering = |mut stream: crate::support::Answer, id: String| {
        let client = &client;
        async move {
            let question = stream.until_method("elicitation/create").await;
            assert_eq!(related(&question), Some(&*id));
            client.accept(&question, json!({"name": id})).await;
            assert_eq!(text_of(&stream.response().await), format!("Hello, {id}"));
        }
    };
    let [id_first, id_second] = ids;
    tokio::join!(answering(first, id_first), answering(second, id_second));
}

/// B60: each session has a server of its own, so nothing can cross.
#[tokio::test]
async fn each_session_has_its_own_server() {
    let arguments = marked!("901");
    let gateway = Gateway::setup().stdio(&arguments).start().await;
    let (a, b) = (gateway.open().await, gateway.open().await);
    until_there_are(2, arguments[1]).await;
    assert_eq!(text_of(&a.call("count", json!({})).await), "1");
    assert_eq!(text_of(&b.call("count", json!({})).await), "1");
    let body = |text: &str| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}})
            .to_string()
    };
    let (of_a, of_b) = tokio::join!(a.post(body("A")), b.post(body("B")));
    assert_eq!((text_of(&of_a.response().await), text_of(&of_b.response().await)), ("A", "B"));
}

#[tokio::test]
async fn a_cancelled_task_is_cancelled_in_the_server() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    started(&client, "hold", 1).await;
    assert_eq!(client.cancel(&id).await["status"], "cancelled");
    let seen = seen(&client, |stats| stats["tools"]["hold"]["cancelled"] == 1).await;
    assert_eq!(seen["cancelled"].as_array().unwrap().len(), 1);
    assert_eq!(client.outcome(&id).await["error"]["code"], -32602);
}

/// A cancelled call gets no response, of the server or of the gateway, and its POST ends.
#[tokio::test]
async fn a_cancelled_plain_call_ends() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let hold =
        json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "hold", "arguments": {}}});
    let cancelling = async {
        started(&client, "hold", 1).await;
        client.notify("notifications/cancelled", json!({"requestId": "h"})).await;
    };
    let (answer, ()) = tokio::join!(client.post(hold.to_string()), cancelling);
    assert_eq!((answer.status, answer.bytes().await.len()), (StatusCode::ACCEPTED, 0));
    let stats = seen(&client, |stats| stats["tools"]["hold"]["cancelled"] == 1).await;
    assert_eq!(stats["cancelled"], json!(["\"h\""]));
}

/// The deadline and the keeping warm are those of HTTP.
#[tokio::test]
async fn plain_calls_are_kept_warm_and_end_at_their_deadline() {
    let timing = Timing { keep_alive: Duration::from_millis(50), ..Timing::default() };
    let gateway =
        Gateway::setup().stdio(&[]).timing(timing).tasks("tools: [{match: fault, deadline: 200ms}]").start().await;
    let client = gateway.open().await;
    let hold = client.request("tools/call", json!({"name": "hold", "arguments": {}})).await;
    assert!(hold.is_events());
    let silent = client.call("fault", json!({"kind": "silent"})).await;
    assert_eq!(silent["error"]["data"]["reason"], "deadline", "{silent}");
    let id = client.start("fault", json!({"kind": "silent"})).await;
    assert_eq!(client.outcome(&id).await["error"]["data"]["reason"], "deadline");
    seen(&client, |stats| stats["cancelled"].as_array().is_some_and(|cancelled| cancelled.len() == 2)).await;
    client.call("release", json!({})).await;
    assert_eq!(text_of(&hold.response().await), "held to the end");
}

/// Going away is not a cancel, over pipes either.
#[tokio::test]
async fn a_plain_call_runs_on_without_its_client() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hold", "arguments": {}}});
    let body = body.to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut connection = Connection::open(gateway.address).await;
    connection.send(format!("{head}\r\n{body}")).await;
    started(&client, "hold", 1).await;
    drop(connection);
    gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) <= 1.0).await;
    client.call("release", json!({})).await;
    let seen = seen(&client, |stats| stats["tools"]["hold"]["finished"] == 1).await;
    assert_eq!(seen["tools"]["hold"]["cancelled"], 0);
    gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
}

/// B105: whatever was in flight ends at once; the session is gone, and the next one has a new server.
#[tokio::test]
async fn a_killed_server_fails_its_calls_and_the_next_session_gets_another() {
    let arguments = marked!("902");
    let gateway = Gateway::setup().stdio(&arguments).start().await;
    let client = gateway.open().await;
    let [pid] = until_there_are(1, arguments[1]).await[..] else { unreachable!() };
    let bystander = gateway.open().await;
    let task = client.start("hold", json!({})).await;
    started(&client, "hold", 1).await;
    let plain = client.call("hold", json!({}));
    let killing = async {
        gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 2.0).await;
        started(&client, "hold", 2).await;
        signal(pid, Signal::KILL);
    };
    let (plain, ()) = tokio::join!(plain, killing);
    assert_eq!(plain["error"]["data"]["reason"], "outcome_unknown", "{plain}");
    let ended = bystander.outcome(&task).await;
    assert_eq!(ended["error"]["data"]["reason"], "outcome_unknown", "{ended}");
    within(async {
        while client.request("ping", json!({})).await.status != StatusCode::NOT_FOUND {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let next = gateway.open().await;
    assert_eq!(text_of(&next.call("echo", json!({"text": "again"})).await), "again");
    assert_eq!(text_of(&bystander.call("echo", json!({"text": "all along"})).await), "all along");
    until_there_are(2, arguments[1]).await;
    assert!(!exists(pid), "it was not reaped");
}

#[tokio::test]
async fn a_server_that_exits_in_a_call_leaves_its_outcome_unknown() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let id = client.start("fault", json!({"kind": "exit"})).await;
    let next = gateway.open().await;
    assert_eq!(next.outcome(&id).await["error"]["data"]["reason"], "outcome_unknown");
    let plain = next.call("fault", json!({"kind": "exit"})).await;
    assert_eq!(plain["error"]["data"]["reason"], "outcome_unknown", "{plain}");
    // Two that died young in a row: the next one is started a moment later.
    let mut next = gateway.client().initialize().await.0;
    within(async {
        while next.session.is_none() {
            next = gateway.client().initialize().await.0;
        }
    })
    .await;
    assert_eq!(text_of(&next.call("count", json!({})).await), "1");
}

/// What a server prints beside its messages is no message and no end.
#[tokio::test]
async fn noise_on_stdout_is_skipped() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let id = client.start("fault", json!({"kind": "noise"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "nothing broke");
    assert_eq!(text_of(&client.call("fault", json!({"kind": "noise"})).await), "nothing broke");
}

#[tokio::test]
async fn servers_that_can_t_be_started_are_unreachable() {
    let commands: [&[&str]; 3] = [&["/does/not/exist"], &["sh", "-c", "exit 3"], &["sh", "-c", "exec >&-; cat"]];
    for command in commands {
        let gateway = Gateway::setup().command(command).start().await;
        let (_, answer) = gateway.client().initialize().await;
        let response = answer.response().await;
        assert_eq!(response["error"]["data"]["reason"], "upstream_unreachable", "{command:?}: {response}");
    }
}

/// B107: a DELETE ends the server, but not under a running task.
#[tokio::test]
async fn a_deleted_session_s_server_ends_after_its_last_task() {
    let arguments = marked!("903");
    let gateway = Gateway::setup().stdio(&arguments).start().await;
    let client = gateway.open().await;
    let [pid] = until_there_are(1, arguments[1]).await[..] else { unreachable!() };
    let id = client.start("report", json!({"seconds": 0.3, "sections": 3})).await;
    started(&client, "report", 1).await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    let next = gateway.open().await;
    assert_eq!(next.outcome(&id).await["result"]["structuredContent"]["sections"], 3);
    within(async {
        while exists(pid) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    until_there_are(1, arguments[1]).await;
}

/// Neither servers nor what they started outlive the gateway.
#[tokio::test]
async fn no_process_outlives_the_gateway() {
    let marker = "904s";
    let script = format!("sleep 904.0 & exec {} --stdio --answer-timeout {marker}", env!("CARGO_BIN_EXE_demo_server"));
    let mut gateway =
        Gateway::setup().sections("shutdown: {drain: 100ms}").command(&["sh", "-c", &script]).start().await;
    let clients = futures_util::future::join_all((0..5).map(|_| gateway.open())).await;
    until_there_are(5, marker).await;
    until_there_are(5, "904.0").await;
    clients[0].start("hold", json!({})).await;
    assert_eq!(clients[1].delete().await, StatusCode::NO_CONTENT);
    until_there_are(4, marker).await;
    until_there_are(4, "904.0").await;
    gateway.stop().await;
    until_there_are(0, marker).await;
    until_there_are(0, "904.0").await;
}

/// Many sessions one after the other: their servers come and go.
#[tokio::test]
async fn idle_sessions_take_their_servers_with_them() {
    let arguments = marked!("905");
    let gateway = Gateway::setup().sections("sessions: {idle: 2s}").stdio(&arguments).start().await;
    for _ in 0..20 {
        gateway.open().await;
    }
    until_there_are(0, arguments[1]).await;
    gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
}

/// A child whose handshake is none is not left behind.
#[tokio::test]
async fn a_handshake_that_is_none_leaves_no_process() {
    for (marker, result) in [
        ("906.0", r#"{"protocolVersion":"2025-11-25","capabilities":[]}"#),
        ("907.0", r#"{"capabilities":{}}"#),
        ("908.0", r#"{"protocolVersion":"2099-01-01","capabilities":{}}"#),
    ] {
        let id = r#"$(echo "$request" | sed 's/.*"id":\("[^"]*"\).*/\1/')"#;
        let answer = format!(r#"echo '{{"jsonrpc":"2.0","id":'"{id}"',"result":{result}}}'"#);
        let script = format!("sleep {marker} & read -r request; {answer}; wait");
        let gateway = Gateway::setup().command(&["sh", "-c", &script]).start().await;
        let (client, answer) = gateway.client().initialize().await;
        let error = answer.response().await["error"].take();
        assert_eq!((&client.session, &error["data"]["reason"]), (&None, &json!("upstream_protocol")), "{result}");
        until_there_are(0, marker).await;
        gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
    }
}

/// A server on a pipe resumes nothing, and has its stream all the same.
#[tokio::test]
async fn an_event_id_costs_a_session_none_of_its_stream() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = gateway.open().await;
    let resumed = client.get(Some("g.x")).await;
    assert_eq!(resumed.status, StatusCode::OK);
    drop(resumed);
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) == 0.0).await;
    let mut stream = client.listen().await;
    client.start("hold", json!({})).await;
    client.start("hold", json!({})).await;
    started(&client, "hold", 2).await;
    // With two calls in flight a question is the session's.
    let asked = async {
        loop {
            let id = client.start("ask", json!({})).await;
            tokio::select! {
                question = stream.until_method("elicitation/create") => break (id, question),
                // The stream is not there yet.
                _ = client.outcome(&id) => {}
            }
        }
    };
    let (id, question) = within(asked).await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}
