//! Sessions that have ended are so after a restart, until their ids are good for nothing.

use std::time::Duration;

use super::*;

#[tokio::test]
async fn what_has_ended_has_ended_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || DiskStore::open(folder.path(), Clock::system()).unwrap();
    let (hour, week) = (Duration::from_secs(3600), Duration::from_secs(7 * 24 * 3600));
    let store = open();
    assert!(!store.has_ended(7).await.unwrap());
    store.end_session(7, hour).await.unwrap();
    store.end_session(7, week).await.unwrap();
    store.end_session(u128::MAX, hour).await.unwrap();
    drop(store);
    let store = open();
    for (number, has_ended) in [(7, true), (u128::MAX, true), (8, false)] {
        assert_eq!(store.has_ended(number).await.unwrap(), has_ended, "{number}");
    }
    // A purge takes those whose time is over, and no others.
    let now = Clock::system().now();
    store.purge(now.plus(hour * 2), 100).await.unwrap();
    assert!(store.has_ended(7).await.unwrap());
    assert!(!store.has_ended(u128::MAX).await.unwrap());
    store.purge(now.plus(week * 2), 100).await.unwrap();
    assert!(!store.has_ended(7).await.unwrap());
}
