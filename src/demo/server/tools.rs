//! The tools: each shows one thing that a call can do.

mod catalogue;
mod questions;
mod work;

use serde_json::{Map, Value, json};

use crate::mcp::version::ProtocolVersion;

use super::call::{Call, Failure};
use super::modern;
use super::options::Options;

pub(super) use catalogue::TOOLS;
pub use work::EXACT;

/// A tool as `tools/list` shows it.
#[derive(Debug)]
pub(super) struct Tool {
    pub name: &'static str,
    pub description: &'static str,
    /// The names, JSON types and descriptions of the arguments; those with a `!` are required, those with a dot are inside
    /// of an object.
    pub arguments: &'static [(&'static str, &'static str, &'static str)],
    pub read_only: bool,
}

impl Tool {
    pub(super) fn declaration(&self, options: &Options, version: ProtocolVersion) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, kind, description) in self.arguments {
            let name = name.strip_suffix('!').inspect(|name| required.push(*name)).unwrap_or(name);
            let mut property = json!({"type": kind, "description": description});
            if let (Some(header), Some(members)) = (self.header_of(name, version), property.as_object_mut()) {
                members.insert("x-mcp-header".to_owned(), json!(header));
            }
            match name.split_once('.') {
                Some((outer, inner)) => {
                    properties.insert(outer.to_owned(), json!({"type": "object", "properties": {inner: property}}))
                }
                None => properties.insert(name.to_owned(), property),
            };
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

    /// The header field that repeats an argument; there are none in the legacy era.
    fn header_of(&self, argument: &str, version: ProtocolVersion) -> Option<&'static str> {
        let mirrored = modern::mirrored(self.name).iter().filter(|_| !version.has_sessions());
        mirrored.into_iter().find(|(path, _)| *path == argument).map(|(_, header)| *header)
    }
}

/// Runs a call to its end. The result is JSON text.
pub(super) async fn run(call: &mut Call) -> Result<String, Failure> {
    match call.tool.name {
        "echo" => work::echo(call),
        "report" => work::report(call).await,
        "hold" | "stubborn" => work::hold(call).await,
        "deploy" => work::deploy(call),
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
