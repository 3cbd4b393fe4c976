//! Servers of odd habits: what they say is taken as far as it can be, passed on as it is, and never trusted with more.

use http::StatusCode;

use crate::support::raw_upstream::{
    Heard, Step, bare, chunk, event, events_head, gate, json_body, last_chunk, send, whole, with_session,
};
use crate::support::{Client, Gateway, RawUpstream, Value, json, related, text_of};

async fn in_front_of(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).start().await
}

/// A whole stream of these messages.
fn events(messages: &[String]) -> Vec<Step> {
    let mut steps = vec![events_head()];
    steps.extend(messages.iter().map(|message| event(message)));
    steps.push(last_chunk());
    steps
}

#[tokio::test]
async fn pages_keep_whatever_they_hold() {
    let page = r#"{"zz":1.10,"tools":[{"name":"a","x":1E3,"execution":{"y":-0,"taskSupport":"forbidden"}},{"execution":{},"name":"b"},{"name":"c","inputSchema":{"type":"object"}}],"nextCursor":"a b\"c\\d\u0000é\/🦀","_meta":{"k":9007199254740993}}"#;
    let shown = r#"{"zz":1.10,"tools":[{"name":"a","x":1E3,"execution":{"y":-0,"taskSupport":"optional"}},{"execution":{"taskSupport":"optional"},"name":"b"},{"name":"c","inputSchema":{"type":"object"},"execution":{"taskSupport":"optional"}}],"nextCursor":"a b\"c\\d\u0000é\/🦀","_meta":{"k":9007199254740993}}"#;
    for as_events in [false, true] {
        let upstream = RawUpstream::start(move |heard: &Heard| {
            let answer = heard.answer(page);
            (heard.method == "tools/list").then(|| match as_events {
                true => events(&[answer]),
                false => vec![json_body(&answer)],
            })
        })
        .await;
        let gateway = in_front_of(&upstream).await;
        for (version, wanted) in [("2025-11-25", shown), ("2025-06-18", page)] {
            let client = gateway.client().version(version).open().await;
            let answer = client.post(r#"{"jsonrpc":"2.0","id":5,"method":"tools/list"}"#).await;
            let message = match answer.is_events() {
                true => answer.events().await.pop().unwrap().data,
                false => answer.text().await,
            };
            assert_eq!(message, format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{wanted}}}"), "{version}");
        }
    }
}

/// A server whose `initialize` result is this.
async fn welcoming(result: Value) -> RawUpstream {
    RawUpstream::start(move |heard: &Heard| {
        (heard.method == "initialize").then(|| vec![json_body(&heard.answer(&result.to_string()))])
    })
    .await
}

#[tokio::test]
async fn a_servers_own_tasks_are_hidden() {
    let capabilities = json!({"tools": {}, "tasks": {"list": {}, "requests": {"tools": {"call": {}}}}});
    let upstream = welcoming(json!({"protocolVersion": "2025-11-25", "capabilities": capabilities})).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    assert_eq!(client.welcome["capabilities"]["tasks"], json!({"cancel": {}, "requests": {"tools": {"call": {}}}}));
    let id = client.start("x", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "usual");
    let call = &upstream.heard("tools/call", 1).await[0];
    assert_eq!(call.body["params"].get("task"), None);
    let old = gateway.client().version("2025-06-18").open().await;
    assert_eq!(old.welcome["capabilities"], json!({"tools": {}}));
}

#[tokio::test]
async fn without_tools_there_are_no_tasks() {
    let upstream = welcoming(json!({"protocolVersion": "2025-11-25", "capabilities": {"prompts": {}}})).await;
    let gateway = in_front_of(&upstream).await;
    assert_eq!(gateway.open().await.welcome["capabilities"], json!({"prompts": {}}));
}

#[tokio::test]
async fn a_server_may_choose_a_newer_version_than_its_client_speaks() {
    // Given a server that answers every client with its own version, and primes its streams,
    let upstream = RawUpstream::start(|heard: &Heard| match heard.method.as_str() {
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}});
            Some(vec![with_session(&heard.answer(&result.to_string()))])
        }
        "tools/call" => {
            let primed = chunk("id: 0\nretry: 5\ndata: \n\n: a comment\n\n");
            Some(vec![events_head(), primed, event(&heard.says("hello")), last_chunk()])
        }
        _ => None,
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let client = gateway.client().version(version).open().await;
        assert_eq!(client.welcome["protocolVersion"], version);
        let events = client.request("tools/call", json!({"name": "x"})).await.events().await;
        assert_eq!(events.iter().any(|event| event.data.is_empty()), version == "2025-11-25", "{version}: {events:?}");
        assert_eq!(text_of(&events.last().unwrap().message()), "hello");
        let call = upstream.heard("tools/call", 1).await.pop().unwrap();
        assert_eq!(call.headers["mcp-protocol-version"], "2025-11-25");
    }
}

#[tokio::test]
async fn a_handshake_that_is_none_opens_nothing() {
    let long = "x".repeat(3000);
    for (head, result) in [
        ("", json!({"protocolVersion": "2099-01-01", "capabilities": {}})),
        ("", json!({"protocolVersion": 5, "capabilities": {}})),
        ("", json!({"capabilities": {}})),
        ("", json!({"protocolVersion": "2025-11-25", "capabilities": []})),
        ("mcp-session-id: mine\r\n", json!({"protocolVersion": "2025-11-25", "capabilities": []})),
        ("mcp-session-id: mine\r\n", json!({"protocolVersion": "2099-01-01", "capabilities": {}})),
        ("mcp-session-id: a b\r\n", json!({"protocolVersion": "2025-11-25", "capabilities": {}})),
        ("mcp-session-id: \r\n", json!({"protocolVersion": "2025-11-25", "capabilities": {}})),
        (&*format!("mcp-session-id: {long}\r\n"), json!({"protocolVersion": "2025-11-25", "capabilities": {}})),
    ] {
        let shown = format!("{} {result}", &head[..head.len().min(40)]);
        let has_session = head.contains("mine");
        let head = head.to_owned();
        let upstream = RawUpstream::start(move |heard: &Heard| {
            let body = heard.answer(&result.to_string());
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{head}content-length: {length}\r\n\r\n{body}"
            );
            (heard.method == "initialize").then(|| vec![send(answer)])
        })
        .await;
        let gateway = in_front_of(&upstream).await;
        let (_, answer) = gateway.client().initialize().await;
        assert_eq!(answer.header("mcp-session-id"), None, "{shown}");
        let error = answer.response().await["error"].take();
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&json!(-32603), &json!("upstream_protocol")),
            "{shown}"
        );
        gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
        // What the server has opened by then is closed.
        if has_session {
            let is_end = |heard: &Heard| {
                heard.http_method == "DELETE" && heard.headers.get("mcp-session-id").is_some_and(|id| id == "mine")
            };
            upstream.until(|heard| heard.iter().any(is_end)).await;
        }
    }
}

#[tokio::test]
async fn a_handshake_that_the_server_refuses_is_refused_in_its_words() {
    let error =
        r#"{"code":-32602,"message":"Unsupported protocol version","data":{"supported":["2024-11-05"],"n":1.10}}"#;
    for status in [200, 400] {
        let upstream = RawUpstream::start(move |heard: &Heard| {
            let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{error}}}", heard.id);
            (heard.method == "initialize").then(|| vec![whole(status, "application/json", &body)])
        })
        .await;
        let gateway = in_front_of(&upstream).await;
        let body = r#"{"jsonrpc":"2.0","id":"mine","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
        let answer = gateway.client().silent().post(body).await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.text().await, format!("{{\"jsonrpc\":\"2.0\",\"id\":\"mine\",\"error\":{error}}}"));
    }
}

#[tokio::test]
async fn a_message_that_the_server_refuses_is_refused_in_its_words() {
    let error = r#"{"code":-32099,"message":"not now","data":{"n":9007199254740993}}"#;
    let upstream = RawUpstream::start(move |heard: &Heard| {
        let id = if heard.id.is_empty() { String::new() } else { format!("\"id\":{},", heard.id) };
        let body = format!("{{\"jsonrpc\":\"2.0\",{id}\"error\":{error}}}");
        let refused = ["tools/call", "notifications/vendor", "resources/list"].contains(&&*heard.method);
        refused.then(|| vec![whole(409, "application/json", &body)])
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    for (body, id) in [
        (r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"x"}}"#, r#""id":"a","#),
        (r#"{"jsonrpc":"2.0","id":"a","method":"resources/list"}"#, r#""id":"a","#),
        (r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#, ""),
    ] {
        let answer = client.post(body).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{body}");
        assert_eq!(answer.text().await, format!("{{\"jsonrpc\":\"2.0\",{id}\"error\":{error}}}"), "{body}");
    }
    let id = client.start("x", json!({})).await;
    client.until(&id, "failed").await;
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{{"taskId":"{id}"}}}}"#);
    assert_eq!(client.post(body).await.text().await, format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{error}}}"));
}

#[tokio::test]
async fn a_servers_challenge_and_its_other_fields_are_not_for_the_client() {
    let fields = "www-authenticate: Bearer resource_metadata=\"https://other.example\"\r\nset-cookie: s=1\r\nserver: x\r\n\
                  x-powered-by: y\r\nconnection: x-hop\r\nx-hop: 1\r\nmcp-session-id: theirs\r\naccess-control-allow-origin: *\r\n";
    for status in [200, 401, 403] {
        let upstream = RawUpstream::calling(move |heard: &Heard| {
            let body = heard.says("hello");
            let length = body.len();
            let kind = "content-type: application/json\r\n";
            vec![send(format!("HTTP/1.1 {status} X\r\n{kind}{fields}content-length: {length}\r\n\r\n{body}"))]
        })
        .await;
        let gateway = in_front_of(&upstream).await;
        let client = gateway.open().await;
        // The client of these tests takes no field that it does not know.
        let answer = client.request("tools/call", json!({"name": "x"})).await;
        for name in ["www-authenticate", "mcp-session-id"] {
            assert_eq!(answer.header(name), None, "{status}");
        }
        let response = answer.response().await;
        match status {
            200 => assert_eq!(text_of(&response), "hello"),
            _ => assert_eq!(response["error"]["data"]["reason"], "upstream_protocol", "{response}"),
        }
    }
}

/// What the server asked and how it was answered, when it asks this in the middle of a call.
async fn asked(gateway_of: &RawUpstream, client: &Client, answers: usize) -> Vec<Value> {
    client.start("x", json!({})).await;
    let wanted = move |heard: &[Heard]| heard.iter().filter(|heard| is_answer(heard)).count() >= answers;
    gateway_of.until(wanted).await.into_iter().filter(is_answer).map(|heard| heard.body).collect()
}

fn is_answer(heard: &Heard) -> bool {
    heard.http_method == "POST" && heard.method.is_empty()
}

#[tokio::test]
async fn what_a_server_may_not_ask_is_refused_at_once() {
    let end = gate();
    let closed = end.clone();
    let upstream = RawUpstream::calling(move |heard: &Heard| {
        let ask = |id: &str, method: &str, params: &str| {
            event(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#))
        };
        vec![
            events_head(),
            ask("1", "ping", "{}"),
            ask("\"2\"", "vendor/ask", "{}"),
            ask("3", "sampling/createMessage", r#"{"tools":[],"messages":[]}"#),
            ask("4", "elicitation/create", r#"{"mode":"url","url":"https://x.example"}"#),
            Step::Gate(closed.clone()),
            event(&heard.says("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({"sampling": {}, "elicitation": {}})).open().await;
    let mut answers = asked(&upstream, &client, 4).await;
    answers.sort_by_key(|answer| answer["id"].to_string().replace('"', ""));
    let of = |place: usize| (&answers[place]["id"], &answers[place]["result"], &answers[place]["error"]["code"]);
    // 2025-11-25 ping: a prompt and empty answer, whether a client is there or not.
    assert_eq!(of(0), (&json!(1), &json!({}), &Value::Null));
    assert_eq!(of(1), (&json!("2"), &Value::Null, &json!(-32601)));
    assert_eq!(of(2), (&json!(3), &Value::Null, &json!(-32602)));
    assert_eq!(of(3), (&json!(4), &Value::Null, &json!(-32602)));
    end.add_permits(1);
}

#[tokio::test]
async fn progress_that_does_not_rise_or_is_not_the_calls_is_dropped() {
    let upstream = RawUpstream::calling(|heard: &Heard| {
        let foreign =
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":50}}"#;
        let mut messages: Vec<String> = [3, 1, 3, 4].map(|progress| heard.progress(progress)).to_vec();
        messages.insert(1, foreign.to_owned());
        messages.push(heard.says("done"));
        events(&messages)
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let params = json!({"name": "x", "task": {}, "_meta": {"progressToken": "p"}});
    client.create_with(params).await;
    let messages = stream.until(|message| message["params"]["status"] == "completed").await;
    let progress: Vec<&Value> =
        messages.iter().map(|message| &message["params"]["progress"]).filter(|p| p.is_u64()).collect();
    // 2025-11-25 progress: the value MUST increase.
    assert_eq!(progress, [3, 4]);
}

#[tokio::test]
async fn every_notification_on_the_calls_stream_names_the_task() {
    let upstream = RawUpstream::calling(|heard: &Heard| {
        let tell = |method: &str, params: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}"{params}}}"#);
        events(&[
            tell("notifications/elicitation/complete", r#","params":{"elicitationId":"e","_meta":{"k":1.0}}"#),
            tell("notifications/vendor", r#","params":{"n":9007199254740993}"#),
            tell("notifications/bare", ""),
            heard.says("done"),
        ])
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let id = client.start("x", json!({})).await;
    let messages = stream.until(|message| message["params"]["status"] == "completed").await;
    let told: Vec<&str> = messages
        .iter()
        .filter(|message| related(message) == Some(&id))
        .filter_map(|message| message["method"].as_str())
        .collect();
    assert_eq!(told, ["notifications/elicitation/complete", "notifications/vendor", "notifications/bare"]);
    assert_eq!(messages[0]["params"]["_meta"]["k"], 1.0);
}

#[tokio::test]
async fn a_url_that_must_be_visited_first_is_an_error_like_any_other() {
    let error = r#"{"code":-32042,"message":"Visit","data":{"elicitations":[{"mode":"url","url":"https://x.example/?a=1","elicitationId":"e"}]}}"#;
    let upstream = RawUpstream::calling(move |heard: &Heard| {
        vec![json_body(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{error}}}", heard.id))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let wanted: Value = serde_json::from_str(error).unwrap();
    assert_eq!(client.error("tools/call", json!({"name": "x"})).await, wanted);
    let id = client.start("x", json!({})).await;
    client.until(&id, "failed").await;
    assert_eq!(client.outcome(&id).await["error"], wanted);
}

#[tokio::test]
async fn a_server_that_takes_no_delete_is_left_alone() {
    let upstream = RawUpstream::start(|heard: &Heard| (heard.http_method == "DELETE").then(|| vec![bare(405)])).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    upstream.until(|heard| heard.iter().any(|heard| heard.http_method == "DELETE")).await;
    assert_eq!(client.delete().await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_can_t_be_delivered_is_not_accepted() {
    let upstream = RawUpstream::start(|_| None).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    // Given a server that is gone, with its connections,
    drop(upstream);
    // then nobody is told that it took something.
    let notified = client.post(r#"{"jsonrpc":"2.0","method":"notifications/vendor"}"#).await;
    assert_eq!(notified.status, StatusCode::BAD_GATEWAY);
    assert_eq!(notified.json().await["error"]["data"]["reason"], "upstream_unreachable");
    let answered = client.try_answer(&json!("x"), json!({})).await;
    assert_eq!(answered.status, StatusCode::BAD_GATEWAY);
    let resumed = client.get(Some("u.1")).await;
    assert_eq!(resumed.status, StatusCode::BAD_GATEWAY);
    // A request is answered as one.
    let error = client.error("tools/call", json!({"name": "x"})).await;
    assert_eq!(error["data"]["reason"], "upstream_unreachable", "{error}");
}
