//! Header fields that repeat what the body says (2026-07-28 transports, "Standard Request Headers").

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use serde_json::Value;

use crate::jsonrpc::{ErrorObject, Object, code, string_value};

/// The arguments of a tool that are repeated: the path to each, with dots, and the name after `Mcp-Param-`.
pub(in super::super) fn mirrored(tool: &str) -> &'static [(&'static str, &'static str)] {
    match tool {
        "deploy" => &[("region", "Region"), ("shard", "Shard"), ("dry_run", "Dry-Run"), ("target.zone", "Zone")],
        _ => &[],
    }
}

/// Checks the fields that every request has.
pub(super) fn check(headers: &HeaderMap, method: &str, params: &Object<'_>, version: &str) -> Result<(), ErrorObject> {
    agree("MCP-Protocol-Version", one(headers, "MCP-Protocol-Version")?, Some(version))?;
    agree("Mcp-Method", one(headers, "Mcp-Method")?, Some(method))?;
    let named = match method {
        "tools/call" | "prompts/get" => params.get("name"),
        "resources/read" => params.get("uri"),
        _ => return Ok(()),
    };
    match named.and_then(string_value) {
        Some(name) => agree("Mcp-Name", decoded(headers, "Mcp-Name")?.as_deref(), Some(&name)),
        // What the body lacks is an error of its own.
        None => Ok(()),
    }
}

/// Checks the fields for the arguments of a call.
pub(super) fn check_arguments(headers: &HeaderMap, params: &Object<'_>) -> Result<(), ErrorObject> {
    let tool = params.get("name").and_then(string_value).unwrap_or_default();
    let arguments: Value = params.get("arguments").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    for (path, name) in mirrored(&tool) {
        let field = format!("Mcp-Param-{name}");
        let value = arguments.pointer(&format!("/{}", path.replace('.', "/"))).filter(|value| !value.is_null());
        let header = decoded(headers, &field)?;
        let number = || Some(header.as_deref()?.parse::<f64>().ok()? == value?.as_f64()?);
        match value {
            // 2026-07-28 transports, "Custom Headers": integers are compared as numbers.
            Some(Value::Number(_)) if number() == Some(true) => {}
            Some(Value::String(text)) => agree(&field, header.as_deref(), Some(text))?,
            Some(other) => agree(&field, header.as_deref(), Some(&other.to_string()))?,
            None => agree(&field, header.as_deref(), None)?,
        }
    }
    Ok(())
}

fn agree(field: &str, header: Option<&str>, body: Option<&str>) -> Result<(), ErrorObject> {
    match (header, body) {
        (header, body) if header == body => Ok(()),
        (None, _) => Err(mismatch(format!("`{field}` is missing"))),
        (Some(_), _) => Err(mismatch(format!("`{field}` is not what the body says"))),
    }
}

/// The only value of a field. Readers of the first and of the last copy would disagree.
fn one<'a>(headers: &'a HeaderMap, field: &str) -> Result<Option<&'a str>, ErrorObject> {
    let mut values = headers.get_all(field).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(mismatch(format!("`{field}` is repeated")));
    }
    let text = value.to_str().map_err(|_| mismatch(format!("`{field}` is not ASCII")))?;
    Ok(Some(text.trim_matches([' ', '\t'])))
}

fn decoded<'a>(headers: &'a HeaderMap, field: &str) -> Result<Option<Cow<'a, str>>, ErrorObject> {
    let Some(text) = one(headers, field)? else { return Ok(None) };
    let Some(inside) = text.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(Some(Cow::Borrowed(text)));
    };
    let bytes = STANDARD.decode(inside).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    bytes.map(|text| Some(Cow::Owned(text))).ok_or_else(|| mismatch(format!("`{field}` is no base64 of UTF-8")))
}

fn mismatch(text: String) -> ErrorObject {
    ErrorObject::new(code::HEADER_MISMATCH, text)
}
