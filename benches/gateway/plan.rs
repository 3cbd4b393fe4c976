//! What the bench tells a load generator to do, and what that tells it back: both are JSON between two processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::upstream;

/// One errand of a load generator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) action: Action,
    /// What the clients speak.
    pub(crate) era: Era,
    /// The key by which they say who they are.
    pub(crate) key: Option<String>,
    /// Where the load goes.
    pub(crate) proxy: SocketAddr,
    /// Another replica of it, where there is one.
    pub(crate) other: Option<SocketAddr>,
    /// Where the calls in hand are counted.
    pub(crate) upstream: SocketAddr,
    /// The proxy's process, whose tree is charged for the load; none when there is no proxy.
    pub(crate) watch: Option<u32>,
    pub(crate) warm_up: f64,
    pub(crate) seconds: f64,
}

/// Which protocol is spoken: the one with sessions or the one without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Era {
    /// 2025-11-25.
    #[default]
    Legacy,
    /// 2026-07-28.
    Modern,
}

/// What to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Each connection calls again as soon as it is answered.
    Closed { tool: Tool, connections: usize },
    /// So many calls a second, answered or not.
    Open { tool: Tool, connections: usize, per_second: u32 },
    /// So many calls a second of one tenant, and beside them, if `noise`, another one far over its rates.
    Quiet { tool: Tool, connections: usize, per_second: u32, noise: bool },
    /// Create, get until done, result: again and again.
    Lives { connections: usize },
    /// Tasks are made as fast as their handles come.
    Creates { connections: usize },
    /// So many tasks have ended and are read in turn.
    Polls { connections: usize, count: usize },
    /// The replica that holds so many calls is killed; the other one is asked until their tasks have ended.
    Takeover { count: usize },
    /// `few` and then `many` held calls stand behind tasks while tasks are read.
    HeldTasks { connections: usize, few: usize, many: usize },
    /// So many plain calls wait for their answers.
    HeldCalls { count: usize },
    /// So many tasks have ended and are kept.
    Finished { connections: usize, count: usize },
    /// One session, one call, and then nothing.
    Idle,
}

/// The upstream's tools, with the arguments that the bench uses.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tool {
    Small,
    Big,
    Burst,
    Paced,
    Noop,
    Hold,
}

/// Bytes of the answer of [`Tool::Big`].
pub(crate) const BIG: usize = 64 << 10;
/// Events before the answer of [`Tool::Burst`].
pub(crate) const BURST: usize = 100;
/// Events before the answer of [`Tool::Paced`], and the milliseconds before each.
pub(crate) const PACED: (usize, usize) = (50, 2);

const PROGRESS_TOKEN: &str = r#""progressToken":7"#;
/// What a request of the modern era says of its client.
const CLAIMS: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}"#;

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Big => "big",
            Self::Burst => "burst",
            Self::Paced => "paced",
            Self::Noop => "noop",
            Self::Hold => "hold",
        }
    }

    /// `params` of the call; with `task`, so that it becomes one.
    pub(crate) fn params(self, task: bool) -> String {
        let meta = if self.events() > 0 { format!(r#","_meta":{{{PROGRESS_TOKEN}}}"#) } else { String::new() };
        let task = if task { r#","task":{}"# } else { "" };
        format!(r#"{{"name":"{}","arguments":{}{meta}{task}}}"#, self.name(), self.arguments())
    }

    /// `params` of the call with what every request of the modern era claims.
    pub(crate) fn modern_params(self) -> String {
        let token = if self.events() > 0 { format!(",{PROGRESS_TOKEN}") } else { String::new() };
        format!(r#"{{"name":"{}","arguments":{},"_meta":{{{CLAIMS}{token}}}}}"#, self.name(), self.arguments())
    }

    fn arguments(self) -> String {
        let (events, gap) = PACED;
        match self {
            Self::Small => format!(r#"{{"text":"{}"}}"#, upstream::SMALL_TEXT),
            Self::Big => format!(r#"{{"bytes":{BIG}}}"#),
            Self::Burst => format!(r#"{{"events":{BURST}}}"#),
            Self::Paced => format!(r#"{{"events":{events},"gapMs":{gap}}}"#),
            Self::Noop | Self::Hold => "{}".to_owned(),
        }
    }

    /// Progress notifications before the answer.
    pub(crate) fn events(self) -> usize {
        match self {
            Self::Burst => BURST,
            Self::Paced => PACED.0,
            Self::Small | Self::Big | Self::Noop | Self::Hold => 0,
        }
    }

    /// Fewest bytes that an answer can have.
    pub(crate) fn least_bytes(self) -> usize {
        if matches!(self, Self::Big) { BIG } else { 0 }
    }
}

impl Plan {
    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// When whoever carries it out is stuck. The held and the finished cost a fraction of a millisecond each.
    pub(crate) fn patience(&self) -> Duration {
        self.warm_up() + self.window() * 2 + Duration::from_secs(120)
    }
}

/// A figure that a load generator reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Calls answered (or lives ended) in a second.
    PerSecond,
    /// Median latency in microseconds.
    P50,
    /// 99th percentile of latency in microseconds.
    P99,
    /// The proxy's user and system time in microseconds: per call, per event where a call has events, per life.
    Cpu,
    /// 99th percentile in microseconds of the answer with the handle.
    HandleP99,
    /// `tasks/get` per life.
    Polls,
    /// CPU of a `tasks/get` with few held tasks.
    CpuFew,
    /// CPU of a `tasks/get` with many held tasks.
    CpuMany,
    /// What the upstream was sent for each call after the first of each connection.
    Requests,
    /// What was refused of a noisy tenant's requests.
    Refused,
    /// Milliseconds from the death of a replica until all of its tasks have ended.
    Takeover,
    /// Milliseconds from the proxy's start until it takes connections.
    Start,
    /// Resident bytes of the proxy: for each thing kept, or in all when it is idle or its disk is full of them.
    Bytes,
}

/// Figures of one round.
pub(crate) type Sample = BTreeMap<Figure, f64>;
