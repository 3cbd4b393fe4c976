//! A client of the stateless era: each request says all that there is to know of it.

use hyper::StatusCode;

use super::{Answer, Client, Opening, Value, json};

const VERSION: &str = "2026-07-28";
/// The extension's name.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A client that can do what it says.
pub(crate) struct Stateless {
    client: Client,
    capabilities: Value,
    meta: Value,
    spelled: Vec<(&'static str, &'static str)>,
}

impl Stateless {
    /// One that declares nothing.
    pub(crate) fn of(opening: Opening) -> Self {
        Self { client: opening.silent(), capabilities: json!({}), meta: json!({}), spelled: Vec::new() }
    }

    /// Declares this, and nothing else.
    pub(crate) fn declaring(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    /// Declares the tasks extension as well.
    pub(crate) fn with_tasks(mut self) -> Self {
        self.capabilities["extensions"][TASKS] = json!({});
        self
    }

    /// Says this too in the metadata of each request.
    pub(crate) fn saying(mut self, key: &str, value: Value) -> Self {
        self.meta[key] = value;
        self
    }

    /// Spells a word otherwise in the body of each request.
    pub(crate) fn spelling(mut self, word: &'static str, otherwise: &'static str) -> Self {
        self.spelled.push((word, otherwise));
        self
    }

    /// A request as it is sent, and the header fields that go with it.
    fn envelope(&self, method: &str, mut params: Value) -> (Vec<(&'static str, String)>, Value) {
        let mut meta = self.meta.clone();
        meta["io.modelcontextprotocol/protocolVersion"] = json!(VERSION);
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        params["_meta"] = meta;
        let mut headers = vec![("mcp-protocol-version", VERSION.to_owned()), ("mcp-method", method.to_owned())];
        if let Some(name) = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str()) {
            headers.push(("mcp-name", name.to_owned()));
        }
        let id = self.client.next_id();
        (headers, json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// Sends a request.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Answer {
        let (headers, body) = self.envelope(method, params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let respell = |body: String, (word, otherwise): &(&str, &str)| body.replace(word, otherwise);
        self.client.post_with(&headers, self.spelled.iter().fold(body.to_string(), respell)).await
    }

    /// Sends a request that is answered in a 200; the response.
    pub(crate) async fn response(&self, method: &str, params: Value) -> Value {
        self.request(method, params).await.response().await
    }

    /// The result of a request.
    #[track_caller]
    pub(crate) fn result(&self, method: &str, params: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let mut response = self.response(method, params).await;
            assert!(response["result"].is_object(), "{caller}: {response}");
            assert!(response["result"]["resultType"].is_string(), "{caller}: {response}");
            response["result"].take()
        }
    }

    /// The error that answers a request, and its status.
    #[track_caller]
    pub(crate) fn error(&self, method: &str, params: Value) -> impl Future<Output = (StatusCode, Value)> {
        let caller = std::panic::Location::caller();
        async move {
            let answer = self.request(method, params).await;
            let status = answer.status;
            let mut response = answer.messages().await.pop().unwrap();
            assert!(response["error"].is_object(), "{caller}: {response}");
            (status, response["error"].take())
        }
    }

    /// Calls a tool; the result.
    #[track_caller]
    pub(crate) fn call(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }
}
