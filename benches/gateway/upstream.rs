//! The server behind every proxy: a streamable HTTP MCP server of either era that must cost less than what is measured.
//!
//! It reads a request by searching its bytes for the few members that matter, which is sound only because every
//! client of the bench sends compact JSON without those words elsewhere. Tools: `small` and `noop` answer at once, `big`
//! with so many bytes, `burst` with events in one write, `paced` with one event at a time, `hold` not until the end.

#![expect(
    clippy::disallowed_methods,
    reason = "the bench's upstream is not the gateway: its connections have no job to belong to"
)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use memchr::memmem;

use crate::listen;
use crate::plan::Era;

/// The text that `small` answers with: 64 bytes.
pub(crate) const SMALL_TEXT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Answers with the number of calls held right now.
pub(crate) const HELD_PATH: &str = "/held";
/// Answers with the number of requests so far, apart from those that ask for a number.
pub(crate) const REQUESTS_PATH: &str = "/requests";

const LONGEST_HOLD: Duration = Duration::from_secs(600);
const MOST_BYTES: usize = 16 << 20;
const MOST_EVENTS: usize = 100_000;

type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

struct Server {
    era: Era,
    sessions: AtomicU64,
    requests: AtomicUsize,
    held: AtomicUsize,
}

impl Server {
    fn new(era: Era) -> Self {
        Self { era, sessions: AtomicU64::new(0), requests: AtomicUsize::new(0), held: AtomicUsize::new(0) }
    }
}

/// Serves until its starter is gone.
pub(crate) async fn run(era: Era) -> Result<()> {
    let listener = listen::listen()?;
    let server = Arc::new(Server::new(era));
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(Arc::clone(&server), request));
                // Without writev a burst is flattened into one buffer and leaves in one write.
                http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), service).await
            });
        }
    };
    tokio::select! {
        ended = serve => ended,
        () = listen::starter_gone() => Ok(()),
    }
}

async fn answer(server: Arc<Server>, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    if request.method() == Method::POST {
        server.requests.fetch_add(1, Relaxed);
        let body = request.into_body().collect().await?.to_bytes();
        return Ok(message(&server, &body).await);
    }
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, HELD_PATH) => json(server.held.load(Relaxed).to_string()),
        (&Method::GET, REQUESTS_PATH) => json(server.requests.load(Relaxed).to_string()),
        (method, _) => {
            server.requests.fetch_add(1, Relaxed);
            status(if method == Method::DELETE { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED })
        }
    })
}

async fn message(server: &Server, body: &[u8]) -> Response<Body> {
    let (Some(method), Some(id)) = (text(body, b"\"method\":\""), scalar(body, b"\"id\":")) else {
        // 2025-11-25 transports, "Sending Messages to the Server" 4: a notification or a response.
        return status(StatusCode::ACCEPTED);
    };
    match (method, server.era) {
        ("tools/call", _) => call(server, body, id).await,
        ("initialize", Era::Legacy) => {
            let mut response = json(result(id, "", INITIALIZED));
            let session = format!("bench-{}", server.sessions.fetch_add(1, Relaxed));
            if let Ok(value) = session.parse() {
                response.headers_mut().insert("mcp-session-id", value);
            }
            response
        }
        ("tools/list", Era::Legacy) => json(result(id, "", TOOLS)),
        ("ping", Era::Legacy) => json(result(id, "", "{}")),
        ("tools/list", Era::Modern) => json(result(id, KEPT, TOOLS)),
        ("server/discover", Era::Modern) => json(result(id, KEPT, DISCOVERED)),
        _ => json(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"Method not found"}}}}"#)),
    }
}

async fn call(server: &Server, body: &[u8], id: &str) -> Response<Body> {
    let number = |member: &[u8]| scalar(body, member).and_then(|digits| digits.parse::<usize>().ok()).unwrap_or(0);
    let complete = if server.era == Era::Modern { COMPLETE } else { "" };
    match text(body, b"\"name\":\"").unwrap_or_default() {
        "small" => json(result(id, complete, &content(SMALL_TEXT))),
        "noop" => json(result(id, complete, r#"{"content":[]}"#)),
        "big" => json(result(id, complete, &content(&"x".repeat(number(b"\"bytes\":").min(MOST_BYTES))))),
        tool @ ("burst" | "paced") => {
            let token = scalar(body, b"\"progressToken\":").unwrap_or("0");
            let events = number(b"\"events\":").min(MOST_EVENTS);
            let gap = (tool == "paced").then(|| Duration::from_millis(number(b"\"gapMs\":").clamp(1, 10_000) as u64));
            let answer = result(id, complete, &content(SMALL_TEXT));
            events_then(answer, token, events, gap)
        }
        "hold" => {
            let _held = Held::count(&server.held);
            tokio::time::sleep(LONGEST_HOLD).await;
            json(result(id, complete, r#"{"content":[]}"#))
        }
        _ => json(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"Unknown tool"}}}}"#)),
    }
}

/// One call in hand, counted until it is dropped.
struct Held<'a>(&'a AtomicUsize);

impl<'a> Held<'a> {
    fn count(held: &'a AtomicUsize) -> Self {
        held.fetch_add(1, Relaxed);
        Self(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn events_then(answer: String, token: &str, events: usize, gap: Option<Duration>) -> Response<Body> {
    let token = token.to_owned();
    let frames = stream::iter(0..=events).then(move |at| {
        let data = if at == events {
            answer.clone()
        } else {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{at},"total":{events}}}}}"#
            )
        };
        async move {
            if let Some(gap) = gap {
                tokio::time::sleep(gap).await;
            }
            Ok::<_, Infallible>(Frame::data(Bytes::from(format!("event: message\ndata: {data}\n\n"))))
        }
    });
    let mut response = Response::new(Either::Right(StreamBody::new(frames).boxed_unsync()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache"));
    response
}

fn json(body: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body))));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = status;
    response
}

/// A response whose `result`, an object with members unless `before` is empty, begins with the members `before`.
fn result(id: &str, before: &str, result: &str) -> String {
    let rest = result.strip_prefix('{').unwrap_or(result);
    [r#"{"jsonrpc":"2.0","id":"#, id, r#","result":{"#, before, rest, "}"].concat()
}

/// What `small` answers with when the text is [`SMALL_TEXT`].
pub(crate) fn content(text: &str) -> String {
    [r#"{"content":[{"type":"text","text":""#, text, r#""}]}"#].concat()
}

/// The string whose opening quote ends `member`.
fn text<'a>(body: &'a [u8], member: &[u8]) -> Option<&'a str> {
    until(body, member, |byte| byte == b'"')
}

/// The number or string after `member`, as it is spelt.
fn scalar<'a>(body: &'a [u8], member: &[u8]) -> Option<&'a str> {
    until(body, member, |byte| matches!(byte, b',' | b'}'))
}

fn until<'a>(body: &'a [u8], member: &[u8], ends: fn(u8) -> bool) -> Option<&'a str> {
    let at = memmem::find(body, member)? + member.len();
    let rest = body.get(at..)?;
    let end = rest.iter().position(|byte| ends(*byte))?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

/// What a result of the modern era begins with.
const COMPLETE: &str = r#""resultType":"complete","#;
/// The same for one that may be kept.
const KEPT: &str = r#""resultType":"complete","ttlMs":3600000,"cacheScope":"public","#;

const DISCOVERED: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench-upstream","version":"1"}}}"#;

const INITIALIZED: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench-upstream","version":"1"}}"#;

const TOOLS: &str = r#"{"tools":[
{"name":"small","description":"64 bytes at once","inputSchema":{"type":"object"}},
{"name":"noop","description":"nothing at once","inputSchema":{"type":"object"}},
{"name":"big","description":"so many bytes","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer"}}}},
{"name":"burst","description":"so many events at once","inputSchema":{"type":"object","properties":{"events":{"type":"integer"}}}},
{"name":"paced","description":"so many events, so far apart","inputSchema":{"type":"object","properties":{"events":{"type":"integer"},"gapMs":{"type":"integer"}}}},
{"name":"hold","description":"no answer for ten minutes","inputSchema":{"type":"object"}}]}"#;
