//! The format's version, the way from each earlier one to the next, and the room that a file takes in vain.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError, WriteTransaction,
};

use super::file::{NAME, OpenError};
use super::halt::Halt;
use super::sums::Luggage;
use super::tables::{Counters, META, RECORDS, Row, TENANTS, Tables, length, record, tenant_key};
use crate::clock::Timestamp;

/// Where the version is.
const VERSION: &str = "format";
/// What happens to a file in one transaction.
type Migration = fn(&WriteTransaction) -> Result<(), Halt>;
/// Brings a file from the version of its place in the list to the next one.
const MIGRATIONS: &[Migration] = &[count_anew, may_have_sums, sum_luggage];
/// The version that is written.
pub(super) const CURRENT: u64 = MIGRATIONS.len() as u64;

/// The drafts of version 2.
pub(super) const DRAFTS_2: TableDefinition<'static, Row, &str> = TableDefinition::new("drafts");
/// The trails of version 2.
pub(super) const TRAILS_2: TableDefinition<'static, Row, &str> = TableDefinition::new("trails");

/// What a kept task takes at most, beside its result: the record and its places in the indexes, in pages that are half full.
const TASK: u64 = 4 << 10;
/// A file that is smaller than this is left as it is.
const SMALL: u64 = 256 << 20;

/// Makes the tables of a new file, and those of an old one as they are now.
pub(super) fn bring_up_to_date(database: &Database, folder: &Path) -> Result<(), OpenError> {
    let path = || folder.join(NAME);
    let disk = |error: redb::Error| OpenError::Disk(path(), error.into());
    let found = version(database).map_err(disk)?;
    if found == Some(CURRENT) {
        return Ok(());
    }
    check(found, folder)?;
    let migrate = || -> Result<(), Halt> {
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        drop(Tables::open(&transaction, Timestamp::from_millis(0))?);
        let done = found.unwrap_or(CURRENT);
        for migration in MIGRATIONS.iter().skip(usize::try_from(done).unwrap_or(usize::MAX)) {
            migration(&transaction)?;
        }
        transaction.open_table(META)?.insert(VERSION, CURRENT)?;
        transaction.commit()?;
        Ok(())
    };
    if let Some(from) = found {
        tracing::info!(from, to = CURRENT, "the store's format is brought up to date");
    }
    migrate().map_err(|halt| match halt {
        Halt::Broken(error) => disk(*error),
        Halt::Refused(error) => OpenError::Damaged(path(), error.into()),
    })
}

/// Refuses a version that is not known.
pub(super) fn check(found: Option<u64>, folder: &Path) -> Result<(), OpenError> {
    match found {
        Some(found) if found > CURRENT => Err(OpenError::Newer { folder: folder.to_owned(), found, known: CURRENT }),
        Some(_) | None => Ok(()),
    }
}

/// The file's version; `None` for a new file.
pub(super) fn version(database: &impl ReadableDatabase) -> Result<Option<u64>, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(meta.get(VERSION)?.map(|version| version.value()))
}

/// Version 0 had no counters.
fn count_anew(transaction: &WriteTransaction) -> Result<(), Halt> {
    let mut tables = Tables::open(transaction, Timestamp::from_millis(0))?;
    let counted = recount(&tables)?;
    for (tenant, counters) in counted {
        tables.count(&tenant, Counters::default(), counters)?;
    }
    Ok(())
}

/// Version 1 knew no checksums. What it wrote is read without; what is written from now on it could not read.
fn may_have_sums(_: &WriteTransaction) -> Result<(), Halt> {
    Ok(())
}

/// Version 2 had no checksums of drafts and trails. What is no text is left out: the library gives it to nobody.
fn sum_luggage(transaction: &WriteTransaction) -> Result<(), Halt> {
    let mut tables = Tables::open(transaction, Timestamp::from_millis(0))?;
    let of_version_2 = [(DRAFTS_2, &mut tables.drafts, Luggage::Draft), (TRAILS_2, &mut tables.trails, Luggage::Trail)];
    for (before, now, which) in of_version_2 {
        let texts = transaction.open_table(before)?;
        for entry in texts.iter()? {
            let (row, text) = entry?;
            let Ok(kept) = catch_unwind(AssertUnwindSafe(|| which.kept(text.value()))) else {
                tracing::error!(
                    row = row.value(),
                    ?which,
                    "what a call needs to be taken up is no text, and is left out"
                );
                continue;
            };
            now.insert(row.value(), &*kept)?;
        }
        drop(texts);
        transaction.delete_table(before)?;
    }
    Ok(())
}

/// What the tenants have, by their records. How many may run is known again with the next task.
pub(super) fn recount(tables: &Tables<'_>) -> Result<HashMap<[u8; 16], Counters>, Halt> {
    let mut counted: HashMap<[u8; 16], Counters> = HashMap::new();
    for entry in tables.records.iter()? {
        let row = entry?.0.value();
        let task = record(&tables.records, row)?;
        let counters = counted.entry(tenant_key(&task.owner.tenant)).or_default();
        counters.enter(&task);
        counters.usage.kept += 1;
        if let Some(outcome) = tables.outcomes.get(row)? {
            counters.usage.kept_bytes += length(outcome.value())?;
        }
    }
    Ok(counted)
}

/// Gives room back to the disk where most of the file is empty. It costs as much as what is left in it, so little.
pub(super) fn compact(database: &mut Database, size: Option<u64>) -> Result<(), redb::Error> {
    let Some(size) = size.filter(|size| *size > SMALL) else { return Ok(()) };
    let used = {
        let transaction = database.begin_read()?;
        let tasks = transaction.open_table(RECORDS)?.len()?;
        let mut bytes = 0;
        for entry in transaction.open_table(TENANTS)?.iter()? {
            bytes += Counters::from_stored(entry?.1.value()).usage.kept_bytes;
        }
        tasks * TASK + bytes * 2
    };
    if used > size / 4 {
        return Ok(());
    }
    tracing::info!(bytes = size, "the store's file is mostly empty and is made smaller");
    database.compact()?;
    Ok(())
}
