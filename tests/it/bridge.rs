//! Legacy clients in front of servers of the modern era: sessions that the gateway keeps for servers which keep none.

use http::StatusCode;

use crate::support::modern::{CAPABILITIES_KEY, LEVEL_KEY, TASKS};
use crate::support::raw_upstream::{Heard, bare, gate, json_body, whole};
use crate::support::stateless::{calling, stateless};
use crate::support::{Gateway, RawUpstream, Value, json, text_of};

async fn in_front_of(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).start().await
}

#[tokio::test]
async fn a_session_is_opened_in_the_name_of_a_server_that_has_none() {
    let capabilities = json!({"tools": {"listChanged": true}, "extensions": {TASKS: {}, "x/y": {}}});
    let upstream = stateless(capabilities, |_| None).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    assert_eq!(
        client.welcome,
        json!({"protocolVersion": "2025-11-25", "instructions": "be brief",
            "serverInfo": {"name": "stateless", "version": "0"},
            "capabilities": {"tools": {"listChanged": true}, "extensions": {"x/y": {}},
                "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}})
    );
    // Older clients know nothing of tasks, and whoever asks for what is not known gets the newest with a handshake.
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let client = gateway.client().version(asked).open().await;
        assert_eq!(client.version, given);
        assert_eq!(client.welcome["capabilities"].get("tasks").is_some(), given == "2025-11-25");
        assert_eq!(text_of(&client.call("a", json!({})).await), "usual");
    }
}

#[tokio::test]
async fn requests_say_of_themselves_what_the_session_said() {
    let upstream = calling(|heard| vec![json_body(&heard.tells("done"))]).await;
    let gateway = in_front_of(&upstream).await;
    let declared = json!({"roots": {"listChanged": true}, "tasks": {"list": {}}, "elicitation": {}, "x": {"n": 1},
        "extensions": {TASKS: {}}});
    let client = gateway.client().capabilities(declared).open().await;
    let params = json!({"name": "a", "arguments": {"n": 1},
        "_meta": {"com.example/x": 5, "io.modelcontextprotocol/related-task": {"taskId": "t"}, "progressToken": "mine"}});
    client.result("tools/call", params).await;
    let heard = upstream.heard("tools/call", 1).await.remove(0);
    let meta = &heard.body["params"]["_meta"];
    assert_eq!(*heard.claim(CAPABILITIES_KEY), json!({"roots": {}, "elicitation": {}, "x": {"n": 1}}));
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({"name": "test", "version": "0"}));
    assert_eq!(meta["com.example/x"], 5);
    assert!(meta.get("io.modelcontextprotocol/related-task").is_none() && meta.get(LEVEL_KEY).is_none(), "{meta}");
    assert!(meta["progressToken"].is_u64(), "{meta}");
    assert_eq!(heard.body["params"]["arguments"], json!({"n": 1}));
    // A client that takes no events can't be asked anything.
    let call = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "a"}});
    let answer = client.post_with(&[("accept", "application/json")], call.to_string()).await;
    assert_eq!(answer.json().await["id"], 77);
    assert_eq!(*upstream.heard("tools/call", 2).await[1].claim(CAPABILITIES_KEY), json!({}));
}

#[tokio::test]
async fn clients_declare_what_their_version_has() {
    let upstream = calling(|heard| vec![json_body(&heard.tells("done"))]).await;
    let gateway = in_front_of(&upstream).await;
    let all = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}});
    let seen = [
        ("2025-11-25", all.clone()),
        ("2025-06-18", json!({"elicitation": {}, "sampling": {}})),
        ("2025-03-26", json!({"sampling": {}})),
        ("2024-11-05", json!({"sampling": {}})),
    ];
    for (number, (version, declared)) in seen.into_iter().enumerate() {
        let client = gateway.client().version(version).capabilities(all.clone()).open().await;
        client.call("a", json!({})).await;
        assert_eq!(
            *upstream.heard("tools/call", number + 1).await[number].claim(CAPABILITIES_KEY),
            declared,
            "{version}"
        );
    }
}

#[tokio::test]
async fn pings_and_log_levels_stay_here() {
    let upstream = calling(|heard| vec![json_body(&heard.tells("done"))]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    assert_eq!(client.error("logging/setLevel", json!({"level": "loud"})).await["code"], -32602);
    assert_eq!(client.result("logging/setLevel", json!({"level": "warning"})).await, json!({}));
    client.call("a", json!({})).await;
    let heard = upstream.heard("tools/call", 1).await.remove(0);
    assert_eq!(*heard.claim(LEVEL_KEY), "warning");
    assert_eq!(upstream.count("ping") + upstream.count("logging/setLevel"), 0);
    let without = stateless(json!({"tools": {}}), |_| None).await;
    let gateway = in_front_of(&without).await;
    let client = gateway.open().await;
    assert_eq!(client.error("logging/setLevel", json!({"level": "info"})).await["code"], -32601);
}

#[tokio::test]
async fn lists_lose_what_the_other_era_added_and_say_what_can_be_a_task() {
    let upstream = stateless(json!({"tools": {}, "prompts": {}}), |heard| {
        let page = json!({"tools": [{"name": "a", "inputSchema": {"type": "object"},
            "outputSchema": {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "number"}}}},
            {"name": "admin_x", "inputSchema": {}},
            // Nobody could call this one: numbers have no form for a header.
            {"name": "bad", "inputSchema": {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}}],
            "nextCursor": "2", "ttlMs": 1000, "cacheScope": "public",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}, "com.example/k": 1}});
        let prompts = json!({"prompts": [], "ttlMs": 1, "cacheScope": "private"});
        match heard.method.as_str() {
            "tools/list" => Some(vec![json_body(&heard.completes(page))]),
            "prompts/list" => Some(vec![json_body(&heard.completes(prompts))]),
            _ => None,
        }
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).tools("deny: [\"admin_*\"]").start().await;
    let client = gateway.open().await;
    let page = client.result("tools/list", json!({"cursor": "1"})).await;
    assert_eq!(
        page,
        json!({"tools": [{"name": "a", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"},
            "outputSchema": {"type": "object", "required": ["result"], "properties": {"result": {"type": "array",
                "items": {"$ref": "#/properties/result/$defs/n"}, "$defs": {"n": {"type": "number"}}}}}}],
            "nextCursor": "2", "_meta": {"com.example/k": 1}})
    );
    assert_eq!(upstream.heard("tools/list", 1).await.last().unwrap().body["params"]["cursor"], "1");
    assert_eq!(client.result("prompts/list", json!({})).await, json!({"prompts": []}));
    assert_eq!(client.error("tools/call", json!({"name": "admin_x"})).await["message"], "Unknown tool");
    // What belongs to the server's era alone is not there in the client's.
    for method in ["subscriptions/listen", "tasks/update"] {
        let params = json!({"notifications": {"toolsListChanged": true}});
        assert_eq!(client.error(method, params).await["code"], -32601, "{method}");
        assert_eq!(upstream.count(method), 0, "{method}");
    }
    // What nobody here knows goes through, and comes back as the server says.
    assert_eq!(client.error("vendor/thing", json!({"a": [1]})).await["code"], -32601);
    assert_eq!(upstream.heard("vendor/thing", 1).await[0].body["params"]["a"], json!([1]));
}

#[tokio::test]
async fn reads_and_prompts_name_what_they_want_in_a_header() {
    let upstream = stateless(json!({"resources": {}, "prompts": {}}), |heard| match heard.method.as_str() {
        "resources/read" => {
            let error = json!({"code": -32602, "message": "none", "data": {"uri": "a:/b"}});
            Some(vec![heard.refuses(400, &error)])
        }
        "prompts/get" => Some(vec![json_body(&heard.completes(json!({"messages": []})))]),
        _ => None,
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    // Not a status that a legacy client would take for the end of its session.
    let error = client.error("resources/read", json!({"uri": "a:/b"})).await;
    assert_eq!(error, json!({"code": -32602, "message": "none", "data": {"uri": "a:/b"}}));
    assert_eq!(client.result("prompts/get", json!({"name": "p"})).await, json!({"messages": []}));
    // A name that no header can hold is written in base64.
    let answer = client.response("prompts/get", json!({"name": "schön"})).await;
    assert_eq!(answer["error"]["code"], -32603, "the strict server of this test compares letters: {answer}");
    let heard = upstream.heard("prompts/get", 2).await;
    assert_eq!(heard[1].headers["mcp-name"], "=?base64?c2Now7Zu?=");
}

#[tokio::test]
async fn results_are_those_of_the_clients_era() {
    let upstream = calling(|heard| {
        let name = heard.body["params"]["name"].as_str().unwrap();
        let result = match name {
            "number" => json!({"content": [], "structuredContent": 5, "resultType": "complete"}),
            "object" => json!({"content": [], "structuredContent": {"n": 5}, "resultType": "complete"}),
            "failed" => json!({"content": [], "isError": true, "resultType": "complete"}),
            "untyped" => json!({"content": []}),
            "task" => json!({"resultType": "task", "taskId": "t", "status": "working"}),
            _ => json!({"resultType": "later"}),
        };
        vec![json_body(&heard.answer(&result.to_string()))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let number = client.call("number", json!({})).await;
    assert_eq!(
        number["result"],
        json!({"structuredContent": {"result": 5}, "content": [{"type": "text", "text": "5"}]})
    );
    assert_eq!(client.call("object", json!({})).await["result"], json!({"content": [], "structuredContent": {"n": 5}}));
    assert_eq!(client.call("failed", json!({})).await["result"], json!({"content": [], "isError": true}));
    assert_eq!(client.call("untyped", json!({})).await["result"], json!({"content": []}));
    // Nobody asked for these.
    for tool in ["task", "later"] {
        let error = client.error("tools/call", json!({"name": tool})).await;
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("upstream_protocol")));
    }
}

#[tokio::test]
async fn no_code_of_the_other_era_reaches_the_client() {
    let upstream = stateless(json!({"tools": {}, "prompts": {}}), |heard| {
        let code = heard.body["params"]["arguments"]["code"].as_i64()?;
        let data = json!({"requiredCapabilities": {"sampling": {}}});
        let error = json!({"code": code, "message": "theirs", "data": data});
        Some(vec![heard.refuses(if code > -32020 { 200 } else { 400 }, &error)])
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({})).open().await;
    for (code, given) in [(-32022, -32603), (-32050, -32603), (-32010, -32010), (-32602, -32602), (7, 7)] {
        let error = client.error("tools/call", json!({"name": "a", "arguments": {"code": code}})).await;
        assert_eq!(error["code"], given, "{code}: {error}");
        assert_eq!(error.to_string().contains("requiredCapabilities"), code == given, "{error}");
    }
    // A tool says why it failed; other methods have only errors.
    let result = client.call("a", json!({"code": -32021})).await;
    assert_eq!(result["result"]["isError"], true, "{result}");
    assert!(text_of(&result).contains("sampling"), "{result}");
    let error = client.error("prompts/get", json!({"name": "p", "arguments": {"code": -32021}})).await;
    assert_eq!(error["code"], -32603);
    // The same for a client that takes no events, in other words.
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "a", "arguments": {"code": -32021}}});
    let answer = client.post_with(&[("accept", "application/json")], call.to_string()).await.json().await;
    assert!(text_of(&answer).contains("can't receive requests"), "{answer}");
}

#[tokio::test]
async fn a_server_that_can_not_be_reached_or_breaks_off_is_told_of() {
    let upstream = calling(|_| vec![whole(200, "application/json", "{\"jsonrpc\":")]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let error = client.error("tools/call", json!({"name": "a"})).await;
    assert_eq!(error["code"], -32603, "{error}");
    let upstream = calling(|_| vec![bare(503)]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let error = client.error("tools/call", json!({"name": "a"})).await;
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("outcome_unknown")));
}

#[tokio::test]
async fn batches_of_an_old_client_work() {
    let upstream = calling(|heard| vec![json_body(&heard.tells(heard.body["params"]["name"].as_str().unwrap()))]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().version("2025-03-26").open().await;
    let call =
        |id: u32, name: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}});
    let batch = json!([call(1, "a"), call(2, "b"), {"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    let mut answers = client.post(batch.to_string()).await.messages().await;
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers.iter().map(text_of).collect::<Vec<_>>(), ["a", "b"]);
}

#[tokio::test]
async fn a_client_may_be_asked_nothing_that_it_did_not_declare() {
    // A server that asks all the same has broken the protocol.
    let upstream = calling(|heard| {
        let asked = json!({"k": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}});
        vec![json_body(&heard.asks(&asked, "s"))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.client().capabilities(json!({"elicitation": {}})).open().await;
    let error = client.error("tools/call", json!({"name": "a"})).await;
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("upstream_protocol")));
}

#[tokio::test]
async fn answers_to_questions_that_nobody_asked_are_refused() {
    let upstream = calling(|heard| vec![json_body(&heard.tells("done"))]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    assert_eq!(client.try_answer(&json!("mine"), json!({})).await.status, StatusCode::BAD_REQUEST);
    // One that may have been asked and is over is nobody's fault.
    assert_eq!(client.try_answer(&json!("q.1.1"), json!({})).await.status, StatusCode::ACCEPTED);
    let unread: Value = json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "what?"}});
    assert_eq!(client.post(unread.to_string()).await.status, StatusCode::ACCEPTED);
    client.notify("notifications/roots/list_changed", json!({})).await;
    assert_eq!(upstream.count("notifications/roots/list_changed"), 0);
}

#[tokio::test]
async fn a_tool_that_wants_other_headers_than_it_did_is_called_again_with_those() {
    let strict = |heard: &Heard| heard.headers.get("mcp-param-region").is_some_and(|region| region == "eu");
    let changed = gate();
    let has_changed = changed.clone();
    let upstream = stateless(json!({"tools": {}}), move |heard| match heard.method.as_str() {
        "tools/list" => {
            let region = if has_changed.available_permits() > 0 {
                json!({"type": "string", "x-mcp-header": "Region"})
            } else {
                json!({"type": "string"})
            };
            let schema = json!({"type": "object", "properties": {"region": region}});
            let page = json!({"tools": [{"name": "a", "inputSchema": schema}], "ttlMs": 60000, "cacheScope": "public"});
            Some(vec![json_body(&heard.completes(page))])
        }
        "tools/call" if has_changed.available_permits() > 0 && !strict(heard) => {
            let error = json!({"code": -32020, "message": "Mcp-Param-Region is missing"});
            Some(vec![heard.refuses(400, &error)])
        }
        _ => None,
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let arguments = json!({"region": "eu"});
    assert_eq!(text_of(&client.call("a", arguments.clone()).await), "usual");
    assert!(!strict(&upstream.heard("tools/call", 1).await[0]));
    changed.add_permits(1);
    assert_eq!(text_of(&client.call("a", arguments.clone()).await), "usual");
    // Refused once, which ran nothing, and from then on known.
    assert_eq!(upstream.count("tools/call"), 3);
    assert_eq!(text_of(&client.call("a", arguments).await), "usual");
    assert_eq!(upstream.count("tools/call"), 4);
}
