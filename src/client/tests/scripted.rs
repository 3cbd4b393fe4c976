//! A server with tasks that does what a test's script says.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::jobs::Jobs;
use crate::sse;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A request as the script sees it.
pub(super) struct Asked<'a> {
    pub method: &'a str,
    /// How many of that method came, this one included.
    pub times: usize,
}

/// What the script does.
pub(super) struct Answer {
    events: Option<Vec<Value>>,
    after_answer: bool,
    response: Option<(&'static str, Value)>,
}

impl Answer {
    pub(super) fn result(result: Value) -> Self {
        Self { events: None, after_answer: false, response: Some(("result", result)) }
    }

    pub(super) fn error(error: Value) -> Self {
        Self { response: Some(("error", error)), ..Self::result(Value::Null) }
    }

    /// For messages that get no answer.
    pub(super) fn nothing() -> Self {
        Self { response: None, ..Self::result(Value::Null) }
    }

    pub(super) fn events<const N: usize>(events: [Value; N]) -> Self {
        Self { events: Some(events.into()), ..Self::nothing() }
    }

    pub(super) fn without_response(self) -> Self {
        Self { response: None, ..self }
    }

    pub(super) fn with_result(self, result: Value) -> Self {
        Self { response: Some(("result", result)), ..self }
    }

    /// The response waits until the client has answered a question.
    pub(super) fn after_answer(self) -> Self {
        Self { after_answer: true, ..self }
    }
}

type Script = Box<dyn Fn(&Asked<'_>) -> Answer + Send + Sync>;

struct Shared {
    script: Script,
    times: Mutex<HashMap<String, usize>>,
    sent: watch::Sender<Vec<Value>>,
}

/// A running script.
pub(super) struct Scripted {
    pub url: String,
    shared: Arc<Shared>,
    jobs: Jobs,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

impl Scripted {
    pub(super) async fn start(script: impl Fn(&Asked<'_>) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let shared =
            Arc::new(Shared { script: Box::new(script), times: Mutex::default(), sent: watch::Sender::default() });
        let jobs = Jobs::default();
        let (serving, stopping) = (Arc::clone(&shared), jobs.stopping().clone());
        let connections = jobs.clone();
        jobs.spawn("scripted", async move {
            while let Some(Ok((socket, _))) = stopping.run_until_cancelled(listener.accept()).await {
                let shared = Arc::clone(&serving);
                let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                let stopping = stopping.clone();
                connections.spawn("scripted connection", async move {
                    let _ = stopping.run_until_cancelled(served).await;
                });
            }
        });
        Self { url, shared, jobs }
    }

    /// The messages of a method that came, or the responses.
    pub(super) fn sent(&self, method: &str) -> Vec<Value> {
        let sent = self.shared.sent.borrow();
        sent.iter().filter(|message| message["method"].as_str().unwrap_or("response") == method).cloned().collect()
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let status = |status| Ok(Response::builder().status(status).body(body(Bytes::new())).unwrap());
    if request.method() != Method::POST {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    let message: Value = serde_json::from_slice(&bytes).unwrap();
    shared.sent.send_modify(|sent| sent.push(message.clone()));
    let method = message["method"].as_str().unwrap_or("response");
    if message.get("id").is_none() || method == "response" {
        return status(StatusCode::ACCEPTED);
    }
    if method == "initialize" {
        return Ok(json_of(
            &message["id"],
            "result",
            &json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}},
                "serverInfo": {"name": "scripted", "version": "0"},
            }),
        ));
    }
    let times = {
        let mut times = shared.times.lock().unwrap();
        let times = times.entry(method.to_owned()).or_default();
        *times += 1;
        *times
    };
    let answer = (shared.script)(&Asked { method, times });
    let Some(events) = answer.events else {
        let (member, payload) = answer.response.expect("a request gets a response");
        return Ok(json_of(&message["id"], member, &payload));
    };
    let response =
        answer.response.map(|(member, payload)| json!({"jsonrpc": "2.0", "id": message["id"], member: payload}));
    let mut sent = shared.sent.subscribe();
    let first = stream::iter(events.into_iter().map(|event| event.to_string()));
    let last = stream::once(async move {
        if answer.after_answer {
            sent.wait_for(|sent| sent.iter().any(|one| one.get("method").is_none())).await.unwrap();
        }
        response.map(|response| response.to_string()).unwrap_or_default()
    });
    let all = futures_util::StreamExt::chain(first, last);
    let frames =
        futures_util::StreamExt::map(all, |text: String| Ok(Frame::data(sse::write_event(None, text.as_bytes()))));
    let response = Response::builder().header("content-type", "text/event-stream");
    Ok(response.body(StreamBody::new(frames).boxed_unsync()).unwrap())
}

fn json_of(id: &Value, member: &str, payload: &Value) -> Response<Body> {
    let message = json!({"jsonrpc": "2.0", "id": id, member: payload}).to_string();
    Response::builder().header("content-type", "application/json").body(body(message.into())).unwrap()
}

fn body(bytes: Bytes) -> Body {
    Full::new(bytes).boxed_unsync()
}
