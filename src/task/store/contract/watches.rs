//! What every store must tell those who wait for a change.

use super::*;

pub(crate) async fn tells_watchers_of_changes(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut first = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let mut second = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let changed = store.replace(Task::clone(&made), None).await.unwrap();
    // Before the wait began, and still told.
    assert!(first.changed().await && second.changed().await);
    assert_eq!(first.version(), changed.version);
    let waiting = Jobs::default().spawn("waiter", async move { first.changed().await });
    let next = store.replace(Task::clone(&changed), None).await.unwrap();
    assert!(waiting.await.unwrap() && second.changed().await);
    assert_eq!(second.version(), next.version);
}

pub(crate) async fn tells_watchers_of_a_place(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    let mut watch = store.watch(&alice(), second.id).await.unwrap().unwrap();
    store.replace(ended(&first), None).await.unwrap();
    assert!(watch.changed().await);
    assert!(matches!(state(&store, &second).await, State::Held(_)));
}

pub(crate) async fn ends_watches_with_the_task(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut watch = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let over = store.replace(ended(&made), None).await.unwrap();
    assert!(watch.changed().await, "the end itself is told");
    assert_eq!(watch.version(), over.version);
    assert!(!watch.changed().await, "nothing comes after it");
    let mut late = store.watch(&alice(), made.id).await.unwrap().unwrap();
    assert!(!late.changed().await);
}

pub(crate) async fn closes_watches_on_purge(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut watch = store.watch(&alice(), made.id).await.unwrap().unwrap();
    store.purge(made.expires_at(), 10).await.unwrap();
    assert!(!watch.changed().await);
}
