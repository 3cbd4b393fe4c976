//! What counts against which limit, for stores that count in this process.

use super::{Limits, Quota, QuotaReason, Usage};
use crate::task::Outcome;
use crate::task::state::{Answer, Asked, Progress, Question, State};

/// Where a new task may begin. Who refuses adds when room comes.
pub(super) fn admit(limits: &Limits, usage: &Usage) -> Result<State, Quota> {
    let quota = |reason, limit: usize| Quota { reason, limit: limit as u64, until_expiry: None };
    if usage.kept >= limits.kept_tasks {
        return Err(quota(QuotaReason::KeptTasks, limits.kept_tasks));
    }
    if usage.kept_bytes >= limits.kept_bytes {
        return Err(Quota { limit: limits.kept_bytes, ..quota(QuotaReason::KeptBytes, 0) });
    }
    if usage.running < limits.running_tasks {
        return Ok(State::Held(Asked::default()));
    }
    if usage.queued < limits.queued_tasks {
        return Ok(State::Queued);
    }
    // To a tenant without a queue, the word "queue" would explain nothing.
    Err(match limits.queued_tasks {
        0 => quota(QuotaReason::RunningTasks, limits.running_tasks),
        _ => quota(QuotaReason::QueuedTasks, limits.queued_tasks),
    })
}

/// What an outcome takes.
pub(super) fn outcome_bytes(outcome: Option<&Outcome>) -> u64 {
    outcome.map_or(0, |outcome| outcome.bytes() as u64)
}

/// What open questions and their answers take: as large as a peer makes them, so they count like results.
pub(super) fn question_bytes(state: &State) -> u64 {
    let bytes = |question: &Question| {
        let answer = match &question.progress {
            Progress::Waiting | Progress::Claimed(_) => 0,
            Progress::Answered(Answer::Result(text) | Answer::Error(text)) => text.len(),
        };
        question.method.len() + question.params.as_deref().map_or(0, str::len) + answer
    };
    state.questions().iter().map(bytes).sum::<usize>() as u64
}
