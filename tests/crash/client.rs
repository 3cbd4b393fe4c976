//! Clients of both eras that expect the gateway or its store to be gone at any moment: what did not come back is `None`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client as Pool, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::fleet::Places;

/// The key with which everybody calls.
pub(crate) const KEY: &str = "key-of-crash";
/// How soon one who needs an answer asks again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long one request may take. None of them waits for a tool: a gateway that lives answers at once.
const PATIENCE: Duration = Duration::from_secs(30);
const MODERN: &str = "2026-07-28";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Which of the upstream's faces is behind a route; its name is the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    Legacy,
    Modern,
}

impl Route {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Legacy => "/legacy",
            Self::Modern => "/modern",
        }
    }
}

/// A client of both eras: of the older one with a session for each route.
#[derive(Clone)]
pub(crate) struct Client {
    places: Arc<Places>,
    http: Pool<HttpConnector, Full<Bytes>>,
    ids: Arc<AtomicU64>,
    session: Option<String>,
    route: Route,
}

/// What a request came to, as it was written.
#[derive(Debug, Deserialize)]
pub(crate) struct Reply {
    result: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
}

/// A task as the extension shows it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) status: String,
    /// The keys of open questions.
    pub(crate) open: Vec<String>,
    /// The text of `result` or `error` where it has ended.
    pub(crate) end: Option<String>,
}

impl Reply {
    pub(crate) fn result(&self) -> Option<Value> {
        Some(serde_json::from_str(self.result.as_ref()?.get()).unwrap())
    }

    pub(crate) fn error(&self) -> Option<Value> {
        Some(serde_json::from_str(self.error.as_ref()?.get()).unwrap())
    }

    /// As it was written.
    pub(crate) fn text(&self) -> String {
        self.result.as_ref().or(self.error.as_ref()).map(|raw| raw.get().to_owned()).unwrap_or_default()
    }
}

/// Asks again until there is an answer, however long that takes.
pub(crate) async fn sure<T>(ask: impl AsyncFn() -> Option<T>) -> T {
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Client {
    pub(crate) fn new(places: Arc<Places>, route: Route) -> Self {
        let http = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { places, http, ids: Arc::default(), session: None, route }
    }

    /// One that has its session.
    pub(crate) async fn opened(places: Arc<Places>, route: Route) -> Self {
        let mut client = Self::new(places, route);
        while client.open().await.is_none() {
            tokio::time::sleep(AGAIN).await;
        }
        client
    }

    pub(crate) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Opens a session.
    pub(crate) async fn open(&mut self) -> Option<()> {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}},
            "clientInfo": {"name": "crash", "version": "0"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let (session, _) = self.post(&[], &body).await?;
        self.session = Some(session?);
        let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.post(&self.legacy_headers(), &body).await.map(drop)
    }

    fn legacy_headers(&self) -> Vec<(&'static str, String)> {
        let session = self.session.clone().unwrap_or_default();
        vec![("mcp-session-id", session), ("mcp-protocol-version", "2025-11-25".to_owned())]
    }

    /// Sends a body to whichever place is next; the session that it names, and its text.
    async fn post(&self, headers: &[(&'static str, String)], body: &Value) -> Option<(Option<String>, String)> {
        let url = format!("http://{}{}", self.places.next(), self.route.path());
        let mut request = Request::post(url)
            .header("authorization", format!("Bearer {KEY}"))
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::from(body.to_string())).unwrap();
        let url = request.uri().clone();
        let answered = async {
            let response = self.http.request(request).await.ok()?;
            let session = response.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
            Some((session, response.into_body().collect().await.ok()?.to_bytes()))
        };
        let Ok(answered) = tokio::time::timeout(PATIENCE, answered).await else {
            panic!("{url} did not answer {body} within {PATIENCE:?}, sent with {headers:?}");
        };
        let (session, bytes) = answered?;
        Some((session, String::from_utf8(bytes.to_vec()).unwrap()))
    }

    /// Sends a request; its response, be it a body or the last event of a stream.
    async fn request(&self, headers: &[(&'static str, String)], method: &str, params: Value) -> Option<Reply> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let (_, text) = self.post(headers, &body).await?;
        let message = match text.starts_with('{') {
            true => &text,
            false => text.lines().filter_map(|line| line.strip_prefix("data: ")).rfind(|line| !line.is_empty())?,
        };
        let reply: Reply = serde_json::from_str(message).unwrap_or_else(|_| panic!("no message: {message}"));
        // A store that is away for a moment is to come back later for.
        if reply.error().is_some_and(|error| error["data"]["reason"] == "store") {
            return None;
        }
        // A stream that was cut ends with a request or a notification.
        (reply.result.is_some() || reply.error.is_some()).then_some(reply)
    }

    /// A request of 2025-11-25.
    pub(crate) async fn legacy(&self, method: &str, params: Value) -> Option<Reply> {
        self.request(&self.legacy_headers(), method, params).await
    }

    /// A request of 2026-07-28.
    pub(crate) async fn modern(&self, method: &str, mut params: Value) -> Option<Reply> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {TASKS: {}}},
        });
        let mut headers = vec![("mcp-protocol-version", MODERN.to_owned()), ("mcp-method", method.to_owned())];
        let name = params["name"].as_str().or(params["taskId"].as_str());
        headers.extend(name.map(|name| ("mcp-name", name.to_owned())));
        self.request(&headers, method, params).await
    }

    /// Calls a tool as a task; its id, or the error.
    pub(crate) async fn create(&self, is_modern: bool, tool: &str, key: &str) -> Option<Result<String, Value>> {
        let params = json!({"name": tool, "arguments": {"key": key}});
        let reply = if is_modern {
            self.modern("tools/call", params).await?
        } else {
            let mut params = params;
            params["task"] = json!({});
            self.legacy("tools/call", params).await?
        };
        Some(match (reply.result(), reply.error()) {
            (Some(result), _) => {
                let id = if is_modern { &result["taskId"] } else { &result["task"]["taskId"] };
                Ok(id.as_str().unwrap_or_else(|| panic!("no handle: {result}")).to_owned())
            }
            (None, error) => Err(error.unwrap_or_default()),
        })
    }

    /// A task as the extension shows it; an error where it can't be read.
    pub(crate) async fn shown(&self, id: &str) -> Option<Result<Shown, Value>> {
        let reply = self.modern("tasks/get", json!({"taskId": id})).await?;
        let Some(result) = reply.result() else { return Some(Err(reply.error().unwrap_or_default())) };
        #[derive(Deserialize)]
        struct Inside<'a> {
            #[serde(borrow)]
            result: Option<&'a RawValue>,
            #[serde(borrow)]
            error: Option<&'a RawValue>,
        }
        let text = reply.text();
        let inside: Inside<'_> = serde_json::from_str(&text).unwrap();
        let open = result["inputRequests"].as_object().map(|open| open.keys().cloned().collect());
        Some(Ok(Shown {
            status: result["status"].as_str().unwrap_or_default().to_owned(),
            open: open.unwrap_or_default(),
            end: inside.result.or(inside.error).map(|raw| raw.get().to_owned()),
        }))
    }

    /// Answers a question; whether that was acknowledged.
    pub(crate) async fn answer(&self, id: &str, question: &str) -> Option<bool> {
        let given = json!({question: {"action": "accept", "content": {"name": format!("of {id}")}}});
        let reply = self.modern("tasks/update", json!({"taskId": id, "inputResponses": given})).await?;
        Some(reply.error().is_none())
    }

    /// The tasks of the route that have not ended, as the core dialect lists them.
    pub(crate) async fn open_tasks(&self) -> Option<Vec<String>> {
        let (mut open, mut params) = (Vec::new(), json!({}));
        loop {
            let page = self.legacy("tasks/list", params).await?.result()?;
            let listed = page["tasks"].as_array()?.iter();
            let is_open = |task: &&Value| matches!(task["status"].as_str(), Some("working" | "input_required"));
            open.extend(listed.filter(is_open).map(|task| task["taskId"].as_str().unwrap().to_owned()));
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return Some(open),
            }
        }
    }

    /// Waits until every task of the route has ended, those too of which no client ever heard. Open questions are answered, as a
    /// client would; each is told first, with its task.
    async fn settle(&self, asked: impl Fn(&str, &str)) {
        loop {
            let open = sure(async || self.open_tasks().await).await;
            if open.is_empty() {
                return;
            }
            let mut is_asked = false;
            // All of them: one may wait for the place of another, which waits for an answer.
            for id in &open {
                let shown = sure(async || self.shown(id).await).await.expect("a task that is listed");
                for question in &shown.open {
                    is_asked = true;
                    asked(id, question);
                    self.answer(id, question).await;
                }
            }
            if !is_asked {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Waits until every task has ended, as [`Client::settle`] says. Those of one route may wait for places that the other's have.
pub(crate) async fn settle(clients: &[Client], asked: impl Fn(&str, &str)) {
    join_all(clients.iter().map(|client| client.settle(&asked))).await;
}
