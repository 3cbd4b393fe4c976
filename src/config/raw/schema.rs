//! The JSON Schema of a file, made from the types beside it.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::File;

/// The JSON Schema of a file, which is also what `shape` checks files against.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let mut schema = schemars::schema_for!(File).to_value();
        tidy(&mut schema);
        schema
    });
    &SCHEMA
}

/// Takes out what the derive writes and a file may not: null for every optional key, and defaults of whole sections,
/// which only repeat those of their keys.
fn tidy(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    if members.remove("x-null").is_none() {
        without_null(members);
        members.retain(|key, value| key != "default" || !(value.is_null() || value.is_object()));
    }
    members.remove("format");
    if let Some(Value::String(description)) = members.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    let required = members.get_mut("properties").map(required_keys).unwrap_or_default();
    if !required.is_empty() {
        members.insert("required".to_owned(), required.into());
    }
    for (key, value) in members {
        match (key.as_str(), value) {
            ("properties" | "$defs", Value::Object(schemas)) => schemas.values_mut().for_each(tidy),
            ("anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter_mut().for_each(tidy),
            ("items" | "additionalProperties", schema) => tidy(schema),
            _ => {}
        }
    }
}

/// The keys marked `x-required`; the marks are taken off, and with them the defaults that stand in for a value.
fn required_keys(properties: &mut Value) -> Vec<String> {
    let marked = properties.as_object_mut().into_iter().flatten().filter_map(|(key, schema)| {
        let schema = schema.as_object_mut()?;
        schema.remove("x-required")?;
        schema.remove("default");
        Some(key.clone())
    });
    marked.collect()
}

fn without_null(members: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(alternatives)) = members.get_mut("anyOf") else { return };
    alternatives.retain(|alternative| alternative.get("type").is_none_or(|kind| kind != "null"));
    if let [Value::Object(only)] = alternatives.as_slice() {
        let only = only.clone();
        members.remove("anyOf");
        members.extend(only);
    }
}
