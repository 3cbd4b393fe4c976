//! What can go wrong between a client and a server.

use std::error::Error as StdError;
use std::fmt;

use http::StatusCode;

use crate::jsonrpc::{Defect, Object, string_value};
use crate::upstream::{self, NO_ENDPOINT};

use super::Era;

type Source = Box<dyn StdError + Send + Sync>;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was sent.
    #[error("the server could not be reached")]
    Connect(#[source] Source),
    /// The connection broke, or a server error came, after the server may have begun.
    #[error("the answer was lost")]
    Lost(#[source] Source),
    /// The server answered, but not as the protocol says.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// Something serves HTTP there, but nothing at this path.
    #[error("{NO_ENDPOINT}")]
    NoEndpoint,
    /// The server is of this era, and not of the one that was to be spoken.
    #[error("the server speaks only the {0} era of the protocol")]
    OtherEra(Era),
    /// The server asks for credentials, or for better ones.
    #[error("{}", asks_for(*.0))]
    Denied(StatusCode),
    /// There are no credentials to show.
    #[error("the login failed")]
    Login(#[source] Source),
    /// The server no longer knows the session.
    #[error("the server ended the session")]
    SessionGone,
    /// The server answered with a JSON-RPC error.
    #[error("the server answered with an error: {0}")]
    Server(ServerError),
    /// A task was asked of a server that has none.
    #[error("the server has no tasks for tools (protocol version {0}); call without a task")]
    NoTasks(&'static str),
    /// The task was cancelled, by whomever; with what the server says about it.
    #[error("the task was cancelled: {0}")]
    Cancelled(String),
    /// The server answered a call with its result where a task was asked for.
    #[error("the server ran the call at once instead of making a task")]
    NoHandle,
}

impl Error {
    pub(super) fn protocol(defect: &Defect) -> Self {
        Self::Protocol(format!("it sent a message that can't be read: {defect}"))
    }

    /// What went wrong with what caused it, on one line.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }

    /// Whether trying again may help.
    pub(super) const fn is_passing(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Lost(_))
    }
}

impl From<upstream::Error> for Error {
    fn from(error: upstream::Error) -> Self {
        match error {
            upstream::Error::Connect(source) => Self::Connect(source),
            upstream::Error::Lost(source) => Self::Lost(source),
            upstream::Error::Protocol(what) => Self::Protocol(what),
            upstream::Error::Status(StatusCode::NOT_FOUND) => Self::NoEndpoint,
            error @ (upstream::Error::TooLarge(_) | upstream::Error::Status(_)) => Self::Protocol(error.to_string()),
            upstream::Error::SessionGone => Self::SessionGone,
            upstream::Error::Denied(denied) => Self::Denied(denied.status),
            upstream::Error::Credentials(source) => Self::Login(source),
            upstream::Error::Refused { error, .. } => Self::Server(ServerError::read(&error)),
        }
    }
}

fn asks_for(status: StatusCode) -> &'static str {
    match status {
        StatusCode::FORBIDDEN => "the server does not let these credentials do this (HTTP status 403)",
        _ => "the server asks for credentials (HTTP status 401); --login gets them, --header shows them",
    }
}

/// A JSON-RPC error as the server wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// Its code; 0 where the server gave none that can be read.
    pub code: i64,
    /// Its message.
    pub message: String,
    /// The whole object as JSON text.
    pub json: String,
}

impl ServerError {
    pub(super) fn read(json: &str) -> Self {
        let error = Object::parse(json).unwrap_or_default();
        Self {
            code: error.get("code").and_then(|code| code.parse().ok()).unwrap_or_default(),
            message: error.get("message").and_then(string_value).unwrap_or_default().into_owned(),
            json: json.to_owned(),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}
