//! What is found at a start: nothing, a store, somebody else's, a later one, an earlier one, and what is none.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::task::store::disk::file::NAME;
use crate::task::store::disk::format::{CURRENT, DRAFTS_2, TRAILS_2};
use crate::task::store::disk::tables::{DRAFTS, META, TENANTS, TRAILS};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn open(folder: &Path) -> Result<DiskStore, OpenError> {
    DiskStore::open(folder, Clock::system())
}

/// As the operator reads it.
fn told(error: OpenError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// A task that runs, and one that waits behind it.
async fn two_tasks(store: &DiskStore) -> (Arc<Task>, Arc<Task>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let one = store.create(new_task(), Some("draft".into()), &limits).await.unwrap();
    (one, store.create(new_task(), None, &limits).await.unwrap())
}

#[tokio::test]
async fn a_folder_is_made_for_this_user_alone() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("not/there/yet");
    let store = open(&folder).unwrap();
    assert_eq!((mode(&folder), mode(&folder.join(NAME))), (0o700, 0o600));
    two_tasks(&store).await;
    // A folder that was there stays as it was.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o750)).unwrap();
    drop(store);
    drop(open(&folder).unwrap());
    assert_eq!(mode(&folder), 0o750);
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let (one, two) = two_tasks(&store).await;
    store.note_trail(&one.owner, one.id, 1, Step::Further, "half".into()).await.unwrap();
    let text: Arc<str> = "x\u{e9}".repeat(500_000).into();
    let big = Some(Outcome::Result(text));
    let ended = store.replace(ended(&one), big.clone()).await.unwrap();
    assert!(store.note_read(&one.owner, one.id).await.unwrap());
    let (usage, bytes) = (store.usage("acme").await.unwrap(), store.bytes());
    drop(store);
    let store = open(folder.path()).unwrap();
    assert_eq!((store.usage("acme").await.unwrap(), store.bytes()), (usage, bytes));
    assert_eq!(store.read(&one.owner, one.id).await.unwrap().unwrap().version, ended.version);
    assert_eq!(store.outcome(&one.owner, one.id).await.unwrap(), big);
    assert!(!store.note_read(&one.owner, one.id).await.unwrap());
    // The place was given before the restart, and the next is given after it.
    let (from, by) = (Holder::from_text("first"), Holder::from_text("second"));
    let [orphan] = &store.take_over(&from, &by, 9).await.unwrap()[..] else { panic!("one is left") };
    assert_eq!((orphan.task.id, orphan.task.epoch), (two.id, 2));
    assert!(matches!(orphan.task.state, State::Held(_)));
}

#[tokio::test]
async fn who_waits_gets_a_place_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = two_tasks(&open(folder.path()).unwrap()).await;
    let store = open(folder.path()).unwrap();
    store.replace(ended(&one), None).await.unwrap();
    let two = store.read(&two.owner, two.id).await.unwrap().unwrap();
    assert!(matches!(two.state, State::Held(_)));
}

#[test]
fn another_process_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Locked(_)), "{error:?}");
    assert!(told(error).contains(&folder.path().display().to_string()));
}

#[test]
fn a_later_format_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    let database = redb::Database::open(folder.path().join(NAME)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", CURRENT + 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let before = fs::read(folder.path().join(NAME)).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found, known: CURRENT, .. } if found == CURRENT + 1), "{error:?}");
    assert!(fs::read(folder.path().join(NAME)).unwrap() == before, "it was written to");
}

#[tokio::test]
async fn an_earlier_format_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let (one, _) = two_tasks(&store).await;
    store.replace(ended(&one), Some(Outcome::Error("12345".into()))).await.unwrap();
    let usage = store.usage("acme").await.unwrap();
    drop(store);
    // Version 0 had no counters.
    let database = redb::Database::open(folder.path().join(NAME)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", 0).unwrap();
    transaction.delete_table(TENANTS).unwrap();
    transaction.commit().unwrap();
    drop(database);
    for _ in 0..2 {
        let store = open(folder.path()).unwrap();
        assert_eq!(store.usage("acme").await.unwrap(), usage);
        assert_eq!(store.outcome(&one.owner, one.id).await.unwrap(), Some(Outcome::Error("12345".into())));
    }
}

#[tokio::test]
async fn drafts_and_trails_of_version_2_get_their_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let (one, two) = two_tasks(&store).await;
    drop(store);
    let database = redb::Database::open(folder.path().join(NAME)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", 2).unwrap();
    transaction.delete_table(DRAFTS).unwrap();
    transaction.delete_table(TRAILS).unwrap();
    for (row, text) in [(1, "{\"params\":1}"), (2, "")] {
        transaction.open_table(DRAFTS_2).unwrap().insert(row, text).unwrap();
    }
    transaction.open_table(TRAILS_2).unwrap().insert(1, "half\u{e9}").unwrap();
    transaction.commit().unwrap();
    drop(database);
    let (from, by) = (Holder::from_text("first"), Holder::from_text("second"));
    for (from, by) in [(&from, &by), (&by, &from)] {
        let store = open(folder.path()).unwrap();
        let orphans = store.take_over(from, by, 9).await.unwrap();
        let left = orphans.iter().map(|orphan| (orphan.task.id, orphan.draft.as_deref(), orphan.trail.as_deref()));
        let expected = [(one.id, Some("{\"params\":1}"), Some("half\u{e9}")), (two.id, Some(""), None)];
        assert_eq!(left.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn what_is_no_store_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(NAME);
    two_tasks(&open(folder.path()).unwrap()).await;
    let whole = fs::read(&file).unwrap();
    let torn = whole[..whole.len() / 2 + 100].to_vec();
    let mut no_head = whole.clone();
    no_head[..4096].fill(0);
    let garbage = b"something else altogether, of another program".repeat(1000);
    for content in [torn, no_head, garbage, vec![7], vec![]] {
        fs::write(&file, &content).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged(..)), "{error:?}");
        assert!(told(error).contains("move it away"));
        assert_eq!(fs::read(&file).unwrap().len(), content.len());
    }
    fs::write(&file, whole).unwrap();
    drop(open(folder.path()).unwrap());
}

/// Whatever the library makes of it: the header says where everything is.
#[tokio::test]
async fn a_header_that_is_spoilt_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(NAME);
    two_tasks(&open(folder.path()).unwrap()).await;
    let whole = fs::read(&file).unwrap();
    let mut panics = Vec::new();
    for place in (0..64).flat_map(|byte| [(byte, 0), (byte, 6)]) {
        let mut spoilt = whole.clone();
        spoilt[place.0] ^= 1 << place.1;
        fs::write(&file, spoilt).unwrap();
        let opened = catch_unwind(|| open(folder.path()).map(drop));
        if opened.is_err() {
            panics.push(place);
        }
    }
    assert!(panics.is_empty(), "{panics:?}");
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file).unwrap_err();
    assert!(matches!(error, OpenError::Folder(..)), "{error:?}");
    let folder = parent.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    // Nothing is closed to the superuser.
    if fs::write(folder.join("probe"), "").is_err() {
        let error = open(&folder).unwrap_err();
        assert!(matches!(error, OpenError::Folder(..)), "{error:?}");
        assert!(told(error).contains("ermission"));
    }
}

/// The power went while the file was made: nothing was promised yet, and the next start makes it.
#[tokio::test]
async fn a_store_that_was_never_finished_is_made_again() {
    for unfinished in [&b""[..], &[0; 4096], b"torn", &[7; 100_000]] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tasks.redb.new"), unfinished).unwrap();
        let store = open(folder.path()).unwrap();
        two_tasks(&store).await;
        assert!(!folder.path().join("tasks.redb.new").exists());
        assert_eq!(mode(&folder.path().join(NAME)) & 0o600, 0o600);
    }
}
