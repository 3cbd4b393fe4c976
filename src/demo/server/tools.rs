//! The tools: each shows one thing that a call can do.

mod catalogue;
mod questions;
mod work;

use serde_json::{Map, Value, json};

use super::call::{Call, Failure};
use super::options::Options;

pub(super) use catalogue::TOOLS;
pub use work::EXACT;

/// A tool as `tools/list` shows it.
#[derive(Debug)]
pub(super) struct Tool {
    pub name: &'static str,
    pub description: &'static str,
    /// The names, JSON types and descriptions of the arguments; those with a `!` are required.
    pub arguments: &'static [(&'static str, &'static str, &'static str)],
    pub read_only: bool,
}

impl Tool {
    pub(super) fn declaration(&self, options: &Options) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, kind, description) in self.arguments {
            let name = name.strip_suffix('!').inspect(|name| required.push(*name)).unwrap_or(name);
            properties.insert(name.to_owned(), json!({"type": kind, "description": description}));
        }
        let mut tool = json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": properties, "required": required},
            "annotations": {"readOnlyHint": self.read_only, "vendor.example/hint": 1},
        });
        if let (Some(support), Some(members)) = (options.task_support, tool.as_object_mut()) {
            members.insert("execution".to_owned(), json!({"taskSupport": support.as_str(), "vendor.example/kept": 1}));
        }
        tool
    }
}

/// Runs a call to its end. The result is JSON text.
pub(super) async fn run(call: &mut Call) -> Result<String, Failure> {
    match call.tool.name {
        "echo" => work::echo(call),
        "report" => work::report(call).await,
        "hold" => work::hold(call).await,
        "release" => Ok(work::release(call)),
        "fail" => work::fail(call),
        "broken" => work::broken(call),
        "log" => work::log(call),
        "big" => work::big(call),
        "count" => Ok(work::count(call)),
        "exact" => Ok(EXACT.to_owned()),
        "stats" => Ok(work::stats(call)),
        "ask" => questions::ask(call).await,
        "ask_two" => questions::ask_two(call).await,
        "ask_twice" => questions::ask_twice(call).await,
        "ask_url" => questions::ask_url(call).await,
        "summarize" => questions::summarize(call).await,
        "roots" => questions::roots(call).await,
        // What goes wrong with it is the transport's doing.
        "fault" => Ok(work::fault(call)),
        unlisted => Err(Failure::Tool(format!("`{unlisted}` is listed but has no implementation"))),
    }
}

/// A result with one text.
fn text(text: &str) -> String {
    json!({"content": [{"type": "text", "text": text}]}).to_string()
}
