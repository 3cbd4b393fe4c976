//! A record that can't be read stops nobody else.

use std::time::Duration;

use super::*;
use crate::task::store::disk::tables::RECORDS;

fn store() -> DiskStore {
    let file = File::on("folder".into(), Box::new(FakeDisk::default())).unwrap();
    DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap()
}

/// Makes one task that runs and two that wait, and spoils the record in that place.
async fn with_spoilt(store: &DiskStore, place: u64) -> Vec<Arc<Task>> {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(store.create(new_task(), Some("draft".into()), &limits).await.unwrap());
    }
    let transaction = store.shared.file.begin_write().unwrap();
    transaction.open_table(RECORDS).unwrap().insert(place, b"{".as_slice()).unwrap();
    transaction.commit().unwrap();
    made
}

#[tokio::test]
async fn it_goes_when_it_expires_and_leaves_nothing_behind() {
    for place in 1..=3 {
        let store = store();
        with_spoilt(&store, place).await;
        let later = Clock::system().now().plus(Duration::from_secs(7200));
        let purged = store.purge(later, 100).await.unwrap();
        assert_eq!((purged.tasks.len(), purged.next), (2, None), "{place}");
        assert_eq!(store.usage("acme").await.unwrap(), Usage::default(), "{place}");
        assert_eq!(store.holders().await.unwrap(), [], "{place}");
        // Its row is another's now.
        let task = store.create(new_task(), None, &AMPLE).await.unwrap();
        let listed = store.list(&owner(), None, 10).await.unwrap();
        assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id], "{place}");
    }
}

#[tokio::test]
async fn its_owner_reads_the_others_and_its_place_is_not_waited_for() {
    let store = store();
    let made = with_spoilt(&store, 2).await;
    let owner = owner();
    let listed = store.list(&owner, None, 10).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(matches!(store.read(&owner, made[1].id).await, Err(StoreError::Spoilt(_))));
    store.replace(ended(&made[0]), None).await.unwrap();
    let next = store.read(&owner, made[2].id).await.unwrap().unwrap();
    assert!(matches!(next.state, State::Held(_)));
    let usage = store.usage("acme").await.unwrap();
    assert_eq!((usage.running, usage.queued, usage.kept), (1, 0, 3));
    let later = Clock::system().now().plus(Duration::from_secs(7200));
    assert_eq!(store.purge(later, 100).await.unwrap().tasks.len(), 2);
    assert_eq!(store.usage("acme").await.unwrap(), Usage::default());
    assert!(store.read(&owner, made[1].id).await.unwrap().is_none());
}

/// A page is many tasks': that one makes no sense says of none of them that it is spoilt, and it may be read in the end.
#[tokio::test]
async fn a_page_that_makes_no_sense_is_no_fault_of_a_task() {
    let store = store();
    let made = with_spoilt(&store, 2).await;
    for broken in [redb::Error::Corrupted("a page".to_owned()), redb::Error::PreviousIo] {
        assert!(matches!(Halt::from(broken).into_error(), StoreError::Unavailable(_)));
    }
    let reads = AtomicU64::new(0);
    let read = store.read_with(|_, _| -> Result<(), Halt> {
        reads.fetch_add(1, Ordering::Relaxed);
        panic!("as the library does")
    });
    assert!(matches!(read.await, Err(StoreError::Unavailable(_))));
    assert_eq!(reads.load(Ordering::Relaxed), 2);
    // It goes on, and what is spoilt of a task is said at once.
    assert!(store.read(&owner(), made[0].id).await.unwrap().is_some());
    assert!(matches!(store.read(&owner(), made[1].id).await, Err(StoreError::Spoilt(_))));
}

#[tokio::test]
async fn others_of_its_holder_are_taken_over() {
    let store = store();
    let made = with_spoilt(&store, 1).await;
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let orphans = store.take_over(&first, &second, 10).await.unwrap();
    let ids: Vec<TaskId> = orphans.iter().map(|orphan| orphan.task.id).collect();
    assert_eq!(ids, [made[1].id, made[2].id]);
    assert_eq!(store.take_over(&first, &second, 10).await.unwrap().len(), 0);
    assert_eq!(store.holders().await.unwrap(), [second]);
}
