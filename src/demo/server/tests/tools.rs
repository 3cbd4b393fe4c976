//! Each tool.

use serde_json::json;

use super::super::{EXACT, Options, TaskSupport};
use super::peer::{Peer, text_of};
use super::{everything, pair, start};

#[tokio::test]
async fn plain_tools_answer_with_json() {
    let (server, peer) = pair(Options::default()).await;
    assert_eq!(peer.text(1, "echo", json!({"text": "h\u{e9}llo"})).await, "h\u{e9}llo");
    assert_eq!(peer.text(2, "count", json!({})).await, "1");
    assert_eq!(peer.text(3, "count", json!({})).await, "2");
    assert_eq!(peer.text(4, "big", json!({"bytes": 100_000})).await.len(), 100_000);
    let failed = peer.call(5, "fail", json!({"text": "no luck"})).await.messages().await;
    assert_eq!(failed[0]["result"]["isError"], true);
    assert_eq!(text_of(&failed[0]), "no luck");
    let broken = peer.call(6, "broken", json!({})).await.messages().await;
    assert_eq!(broken[0]["error"]["code"], -32000);
    assert_eq!(broken[0]["error"]["data"]["hint"], "try another tool");
    let unknown = peer.call(7, "none", json!({})).await.messages().await;
    assert_eq!(unknown[0]["error"]["code"], -32602);
    let bad = peer.call(8, "echo", json!({"text": 1})).await;
    assert!(!bad.is_events());
    assert_eq!(bad.messages().await[0]["result"]["isError"], true);
    assert_eq!(server.stats().tool("count").finished, 2);
    assert_eq!(server.stats().counter, 2);
}

#[tokio::test]
async fn exact_is_exact() {
    let (_server, peer) = pair(Options::default()).await;
    let body = peer.call(1, "exact", json!({})).await.bytes().await;
    assert_eq!(body, format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{EXACT}}}"));
}

#[tokio::test]
async fn reports_tell_their_progress() {
    let (server, peer) = pair(Options::default()).await;
    // Each section waits for a release; the response's headers come with the first.
    let release = async {
        server.until(|stats| stats.tool("report").started == 1).await;
        server.release();
    };
    let (mut answer, ()) = tokio::join!(peer.call(1, "report", json!({"sections": 3})), release);
    assert!(answer.is_events());
    for section in 1..=3 {
        let progress = answer.message().await;
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "t1");
        assert_eq!((&progress["params"]["progress"], &progress["params"]["total"]), (&json!(section), &json!(3)));
        assert_eq!(progress["params"]["message"], format!("Section {section} of 3 is written"));
        server.release();
    }
    assert_eq!(text_of(&answer.message().await), "The report has 3 sections.");
    assert!(answer.next().await.unwrap().is_none());
}

#[tokio::test]
async fn without_a_token_there_is_no_progress() {
    let (_server, peer) = pair(Options::default()).await;
    let params = json!({"name": "report", "arguments": {"seconds": 0}});
    let answer = peer.request(json!(1), "tools/call", params).await;
    assert!(!answer.is_events());
    assert_eq!(answer.messages().await[0]["result"]["structuredContent"]["sections"], 4);
}

#[tokio::test]
async fn held_calls_wait_for_a_release() {
    let (server, peer) = pair(Options::default()).await;
    let call = async { peer.text(1, "hold", json!({})).await };
    let release = async {
        server.until(|stats| stats.tool("hold").started == 1).await;
        assert_eq!(server.stats().tool("hold").finished, 0);
        server.release();
    };
    let (said, ()) = tokio::join!(call, release);
    assert_eq!(said, "held to the end");
}

#[tokio::test]
async fn cancelled_calls_stop_and_get_no_response() {
    let (server, peer) = pair(Options::default()).await;
    let call = async { peer.call(5, "hold", json!({})).await.bytes().await };
    let cancel = async {
        server.until(|stats| stats.tool("hold").started == 1).await;
        peer.cancel(5).await;
    };
    let (body, ()) = tokio::join!(call, cancel);
    assert!(body.is_empty(), "{body:?}");
    let stats = server.stats();
    assert_eq!((stats.tool("hold").cancelled, stats.tool("hold").finished), (1, 1));
    assert_eq!(stats.cancelled, ["5"]);
}

#[tokio::test]
async fn questions_are_asked_on_the_calls_stream() {
    let (server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(1, "ask", json!({"message": "Who?"})).await;
    let question = answer.message().await;
    assert_eq!((&question["method"], &question["params"]["message"]), (&json!("elicitation/create"), &json!("Who?")));
    assert_eq!(question["params"]["requestedSchema"]["required"], json!(["name"]));
    peer.answer(&question, json!({"action": "accept", "content": {"name": "Ada"}})).await;
    assert_eq!(text_of(&answer.message().await), "Hello, Ada");
    // A second answer fits no question any more.
    peer.answer(&question, json!({"action": "decline"})).await;
    let stats = server.until(|stats| stats.stray_answers == 1).await;
    assert_eq!((stats.questions, stats.answers), (1, 1));
}

#[tokio::test]
async fn two_questions_wait_together_or_one_after_the_other() {
    let (_server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(1, "ask_two", json!({})).await;
    let (first, second) = (answer.message().await, answer.message().await);
    assert_ne!(first["id"], second["id"]);
    peer.answer(&second, json!({"action": "accept", "content": {"confirm": true}})).await;
    peer.answer(&first, json!({"action": "accept", "content": {"name": "Ada"}})).await;
    assert_eq!(text_of(&answer.message().await), "Hello, Ada; confirmed: true");

    let mut answer = peer.call(2, "ask_twice", json!({})).await;
    let question = answer.message().await;
    peer.answer(&question, json!({"action": "decline"})).await;
    let question = answer.message().await;
    assert_eq!(question["params"]["requestedSchema"]["properties"]["colour"]["enum"][0], "red");
    peer.answer(&question, json!({"action": "accept", "content": {"colour": "red"}})).await;
    assert_eq!(text_of(&answer.message().await), "No name was given (decline); colour: red");
}

#[tokio::test]
async fn the_clients_model_roots_and_browser_are_asked() {
    let (_server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(1, "summarize", json!({"text": "long"})).await;
    let question = answer.message().await;
    assert_eq!(question["params"]["messages"][0]["content"]["text"], "Summarize: long");
    let result = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "short"}});
    peer.answer(&question, result).await;
    assert_eq!(text_of(&answer.message().await), "short");

    let mut answer = peer.call(2, "roots", json!({})).await;
    let question = answer.message().await;
    peer.answer(&question, json!({"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]})).await;
    assert_eq!(text_of(&answer.message().await), "file:///a\nfile:///b");

    let mut answer = peer.call(3, "ask_url", json!({})).await;
    let question = answer.message().await;
    assert_eq!(question["params"]["mode"], "url");
    peer.answer(&question, json!({"action": "accept"})).await;
    assert_eq!(text_of(&answer.message().await), "the client chose: accept");
}

#[tokio::test]
async fn a_refused_question_fails_the_tool() {
    let (_server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(1, "ask", json!({})).await;
    let question = answer.message().await;
    let refusal = json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "not now"}});
    peer.post(refusal.to_string()).await;
    let result = answer.message().await;
    assert_eq!(result["result"]["isError"], true);
    assert_eq!(text_of(&result), "the client refused the question: not now");
}

#[tokio::test]
async fn what_the_client_does_not_offer_is_not_asked() {
    let server = start(Options::default()).await;
    let peer = Peer::open(&server, "2025-11-25", &json!({})).await;
    for (id, tool) in ["ask", "ask_two", "ask_twice", "ask_url", "roots"].into_iter().enumerate() {
        let said = peer.text(i64::try_from(id).unwrap(), tool, json!({})).await;
        assert!(said.starts_with("the client does not offer"), "{tool}: {said}");
    }
    assert_eq!(server.stats().questions, 0);
}

#[tokio::test]
async fn cancelling_a_call_withdraws_its_question() {
    let (server, peer) = pair(Options::default()).await;
    let mut answer = peer.call(9, "ask", json!({})).await;
    let question = answer.message().await;
    peer.cancel(9).await;
    let withdrawn = answer.message().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    assert!(answer.next().await.unwrap().is_none());
    assert_eq!(server.stats().tool("ask").cancelled, 1);
}

#[tokio::test]
async fn logs_respect_the_level() {
    let (_server, peer) = pair(Options::default()).await;
    let messages = peer.call(1, "log", json!({"messages": 2, "text": "hm"})).await.messages().await;
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[1]["params"]["data"], json!({"text": "hm", "number": 2}));
    let set = peer.request(json!(2), "logging/setLevel", json!({"level": "error"})).await;
    assert_eq!(set.messages().await[0]["result"], json!({}));
    assert_eq!(peer.call(3, "log", json!({})).await.messages().await.len(), 1);
    let bad = peer.request(json!(4), "logging/setLevel", json!({"level": "loud"})).await;
    assert_eq!(bad.messages().await[0]["error"]["code"], -32602);
}

#[tokio::test]
async fn stats_tell_whether_task_vocabulary_arrived() {
    let (server, peer) = pair(Options::default()).await;
    let before = server.stats();
    assert!(!before.task_seen && !before.extension_seen && !before.related_task_seen);
    let params = json!({"name": "stats", "arguments": {}, "task": {"ttl": 1},
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "x"}}});
    let answer = peer.request(json!(1), "tools/call", params).await.messages().await;
    let seen = &answer[0]["result"]["structuredContent"];
    assert_eq!((&seen["taskSeen"], &seen["relatedTaskSeen"]), (&json!(true), &json!(true)));
    assert_eq!(seen["extensionSeen"], false);
    assert_eq!(seen["tools"]["stats"]["started"], 1);
    assert!(seen["lastBody"].as_str().unwrap().contains("\"ttl\":1"));
    assert_eq!(server.stats().header("mcp-protocol-version"), Some("2025-11-25"));
}

#[tokio::test]
async fn tools_are_listed_in_pages() {
    let options = Options { page_size: Some(5), task_support: Some(TaskSupport::Forbidden), ..Options::default() };
    let (_server, peer) = pair(options).await;
    let mut cursor = json!({});
    let mut names = Vec::new();
    let mut pages = 0;
    loop {
        let page = peer.request(json!(pages), "tools/list", cursor).await.messages().await;
        let tools = page[0]["result"]["tools"].as_array().unwrap();
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        assert!(tools.iter().all(|tool| tool["execution"]["taskSupport"] == "forbidden"));
        pages += 1;
        match page[0]["result"].get("nextCursor") {
            Some(next) => cursor = json!({"cursor": next}),
            None => break,
        }
    }
    assert_eq!((pages, names.len()), (4, super::super::tools::TOOLS.len()));
    for bad in ["0", "20", "x", "-1"] {
        let answer = peer.request(json!(9), "tools/list", json!({"cursor": bad})).await.messages().await;
        assert_eq!(answer[0]["error"]["code"], -32602, "{bad}");
    }
}

#[tokio::test]
async fn every_listed_tool_has_an_implementation() {
    let (_server, peer) = pair(Options::default()).await;
    for (id, tool) in super::super::tools::TOOLS.iter().enumerate() {
        if !["ask", "ask_two", "ask_twice", "ask_url", "summarize", "roots", "hold", "stubborn", "report"]
            .contains(&tool.name)
        {
            let body = peer.call(i64::try_from(id).unwrap(), tool.name, json!({})).await.bytes().await;
            assert!(!String::from_utf8_lossy(&body).contains("no implementation"), "{}", tool.name);
        }
    }
    assert_eq!(everything()["sampling"], json!({}));
}
