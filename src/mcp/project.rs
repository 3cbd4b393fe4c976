//! The same value in the other era: results, questions and errors of one, as clients and servers of the other take them.
//!
//! Payloads stay raw text: what has no counterpart is taken out, what is required is added, all else passes unchanged.

mod schema;

use std::borrow::Cow;

use crate::jsonrpc::{Object, code, raw_string, string_value};

use super::envelope::{SERVER_INFO, without_reserved};
use super::mirror;

pub use schema::wraps_output;

/// Methods whose results say how long they hold (2026-07-28 caching, "Cacheable Results").
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// Whether the method's complete results carry `ttlMs` and `cacheScope`.
#[must_use]
pub fn is_cacheable(method: &str) -> bool {
    CACHEABLE.contains(&method)
}

/// A modern server's complete `result` for a legacy client. `wraps`: the tool's output schema is shown wrapped, see
/// [`wraps_output`]; of no meaning for other methods than `tools/call`.
///
/// `None` for what is no object.
#[must_use]
pub fn result_for_legacy(method: &str, result: &str, wraps: bool) -> Option<String> {
    let mut object = Object::parse(result).ok()?;
    object.remove("resultType");
    if is_cacheable(method) {
        object.remove("ttlMs").remove("cacheScope");
    }
    if let Some(meta) = object.get("_meta").map(str::to_owned) {
        set_meta(&mut object, Object::parse(&meta).unwrap_or_default().remove(SERVER_INFO));
    }
    match method {
        "tools/list" => rewrite_tools(&mut object, schema::tool_for_legacy),
        "tools/call" => structured_for_legacy(&mut object, wraps),
        _ => {}
    }
    Some(object.to_json())
}

/// Legacy clients take objects alone as `structuredContent`, and many read nothing but text.
fn structured_for_legacy(result: &mut Object<'_>, wraps: bool) {
    let Some(value) = result.get("structuredContent").map(str::to_owned) else { return };
    if value.starts_with('{') && !wraps {
        return;
    }
    result.set("structuredContent", format!("{{\"result\":{value}}}"));
    let blocks = result.get("content").unwrap_or("[]").to_owned();
    let Ok(blocks) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(&blocks) else { return };
    let is_text = |block: &str| {
        let block = Object::parse(block).ok();
        block.is_some_and(|block| block.get("type").and_then(string_value).is_some_and(|kind| kind == "text"))
    };
    if blocks.iter().any(|block| is_text(block.get())) {
        return;
    }
    let text = format!("{{\"type\":\"text\",\"text\":{}}}", raw_string(&value));
    let blocks: Vec<&str> = blocks.into_iter().map(|block| block.get()).chain([text.as_str()]).collect();
    result.set("content", format!("[{}]", blocks.join(",")));
}

/// A legacy server's `result` for a modern client. `server_info` is the `serverInfo` that names the endpoint (JSON text).
///
/// A legacy server says nothing about how long its answers hold, so they may not be kept.
///
/// `None` for what is no object.
#[must_use]
pub fn result_for_modern(method: &str, result: &str, server_info: Option<&str>) -> Option<String> {
    let mut object = Object::parse(result).ok()?;
    object.set("resultType", "\"complete\"");
    if is_cacheable(method) {
        object.set("ttlMs", "0").set("cacheScope", "\"private\"");
    }
    let meta = object.get("_meta").unwrap_or("{}").to_owned();
    let mut meta = without_reserved(&meta);
    if let Some(info) = server_info {
        meta.set(SERVER_INFO, info);
    }
    set_meta(&mut object, &meta);
    if method == "tools/list" {
        rewrite_tools(&mut object, schema::tool_for_modern);
    }
    Some(object.to_json())
}

/// A modern server's page of tools without those whose annotations are not valid, which must not be listed; `None` when
/// all are (2026-07-28 transports, "Schema Extension"). `dropped` hears of each.
#[must_use]
pub fn without_invalid_tools(result: &str, mut dropped: impl FnMut(&str, mirror::InvalidTool)) -> Option<String> {
    let mut object = Object::parse(result).ok()?;
    let tools = object.get("tools")?.to_owned();
    let tools: Vec<&serde_json::value::RawValue> = serde_json::from_str(&tools).ok()?;
    let before = tools.len();
    let valid = tools.into_iter().map(serde_json::value::RawValue::get).filter(|tool| {
        let Ok(tool) = Object::parse(tool) else { return true };
        match mirror::annotations(tool.get("inputSchema").unwrap_or("{}")) {
            Ok(_) => true,
            Err(invalid) => {
                dropped(&tool.get("name").and_then(string_value).unwrap_or_default(), invalid);
                false
            }
        }
    });
    let valid: Vec<&str> = valid.collect();
    if valid.len() == before {
        return None;
    }
    let valid = format!("[{}]", valid.join(","));
    Some(object.set("tools", valid).to_json())
}

fn rewrite_tools(result: &mut Object<'_>, rewrite: fn(&str) -> Option<String>) {
    let Some(tools) = result.get("tools").map(str::to_owned) else { return };
    let Ok(tools) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(&tools) else { return };
    let tools = tools.into_iter().map(|tool| rewrite(tool.get()).map_or(Cow::Borrowed(tool.get()), Cow::Owned));
    let tools: Vec<Cow<'_, str>> = tools.collect();
    result.set("tools", format!("[{}]", tools.join(",")));
}

/// Puts changed metadata in place; what is empty is left out.
fn set_meta(object: &mut Object<'_>, meta: &Object<'_>) {
    match meta.is_empty() {
        true => object.remove("_meta"),
        false => object.set("_meta", meta.to_json()),
    };
}

/// `params` of a modern client's request for a legacy server: no reserved `_meta` (a server may refuse to see it), nothing
/// of rounds or tasks. Trace context and foreign keys stay, and so does the progress token, which is the caller's to mint.
///
/// `None` for what is no object.
#[must_use]
pub fn params_for_legacy(params: &str) -> Option<String> {
    let mut object = Object::parse(params).ok()?;
    object.remove("inputResponses").remove("requestState").remove("task");
    if let Some(meta) = object.get("_meta").map(str::to_owned) {
        set_meta(&mut object, &without_reserved(&meta));
    }
    Some(object.to_json())
}

/// A legacy server's request as an `InputRequest` (JSON text); `None` for what is no question, or has `params` of a wrong
/// type.
#[must_use]
pub fn input_request(method: &str, params: Option<&str>) -> Option<String> {
    let params = match (method, params) {
        ("elicitation/create" | "sampling/createMessage", Some(params)) => Some(params),
        ("roots/list", params) => params,
        _ => return None,
    };
    let mut params = params.map(Object::parse).transpose().ok()?.unwrap_or_default();
    params.remove("_meta").remove("task");
    if method == "elicitation/create" {
        params.remove("elicitationId");
    }
    let method = raw_string(method);
    if params.is_empty() {
        return Some(format!("{{\"method\":{method}}}"));
    }
    Some(format!("{{\"method\":{method},\"params\":{}}}", params.to_json()))
}

/// The `params` of a modern server's question as those of a legacy request. A URL's gets the id that legacy clients know it
/// by (2025-11-25 elicitation, "URL Mode"), which `elicitation_id` makes.
#[must_use]
pub fn question_params(method: &str, params: Option<&str>, elicitation_id: impl FnOnce() -> String) -> Option<String> {
    let text = params?;
    let Ok(mut params) = Object::parse(text) else { return Some(text.to_owned()) };
    let is_url = params.get("mode").and_then(string_value).is_some_and(|mode| mode == "url");
    if method != "elicitation/create" || !is_url {
        return Some(text.to_owned());
    }
    Some(params.set("elicitationId", raw_string(&elicitation_id())).to_json())
}

/// A legacy client's result as an `InputResponse`: bare, and without what its type does not have. `None` for no object.
#[must_use]
pub fn input_response(result: &str) -> Option<String> {
    let mut object = Object::parse(result).ok()?;
    Some(object.remove("_meta").remove("resultType").to_json())
}

/// An error of the modern protocol that is about the hop on which it came, not about what the client asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopError {
    /// Headers and body differ, or a header is missing.
    HeaderMismatch,
    /// A capability was needed that the request did not declare.
    MissingCapability,
    /// The server does not speak this version.
    UnsupportedVersion,
}

impl HopError {
    /// Which of them an `error` (JSON text) is, if it is one.
    #[must_use]
    pub fn of(error: &str) -> Option<Self> {
        match code_of(error)? {
            -32020 => Some(Self::HeaderMismatch),
            -32021 => Some(Self::MissingCapability),
            -32022 => Some(Self::UnsupportedVersion),
            _ => None,
        }
    }
}

/// What legacy servers send in place of a result when a URL has to be visited first.
const URL_ELICITATION_REQUIRED: i64 = -32042;
/// What they send for a resource that is not there.
const RESOURCE_NOT_FOUND: i64 = -32002;

/// The code of an `error` (JSON text).
#[must_use]
pub fn code_of(error: &str) -> Option<i64> {
    Object::parse(error).ok()?.get("code")?.parse().ok()
}

/// Whether only the specification may give the code a meaning (2026-07-28 basic, "Error Codes").
fn is_reserved_code(code: i64) -> bool {
    (-32099..=-32020).contains(&code)
}

/// An upstream's `error` (JSON text) for a modern client. Codes that this era does not know, or that are about the hop to
/// the upstream, become internal errors with the original in `data`.
#[must_use]
pub fn error_for_modern(error: &str) -> Cow<'_, str> {
    let Ok(mut object) = Object::parse(error) else { return Cow::Borrowed(error) };
    match code_of(error) {
        Some(RESOURCE_NOT_FOUND) => Cow::Owned(object.set("code", code::INVALID_PARAMS.to_string()).to_json()),
        Some(code) if is_reserved_code(code) => Cow::Owned(internal(&object, Some(error))),
        _ => Cow::Borrowed(error),
    }
}

/// A modern upstream's `error` (JSON text) for a legacy client, to whom the reserved codes mean nothing: all but the one
/// that its own revision defines.
#[must_use]
pub fn error_for_legacy(error: &str) -> Cow<'_, str> {
    let Ok(object) = Object::parse(error) else { return Cow::Borrowed(error) };
    match code_of(error) {
        Some(code) if is_reserved_code(code) && code != URL_ELICITATION_REQUIRED => Cow::Owned(internal(&object, None)),
        _ => Cow::Borrowed(error),
    }
}

fn internal(error: &Object<'_>, original: Option<&str>) -> String {
    let message = error.get("message").filter(|message| message.starts_with('"'));
    let message = message.unwrap_or("\"The server behind the gateway reported an error of its own\"");
    let data = original.map(|original| format!(",\"data\":{{\"upstream\":{original}}}")).unwrap_or_default();
    format!("{{\"code\":{},\"message\":{message}{data}}}", code::INTERNAL_ERROR)
}

/// The URLs that an `error` (JSON text) of a legacy server wants visited, each as the `params` of an `elicitation/create`
/// of the modern era; `None` when it is not such an error (2025-11-25 elicitation, "URL Elicitation Required Error").
#[must_use]
pub fn url_elicitations(error: &str) -> Option<Vec<String>> {
    if code_of(error)? != URL_ELICITATION_REQUIRED {
        return None;
    }
    let error = Object::parse(error).ok()?;
    let data = error.get("data").unwrap_or("{}").to_owned();
    let data = Object::parse(&data).unwrap_or_default();
    let elicitations = data.get("elicitations").unwrap_or("[]");
    let elicitations: Vec<Object<'_>> = serde_json::from_str(elicitations).unwrap_or_default();
    let params = elicitations.into_iter().filter_map(|mut elicitation| {
        let is_text = |name: &str| elicitation.get(name).is_some_and(|value| value.starts_with('"'));
        if !is_text("url") || !is_text("message") {
            return None;
        }
        elicitation.remove("elicitationId").remove("_meta").set("mode", "\"url\"");
        Some(elicitation.to_json())
    });
    Some(params.collect())
}

#[cfg(test)]
mod tests;
