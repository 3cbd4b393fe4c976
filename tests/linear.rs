//! Linearizability: what many callers are told of a task, wherever their requests land, must be what one after the other could
//! have been told. Histories are recorded from the stores in this process, and checked task by task.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic that says where"
)]

#[path = "linear/checker.rs"]
mod checker;
#[path = "linear/good_and_bad.rs"]
mod good_and_bad;
#[path = "linear/history.rs"]
mod history;
#[path = "linear/ledgers.rs"]
mod ledgers;
#[path = "linear/task.rs"]
mod task;
