//! One conversation: what was negotiated, the calls that run, the questions that wait and the streams they travel on.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{self, Id, Object, Outcome};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;

use super::Shared;
use super::stream::Stream;

/// How many streams of a session can be resumed.
const RESUMABLE_STREAMS: usize = 64;

/// A client's answer to a question, as JSON text.
#[derive(Debug)]
pub(super) enum Answer {
    Result(String),
    Error(String),
}

/// What was agreed at the beginning.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub version: ProtocolVersion,
    pub client: ClientCapabilities,
}

/// A conversation. Stateless servers make one for each message.
pub(super) struct Session {
    pub shared: Arc<Shared>,
    pub id: Option<Box<str>>,
    pub terms: Terms,
    /// What belongs to no call: the GET stream, or the pipe.
    pub general: Arc<Stream>,
    /// Set when the session ends; stops its calls and streams.
    pub ended: CancellationToken,
    /// Whether answers can find their way back to a question.
    pub can_ask: bool,
    /// The least severe log level that is sent.
    pub log_level: AtomicU8,
    streams: Mutex<VecDeque<Arc<Stream>>>,
    running: Mutex<HashMap<Id, CancellationToken>>,
    waiting: Mutex<HashMap<Id, oneshot::Sender<Answer>>>,
    next_stream: AtomicU64,
    next_question: AtomicU64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(shared: &Arc<Shared>, id: Option<Box<str>>, terms: Terms, can_ask: bool) -> Arc<Self> {
        let keeps = shared.options.event_ids && terms.version.has_sessions();
        let general = Arc::new(Stream::new(0, keeps, None));
        Self::on(shared, id, terms, can_ask, general)
    }

    /// The session of a pipe, where everything travels on one stream.
    pub(super) fn on_pipe(shared: &Arc<Shared>, terms: Terms, pipe: Arc<Stream>) -> Arc<Self> {
        Self::on(shared, None, terms, true, pipe)
    }

    fn on(shared: &Arc<Shared>, id: Option<Box<str>>, terms: Terms, can_ask: bool, general: Arc<Stream>) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            id,
            terms,
            general,
            ended: shared.jobs.stopping().child_token(),
            can_ask,
            log_level: AtomicU8::new(0),
            streams: Mutex::default(),
            running: Mutex::default(),
            waiting: Mutex::default(),
            next_stream: AtomicU64::new(1),
            next_question: AtomicU64::new(1),
        })
    }

    /// A stream that answers so many requests; it can be resumed while it is among the newest.
    pub(super) fn open_stream(&self, requests: usize) -> Arc<Stream> {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let keeps = self.general.keeps();
        let stream = Arc::new(Stream::new(number, keeps, Some(requests)));
        if keeps {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            if streams.len() == RESUMABLE_STREAMS {
                streams.pop_front();
            }
            streams.push_back(Arc::clone(&stream));
        }
        stream
    }

    pub(super) fn stream(&self, number: u64) -> Option<Arc<Stream>> {
        if number == self.general.number {
            return Some(Arc::clone(&self.general));
        }
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().find(|stream| stream.number == number).cloned()
    }

    /// Registers a call; `None` when one with that id runs already.
    pub(super) fn begin(self: &Arc<Self>, id: &Id) -> Option<Running> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.contains_key(id) {
            return None;
        }
        let cancelled = self.ended.child_token();
        running.insert(id.clone(), cancelled.clone());
        Some(Running { session: Arc::clone(self), id: id.clone(), cancelled })
    }

    /// Stops a call. An unknown one is no error (2025-11-25 cancellation, "Behavior Requirements").
    pub(super) fn cancel(&self, id: &Id) {
        let token = self.running.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        self.shared.note(|stats| stats.note_cancelled(id));
        if let Some(token) = token {
            token.cancel();
        }
    }

    /// Puts a question on a stream; the answer comes to the returned question.
    pub(super) fn ask(self: &Arc<Self>, stream: &Arc<Stream>, method: &str, params: &str) -> Question {
        let id = Id::number(self.next_question.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), sender);
        stream.push(jsonrpc::request(&id, method, Some(params)));
        self.shared.note(|stats| stats.questions += 1);
        Question { session: Arc::clone(self), stream: Arc::clone(stream), id, answer, answered: false }
    }

    /// Takes an answer in; a stray one is counted and dropped.
    pub(super) fn answer(&self, id: Option<&Id>, outcome: Outcome<'_>) {
        let sender = id.and_then(|id| self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(id));
        let answer = match outcome {
            Outcome::Result(result) => Answer::Result(result.get().to_owned()),
            Outcome::Error(error) => Answer::Error(error.get().to_owned()),
        };
        let fitted = sender.is_some_and(|sender| sender.send(answer).is_ok());
        self.shared.note(|stats| if fitted { stats.answers += 1 } else { stats.stray_answers += 1 });
    }

    /// Ends calls and streams.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.general.end();
    }
}

/// A call that runs; unregisters itself.
#[derive(Debug)]
pub(super) struct Running {
    session: Arc<Session>,
    id: Id,
    pub cancelled: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// A question that waits; withdraws itself when nobody waits any longer.
#[derive(Debug)]
pub(super) struct Question {
    session: Arc<Session>,
    stream: Arc<Stream>,
    id: Id,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

impl Question {
    /// Waits for the answer; `None` when it did not come in time.
    pub(super) async fn answer(mut self) -> Option<Answer> {
        let limit = self.session.shared.options.answer_timeout;
        let answer = tokio::time::timeout(limit, &mut self.answer).await.ok()?.ok();
        self.answered = answer.is_some();
        answer
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.session.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        let mut params = Object::default();
        params.set("requestId", self.id.as_json()).set("reason", "\"no longer needed\"");
        self.stream.push(jsonrpc::notification("notifications/cancelled", Some(&params.to_json())));
    }
}
