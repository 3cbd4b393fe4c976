//! The server behind the gateways: it outlives them all, and counts what each call did by the key in its arguments. Of 2025-11-25
//! at `/legacy`, with streams that can be resumed, and of 2026-07-28 at `/modern`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use taskgate::jobs::Jobs;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::seed::Chance;

/// The tools, and whether each may be run again.
pub(crate) const TOOLS: [(&str, bool); 4] = [("work", false), ("ask", false), ("again", true), ("hold", false)];

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The server. It stops when it is dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    jobs: Jobs,
    chance: Mutex<Chance>,
    /// How often the calls of each key did what they do.
    effects: watch::Sender<HashMap<String, u64>>,
    sessions: AtomicU64,
    /// The streams of legacy calls by number, finished ones too, so that they can be resumed.
    streams: Mutex<Vec<watch::Sender<Told>>>,
    /// Answers to questions, by the number of the call that asks.
    answers: watch::Sender<HashMap<u64, String>>,
}

/// What a call has told so far.
#[derive(Debug, Default, Clone)]
struct Told {
    messages: Vec<String>,
    is_over: bool,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.jobs.stopping().cancel();
    }
}

impl Upstream {
    pub(crate) async fn start(chance: Chance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            jobs: Jobs::default(),
            chance: Mutex::new(chance),
            effects: watch::Sender::default(),
            sessions: AtomicU64::new(0),
            streams: Mutex::default(),
            answers: watch::Sender::default(),
        });
        let upstream = Self { address, shared: Arc::clone(&shared) };
        shared.jobs.clone().spawn("upstream", async move {
            while let Some(Ok((socket, _))) = shared.jobs.stopping().run_until_cancelled(listener.accept()).await {
                let own = Arc::clone(&shared);
                shared.jobs.spawn("upstream connection", async move {
                    let service = service_fn(|request| answer(Arc::clone(&own), request));
                    let served =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                    // A gateway that was killed breaks its connections: that is no news here.
                    drop(own.jobs.stopping().run_until_cancelled(served).await);
                });
            }
        });
        upstream
    }

    /// How often the calls of each key did what they do.
    pub(crate) fn effects(&self) -> HashMap<String, u64> {
        self.shared.effects.borrow().clone()
    }

    /// Waits until calls of all these keys have come.
    pub(crate) async fn has_run(&self, keys: &[String]) {
        let mut effects = self.shared.effects.subscribe();
        let all = effects.wait_for(|effects| keys.iter().all(|key| effects.contains_key(key))).await;
        drop(all.unwrap());
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(bare(400)) };
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    Ok(match (&head.method, head.uri.path()) {
        (&Method::POST, "/legacy") => shared.legacy(&body),
        (&Method::GET, "/legacy") => shared.resumed(&head.headers),
        (&Method::DELETE, "/legacy") => bare(200),
        (&Method::POST, "/modern") => shared.modern(&body).await,
        _ => bare(405),
    })
}

impl Shared {
    fn legacy(self: &Arc<Self>, body: &Value) -> Response<Body> {
        let done = |result: Value| json_body(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}));
        match body["method"].as_str() {
            Some("initialize") => {
                let mut response = done(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "crash", "version": "0"}}));
                let session = self.sessions.fetch_add(1, Ordering::Relaxed).to_string();
                response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
                response
            }
            Some("tools/list") => done(json!({"tools": tools()})),
            Some("tools/call") => self.called(body),
            Some("ping") => done(json!({})),
            Some(_) => bare(202),
            None => {
                if let Some(call) = body["id"].as_str().and_then(|id| id.strip_prefix('q')?.parse().ok()) {
                    let text = body["result"]["content"]["name"].to_string();
                    self.answers.send_modify(|answers| answers.entry(call).or_insert(text).truncate(1000));
                }
                bare(202)
            }
        }
    }

    /// Begins a call with its effect; what it tells goes to its stream, whoever listens.
    fn called(self: &Arc<Self>, body: &Value) -> Response<Body> {
        let (tool, key) = named(body);
        self.has_effect(&key);
        let told = watch::Sender::new(Told::default());
        let number = {
            let mut streams = self.streams.lock().unwrap();
            streams.push(told.clone());
            streams.len() as u64 - 1
        };
        let (id, own) = (body["id"].clone(), Arc::clone(self));
        self.jobs.spawn("call", async move {
            let tells = |message: Value| told.send_modify(|told| told.messages.push(message.to_string()));
            own.works(&tool).await;
            let mut said = String::new();
            if tool == "ask" {
                tells(json!({"jsonrpc": "2.0", "id": format!("q{number}"), "method": "elicitation/create",
                    "params": question()}));
                let mut answers = own.answers.subscribe();
                let Ok(answered) = answers.wait_for(|answers| answers.contains_key(&number)).await else { return };
                said.clone_from(&answered[&number]);
            }
            let result = result(&key, &said);
            told.send_modify(|told| {
                told.messages.push(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"));
                told.is_over = true;
            });
        });
        self.stream(number, 0)
    }

    fn resumed(&self, headers: &HeaderMap) -> Response<Body> {
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.split_once('-'));
        let place = last.and_then(|(call, event)| Some((call.parse().ok()?, event.parse::<usize>().ok()? + 1)));
        match place {
            Some((call, event)) if call < self.streams.lock().unwrap().len() as u64 => self.stream(call, event),
            Some(_) => bare(404),
            None => bare(405),
        }
    }

    /// The stream of a call from an event on. The first one has no message, only an id to come back with.
    fn stream(&self, call: u64, from: usize) -> Response<Body> {
        let told = self.streams.lock().unwrap()[usize::try_from(call).unwrap()].subscribe();
        let events = stream::unfold((told, from), move |(mut told, event)| async move {
            let message = if event == 0 {
                String::new()
            } else {
                let ready = told.wait_for(|told| told.messages.len() >= event || told.is_over).await.ok()?;
                ready.messages.get(event - 1)?.clone()
            };
            let frame = Frame::data(Bytes::from(format!("id: {call}-{event}\ndata: {message}\n\n")));
            Some((Ok::<_, Infallible>(frame), (told, event + 1)))
        });
        let mut response = Response::new(StreamBody::new(events).boxed_unsync());
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        response
    }

    async fn modern(&self, body: &Value) -> Response<Body> {
        let done = |mut result: Value| {
            result["resultType"] = json!("complete");
            json_body(&json!({"jsonrpc": "2.0", "id": body["id"], "result": result}))
        };
        match body["method"].as_str() {
            Some("server/discover") => done(json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "crash", "version": "0"}}})),
            Some("tools/list") => done(json!({"tools": tools(), "ttlMs": 0, "cacheScope": "private"})),
            Some("tools/call") => {
                let (tool, key) = named(body);
                let given = &body["params"]["inputResponses"]["q"]["content"]["name"];
                if tool == "ask" && given.is_null() {
                    let asked = json!({"q": {"method": "elicitation/create", "params": question()}});
                    let round = json!({"resultType": "input_required", "inputRequests": asked, "requestState": key});
                    return json_body(&json!({"jsonrpc": "2.0", "id": body["id"], "result": round}));
                }
                self.has_effect(&key);
                self.works(&tool).await;
                let said = if given.is_null() { String::new() } else { given.to_string() };
                let result = result(&key, &said).replacen('{', "{\"resultType\":\"complete\",", 1);
                raw(format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}", body["id"]))
            }
            Some(_) if body["id"].is_null() => bare(202),
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                json_body(&json!({"jsonrpc": "2.0", "id": body["id"], "error": error}))
            }
        }
    }

    fn has_effect(&self, key: &str) {
        self.effects.send_modify(|effects| *effects.entry(key.to_owned()).or_default() += 1);
    }

    /// Takes the time that work takes: none, little, or so long that processes die meanwhile.
    async fn works(&self, tool: &str) {
        if tool == "hold" {
            return std::future::pending().await;
        }
        let pause = *self.chance.lock().unwrap().one(&[0, 0, 5, 20, 50, 200, 500]);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

fn tools() -> Value {
    let tool = |(name, is_idempotent): &(&str, bool)| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": is_idempotent}});
    TOOLS.iter().map(tool).collect()
}

fn question() -> Value {
    json!({"mode": "form", "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
}

fn named(body: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&body["params"]["name"]), text(&body["params"]["arguments"]["key"]))
}

/// A result with spellings that a careless reader would change, of a size that depends on its key.
fn result(key: &str, said: &str) -> String {
    let size = if key.ends_with('7') { 200_000 } else { 300 };
    let text = json!(format!("{key} {said} {}", "x".repeat(size)));
    format!("{{\"zz\":1.50e3,\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":false,\"a\":\"\\u00e9\"}}")
}

fn raw(text: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

fn json_body(message: &Value) -> Response<Body> {
    raw(message.to_string())
}

fn bare(status: u16) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *response.status_mut() = status.try_into().unwrap();
    response
}
