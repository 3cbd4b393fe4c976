//! Who holds which unfinished task, where there may be several holders.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::lock;
use super::walks::walk;
use crate::task::{Holder, Owner, Task, TaskId};

/// Unfinished tasks by holder; only those who have some are in it.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<BTreeMap<Holder, BTreeMap<TaskId, Arc<Owner>>>>);

impl Holders {
    /// Notes who holds the task, or that nobody does any more.
    pub(super) fn note(&self, task: &Task) {
        if task.state.is_ended() {
            self.forget(&task.holder, task.id);
        } else {
            lock(&self.0).entry(task.holder.clone()).or_default().insert(task.id, Arc::clone(&task.owner));
        }
    }

    /// Forgets that it holds the task.
    pub(super) fn forget(&self, holder: &Holder, id: TaskId) {
        let mut held = lock(&self.0);
        let Some(theirs) = held.get_mut(holder) else { return };
        theirs.remove(&id);
        if theirs.is_empty() {
            held.remove(holder);
        }
    }

    /// Each once.
    pub(super) fn all(&self) -> Vec<Holder> {
        walk(lock(&self.0).keys()).cloned().collect()
    }

    /// At most so many of a holder's tasks.
    pub(super) fn of(&self, holder: &Holder, at_most: usize) -> Vec<(TaskId, Arc<Owner>)> {
        let held = lock(&self.0);
        let theirs = held.get(holder).map(|theirs| walk(theirs.iter()).take(at_most));
        theirs.into_iter().flatten().map(|(id, owner)| (*id, Arc::clone(owner))).collect()
    }
}
