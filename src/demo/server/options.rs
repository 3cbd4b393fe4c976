//! How the server behaves: which revision it speaks, how it answers, and what it holds back.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::mcp::version::ProtocolVersion;

/// The behaviour of a server. `Options::default()` is a good citizen of 2025-11-25.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The newest protocol version that is spoken; older ones are negotiated
    #[arg(long, value_parser = version, default_value_t = ProtocolVersion::LATEST_LEGACY)]
    pub version: ProtocolVersion,
    /// Answer every request with server-sent events
    #[arg(long, conflicts_with = "always_json")]
    pub always_sse: bool,
    /// Answer every request with JSON; what a tool sends before its result goes to the GET stream
    #[arg(long)]
    pub always_json: bool,
    /// Give out no session ids and offer no GET stream
    #[arg(long)]
    pub stateless: bool,
    /// Send questions on the GET stream instead of the call's own
    #[arg(long)]
    pub ask_on_get: bool,
    /// Send messages to sessions of 2025-03-26 in JSON arrays
    #[arg(long)]
    pub batches: bool,
    /// Give events ids, so that streams can be resumed
    #[arg(long)]
    pub event_ids: bool,
    /// Begin each stream with an event that has an id and no data (sessions of 2025-11-25 only)
    #[arg(long)]
    pub priming: bool,
    /// List this many tools on a page
    #[arg(long)]
    pub page_size: Option<usize>,
    /// List every tool with this `execution.taskSupport`, as some servers do that have no tasks
    #[arg(long)]
    pub task_support: Option<TaskSupport>,
    /// Which eras of the protocol are spoken
    #[arg(long, value_enum, default_value_t)]
    pub era: Era,
    /// 2026-07-28: ask in later rounds under the keys of the first
    #[arg(long)]
    pub reuse_keys: bool,
    /// 2026-07-28: before its first question a tool answers this often with nothing but a `requestState`
    #[arg(long, default_value_t = 0)]
    pub state_rounds: u32,
    /// 2026-07-28: ask without a `requestState`, which tools that ask twice can't
    #[arg(long)]
    pub no_request_state: bool,
    /// How long a question waits for its answer
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10m")]
    pub answer_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: ProtocolVersion::LATEST_LEGACY,
            always_sse: false,
            always_json: false,
            stateless: false,
            ask_on_get: false,
            batches: false,
            event_ids: false,
            priming: false,
            page_size: None,
            task_support: None,
            era: Era::Legacy,
            reuse_keys: false,
            state_rounds: 0,
            no_request_state: false,
            answer_timeout: Duration::from_secs(600),
        }
    }
}

/// The eras that a server speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Era {
    /// Sessions that begin with a handshake: 2025-11-25 and older.
    #[default]
    Legacy,
    /// Stateless: 2026-07-28.
    Modern,
    /// Either, as each message says.
    Both,
}

/// A value of `execution.taskSupport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TaskSupport {
    /// The tool refuses tasks.
    Forbidden,
    /// The caller chooses.
    Optional,
    /// The tool refuses plain calls.
    Required,
}

impl TaskSupport {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

fn version(text: &str) -> Result<ProtocolVersion, String> {
    ProtocolVersion::parse_legacy(text).ok_or_else(|| {
        let known: Vec<&str> = ProtocolVersion::LEGACY.iter().map(|version| version.as_str()).collect();
        format!("not one of {}", known.join(", "))
    })
}
