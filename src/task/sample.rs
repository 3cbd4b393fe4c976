//! Owners and tasks for tests: what a test does not name does not matter to it.

use std::sync::Arc;
use std::time::Duration;

use super::{Holder, Owner, State, Task, TaskId};
use crate::clock::Timestamp;

/// A caller without authentication, on the route `reports`.
pub(crate) fn owner(tenant: &str, subject: &str) -> Owner {
    Owner {
        tenant: tenant.into(),
        issuer: "".into(),
        subject: subject.into(),
        client: "".into(),
        principal: [0; 16],
        route: "reports".into(),
    }
}

/// A task that is not in a store yet; its deadline is the end of its ttl.
pub(crate) fn task(owner: Owner, created_at: Timestamp, ttl: Duration) -> Task {
    Task {
        id: TaskId::random(),
        owner: Arc::new(owner),
        tool: "report".into(),
        session: 7,
        progress_token: None,
        created_at,
        updated_at: created_at,
        ttl,
        poll_interval: Duration::from_secs(1),
        deadline: created_at.plus(ttl),
        state: State::Queued,
        status_message: None,
        holder: Holder::from_text("first"),
        epoch: 0,
        version: 0,
    }
}
