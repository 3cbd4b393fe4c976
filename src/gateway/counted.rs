//! Under which words of the metrics changes of tasks and rejections count.

use crate::metrics::Metrics;
use crate::metrics::label::{EndReason, RejectReason, TaskStatus};
use crate::task::{State, Status, Task, Transition};

use super::deliver::Deliveries;
use super::rejection::{Fault, Kind};

/// Counts a change of a task and tells clients of it.
pub(super) fn observe(metrics: &Metrics, deliveries: &Deliveries, transition: &Transition<'_>) {
    let Transition { task, from, to, reason } = *transition;
    let route = metrics.route(&task.owner.route);
    let Some(to) = to else { return };
    if from.is_none() {
        route.task_created();
    }
    if task.state.is_ended() {
        metrics.task_ended(label(to), end_reason(reason).unwrap_or(EndReason::UpstreamError));
        route.task_took(task.updated_at.since(task.created_at));
    }
    if from.is_some() {
        deliveries.notify_status(task);
    }
}

/// The label for a status.
fn label(status: Status) -> TaskStatus {
    match status {
        Status::Working => TaskStatus::Working,
        Status::InputRequired => TaskStatus::InputRequired,
        Status::Completed => TaskStatus::Completed,
        Status::Failed => TaskStatus::Failed,
        Status::Cancelled => TaskStatus::Cancelled,
    }
}

/// The label for where a task stands.
pub(super) fn task_status(task: &Task) -> TaskStatus {
    if task.state == State::Queued { TaskStatus::Queued } else { label(task.state.status()) }
}

/// The label for the ledger's word.
fn end_reason(reason: &str) -> Option<EndReason> {
    EndReason::ALL.iter().find(|end| end.as_str() == reason).copied()
}

/// Why a rejection counts as turned away; `None` for what is nobody's refusal.
#[must_use]
pub fn reject_reason(kind: &Kind) -> Option<RejectReason> {
    match kind {
        Kind::Malformed(_) => Some(RejectReason::Message),
        Kind::Unusable(_) => Some(RejectReason::Header),
        Kind::NoSession => Some(RejectReason::Session),
        Kind::Envelope(_) | Kind::MissingCapability { .. } => Some(RejectReason::Message),
        Kind::HeaderMismatch(_) | Kind::Version(_) => Some(RejectReason::Header),
        Kind::NotServed(_) | Kind::NoMethod | Kind::UnknownTool(_) => Some(RejectReason::Tool),
        Kind::NoTask(_) => Some(RejectReason::Task),
        Kind::Scopes(_) => Some(RejectReason::Scopes),
        Kind::Params(_) | Kind::Response(_) | Kind::Cancelled(_) => Some(RejectReason::Params),
        Kind::Quota { reason, .. } | Kind::Rate { reason, .. } => {
            RejectReason::ALL.iter().find(|known| known.as_str() == *reason).copied()
        }
        Kind::Fault(Fault::Shutdown) => Some(RejectReason::Stopping),
        Kind::Fault(_)
        | Kind::Away(_)
        | Kind::OtherEra
        | Kind::Denied(_)
        | Kind::Upstream { .. }
        | Kind::UpstreamNoMethod(_) => None,
    }
}

/// Whether a refusal is one of access, which is put on record.
#[must_use]
pub fn is_of_access(reason: RejectReason) -> bool {
    matches!(
        reason,
        RejectReason::Credentials
            | RejectReason::Scopes
            | RejectReason::Origin
            | RejectReason::Host
            | RejectReason::Session
            | RejectReason::Task
            | RejectReason::Lookups
            | RejectReason::Tool
    )
}

/// The task and the tool that a refused request named, each empty where it named none.
#[must_use]
pub fn named_in(kind: &Kind) -> (String, &str) {
    match kind {
        Kind::NoTask(Some(task)) => (task.to_string(), ""),
        Kind::UnknownTool(tool) => (String::new(), tool),
        _ => (String::new(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::super::held;
    use super::*;
    use crate::task::Finish;

    #[test]
    fn every_end_is_counted_under_its_own_word() {
        let faults = [
            Fault::UpstreamUnreachable,
            Fault::Credentials,
            Fault::UpstreamProtocol,
            Fault::UpstreamTooLarge,
            Fault::OutcomeUnknown,
            Fault::ReplicaLost,
            Fault::NoRoute { started: false },
            Fault::NoRoute { started: true },
            Fault::Deadline { started: true },
            Fault::InputTimeout,
            Fault::Shutdown,
            Fault::Store,
            Fault::Spoilt,
        ];
        let returned = |is_error| Finish::returned(is_error, "{}".into(), None).reason;
        let ends = [returned(false), returned(true), Finish::cancelled(None).reason, held::UPSTREAM_ERROR];
        for reason in faults.map(Fault::reason).into_iter().chain(ends) {
            assert_eq!(end_reason(reason).map(EndReason::as_str), Some(reason));
        }
    }
}
