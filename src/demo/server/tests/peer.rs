//! A raw client: it sends what a test says and shows what came.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::demo::server::Server;
use crate::sse::{Event, Framer};

type Http = Client<HttpConnector, Full<Bytes>>;

/// One session of a client.
pub(super) struct Peer {
    http: Http,
    url: String,
    pub session: Option<String>,
    pub version: String,
    /// The result of `initialize`.
    pub welcome: Value,
}

impl Peer {
    /// A peer that has not said anything.
    pub(super) fn silent(server: &Server) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { http, url: server.url(), session: None, version: String::new(), welcome: Value::Null }
    }

    pub(super) async fn open(server: &Server, version: &str, capabilities: &Value) -> Self {
        let mut peer = Self::silent(server);
        let params = json!({"protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "peer", "version": "0"}});
        let answer = peer.request(json!("init"), "initialize", params).await;
        assert_eq!(answer.status, StatusCode::OK);
        peer.session = answer.header("mcp-session-id");
        let messages = answer.messages().await;
        peer.welcome = messages.last().unwrap()["result"].clone();
        peer.version = peer.welcome["protocolVersion"].as_str().unwrap().to_owned();
        let initialized = peer.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        assert_eq!(initialized.status, StatusCode::ACCEPTED);
        peer
    }

    /// The header fields of a well-behaved client.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("accept", "application/json, text/event-stream".parse().unwrap());
        headers.insert("content-type", "application/json".parse().unwrap());
        if let Some(session) = &self.session {
            headers.insert("mcp-session-id", session.parse().unwrap());
        }
        if self.version.as_str() >= "2025-06-18" {
            headers.insert("mcp-protocol-version", self.version.parse().unwrap());
        }
        headers
    }

    /// Sends a request; `Err` when the connection closed before the headers.
    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: impl Into<Bytes>,
    ) -> Result<Answer, hyper_util::client::legacy::Error> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = self.url.parse().unwrap();
        *request.headers_mut() = headers;
        let response = self.http.request(request).await?;
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body, framer: Framer::new(1 << 27) })
    }

    pub(super) async fn post(&self, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, self.headers(), body).await.unwrap()
    }

    pub(super) async fn get(&self, last_event_id: Option<&str>) -> Answer {
        let mut headers = self.headers();
        if let Some(id) = last_event_id {
            headers.insert("last-event-id", id.parse().unwrap());
        }
        self.send(Method::GET, headers, Bytes::new()).await.unwrap()
    }

    pub(super) async fn request(&self, id: Value, method: &str, params: Value) -> Answer {
        self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await
    }

    /// Calls a tool with a progress token.
    pub(super) async fn call(&self, id: i64, tool: &str, arguments: Value) -> Answer {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": format!("t{id}")}});
        self.request(json!(id), "tools/call", params).await
    }

    /// Calls a tool and gives the text of its result.
    pub(super) async fn text(&self, id: i64, tool: &str, arguments: Value) -> String {
        let messages = self.call(id, tool, arguments).await.messages().await;
        text_of(messages.last().unwrap())
    }

    /// Answers a question.
    pub(super) async fn answer(&self, question: &Value, result: Value) {
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result});
        assert_eq!(self.post(answer.to_string()).await.status, StatusCode::ACCEPTED);
    }

    pub(super) async fn cancel(&self, id: i64) {
        let params = json!({"requestId": id});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(self.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
    }
}

/// The text of a tool's result.
pub(super) fn text_of(response: &Value) -> String {
    response["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {response}")).to_owned()
}

/// What came back, its body as far as it was read.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    framer: Framer,
}

/// An event's id and data.
#[derive(Debug)]
pub(super) struct Seen {
    pub id: Option<String>,
    pub data: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    pub(super) fn is_events(&self) -> bool {
        self.header("content-type").as_deref() == Some("text/event-stream")
    }

    /// The body's bytes to its end.
    pub(super) async fn bytes(self) -> Bytes {
        self.body.collect().await.unwrap().to_bytes()
    }

    /// The length of the next bytes.
    pub(super) async fn chunk(&mut self) -> usize {
        self.body.frame().await.expect("the body ended").unwrap().into_data().unwrap().len()
    }

    /// The next event; `None` at the end, `Err` when the connection broke.
    pub(super) async fn next(&mut self) -> Result<Option<Seen>, hyper::Error> {
        loop {
            if let Some(frame) = self.framer.next_frame().unwrap() {
                let event = Event::parse(&frame);
                let data = String::from_utf8(event.data.unwrap_or_default().into_owned()).unwrap();
                return Ok(Some(Seen { id: event.id.map(|id| id.into_owned()), data }));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => self.framer.push(frame?.into_data().unwrap()),
            }
        }
    }

    /// The next event's message.
    pub(super) async fn message(&mut self) -> Value {
        let seen = self.next().await.unwrap().expect("the stream ended");
        serde_json::from_str(&seen.data).unwrap()
    }

    /// Every message to the end, from events or from JSON.
    pub(super) async fn messages(mut self) -> Vec<Value> {
        if !self.is_events() {
            let body = self.bytes().await;
            return vec![serde_json::from_slice(&body).unwrap_or_else(|_| panic!("no JSON: {body:?}"))];
        }
        let mut messages = Vec::new();
        while let Some(seen) = self.next().await.unwrap() {
            if seen.data.is_empty() {
                continue;
            }
            messages.push(serde_json::from_str(&seen.data).unwrap());
        }
        messages
    }
}
