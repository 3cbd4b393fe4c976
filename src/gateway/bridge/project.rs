//! What a modern upstream answered, as a legacy client takes it.

use bytes::Bytes;
use http::StatusCode;

use crate::jsonrpc::{self, Message, Outcome, Raw};
use crate::mcp::input::{ResultType, is_typed};
use crate::mcp::method::Method;
use crate::mcp::project::{error_for_legacy, result_for_legacy};

use crate::gateway::exchange::End;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::relay::{Rewrite, Rewritten};
use crate::gateway::schemas::without_invalid;

use super::request::Sent;

/// How the answers to one call are changed.
pub(super) struct Projection {
    /// What the route says of a result.
    pub(super) rewrite: Option<Rewrite>,
    /// The client sees the tool's output wrapped into an object.
    pub(super) wraps: bool,
}

/// Whether a call ended with a result that only a server of the other era gives.
pub(super) fn is_untyped(end: &End) -> bool {
    let End::Answered(message) = end else { return false };
    matches!(Message::parse(message), Ok(Message::Response { outcome: Outcome::Result(result), .. }) if !is_typed(result.get()))
}

/// The error that a call ended with.
fn error_of(end: &End) -> Option<Box<str>> {
    match end {
        End::Refused { error, .. } => Some(error.clone()),
        End::Answered(message) => match Message::parse(message) {
            Ok(Message::Response { outcome: Outcome::Error(error), .. }) => Some(error.get().into()),
            _ => None,
        },
        End::SessionGone | End::Denied(_) | End::Fault(_) => None,
    }
}

impl Projection {
    /// The answer to the client when the upstream has ended the call.
    pub(super) fn ended(&self, sent: &Sent, end: End) -> Result<Bytes, Kind> {
        if let Some(error) = error_of(&end) {
            // No code of the other era is passed on.
            let error = error_for_legacy(&error).into();
            return Err(Kind::Upstream { status: StatusCode::OK, error });
        }
        match end {
            End::Answered(message) => match Message::parse(&message) {
                Ok(Message::Response { outcome: Outcome::Result(result), .. }) => self.result(sent, result.get()),
                _ => Err(Fault::UpstreamProtocol.into()),
            },
            End::SessionGone => Err(Kind::NoSession),
            End::Denied(denied) => Err(Kind::Denied(denied)),
            End::Fault(fault) => Err(fault.into()),
            End::Refused { .. } => Err(Fault::UpstreamProtocol.into()),
        }
    }

    fn result(&self, sent: &Sent, result: &str) -> Result<Bytes, Kind> {
        let kind = ResultType::of(result);
        if kind != ResultType::Complete {
            tracing::warn!(?kind, "the upstream gave a result of a type that was not asked for");
            return Err(Fault::UpstreamProtocol.into());
        }
        let valid = if *sent.method == *Method::ToolsList.as_str() { without_invalid(result) } else { None };
        let result = valid.as_deref().unwrap_or(result);
        let projected = result_for_legacy(&sent.method, result, self.wraps).ok_or(Fault::UpstreamProtocol)?;
        let raw: Raw<'_> = serde_json::from_str(&projected).map_err(|_| Fault::UpstreamProtocol)?;
        Ok(match self.rewrite.as_ref().map(|rewrite| rewrite(&Outcome::Result(raw))) {
            None | Some(Rewritten::Same) => jsonrpc::response(&sent.id, &projected),
            Some(Rewritten::Result(result)) => jsonrpc::response(&sent.id, &result),
            Some(Rewritten::Error(error)) => jsonrpc::raw_error_response(Some(&sent.id), &error),
        })
    }
}
