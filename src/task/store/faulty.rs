//! A store that fails on purpose, for tests of what stands above stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;

use super::memory::MemoryStore;
use super::{Kept, Known, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch};
use crate::clock::{Clock, Timestamp};
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

/// Fails so many of the next operations of a kind, then works.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) store: MemoryStore,
    pub(crate) conflicts: AtomicUsize,
    pub(crate) failing_purges: AtomicUsize,
    /// Reads and watches.
    pub(crate) failing_reads: AtomicUsize,
    /// What is kept can't be read any more.
    pub(crate) is_spoilt: AtomicBool,
    /// Changes that are written, and of which nobody is told so.
    pub(crate) lost_replies: AtomicUsize,
}

impl FaultyStore {
    /// One that works.
    pub(crate) fn new(clock: Clock) -> Self {
        let [conflicts, failing_purges, failing_reads, lost_replies] = Default::default();
        let is_spoilt = AtomicBool::default();
        Self { store: MemoryStore::new(clock), conflicts, failing_purges, failing_reads, is_spoilt, lost_replies }
    }
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn away() -> StoreError {
    StoreError::Unavailable("no disk".into())
}

impl FaultyStore {
    fn check_read(&self) -> Result<(), StoreError> {
        if self.is_spoilt.load(Ordering::SeqCst) {
            return Err(StoreError::Spoilt("another checksum".into()));
        }
        if take(&self.failing_reads) { Err(away()) } else { Ok(()) }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for FaultyStore {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.store.create(task, draft, limits).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.check_read()?;
        self.store.read(owner, id).await
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        self.store.outcome(owner, id).await
    }

    async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        self.store.kept(owner, id).await
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.store.note_read(owner, id).await
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        if take(&self.conflicts) {
            return Err(StoreError::Conflict);
        }
        let replaced = self.store.replace(task, outcome).await;
        if replaced.is_ok() && take(&self.lost_replies) {
            return Err(StoreError::Unavailable("no answer".into()));
        }
        replaced
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        self.store.list(owner, after, limit).await
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        if take(&self.failing_purges) {
            return Err(away());
        }
        self.store.purge(now, at_most).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        self.check_read()?;
        self.store.watch(owner, id).await
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        self.store.usage(tenant).await
    }

    fn outlives_holders(&self) -> bool {
        self.store.outlives_holders()
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        step: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        self.store.note_trail(owner, id, epoch, step, trail).await
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.store.holders().await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.store.take_over(from, by, at_most).await
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.store.take_strays(by, known, at_most).await
    }

    fn lost_words(&self) -> u64 {
        self.store.lost_words()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}
