//! One job for each held call: it waits for a place, sends the call, and turns what comes back into events of the task.
//!
//! The job is the only one that talks upstream for its task. Cancels and answers reach it as changes of the record.

mod conversation;
mod ending;
pub(super) mod stored;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use crate::jsonrpc::Id;
use crate::metrics::HeldTask;
use crate::task::store::Watch;
use crate::task::{ApplyError, Event, Finish, Hold, State, Step, StoreError, Task};
use crate::tenant::fair;

use conversation::Conversation;
pub(super) use ending::{UPSTREAM_ERROR, failed, is_error_object};
use ending::{errored, finish_of};
use stored::Trail;

use super::counted::task_status;
use super::exchange::{self, Dispatch, Exchange, Happening, Refresh, Resumed, Trace};
use super::rejection::{Chain, Fault};
use super::session::Session;
use super::{Gateway, Route};

/// How soon a record is read again that could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// How soon an end is written again that could not be written; it doubles each time.
const WRITE_AGAIN: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A call that a task stands for.
pub(super) struct HeldCall {
    record: Record,
    route: Arc<Route>,
    session: Arc<Session>,
    /// What is to be sent, until it is.
    draft: Option<Draft>,
    /// The call itself, from then on.
    exchange: Option<Exchange>,
    /// Counts it out when all else is over.
    counted: Counted,
}

/// The task's record, as the job of its call sees it.
pub(super) struct Record {
    pub(super) gateway: Arc<Gateway>,
    /// As it was made.
    pub(super) task: Arc<Task>,
    /// How long a question may wait for its answer.
    input_timeout: Duration,
    /// Counts it where it stands, once for all handles.
    standing: Arc<HeldTask>,
    /// As long as there is a handle, nobody else in this process takes the call up.
    hold: Arc<Hold>,
}

/// What became of a write.
enum Written {
    Done,
    /// The record has ended, or is gone.
    TooLate,
    /// Somebody else holds the call by now.
    Fenced,
    /// The store failed to the last.
    Lost,
}

/// Why an event was not applied.
enum Unapplied {
    Refused,
    /// The store failed.
    Away,
    /// Somebody else holds the call by now.
    Fenced,
}

/// A call before it is sent.
pub(super) struct Draft {
    /// `params` for the upstream as JSON text, without task vocabulary.
    pub(super) params: String,
    pub(super) wants_progress: bool,
    pub(super) headers: HeaderMap,
    /// The request id upstream, where it was minted before.
    pub(super) id: Option<Id>,
    /// How to come by other headers that repeat arguments; filled in when it is sent.
    pub(super) refresh: Option<Refresh>,
    pub(super) exclusive: bool,
}

impl Draft {
    /// The same call for another session.
    fn copy(&self) -> Self {
        let Self { params, wants_progress, headers, exclusive, id: _, refresh: _ } = self;
        let (params, headers) = (params.clone(), headers.clone());
        Self { params, wants_progress: *wants_progress, headers, exclusive: *exclusive, id: None, refresh: None }
    }
}

/// How a held call came to its end.
enum End {
    /// By what the upstream did.
    Call(exchange::End),
    /// By the gateway.
    Fault(Fault),
    /// The record has ended, or is gone: the client cancelled.
    Over,
    /// Somebody else holds the call by now.
    Fenced,
}

impl HeldCall {
    /// The call of a task that was just made.
    pub(super) fn new(record: Record, route: Arc<Route>, session: Arc<Session>, draft: Draft) -> Self {
        let counted = Counted::new(&record.gateway, &route, &session);
        Self { record, route, session, draft: Some(draft), exchange: None, counted }
    }

    /// The call of a task that was made when it had been sent already, with what it asked by then.
    pub(super) fn adopt(
        record: Record,
        route: Arc<Route>,
        session: Arc<Session>,
        mut exchange: Exchange,
        asked: Vec<Happening>,
    ) -> Self {
        let counted = Counted::new(&record.gateway, &route, &session);
        exchange.becomes(record.task.id, &record.task.owner);
        exchange.put_back(asked);
        Self { record, route, session, draft: None, exchange: Some(exchange), counted }
    }

    /// The call of a task whose holder is gone, where the upstream's answer to it can be read on.
    pub(super) async fn resume(
        record: Record,
        route: Arc<Route>,
        session: Arc<Session>,
        draft: Draft,
        resumed: Resumed,
    ) -> Self {
        let draft = with_mirrored(draft, &record.gateway, &route, &session).await;
        let counted = Counted::new(&record.gateway, &route, &session);
        let mut call = Self { record, route, session, draft: None, exchange: None, counted };
        // The upstream is at work on it already, so that nobody waits for a place. Whoever runs alone does so where nobody
        // else has begun meanwhile.
        let alone = draft.exclusive.then(|| call.session.exclusive().try_write_owned().ok()).flatten();
        let places = Box::new((alone, call.route.metrics.upstream_in_flight()));
        let exchange = Exchange::resume(call.dispatch(draft, places), resumed);
        exchange.becomes(call.record.task.id, &call.record.task.owner);
        call.exchange = Some(exchange);
        call
    }

    /// Runs the call to its end.
    pub(super) async fn run(mut self) {
        drop(self.conclude(false).await);
    }

    /// The same, except that a call is given back whose session the upstream does not know: nothing was run, and on
    /// another session it can be sent once more (2025-11-25 transports, "Session Management" 4).
    pub(super) async fn run_or_return(mut self) -> Option<Draft> {
        self.conclude(true).await
    }

    async fn conclude(&mut self, returns: bool) -> Option<Draft> {
        let spare = self.draft.as_ref().filter(|_| returns).map(Draft::copy);
        let Record { gateway, task, .. } = &self.record;
        let deadline = gateway.clock.instant(task.deadline);
        let kill = gateway.kill.clone();
        let given_up = tokio::select! {
            end = self.conduct() => Ok(end),
            () = tokio::time::sleep_until(deadline) => Err(None),
            () = kill.cancelled() => Err(Some(Fault::Shutdown)),
        };
        let started = self.exchange.is_some();
        let end = match given_up {
            Ok(end) => end,
            Err(fault) => End::Fault(fault.unwrap_or(Fault::Deadline { started })),
        };
        if matches!(end, End::Call(exchange::End::SessionGone)) && spare.is_some() {
            self.exchange = None;
            return spare;
        }
        let stop_because = end.stops_because();
        if let Some(exchange) = &mut self.exchange {
            exchange.give_up();
        }
        // The record first: whoever waits must not wait for an upstream that takes no messages.
        let written = self.record.finish(end).await;
        match (self.exchange.take(), stop_because, written) {
            // The call is, or will be, another holder's: not to be stopped from here.
            (exchange, _, Written::Fenced) => self.leave(exchange),
            (exchange, _, Written::Lost) if self.record.is_shared() => self.leave(exchange),
            (Some(exchange), Some(reason), _) => exchange.cancel(reason).await,
            (exchange, _, _) => drop(exchange),
        }
        None
    }

    /// Leaves the call to whoever holds it now.
    fn leave(&mut self, exchange: Option<Exchange>) {
        if let Some(exchange) = exchange {
            exchange.let_go();
        }
        self.counted.is_left = true;
        tracing::info!(task = %self.record.task.id, "the call of a task is left to another holder");
    }

    /// Waits for the places, sends the call and reads to the end.
    async fn conduct(&mut self) -> End {
        let Some(mut watch) = self.record.watch().await else { return End::Over };
        if let Some(draft) = self.draft.take() {
            if !self.record.has_started(&mut watch).await {
                return End::Over;
            }
            let places = tokio::select! {
                places = take_places(&self.route, &self.session, &self.record.task, draft.exclusive) => places,
                () = self.record.ended(&mut watch) => return End::Over,
            };
            let mut draft = with_mirrored(draft, &self.record.gateway, &self.route, &self.session).await;
            let id = draft.id.get_or_insert_with(|| self.record.gateway.mint()).clone();
            // Else a call could be with an upstream of which nobody knows where that is.
            if self.session.is_unlisted() && self.session.terms.upstream.id.is_some() {
                let trace = Trace { id, event: None, round: None };
                self.record.note(Step::First, &Trail::of(&trace, &self.session.terms.upstream)).await;
            }
            self.exchange = Some(self.send(draft, places));
        } else if self.record.task.state == State::Queued {
            // It is over the tenant's number of places then: nothing can take a running call back into the queue.
            drop(self.record.apply(Event::Start).await);
        }
        match &mut self.exchange {
            Some(exchange) => Conversation::new(&self.record, exchange).run(&mut watch).await,
            None => End::Over,
        }
    }

    fn send(&self, draft: Draft, places: Box<dyn Send>) -> Exchange {
        let Record { gateway, task, .. } = &self.record;
        self.route.metrics.task_queued_for(gateway.clock.now().since(task.created_at));
        let exchange = Exchange::new(self.dispatch(draft, places));
        exchange.becomes(task.id, &task.owner);
        exchange
    }

    fn dispatch(&self, draft: Draft, places: Box<dyn Send>) -> Dispatch {
        // Only clients with a session have a level that outlives a request.
        let level = self.session.bridge.level();
        Dispatch {
            gateway: Arc::clone(&self.record.gateway),
            route: Arc::clone(&self.route),
            session: Arc::clone(&self.session),
            method: "tools/call".into(),
            params: draft.params,
            wants_progress: draft.wants_progress,
            headers: draft.headers,
            log_level: level.map(|level| level.as_str().into()),
            id: draft.id,
            refresh: draft.refresh,
            places,
        }
    }
}

/// The call with what its tool wants to have repeated in headers, where its server looks at them.
async fn with_mirrored(mut draft: Draft, gateway: &Arc<Gateway>, route: &Arc<Route>, session: &Session) -> Draft {
    if !session.terms.upstream.version.has_sessions() {
        draft.refresh = gateway.mirror_arguments(route, &draft.params, &mut draft.headers).await;
    }
    draft
}

async fn take_places(route: &Route, session: &Session, task: &Task, exclusive: bool) -> Box<dyn Send> {
    // The gate first: whoever waits for it keeps nobody else from a place.
    let gate = route.gate(session, exclusive).await;
    let permit = route.places.acquire(&task.owner.tenant, fair::Kind::Held).await;
    Box::new((permit, gate, route.metrics.upstream_in_flight()))
}

impl End {
    /// What the upstream is told, where it may still be at work.
    fn stops_because(&self) -> Option<&'static str> {
        match self {
            Self::Call(exchange::End::Answered(_) | exchange::End::Refused { .. }) => None,
            Self::Call(exchange::End::Denied(_)) => Some(Fault::UpstreamProtocol.reason()),
            Self::Call(exchange::End::SessionGone) => Some(Fault::UpstreamUnreachable.reason()),
            Self::Call(exchange::End::Fault(fault)) | Self::Fault(fault) => Some(fault.reason()),
            Self::Over => Some("the task was cancelled"),
            Self::Fenced => None,
        }
    }
}

/// Keeps the session's count of unfinished tasks. When the last one of an ended session goes, so does the upstream's
/// session (2025-11-25 transports, "Session Management" 5).
struct Counted {
    session: Arc<Session>,
    route: Arc<Route>,
    gateway: Arc<Gateway>,
    /// Somebody else holds the call by now, and needs the session.
    is_left: bool,
}

impl Counted {
    fn new(gateway: &Arc<Gateway>, route: &Arc<Route>, session: &Arc<Session>) -> Self {
        session.live().unfinished += 1;
        Self { session: Arc::clone(session), route: Arc::clone(route), gateway: Arc::clone(gateway), is_left: false }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let left = {
            let mut live = self.session.live();
            live.unfinished -= 1;
            live.unfinished
        };
        self.session.touch(self.gateway.clock.now());
        Gateway::listen_no_more(&self.session);
        if left == 0 && !self.is_left && self.session.ended.is_cancelled() {
            self.gateway.close_upstream(&self.route, &self.session);
        }
    }
}

impl Record {
    /// The record of a task whose call this process holds from now on.
    pub(super) fn new(gateway: Arc<Gateway>, task: Arc<Task>, hold: Hold, input_timeout: Duration) -> Self {
        let standing = Arc::new(gateway.metrics.route(&task.owner.route).task_held(task_status(&task)));
        Self { gateway, task, input_timeout, standing, hold: Arc::new(hold) }
    }

    /// The record as the store has it. One that can't be read any more can't be written either, and counts as gone.
    async fn read(&self) -> Result<Option<Arc<Task>>, StoreError> {
        match self.gateway.ledger.get(&self.task.owner, self.task.id).await {
            Err(StoreError::Spoilt(_)) => Ok(None),
            read => read,
        }
    }

    /// The record as it is now.
    async fn current(&self) -> Result<Option<Arc<Task>>, ()> {
        let now = self.read().await.map_err(|error| self.tell_failure(&error))?;
        self.stands(now.as_deref());
        Ok(now)
    }

    /// Tells of changes of the record; `None` when that is gone. A store that is away when a call begins costs no call: it
    /// is asked until it is back.
    async fn watch(&self) -> Option<Watch> {
        loop {
            match self.gateway.ledger.watch(&self.task.owner, self.task.id).await {
                Ok(watch) => return watch,
                Err(StoreError::Spoilt(_)) => return None,
                Err(error) => self.tell_failure(&error),
            }
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    /// Every call that is held meets a store that is away, again and again: it is told once.
    fn tell_failure(&self, error: &StoreError) {
        let task = self.task.id;
        if self.gateway.ledger.note_failure() {
            tracing::error!(error = %Chain(error), %task, "the store fails calls under way: they go on, and their ends wait for it");
        } else {
            tracing::debug!(error = %Chain(error), %task, "the store failed a call under way");
        }
    }

    fn tell_success(&self) {
        if self.gateway.ledger.note_success() {
            tracing::info!("the store serves calls under way again");
        }
    }

    /// Counts the task where it stands now. The metrics tell of it as the job of its call knows it, whoever changes it.
    pub(super) fn stands(&self, now: Option<&Task>) {
        let held = now.filter(|now| !now.state.is_ended() && !self.is_others(now));
        self.standing.stands(held.map(task_status));
    }

    /// Applies an event of the call's.
    async fn apply(&self, event: Event) -> Result<Arc<Task>, Unapplied> {
        let Self { gateway, task, .. } = self;
        let applied = gateway.ledger.apply_held(task, event).await;
        applied.inspect(|now| self.stands(Some(now))).map_err(|error| {
            tracing::debug!(error = %Chain(&error), task = %task.id, "an event was not applied");
            match error {
                ApplyError::Fenced => Unapplied::Fenced,
                ApplyError::Store(StoreError::Spoilt(_)) | ApplyError::NotFound | ApplyError::Refused { .. } => {
                    Unapplied::Refused
                }
                ApplyError::Store(_) => Unapplied::Away,
            }
        })
    }

    /// Whether another process may take the call up.
    fn is_shared(&self) -> bool {
        self.gateway.ledger.outlives_holders()
    }

    /// Notes how far the call has come, for whoever takes it up. One that can't be noted is noted a little later.
    async fn note(&self, step: Step, trail: &Trail<'_>) {
        if !self.is_shared() {
            return;
        }
        if let Err(error) = self.gateway.ledger.note_trail(&self.task, step, trail.to_text()).await {
            tracing::debug!(error = %Chain(&error), task = %self.task.id, "how far a call has come was not noted");
        }
    }

    /// Whether this is the record of somebody else's call by now.
    fn is_others(&self, task: &Task) -> bool {
        task.epoch != self.task.epoch
    }

    /// Waits for the tenant's place; `false` when the task ended first, or is somebody else's.
    async fn has_started(&self, watch: &mut Watch) -> bool {
        loop {
            let mut failed = false;
            let now = self.read().await;
            if let Ok(now) = &now {
                self.stands(now.as_deref());
            }
            match now {
                Ok(Some(task)) if self.is_others(&task) => return false,
                Ok(Some(task)) => match task.state {
                    State::Queued => {}
                    State::Held(_) => return true,
                    State::Ended(_) => return false,
                },
                Ok(None) => return false,
                Err(error) => {
                    failed = true;
                    self.tell_failure(&error);
                }
            }
            tokio::select! {
                is_changed = watch.changed() => if !is_changed {
                    return false;
                },
                () = tokio::time::sleep(READ_AGAIN), if failed => {}
            }
        }
    }

    /// Resolves when the record has ended, is gone or is somebody else's.
    async fn ended(&self, watch: &mut Watch) {
        while watch.changed().await {
            let task = self.read().await;
            if task.is_ok_and(|task| task.is_none_or(|task| task.state.is_ended() || self.is_others(&task))) {
                return;
            }
        }
    }

    /// Writes the end into the record, unless somebody was faster.
    async fn finish(&self, end: End) -> Written {
        let finish = match end {
            End::Over => {
                self.stands(None);
                return Written::TooLate;
            }
            End::Fenced => {
                self.stands(None);
                return Written::Fenced;
            }
            End::Call(exchange::End::Answered(message)) => finish_of(&message),
            End::Call(exchange::End::Refused { error, .. }) => errored(&error),
            // Who waits for a task hears of it as of any other failure.
            End::Call(exchange::End::Denied(_)) => failed(Fault::UpstreamProtocol),
            End::Call(exchange::End::SessionGone) => failed(Fault::UpstreamUnreachable),
            End::Call(exchange::End::Fault(fault)) | End::Fault(fault) => failed(fault),
        };
        self.write(finish).await
    }

    /// Ends the task. A store that is away for a while costs no outcome: where others can read the record it is written when
    /// the store is back.
    /// Says whether it was this that ended it.
    pub(super) async fn end(&self, finish: Finish) -> bool {
        matches!(self.write(finish).await, Written::Done)
    }

    /// Another handle of it.
    pub(super) fn copy(&self) -> Self {
        let Self { gateway, task, input_timeout, standing, hold } = self;
        let (gateway, task, standing) = (Arc::clone(gateway), Arc::clone(task), Arc::clone(standing));
        Self { gateway, task, input_timeout: *input_timeout, standing, hold: Arc::clone(hold) }
    }

    async fn write(&self, finish: Finish) -> Written {
        let written = self.try_to_write(finish).await;
        self.stands(None);
        written
    }

    async fn try_to_write(&self, finish: Finish) -> Written {
        let mut pause = WRITE_AGAIN;
        loop {
            let error = match self.gateway.end_held(&self.task, finish.clone()).await {
                Ok(_) => {
                    self.tell_success();
                    return Written::Done;
                }
                Err(ApplyError::NotFound | ApplyError::Refused { .. } | ApplyError::Store(StoreError::Spoilt(_))) => {
                    return Written::TooLate;
                }
                Err(ApplyError::Fenced) => return Written::Fenced,
                Err(ApplyError::Store(error)) => error,
            };
            self.tell_failure(&error);
            if !self.is_shared() {
                return Written::Lost;
            }
            let again = self.gateway.jobs.stopping().run_until_cancelled(tokio::time::sleep(pause)).await;
            if again.is_none() {
                return Written::Lost;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
