//! The one door to tasks: every change of a record goes through here, is decided by the state machine, written by
//! compare-and-set, and told to the audit log.
//!
//! It hides that others write the same records, and that a store may be away. It knows no upstream and no client: who holds
//! a call, and who waits for one, comes here.

mod holds;
mod patience;
mod reasons;
mod spoilt;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::state::{Ending, Event, Refused, State, Status};
use super::store::{Kept, Large, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch};
use super::{Holder, Outcome, Owner, SessionNumber, Task, TaskId};
use crate::clock::{Clock, Timestamp};
pub use holds::Hold;
use holds::Holds;
pub use patience::patient;
use reasons::{ending_reason, event_reason};
use spoilt::{Spoilt, Told};

/// The longest status message that is kept, in bytes; a longer one is cut.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// How often a store that others may share is looked at for what has expired.
const LOOK: Duration = Duration::from_secs(30);

/// The epoch of a task that was just made.
const FIRST_EPOCH: u64 = 1;

/// Keeps the tasks of this process's callers. A cheap handle.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    /// Who this process is among those that hold calls.
    holder: Holder,
    holds: Holds,
    observer: Observer,
    /// When the earliest known record expires, in milliseconds; the sweeper sleeps until then.
    earliest: AtomicU64,
    earlier: Notify,
    /// The store failed the last call under way that needed it.
    is_failing: AtomicBool,
    spoilt: Spoilt,
}

/// Is told each change of a status, after it was written. Called in line, so it must not block.
pub type Observer = Arc<dyn Fn(&Transition<'_>) + Send + Sync>;

/// A change of a task's status.
#[derive(Debug, Clone, Copy)]
pub struct Transition<'a> {
    /// The record after the change; the last one for a purge.
    pub task: &'a Task,
    /// The status before; `None`: it was just made.
    pub from: Option<Status>,
    /// The status after; `None`: it expired and is gone.
    pub to: Option<Status>,
    /// What happened, in a word that is safe as a label: `created`, `asked`, `answered`, ..., or what [`Finish`] says.
    pub reason: &'static str,
}

/// What is known of a task before it exists.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Whose it will be.
    pub owner: Arc<Owner>,
    /// The tool that is called.
    pub tool: Arc<str>,
    /// The session that makes it.
    pub session: SessionNumber,
    /// The client's own progress token as JSON text.
    pub progress_token: Option<Box<str>>,
    /// How long it is kept, from now.
    pub ttl: Duration,
    /// How often the client is asked to poll.
    pub poll_interval: Duration,
    /// How long from now the held call may take; queue and questions included.
    pub deadline: Duration,
    /// What another holder would need to take the call up; see [`Store::create`].
    pub draft: Option<Arc<str>>,
}

/// How a task ends, written in one step.
#[derive(Debug, Clone)]
pub struct Finish {
    /// How it ended.
    pub ending: Ending,
    /// What `tasks/result` will give.
    pub outcome: Option<Outcome>,
    /// For people; the message of a task that ends without one is removed, since it told of work under way.
    pub message: Option<Box<str>>,
    /// Why, for the audit log and metrics: a word from a fixed list, such as `deadline`.
    pub reason: &'static str,
}

impl Finish {
    /// The upstream returned this result.
    #[must_use]
    pub fn returned(is_error: bool, result: Arc<str>, message: Option<Box<str>>) -> Self {
        let ending = Ending::Returned { is_error };
        Self { ending, outcome: Some(Outcome::Result(result)), message, reason: ending_reason(ending) }
    }

    /// The call failed with this JSON-RPC error, for this reason.
    #[must_use]
    pub fn errored(reason: &'static str, error: Arc<str>, message: Option<Box<str>>) -> Self {
        Self { ending: Ending::Errored, outcome: Some(Outcome::Error(error)), message, reason }
    }

    /// The client cancelled it.
    #[must_use]
    pub fn cancelled(message: Option<Box<str>>) -> Self {
        let ending = Ending::Cancelled;
        Self { ending, outcome: None, message, reason: ending_reason(ending) }
    }
}

/// Why an event was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// There is no such task for this owner.
    #[error("no such task")]
    NotFound,
    /// The state machine refused.
    #[error("the task does not allow it")]
    Refused {
        /// Why.
        #[source]
        refused: Refused,
        /// The task as it is.
        task: Arc<Task>,
    },
    /// Somebody else holds the task's call by now: what an earlier holder still writes is void.
    #[error("another holder has the task")]
    Fenced,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for ApplyError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::NotFound,
            error => Self::Store(error),
        }
    }
}

impl Ledger {
    /// A ledger over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, holder: Holder, clock: Clock, observer: Observer) -> Self {
        let earliest = AtomicU64::new(u64::MAX);
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                holder,
                holds: Holds::default(),
                observer,
                earliest,
                earlier: Notify::new(),
                is_failing: AtomicBool::new(false),
                spoilt: Spoilt::default(),
            }),
        }
    }

    /// Whether calls can be taken up by others, so that they must be told what they need.
    #[must_use]
    pub fn outlives_holders(&self) -> bool {
        self.inner.store.outlives_holders()
    }

    /// Notes that the store failed a call under way, and says whether that is news.
    #[must_use]
    pub fn note_failure(&self) -> bool {
        !self.inner.is_failing.swap(true, Ordering::Relaxed)
    }

    /// Notes that the store served a call under way, and says whether it had failed one.
    #[must_use]
    pub fn note_success(&self) -> bool {
        self.inner.is_failing.load(Ordering::Relaxed) && self.inner.is_failing.swap(false, Ordering::Relaxed)
    }

    /// Everybody who holds an unfinished task, this process left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn other_holders(&self) -> Result<Vec<Holder>, StoreError> {
        let mut holders = self.inner.store.holders().await?;
        holders.retain(|holder| *holder != self.inner.holder);
        Ok(holders)
    }

    /// Who this process is among those that hold calls.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.inner.holder
    }

    /// Takes over at most `at_most` of the unfinished tasks of a holder that is gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]. Some may have been taken nevertheless: [`Ledger::take_strays`] finds them.
    pub async fn take_over(&self, from: &Holder, at_most: usize) -> Result<Vec<(Orphan, Hold)>, StoreError> {
        let taken = self.inner.store.take_over(from, &self.inner.holder, at_most).await?;
        Ok(taken.into_iter().map(|orphan| self.holding(orphan)).collect())
    }

    /// Takes up at most `at_most` of the unfinished tasks that are this process's in the store and that nobody here knows of. Not
    /// while [`Ledger::take_over`] is under way.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn take_strays(&self, at_most: usize) -> Result<Vec<(Orphan, Hold)>, StoreError> {
        let Inner { store, holder, holds, .. } = &*self.inner;
        let taken = store.take_strays(holder, &|id, epoch| holds.knows(id, epoch), at_most).await?;
        Ok(taken.into_iter().map(|orphan| self.holding(orphan)).collect())
    }

    fn holding(&self, orphan: Orphan) -> (Orphan, Hold) {
        let hold = self.inner.holds.hold(&orphan.task.owner, orphan.task.id, orphan.task.epoch);
        (orphan, hold)
    }

    /// The tasks that this process holds and whose calls may have asked something, each with its owner.
    #[must_use]
    pub fn asking(&self) -> Vec<(Arc<Owner>, TaskId)> {
        self.inner.holds.asking()
    }

    /// How often by now there may have come to be something for [`Ledger::take_strays`].
    #[must_use]
    pub fn lost_words(&self) -> u64 {
        self.inner.store.lost_words()
    }

    /// Notes how far the call of a task has come; see [`Store::note_trail`].
    ///
    /// # Errors
    /// As there.
    pub async fn note_trail(&self, task: &Task, step: Step, trail: Arc<str>) -> Result<(), StoreError> {
        self.inner.store.note_trail(&task.owner, task.id, task.epoch, step, trail).await
    }

    /// Makes a task. It can be read when this returns (design: readable before announced). The hold is for whoever looks after
    /// its call.
    ///
    /// # Errors
    /// [`StoreError::Quota`] when the tenant has too much.
    pub async fn create(&self, new: NewTask, limits: &Limits) -> Result<(Arc<Task>, Hold), StoreError> {
        let now = self.inner.clock.now();
        let task = Task {
            id: TaskId::random(),
            owner: new.owner,
            tool: new.tool,
            session: new.session,
            progress_token: new.progress_token,
            created_at: now,
            updated_at: now,
            ttl: new.ttl,
            poll_interval: new.poll_interval,
            deadline: now.plus(new.deadline),
            state: State::Queued,
            status_message: None,
            holder: self.inner.holder.clone(),
            epoch: 0,
            version: 0,
        };
        // Before it is there, so that it is never there without.
        let hold = self.inner.holds.hold(&task.owner, task.id, FIRST_EPOCH);
        let task = self.inner.store.create(task, new.draft, limits).await?;
        self.inner.note_expiry(task.expires_at());
        self.tell(Transition { task: &task, from: None, to: Some(task.state.status()), reason: "created" });
        Ok((task, hold))
    }

    /// The task, unless it is not this owner's, never was, or has expired.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Spoilt`]
    pub async fn get(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.inner.store.read(owner, id).await.inspect_err(|error| self.inner.spoilt.tell(id, error))
    }

    /// What the upstream said in the end.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Spoilt`]
    pub async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        self.inner.store.outcome(owner, id).await.inspect_err(|error| self.inner.spoilt.tell(id, error))
    }

    /// The same to be handed out; see [`Store::kept`].
    ///
    /// # Errors
    /// As there.
    pub async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        let kept = self.inner.store.kept(owner, id).await.inspect_err(|error| self.inner.spoilt.tell(id, error))?;
        Ok(kept.map(|kept| match kept {
            Kept::Large(Large { outline, pieces }) => {
                let pieces = Box::new(Told { pieces, id, ledger: self.clone() });
                Kept::Large(Large { outline, pieces })
            }
            whole @ Kept::Whole(_) => whole,
        }))
    }

    /// Notes that the outcome was handed out; says whether this was the first time.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.inner.store.note_read(owner, id).await
    }

    /// The bytes that are kept for all tenants, for metrics.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.store.bytes()
    }

    /// At most `limit` of the owner's tasks, newest first, beginning after a position.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn list(
        &self,
        owner: &Owner,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<Arc<Task>>, StoreError> {
        self.inner.store.list(owner, after, limit).await
    }

    /// Tells of each later change of the task.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Spoilt`]
    pub async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        self.inner.store.watch(owner, id).await.inspect_err(|error| self.inner.spoilt.tell(id, error))
    }

    /// What a tenant has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        self.inner.store.usage(tenant).await
    }

    /// Waits until the task is as wanted, or has ended, since nothing changes it then; `None` when it is gone. While the store
    /// is away it goes on waiting. Dropping the wait leaves nothing behind.
    ///
    /// # Errors
    /// [`StoreError::Spoilt`]: it would never end.
    pub async fn wait(
        &self,
        owner: &Owner,
        id: TaskId,
        until: impl Fn(&Task) -> bool,
    ) -> Result<Option<Arc<Task>>, StoreError> {
        // Watched before it is read: a change in between wakes the wait below.
        let Some(mut watch) = patient(|| self.watch(owner, id)).await? else { return Ok(None) };
        loop {
            let Some(task) = patient(|| self.get(owner, id)).await? else { return Ok(None) };
            if task.state.is_ended() || until(&task) {
                return Ok(Some(task));
            }
            if !watch.changed().await {
                return patient(|| self.get(owner, id)).await;
            }
        }
    }

    /// Applies an event. The status message changes with [`Event::Note`] and goes with [`Event::End`].
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was changed then.
    pub async fn apply(&self, owner: &Owner, id: TaskId, event: Event) -> Result<Arc<Task>, ApplyError> {
        self.change(owner, id, None, &Change::of_event(event)).await
    }

    /// The same for the holder of the task's call, as it knows the record: nothing is written once another one has it.
    ///
    /// # Errors
    /// As [`Ledger::apply`], and [`ApplyError::Fenced`].
    pub async fn apply_held(&self, held: &Task, event: Event) -> Result<Arc<Task>, ApplyError> {
        self.change(&held.owner, held.id, Some(held.epoch), &Change::of_event(event)).await
    }

    /// Ends the task, with its outcome in the same write.
    ///
    /// # Errors
    /// [`ApplyError`]; nothing was changed then. [`Refused::Ended`] when somebody was faster.
    pub async fn end(&self, owner: &Owner, id: TaskId, finish: Finish) -> Result<Arc<Task>, ApplyError> {
        self.change(owner, id, None, &Change::of_finish(finish)).await
    }

    /// The same for the holder of the task's call, as it knows the record: nothing is written once another one has it.
    ///
    /// # Errors
    /// As [`Ledger::end`], and [`ApplyError::Fenced`].
    pub async fn end_held(&self, held: &Task, finish: Finish) -> Result<Arc<Task>, ApplyError> {
        self.change(&held.owner, held.id, Some(held.epoch), &Change::of_finish(finish)).await
    }

    /// The only compare-and-set loop. Each conflict means that somebody else got ahead, so it ends as they do.
    async fn change(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: Option<u64>,
        change: &Change,
    ) -> Result<Arc<Task>, ApplyError> {
        let mut seen = None;
        loop {
            let Some(task) = self.get(owner, id).await? else { return Err(ApplyError::NotFound) };
            // A new holder makes a new version, so that none can come between this look and the write.
            if epoch.is_some_and(|epoch| epoch != task.epoch) {
                return Err(ApplyError::Fenced);
            }
            // A store that reports a conflict and shows the same version would keep us here for ever.
            if seen.replace(task.version) == Some(task.version) {
                return Err(ApplyError::Store(StoreError::Conflict));
            }
            let from = task.state.status();
            let next = match change.applied(&task, self.inner.clock.now()) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(task),
                Err(refused) => return Err(ApplyError::Refused { refused, task }),
            };
            match self.inner.store.replace(next, change.outcome.clone()).await {
                Ok(task) => {
                    let to = task.state.status();
                    if from != to {
                        self.tell(Transition { task: &task, from: Some(from), to: Some(to), reason: change.reason });
                    }
                    return Ok(task);
                }
                Err(StoreError::Conflict) => tokio::task::yield_now().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes what has expired, and tells of it.
    pub(super) async fn purge(&self, at_most: usize) -> Result<Purged, StoreError> {
        let purged = self.inner.store.purge(self.inner.clock.now(), at_most).await?;
        for task in &purged.tasks {
            self.tell(Transition { task, from: Some(task.state.status()), to: None, reason: "expired" });
        }
        Ok(purged)
    }

    /// Forgets the earliest expiry. From here on each new task announces its own, so that none slips through while a
    /// purge looks for the next.
    pub(super) fn forget_earliest(&self) {
        self.inner.earliest.store(u64::MAX, Ordering::SeqCst);
    }

    /// Notes an expiry that the store knows of, and waits until it has come or an earlier one has been noted.
    pub(super) async fn sleep_until_expiry(&self, next: Option<Timestamp>) {
        let next = next.map_or(u64::MAX, Timestamp::as_millis);
        let mut next = self.inner.earliest.fetch_min(next, Ordering::SeqCst).min(next);
        if self.outlives_holders() {
            // Others may make tasks that nobody here has heard of.
            next = next.min(self.inner.clock.now().plus(LOOK).as_millis());
        }
        let instant = self.inner.clock.instant(Timestamp::from_millis(next));
        tokio::select! {
            () = tokio::time::sleep_until(instant) => {}
            () = self.inner.earlier.notified() => {}
        }
    }

    fn tell(&self, transition: Transition<'_>) {
        let Transition { task, from, to, reason } = transition;
        let owner = &task.owner;
        tracing::info!(
            target: "audit",
            tenant = &*owner.tenant,
            subject = &*owner.subject,
            issuer = &*owner.issuer,
            route = &*owner.route,
            tool = &*task.tool,
            task = %task.id,
            from = from.map_or("none", Status::as_str),
            to = to.map_or("expired", Status::as_str),
            reason,
            "task"
        );
        (self.inner.observer)(&transition);
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("store", &self.inner.store).finish_non_exhaustive()
    }
}

impl Inner {
    /// Wakes the sweeper where it would sleep past this expiry.
    fn note_expiry(&self, at: Timestamp) {
        if self.earliest.fetch_min(at.as_millis(), Ordering::SeqCst) > at.as_millis() {
            self.earlier.notify_one();
        }
    }
}

/// An event and what is written with it.
struct Change {
    event: Event,
    outcome: Option<Outcome>,
    message: Option<Box<str>>,
    reason: &'static str,
}

impl Change {
    fn of_event(event: Event) -> Self {
        let reason = event_reason(&event);
        Self { event, outcome: None, message: None, reason }
    }

    fn of_finish(finish: Finish) -> Self {
        let Finish { ending, outcome, message, reason } = finish;
        Self { event: Event::End(ending), outcome, message, reason }
    }

    /// The record after the change; `None` when it would be the same.
    fn applied(&self, task: &Task, now: Timestamp) -> Result<Option<Task>, Refused> {
        let mut next = task.clone();
        next.state = next.state.apply(self.event.clone(), now)?;
        match &self.event {
            Event::Note(text) => next.status_message = Some(cut(text)),
            Event::End(_) => next.status_message = self.message.as_deref().map(cut),
            Event::Start
            | Event::Ask { .. }
            | Event::Claim { .. }
            | Event::Release { .. }
            | Event::Answer { .. }
            | Event::Settle { .. } => {}
        }
        let message_changed = next.status_message != task.status_message;
        if matches!(self.event, Event::Note(_)) && !message_changed {
            return Ok(None);
        }
        // 2025-11-25 tasks, "Task": `lastUpdatedAt` tells of the status; a question that moves is not news.
        if message_changed || next.state.status() != task.state.status() {
            // Another process, whose clock is ahead, may have written it last.
            next.updated_at = now.max(task.updated_at);
        }
        Ok(Some(next))
    }
}

/// Cuts a message at a character's end.
fn cut(text: &str) -> Box<str> {
    const MARK: &str = "…";
    if text.len() <= MAX_MESSAGE_BYTES {
        return text.into();
    }
    let mut end = MAX_MESSAGE_BYTES - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (kept, _) = text.split_at(end);
    format!("{kept}{MARK}").into()
}

#[cfg(test)]
mod tests;
