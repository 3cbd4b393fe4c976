//! Checks a file's tree against the schema of `raw`: unknown keys, missing keys, wrong kinds of values, features that
//! come later.
//!
//! It goes on after every mistake. What comes out is the part of the file that has the right shape, as JSON that
//! `raw::File` surely takes; a value that doesn't fit is left out, so that its default stands in while the rest is
//! checked. The schema is the only list of keys: nothing else has to be kept in step with `raw`.

use serde_json::{Map, Value};

use super::{
    environment,
    problem::{Problems, nearest, quote},
    tree::{Entry, Kind, Node, Place},
};

/// Checks `place` against `schema`, whose `$ref`s point into `root`.
pub(super) struct Checker<'a> {
    pub(super) root: &'a Value,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) problems: &'a mut Problems,
}

impl<'a> Checker<'a> {
    /// The value at `place`, as far as it has the right shape.
    pub(super) fn value(&mut self, place: &Place<'_>, schema: &'a Value) -> Option<Value> {
        let node = place.node?;
        let later = schema.get("x-later").and_then(Value::as_str);
        if let (Some(feature), Kind::List(_) | Kind::Map(_)) = (later, &node.kind) {
            // The keys of a feature that isn't there are not worth checking. An empty list asks for nothing.
            if !matches!(&node.kind, Kind::List(items) if items.is_empty() && schema.get("default").is_some()) {
                self.refuse(place, feature);
                return None;
            }
        }
        let value = self.resolved(place, node, self.resolve(schema))?;
        match later {
            Some(feature) if !accepts(schema, &value) => {
                self.refuse(place, feature);
                None
            }
            _ => Some(value),
        }
    }

    fn refuse(&mut self, place: &Place<'_>, feature: &str) {
        self.problems.error(place, format!("{feature} is not supported yet"));
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let reference = schema.get("$ref").and_then(Value::as_str);
        let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
        pointer.and_then(|pointer| self.root.pointer(pointer)).unwrap_or(schema)
    }

    fn resolved(&mut self, place: &Place<'_>, node: &Node, schema: &'a Value) -> Option<Value> {
        if let Some(alternatives) = schema.get("anyOf").and_then(Value::as_array) {
            let fitting = alternatives.iter().map(|schema| self.resolve(schema)).find(|schema| fits(node, schema));
            return match fitting {
                Some(schema) => self.resolved(place, node, schema),
                None => self.mismatch(place, node, schema),
            };
        }
        match &node.kind {
            _ if node.is_null() => match has_type(schema, "null") {
                true => Some(Value::Null),
                false => self.mismatch(place, node, schema),
            },
            Kind::Map(entries) if has_type(schema, "object") => Some(self.map(place, entries, schema)),
            Kind::List(items) if has_type(schema, "array") => self.list(place, items.len(), schema),
            Kind::Scalar { text, .. } if !has_type(schema, "object") && !has_type(schema, "array") => {
                match environment::fill(text, self.env) {
                    Ok(text) => self.scalar(place, &text, schema),
                    Err(message) => {
                        self.problems.error(place, message);
                        None
                    }
                }
            }
            _ => self.mismatch(place, node, schema),
        }
    }

    fn map(&mut self, place: &Place<'_>, entries: &[Entry], schema: &'a Value) -> Value {
        let known = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        let mut map = Map::new();
        for Entry { key, key_position, .. } in entries {
            let below = place.key(key);
            match known.and_then(|known| known.get(key)).or(others) {
                Some(schema) => {
                    if let Some(value) = self.value(&below, schema) {
                        map.insert(key.clone(), value);
                    }
                }
                None => {
                    let message = self.unknown(key, known);
                    self.problems.error(&Place { position: Some(*key_position), ..below }, message);
                }
            }
        }
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !entries.iter().any(|entry| entry.key == key) {
                self.problems.error(&place.key(key), format!("{} is missing", quote(key)));
            }
        }
        Value::Object(map)
    }

    /// What to say about a key that isn't known here.
    fn unknown(&self, key: &str, known: Option<&'a Map<String, Value>>) -> String {
        if key == "<<" {
            return "merge keys are not supported; an alias can stand for a whole value".to_owned();
        }
        let known = || known.into_iter().flatten();
        if let Some(near) = nearest(key, known().map(|(known, _)| known.as_str())) {
            return format!("unknown key; did you mean {}?", quote(near));
        }
        // A key one level too high.
        for (section, schema) in known() {
            if self.resolve(schema).pointer("/properties").and_then(|properties| properties.get(key)).is_some() {
                return format!("unknown key; did you mean `{section}.{key}`?");
            }
        }
        let all: Vec<_> = known().map(|(key, _)| quote(key)).collect();
        format!("unknown key; known here: {}", all.join(", "))
    }

    fn list(&mut self, place: &Place<'_>, length: usize, schema: &'a Value) -> Option<Value> {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        if (length as u64) < least {
            self.problems
                .error(place, format!("needs at least {least} {}", if least == 1 { "entry" } else { "entries" }));
            return None;
        }
        let items = schema.get("items")?;
        let stand_in = match has_type(self.resolve(items), "object") {
            true => Value::Object(Map::new()),
            false => Value::String(String::new()),
        };
        // An item that doesn't fit keeps its place, so that the others keep theirs.
        let values = (0..length).map(|index| self.value(&place.item(index), items).unwrap_or_else(|| stand_in.clone()));
        Some(Value::Array(values.collect()))
    }

    fn scalar(&mut self, place: &Place<'_>, text: &str, schema: &'a Value) -> Option<Value> {
        let result = if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
            variant(text, variants)
        } else if has_type(schema, "string") {
            Ok(Value::String(text.to_owned()))
        } else if has_type(schema, "boolean") {
            text.parse().map(Value::Bool).map_err(|_| format!("expected `true` or `false`, found {}", quote(text)))
        } else {
            number(text, schema)
        };
        result.map_err(|message| self.problems.error(place, message)).ok()
    }

    fn mismatch(&mut self, place: &Place<'_>, node: &Node, schema: &Value) -> Option<Value> {
        let found = match &node.kind {
            _ if node.is_null() => "nothing",
            Kind::Scalar { .. } => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        };
        self.problems.error(place, format!("expected {}, found {found}", expected(schema)));
        None
    }
}

/// Whether a later feature is not asked for by this value.
fn accepts(schema: &Value, value: &Value) -> bool {
    match schema.get("x-accepted").and_then(Value::as_array) {
        Some(accepted) => accepted.contains(value),
        None => schema.get("default") == Some(value),
    }
}

fn has_type(schema: &Value, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == wanted,
        Some(Value::Array(several)) => several.iter().any(|one| one == wanted),
        _ => false,
    }
}

fn fits(node: &Node, schema: &Value) -> bool {
    match &node.kind {
        _ if node.is_null() => has_type(schema, "null"),
        Kind::Scalar { .. } => has_type(schema, "string") || has_type(schema, "boolean"),
        Kind::List(_) => has_type(schema, "array"),
        Kind::Map(_) => has_type(schema, "object"),
    }
}

fn variant(text: &str, variants: &[Value]) -> Result<Value, String> {
    let known = || variants.iter().filter_map(|variant| variant.get("const")?.as_str());
    if known().any(|known| known == text) {
        return Ok(Value::String(text.to_owned()));
    }
    let all: Vec<_> = known().map(quote).collect();
    let all = all.join(", ");
    Err(match nearest(text, known()) {
        Some(near) => format!("{} is none of {all}; did you mean {}?", quote(text), quote(near)),
        None => format!("{} is none of {all}", quote(text)),
    })
}

fn number(text: &str, schema: &Value) -> Result<Value, String> {
    let bound = |name| schema.get(name).and_then(Value::as_u64);
    let (least, most) = (bound("minimum").unwrap_or(0), bound("maximum").unwrap_or(u64::MAX));
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if digits && (least..=most).contains(&number) => Ok(number.into()),
        _ if digits => Err(format!("{} is not between {least} and {most}", quote(text))),
        _ => Err(format!("expected a whole number, found {}", quote(text))),
    }
}

/// Whether one of the alternatives is `true` or `false`.
fn is_switch(schema: &Value) -> bool {
    let alternatives = schema.get("anyOf").and_then(Value::as_array);
    alternatives.is_some_and(|all| all.iter().any(|schema| has_type(schema, "boolean")))
}

fn expected(schema: &Value) -> String {
    let example = schema.pointer("/examples/0").and_then(Value::as_str);
    match example {
        _ if is_switch(schema) => "`true`, `false` or a mapping of keys to values".to_owned(),
        _ if schema.get("anyOf").is_some() => "a text or `{file: PATH}`".to_owned(),
        _ if has_type(schema, "object") => "a mapping of keys to values".to_owned(),
        _ if has_type(schema, "array") => "a list".to_owned(),
        Some(example) => format!("a value such as {}", quote(example)),
        None if has_type(schema, "boolean") => "`true` or `false`".to_owned(),
        None if has_type(schema, "integer") => "a whole number".to_owned(),
        None => "a single value".to_owned(),
    }
}
