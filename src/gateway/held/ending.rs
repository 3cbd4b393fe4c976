//! How a call's end is written down: the upstream's answer, or the gateway's own failure, as the end of the task.

use std::borrow::Cow;

use crate::jsonrpc::{Message, Object, Outcome, string_value};
use crate::mcp::project::{HopError, error_for_legacy};
use crate::task::Finish;

use crate::gateway::rejection::Fault;

/// The longest status message that is kept, in characters.
const MESSAGE_CHARS: usize = 500;
/// Why a task ended whose call the upstream answered with a JSON-RPC error.
pub(in crate::gateway) const UPSTREAM_ERROR: &str = "upstream_error";

/// The gateway's own failure as an end.
pub(in crate::gateway) fn failed(fault: Fault) -> Finish {
    Finish::errored(fault.reason(), fault.to_error().to_json().into(), Some(fault.message().into()))
}

/// The upstream's response as an end. A result that is none, or one of a later protocol, must not pass for success.
pub(super) fn finish_of(message: &[u8]) -> Finish {
    let Ok(Message::Response { outcome, .. }) = Message::parse(message) else { return failed(Fault::UpstreamProtocol) };
    let result = match outcome {
        Outcome::Error(error) if !is_error_object(error.get()) => return failed(Fault::UpstreamProtocol),
        Outcome::Error(error) => return errored(error.get()),
        Outcome::Result(result) => result.get(),
    };
    let Ok(object) = Object::parse(result) else { return failed(Fault::UpstreamProtocol) };
    let is_complete = object.get("resultType").is_none_or(|kind| kind == "\"complete\"");
    let is_handle = object.get("task").is_some() && object.get("content").is_none();
    if !is_complete || is_handle {
        return failed(Fault::UpstreamProtocol);
    }
    let is_error = object.get("isError") == Some("true");
    let message = if is_error { first_text(object.get("content")) } else { None };
    Finish::returned(is_error, result.into(), message)
}

/// The upstream's error as an end. What it says of the hop to itself is not the client's business.
pub(super) fn errored(error: &str) -> Finish {
    let error = match HopError::of(error) {
        Some(_) => error_for_legacy(error),
        None => Cow::Borrowed(error),
    };
    Finish::errored(UPSTREAM_ERROR, (*error).into(), message_of_error(&error))
}

/// Whether this can stand in an `error` member: clients can't read anything else (JSON-RPC 2.0, 5.1).
pub(in crate::gateway) fn is_error_object(error: &str) -> bool {
    let Ok(error) = Object::parse(error) else { return false };
    let is_integer = |code: &str| code.parse::<i64>().is_ok();
    error.get("code").is_some_and(is_integer) && error.get("message").and_then(string_value).is_some()
}

/// The text of a result's first text block: all that many clients show of a failure.
fn first_text(content: Option<&str>) -> Option<Box<str>> {
    let blocks: Vec<&serde_json::value::RawValue> = serde_json::from_str(content?).ok()?;
    blocks.into_iter().find_map(|block| {
        let block = Object::parse(block.get()).ok()?;
        (block.get("type") == Some("\"text\""))
            .then(|| string_value(block.get("text")?))
            .flatten()
            .map(|text| shorten(&text))
    })
}

fn message_of_error(error: &str) -> Option<Box<str>> {
    let error = Object::parse(error).ok()?;
    string_value(error.get("message")?).map(|text| shorten(&text))
}

pub(super) fn shorten(text: &str) -> Box<str> {
    match text.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
        None => text.into(),
    }
}
