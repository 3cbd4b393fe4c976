//! The state machine: what may happen to a task in each state, as a pure function. Dialects only render it.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::clock::Timestamp;
use crate::jsonrpc::Id;

/// Where a task stands.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Accepted, waiting for one of the tenant's places. The upstream has seen nothing.
    Queued,
    /// It has a place: the upstream works, or waits for answers. Without an unanswered question the status is `working`.
    Held(Asked),
    /// Over; nothing changes it any more (2025-11-25 tasks, "Task Status Lifecycle" 3).
    Ended(Ending),
}

/// How a task ended, neutral between the dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The upstream returned a result. `is_error`: the tool says that it failed (`failed` in the core dialect,
    /// `completed` in the extension).
    Returned {
        /// The result's own `isError`.
        is_error: bool,
    },
    /// The upstream answered with a JSON-RPC error, or the gateway gave up with one.
    Errored,
    /// The client cancelled it.
    Cancelled,
}

/// The status words that clients see in the core dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// `working`
    Working,
    /// `input_required`
    InputRequired,
    /// `completed`
    Completed,
    /// `failed`
    Failed,
    /// `cancelled`
    Cancelled,
}

/// The upstream's questions that have not been settled with it, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// Unanswered ones, and answered ones whose answer has not been posted upstream.
    pub questions: Vec<Question>,
    /// The number of the next question to be written to a client; numbers never repeat within a task.
    pub next_number: u32,
}

/// A request of the upstream to the client, inside a held call.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Names it towards clients, as `tg.<taskId>.<number>`; a new one each time it is asked again.
    pub number: u32,
    /// The upstream's own id for it.
    pub upstream_id: Id,
    /// Its method, for example `elicitation/create`.
    pub method: Box<str>,
    /// Its parameters as JSON text, as the upstream wrote them.
    pub params: Option<Box<str>>,
    /// When the upstream asked; `input_timeout` counts from here.
    pub asked_at: Timestamp,
    /// How far it has come.
    pub progress: Progress,
}

/// How far a question has come.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// On no stream.
    Waiting,
    /// Written to the stream of that number, unanswered.
    Claimed(u64),
    /// Answered; not yet posted upstream.
    Answered(Answer),
}

/// A client's answer, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The `result` member.
    Result(Box<str>),
    /// The `error` member.
    Error(Box<str>),
}

/// What can happen to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The tenant has a place for it.
    Start,
    /// The upstream asks. The machine gives the question its number.
    Ask {
        /// The upstream's id.
        upstream_id: Id,
        /// The method.
        method: Box<str>,
        /// The parameters as JSON text.
        params: Option<Box<str>>,
    },
    /// A stream takes a waiting question, before it writes it: exactly one does.
    Claim {
        /// The question.
        number: u32,
        /// The stream's number.
        stream: u64,
    },
    /// A stream closed: what it had claimed and was not answered waits again, under new numbers.
    Release {
        /// The stream's number.
        stream: u64,
    },
    /// A client answered a claimed question.
    Answer {
        /// The question.
        number: u32,
        /// What it said.
        answer: Answer,
    },
    /// The question is settled with the upstream: its answer was posted, it was withdrawn, or it timed out.
    Settle {
        /// The upstream's id.
        upstream_id: Id,
    },
    /// Something to tell people.
    Note(Box<str>),
    /// The held call is over.
    End(Ending),
}
