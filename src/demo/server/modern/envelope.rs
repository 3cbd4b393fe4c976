//! What a request says of itself in `params._meta` (2026-07-28 basic, "Per-request metadata").

use serde_json::{Value, json};

use crate::jsonrpc::{ErrorObject, Message, Object, code, string_value};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::envelope::{CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION};

use super::super::call::LEVELS;
use super::super::protocol::shorten;
use super::unsupported;

/// The reserved keys of a request.
#[derive(Debug)]
pub(in super::super) struct Envelope {
    pub version: String,
    pub client: ClientCapabilities,
    /// The least severe log level that is sent; above all levels where the request named none.
    pub level: u8,
}

impl Envelope {
    /// Reads it.
    ///
    /// # Errors
    /// When a required key is missing, or a key is malformed.
    pub(super) fn read(method: &str, params: &Object<'_>) -> Result<Self, ErrorObject> {
        let invalid = |text: String| ErrorObject::new(code::INVALID_PARAMS, text);
        let meta = Object::parse(params.get("_meta").unwrap_or("{}"))
            .map_err(|_| invalid("`params._meta` must be an object".to_owned()))?;
        let Some(version) = meta.get(PROTOCOL_VERSION) else {
            return Err(match method {
                // What a client of the other era asks first; it shall know which versions there are.
                "initialize" => unsupported(&params.get("protocolVersion").and_then(string_value).unwrap_or_default()),
                _ => invalid(format!("`params._meta` lacks {PROTOCOL_VERSION}")),
            });
        };
        let version = string_value(version).ok_or_else(|| invalid(format!("{PROTOCOL_VERSION} must be a string")))?;
        let client = meta.get(CLIENT_CAPABILITIES).map(ClientCapabilities::read);
        let client = client
            .and_then(Result::ok)
            .ok_or_else(|| invalid(format!("`params._meta` needs {CLIENT_CAPABILITIES}, an object")))?;
        if !meta.get(CLIENT_INFO).is_none_or(is_implementation) {
            return Err(invalid(format!("{CLIENT_INFO} needs a name and a version")));
        }
        let level = match meta.get(LOG_LEVEL) {
            None => u8::MAX,
            Some(level) => string_value(level)
                .and_then(|level| LEVELS.iter().position(|known| *known == level))
                .and_then(|place| u8::try_from(place).ok())
                .ok_or_else(|| invalid(format!("{LOG_LEVEL} is no level: {}", shorten(level))))?,
        };
        Ok(Self { version: version.into_owned(), client, level })
    }
}

fn is_implementation(json: &str) -> bool {
    let info: Value = serde_json::from_str(json).unwrap_or_default();
    ["name", "version"].iter().all(|member| info.get(member).is_some_and(Value::is_string))
}

/// Whether a message names a protocol version in its body.
pub(super) fn has_claim(message: &Message<'_>) -> bool {
    let (Message::Request { params, .. } | Message::Notification { params, .. }) = message else { return false };
    let params = Object::parse_optional(*params).unwrap_or_default();
    let meta = Object::parse(params.get("_meta").unwrap_or("{}")).unwrap_or_default();
    meta.get(PROTOCOL_VERSION).is_some()
}

/// The error for a question that the client did not say it can answer.
pub(in super::super) fn required(method: &str, params: &str) -> ErrorObject {
    let params = Object::parse(params).unwrap_or_default();
    let capability = match method {
        "elicitation/create" if params.get("mode") == Some("\"url\"") => json!({"elicitation": {"url": {}}}),
        "elicitation/create" => json!({"elicitation": {"form": {}}}),
        "sampling/createMessage" => json!({"sampling": {}}),
        _ => json!({"roots": {}}),
    };
    ErrorObject::new(code::MISSING_CAPABILITY, format!("the client does not offer {method}"))
        .with_data(&json!({"requiredCapabilities": capability}))
}
