//! Which era a message is of, and the checks that a request of the modern era passes before anything is done with it: a
//! ladder, whose first rung that breaks gives the answer (2026-07-28 transports, "Server validation"; basic, "Per-request
//! metadata").
//!
//! The body decides the era. The header is a cross-check: it never moves a message from one era to the other.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;

use crate::jsonrpc::string_value;
use crate::mcp::envelope::Envelope;
use crate::mcp::method::Method;
use crate::mcp::mirror;
use crate::mcp::version::ProtocolVersion;

use super::Request;
use super::call::{Call, VersionHeader};
use super::fields::{Repeated, only};
use super::params::Params;
use super::rejection::Kind;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// How a message is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// By its session.
    Legacy,
    /// By itself.
    Modern,
}

/// The era of a request. A claim makes it modern whatever version it names; only a handshake that claims a legacy version
/// is what it looks like.
///
/// # Errors
/// When body and header contradict each other so that it is of neither.
pub(super) fn of_request(method: Method, params: &Params<'_>, header: &VersionHeader) -> Result<Era, Kind> {
    if header.is_modern() && method != Method::Initialize {
        // With its claims or without: the first rung names what is missing.
        return Ok(Era::Modern);
    }
    let is_claimed = params.is_claimed();
    match (method, is_claimed, header.is_modern()) {
        (Method::Initialize, true, false) if claims_legacy(params) => Ok(Era::Legacy),
        (_, true, _) => Ok(Era::Modern),
        (Method::Initialize, false, true) => {
            Err(mismatch("`initialize` is not part of the version that MCP-Protocol-Version names"))
        }
        (_, false, true) | (Method::Discover, false, false) => Ok(Era::Modern),
        (_, false, false) => Ok(Era::Legacy),
    }
}

/// The era of a notification.
pub(super) fn of_notification(params: &Params<'_>, header: &VersionHeader) -> Era {
    if params.is_claimed() || header.is_modern() { Era::Modern } else { Era::Legacy }
}

fn claims_legacy(params: &Params<'_>) -> bool {
    params.envelope().is_ok_and(|envelope| ProtocolVersion::parse_legacy(&envelope.version).is_some())
}

/// Climbs the ladder up to the point where the method's own checks begin.
///
/// # Errors
/// The first check that fails.
pub(super) fn climb<'a>(call: &Call, request: &Request<'a>) -> Result<Envelope<'a>, Kind> {
    let envelope = request.params.envelope().map_err(Kind::Envelope)?;
    // Before the version is looked at: a header that says otherwise is the graver fault.
    match call.version.text() {
        None => return Err(mismatch("The MCP-Protocol-Version header is missing")),
        Some(header) if *header != *envelope.version => {
            return Err(mismatch("The MCP-Protocol-Version header and the request name different versions"));
        }
        Some(_) => {}
    }
    check_headers(&call.headers, request)?;
    if envelope.spoken().is_none() {
        return Err(Kind::Version(envelope.version.chars().take(64).collect::<String>().into()));
    }
    if request.method.is_removed() {
        return Err(Kind::NoMethod);
    }
    let is_of_tasks = matches!(request.method, Method::TasksGet | Method::TasksUpdate | Method::TasksCancel);
    if is_of_tasks && !call.headers.contains_key(NAME) {
        call.route.metrics.unnamed_request();
    }
    // Before any task is looked up (tasks extension, "Capability negotiation").
    if is_of_tasks && !envelope.has_tasks && !call.route.native {
        return Err(needs_tasks(
            "Tasks can be read, answered and cancelled only by requests that declare the extension",
        ));
    }
    Ok(envelope)
}

/// The refusal of a request that does not declare the tasks extension and can't be served without.
pub(super) fn needs_tasks(message: &'static str) -> Kind {
    Kind::MissingCapability { required: r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#.into(), message }
}

/// The same of a call of a tool that is always a task.
pub(super) fn needs_task() -> Kind {
    needs_tasks("This tool can only be called by requests that declare the extension")
}

/// `Mcp-Method` and `Mcp-Name` say what the body says (2026-07-28 transports, "Request headers").
fn check_headers(headers: &HeaderMap, request: &Request<'_>) -> Result<(), Kind> {
    match mirrored(headers, &METHOD)? {
        None => return Err(mismatch("The Mcp-Method header is missing")),
        Some(method) if *method != *request.name => {
            return Err(mismatch("The Mcp-Method header and the request name different methods"));
        }
        Some(_) => {}
    }
    let Some(parameter) = request.method.named_by() else { return Ok(()) };
    let named = match parameter {
        "name" => request.params.name,
        "uri" => request.params.uri,
        _ => request.params.task_id,
    };
    let named = named.and_then(|named| string_value(named.get()));
    match (mirrored(headers, &NAME)?, named) {
        (Some(header), Some(named)) if *header == *named => Ok(()),
        // Clients in the field leave it out (FastMCP 4, Python SDK 2): nothing here depends on it.
        (None, _) if parameter == "taskId" => Ok(()),
        // Without the parameter the body is at fault, and the method's own check says so.
        (None, None) => Ok(()),
        (None, Some(_)) => Err(mismatch("The Mcp-Name header is missing")),
        (Some(_), _) => Err(mismatch("The Mcp-Name header and the request name different things")),
    }
}

/// The one value of a mirrored header, decoded.
fn mirrored<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<Cow<'h, str>>, Kind> {
    let value = only(headers, name).map_err(|Repeated| mismatch("A header that decides is given more than once"))?;
    let unreadable = |error| mismatch(&format!("The {name} header {error}"));
    value.map(|value| mirror::decode(value.as_bytes()).map_err(unreadable)).transpose()
}

fn mismatch(what: &str) -> Kind {
    Kind::HeaderMismatch(what.into())
}
