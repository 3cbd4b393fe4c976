//! One tenant's book: what it has, who waits for a place, whose tasks are where, and who watches them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::counting::{admit, outcome_bytes, question_bytes};
use super::super::watching::Watched;
use super::super::{Limits, Position, Quota, Usage};
use super::walks::walk;
use crate::clock::Timestamp;
use crate::task::state::State;
use crate::task::{Outcome, Owner, Task, TaskId};

/// Guarded by its tenant's lock. Says nothing of the records themselves; the map has them.
#[derive(Debug)]
pub(super) struct Book {
    /// As they were given last.
    pub(super) limits: Limits,
    /// The book was taken away from its tenant, empty; whoever still holds it must look for the new one.
    pub(super) closed: bool,
    running: usize,
    kept: usize,
    kept_bytes: u64,
    queue: Queue,
    owners: HashMap<Arc<Owner>, BTreeSet<Position>>,
    /// When each record goes, the earliest first.
    expiries: BTreeSet<(Timestamp, TaskId)>,
    watched: Watched,
}

/// First come, first served; whoever leaves early leaves no gap to step over.
#[derive(Debug, Default)]
struct Queue {
    line: BTreeMap<u64, (Arc<Owner>, TaskId)>,
    tickets: HashMap<TaskId, u64>,
    next_ticket: u64,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            limits: Limits { running_tasks: 0, queued_tasks: 0, kept_tasks: 0, kept_bytes: 0, creates: None },
            closed: false,
            running: 0,
            kept: 0,
            kept_bytes: 0,
            queue: Queue::default(),
            owners: HashMap::new(),
            expiries: BTreeSet::new(),
            watched: Watched::default(),
        }
    }
}

impl Book {
    pub(super) fn usage(&self) -> Usage {
        Usage { running: self.running, queued: self.queue.line.len(), kept: self.kept, kept_bytes: self.kept_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Where a new task may begin.
    pub(super) fn admit(&self, now: Timestamp) -> Result<State, Quota> {
        let until_expiry = || self.expiries.first().map(|(at, _)| at.since(now));
        admit(&self.limits, &self.usage()).map_err(|quota| Quota { until_expiry: until_expiry(), ..quota })
    }

    /// Files a new task under its owner; gives the one copy of the owner that all its tasks share.
    pub(super) fn index(&mut self, task: &Task) -> Arc<Owner> {
        let (owner, position) = (&task.owner, Position::of(task));
        self.kept += 1;
        self.expiries.insert((task.expires_at(), task.id));
        if let Some((shared, _)) = self.owners.get_key_value(owner) {
            let shared = shared.clone();
            self.owners.entry(shared.clone()).or_default().insert(position);
            return shared;
        }
        self.owners.insert(owner.clone(), BTreeSet::from([position]));
        owner.clone()
    }

    /// Counts a record where its state puts it.
    pub(super) fn enter(&mut self, task: &Task) {
        self.kept_bytes += question_bytes(&task.state);
        match &task.state {
            State::Queued => self.queue.push(task),
            State::Held(_) => self.running += 1,
            State::Ended(_) => {}
        }
    }

    /// Undoes [`Book::enter`] and [`Book::count_bytes`].
    pub(super) fn leave(&mut self, task: &Task, outcome: Option<&Outcome>) {
        self.kept_bytes -= question_bytes(&task.state) + outcome_bytes(outcome);
        match &task.state {
            State::Queued => self.queue.remove(task.id),
            State::Held(_) => self.running -= 1,
            State::Ended(_) => {}
        }
    }

    pub(super) fn count_bytes(&mut self, bytes: u64) {
        self.kept_bytes += bytes;
    }

    /// Takes the first in line where there is a place for it. Whoever gets it calls [`Book::started`].
    pub(super) fn next_in_line(&mut self) -> Option<(Arc<Owner>, TaskId)> {
        if self.running >= self.limits.running_tasks {
            return None;
        }
        self.queue.pop()
    }

    pub(super) fn started(&mut self, task: &Task) {
        self.running += 1;
        self.announce(task);
    }

    /// Wakes who watches the task, for the last time when it has ended.
    pub(super) fn announce(&mut self, task: &Task) {
        self.watched.announce(task);
    }

    /// Takes a task that was removed out of the indexes, and closes its watches.
    pub(super) fn forget(&mut self, task: &Task) {
        self.kept -= 1;
        self.expiries.remove(&(task.expires_at(), task.id));
        self.watched.close(task.id);
        if let Some(positions) = self.owners.get_mut(&task.owner) {
            positions.remove(&Position::of(task));
            if positions.is_empty() {
                self.owners.remove(&task.owner);
            }
        }
    }

    /// At most `limit` positions of an owner's, newest first, beginning after one.
    pub(super) fn positions(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Vec<Position> {
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let positions = self.owners.get(owner).map(|positions| walk(positions.range((Bound::Unbounded, end)).rev()));
        positions.into_iter().flatten().take(limit).copied().collect()
    }

    pub(super) fn watch(&mut self, task: &Task) -> watch::Receiver<u64> {
        self.watched.watch(task)
    }

    /// Drops the task's channel when nobody listens any more.
    pub(super) fn unwatch(&mut self, id: TaskId) {
        self.watched.unwatch(id);
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.watched.len()
    }
}

impl Queue {
    fn push(&mut self, task: &Task) {
        self.tickets.insert(task.id, self.next_ticket);
        self.line.insert(self.next_ticket, (task.owner.clone(), task.id));
        self.next_ticket += 1;
    }

    fn pop(&mut self) -> Option<(Arc<Owner>, TaskId)> {
        let (_, first) = self.line.pop_first()?;
        self.tickets.remove(&first.1);
        Some(first)
    }

    fn remove(&mut self, id: TaskId) {
        if let Some(ticket) = self.tickets.remove(&id) {
            self.line.remove(&ticket);
        }
    }
}
