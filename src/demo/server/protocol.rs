//! What each message means to the server, whatever transport brought it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, Raw, code, string_value};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::method::Method;
use crate::mcp::version::ProtocolVersion;

use super::Shared;
use super::call::{self, LEVELS};
use super::options::Options;
use super::session::{Session, Terms};
use super::stream::Stream;
use super::tools;

/// What the server says of itself to a model.
pub(super) const INSTRUCTIONS: &str = "A plain server without tasks. `report` is slow, `ask` has a question.";
/// The only resource.
pub(super) const GREETING: &str = "demo://greeting";

/// A method's answer.
type Answer = Result<String, ErrorObject>;

/// Reads an `initialize` request and settles the terms.
pub(super) fn negotiate(shared: &Shared, params: Option<Raw<'_>>) -> Result<Terms, ErrorObject> {
    let params = read_params(params)?;
    shared.note(|stats| stats.note_request("initialize", &params));
    let asked = params.get("protocolVersion").and_then(string_value);
    let Some(asked) = asked else {
        return Err(ErrorObject::new(code::INVALID_PARAMS, "`protocolVersion` must be a string"));
    };
    let newest = shared.options.version;
    // 2025-11-25 lifecycle, "Version Negotiation": the same version when it is spoken, else the newest that is.
    let version = ProtocolVersion::parse_legacy(&asked).filter(|asked| *asked <= newest).unwrap_or(newest);
    let client = ClientCapabilities::read(params.get("capabilities").unwrap_or("{}"))
        .map_err(|_| ErrorObject::new(code::INVALID_PARAMS, "`capabilities` must be an object"))?;
    Ok(Terms { version, client })
}

/// The `result` of `initialize`.
pub(super) fn welcome(terms: &Terms) -> String {
    json!({
        "protocolVersion": terms.version.as_str(),
        "capabilities": capabilities(),
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
        "vendor.example/unknown": {"kept": true},
    })
    .to_string()
}

/// What the server can do, in either era.
pub(super) fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "prompts": {}, "logging": {}})
}

/// Who the server is.
pub(super) fn server_info() -> Value {
    json!({"name": "taskgate-demo", "version": env!("CARGO_PKG_VERSION")})
}

/// Takes a message in. What answers it goes to `stream`, which expects one settlement for each request.
pub(super) fn take(session: &Arc<Session>, message: Message<'_>, stream: &Arc<Stream>) {
    match message {
        Message::Request { id, method, params } => request(session, id, &method, params, stream),
        Message::Notification { method, params } => notification(session, &method, params),
        Message::Response { id, outcome } => session.answer(id.as_ref(), outcome),
    }
}

fn request(session: &Arc<Session>, id: Id, method: &str, params: Option<Raw<'_>>, stream: &Arc<Stream>) {
    session.shared.note(|stats| *stats.methods.entry(Method::parse(method).as_str()).or_default() += 1);
    let read = match read_params(params) {
        Ok(read) => read,
        Err(error) => return settle(stream, &id, Err(error)),
    };
    session.shared.note(|stats| stats.note_request(method, &read));
    if Method::parse(method) == Method::ToolsCall {
        return call::start(session, id, &read, stream);
    }
    settle(stream, &id, answer(session, method, &read));
}

fn settle(stream: &Stream, id: &Id, answer: Answer) {
    stream.settle(Some(match answer {
        Ok(result) => jsonrpc::response(id, &result),
        Err(error) => jsonrpc::error_response(Some(id), &error),
    }));
}

fn answer(session: &Session, method: &str, params: &Object<'_>) -> Answer {
    match Method::parse(method) {
        Method::Initialize => Err(ErrorObject::new(code::INVALID_REQUEST, "the session is initialized already")),
        Method::Ping | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => Ok("{}".to_owned()),
        Method::SetLevel => set_level(session, params),
        _ => answer_in_any_era(&session.shared, method, params, session.terms.version),
    }
}

/// Answers what needs nothing but the request itself.
pub(super) fn answer_in_any_era(
    shared: &Shared,
    method: &str,
    params: &Object<'_>,
    version: ProtocolVersion,
) -> Answer {
    match Method::parse(method) {
        Method::ToolsList => list_tools(&shared.options, params, version),
        Method::ResourcesList => Ok(json!({"resources": [{
            "uri": GREETING, "name": "greeting", "mimeType": "text/plain",
        }]})
        .to_string()),
        Method::ResourceTemplatesList => Ok(r#"{"resourceTemplates":[]}"#.to_owned()),
        Method::ResourcesRead => read_resource(params),
        Method::PromptsList => Ok(json!({"prompts": [{
            "name": "greet", "description": "Says hello", "arguments": [{"name": "name", "required": true}],
        }]})
        .to_string()),
        Method::PromptsGet => prompt(params),
        _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("Method not found: {}", shorten(method)))),
    }
}

fn notification(session: &Session, method: &str, params: Option<Raw<'_>>) {
    let known = Method::parse(method);
    session.shared.note(|stats| *stats.methods.entry(known.as_str()).or_default() += 1);
    if known == Method::Cancelled
        && let Ok(params) = Object::parse_optional(params)
        && let Some(Ok(id)) = params.get("requestId").map(Id::from_json)
    {
        session.cancel(&id);
    }
}

pub(super) fn read_params(params: Option<Raw<'_>>) -> Result<Object<'_>, ErrorObject> {
    Object::parse_optional(params).map_err(|_| ErrorObject::new(code::INVALID_PARAMS, "`params` must be an object"))
}

/// Pages by offset; the cursor is the offset of the next tool.
fn list_tools(options: &Options, params: &Object<'_>, version: ProtocolVersion) -> Answer {
    let tools: Vec<Value> = tools::TOOLS.iter().map(|tool| tool.declaration(options, version)).collect();
    let start = match params.get("cursor") {
        None => 0,
        Some(cursor) => string_value(cursor)
            .and_then(|text| text.parse().ok())
            .filter(|start| (1..tools.len()).contains(start))
            .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "unknown cursor"))?,
    };
    let size = options.page_size.unwrap_or(tools.len()).max(1);
    let page: Vec<&Value> = tools.iter().skip(start).take(size).collect();
    let next = start.saturating_add(page.len());
    let mut result = json!({"tools": page, "_meta": {"vendor.example/page": start}});
    if next < tools.len()
        && let Some(members) = result.as_object_mut()
    {
        members.insert("nextCursor".to_owned(), json!(next.to_string()));
    }
    Ok(result.to_string())
}

fn read_resource(params: &Object<'_>) -> Answer {
    let uri = params.get("uri").and_then(string_value).unwrap_or_default();
    if uri != GREETING {
        // 2025-11-25 resources, "Error Handling": resource not found.
        return Err(ErrorObject::new(-32002, "Resource not found").with_data(&json!({"uri": shorten(&uri)})));
    }
    Ok(json!({"contents": [{"uri": uri, "mimeType": "text/plain", "text": "Hello"}]}).to_string())
}

fn prompt(params: &Object<'_>) -> Answer {
    if params.get("name") != Some("\"greet\"") {
        return Err(ErrorObject::new(code::INVALID_PARAMS, "Unknown prompt"));
    }
    let arguments = Object::parse(params.get("arguments").unwrap_or("{}")).unwrap_or_default();
    let name = arguments.get("name").and_then(string_value).unwrap_or_default();
    Ok(json!({"messages": [{"role": "user", "content": {"type": "text", "text": format!("Say hello to {name}")}}]})
        .to_string())
}

fn set_level(session: &Session, params: &Object<'_>) -> Answer {
    let level = params.get("level").and_then(string_value).unwrap_or_default();
    let place = LEVELS.iter().position(|known| *known == level).and_then(|place| u8::try_from(place).ok());
    let place = place.ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "unknown log level"))?;
    session.log_level.store(place, Ordering::Relaxed);
    Ok("{}".to_owned())
}

/// What a peer sent, short enough for a message.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
