//! Which tasks this process knows that it holds: those whose calls have a job, and those that are being made. Whatever else a
//! store says is this process's was given to it without a word that arrived.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::task::TaskId;

/// The tasks, each with the epoch under which it is held. A cheap handle.
#[derive(Debug, Clone, Default)]
pub(super) struct Holds(Arc<Mutex<HashSet<(TaskId, u64)>>>);

impl Holds {
    /// From now on it is known, until the hold is dropped.
    pub(super) fn hold(&self, id: TaskId, epoch: u64) -> Hold {
        self.lock().insert((id, epoch));
        Hold { holds: self.clone(), held: (id, epoch) }
    }

    pub(super) fn knows(&self, id: TaskId, epoch: u64) -> bool {
        self.lock().contains(&(id, epoch))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(TaskId, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While this is there, somebody in this process looks after the task's call. Nobody takes it for one that is nobody's.
#[derive(Debug)]
pub struct Hold {
    holds: Holds,
    held: (TaskId, u64),
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.lock().remove(&self.held);
    }
}
