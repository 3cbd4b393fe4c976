//! A client that says what a test says, and is well-behaved in all else.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio_rustls::rustls::ClientConfig;

use super::{Answer, Authority, until_status, within};

type Http = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The version that has tasks.
pub(crate) const NEWEST: &str = "2025-11-25";

/// A client of either version; over TLS, of what both sides take.
fn http(tls: ClientConfig, http2_only: bool) -> Http {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
    legacy::Client::builder(TokioExecutor::new()).http2_only(http2_only).build(connector.build())
}

/// How a session is to be opened.
pub(crate) struct Opening {
    client: Client,
    capabilities: Value,
    version: String,
}

impl Opening {
    fn new(base: String) -> Self {
        let http = http(Authority::nobodys(), false);
        let client = Client {
            http,
            base,
            path: "/mcp".to_owned(),
            key: None,
            session: None,
            version: String::new(),
            welcome: Value::Null,
            ids: AtomicU64::new(1),
        };
        let capabilities = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}});
        Self { client, capabilities, version: NEWEST.to_owned() }
    }

    /// At the gateway of that address.
    pub(crate) fn at(address: std::net::SocketAddr) -> Self {
        Self::new(format!("http://{address}"))
    }

    /// Over HTTP/2, without TLS.
    pub(crate) fn http2(mut self) -> Self {
        self.client.http = http(Authority::nobodys(), true);
        self
    }

    /// Over TLS, trusting that authority, with HTTP/2 alone or whatever both take.
    pub(crate) fn secure(mut self, authority: &Authority, http2_only: bool) -> Self {
        self.client.base = self.client.base.replace("http://", "https://");
        self.client.http = http(authority.trust(), http2_only);
        self
    }

    /// At that version.
    pub(crate) fn version(self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self }
    }

    /// Declares these capabilities instead of all.
    pub(crate) fn capabilities(self, capabilities: Value) -> Self {
        Self { capabilities, ..self }
    }

    /// With that caller's key.
    pub(crate) fn caller(mut self, subject: &str) -> Self {
        self.client.key = Some(super::gateway::key_of(subject));
        self
    }

    /// With a token.
    pub(crate) fn token(mut self, token: &str) -> Self {
        self.client.key = Some(token.to_owned());
        self
    }

    /// On another route.
    pub(crate) fn path(mut self, path: &str) -> Self {
        self.client.path = path.to_owned();
        self
    }

    /// Without a session.
    pub(crate) fn silent(self) -> Client {
        let Self { mut client, version, .. } = self;
        client.version = version;
        client
    }

    /// In a session that another client has opened.
    pub(crate) fn with_session_of(self, other: &Client) -> Client {
        let mut client = self.silent();
        client.session.clone_from(&other.session);
        client.version.clone_from(&other.version);
        client.key.clone_from(&other.key);
        client.path.clone_from(&other.path);
        client.ids = AtomicU64::new(other.next_id() + 1000);
        client
    }

    /// Sends `initialize` alone.
    pub(crate) async fn initialize(self) -> (Client, Answer) {
        let Self { mut client, capabilities, version } = self;
        let params = json!({"protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "0"}});
        let answer = client.request("initialize", params).await;
        client.version = version;
        client.session = answer.header("mcp-session-id").map(str::to_owned);
        (client, answer)
    }

    /// Opens the session as the protocol says.
    pub(crate) async fn open(self) -> Client {
        let (mut client, answer) = self.initialize().await;
        client.welcome = answer.response().await["result"].clone();
        client.version = client.welcome["protocolVersion"].as_str().unwrap().to_owned();
        let session = client.session.as_deref().expect("no session id");
        assert!(session.len() <= 2048 && session.bytes().all(|byte| byte.is_ascii_graphic()), "{session}");
        client.notify("notifications/initialized", json!({})).await;
        client
    }
}

/// One session of a client.
pub(crate) struct Client {
    http: Http,
    base: String,
    path: String,
    key: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) version: String,
    /// The result of `initialize`.
    pub(crate) welcome: Value,
    ids: AtomicU64,
}

impl Client {
    /// Goes on with another token.
    pub(crate) fn set_token(&mut self, token: &str) {
        self.key = Some(token.to_owned());
    }

    /// The header fields of a well-behaved client.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: &'static str, value: &str| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        };
        set("accept", "application/json, text/event-stream");
        set("content-type", "application/json");
        if let Some(key) = &self.key {
            set("authorization", &format!("Bearer {key}"));
        }
        if let Some(session) = &self.session {
            set("mcp-session-id", session);
            if self.version.as_str() >= "2025-06-18" {
                set("mcp-protocol-version", &self.version);
            }
        }
        headers
    }

    /// The fields with some set otherwise, or left out where the value is empty.
    pub(crate) fn headers_with(&self, changes: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = self.headers();
        for (name, value) in changes {
            headers.remove(*name);
            if !value.is_empty() {
                headers.insert(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
        }
        headers
    }

    /// Sends an HTTP request; `Err` when the connection closed before the answer's head.
    pub(crate) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<Answer, legacy::Error> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{}", self.base, self.path).parse().unwrap();
        *request.headers_mut() = headers;
        within(self.http.request(request)).await.map(Answer::new)
    }

    /// Posts a body.
    pub(crate) async fn post(&self, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, self.headers(), body).await.unwrap()
    }

    /// Posts a body with some header fields changed.
    pub(crate) async fn post_with(&self, changes: &[(&'static str, &str)], body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, self.headers_with(changes), body).await.unwrap()
    }

    /// Opens the session's own stream.
    pub(crate) async fn listen(&self) -> Answer {
        let answer = self.get(None).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.is_events());
        answer
    }

    /// GET, after an event where one is given.
    pub(crate) async fn get(&self, last_event_id: Option<&str>) -> Answer {
        let headers = self.headers_with(&[("content-type", ""), ("last-event-id", last_event_id.unwrap_or(""))]);
        self.send(Method::GET, headers, Bytes::new()).await.unwrap()
    }

    /// DELETE.
    pub(crate) async fn delete(&self) -> StatusCode {
        let headers = self.headers_with(&[("content-type", "")]);
        self.send(Method::DELETE, headers, Bytes::new()).await.unwrap().status
    }

    /// An id that this client has not used.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Posts a request.
    pub(crate) async fn request(&self, method: &str, params: Value) -> Answer {
        let id = self.next_id();
        self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await
    }

    /// Posts a request; its response.
    pub(crate) async fn response(&self, method: &str, params: Value) -> Value {
        self.request(method, params).await.response().await
    }

    /// Posts a request; its result.
    #[track_caller]
    pub(crate) fn result(&self, method: &str, params: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let mut response = self.response(method, params).await;
            assert!(response.get("result").is_some(), "no result at {caller}: {response}");
            response["result"].take()
        }
    }

    /// Posts a request that is answered with an error, in a 200; the error.
    #[track_caller]
    pub(crate) fn error(&self, method: &str, params: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let id = self.next_id();
            let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            let mut response = self.post(body.to_string()).await.response().await;
            assert_eq!(response["id"], id, "{response}");
            assert!(response.get("error").is_some(), "no error at {caller}: {response}");
            response["error"].take()
        }
    }

    /// Posts a notification.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        let taken = self.post(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
        assert_eq!(taken.status, StatusCode::ACCEPTED);
        assert_eq!(taken.bytes().await, "");
    }

    /// Calls a tool plainly; the response.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.response("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Calls a tool as a task; the task.
    #[track_caller]
    pub(crate) fn create(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        self.create_with(json!({"name": tool, "arguments": arguments, "task": {}}))
    }

    /// Calls a tool as a task, with these `params`; the task.
    #[track_caller]
    pub(crate) fn create_with(&self, params: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let answer = self.request("tools/call", params).await;
            // 2025-11-25 tasks, "Creating Tasks": at once, so there is nothing to stream.
            assert!(answer.is_json(), "{:?}", answer.headers);
            let mut response = answer.response().await;
            assert_eq!(response["result"]["task"]["status"], "working", "{caller}: {response}");
            let task = response["result"]["task"].take();
            let related = &response["result"]["_meta"][super::RELATED]["taskId"];
            assert_eq!(*related, task["taskId"], "{response}");
            task
        }
    }

    /// Calls a tool as a task; the task's id.
    #[track_caller]
    pub(crate) fn start(&self, tool: &str, arguments: Value) -> impl Future<Output = String> {
        let created = self.create(tool, arguments);
        async move { created.await["taskId"].as_str().unwrap().to_owned() }
    }

    /// `tasks/get`
    pub(crate) async fn task(&self, id: &str) -> Value {
        let answer = self.request("tasks/get", json!({"taskId": id})).await;
        // 2025-11-25 tasks, "Getting Tasks": no stream for this.
        assert!(answer.is_json(), "{:?}", answer.headers);
        answer.response().await["result"].take()
    }

    /// Polls until the task has that status.
    pub(crate) async fn until(&self, id: &str, status: &str) -> Value {
        until_status(async || self.task(id).await, status).await
    }

    /// `tasks/result` to its end; the response.
    pub(crate) async fn outcome(&self, id: &str) -> Value {
        self.response("tasks/result", json!({"taskId": id})).await
    }

    /// `tasks/result`, as it begins.
    pub(crate) async fn wait_for(&self, id: &str) -> Answer {
        self.request("tasks/result", json!({"taskId": id})).await
    }

    /// `tasks/cancel`; the task.
    pub(crate) async fn cancel(&self, id: &str) -> Value {
        self.result("tasks/cancel", json!({"taskId": id})).await
    }

    /// Answers a question of the server's.
    pub(crate) async fn answer(&self, question: &Value, result: Value) {
        let taken = self.try_answer(&question["id"], result).await;
        assert_eq!(taken.status, StatusCode::ACCEPTED);
        assert_eq!(taken.bytes().await, "");
    }

    /// Posts a response to the request of that id.
    pub(crate) async fn try_answer(&self, id: &Value, result: Value) -> Answer {
        self.post(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await
    }

    /// Accepts a form with these fields.
    pub(crate) async fn accept(&self, question: &Value, content: Value) {
        self.answer(question, json!({"action": "accept", "content": content})).await;
    }
}
