//! What a request's headers must say, strictly, as careful servers of each revision have it.

use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use http::{HeaderName, Request, StatusCode};

use crate::jsonrpc::code;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;

use super::super::Shared;
use super::super::session::{Session, Terms};
use super::answer::Refusal;

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// 2025-11-25 transports, "Sending Messages to the Server" 2: a POST accepts both kinds of answer.
pub(super) fn content(headers: &HeaderMap) -> Result<(), Refusal> {
    if !text(headers, &CONTENT_TYPE).is_some_and(|kind| is_type(kind, "application/json")) {
        let message = "`Content-Type` must be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::INVALID_REQUEST, message));
    }
    if accepts(headers, "application/json") && accepts(headers, "text/event-stream") {
        return Ok(());
    }
    let message = "`Accept` must list application/json and text/event-stream";
    Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, code::INVALID_REQUEST, message))
}

pub(super) fn accepts_events(headers: &HeaderMap) -> Result<(), Refusal> {
    if accepts(headers, "text/event-stream") {
        return Ok(());
    }
    let message = "`Accept` must list text/event-stream";
    Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, code::INVALID_REQUEST, message))
}

fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let fields = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    fields.flat_map(|field| field.split(',')).any(|kind| is_type(kind, wanted) || is_type(kind, "*/*"))
}

fn is_type(field: &str, wanted: &str) -> bool {
    field.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
}

/// The session that a request belongs to; without sessions, one for this request alone.
pub(super) fn session(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Arc<Session>, Refusal> {
    if shared.options.stateless {
        let version = stateless_version(shared, headers)?;
        let terms = Terms { version, client: ClientCapabilities::default() };
        return Ok(Session::new(shared, None, terms, false));
    }
    let Some(id) = headers.get(SESSION_ID) else {
        return Err(Refusal::bad_request("`Mcp-Session-Id` is missing"));
    };
    let session = id.to_str().ok().and_then(|id| shared.sessions().get(id).cloned());
    let Some(session) = session else {
        return Err(Refusal::new(StatusCode::NOT_FOUND, code::INVALID_REQUEST, "no such session"));
    };
    match headers.get(PROTOCOL_VERSION) {
        Some(version) if version.as_bytes() != session.terms.version.as_str().as_bytes() => {
            Err(Refusal::bad_request("`MCP-Protocol-Version` is not the negotiated version"))
        }
        _ => Ok(session),
    }
}

/// 2025-11-25 transports, "Protocol Version Header": without one, 2025-03-26 is assumed.
fn stateless_version(shared: &Shared, headers: &HeaderMap) -> Result<ProtocolVersion, Refusal> {
    let newest = shared.options.version;
    if !headers.contains_key(PROTOCOL_VERSION) {
        return Ok(newest.min(ProtocolVersion::V2025_03_26));
    }
    let version = text(headers, &PROTOCOL_VERSION).and_then(ProtocolVersion::parse_legacy);
    version
        .filter(|version| *version <= newest)
        .ok_or_else(|| Refusal::bad_request("`MCP-Protocol-Version` is not spoken here"))
}

/// Ends a session.
pub(super) fn forget(shared: &Shared, id: &str) {
    let forgotten = shared.sessions().remove(id);
    if let Some(session) = forgotten {
        session.end();
        shared.note(|stats| stats.sessions = stats.sessions.saturating_sub(1));
    }
}

/// The request line and header fields, for the record.
pub(super) fn all_headers<B>(request: &Request<B>) -> Vec<(String, String)> {
    let line = (":method".to_owned(), request.method().to_string());
    std::iter::once(line).chain(fields(request.headers())).collect()
}

/// The header fields, for the record.
pub(super) fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// What the version field says.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    text(headers, &PROTOCOL_VERSION)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
