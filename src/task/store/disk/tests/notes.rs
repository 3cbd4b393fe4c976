//! What may be lost with the last second costs no wait for the disk of its own, and what may not be lost does not wait.

use super::*;

fn on(disk: &FakeDisk) -> DiskStore {
    let file = File::on("folder".into(), Box::new(disk.clone())).unwrap();
    DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap()
}

/// The store as the next process finds it when this one is killed now.
fn killed(disk: &FakeDisk) -> DiskStore {
    on(&disk.after_a_cut_that_loses_all())
}

fn with_message(task: &Task, message: &str) -> Task {
    Task { status_message: Some(message.into()), ..task.clone() }
}

async fn trail_after(store: &DiskStore) -> Option<Arc<str>> {
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let [orphan] = &store.take_over(&first, &second, 9).await.unwrap()[..] else { panic!("one task") };
    orphan.trail.clone()
}

#[tokio::test]
async fn where_a_call_is_survives_at_once() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let task = store.create(new_task(), Some("draft".into()), &AMPLE).await.unwrap();
    store.note_trail(&task.owner, task.id, 1, Step::First, "here".into()).await.unwrap();
    assert_eq!(trail_after(&killed(&disk)).await.as_deref(), Some("here"));
    // How far it has come since costs nothing of its own, however often it is told.
    let before = disk.syncs();
    for number in 0..100 {
        store.note_trail(&task.owner, task.id, 1, Step::Further, format!("there {number}").into()).await.unwrap();
    }
    assert!(disk.syncs() - before < 100, "{} waits for the disk", disk.syncs() - before);
    drop(store);
    assert_eq!(trail_after(&on(&disk)).await.as_deref(), Some("there 99"));
}

#[tokio::test]
async fn words_about_work_under_way_are_read_at_once_and_do_not_wait_for_the_disk() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let mut task = store.create(new_task(), None, &AMPLE).await.unwrap();
    let mut watch = store.watch(&task.owner, task.id).await.unwrap().unwrap();
    let before = disk.syncs();
    for number in 0..100 {
        task = store.replace(with_message(&task, &number.to_string()), None).await.unwrap();
        assert!(watch.changed().await);
        assert_eq!(all_of(&store.read(&task.owner, task.id).await.unwrap().unwrap()), all_of(&task));
    }
    assert!(disk.syncs() - before < 100, "{} waits for the disk", disk.syncs() - before);
    // What ends it takes them along.
    let end = store.replace(ended(&task), Some(Outcome::Result("{}".into()))).await.unwrap();
    let after = killed(&disk).read(&task.owner, task.id).await.unwrap().unwrap();
    assert_eq!(all_of(&after), all_of(&end));
}

/// Nothing follows that would take it along.
#[tokio::test]
async fn the_last_words_are_on_the_disk_soon() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let task = store.create(new_task(), None, &AMPLE).await.unwrap();
    let before = disk.syncs();
    store.replace(with_message(&task, "half"), None).await.unwrap();
    let synced = async {
        while disk.syncs() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), synced).await.unwrap();
    drop(store);
    let after = on(&disk).read(&task.owner, task.id).await.unwrap().unwrap();
    assert_eq!(after.status_message.as_deref(), Some("half"));
}

/// A place that a lowered number of tasks gives away must not be forgotten, whatever gave it away.
#[tokio::test]
async fn a_place_that_was_given_survives_at_once() {
    let disk = FakeDisk::default();
    let store = on(&disk);
    let limits = |running_tasks| Limits { running_tasks, queued_tasks: 1, ..AMPLE };
    store.create(new_task(), None, &limits(1)).await.unwrap();
    let queued = store.create(new_task(), None, &limits(1)).await.unwrap();
    // Refused, since nothing may be created; but the queue moves up.
    let refused = Limits { kept_tasks: 2, ..limits(2) };
    assert!(matches!(store.create(new_task(), None, &refused).await, Err(StoreError::Quota(_))));
    let after = killed(&disk).read(&queued.owner, queued.id).await.unwrap().unwrap();
    assert!(matches!(after.state, State::Held(_)));
}
