//! Where a modern client's call becomes a task: at once, or when it has taken long or asked something.
//!
//! The record is there before the handle leaves. Whether the connection has taken the whole of the handle decides between
//! a task that nobody's connection owns and a request that was cancelled (2026-07-28 transports, "Cancellation").

use std::sync::Arc;

use http::HeaderMap;

use crate::gateway::Gateway;
use crate::gateway::eras::Side;
use crate::gateway::exchange::Happening;
use crate::gateway::held::stored::{Sent, StoredCall, Way};
use crate::gateway::held::{Draft, HeldCall, Record, UPSTREAM_ERROR, failed};
use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::Session;
use crate::gateway::tools::Making;
use crate::jsonrpc::Id;
use crate::task::dialect::extension;
use crate::task::{Ending, Finish, Hold, SessionNumber, State, Task};

use super::client::Client;
use super::job::Job;
use super::talk::{Outstanding, Talk};

/// Why a task is cancelled whose handle nobody got.
const UNDELIVERED: &str = "The client went away before it had the task";

impl Job {
    /// Makes the task that the call becomes.
    async fn make_task(&self, session: SessionNumber, stored: Option<Arc<str>>) -> Result<(Arc<Task>, Hold), Kind> {
        let Self { route, caller, policy, .. } = self;
        let principal = &caller.principal;
        let tool = self.tool.as_deref().unwrap_or_default();
        let (progress_token, requested_ttl) = (None, None);
        // Progress of a task is told to nobody (tasks extension, "Progress and logging").
        let making = Making { route, principal, tool, session, progress_token, requested_ttl, policy, stored };
        self.gateway.make_task(making).await
    }

    /// What the next holder of the call would need, where there may be one. `sent_on`: the conversation on which it is under
    /// way already.
    fn stored(&self, id: &Id, sent_on: Option<&Session>) -> Option<Arc<str>> {
        if !self.gateway.ledger.outlives_holders() {
            return None;
        }
        let (params, headers, exclusive) = (&self.params, &self.headers, self.policy.exclusive);
        let mut stored = StoredCall::of(Sent { params, headers, wants_progress: true, exclusive, id });
        let (capabilities, info) = &self.claims;
        stored.capabilities = capabilities.as_ref().into();
        stored.client_info = info.as_ref().into();
        stored.log_level = self.log_level.as_deref().map(Into::into);
        stored.was_sent = sent_on.is_some();
        let way = if self.side == Side::Legacy { Way::Pooled } else { Way::Stateless };
        Some(match sent_on {
            Some(session) => stored.on_terms(way, &session.terms).to_text(),
            None => stored.on_any(way, self.profile).to_text(),
        })
    }

    /// The record of a task that was just made.
    fn record(&self, task: &Arc<Task>, hold: Hold) -> Record {
        Record::new(Arc::clone(&self.gateway), Arc::clone(task), hold, self.policy.input_timeout)
    }

    /// Hands out a task at once; the upstream is called when the tenant has a place for it.
    pub(super) async fn begin_task(mut self, client: Client) {
        let id = self.gateway.mint();
        self.wants_progress = true;
        let (task, hold) = match self.make_task(0, self.stored(&id, None)).await {
            Ok(task) => task,
            Err(kind) => return client.answer(Err(kind)).await,
        };
        let record = self.record(&task, hold);
        let (gateway, server) = (Arc::clone(&self.gateway), self.route.eras.identity());
        tokio::join!(self.hold(&record, Some(id)), hand_out(&gateway, &task, client, server.as_deref()));
    }

    /// Calls the upstream for a task that has not called it, under this request id.
    pub(super) async fn hold(mut self, record: &Record, id: Option<Id>) {
        let is_modern = matches!(self.side, Side::Modern(_));
        let refresh = is_modern.then(|| self.gateway.mirror_anew(&self.route, &self.params)).flatten();
        let mut draft = Draft {
            params: std::mem::take(&mut self.params),
            wants_progress: self.wants_progress,
            headers: self.headers.clone(),
            exclusive: self.policy.exclusive,
            id,
            refresh,
        };
        // A session that was kept may be unknown to its server by now; one that was just opened is not.
        let Some((session, mut lease)) = self.ready_for(record).await else { return };
        let held = HeldCall::new(record.copy(), Arc::clone(&self.route), session, draft);
        match held.run_or_return().await {
            Some(again) => draft = again,
            None => return give_back(&self, &record.task, lease).await,
        }
        lease.iter_mut().for_each(Lease::spoil);
        drop(lease);
        self.gateway.pool.forget_idle(&self.route);
        let Some((session, lease)) = self.ready_for(record).await else { return };
        HeldCall::new(record.copy(), Arc::clone(&self.route), session, draft).run().await;
        give_back(&self, &record.task, lease).await;
    }

    /// A conversation for a task that has its place; `None` when it has ended first, or does now.
    async fn ready_for(&self, record: &Record) -> Option<(Arc<Session>, Option<Lease>)> {
        let task = &record.task;
        let gateway = Arc::clone(&self.gateway);
        let deadline = gateway.clock.instant(task.deadline);
        let is_others = |now: &Task| now.epoch != task.epoch;
        let conversation = async {
            let is_due = |now: &Task| now.state != State::Queued || is_others(now);
            // A task that can't be read any more can't be ended either, and counts as gone.
            let started = gateway.ledger.wait(&task.owner, task.id, is_due).await.ok().flatten();
            record.stands(started.as_deref());
            let is_due = started.is_some_and(|task| !task.state.is_ended() && !is_others(&task));
            if is_due { Some(self.conversation(None).await) } else { None }
        };
        let conversation = tokio::select! {
            conversation = conversation => conversation,
            // Cancelled, or its handle was not delivered; or another process has taken it up.
            _ = gateway.ledger.wait(&task.owner, task.id, is_others) => None,
            () = tokio::time::sleep_until(deadline) => Some(Err(Fault::Deadline { started: false }.into())),
            () = gateway.kill.cancelled() => Some(Err(Fault::Shutdown.into())),
        };
        match conversation? {
            Ok(ready) => Some(ready),
            Err(kind) => {
                fail(record, &kind).await;
                None
            }
        }
    }
}

impl Talk<'_> {
    /// Makes the call a task and hands it out; the client comes back when it can't be one.
    pub(super) async fn become_task(&mut self, client: Client) -> Option<Client> {
        let stored = self.exchange.as_ref().and_then(|exchange| self.job.stored(exchange.id(), Some(&self.session)));
        let (task, hold) = match self.job.make_task(self.session.number, stored).await {
            Ok(task) => task,
            Err(kind) => {
                // It has begun, so it goes on: either answer is one that the client takes.
                tracing::debug!(?kind, "a call can't become a task and is answered plainly");
                return Some(client);
            }
        };
        let mut exchange = self.exchange.take()?;
        exchange.pass_rounds(false);
        let asked = std::mem::take(&mut self.asked)
            .into_iter()
            .map(|Outstanding { id, method, params, .. }| Happening::Asked { id, method, params });
        // From here on the exchange alone sends the call.
        (self.job.params, self.job.headers) = (String::new(), HeaderMap::new());
        let (route, session) = (Arc::clone(&self.job.route), Arc::clone(&self.session));
        let held = HeldCall::adopt(self.job.record(&task, hold), route, session, exchange, asked.collect());
        let server = self.job.route.eras.identity();
        tokio::join!(held.run(), hand_out(&self.job.gateway, &task, client, server.as_deref()));
        give_back(self.job, &task, self.lease.take()).await;
        None
    }
}

/// Ends a task whose call could not be sent.
async fn fail(record: &Record, kind: &Kind) {
    let finish = match kind {
        Kind::Fault(fault) => failed(*fault),
        other => {
            let error = other.to_error();
            Finish::errored(UPSTREAM_ERROR, error.to_json().into(), Some(error.message.into()))
        }
    };
    // An end that came first stands.
    let _is_this: bool = record.end(finish).await;
}

/// Gives the client its task. One that does not get it has cancelled: the job that holds the call sees that in the record.
async fn hand_out(gateway: &Gateway, task: &Task, client: Client, server: Option<&str>) {
    let handle = extension::create_result(task, server);
    let is_taken = tokio::select! {
        is_taken = client.deliver(&handle) => is_taken,
        () = gateway.kill.cancelled() => return,
    };
    if !is_taken {
        let cancelled = Finish::cancelled(Some(UNDELIVERED.into()));
        // An end that came first stands.
        drop(gateway.end_task(&task.owner, task.id, cancelled).await);
    }
}

/// Lets go of the session. One on which the upstream may still be busy goes to nobody else.
async fn give_back(job: &Job, task: &Task, lease: Option<Lease>) {
    let Some(mut lease) = lease else { return };
    let ledger = &job.gateway.ledger;
    let Ok(ended) = ledger.get(&task.owner, task.id).await else {
        // Whose call it is by now nobody can say.
        if ledger.outlives_holders() {
            lease.leave();
        } else {
            lease.spoil();
        }
        return;
    };
    let is_others = ended.as_ref().is_some_and(|now| now.epoch != task.epoch);
    let is_over = !is_others && ended.is_some_and(|task| matches!(task.state, State::Ended(Ending::Returned { .. })));
    if !is_over {
        lease.spoil();
    }
    if is_others {
        lease.leave();
    }
}
