//! A wait for changes of one task: level-triggered, so that a change before the wait is never lost.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;

use tokio::sync::watch;

use crate::task::{Task, TaskId};

/// Tells of changes of one task, until it has ended or is gone. Dropping it unregisters it.
pub struct Watch {
    // Dropped before the registration, which counts the receivers that are left.
    versions: watch::Receiver<u64>,
    _registration: Option<Box<dyn Any + Send + Sync>>,
}

impl Watch {
    /// A watch over the versions that come; the registration is dropped after the receiver.
    #[must_use]
    pub fn new(versions: watch::Receiver<u64>, registration: Option<Box<dyn Any + Send + Sync>>) -> Self {
        Self { versions, _registration: registration }
    }

    /// Resolves when the task was changed since the watch began or since the last time this resolved with `true`;
    /// with `false` when no change can come any more: it has ended, or is gone. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        self.versions.changed().await.is_ok()
    }

    /// The version that was announced last.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.versions.borrow()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// The channels of the tasks that somebody in this process watches.
#[derive(Debug, Default)]
pub(super) struct Watched(HashMap<TaskId, watch::Sender<u64>>);

impl Watched {
    /// Hears of what is announced from now on.
    pub(super) fn watch(&mut self, task: &Task) -> watch::Receiver<u64> {
        self.0.entry(task.id).or_insert_with(|| watch::Sender::new(task.version)).subscribe()
    }

    /// Wakes who watches the task, for the last time when it has ended.
    pub(super) fn announce(&mut self, task: &Task) {
        if let Some(versions) = self.0.get(&task.id) {
            versions.send_replace(task.version);
        }
        if task.state.is_ended() {
            self.close(task.id);
        }
    }

    /// Wakes everybody to look again: something may have changed that nobody was able to announce.
    pub(super) fn wake_all(&self) {
        self.0.values().for_each(|versions| versions.send_modify(|_| {}));
    }

    /// Nothing will be announced any more.
    pub(super) fn close(&mut self, id: TaskId) {
        self.0.remove(&id);
    }

    /// Drops the task's channel when nobody listens any more.
    pub(super) fn unwatch(&mut self, id: TaskId) {
        if self.0.get(&id).is_some_and(|versions| versions.receiver_count() == 0) {
            self.close(id);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
