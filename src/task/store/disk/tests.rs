//! The contract, and what only a file can do: be there afterwards, be somebody else's, be full.

mod costs;
mod faults;
mod large;
mod media;
mod notes;
mod opening;
mod power;
mod sessions;
mod size;
mod trouble;
mod unreadable;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::task::sample;
use crate::task::state::{Ending, Event, State};
use crate::task::store::contract::each_contract_test;
use media::{Dice, FakeDisk};

const AMPLE: Limits =
    Limits { running_tasks: 1000, queued_tasks: 1000, kept_tasks: 100_000, kept_bytes: 1 << 40, creates: None };

/// On a disk that never waits: what a commit costs there is not what the contract is about.
fn fresh() -> Arc<dyn Store> {
    let file = File::on("folder".into(), Box::new(FakeDisk::default())).unwrap();
    Arc::new(DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap())
}

each_contract_test!(fresh());

fn owner() -> Owner {
    sample::owner("acme", "alice")
}

fn new_task() -> Task {
    sample::task(owner(), Clock::system().now(), std::time::Duration::from_secs(3600))
}

/// All of a record, to compare it.
fn all_of(task: &Task) -> String {
    crate::task::codec::encode(task)
}

fn ended(task: &Task) -> Task {
    let state = task.state.clone().apply(Event::End(Ending::Returned { is_error: false }), task.created_at).unwrap();
    Task { state, ..task.clone() }
}
