//! A server that answers with exact bytes: what no HTTP library would send, and what real servers send when they break.
//!
//! It opens sessions and takes notifications by itself; what it does with everything else, the test says.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use taskgate::jobs::Jobs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::{Value, json, within};

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    /// GET, POST or DELETE.
    pub(crate) http_method: String,
    /// The JSON-RPC method; empty for responses and where there is no message.
    pub(crate) method: String,
    /// Its id as JSON text; empty without one.
    pub(crate) id: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// Which connection it came on, counted from 0.
    pub(crate) connection: usize,
}

impl Heard {
    /// The response with that result, as a message.
    pub(crate) fn answer(&self, result: &str) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}", self.id)
    }

    /// The same with an ordinary tool result.
    pub(crate) fn says(&self, text: &str) -> String {
        self.answer(&json!({"content": [{"type": "text", "text": text}]}).to_string())
    }

    /// A progress notification for its token.
    pub(crate) fn progress(&self, progress: u32) -> String {
        let token = &self.body["params"]["_meta"]["progressToken"];
        json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": progress}})
        .to_string()
    }
}

/// What is done about a request.
pub(crate) enum Step {
    /// These bytes.
    Send(Bytes),
    /// These bytes, each in a write of its own.
    Trickle(Bytes),
    /// Waits until the test opens the gate.
    Gate(Arc<Semaphore>),
    /// Opens a gate of the test's.
    Tell(Arc<Semaphore>),
    /// These bytes again and again until the peer closes.
    Endless(Bytes),
    /// Waits until the peer closes.
    Stall,
    /// Breaks the connection.
    Reset,
    /// Closes the connection.
    Close,
}

pub(crate) fn send(bytes: impl Into<Vec<u8>>) -> Step {
    Step::Send(Bytes::from(bytes.into()))
}

/// A gate that is closed.
pub(crate) fn gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// A whole answer with a length that fits.
pub(crate) fn whole(status: u16, content_type: &str, body: &str) -> Step {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n", body.len());
    send(head + body)
}

/// A whole JSON answer.
pub(crate) fn json_body(body: &str) -> Step {
    whole(200, "application/json", body)
}

/// A whole JSON answer that gives the client a session.
pub(crate) fn with_session(body: &str) -> Step {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: theirs";
    send(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

/// An answer without a body.
pub(crate) fn bare(status: u16) -> Step {
    send(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n"))
}

/// The head of a stream of events, which ends with the connection or with [`last_chunk`].
pub(crate) fn events_head() -> Step {
    send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
}

/// Bytes as a chunk.
pub(crate) fn chunk(bytes: &str) -> Step {
    send(format!("{:x}\r\n{bytes}\r\n", bytes.len()))
}

/// A message as an event in a chunk of its own.
pub(crate) fn event(message: &str) -> Step {
    chunk(&format!("data: {message}\n\n"))
}

/// The same with an id.
pub(crate) fn event_with_id(id: &str, message: &str) -> Step {
    chunk(&format!("id: {id}\nretry: 10\ndata: {message}\n\n"))
}

/// The proper end of a chunked body.
pub(crate) fn last_chunk() -> Step {
    send("0\r\n\r\n")
}

type Script = dyn Fn(&Heard) -> Option<Vec<Step>> + Send + Sync;

/// The server. It stops when it is dropped.
pub(crate) struct RawUpstream {
    address: SocketAddr,
    heard: watch::Sender<Vec<Heard>>,
    jobs: Jobs,
}

impl RawUpstream {
    /// Starts it. Where the script has nothing to say, the server does what is usual.
    pub(crate) async fn start(script: impl Fn(&Heard) -> Option<Vec<Step>> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream =
            Self { address: listener.local_addr().unwrap(), heard: watch::Sender::default(), jobs: Jobs::default() };
        let (heard, jobs, script) = (upstream.heard.clone(), upstream.jobs.clone(), Arc::new(script));
        upstream.jobs.spawn("raw upstream", async move {
            let mut connections = 0;
            while let Some(Ok((stream, _))) = jobs.stopping().run_until_cancelled(listener.accept()).await {
                let (heard, script, stopping) = (heard.clone(), Arc::clone(&script), jobs.stopping().clone());
                let number = connections;
                connections += 1;
                jobs.spawn("raw connection", async move {
                    stopping.run_until_cancelled(serve(stream, number, &heard, &*script)).await;
                });
            }
        });
        upstream
    }

    /// One that answers calls of tools so, and everything else as is usual.
    pub(crate) async fn calling(script: impl Fn(&Heard) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start(move |heard| (heard.method == "tools/call").then(|| script(heard))).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Waits until the requests that came are as wanted.
    #[track_caller]
    pub(crate) fn until(&self, wanted: impl Fn(&[Heard]) -> bool) -> impl Future<Output = Vec<Heard>> {
        let mut heard = self.heard.subscribe();
        within(async move { heard.wait_for(|heard| wanted(heard)).await.unwrap().clone() })
    }

    /// Waits for so many requests of a method, and gives them.
    #[track_caller]
    pub(crate) fn heard(&self, method: &'static str, count: usize) -> impl Future<Output = Vec<Heard>> {
        let waited = self.until(move |heard| heard.iter().filter(|heard| heard.method == method).count() >= count);
        async move { waited.await.into_iter().filter(|heard| heard.method == method).collect() }
    }

    /// How many requests of a method came so far.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.heard.borrow().iter().filter(|heard| heard.method == method).count()
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

async fn serve(mut stream: TcpStream, number: usize, heard: &watch::Sender<Vec<Heard>>, script: &Script) {
    stream.set_nodelay(true).unwrap();
    let mut read = BytesMut::new();
    while let Some(request) = read_request(&mut stream, &mut read, number).await {
        heard.send_modify(|heard| heard.push(request.clone()));
        for step in script(&request).unwrap_or_else(|| usual(&request)) {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Trickle(bytes) => {
                    for byte in bytes {
                        if stream.write_all(&[byte]).await.is_err() {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                }
                Step::Endless(bytes) => {
                    while stream.write_all(&bytes).await.is_ok() {
                        tokio::task::yield_now().await;
                    }
                    return;
                }
                Step::Gate(gate) => gate.acquire().await.unwrap().forget(),
                Step::Tell(gate) => gate.add_permits(1),
                Step::Stall => while stream.read_buf(&mut read).await.is_ok_and(|count| count > 0) {},
                Step::Reset => {
                    stream.set_zero_linger().unwrap();
                    return;
                }
                Step::Close => return,
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream, read: &mut BytesMut, connection: usize) -> Option<Heard> {
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    };
    let head = read.split_to(end);
    let head = std::str::from_utf8(&head).unwrap();
    let mut headers = HeaderMap::new();
    for line in head.split("\r\n").skip(1).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
    }
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    while read.len() < length {
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&read.split_to(length)).unwrap_or(Value::Null);
    let id = if body["id"].is_null() { String::new() } else { body["id"].to_string() };
    let method = body["method"].as_str().unwrap_or_default().to_owned();
    let http_method = head.split(' ').next().unwrap().to_owned();
    Some(Heard { http_method, method, id, headers, body, connection })
}

/// What a server with sessions, and without a stream of their own, does.
fn usual(heard: &Heard) -> Vec<Step> {
    if heard.http_method == "GET" {
        return vec![bare(405)];
    }
    if heard.method == "initialize" {
        let result = json!({"protocolVersion": heard.body["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "0"}});
        let body = heard.answer(&result.to_string());
        return vec![send(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: raw-{}\r\ncontent-length: {}\r\n\r\n{body}",
            heard.connection,
            body.len()
        ))];
    }
    match heard.method.as_str() {
        "tools/list" => vec![json_body(&heard.answer("{\"tools\":[]}"))],
        "tools/call" => vec![json_body(&heard.says("usual"))],
        _ if heard.http_method == "DELETE" => vec![bare(200)],
        _ if heard.id.is_empty() || heard.method.is_empty() => vec![bare(202)],
        _ => vec![json_body(&heard.answer("{}"))],
    }
}
