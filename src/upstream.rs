//! Towards MCP servers: one trait, a file for each transport.
//!
//! An upstream carries whole JSON-RPC messages and opaque bodies. It knows sessions and protocol versions of its own
//! hop, and nothing of tasks, callers or quotas.

pub mod credentials;
pub mod http;
pub mod messages;
pub mod stdio;

use std::fmt;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderValue, StatusCode};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::mpsc;

use crate::jsonrpc::Id;
use crate::mcp::version::ProtocolVersion;
use crate::oauth::secret::SubjectToken;

/// A body that is passed on as it comes.
pub type Body = UnsyncBoxBody<Bytes, Error>;

/// One conversation with an upstream: what its transport calls a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// The transport's own name for the session; `None` where the server gave none.
    pub id: Option<Arc<str>>,
    /// The version negotiated on this hop.
    pub version: ProtocolVersion,
    /// On whose behalf its messages are, where the upstream's credentials depend on that.
    pub subject: Option<Arc<SubjectToken>>,
}

impl SessionKey {
    /// The same conversation, with messages on behalf of another.
    #[must_use]
    pub fn on_behalf_of(mut self, subject: Option<&Arc<SubjectToken>>) -> Self {
        self.subject = subject.cloned();
        self
    }

    /// Whether a notification stops a request there; else only the end of its connection does.
    #[must_use]
    pub fn is_told_of_cancels(&self) -> bool {
        self.version.has_sessions() || self.id.is_some()
    }
}

/// A session that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Names it from now on.
    pub session: SessionKey,
    /// The `result` of `initialize` as JSON text.
    pub result: Box<str>,
}

/// A message for the upstream.
#[derive(Debug)]
pub struct Outgoing {
    /// What it is.
    pub kind: Kind,
    /// The whole message, as bytes to be sent unchanged.
    pub body: Bytes,
    /// Header fields of the client's that may be passed on; empty on transports without any.
    pub headers: HeaderMap,
}

/// What a message is, as far as transports must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Expects an answer with this id.
    Request {
        /// The id as it is in `Outgoing::body`.
        id: Id,
        /// `params._meta.progressToken` as JSON text, so that shared pipes can attribute progress.
        progress_token: Option<Box<str>>,
    },
    /// A notification or a response: nothing comes back.
    OneWay,
}

/// What comes back for a message.
pub enum Reply {
    /// A notification or response was taken.
    Accepted,
    /// One JSON-RPC message as one body, not yet read.
    Json(Body),
    /// A stream of server-sent events, not yet read.
    Events(Body),
    /// Whole messages as they come, the response last. Dropping the receiver does not cancel the request.
    Messages(mpsc::Receiver<Bytes>),
}

/// Messages of a session that belong to no request (the standalone stream).
pub enum Listening {
    /// A stream of server-sent events.
    Events(Body),
    /// Whole messages.
    Messages(mpsc::Receiver<Bytes>),
    /// The upstream has no such stream.
    NotOffered,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "Accepted",
            Self::Json(_) => "Json",
            Self::Events(_) => "Events",
            Self::Messages(_) => "Messages",
        })
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Events(_) => "Events",
            Self::Messages(_) => "Messages",
            Self::NotOffered => "NotOffered",
        })
    }
}

/// Why an upstream gave no usable answer. What the variants say is for logs; callers map the variant alone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was sent: the server could not be reached or started.
    #[error("the upstream could not be reached")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection or process ended after the message may have been seen, so its effect is unknown.
    #[error("the upstream went away before it had answered")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It answered, but not as the protocol says.
    #[error("the upstream broke the protocol: {0}")]
    Protocol(String),
    /// It sent a message that is longer than is read.
    #[error("the upstream sent a message that is longer than {0} bytes")]
    TooLarge(usize),
    /// It no longer knows the session.
    #[error("the upstream ended the session")]
    SessionGone,
    /// It answered with an HTTP status that says what is wrong, and with no message. Statuses from 500 on may be those of a
    /// proxy in between after the server has begun: they are [`Error::Lost`].
    #[error("{}", told_by(*.0))]
    Status(StatusCode),
    /// It did not take the credentials that were shown, or missed some: it has done nothing.
    #[error("{}", told_by(.0.status))]
    Denied(Box<Denied>),
    /// There are no credentials to show: nothing was sent.
    #[error("there are no credentials for the upstream")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It answered the message with an HTTP error status and a JSON-RPC error of its own.
    #[error("the upstream refused the message with HTTP status {status}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The `error` member as JSON text.
        error: Box<str>,
    },
}

/// What a server says about credentials: 401 or 403, and what it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The HTTP status.
    pub status: StatusCode,
    /// The values of `WWW-Authenticate`, unread.
    pub challenges: Vec<HeaderValue>,
    /// What was shown was the client's own, and so is the answer.
    pub is_for_client: bool,
}

/// What is wrong when something serves HTTP, but nothing at the path that it was asked for.
pub const NO_ENDPOINT: &str = "there is no MCP endpoint at this path (HTTP status 404)";

fn told_by(status: StatusCode) -> String {
    match status {
        StatusCode::NOT_FOUND => NO_ENDPOINT.to_owned(),
        status => format!("it answered with HTTP status {}", status.as_u16()),
    }
}

/// A server behind a route.
#[async_trait]
pub trait Upstream: fmt::Debug + Send + Sync {
    /// Opens a session: sends `initialize` with these `params` (JSON text) and reads its result. The caller sends
    /// `notifications/initialized` itself. The session's messages are on behalf of the subject, this one included.
    ///
    /// # Errors
    /// Any [`Error`]; nothing is left open then.
    async fn open(
        &self,
        params: &str,
        headers: HeaderMap,
        subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Opened, Error>;

    /// Asks a server of the modern era what it is: sends `server/discover` with these `params` (JSON text), which carry the
    /// claims. The key that comes back is [`Upstream::stateless`]; the `result` is whatever the server said, unread.
    ///
    /// # Errors
    /// Any [`Error`]. Servers of the other era refuse ([`Error::Refused`], [`Error::Status`]) or break the protocol
    /// ([`Error::Protocol`]), to which it belongs, on a pipe, to say nothing or to exit. [`Error::Connect`] and
    /// [`Error::Lost`] say nothing of the era.
    async fn discover(&self, params: &str, subject: Option<&Arc<SubjectToken>>) -> Result<Opened, Error>;

    /// What stands for the server where each message stands for itself. It is not a session and needs no closing. With an
    /// id, messages of all callers share one channel: their request ids must be unique among them, and what is given up
    /// must be cancelled by a notification. Without, each request has a stream of its own, and dropping that cancels it.
    fn stateless(&self) -> SessionKey;

    /// Sends a message on a session. Dropping the future or the reply sends no cancel; over HTTP it closes
    /// the connection, which some servers take for one.
    ///
    /// # Errors
    /// [`Error::Connect`] only when the server can't have seen the message.
    async fn send(&self, session: &SessionKey, message: Outgoing) -> Result<Reply, Error>;

    /// Takes the session's standalone stream, or resumes a stream after an event id of the upstream's.
    ///
    /// # Errors
    /// As [`Upstream::send`].
    async fn listen(&self, session: &SessionKey, last_event_id: Option<&str>) -> Result<Listening, Error>;

    /// Ends a session. Best effort; an unknown session is no error.
    async fn close(&self, session: &SessionKey);

    /// Whether the pieces of an answer have to be joined by whoever passes them on: a job of the transport's hands them over one at
    /// a time, so that more can be there only once others have run.
    fn needs_joining(&self) -> bool {
        true
    }

    /// Whether the sessions that it opens live and end with this process.
    fn binds_sessions(&self) -> bool {
        false
    }
}
