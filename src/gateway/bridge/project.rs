//! What a modern upstream answered, as a legacy client takes it.

use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;

use crate::jsonrpc::{self, Message, Object, Outcome, raw_string};
use crate::mcp::input::{ResultType, is_typed};
use crate::mcp::project::{HopError, error_for_legacy, result_for_legacy};

use crate::gateway::exchange::End;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::relay::{Rewrite, Rewritten};

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
        End::SessionGone | End::Fault(_) => None,
    }
}

impl Projection {
    /// The answer to the client when the upstream has ended the call.
    pub(super) fn ended(&self, sent: &Sent, end: End) -> Result<Bytes, Kind> {
        if let Some(error) = error_of(&end) {
            return failed(sent, &error);
        }
        match end {
            End::Answered(message) => match Message::parse(&message) {
                Ok(Message::Response { outcome: Outcome::Result(result), .. }) => self.result(sent, result.get()),
                _ => Err(Fault::UpstreamProtocol.into()),
            },
            End::SessionGone => Err(Kind::NoSession),
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
        let projected = result_for_legacy(&sent.method, result, self.wraps).ok_or(Fault::UpstreamProtocol)?;
        let raw: &RawValue = serde_json::from_str(&projected).map_err(|_| Fault::UpstreamProtocol)?;
        Ok(match self.rewrite.as_ref().map(|rewrite| rewrite(&Outcome::Result(raw))) {
            None | Some(Rewritten::Same) => jsonrpc::response(&sent.id, &projected),
            Some(Rewritten::Result(result)) => jsonrpc::response(&sent.id, &result),
            Some(Rewritten::Error(error)) => jsonrpc::raw_error_response(Some(&sent.id), &error),
        })
    }
}

/// The answer when the upstream ended a call with an error. No code of the other era is passed on.
fn failed(sent: &Sent, error: &str) -> Result<Bytes, Kind> {
    match HopError::of(error) {
        Some(HopError::MissingCapability) => {
            let missing = missing(error);
            let why = if sent.takes_questions {
                format!("The server needs what this client did not declare: {missing}.")
            } else {
                format!(
                    "The server needs to ask the client something ({missing}), and this client can't receive requests: it accepts no event streams."
                )
            };
            ended_for_want_of(sent, &why)
        }
        Some(HopError::HeaderMismatch | HopError::UnsupportedVersion) => {
            tracing::warn!(error, "the upstream did not take what the gateway said of a request");
            Err(Fault::UpstreamProtocol.into())
        }
        None => Err(Kind::Upstream { status: StatusCode::OK, error: error_for_legacy(error).into() }),
    }
}

/// The capabilities that an error says are missing.
fn missing(error: &str) -> String {
    let names = || {
        let error = Object::parse(error).ok()?;
        let data = Object::parse(error.get("data")?).ok()?;
        let required = Object::parse(data.get("requiredCapabilities")?).ok()?;
        Some(
            required
                .iter()
                .map(|(name, _)| name.chars().take(64).collect::<String>())
                .take(8)
                .collect::<Vec<_>>()
                .join(", "),
        )
    };
    names().filter(|names| !names.is_empty()).unwrap_or_else(|| "a capability".to_owned())
}

/// A tool says itself that it failed, so that the model reads why; other methods have only errors.
fn ended_for_want_of(sent: &Sent, why: &str) -> Result<Bytes, Kind> {
    if &*sent.method == "tools/call" {
        let text = raw_string(why);
        let result = format!("{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":true}}");
        return Ok(jsonrpc::response(&sent.id, &result));
    }
    let error = jsonrpc::ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, why);
    Err(Kind::Upstream { status: StatusCode::OK, error: error.to_json().into() })
}
