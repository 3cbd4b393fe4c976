//! What can be wrong with a message, and the error object that says so.

use serde::Serialize;
use serde_json::value::RawValue;

use super::raw_string;

/// The error codes in use, by their JSON-RPC or MCP names.
pub mod code {
    /// Not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON, but not a usable message or session.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method is not served here.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are unusable; also unknown tasks and tools.
    pub const INVALID_PARAMS: i64 = -32602;
    /// A fault of the gateway or the upstream.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// A header and the body disagree (2026-07-28 transports, `HeaderMismatch`).
    pub const HEADER_MISMATCH: i64 = -32020;
    /// The client lacks a capability that the request needs (2026-07-28 basic, `MissingRequiredClientCapability`).
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// The version is not served (2026-07-28 basic, `UnsupportedProtocolVersion`).
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// Over a quota or rate. Outside the range that JSON-RPC and MCP reserve.
    pub const TOO_MANY_REQUESTS: i64 = 429;
}

/// Why bytes are not one usable JSON-RPC message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Not JSON in UTF-8; the text says where.
    #[error("not valid JSON: {0}")]
    Syntax(String),
    /// JSON, but not a message.
    #[error("{0}")]
    Invalid(&'static str),
    /// JSON, but a member is repeated or of the wrong type; the text says which.
    #[error("{0}")]
    Member(String),
    /// An array of messages.
    #[error("batches are not part of this protocol version")]
    Batch,
}

impl Defect {
    pub(super) fn from_serde(error: &serde_json::Error) -> Self {
        if error.is_data() { Self::Member(error.to_string()) } else { Self::Syntax(error.to_string()) }
    }

    /// The JSON-RPC code for this defect.
    #[must_use]
    pub fn code(&self) -> i64 {
        match self {
            Self::Syntax(_) => code::PARSE_ERROR,
            Self::Invalid(_) | Self::Member(_) | Self::Batch => code::INVALID_REQUEST,
        }
    }
}

/// A JSON-RPC error object that the gateway itself makes.
#[derive(Debug, Clone)]
pub struct ErrorObject {
    /// One of [`code`].
    pub code: i64,
    /// One sentence: what happened and what to do.
    pub message: String,
    /// The `data` member, already JSON.
    pub data: Option<Box<RawValue>>,
}

impl ErrorObject {
    /// An error without `data`.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Adds `data`.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }

    /// The object as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let message = raw_string(&self.message);
        match &self.data {
            Some(data) => format!("{{\"code\":{},\"message\":{message},\"data\":{}}}", self.code, data.get()),
            None => format!("{{\"code\":{},\"message\":{message}}}", self.code),
        }
    }
}
