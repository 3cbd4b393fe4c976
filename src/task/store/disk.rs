//! The store of a single process that outlives it: one file with an embedded ACID database.
//!
//! Changes go to one thread that writes (`writer`); an answer means that the change is on the disk. Reads go to the file
//! as it was committed last, from wherever they are wanted. Watches are in memory: one process owns the file.

mod changes;
mod file;
mod format;
mod halt;
mod pieces;
mod reads;
mod sessions;
mod sums;
mod tables;
mod unreadable;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use redb::ReadTransaction;
use tokio::sync::watch;

use super::creates::Buckets;
use super::watching::Watched;
use super::{Kept, Known, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch, lock};
use crate::clock::{Clock, Timestamp};
use crate::task::{Holder, Outcome, Owner, Task, TaskId};
use changes::{Create, NoteRead, NoteTrail, Purge, Replace, TakeOver, TakeStrays};
use file::File;
use halt::Halt;
use reads::Found;
use writer::Writer;

pub use file::OpenError;

/// Keeps tasks in a folder.
#[derive(Debug)]
pub struct DiskStore {
    writer: Writer,
    shared: Arc<Shared>,
    creates: Arc<Buckets>,
}

/// What readers and the writer share.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    file: File,
    watched: Mutex<Watched>,
    /// All that is kept, for metrics.
    bytes: AtomicU64,
    /// What nobody else knows, for the marks in outlines.
    salt: [u8; 16],
}

impl Shared {
    fn note_bytes(&self, more: i64) {
        self.bytes.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }

    /// After a failure: what failed may be in the file, and what readers saw already may not.
    fn opened_again(&self) {
        // Where that can't be read, it is a number for metrics, and read after the next failure.
        if let Ok(bytes) = self.file.read_blocking(reads::bytes) {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        lock(&self.watched).wake_all();
    }
}

impl DiskStore {
    /// Opens the store in a folder, which is made where there is none.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was removed.
    pub fn open(folder: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::over(File::open(folder)?, folder, clock)
    }

    fn over(file: File, folder: &Path, clock: Clock) -> Result<Self, OpenError> {
        let bytes = file
            .read_blocking(reads::bytes)
            .map_err(|halt| OpenError::Disk(folder.to_owned(), halt.into_error().into()))?;
        let shared = Arc::new(Shared {
            clock,
            file,
            watched: Mutex::default(),
            bytes: AtomicU64::new(bytes),
            salt: TaskId::random().bytes(),
        });
        let writer = Writer::start(Arc::clone(&shared)).map_err(|error| OpenError::Folder(folder.to_owned(), error))?;
        Ok(Self { writer, shared, creates: Arc::default() })
    }

    /// Reads. Where the disk has failed, the file is opened again first: reads are not to end with a write that failed.
    async fn read_with<T>(
        &self,
        read: impl Fn(&ReadTransaction, Timestamp) -> Result<T, Halt>,
    ) -> Result<T, StoreError> {
        let try_to = || self.shared.file.read(|transaction| read(transaction, self.shared.clock.now()));
        match try_to().await {
            Ok(read) => return Ok(read),
            Err(Halt::Refused(error)) => return Err(error),
            Err(Halt::Broken(error)) => {
                tracing::warn!(error = &*error as &dyn std::error::Error, "the store can't be read")
            }
        }
        self.writer.heal().await?;
        try_to().await.map_err(Halt::into_error)
    }

    async fn task(&self, owner: &Owner, id: TaskId) -> Result<Option<Task>, StoreError> {
        let read = |transaction: &ReadTransaction, now| reads::task(transaction, now, owner, id);
        Ok(self.read_with(read).await?.map(|(_, task)| task))
    }
}

#[async_trait]
impl Store for DiskStore {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        let (buckets, is_counted) = (Arc::clone(&self.creates), AtomicBool::new(false));
        self.writer.change(Create { task, draft, limits: *limits, buckets, is_counted }).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        Ok(self.task(owner, id).await?.map(Arc::new))
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        match self.read_with(|transaction, now| reads::outcome(transaction, now, owner, id)).await? {
            Found::Nothing => return Ok(None),
            Found::Small(outcome) => return Ok(Some(outcome)),
            Found::Big => {}
        }
        // In one transaction from the owner to the last piece: the row may be another task's by now.
        let (shared, owner) = (Arc::clone(&self.shared), owner.clone());
        let read = move || {
            shared.file.read_blocking(|transaction| reads::big_outcome(transaction, shared.clock.now(), &owner, id))
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| StoreError::Unavailable(error.into()))?.map_err(Halt::into_error)
    }

    async fn kept(&self, owner: &Owner, id: TaskId) -> Result<Option<Kept>, StoreError> {
        match self.read_with(|transaction, now| reads::outcome(transaction, now, owner, id)).await? {
            Found::Nothing => return Ok(None),
            Found::Small(outcome) => return Ok(Some(Kept::Whole(outcome))),
            Found::Big => {}
        }
        let (shared, owner) = (Arc::clone(&self.shared), owner.clone());
        let opened = tokio::task::spawn_blocking(move || pieces::open(&shared, &owner, id)).await;
        opened.map_err(|error| StoreError::Unavailable(error.into()))?.map_err(Halt::into_error)
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.writer.change(NoteRead { owner: owner.clone(), id }).await
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        Ok(self.writer.change(Replace { task, outcome }).await?.0)
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        self.read_with(|transaction, now| reads::list(transaction, now, owner, (after, limit))).await
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        self.writer.change(Purge { now, at_most }).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        let Some(seen) = self.task(owner, id).await? else { return Ok(None) };
        if seen.state.is_ended() {
            return Ok(Some(ended(&seen)));
        }
        // Before the channel, so that it goes after it.
        let registration = Registration { shared: Arc::downgrade(&self.shared), id };
        let mut versions = lock(&self.shared.watched).watch(&seen);
        // It may have changed before anybody would have told.
        let Some(task) = self.task(owner, id).await? else { return Ok(None) };
        if task.state.is_ended() {
            return Ok(Some(ended(&task)));
        }
        if task.version != seen.version {
            versions.mark_changed();
        }
        Ok(Some(Watch::new(versions, Some(Box::new(registration)))))
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        self.read_with(|transaction, _| reads::usage(transaction, tenant)).await
    }

    fn outlives_holders(&self) -> bool {
        true
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        step: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        self.writer.change(NoteTrail { owner: owner.clone(), id, epoch, step, trail }).await.map(drop)
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.read_with(|transaction, _| reads::holders(transaction)).await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.writer.change(TakeOver { from: from.clone(), by: by.clone(), at_most }).await
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        let mut own = self.read_with(|transaction, _| reads::held_by(transaction, by)).await?;
        own.retain(|(_, id, epoch)| !known(*id, *epoch));
        own.truncate(at_most);
        self.writer.change(TakeStrays { by: by.clone(), strays: own }).await
    }

    /// Whoever asks is told, or the file is opened again: then what was refused and is in it nevertheless is removed, what was
    /// done is told, and who waits looks again.
    fn lost_words(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

/// The watch of a task that nothing changes any more.
fn ended(task: &Task) -> Watch {
    Watch::new(watch::channel(task.version).1, None)
}

/// Ends a task's channel with its last watch.
struct Registration {
    shared: Weak<Shared>,
    id: TaskId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.watched).unwatch(self.id);
        }
    }
}

#[cfg(test)]
mod tests;
