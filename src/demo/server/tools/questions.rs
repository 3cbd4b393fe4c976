//! Tools that put questions to the client.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::call::{Asked, Call, Failure, result_of};
use super::text;

const ELICIT: &str = "elicitation/create";

#[derive(Deserialize)]
struct Ask {
    #[serde(default = "your_name")]
    message: String,
}

fn your_name() -> String {
    "What is your name?".to_owned()
}

pub(super) async fn ask(call: &mut Call) -> Result<String, Failure> {
    let Ask { message } = call.arguments()?;
    let answer = result_of(ask_name(call, &message)?).await?;
    Ok(text(&greeting(&answer)))
}

pub(super) async fn ask_two(call: &mut Call) -> Result<String, Failure> {
    let name = ask_name(call, &your_name())?;
    let confirm = ask_for(call, "Go on?", &json!({"confirm": {"type": "boolean", "title": "Confirm"}}))?;
    let (name, confirm) = (result_of(name).await?, result_of(confirm).await?);
    Ok(text(&format!("{}; confirmed: {}", greeting(&name), content(&confirm, "confirm"))))
}

pub(super) async fn ask_twice(call: &mut Call) -> Result<String, Failure> {
    let name = result_of(ask_name(call, &your_name())?).await?;
    let colours = json!({"colour": {"type": "string", "title": "Colour", "enum": ["red", "green", "blue"]}});
    let colour = result_of(ask_for(call, "Which colour do you like?", &colours)?).await?;
    Ok(text(&format!("{}; colour: {}", greeting(&name), content(&colour, "colour"))))
}

pub(super) async fn ask_url(call: &mut Call) -> Result<String, Failure> {
    let params = json!({
        "mode": "url",
        "message": "Please confirm on this page",
        "url": "https://example.com/confirm?id=demo",
        "elicitationId": "demo-1",
    });
    let answer = result_of(call.ask(ELICIT, &params.to_string())?).await?;
    Ok(text(&format!("the client chose: {}", action(&answer))))
}

#[derive(Deserialize)]
struct Summarize {
    text: String,
}

pub(super) async fn summarize(call: &mut Call) -> Result<String, Failure> {
    let Summarize { text: long } = call.arguments()?;
    let params = json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": format!("Summarize: {long}")}}],
        "maxTokens": 200,
    });
    let answer = result_of(call.ask("sampling/createMessage", &params.to_string())?).await?;
    let said = answer.pointer("/content/text").or_else(|| answer.pointer("/content/0/text"));
    Ok(text(said.and_then(Value::as_str).unwrap_or("the client's model said nothing")))
}

pub(super) async fn roots(call: &mut Call) -> Result<String, Failure> {
    let answer = result_of(call.ask("roots/list", "{}")?).await?;
    let roots = answer.get("roots").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let uris: Vec<&str> = roots.iter().filter_map(|root| root.get("uri")?.as_str()).collect();
    Ok(text(&uris.join("\n")))
}

fn ask_name(call: &mut Call, message: &str) -> Result<Asked, Failure> {
    ask_for(call, message, &json!({"name": {"type": "string", "title": "Name", "minLength": 1}}))
}

fn ask_for(call: &mut Call, message: &str, properties: &Value) -> Result<Asked, Failure> {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
    let schema = json!({"type": "object", "properties": properties, "required": required});
    let params = json!({"message": message, "requestedSchema": schema, "_meta": {"vendor.example/n": 1}});
    call.ask(ELICIT, &params.to_string())
}

fn action(answer: &Value) -> &str {
    answer.get("action").and_then(Value::as_str).unwrap_or("nothing")
}

/// A field of an accepted form as text, else what the client did instead.
fn content(answer: &Value, field: &str) -> String {
    match answer.get("content").and_then(|content| content.get(field)) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => action(answer).to_owned(),
    }
}

fn greeting(answer: &Value) -> String {
    match answer.pointer("/content/name").and_then(Value::as_str) {
        Some(name) if action(answer) == "accept" => format!("Hello, {name}"),
        _ => format!("No name was given ({})", action(answer)),
    }
}
