//! Servers that do tasks themselves, on routes that say so: all of it passes, in both eras, and the gateway adds nothing.
//! Where client and server are of different eras nobody's tasks are told of.

use http::StatusCode;

use crate::support::modern::{CAPABILITIES_KEY, TASKS};
use crate::support::raw_upstream::{event, events_head, json_body};
use crate::support::stateless::{stateless, stream_of};
use crate::support::{Gateway, Modern, RELATED, RawUpstream, Value, json, text_of};

const ID: &str = "their own id";
const TIME: &str = "2026-01-01T00:00:00Z";

fn core_task(status: &str) -> Value {
    json!({"taskId": ID, "status": status, "createdAt": TIME, "lastUpdatedAt": TIME, "ttl": 7, "pollInterval": 1,
        "their": "word"})
}

/// A server of 2025-11-25 with tasks of its own, which asks something on the session's stream or has none.
async fn with_core_tasks(asks: bool) -> RawUpstream {
    RawUpstream::start(move |heard| {
        let related = json!({RELATED: {"taskId": ID}});
        let result = match heard.method.as_str() {
            "initialize" => json!({"protocolVersion": heard.body["params"]["protocolVersion"],
                "capabilities": {"tools": {}, "tasks": {"list": {}, "requests": {"tools": {"call": {}}}, "x": 1}},
                "serverInfo": {"name": "native", "version": "0"}}),
            "tools/list" => json!({"tools": [{"name": "a", "inputSchema": {"type": "object"},
                "execution": {"taskSupport": "required"}}]}),
            "tools/call" if heard.body["params"]["task"].is_object() => {
                json!({"task": core_task("working"), "_meta": related})
            }
            "tasks/get" | "tasks/cancel" => core_task("cancelled"),
            "tasks/result" => json!({"content": [], "_meta": related}),
            "tasks/list" => json!({"tasks": [core_task("failed")], "nextCursor": "theirs"}),
            _ if asks && heard.http_method == "GET" => {
                let status = json!({"jsonrpc": "2.0", "method": "notifications/tasks/status",
                    "params": core_task("working")});
                let question = json!({"jsonrpc": "2.0", "id": 5, "method": "elicitation/create",
                    "params": {"message": "?", "requestedSchema": {}, "_meta": related}});
                return Some(vec![
                    events_head(),
                    event(&status.to_string()),
                    event(&question.to_string()),
                    crate::support::raw_upstream::Step::Stall,
                ]);
            }
            _ => return None,
        };
        Some(match heard.method.as_str() {
            "initialize" => vec![crate::support::raw_upstream::with_session(&heard.answer(&result.to_string()))],
            _ => vec![json_body(&heard.answer(&result.to_string()))],
        })
    })
    .await
}

/// A server of 2026-07-28 with the tasks extension.
async fn with_extension() -> RawUpstream {
    let capabilities = json!({"tools": {}, "extensions": {TASKS: {"their": "settings"}}});
    stateless(capabilities, |heard| {
        let task = json!({"taskId": ID, "status": "working", "createdAt": TIME, "lastUpdatedAt": TIME, "ttlMs": 7,
            "pollIntervalMs": 1});
        let declares = heard.claim(CAPABILITIES_KEY)["extensions"][TASKS].is_object();
        Some(match heard.method.as_str() {
            "tools/call" if declares => {
                let mut handle = task;
                handle["resultType"] = json!("task");
                vec![json_body(&heard.answer(&handle.to_string()))]
            }
            "tasks/get" => vec![json_body(&heard.completes(task))],
            "tasks/update" | "tasks/cancel" => vec![json_body(&heard.completes(json!({})))],
            "subscriptions/listen" => {
                let id = &heard.body["id"];
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                let notifications = &heard.body["params"]["notifications"];
                let acknowledged = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                    "params": {"notifications": notifications, "_meta": meta}});
                let mut changed = task;
                changed["_meta"] = meta;
                let changed = json!({"jsonrpc": "2.0", "method": "notifications/tasks", "params": changed});
                let mut steps = stream_of(&[acknowledged.to_string(), changed.to_string()]);
                steps.pop();
                steps.push(crate::support::raw_upstream::Step::Stall);
                steps
            }
            _ => return None,
        })
    })
    .await
}

async fn native(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).tasks("mode: native").start().await
}

#[tokio::test]
async fn core_tasks_of_the_server_pass_with_all_that_is_said_of_them() {
    let upstream = with_core_tasks(false).await;
    let gateway = native(&upstream).await;
    let declared = json!({"tasks": {"requests": {"elicitation": {"create": {}}}}, "elicitation": {}});
    let client = gateway.client().capabilities(declared.clone()).open().await;
    assert_eq!(upstream.heard("initialize", 1).await[0].body["params"]["capabilities"], declared);
    let theirs = json!({"list": {}, "requests": {"tools": {"call": {}}}, "x": 1});
    assert_eq!(client.welcome["capabilities"]["tasks"], theirs);
    let tools = client.result("tools/list", json!({})).await;
    assert_eq!(tools["tools"][0]["execution"], json!({"taskSupport": "required"}));

    let params = json!({"name": "a", "task": {"ttl": 7}, "_meta": {RELATED: {"taskId": "another"}}});
    let created = client.result("tools/call", params.clone()).await;
    assert_eq!(created["task"], core_task("working"));
    assert_eq!(upstream.heard("tools/call", 1).await[0].body["params"], params);

    let named = json!({"taskId": ID});
    for (method, member) in [("tasks/get", "their"), ("tasks/cancel", "their"), ("tasks/result", "_meta")] {
        let result = client.result(method, named.clone()).await;
        assert!(result.get(member).is_some(), "{method}: {result}");
        assert_eq!(upstream.heard(method, 1).await[0].body["params"], named);
    }
    let listed = client.result("tasks/list", json!({"cursor": "mine"})).await;
    assert_eq!(listed, json!({"tasks": [core_task("failed")], "nextCursor": "theirs"}));
    assert_eq!(upstream.heard("tasks/list", 1).await[0].body["params"], json!({"cursor": "mine"}));
    // Nothing was made here.
    assert_eq!(gateway.metrics().await.value("taskgate_tasks_created_total", &[]), 0.0);
}

#[tokio::test]
async fn what_the_server_tells_and_asks_of_its_tasks_passes() {
    let upstream = with_core_tasks(true).await;
    let gateway = native(&upstream).await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    assert_eq!(stream.message().await["params"], core_task("working"));
    let question = stream.message().await;
    assert_eq!(question["params"]["_meta"], json!({RELATED: {"taskId": ID}}));
    let answer = json!({"action": "accept", "_meta": {RELATED: {"taskId": ID}}});
    client.answer(&question, answer.clone()).await;
    let heard = upstream.until(|heard| heard.iter().any(|heard| heard.body.get("result").is_some())).await;
    let answered: Vec<&Value> = heard.iter().filter_map(|heard| heard.body.get("result")).collect();
    assert_eq!(answered, [&answer]);
}

#[tokio::test]
async fn the_extension_of_the_server_passes_with_its_handles() {
    let upstream = with_extension().await;
    let gateway = native(&upstream).await;
    let client = Modern::new(&gateway).with_tasks();
    let discovered = client.result("server/discover", json!({})).await;
    assert_eq!(discovered["capabilities"]["extensions"], json!({TASKS: {"their": "settings"}}));
    assert_eq!(client.start("a", json!({})).await, ID);
    assert_eq!(client.task(ID).await["taskId"], ID);
    let answers = json!({"k": {"action": "accept"}, "k2": 1.5});
    assert!(client.update(ID, answers.clone()).await.error.is_null());
    assert!(client.cancel(ID).await.error.is_null());
    let updated = upstream.heard("tasks/update", 1).await.remove(0);
    assert_eq!((&updated.body["params"]["taskId"], &updated.body["params"]["inputResponses"]), (&json!(ID), &answers));
    assert_eq!(updated.headers["mcp-name"], ID);
    // One that does not declare it is not given one: that is the server's to see to, and it does.
    assert_eq!(Modern::new(&gateway).text("a", json!({})).await, "usual");
    assert_eq!(gateway.metrics().await.value("taskgate_tasks_created_total", &[]), 0.0);
}

#[tokio::test]
async fn the_servers_tasks_are_listened_to_at_the_server() {
    let upstream = with_extension().await;
    let gateway = native(&upstream).await;
    let client = Modern::new(&gateway).with_tasks();
    let (mut stream, acknowledged) = client.listen(json!({"taskIds": [ID]})).await;
    assert_eq!(acknowledged, json!({"taskIds": [ID]}));
    let told = stream.message().await;
    assert_eq!((&told["method"], &told["params"]["taskId"]), (&json!("notifications/tasks"), &json!(ID)));
    assert!(
        upstream.heard("subscriptions/listen", 1).await[0].claim(CAPABILITIES_KEY)["extensions"][TASKS].is_object()
    );
    let without =
        Modern::new(&gateway).request("subscriptions/listen", json!({"notifications": {"taskIds": [ID]}})).await;
    assert_eq!(without.refusal(), (400, -32021));
}

#[tokio::test]
async fn between_the_eras_there_are_nobodys_tasks() {
    let upstream = with_core_tasks(false).await;
    let gateway = native(&upstream).await;
    let modern = Modern::new(&gateway).with_tasks();
    let discovered = modern.result("server/discover", json!({})).await;
    assert_eq!(discovered["capabilities"], json!({"tools": {}}));
    assert_eq!(modern.text("b", json!({})).await, "usual");
    assert_eq!(modern.request("tasks/get", json!({"taskId": ID})).await.refusal(), (404, -32601));

    let upstream = with_extension().await;
    let gateway = native(&upstream).await;
    let legacy = gateway.open().await;
    assert_eq!(legacy.welcome["capabilities"], json!({"tools": {}}));
    let tools = legacy.result("tools/list", json!({})).await;
    assert!(tools["tools"][0].get("execution").is_none(), "{tools}");
    let params = json!({"name": "a", "task": {}});
    assert_eq!(text_of(&legacy.response("tools/call", params).await), "usual");
    assert!(upstream.heard("tools/call", 1).await[0].body["params"].get("task").is_none());
    assert_eq!(legacy.error("tasks/get", json!({"taskId": ID})).await["code"], -32601);
}

#[tokio::test]
async fn without_that_word_the_servers_tasks_are_hidden_and_the_gateways_stand_in_their_place() {
    let upstream = with_extension().await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = Modern::new(&gateway).with_tasks();
    let discovered = client.result("server/discover", json!({})).await;
    assert_eq!(discovered["capabilities"]["extensions"], json!({TASKS: {}}));
    assert_eq!(client.text("a", json!({})).await, "usual");
    let heard = upstream.heard("tools/call", 1).await.remove(0);
    assert!(heard.claim(CAPABILITIES_KEY).get("extensions").is_none(), "{}", heard.body);
    assert_eq!(client.request("tasks/get", json!({"taskId": ID})).await.refusal(), (200, -32602));
    assert_eq!(upstream.count("tasks/get"), 0);

    let upstream = with_core_tasks(false).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    assert_eq!(client.welcome["capabilities"]["tasks"]["requests"], json!({"tools": {"call": {}}}));
    assert!(client.welcome["capabilities"]["tasks"].get("x").is_none());
    let tools = client.result("tools/list", json!({})).await;
    assert_eq!(tools["tools"][0]["execution"], json!({"taskSupport": "optional"}));
    let answer = client.request("tasks/get", json!({"taskId": ID})).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.response().await["error"]["code"], -32602);
    assert_eq!(upstream.count("tasks/get"), 0);
}
