//! What a modern server tells of changes: one `subscriptions/listen` stream to it, kept open as long as the feed lives.
//!
//! For whoever must hear of an upstream's changes, be it for a listen stream of a modern client or for a session of a
//! legacy one:
//!
//! ```text
//! let (feed, honoured) = Feed::open(&gateway, &route, key, principal, filter).await?;
//! while let Some(Change { method, params }) = feed.next().await { .. }   // cancel-safe; `params` names no stream
//! let honoured = feed.change(wider).await?;                              // at any time, from another job too
//! ```
//!
//! The filter of a stream can't be changed (2026-07-28 subscriptions, "Opening a Stream"): the new stream is opened, its
//! acknowledgement awaited, and only then is the old one closed, so that nothing is missed. A stream that ends by itself
//! is opened again, with pauses that grow, and then everything that it tells of counts as changed. Dropping the feed
//! closes the stream.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::jsonrpc::{self, Id, Message, Outcome, Raw, raw_string};
use crate::mcp::envelope::{Claim, GATEWAY_INFO, with_claim};
use crate::mcp::method::Method;
use crate::mcp::subscription::{Filter, untagged};
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Outgoing, SessionKey};

use super::super::rejection::Chain;
use super::super::{Gateway, POST_LIMIT, Route};
use super::inbox::{Change, Inbox};

/// What is declared to a server that is asked after its own tasks.
const WITH_TASKS: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// How long to wait before a stream is opened again, the first time.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait, after several failures.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// A server's changes.
#[derive(Debug)]
pub(in crate::gateway) struct Feed {
    inbox: Arc<Inbox>,
    changes: mpsc::Sender<ChangeFilter>,
}

/// A new filter, and where what the server honours of it goes.
#[derive(Debug)]
struct ChangeFilter {
    filter: Filter,
    honoured: oneshot::Sender<Result<Filter, Error>>,
}

impl Feed {
    /// Opens a stream and waits for its acknowledgement; gives what the server honours of the filter. A filter that tells of
    /// nothing opens none.
    ///
    /// # Errors
    /// As the server fails or refuses.
    pub(in crate::gateway) async fn open(
        gateway: &Arc<Gateway>,
        route: &Arc<Route>,
        key: SessionKey,
        principal: [u8; 16],
        filter: Filter,
    ) -> Result<(Self, Filter), Error> {
        let upstream = Upstream { gateway: Arc::downgrade(gateway), route: Arc::clone(route), key, principal };
        let stream = upstream.open(&filter).await?;
        let inbox = Arc::new(Inbox::default());
        let honoured = stream.as_ref().map(|stream| stream.honoured.clone()).unwrap_or_default();
        inbox.admit_only(honoured.clone());
        // Each waits for its answer; more than a few at once have no use.
        let (changes, wanted) = mpsc::channel(4);
        let keeper = Keeper { upstream, filter, stream, inbox: Arc::clone(&inbox), failures: 0, reopen: None };
        let stopping = gateway.jobs.stopping().clone();
        gateway.jobs.spawn("feed", async move {
            let inbox = Arc::clone(&keeper.inbox);
            stopping.run_until_cancelled(keeper.run(wanted)).await;
            inbox.end();
        });
        Ok((Self { inbox, changes }, honoured))
    }

    /// Asks for something else from now on; gives what the server honours of it. With an error all is as it was.
    ///
    /// # Errors
    /// As [`Feed::open`].
    pub(in crate::gateway) async fn change(&self, filter: Filter) -> Result<Filter, Error> {
        let (honoured, answer) = oneshot::channel();
        let over = || Error::Lost("the gateway is stopping".into());
        self.changes.send(ChangeFilter { filter, honoured }).await.map_err(|_| over())?;
        answer.await.map_err(|_| over())?
    }

    /// The next change. Of several that say the same only the newest waits to be taken. `None` when the feed has ended for
    /// good: the server is of the other era now, or the gateway stops. Cancel-safe.
    pub(in crate::gateway) async fn next(&self) -> Option<Change> {
        self.inbox.next().await
    }
}

/// The server, and how it is asked.
#[derive(Debug)]
struct Upstream {
    /// A feed keeps no gateway alive.
    gateway: Weak<Gateway>,
    route: Arc<Route>,
    key: SessionKey,
    /// On whose behalf.
    principal: [u8; 16],
}

/// A stream that is open.
#[derive(Debug)]
struct Stream {
    messages: Messages,
    honoured: Filter,
    open: Open,
}

/// Ends a request for a stream: over HTTP its connection closes, on a pipe the server is told.
#[derive(Debug)]
struct Open {
    id: Id,
    gateway: Weak<Gateway>,
    route: Arc<Route>,
    key: SessionKey,
    ended_by_server: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(gateway) = self.gateway.upgrade().filter(|_| self.key.id.is_some() && !self.ended_by_server) else {
            return;
        };
        let params =
            format!("{{\"requestId\":{},\"reason\":{}}}", self.id.as_json(), raw_string("nobody listens any more"));
        let body = jsonrpc::notification("notifications/cancelled", Some(&params));
        let (route, key) = (Arc::clone(&self.route), self.key.clone());
        gateway.jobs.spawn("hang up", async move {
            let message = Outgoing { kind: MessageKind::OneWay, body, headers: HeaderMap::new() };
            // A server that does not read it has ended, or is about to.
            let _sent = timeout(POST_LIMIT, route.upstream.send(&key, message)).await;
        });
    }
}

/// What a stream said.
enum Said {
    Told { method: Box<str>, params: Option<Box<str>> },
    Acknowledged(Filter),
    Refused(Error),
    Ended,
    Nothing,
}

impl Upstream {
    /// Opens a stream and waits for its acknowledgement; `None` for a filter that tells of nothing.
    async fn open(&self, filter: &Filter) -> Result<Option<Stream>, Error> {
        if filter.is_empty() {
            return Ok(None);
        }
        let late = |_| Err(Error::Lost("it did not acknowledge a subscription in time".into()));
        timeout(POST_LIMIT, self.acknowledged(filter)).await.unwrap_or_else(late).map(Some)
    }

    async fn acknowledged(&self, filter: &Filter) -> Result<Stream, Error> {
        let gateway = self.gateway.upgrade().ok_or_else(|| Error::Lost("the gateway is stopping".into()))?;
        let id = gateway.mint();
        // Tasks are asked after only where the upstream's own pass.
        let capabilities = if filter.tasks.is_some() { WITH_TASKS } else { "{}" };
        let claim = Claim { capabilities, client_info: GATEWAY_INFO, log_level: None, progress_token: None };
        let params = with_claim(&format!("{{\"notifications\":{}}}", filter.to_json()), &claim);
        let message = Outgoing {
            kind: MessageKind::Request { id: id.clone(), progress_token: None },
            body: jsonrpc::request(&id, Method::Listen.as_str(), Some(&params)),
            headers: HeaderMap::from_iter([(METHOD, HeaderValue::from_static("subscriptions/listen"))]),
        };
        let subject = self.route.subject_of(&self.principal);
        let key = self.key.clone().on_behalf_of(subject.as_ref().or(self.key.subject.as_ref()));
        let mut open = Open {
            id,
            gateway: Weak::clone(&self.gateway),
            route: Arc::clone(&self.route),
            key: key.clone(),
            ended_by_server: false,
        };
        drop(gateway);
        let reply = self.route.upstream.send(&key, message).await?;
        let mut messages = Messages::of_reply(reply, self.route.max_message);
        loop {
            match next(&mut messages, &open.id, filter).await {
                Said::Acknowledged(honoured) => return Ok(Stream { messages, honoured, open }),
                Said::Refused(error) => {
                    open.ended_by_server = true;
                    return Err(error);
                }
                // One that ends before it began tells of nothing.
                Said::Ended => {
                    open.ended_by_server = true;
                    return Ok(Stream { messages, honoured: Filter::default(), open });
                }
                // 2026-07-28 subscriptions, "Acknowledgment": nothing may come before it.
                Said::Told { .. } | Said::Nothing => {}
            }
        }
    }
}

/// Takes a change to whoever hears of it. What is known of tools may not be true any more.
fn tell(inbox: &Inbox, route: &Route, method: &str, params: Option<&str>) {
    if Method::parse(method) == Method::ToolsListChanged {
        route.schemas.forget();
    }
    inbox.offer(method, params);
}

/// The next message of a stream, read.
async fn next(messages: &mut Messages, id: &Id, filter: &Filter) -> Said {
    let message = match messages.next().await {
        Ok(Some(message)) => message,
        Ok(None) => return Said::Ended,
        Err(error) => return Said::Refused(error),
    };
    match Message::parse(&message) {
        Ok(Message::Notification { method, params }) => match Method::parse(&method) {
            Method::Acknowledged => Said::Acknowledged(filter.acknowledged(params)),
            // The end of a subscription on a pipe; a result follows, or nothing.
            Method::Cancelled => Said::Ended,
            _ => Said::Told { method: method.into(), params: untagged(params.map(Raw::get)).map(Into::into) },
        },
        Ok(Message::Response { id: Some(answered), outcome }) if answered == *id => match outcome {
            Outcome::Result(_) => Said::Ended,
            Outcome::Error(error) => {
                Said::Refused(Error::Refused { status: http::StatusCode::OK, error: error.get().into() })
            }
        },
        Ok(_) => Said::Nothing,
        Err(defect) => Said::Refused(Error::Protocol(defect.to_string())),
    }
}

/// Keeps the stream open, in a job of its own.
struct Keeper {
    upstream: Upstream,
    filter: Filter,
    stream: Option<Stream>,
    inbox: Arc<Inbox>,
    failures: u32,
    /// When a lost stream is opened again.
    reopen: Option<Instant>,
}

impl Keeper {
    async fn run(mut self, mut wanted: mpsc::Receiver<ChangeFilter>) {
        self.settle();
        loop {
            let reopen = self.reopen;
            tokio::select! {
                change = wanted.recv() => match change {
                    // The feed was dropped.
                    None => return,
                    Some(change) => self.replace(change).await,
                },
                said = said_by(&mut self.stream, &self.filter) => self.hear(said),
                () = at(reopen) => {
                    if !self.reopen().await {
                        return;
                    }
                }
            }
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Told { method, params } => {
                self.failures = 0;
                tell(&self.inbox, &self.upstream.route, &method, params.as_deref());
            }
            Said::Acknowledged(_) | Said::Nothing => {}
            Said::Ended => self.lost(true),
            Said::Refused(error) => {
                tracing::debug!(error = %Chain(&error), "a subscription to the server broke off");
                self.lost(false);
            }
        }
    }

    /// The stream is over; another will be opened.
    fn lost(&mut self, ended_by_server: bool) {
        if let Some(mut stream) = self.stream.take() {
            stream.open.ended_by_server = ended_by_server;
            self.retry_later();
        }
    }

    fn retry_later(&mut self) {
        let pause = RETRY.saturating_mul(2_u32.saturating_pow(self.failures.min(16))).min(LONGEST_RETRY);
        self.failures += 1;
        self.reopen = Some(Instant::now() + pause);
    }

    /// Opens a lost stream again; says whether there is still a server to listen to.
    async fn reopen(&mut self) -> bool {
        self.reopen = None;
        match self.upstream.open(&self.filter).await {
            Ok(stream) => {
                self.stream = stream;
                self.settle();
                self.inbox.offer_everything();
                true
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "a subscription to the server could not be opened again");
                let Some(gateway) = self.upstream.gateway.upgrade() else { return false };
                let subject = self.upstream.key.subject.as_ref();
                if gateway.modern_refused(&self.upstream.route, subject, &error).await.is_some() {
                    return false;
                }
                self.retry_later();
                true
            }
        }
    }

    /// Makes the new stream before it breaks the old one.
    async fn replace(&mut self, change: ChangeFilter) {
        let ChangeFilter { filter, honoured } = change;
        let opened = {
            let mut opening = std::pin::pin!(self.upstream.open(&filter));
            loop {
                tokio::select! {
                    opened = &mut opening => break opened,
                    said = said_by(&mut self.stream, &self.filter) => match said {
                        Said::Told { method, params } => tell(&self.inbox, &self.upstream.route, &method, params.as_deref()),
                        Said::Acknowledged(_) | Said::Nothing => {}
                        Said::Ended | Said::Refused(_) => self.stream = None,
                    },
                }
            }
        };
        match opened {
            Ok(stream) => {
                self.drain();
                (self.filter, self.stream, self.reopen, self.failures) = (filter, stream, None, 0);
                self.settle();
                drop(honoured.send(Ok(self.inbox.filter())));
            }
            Err(error) => {
                if self.stream.is_none() && self.reopen.is_none() && !self.filter.is_empty() {
                    self.retry_later();
                }
                drop(honoured.send(Err(error)));
            }
        }
    }

    /// Takes what the old stream has said already.
    fn drain(&mut self) {
        use futures_util::FutureExt as _;
        while let Some(Said::Told { method, params }) = said_by(&mut self.stream, &self.filter).now_or_never() {
            tell(&self.inbox, &self.upstream.route, &method, params.as_deref());
        }
    }

    /// Lets pass what the stream tells of. One that tells of nothing is not kept.
    fn settle(&mut self) {
        self.inbox.admit_only(self.stream.as_ref().map(|stream| stream.honoured.clone()).unwrap_or_default());
        self.stream.take_if(|stream| stream.honoured.is_empty());
    }
}

/// What the stream says next; never, where there is none.
async fn said_by(stream: &mut Option<Stream>, filter: &Filter) -> Said {
    match stream {
        Some(stream) => next(&mut stream.messages, &stream.open.id, filter).await,
        None => std::future::pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
