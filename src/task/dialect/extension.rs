//! The tasks extension of the modern era: how it shows a record.

use std::time::Duration;

use crate::jsonrpc::{Object, raw_string};
use crate::task::{Outcome, State, Task};

/// `DetailedTask` without the discriminators.
#[must_use]
pub fn detailed(task: &Task, outcome: Option<&Outcome>) -> String {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).to_string();
    let status = match (&task.state, outcome) {
        (State::Ended(crate::task::Ending::Returned { .. }), _) => "completed",
        _ => task.state.status().as_str(),
    };
    let mut shown = Object::default();
    shown
        .set("taskId", raw_string(&task.id.to_string()))
        .set("status", raw_string(status))
        .set("createdAt", raw_string(&task.created_at.to_string()))
        .set("lastUpdatedAt", raw_string(&task.updated_at.to_string()))
        .set("ttlMs", millis(task.ttl))
        .set("pollIntervalMs", millis(task.poll_interval));
    match outcome {
        Some(Outcome::Result(result)) => shown.set("result", result.to_string()),
        Some(Outcome::Error(error)) => shown.set("error", error.to_string()),
        None => &mut shown,
    };
    shown.to_json()
}
