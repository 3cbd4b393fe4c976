//! Processes that are killed under load: what was acknowledged is there afterwards, nothing stays open, nothing is done twice.
//! CRASH_ROUNDS rounds (10; `.ci/run` and `make crash` say how many) are shared out among the tests, one at least for each, from
//! CRASH_SEED on; a round's seed stands where it fails, and `CRASH_SEED=n CRASH_ROUNDS=1` begins with it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by a panic that says where"
)]

#[path = "linear/checker.rs"]
mod checker;
#[path = "crash/client.rs"]
mod client;
#[path = "crash/fleet.rs"]
mod fleet;
#[path = "crash/histories.rs"]
mod histories;
#[path = "linear/history.rs"]
mod history;
#[path = "crash/promotion.rs"]
mod promotion;
#[path = "crash/proxy.rs"]
mod proxy;
#[path = "crash/redis.rs"]
mod redis;
#[path = "crash/round.rs"]
mod round;
#[path = "crash/seed.rs"]
mod seed;
#[path = "linear/task.rs"]
mod task;
#[path = "crash/upstream.rs"]
mod upstream;

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use fleet::Kept;
use futures_util::FutureExt;
use taskgate::clock::Clock;

/// How long anything may take. No test depends on how long it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must come.
pub(crate) async fn within<F: Future>(what: &str, awaited: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, awaited).await {
        Ok(come) => come,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// That percentage of all rounds, each of its own seed.
async fn seeded(share: u64, round: impl AsyncFn(u64) -> usize) {
    let first = seed::from_environment("CRASH_SEED", || Clock::system().now().as_millis() % 1_000_000_007);
    let all = seed::from_environment("CRASH_ROUNDS", || 10);
    let count = (all * share / 100).max(1);
    println!("CRASH_SEED={first} CRASH_ROUNDS={all}, {count} of them here");
    let mut tasks = 0;
    for seed in first..first + count {
        match AssertUnwindSafe(round(seed)).catch_unwind().await {
            Ok(acknowledged) => tasks += acknowledged,
            Err(panic) => {
                println!("failed with CRASH_SEED={seed} CRASH_ROUNDS=1");
                resume_unwind(panic);
            }
        }
    }
    println!("{tasks} tasks in {count} rounds");
    assert!(tasks > 0);
}

/// Rounds over stores of that kind.
async fn rounds(share: u64, kept: impl AsyncFn() -> (Kept, Box<dyn std::any::Any>)) {
    seeded(share, async |seed| {
        let (kept, _until_it_is_over) = kept().await;
        round::run(kept, seed).await
    })
    .await;
}

/// The harness itself, over gateways that nobody kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_deaths() {
    rounds(1, async || (Kept::Memory, Box::new(()) as Box<dyn std::any::Any>)).await;
}

/// One gateway, its tasks in a folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateway_with_a_disk() {
    rounds(40, async || {
        let folder = tempfile::tempdir().unwrap();
        (Kept::Disk(folder.path().to_str().unwrap().to_owned()), Box::new(folder) as Box<dyn std::any::Any>)
    })
    .await;
}

async fn replicas(share: u64, count: usize) {
    if redis::is_there() {
        rounds(share, async || {
            let redis = redis::Redis::start().await;
            (Kept::Redis(vec![redis.address; count]), Box::new(redis) as Box<dyn std::any::Any>)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas() {
    replicas(20, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas() {
    replicas(30, 3).await;
}

/// Histories while gateways die and wires break.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_of_a_task_is_told_of_one_task() {
    if !redis::is_there() {
        return;
    }
    seeded(10, async |seed| {
        let (tasks, operations) = histories::run(seed).await;
        assert!(tasks > 0 && operations > tasks * 10, "{tasks} {operations}");
        tasks
    })
    .await;
}

/// The promotion of a replica of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_redis_has_lost_only_what_it_never_had() {
    if redis::is_there() {
        seeded(1, promotion::run).await;
    }
}
