//! A store that fails on purpose, for tests of what stands above stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

use super::StoreError;
use super::memory::MemoryStore;
use super::wrapper::{Operation, Wrapper};
use crate::clock::Clock;

/// Fails so many of the next operations of a kind, then works; and tells what is noted of calls.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    store: MemoryStore,
    pub(crate) conflicts: AtomicUsize,
    pub(crate) failing_changes: AtomicUsize,
    pub(crate) failing_purges: AtomicUsize,
    /// Reads and watches.
    pub(crate) failing_reads: AtomicUsize,
    /// What is kept can't be read any more.
    pub(crate) is_spoilt: AtomicBool,
    /// Changes that are written, and of which nobody is told so.
    pub(crate) lost_replies: AtomicUsize,
    /// The same of takeovers.
    pub(crate) lost_takeovers: AtomicUsize,
    trails: watch::Sender<Vec<Arc<str>>>,
}

impl FaultyStore {
    /// One that works.
    pub(crate) fn new(clock: Clock) -> Self {
        Self::over(MemoryStore::new(clock))
    }

    /// The same over this one.
    pub(crate) fn over(store: MemoryStore) -> Self {
        let [conflicts, failing_changes, failing_purges, failing_reads, lost_replies, lost_takeovers] =
            Default::default();
        Self {
            store,
            conflicts,
            failing_changes,
            failing_purges,
            failing_reads,
            is_spoilt: AtomicBool::default(),
            lost_replies,
            lost_takeovers,
            trails: watch::Sender::default(),
        }
    }

    /// Waits until a trail was noted that has this in it.
    pub(crate) async fn noted(&self, part: &str) {
        let has_it = |trails: &Vec<Arc<str>>| trails.iter().any(|trail| trail.contains(part));
        drop(self.trails.subscribe().wait_for(has_it).await.unwrap());
    }
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn away(why: &'static str) -> StoreError {
    StoreError::Unavailable(why.into())
}

impl Wrapper for FaultyStore {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation<'_>,
        doing: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match operation {
            Operation::Read | Operation::Watch if self.is_spoilt.load(Ordering::SeqCst) => {
                return Err(StoreError::Spoilt("another checksum".into()));
            }
            Operation::Read | Operation::Watch if take(&self.failing_reads) => return Err(away("no disk")),
            Operation::Purge if take(&self.failing_purges) => return Err(away("no disk")),
            Operation::Replace if take(&self.conflicts) => return Err(StoreError::Conflict),
            Operation::Replace if take(&self.failing_changes) => return Err(away("no disk")),
            _ => {}
        }
        let done = doing.await?;
        match operation {
            Operation::Replace if take(&self.lost_replies) => return Err(away("no answer")),
            Operation::TakeOver if take(&self.lost_takeovers) => return Err(away("no answer")),
            Operation::NoteTrail(trail) => self.trails.send_modify(|trails| trails.push(Arc::clone(trail))),
            _ => {}
        }
        Ok(done)
    }
}
