//! Any store, with the time of each operation recorded.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::metrics::Metrics;
use crate::metrics::label::StoreOp;
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

use super::{Kept, Known, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch};

/// A store that is timed.
#[derive(Debug)]
pub struct MeteredStore<S: ?Sized> {
    store: Arc<S>,
    metrics: Arc<Metrics>,
}

impl<S: ?Sized> MeteredStore<S> {
    /// Times this store.
    pub const fn new(store: Arc<S>, metrics: Arc<Metrics>) -> Self {
        Self { store, metrics }
    }

    async fn timed<T>(&self, op: StoreOp, operation: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = operation.await;
        self.metrics.store(op, started.elapsed());
        done
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a method that is forgotten here is not forwarded")]
impl<S: Store + ?Sized> Store for MeteredStore<S> {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.timed(StoreOp::Create, self.store.create(task, draft, limits)).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.timed(StoreOp::Get, self.store.read(owner, id)).await
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        self.timed(StoreOp::Get, self.store.outcome(owner, id)).await
    }

    async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        self.timed(StoreOp::Get, self.store.kept(owner, id)).await
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.timed(StoreOp::Update, self.store.note_read(owner, id)).await
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        self.timed(StoreOp::Update, self.store.replace(task, outcome)).await
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        self.timed(StoreOp::List, self.store.list(owner, after, limit)).await
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        self.timed(StoreOp::Due, self.store.purge(now, at_most)).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        self.timed(StoreOp::Get, self.store.watch(owner, id)).await
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
        self.timed(StoreOp::Update, self.store.note_trail(owner, id, epoch, step, trail)).await
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.timed(StoreOp::Due, self.store.holders()).await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.timed(StoreOp::Due, self.store.take_over(from, by, at_most)).await
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.timed(StoreOp::Due, self.store.take_strays(by, known, at_most)).await
    }

    fn lost_words(&self) -> u64 {
        self.store.lost_words()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}
