//! Tasks of the core dialect for tools of a server of the modern era, and the fixture's tools called plainly: what asks
//! in results there is asked as legacy clients know it here.

use taskgate::demo::server::{Era, Options};

use crate::support::{Client, Gateway, RELATED, Value, json, related, text_of};

async fn in_front_of_modern(options: Options) -> Gateway {
    Gateway::setup().server(Options { era: Era::Modern, ..options }).start().await
}

/// An answer to whatever the fixture asks.
fn reply(question: &Value) -> Value {
    match question["method"].as_str().unwrap() {
        "elicitation/create" if question["params"]["mode"] == "url" => json!({"action": "accept"}),
        "elicitation/create" => {
            let properties = question["params"]["requestedSchema"]["properties"].as_object().unwrap();
            let content: serde_json::Map<String, Value> = properties
                .iter()
                .map(|(name, schema)| {
                    let value = if schema["type"] == "boolean" { json!(true) } else { json!("Ada") };
                    (name.clone(), value)
                })
                .collect();
            json!({"action": "accept", "content": content})
        }
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "short"}, "model": "m"})
        }
        "roots/list" => json!({"roots": [{"uri": "file:///a", "name": "a"}]}),
        other => panic!("not a question: {other}"),
    }
}

/// Calls a tool plainly and answers all that it asks; the response, and how often it asked.
async fn conversation(client: &Client, tool: &str, arguments: Value) -> (Value, usize) {
    let mut answer = client.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
    if answer.is_json() {
        return (answer.json().await, 0);
    }
    let mut asked = 0;
    loop {
        let message = answer.message().await;
        match (message.get("id"), message.get("method")) {
            (Some(_), Some(_)) => {
                asked += 1;
                client.answer(&message, reply(&message)).await;
            }
            (Some(_), None) => return (message, asked),
            _ => {}
        }
    }
}

const ASKING: [(&str, usize); 6] =
    [("ask", 1), ("ask_two", 2), ("ask_twice", 2), ("ask_url", 1), ("summarize", 1), ("roots", 1)];

#[tokio::test]
async fn every_tool_of_the_fixture_can_ask_a_legacy_client() {
    for options in [Options::default(), Options { reuse_keys: true, state_rounds: 2, ..Options::default() }] {
        let gateway = in_front_of_modern(options).await;
        let client = gateway.open().await;
        for (tool, count) in ASKING {
            let (response, asked) = conversation(&client, tool, json!({"text": "a long text"})).await;
            assert!(response["result"].get("isError").is_none_or(|is_error| *is_error == false), "{tool}: {response}");
            assert_eq!(asked, count, "{tool}: {response}");
            assert!(response["result"].get("resultType").is_none(), "{response}");
        }
    }
}

#[tokio::test]
async fn a_tool_that_wants_arguments_in_headers_gets_them() {
    let gateway = in_front_of_modern(Options::default()).await;
    let client = gateway.open().await;
    let arguments = json!({"region": "eu-1 schön", "shard": 42, "dry_run": true, "target": {"zone": " z"}});
    let response = client.call("deploy", arguments.clone()).await;
    assert!(text_of(&response).contains("eu-1"), "{response}");
    let task = client.start("deploy", arguments).await;
    let outcome = client.outcome(&task).await;
    assert_eq!(text_of(&outcome), text_of(&response));
}

#[tokio::test]
async fn questions_of_a_task_come_on_the_stream_that_waits_for_its_result() {
    let gateway = in_front_of_modern(Options::default()).await;
    let client = gateway.open().await;
    for (tool, count) in ASKING {
        let task = client.start(tool, json!({"text": "a long text"})).await;
        let mut answer = client.wait_for(&task).await;
        let mut asked = 0;
        let response = loop {
            let message = answer.message().await;
            match (message.get("id"), message.get("method")) {
                (Some(_), Some(_)) => {
                    assert_eq!(related(&message), Some(&*task), "{message}");
                    if asked == 0 {
                        client.until(&task, "input_required").await;
                    }
                    asked += 1;
                    client.answer(&message, reply(&message)).await;
                }
                (Some(_), None) => break message,
                _ => {}
            }
        };
        assert_eq!(asked, count, "{tool}");
        assert_eq!(response["result"]["_meta"][RELATED]["taskId"], *task, "{response}");
        assert!(response["result"].get("resultType").is_none(), "{response}");
        assert_eq!(client.task(&task).await["status"], "completed", "{response}");
    }
}

#[tokio::test]
async fn a_task_outlives_its_session_and_a_cancelled_one_stops_the_server() {
    let gateway = Gateway::setup()
        .server(Options { era: Era::Modern, ..Options::default() })
        .callers(&["acme/ann"])
        .start()
        .await;
    let client = gateway.open_as("ann").await;
    let kept = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    client.delete().await;
    gateway.upstream.release();
    let other = gateway.open_as("ann").await;
    assert_eq!(other.outcome(&kept).await["result"]["_meta"][RELATED]["taskId"], *kept);
    let dropped = other.start("hold", json!({})).await;
    gateway.started("hold", 2).await;
    assert_eq!(other.cancel(&dropped).await["status"], "cancelled");
    // The stream of the call is closed, which is how this era cancels.
    gateway.seen(|stats| stats.tool("hold").cancelled >= 1).await;
}

#[tokio::test]
async fn a_failed_tool_fails_its_task_and_errors_keep_their_code() {
    let gateway = in_front_of_modern(Options::default()).await;
    let client = gateway.open().await;
    let failed = client.start("fail", json!({"text": "no"})).await;
    let outcome = client.outcome(&failed).await;
    assert_eq!((&outcome["result"]["isError"], text_of(&outcome)), (&json!(true), "no"));
    assert_eq!(client.task(&failed).await["status"], "failed");
    let broken = client.start("broken", json!({"message": "oh"})).await;
    let outcome = client.outcome(&broken).await;
    let plain = client.call("broken", json!({"message": "oh"})).await;
    assert_eq!(outcome["error"]["code"], plain["error"]["code"]);
}

#[tokio::test]
async fn a_task_of_a_client_that_can_not_be_asked_says_so() {
    let gateway = in_front_of_modern(Options::default()).await;
    let client = gateway.client().capabilities(json!({})).open().await;
    for tool in ["ask", "summarize", "roots"] {
        let plain = client.call(tool, json!({"text": "x"})).await;
        assert_eq!(plain["result"]["isError"], true, "{plain}");
        let task = client.start(tool, json!({"text": "x"})).await;
        let outcome = client.outcome(&task).await;
        assert_eq!(outcome["result"]["isError"], true, "{outcome}");
        assert_eq!(client.task(&task).await["status"], "failed");
    }
}

#[tokio::test]
async fn clients_of_older_versions_are_asked_what_their_version_has() {
    let gateway = in_front_of_modern(Options::default()).await;
    for (version, asks) in [("2024-11-05", false), ("2025-03-26", false), ("2025-06-18", true)] {
        let client = gateway.client().version(version).open().await;
        let (response, asked) = conversation(&client, "ask", json!({})).await;
        assert_eq!((asked, response["result"]["isError"] == true), (usize::from(asks), !asks), "{version}: {response}");
        // Neither had URLs.
        let (response, asked) = conversation(&client, "ask_url", json!({})).await;
        assert_eq!((asked, &response["result"]["isError"]), (0, &json!(true)), "{version}: {response}");
        let (response, asked) = conversation(&client, "summarize", json!({"text": "x"})).await;
        assert_eq!(asked, 1, "{version}: {response}");
    }
}

#[tokio::test]
async fn progress_of_a_task_comes_under_the_clients_token() {
    let gateway = in_front_of_modern(Options::default()).await;
    let client = gateway.open().await;
    let params = json!({"name": "report", "arguments": {"seconds": 0.1, "sections": 3}, "task": {},
        "_meta": {"progressToken": "mine"}});
    let task = client.create_with(params).await["taskId"].as_str().unwrap().to_owned();
    let messages = client.wait_for(&task).await.messages().await;
    let progress = messages.iter().filter(|message| message["method"] == "notifications/progress");
    assert!(progress.clone().all(|message| message["params"]["progressToken"] == "mine"), "{messages:?}");
    assert!(messages.last().unwrap()["result"]["content"].is_array(), "{messages:?}");
}

#[tokio::test]
async fn both_eras_of_one_server_are_served_natively_to_a_legacy_client() {
    // A server that has handshakes is not translated for those who want one.
    let gateway = Gateway::setup().server(Options { era: Era::Both, ..Options::default() }).start().await;
    let client = gateway.open().await;
    assert_eq!(text_of(&client.call("echo", json!({"text": "x"})).await), "x");
    let seen = gateway.upstream.stats();
    assert_eq!((seen.method("initialize"), seen.method("server/discover")), (1, 0));
}

#[tokio::test]
async fn stdio_servers_of_the_modern_era_have_legacy_clients_too() {
    let gateway = Gateway::setup().stdio(&["--era", "modern"]).start().await;
    let client = gateway.open().await;
    assert_eq!(text_of(&client.call("echo", json!({"text": "x"})).await), "x");
    let (response, asked) = conversation(&client, "ask_twice", json!({})).await;
    assert_eq!(asked, 2, "{response}");
    let task = client.start("ask", json!({})).await;
    let mut answer = client.wait_for(&task).await;
    let question = answer.until_method("elicitation/create").await;
    client.answer(&question, reply(&question)).await;
    assert!(text_of(&answer.response().await).contains("Ada"));
}
