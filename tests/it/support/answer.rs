//! What a client gets, looked at closely: no header field that is not expected, no message that is not one.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use taskgate::sse::{Event, Framer};

use super::within;

/// The fields that may be on any answer; everything else would be a leak.
const FIELDS: [&str; 13] = [
    "access-control-allow-origin",
    "access-control-expose-headers",
    "allow",
    "cache-control",
    "content-length",
    "content-type",
    "date",
    "mcp-session-id",
    "retry-after",
    "transfer-encoding",
    "vary",
    "www-authenticate",
    "x-accel-buffering",
];

/// An answer, its body as far as it was read.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    framer: Framer,
    seen: VecDeque<Seen>,
}

/// An event of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<u64>,
    /// Empty for an event that only gives an id.
    pub(crate) data: String,
}

impl Seen {
    #[track_caller]
    pub(crate) fn message(&self) -> Value {
        let message = serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("no JSON: {}", self.data));
        check(&message);
        message
    }
}

impl Answer {
    pub(super) fn new(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        for name in head.headers.keys() {
            assert!(FIELDS.contains(&name.as_str()), "an answer has the field {name}: {:?}", head.headers);
        }
        Self { status: head.status, headers: head.headers, body, framer: Framer::new(1 << 27), seen: VecDeque::new() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_json(&self) -> bool {
        self.header("content-type") == Some("application/json")
    }

    pub(crate) fn is_events(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// The body itself.
    pub(crate) fn into_body(self) -> Incoming {
        self.body
    }

    /// The body's bytes to its end, as they came.
    pub(crate) async fn bytes(self) -> Bytes {
        within(self.body.collect()).await.unwrap().to_bytes()
    }

    /// The body as text.
    pub(crate) async fn text(self) -> String {
        String::from_utf8(self.bytes().await.to_vec()).unwrap()
    }

    /// The body as one JSON-RPC message.
    pub(crate) async fn json(self) -> Value {
        assert!(self.is_json(), "not JSON: {} {:?}", self.status, self.headers);
        let body = self.bytes().await;
        let message = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("no JSON: {body:?}"));
        check(&message);
        message
    }

    /// The next event; `None` at the end, `Err` when the connection broke.
    pub(crate) async fn next(&mut self) -> Result<Option<Seen>, hyper::Error> {
        assert!(self.is_events(), "no events: {} {:?}", self.status, self.headers);
        // The comments of a stream that is kept warm must not make the wait endless.
        within(self.read_event()).await
    }

    async fn read_event(&mut self) -> Result<Option<Seen>, hyper::Error> {
        loop {
            while let Some(frame) = self.framer.next_frame().unwrap() {
                let event = Event::parse(&frame);
                if event.id.is_none() && event.data.is_none() {
                    // A comment that keeps the stream warm.
                    continue;
                }
                let data = String::from_utf8(event.data.unwrap_or_default().into_owned()).unwrap();
                self.seen.push_back(Seen { id: event.id.map(|id| id.into_owned()), retry: event.retry, data });
            }
            if let Some(seen) = self.seen.pop_front() {
                return Ok(Some(seen));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => self.framer.push(frame?.into_data().unwrap_or_default()),
            }
        }
    }

    /// The next message of the stream.
    pub(crate) async fn message(&mut self) -> Value {
        loop {
            let seen = self.next().await.unwrap().expect("the stream ended before the message came");
            if !seen.data.is_empty() {
                return seen.message();
            }
        }
    }

    /// Messages up to and with the first that is as wanted.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.message().await);
            if messages.last().is_some_and(&wanted) {
                return messages;
            }
        }
    }

    /// The next message with that method; others are dropped.
    pub(crate) async fn until_method(&mut self, method: &str) -> Value {
        self.until(|message| message["method"] == method).await.pop().unwrap()
    }

    /// Every event to the end.
    pub(crate) async fn events(mut self) -> Vec<Seen> {
        let mut events = Vec::new();
        while let Some(seen) = self.next().await.unwrap() {
            events.push(seen);
        }
        events
    }

    /// Every message to the end, from events or from JSON.
    pub(crate) async fn messages(self) -> Vec<Value> {
        if !self.is_events() {
            return vec![self.json().await];
        }
        self.events().await.iter().filter(|seen| !seen.data.is_empty()).map(Seen::message).collect()
    }

    /// The last message, which is the response.
    pub(crate) async fn response(self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{:?}", self.headers);
        let response = self.messages().await.pop().expect("no message came");
        assert!(response.get("method").is_none(), "the last message is no response: {response}");
        response
    }
}

/// Whether a message is one, and a task in it complete: every member that any client needs, nothing null, integers
/// where integers are due.
#[track_caller]
fn check(message: &Value) {
    if let Some(members) = message.as_array() {
        members.iter().for_each(check);
        return;
    }
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    let id = message.get("id");
    assert!(id.is_none_or(|id| id.is_string() || id.is_number()), "{message}");
    if message.get("method").is_some() {
        assert!(message["method"].is_string() && message.get("params").is_none_or(Value::is_object), "{message}");
    } else if let Some(error) = message.get("error") {
        assert!(error["code"].is_i64() && error["message"].is_string(), "{message}");
        assert!(message.get("result").is_none(), "{message}");
    } else {
        assert!(id.is_some() && message["result"].is_object(), "{message}");
    }
    for task in [&message["result"]["task"], &message["result"], &message["params"]] {
        if task.get("taskId").is_some() && task.get("status").is_some() {
            check_task(task);
        }
    }
    if let Some(tasks) = message["result"]["tasks"].as_array() {
        tasks.iter().for_each(check_task);
    }
}

#[track_caller]
fn check_task(task: &Value) {
    let statuses = ["working", "input_required", "completed", "failed", "cancelled"];
    assert!(statuses.iter().any(|status| task["status"] == *status), "{task}");
    for time in ["createdAt", "lastUpdatedAt"] {
        let text = task[time].as_str().unwrap_or_default();
        assert!(humantime::parse_rfc3339(text).is_ok() && text.ends_with('Z'), "{time}: {task}");
    }
    // The members of one dialect, and none of the other's.
    let (ours, others) = match task.get("ttlMs").is_some() {
        true => (["ttlMs", "pollIntervalMs"], ["ttl", "pollInterval"]),
        false => (["ttl", "pollInterval"], ["ttlMs", "pollIntervalMs"]),
    };
    assert!(task["taskId"].is_string() && ours.iter().all(|name| task[name].is_u64()), "{task}");
    assert!(others.iter().all(|name| task.get(name).is_none()), "{task}");
    assert!(task.get("statusMessage").is_none_or(Value::is_string), "{task}");
}
