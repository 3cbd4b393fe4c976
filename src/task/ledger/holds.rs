//! Which tasks this process knows that it holds: those whose calls have a job, and those that are being made. Whatever else a
//! store says is this process's was given to it without a word that arrived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::task::{Owner, TaskId};

/// A task and the epoch under which it is held.
type Key = (TaskId, u64);

/// All of them. A cheap handle.
#[derive(Debug, Clone, Default)]
pub(super) struct Holds(Arc<Mutex<HashMap<Key, Held>>>);

/// What is known of one.
#[derive(Debug)]
struct Held {
    owner: Arc<Owner>,
    /// The upstream may have asked something by now.
    may_ask: bool,
}

impl Holds {
    /// From now on it is known, until the hold is dropped.
    pub(super) fn hold(&self, owner: &Arc<Owner>, id: TaskId, epoch: u64) -> Hold {
        self.lock().insert((id, epoch), Held { owner: Arc::clone(owner), may_ask: false });
        Hold { holds: self.clone(), key: (id, epoch) }
    }

    pub(super) fn knows(&self, id: TaskId, epoch: u64) -> bool {
        self.lock().contains_key(&(id, epoch))
    }

    /// Those whose calls may have asked something.
    pub(super) fn asking(&self) -> Vec<(Arc<Owner>, TaskId)> {
        let all = self.lock();
        all.iter().filter(|(_, held)| held.may_ask).map(|((id, _), held)| (Arc::clone(&held.owner), *id)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While this is there, somebody in this process looks after the task's call. Nobody takes it for one that is nobody's.
#[derive(Debug)]
pub struct Hold {
    holds: Holds,
    key: Key,
}

impl Hold {
    /// From now on the call may ask something: [`Ledger::asking`](super::Ledger::asking) has its task.
    pub fn may_ask(&self) {
        if let Some(held) = self.holds.lock().get_mut(&self.key) {
            held.may_ask = true;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.lock().remove(&self.key);
    }
}
