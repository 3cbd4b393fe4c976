//! `x-mcp-header` in a tool's `inputSchema`: which arguments are repeated in headers, and whether the schema may ask for it.

use serde_json::{Map, Value};

use super::value_at;

/// The keyword.
const KEYWORD: &str = "x-mcp-header";
/// Before the name that it gives.
const HEADER_PREFIX: &str = "Mcp-Param-";
/// The most headers that one tool may ask for; HTTP servers bound them all together at about a hundred.
const MOST: usize = 64;

/// An argument that a header repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The header's whole name.
    pub header: Box<str>,
    /// The names of the properties that lead to the argument.
    pub path: Box<[Box<str>]>,
}

impl Mirrored {
    /// The argument as JSON text; `None` where it is absent or null.
    #[must_use]
    pub fn argument(&self, arguments: Option<&str>) -> Option<String> {
        value_at(arguments?, &self.path)
    }
}

/// Why a tool's annotations are not valid, so that the tool must not be listed (2026-07-28 transports, "Schema Extension").
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTool {
    /// The name is no text, is empty, or is no token of RFC 9110.
    #[error("an x-mcp-header is not the name of a header")]
    Name,
    /// The same name twice, whatever its case.
    #[error("two properties have the same x-mcp-header")]
    Repeated,
    /// The property is no string, integer or boolean.
    #[error("an x-mcp-header is on a property that is no string, integer or boolean")]
    Type,
    /// It is not on a property that `properties` alone lead to.
    #[error("an x-mcp-header is not on a property that can be reached by `properties` alone")]
    Place,
    /// More than are taken.
    #[error("there are more than 64 x-mcp-header annotations")]
    TooMany,
    /// The schema can't be read, or not that deep.
    #[error("the schema can't be read")]
    Schema,
}

/// The arguments that a tool with this `inputSchema` (JSON text) mirrors.
///
/// # Errors
/// [`InvalidTool`]: it must not be listed, nor called.
pub fn annotations(input_schema: &str) -> Result<Vec<Mirrored>, InvalidTool> {
    // Nearly every schema has none, and need not be read for that. A name may be written with escapes.
    if !input_schema.contains(KEYWORD) && !input_schema.contains("\\u") {
        return Ok(Vec::new());
    }
    let schema: Value = serde_json::from_str(input_schema).map_err(|_| InvalidTool::Schema)?;
    let mut found = Vec::new();
    walk(&schema, Some(&mut Vec::new()), &mut found)?;
    Ok(found)
}

/// Reads a schema. `path` leads to it from the root by `properties` alone, if that is so.
fn walk<'s>(
    schema: &'s Value,
    mut path: Option<&mut Vec<&'s str>>,
    found: &mut Vec<Mirrored>,
) -> Result<(), InvalidTool> {
    match schema {
        Value::Object(members) => {
            for (keyword, value) in members {
                match (keyword.as_str(), value) {
                    (KEYWORD, name) => annotation(name, members, path.as_deref(), found)?,
                    ("properties", Value::Object(properties)) => {
                        for (name, property) in properties {
                            if let Some(path) = path.as_deref_mut() {
                                path.push(name);
                                walk(property, Some(path), found)?;
                                path.pop();
                            } else {
                                walk(property, None, found)?;
                            }
                        }
                    }
                    // Names to schemas: a name is no keyword.
                    ("$defs" | "definitions" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                        schemas.values().try_for_each(|schema| walk(schema, None, found))?;
                    }
                    // Data, not schemas.
                    ("const" | "enum" | "default" | "examples" | "dependentRequired", _) => {}
                    (_, inner) => walk(inner, None, found)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| walk(item, None, found)),
        _ => Ok(()),
    }
}

fn annotation(
    name: &Value,
    property: &Map<String, Value>,
    path: Option<&Vec<&str>>,
    found: &mut Vec<Mirrored>,
) -> Result<(), InvalidTool> {
    let path = path.filter(|path| !path.is_empty()).ok_or(InvalidTool::Place)?;
    let name = name.as_str().filter(|name| is_token(name)).ok_or(InvalidTool::Name)?;
    if !matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
        return Err(InvalidTool::Type);
    }
    let header = format!("{HEADER_PREFIX}{name}");
    if found.iter().any(|other| other.header.eq_ignore_ascii_case(&header)) {
        return Err(InvalidTool::Repeated);
    }
    if found.len() == MOST {
        return Err(InvalidTool::TooMany);
    }
    found.push(Mirrored { header: header.into(), path: path.iter().map(|name| Box::from(*name)).collect() });
    Ok(())
}

/// RFC 9110 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
