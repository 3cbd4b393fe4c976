//! Answers: JSON, event streams, and the broken ones.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use http::response::Builder;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{self, ErrorObject, Id, code};
use crate::mcp::version::ProtocolVersion;
use crate::sse;

use super::super::Shared;
use super::super::fault::{Fault, gzip};
use super::super::session::Session;
use super::super::stats::Stats;
use super::super::stream::{Cursor, Event, Stream};
use super::check::SESSION_ID;
use super::modern::Leaving;

pub(super) type Body = UnsyncBoxBody<Bytes, Broken>;

/// Closes the connection where it stands.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
pub(super) struct Broken;

/// How soon a client may come back, in milliseconds.
const RETRY_MS: u64 = 20;
/// How much of an endless event is sent at a time.
const FLOOD: Bytes = Bytes::from_static(&[b'x'; 64 * 1024]);

/// What an HTTP request gets.
pub(super) enum Reply {
    Accepted,
    Ended,
    Json { session: Option<Box<str>>, body: Bytes },
    Refused { status: StatusCode, body: Bytes },
    Events(Events),
    Gzip(Bytes),
    Broken(Fault),
}

/// Why an HTTP request gets no more than an error.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: i64,
    message: String,
    allow: &'static str,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), allow: "POST, GET, DELETE" }
    }

    /// With other methods that are allowed.
    pub(super) fn allowing(self, allow: &'static str) -> Self {
        Self { allow, ..self }
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, message)
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let body = jsonrpc::error_response(None, &ErrorObject::new(self.code, self.message));
        let mut builder = Response::builder().status(self.status);
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            builder = builder.header(ALLOW, self.allow);
        }
        json(builder, body).unwrap_or_else(|_| empty(self.status))
    }
}

impl Reply {
    pub(super) async fn into_response(self) -> Result<Response<Body>, Broken> {
        match self {
            Self::Accepted => Ok(empty(StatusCode::ACCEPTED)),
            Self::Ended => Ok(empty(StatusCode::NO_CONTENT)),
            Self::Json { session, body } => json(with_session(StatusCode::OK, session.as_deref()), body),
            Self::Refused { status, body } => json(Response::builder().status(status), body),
            Self::Events(events) => events.into_response(),
            Self::Gzip(body) => json(Response::builder().header(CONTENT_ENCODING, "gzip"), gzip(&body)),
            Self::Broken(fault) => broken(fault).await,
        }
    }
}

async fn broken(fault: Fault) -> Result<Response<Body>, Broken> {
    let text = |status: u16, kind: &str, text: &'static str| {
        Response::builder().status(status).header(CONTENT_TYPE, kind).body(whole(Bytes::from_static(text.as_bytes())))
    };
    let response = match fault {
        Fault::Status(status) => text(status, "text/plain", "out of order\n"),
        Fault::Html => text(200, "text/html", "<html><body><h1>Please sign in</h1></body></html>"),
        Fault::CutJson => text(200, "application/json", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{"),
        Fault::SessionGone => {
            return Ok(Refusal::new(StatusCode::NOT_FOUND, code::INVALID_REQUEST, "no such session").into_response());
        }
        Fault::Redirect => Response::builder()
            .status(StatusCode::TEMPORARY_REDIRECT)
            .header(LOCATION, "/elsewhere")
            .body(whole(Bytes::new())),
        Fault::Silent => std::future::pending().await,
        _ => return Err(Broken),
    };
    response.map_err(|_| Broken)
}

/// Answers the requests of one POST: with JSON when the response is all there is to say, else with events.
pub(super) async fn to_requests(
    session: Arc<Session>,
    stream: Arc<Stream>,
    opening: bool,
    fault: Option<Fault>,
) -> Reply {
    let options = &session.shared.options;
    let events = |fault| Reply::Events(Events::of_call(&session, &stream, fault).opening(opening));
    match fault {
        Some(fault @ (Fault::Close | Fault::Silent)) => return Reply::Broken(fault),
        Some(Fault::Gzip | Fault::WrongId) | None => {}
        Some(fault) => return events(Some(fault)),
    }
    if options.always_sse {
        return events(fault);
    }
    let message = if options.always_json || fault.is_some() {
        stream.all().await.into_iter().rfind(|event| event.response).map(|event| event.message)
    } else {
        stream.first().await.filter(|(event, is_last)| event.response && *is_last).map(|(event, _)| event.message)
    };
    // A cancelled request has no response: its stream ends without one.
    let Some(message) = message else { return events(fault) };
    match fault {
        Some(Fault::Gzip) => Reply::Gzip(message),
        Some(Fault::WrongId) => {
            let answered = Id::string("not yours");
            Reply::Json { session: None, body: jsonrpc::response(&answered, "{\"content\":[]}") }
        }
        _ => Reply::Json { session: session.id.clone().filter(|_| opening), body: message },
    }
}

/// A stream of a session that is to be written as server-sent events.
pub(super) struct Events {
    session: Arc<Session>,
    stream: Arc<Stream>,
    cursor: Cursor,
    ended: CancellationToken,
    counted: Vec<Open>,
    fault: Option<Fault>,
    opening: bool,
    /// Messages go out in arrays.
    in_arrays: bool,
    /// What goes out before the first message.
    priming: Option<Bytes>,
    /// Something was sent.
    begun: bool,
    /// Notices when the client leaves, where that means something.
    leaving: Option<Leaving>,
}

impl Events {
    pub(super) fn of_call(session: &Arc<Session>, stream: &Arc<Stream>, fault: Option<Fault>) -> Self {
        Self::new(session, stream, None, fault)
    }

    pub(super) fn resumed(session: &Arc<Session>, stream: &Arc<Stream>, after: u64, fault: Option<Fault>) -> Self {
        Self::new(session, stream, Some(after), fault)
    }

    /// The session's own stream, from where it was left.
    pub(super) fn of_session(session: &Arc<Session>, after: Option<u64>, fault: Option<Fault>) -> Self {
        let mut events = Self::new(session, &session.general, after, fault);
        events.counted.push(Open::new(&session.shared, |stats| &mut stats.get_streams));
        session.shared.note(|stats| stats.get_streams_opened += 1);
        events
    }

    fn new(session: &Arc<Session>, stream: &Arc<Stream>, after: Option<u64>, fault: Option<Fault>) -> Self {
        let options = &session.shared.options;
        let version = session.terms.version;
        let cursor = stream.read(after);
        let primes = options.priming && version.has_priming_events();
        let priming = primes.then(|| sse::write_priming(&format!("{}.{}", stream.number, cursor.place()), RETRY_MS));
        Self {
            session: Arc::clone(session),
            stream: Arc::clone(stream),
            cursor,
            ended: session.ended.clone(),
            counted: vec![Open::new(&session.shared, |stats| &mut stats.streams)],
            fault,
            opening: false,
            in_arrays: options.batches && version == ProtocolVersion::V2025_03_26,
            priming,
            begun: false,
            leaving: None,
        }
    }

    /// Takes a client that leaves for one that wants nothing more.
    pub(super) fn watched(mut self, leaving: Leaving) -> Self {
        self.leaving = Some(leaving);
        self
    }

    const fn opening(mut self, opening: bool) -> Self {
        self.opening = opening;
        self
    }

    fn into_response(self) -> Result<Response<Body>, Broken> {
        let session = self.session.id.clone().filter(|_| self.opening);
        let mut head = with_session(StatusCode::OK, session.as_deref())
            .header(CONTENT_TYPE, "text/event-stream")
            .header(CACHE_CONTROL, "no-cache, no-transform");
        if self.leaving.is_some() {
            // 2026-07-28 transports, "Sending Messages to the Server".
            head = head.header("x-accel-buffering", "no");
        }
        let frames = stream::unfold(Some(self), |events| async move {
            let mut events = events?;
            match events.next().await {
                Some(Ok(bytes)) => Some((Ok(Frame::data(bytes)), Some(events))),
                Some(Err(broken)) => Some((Err(broken), None)),
                None => None,
            }
        });
        head.body(StreamBody::new(frames).boxed_unsync()).map_err(|_| Broken)
    }

    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        if let Some(priming) = self.priming.take() {
            return Some(Ok(priming));
        }
        match self.fault {
            Some(Fault::Reset) if self.begun => {
                // What is buffered goes out when the connection finds nothing more to write.
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                return Some(Err(Broken));
            }
            Some(Fault::EndEarly) if self.begun => return None,
            Some(Fault::Flood) if self.begun => return Some(Ok(FLOOD)),
            Some(Fault::Garbage) if !self.begun => {
                self.begun = true;
                return Some(Ok(Bytes::from_static(b"data: {this is no JSON\n\n")));
            }
            _ => {}
        }
        let event = tokio::select! {
            biased;
            // A server that stops does not end its answers properly.
            () = self.session.shared.jobs.stopping().cancelled() => return Some(Err(Broken)),
            event = self.stream.next(&mut self.cursor) => event?,
            () = self.ended.cancelled() => return None,
        };
        self.begun = true;
        Some(Ok(self.write(event)))
    }

    fn write(&mut self, event: Event) -> Bytes {
        match self.fault {
            Some(Fault::Flood) => return Bytes::from_static(b"data: "),
            Some(Fault::Twice) if event.response => {
                let once = sse::write_event(None, &event.message);
                return Bytes::from([once.as_ref(), once.as_ref()].concat());
            }
            _ => {}
        }
        let mut place = event.place;
        let mut message = event.message;
        if self.in_arrays {
            let mut members = vec![message];
            // What is ready goes into the same array.
            while let Some(more) = self.stream.ready(&mut self.cursor) {
                place = more.place;
                members.push(more.message);
            }
            message = Bytes::from([b"[".as_ref(), &members.join(&b','), b"]"].concat());
        }
        let id = self.stream.keeps().then(|| format!("{}.{place}", self.stream.number));
        sse::write_event(id.as_deref(), &message)
    }
}

/// Counts something while it is open.
pub(super) struct Open {
    shared: Arc<Shared>,
    counter: fn(&mut Stats) -> &mut u64,
}

impl Open {
    pub(super) fn new(shared: &Arc<Shared>, counter: fn(&mut Stats) -> &mut u64) -> Self {
        shared.note(|stats| *counter(stats) += 1);
        Self { shared: Arc::clone(shared), counter }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.note(|stats| {
            let open = (self.counter)(stats);
            *open = open.saturating_sub(1);
        });
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Open")
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn with_session(status: StatusCode, session: Option<&str>) -> Builder {
    let builder = Response::builder().status(status);
    match session {
        Some(session) => builder.header(SESSION_ID, session),
        None => builder,
    }
}

fn json(builder: Builder, body: Bytes) -> Result<Response<Body>, Broken> {
    builder.header(CONTENT_TYPE, "application/json").body(whole(body)).map_err(|_| Broken)
}

fn whole(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}
