//! Large results, read piece by piece while the file changes.

use std::time::Duration;

use redb::ReadableTable;

use super::*;
use crate::task::store::disk::tables::PIECES;
use crate::task::store::{Kept, Large};

fn store() -> DiskStore {
    let file = File::on("folder".into(), Box::new(FakeDisk::default())).unwrap();
    DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap()
}

const LENGTH: usize = 16 << 20;

async fn large(store: &DiskStore) -> Arc<Task> {
    let task = store.create(new_task(), None, &AMPLE).await.unwrap();
    let text = format!("{{\"content\":\"{}\"}}", "0123456789abcdef".repeat(LENGTH / 16));
    store.replace(ended(&task), Some(Outcome::Result(text.into()))).await.unwrap()
}

async fn open(store: &DiskStore, task: &Task) -> Large {
    match store.kept(&task.owner, task.id).await.unwrap() {
        Some(Kept::Large(large)) => large,
        other => panic!("{other:?}"),
    }
}

/// A large result, and somebody who has read its first piece.
async fn begun(store: &DiskStore) -> (Arc<Task>, Large) {
    let task = large(store).await;
    let mut reader = open(store, &task).await;
    reader.pieces.next().await.unwrap().unwrap();
    (task, reader)
}

fn spoil(store: &DiskStore, piece: u32) {
    let transaction = store.shared.file.begin_write().unwrap();
    let mut pieces = transaction.open_table(PIECES).unwrap();
    let mut bytes = pieces.get((1, piece)).unwrap().unwrap().value().to_vec();
    bytes[1000] ^= 1;
    pieces.insert((1, piece), &*bytes).unwrap();
    drop(pieces);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_fault_is_found_before_anything_is_read_or_before_the_last_piece_is() {
    let store = store();
    let (task, mut reader) = begun(&store).await;
    spoil(&store, 100);
    // Who comes now gets nothing,
    for _ in 0..2 {
        assert!(matches!(store.kept(&task.owner, task.id).await, Err(StoreError::Spoilt(_))));
        assert!(matches!(store.outcome(&task.owner, task.id).await, Err(StoreError::Spoilt(_))));
    }
    // who was reading all but the end,
    let mut pieces = 1;
    let broken = loop {
        match reader.pieces.next().await {
            Ok(piece) => pieces += usize::from(piece.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(broken, StoreError::Spoilt(_)));
    assert_eq!(pieces, LENGTH / tables::PIECE);
    // and the store goes on.
    let other = large(&store).await;
    assert!(open(&store, &other).await.pieces.next().await.unwrap().is_some());
}

#[tokio::test]
async fn a_task_that_goes_ends_its_readers_and_no_other_task_is_read_in_its_place() {
    let store = store();
    let (task, mut reader) = begun(&store).await;
    store.purge(task.expires_at().plus(Duration::from_secs(1)), 10).await.unwrap();
    assert!(matches!(reader.pieces.next().await, Err(StoreError::NotFound)));
    // The row is another's now.
    let other = large(&store).await;
    assert!(matches!(reader.pieces.next().await, Err(StoreError::NotFound)));
    let mut reader = open(&store, &other).await;
    while reader.pieces.next().await.unwrap().is_some() {}
}
