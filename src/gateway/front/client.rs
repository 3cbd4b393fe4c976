//! The client's end of one request: nothing is sent until something must be, and whoever goes away is noticed.
//!
//! The answer is one JSON message while nothing was sent before it, so that an error still has its status. The first
//! notification, or a long silence, commits it to a stream of events (2026-07-28 transports, "Sending Messages").

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::gateway::call::{Accept, Answer, Call};
use crate::gateway::rejection::Kind;
use crate::gateway::relay::EventStream;
use crate::gateway::session::Stream;
use crate::gateway::{Gateway, Request, Route};
use crate::jsonrpc::{self, Id, Object};
use crate::mcp::envelope::Envelope;
use crate::mcp::level::Level;
use crate::sse;
use crate::upstream::Error;

/// Events that may wait for a slow reader before they are dropped.
const WAITING_EVENTS: usize = 64;

/// Where a request's answer goes.
pub(super) struct Client {
    id: Id,
    accept: Accept,
    /// The client's own progress token as JSON text.
    token: Option<Box<str>>,
    /// From which level on it wants log messages.
    level: Option<Level>,
    progress: Option<f64>,
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    way: Way,
    /// When silence commits the answer.
    commit_at: Instant,
}

enum Way {
    /// Nothing was sent.
    Open(oneshot::Sender<Result<Answer, Kind>>),
    /// A stream of events; it tells whether all of it was taken.
    Events(Stream, oneshot::Receiver<()>),
}

/// Where the transport waits for the answer. Dropping it says that the client has gone.
pub(super) type Waiting = oneshot::Receiver<Result<Answer, Kind>>;

impl Client {
    /// The client of a call, and where its answer is waited for.
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        call: &Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
    ) -> (Self, Waiting) {
        let (first, waiting) = oneshot::channel();
        let client = Self {
            id: request.id.clone(),
            accept: call.accept,
            token: envelope.progress_token.map(Into::into),
            level: envelope.log_level.as_deref().and_then(Level::parse),
            progress: None,
            gateway: Arc::clone(gateway),
            route: Arc::clone(&call.route),
            way: Way::Open(first),
            commit_at: Instant::now() + gateway.keep_alive,
        };
        (client, waiting)
    }

    /// From which level on it wants log messages.
    pub(super) fn level(&self) -> Option<Level> {
        self.level
    }

    /// Resolves when the client has gone; keeps its connection warm until then. Cancel-safe.
    pub(super) async fn gone(&mut self) {
        loop {
            match &mut self.way {
                Way::Events(stream, _) => return stream.events.closed().await,
                Way::Open(first) if !self.accept.events => return first.closed().await,
                Way::Open(first) => tokio::select! {
                    () = first.closed() => return,
                    () = tokio::time::sleep_until(self.commit_at) => self.commit(),
                },
            }
        }
    }

    /// Passes on what the upstream tells about this request, as far as the client wants to hear of it. A reader that is
    /// too slow loses it: notifications may be lost, memory may not.
    pub(super) fn tell(&mut self, method: &str, params: Option<&str>) {
        if !self.accept.events {
            return;
        }
        let message = match method {
            "notifications/progress" => self.progress(params),
            "notifications/message" => self.log(params),
            // Whatever else there is belongs to a subscription, or to nobody (2026-07-28 basic, "Notifications").
            _ => None,
        };
        let Some(message) = message else { return };
        self.commit();
        if let Way::Events(stream, _) = &self.way {
            // Lost, if there is no room.
            let _is_taken: bool = stream.offer(&sse::write_event(None, &message));
        }
    }

    /// Progress under the client's own token, which must rise (2026-07-28 progress, "Behavior Requirements").
    fn progress(&mut self, params: Option<&str>) -> Option<Bytes> {
        let token = self.token.as_deref()?;
        let mut params = Object::parse(params?).ok()?;
        let progress: f64 = serde_json::from_str(params.get("progress")?).ok()?;
        if self.progress.is_some_and(|last| progress <= last) {
            return None;
        }
        params.set("progressToken", token).remove("_meta");
        self.progress = Some(progress);
        Some(jsonrpc::notification("notifications/progress", Some(&params.to_json())))
    }

    /// A log message at the level that the request asked for, or above (2026-07-28 logging, "Per-request Log Level").
    fn log(&self, params: Option<&str>) -> Option<Bytes> {
        let wanted = self.level?;
        let params = params?;
        (Level::of_message(params)? >= wanted).then(|| jsonrpc::notification("notifications/message", Some(params)))
    }

    /// Begins a stream of events, if there is none yet.
    fn commit(&mut self) {
        let Way::Open(_) = &self.way else { return };
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let stream = self.gateway.deliveries.stream(events);
        let (taken, is_taken) = oneshot::channel();
        let waiting = Arc::clone(&stream.waiting);
        let held = Box::new((self.route.metrics.stream(), Taken { waiting: Arc::clone(&waiting), taken: Some(taken) }));
        let body = EventStream::new(receiver, pending(), self.gateway.keep_alive, waiting, held);
        if let Way::Open(first) = std::mem::replace(&mut self.way, Way::Events(stream, is_taken)) {
            // The client may have gone meanwhile; then the stream is closed.
            drop(first.send(Ok(Answer::Events(body.boxed_unsync()))));
        }
    }

    /// Gives the answer.
    pub(super) async fn answer(mut self, answer: Result<Bytes, Kind>) {
        if !self.accept.json {
            self.commit();
        }
        match self.way {
            Way::Open(first) => drop(first.send(answer.map(Answer::json))),
            Way::Events(stream, _) => {
                let message = answer.unwrap_or_else(|kind| kind.answering(&self.id).to_message());
                stream.finish(sse::write_event(None, &message)).await;
            }
        }
    }

    /// Gives a result on which more depends: says whether the connection has taken the whole of it.
    pub(super) async fn deliver(mut self, result: &str) -> bool {
        let message = jsonrpc::response(&self.id, result);
        if !self.accept.json {
            self.commit();
        }
        match self.way {
            Way::Open(first) => {
                let (taken, is_taken) = oneshot::channel();
                let body = Whole { message: Some(message), taken: Some(taken) };
                first.send(Ok(Answer::JsonBody(body.boxed_unsync()))).is_ok() && is_taken.await.is_ok()
            }
            Way::Events(stream, is_taken) => {
                if !stream.finish(sse::write_event(None, &message)).await {
                    return false;
                }
                // The stream ends when nobody can write to it any more.
                drop(stream);
                is_taken.await.is_ok()
            }
        }
    }

    /// The answer to a request with this result.
    pub(super) fn response(&self, result: &str) -> Bytes {
        jsonrpc::response(&self.id, result)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Goes with a stream of events: tells whether its reader has taken everything that was written.
struct Taken {
    waiting: Arc<AtomicUsize>,
    taken: Option<oneshot::Sender<()>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(taken) = self.taken.take()
        {
            // Nobody may care any more.
            let _cares: bool = taken.send(()).is_ok();
        }
    }
}

/// One message as a body that tells when it was taken.
struct Whole {
    message: Option<Bytes>,
    taken: Option<oneshot::Sender<()>>,
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(message) = self.message.take() else { return Poll::Ready(None) };
        if let Some(taken) = self.taken.take() {
            // Nobody may care any more.
            let _cares: bool = taken.send(()).is_ok();
        }
        Poll::Ready(Some(Ok(Frame::data(message))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.message.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(u64::try_from(left).unwrap_or(u64::MAX))
    }
}
