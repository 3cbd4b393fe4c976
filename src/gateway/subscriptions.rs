//! `subscriptions/listen`: a stream on which a client of the modern era hears of changes, of its server's lists and
//! resources and of its tasks (2026-07-28 subscriptions; tasks extension, "Task Notifications").
//!
//! One job for each stream. What may wait for a slow reader is bounded by what it asked for: of several changes that say
//! the same only the newest waits, and a task is told as it is when its turn comes.

pub(super) mod feed;
mod inbox;
mod tasks;
mod watcher;

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::{self, Id, Object};
use crate::mcp::envelope::{Envelope, SERVER_INFO, SUBSCRIPTION_ID};
use crate::mcp::method::Method;
use crate::mcp::subscription::{Filter, tagged};
use crate::metrics::Counted;
use crate::sse;
use crate::task::{Ledger, TaskId};
use crate::tenant::Principal;
use crate::upstream::Error;

use super::call::{Answer, Call};
use super::eras::Side;
use super::rejection::{Chain, Fault, Kind, QUOTA_RETRY};
use super::relay::EventStream;
use super::session::Stream;
use super::streamed::Message;
use super::streams::reached;
use super::{Gateway, Request, Route, ladder, over, owner};
use feed::Feed;
use inbox::Change;
use tasks::{Shown, Watched};
use watcher::{Watchers, Watching};

/// Streams of one caller. Those who are not authenticated are one caller.
const MAX_STREAMS: usize = 1024;
/// Events that may wait in a stream's channel: all others wait where newer ones take their place.
const WAITING_EVENTS: usize = 2;
/// How long a stream's reader may take over its last event.
const LAST_EVENT: Duration = Duration::from_secs(1);

/// What is alive for all streams.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    watchers: Watchers,
    open: Arc<Mutex<HashMap<[u8; 16], usize>>>,
}

impl Subscriptions {
    /// Counts one more stream of a caller.
    fn admit(&self, principal: &Principal) -> Result<Admitted, Kind> {
        let admitted = Admitted { principal: principal.digest(), open: Arc::clone(&self.open) };
        let count = {
            let mut open = admitted.open();
            let count = open.entry(admitted.principal).or_default();
            *count += 1;
            *count
        };
        if count > MAX_STREAMS {
            return Err(Kind::Quota { reason: "subscriptions", limit: MAX_STREAMS as u64, retry_after: QUOTA_RETRY });
        }
        Ok(admitted)
    }
}

/// One stream's place among those of its caller.
#[derive(Debug)]
struct Admitted {
    principal: [u8; 16],
    open: Arc<Mutex<HashMap<[u8; 16], usize>>>,
}

impl Admitted {
    fn open(&self) -> MutexGuard<'_, HashMap<[u8; 16], usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.open();
        if let Some(count) = open.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.principal);
            }
        }
    }
}

impl Gateway {
    /// Opens a stream.
    pub(super) async fn subscriptions_listen(
        self: &Arc<Self>,
        call: &Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
    ) -> Result<Answer, Kind> {
        let params =
            Object::parse_optional(request.params.whole).map_err(|_| Kind::Params("`params` must be an object"))?;
        let asked = Filter::read(params.get("notifications")).map_err(Kind::Params)?;
        // Before the stream is open (tasks extension, "Capability negotiation").
        if asked.tasks.is_some() && !envelope.has_tasks {
            return Err(ladder::needs_tasks("Tasks can be listened to only by requests that declare the extension"));
        }
        if !call.accept.events {
            return Err(Kind::Unusable(
                "This method answers with a stream: the Accept header must list text/event-stream",
            ));
        }
        if self.is_draining() {
            return Err(Fault::Shutdown.into());
        }
        let admitted = self.subscriptions.admit(&call.caller.principal)?;
        let route = &call.route;
        // A server that makes its tasks itself also tells of them itself.
        let (ours, of_server) = match route.native {
            true => (None, asked),
            false => (asked.tasks.clone(), Filter { tasks: None, ..asked }),
        };
        let denied = self.denied_among(call, ours.as_ref()).await?;
        let owner = owner(&call.caller.principal, route);
        let watched = Watched::begin(&self.ledger, owner, ours.as_ref(), &denied).await?;
        self.check_absent(call, watched.as_ref().map(Watched::absent).unwrap_or_default())?;
        let (source, mut honoured) = self.source(route, &call.caller.principal, of_server).await?;
        if let Some(watched) = &watched {
            honoured.tasks = Some(watched.named());
        }
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let stream = self.deliveries.stream(events);
        let held = (admitted, call.route.metrics.stream());
        let body = EventStream::new(receiver, pending(), self.keep_alive, Arc::clone(&stream.waiting), Box::new(()));
        let sending = Sending { id: request.id.clone(), route: Arc::clone(route), stream, is_half: false };
        let expires = self.expiry(&call.caller);
        let teller = Teller { sending, source, watched, honoured, expires, _held: held };
        let gateway = Arc::clone(self);
        self.jobs.spawn("subscription", async move { teller.run(&gateway).await });
        Ok(Answer::Events(body.boxed_unsync()))
    }

    /// Tasks that are named and not there for the caller are left out of a stream. All of them count as asked for in vain, and a
    /// caller over that bound gets no stream that names such.
    fn check_absent(&self, call: &Call, absent: &[Option<TaskId>]) -> Result<(), Kind> {
        let Ok(number @ 1..) = u32::try_from(absent.len()) else { return Ok(()) };
        absent.iter().for_each(|task| self.note_absent(call, *task));
        self.lookups.missed(&call.caller.principal, number).map_err(over("lookups"))
    }

    /// Where the server's changes come from, and what it honours of the filter.
    async fn source(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &Arc<Principal>,
        filter: Filter,
    ) -> Result<(Source, Filter), Kind> {
        if filter.is_empty() {
            return Ok((Source::Nothing, filter));
        }
        let subject = route.subject_of(&principal.digest());
        if let Side::Modern(key) = self.side_of(route, subject.as_ref()).await? {
            match Feed::open(self, route, key, principal.digest(), filter.clone()).await {
                Ok((feed, honoured)) => return Ok((Source::Feed(feed), honoured)),
                Err(error) => {
                    if self.modern_refused(route, subject.as_ref(), &error).await.is_none() {
                        return refused(error);
                    }
                }
            }
        }
        let (watching, honoured) = Watching::join(self, route, principal, &filter).await?;
        Ok((Source::Watching(watching), honoured))
    }
}

/// A server that refuses to be listened to tells of nothing.
fn refused(error: Error) -> Result<(Source, Filter), Kind> {
    match error {
        Error::Denied(denied) if denied.is_for_client => Err(Kind::Denied(denied)),
        Error::Refused { .. } | Error::Status(_) | Error::Protocol(_) | Error::Denied(_) => {
            tracing::debug!(error = %Chain(&error), "the server tells of no changes");
            Ok((Source::Nothing, Filter::default()))
        }
        error => Err(error.into()),
    }
}

/// Where a server's changes come from.
enum Source {
    Feed(Feed),
    Watching(Watching),
    Nothing,
}

impl Source {
    /// The next change; `None` when none can come any more. Never, where there is no source. Cancel-safe.
    async fn next(&self) -> Option<Change> {
        match self {
            Self::Feed(feed) => feed.next().await,
            Self::Watching(watching) => watching.next().await,
            Self::Nothing => pending().await,
        }
    }
}

/// Tells one client.
struct Teller {
    sending: Sending,
    source: Source,
    watched: Option<Watched>,
    honoured: Filter,
    /// The client listens again with another credential then.
    expires: Option<Instant>,
    _held: (Admitted, Counted),
}

/// The stream, and the id that everything on it names.
struct Sending {
    id: Id,
    route: Arc<Route>,
    stream: Stream,
    /// An event is on the stream without its end.
    is_half: bool,
}

impl Teller {
    async fn run(mut self, gateway: &Arc<Gateway>) {
        let gone = self.sending.stream.events.clone();
        let is_over = tokio::select! {
            biased;
            () = gone.closed() => false,
            () = gateway.closing.cancelled() => true,
            () = reached(self.expires) => true,
            is_over = self.tell(gateway) => is_over,
        };
        if is_over && !self.sending.is_half {
            drop(tokio::time::timeout(LAST_EVENT, self.sending.finish()).await);
        }
    }

    /// Tells what there is to tell; says whether the stream is to be ended as one that is over.
    async fn tell(&mut self, gateway: &Arc<Gateway>) -> bool {
        let acknowledged = format!("{{\"notifications\":{}}}", self.honoured.to_json());
        if !self.sending.send(Method::Acknowledged.as_str(), Some(&acknowledged)).await {
            return false;
        }
        // Nothing will ever be told.
        if self.honoured.is_empty() {
            return true;
        }
        loop {
            let is_read = tokio::select! {
                change = self.source.next() => match change {
                    Some(Change { method, params }) => self.sending.send(&method, params.as_deref()).await,
                    None => return true,
                },
                // What changed in the time of one write is told once.
                shown = next_task(&mut self.watched, &gateway.ledger, &self.sending.id) => {
                    if shown.has_outcome {
                        gateway.note_read(&shown.task).await;
                    }
                    self.sending.show(shown.message).await
                }
            };
            if !is_read {
                return false;
            }
        }
    }
}

impl Sending {
    /// Sends a notification; says whether anybody will read it.
    async fn send(&self, method: &str, params: Option<&str>) -> bool {
        let message: Bytes = jsonrpc::notification(method, Some(&tagged(params, self.id.as_json())));
        self.stream.send(sse::write_event(None, &message)).await
    }

    /// Sends a task; says whether anybody will read on.
    async fn show(&mut self, message: Message) -> bool {
        let event = match message {
            Message::Whole(message) => return self.stream.send(sse::write_event(None, &message)).await,
            Message::Streamed(event) => event.into_event(None),
        };
        self.is_half = true;
        let is_read = event.send(&self.stream).await;
        self.is_half = !is_read;
        is_read
    }

    /// Answers the request (2026-07-28 subscriptions, "Graceful Closure").
    async fn finish(&self) -> bool {
        let id = self.id.as_json();
        let server = self.route.eras.identity();
        let server = server.map_or_else(String::new, |server| format!(",\"{SERVER_INFO}\":{server}"));
        let result = format!("{{\"resultType\":\"complete\",\"_meta\":{{\"{SUBSCRIPTION_ID}\":{id}{server}}}}}");
        self.stream.send(sse::write_event(None, &jsonrpc::response(&self.id, &result))).await
    }
}

async fn next_task(watched: &mut Option<Watched>, ledger: &Ledger, stream: &Id) -> Shown {
    match watched {
        Some(watched) => watched.next(ledger, stream).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_of_a_caller_are_counted_until_they_end() {
        let subscriptions = Subscriptions::default();
        let caller = |name: &str| Principal::of_api_key("acme".into(), name.into());
        let (alice, bob) = (caller("alice"), caller("bob"));
        let mut streams: Vec<Admitted> = (0..MAX_STREAMS).map(|_| subscriptions.admit(&alice).unwrap()).collect();
        assert!(matches!(subscriptions.admit(&alice), Err(Kind::Quota { reason: "subscriptions", .. })));
        assert!(subscriptions.admit(&bob).is_ok());
        streams.pop();
        let last = subscriptions.admit(&alice).unwrap();
        assert!(subscriptions.admit(&alice).is_err());
        drop((streams, last));
        assert!(subscriptions.open.lock().unwrap().is_empty());
    }
}
