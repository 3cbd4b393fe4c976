//! A result that lies in pieces, read one by one. Each is looked up anew: a reader that takes its time holds neither the file as
//! it was nor more than one piece.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use redb::ReadTransaction;
use ring::digest::{SHA256, digest};

use super::super::{Kept, Large, Pieces, StoreError};
use super::Shared;
use super::halt::Halt;
use super::reads;
use super::sums::{Head, Summing};
use super::tables::{OUTCOMES, PIECES, Row};
use crate::clock::Timestamp;
use crate::task::outline::{Outline, Outliner};
use crate::task::{Outcome, Owner, TaskId};

/// Where a result is.
struct Place {
    shared: Arc<Shared>,
    owner: Owner,
    id: TaskId,
    row: Row,
    head: Head,
}

/// What there is of an outcome that lies in pieces.
enum Looked {
    Nothing,
    /// It has to be read whole: it is no result, or has no outline.
    Unfit,
    Fit(Row, Head, Outline),
}

/// The result for a reader; `None` where there is none, or where it has to be read whole. It is looked through once, so that one
/// which is spoilt is refused before anything of it is sent. Blocks.
pub(super) fn open(shared: &Arc<Shared>, owner: &Owner, id: TaskId) -> Result<Option<Kept>, Halt> {
    let now = shared.clock.now();
    let looked = shared.file.read_blocking(|transaction| look(transaction, now, owner, id, &shared.salt))?;
    let (row, head, outline) = match looked {
        Looked::Fit(row, head, outline) => (row, head, outline),
        Looked::Nothing => return Ok(None),
        Looked::Unfit => {
            let read = |transaction: &ReadTransaction| reads::big_outcome(transaction, now, owner, id);
            return Ok(shared.file.read_blocking(read)?.map(Kept::Whole));
        }
    };
    if outline.is_all() {
        return Ok(Some(Kept::Whole(Outcome::Result(outline.text().into()))));
    }
    let summing = head.summing();
    let place = Place { shared: Arc::clone(shared), owner: owner.clone(), id, row, head };
    let pieces = Box::new(Reader { place: Arc::new(place), next: 0, read: 0, summing });
    Ok(Some(Kept::Large(Large { outline, pieces })))
}

fn look(
    transaction: &ReadTransaction,
    now: Timestamp,
    owner: &Owner,
    id: TaskId,
    salt: &[u8; 16],
) -> Result<Looked, Halt> {
    let Some((row, _)) = reads::task(transaction, now, owner, id)? else { return Ok(Looked::Nothing) };
    let outcomes = transaction.open_table(OUTCOMES)?;
    let Some(stored) = outcomes.get(row)? else { return Ok(Looked::Nothing) };
    let (head, _) = Head::read(stored.value())?;
    if !head.is_result() {
        return Ok(Looked::Unfit);
    }
    let mut outliner = Outliner::new(&mark(salt, row, id));
    let (mut summing, mut length) = (head.summing(), 0);
    for piece in transaction.open_table(PIECES)?.range((row, 0)..=(row, u32::MAX))? {
        let piece = piece?.1;
        let piece = piece.value();
        summing.add(piece);
        length += piece.len() as u64;
        outliner.push(piece);
    }
    head.check(length, summing)?;
    Ok(outliner.finish().map_or(Looked::Unfit, |outline| Looked::Fit(row, head, outline)))
}

/// A word that no upstream knows, and the same whenever the result is read.
fn mark(salt: &[u8; 16], row: Row, id: TaskId) -> String {
    let digest = digest(&SHA256, &[salt.as_slice(), &row.to_be_bytes(), &id.bytes()].concat());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl Place {
    fn piece(&self, number: u32) -> Result<Bytes, Halt> {
        self.shared.file.read_blocking(|transaction| {
            let task = reads::task(transaction, self.shared.clock.now(), &self.owner, self.id)?;
            // The row may be another task's by now, and so may what lies there.
            if task.is_none_or(|(row, _)| row != self.row) {
                return Err(StoreError::NotFound.into());
            }
            let pieces = transaction.open_table(PIECES)?;
            let piece = pieces.get((self.row, number))?;
            let piece = piece.ok_or_else(|| Halt::inconsistent("a piece of an outcome is missing"))?;
            Ok(Bytes::copy_from_slice(piece.value()))
        })
    }
}

struct Reader {
    place: Arc<Place>,
    next: u32,
    read: u64,
    summing: Summing,
}

#[async_trait]
impl Pieces for Reader {
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.read >= self.place.head.length {
            return Ok(None);
        }
        let (place, number) = (Arc::clone(&self.place), self.next);
        let read = tokio::task::spawn_blocking(move || place.piece(number)).await;
        let piece = read.map_err(|error| StoreError::Unavailable(error.into()))?.map_err(Halt::into_error)?;
        self.next += 1;
        self.read += piece.len() as u64;
        self.summing.add(&piece);
        if self.read >= self.place.head.length {
            self.place.head.check(self.read, self.summing.clone()).map_err(Halt::into_error)?;
        }
        Ok(Some(piece))
    }
}
