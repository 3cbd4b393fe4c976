//! The changes: what each does inside a transaction. Each looks before it writes, so that one which may not be done leaves
//! nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redb::ReadableTable;

use super::super::counting::{admit, outcome_bytes};
use super::super::creates::Buckets;
use super::super::{Limits, Orphan, Purged, Quota, Step, StoreError};
use super::halt::Halt;
use super::sessions::forget_ended;
use super::sums::Luggage;
use super::tables::{Row, Tables, Told, may_run, readable, tenant_key};
use crate::clock::Timestamp;
use crate::task::codec::encode;
use crate::task::state::State;
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

/// How soon what was done has to be in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Nothing was done.
    Never,
    /// It may be lost with the last second, and no reader looks for it.
    Later,
    /// It may be lost with the last second, but readers see it at once.
    Seen,
    /// Before it is answered.
    Now,
}

/// One change, done as a whole or not at all. It may be applied twice where the first transaction came to nothing.
pub(super) trait Change: Send + 'static {
    /// What it answers.
    type Done: Send + 'static;

    /// Whether it is refused while the disk has little room.
    const IS_NEW: bool = false;

    /// How soon it has to be in the file.
    fn due(_: &Self::Done) -> Due {
        Due::Now
    }

    /// How much it writes beside records.
    fn bytes(&self) -> usize {
        0
    }

    /// The task that was made, which is not to be there when the change is refused after all.
    fn made(_: &Self::Done) -> Option<Made> {
        None
    }

    /// Does it.
    fn apply(&self, tables: &mut Tables<'_>) -> Result<Self::Done, Halt>;

    /// Does it after a transaction that was said to have failed, in which it was done like this. All of that may be in the
    /// file nevertheless, and then it is not to be taken for somebody else's doing.
    fn again(&self, tables: &mut Tables<'_>, _before: Self::Done) -> Result<Self::Done, Halt> {
        self.apply(tables)
    }
}

/// A task that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) owner: Arc<Owner>,
    pub(super) id: TaskId,
}

impl Made {
    /// Removes it where it is in the file; says whether it was.
    pub(super) fn take_back(&self, tables: &mut Tables<'_>) -> Result<bool, Halt> {
        let Some((row, task)) = tables.find(&self.owner, self.id)? else { return Ok(false) };
        forget(tables, row, &task)?;
        Ok(true)
    }
}

/// See [`super::super::Store::create`].
pub(super) struct Create {
    pub(super) task: Task,
    pub(super) draft: Option<Arc<str>>,
    pub(super) limits: Limits,
    pub(super) buckets: Arc<Buckets>,
    /// Against the rate of creations, which a second try must not do again.
    pub(super) is_counted: AtomicBool,
}

impl Create {
    /// Looks at the rate of creations: what to note in its bucket when the task is kept.
    fn admit_creation(&self, now: Timestamp) -> Result<Option<Duration>, Quota> {
        let rate = self.limits.creates.filter(|_| !self.is_counted.load(Ordering::Relaxed));
        rate.map(|rate| self.buckets.admit(&self.task.owner.tenant, rate, now)).transpose()
    }
}

impl Change for Create {
    type Done = Arc<Task>;
    const IS_NEW: bool = true;

    fn bytes(&self) -> usize {
        self.draft.as_ref().map_or(0, |draft| draft.len())
    }

    fn made(task: &Arc<Task>) -> Option<Made> {
        Some(Made { owner: Arc::clone(&task.owner), id: task.id })
    }

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Arc<Task>, Halt> {
        if tables.is_taken(&self.task.owner, self.task.id)? {
            return Err(StoreError::Conflict.into());
        }
        let tenant = tenant_key(&self.task.owner.tenant);
        let before = tables.counters(&tenant)?;
        let mut counters = before;
        counters.may_run = may_run(&self.limits);
        // A limit that was raised serves those who wait before it serves the newcomer.
        tables.promote(&tenant, &mut counters)?;
        let full = match self.admit_creation(tables.now) {
            Ok(full) => full,
            Err(quota) => {
                tables.count(&tenant, before, counters)?;
                return Err(quota.into());
            }
        };
        let state = match admit(&self.limits, &counters.usage) {
            Ok(state) => state,
            Err(quota) => {
                tables.count(&tenant, before, counters)?;
                let until_expiry = tables.first_expiry(&tenant)?.map(|at| at.since(tables.now));
                return Err(Quota { until_expiry, ..quota }.into());
            }
        };
        let task = Task { state, epoch: 1, version: 1, ..self.task.clone() };
        let row = tables.add(&task)?;
        if let Some(draft) = &self.draft {
            tables.drafts.insert(row, &*Luggage::Draft.kept(draft))?;
        }
        counters.usage.kept += 1;
        counters.enter(&task);
        tables.count(&tenant, before, counters)?;
        if let Some(full) = full {
            self.buckets.set(&task.owner.tenant, full, tables.now);
            self.is_counted.store(true, Ordering::Relaxed);
        }
        Ok(Arc::new(task))
    }
}

/// See [`super::super::Store::replace`].
pub(super) struct Replace {
    pub(super) task: Task,
    pub(super) outcome: Option<Outcome>,
}

impl Change for Replace {
    type Done = (Arc<Task>, Due);

    fn due((_, due): &Self::Done) -> Due {
        *due
    }

    fn bytes(&self) -> usize {
        self.outcome.as_ref().map_or(0, Outcome::bytes)
    }

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Self::Done, Halt> {
        let (row, before) = tables.find(&self.task.owner, self.task.id)?.ok_or(StoreError::NotFound)?;
        if before.version != self.task.version || before.state.is_ended() {
            return Err(StoreError::Conflict.into());
        }
        let tenant = tenant_key(&before.owner.tenant);
        let after = Task {
            owner: before.owner.clone(),
            created_at: before.created_at,
            ttl: before.ttl,
            holder: before.holder.clone(),
            epoch: before.epoch,
            version: before.version + 1,
            ..self.task.clone()
        };
        let counted = tables.counters(&tenant)?;
        let mut counters = counted;
        counters.leave(&before);
        counters.enter(&after);
        counters.usage.kept_bytes += outcome_bytes(self.outcome.as_ref());
        tables.write(row, &after)?;
        match (before.state == State::Queued, after.state == State::Queued) {
            (true, false) => drop(tables.queues.remove((&tenant, row))?),
            (false, true) => drop(tables.queues.insert((&tenant, row), ())?),
            (true, true) | (false, false) => {}
        }
        if let Some(outcome) = &self.outcome {
            tables.keep_outcome(row, outcome)?;
        }
        if after.state.is_ended() {
            tables.unload(row, &after)?;
        }
        let after = Arc::new(after);
        tables.told.push(Told::Changed(Arc::clone(&after)));
        tables.promote(&tenant, &mut counters)?;
        tables.count(&tenant, counted, counters)?;
        // Words for people about work under way: who works says more of them soon.
        let is_note = self.outcome.is_none() && before.state == after.state;
        Ok((after, if is_note { Due::Seen } else { Due::Now }))
    }

    fn again(&self, tables: &mut Tables<'_>, before: Self::Done) -> Result<Self::Done, Halt> {
        let (task, _) = before;
        if !is_in_file(tables, &task)? {
            return self.apply(tables);
        }
        tables.told.push(Told::Changed(Arc::clone(&task)));
        // Another wait for the disk: the last one has failed.
        Ok((task, Due::Now))
    }
}

/// Whether the record is in the file exactly like this.
fn is_in_file(tables: &Tables<'_>, task: &Task) -> Result<bool, Halt> {
    Ok(tables.find(&task.owner, task.id)?.is_some_and(|(_, found)| encode(&found) == encode(task)))
}

/// See [`super::super::Store::purge`].
pub(super) struct Purge {
    pub(super) now: Timestamp,
    pub(super) at_most: usize,
}

impl Change for Purge {
    type Done = Purged;

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Purged, Halt> {
        let expired = tables.expiries.range(..=(self.now.as_millis(), Row::MAX))?.take(self.at_most);
        let keys =
            expired.map(|entry| Ok(entry?.0.value())).collect::<Result<Vec<(u64, Row)>, redb::StorageError>>()?;
        let mut tasks = Vec::with_capacity(keys.len());
        for (expiry, row) in keys {
            let Some(task) = readable(&tables.records, row)? else {
                tracing::error!(row, "an expired record can't be read and is removed");
                tables.remove_unreadable(row, expiry)?;
                continue;
            };
            forget(tables, row, &task)?;
            tasks.push(Arc::new(task));
        }
        forget_ended(tables, self.now, self.at_most)?;
        let next = tables.expiries.first()?.map(|(key, _)| Timestamp::from_millis(key.value().0));
        Ok(Purged { tasks, next })
    }

    fn again(&self, tables: &mut Tables<'_>, before: Purged) -> Result<Purged, Halt> {
        let mut tasks = Vec::with_capacity(before.tasks.len());
        for task in before.tasks {
            if !tables.is_taken(&task.owner, task.id)? {
                tables.told.push(Told::Gone(task.id));
                tasks.push(task);
            }
        }
        let purged = self.apply(tables)?;
        tasks.extend(purged.tasks);
        Ok(Purged { tasks, next: purged.next })
    }
}

/// Removes a task with all that belongs to it, and gives its place to who waits.
fn forget(tables: &mut Tables<'_>, row: Row, task: &Task) -> Result<(), Halt> {
    let tenant = tenant_key(&task.owner.tenant);
    let before = tables.counters(&tenant)?;
    let mut counters = before;
    counters.leave(task);
    counters.usage.kept = counters.usage.kept.saturating_sub(1);
    let bytes = tables.remove(row, task)?;
    counters.usage.kept_bytes = counters.usage.kept_bytes.saturating_sub(bytes);
    tables.told.push(Told::Gone(task.id));
    tables.promote(&tenant, &mut counters)?;
    tables.count(&tenant, before, counters)
}

/// See [`super::super::Store::note_read`].
pub(super) struct NoteRead {
    pub(super) owner: Owner,
    pub(super) id: TaskId,
}

impl Change for NoteRead {
    type Done = bool;

    fn due(is_first: &bool) -> Due {
        if *is_first { Due::Later } else { Due::Never }
    }

    fn apply(&self, tables: &mut Tables<'_>) -> Result<bool, Halt> {
        let Some((row, _)) = tables.find(&self.owner, self.id)? else { return Ok(false) };
        Ok(tables.handed_out.insert(row, ())?.is_none())
    }
}

/// See [`super::super::Store::note_trail`].
pub(super) struct NoteTrail {
    pub(super) owner: Owner,
    pub(super) id: TaskId,
    pub(super) epoch: u64,
    pub(super) step: Step,
    pub(super) trail: Arc<str>,
}

impl Change for NoteTrail {
    type Done = Step;

    fn due(step: &Step) -> Due {
        match step {
            Step::First => Due::Now,
            Step::Further => Due::Later,
        }
    }

    fn bytes(&self) -> usize {
        self.trail.len()
    }

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Step, Halt> {
        let (row, task) = tables.find(&self.owner, self.id)?.ok_or(StoreError::NotFound)?;
        if task.epoch != self.epoch || task.state.is_ended() {
            return Err(StoreError::Conflict.into());
        }
        tables.trails.insert(row, &*Luggage::Trail.kept(&self.trail))?;
        Ok(self.step)
    }
}

/// See [`super::super::Store::take_over`].
pub(super) struct TakeOver {
    pub(super) from: Holder,
    pub(super) by: Holder,
    pub(super) at_most: usize,
}

impl Change for TakeOver {
    type Done = Vec<Orphan>;

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Vec<Orphan>, Halt> {
        let from = self.from.as_str();
        let (mut orphans, mut from_row) = (Vec::new(), 0);
        while orphans.len() < self.at_most {
            let next = tables.held.range((from, from_row)..=(from, Row::MAX))?.next().transpose()?;
            let Some(row) = next.map(|(key, _)| key.value().1) else { break };
            from_row = row + 1;
            let Some(before) = readable(&tables.records, row)? else {
                tracing::error!(row, "a task can't be taken over: its record can't be read");
                // Or whoever takes over would never be done with this holder.
                tables.held.remove((from, row))?;
                tables.held.insert((self.by.as_str(), row), ())?;
                continue;
            };
            orphans.push(hand_over(tables, row, before, &self.by)?);
        }
        Ok(orphans)
    }

    fn again(&self, tables: &mut Tables<'_>, before: Vec<Orphan>) -> Result<Vec<Orphan>, Halt> {
        let taken = taken_before(tables, before)?;
        if taken.is_empty() { self.apply(tables) } else { Ok(taken) }
    }
}

/// See [`super::super::Store::take_strays`].
pub(super) struct TakeStrays {
    pub(super) by: Holder,
    /// Each with its epoch.
    pub(super) strays: Vec<(Row, TaskId, u64)>,
}

impl Change for TakeStrays {
    type Done = Vec<Orphan>;

    fn apply(&self, tables: &mut Tables<'_>) -> Result<Vec<Orphan>, Halt> {
        let mut orphans = Vec::new();
        for (row, id, epoch) in &self.strays {
            // It may have ended since it was looked at, and its row be another's.
            let is_held = tables.held.get((self.by.as_str(), *row))?.is_some();
            let before =
                readable(&tables.records, *row)?.filter(|task| is_held && (task.id, task.epoch) == (*id, *epoch));
            if let Some(before) = before {
                orphans.push(hand_over(tables, *row, before, &self.by)?);
            }
        }
        Ok(orphans)
    }

    fn again(&self, tables: &mut Tables<'_>, before: Vec<Orphan>) -> Result<Vec<Orphan>, Halt> {
        let taken = taken_before(tables, before)?;
        if taken.is_empty() { self.apply(tables) } else { Ok(taken) }
    }
}

/// Those that are their new holder's already. Nobody else would ever know.
fn taken_before(tables: &mut Tables<'_>, orphans: Vec<Orphan>) -> Result<Vec<Orphan>, Halt> {
    let mut taken = Vec::with_capacity(orphans.len());
    for orphan in orphans {
        if is_in_file(tables, &orphan.task)? {
            tables.told.push(Told::Changed(Arc::clone(&orphan.task)));
            taken.push(orphan);
        }
    }
    Ok(taken)
}

fn hand_over(tables: &mut Tables<'_>, row: Row, before: Task, by: &Holder) -> Result<Orphan, Halt> {
    tables.held.remove((before.holder.as_str(), row))?;
    tables.held.insert((by.as_str(), row), ())?;
    let (epoch, version) = (before.epoch + 1, before.version + 1);
    let task = Arc::new(Task { holder: by.clone(), epoch, version, ..before });
    tables.write(row, &task)?;
    let draft = luggage(&tables.drafts, row, Luggage::Draft)?;
    let trail = luggage(&tables.trails, row, Luggage::Trail)?;
    tables.told.push(Told::Changed(Arc::clone(&task)));
    Ok(Orphan { task, draft, trail })
}

/// What the last holder has left. Of what is spoilt nothing is known any more: a call is not sent by it, and not looked for.
fn luggage(kept: &impl ReadableTable<Row, &'static [u8]>, row: Row, which: Luggage) -> Result<Option<Arc<str>>, Halt> {
    let Some(kept) = kept.get(row)? else { return Ok(None) };
    match which.read(kept.value()) {
        Ok(text) => Ok(Some(text.into())),
        Err(Halt::Refused(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, row, ?which, "what the last holder of a call has left can't be read");
            Ok(None)
        }
        Err(broken @ Halt::Broken(_)) => Err(broken),
    }
}
