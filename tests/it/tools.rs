//! What the gateway says of tools, and which calls it takes.

use std::collections::BTreeMap;

use taskgate::demo::server::{Options, TaskSupport};
use taskgate::mcp::version::ProtocolVersion;

use crate::support::{Client, Gateway, Value, json, text_of};

/// Every page of `tools/list`.
async fn pages(client: &Client) -> Vec<Value> {
    let mut pages = Vec::new();
    let mut params = json!({});
    loop {
        let page = client.result("tools/list", params).await;
        let next = page.get("nextCursor").cloned();
        pages.push(page);
        match next {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => return pages,
        }
    }
}

/// What is said of each tool, over all pages.
async fn support(client: &Client) -> BTreeMap<String, Option<String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of = |tool: &Value| (text(&tool["name"]).unwrap(), text(&tool["execution"]["taskSupport"]));
    let pages = pages(client).await;
    pages.iter().flat_map(|page| page["tools"].as_array().unwrap()).map(of).collect()
}

#[tokio::test]
async fn the_capability_is_exactly_what_is_served() {
    let calls = json!({"tools": {"call": {}}});
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    // 2025-11-25 tasks, "Security": callers that can't be told apart get no list.
    assert_eq!(client.welcome["capabilities"]["tasks"], json!({"cancel": {}, "requests": calls}));
    assert_eq!(client.welcome["capabilities"]["tools"], json!({"listChanged": true}));
    let gateway = Gateway::setup().callers(&["acme/ann"]).start().await;
    let client = gateway.open_as("ann").await;
    assert_eq!(client.welcome["capabilities"]["tasks"], json!({"list": {}, "cancel": {}, "requests": calls}));
}

#[tokio::test]
async fn without_credentials_there_is_no_list() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    assert_eq!(client.error("tasks/list", json!({})).await["code"], -32601);
}

#[tokio::test]
async fn every_page_says_what_the_route_says() {
    // Given a server that lists its tools in pages, and says of each that it takes no tasks,
    for task_support in [None, Some(TaskSupport::Forbidden), Some(TaskSupport::Required)] {
        let server = Options { page_size: Some(4), task_support, ..Options::default() };
        let tools = "tools: [{match: \"ask*\", support: required}, {match: count, support: forbidden}]";
        let gateway = Gateway::setup().server(server).tasks(tools).start().await;
        let client = gateway.open().await;
        let pages = pages(&client).await;
        assert_eq!(pages.len(), 5);
        for (number, page) in pages.iter().enumerate() {
            assert_eq!(page["_meta"]["vendor.example/page"], number * 4);
            for tool in page["tools"].as_array().unwrap() {
                let name = tool["name"].as_str().unwrap();
                let wanted = match name {
                    "count" => "forbidden",
                    _ if name.starts_with("ask") => "required",
                    _ => "optional",
                };
                assert_eq!(tool["execution"]["taskSupport"], wanted, "{tool}");
                let kept = task_support.map(|_| json!(1)).unwrap_or(Value::Null);
                assert_eq!(tool["execution"]["vendor.example/kept"], kept, "{tool}");
                assert_eq!(tool["annotations"]["vendor.example/hint"], 1, "{tool}");
            }
        }
    }
}

#[tokio::test]
async fn a_list_that_comes_in_an_array_says_it_too() {
    for always_sse in [true, false] {
        let version = ProtocolVersion::V2025_03_26;
        let server = Options { batches: true, always_sse, version, ..Options::default() };
        let gateway = Gateway::setup().server(server).tools("deny: [hold]").start().await;
        for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
            let client = gateway.client().version(version).open().await;
            let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
            let text = String::from_utf8(client.post(body).await.bytes().await.to_vec()).unwrap();
            assert!(!text.contains("\"hold\""), "{version}: a denied tool is listed");
            assert_eq!(text.contains("taskSupport"), version == "2025-11-25", "{version}");
        }
    }
}

#[tokio::test]
async fn cursors_pass_as_they_are_whatever_is_in_them() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for cursor in [r#""a b\"c\\d\u0000é\/🦀""#, "\"\"", "5", "null", "{\"a\":[1.10]}"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"cursor":{cursor}}}}}"#);
        let response = client.post(body.clone()).await.response().await;
        assert_eq!(response["error"]["message"], "unknown cursor");
        assert_eq!(gateway.upstream.stats().last_body, body);
    }
}

#[tokio::test]
async fn older_sessions_see_the_tools_untouched() {
    for task_support in [None, Some(TaskSupport::Forbidden)] {
        let server = Options { task_support, ..Options::default() };
        let gateway = Gateway::setup().server(server).tasks("support: required").start().await;
        let client = gateway.client().version("2025-06-18").open().await;
        assert_eq!(client.welcome["capabilities"].get("tasks"), None);
        let wanted = task_support.map(|_| "forbidden".to_owned());
        assert!(support(&client).await.values().all(|support| *support == wanted));
    }
}

#[tokio::test]
async fn a_call_must_be_what_its_tool_allows() {
    let tools = "tools: [{match: echo, support: required}, {match: count, support: forbidden}]";
    let gateway = Gateway::setup().tasks(tools).start().await;
    let client = gateway.open().await;
    // 2025-11-25 tasks, "Tool-Level Negotiation" 2.
    assert_eq!(client.error("tools/call", json!({"name": "count", "task": {}})).await["code"], -32601);
    let plain = json!({"name": "echo", "arguments": {"text": "x"}});
    assert_eq!(client.error("tools/call", plain).await["code"], -32601);
    let stats = gateway.upstream.stats();
    assert_eq!((stats.tool("echo").started, stats.tool("count").started), (0, 0));
    // The other way round each works, and what is optional works both ways.
    assert_eq!(text_of(&client.call("count", json!({})).await), "1");
    let id = client.start("echo", json!({"text": "x"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "x");
    assert_eq!(text_of(&client.call("log", json!({})).await), "logged");
    let id = client.start("log", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "logged");
    // A session without tasks is not bound by any of it.
    let old = gateway.client().version("2025-06-18").open().await;
    assert_eq!(text_of(&old.call("echo", json!({"text": "y"})).await), "y");
    let response = old.response("tools/call", json!({"name": "count", "task": {}})).await;
    assert_eq!(text_of(&response), "2");
}

#[tokio::test]
async fn a_denied_tool_is_not_there() {
    let gateway = Gateway::setup().tools("allow: [\"e*\", \"ask*\", count], deny: [\"ask_?wo\", echo]").start().await;
    for version in ["2025-11-25", "2025-06-18"] {
        let client = gateway.client().version(version).open().await;
        let names: Vec<String> = support(&client).await.into_keys().collect();
        assert_eq!(names, ["ask", "ask_twice", "ask_url", "count", "exact"], "{version}");
        for name in ["echo", "ask_two", "hold", "nobody", "", "Count"] {
            for params in [json!({"name": name}), json!({"name": name, "task": {}})] {
                let error = client.error("tools/call", params).await;
                assert_eq!(error, json!({"code": -32602, "message": "Unknown tool"}), "{name}");
            }
        }
        assert!(client.call("exact", json!({})).await["result"].is_object());
    }
    assert_eq!(gateway.upstream.stats().tool("echo").started, 0);
}

#[tokio::test]
async fn spelling_hides_nothing() {
    let gateway =
        Gateway::setup().tools("deny: [count]").tasks("tools: [{match: exact, support: required}]").start().await;
    let client = gateway.open().await;
    for (method, params, code) in [
        ("tools/call", r#"{"name":"\u0063ount"}"#, -32602),
        (r"tools\/call", r#"{"name":"count"}"#, -32602),
        (r"t\u006fols/call", r#"{"n\u0061me":"count"}"#, -32602),
        ("tools/call", r#"{"n\u0061me":"count","t\u0061sk":{}}"#, -32602),
        (r"tools\/call", r#"{"name":"\u0065xact"}"#, -32601),
        ("tools/call", r#"{"name":"\ud800"}"#, -32602),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"m\u0065thod":"{method}","params":{params}}}"#);
        assert_eq!(client.post(body).await.response().await["error"]["code"], code, "{method} {params}");
    }
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{"name":"\u0065xact","t\u0061sk":{}}}"#;
    let id = client.post(body).await.response().await["result"]["task"]["taskId"].as_str().unwrap().to_owned();
    client.until(&id, "completed").await;
    let stats = gateway.upstream.stats();
    assert_eq!((stats.counter, stats.task_seen), (0, false));
}

#[tokio::test]
async fn a_tool_that_the_server_does_not_know_fails_as_the_server_says() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let plain = client.error("tools/call", json!({"name": "nobody"})).await;
    assert_eq!(plain, json!({"code": -32602, "message": "Unknown tool: nobody"}));
    let id = client.start("nobody", json!({})).await;
    client.until(&id, "failed").await;
    assert_eq!(client.outcome(&id).await["error"], plain);
}
