//! The one error that a client can see, whoever's fault it is, and what each kind means on the wire.
//!
//! A rejection never shows internal addresses, credentials or arguments; what the log gets is its `source`.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::jsonrpc::{self, Defect, ErrorObject, Id, code};
use crate::mcp::envelope;
use crate::mcp::version::ProtocolVersion;
use crate::task::store::{Quota, QuotaReason, StoreError};
use crate::task::{Status, TaskId};
use crate::upstream;

/// Why a call got no answer of the kind it asked for, and which request that was.
#[derive(Debug)]
pub struct Rejection {
    /// The request, where its id could be read.
    pub id: Option<Id>,
    /// Why.
    pub kind: Kind,
}

/// Whose fault it is and what they can do about it.
#[derive(Debug)]
pub enum Kind {
    /// The body is not one JSON-RPC message.
    Malformed(Defect),
    /// The message is one, but can't be taken here and now.
    Unusable(&'static str),
    /// The session is unknown, ended or somebody else's (2025-11-25 transports, "Session Management" 3).
    NoSession,
    /// The method, or this use of it, is not offered on this session.
    NotServed(&'static str),
    /// The method does not exist in the modern era, or not on this server.
    NoMethod,
    /// The claims of a modern request are missing or malformed.
    Envelope(envelope::Defect),
    /// A header and the body disagree (2026-07-28 transports, "Server validation").
    HeaderMismatch(Box<str>),
    /// The client did not declare what this request needs (2026-07-28 basic, "Client capabilities").
    MissingCapability {
        /// What would do, as a `ClientCapabilities` object in JSON.
        required: Cow<'static, str>,
        /// What happened.
        message: &'static str,
    },
    /// A version of the modern era that is not spoken here (2026-07-28 basic, "Version negotiation").
    Version(Box<str>),
    /// The parameters are wrong; also unknown cursors.
    Params(&'static str),
    /// An answer to a question is none; the text names the question's key and says why.
    Response(Box<str>),
    /// The task is unknown, somebody else's or expired: one answer, in the same words. The id is for the audit log.
    NoTask(Option<TaskId>),
    /// The route denies the tool: to the client it does not exist. The name is for the audit log.
    UnknownTool(Box<str>),
    /// The caller's credential lacks scopes. All that this request needs, separated by spaces: what the caller has of them
    /// may be lost when they ask for more (RFC 6750, 3.1).
    Scopes(Box<str>),
    /// `tasks/result` of a cancelled task.
    Cancelled(TaskId),
    /// Over one of the tenant's limits.
    Quota {
        /// The limit's name.
        reason: &'static str,
        /// The limit.
        limit: u64,
        /// When it may be worth trying again.
        retry_after: Duration,
    },
    /// Over a request or poll rate.
    Rate {
        /// Which rate.
        reason: &'static str,
        /// When the next one is admitted.
        retry_after: Duration,
    },
    /// The upstream refused a modern request, or the session that it was to be translated on, unread, since it speaks the
    /// other era now. Never told: the request is sent once more, in the other way.
    OtherEra,
    /// Only a replica could serve it that can't be reached now; nothing was done. When that may be known to be back or gone.
    Away(Duration),
    /// The upstream, the store or the gateway itself failed.
    Fault(Fault),
    /// The upstream says, in these words, that it has no such method; to a modern client (JSON text of the `error`).
    UpstreamNoMethod(Box<str>),
    /// The upstream does not take what the client itself showed it: told as it was said, to be read by whoever it concerns.
    Denied(Box<upstream::Denied>),
    /// The upstream's own JSON-RPC error, unchanged.
    Upstream {
        /// The status it came with.
        status: StatusCode,
        /// The `error` member as JSON text.
        error: Box<str>,
    },
}

/// A failure behind the gateway: `data.reason` of a -32603.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was sent: the upstream could not be reached.
    UpstreamUnreachable,
    /// Nothing was sent: there are no credentials for the upstream.
    Credentials,
    /// It answered, but not as the protocol says.
    UpstreamProtocol,
    /// Its answer is longer than the gateway reads.
    UpstreamTooLarge,
    /// It went away; whether the tool ran is not known.
    OutcomeUnknown,
    /// The process that held the call is gone; whether the tool ran is not known.
    ReplicaLost,
    /// The server that the call was for is no longer configured. `started`: it may have seen the call.
    NoRoute {
        /// Whether it may have seen the call.
        started: bool,
    },
    /// The deadline passed. `started`: the upstream had seen the call.
    Deadline {
        /// Whether the upstream had seen the call.
        started: bool,
    },
    /// Nobody answered the upstream's question in time.
    InputTimeout,
    /// The gateway stopped.
    Shutdown,
    /// The store failed.
    Store,
    /// What the store has of the task is spoilt.
    Spoilt,
}

impl Fault {
    /// The word in `data.reason`, metrics and the audit log.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UpstreamUnreachable | Self::Credentials | Self::NoRoute { started: false } => "upstream_unreachable",
            Self::UpstreamProtocol | Self::UpstreamTooLarge => "upstream_protocol",
            Self::OutcomeUnknown | Self::NoRoute { started: true } => "outcome_unknown",
            Self::ReplicaLost => "replica_lost",
            Self::Deadline { .. } => "deadline",
            Self::InputTimeout => "input_timeout",
            Self::Shutdown => "shutdown",
            Self::Store | Self::Spoilt => "store",
        }
    }

    /// What happened and what to do, for people.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::UpstreamUnreachable => {
                "The server behind the gateway can't be reached; nothing was run. Try again later."
            }
            Self::Credentials => {
                "The gateway has no credentials that are good for the server behind it. If they come from your own token, \
                 call again with a new one."
            }
            Self::UpstreamProtocol => "The server behind the gateway gave an answer that the protocol does not allow.",
            Self::UpstreamTooLarge => {
                "The answer of the server behind the gateway is larger than the gateway takes. Ask for less at a time."
            }
            Self::OutcomeUnknown => {
                "The connection to the server behind the gateway was lost; whether the call took effect is not known."
            }
            Self::ReplicaLost => {
                "The replica of the gateway that held the call is gone; whether the call took effect is not known."
            }
            Self::NoRoute { started: false } => {
                "The gateway no longer serves the server that the call was for; nothing was run."
            }
            Self::NoRoute { started: true } => {
                "The gateway no longer serves the server that the call was for; whether the call took effect is not known."
            }
            Self::Deadline { .. } => "The call took longer than the gateway's deadline for it and was cancelled.",
            Self::InputTimeout => "Nobody answered the server's question in time.",
            Self::Shutdown => "The gateway is shutting down. Try again later.",
            Self::Store => "The gateway can't reach its task store. Try again later.",
            Self::Spoilt => {
                "What the gateway has kept of this task is damaged and can't be read any more; asking again won't help."
            }
        }
    }

    /// The error object.
    #[must_use]
    pub fn to_error(self) -> ErrorObject {
        #[derive(Serialize)]
        struct Data {
            reason: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            started: Option<bool>,
        }
        let started = if let Self::Deadline { started } = self { Some(started) } else { None };
        ErrorObject::new(code::INTERNAL_ERROR, self.message()).with_data(&Data { reason: self.reason(), started })
    }
}

impl From<&upstream::Error> for Fault {
    fn from(error: &upstream::Error) -> Self {
        match error {
            upstream::Error::Connect(_) | upstream::Error::SessionGone => Self::UpstreamUnreachable,
            upstream::Error::Lost(_) => Self::OutcomeUnknown,
            upstream::Error::TooLarge(_) => Self::UpstreamTooLarge,
            upstream::Error::Credentials(_) => Self::Credentials,
            upstream::Error::Protocol(_)
            | upstream::Error::Status(_)
            | upstream::Error::Denied(_)
            | upstream::Error::Refused { .. } => Self::UpstreamProtocol,
        }
    }
}

impl From<Kind> for Rejection {
    fn from(kind: Kind) -> Self {
        Self { id: None, kind }
    }
}

impl From<Fault> for Kind {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<upstream::Error> for Kind {
    /// An upstream's 404 on a session that is private to the client is passed on: the client initialises anew.
    fn from(error: upstream::Error) -> Self {
        match error {
            upstream::Error::SessionGone => Self::NoSession,
            upstream::Error::Refused { status, error } => Self::Upstream { status, error },
            upstream::Error::Denied(denied) if denied.is_for_client => Self::Denied(denied),
            other => {
                tracing::warn!(error = %Chain(&other), "upstream failed");
                Self::Fault(Fault::from(&other))
            }
        }
    }
}

impl From<StoreError> for Kind {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Quota(Quota { reason, limit, until_expiry }) => {
                let retry_after = match reason {
                    // The first task that goes makes room for one. Of bytes it may hold too few: then the next answer says more.
                    QuotaReason::KeptTasks | QuotaReason::KeptBytes => until_expiry.unwrap_or(QUOTA_RETRY),
                    QuotaReason::Creates => until_expiry.unwrap_or(QUOTA_RETRY).max(QUOTA_RETRY / 1000),
                    QuotaReason::RunningTasks | QuotaReason::QueuedTasks => QUOTA_RETRY,
                };
                Self::Quota { reason: reason.as_str(), limit, retry_after }
            }
            // Told by the ledger, once for each task.
            StoreError::Spoilt(_) => Self::Fault(Fault::Spoilt),
            known if known.is_known() => Self::Fault(Fault::Store),
            other => {
                tracing::error!(error = %Chain(&other), "store failed");
                Self::Fault(Fault::Store)
            }
        }
    }
}

/// When a full quota is worth another try, where nobody can say: places become free as calls, sessions and streams end. It may
/// be the next moment or hours from now. So this is the least that makes sense, a client's usual pace of polls, and no
/// promise.
pub const QUOTA_RETRY: Duration = Duration::from_secs(1);

impl Rejection {
    /// The HTTP status (design: errors).
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.kind {
            Kind::Malformed(_)
            | Kind::Unusable(_)
            | Kind::Envelope(_)
            | Kind::HeaderMismatch(_)
            | Kind::MissingCapability { .. }
            | Kind::Version(_) => StatusCode::BAD_REQUEST,
            Kind::NoMethod | Kind::UpstreamNoMethod(_) => StatusCode::NOT_FOUND,
            Kind::NoSession => StatusCode::NOT_FOUND,
            Kind::Rate { .. } => StatusCode::TOO_MANY_REQUESTS,
            Kind::Scopes(_) => StatusCode::FORBIDDEN,
            Kind::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
            // No request was asked that could be answered with a message in a 200.
            Kind::Fault(Fault::Shutdown) if self.id.is_none() => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Fault(_) if self.id.is_none() => StatusCode::BAD_GATEWAY,
            Kind::Upstream { status, .. } if is_passed_on(*status) => *status,
            Kind::Denied(denied) => denied.status,
            Kind::Upstream { .. }
            | Kind::NotServed(_)
            | Kind::NoTask(_)
            | Kind::UnknownTool(_)
            | Kind::Params(_)
            | Kind::Response(_)
            | Kind::Cancelled(_)
            | Kind::Quota { .. }
            | Kind::OtherEra
            | Kind::Fault(_) => StatusCode::OK,
        }
    }

    /// Whether the upstream itself answered with this error.
    #[must_use]
    pub fn is_upstreams_own(&self) -> bool {
        matches!(self.kind, Kind::Upstream { .. } | Kind::UpstreamNoMethod(_) | Kind::Denied(_))
    }

    /// What `Retry-After` says, if the status calls for it.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Kind::Rate { retry_after, .. } | Kind::Away(retry_after) = self.kind { Some(retry_after) } else { None }
    }

    /// The response message.
    #[must_use]
    pub fn to_message(&self) -> bytes::Bytes {
        if let Kind::Upstream { error, .. } | Kind::UpstreamNoMethod(error) = &self.kind {
            return jsonrpc::raw_error_response(self.id.as_ref(), error);
        }
        jsonrpc::error_response(self.id.as_ref(), &self.kind.to_error())
    }
}

impl Kind {
    /// Too many plain calls wait for the route's upstream.
    #[must_use]
    pub fn queue_full(route: &super::Route) -> Self {
        let limit = u64::try_from(route.places.plain_queue()).unwrap_or(u64::MAX);
        Self::Quota { reason: "upstream_queue", limit, retry_after: QUOTA_RETRY }
    }

    /// The same rejection as the answer to a request.
    #[must_use]
    pub fn answering(self, id: &Id) -> Rejection {
        Rejection { id: Some(id.clone()), kind: self }
    }

    /// The error object.
    #[must_use]
    pub fn to_error(&self) -> ErrorObject {
        let millis = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1);
        match self {
            Self::Malformed(defect) => ErrorObject::new(defect.code(), defect.to_string()),
            Self::Unusable(message) => ErrorObject::new(code::INVALID_REQUEST, *message),
            Self::NoSession => {
                ErrorObject::new(code::INVALID_REQUEST, "The session is unknown or has ended; initialize a new one.")
            }
            Self::NotServed(message) => ErrorObject::new(code::METHOD_NOT_FOUND, *message),
            Self::NoMethod => ErrorObject::new(code::METHOD_NOT_FOUND, "Method not found"),
            Self::Envelope(defect) => ErrorObject::new(code::INVALID_PARAMS, defect.to_string()),
            Self::HeaderMismatch(what) => ErrorObject::new(code::HEADER_MISMATCH, &**what),
            Self::MissingCapability { required, message } => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Data<'a> {
                    required_capabilities: &'a RawValue,
                }
                let error = ErrorObject::new(code::MISSING_CAPABILITY, *message);
                match serde_json::from_str(required) {
                    Ok(required_capabilities) => error.with_data(&Data { required_capabilities }),
                    Err(_) => error,
                }
            }
            Self::Version(requested) => {
                #[derive(Serialize)]
                struct Data<'a> {
                    supported: [&'static str; 1],
                    requested: &'a str,
                }
                let supported = [ProtocolVersion::LATEST_MODERN.as_str()];
                ErrorObject::new(code::UNSUPPORTED_VERSION, "This protocol version is not served")
                    .with_data(&Data { supported, requested })
            }
            Self::Params(message) => ErrorObject::new(code::INVALID_PARAMS, *message),
            Self::Response(message) => ErrorObject::new(code::INVALID_PARAMS, &**message),
            Self::NoTask(_) => ErrorObject::new(code::INVALID_PARAMS, "Task not found"),
            Self::UnknownTool(_) => ErrorObject::new(code::INVALID_PARAMS, "Unknown tool"),
            Self::Scopes(_) => ErrorObject::new(code::INVALID_REQUEST, "The credentials lack scopes that this needs"),
            Self::Cancelled(id) => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Data {
                    task_id: String,
                    status: &'static str,
                }
                let data = Data { task_id: id.to_string(), status: Status::Cancelled.as_str() };
                ErrorObject::new(code::INVALID_PARAMS, "Task was cancelled").with_data(&data)
            }
            Self::Quota { reason, limit, retry_after } => {
                ErrorObject::new(code::TOO_MANY_REQUESTS, "A limit of this tenant is reached; try again later.")
                    .with_data(&Limited { reason, limit: Some(*limit), retry_after_ms: millis(retry_after) })
            }
            Self::Rate { reason, retry_after } => {
                ErrorObject::new(code::TOO_MANY_REQUESTS, "Too many requests; slow down.").with_data(&Limited {
                    reason,
                    limit: None,
                    retry_after_ms: millis(retry_after),
                })
            }
            Self::Away(retry_after) => {
                let message = "The replica of the gateway that has this session can't be reached; nothing was done. Try again later.";
                ErrorObject::new(code::INTERNAL_ERROR, message).with_data(&Limited {
                    reason: Fault::ReplicaLost.reason(),
                    limit: None,
                    retry_after_ms: millis(retry_after),
                })
            }
            Self::OtherEra => Fault::UpstreamUnreachable.to_error(),
            Self::Fault(fault) => fault.to_error(),
            Self::Upstream { .. } | Self::UpstreamNoMethod(_) | Self::Denied(_) => {
                ErrorObject::new(code::INTERNAL_ERROR, Fault::UpstreamProtocol.message())
            }
        }
    }
}

/// Whether an upstream's status means the same to the client: others, such as 404, would say something of the gateway.
fn is_passed_on(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 405 | 406 | 409 | 413 | 415 | 422 | 429)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limited<'a> {
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    retry_after_ms: u64,
}

/// An error with all its sources, for the log.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}
