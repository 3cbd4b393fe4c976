//! One job for each held call: it waits for a place, sends the call, and turns what comes back into events of the task.
//!
//! The job is the only one that talks upstream for its task. Cancels and answers reach it as changes of the record.

mod conversation;
mod ending;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc;

use crate::jsonrpc::{self, Id};
use crate::metrics::Queued;
use crate::metrics::label::UpstreamOutcome;
use crate::task::store::Watch;
use crate::task::{ApplyError, Event, Finish, State, Task};
use crate::tenant::fair;
use crate::upstream::{Error, Kind as MessageKind, Outgoing, Reply};

use conversation::Conversation;
pub(super) use ending::{UPSTREAM_ERROR, is_error_object};
use ending::{failed, finish_of, message_of_error};

use super::rejection::{Chain, Fault};
use super::session::{Held, Session};
use super::{Gateway, Route, upstream_outcome};

/// Messages for a call that came elsewhere than on its own stream and wait to be looked at.
const SIDE_MESSAGES: usize = 32;

/// A call that a task stands for, before it is sent.
pub(super) struct HeldCall {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    pub(super) session: Arc<Session>,
    pub(super) task: Arc<Task>,
    /// `params` for the upstream as JSON text, without task vocabulary and with the minted progress token.
    pub(super) params: String,
    /// The request id upstream.
    pub(super) id: Id,
    /// Whether a progress token was sent.
    pub(super) wants_progress: bool,
    pub(super) headers: HeaderMap,
    pub(super) exclusive: bool,
    pub(super) input_timeout: Duration,
    /// Until it has the tenant's place.
    pub(super) queued: Option<Queued>,
}

/// How a call came to its end.
enum End {
    /// The upstream answered.
    Answered(Bytes),
    /// The upstream refused with a JSON-RPC error.
    Refused(Box<str>),
    /// It failed.
    Fault(Fault),
    /// The record has ended, or is gone: the client cancelled.
    Over,
}

type Sending = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

impl HeldCall {
    /// Runs the call to its end.
    pub(super) async fn run(mut self) {
        let registered = Registered {
            session: Arc::clone(&self.session),
            route: Arc::clone(&self.route),
            gateway: Arc::clone(&self.gateway),
        };
        let deadline = self.gateway.clock.instant(self.task.deadline);
        let Ok(Some(watch)) = self.gateway.ledger.watch(&self.task.owner, self.task.id).await else {
            self.finish(End::Fault(Fault::Store)).await;
            return;
        };
        let kill = self.gateway.kill.clone();
        let given_up = tokio::select! {
            end = self.conduct(watch) => Ok(end),
            () = tokio::time::sleep_until(deadline) => Err(None),
            () = kill.cancelled() => Err(Some(Fault::Shutdown)),
        };
        let started = self.is_dispatched();
        let end = match given_up {
            Ok(end) => end,
            Err(fault) => End::Fault(fault.unwrap_or(Fault::Deadline { started })),
        };
        let stop_because = match &end {
            End::Answered(_) | End::Refused(_) => None,
            End::Fault(fault) => Some(fault.reason()),
            End::Over => Some("the task was cancelled"),
        };
        // The record first: whoever waits must not wait for an upstream that takes no messages.
        self.finish(end).await;
        if let Some(reason) = stop_because.filter(|_| started) {
            self.cancel_upstream(reason).await;
        }
        drop(registered);
    }

    fn is_dispatched(&self) -> bool {
        self.session.live().held.contains_key(&self.task.id)
    }

    /// Closing the connection would leave the work running: only the notification stops it.
    async fn cancel_upstream(&self, reason: &str) {
        let params = format!("{{\"requestId\":{},\"reason\":{}}}", self.id.as_json(), jsonrpc::raw_string(reason));
        let body = jsonrpc::notification("notifications/cancelled", Some(&params));
        // Best effort, and logged.
        drop(self.gateway.post_upstream(&self.route, &self.session, body).await);
    }

    /// Waits for the places, sends the call and reads to the end.
    async fn conduct(&mut self, mut watch: Watch) -> End {
        let has_started = self.has_started(&mut watch).await;
        self.queued = None;
        if !has_started {
            return End::Over;
        }
        let places = tokio::select! {
            places = self.take_places() => places,
            () = self.ended(&mut watch) => return End::Over,
        };
        self.route.metrics.task_queued_for(self.gateway.clock.now().since(self.task.created_at));
        let (side, side_messages) = mpsc::channel(SIDE_MESSAGES);
        self.session
            .live()
            .held
            .insert(self.task.id, Held { owner: Arc::clone(&self.task.owner), token: self.id.as_json().into(), side });
        self.gateway.listen(&self.route, &self.session, None);
        let sending = self.send();
        let end = Conversation::new(self, sending, side_messages).run(&mut watch).await;
        drop(places);
        end
    }

    /// Waits for the tenant's place; `false` when the task ended first.
    async fn has_started(&self, watch: &mut Watch) -> bool {
        loop {
            match self.gateway.ledger.get(&self.task.owner, self.task.id).await {
                Ok(Some(task)) => match task.state {
                    State::Queued => {}
                    State::Held(_) => return true,
                    State::Ended(_) => return false,
                },
                Ok(None) => return false,
                Err(error) => tracing::warn!(error = %Chain(&error), "a queued task can't be read"),
            }
            if !watch.changed().await {
                return false;
            }
        }
    }

    /// Resolves when the record has ended or is gone.
    async fn ended(&self, watch: &mut Watch) {
        while watch.changed().await {
            let task = self.gateway.ledger.get(&self.task.owner, self.task.id).await;
            if task.is_ok_and(|task| task.is_none_or(|task| task.state.is_ended())) {
                return;
            }
        }
    }

    async fn take_places(&self) -> Box<dyn Send> {
        // The gate first: whoever waits for it keeps nobody else from a place.
        let gate = self.route.gate(&self.session, self.exclusive).await;
        let permit = self.route.places.acquire(&self.task.owner.tenant, fair::Kind::Held).await;
        Box::new((permit, gate, self.route.metrics.upstream_in_flight()))
    }

    fn send(&mut self) -> Sending {
        let body = jsonrpc::request(&self.id, "tools/call", Some(&std::mem::take(&mut self.params)));
        let progress_token = self.wants_progress.then(|| self.id.as_json().into());
        let kind = MessageKind::Request { id: self.id.clone(), progress_token };
        let message = Outgoing { kind, body, headers: std::mem::take(&mut self.headers) };
        let (route, session) = (Arc::clone(&self.route), self.session.terms.upstream.clone());
        Box::pin(async move { route.upstream.send(&session, message).await })
    }

    /// Writes the end into the record, unless somebody was faster.
    async fn finish(&self, end: End) {
        let counted = match &end {
            End::Answered(_) => UpstreamOutcome::Answered,
            End::Refused(_) => UpstreamOutcome::Refused,
            End::Fault(fault) => upstream_outcome(*fault),
            End::Over => UpstreamOutcome::Abandoned,
        };
        if self.is_dispatched() {
            self.route.metrics.upstream_request(counted);
        }
        let finish = match end {
            End::Answered(message) => finish_of(&message),
            End::Refused(error) => Finish::errored(UPSTREAM_ERROR, (*error).into(), message_of_error(&error)),
            End::Fault(fault) => failed(fault),
            End::Over => return,
        };
        match self.gateway.end_task(&self.task.owner, self.task.id, finish).await {
            Ok(_) | Err(ApplyError::NotFound | ApplyError::Refused { .. }) => {}
            Err(ApplyError::Store(error)) => {
                tracing::error!(error = %Chain(&error), task = %self.task.id, "an end could not be stored");
            }
        }
    }
}

/// Keeps the session's count of unfinished tasks. When the last one of an ended session goes, so does the upstream's
/// session (2025-11-25 transports, "Session Management" 5).
struct Registered {
    session: Arc<Session>,
    route: Arc<Route>,
    gateway: Arc<Gateway>,
}

impl HeldCall {
    /// Counts the task into its session; [`HeldCall::run`] counts it out.
    pub(super) fn register(&self) {
        self.session.live().unfinished += 1;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let left = {
            let mut live = self.session.live();
            live.unfinished -= 1;
            live.unfinished
        };
        self.session.touch(self.gateway.clock.now());
        Gateway::listen_no_more(&self.session);
        if left == 0 && self.session.ended.is_cancelled() {
            self.gateway.close_upstream(&self.route, &self.session);
        }
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.session.live().held.remove(&self.task.id);
    }
}

impl HeldCall {
    /// The record as it is now.
    async fn current(&self) -> Result<Option<Arc<Task>>, ()> {
        let Self { gateway, task, .. } = self;
        gateway.ledger.get(&task.owner, task.id).await.map_err(|error| {
            tracing::warn!(error = %Chain(&error), task = %task.id, "a running task can't be read");
        })
    }

    /// Applies an event of the call's; `None` when it was refused.
    async fn apply(&self, event: Event) -> Option<Arc<Task>> {
        let Self { gateway, task, .. } = self;
        match gateway.ledger.apply(&task.owner, task.id, event).await {
            Ok(task) => Some(task),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), task = %task.id, "an event was not applied");
                None
            }
        }
    }

    /// Whether a question is under way already.
    async fn is_asked(&self, id: &Id) -> bool {
        match self.current().await {
            Ok(Some(task)) => {
                matches!(&task.state, State::Held(asked) if asked.questions.iter().any(|q| q.upstream_id == *id))
            }
            Ok(None) | Err(()) => true,
        }
    }
}
