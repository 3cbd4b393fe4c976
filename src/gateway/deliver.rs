//! Where a task's messages go: questions, status, progress and log lines towards the clients that may see them.
//!
//! A message goes to exactly one stream (2025-11-25 transports, "Multiple Connections"). A question is claimed in the
//! task's record before it is written, so that of all streams, on whichever replica, one writes it.

mod far;
mod retries;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::mpsc;

use crate::jsonrpc::{self, Id, raw_string};
use crate::mcp::capabilities::ClientCapabilities;
use crate::seal::fingerprint;
use crate::sse;
use crate::task::dialect::core;
use crate::task::{
    ApplyError, Event, Holder, Ledger, Owner, Progress, Question, SessionNumber, State, StoreError, Task, TaskId,
};

use super::homes::bus::Message;
use super::session::{Sessions, Stream};
pub(super) use far::Far;
use retries::{Fading, Retries, Retry};

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
    retries: Retries,
    /// Where there are other processes.
    far: Option<Far>,
    /// What they are to be told.
    outgoing: Mutex<Option<mpsc::Receiver<Message>>>,
    first_stream: u64,
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
            retries: Retries::default(),
            far: None,
            outgoing: Mutex::default(),
            first_stream: first_stream(holder),
            next_stream: AtomicU64::new(first_stream(holder) + 1),
        }
    }

    /// The same in a process that is one of several. For so long is remembered who of them hears of a task. Where they
    /// `are_apart`, a session's streams are anywhere, not at its home alone.
    #[must_use]
    pub fn among(sessions: Arc<Sessions>, me: &Holder, fresh: Duration, are_apart: bool) -> Self {
        let (far, outgoing) = Far::new(me.clone(), fresh, are_apart);
        Self { far: Some(far), outgoing: Mutex::new(Some(outgoing)), ..Self::new(sessions, me) }
    }

    pub(super) fn far(&self) -> Option<&Far> {
        self.far.as_ref()
    }

    /// What the others are to be told, for the one who tells them.
    pub(super) fn take_outgoing(&self) -> Option<mpsc::Receiver<Message>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner).take()
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

    /// Sends an event about a task to a `tasks/result` stream of it, else to a GET stream of the session that made it, else
    /// to such a stream in another process, else to nobody. A stream that is full loses it: notifications may be lost,
    /// memory may not.
    pub fn notify(&self, task: &Task, event: &Bytes) {
        if !self.deliver(task.id, task.session, event)
            && let Some(far) = &self.far
        {
            far.notify(task, event, self.may_be_anywhere(far, task));
        }
    }

    /// The same towards streams of this process alone; says whether one took it.
    pub(super) fn deliver(&self, task: TaskId, session: SessionNumber, event: &Bytes) -> bool {
        let newest = |number: usize| self.results.get(&task)?.iter().rev().nth(number).map(|r| r.stream.clone());
        let results = (0..).map_while(newest);
        if results.into_iter().any(|stream| stream.offer(event)) {
            return true;
        }
        let Some(session) = self.sessions.by_number(session) else { return false };
        let streams = session.live().streams.clone();
        streams.iter().rev().any(|stream| stream.offer(event))
    }

    /// Whether the task's streams are likely to be elsewhere: its session is not at home here, or the task is not. Who waits
    /// for it on a session of another home says so unasked.
    fn may_be_anywhere(&self, far: &Far, task: &Task) -> bool {
        far.are_apart
            || task.holder != far.me
            || task.epoch > 1
            || self.sessions.by_number(task.session).is_some_and(|session| session.is_elsewhere())
    }

    /// Tells the status (2025-11-25 tasks, "Task Status Notification"): optional, without related-task metadata.
    pub fn notify_status(&self, task: &Task) {
        if self.far.is_some() || self.has_stream_of(task.id, task.session) {
            let message = jsonrpc::notification("notifications/tasks/status", Some(&core::task(task)));
            self.notify(task, &sse::write_event(None, &message));
        }
    }

    /// Whether anybody here would hear of the task.
    pub(super) fn has_stream_of(&self, task: TaskId, session: SessionNumber) -> bool {
        self.results.contains_key(&task)
            || self.sessions.by_number(session).is_some_and(|session| !session.live().streams.is_empty())
    }

    /// Tells the holder of a task that there is a stream for it here.
    pub(super) fn announce(&self, task: &Task) {
        if let Some(far) = self.far.as_ref().filter(|far| task.holder != far.me) {
            far.tell(Message::mine(task.id, &task.holder, &far.me));
        }
    }

    /// How often to do so while the stream is open; `None` where nobody else could be the holder.
    pub(super) fn announce_every(&self) -> Option<Duration> {
        self.far.as_ref().map(|far| far.fresh / 2)
    }

    /// Puts each waiting question of a task to a client: on a GET stream of the session that made the task, else on a
    /// `tasks/result` stream of a session that declared what it needs, else on whichever opens first.
    pub async fn offer(&self, ledger: &Ledger, task: &Task) {
        let is_anywhere = self.far.as_ref().is_some_and(|far| self.may_be_anywhere(far, task));
        self.offer_as(ledger, task, is_anywhere).await;
    }

    /// The same, whatever this process knows of where streams are: what it knows may be old.
    pub(super) async fn offer_anywhere(&self, ledger: &Ledger, task: &Task) {
        self.offer_as(ledger, task, true).await;
    }

    async fn offer_as(&self, ledger: &Ledger, task: &Task, is_anywhere: bool) {
        self.offer_here(ledger, task).await;
        let is_waiting = |question: &Question| question.progress == Progress::Waiting;
        // Those that no stream here has taken. Whoever hears of it looks again at which those are.
        if let Some(far) = self.far.as_ref().filter(|_| is_anywhere)
            && task.state.questions().iter().any(is_waiting)
        {
            far.offer(task);
        }
    }

    /// The same to streams of this process alone.
    pub(super) async fn offer_here(&self, ledger: &Ledger, task: &Task) {
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
        if !self.note_claim(stream.number, claim) {
            // Somebody is about to write it to this very stream, or has.
            return true;
        }
        let event = Event::Claim { number: question.number, stream: stream.number };
        match ledger.apply(&task.owner, task.id, event).await {
            Ok(_) => self.show(ledger, task, question, stream, room).await,
            Err(ApplyError::Store(error)) if !error.is_spoilt() => {
                self.retries.note(&task.owner, task.id, Retry::Claim(question.number, Fading::of(stream)));
            }
            // Another stream was faster, or the question is gone.
            Err(_) => drop(self.disclaim(stream.number, task.id, question.number)),
        }
        true
    }

    /// Writes a question to the stream that has claimed it.
    async fn show(
        &self,
        ledger: &Ledger,
        task: &Task,
        question: &Question,
        stream: &Stream,
        room: mpsc::OwnedPermit<Bytes>,
    ) {
        let events = self.write(task, question, stream, room);
        if events.is_closed() {
            // Whoever closed it may have looked for claims before this one was made.
            self.disclaim(stream.number, task.id, question.number);
            Box::pin(self.release_task(ledger, &task.owner, task.id, stream.number)).await;
        }
    }

    /// Notes a claim; `false` where it is noted already.
    fn note_claim(&self, stream: u64, claim: Claim) -> bool {
        let mut claims = self.claims.entry(stream).or_default();
        let is_news = !claims.iter().any(|noted| (noted.task, noted.number) == (claim.task, claim.number));
        if is_news {
            claims.push(claim);
        }
        is_news
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

    /// Gives back what a closed stream had claimed of one task. Where the store does not say whether that was done, it is told
    /// again.
    async fn release_task(&self, ledger: &Ledger, owner: &Arc<Owner>, task: TaskId, number: u64) {
        let before = match ledger.get(owner, task).await {
            Ok(Some(before)) => before,
            // Nor is anybody shown a question of a record that can't be read any more.
            Ok(None) | Err(StoreError::Spoilt(_)) => return,
            Err(_) => return self.retries.note(owner, task, Retry::Release(number)),
        };
        let claimed = |question: &&Question| question.progress == Progress::Claimed(number);
        let claimed: Vec<u32> =
            before.state.questions().iter().filter(claimed).map(|question| question.number).collect();
        if claimed.is_empty() {
            return;
        }
        self.note_void(task, &claimed);
        match ledger.apply(owner, task, Event::Release { stream: number }).await {
            Ok(task) => self.offer(ledger, &task).await,
            Err(ApplyError::Store(error)) if !error.is_spoilt() => {
                self.retries.note(owner, task, Retry::Release(number));
            }
            // It ended meanwhile, or its questions did: nobody will hear of what was voided.
            Err(_) => drop(self.voided.remove(&task)),
        }
    }

    fn note_void(&self, task: TaskId, numbers: &[u32]) {
        let mut voided = self.voided.entry(task).or_default();
        for number in numbers {
            if !voided.contains(number) {
                voided.push(*number);
            }
        }
    }

    /// Gives back what streams of a holder that is gone had claimed of a task, and those of processes that nobody has heard of
    /// since this one began; puts it to others.
    pub(super) async fn release_lost(&self, ledger: &Ledger, task: &Task, of: &Holder) {
        let is_lost = |stream: u64| match &self.far {
            Some(far) => !far.is_mine(stream) && (far.is_of(stream, of) || !far.is_alive(stream)),
            None => !self.is_own(stream),
        };
        self.release_streams(ledger, task, is_lost).await;
    }

    async fn release_streams(&self, ledger: &Ledger, task: &Task, is_gone: impl Fn(u64) -> bool) {
        let claimed = |question: &Question| match question.progress {
            Progress::Claimed(stream) if is_gone(stream) => Some(stream),
            Progress::Claimed(_) | Progress::Waiting | Progress::Answered(_) => None,
        };
        let streams: std::collections::BTreeSet<u64> = task.state.questions().iter().filter_map(claimed).collect();
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
        let Progress::Claimed(stream) = question.progress else { return };
        match self.far.as_ref().filter(|far| !far.is_mine(stream)) {
            // Only there is it known to whom it was shown.
            Some(far) => far.tell(Message::void(task, question.number, stream)),
            None => {
                while self.disclaim(stream, task.id, question.number) {}
                self.notify(task, &void_event(task.id, question.number));
            }
        }
    }

    /// The same for a question that was written to a stream of this process, at the word of another.
    pub(super) fn void_here(&self, task: TaskId, session: SessionNumber, number: u32, stream: u64) {
        if self.far.as_ref().is_some_and(|far| far.is_mine(stream)) {
            while self.disclaim(stream, task, number) {}
            self.deliver(task, session, &void_event(task, number));
        }
    }

    /// A process is gone: the questions on its streams wait again, for as far as their calls are held here.
    pub(super) async fn streams_gone(&self, ledger: &Ledger, holder: &Holder) {
        let Some(far) = &self.far else { return };
        far.note_dead(holder);
        for (owner, task) in ledger.asking() {
            self.look_for_dead(ledger, &owner, task).await;
        }
    }

    /// Gives back those questions of a task whose streams went with their process.
    async fn look_for_dead(&self, ledger: &Ledger, owner: &Arc<Owner>, task: TaskId) {
        match ledger.get(owner, task).await {
            Ok(Some(task)) => self.release_dead(ledger, &task).await,
            Ok(None) | Err(StoreError::Spoilt(_)) => {}
            Err(_) => self.retries.note(owner, task, Retry::ReleaseDead),
        }
    }

    /// The same where the record is known.
    pub(super) async fn release_dead(&self, ledger: &Ledger, task: &Task) {
        self.release_streams(ledger, task, |stream| self.is_dead(stream)).await;
    }

    /// Whether the question is on a stream that went with its process.
    pub(super) fn is_dead_end(&self, question: &Question) -> bool {
        matches!(question.progress, Progress::Claimed(stream) if self.is_dead(stream))
    }

    fn is_dead(&self, stream: u64) -> bool {
        self.far.as_ref().is_some_and(|far| far.is_dead(stream))
    }

    /// Forgets the claim of a question that was answered.
    pub fn answered(&self, task: TaskId, question: &Question) {
        if let Progress::Claimed(stream) = question.progress {
            while self.disclaim(stream, task, question.number) {}
        }
    }

    /// Whether a stream of this number is this process's.
    fn is_own(&self, stream: u64) -> bool {
        stream & !OWN_STREAMS == self.first_stream
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
