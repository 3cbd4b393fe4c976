//! A disk that changes what was written: it is found out, and never handed out.

use redb::ReadableTable;

use super::*;
use crate::task::store::disk::format::CURRENT;
use crate::task::store::disk::sums::Head;
use crate::task::store::disk::tables::OUTCOMES;

fn on(disk: &FakeDisk) -> Result<DiskStore, OpenError> {
    DiskStore::over(File::on("folder".into(), Box::new(disk.clone()))?, Path::new("folder"), Clock::system())
}

/// Ended tasks with outcomes that lie in one page and in several.
async fn fill(store: &DiskStore) -> Vec<(Arc<Task>, Outcome)> {
    let mut made = Vec::new();
    for length in [10, 300, 3000, 30_000, 300_000] {
        let text: String =
            (0..length).map(|at| char::from(b'a' + u8::try_from((at * 7 + length) % 26).unwrap())).collect();
        let task = store.create(new_task(), Some("draft".into()), &AMPLE).await.unwrap();
        let outcome = Outcome::Result(text.into());
        let task = store.replace(ended(&task), Some(outcome.clone())).await.unwrap();
        made.push((task, outcome));
    }
    made
}

/// A task is there as it was, can't be read, or can't be found: it is never another one, and has never another result.
async fn check(store: &DiskStore, made: &[(Arc<Task>, Outcome)]) -> usize {
    let mut faults = 0;
    for (task, outcome) in made {
        match store.read(&task.owner, task.id).await {
            Ok(Some(read)) => assert_eq!(all_of(&read), all_of(task)),
            Ok(None) | Err(_) => faults += 1,
        }
        match store.outcome(&task.owner, task.id).await {
            Ok(Some(read)) => assert!(read == *outcome, "another result of {} bytes", outcome.bytes()),
            Ok(None) | Err(_) => faults += 1,
        }
    }
    faults
}

#[tokio::test]
async fn what_the_disk_has_changed_is_not_handed_out() {
    let disk = FakeDisk::default();
    let store = on(&disk).unwrap();
    let made = fill(&store).await;
    drop(store);
    let texts = made.iter().map(|(_, outcome)| {
        let (Outcome::Result(text) | Outcome::Error(text)) = outcome;
        text.as_bytes()[..10].to_vec()
    });
    // Into the midst of each result, and anywhere.
    let mut places: Vec<usize> = texts.map(|text| disk.find(&text) + 5).collect();
    let mut dice = Dice::new(7);
    places.extend((0..60).map(|_| usize::try_from(dice.below(disk.length() as u64)).unwrap()));
    let mut faults = 0;
    for (number, place) in places.into_iter().enumerate() {
        let spoilt = disk.copy();
        spoilt.flip(place, u32::try_from(dice.below(8)).unwrap());
        let Ok(store) = on(&spoilt) else { continue };
        let found = check(&store, &made).await;
        assert!(found > 0 || number >= made.len(), "the fault at {place} is not found out");
        faults += found;
    }
    assert!(faults >= made.len());
}

/// As the version before wrote it.
#[tokio::test]
async fn what_has_no_checksum_is_read() {
    let store = on(&FakeDisk::default()).unwrap();
    let [(task, _), ..] = &fill(&store).await[..] else { panic!("some tasks") };
    let transaction = store.shared.file.begin_write().unwrap();
    let old = [&[b'e'][..], &5_u64.to_be_bytes(), b"12345"].concat();
    assert_eq!(Head::read(&old).unwrap().1, b"12345");
    transaction.open_table(OUTCOMES).unwrap().insert(1, &*old).unwrap();
    let mut records = transaction.open_table(tables::RECORDS).unwrap();
    records.insert(1, all_of(task).as_bytes()).unwrap();
    drop(records);
    transaction.commit().unwrap();
    assert_eq!(all_of(&store.read(&task.owner, task.id).await.unwrap().unwrap()), all_of(task));
    let outcome = store.outcome(&task.owner, task.id).await.unwrap();
    assert_eq!((outcome, CURRENT), (Some(Outcome::Error("12345".into())), 3));
}

/// Whatever is spoilt of what stands before a result, its tenant gets the bytes back that it had.
#[tokio::test]
async fn what_is_counted_is_given_back_whatever_it_says() {
    let hour = std::time::Duration::from_secs(3600);
    for length in [100, 300_000] {
        for (byte, bit) in (0..17).map(|byte| (byte, byte % 8)).chain([(0, 7), (8, 3)]) {
            let store = on(&FakeDisk::default()).unwrap();
            let task = store.create(new_task(), None, &AMPLE).await.unwrap();
            store.replace(ended(&task), Some(Outcome::Result("x".repeat(length).into()))).await.unwrap();
            let other = store.create(Task { ttl: hour * 3, ..new_task() }, None, &AMPLE).await.unwrap();
            store.replace(ended(&other), Some(Outcome::Result("12345".into()))).await.unwrap();
            let transaction = store.shared.file.begin_write().unwrap();
            let mut outcomes = transaction.open_table(OUTCOMES).unwrap();
            let mut kept = outcomes.get(1).unwrap().unwrap().value().to_vec();
            kept[byte] ^= 1 << bit;
            outcomes.insert(1, &*kept).unwrap();
            drop(outcomes);
            transaction.commit().unwrap();
            let at = task.expires_at().plus(hour);
            assert_eq!(store.purge(at, 10).await.unwrap().tasks.len(), 1);
            let usage = store.usage("acme").await.unwrap();
            assert_eq!((usage.kept, usage.kept_bytes), (1, 5), "{length} {byte} {bit}");
            assert_eq!(store.bytes(), 5);
        }
    }
}

/// A call is not taken up by what the disk has made of its draft or its trail.
#[tokio::test]
async fn what_is_spoilt_of_a_draft_or_a_trail_is_not_gone_by() {
    let store = on(&FakeDisk::default()).unwrap();
    for _ in 0..3 {
        let task = store.create(new_task(), Some("draft".into()), &AMPLE).await.unwrap();
        store.note_trail(&task.owner, task.id, 1, Step::First, "trail".into()).await.unwrap();
    }
    let transaction = store.shared.file.begin_write().unwrap();
    for (table, row) in [(tables::DRAFTS, 1), (tables::TRAILS, 2)] {
        let mut table = transaction.open_table(table).unwrap();
        let mut kept = table.get(row).unwrap().unwrap().value().to_vec();
        *kept.last_mut().unwrap() ^= 0x80;
        table.insert(row, &*kept).unwrap();
    }
    transaction.commit().unwrap();
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let orphans = store.take_over(&first, &second, 9).await.unwrap();
    let left: Vec<_> = orphans.iter().map(|orphan| (orphan.draft.as_deref(), orphan.trail.as_deref())).collect();
    assert_eq!(left, [(None, Some("trail")), (Some("draft"), None), (Some("draft"), Some("trail"))]);
}
