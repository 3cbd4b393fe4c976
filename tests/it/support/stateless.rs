//! A strict server of the modern era alone that answers with exact bytes; what it does with calls, the test says.

use super::modern::{CAPABILITIES_KEY, MODERN, SERVER_KEY, VERSION_KEY};
use super::raw_upstream::{Heard, RawUpstream, Step, bare, event, events_head, json_body, last_chunk, whole};
use super::{Value, json};

impl Heard {
    /// What the request says of itself.
    pub(crate) fn claim(&self, key: &str) -> &Value {
        &self.body["params"]["_meta"][key]
    }

    /// A complete result as a message.
    pub(crate) fn completes(&self, mut result: Value) -> String {
        result["resultType"] = json!("complete");
        self.answer(&result.to_string())
    }

    /// The same with an ordinary tool result.
    pub(crate) fn tells(&self, text: &str) -> String {
        self.completes(json!({"content": [{"type": "text", "text": text}]}))
    }

    /// Questions, by their keys, and a state.
    pub(crate) fn asks(&self, requests: &Value, state: &str) -> String {
        self.answer(
            &json!({"resultType": "input_required", "inputRequests": requests, "requestState": state}).to_string(),
        )
    }

    /// The answer to one of its questions.
    pub(crate) fn given(&self, key: &str) -> &Value {
        &self.body["params"]["inputResponses"][key]
    }

    /// An error with its HTTP status.
    pub(crate) fn refuses(&self, status: u16, error: &Value) -> Step {
        let id = if self.id.is_empty() { "null" } else { &self.id };
        whole(status, "application/json", &format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}"))
    }
}

/// A form as a question.
pub(crate) fn form(message: &str) -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message,
        "requestedSchema": {"type": "object", "properties": {}}}})
}

/// Events, and the proper end of their stream.
pub(crate) fn stream_of(messages: &[String]) -> Vec<Step> {
    let events = messages.iter().map(|message| event(message));
    [events_head()].into_iter().chain(events).chain([last_chunk()]).collect()
}

/// The server, with these capabilities. Where the script has nothing to say, it does what is usual.
pub(crate) async fn stateless(
    capabilities: Value,
    script: impl Fn(&Heard) -> Option<Vec<Step>> + Send + Sync + 'static,
) -> RawUpstream {
    RawUpstream::start(move |heard| {
        Some(check(heard).or_else(|| script(heard)).unwrap_or_else(|| usual(heard, &capabilities)))
    })
    .await
}

/// One that has tools and answers their calls so.
pub(crate) async fn calling(script: impl Fn(&Heard) -> Vec<Step> + Send + Sync + 'static) -> RawUpstream {
    let capabilities = json!({"tools": {}, "logging": {}, "prompts": {}, "resources": {}});
    stateless(capabilities, move |heard| (heard.method == "tools/call").then(|| script(heard))).await
}

/// What a strict server refuses (2026-07-28 transports, "Server Validation").
fn check(heard: &Heard) -> Option<Vec<Step>> {
    if heard.http_method != "POST" {
        return Some(vec![bare(405)]);
    }
    let header = |name: &str| heard.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if heard.method == "initialize" || heard.claim(VERSION_KEY) != MODERN {
        let error = json!({"code": -32022, "message": "no", "data": {"supported": [MODERN], "requested": ""}});
        return Some(vec![heard.refuses(400, &error)]);
    }
    let params = &heard.body["params"];
    let name = match heard.method.as_str() {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
        _ => None,
    };
    let is_agreed = header("mcp-protocol-version") == MODERN
        && header("mcp-method") == heard.method
        && header("mcp-name") == name.unwrap_or_default()
        && !heard.headers.contains_key("mcp-session-id")
        && heard.claim(CAPABILITIES_KEY).is_object();
    let error = json!({"code": -32020, "message": "headers and body differ"});
    (!is_agreed).then(|| vec![heard.refuses(400, &error)])
}

fn usual(heard: &Heard, capabilities: &Value) -> Vec<Step> {
    let complete = |result: Value| vec![json_body(&heard.completes(result))];
    match heard.method.as_str() {
        "server/discover" => complete(json!({"supportedVersions": [MODERN], "capabilities": capabilities,
            "instructions": "be brief", "ttlMs": 0, "cacheScope": "private",
            "_meta": {SERVER_KEY: {"name": "stateless", "version": "0"}}})),
        "tools/list" => complete(json!({"tools": [{"name": "a", "inputSchema": {"type": "object"}}],
            "ttlMs": 0, "cacheScope": "private"})),
        "tools/call" => vec![json_body(&heard.tells("usual"))],
        _ if heard.id.is_empty() => vec![bare(202)],
        _ => vec![heard.refuses(404, &json!({"code": -32601, "message": "no such method"}))],
    }
}
