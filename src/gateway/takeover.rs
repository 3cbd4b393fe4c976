//! Calls whose holder is gone: each goes on as far as it can, and its task ends in any case.
//!
//! A call that was not sent is sent. One that was is read on where its upstream lets streams be taken up again; else it is
//! run again where the configuration and the tool itself allow it, or has failed. Whatever the earlier holder still writes
//! is void from the moment when the task is taken over.

mod adoption;
mod hint;

use std::sync::Arc;
use std::time::Duration;

use crate::jsonrpc::{self, Id};
use crate::metrics::label::TakenUp;
use crate::task::{Event, Hold, Holder, Orphan, Progress, State, StoreError, Task};
use crate::tenant::Principal;
use crate::upstream::{Error, Listening, Reply};

use super::exchange::{Resumed, Trace};
use super::held::stored::{StoredCall, Trail, Way};
use super::held::{Draft, HeldCall, Record, failed};
use super::policy::{OnLost, TaskPolicy};
use super::rejection::{Chain, Fault};
use super::{Gateway, Route};

use adoption::Adoption;
pub(super) use adoption::Adoptions;

/// Tasks that are taken over in one operation of the store.
const BATCH: usize = 64;
/// How often an upstream is tried that can't be reached; how long to wait in between, times the number of the attempt.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// In which way a holder was lost: what clients are told of a call that can't go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// This process is the next one of a gateway that is alone with its store.
    Restart,
    /// Another replica is gone.
    Replica,
}

impl Lost {
    fn fault(self) -> Fault {
        match self {
            Self::Restart => Fault::OutcomeUnknown,
            Self::Replica => Fault::ReplicaLost,
        }
    }
}

/// A task that was taken over.
struct Orphaned {
    /// `None`: the route is no longer configured.
    route: Option<Arc<Route>>,
    record: Record,
    draft: Option<Arc<str>>,
    trail: Option<Arc<str>>,
    from: Holder,
    lost: Lost,
}

/// A call with what is known of it.
struct Found<'a> {
    gateway: &'a Arc<Gateway>,
    route: &'a Arc<Route>,
    record: &'a Record,
    call: StoredCall<'a>,
    trail: Trail<'a>,
}

/// Why a step was not done.
enum Stopped {
    /// The task has ended, or is somebody else's by now.
    Over,
    Fault(Fault),
}

impl Gateway {
    /// Takes up every call of a holder that is gone, and says how many there were. Each goes on in a job of its own. Of all
    /// processes that do this at the same time each task goes to one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; what was taken up by then goes on, and the rest can be asked for again.
    pub async fn take_up(
        self: &Arc<Self>,
        routes: &[Arc<Route>],
        from: &Holder,
        lost: Lost,
    ) -> Result<usize, StoreError> {
        let mut count = 0;
        // Whoever is about to stop leaves them to others.
        while !self.is_draining() && self.is_still_gone(from).await {
            let orphans = self.ledger.take_over(from, BATCH).await?;
            if orphans.is_empty() {
                break;
            }
            count += orphans.len();
            self.go_on_with(routes, orphans, from, lost);
        }
        Ok(count)
    }

    /// Takes up every call that is this process's as the store has it, and that no job here holds: it was given to it, or its end
    /// was undone, and nobody was told. Says how many there were. Not while [`Gateway::take_up`] is under way.
    ///
    /// # Errors
    /// As there.
    pub async fn take_up_strays(self: &Arc<Self>, routes: &[Arc<Route>], lost: Lost) -> Result<usize, StoreError> {
        let mut count = 0;
        while !self.is_draining() {
            let strays = self.ledger.take_strays(BATCH).await?;
            if strays.is_empty() {
                break;
            }
            count += strays.len();
            self.go_on_with(routes, strays, self.ledger.holder(), lost);
        }
        Ok(count)
    }

    fn go_on_with(self: &Arc<Self>, routes: &[Arc<Route>], orphans: Vec<(Orphan, Hold)>, from: &Holder, lost: Lost) {
        for (Orphan { task, draft, trail }, hold) in orphans {
            let route = routes.iter().find(|route| route.name == task.owner.route).cloned();
            let policy = route.as_ref().map(|route| route.tools.of(&task.tool));
            let input_timeout = policy.map_or(TaskPolicy::default().input_timeout, |policy| policy.input_timeout);
            let record = Record::new(Arc::clone(self), task, hold, input_timeout);
            let orphaned = Orphaned { route, record, draft, trail, from: from.clone(), lost };
            self.jobs.spawn("taken up call", self.calls.track_future(orphaned.go_on()));
        }
    }
}

impl Orphaned {
    fn task(&self) -> &Arc<Task> {
        &self.record.task
    }

    async fn go_on(self) {
        let (gateway, task) = (&self.record.gateway, self.task());
        let call = self.draft.as_deref().and_then(StoredCall::read);
        let may_be_sent = task.state != State::Queued || call.as_ref().is_none_or(|call| call.was_sent);
        gateway.deliveries.release_lost(&gateway.ledger, task, &self.from).await;
        let Some(route) = &self.route else {
            let _is_this: bool = self.fail(Fault::NoRoute { started: may_be_sent }).await;
            return;
        };
        let Some(call) = call else {
            let _is_this: bool = self.fail(self.lost.fault()).await;
            return;
        };
        let trail = Trail::read(self.trail.as_deref());
        let found = Found { gateway, route, record: &self.record, call, trail };
        // The session, if there is one, is needed until the upstream has heard the last word.
        let adoption = found.adopt();
        let end = if task.deadline <= gateway.clock.now() {
            Err(Stopped::Fault(Fault::Deadline { started: may_be_sent }))
        } else if may_be_sent {
            self.go_on_with_sent(&found, adoption.as_ref()).await
        } else {
            self.tell(TakenUp::Sent);
            found.send(adoption.as_ref()).await
        };
        let stop_because = match end {
            Ok(()) => None,
            Err(Stopped::Fault(fault)) => self.fail(fault).await.then(|| fault.reason()),
            Err(Stopped::Over) => found.is_ours().await.then_some("the task was cancelled"),
        };
        if let (Some(adoption), Some(reason), true) = (&adoption, stop_because, may_be_sent) {
            found.cancel(adoption, reason).await;
        }
        if let Some(adoption) = adoption
            && !found.is_ours().await
        {
            adoption.leave();
        }
    }

    /// Goes on with a call that the upstream may have seen.
    async fn go_on_with_sent(&self, found: &Found<'_>, adoption: Option<&Arc<Adoption>>) -> Result<(), Stopped> {
        if let Some(adoption) = adoption
            && let Some(resumed) = found.reach(adoption).await?
        {
            self.tell(TakenUp::Resumed);
            found.resume(adoption, resumed).await;
            return Ok(());
        }
        let Some(principal) = found.may_run_again().await? else { return Err(Stopped::Fault(self.lost.fault())) };
        self.tell(TakenUp::Again);
        found.void_questions().await;
        let stopping = async {
            if let Some(adoption) = adoption {
                // Nobody will hear what comes of the first one.
                found.cancel(adoption, "the call is run again").await;
            }
        };
        let running = found.gateway.call_anew(found.route, principal, &self.record, &found.call, None);
        tokio::join!(stopping, running);
        Ok(())
    }

    /// Ends the task; says whether it was this that ended it.
    async fn fail(&self, fault: Fault) -> bool {
        self.tell(TakenUp::Failed);
        self.record.end(failed(fault)).await
    }

    /// Puts on record what is done.
    fn tell(&self, how: TakenUp) {
        let task = self.task();
        let owner = &task.owner;
        tracing::info!(
            target: "audit",
            tenant = &*owner.tenant,
            subject = &*owner.subject,
            issuer = &*owner.issuer,
            route = &*owner.route,
            tool = &*task.tool,
            task = %task.id,
            from = %self.from,
            to = %task.holder,
            how = how.as_str(),
            "takeover"
        );
        self.record.gateway.metrics.route(&owner.route).task_taken_over(how);
    }
}

impl Found<'_> {
    fn task(&self) -> &Arc<Task> {
        &self.record.task
    }

    /// The conversation on which the call was sent, or would have been; `None` where there was none yet.
    fn adopt(&self) -> Option<Arc<Adoption>> {
        let terms = self.call.terms(self.task(), &self.trail)?;
        Some(self.gateway.adopt(self.route, &self.call, terms))
    }

    fn draft(&self, id: Option<Id>) -> Draft {
        Draft {
            params: self.call.params.to_string(),
            wants_progress: self.call.wants_progress,
            headers: self.call.headers(),
            id,
            refresh: None,
            exclusive: self.call.exclusive,
        }
    }

    /// Sends a call that was not sent.
    async fn send(&self, adoption: Option<&Arc<Adoption>>) -> Result<(), Stopped> {
        let id = self.call.sent_as(&self.trail);
        match adoption {
            Some(adoption) if self.call.way == Way::Own => {
                let (route, session) = (Arc::clone(self.route), Arc::clone(adoption.session()));
                HeldCall::new(self.record.copy(), route, session, self.draft(id)).run().await;
            }
            _ => {
                let Some(principal) = self.principal() else { return Err(Stopped::Fault(Fault::UpstreamUnreachable)) };
                self.gateway.call_anew(self.route, principal, self.record, &self.call, id).await;
            }
        }
        Ok(())
    }

    /// Takes the stream of the call up after its last event; `None` where there is none, or the upstream does not know it.
    async fn reach(&self, adoption: &Adoption) -> Result<Option<Resumed>, Stopped> {
        let upstream = &adoption.session().terms.upstream;
        if !upstream.version.has_sessions() {
            return Ok(self.round().await);
        }
        let (Some(event), Some(id)) = (self.trail.event(), self.call.sent_as(&self.trail)) else { return Ok(None) };
        if upstream.id.is_none() {
            return Ok(None);
        }
        let reaching = async {
            for attempt in 1..=ATTEMPTS {
                let key = self.route.key_of(adoption.session());
                match self.route.upstream.listen(&key, Some(event)).await {
                    Ok(Listening::Events(body)) => return Some(Reply::Events(body)),
                    Ok(Listening::Messages(_) | Listening::NotOffered) => return None,
                    Err(error) => {
                        tracing::warn!(error = %Chain(&error), task = %self.task().id, "a stream can't be taken up");
                        if !matches!(error, Error::Connect(_) | Error::Lost(_)) || attempt == ATTEMPTS {
                            return None;
                        }
                    }
                }
                tokio::time::sleep(PAUSE * attempt).await;
            }
            None
        };
        let Some(reply) = self.unless_stopped(reaching).await? else { return Ok(None) };
        // What was answered and asked meanwhile.
        let asked = match self.gateway.ledger.get(&self.task().owner, self.task().id).await {
            Ok(Some(task)) => task.state.questions().iter().map(|question| question.upstream_id.clone()).collect(),
            Ok(None) => return Err(Stopped::Over),
            Err(_) => self.task().state.questions().iter().map(|question| question.upstream_id.clone()).collect(),
        };
        Ok(Some(Resumed::Stream { reply, trace: Trace { id, event: Some(event.into()), round: None }, asked }))
    }

    /// The round that a stateless upstream waits for, if all of its questions are there.
    async fn round(&self) -> Option<Resumed> {
        let asking = self.trail.round()?;
        let task = self.gateway.ledger.get(&self.task().owner, self.task().id).await.ok()??;
        let questions = task.state.questions();
        asking.waits_for(questions).then(|| Resumed::Round(asking, questions.to_vec()))
    }

    async fn resume(&self, adoption: &Adoption, resumed: Resumed) {
        let (route, session) = (Arc::clone(self.route), Arc::clone(adoption.session()));
        HeldCall::resume(self.record.copy(), route, session, self.draft(None), resumed).await.run().await;
    }

    /// Whether the call may be run again, and for whom: the configuration says so, and the tool itself. A tool that can't be
    /// asked does not.
    async fn may_run_again(&self) -> Result<Option<Principal>, Stopped> {
        let tool = &*self.task().tool;
        if self.route.tools.of(tool).on_lost != OnLost::RetryIdempotent {
            return Ok(None);
        }
        let Some(principal) = self.principal() else { return Ok(None) };
        // Nobody but the caller can show what it takes, and nothing of it is kept.
        if self.route.subjects.is_some() && self.route.subject_of(&principal.digest()).is_none() {
            return Ok(None);
        }
        let has_sessions = match self.call.way {
            Way::Own => self.call.upstream_has_sessions(),
            Way::Pooled => true,
            Way::Stateless => false,
        };
        let asking = async {
            if has_sessions {
                self.gateway.is_harmless_on_session(self.route, &principal, self.call.client(), tool).await
            } else {
                self.gateway.shape(self.route, tool).await.is_harmless
            }
        };
        let is_harmless = self.unless_stopped(asking).await?;
        Ok(is_harmless.then_some(principal))
    }

    fn principal(&self) -> Option<Principal> {
        let owner = &self.task().owner;
        Principal::recalled([&owner.tenant, &owner.issuer, &owner.subject, &owner.client], owner.principal)
    }

    /// Takes back what a call has asked that nobody will hear the answers of.
    async fn void_questions(&self) {
        let task = self.task();
        let Ok(Some(now)) = self.gateway.ledger.get(&task.owner, task.id).await else { return };
        for question in now.state.questions() {
            if !matches!(question.progress, Progress::Answered(_)) {
                self.gateway.deliveries.void(&now, question);
            }
            let settled = Event::Settle { upstream_id: question.upstream_id.clone() };
            if let Err(error) = self.gateway.ledger.apply_held(task, settled).await {
                tracing::debug!(error = %Chain(&error), task = %task.id, "a question was not taken back");
            }
        }
    }

    /// Tells an upstream that may still be at work to stop (2025-11-25 cancellation). Without a session it can't be told.
    async fn cancel(&self, adoption: &Adoption, reason: &str) {
        let session = adoption.session();
        let upstream = &session.terms.upstream;
        let Some(id) = self.call.sent_as(&self.trail) else { return };
        if !upstream.version.has_sessions() || upstream.id.is_none() {
            return;
        }
        let reason = jsonrpc::raw_string(reason);
        let params = format!("{{\"requestId\":{},\"reason\":{reason}}}", id.as_json());
        let body = jsonrpc::notification("notifications/cancelled", Some(&params));
        // Best effort, and logged.
        drop(self.gateway.post_upstream(self.route, session, body).await);
    }

    /// Whether no other process has taken the call up since; not, where nobody can say.
    async fn is_ours(&self) -> bool {
        let task = self.task();
        let now = self.gateway.ledger.get(&task.owner, task.id).await;
        now.is_ok_and(|now| now.is_none_or(|now| now.epoch == task.epoch))
    }

    /// Does something for as long as the task is there, in time, and this process holds its call.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let (gateway, task) = (self.gateway, self.task());
        let deadline = gateway.clock.instant(task.deadline);
        let mut over = std::pin::pin!(gateway.ledger.wait(&task.owner, task.id, |now| now.epoch != task.epoch));
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => Ok(done),
            _ = &mut over => Err(Stopped::Over),
            () = tokio::time::sleep_until(deadline) => Err(Stopped::Fault(Fault::Deadline { started: true })),
            () = gateway.kill.cancelled() => Err(Stopped::Fault(Fault::Shutdown)),
        }
    }
}

#[cfg(test)]
mod tests;
