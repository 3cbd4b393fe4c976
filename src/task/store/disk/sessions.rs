//! Sessions that have ended: their ids could be opened again by the next process, which must know that.

use std::time::Duration;

use redb::{ReadTransaction, ReadableTable, TableError};

use super::DiskStore;
use super::changes::Change;
use super::halt::Halt;
use super::tables::{ENDED, Tables};
use crate::clock::Timestamp;
use crate::task::{SessionNumber, StoreError};

impl DiskStore {
    /// Notes for so long that a session has ended. It is on the disk when this returns.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        self.writer.change(EndSession { session, keep }).await
    }

    /// Whether that is noted.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    pub async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError> {
        self.read_with(|transaction, now| has_ended(transaction, now, session)).await
    }
}

struct EndSession {
    session: SessionNumber,
    keep: Duration,
}

impl Change for EndSession {
    type Done = ();

    fn apply(&self, tables: &mut Tables<'_>) -> Result<(), Halt> {
        let until = tables.now.plus(self.keep).as_millis();
        let before = tables.ended.insert(self.session, until)?.map(|before| before.value());
        if let Some(before) = before {
            tables.ended_until.remove((before, self.session))?;
        }
        tables.ended_until.insert((until, self.session), ())?;
        Ok(())
    }
}

/// Forgets at most so many whose ids are good for nothing any more.
pub(super) fn forget_ended(tables: &mut Tables<'_>, now: Timestamp, at_most: usize) -> Result<(), Halt> {
    let over = tables.ended_until.range(..=(now.as_millis(), SessionNumber::MAX))?.take(at_most);
    let over = over.map(|entry| Ok(entry?.0.value())).collect::<Result<Vec<_>, redb::StorageError>>()?;
    for (until, session) in over {
        tables.ended_until.remove((until, session))?;
        tables.ended.remove(session)?;
    }
    Ok(())
}

fn has_ended(transaction: &ReadTransaction, now: Timestamp, session: SessionNumber) -> Result<bool, Halt> {
    let ended = match transaction.open_table(ENDED) {
        Ok(ended) => ended,
        // An earlier version made the file, and nothing was written since.
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    Ok(ended.get(session)?.is_some_and(|until| until.value() > now.as_millis()))
}
