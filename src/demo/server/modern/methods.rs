//! The methods of the modern era that are answered at once, and what stands in every result.

use serde_json::json;

use crate::jsonrpc::{ErrorObject, Object, code};
use crate::mcp::envelope::SERVER_INFO;

use super::super::Shared;
use super::super::protocol::{self, shorten};
use super::VERSION;

/// Whether a method exists here.
///
/// # Errors
/// When it was removed, never existed, or belongs to a capability that is not offered.
pub(super) fn check(method: &str) -> Result<(), ErrorObject> {
    match method {
        "server/discover"
        | "subscriptions/listen"
        | "tools/list"
        | "tools/call"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "prompts/list"
        | "prompts/get" => Ok(()),
        _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("Method not found: {}", shorten(method)))),
    }
}

/// The result of a method that has one at once.
pub(super) fn answer(shared: &Shared, method: &str, params: &Object<'_>) -> Result<String, ErrorObject> {
    let result = match method {
        "server/discover" => Ok(discover()),
        // 2026-07-28 resources, "Error Handling": there is no code of its own any more.
        _ => protocol::answer_in_any_era(shared, method, params, VERSION).map_err(|error| match error.code {
            -32002 => ErrorObject { code: code::INVALID_PARAMS, ..error },
            _ => error,
        }),
    }?;
    let mut result = Object::parse(&result).unwrap_or_default();
    // 2026-07-28 caching: required on these, and on no other result.
    if method != "prompts/get" {
        result.set("ttlMs", "60000").set("cacheScope", "\"public\"");
    }
    Ok(complete(&result.to_json()))
}

fn discover() -> String {
    json!({
        "supportedVersions": [VERSION.as_str()],
        "capabilities": protocol::capabilities(),
        "instructions": protocol::INSTRUCTIONS,
        "vendor.example/unknown": {"kept": true},
    })
    .to_string()
}

/// A result as this era has it: with its type, and with who made it.
pub(in super::super) fn complete(result: &str) -> String {
    let mut all = Object::parse(result).unwrap_or_default();
    let mut meta = Object::parse(all.get("_meta").unwrap_or("{}")).unwrap_or_default();
    meta.set(SERVER_INFO, protocol::server_info().to_string());
    let meta = meta.to_json();
    if all.get("resultType").is_none() {
        all.set("resultType", "\"complete\"");
    }
    all.set("_meta", meta);
    all.to_json()
}
