//! Where a modern client's call becomes a task: at once, or when it has taken long or asked something.
//!
//! The record is there before the handle leaves. Whether the connection has taken the whole of the handle decides between
//! a task that nobody's connection owns and a request that was cancelled (2026-07-28 transports, "Cancellation").

use std::sync::Arc;

use http::HeaderMap;

use crate::gateway::eras::Side;
use crate::gateway::exchange::Happening;
use crate::gateway::held::{Draft, HeldCall, Record, UPSTREAM_ERROR, failed};
use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Chain, Fault, Kind};
use crate::gateway::session::Session;
use crate::gateway::tools::Making;
use crate::metrics::Queued;
use crate::task::dialect::extension;
use crate::task::{ApplyError, Ending, Finish, SessionNumber, State, Task};

use super::client::Client;
use super::job::Job;
use super::talk::{Outstanding, Talk};

/// Why a task is cancelled whose handle nobody got.
const UNDELIVERED: &str = "The client went away before it had the task";

impl Job {
    /// Makes the task that the call becomes.
    async fn make_task(&self, session: SessionNumber) -> Result<Arc<Task>, Kind> {
        let Self { route, caller, policy, .. } = self;
        let principal = &caller.principal;
        let tool = self.tool.as_deref().unwrap_or_default();
        // Progress of a task is told to nobody (tasks extension, "Progress and logging").
        let making = Making { route, principal, tool, session, progress_token: None, requested_ttl: None, policy };
        self.gateway.make_task(making).await
    }

    fn record(&self, task: &Arc<Task>) -> Record {
        let input_timeout = self.policy.input_timeout;
        Record { gateway: Arc::clone(&self.gateway), task: Arc::clone(task), input_timeout }
    }

    /// Hands out a task at once; the upstream is called when the tenant has a place for it.
    pub(super) async fn begin_task(mut self, client: Client) {
        let task = match self.make_task(0).await {
            Ok(task) => task,
            Err(kind) => return client.answer(Err(kind)).await,
        };
        let record = self.record(&task);
        let server = self.route.eras.identity();
        tokio::join!(self.hold(&task), hand_out(&record, client, server.as_deref()));
    }

    /// Calls the upstream for a task that was just made.
    async fn hold(&mut self, task: &Arc<Task>) {
        let queued = (task.state == State::Queued).then(|| self.route.metrics.task_queued());
        let is_modern = matches!(self.side, Side::Modern(_));
        let refresh = is_modern.then(|| self.gateway.mirror_anew(&self.route, &self.params)).flatten();
        let mut draft = Draft {
            params: std::mem::take(&mut self.params),
            wants_progress: true,
            headers: self.headers.clone(),
            exclusive: self.policy.exclusive,
            refresh,
        };
        // A session that was kept may be unknown to its server by now; one that was just opened is not.
        let Some((session, mut lease)) = self.ready_for(task, queued).await else { return };
        let held = HeldCall::new(self.record(task), Arc::clone(&self.route), session, draft, None);
        match held.run_or_return().await {
            Some(again) => draft = again,
            None => return give_back(self, task, lease).await,
        }
        lease.iter_mut().for_each(Lease::spoil);
        drop(lease);
        self.gateway.pool.forget_idle(&self.route);
        let Some((session, lease)) = self.ready_for(task, None).await else { return };
        HeldCall::new(self.record(task), Arc::clone(&self.route), session, draft, None).run().await;
        give_back(self, task, lease).await;
    }

    /// A conversation for a task that has its place; `None` when it has ended first, or does now.
    async fn ready_for(&self, task: &Arc<Task>, queued: Option<Queued>) -> Option<(Arc<Session>, Option<Lease>)> {
        let gateway = Arc::clone(&self.gateway);
        let deadline = gateway.clock.instant(task.deadline);
        let conversation = async {
            let started = gateway.ledger.wait(&task.owner, task.id, |task| task.state != State::Queued).await;
            drop(queued);
            match started {
                Ok(Some(task)) if !task.state.is_ended() => Some(self.conversation(None).await),
                Ok(_) => None,
                Err(error) => Some(Err(error.into())),
            }
        };
        let conversation = tokio::select! {
            conversation = conversation => conversation,
            // Cancelled, or its handle was not delivered.
            _ = gateway.ledger.wait(&task.owner, task.id, |_| false) => None,
            () = tokio::time::sleep_until(deadline) => Some(Err(Fault::Deadline { started: false }.into())),
            () = gateway.kill.cancelled() => Some(Err(Fault::Shutdown.into())),
        };
        match conversation? {
            Ok(ready) => Some(ready),
            Err(kind) => {
                self.fail(task, &kind).await;
                None
            }
        }
    }

    /// Ends a task whose call could not be sent.
    async fn fail(&self, task: &Task, kind: &Kind) {
        let finish = match kind {
            Kind::Fault(fault) => failed(*fault),
            other => {
                let error = other.to_error();
                Finish::errored(UPSTREAM_ERROR, error.to_json().into(), Some(error.message.into()))
            }
        };
        end(self, task, finish).await;
    }
}

impl Talk<'_> {
    /// Makes the call a task and hands it out; the client comes back when it can't be one.
    pub(super) async fn become_task(&mut self, client: Client) -> Option<Client> {
        let task = match self.job.make_task(self.session.number).await {
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
        let record = self.job.record(&task);
        let held = HeldCall::adopt(self.job.record(&task), route, session, exchange, asked.collect());
        let server = self.job.route.eras.identity();
        tokio::join!(held.run(), hand_out(&record, client, server.as_deref()));
        give_back(self.job, &task, self.lease.take()).await;
        None
    }
}

/// Gives the client its task. One that does not get it has cancelled: the job that holds the call sees that in the record.
async fn hand_out(record: &Record, client: Client, server: Option<&str>) {
    let Record { gateway, task, .. } = record;
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
    let ended = job.gateway.ledger.get(&task.owner, task.id).await.ok().flatten();
    let is_over = ended.is_some_and(|task| matches!(task.state, State::Ended(Ending::Returned { .. })));
    if !is_over {
        lease.spoil();
    }
}

async fn end(job: &Job, task: &Task, finish: Finish) {
    match job.gateway.end_task(&task.owner, task.id, finish).await {
        Ok(_) | Err(ApplyError::NotFound | ApplyError::Refused { .. }) => {}
        Err(ApplyError::Store(error)) => {
            tracing::error!(error = %Chain(&error), task = %task.id, "an end could not be stored");
        }
    }
}
