//! A disk that has no room, and one that fails: new tasks are refused, the others go on, and it heals.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use redb::{Builder, Database, DatabaseError};

use super::*;
use crate::task::store::disk::file::Medium;
use crate::task::store::disk::writer::RESERVE;

fn on(disk: &FakeDisk) -> DiskStore {
    let file = File::on("folder".into(), Box::new(disk.clone())).unwrap();
    DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap()
}

async fn create(store: &DiskStore) -> Result<Arc<Task>, StoreError> {
    store.create(new_task(), None, &AMPLE).await
}

/// Waits until new tasks are taken again, or until they are not.
async fn until_creates(store: &DiskStore, are_taken: bool) {
    let turned = async {
        while create(store).await.is_ok() != are_taken {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), turned).await.unwrap();
}

#[tokio::test]
async fn without_room_new_tasks_are_refused_and_the_others_end() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let running = create(&store).await.unwrap();
    disk.limit(Some(disk.taken() + RESERVE - 1));
    until_creates(&store, false).await;
    let outcome = Some(Outcome::Result("1".repeat(100_000).into()));
    store.replace(ended(&running), outcome.clone()).await.unwrap();
    assert_eq!(store.outcome(&running.owner, running.id).await.unwrap(), outcome);
    disk.limit(None);
    until_creates(&store, true).await;
}

#[tokio::test]
async fn a_disk_that_is_full_to_the_brim_is_read_and_heals() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let ended_before = create(&store).await.unwrap();
    let outcome = Some(Outcome::Result("1".repeat(300_000).into()));
    store.replace(ended(&ended_before), outcome.clone()).await.unwrap();
    let running = create(&store).await.unwrap();
    disk.limit(Some(disk.taken()));
    let big = Some(Outcome::Result("2".repeat(3_000_000).into()));
    assert!(matches!(store.replace(ended(&running), big.clone()).await, Err(StoreError::Unavailable(_))));
    for _ in 0..3 {
        assert!(matches!(create(&store).await, Err(StoreError::Unavailable(_))));
        let owner = &running.owner;
        assert_eq!(store.read(owner, running.id).await.unwrap().unwrap().version, 1);
        assert_eq!(store.outcome(owner, ended_before.id).await.unwrap(), outcome);
        assert_eq!(store.usage("acme").await.unwrap().kept, 2);
    }
    disk.limit(None);
    store.replace(ended(&running), big.clone()).await.unwrap();
    assert_eq!(store.outcome(&running.owner, running.id).await.unwrap(), big);
    until_creates(&store, true).await;
}

#[tokio::test]
async fn a_disk_that_was_away_is_used_again() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let made = create(&store).await.unwrap();
    disk.cut_after(0);
    assert!(matches!(create(&store).await, Err(StoreError::Unavailable(_))));
    // While nothing works, nothing is made up.
    assert!(matches!(store.read(&made.owner, made.id).await, Err(StoreError::Unavailable(_))));
    disk.mend();
    assert_eq!(store.read(&made.owner, made.id).await.unwrap().unwrap().version, 1);
    until_creates(&store, true).await;
}

/// The last sync of a commit comes after all of it was written: who opens the file again finds it done.
#[tokio::test]
async fn a_task_whose_creation_was_refused_is_not_in_the_file() {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let mut refusals = 0;
    for syncs in 0..4 {
        let disk = FakeDisk::default();
        let store = on(&disk);
        let running = store.create(new_task(), None, &limits).await.unwrap();
        let task = new_task();
        disk.fail_sync_after(syncs);
        let is_refused = store.create(task.clone(), Some("draft".into()), &limits).await.is_err();
        refusals += u32::from(is_refused);
        let is_kept = store.read(&task.owner, task.id).await.unwrap().is_some();
        assert_eq!((is_kept, is_refused), (!is_refused, is_refused), "after {syncs} syncs");
        let usage = Usage { running: 1, queued: usize::from(is_kept), kept: 1 + usize::from(is_kept), kept_bytes: 0 };
        assert_eq!(store.usage("acme").await.unwrap(), usage);
        drop(store);
        let store = on(&disk);
        let (from, by) = (Holder::from_text("first"), Holder::from_text("second"));
        let orphans = store.take_over(&from, &by, 9).await.unwrap();
        let ids: Vec<TaskId> = orphans.iter().map(|orphan| orphan.task.id).collect();
        assert_eq!(ids, [running.id, task.id][..usage.kept]);
    }
    assert!(refusals >= 2, "both syncs of a commit");
}

/// The disk stays away just after the file has the task: it is removed as soon as the disk is back, before anything else.
#[tokio::test]
async fn a_task_in_doubt_is_removed_when_the_disk_is_back() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    create(&store).await.unwrap();
    let task = new_task();
    disk.fail_sync_after(1);
    disk.stay_away();
    assert!(matches!(store.create(task.clone(), None, &AMPLE).await, Err(StoreError::Unavailable(_))));
    disk.mend();
    assert!(on(&disk.copy()).read(&task.owner, task.id).await.unwrap().is_some(), "the case is another one");
    drop(store);
    assert!(on(&disk).read(&task.owner, task.id).await.unwrap().is_none());
}

/// Where the last sync of a commit fails, the second try finds its own doing in the file.
#[tokio::test]
async fn what_is_done_at_the_second_try_is_told() {
    for syncs in 0..4 {
        let disk = FakeDisk::default();
        let store = on(&disk);
        let (one, two) = (create(&store).await.unwrap(), create(&store).await.unwrap());
        let mut watch = store.watch(&one.owner, one.id).await.unwrap().unwrap();
        disk.fail_sync_after(syncs);
        let outcome = Some(Outcome::Result("1".into()));
        let after = store.replace(ended(&one), outcome.clone()).await.unwrap();
        let waits = async { while watch.changed().await {} };
        tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
        assert_eq!(all_of(&store.read(&one.owner, one.id).await.unwrap().unwrap()), all_of(&after));
        assert_eq!(store.outcome(&one.owner, one.id).await.unwrap(), outcome);
        assert_eq!(store.bytes(), store.usage("acme").await.unwrap().kept_bytes);
        disk.fail_sync_after(syncs);
        let (from, by) = (Holder::from_text("first"), Holder::from_text("second"));
        let orphans = store.take_over(&from, &by, 9).await.unwrap();
        assert_eq!(orphans.iter().map(|orphan| (orphan.task.id, orphan.task.epoch)).collect::<Vec<_>>(), [(two.id, 2)]);
        disk.fail_sync_after(syncs);
        let purged = store.purge(one.expires_at().max(two.expires_at()), 9).await.unwrap();
        assert_eq!(purged.tasks.len(), 2, "after {syncs} syncs");
        assert_eq!((store.usage("acme").await.unwrap(), store.bytes()), (Usage::default(), 0));
    }
}

#[tokio::test]
async fn who_waits_looks_again_when_the_file_was_opened_again() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let task = create(&store).await.unwrap();
    let mut watch = store.watch(&task.owner, task.id).await.unwrap().unwrap();
    disk.fail_sync_after(1);
    disk.stay_away();
    assert!(matches!(store.replace(ended(&task), None).await, Err(StoreError::Unavailable(_))));
    disk.mend();
    assert!(store.read(&task.owner, task.id).await.unwrap().unwrap().state.is_ended());
    tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.unwrap();
}

#[tokio::test]
async fn many_share_one_wait_for_the_disk() {
    let disk = FakeDisk::default();
    let store = Arc::new(on(&disk));
    create(&store).await.unwrap();
    let before = disk.syncs();
    create(&store).await.unwrap();
    let alone = disk.syncs() - before;
    let before = disk.syncs();
    let made = futures_util::future::join_all((0..200).map(|_| create(&store))).await;
    assert!(made.iter().all(Result::is_ok));
    let shared = disk.syncs() - before;
    assert!(shared < 100 * alone, "{shared} waits for 200 tasks, {alone} for one");
    // Notes wait for company.
    let (task, before) = (made[0].as_ref().unwrap(), disk.syncs());
    store.note_read(&task.owner, task.id).await.unwrap();
    assert_eq!(disk.syncs(), before);
}

/// A disk that takes its time to open a file, from the second time on.
#[derive(Debug)]
struct Slow {
    disk: FakeDisk,
    is_opened: AtomicBool,
    opening: tokio::sync::mpsc::Sender<()>,
    go_on: Mutex<Receiver<()>>,
    in_vain: Sender<()>,
}

impl Medium for Slow {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        if self.is_opened.swap(true, Ordering::SeqCst) {
            self.disk.mend();
            self.opening.try_send(()).unwrap();
            if lock(&self.go_on).recv_timeout(Duration::from_secs(20)).is_err() {
                self.in_vain.send(()).ok();
            }
        }
        self.disk.open(builder)
    }

    fn room(&self) -> Option<u64> {
        None
    }

    fn size(&self) -> Option<u64> {
        None
    }
}

/// On one thread: a reader that blocked it would keep everybody else from running, the one who is waited for too.
#[tokio::test]
async fn who_reads_while_the_file_is_opened_again_waits_without_a_thread() {
    let (disk, (opening, mut is_opening), (go, go_on)) =
        (FakeDisk::default(), tokio::sync::mpsc::channel(1), channel());
    let (in_vain, was_in_vain) = channel();
    let is_opened = AtomicBool::new(false);
    let slow = Slow { disk: disk.clone(), is_opened, opening, go_on: Mutex::new(go_on), in_vain };
    let file = File::on("folder".into(), Box::new(slow)).unwrap();
    let store = DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap();
    let made = create(&store).await.unwrap();
    disk.cut_after(0);
    let others = async {
        is_opening.recv().await.unwrap();
        let (read, ()) = tokio::join!(store.read(&made.owner, made.id), async { go.send(()).unwrap() });
        read
    };
    let (refused, read) = tokio::join!(create(&store), others);
    assert!(matches!(refused, Err(StoreError::Unavailable(_))));
    assert_eq!(all_of(&read.unwrap().unwrap()), all_of(&made));
    assert!(was_in_vain.try_recv().is_err(), "a thread was kept");
}
