//! What is read, each in one transaction of its own: readers see the file as it was committed last and wait for nobody.

use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable};

use super::super::{Position, Usage};
use super::halt::Halt;
use super::sums::Head;
use super::tables::{
    self, Counters, HELD, LOOKUP, OUTCOMES, OWNED, PIECES, RECORDS, Row, TENANTS, find, owned_key, owner_key,
    tenant_key,
};
use crate::clock::Timestamp;
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

/// An owner's task that has not expired.
pub(super) fn task(
    transaction: &ReadTransaction,
    now: Timestamp,
    owner: &Owner,
    id: TaskId,
) -> Result<Option<(Row, Task)>, Halt> {
    let found = find(&transaction.open_table(LOOKUP)?, &transaction.open_table(RECORDS)?, owner, id)?;
    Ok(found.filter(|(_, task)| task.expires_at() > now))
}

/// An outcome, or that it is a big one.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Small(Outcome),
    Big,
}

/// The outcome of an owner's task, unless it is too big to be read on a thread that others wait for.
pub(super) fn outcome(transaction: &ReadTransaction, now: Timestamp, owner: &Owner, id: TaskId) -> Result<Found, Halt> {
    let Some((row, _)) = task(transaction, now, owner, id)? else { return Ok(Found::Nothing) };
    let outcomes = transaction.open_table(OUTCOMES)?;
    let Some(stored) = outcomes.get(row)? else { return Ok(Found::Nothing) };
    let (head, text) = Head::read(stored.value())?;
    if text.len() as u64 != head.length {
        return Ok(Found::Big);
    }
    Ok(Found::Small(head.outcome(text)?))
}

/// The outcome of an owner's task, whatever its size.
pub(super) fn big_outcome(
    transaction: &ReadTransaction,
    now: Timestamp,
    owner: &Owner,
    id: TaskId,
) -> Result<Option<Outcome>, Halt> {
    let Some((row, _)) = task(transaction, now, owner, id)? else { return Ok(None) };
    let outcomes = transaction.open_table(OUTCOMES)?;
    let Some(stored) = outcomes.get(row)? else { return Ok(None) };
    let (head, _) = Head::read(stored.value())?;
    let mut text = Vec::new();
    // Where the length is spoilt there is no such room, and no such text.
    drop(text.try_reserve_exact(usize::try_from(head.length).unwrap_or(0)));
    for piece in transaction.open_table(PIECES)?.range((row, 0)..=(row, u32::MAX))? {
        text.extend_from_slice(piece?.1.value());
    }
    head.outcome(&text).map(Some)
}

/// A page of an owner's list.
pub(super) fn list(
    transaction: &ReadTransaction,
    now: Timestamp,
    owner: &Owner,
    (after, limit): (Option<Position>, usize),
) -> Result<Vec<Arc<Task>>, Halt> {
    let (owned, records) = (transaction.open_table(OWNED)?, transaction.open_table(RECORDS)?);
    let digest = owner_key(owner);
    let first = owned_key(&digest, Position { created_at: Timestamp::from_millis(0), id: TaskId::LEAST });
    let last = after.map_or_else(
        || {
            let mut last = [u8::MAX; 40];
            last.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
            last
        },
        |after| owned_key(&digest, after),
    );
    let mut page = Vec::new();
    for entry in owned.range::<&[u8; 40]>(&first..=&last)?.rev() {
        if page.len() >= limit {
            break;
        }
        let (key, row) = entry?;
        if after.is_some() && *key.value() == last {
            continue;
        }
        // One that can't be read, or that was and whose row is another's by now, does not hide the others.
        let Some(task) = tables::readable(&records, row.value())? else { continue };
        let is_it = owned_key(&digest, Position::of(&task)) == *key.value();
        if is_it && task.expires_at() > now && *task.owner == *owner {
            page.push(Arc::new(task));
        }
    }
    Ok(page)
}

/// What a tenant has.
pub(super) fn usage(transaction: &ReadTransaction, tenant: &str) -> Result<Usage, Halt> {
    let stored = transaction.open_table(TENANTS)?.get(&tenant_key(tenant))?;
    Ok(stored.map(|stored| Counters::from_stored(stored.value()).usage).unwrap_or_default())
}

/// The bytes of all tenants.
pub(super) fn bytes(transaction: &ReadTransaction) -> Result<u64, Halt> {
    let mut bytes = 0;
    for entry in transaction.open_table(TENANTS)?.iter()? {
        bytes += Counters::from_stored(entry?.1.value()).usage.kept_bytes;
    }
    Ok(bytes)
}

/// Everybody who holds an unfinished task: a step for each of them, not for each task.
pub(super) fn holders(transaction: &ReadTransaction) -> Result<Vec<Holder>, Halt> {
    let held = transaction.open_table(HELD)?;
    let mut holders: Vec<Holder> = Vec::new();
    loop {
        let next = match holders.last() {
            None => held.first()?,
            // Nobody has the last row.
            Some(last) => held.range((last.as_str(), Row::MAX)..)?.next().transpose()?,
        };
        let Some((key, _)) = next else { return Ok(holders) };
        holders.push(Holder::from_text(key.value().0));
    }
}

/// A holder's unfinished tasks, each with its epoch.
pub(super) fn held_by(transaction: &ReadTransaction, holder: &Holder) -> Result<Vec<(Row, TaskId, u64)>, Halt> {
    let (held, records) = (transaction.open_table(HELD)?, transaction.open_table(RECORDS)?);
    let mut own = Vec::new();
    for entry in held.range((holder.as_str(), 0)..=(holder.as_str(), Row::MAX))? {
        let row = entry?.0.value().1;
        // Nobody can go on with one that can't be read.
        if let Some(task) = tables::readable(&records, row)? {
            own.push((row, task.id, task.epoch));
        }
    }
    Ok(own)
}
