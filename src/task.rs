//! A task: the gateway's record of one held call, whoever made it and whichever dialect shows it.
//!
//! What may happen to a task is decided in [`state`], kept in a [`store`], and changed only through the [`ledger`].
//! Nothing here knows an upstream, a connection or a wire form.

pub mod codec;
pub mod dialect;
pub mod ledger;
pub mod outline;
#[cfg(test)]
pub(crate) mod sample;
pub mod state;
pub mod store;
pub mod sweeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Timestamp;

pub use ledger::{ApplyError, Finish, Hold, Ledger, NewTask, Observer, Transition};
pub use state::{Answer, Asked, Ending, Event, Progress, Question, Refused, State, Status};
pub use store::{Limits, Orphan, Position, Quota, QuotaReason, Step, Store, StoreError, Usage};

/// A task's id: a version 4 UUID, 122 random bits (2025-11-25 tasks, "Task IDs"; "Security Considerations").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(Uuid);

impl TaskId {
    /// Before every other in order; nobody's.
    pub(crate) const LEAST: Self = Self(Uuid::nil());

    /// A new id that nobody can guess.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Its 16 bytes, for keys.
    pub(crate) const fn bytes(self) -> [u8; 16] {
        *self.0.as_bytes()
    }

    /// Reads an id in the one spelling in which it was given out; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let id = Self(Uuid::try_parse(text).ok()?);
        let mut spelt = Uuid::encode_buffer();
        (id.0.hyphenated().encode_lower(&mut spelt) == text).then_some(id)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// To whom a task belongs. Two callers share tasks only when every member is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The group whose quotas count.
    pub tenant: Arc<str>,
    /// Who vouched for the caller; empty for API keys and unauthenticated callers.
    pub issuer: Arc<str>,
    /// The caller's name within the issuer.
    pub subject: Arc<str>,
    /// The OAuth client, where there is one.
    pub client: Arc<str>,
    /// The principal's digest: the names alone don't tell a key from a token.
    pub principal: [u8; 16],
    /// The route on which the task was made; it does not exist on any other.
    pub route: Arc<str>,
}

/// The number of a downstream session, inside its sealed token.
pub type SessionNumber = u128;

/// Names one life of one process: who holds calls. A process that starts again is somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(Arc<str>);

impl Holder {
    /// A life that begins now, of the replica of that name.
    #[must_use]
    pub fn begin(replica: &str) -> Self {
        Self(format!("{replica}.{}", Uuid::new_v4().simple()).into())
    }

    /// As it was written.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// No process: its lease is always over.
    #[must_use]
    pub fn nobody() -> Self {
        Self::from_text("")
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One task. A stored record is never changed in place: a change makes a new one with the next `version`.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// The tool that was called.
    pub tool: Arc<str>,
    /// The session that made it; questions go to its GET stream first.
    pub session: SessionNumber,
    /// The client's own progress token as JSON text, with its type (2025-11-25 tasks, "Task Progress").
    pub progress_token: Option<Box<str>>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its status or status message last changed.
    pub updated_at: Timestamp,
    /// How long it is kept, from creation.
    pub ttl: Duration,
    /// How often the client is asked to poll.
    pub poll_interval: Duration,
    /// When the held call is given up; queue and questions included.
    pub deadline: Timestamp,
    /// Where it stands.
    pub state: State,
    /// For people: progress, or why it failed.
    pub status_message: Option<Box<str>>,
    /// Who holds the call.
    pub holder: Holder,
    /// Counts the holders: what an earlier one still writes is void.
    pub epoch: u64,
    /// Counts changes; the store's compare-and-set goes by it.
    pub version: u64,
}

impl Task {
    /// When the record goes, from get and list alike.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.created_at.plus(self.ttl)
    }
}

/// What the upstream said in the end, kept byte for byte and apart from the record, so that polls never touch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The JSON text of the `result`.
    Result(Arc<str>),
    /// The JSON text of the `error`.
    Error(Arc<str>),
}

impl Outcome {
    /// The size that counts against `kept_bytes`.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Result(text) | Self::Error(text) => text.len(),
        }
    }
}
