//! One tenant's book: what it has, who waits for a place, whose tasks are where, and who watches them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::watch;

use super::super::{Limits, Position, Quota, QuotaReason, Usage};
use crate::clock::Timestamp;
use crate::task::state::{Answer, Asked, Progress, State};
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
    watched: HashMap<TaskId, watch::Sender<u64>>,
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
            watched: HashMap::new(),
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
        let limits = self.limits;
        let until_expiry = self.expiries.first().map(|(at, _)| at.since(now));
        let quota = |reason, limit: usize| Quota { reason, limit: limit as u64, until_expiry };
        if self.kept >= limits.kept_tasks {
            return Err(quota(QuotaReason::KeptTasks, limits.kept_tasks));
        }
        if self.kept_bytes >= limits.kept_bytes {
            return Err(Quota { limit: limits.kept_bytes, ..quota(QuotaReason::KeptBytes, 0) });
        }
        if self.running < limits.running_tasks {
            return Ok(State::Held(Asked::default()));
        }
        if self.queue.line.len() < limits.queued_tasks {
            return Ok(State::Queued);
        }
        // To a tenant without a queue, the word "queue" would explain nothing.
        Err(match limits.queued_tasks {
            0 => quota(QuotaReason::RunningTasks, limits.running_tasks),
            _ => quota(QuotaReason::QueuedTasks, limits.queued_tasks),
        })
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
        if let Some(versions) = self.watched.get(&task.id) {
            versions.send_replace(task.version);
        }
        if task.state.is_ended() {
            self.watched.remove(&task.id);
        }
    }

    /// Takes a task that was removed out of the indexes, and closes its watches.
    pub(super) fn forget(&mut self, task: &Task) {
        self.kept -= 1;
        self.expiries.remove(&(task.expires_at(), task.id));
        self.watched.remove(&task.id);
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
        let positions = self.owners.get(owner).map(|positions| positions.range((Bound::Unbounded, end)).rev());
        positions.into_iter().flatten().take(limit).copied().collect()
    }

    pub(super) fn watch(&mut self, task: &Task) -> watch::Receiver<u64> {
        self.watched.entry(task.id).or_insert_with(|| watch::Sender::new(task.version)).subscribe()
    }

    /// Drops the task's channel when nobody listens any more.
    pub(super) fn unwatch(&mut self, id: TaskId) {
        if self.watched.get(&id).is_some_and(|versions| versions.receiver_count() == 0) {
            self.watched.remove(&id);
        }
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

pub(super) fn outcome_bytes(outcome: Option<&Outcome>) -> u64 {
    outcome.map_or(0, |outcome| outcome.bytes() as u64)
}

/// What open questions and their answers take: as large as a peer makes them, so they count like results.
pub(in super::super) fn question_bytes(state: &State) -> u64 {
    let bytes = |question: &crate::task::Question| {
        let answer = match &question.progress {
            Progress::Waiting | Progress::Claimed(_) => 0,
            Progress::Answered(Answer::Result(text) | Answer::Error(text)) => text.len(),
        };
        question.method.len() + question.params.as_deref().map_or(0, str::len) + answer
    };
    state.questions().iter().map(bytes).sum::<usize>() as u64
}
