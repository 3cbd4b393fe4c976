//! What the file takes, and what a million tasks cost.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::clock::Timestamp;
use crate::task::store::disk::file::NAME;

/// Creates, ends and purges again and again: what is freed is used again.
#[tokio::test]
async fn the_file_does_not_grow_with_what_is_gone() {
    let disk = FakeDisk::default();
    let file = File::on("folder".into(), Box::new(disk.clone())).unwrap();
    let store = DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap();
    let (mut kept, mut largest_early) = (std::collections::VecDeque::new(), 0);
    for round in 0..120 {
        let made = futures_util::future::join_all((0..50).map(|_| store.create(new_task(), None, &AMPLE))).await;
        let ends = made.into_iter().map(Result::unwrap).map(|task| {
            let outcome = Some(Outcome::Result("x".repeat(20_000).into()));
            store.replace(ended(&task), outcome)
        });
        kept.extend(futures_util::future::join_all(ends).await.into_iter().map(Result::unwrap));
        if kept.len() > 200 {
            let last: Vec<_> = kept.drain(..50).collect();
            // Each of them expires at its own time, all of them by then.
            let until = last.iter().map(|task| task.expires_at()).max().unwrap();
            while !store.purge(until, 50).await.unwrap().tasks.is_empty() {}
        }
        if round == 40 {
            largest_early = disk.taken();
        }
    }
    assert!(disk.taken() <= largest_early * 3 / 2, "{} after {largest_early}", disk.taken());
    assert!(store.usage("acme").await.unwrap().kept <= 250);
}

#[tokio::test]
async fn a_file_that_is_mostly_empty_shrinks_at_the_next_start() {
    let disk = FakeDisk::default();
    let open =
        || DiskStore::over(File::on("folder".into(), Box::new(disk.clone())).unwrap(), Path::new("f"), Clock::system());
    let store = open().unwrap();
    let mut until = Timestamp::from_millis(0);
    for _ in 0..30 {
        let task = store.create(new_task(), None, &AMPLE).await.unwrap();
        store.replace(ended(&task), Some(Outcome::Result("x".repeat(8 << 20).into()))).await.unwrap();
        until = until.max(task.expires_at());
    }
    store.purge(until, 100).await.unwrap();
    let last = store.create(new_task(), None, &AMPLE).await.unwrap();
    drop(store);
    let before = disk.length();
    let store = open().unwrap();
    assert!(disk.length() < before / 4, "{} of {before}", disk.length());
    assert!(store.read(&last.owner, last.id).await.unwrap().is_some());
}

fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    (field("VmRSS"), field("VmHWM"))
}

/// `DISK_TASKS=1000000 cargo test --release --lib many_tasks -- --nocapture` says what a million tasks cost. `DISK_FOLDER` keeps the
/// file; a second run then only opens it, in a process that has done nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks() {
    let count = std::env::var("DISK_TASKS").map_or(2000, |count| count.parse().unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let folder = std::env::var("DISK_FOLDER").map_or(temporary.path().to_owned(), std::path::PathBuf::from);
    let limits = Limits { kept_tasks: 2 * count, kept_bytes: u64::MAX, ..AMPLE };
    let owners: Vec<Owner> = (0..1000).map(|n| Owner { subject: format!("s{n}").into(), ..owner() }).collect();
    let store = DiskStore::open(&folder, Clock::system()).unwrap();
    let started = Instant::now();
    let have = store.usage("acme").await.unwrap().kept;
    for batch in (have..count).step_by(400) {
        let made = (batch..count.min(batch + 400)).map(|n| {
            let (store, owner) = (&store, Arc::new(owners[n % owners.len()].clone()));
            async move {
                let ttl = Duration::from_secs(3600 * 24 * 365);
                let task = store.create(Task { owner, ttl, ..new_task() }, Some("d".repeat(300).into()), &limits).await;
                store.replace(ended(&task.unwrap()), Some(Outcome::Result("x".repeat(300).into()))).await.unwrap();
            }
        });
        futures_util::future::join_all(made).await;
    }
    println!("made {} in {:?}; resident {:?} MiB", count.saturating_sub(have), started.elapsed(), resident());
    drop(store);
    let size = std::fs::metadata(folder.join(NAME)).unwrap();
    println!("the file: {} MiB", std::os::unix::fs::MetadataExt::blocks(&size) / 2048);
    let started = Instant::now();
    let store = DiskStore::open(&folder, Clock::system()).unwrap();
    let holders = store.holders().await.unwrap();
    let usage = store.usage("acme").await.unwrap();
    println!("opened in {:?}: {usage:?}, {} holders; resident {:?} MiB", started.elapsed(), holders.len(), resident());
    let started = Instant::now();
    let mut seen = 0;
    for owner in &owners {
        for task in store.list(owner, None, 100).await.unwrap() {
            seen += usize::from(store.read(owner, task.id).await.unwrap().is_some());
        }
    }
    println!("{seen} tasks listed and read in {:?}; resident {:?} MiB", started.elapsed(), resident());
    assert_eq!((usage.kept, holders.len()), (count, 0));
    assert!(seen >= count.min(owners.len()));
}
