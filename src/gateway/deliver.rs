//! Where a task's messages go: questions, status, progress and log lines towards the clients that may see them.
//!
//! A message goes to exactly one stream (2025-11-25 transports, "Multiple Connections"). A question is claimed in the
//! task's record before it is written, so that of all streams, on whichever replica, one writes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::mpsc;

use crate::jsonrpc::{self, Id, raw_string};
use crate::mcp::capabilities::ClientCapabilities;
use crate::seal::fingerprint;
use crate::sse;
use crate::task::dialect::core;
use crate::task::{Event, Holder, Ledger, Owner, Progress, Question, State, Task, TaskId};

use super::session::{Sessions, Stream};

/// The streams that take tasks' messages.
#[derive(Debug)]
pub struct Deliveries {
    sessions: Arc<Sessions>,
    /// Open `tasks/result` streams, oldest first.
    results: DashMap<TaskId, Vec<ResultStream>>,
    /// Questions that were written to a stream and may be unanswered when it closes.
    claims: DashMap<u64, Vec<Claim>>,
    /// Questions that went down with their stream: the next stream hears that the old id is void.
    voided: DashMap<TaskId, Vec<u32>>,
    next_stream: AtomicU64,
}

#[derive(Debug)]
struct ResultStream {
    stream: Stream,
    client: ClientCapabilities,
}

#[derive(Debug)]
struct Claim {
    owner: Arc<Owner>,
    task: TaskId,
    number: u32,
}

impl Deliveries {
    /// No streams yet, in the process of that holder.
    #[must_use]
    pub fn new(sessions: Arc<Sessions>, holder: &Holder) -> Self {
        Self {
            sessions,
            results: DashMap::new(),
            claims: DashMap::new(),
            voided: DashMap::new(),
            next_stream: AtomicU64::new(first_stream(holder) + 1),
        }
    }

    /// A stream with a number of its own.
    pub fn stream(&self, events: mpsc::Sender<Bytes>) -> Stream {
        Stream {
            number: self.next_stream.fetch_add(1, Ordering::Relaxed),
            events,
            waiting: Arc::default(),
            over: Arc::default(),
        }
    }

    /// Opens a `tasks/result` stream for the messages of its task.
    pub fn attach(&self, task: TaskId, stream: Stream, client: ClientCapabilities) {
        self.results.entry(task).or_default().push(ResultStream { stream, client });
    }

    /// Closes a `tasks/result` stream. What it had claimed is given back by [`Deliveries::release`].
    pub fn detach(&self, task: TaskId, number: u64) {
        self.results.remove_if_mut(&task, |_, streams| {
            streams.retain(|result| result.stream.number != number);
            streams.is_empty()
        });
    }

    /// Sends an event about a task to a `tasks/result` stream of it, else to a GET stream of the session that made it,
    /// else to nobody. A stream that is full loses it: notifications may be lost, memory may not.
    pub fn notify(&self, task: &Task, event: &Bytes) {
        let newest = |number: usize| self.results.get(&task.id)?.iter().rev().nth(number).map(|r| r.stream.clone());
        let results = (0..).map_while(newest);
        let sent = results.into_iter().any(|stream| stream.offer(event));
        if sent {
            return;
        }
        if let Some(session) = self.sessions.by_number(task.session) {
            let streams = session.live().streams.clone();
            streams.iter().rev().any(|stream| stream.offer(event));
        }
    }

    /// Tells the status (2025-11-25 tasks, "Task Status Notification"): optional, without related-task metadata.
    pub fn notify_status(&self, task: &Task) {
        if self.has_stream(task) {
            let message = jsonrpc::notification("notifications/tasks/status", Some(&core::task(task)));
            self.notify(task, &sse::write_event(None, &message));
        }
    }

    /// Whether anybody would hear of the task.
    fn has_stream(&self, task: &Task) -> bool {
        self.results.contains_key(&task.id)
            || self.sessions.by_number(task.session).is_some_and(|session| !session.live().streams.is_empty())
    }

    /// Puts each waiting question of a task to a client: on a GET stream of the session that made the task, else on a
    /// `tasks/result` stream of a session that declared what it needs, else on whichever opens first.
    pub async fn offer(&self, ledger: &Ledger, task: &Task) {
        let State::Held(asked) = &task.state else { return };
        for question in asked.questions.iter().filter(|question| question.progress == Progress::Waiting) {
            for stream in self.streams_for(task, question) {
                if self.put(ledger, task, question, &stream).await {
                    break;
                }
            }
        }
    }

    fn streams_for(&self, task: &Task, question: &Question) -> Vec<Stream> {
        let mut streams: Vec<Stream> = match self.sessions.by_number(task.session) {
            Some(session) => session.live().streams.iter().rev().cloned().collect(),
            None => Vec::new(),
        };
        if let Some(results) = self.results.get(&task.id) {
            let permitted =
                |result: &&ResultStream| result.client.permit(&question.method, question.params.as_deref()).is_ok();
            streams.extend(results.iter().rev().filter(permitted).map(|result| result.stream.clone()));
        }
        streams
    }

    /// Writes a question to a stream, if it still waits and the stream has room. Says whether the matter is settled.
    async fn put(&self, ledger: &Ledger, task: &Task, question: &Question, stream: &Stream) -> bool {
        let Ok(room) = stream.events.clone().try_reserve_owned() else { return false };
        let claim = Claim { owner: Arc::clone(&task.owner), task: task.id, number: question.number };
        self.claims.entry(stream.number).or_default().push(claim);
        let event = Event::Claim { number: question.number, stream: stream.number };
        if ledger.apply(&task.owner, task.id, event).await.is_err() {
            // Another stream was faster, or the question is gone.
            // The same stream may have been, so one note of the two stays.
            self.disclaim(stream.number, task.id, question.number);
            return true;
        }
        let events = self.write(task, question, stream, room);
        if events.is_closed() {
            // Whoever closed it may have looked for claims before this one was made.
            self.disclaim(stream.number, task.id, question.number);
            Box::pin(self.release_task(ledger, &task.owner, task.id, stream.number)).await;
        }
        true
    }

    /// Writes a claimed question, after the word that those which went down with their stream are void. Whoever writes at the
    /// same time waits: no new question overtakes that word.
    fn write(
        &self,
        task: &Task,
        question: &Question,
        stream: &Stream,
        room: mpsc::OwnedPermit<Bytes>,
    ) -> mpsc::Sender<Bytes> {
        let mut voided = self.voided.entry(task.id).or_default();
        let mut text: Vec<u8> = voided.drain(..).flat_map(|number| void_event(task.id, number)).collect();
        text.extend_from_slice(&sse::write_event(None, &question_message(task.id, question)));
        stream.waiting.fetch_add(text.len(), Ordering::Relaxed);
        let events = room.send(Bytes::from(text));
        drop(voided);
        self.voided.remove_if(&task.id, |_, numbers| numbers.is_empty());
        events
    }

    /// Gives back what a closed stream had claimed, and puts it to others.
    pub async fn release(&self, ledger: &Ledger, number: u64) {
        let Some((_, claims)) = self.claims.remove(&number) else { return };
        let tasks: HashMap<TaskId, Arc<Owner>> = claims.into_iter().map(|claim| (claim.task, claim.owner)).collect();
        for (task, owner) in tasks {
            self.release_task(ledger, &owner, task, number).await;
        }
    }

    /// Gives back what a closed stream had claimed of one task.
    async fn release_task(&self, ledger: &Ledger, owner: &Owner, task: TaskId, number: u64) {
        let Ok(Some(before)) = ledger.get(owner, task).await else { return };
        let claimed = |question: &&Question| question.progress == Progress::Claimed(number);
        let claimed: Vec<u32> =
            before.state.questions().iter().filter(claimed).map(|question| question.number).collect();
        if claimed.is_empty() {
            return;
        }
        self.voided.entry(task).or_default().extend(claimed);
        match ledger.apply(owner, task, Event::Release { stream: number }).await {
            Ok(task) => self.offer(ledger, &task).await,
            // It ended meanwhile, or its questions did: nobody will hear of what was voided.
            Err(_) => drop(self.voided.remove(&task)),
        }
    }

    /// Gives back what streams of a process that is gone had claimed of a task, and puts it to others.
    pub(super) async fn release_lost(&self, ledger: &Ledger, task: &Task, of: &Holder) {
        let claimed = task.state.questions().iter().filter_map(|question| match question.progress {
            Progress::Claimed(stream) if stream & !OWN_STREAMS == first_stream(of) => Some(stream),
            Progress::Claimed(_) | Progress::Waiting | Progress::Answered(_) => None,
        });
        let mut streams: Vec<u64> = claimed.collect();
        streams.dedup();
        for stream in streams {
            self.release_task(ledger, &task.owner, task.id, stream).await;
        }
    }

    /// Forgets the claims of an ended task and tells clients that its open questions are void.
    pub fn task_ended(&self, task: &Task, open: &[Question]) {
        self.voided.remove(&task.id);
        for question in open {
            self.void(task, question);
        }
    }

    /// Tells the client that a question which it has seen is void (2025-11-25 cancellation).
    pub fn void(&self, task: &Task, question: &Question) {
        if let Progress::Claimed(stream) = question.progress {
            while self.disclaim(stream, task.id, question.number) {}
            self.notify(task, &void_event(task.id, question.number));
        }
    }

    /// Forgets the claim of a question that was answered.
    pub fn answered(&self, task: TaskId, question: &Question) {
        if let Progress::Claimed(stream) = question.progress {
            while self.disclaim(stream, task, question.number) {}
        }
    }

    /// Takes one note of a claim out; says whether there was one.
    fn disclaim(&self, stream: u64, task: TaskId, number: u32) -> bool {
        let mut found = false;
        self.claims.remove_if_mut(&stream, |_, claims| {
            let place = claims.iter().position(|claim| claim.task == task && claim.number == number);
            found = place.map(|place| claims.swap_remove(place)).is_some();
            claims.is_empty()
        });
        found
    }
}

/// The numbers that one process has for its streams.
const OWN_STREAMS: u64 = (1 << 32) - 1;

/// Where the numbers of a process's streams begin: claims of several processes stand in one record. Below 2^53, which every
/// reader keeps exactly.
fn first_stream(holder: &Holder) -> u64 {
    let [first, second, third, ..] = fingerprint(&[holder.as_str()]);
    let process = u64::from(u32::from_be_bytes([0, first, second, third]) >> 4);
    process << 32
}

fn void_event(task: TaskId, number: u32) -> Bytes {
    let params = format!("{{\"requestId\":{}}}", raw_string(&core::question_id(task, number)));
    sse::write_event(
        None,
        &jsonrpc::notification("notifications/cancelled", Some(&core::with_related(Some(&params), task))),
    )
}

fn question_message(task: TaskId, question: &Question) -> Bytes {
    let id = Id::string(&core::question_id(task, question.number));
    jsonrpc::request(&id, &question.method, Some(&core::question_params(question, task)))
}
