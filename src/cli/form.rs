//! Elicitation at the terminal: a form's fields asked one after the other (2025-11-25 elicitation, "Requested Schema").

use std::io::Write;

use serde_json::{Map, Value};

use crate::jsonrpc::{Object, string_value};

use super::screen::{Keyboard, harmless, write};

/// How often a wrong value is asked for again before the form is declined.
const TRIES: u32 = 5;

/// Asks for every field; `None` when the user's input ends or is wrong too often, which declines the form.
pub(super) async fn fill(
    message: &str,
    schema: &str,
    lines: &mut Keyboard,
    output: &mut dyn Write,
) -> Option<Map<String, Value>> {
    write(output, &format!("\n{}  (end of input declines)\n", harmless(message)));
    let mut content = Map::new();
    for field in fields(schema) {
        if let Some(value) = ask(&field, lines, output).await? {
            content.insert(field.name, value);
        }
    }
    Some(content)
}

/// Asks for one field until it fits; an inner `None` leaves it out.
async fn ask(field: &Field, lines: &mut Keyboard, output: &mut dyn Write) -> Option<Option<Value>> {
    for _ in 0..TRIES {
        write(output, &field.prompt());
        let line = lines.recv().await?;
        let line = line.trim();
        if line.is_empty() {
            match (&field.default, field.required) {
                (Some(default), _) => return Some(Some(default.clone())),
                (None, false) => return Some(None),
                (None, true) => {}
            }
        } else if let Some(value) = field.read(line) {
            return Some(Some(value));
        }
        write(output, &format!("  Please give {}.\n", field.kind.describe()));
    }
    None
}

/// A field of a form.
#[derive(Debug)]
struct Field {
    name: String,
    title: String,
    required: bool,
    default: Option<Value>,
    kind: Kind,
}

/// What a field takes.
#[derive(Debug)]
enum Kind {
    Text,
    Number {
        whole: bool,
        least: f64,
        most: f64,
    },
    Choice,
    /// One of these values, each with how it is shown.
    One(Vec<(String, String)>),
    /// Some of these values.
    Some(Vec<(String, String)>),
}

/// The fields of a schema in their order. What can't be read is asked for as text: the server will judge it.
fn fields(schema: &str) -> Vec<Field> {
    let schema = Object::parse(schema).unwrap_or_default();
    let required: Vec<String> = read(schema.get("required"));
    let properties = Object::parse(schema.get("properties").unwrap_or("{}")).unwrap_or_default();
    properties
        .iter()
        .map(|(name, property)| {
            let property = Object::parse(property).unwrap_or_default();
            let text = |member: &str| property.get(member).and_then(string_value);
            let title = text("title").unwrap_or_else(|| name.into());
            let hint = text("description").map(|hint| format!(" ({hint})")).unwrap_or_default();
            Field {
                name: name.to_owned(),
                title: format!("{title}{hint}"),
                required: required.iter().any(|required| required == name),
                default: property.get("default").and_then(|json| serde_json::from_str(json).ok()),
                kind: kind(&property),
            }
        })
        .collect()
}

fn kind(property: &Object<'_>) -> Kind {
    let choices = choices(property);
    if !choices.is_empty() {
        return Kind::One(choices);
    }
    let bound = |name: &str| property.get(name).and_then(|json| json.parse().ok());
    match property.get("type").and_then(string_value).as_deref() {
        Some("boolean") => Kind::Choice,
        Some(number @ ("number" | "integer")) => Kind::Number {
            whole: number == "integer",
            least: bound("minimum").unwrap_or(f64::NEG_INFINITY),
            most: bound("maximum").unwrap_or(f64::INFINITY),
        },
        Some("array") => {
            let items = Object::parse(property.get("items").unwrap_or("{}")).unwrap_or_default();
            Kind::Some(self::choices(&items))
        }
        _ => Kind::Text,
    }
}

/// The values of `enum` (with `enumNames`), `oneOf` or `anyOf`, and how they are shown.
fn choices(property: &Object<'_>) -> Vec<(String, String)> {
    if let Some(values) = property.get("enum") {
        let values: Vec<String> = read(Some(values));
        let names: Vec<String> = read(property.get("enumNames"));
        let shown = values.iter().enumerate().map(|(place, value)| names.get(place).unwrap_or(value).clone());
        return values.clone().into_iter().zip(shown).collect();
    }
    let titled: Vec<Object<'_>> = property
        .get("oneOf")
        .or_else(|| property.get("anyOf"))
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    titled
        .iter()
        .filter_map(|choice| {
            let value = choice.get("const").and_then(string_value)?.into_owned();
            let shown =
                choice.get("title").and_then(string_value).map_or_else(|| value.clone(), |title| title.into_owned());
            Some((value, shown))
        })
        .collect()
}

fn read(json: Option<&str>) -> Vec<String> {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

impl Field {
    fn prompt(&self) -> String {
        let choices = match &self.kind {
            Kind::One(choices) | Kind::Some(choices) => choices
                .iter()
                .enumerate()
                .map(|(place, (_, shown))| format!("    {}. {}\n", place + 1, harmless(shown)))
                .collect(),
            Kind::Text | Kind::Number { .. } | Kind::Choice => String::new(),
        };
        let extra = match (&self.default, &self.kind) {
            (Some(default), _) => format!(" [{}]", harmless(&default.to_string())),
            (None, Kind::Choice) => " (y/n)".to_owned(),
            (None, _) if !self.required => " (optional)".to_owned(),
            (None, _) => String::new(),
        };
        format!("{choices}  {}{extra}: ", harmless(&self.title))
    }

    fn read(&self, line: &str) -> Option<Value> {
        match &self.kind {
            Kind::Text => Some(Value::from(line)),
            Kind::Choice => match line.to_ascii_lowercase().as_str() {
                "y" | "yes" | "true" => Some(Value::from(true)),
                "n" | "no" | "false" => Some(Value::from(false)),
                _ => None,
            },
            Kind::Number { whole, least, most } => {
                let number: f64 = line.parse().ok()?;
                if !(*least..=*most).contains(&number) {
                    return None;
                }
                if *whole {
                    line.parse::<i64>().ok().map(Value::from)
                } else {
                    serde_json::Number::from_f64(number).map(Value::Number)
                }
            }
            Kind::One(choices) => chosen(choices, line).map(Value::from),
            Kind::Some(choices) => {
                let picked: Option<Vec<String>> = line.split(',').map(|part| chosen(choices, part.trim())).collect();
                picked.map(Value::from)
            }
        }
    }
}

/// A choice by its number, its value or how it is shown.
fn chosen(choices: &[(String, String)], line: &str) -> Option<String> {
    let by_name = choices.iter().find(|(value, shown)| value == line || shown.eq_ignore_ascii_case(line));
    let by_number = || choices.get(line.parse::<usize>().ok()?.checked_sub(1)?);
    by_name.or_else(by_number).map(|(value, _)| value.clone())
}

impl Kind {
    fn describe(&self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Choice => "y or n".to_owned(),
            Self::Number { whole, least, most } => {
                let kind = if *whole { "a whole number" } else { "a number" };
                let bound =
                    |word: &str, bound: f64| if bound.is_finite() { format!(" {word} {bound}") } else { String::new() };
                format!("{kind}{}{}", bound("from", *least), bound("up to", *most))
            }
            Self::One(_) => "one of the choices, by number or name".to_owned(),
            Self::Some(_) => "some of the choices, separated by commas".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Fills a form by these lines; the content and what was printed.
    async fn filled(schema: &Value, lines: &[&str]) -> (Option<Value>, String) {
        let (sender, mut keyboard) = tokio::sync::mpsc::channel(64);
        for line in lines {
            sender.send((*line).to_owned()).await.unwrap();
        }
        drop(sender);
        let mut output = Vec::new();
        let content = fill("Please", &schema.to_string(), &mut keyboard, &mut output).await;
        (content.map(Value::Object), String::from_utf8(output).unwrap())
    }

    #[tokio::test]
    async fn every_kind_of_field_is_read() {
        let schema = json!({"type": "object", "required": ["name", "age", "sure"], "properties": {
            "name": {"type": "string", "title": "Name", "description": "as in the passport"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "size": {"type": "number"},
            "sure": {"type": "boolean"},
            "colour": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
            "shape": {"oneOf": [{"const": "c", "title": "Circle"}, {"const": "s"}]},
            "days": {"type": "array", "items": {"type": "string", "enum": ["mon", "tue", "wed"]}},
        }});
        // The order is the schema's text, which here is sorted: age, colour, days, name, shape, size, sure.
        let lines = ["-1", "x", "1.5", "42", "green", "1, wed", "Ada", "2", "1.5", "maybe", "y"];
        let (content, printed) = filled(&schema, &lines).await;
        let wanted = json!({"age": 42, "colour": "g", "days": ["mon", "wed"], "name": "Ada", "shape": "s", "size": 1.5, "sure": true});
        assert_eq!(content, Some(wanted));
        assert!(printed.contains("Please give a whole number from 0 up to 150."), "{printed}");
        assert!(printed.contains("Name (as in the passport): "), "{printed}");
        assert!(printed.contains("    2. Green"), "{printed}");
    }

    #[tokio::test]
    async fn empty_lines_take_the_default_or_leave_out() {
        let schema = json!({"required": ["b"], "properties": {
            "a": {"type": "string"}, "b": {"type": "boolean"}, "c": {"type": "integer", "default": 7}}});
        let (content, _) = filled(&schema, &["", "", "n", ""]).await;
        assert_eq!(content, Some(json!({"b": false, "c": 7})));
    }

    #[tokio::test]
    async fn the_end_of_input_and_wrong_values_decline() {
        let schema = json!({"required": ["a"], "properties": {"a": {"type": "integer"}}});
        assert_eq!(filled(&schema, &[]).await.0, None);
        assert_eq!(filled(&schema, &["x", "y", "z", "", "1e3", "7"]).await.0, None);
    }

    #[tokio::test]
    async fn schemas_of_any_shape_are_taken() {
        for odd in [json!(null), json!([]), json!({"properties": 1}), json!({"properties": {"a": 1}, "required": 7})] {
            let (content, _) = filled(&odd, &["x"]).await;
            assert!(content.is_some(), "{odd}");
        }
        let (content, _) = filled(&json!({"properties": {"a": {"oneOf": [1], "type": "array"}}}), &["", "x"]).await;
        assert_eq!(content, Some(json!({})));
    }
}
