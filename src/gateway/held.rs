//! One job for each held call: it waits for a place, sends the call, and turns what comes back into events of the task.
//!
//! The job is the only one that talks upstream for its task. Cancels and answers reach it as changes of the record.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, Outcome as Response, code, string_value};
use crate::mcp::capabilities::Undeclared;
use crate::metrics::Queued;
use crate::metrics::label::UpstreamOutcome;
use crate::sse;
use crate::task::dialect::core;
use crate::task::store::Watch;
use crate::task::{Answer, ApplyError, Event, Finish, Progress, Question, State, Task};
use crate::tenant::fair;
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Listening, Outgoing, Reply};

use super::rejection::{Chain, Fault};
use super::session::{Held, Session};
use super::{Gateway, Route, SHORTEST_PAUSE, upstream_outcome};

/// Messages for a call that came elsewhere than on its own stream and wait to be looked at.
const SIDE_MESSAGES: usize = 32;
/// How often a stream that brings nothing new is taken up again.
const RESUMPTIONS: u32 = 5;
/// How long to wait before that, when the upstream does not say.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest status message that is kept, in characters.
const MESSAGE_CHARS: usize = 500;
/// A progress message becomes the status message at most this often.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// A call that a task stands for, before it is sent.
pub(super) struct HeldCall {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    pub(super) session: Arc<Session>,
    pub(super) task: Arc<Task>,
    /// `params` for the upstream as JSON text, without task vocabulary and with the minted progress token.
    pub(super) params: String,
    /// The request id upstream.
    pub(super) id: Id,
    /// Whether a progress token was sent.
    pub(super) wants_progress: bool,
    pub(super) headers: HeaderMap,
    pub(super) exclusive: bool,
    pub(super) input_timeout: Duration,
    /// Until it has the tenant's place.
    pub(super) queued: Option<Queued>,
}

/// How a call came to its end.
enum End {
    /// The upstream answered.
    Answered(Bytes),
    /// The upstream refused with a JSON-RPC error.
    Refused(Box<str>),
    /// It failed.
    Fault(Fault),
    /// The record has ended, or is gone: the client cancelled.
    Over,
}

type Sending = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;
type Posting = Pin<Box<dyn Future<Output = Option<Id>> + Send>>;

impl HeldCall {
    /// Runs the call to its end.
    pub(super) async fn run(mut self) {
        let registered = Registered {
            session: Arc::clone(&self.session),
            route: Arc::clone(&self.route),
            gateway: Arc::clone(&self.gateway),
        };
        let deadline = self.gateway.clock.instant(self.task.deadline);
        let Ok(Some(watch)) = self.gateway.ledger.watch(&self.task.owner, self.task.id).await else {
            self.finish(End::Fault(Fault::Store)).await;
            return;
        };
        let kill = self.gateway.kill.clone();
        let given_up = tokio::select! {
            end = self.conduct(watch) => Ok(end),
            () = tokio::time::sleep_until(deadline) => Err(None),
            () = kill.cancelled() => Err(Some(Fault::Shutdown)),
        };
        let end = match given_up {
            Ok(end) => end,
            Err(fault) => {
                let started = self.is_dispatched();
                self.give_up(fault.unwrap_or(Fault::Deadline { started })).await
            }
        };
        self.finish(end).await;
        drop(registered);
    }

    fn is_dispatched(&self) -> bool {
        self.session.live().held.contains_key(&self.task.id)
    }

    /// Stops the upstream's work, if it has begun.
    async fn give_up(&self, fault: Fault) -> End {
        if self.is_dispatched() {
            self.cancel_upstream(fault.reason()).await;
        }
        End::Fault(fault)
    }

    /// Closing the connection would leave the work running: only the notification stops it.
    async fn cancel_upstream(&self, reason: &str) {
        let params = format!("{{\"requestId\":{},\"reason\":{}}}", self.id.as_json(), jsonrpc::raw_string(reason));
        let body = jsonrpc::notification("notifications/cancelled", Some(&params));
        self.gateway.post_upstream(&self.route, &self.session, body).await;
    }

    /// Waits for the places, sends the call and reads to the end.
    async fn conduct(&mut self, mut watch: Watch) -> End {
        let has_started = self.has_started(&mut watch).await;
        self.queued = None;
        if !has_started {
            return End::Over;
        }
        let places = tokio::select! {
            places = self.take_places() => places,
            () = self.ended(&mut watch) => return End::Over,
        };
        self.route.metrics.task_queued_for(self.gateway.clock.now().since(self.task.created_at));
        let (side, side_messages) = mpsc::channel(SIDE_MESSAGES);
        self.session
            .live()
            .held
            .insert(self.task.id, Held { owner: Arc::clone(&self.task.owner), token: self.id.as_json().into(), side });
        self.gateway.listen(&self.route, &self.session, None);
        let sending = self.send();
        let end = Conversation::new(self, sending, side_messages).run(&mut watch).await;
        if matches!(end, End::Over) {
            self.cancel_upstream("the task was cancelled").await;
        }
        drop(places);
        end
    }

    /// Waits for the tenant's place; `false` when the task ended first.
    async fn has_started(&self, watch: &mut Watch) -> bool {
        loop {
            match self.gateway.ledger.get(&self.task.owner, self.task.id).await {
                Ok(Some(task)) => match task.state {
                    State::Queued => {}
                    State::Held(_) => return true,
                    State::Ended(_) => return false,
                },
                Ok(None) => return false,
                Err(error) => tracing::warn!(error = %Chain(&error), "a queued task can't be read"),
            }
            if !watch.changed().await {
                return false;
            }
        }
    }

    /// Resolves when the record has ended or is gone.
    async fn ended(&self, watch: &mut Watch) {
        while watch.changed().await {
            let task = self.gateway.ledger.get(&self.task.owner, self.task.id).await;
            if task.is_ok_and(|task| task.is_none_or(|task| task.state.is_ended())) {
                return;
            }
        }
    }

    async fn take_places(&self) -> Box<dyn Send> {
        // The gate first: whoever waits for it keeps nobody else from a place.
        let gate = self.route.gate(&self.session, self.exclusive).await;
        let permit = self.route.places.acquire(&self.task.owner.tenant, fair::Kind::Held).await;
        Box::new((permit, gate, self.route.metrics.upstream_in_flight()))
    }

    fn send(&mut self) -> Sending {
        let body = jsonrpc::request(&self.id, "tools/call", Some(&std::mem::take(&mut self.params)));
        let progress_token = self.wants_progress.then(|| self.id.as_json().into());
        let kind = MessageKind::Request { id: self.id.clone(), progress_token };
        let message = Outgoing { kind, body, headers: std::mem::take(&mut self.headers) };
        let (route, session) = (Arc::clone(&self.route), self.session.terms.upstream.clone());
        Box::pin(async move { route.upstream.send(&session, message).await })
    }

    /// Writes the end into the record, unless somebody was faster.
    async fn finish(&self, end: End) {
        let counted = match &end {
            End::Answered(_) => UpstreamOutcome::Answered,
            End::Refused(_) => UpstreamOutcome::Refused,
            End::Fault(fault) => upstream_outcome(*fault),
            End::Over => UpstreamOutcome::Abandoned,
        };
        if self.is_dispatched() {
            self.route.metrics.upstream_request(counted);
        }
        let finish = match end {
            End::Answered(message) => finish_of(&message),
            End::Refused(error) => Finish::errored("upstream_error", (*error).into(), message_of_error(&error)),
            End::Fault(fault) => failed(fault),
            End::Over => return,
        };
        match self.gateway.end_task(&self.task.owner, self.task.id, finish).await {
            Ok(_) | Err(ApplyError::NotFound | ApplyError::Refused { .. }) => {}
            Err(ApplyError::Store(error)) => {
                tracing::error!(error = %Chain(&error), task = %self.task.id, "an end could not be stored");
            }
        }
    }
}

/// The gateway's own failure as an end.
fn failed(fault: Fault) -> Finish {
    Finish::errored(fault.reason(), fault.to_error().to_json().into(), Some(fault.message().into()))
}

/// The upstream's response as an end. A result that is none, or one of a later protocol, must not pass for success.
fn finish_of(message: &[u8]) -> Finish {
    let Ok(Message::Response { outcome, .. }) = Message::parse(message) else { return failed(Fault::UpstreamProtocol) };
    let result = match outcome {
        Response::Error(error) => {
            return Finish::errored("upstream_error", error.get().into(), message_of_error(error.get()));
        }
        Response::Result(result) => result.get(),
    };
    let Ok(object) = Object::parse(result) else { return failed(Fault::UpstreamProtocol) };
    let is_complete = object.get("resultType").is_none_or(|kind| kind == "\"complete\"");
    let is_handle = object.get("task").is_some() && object.get("content").is_none();
    if !is_complete || is_handle {
        return failed(Fault::UpstreamProtocol);
    }
    let is_error = object.get("isError") == Some("true");
    let message = if is_error { first_text(object.get("content")) } else { None };
    Finish::returned(is_error, result.into(), message)
}

/// The text of a result's first text block: all that many clients show of a failure.
fn first_text(content: Option<&str>) -> Option<Box<str>> {
    let blocks: Vec<&serde_json::value::RawValue> = serde_json::from_str(content?).ok()?;
    blocks.into_iter().find_map(|block| {
        let block = Object::parse(block.get()).ok()?;
        (block.get("type") == Some("\"text\""))
            .then(|| string_value(block.get("text")?))
            .flatten()
            .map(|text| shorten(&text))
    })
}

fn message_of_error(error: &str) -> Option<Box<str>> {
    let error = Object::parse(error).ok()?;
    string_value(error.get("message")?).map(|text| shorten(&text))
}

fn shorten(text: &str) -> Box<str> {
    match text.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
        None => text.into(),
    }
}

/// Keeps the session's count of unfinished tasks. When the last one of an ended session goes, so does the upstream's
/// session (2025-11-25 transports, "Session Management" 5).
struct Registered {
    session: Arc<Session>,
    route: Arc<Route>,
    gateway: Arc<Gateway>,
}

impl HeldCall {
    /// Counts the task into its session; [`HeldCall::run`] counts it out.
    pub(super) fn register(&self) {
        self.session.live().unfinished += 1;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let left = {
            let mut live = self.session.live();
            live.unfinished -= 1;
            live.unfinished
        };
        self.session.touch(self.gateway.clock.now());
        Gateway::listen_no_more(&self.session);
        if left == 0 && self.session.ended.is_cancelled() {
            self.gateway.close_upstream(&self.route, &self.session);
        }
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.session.live().held.remove(&self.task.id);
    }
}

impl HeldCall {
    /// The record as it is now.
    async fn current(&self) -> Result<Option<Arc<Task>>, ()> {
        let Self { gateway, task, .. } = self;
        gateway.ledger.get(&task.owner, task.id).await.map_err(|error| {
            tracing::warn!(error = %Chain(&error), task = %task.id, "a running task can't be read");
        })
    }

    /// Applies an event of the call's; `None` when it was refused.
    async fn apply(&self, event: Event) -> Option<Arc<Task>> {
        let Self { gateway, task, .. } = self;
        match gateway.ledger.apply(&task.owner, task.id, event).await {
            Ok(task) => Some(task),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), task = %task.id, "an event was not applied");
                None
            }
        }
    }

    /// Whether a question is under way already.
    async fn is_asked(&self, id: &Id) -> bool {
        match self.current().await {
            Ok(Some(task)) => {
                matches!(&task.state, State::Held(asked) if asked.questions.iter().any(|q| q.upstream_id == *id))
            }
            Ok(None) | Err(()) => true,
        }
    }
}

/// A call that was sent.
struct Conversation<'a> {
    call: &'a HeldCall,
    source: Source,
    side: mpsc::Receiver<Bytes>,
    postings: FuturesUnordered<Posting>,
    /// Answers on their way, by the upstream's ids: each is posted once.
    posting: Vec<Id>,
    resumptions: u32,
    /// The last event id that the upstream gave for this call.
    resume_after: Option<String>,
    /// Something on the stream was no message.
    saw_garbage: bool,
    progress: Option<f64>,
    noted: Option<Instant>,
}

enum Source {
    Sending(Sending),
    Reading(Box<Messages>),
}

impl<'a> Conversation<'a> {
    fn new(call: &'a HeldCall, sending: Sending, side: mpsc::Receiver<Bytes>) -> Self {
        Self {
            call,
            source: Source::Sending(sending),
            side,
            postings: FuturesUnordered::new(),
            posting: Vec::new(),
            resumptions: 0,
            resume_after: None,
            saw_garbage: false,
            progress: None,
            noted: None,
        }
    }

    async fn run(mut self, watch: &mut Watch) -> End {
        let mut questions_end: Option<Instant> = None;
        loop {
            tokio::select! {
                message = next(&mut self.source, self.call.route.max_message) => match message {
                    Ok(Some(message)) => if let Some(end) = self.take(message).await { return end },
                    Ok(None) => if let Some(end) = self.lost(None) { return end },
                    Err(error) => if let Some(end) = self.lost(Some(error)) { return end },
                },
                Some(message) = self.side.recv() => if let Some(end) = self.take(message).await { return end },
                Some(settled) = self.postings.next() => self.settle(settled).await,
                is_changed = watch.changed() => match self.read_record(is_changed).await {
                    Some(end) => questions_end = end,
                    None => return End::Over,
                },
                () = sleep_until(questions_end) => questions_end = self.time_out_questions().await,
            }
        }
    }

    /// Looks at the record after a change: posts answers, finds the next question to time out. `None`: it is over.
    async fn read_record(&mut self, is_changed: bool) -> Option<Option<Instant>> {
        let Ok(task) = self.call.current().await else { return Some(None) };
        let asked = match task.map(|task| task.state.clone()) {
            Some(State::Held(asked)) => asked,
            Some(State::Queued) => return Some(None),
            Some(State::Ended(_)) | None => return None,
        };
        if !is_changed {
            return None;
        }
        for question in &asked.questions {
            if let Progress::Answered(answer) = &question.progress
                && !self.posting.contains(&question.upstream_id)
            {
                self.answer(question.upstream_id.clone(), answer);
            }
        }
        let first = asked.questions.iter().filter(|question| !matches!(question.progress, Progress::Answered(_)));
        let first = first.map(|question| question.asked_at).min();
        Some(first.map(|asked_at| self.call.gateway.clock.instant(asked_at.plus(self.call.input_timeout))))
    }

    /// Starts posting an answer; the question is settled when the upstream has it.
    fn answer(&mut self, id: Id, answer: &Answer) {
        let body = match answer {
            Answer::Result(result) => jsonrpc::response(&id, result),
            Answer::Error(error) => jsonrpc::raw_error_response(Some(&id), error),
        };
        self.posting.push(id.clone());
        self.post(body, Some(id));
    }

    fn post(&mut self, body: Bytes, settles: Option<Id>) {
        let (gateway, route) = (Arc::clone(&self.call.gateway), Arc::clone(&self.call.route));
        let session = Arc::clone(&self.call.session);
        self.postings.push(Box::pin(async move {
            gateway.post_upstream(&route, &session, body).await;
            settles
        }));
    }

    async fn settle(&mut self, settled: Option<Id>) {
        let Some(upstream_id) = settled else { return };
        self.posting.retain(|id| *id != upstream_id);
        self.call.apply(Event::Settle { upstream_id }).await;
    }

    /// Answers for the client what nobody answered in time, so that the upstream's call can end.
    async fn time_out_questions(&mut self) -> Option<Instant> {
        let now = self.call.gateway.clock.now();
        let Ok(Some(task)) = self.call.current().await else { return None };
        let State::Held(asked) = &task.state else { return None };
        let late = |question: &&Question| {
            !matches!(question.progress, Progress::Answered(_))
                && question.asked_at.plus(self.call.input_timeout) <= now
        };
        let late: Vec<Question> = asked.questions.iter().filter(late).cloned().collect();
        for question in late {
            self.call.gateway.deliveries.void(&task, &question);
            if self.call.apply(Event::Settle { upstream_id: question.upstream_id.clone() }).await.is_some() {
                let error = Fault::InputTimeout.to_error();
                self.post(jsonrpc::error_response(Some(&question.upstream_id), &error), None);
            }
        }
        self.read_record(true).await.flatten()
    }

    /// Takes one message of the upstream's; gives the end if it is the response.
    async fn take(&mut self, message: Bytes) -> Option<End> {
        let Ok(parsed) = Message::parse(&message) else {
            tracing::warn!(task = %self.call.task.id, "the upstream sent something that is no message");
            self.saw_garbage = true;
            return None;
        };
        self.resumptions = 0;
        match parsed {
            Message::Response { id: Some(id), .. } if id == self.call.id => {
                return Some(End::Answered(message.clone()));
            }
            Message::Response { .. } => tracing::debug!("the upstream answered something else"),
            Message::Request { id, method, params } => {
                self.asked(id, &method, params.map(serde_json::value::RawValue::get)).await;
            }
            Message::Notification { method, params } => {
                self.notified(&method, params.map(serde_json::value::RawValue::get)).await;
            }
        }
        None
    }

    /// The upstream asks the client.
    async fn asked(&mut self, id: Id, method: &str, params: Option<&str>) {
        if method == "ping" {
            self.post(jsonrpc::response(&id, "{}"), None);
            return;
        }
        // 2025-11-25 lifecycle, "Operation": what the client did not declare, it is not asked.
        let refusal = match self.call.session.terms.client.permit(method, params) {
            Ok(()) => None,
            Err(Undeclared::Method) => {
                Some(ErrorObject::new(code::METHOD_NOT_FOUND, "The client did not declare this capability"))
            }
            Err(Undeclared::Feature) => {
                Some(ErrorObject::new(code::INVALID_PARAMS, "The client did not declare this mode or feature"))
            }
        };
        if let Some(error) = refusal {
            self.post(jsonrpc::error_response(Some(&id), &error), None);
            return;
        }
        let event = Event::Ask { upstream_id: id.clone(), method: method.into(), params: params.map(Into::into) };
        match self.call.apply(event).await {
            Some(task) => self.call.gateway.deliveries.offer(&self.call.gateway.ledger, &task).await,
            // The same request, seen again after a resumption, is already under way; anything else is too much.
            None if self.call.is_asked(&id).await => {}
            None => {
                let error = ErrorObject::new(code::INVALID_REQUEST, "The question can't be taken");
                self.post(jsonrpc::error_response(Some(&id), &error), None);
            }
        }
    }

    /// The upstream tells something.
    async fn notified(&mut self, method: &str, params: Option<&str>) {
        match method {
            "notifications/progress" => self.progressed(params).await,
            "notifications/cancelled" => self.withdrawn(params).await,
            _ => {
                // 2025-11-25 tasks, "Related Task Metadata": everything on the call's stream belongs to the task.
                let params = core::with_related(params, self.call.task.id);
                self.tell(&jsonrpc::notification(method, Some(&params)));
            }
        }
    }

    fn tell(&self, message: &[u8]) {
        self.call.gateway.deliveries.notify(&self.call.task, &sse::write_event(None, message));
    }

    /// Progress goes on under the client's own token until the task ends, and must rise (2025-11-25 progress).
    async fn progressed(&mut self, params: Option<&str>) {
        let Ok(mut params) = Object::parse(params.unwrap_or("{}")) else { return };
        if params.get("progressToken") != Some(self.call.id.as_json()) {
            return;
        }
        let progress = params.get("progress").and_then(|progress| serde_json::from_str::<f64>(progress).ok());
        let Some(progress) = progress.filter(|progress| self.progress.is_none_or(|last| *progress > last)) else {
            return;
        };
        self.progress = Some(progress);
        let message = params.get("message").and_then(string_value).map(|message| shorten(&message));
        if let Some(token) = &self.call.task.progress_token {
            params.set("progressToken", token.as_ref());
            let params = core::with_related(Some(&params.to_json()), self.call.task.id);
            self.tell(&jsonrpc::notification("notifications/progress", Some(&params)));
        }
        let is_due = self.noted.is_none_or(|noted| noted.elapsed() >= NOTE_INTERVAL);
        if let Some(message) = message.filter(|_| is_due) {
            self.noted = Some(Instant::now());
            self.call.apply(Event::Note(message)).await;
        }
    }

    /// The upstream withdraws a question.
    async fn withdrawn(&mut self, params: Option<&str>) {
        let Ok(params) = Object::parse(params.unwrap_or("{}")) else { return };
        let Some(Ok(upstream_id)) = params.get("requestId").map(Id::from_json) else { return };
        let Ok(Some(task)) = self.call.current().await else { return };
        let State::Held(asked) = &task.state else { return };
        if let Some(question) = asked.questions.iter().find(|question| question.upstream_id == upstream_id) {
            self.call.gateway.deliveries.void(&task, question);
            self.call.apply(Event::Settle { upstream_id }).await;
        }
    }

    /// The stream ended, or the call could not be sent. A stream with event ids is taken up again; else nobody knows what
    /// became of the call (2025-11-25 transports, "Resumability and Redelivery").
    fn lost(&mut self, error: Option<Error>) -> Option<End> {
        if let Some(error) = &error {
            tracing::warn!(error = %Chain(error), task = %self.call.task.id, "the upstream's answer did not come");
        }
        let mut retry = None;
        if let Source::Reading(messages) = &self.source {
            retry = messages.retry();
            self.resume_after = messages.last_event_id().map(str::to_owned).or(self.resume_after.take());
        } else if self.resume_after.is_none() {
            return Some(self.not_sent(error));
        }
        let can_resume = matches!(error, None | Some(Error::Lost(_) | Error::Connect(_)));
        match &self.resume_after {
            Some(last_event_id) if can_resume && self.resumptions < RESUMPTIONS => {
                self.source = Source::Sending(self.resume(last_event_id.clone(), retry));
                self.resumptions += 1;
                None
            }
            _ if matches!(error, Some(Error::TooLarge(_))) => Some(End::Fault(Fault::UpstreamTooLarge)),
            _ if self.saw_garbage || matches!(error, Some(Error::Protocol(_))) => {
                Some(End::Fault(Fault::UpstreamProtocol))
            }
            _ => Some(End::Fault(Fault::OutcomeUnknown)),
        }
    }

    fn resume(&self, last_event_id: String, retry: Option<Duration>) -> Sending {
        let (route, session) = (Arc::clone(&self.call.route), self.call.session.terms.upstream.clone());
        let pause = retry.unwrap_or(RESUME_PAUSE) * (self.resumptions + 1);
        Box::pin(async move {
            tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
            match route.upstream.listen(&session, Some(&last_event_id)).await? {
                Listening::Events(body) => Ok(Reply::Events(body)),
                Listening::Messages(channel) => Ok(Reply::Messages(channel)),
                Listening::NotOffered => Err(Error::Protocol("it gives event ids but resumes nothing".into())),
            }
        })
    }

    /// The call never got to where it could be resumed.
    fn not_sent(&self, error: Option<Error>) -> End {
        match error {
            Some(Error::Refused { error, .. }) => End::Refused(error),
            Some(error) => {
                if matches!(error, Error::SessionGone) {
                    self.call.gateway.end_session(&self.call.route, &self.call.session);
                }
                End::Fault(Fault::from(&error))
            }
            None => End::Fault(Fault::OutcomeUnknown),
        }
    }
}

/// The next message, whether the reply has begun or not. Cancel-safe.
async fn next(source: &mut Source, limit: usize) -> Result<Option<Bytes>, Error> {
    loop {
        match source {
            Source::Sending(sending) => {
                let reply = sending.as_mut().await?;
                *source = Source::Reading(Box::new(Messages::of_reply(reply, limit)));
            }
            Source::Reading(messages) => return messages.next().await,
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
