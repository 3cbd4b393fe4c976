//! The protocol's vocabulary as far as a gateway must know it. Pure: no I/O, no time.

pub mod capabilities;
pub mod envelope;
pub mod input;
pub mod level;
pub mod method;
pub mod mirror;
pub mod probe;
pub mod project;
pub mod subscription;
pub mod version;

use memchr::memmem;

/// The `_meta` key that ties a message to a task (2025-11-25 tasks, "Related Task Metadata").
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// What stands in that key, unless more than the slash before it is escaped ([`may_hold`]).
pub const RELATED_TASK_WORD: &str = "related-task";

/// How the escape of each character of ASCII begins that has a number (RFC 8259, 7): no letter has another.
pub const ESCAPED_ASCII: &str = "\\u00";

/// Whether a JSON text may have a word of letters in it: the word stands there, or something is escaped that could spell it
/// otherwise.
#[must_use]
pub fn may_hold(text: impl AsRef<[u8]>, word: &str) -> bool {
    let has = |word: &str| memmem::find(text.as_ref(), word.as_bytes()).is_some();
    has(word) || has(ESCAPED_ASCII)
}

/// The `_meta` key for text that a client may give its model at once (2025-11-25 tasks, "Model Immediate Response").
pub const MODEL_IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";
/// The extension of the modern era; upstreams never see it.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";
