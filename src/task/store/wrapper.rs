//! Stores that do something around each operation of another: what such a store is not asked about passes as it is.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Kept, Known, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch};
use crate::clock::Timestamp;
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

/// Which operation of a store is under way; each is called as its method of [`Store`].
#[derive(Debug, Clone, Copy)]
pub enum Operation<'a> {
    /// [`Store::create`]
    Create,
    /// [`Store::read`]
    Read,
    /// [`Store::outcome`]
    Outcome,
    /// [`Store::kept`]
    Kept,
    /// [`Store::note_read`]
    NoteRead,
    /// [`Store::replace`]
    Replace,
    /// [`Store::list`]
    List,
    /// [`Store::purge`]
    Purge,
    /// [`Store::watch`]
    Watch,
    /// [`Store::usage`]
    Usage,
    /// [`Store::note_trail`], with the trail.
    NoteTrail(&'a Arc<str>),
    /// [`Store::holders`]
    Holders,
    /// [`Store::take_over`]
    TakeOver,
    /// [`Store::take_strays`]
    TakeStrays,
}

/// A store over another one. What waits for nothing is the other's own.
pub trait Wrapper: fmt::Debug + Send + Sync {
    /// The other.
    type Inner: Store + ?Sized;

    /// The other.
    fn inner(&self) -> &Self::Inner;

    /// Carries an operation of the other out, which begins when `doing` is polled; or fails in its place.
    ///
    /// # Errors
    /// Those of the operation, and the wrapper's own.
    fn around<T: Send>(
        &self,
        operation: Operation<'_>,
        doing: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;
}

#[async_trait]
#[deny(clippy::missing_trait_methods, reason = "a method that is forgotten here is not forwarded")]
impl<W: Wrapper> Store for W {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.around(Operation::Create, self.inner().create(task, draft, limits)).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.around(Operation::Read, self.inner().read(owner, id)).await
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        self.around(Operation::Outcome, self.inner().outcome(owner, id)).await
    }

    async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        self.around(Operation::Kept, self.inner().kept(owner, id)).await
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.around(Operation::NoteRead, self.inner().note_read(owner, id)).await
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        self.around(Operation::Replace, self.inner().replace(task, outcome)).await
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        self.around(Operation::List, self.inner().list(owner, after, limit)).await
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        self.around(Operation::Purge, self.inner().purge(now, at_most)).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        self.around(Operation::Watch, self.inner().watch(owner, id)).await
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        self.around(Operation::Usage, self.inner().usage(tenant)).await
    }

    fn outlives_holders(&self) -> bool {
        self.inner().outlives_holders()
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        step: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        let noting = self.inner().note_trail(owner, id, epoch, step, Arc::clone(&trail));
        self.around(Operation::NoteTrail(&trail), noting).await
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.around(Operation::Holders, self.inner().holders()).await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.around(Operation::TakeOver, self.inner().take_over(from, by, at_most)).await
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.around(Operation::TakeStrays, self.inner().take_strays(by, known, at_most)).await
    }

    fn lost_words(&self) -> u64 {
        self.inner().lost_words()
    }

    fn bytes(&self) -> u64 {
        self.inner().bytes()
    }
}
