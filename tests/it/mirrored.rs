//! Arguments that a server wants to have repeated in header fields: checked where clients send them, added where they
//! can't know of them, and learnt anew when the server's tools change.

use std::sync::{Arc, Mutex};

use crate::support::raw_upstream::{gate, json_body};
use crate::support::stateless::stateless;
use crate::support::{Gateway, Modern, RawUpstream, Value, json, text_of, within};

const MISMATCH: (u16, i64) = (400, -32020);

/// A strict server whose tool `here` wants its argument `place` in `Mcp-Param-<name>`, whatever the name is now.
struct Server {
    upstream: RawUpstream,
    name: Arc<Mutex<String>>,
}

impl Server {
    async fn start() -> Self {
        let name = Arc::new(Mutex::new("Region".to_owned()));
        let wanted = Arc::clone(&name);
        let upstream = stateless(json!({"tools": {}}), move |heard| {
            let name = wanted.lock().unwrap().clone();
            match heard.method.as_str() {
                "tools/list" if heard.body["params"]["cursor"].is_null() => {
                    let invalid = json!({"type": "number", "x-mcp-header": "N"});
                    let tools = json!([{"name": "plain", "inputSchema": {"type": "object"}},
                        {"name": "invalid", "inputSchema": {"type": "object", "properties": {"n": invalid}}}]);
                    Some(vec![json_body(&heard.completes(
                        json!({"tools": tools, "nextCursor": "", "ttlMs": 600_000, "cacheScope": "public"}),
                    ))])
                }
                "tools/list" => {
                    let place = json!({"type": "string", "x-mcp-header": name});
                    let tool = json!({"name": "here", "inputSchema": {"type": "object", "properties": {"place": place}},
                        "outputSchema": {"type": "array"}});
                    Some(vec![json_body(
                        &heard.completes(json!({"tools": [tool], "ttlMs": 600_000, "cacheScope": "public"})),
                    )])
                }
                "tools/call" if heard.body["params"]["name"] == "here" => {
                    let header = heard.headers.get(format!("mcp-param-{name}")).map(|value| value.to_str().unwrap());
                    let fits = match (header, heard.body["params"]["arguments"]["place"].as_str()) {
                        // `北` in base64.
                        (Some("=?base64?5YyX?="), Some("北")) => true,
                        (header, place) => header == place,
                    };
                    if !fits {
                        let error = json!({"code": -32020, "message": "Mcp-Param differs"});
                        return Some(vec![heard.refuses(400, &error)]);
                    }
                    let result = json!({"content": [], "structuredContent": [1, 2]});
                    Some(vec![json_body(&heard.completes(result))])
                }
                _ => None,
            }
        })
        .await;
        Self { upstream, name }
    }

    /// The tool changes: its argument is wanted under another name.
    fn rename(&self, name: &str) {
        name.clone_into(&mut self.name.lock().unwrap());
    }
}

async fn in_front_of(server: &Server) -> Gateway {
    Gateway::setup().in_front_of(&server.upstream.url()).start().await
}

/// A modern client's call with these header fields.
async fn call(client: &Modern, place: Value, headers: &[(&'static str, &str)]) -> Result<Value, (u16, i64)> {
    let params = json!({"name": "here", "arguments": {"place": place}});
    let reply = client.request_with(headers, "tools/call", params).await;
    if reply.error.is_null() { Ok(reply.result["structuredContent"].clone()) } else { Err(reply.refusal()) }
}

#[tokio::test]
async fn headers_that_do_not_fit_the_arguments_are_refused_before_the_server_hears_of_them() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let client = Modern::new(&gateway);
    for (place, headers) in [
        (json!("eu"), &[][..]),
        (json!("eu"), &[("mcp-param-region", "us")]),
        (json!("eu"), &[("mcp-param-region", "EU")]),
        (json!("北"), &[("mcp-param-region", "北")]),
        (json!("北"), &[("mcp-param-region", "=?base64?5YyX=?=")]),
        (json!(null), &[("mcp-param-region", "eu")]),
    ] {
        assert_eq!(call(&client, place.clone(), headers).await, Err(MISMATCH), "{place} {headers:?}");
    }
    assert_eq!(server.upstream.count("tools/call"), 0);
    for (place, headers) in [
        (json!("eu"), &[("mcp-param-region", "eu"), ("mcp-param-other", "x")][..]),
        (json!("北"), &[("mcp-param-region", "=?base64?5YyX?=")]),
        (json!(null), &[]),
    ] {
        assert_eq!(call(&client, place.clone(), headers).await, Ok(json!([1, 2])), "{place} {headers:?}");
    }
    let passed = server.upstream.heard("tools/call", 3).await;
    assert_eq!(passed[0].headers["mcp-param-other"], "x");
    assert_eq!(client.text("plain", json!({"place": "eu"})).await, "usual");
    assert_eq!(gateway.metrics().await.value("taskgate_unchecked_calls_total", &[]), 0.0);
}

#[tokio::test]
async fn clients_that_know_nothing_of_such_headers_get_them_added() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let client = gateway.open().await;
    for place in ["eu", "北"] {
        let response = client.call("here", json!({"place": place})).await;
        // An array is no structured result in their version.
        assert_eq!(response["result"]["structuredContent"], json!({"result": [1, 2]}), "{response}");
        assert_eq!(text_of(&response), "[1,2]");
    }
    let listed = client.result("tools/list", json!({"cursor": ""})).await;
    assert_eq!(listed["tools"][0]["outputSchema"]["properties"]["result"], json!({"type": "array"}));
    // The task's call as well.
    let task = client.start("here", json!({"place": "eu"})).await;
    client.until(&task, "completed").await;
}

#[tokio::test]
async fn a_tool_with_annotations_that_break_the_rules_is_not_listed() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let names = |listed: &Value| -> Vec<String> {
        let tools = listed["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let modern = Modern::new(&gateway).result("tools/list", json!({})).await;
    assert_eq!(names(&modern), ["plain"]);
    // What was left out for this caller may not be kept for others.
    assert_eq!((&modern["ttlMs"], &modern["cacheScope"]), (&json!(0), &json!("private")));
    let legacy = gateway.open().await.result("tools/list", json!({})).await;
    assert_eq!(names(&legacy), ["plain"]);
}

#[tokio::test]
async fn a_tool_that_changes_is_called_once_more_and_never_run_twice() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let client = gateway.open().await;
    assert_eq!(text_of(&client.call("here", json!({"place": "eu"})).await), "[1,2]");
    server.rename("zone");
    assert_eq!(text_of(&client.call("here", json!({"place": "eu"})).await), "[1,2]");
    let calls = server.upstream.heard("tools/call", 3).await;
    let names = |headers: &http::HeaderMap| {
        headers
            .keys()
            .map(|name| name.as_str().to_owned())
            .filter(|name| name.starts_with("mcp-param"))
            .collect::<Vec<_>>()
    };
    let seen: Vec<_> = calls.iter().map(|heard| names(&heard.headers)).collect();
    assert_eq!(seen, [["mcp-param-region"], ["mcp-param-region"], ["mcp-param-zone"]]);
    let task = client.start("here", json!({"place": "eu"})).await;
    client.until(&task, "completed").await;
    assert_eq!(server.upstream.count("tools/call"), 4);
}

#[tokio::test]
async fn a_client_that_knows_of_a_change_first_is_believed_and_one_that_does_not_is_told() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let client = Modern::new(&gateway);
    let (old, new) = ([("mcp-param-region", "eu")], [("mcp-param-zone", "eu")]);
    assert_eq!(call(&client, json!("eu"), &old).await, Ok(json!([1, 2])));
    server.rename("zone");
    // The gateway takes the old header for right; the server does not, and its error is one that the client can mend.
    assert_eq!(call(&client, json!("eu"), &old).await, Err(MISMATCH));
    assert_eq!(server.upstream.count("tools/call"), 2);
    // Soon after one listing no other is asked for.
    within(async { while call(&client, json!("eu"), &new).await.is_err() {} }).await;
    assert_eq!(call(&client, json!("eu"), &old).await, Err(MISMATCH));
    assert_eq!(server.upstream.count("tools/call"), 3);
}

#[tokio::test]
async fn a_call_that_may_become_a_task_is_sent_with_headers_that_fit() {
    let server = Server::start().await;
    let gateway = in_front_of(&server).await;
    let client = Modern::new(&gateway).with_tasks();
    assert_eq!(call(&client, json!("eu"), &[]).await, Err(MISMATCH));
    let old = [("mcp-param-region", "eu")];
    assert_eq!(call(&client, json!("eu"), &old).await, Ok(json!([1, 2])));
    // The call is held here by now, so it is here that it is mended.
    server.rename("zone");
    assert_eq!(call(&client, json!("eu"), &old).await, Ok(json!([1, 2])));
    assert_eq!(server.upstream.count("tools/call"), 3);
}

#[tokio::test]
async fn a_task_that_is_made_at_once_is_mended_as_well() {
    let server = Server::start().await;
    let gateway =
        Gateway::setup().in_front_of(&server.upstream.url()).tasks("defer: 0s, questions: in_task").start().await;
    let client = Modern::new(&gateway).with_tasks();
    let params = json!({"name": "here", "arguments": {"place": "eu"}});
    let old = [("mcp-param-region", "eu")];
    let first = client.request_with(&old, "tools/call", params.clone()).await;
    client.until(first.result["taskId"].as_str().unwrap(), "completed").await;
    server.rename("zone");
    let second = client.request_with(&old, "tools/call", params).await;
    let task = client.until(second.result["taskId"].as_str().unwrap(), "completed").await;
    assert_eq!(task["result"]["structuredContent"], json!([1, 2]), "{task}");
    assert_eq!(server.upstream.count("tools/call"), 3);
}

#[tokio::test]
async fn the_tools_are_listed_once_for_all_who_wait() {
    let opened = gate();
    let waiting = Arc::clone(&opened);
    let upstream = stateless(json!({"tools": {}}), move |heard| {
        let tools = || json_body(&heard.completes(json!({"tools": [], "ttlMs": 600_000, "cacheScope": "private"})));
        (heard.method == "tools/list")
            .then(|| vec![crate::support::raw_upstream::Step::Gate(Arc::clone(&waiting)), tools()])
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let clients: Vec<Modern> = (0..20).map(|_| Modern::new(&gateway)).collect();
    let calls = clients.iter().map(|client| client.text("a", json!({})));
    let (said, ()) = tokio::join!(futures_util::future::join_all(calls), async {
        upstream.heard("tools/list", 1).await;
        opened.add_permits(1);
    });
    assert_eq!(said, vec!["usual"; 20]);
    assert_eq!(upstream.count("tools/list"), 1);
}

#[tokio::test]
async fn where_the_tools_can_not_be_listed_calls_pass_and_are_counted() {
    let upstream = stateless(json!({"tools": {}}), |heard| {
        (heard.method == "tools/list").then(|| vec![heard.refuses(200, &json!({"code": -32603, "message": "broken"}))])
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway);
    assert_eq!(client.text("a", json!({"place": "eu"})).await, "usual");
    assert_eq!(client.text("a", json!({"place": "eu"})).await, "usual");
    // It is not asked again at once.
    assert_eq!(upstream.count("tools/list"), 1);
    assert_eq!(gateway.metrics().await.value("taskgate_unchecked_calls_total", &[]), 2.0);
}
