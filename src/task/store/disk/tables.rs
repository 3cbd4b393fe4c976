//! What the file consists of. Every record has a row, a number that grows: what is made together lies together, and goes
//! together when it expires. All that names a task elsewhere names its row.

use std::sync::Arc;

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};
use ring::digest::{SHA256, digest};

use super::super::counting::question_bytes;
use super::super::{Limits, Position, Usage};
use super::changes::Due;
use super::halt::Halt;
use super::sums::{self, Head};
use crate::clock::Timestamp;
use crate::task::state::{Event, State};
use crate::task::{Outcome, Owner, SessionNumber, Task, TaskId};

/// Where a record is.
pub(super) type Row = u64;

/// The format's version and other single numbers.
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
/// Owner and id together: to look for somebody else's task is to look for one that does not exist.
pub(super) const LOOKUP: TableDefinition<'static, &[u8; 32], Row> = TableDefinition::new("lookup");
/// Records, each with its checksum.
pub(super) const RECORDS: TableDefinition<'static, Row, &[u8]> = TableDefinition::new("records");
/// Outcomes: the kind, the length, the checksum and, where it is small, the text.
pub(super) const OUTCOMES: TableDefinition<'static, Row, &[u8]> = TableDefinition::new("outcomes");
/// The text of a big outcome, in pieces.
pub(super) const PIECES: TableDefinition<'static, (Row, u32), &[u8]> = TableDefinition::new("pieces");
/// The tasks whose outcome was handed out.
pub(super) const HANDED_OUT: TableDefinition<'static, Row, ()> = TableDefinition::new("handed out");
/// What the next holder needs to send the call, with its checksum.
pub(super) const DRAFTS: TableDefinition<'static, Row, &[u8]> = TableDefinition::new("summed drafts");
/// How far the call has come, with its checksum.
pub(super) const TRAILS: TableDefinition<'static, Row, &[u8]> = TableDefinition::new("summed trails");
/// Owner, time of creation, id: in the order of lists.
pub(super) const OWNED: TableDefinition<'static, &[u8; 40], Row> = TableDefinition::new("owned");
/// When each record goes, in milliseconds.
pub(super) const EXPIRIES: TableDefinition<'static, (u64, Row), ()> = TableDefinition::new("expiries");
/// The same for each tenant.
pub(super) const TENANT_EXPIRIES: TableDefinition<'static, (&[u8; 16], u64, Row), ()> =
    TableDefinition::new("tenant expiries");
/// Who waits for a place: rows are in the order of creation.
pub(super) const QUEUES: TableDefinition<'static, (&[u8; 16], Row), ()> = TableDefinition::new("queues");
/// What each tenant has: running, queued, kept, bytes kept, and how many may run.
pub(super) const TENANTS: TableDefinition<'static, &[u8; 16], (u64, u64, u64, u64, u64)> =
    TableDefinition::new("tenants");
/// Unfinished tasks by holder.
pub(super) const HELD: TableDefinition<'static, (&str, Row), ()> = TableDefinition::new("held");

/// Sessions that have ended, and until when that is kept, in milliseconds.
pub(super) const ENDED: TableDefinition<'static, SessionNumber, u64> = TableDefinition::new("ended sessions");
/// The same by time.
pub(super) const ENDED_UNTIL: TableDefinition<'static, (u64, SessionNumber), ()> =
    TableDefinition::new("ended sessions by time");

/// The largest outcome that lies beside its length, and the largest piece of one: with what the page needs for itself it
/// fills a power of two.
pub(super) const PIECE: usize = (64 << 10) - 256;

/// A tenant's name in keys.
pub(super) fn tenant_key(tenant: &str) -> [u8; 16] {
    cut(digest(&SHA256, tenant.as_bytes()).as_ref())
}

/// An owner in keys.
pub(super) fn owner_key(owner: &Owner) -> [u8; 16] {
    let Owner { tenant, issuer, subject, client, principal, route } = owner;
    let mut text = Vec::with_capacity(256);
    for part in [tenant, issuer, subject, client, route] {
        text.extend((part.len() as u64).to_be_bytes());
        text.extend(part.as_bytes());
    }
    text.extend(principal);
    cut(digest(&SHA256, &text).as_ref())
}

fn cut(digest: &[u8]) -> [u8; 16] {
    digest.first_chunk().copied().unwrap_or_default()
}

fn lookup_key(owner: &[u8; 16], id: TaskId) -> [u8; 32] {
    let mut key = [0; 32];
    let (first, second) = key.split_at_mut(16);
    first.copy_from_slice(owner);
    second.copy_from_slice(&id.bytes());
    key
}

/// The place in an owner's list.
pub(super) fn owned_key(owner: &[u8; 16], position: Position) -> [u8; 40] {
    let mut key = [0; 40];
    let (first, rest) = key.split_at_mut(16);
    first.copy_from_slice(owner);
    let (second, third) = rest.split_at_mut(8);
    second.copy_from_slice(&position.created_at.as_millis().to_be_bytes());
    third.copy_from_slice(&position.id.bytes());
    key
}

/// An owner's task, expired or not.
pub(super) fn find(
    lookup: &impl ReadableTable<&'static [u8; 32], Row>,
    records: &impl ReadableTable<Row, &'static [u8]>,
    owner: &Owner,
    id: TaskId,
) -> Result<Option<(Row, Task)>, Halt> {
    let Some(row) = lookup.get(&lookup_key(&owner_key(owner), id))?.map(|row| row.value()) else { return Ok(None) };
    // What names a record that could not be read outlives it.
    let Some(text) = records.get(row)? else { return Ok(None) };
    let task = sums::read_record(text.value())?;
    // Digests that are cut could meet.
    Ok((*task.owner == *owner && task.id == id).then_some((row, task)))
}

/// The record of a row that something names.
pub(super) fn record(records: &impl ReadableTable<Row, &'static [u8]>, row: Row) -> Result<Task, Halt> {
    let text = records.get(row)?.ok_or_else(|| Halt::inconsistent("a record is missing"))?;
    sums::read_record(text.value())
}

/// The same where the others of its kind are not to stop for one that can't be read: that is `None`.
pub(super) fn readable(records: &impl ReadableTable<Row, &'static [u8]>, row: Row) -> Result<Option<Task>, Halt> {
    match record(records, row) {
        Ok(task) => Ok(Some(task)),
        Err(Halt::Refused(_)) => Ok(None),
        Err(broken @ Halt::Broken(_)) => Err(broken),
    }
}

/// How long an outcome is that is kept.
pub(super) fn length(kept: &[u8]) -> Result<u64, Halt> {
    Ok(Head::read(kept)?.0.length)
}

/// A tenant's counters, and how many of its tasks may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) usage: Usage,
    pub(super) may_run: u64,
}

impl Counters {
    /// As they were written.
    pub(super) fn from_stored((running, queued, kept, kept_bytes, may_run): (u64, u64, u64, u64, u64)) -> Self {
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let usage = Usage { running: count(running), queued: count(queued), kept: count(kept), kept_bytes };
        Self { usage, may_run }
    }

    pub(super) const fn stored(self) -> (u64, u64, u64, u64, u64) {
        let Usage { running, queued, kept, kept_bytes } = self.usage;
        (running as u64, queued as u64, kept as u64, kept_bytes, self.may_run)
    }

    /// Counts a record where its state puts it.
    pub(super) fn enter(&mut self, task: &Task) {
        self.usage.kept_bytes += question_bytes(&task.state);
        match &task.state {
            State::Queued => self.usage.queued += 1,
            State::Held(_) => self.usage.running += 1,
            State::Ended(_) => {}
        }
    }

    /// Undoes it.
    pub(super) fn leave(&mut self, task: &Task) {
        let usage = &mut self.usage;
        usage.kept_bytes = usage.kept_bytes.saturating_sub(question_bytes(&task.state));
        match &task.state {
            State::Queued => usage.queued = usage.queued.saturating_sub(1),
            State::Held(_) => usage.running = usage.running.saturating_sub(1),
            State::Ended(_) => {}
        }
    }
}

/// What is told when the transaction is in the file.
#[derive(Debug)]
pub(super) enum Told {
    /// To those who watch it.
    Changed(Arc<Task>),
    /// The same: nothing comes any more.
    Gone(TaskId),
}

/// The tables, open for changes.
pub(super) struct Tables<'t> {
    pub(super) now: Timestamp,
    pub(super) lookup: Table<'t, &'static [u8; 32], Row>,
    pub(super) records: Table<'t, Row, &'static [u8]>,
    pub(super) outcomes: Table<'t, Row, &'static [u8]>,
    pub(super) pieces: Table<'t, (Row, u32), &'static [u8]>,
    pub(super) handed_out: Table<'t, Row, ()>,
    pub(super) drafts: Table<'t, Row, &'static [u8]>,
    pub(super) trails: Table<'t, Row, &'static [u8]>,
    pub(super) owned: Table<'t, &'static [u8; 40], Row>,
    pub(super) expiries: Table<'t, (u64, Row), ()>,
    pub(super) tenant_expiries: Table<'t, (&'static [u8; 16], u64, Row), ()>,
    pub(super) queues: Table<'t, (&'static [u8; 16], Row), ()>,
    pub(super) tenants: Table<'t, &'static [u8; 16], (u64, u64, u64, u64, u64)>,
    pub(super) held: Table<'t, (&'static str, Row), ()>,
    pub(super) ended: Table<'t, SessionNumber, u64>,
    pub(super) ended_until: Table<'t, (u64, SessionNumber), ()>,
    pub(super) told: Vec<Told>,
    /// How soon the file has to have what was done beside what was asked for.
    pub(super) due: Due,
    /// How many more bytes are kept than before.
    pub(super) bytes: i64,
}

impl<'t> Tables<'t> {
    /// Opens them; those that are missing are made.
    pub(super) fn open(transaction: &'t WriteTransaction, now: Timestamp) -> Result<Self, redb::Error> {
        Ok(Self {
            now,
            lookup: transaction.open_table(LOOKUP)?,
            records: transaction.open_table(RECORDS)?,
            outcomes: transaction.open_table(OUTCOMES)?,
            pieces: transaction.open_table(PIECES)?,
            handed_out: transaction.open_table(HANDED_OUT)?,
            drafts: transaction.open_table(DRAFTS)?,
            trails: transaction.open_table(TRAILS)?,
            owned: transaction.open_table(OWNED)?,
            expiries: transaction.open_table(EXPIRIES)?,
            tenant_expiries: transaction.open_table(TENANT_EXPIRIES)?,
            queues: transaction.open_table(QUEUES)?,
            tenants: transaction.open_table(TENANTS)?,
            held: transaction.open_table(HELD)?,
            ended: transaction.open_table(ENDED)?,
            ended_until: transaction.open_table(ENDED_UNTIL)?,
            told: Vec::new(),
            due: Due::Never,
            bytes: 0,
        })
    }

    /// An owner's task that has not expired.
    pub(super) fn find(&self, owner: &Owner, id: TaskId) -> Result<Option<(Row, Task)>, Halt> {
        Ok(find(&self.lookup, &self.records, owner, id)?.filter(|(_, task)| task.expires_at() > self.now))
    }

    /// What a tenant has.
    pub(super) fn counters(&self, tenant: &[u8; 16]) -> Result<Counters, Halt> {
        Ok(self.tenants.get(tenant)?.map(|stored| Counters::from_stored(stored.value())).unwrap_or_default())
    }

    /// Writes a tenant's counters; a tenant that has nothing leaves nothing.
    pub(super) fn count(&mut self, tenant: &[u8; 16], before: Counters, after: Counters) -> Result<(), Halt> {
        let bytes = |counters: Counters| i64::try_from(counters.usage.kept_bytes).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(bytes(after).saturating_sub(bytes(before)));
        if after.usage.kept == 0 {
            self.tenants.remove(tenant)?;
        } else if before != after {
            self.tenants.insert(tenant, after.stored())?;
        }
        Ok(())
    }

    /// Writes a record that is there.
    pub(super) fn write(&mut self, row: Row, task: &Task) -> Result<(), Halt> {
        self.records.insert(row, &*sums::record(task))?;
        Ok(())
    }

    /// Files a new record.
    pub(super) fn add(&mut self, task: &Task) -> Result<Row, Halt> {
        let row = self.records.last()?.map_or(1, |(row, _)| row.value() + 1);
        let (owner, tenant) = (owner_key(&task.owner), tenant_key(&task.owner.tenant));
        let expiry = task.expires_at().as_millis();
        self.write(row, task)?;
        self.lookup.insert(&lookup_key(&owner, task.id), row)?;
        self.owned.insert(&owned_key(&owner, Position::of(task)), row)?;
        self.expiries.insert((expiry, row), ())?;
        self.tenant_expiries.insert((&tenant, expiry, row), ())?;
        self.held.insert((task.holder.as_str(), row), ())?;
        if task.state == State::Queued {
            self.queues.insert((&tenant, row), ())?;
        }
        Ok(row)
    }

    /// Whether there is such a task already, expired or not.
    pub(super) fn is_taken(&self, owner: &Owner, id: TaskId) -> Result<bool, Halt> {
        Ok(self.lookup.get(&lookup_key(&owner_key(owner), id))?.is_some())
    }

    /// Removes a record and all that belongs to it; says how many bytes its outcome had.
    pub(super) fn remove(&mut self, row: Row, task: &Task) -> Result<u64, Halt> {
        let (owner, tenant) = (owner_key(&task.owner), tenant_key(&task.owner.tenant));
        let expiry = task.expires_at().as_millis();
        self.records.remove(row)?;
        self.lookup.remove(&lookup_key(&owner, task.id))?;
        self.owned.remove(&owned_key(&owner, Position::of(task)))?;
        self.expiries.remove((expiry, row))?;
        self.tenant_expiries.remove((&tenant, expiry, row))?;
        self.queues.remove((&tenant, row))?;
        self.handed_out.remove(row)?;
        self.unload(row, task)?;
        self.remove_outcome(row)
    }

    /// Removes an outcome. The bytes that it had are those which are there, not as many as it says: that may be spoilt, and the
    /// tenant's counter would never be right again.
    pub(super) fn remove_outcome(&mut self, row: Row) -> Result<u64, Halt> {
        let beside = self.outcomes.remove(row)?.map_or(0, |kept| sums::beside(kept.value()));
        let mut in_pieces = 0;
        self.pieces.retain_in((row, 0)..=(row, u32::MAX), |_, piece| {
            in_pieces += piece.len() as u64;
            false
        })?;
        Ok(if in_pieces > 0 { in_pieces } else { beside })
    }

    /// What another holder would need is needed no more.
    pub(super) fn unload(&mut self, row: Row, task: &Task) -> Result<(), Halt> {
        self.held.remove((task.holder.as_str(), row))?;
        self.drafts.remove(row)?;
        self.trails.remove(row)?;
        Ok(())
    }

    /// Keeps an outcome; a big one in pieces, so that it is written and read without a second whole copy.
    pub(super) fn keep_outcome(&mut self, row: Row, outcome: &Outcome) -> Result<(), Halt> {
        let (Outcome::Result(text) | Outcome::Error(text)) = outcome;
        let text = text.as_bytes();
        let is_small = text.len() <= PIECE;
        let beside = if is_small { text } else { &[] };
        self.outcomes.insert(row, &*Head::of(outcome, text).with(beside))?;
        if !is_small {
            for (number, piece) in (0..).zip(text.chunks(PIECE)) {
                self.pieces.insert((row, number), piece)?;
            }
        }
        Ok(())
    }

    /// Gives free places to those who wait longest.
    pub(super) fn promote(&mut self, tenant: &[u8; 16], counters: &mut Counters) -> Result<(), Halt> {
        while (counters.usage.running as u64) < counters.may_run {
            let first = self.queues.range((tenant, 0)..=(tenant, Row::MAX))?.next().transpose()?;
            let Some(row) = first.map(|(key, _)| key.value().1) else { break };
            self.queues.remove((tenant, row))?;
            let Some(mut task) = readable(&self.records, row)? else {
                // It never runs, so that it needs neither a place nor a holder.
                counters.usage.queued = counters.usage.queued.saturating_sub(1);
                self.let_go(row)?;
                continue;
            };
            // The time is that of a question, which starting never asks.
            let Ok(held) = task.state.clone().apply(Event::Start, task.updated_at) else { continue };
            counters.leave(&task);
            task.state = held;
            task.version += 1;
            counters.enter(&task);
            self.write(row, &task)?;
            self.told.push(Told::Changed(Arc::new(task)));
            // Its call is sent from now on, which must not be forgotten.
            self.due = Due::Now;
        }
        Ok(())
    }

    /// When the first of a tenant's tasks goes.
    pub(super) fn first_expiry(&self, tenant: &[u8; 16]) -> Result<Option<Timestamp>, Halt> {
        let first = self.tenant_expiries.range((tenant, 0, 0)..=(tenant, u64::MAX, Row::MAX))?.next().transpose()?;
        Ok(first.map(|(key, _)| Timestamp::from_millis(key.value().1)))
    }
}

/// The limit as it is written.
pub(super) fn may_run(limits: &Limits) -> u64 {
    limits.running_tasks as u64
}
