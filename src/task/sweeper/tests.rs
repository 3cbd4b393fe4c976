//! Records go when their time is over, with and without anybody who asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::task::store::faulty::FaultyStore;
use crate::task::store::memory::MemoryStore;
use crate::task::{Holder, Limits, NewTask, Owner, Status, Store, Task, TaskId, sample};

const LIMITS: Limits =
    Limits { running_tasks: 10_000, queued_tasks: 0, kept_tasks: 10_000, kept_bytes: 1 << 20, creates: None };

/// A ledger with its sweeper, and the ids of tasks as they expire.
struct Swept {
    ledger: Ledger,
    expired: mpsc::Receiver<(TaskId, Option<Status>)>,
    owner: Arc<Owner>,
    jobs: Jobs,
}

fn swept(store: Arc<dyn Store>, clock: Clock) -> Swept {
    let (tell, expired) = mpsc::channel(10_000);
    let observer = move |transition: &crate::task::Transition<'_>| {
        if transition.to.is_none() {
            tell.try_send((transition.task.id, transition.from)).unwrap();
        }
    };
    let ledger = Ledger::new(store, Holder::begin("test"), clock, Arc::new(observer));
    let jobs = Jobs::default();
    start(&jobs, ledger.clone());
    Swept { ledger, expired, owner: Arc::new(sample::owner("acme", "alice")), jobs }
}

fn in_memory() -> Swept {
    let clock = Clock::system();
    swept(Arc::new(MemoryStore::new(clock)), clock)
}

impl Swept {
    async fn create(&self, ttl: Duration) -> Arc<Task> {
        let new = NewTask {
            owner: self.owner.clone(),
            tool: "report".into(),
            session: 0,
            progress_token: None,
            ttl,
            poll_interval: Duration::from_secs(1),
            deadline: ttl,
            draft: None,
        };
        self.ledger.create(new, &LIMITS).await.unwrap().0
    }

    /// Lets the sweeper run until it sleeps.
    async fn settle(&self) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_go_in_their_order_without_a_read() {
    let mut swept = in_memory();
    let late = swept.create(Duration::from_secs(30)).await;
    let early = swept.create(Duration::from_secs(10)).await;
    let middle = swept.create(Duration::from_secs(20)).await;
    for task in [early, middle, late] {
        assert_eq!(swept.expired.recv().await, Some((task.id, Some(Status::Working))));
    }
    assert_eq!(swept.ledger.usage("x").await.unwrap().kept, 0);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_expiry_wakes_the_sleeper() {
    let mut swept = in_memory();
    swept.settle().await;
    let long = swept.create(Duration::from_secs(3600)).await;
    swept.settle().await;
    let short = swept.create(Duration::from_millis(1500)).await;
    assert_eq!(swept.expired.recv().await, Some((short.id, Some(Status::Working))));
    // The paused clock jumps to the next timer: a sleeper that was not woken would have removed both.
    assert!(swept.ledger.get(&swept.owner, long.id).await.unwrap().is_some());
    assert_eq!(swept.expired.recv().await, Some((long.id, Some(Status::Working))));
}

#[tokio::test(start_paused = true)]
async fn many_at_once_all_go() {
    let mut swept = in_memory();
    for _ in 0..BATCH * 3 + 1 {
        swept.create(Duration::from_secs(5)).await;
    }
    for _ in 0..BATCH * 3 + 1 {
        swept.expired.recv().await.unwrap();
    }
    assert_eq!(swept.ledger.usage("x").await.unwrap().kept, 0);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_an_expired_task_are_released() {
    let swept = in_memory();
    let task = swept.create(Duration::from_secs(5)).await;
    assert!(swept.ledger.wait(&swept.owner, task.id, |_| false).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_tried_again() {
    let clock = Clock::system();
    let store = FaultyStore::new(clock);
    store.failing_purges.store(3, Ordering::SeqCst);
    let store = Arc::new(store);
    let mut swept = swept(store.clone(), clock);
    let task = swept.create(Duration::from_millis(10)).await;
    assert_eq!(swept.expired.recv().await.map(|(id, _)| id), Some(task.id));
    assert_eq!(store.failing_purges.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn stops_with_the_process() {
    let swept = in_memory();
    swept.create(Duration::from_secs(3600)).await;
    swept.settle().await;
    assert_eq!(swept.jobs.stop(Duration::from_secs(1)).await, 0);
}
