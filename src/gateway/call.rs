//! One request of a client's in hand, and the forms in which it can be answered.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::mcp::version::ProtocolVersion;
use crate::oauth::secret::SubjectToken;
use crate::tenant::Caller;
use crate::upstream::Body;

use super::Route;

/// A request as the transport understood it.
#[derive(Debug)]
pub struct Call {
    /// The endpoint it came to.
    pub route: Arc<Route>,
    /// Who sends it.
    pub caller: Arc<Caller>,
    /// What they showed, where the upstream is addressed on their behalf.
    pub subject: Option<Arc<SubjectToken>>,
    /// The address of whoever asked, where that is known.
    pub peer: Option<IpAddr>,
    /// The session id, as it was sent.
    pub session: Option<String>,
    /// What the version header says.
    pub version: VersionHeader,
    /// The event after which a stream is to be resumed.
    pub last_event_id: Option<String>,
    /// Which kinds of answer the client takes.
    pub accept: Accept,
    /// Header fields that may be passed on.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// Kept until it has begun, so that a process which leaves refuses nothing that came before; what waits from then on
    /// is no reason to stay.
    pub placing: Option<TaskTrackerToken>,
}

/// The `MCP-Protocol-Version` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionHeader {
    /// Not there: clients before 2025-06-18 never send it.
    Absent,
    /// One that is spoken here.
    Known(ProtocolVersion),
    /// Anything else.
    Other(Box<str>),
}

impl VersionHeader {
    /// What it says; `None` without the header.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Known(version) => Some(version.as_str()),
            Self::Other(text) => Some(text),
        }
    }

    /// Whether it names a version of the modern era, spoken here or not.
    #[must_use]
    pub fn is_modern(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::Known(version) => !version.has_sessions(),
            Self::Other(text) => ProtocolVersion::is_modern_name(text),
        }
    }
}

/// Which kinds of answer a client takes; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// `application/json`
    pub json: bool,
    /// `text/event-stream`
    pub events: bool,
}

/// An answer that is not an error.
pub enum Answer {
    /// A notification or response was taken.
    Accepted,
    /// The session has ended.
    SessionEnded,
    /// One message; with the session's id when it opens one.
    Json {
        /// The message.
        message: Bytes,
        /// The new session's id.
        session: Option<Arc<str>>,
    },
    /// One message, in pieces that follow each other.
    Pieces(Vec<Bytes>),
    /// One message, still arriving.
    JsonBody(Body),
    /// A stream of events.
    Events(Body),
}

impl Call {
    /// It has begun: no process refuses it any more because it leaves.
    pub(super) fn begins(&mut self) {
        self.placing = None;
    }

    /// Drops the header fields that repeat the body: in the era with sessions nobody compares the two.
    pub(super) fn forget_mirrors(&mut self) {
        let is_mirror = |name: &HeaderName| name.as_str().starts_with("mcp-");
        let mirrors: Vec<HeaderName> = self.headers.keys().filter(|name| is_mirror(name)).cloned().collect();
        for name in mirrors {
            self.headers.remove(name);
        }
    }

    /// Has what goes on in the caller's name go on with what they showed now.
    pub(super) fn note_subject(&self) {
        if let Some(subjects) = &self.route.subjects {
            subjects.note(self.caller.principal.digest(), self.subject.as_ref());
        }
    }

    /// The same call with one member of its batch as the body.
    #[must_use]
    pub fn member(&self, body: Bytes) -> Self {
        Self {
            route: Arc::clone(&self.route),
            caller: Arc::clone(&self.caller),
            subject: self.subject.clone(),
            peer: self.peer,
            session: self.session.clone(),
            version: self.version.clone(),
            last_event_id: None,
            accept: self.accept,
            headers: self.headers.clone(),
            body,
            // The batch has it.
            placing: None,
        }
    }
}

impl Answer {
    /// One message.
    #[must_use]
    pub fn json(message: Bytes) -> Self {
        Self::Json { message, session: None }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accepted => "Accepted",
            Self::SessionEnded => "SessionEnded",
            Self::Json { .. } => "Json",
            Self::Pieces(_) => "Pieces",
            Self::JsonBody(_) => "JsonBody",
            Self::Events(_) => "Events",
        })
    }
}
