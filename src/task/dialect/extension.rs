//! The tasks extension of 2026-07-28.

use std::time::Duration;

use crate::task::Task;

/// `CreateTaskResult`: flat.
#[must_use]
pub fn create_result(task: &Task) -> String {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    format!(
        "{{\"resultType\":\"task\",\"taskId\":\"{}\",\"status\":\"{}\",\"createdAt\":\"{}\",\"lastUpdatedAt\":\"{}\",\"ttlMs\":{},\"pollIntervalMs\":{}}}",
        task.id,
        task.state.status().as_str(),
        task.created_at,
        task.updated_at,
        millis(task.ttl),
        millis(task.poll_interval),
    )
}
