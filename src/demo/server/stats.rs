//! What the server has seen. Every change wakes whoever waits for it, so that tests need not poll.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::jsonrpc::{Id, Object};
use crate::mcp::envelope::CLIENT_CAPABILITIES;
use crate::mcp::{RELATED_TASK, TASKS_EXTENSION};

/// How many cancelled ids and session ids are remembered.
const KEPT: usize = 4096;
/// The largest request body that is remembered.
const KEPT_BODY: usize = 256 * 1024;

/// Calls of one tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolStats {
    /// Calls that began.
    pub started: u64,
    /// Calls that ended, cancelled ones included.
    pub finished: u64,
    /// Calls that were stopped: by `notifications/cancelled`, the end of the session, or in the modern era by the client
    /// that left.
    pub cancelled: u64,
}

/// How a request of the modern era came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Its header fields over HTTP.
    pub headers: Vec<(String, String)>,
    /// Its `params._meta` as JSON text.
    pub meta: String,
}

impl Envelope {
    /// A header field.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// What the server has seen so far.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Calls by tool.
    pub tools: BTreeMap<&'static str, ToolStats>,
    /// Requests and notifications by method; what is not served counts as `other`.
    pub methods: BTreeMap<&'static str, u64>,
    /// The value of the tool `count`.
    pub counter: u64,
    /// Request ids named by `notifications/cancelled`, as JSON text, newest last.
    pub cancelled: VecDeque<String>,
    /// Questions sent.
    pub questions: u64,
    /// Answers that fitted a question.
    pub answers: u64,
    /// Answers that fitted none.
    pub stray_answers: u64,
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions that are open.
    pub sessions: u64,
    /// Sessions ended by DELETE.
    pub deleted: u64,
    /// Event streams that are open, GET streams included.
    pub streams: u64,
    /// GET streams that are open.
    pub get_streams: u64,
    /// GET streams that were opened.
    pub get_streams_opened: u64,
    /// Streams taken up again with `Last-Event-ID`.
    pub resumed: u64,
    /// Connections that are open.
    pub connections: u64,
    /// HTTP requests received.
    pub http_requests: u64,
    /// The method and header fields of the newest HTTP request.
    pub last_headers: Vec<(String, String)>,
    /// The newest request body.
    pub last_body: Bytes,
    /// The `params` of the newest `tools/call`.
    pub last_call: Bytes,
    /// The `params` of the newest `initialize`.
    pub last_initialize: Bytes,
    /// The newest request of the modern era for each method.
    pub envelopes: BTreeMap<&'static str, Envelope>,
    /// Requests of the modern era whose client left before their end.
    pub disconnected: u64,
    /// `input_required` results sent.
    pub rounds: u64,
    /// Requests of the modern era that were refused for what stands in their `_meta`, header fields or `requestState`.
    pub refused: u64,
    /// `subscriptions/listen` streams that are open.
    pub listens: u64,
    /// `subscriptions/listen` streams that were opened.
    pub listens_opened: u64,
    /// `params.task`, `capabilities.tasks` or a `tasks/*` method has arrived.
    pub task_seen: bool,
    /// The tasks extension's name has arrived.
    pub extension_seen: bool,
    /// The related-task key has arrived.
    pub related_task_seen: bool,
}

impl Stats {
    /// The counters of a tool; zero for one that was never called.
    #[must_use]
    pub fn tool(&self, name: &str) -> ToolStats {
        self.tools.get(name).copied().unwrap_or_default()
    }

    /// How many messages of a method arrived.
    #[must_use]
    pub fn method(&self, name: &str) -> u64 {
        self.methods.get(name).copied().unwrap_or_default()
    }

    /// How the newest request of that method came in the modern era.
    #[must_use]
    pub fn envelope(&self, method: &str) -> Option<&Envelope> {
        self.envelopes.get(method)
    }

    /// A header field of the newest HTTP request.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.last_headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(super) fn note_body(&mut self, body: &[u8]) {
        // However it is escaped.
        let plain = serde_json::from_slice(body).map(|body: Value| body.to_string()).unwrap_or_default();
        let finds = |word: &str| plain.contains(word) || memchr::memmem::find(body, word.as_bytes()).is_some();
        self.extension_seen |= finds(TASKS_EXTENSION);
        self.related_task_seen |= finds(RELATED_TASK);
        self.last_body = copy(body);
    }

    pub(super) fn note_request(&mut self, method: &str, params: &Object<'_>) {
        let of_client = params.get("capabilities").and_then(|text| Object::parse(text).ok());
        self.task_seen |= method.starts_with("tasks/")
            || params.get("task").is_some()
            || of_client.is_some_and(|all| all.get("tasks").is_some())
            || claims_tasks(params);
        match method {
            "tools/call" => self.last_call = copy(params.to_json().as_bytes()),
            "initialize" => self.last_initialize = copy(params.to_json().as_bytes()),
            _ => {}
        }
    }

    pub(super) fn note_cancelled(&mut self, id: &Id) {
        if self.cancelled.len() == KEPT {
            self.cancelled.pop_front();
        }
        self.cancelled.push_back(id.as_json().to_owned());
    }

    /// As the tool `stats` returns it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let tools: BTreeMap<&str, Value> = self
            .tools
            .iter()
            .map(|(name, of)| {
                (*name, json!({"started": of.started, "finished": of.finished, "cancelled": of.cancelled}))
            })
            .collect();
        json!({
            "tools": tools,
            "methods": self.methods,
            "counter": self.counter,
            "cancelled": self.cancelled,
            "questions": self.questions,
            "answers": self.answers,
            "strayAnswers": self.stray_answers,
            "sessionsOpened": self.sessions_opened,
            "sessions": self.sessions,
            "deleted": self.deleted,
            "streams": self.streams,
            "getStreams": self.get_streams,
            "getStreamsOpened": self.get_streams_opened,
            "resumed": self.resumed,
            "connections": self.connections,
            "httpRequests": self.http_requests,
            "lastHeaders": self.last_headers,
            "lastBody": String::from_utf8_lossy(&self.last_body),
            "lastCall": String::from_utf8_lossy(&self.last_call),
            "lastInitialize": String::from_utf8_lossy(&self.last_initialize),
            "disconnected": self.disconnected,
            "rounds": self.rounds,
            "refused": self.refused,
            "listens": self.listens,
            "listensOpened": self.listens_opened,
            "taskSeen": self.task_seen,
            "extensionSeen": self.extension_seen,
            "relatedTaskSeen": self.related_task_seen,
        })
    }
}

/// Whether the capabilities in `_meta` have the tasks of the legacy era.
fn claims_tasks(params: &Object<'_>) -> bool {
    let meta = Object::parse(params.get("_meta").unwrap_or("{}")).unwrap_or_default();
    let client = Object::parse(meta.get(CLIENT_CAPABILITIES).unwrap_or("{}")).unwrap_or_default();
    client.get("tasks").is_some()
}

fn copy(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes.get(..KEPT_BODY).unwrap_or(bytes))
}
