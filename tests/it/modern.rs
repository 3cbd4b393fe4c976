//! Clients of the modern era in front of a server of the same era: what passes, what is looked at, and what ends with the
//! client.

use serde_json::json;

use taskgate::demo::server::{Era, Options};

use crate::support::Gateway;
use crate::support::modern::{MODERN, Modern, TASKS};
use crate::support::raw_upstream::{RawUpstream, json_body};
use crate::support::stateless::{calling, stateless, stream_of};

async fn start() -> Gateway {
    Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).start().await
}

/// A server that answers with the message which its arguments hold, with the request's id for `ID`; as a stream where they say so.
async fn told() -> RawUpstream {
    calling(|heard| {
        let arguments = &heard.body["params"]["arguments"];
        let message = arguments["message"].as_str().unwrap_or_default().replace("ID", &heard.id);
        if arguments["events"] == true { stream_of(&[message]) } else { vec![json_body(&message)] }
    })
    .await
}

#[tokio::test]
async fn a_server_is_shown_as_it_is_with_the_extension_in_place_of_its_own() {
    let gateway = start().await;
    let client = Modern::new(&gateway);
    let discovered = client.result("server/discover", json!({})).await;
    assert_eq!(discovered["supportedVersions"], json!([MODERN]));
    assert_eq!(discovered["capabilities"]["extensions"][TASKS], json!({}));
    assert!(discovered["capabilities"].get("tasks").is_none(), "{discovered}");
    let tools = client.result("tools/list", json!({})).await;
    assert!(tools["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{tools}");
}

#[tokio::test]
async fn a_question_passes_as_it_is_and_its_state_is_the_callers_alone() {
    let gateway = Gateway::setup()
        .server(Options { era: Era::Modern, ..Options::default() })
        .callers(&["acme/alice", "acme/bob"])
        .start()
        .await;
    let [alice, bob] = ["alice", "bob"].map(|name| Modern::new(&gateway).caller(name));
    let asked = alice.call("ask", json!({})).await;
    assert_eq!(asked.result["resultType"], "input_required", "{asked:?}");
    let key = asked.key();
    let answers = json!({key: {"action": "accept", "content": {"name": "x", "ok": true}}});
    let foreign = bob.answer("ask", json!({}), &asked.result, answers.clone()).await;
    assert_eq!(foreign.refusal(), (200, -32602));
    let mut changed = asked.result.clone();
    changed["requestState"] = json!("made up");
    assert_eq!(alice.answer("ask", json!({}), &changed, answers.clone()).await.refusal(), (200, -32602));
    let done = alice.answer("ask", json!({}), &asked.result, answers).await;
    assert_eq!(done.result["resultType"], "complete", "{done:?}");
}

#[tokio::test]
async fn a_client_that_goes_away_has_cancelled() {
    let gateway = start().await;
    // Before anything has come of the answer.
    let client = Modern::new(&gateway);
    let mut call = Box::pin(client.open("tools/call", json!({"name": "hold", "arguments": {"seconds": 600}})));
    tokio::select! {
        answer = &mut call => panic!("{}", answer.status),
        _ = gateway.started("hold", 1) => {}
    }
    drop(call);
    gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    // After the stream has begun.
    let params = json!({"name": "report", "arguments": {"sections": 3}, "_meta": {"progressToken": 1}});
    let mut call = Box::pin(client.open("tools/call", params));
    tokio::select! {
        answer = &mut call => panic!("{}", answer.status),
        _ = gateway.started("report", 1) => {}
    }
    client.call("release", json!({})).await;
    let mut answer = call.await;
    assert_eq!(answer.message().await["method"], "notifications/progress");
    drop(answer);
    gateway.seen(|stats| stats.tool("report").cancelled == 1).await;
}

#[tokio::test]
async fn a_request_arrives_as_it_was_written_under_an_id_and_a_token_of_the_gateways() {
    let gateway = start().await;
    let client = Modern::new(&gateway);
    let claims = format!(
        r#""io.modelcontextprotocol\/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{"x":1.10}}"#
    );
    for token in ["", r#""progressToken" : "t\u0031","#, r#""a":{"progressToken":3},"progressToken":"t","#] {
        let written = format!(
            " {{\"zz\" : [1E3 , -0],\r\n\"params\":{{\"y\":{{\"id\":\"\\u0031\"}},\"name\":\"echo\",\"arguments\":{{\"text\":\"\\u00e9\\/é\"}},\"_meta\":{{{token}\"vendor/x\":1.0,{claims}}}}},\"method\":\"tools/call\",\"id\":\"\\u0031\" ,\"jsonrpc\":\"2.0\",\"after\":null}}\n"
        );
        let headers = client.headers("tools/call", &json!({"name": "echo"}));
        let answer = client.send(headers, &[], written.clone()).await.unwrap();
        assert_eq!(answer.response().await["id"], "1");
        let arrived = String::from_utf8(gateway.upstream.stats().last_body.to_vec()).unwrap();
        let (_, rest) = arrived.split_once("call\",\"id\":").unwrap();
        let (id, _) = rest.split_once(' ').unwrap();
        assert!(id.parse::<u64>().is_ok(), "{arrived}");
        let expected = written.replace("call\",\"id\":\"\\u0031\"", &format!("call\",\"id\":{id}"));
        let expected = expected.replace("\"t\\u0031\"", id).replace("\"t\"", id);
        assert_eq!(arrived, expected);
    }
}

#[tokio::test]
async fn a_complete_result_passes_byte_for_byte_under_the_clients_id() {
    let upstream = told().await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    for (message, answer) in [
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"n":1.10,"resultType":"complete"}}"#,
        r#"{"result":{"resultType" : "complete","content":[],"n":1E3},"jsonrpc":"2.0","id":ID}"#,
        r#" {"zz":-0.0,"id": ID ,"result":{"resultType":"c\u006fmplete"},"jsonrpc":"2.0"} "#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"structuredContent":{"resultType":"task"},"resultType":"complete"}}"#,
        r#"{"id":ID,"jsonrpc":"2.0","result":{"result\u0054ype":"complete","x":[{}]}}"#,
    ]
    .map(|message| (message, message.replace("ID", r#""\u0061""#)))
    {
        for events in [false, true] {
            let params = client.params(json!({"name": "a", "arguments": {"message": message, "events": events}}));
            let body = format!(r#"{{"jsonrpc":"2.0","id":"\u0061","method":"tools/call","params":{params}}}"#);
            let came = client.send(client.headers("tools/call", &params), &[], body).await.unwrap();
            let text = if came.is_events() { came.events().await.pop().unwrap().data } else { came.text().await };
            assert_eq!(text, answer);
        }
    }
    // What only looks like one.
    for broken in [
        r#"{"jsonrpc":"2.0","id":ID,"result":{"structuredContent":{"resultType":"complete"},"resultType":"task"}}"#,
        r#"{"result":{"resultType":"task","structuredContent":{"resultType":"complete"}},"jsonrpc":"2.0","id":ID}"#,
    ] {
        let reply = client.call("a", json!({"message": broken})).await;
        assert_eq!(reply.refusal(), (200, -32603), "{reply:?}");
    }
}

#[tokio::test]
async fn an_error_has_the_status_of_this_era_over_pipes_too() {
    let gateway = Gateway::setup().stdio(&["--era", "modern"]).start().await;
    let client = Modern::new(&gateway).declares(json!({}));
    assert_eq!(client.call("ask", json!({})).await.refusal(), (400, -32021));
    assert_eq!(client.call("no-such-tool", json!({})).await.refusal(), (200, -32602));
}

#[tokio::test]
async fn a_server_sees_no_capability_of_tasks_of_either_dialect() {
    let upstream = calling(|heard| {
        let capabilities = &heard.body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let result = json!({"resultType": "complete", "content": [], "structuredContent": capabilities});
        vec![json_body(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, heard.id))]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    for declared in [json!({"tasks": {}, "roots": {}}), json!({"extensions": {TASKS: {}}, "roots": {}})] {
        let client = Modern::new(&gateway).declares(declared);
        let reply = client.call("a", json!({})).await;
        assert_eq!(reply.result["structuredContent"], json!({"roots": {}}), "{reply:?}");
    }
}

/// Whatever its spelling: most such answers are known for what they are by their ends, and are never in one piece.
#[tokio::test]
async fn a_large_result_passes_byte_for_byte_and_one_that_is_not_complete_is_seen() {
    const LARGE: usize = 300 * 1024;
    let upstream = calling(|heard| {
        let message = heard.body["params"]["arguments"]["message"].as_str().unwrap_or_default();
        vec![json_body(&message.replace("ID", &heard.id).replace("LARGE", &"x".repeat(LARGE)))]
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    for message in [
        r#"{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[],"x":"LARGE","n":1.10}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":"LARGE","resultType":"complete"}}"#,
        r#"{"result":{"resultType":"complete","x":"LARGE"},"jsonrpc":"2.0","id":ID}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","x":"LARGE"},"more":"LARGE"}"#,
        r#" {"jsonrpc": "2.0","id":ID,"result":{"x":"LARGE","resultType":"complete"}} "#,
    ] {
        for events in [false, true] {
            let params = client.params(json!({"name": "a", "arguments": {"message": message}}));
            let body = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{params}}}"#);
            let accept = if events { "text/event-stream" } else { "application/json, text/event-stream" };
            let came = client.send(client.headers("tools/call", &params), &[("accept", accept)], body).await.unwrap();
            let text = if came.is_events() { came.events().await.pop().unwrap().data } else { came.text().await };
            assert!(text == message.replace("ID", r#""a""#).replace("LARGE", &"x".repeat(LARGE)), "{message}");
        }
    }
    for broken in [
        r#"{"jsonrpc":"2.0","id":ID,"result":{"x":"LARGE","resultType":"task"}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"resultType":"task","x":"LARGE"}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","x":"LARGE""#,
    ] {
        let reply = client.call("a", json!({"message": broken})).await;
        assert_eq!(reply.refusal().1, -32603, "{broken}");
    }
}

/// In the spellings that servers write and in those that are not theirs, however many come at once.
#[tokio::test]
async fn a_burst_of_progress_comes_under_the_clients_token() {
    // `MINE` is the token where it is to be changed, `TOKEN` where it is not.
    const SPELLINGS: [&str; 8] = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":MINE,"progress":1,"total":2}}"#,
        r#"{"method":"notifications/progress","params":{"progress":1,"message":"TOKEN é \"","progressToken":MINE},"jsonrpc":"2.0"}"#,
        r#"{"method":"notifications/progress","params":{"progressToken" : MINE ,"progress":0.5},"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","params":{"_meta":{"progressToken":TOKEN},"progressToken":MINE,"progress":1},"method":"notifications/progress"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications\/progress","params":{"progress\u0054oken":MINE,"progress":1}}"#,
        // No progress of the call's.
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"TOKEN","progress":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progressToken":TOKEN}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"notifications/progress TOKEN"}}"#,
    ];
    const ROUNDS: usize = 60;
    let upstream = calling(|heard| {
        let token = heard.body["params"]["_meta"]["progressToken"].to_string();
        let events = (0..ROUNDS).flat_map(|_| SPELLINGS);
        let events = events.map(|event| event.replace("TOKEN", &token).replace("MINE", &token));
        stream_of(&events.chain([heard.tells(&token)]).collect::<Vec<_>>())
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    let mut params = client.params(json!({"name": "a", "arguments": {}}));
    params["_meta"]["progressToken"] = json!("own");
    let mut came = client.open("tools/call", params).await.events().await;
    let answer = came.pop().unwrap().message();
    let token = answer["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    let expected = (0..ROUNDS).flat_map(|_| SPELLINGS);
    let expected: Vec<String> =
        expected.map(|event| event.replace("TOKEN", &token).replace("MINE", r#""own""#)).collect();
    assert_eq!(came.into_iter().map(|event| event.data).collect::<Vec<_>>(), expected);
}

/// Nothing that a client could not tie to its request, whether the answer is one message or a stream.
#[tokio::test]
async fn what_answers_nobody_does_not_pass() {
    let upstream = told().await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    for message in [
        r#"{"jsonrpc":"2.0","id":12345678,"result":{"resultType":"complete","content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32000,"message":"not yours"}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":null,"result":{"resultType":"complete","content":[]}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"both"}}"#,
        r#"{"jsonrpc":"2.0","id":ID}"#,
        r#"{"id":ID,"result":{"resultType":"complete"},"jsonrpc":"1.0"}"#,
        r#"{"jsonrpc":"2.0","id":ID,"method":"roots/list"}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":5}"#,
        "{}",
    ] {
        for (events, reason) in [(false, "upstream_protocol"), (true, "outcome_unknown")] {
            let reply = client.call("a", json!({"message": message, "events": events})).await;
            assert_eq!(reply.refusal(), (200, -32603), "{message} {reply:?}");
            assert_eq!(reply.error["data"]["reason"], reason, "{message} {reply:?}");
            assert!(reply.events.is_empty(), "{message} {reply:?}");
        }
    }
    // A server that could not read an id has nothing else to answer than the request.
    for message in [
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no","data":{"n":1.10}}}"#,
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"no","data":{"n":1.10}}}"#,
    ] {
        for events in [false, true] {
            let reply = client.call("a", json!({"message": message, "events": events})).await;
            assert_eq!(reply.error["message"], "no", "{message} {reply:?}");
            assert_eq!(reply.error["data"], json!({"n": 1.10}), "{message} {reply:?}");
        }
        let declared = Modern::new(&gateway).with_tasks();
        let reply = declared.call("a", json!({"message": message})).await;
        assert_eq!(reply.error["message"], "no", "{message} {reply:?}");
        // What this era has no word for is not sent for want of an id either.
        let reply = client.call("a", json!({"message": message.replace("-32000", "-32042")})).await;
        assert_eq!(reply.refusal(), (200, -32603), "{message} {reply:?}");
    }
    // A message that is no response, as the whole of an answer.
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
    assert_eq!(client.call("a", json!({"message": log})).await.error["data"]["reason"], "upstream_protocol");
}

/// Of two answers to one request the first counts.
#[tokio::test]
async fn a_request_is_answered_once() {
    let upstream = calling(|heard| {
        let error = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"first"}}"#;
        match heard.body["params"]["name"].as_str() {
            Some("error") => stream_of(&[error.to_owned(), heard.tells("second")]),
            _ => stream_of(&[heard.tells("first"), heard.tells("second"), error.to_owned()]),
        }
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    let reply = client.call("error", json!({})).await;
    assert_eq!((reply.error["message"].as_str(), reply.events.len()), (Some("first"), 0), "{reply:?}");
    let reply = client.call("a", json!({})).await;
    assert_eq!((reply.text(), reply.events.len()), ("first", 0), "{reply:?}");
}

/// A server of the other era has executed it: what this era asks of a result is added, whoever called.
#[tokio::test]
async fn a_result_without_a_type_gets_what_is_missing() {
    let upstream = stateless(json!({"tools": {}}), |heard| match heard.method.as_str() {
        "tools/list" => Some(vec![json_body(&heard.answer(r#"{"tools":[]}"#))]),
        "tools/call" => Some(vec![json_body(&heard.says("done"))]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    for client in [Modern::new(&gateway), Modern::new(&gateway).with_tasks()] {
        let listed = client.result("tools/list", json!({})).await;
        assert_eq!((&listed["resultType"], &listed["ttlMs"]), (&json!("complete"), &json!(0)), "{listed}");
        assert_eq!(client.text("a", json!({})).await, "done");
    }
}
