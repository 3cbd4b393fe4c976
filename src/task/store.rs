//! Where tasks are kept: one trait, a file for each kind of store.
//!
//! A store keeps records and the counters of each tenant, and changes both in one atomic step. It knows when a record
//! may be seen and who is next for a place, but not which change of a task is right: that is the state machine's.

#[cfg(test)]
pub(crate) mod contract;
mod counting;
pub mod creates;
pub mod disk;
#[cfg(test)]
pub(crate) mod faulty;
mod kept;
pub mod memory;
pub mod metered;
pub mod redis;
mod watching;
pub mod wrapper;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Holder, Outcome, Owner, Task, TaskId};
use crate::clock::Timestamp;
use crate::hub::HubError;

pub use creates::CreateRate;
pub use kept::{Kept, Large, Pieces};
pub use watching::Watch;

/// What one tenant may have in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tasks with a place at the same time; one more waits in the queue.
    pub running_tasks: usize,
    /// Tasks that wait for a place.
    pub queued_tasks: usize,
    /// Tasks in any state, until they expire.
    pub kept_tasks: usize,
    /// Bytes of results, and of questions that are open. It stops new tasks, never the result of one that runs.
    pub kept_bytes: u64,
    /// How often it may create one; `None`: no bound.
    pub creates: Option<CreateRate>,
}

/// What one tenant has in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tasks with a place.
    pub running: usize,
    /// Tasks that wait for one.
    pub queued: usize,
    /// All tasks, ended ones too.
    pub kept: usize,
    /// Bytes of results, and of questions that are open.
    pub kept_bytes: u64,
}

/// The limit that a new task would pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tenant's limit of {limit} {reason} is reached")]
pub struct Quota {
    /// Which limit.
    pub reason: QuotaReason,
    /// Its value.
    pub limit: u64,
    /// How long from now until the first of the tenant's tasks expires; `None` where there is none. Only that makes room below
    /// `kept_tasks`, and little else below `kept_bytes`. For `creates`: how long until one more is admitted.
    pub until_expiry: Option<Duration>,
}

/// Names a limit towards callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaReason {
    /// `running_tasks`: reached, and the tenant has no queue.
    RunningTasks,
    /// `queued_tasks`
    QueuedTasks,
    /// `kept_tasks`
    KeptTasks,
    /// `kept_bytes`
    KeptBytes,
    /// `creates`: a rate, with its burst as the limit.
    Creates,
}

impl QuotaReason {
    /// The limit's name in the configuration and in errors.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunningTasks => "running_tasks",
            Self::QueuedTasks => "queued_tasks",
            Self::KeptTasks => "kept_tasks",
            Self::KeptBytes => "kept_bytes",
            Self::Creates => "creates",
        }
    }
}

impl fmt::Display for QuotaReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such task for this owner: never issued, somebody else's, or expired.
    #[error("no such task")]
    NotFound,
    /// The record was changed since it was read, or has ended.
    #[error("the task was changed by somebody else")]
    Conflict,
    /// The tenant has too much already.
    #[error(transparent)]
    Quota(#[from] Quota),
    /// The store can't be used now: it may be worth asking again.
    #[error("the task store failed")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What it has of this task is not what was written, and never will be again. Of other tasks it says nothing.
    #[error("what the task store has kept is spoilt")]
    Spoilt(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// Whether it only says again that the store is away, which was told when it went.
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Unavailable(source) if matches!(source.downcast_ref(), Some(HubError::Away)))
    }

    /// Whether asking again is in vain.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        matches!(self, Self::Spoilt(_))
    }
}

/// A place in an owner's list: its order is by time of creation, then id, so that a page is stable while tasks come and
/// go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// When the task there was made.
    pub created_at: Timestamp,
    /// Its id.
    pub id: TaskId,
}

impl Position {
    /// Where a task stands.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self { created_at: task.created_at, id: task.id }
    }
}

/// What a purge removed.
#[derive(Debug, Default)]
pub struct Purged {
    /// The records, as they were last.
    pub tasks: Vec<Arc<Task>>,
    /// When the earliest of the records that remain expires.
    pub next: Option<Timestamp>,
}

/// An unfinished task that has a new holder, with what that one needs to go on.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// The record; holder and epoch are the new ones.
    pub task: Arc<Task>,
    /// What was kept with the task when it was made.
    pub draft: Option<Arc<str>>,
    /// What was noted last of its call.
    pub trail: Option<Arc<str>>,
}

/// Says of a task and an epoch whether the holder knows that it has the task under that epoch, or is about to make it.
pub type Known<'a> = dyn Fn(TaskId, u64) -> bool + Send + Sync + 'a;

/// What is lost with a note of how far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The call itself: nothing that was noted before tells the next holder where it is.
    First,
    /// A part of the way, which the next holder goes again.
    Further,
}

/// A panic while the lock was held would be one in a store; what the lock guards is still the best there is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps tasks. Every operation is atomic, and none looks at more tasks than it names.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Keeps a new task and counts it against its tenant, in one step. It gets a place ([`State::Held`]) below
    /// `running_tasks`, else it joins the queue; what `task.state`, `task.epoch` and `task.version` say is ignored. The
    /// limits hold for the tenant from now on, for places that become free too. A creation counts against the rate where the
    /// task is kept, and the rate is looked at before the other limits.
    ///
    /// `draft` is what another holder would need to take the call up, as text that only holders read; it goes when the task
    /// ends. It can be left out where [`Store::outlives_holders`] says no.
    ///
    /// # Errors
    /// [`StoreError::Quota`] where a limit would be passed; nothing is kept then. [`StoreError::Conflict`] where the
    /// id is taken.
    ///
    /// [`State::Held`]: super::State::Held
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError>;

    /// The task, unless it is not this owner's, never was or has expired: these are one answer.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; [`StoreError::Spoilt`] where the record can't be read any more, here and wherever a task
    /// is named.
    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError>;

    /// What the upstream said in the end; `None` where [`Store::read`] says so, and where there is none.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Spoilt`]
    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError>;

    /// The same for whoever hands it out: what is large is not held, where the store can read it bit by bit.
    ///
    /// # Errors
    /// As [`Store::outcome`].
    async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        Ok(self.outcome(owner, id).await?.map(Kept::Whole))
    }

    /// Notes that the outcome was handed out; says whether this was the first time.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError>;

    /// Puts a changed record in the place of the one with the same `version`, and gives it the next one. The tenant's
    /// counters change in the same step, and a place that becomes free goes to the oldest task of its queue. Owner,
    /// creation, ttl, holder and epoch stay as they were.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] as for [`Store::read`]; [`StoreError::Conflict`] when the version is another or the
    /// stored record has ended. Nothing is changed then.
    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError>;

    /// At most `limit` of the owner's tasks that [`Store::read`] shows, newest first, beginning after a position.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError>;

    /// Removes at most `at_most` of the records that have expired by `now`, whatever their state, and gives back what
    /// they counted.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError>;

    /// Tells of each later change of the task; `None` as for [`Store::read`]. What changes between this and a later
    /// read is told, so: watch, read, then wait.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError>;

    /// What the tenant has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError>;

    /// Whether a task may be there longer than the process that holds its call.
    fn outlives_holders(&self) -> bool;

    /// Notes how far a call has come, as text that only holders read: the next holder gets the last note that was kept. It
    /// changes no version and wakes nobody. A [`Step::First`] is kept as well as the record is; a [`Step::Further`] may be
    /// lost with what was written last. It goes when the task ends.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] as for [`Store::read`]; [`StoreError::Conflict`] when the epoch is another or the task has
    /// ended.
    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        step: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError>;

    /// Everybody who holds an unfinished task, be they alive or not.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn holders(&self) -> Result<Vec<Holder>, StoreError>;

    /// Gives at most `at_most` of the unfinished tasks of one holder to another: each gets the next epoch and version. A
    /// task goes to one only, however many ask.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError>;

    /// Gives a holder at most `at_most` of its own unfinished tasks anew, those that it does not know it has: each gets the
    /// next epoch and version, as with [`Store::take_over`]. A takeover that is under way without anybody who waits for it takes
    /// nothing of these tenants any more. It looks at what the holder has and at nothing else; not to be called while a takeover by
    /// the same holder is waited for.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError>;

    /// How often by now something may have been done for this process, or undone, that it was not told of. After each there may be
    /// something for [`Store::take_strays`].
    fn lost_words(&self) -> u64;

    /// The bytes that are kept for all tenants, for metrics: it may lag.
    fn bytes(&self) -> u64;
}
