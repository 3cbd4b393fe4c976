//! A client of the modern era, 2026-07-28: each request says all of itself, in `_meta` and in header fields. It looks at
//! every answer as closely as the specification allows: see [`check_result`].

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value, json};

use super::{Answer, Gateway, until_status, within};

/// The version that this client speaks.
pub(crate) const MODERN: &str = "2026-07-28";
/// The tasks extension.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The key of the version.
pub(crate) const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The key of what the client can do.
pub(crate) const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The key of who the client is.
pub(crate) const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
/// The key of the least level of what is logged.
pub(crate) const LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// The key of a subscription.
pub(crate) const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";
/// The key of who the server is.
pub(crate) const SERVER_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// The methods whose results say how long they may be kept.
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// A client. Nothing is opened and nothing remembered, except which ids were used.
pub(crate) struct Modern {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    path: String,
    key: Option<String>,
    capabilities: Value,
    ids: AtomicU64,
}

impl Modern {
    /// One that can answer every question, and does not declare the tasks extension.
    pub(crate) fn new(gateway: &Gateway) -> Self {
        Self::at(gateway.address)
    }

    /// The same at the gateway of that address.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self {
            http: legacy::Client::builder(TokioExecutor::new()).build_http(),
            address,
            path: "/mcp".to_owned(),
            key: None,
            capabilities: json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}),
            ids: AtomicU64::new(1),
        }
    }

    /// Declares these capabilities instead.
    pub(crate) fn declares(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    /// Declares the tasks extension as well.
    pub(crate) fn with_tasks(mut self) -> Self {
        self.capabilities["extensions"][TASKS] = json!({});
        self
    }

    /// With a token.
    pub(crate) fn token(self, token: &str) -> Self {
        Self { key: Some(token.to_owned()), ..self }
    }

    /// With that caller's key.
    pub(crate) fn caller(self, subject: &str) -> Self {
        Self { key: Some(super::gateway::key_of(subject)), ..self }
    }

    /// On another route.
    pub(crate) fn path(self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// An id that this client has not used.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// `params` with the claims in their `_meta`. What the test has put there stays; what it has set to null goes.
    pub(crate) fn params(&self, mut params: Value) -> Value {
        let meta = &mut params["_meta"];
        let mut claims = json!({
            VERSION_KEY: MODERN,
            CAPABILITIES_KEY: self.capabilities,
            CLIENT_KEY: {"name": "test", "version": "0"},
        });
        for (key, value) in meta.as_object().unwrap_or(&Map::new()) {
            claims[key] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        *meta = claims;
        params
    }

    /// The header fields of a well-behaved client for such a request.
    pub(crate) fn headers(&self, method: &str, params: &Value) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: &'static str, value: &str| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        };
        set("accept", "application/json, text/event-stream");
        set("content-type", "application/json");
        set("mcp-protocol-version", MODERN);
        set("mcp-method", method);
        if let Some(key) = &self.key {
            set("authorization", &format!("Bearer {key}"));
        }
        let named = match method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
            _ => return headers,
        };
        if let Some(name) = params[named].as_str() {
            set("mcp-name", name);
        }
        headers
    }

    /// Sends a message as it stands, with some header fields set otherwise, or left out where the value is empty; `Err`
    /// when the connection closed before the answer's head. A future that is dropped closes the connection.
    pub(crate) async fn send(
        &self,
        mut headers: HeaderMap,
        changes: &[(&'static str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, legacy::Error> {
        for (name, value) in changes {
            headers.remove(*name);
            if !value.is_empty() {
                headers.insert(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
        }
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("http://{}{}", self.address, self.path).parse().unwrap();
        *request.headers_mut() = headers;
        let answer = within(self.http.request(request)).await.map(Answer::new)?;
        assert_eq!(answer.header("mcp-session-id"), None, "there are no sessions");
        Ok(answer)
    }

    /// Sends a request; the answer as it begins.
    pub(crate) async fn open(&self, method: &str, params: Value) -> Answer {
        self.open_with(&[], json!(self.next_id()), method, params).await
    }

    /// The same with an id and with changed header fields.
    pub(crate) async fn open_with(
        &self,
        changes: &[(&'static str, &str)],
        id: Value,
        method: &str,
        params: Value,
    ) -> Answer {
        let params = self.params(params);
        let headers = self.headers(method, &params);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(headers, changes, body.to_string()).await.unwrap()
    }

    /// Sends a request; all that came.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Reply {
        self.request_with(&[], method, params).await
    }

    /// The same with changed header fields.
    pub(crate) async fn request_with(&self, changes: &[(&'static str, &str)], method: &str, params: Value) -> Reply {
        let id = json!(self.next_id());
        let answer = self.open_with(changes, id.clone(), method, params).await;
        Reply::read(answer, method, &id).await
    }

    /// Sends a request; its result.
    #[track_caller]
    pub(crate) fn result(&self, method: &str, params: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let reply = self.request(method, params).await;
            assert!(reply.error.is_null(), "no result at {caller}: {}", reply.error);
            reply.result
        }
    }

    /// Sends a request that is answered with an error; its status and the error.
    #[track_caller]
    pub(crate) fn error(&self, method: &str, params: Value) -> impl Future<Output = (StatusCode, Value)> {
        let caller = std::panic::Location::caller();
        async move {
            let reply = self.request(method, params).await;
            assert!(reply.error.is_object(), "no error at {caller}: {}", reply.result);
            (reply.status, reply.error)
        }
    }

    /// Calls a tool; what came, be it an error.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Reply {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool; its result.
    #[track_caller]
    pub(crate) fn result_of(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool; the text of its result.
    pub(crate) async fn text(&self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments).await.text().to_owned()
    }

    /// Calls a tool again, with answers to what its result asked.
    pub(crate) async fn answer(&self, tool: &str, arguments: Value, asked: &Value, answers: Value) -> Reply {
        let mut params = json!({"name": tool, "arguments": arguments, "inputResponses": answers});
        if let Some(state) = asked.get("requestState") {
            params["requestState"] = state.clone();
        }
        self.request("tools/call", params).await
    }

    /// Calls a tool, which must come to a task; the handle.
    #[track_caller]
    pub(crate) fn create(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let reply = self.call(tool, arguments).await;
            assert_eq!(reply.result["resultType"], "task", "{caller}: {reply:?}");
            reply.result
        }
    }

    /// The same; the task's id.
    #[track_caller]
    pub(crate) fn start(&self, tool: &str, arguments: Value) -> impl Future<Output = String> {
        let created = self.create(tool, arguments);
        async move { created.await["taskId"].as_str().unwrap().to_owned() }
    }

    /// `tasks/get`
    pub(crate) async fn task(&self, id: &str) -> Value {
        self.result("tasks/get", json!({"taskId": id})).await
    }

    /// Polls until the task has that status.
    pub(crate) async fn until(&self, id: &str, status: &str) -> Value {
        until_status(async || self.task(id).await, status).await
    }

    /// `tasks/update`
    pub(crate) async fn update(&self, id: &str, answers: Value) -> Reply {
        self.request("tasks/update", json!({"taskId": id, "inputResponses": answers})).await
    }

    /// `tasks/cancel`
    pub(crate) async fn cancel(&self, id: &str) -> Reply {
        self.request("tasks/cancel", json!({"taskId": id})).await
    }

    /// `subscriptions/listen`; the open stream, and what was acknowledged.
    pub(crate) async fn listen(&self, notifications: Value) -> (Answer, Value) {
        let id = json!(self.next_id());
        let params = json!({"notifications": notifications});
        let mut stream = self.open_with(&[], id.clone(), "subscriptions/listen", params).await;
        assert_eq!(stream.status, StatusCode::OK);
        let mut acknowledged = stream.message().await;
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
        // 2026-07-28 "Subscriptions": the id of the request, with its type.
        assert_eq!(acknowledged["params"]["_meta"][SUBSCRIPTION_KEY], id);
        (stream, acknowledged["params"]["notifications"].take())
    }
}

/// All that came in answer to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The notifications before the response.
    pub(crate) events: Vec<Value>,
    /// The result; null where there is an error.
    pub(crate) result: Value,
    /// The error; null where there is a result.
    pub(crate) error: Value,
}

impl Reply {
    /// Reads an answer to its end.
    pub(crate) async fn read(answer: Answer, method: &str, id: &Value) -> Self {
        let (status, headers, is_events) = (answer.status, answer.headers.clone(), answer.is_events());
        let mut events = match is_events {
            true => {
                let events = answer.events().await;
                // 2026-07-28 transports: no event has an id.
                assert!(events.iter().all(|event| event.id.is_none()), "{events:?}");
                events.iter().map(super::answer::Seen::message).collect()
            }
            false => vec![answer.json().await],
        };
        let mut response: Value = events.pop().expect("no message came");
        assert_eq!(response["id"], *id, "{response}");
        assert!(response.get("method").is_none(), "the last message is no response: {response}");
        assert!(events.iter().all(|event| event.get("id").is_none()), "a server asks nothing: {events:?}");
        let (result, error) = (response["result"].take(), response["error"].take());
        if error.is_null() {
            assert_eq!(status, StatusCode::OK);
            check_result(method, &result);
        } else {
            // 2026-07-28: these two are not sent any more.
            assert!(error["code"] != -32002 && error["code"] != -32042, "{error}");
        }
        Self { status, headers, events, result, error }
    }

    /// The text of a tool's result.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        match self.result["content"][0]["text"].as_str() {
            Some(text) => text,
            None => panic!("no text in {self:?}"),
        }
    }

    /// The status and the code of the error.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, i64) {
        match self.error["code"].as_i64() {
            Some(code) => (self.status.as_u16(), code),
            None => panic!("no error in {self:?}"),
        }
    }

    /// The key of the only question that the result asks.
    #[track_caller]
    pub(crate) fn key(&self) -> String {
        let asked = self.result["inputRequests"].as_object();
        match asked.map(|asked| asked.keys().collect::<Vec<_>>()).as_deref() {
            Some([key]) => (*key).clone(),
            _ => panic!("not one question in {self:?}"),
        }
    }

    /// Whether it came as events.
    pub(crate) fn is_events(&self) -> bool {
        self.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream")
    }
}

/// What every result of the era must have, and must not.
#[track_caller]
fn check_result(method: &str, result: &Value) {
    let kind = result["resultType"].as_str().unwrap_or_else(|| panic!("no resultType: {result}"));
    let allowed: &[&str] = match method {
        "tools/call" => &["complete", "input_required", "task"],
        "prompts/get" | "resources/read" => &["complete", "input_required"],
        _ => &["complete"],
    };
    assert!(allowed.contains(&kind), "{method}: {result}");
    let hints = result.get("ttlMs").is_some_and(Value::is_u64)
        && ["public", "private"].iter().any(|scope| result["cacheScope"] == *scope);
    assert_eq!(CACHEABLE.contains(&method) && kind == "complete", hints, "{method}: {result}");
    if kind == "input_required" {
        assert!(result.get("inputRequests").is_some() || result["requestState"].is_string(), "{result}");
        for asked in result["inputRequests"].as_object().into_iter().flat_map(Map::values) {
            assert!(
                asked["method"].is_string() && asked.get("jsonrpc").is_none() && asked.get("id").is_none(),
                "{result}"
            );
        }
    }
    match method {
        // Tasks extension: a handle has nothing of what comes later, and nothing of the other dialect.
        "tools/call" if kind == "task" => {
            for odd in ["result", "error", "inputRequests", "task", "ttl", "pollInterval", "requestState"] {
                assert!(result.get(odd).is_none(), "{odd}: {result}");
            }
        }
        // Acknowledgements are bare.
        "tasks/update" | "tasks/cancel" => {
            let members = result.as_object().unwrap().keys();
            assert!(members.into_iter().all(|name| name == "resultType" || name == "_meta"), "{result}");
        }
        "tasks/get" => {
            let status = result["status"].as_str().unwrap_or_default();
            for (member, of) in [("inputRequests", "input_required"), ("result", "completed"), ("error", "failed")] {
                assert_eq!(result.get(member).is_some(), status == of, "{member}: {result}");
            }
            let inner = &result["result"];
            assert!(inner.is_null() || inner["_meta"].get(super::RELATED).is_none(), "{result}");
        }
        _ => {}
    }
}
