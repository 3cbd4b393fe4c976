//! The modern era over HTTP: what is refused, what is served, and how questions travel.

use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use super::super::{EXACT, Era, Fault, Options, Server};
use super::peer::{Answer, Peer, text_of};
use super::{everything, start};

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// `params` with the claims of a client that offers everything.
pub(super) fn claimed(mut params: Value) -> Value {
    params["_meta"][VERSION] = json!("2026-07-28");
    if params["_meta"].get(CAPABILITIES).is_none() {
        params["_meta"][CAPABILITIES] = everything();
    }
    params
}

fn message(id: i64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// A client of the modern era.
struct Modern(Peer);

impl Modern {
    async fn new(options: Options) -> (Server, Self) {
        let server = start(Options { era: Era::Modern, ..options }).await;
        let peer = Self(Peer::silent(&server));
        (server, peer)
    }

    fn headers(&self, method: &str, params: &Value) -> HeaderMap {
        let mut headers = self.0.headers();
        headers.insert("mcp-protocol-version", "2026-07-28".parse().unwrap());
        headers.insert("mcp-method", method.parse().unwrap());
        if let Some(name) = params.get("name").or_else(|| params.get("uri")).and_then(Value::as_str) {
            headers.insert("mcp-name", name.parse().unwrap());
        }
        headers
    }

    async fn open(&self, id: i64, method: &str, params: Value) -> Answer {
        let params = claimed(params);
        self.0.send(Method::POST, self.headers(method, &params), message(id, method, &params)).await.unwrap()
    }

    /// The status and the response.
    async fn ask(&self, method: &str, params: Value) -> (StatusCode, Value) {
        let answer = self.open(1, method, params).await;
        (answer.status, answer.messages().await.pop().unwrap())
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await.1
    }

    /// Sends a message with header fields changed, or left out where the value is empty; the status and error code.
    async fn refusal(&self, changes: &[(&'static str, &str)], method: &str, params: &Value) -> (u16, i64) {
        let mut headers = self.headers(method, params);
        for (name, value) in changes {
            headers.remove(*name);
            if !value.is_empty() {
                headers.insert(*name, value.parse().unwrap());
            }
        }
        let answer = self.0.send(Method::POST, headers, message(1, method, params)).await.unwrap();
        let status = answer.status.as_u16();
        (status, answer.messages().await[0]["error"]["code"].as_i64().unwrap_or_default())
    }

    /// Calls again with answers.
    async fn retry(&self, tool: &str, asked: &Value, answers: Value) -> Value {
        let mut params = json!({"name": tool, "arguments": {}, "inputResponses": answers});
        if let Some(state) = asked["result"].get("requestState") {
            params["requestState"] = state.clone();
        }
        self.ask("tools/call", params).await.1
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a call reads best with its JSON in place")]
fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

#[tokio::test]
async fn a_request_must_say_everything_of_itself() {
    let (server, peer) = Modern::new(Options::default()).await;
    let meta = |meta: Value| json!({"name": "echo", "arguments": {"text": "x"}, "_meta": meta});
    let bad = [
        json!({"name": "echo"}),
        meta(json!({VERSION: "2026-07-28"})),
        meta(json!({CAPABILITIES: {}})),
        meta(json!({VERSION: 1, CAPABILITIES: {}})),
        meta(json!({VERSION: "2026-07-28", CAPABILITIES: []})),
        meta(json!({VERSION: "2026-07-28", CAPABILITIES: {}, "io.modelcontextprotocol/logLevel": "loud"})),
        meta(json!({VERSION: "2026-07-28", CAPABILITIES: {}, "io.modelcontextprotocol/clientInfo": {"name": "x"}})),
    ];
    for params in &bad {
        assert_eq!(peer.refusal(&[], "tools/call", params).await, (400, -32602), "{params}");
    }
    let other = json!({"name": "echo", "_meta": {VERSION: "v999.0.0", CAPABILITIES: {}}});
    assert_eq!(peer.refusal(&[], "tools/call", &other).await, (400, -32020));
    let both = [("mcp-protocol-version", "v999.0.0")];
    assert_eq!(peer.refusal(&both, "tools/call", &other).await, (400, -32022));
    assert_eq!(peer.refusal(&[("mcp-protocol-version", "")], "initialize", &json!({})).await, (400, -32022));
    assert_eq!(server.stats().tool("echo").started, 0);
    assert_eq!(server.stats().refused, 10);
}

#[tokio::test]
async fn header_fields_must_agree_with_the_body() {
    let (server, peer) = Modern::new(Options::default()).await;
    let params = claimed(json!({"name": "echo", "arguments": {"text": "x"}}));
    let changes = [
        ("mcp-protocol-version", ""),
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-method", ""),
        ("mcp-method", "TOOLS/CALL"),
        ("mcp-method", "tools/list"),
        ("mcp-name", ""),
        ("mcp-name", "Echo"),
        ("mcp-name", "=?base64?ZWNobw?="),
        ("mcp-name", "=?BASE64?ZWNobw==?="),
    ];
    for change in changes {
        assert_eq!(peer.refusal(&[change], "tools/call", &params).await, (400, -32020), "{change:?}");
    }
    for fine in [("mcp-name", "=?base64?ZWNobw==?="), ("mcp-session-id", "unknown"), ("last-event-id", "1.1")] {
        assert_eq!(peer.refusal(&[fine], "tools/call", &params).await, (200, 0), "{fine:?}");
    }
    assert_eq!(server.stats().tool("echo").started, 3);
}

#[tokio::test]
async fn arguments_are_mirrored() {
    let (server, peer) = Modern::new(Options::default()).await;
    let (_, listed) = peer.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let deploy = &tools.iter().find(|tool| tool["name"] == "deploy").unwrap()["inputSchema"]["properties"];
    assert_eq!(deploy["region"]["x-mcp-header"], "Region");
    assert_eq!(deploy["target"]["properties"]["zone"]["x-mcp-header"], "Zone");
    let arguments = json!({"region": "Z\u{fc}rich", "shard": 42, "dry_run": true, "target": {"zone": "a"}});
    let params = claimed(json!({"name": "deploy", "arguments": arguments}));
    let all = [
        ("mcp-param-region", "=?base64?WsO8cmljaA==?="),
        ("mcp-param-shard", "42.0"),
        ("mcp-param-dry-run", "true"),
        ("mcp-param-zone", "a"),
    ];
    assert_eq!(peer.refusal(&all, "tools/call", &params).await, (200, 0));
    for place in 0..all.len() {
        for wrong in ["", "43"] {
            let mut changed = all;
            changed[place].1 = wrong;
            assert_eq!(peer.refusal(&changed, "tools/call", &params).await, (400, -32020), "{changed:?}");
        }
    }
    let short = claimed(json!({"name": "deploy", "arguments": {"region": "eu", "shard": null}}));
    assert_eq!(peer.refusal(&[("mcp-param-region", "eu")], "tools/call", &short).await, (200, 0));
    let more = [("mcp-param-region", "eu"), ("mcp-param-shard", "1")];
    assert_eq!(peer.refusal(&more, "tools/call", &short).await, (400, -32020));
    assert_eq!(server.stats().tool("deploy").started, 2);
}

#[tokio::test]
async fn methods_of_the_other_era_are_gone() {
    let (_server, peer) = Modern::new(Options::default()).await;
    for gone in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "tasks/get", "tasks/list", "x/y"] {
        let (status, response) = peer.ask(gone, json!({})).await;
        assert_eq!((status.as_u16(), response["error"]["code"].as_i64()), (404, Some(-32601)), "{gone}");
        assert_eq!(response["id"], 1);
    }
    for method in [Method::GET, Method::DELETE] {
        let answer = peer.0.send(method, peer.0.headers(), "").await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("allow").as_deref()), (405, Some("POST")));
    }
    let bad = [("{", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, -32600)];
    for (body, code) in bad {
        let answer = peer.0.post(body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = &answer.messages().await[0];
        assert_eq!((&error["error"]["code"], error.get("id")), (&json!(code), None), "{body}");
    }
    let notified = peer.0.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#).await;
    assert_eq!(notified.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn results_are_complete_and_say_who_made_them() {
    let (server, peer) = Modern::new(Options::default()).await;
    let (status, discovered) = peer.ask("server/discover", json!({})).await;
    let result = &discovered["result"];
    assert_eq!((status, &result["supportedVersions"]), (StatusCode::OK, &json!(["2026-07-28"])));
    assert!(result["capabilities"].get("tasks").is_none() && result.get("serverInfo").is_none());
    let lists = ["server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"];
    for method in lists {
        let (_, response) = peer.ask(method, json!({})).await;
        let result = &response["result"];
        assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("public")), "{method}");
        assert!(result["ttlMs"].is_u64());
        assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "taskgate-demo");
    }
    let (_, read) = peer.ask("resources/read", json!({"uri": "demo://greeting"})).await;
    assert_eq!((&read["result"]["contents"][0]["text"], &read["result"]["ttlMs"]), (&json!("Hello"), &json!(60000)));
    let (status, missing) = peer.ask("resources/read", json!({"uri": "demo://x"})).await;
    assert_eq!((status, &missing["error"]["code"]), (StatusCode::OK, &json!(-32602)));
    let (_, prompt) = peer.ask("prompts/get", json!({"name": "greet", "arguments": {"name": "Ada"}})).await;
    assert_eq!(prompt["result"]["resultType"], "complete");
    assert!(prompt["result"].get("ttlMs").is_none());
    for (tool, kind) in [("fail", "result"), ("broken", "error"), ("nobody", "error")] {
        let (status, response) = peer.ask("tools/call", json!({"name": tool})).await;
        assert_eq!(status, StatusCode::OK);
        assert!(response.get(kind).is_some(), "{response}");
    }
    let exact = peer.open(1, "tools/call", json!({"name": "exact"})).await.bytes().await;
    let exact = String::from_utf8(exact.to_vec()).unwrap();
    let (before, after) = EXACT.split_once(r#","_meta""#).unwrap();
    assert!(exact.contains(before) && exact.contains(r#","isError":false,"alpha":null,"resultType":"complete""#));
    assert!(exact.contains(&after[..after.find("},\"isError").unwrap()]), "{exact}");
    let seen = server.stats();
    assert!(seen.envelope("tools/call").unwrap().meta.contains("2026-07-28"));
    assert_eq!(seen.envelope("tools/call").unwrap().header("mcp-name"), Some("exact"));
}

#[tokio::test]
async fn progress_and_log_messages_come_on_the_requests_stream() {
    let (_server, peer) = Modern::new(Options::default()).await;
    let report = json!({"name": "report", "arguments": {"seconds": 0, "sections": 2}, "_meta": {"progressToken": 7}});
    let answer = peer.open(1, "tools/call", report).await;
    assert_eq!(answer.header("x-accel-buffering").as_deref(), Some("no"));
    let messages = answer.messages().await;
    assert_eq!((messages.len(), &messages[1]["params"]["progressToken"]), (3, &json!(7)));
    let log = |level: &str| {
        let meta = json!({"io.modelcontextprotocol/logLevel": level});
        json!({"name": "log", "arguments": {"level": "warning"}, "_meta": meta})
    };
    let answer = peer.open(2, "tools/call", json!({"name": "log", "arguments": {}})).await;
    assert_eq!(answer.messages().await.len(), 1);
    assert_eq!(peer.open(3, "tools/call", log("error")).await.messages().await.len(), 1);
    assert_eq!(peer.open(4, "tools/call", log("info")).await.messages().await[0]["method"], "notifications/message");
}

#[tokio::test]
async fn questions_end_the_call_and_answers_make_it_anew() {
    let (server, peer) = Modern::new(Options::default()).await;
    let asked = peer.call("ask_twice", json!({})).await;
    assert_eq!(asked["result"]["resultType"], "input_required");
    let question = &asked["result"]["inputRequests"]["q1"];
    assert_eq!((&question["method"], question.get("id")), (&json!("elicitation/create"), None));
    assert!(question["params"].get("_meta").is_none());
    let again = peer.retry("ask_twice", &asked, json!({"q1": accept(json!({"name": "Ada"}))})).await;
    assert!(again["result"]["inputRequests"]["q2"].is_object(), "{again}");
    let done = peer.retry("ask_twice", &again, json!({"q2": accept(json!({"colour": "red"}))})).await;
    assert_eq!(text_of(&done), "Hello, Ada; colour: red");
    let two = peer.call("ask_two", json!({})).await;
    let half = peer.retry("ask_two", &two, json!({"q2": accept(json!({"confirm": true})), "other": {}})).await;
    assert_eq!(half["result"]["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["q1"]);
    let done = peer.retry("ask_two", &half, json!({"q1": {"action": "decline"}})).await;
    assert_eq!(text_of(&done), "No name was given (decline); confirmed: true");
    let page = peer.call("ask_url", json!({})).await;
    assert!(page["result"]["inputRequests"]["q1"]["params"].get("elicitationId").is_none());
    let seen = server.stats();
    assert_eq!((seen.rounds, seen.tool("ask_twice").started, seen.refused), (5, 3, 0));
}

#[tokio::test]
async fn what_the_client_keeps_can_not_be_changed() {
    let (server, peer) = Modern::new(Options::default()).await;
    let asked = peer.call("ask", json!({})).await;
    let state = asked["result"]["requestState"].as_str().unwrap();
    let answers = json!({"q1": accept(json!({"name": "Ada"}))});
    let with = |state: Value| json!({"name": "ask", "arguments": {}, "inputResponses": answers, "requestState": state});
    let changed = [json!(format!("{state} ")), json!(state.replace('\t', " ")), json!(""), json!(1), json!(null)];
    for state in changed {
        let (status, refused) = peer.ask("tools/call", with(state.clone())).await;
        assert_eq!((status, &refused["error"]["code"]), (StatusCode::OK, &json!(-32602)), "{state}");
    }
    for (member, value) in [("arguments", json!({"message": "?"})), ("name", json!("ask_two"))] {
        let mut params = with(json!(state));
        params[member] = value;
        assert_eq!(peer.ask("tools/call", params).await.1["error"]["code"], -32602, "{member}");
    }
    let mut without = with(json!(state));
    without.as_object_mut().unwrap().remove("requestState");
    assert_eq!(peer.ask("tools/call", without).await.1["error"]["code"], -32602);
    let mut malformed = with(json!(state));
    malformed["inputResponses"] = json!({"q1": "Ada"});
    assert_eq!(peer.ask("tools/call", malformed).await.1["error"]["code"], -32602);
    assert_eq!(text_of(&peer.ask("tools/call", with(json!(state))).await.1), "Hello, Ada");
    assert_eq!(server.stats().refused, 9);
}

#[tokio::test]
async fn rounds_can_be_strange() {
    let options = Options { reuse_keys: true, state_rounds: 1, ..Options::default() };
    let (_server, peer) = Modern::new(options).await;
    let silent = peer.call("ask_twice", json!({})).await;
    assert!(silent["result"].get("inputRequests").is_none(), "{silent}");
    let asked = peer.retry("ask_twice", &silent, json!({})).await;
    let again = peer.retry("ask_twice", &asked, json!({"q1": accept(json!({"name": "Ada"}))})).await;
    assert_eq!(again["result"]["inputRequests"]["q1"]["params"]["message"], "Which colour do you like?");
    let done = peer.retry("ask_twice", &again, json!({"q1": accept(json!({"colour": "red"}))})).await;
    assert_eq!(text_of(&done), "Hello, Ada; colour: red");

    let (_server, peer) = Modern::new(Options { no_request_state: true, ..Options::default() }).await;
    let asked = peer.call("ask", json!({})).await;
    assert!(asked["result"].get("requestState").is_none());
    let answers = json!({"q1": accept(json!({"name": "Ada"}))});
    assert_eq!(text_of(&peer.retry("ask", &asked, answers.clone()).await), "Hello, Ada");
    let made_up = json!({"result": {"requestState": ""}});
    assert_eq!(peer.retry("ask", &made_up, answers).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_question_that_the_client_can_not_answer_is_refused() {
    let (_server, peer) = Modern::new(Options::default()).await;
    for (tool, required) in [
        ("ask", json!({"elicitation": {"form": {}}})),
        ("ask_url", json!({"elicitation": {"url": {}}})),
        ("summarize", json!({"sampling": {}})),
        ("roots", json!({"roots": {}})),
    ] {
        let params = json!({"name": tool, "arguments": {"text": "x"}, "_meta": {CAPABILITIES: {}}});
        let (status, refused) = peer.ask("tools/call", params).await;
        assert_eq!((status.as_u16(), &refused["error"]["code"]), (400, &json!(-32021)), "{tool}");
        assert_eq!(refused["error"]["data"]["requiredCapabilities"], required);
    }
}

#[tokio::test]
async fn leaving_cancels() {
    let (server, peer) = Modern::new(Options::default()).await;
    let held = peer.open(1, "tools/call", json!({"name": "hold", "arguments": {}}));
    let begun = server.until(|stats| stats.tool("hold").started == 1);
    tokio::select! {
        _ = held => panic!("nothing released it"),
        _ = begun => {}
    }
    server.until(|stats| stats.tool("hold").cancelled == 1 && stats.disconnected == 1).await;
    let report = json!({"name": "report", "arguments": {"sections": 2}, "_meta": {"progressToken": 1}});
    let release = async {
        server.until(|stats| stats.tool("report").started == 1).await;
        server.release();
    };
    let (mut answer, ()) = tokio::join!(peer.open(2, "tools/call", report), release);
    answer.message().await;
    drop(answer);
    server.until(|stats| stats.tool("report").cancelled == 1 && stats.disconnected == 2).await;
    let stubborn = peer.open(3, "tools/call", json!({"name": "stubborn"}));
    tokio::select! {
        _ = stubborn => panic!("nothing released it"),
        _ = server.until(|stats| stats.tool("stubborn").started == 1) => {}
    }
    server.until(|stats| stats.disconnected == 3).await;
    server.release();
    let stats = server.until(|stats| stats.tool("stubborn").finished == 1).await;
    assert_eq!(stats.tool("stubborn").cancelled, 0);
}

#[tokio::test]
async fn subscriptions_deliver_what_was_asked_for() {
    let (server, peer) = Modern::new(Options::default()).await;
    let wanted = json!({"toolsListChanged": true, "promptsListChanged": true,
        "resourceSubscriptions": ["demo://greeting", "demo://other"], "taskIds": ["1"]});
    let mut stream = peer.open(9, "subscriptions/listen", json!({"notifications": wanted})).await;
    let acknowledged = stream.message().await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": ["demo://greeting"]});
    assert_eq!(acknowledged["params"], json!({"notifications": honoured, "_meta": {SUBSCRIPTION: 9}}));
    let mut quiet = peer.open(10, "subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(quiet.message().await["params"]["notifications"], json!({}));
    server.announce("notifications/prompts/list_changed", None);
    server.announce("notifications/tools/list_changed", None);
    server.announce("notifications/resources/updated", Some(r#"{"uri":"demo://other"}"#));
    server.announce("notifications/resources/updated", Some(r#"{"uri":"demo://greeting"}"#));
    let (first, second) = (stream.message().await, stream.message().await);
    assert_eq!(first["method"], "notifications/tools/list_changed");
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION], 9);
    assert_eq!((&second["params"]["uri"], server.stats().listens), (&json!("demo://greeting"), 2));
    server.end_listens(true);
    let ended = quiet.message().await;
    assert_eq!((&ended["id"], &ended["result"]["resultType"]), (&json!(10), &json!("complete")));
    assert_eq!(ended["result"]["_meta"][SUBSCRIPTION], 10);
    assert!(quiet.next().await.unwrap().is_none());
    drop(stream);
    server.until(|stats| stats.listens == 0).await;
    let mut stream = peer.open(11, "subscriptions/listen", json!({"notifications": {}})).await;
    stream.message().await;
    server.end_listens(false);
    assert!(stream.next().await.unwrap().is_none());
    let (status, bad) = peer.ask("subscriptions/listen", json!({})).await;
    assert_eq!((status, &bad["error"]["code"]), (StatusCode::OK, &json!(-32602)));
}

#[tokio::test]
async fn either_era_is_told_by_the_message() {
    let server = start(Options { era: Era::Both, event_ids: true, ..Options::default() }).await;
    let modern = Modern(Peer::silent(&server));
    let legacy = Peer::open(&server, "2025-11-25", &everything()).await;
    assert_eq!(text_of(&modern.call("echo", json!({"text": "x"})).await), "x");
    assert_eq!(legacy.text(1, "echo", json!({"text": "y"})).await, "y");
    let mut stream = modern.open(2, "subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(stream.next().await.unwrap().unwrap().id, None);
    server.set_era(Era::Legacy);
    assert_eq!(modern.ask("server/discover", json!({})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(legacy.text(2, "echo", json!({"text": "y"})).await, "y");
    server.set_era(Era::Modern);
    let refused = legacy.call(3, "echo", json!({"text": "y"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.messages().await[0]["error"]["code"], -32602);
    assert_eq!(text_of(&modern.call("echo", json!({"text": "x"})).await), "x");
}

#[tokio::test]
async fn faults_are_those_of_the_other_era() {
    let (server, peer) = Modern::new(Options::default()).await;
    let echo = || json!({"name": "echo", "arguments": {"text": "x"}, "_meta": {"progressToken": 1}});
    server.fail("tools/call", Fault::Status(503), 1);
    assert_eq!(peer.open(1, "tools/call", echo()).await.status.as_u16(), 503);
    server.fail("tools/call", Fault::Garbage, 1);
    let mut answer = peer.open(1, "tools/call", echo()).await;
    assert!(serde_json::from_str::<Value>(&answer.next().await.unwrap().unwrap().data).is_err());
    assert_eq!(text_of(&answer.message().await), "x");
    server.fail("tools/call", Fault::Close, 1);
    let params = claimed(echo());
    let headers = peer.headers("tools/call", &params);
    assert!(peer.0.send(Method::POST, headers, message(1, "tools/call", &params)).await.is_err());
    server.fail("tools/call", Fault::EndEarly, 1);
    let report = json!({"name": "report", "arguments": {"seconds": 0}, "_meta": {"progressToken": 1}});
    let messages = peer.open(1, "tools/call", report).await.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(server.stats().disconnected, 0);
    assert_eq!(server.until(|stats| stats.tool("report").finished == 1).await.tool("report").cancelled, 0);
}
