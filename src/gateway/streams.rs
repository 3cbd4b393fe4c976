//! GET: the session's standalone stream, and streams that are taken up again after their connection broke.

use std::future::pending;
use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::Id;
use crate::task::Owner;
use crate::tenant::Caller;
use crate::upstream::{Error, Listening};

use super::bridge::CALL_EVENT;
use super::call::{Answer, Call};
use super::forward::Registration;
use super::listener::LISTENER_EVENT;
use super::rejection::{Kind, Rejection};
use super::relay::{EventStream, Plan, Relay, UPSTREAM_EVENT};
use super::session::{CancelFlag, OpenStream, Session};
use super::tasks::TASK_EVENT;
use super::{Gateway, POST_LIMIT, Route, over};

/// Events that may wait for a slow reader before they are dropped.
const WAITING_EVENTS: usize = 256;
/// Standalone streams of one session; clients open one.
const MAX_STREAMS: usize = 8;

impl Gateway {
    /// When streams of a caller end, so that another credential is shown: a held call goes on.
    pub(super) fn expiry(&self, caller: &Caller) -> Option<Instant> {
        caller.expires.map(|expires| self.clock.instant(expires))
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// [`Rejection`]: no session, or an event id after which nothing can be resumed.
    pub async fn get(self: &Arc<Self>, call: Call) -> Result<Answer, Rejection> {
        call.note_subject();
        self.rates.check_request(&call.caller.principal.tenant).map_err(over("requests"))?;
        let session = self.session(&call)?;
        let unusable = Kind::Unusable("No stream can be resumed after this Last-Event-ID");
        match call.last_event_id.as_deref() {
            None => Ok(self.standalone(&call, &session, None)),
            Some(id) => {
                // Where the server has no sessions, an event id of its own may be of anybody's stream.
                let is_alone = session.terms.upstream.id.is_some();
                if let Some(id) = id.strip_prefix(LISTENER_EVENT) {
                    let id = is_alone.then(|| id.to_owned());
                    return Ok(self.standalone(&call, &session, id));
                }
                if let Some(id) = id.strip_prefix(TASK_EVENT) {
                    return Ok(self.taken_up(&call, &session, id, unusable).await?);
                }
                if let Some(id) = id.strip_prefix(CALL_EVENT) {
                    return Ok(self.bridged_rest(&call.route, &session, id)?);
                }
                match id.strip_prefix(UPSTREAM_EVENT) {
                    Some(id) if is_alone => Ok(self.resume(&call.route, &session, id).await?),
                    _ => Err(unusable.into()),
                }
            }
        }
    }

    /// A `tasks/result` stream that its client lost. An event id of another's task is like one that was never given out.
    async fn taken_up(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        event_id: &str,
        unusable: Kind,
    ) -> Result<Answer, Kind> {
        let Some((id, request, is_last)) = self.open_event(event_id) else { return Err(unusable) };
        let task = match self.task_of(call, id).await {
            Err(Kind::NoTask(_)) => return Err(unusable),
            task => task?,
        };
        if is_last {
            // An empty stream would be asked for again and again.
            return Err(Kind::Unusable("This stream has been delivered to its end"));
        }
        Ok(self.result_stream(call, session, Owner::clone(&task.owner), id, request))
    }

    /// The client's stream for whatever belongs to no request: fed by the upstream's, and by the session's tasks.
    fn standalone(self: &Arc<Self>, call: &Call, session: &Arc<Session>, last_event_id: Option<String>) -> Answer {
        let route = &call.route;
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let stream = self.deliveries.stream(events);
        {
            let mut live = session.live();
            if live.streams.len() >= MAX_STREAMS {
                // The oldest ends, as if its connection had broken.
                live.streams.remove(0);
            }
            live.streams.push(stream.clone());
        }
        self.listen(route, session, last_event_id);
        let held = session.live().owners();
        if !held.is_empty() {
            let gateway = Arc::clone(self);
            self.jobs.spawn("offer", async move {
                for (task, owner) in held {
                    if let Ok(Some(task)) = gateway.ledger.get(&owner, task).await {
                        gateway.deliveries.offer(&gateway.ledger, &task).await;
                    }
                }
            });
        }
        let guard = StandaloneGuard {
            gateway: Arc::clone(self),
            session: Arc::clone(session),
            number: stream.number,
            _opened: (session.open_stream(self.clock), route.metrics.stream()),
        };
        let (of_session, of_all) = (session.ended.clone(), self.closing.clone());
        let expired = reached(self.expiry(&call.caller));
        let ended = async move {
            tokio::select! {
                () = of_session.cancelled() => {}
                () = of_all.cancelled() => {}
                () = expired => {}
            }
        };
        Answer::Events(
            EventStream::new(receiver, ended, self.keep_alive, stream.waiting, Box::new(guard)).boxed_unsync(),
        )
    }

    /// The rest of an upstream's stream.
    async fn resume(
        self: &Arc<Self>,
        route: &Arc<Route>,
        session: &Arc<Session>,
        last_event_id: &str,
    ) -> Result<Answer, Kind> {
        let key = route.key_of(session);
        let listening = route.upstream.listen(&key, Some(last_event_id));
        let late = |_| Err(Error::Lost("it did not resume a stream in time".into()));
        let listening = match tokio::time::timeout(POST_LIMIT, listening).await.unwrap_or_else(late) {
            Err(Error::SessionGone) => {
                self.end_session(route, session);
                return Err(Kind::NoSession);
            }
            Err(Error::Refused { .. }) => {
                return Err(Kind::Unusable("The server behind the gateway has nothing after this Last-Event-ID"));
            }
            other => other?,
        };
        let Listening::Events(body) = listening else {
            return Err(Kind::Unusable("The server behind the gateway resumes no streams"));
        };
        let (version, upstream) = (session.terms.version, session.terms.upstream.version);
        let plan = Plan {
            id: Id::number(0),
            minted: None,
            limit: route.max_message,
            drop_priming: upstream.has_priming_events() && !version.has_priming_events(),
            split_batches: upstream.has_batches() && !version.has_batches(),
            rewrite: None,
            filters: false,
            keeps_complete: false,
            needs_joining: route.upstream.needs_joining(),
            deadline: Instant::now() + route.tools.otherwise.deadline,
            keep_alive: self.keep_alive,
            cancelled: Arc::new(CancelFlag::default()),
            gateway: Arc::clone(self),
            registration: Registration::Stream(session.open_stream(self.clock), route.metrics.stream()),
            places: None,
            cancels: None,
            is_stateless: false,
        };
        Ok(Answer::Events(Relay::of_resumed(body, plan).boxed_unsync()))
    }
}

/// Sleeps until then; without a moment for ever.
pub(super) async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

/// Takes the stream out of its session when the client is gone, and gives back what it had claimed.
struct StandaloneGuard {
    gateway: Arc<Gateway>,
    session: Arc<Session>,
    number: u64,
    _opened: (OpenStream, crate::metrics::Counted),
}

impl Drop for StandaloneGuard {
    fn drop(&mut self) {
        self.session.live().streams.retain(|stream| stream.number != self.number);
        Gateway::listen_no_more(&self.session);
        let (gateway, number) = (Arc::clone(&self.gateway), self.number);
        self.gateway.jobs.spawn("release", async move {
            gateway.deliveries.release(&gateway.ledger, number).await;
        });
    }
}
