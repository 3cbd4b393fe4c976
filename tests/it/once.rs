//! One request, one response: whatever the server's spelling, event ids and last words are.

use crate::support::raw_upstream::{
    Heard, Step, chunk, event, event_with_id, events_head, gate, json_body, last_chunk, with_session,
};
use crate::support::{Answer, Gateway, RawUpstream, Value, json, text_of};

const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const PAGE: &str =
    r#"{"tools":[{"name":"secret_a"},{"name":"b"},{"name":"c","execution":{"taskSupport":"forbidden"}}]}"#;
const TOLD: &str = r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{}}"#;

/// The messages of an answer, those in arrays among them, which must hold exactly one response.
async fn only_response(answer: Answer, what: &str) -> Value {
    let mut messages = Vec::new();
    for message in answer.messages().await {
        match message {
            Value::Array(members) => messages.extend(members),
            one => messages.push(one),
        }
    }
    let responses: Vec<&Value> = messages.iter().filter(|message| message.get("method").is_none()).collect();
    assert_eq!(responses.len(), 1, "{what}: {messages:?}");
    responses[0].clone()
}

/// The answer in one of the forms that it can have.
fn formed(form: usize, response: String) -> Vec<Step> {
    match form {
        0 => vec![json_body(&response)],
        1 => vec![events_head(), event(&response), last_chunk()],
        _ => vec![events_head(), event(TOLD), event_with_id("e1", &response), last_chunk()],
    }
}

/// The server of these tests reads a request as JSON and writes its id anew: `"\u0061"` comes back as `"a"`.
#[tokio::test]
async fn an_id_that_comes_back_in_another_spelling_is_the_same() {
    for form in 0..3 {
        let upstream = RawUpstream::start(move |heard: &Heard| match &*heard.method {
            "tools/list" => Some(formed(form, heard.answer(PAGE))),
            "tools/call" => Some(formed(form, heard.says("hello"))),
            _ => None,
        })
        .await;
        let gateway = Gateway::setup().in_front_of(&upstream.url()).tools("deny: [\"secret_*\"]").start().await;
        let client = gateway.open().await;
        let what = format!("form {form}");
        let listed = client.post(r#"{"jsonrpc":"2.0","id":"\u0061","method":"tools/list"}"#).await;
        let listed = only_response(listed, &what).await;
        let optional = |name: &str| json!({"name": name, "execution": {"taskSupport": "optional"}});
        assert_eq!((&listed["id"], &listed["result"]["tools"]), (&json!("a"), &json!([optional("b"), optional("c")])));
        let call = r#"{"jsonrpc":"2.0","id":"\u0061","method":"tools/call","params":{"name":"b"}}"#;
        let called = only_response(client.post(call).await, &what).await;
        assert_eq!((&called["id"], text_of(&called)), (&json!("a"), "hello"));
        // The same for one that takes no events.
        let called = only_response(client.post_with(&[("accept", "application/json")], call).await, &what).await;
        assert_eq!((&called["id"], text_of(&called)), (&json!("a"), "hello"));
        assert_eq!((upstream.count("tools/list"), upstream.count("tools/call")), (1, 2));
    }
}

/// What is changed on its way can't be resumed at the server, which would send it unchanged.
#[tokio::test]
async fn a_page_of_tools_has_no_event_ids_of_the_servers() {
    let upstream = RawUpstream::start(|heard: &Heard| {
        (heard.method == "tools/list" || heard.method == "tools/call").then(|| {
            let answer = if heard.method == "tools/list" { heard.answer(PAGE) } else { heard.says("hello") };
            let priming = chunk("id: e0\nretry: 10\ndata: \n\n");
            vec![events_head(), priming, event_with_id("e1", TOLD), event_with_id("e2", &answer), last_chunk()]
        })
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tools("deny: [\"secret_*\"]").start().await;
    for version in ["2025-11-25", "2025-06-18"] {
        let client = gateway.client().version(version).open().await;
        let events = client.request("tools/list", json!({})).await.events().await;
        assert!(events.iter().all(|seen| seen.id.is_none()), "{version}: {events:?}");
        let page = events.last().unwrap().message();
        let names: Vec<&Value> = page["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
        assert_eq!(names, ["b", "c"]);
        // A call's answer is as the server wrote it, so that its ids are good.
        let events = client.request("tools/call", json!({"name": "b"})).await.events().await;
        assert_eq!(events.last().unwrap().id.as_deref(), Some("u.e2"), "{version}: {events:?}");
    }
}

#[tokio::test]
async fn a_response_need_not_be_the_last_message() {
    // Given a server that goes on to talk after its response: in a write of its own once the client has the response, in
    // the same write, and with the connection closed in place of an end.
    let after = gate();
    let opened = after.clone();
    let upstream = RawUpstream::calling(move |heard: &Heard| {
        let response = heard.says("hello");
        match heard.body["params"]["name"].as_str().unwrap() {
            "apart" => {
                vec![events_head(), event(&response), Step::Gate(opened.clone()), event(TOLD), last_chunk()]
            }
            "together" => vec![events_head(), chunk(&format!("data: {response}\n\ndata: {TOLD}\n\n")), last_chunk()],
            _ => vec![events_head(), event(&response), event(TOLD), Step::Close],
        }
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    for version in VERSIONS {
        let client = gateway.client().version(version).open().await;
        for tool in ["together", "closed"] {
            let answer = client.request("tools/call", json!({"name": tool})).await;
            let response = only_response(answer, &format!("{version} {tool}")).await;
            assert_eq!(text_of(&response), "hello", "{version} {tool}");
        }
        let mut answer = client.request("tools/call", json!({"name": "apart"})).await;
        assert_eq!(text_of(&answer.message().await), "hello");
        after.add_permits(1);
        let rest = answer.messages().await;
        assert!(rest.iter().all(|message| message["method"] == "notifications/vendor"), "{version}: {rest:?}");
        assert_eq!(rest.len(), 1, "{version}");
    }
}

/// Batches are of one version only: the clients of others get their members, and all get one response.
#[tokio::test]
async fn a_batch_may_go_on_after_the_response() {
    let upstream = RawUpstream::start(|heard: &Heard| {
        let response = heard.says("hello");
        let rest = match (&*heard.method, heard.body["params"]["name"].as_str()) {
            ("initialize", _) => {
                let result = json!({"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}});
                return Some(vec![with_session(&heard.answer(&result.to_string()))]);
            }
            (_, Some("together")) => vec![event(&format!("[{response},{TOLD}]"))],
            (_, Some("before")) => vec![event(&format!("[{TOLD},{response}]"))],
            (_, Some("after")) => vec![event(&format!("[{TOLD},{response}]")), event(TOLD)],
            _ => return None,
        };
        Some([vec![events_head()], rest, vec![last_chunk()]].into_iter().flatten().collect())
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    for version in VERSIONS {
        let client = gateway.client().version(version).open().await;
        for tool in ["together", "before", "after"] {
            let answer = client.request("tools/call", json!({"name": tool})).await;
            let response = only_response(answer, &format!("{version} {tool}")).await;
            assert_eq!(text_of(&response), "hello", "{version} {tool}");
        }
    }
    // A task ends once as well.
    let client = gateway.open().await;
    for tool in ["together", "before", "after"] {
        let id = client.start(tool, json!({})).await;
        assert_eq!(text_of(&client.outcome(&id).await), "hello", "{tool}");
        assert_eq!(client.task(&id).await["status"], "completed");
    }
}
