//! The schema, the example and the reference in `docs/` say what the code does. `UPDATE=1 cargo test` writes them anew.

use std::{env, fs, path::Path};

use serde_json::{Map, Value, json};

use super::{ROUTE, read_with, settings};
use crate::config::{Settings, describe, load, raw};

const BEGIN: &str = "<!-- Written by `UPDATE=1 cargo test` from src/config/raw.rs. -->\n";
const END: &str = "<!-- End of what is written by the test. -->\n";

#[track_caller]
fn assert_file(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(found == expected, "{} is out of date: run UPDATE=1 cargo test", path.display());
}

#[test]
fn the_schema_is_up_to_date() {
    assert_file("config/taskgate.schema.json", &format!("{:#}\n", raw::schema()));
}

#[test]
fn the_schema_takes_what_the_program_takes() {
    let validator = jsonschema::validator_for(raw::schema()).unwrap();
    let example = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/taskgate.yaml")).unwrap();
    for text in [ROUTE, &example] {
        let value: Value = serde_saphyr::from_str(text).unwrap();
        if let Err(error) = validator.validate(&value) {
            panic!("{error} at {}", error.instance_path());
        }
    }
    for wrong in [
        "routes: []",
        "routes: [{name: a, path: /a, upstream: {}, x: 1}]",
        "auth:",
        "sessions: {max: 0}",
        "listen: {max_body: 1MB}",
    ] {
        let wrong = if wrong.starts_with("routes") { wrong.to_owned() } else { format!("{wrong}\n{ROUTE}") };
        let value: Value = serde_saphyr::from_str(&wrong).unwrap();
        assert!(!validator.is_valid(&value), "{wrong}");
    }
}

#[test]
fn the_example_is_good() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/taskgate.yaml");
    let env = |name: &str| match name {
        "TASKGATE_ADMIN_TOKEN" => Some("an-admin-token".to_owned()),
        "TASKGATE_KEY" => Some("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".to_owned()),
        "TASKGATE_REPORTS_KEY" => Some("a-key-of-the-reports-server".to_owned()),
        _ => None,
    };
    let settings = load(&path, &env).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(settings.warnings, []);
    assert!(settings.routes.len() > 1 && describe(&settings).contains("reports"));
    // It says which variables it needs.
    let errors = load(&path, &|_| None).unwrap_err();
    assert_eq!(errors.problems().len(), 3, "{errors}");
}

/// Every default that the documents show, said in a file, changes nothing.
#[test]
fn the_defaults_are_the_real_ones() {
    let minimal = json!({"name": "a", "path": "/mcp", "upstream": {"url": "http://u/mcp"}});
    let mut file = defaults(raw::schema());
    let mut route = defaults(&raw::schema()["$defs"]["Route"]);
    merge(&mut route, minimal);
    file["routes"] = json!([route]);
    assert!(
        file["routes"][0]["tasks"]["ttl"]["default"] == "1h" && file["tenants"]["default"]["kept_tasks"] == 100_000
    );
    assert_eq!(settings(&file.to_string()), settings(ROUTE));
}

/// The keys that have defaults, with them.
fn defaults(schema: &Value) -> Value {
    let mut values = Map::new();
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let section = defaults(resolve(schema));
        if let Some(default) = schema.get("default") {
            values.insert(key.clone(), default.clone());
        } else if section.as_object().is_some_and(|keys| !keys.is_empty()) && !later(schema) && key != "auth" {
            values.insert(key.clone(), section);
        }
    }
    Value::Object(values)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn resolve(schema: &Value) -> &Value {
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => raw::schema().pointer(pointer).unwrap(),
        None => schema,
    }
}

fn later(schema: &Value) -> bool {
    schema.get("x-later").is_some()
}

#[test]
fn the_reference_is_up_to_date() {
    let path = "docs/configuration.md";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    assert_file(path, &format!("{before}{BEGIN}{}{END}{after}", reference()));
}

/// The tables of the reference, one for each section.
fn reference() -> String {
    let mut tables = String::new();
    for (key, schema) in raw::schema()["properties"].as_object().unwrap() {
        let description = described(schema);
        tables.push_str(&format!(
            "\n### `{key}`\n\n{description}\n\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n"
        ));
        let path = if schema["type"] == "array" { format!("{key}[]") } else { key.clone() };
        let section = if schema["type"] == "array" { resolve(&schema["items"]) } else { resolve(schema) };
        rows(&mut tables, &path, section);
    }
    tables.push('\n');
    tables
}

fn rows(table: &mut String, path: &str, section: &Value) {
    let required: Vec<_> = section["required"].as_array().into_iter().flatten().collect();
    for (key, schema) in section["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let needed = required.iter().any(|required| *required == key);
        let default = match schema.get("default") {
            Some(Value::String(text)) => format!("`{text}`"),
            Some(value) => format!("`{value}`"),
            None if needed => "required".to_owned(),
            None => String::new(),
        };
        table.push_str(&format!("| `{path}` | {} | {default} | {} |\n", kind(schema), described(schema)));
        below(table, &path, schema);
    }
    if let Some(others) = section.get("additionalProperties").filter(|others| others.is_object()) {
        let path = format!("{path}.NAME");
        table.push_str(&format!("| `{path}` | {} | | {} |\n", kind(others), described(others)));
        below(table, &path, others);
    }
}

fn below(table: &mut String, path: &str, schema: &Value) {
    let value = resolve(schema);
    if value["type"] == "object" {
        rows(table, path, value);
    } else if value["type"] == "array" {
        let items = resolve(&value["items"]);
        if items["type"] == "object" {
            rows(table, &format!("{path}[]"), items);
        }
    }
}

fn described(schema: &Value) -> String {
    let text = schema["description"].as_str().or_else(|| resolve(schema)["description"].as_str()).unwrap_or_default();
    let mut text = text.replace('|', "\\|");
    if let Some(feature) = schema["x-later"].as_str() {
        let accepted =
            schema["x-accepted"].as_array().cloned().or_else(|| schema.get("default").map(|only| vec![only.clone()]));
        let values =
            accepted.iter().flatten().map(|value| format!("`{}`", plain(value))).collect::<Vec<_>>().join(" and ");
        text.push_str(&match accepted {
            Some(_) => format!(" **So far only {values}**: {feature} is not supported yet."),
            None => " **Not supported yet.**".to_owned(),
        });
    }
    text
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn kind(schema: &Value) -> String {
    let value = resolve(schema);
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    if let Some(variants) = value["oneOf"].as_array() {
        return variants.iter().map(|variant| format!("`{}`", plain(&variant["const"]))).collect::<Vec<_>>().join(", ");
    }
    let kind = match (name, value["type"].as_str()) {
        (Some("Secret"), _) => "secret",
        (Some("Duration"), _) => "duration",
        (Some("Defer"), _) => "duration or `never`",
        (Some("Size"), _) => "size",
        (Some("Rate"), _) => "rate",
        (Some("Exchange"), _) => "`true`, `false`, section",
        (_, Some("object")) => "section",
        (_, Some("integer")) => "number",
        (_, Some("boolean")) => "`true`, `false`",
        (_, Some("array")) => {
            return format!(
                "list of {}",
                if kind(&value["items"]) == "section" {
                    "sections".to_owned()
                } else {
                    format!("{}s", kind(&value["items"]))
                }
            );
        }
        _ => "text",
    };
    match schema["examples"][0].as_str() {
        Some(example) => format!("{kind}, such as `{example}`"),
        None => kind.to_owned(),
    }
}

/// The prose has examples too.
#[test]
fn examples_in_the_documents_are_good() {
    for page in ["docs/authentication.md", "docs/authorization.md", "docs/configuration.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        let env = [
            ("REPORTS_URL", "http://reports/mcp"),
            ("TASKGATE_REPORTS_KEY", "hush"),
            ("TASKGATE_INTROSPECTION_SECRET", "hush"),
        ];
        let examples: Vec<_> = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(!examples.is_empty(), "{page}");
        for example in examples {
            let read: Result<Settings, _> = read_with(example, &env);
            read.unwrap_or_else(|errors| panic!("{errors}\n{example}"));
        }
    }
}
