//! Processes that are killed under load: what was acknowledged is there afterwards, nothing stays open, nothing is done twice.
//! CRASH_ROUNDS rounds (3; `.ci/run` and `make crash` say how many) from CRASH_SEED on; a round's seed stands where it fails, and
//! `CRASH_SEED=n CRASH_ROUNDS=1` begins with it.
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
use std::time::Duration;

use fleet::Kept;
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

/// Rounds over stores of that kind, each of its own seed.
async fn rounds(kept: impl AsyncFn() -> (Kept, Box<dyn std::any::Any>)) {
    let first = seed::from_environment("CRASH_SEED", || Clock::system().now().as_millis() % 1_000_000_007);
    let count = seed::from_environment("CRASH_ROUNDS", || 3);
    println!("CRASH_SEED={first} CRASH_ROUNDS={count}");
    let mut tasks = 0;
    for seed in first..first + count {
        let (kept, _until_it_is_over) = kept().await;
        let told = std::panic::AssertUnwindSafe(round::run(kept, seed));
        match futures_util::FutureExt::catch_unwind(told).await {
            Ok(acknowledged) => tasks += acknowledged,
            Err(panic) => {
                println!("failed with CRASH_SEED={seed} CRASH_ROUNDS=1");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{tasks} tasks in {count} rounds");
    assert!(tasks > 0);
}

/// The harness itself, over gateways that nobody kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_deaths() {
    rounds(async || (Kept::Memory, Box::new(()) as Box<dyn std::any::Any>)).await;
}
