//! Records as text, for stores outside of the process: JSON, since replicas of two versions may share a store while one
//! takes the place of the other. A member that is unknown is passed over, and one that a later version adds has a default.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::state::{Answer, Asked, Ending, Progress, Question, State};
use super::{Holder, Outcome, Owner, Task, TaskId};
use crate::clock::Timestamp;
use crate::jsonrpc::Id;

/// What was read is no record.
#[derive(Debug, thiserror::Error)]
#[error("a stored record can't be read")]
pub struct Malformed(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The record as text.
#[must_use]
pub fn encode(task: &Task) -> String {
    // Only maps with other keys than strings and failing implementations could fail, and there are none.
    serde_json::to_string(&Record::of(task)).unwrap_or_default()
}

/// The record that [`encode`] wrote.
///
/// # Errors
/// [`Malformed`]
pub fn decode(text: &[u8]) -> Result<Task, Malformed> {
    let record: Record<'_> = serde_json::from_slice(text).map_err(|error| Malformed(error.into()))?;
    record.into_task()
}

/// An outcome's kind as one byte; its text is kept as it is.
#[must_use]
pub const fn kind_of(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Result(_) => b'r',
        Outcome::Error(_) => b'e',
    }
}

/// The outcome of that kind and text.
///
/// # Errors
/// [`Malformed`] for a kind that there is not, and text that is no UTF-8.
pub fn outcome(kind: u8, text: &[u8]) -> Result<Outcome, Malformed> {
    let text: Arc<str> = std::str::from_utf8(text).map_err(|error| Malformed(error.into()))?.into();
    match kind {
        b'r' => Ok(Outcome::Result(text)),
        b'e' => Ok(Outcome::Error(text)),
        other => Err(Malformed(format!("{other} is no kind of outcome").into())),
    }
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    id: Cow<'a, str>,
    tenant: Cow<'a, str>,
    issuer: Cow<'a, str>,
    subject: Cow<'a, str>,
    client: Cow<'a, str>,
    principal: [u8; 16],
    route: Cow<'a, str>,
    tool: Cow<'a, str>,
    /// In two halves: JSON numbers of 128 bits are not for everybody.
    session: [u64; 2],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress_token: Option<Cow<'a, str>>,
    created_at: u64,
    updated_at: u64,
    /// Milliseconds, like all times here.
    ttl: u64,
    poll_interval: u64,
    deadline: u64,
    state: Stored<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
    holder: Cow<'a, str>,
    epoch: u64,
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored<'a> {
    Queued,
    Held {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        questions: Vec<StoredQuestion<'a>>,
        next_number: u32,
    },
    Returned {
        is_error: bool,
    },
    Errored,
    Cancelled,
}

#[derive(Serialize, Deserialize)]
struct StoredQuestion<'a> {
    number: u32,
    /// As JSON text.
    upstream_id: Cow<'a, str>,
    method: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Cow<'a, str>>,
    asked_at: u64,
    progress: StoredProgress<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredProgress<'a> {
    Waiting,
    Claimed(u64),
    Result(Cow<'a, str>),
    Error(Cow<'a, str>),
}

impl<'a> Record<'a> {
    fn of(task: &'a Task) -> Self {
        let Task { owner, .. } = task;
        Self {
            id: task.id.to_string().into(),
            tenant: (*owner.tenant).into(),
            issuer: (*owner.issuer).into(),
            subject: (*owner.subject).into(),
            client: (*owner.client).into(),
            principal: owner.principal,
            route: (*owner.route).into(),
            tool: (*task.tool).into(),
            session: halves(task.session),
            progress_token: task.progress_token.as_deref().map(Cow::Borrowed),
            created_at: task.created_at.as_millis(),
            updated_at: task.updated_at.as_millis(),
            ttl: millis(task.ttl),
            poll_interval: millis(task.poll_interval),
            deadline: task.deadline.as_millis(),
            state: Stored::of(&task.state),
            message: task.status_message.as_deref().map(Cow::Borrowed),
            holder: task.holder.as_str().into(),
            epoch: task.epoch,
            version: task.version,
        }
    }

    fn into_task(self) -> Result<Task, Malformed> {
        let id = TaskId::parse(&self.id).ok_or_else(|| Malformed("its id is none".into()))?;
        let owner = Owner {
            tenant: (*self.tenant).into(),
            issuer: (*self.issuer).into(),
            subject: (*self.subject).into(),
            client: (*self.client).into(),
            principal: self.principal,
            route: (*self.route).into(),
        };
        let [high, low] = self.session.map(u128::from);
        Ok(Task {
            id,
            owner: Arc::new(owner),
            tool: (*self.tool).into(),
            session: high << 64 | low,
            progress_token: self.progress_token.map(|token| (*token).into()),
            created_at: Timestamp::from_millis(self.created_at),
            updated_at: Timestamp::from_millis(self.updated_at),
            ttl: Duration::from_millis(self.ttl),
            poll_interval: Duration::from_millis(self.poll_interval),
            deadline: Timestamp::from_millis(self.deadline),
            state: self.state.into_state()?,
            status_message: self.message.map(|message| (*message).into()),
            holder: Holder::from_text(&self.holder),
            epoch: self.epoch,
            version: self.version,
        })
    }
}

impl<'a> Stored<'a> {
    fn of(state: &'a State) -> Self {
        match state {
            State::Queued => Self::Queued,
            State::Held(Asked { questions, next_number }) => {
                Self::Held { questions: questions.iter().map(StoredQuestion::of).collect(), next_number: *next_number }
            }
            State::Ended(Ending::Returned { is_error }) => Self::Returned { is_error: *is_error },
            State::Ended(Ending::Errored) => Self::Errored,
            State::Ended(Ending::Cancelled) => Self::Cancelled,
        }
    }

    fn into_state(self) -> Result<State, Malformed> {
        Ok(match self {
            Self::Queued => State::Queued,
            Self::Held { questions, next_number } => {
                let questions = questions.into_iter().map(StoredQuestion::into_question).collect::<Result<_, _>>()?;
                State::Held(Asked { questions, next_number })
            }
            Self::Returned { is_error } => State::Ended(Ending::Returned { is_error }),
            Self::Errored => State::Ended(Ending::Errored),
            Self::Cancelled => State::Ended(Ending::Cancelled),
        })
    }
}

impl<'a> StoredQuestion<'a> {
    fn of(question: &'a Question) -> Self {
        Self {
            number: question.number,
            upstream_id: question.upstream_id.as_json().into(),
            method: (*question.method).into(),
            params: question.params.as_deref().map(Cow::Borrowed),
            asked_at: question.asked_at.as_millis(),
            progress: match &question.progress {
                Progress::Waiting => StoredProgress::Waiting,
                Progress::Claimed(stream) => StoredProgress::Claimed(*stream),
                Progress::Answered(Answer::Result(text)) => StoredProgress::Result((**text).into()),
                Progress::Answered(Answer::Error(text)) => StoredProgress::Error((**text).into()),
            },
        }
    }

    fn into_question(self) -> Result<Question, Malformed> {
        let upstream_id = Id::from_json(&self.upstream_id).map_err(|_| Malformed("a question's id is none".into()))?;
        Ok(Question {
            number: self.number,
            upstream_id,
            method: (*self.method).into(),
            params: self.params.map(|params| (*params).into()),
            asked_at: Timestamp::from_millis(self.asked_at),
            progress: match self.progress {
                StoredProgress::Waiting => Progress::Waiting,
                StoredProgress::Claimed(stream) => Progress::Claimed(stream),
                StoredProgress::Result(text) => Progress::Answered(Answer::Result((*text).into())),
                StoredProgress::Error(text) => Progress::Answered(Answer::Error((*text).into())),
            },
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The two halves of a number, the high one first, as records keep it.
#[expect(clippy::cast_possible_truncation, reason = "each half is cut out of it")]
pub(crate) const fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

#[cfg(test)]
mod tests;
