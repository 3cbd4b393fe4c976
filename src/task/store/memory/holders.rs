//! Who holds which unfinished task, where there may be several holders.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::lock;
use crate::task::{Holder, Owner, Task, TaskId};

/// Unfinished tasks by holder.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<BTreeMap<(Holder, TaskId), Arc<Owner>>>);

impl Holders {
    /// Notes who holds the task, or that nobody does any more.
    pub(super) fn note(&self, task: &Task) {
        let place = (task.holder.clone(), task.id);
        if task.state.is_ended() {
            lock(&self.0).remove(&place);
        } else {
            lock(&self.0).insert(place, Arc::clone(&task.owner));
        }
    }

    /// Forgets that it holds the task.
    pub(super) fn forget(&self, holder: &Holder, id: TaskId) {
        lock(&self.0).remove(&(holder.clone(), id));
    }

    /// Each once.
    pub(super) fn all(&self) -> Vec<Holder> {
        let mut all: Vec<Holder> = lock(&self.0).keys().map(|(holder, _)| holder.clone()).collect();
        all.dedup();
        all
    }

    /// At most so many of a holder's tasks.
    pub(super) fn of(&self, holder: &Holder, at_most: usize) -> Vec<(TaskId, Arc<Owner>)> {
        let held = lock(&self.0);
        let theirs = held.range((holder.clone(), TaskId::LEAST)..).take_while(|((of, _), _)| of == holder);
        theirs.take(at_most).map(|((_, id), owner)| (*id, Arc::clone(owner))).collect()
    }
}
