//! Tools that need nothing from the client.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::jsonrpc::ErrorObject;

use super::super::call::{Call, Failure, LEVELS};
use super::text;

/// The result of the tool `exact`, to the byte.
pub const EXACT: &str = r#"{"zeta":{"b":1,"a":[1E3,-0,1.10,9007199254740993]},"content":[{"type":"text","vendor":9007199254740993,"text":"exact \u0041\/\u00e9"}],"structuredContent":{"big":9007199254740993,"price":1.10,"power":1E3,"zero":-0,"nothing":null},"_meta":{"vendor.example/key":{"z":1,"a":2}},"isError":false,"alpha":null}"#;

/// The largest text of `big`.
const BIGGEST: usize = 64 * 1024 * 1024;
/// The most sections or messages.
const MOST: u32 = 10_000;

#[derive(Deserialize)]
struct Echo {
    text: String,
}

pub(super) fn echo(call: &Call) -> Result<String, Failure> {
    let Echo { text: said } = call.arguments()?;
    Ok(text(&said))
}

#[derive(Deserialize)]
struct Report {
    seconds: Option<f64>,
    #[serde(default = "four")]
    sections: u32,
}

const fn four() -> u32 {
    4
}

pub(super) async fn report(call: &mut Call) -> Result<String, Failure> {
    let Report { seconds, sections } = call.arguments()?;
    if sections > MOST {
        return Err(Failure::Tool(format!("a report has at most {MOST} sections")));
    }
    let each = seconds.map(|seconds| seconds / f64::from(sections.max(1)));
    for section in 1..=sections {
        call.pause(each).await;
        call.progress(section, sections, &format!("Section {section} of {sections} is written"));
    }
    let said = format!("The report has {sections} sections.");
    Ok(json!({
        "content": [{"type": "text", "text": said}],
        "structuredContent": {"title": "The report", "sections": sections},
        "vendor.example/pages": 9_007_199_254_740_993_u64,
    })
    .to_string())
}

#[derive(Deserialize)]
struct Hold {
    seconds: Option<f64>,
}

pub(super) async fn hold(call: &mut Call) -> Result<String, Failure> {
    let Hold { seconds } = call.arguments()?;
    call.pause(seconds).await;
    Ok(text("held to the end"))
}

#[derive(Deserialize)]
struct Deploy {
    region: String,
    shard: Option<i64>,
    dry_run: Option<bool>,
    #[serde(default)]
    target: Target,
}

#[derive(Default, Deserialize)]
struct Target {
    zone: Option<String>,
}

pub(super) fn deploy(call: &Call) -> Result<String, Failure> {
    let Deploy { region, shard, dry_run, target } = call.arguments()?;
    let places = [Some(region), shard.map(|shard| shard.to_string()), dry_run.map(|dry| dry.to_string()), target.zone];
    Ok(text(&places.into_iter().flatten().collect::<Vec<_>>().join(", ")))
}

pub(super) fn release(call: &Call) -> String {
    call.shared().release();
    text("released")
}

#[derive(Deserialize)]
struct Fail {
    #[serde(default = "unwilling")]
    text: String,
}

fn unwilling() -> String {
    "the tool failed, as it was asked to".to_owned()
}

pub(super) fn fail(call: &Call) -> Result<String, Failure> {
    let Fail { text } = call.arguments()?;
    Err(Failure::Tool(text))
}

#[derive(Deserialize)]
struct Broken {
    #[serde(default = "fell_over")]
    message: String,
}

fn fell_over() -> String {
    "the server fell over".to_owned()
}

pub(super) fn broken(call: &Call) -> Result<String, Failure> {
    let Broken { message } = call.arguments()?;
    let data = json!({"hint": "try another tool", "big": 9_007_199_254_740_993_u64});
    Err(Failure::Error(ErrorObject::new(-32000, message).with_data(&data)))
}

#[derive(Deserialize)]
#[serde(default)]
struct Log {
    messages: u32,
    level: String,
    text: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { messages: 1, level: "info".to_owned(), text: "working on it".to_owned() }
    }
}

pub(super) fn log(call: &Call) -> Result<String, Failure> {
    let Log { messages, level, text: said } = call.arguments()?;
    let Some(level) = LEVELS.iter().position(|known| *known == level) else {
        return Err(Failure::Tool(format!("a level is one of {}", LEVELS.join(", "))));
    };
    if messages > MOST {
        return Err(Failure::Tool(format!("at most {MOST} messages at once")));
    }
    for number in 1..=messages {
        call.log(level, &json!({"text": said, "number": number}));
    }
    Ok(text("logged"))
}

#[derive(Deserialize)]
struct Big {
    bytes: usize,
}

pub(super) fn big(call: &Call) -> Result<String, Failure> {
    let Big { bytes } = call.arguments()?;
    if bytes > BIGGEST {
        return Err(Failure::Tool("at most 64 MiB".to_owned()));
    }
    Ok(text(&"x".repeat(bytes)))
}

pub(super) fn count(call: &Call) -> String {
    let mut now = 0;
    call.shared().note(|stats| {
        stats.counter += 1;
        now = stats.counter;
    });
    json!({"content": [{"type": "text", "text": now.to_string()}], "structuredContent": {"count": now}}).to_string()
}

pub(super) fn stats(call: &Call) -> String {
    let seen: Value = call.shared().stats.borrow().to_json();
    json!({"content": [{"type": "text", "text": seen.to_string()}], "structuredContent": seen}).to_string()
}

pub(super) fn fault(call: &Call) -> String {
    call.progress(1, 2, "about to break");
    text("nothing broke")
}
