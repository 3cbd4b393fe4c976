//! Tools in the other era: what an output may be, and whose annotations they carry.
//!
//! Schemas are rewritten as text, member by member, so that all that is not touched keeps its spelling and its order.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::jsonrpc::{Object, raw_string, string_value};

/// How deep a schema is rewritten; what lies deeper stays as it is.
const DEEPEST: usize = 100;
/// Where a wrapped schema's own root is.
const WRAPPED: &str = "#/properties/result";

/// Whether legacy clients see this `outputSchema` (JSON text) wrapped into an object, which is the only root that they
/// take; structured results are then wrapped as well.
#[must_use]
pub fn wraps_output(output_schema: &str) -> bool {
    let is_object = |schema: Object<'_>| schema.get("type").and_then(string_value).is_some_and(|kind| kind == "object");
    !Object::parse(output_schema).is_ok_and(is_object)
}

/// A tool for legacy clients; `None` when there is nothing to change.
pub(super) fn tool_for_legacy(tool: &str) -> Option<String> {
    let mut tool = Object::parse(tool).ok()?;
    let schema = tool.get("outputSchema").filter(|schema| wraps_output(schema))?.to_owned();
    Some(tool.set("outputSchema", wrapped(&schema)).to_json())
}

/// A tool for modern clients: what they would have to obey, and a legacy server can't mean, is left out. `None` when there
/// is nothing to change.
pub(super) fn tool_for_modern(tool: &str) -> Option<String> {
    let mut tool = Object::parse(tool).ok()?;
    let input = tool.get("inputSchema").filter(|schema| may_name(schema, "x-mcp-header")).map(str::to_owned);
    if tool.get("execution").is_none() && input.is_none() {
        return None;
    }
    tool.remove("execution");
    if let Some(input) = input {
        tool.set("inputSchema", rewritten(&input, Change::Unannotate, DEEPEST).into_owned());
    }
    Some(tool.to_json())
}

/// A schema with any root as one with an object at its root, which holds the value as `result`.
fn wrapped(schema: &str) -> String {
    let inner = if may_name(schema, "$ref") || may_name(schema, "$dynamicRef") {
        rewritten(schema, Change::Rebase, DEEPEST)
    } else {
        Cow::Borrowed(schema)
    };
    let (mut dialect, mut inner) = (String::new(), inner.into_owned());
    // A dialect is said at the root.
    let hoisted = Object::parse(&inner).ok().and_then(|mut object| {
        let named = object.get("$schema")?.to_owned();
        Some((named, object.remove("$schema").to_json()))
    });
    if let Some((named, rest)) = hoisted {
        dialect = format!("\"$schema\":{named},");
        inner = rest;
    }
    format!("{{{dialect}\"type\":\"object\",\"properties\":{{\"result\":{inner}}},\"required\":[\"result\"]}}")
}

/// What is done at each level of a schema.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    /// Local pointers are made to start from where the schema's root has gone.
    Rebase,
    /// Annotations for headers are taken out.
    Unannotate,
}

/// Whether the text may have such a keyword; a name may be written with escapes.
fn may_name(schema: &str, keyword: &str) -> bool {
    schema.contains(keyword) || schema.contains("\\u")
}

fn rewritten(schema: &str, change: Change, depth: usize) -> Cow<'_, str> {
    let (Some(depth), Some(first)) = (depth.checked_sub(1), schema.as_bytes().first()) else {
        return Cow::Borrowed(schema);
    };
    match first {
        b'{' => rewritten_schema(schema, change, depth),
        b'[' => {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(schema) else { return Cow::Borrowed(schema) };
            let items: Vec<Cow<'_, str>> = items.iter().map(|item| rewritten(item.get(), change, depth)).collect();
            Cow::Owned(format!("[{}]", items.join(",")))
        }
        _ => Cow::Borrowed(schema),
    }
}

fn rewritten_schema(text: &str, change: Change, depth: usize) -> Cow<'_, str> {
    let Ok(schema) = Object::parse(text) else { return Cow::Borrowed(text) };
    // A schema with an id of its own is where its pointers start from, wherever it stands.
    if change == Change::Rebase && schema.get("$id").and_then(string_value).is_some_and(|id| !id.starts_with('#')) {
        return Cow::Borrowed(text);
    }
    let mut out = schema.clone();
    for (keyword, value) in schema.iter() {
        match keyword {
            "$ref" | "$dynamicRef" if change == Change::Rebase => {
                if let Some(rebased) = string_value(value).and_then(|pointer| rebased(&pointer)) {
                    out.set(keyword, raw_string(&rebased));
                }
            }
            "x-mcp-header" if change == Change::Unannotate => {
                out.remove(keyword);
            }
            // Data, not schemas.
            "const" | "enum" | "default" | "examples" => {}
            // Names to schemas: a name is no keyword.
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                out.set(keyword, rewritten_map(value, change, depth));
            }
            _ => {
                if let Cow::Owned(inner) = rewritten(value, change, depth) {
                    out.set(keyword, inner);
                }
            }
        }
    }
    Cow::Owned(out.to_json())
}

fn rewritten_map(text: &str, change: Change, depth: usize) -> String {
    let (Ok(map), Some(depth)) = (Object::parse(text), depth.checked_sub(1)) else { return text.to_owned() };
    let mut out = map.clone();
    for (name, schema) in map.iter() {
        out.set(name, rewritten(schema, change, depth));
    }
    out.to_json()
}

/// A pointer from the root as one from where the root has gone. Anchors have no place, so they stay.
fn rebased(reference: &str) -> Option<String> {
    let pointer = reference.strip_prefix('#')?;
    (pointer.is_empty() || pointer.starts_with('/')).then(|| format!("{WRAPPED}{pointer}"))
}
