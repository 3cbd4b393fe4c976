//! The talk with the upstream about one call, from the moment it is sent to its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, code, string_value};
use crate::mcp::capabilities::Undeclared;
use crate::sse;
use crate::task::dialect::core;
use crate::task::store::Watch;
use crate::task::{Answer, Event, Progress, Question, State};
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Listening, Reply};

use crate::gateway::SHORTEST_PAUSE;
use crate::gateway::rejection::{Chain, Fault};

use super::ending::shorten;
use super::{End, HeldCall, Sending};

/// How often in a row taking up a stream again may fail.
const RESUMPTIONS: u32 = 5;
/// How long to wait before that, when the upstream does not say.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A progress message becomes the status message at most this often.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// So many answers to the upstream may be on their way before more of its messages are read.
const POSTINGS: usize = 32;
/// How often a question that found every stream full is offered again.
const OFFER_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before an answer is posted again to an upstream that could not be reached, and how often.
const POST_AGAIN: Duration = Duration::from_secs(1);
const POSTS: usize = 5;

type Posting = Pin<Box<dyn Future<Output = Option<Id>> + Send>>;

/// A call that was sent.
pub(super) struct Conversation<'a> {
    call: &'a HeldCall,
    source: Source,
    side: mpsc::Receiver<Bytes>,
    postings: FuturesUnordered<Posting>,
    /// Answers on their way, by the upstream's ids: each is posted once.
    posting: Vec<Id>,
    resumptions: u32,
    /// The last event id that the upstream gave for this call.
    resume_after: Option<String>,
    /// How long it asked to wait before that.
    retry: Option<Duration>,
    /// Something on the stream was no message.
    saw_garbage: bool,
    progress: Option<f64>,
    noted: Option<Instant>,
    /// When to put waiting questions to clients once more.
    offer_again: Option<Instant>,
}

enum Source {
    Sending(Sending),
    Reading(Box<Messages>),
}

impl<'a> Conversation<'a> {
    pub(super) fn new(call: &'a HeldCall, sending: Sending, side: mpsc::Receiver<Bytes>) -> Self {
        Self {
            call,
            source: Source::Sending(sending),
            side,
            postings: FuturesUnordered::new(),
            posting: Vec::new(),
            resumptions: 0,
            resume_after: None,
            retry: None,
            saw_garbage: false,
            progress: None,
            noted: None,
            offer_again: None,
        }
    }

    pub(super) async fn run(mut self, watch: &mut Watch) -> End {
        let mut questions_end: Option<Instant> = None;
        loop {
            tokio::select! {
                // A server that asks and takes no answers is read no further.
                message = next(&mut self.source, self.call.route.max_message), if self.postings.len() < POSTINGS => match message {
                    Ok(Some(message)) => if let Some(end) = self.take(message).await { return end },
                    Ok(None) => if let Some(end) = self.lost(None) { return end },
                    Err(error) => if let Some(end) = self.lost(Some(error)) { return end },
                },
                Some(message) = self.side.recv(), if self.postings.len() < POSTINGS => if let Some(end) = self.take(message).await { return end },
                Some(settled) = self.postings.next() => self.settle(settled).await,
                is_changed = watch.changed() => match self.read_record(is_changed).await {
                    Some(end) => questions_end = end,
                    None => return End::Over,
                },
                () = sleep_until(questions_end) => questions_end = self.time_out_questions().await,
                () = sleep_until(self.offer_again) => self.offer().await,
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
        let is_waiting = asked.questions.iter().any(|question| question.progress == Progress::Waiting);
        // A stream that was full may have room by then.
        self.offer_again = is_waiting.then(|| Instant::now() + OFFER_INTERVAL);
        let first = asked.questions.iter().filter(|question| !matches!(question.progress, Progress::Answered(_)));
        let first = first.map(|question| question.asked_at).min();
        Some(first.map(|asked_at| self.call.gateway.clock.instant(asked_at.plus(self.call.input_timeout))))
    }

    /// Puts waiting questions to clients once more.
    async fn offer(&mut self) {
        self.offer_again = None;
        if let Ok(Some(task)) = self.call.current().await {
            self.call.gateway.deliveries.offer(&self.call.gateway.ledger, &task).await;
            let is_waiting = |question: &Question| question.progress == Progress::Waiting;
            if task.state.questions().iter().any(is_waiting) {
                self.offer_again = Some(Instant::now() + OFFER_INTERVAL);
            }
        }
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
            for _ in 1..POSTS {
                match gateway.post_upstream(&route, &session, body.clone()).await {
                    Err(Error::Connect(_)) => tokio::time::sleep(POST_AGAIN).await,
                    Ok(()) | Err(_) => return settles,
                }
            }
            drop(gateway.post_upstream(&route, &session, body).await);
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
            // The gateway alone tells of its tasks; whatever this one is about, it is none of them.
            "notifications/tasks/status" => {}
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
        // Whatever is wrong with the resumption says nothing of the call.
        let was_resuming = matches!(self.source, Source::Sending(_));
        if !was_resuming && self.resumptions > 0 {
            // The stream was taken up again: a server may cut it as often as it likes. The deadline is the bound.
            self.resumptions = 0;
        }
        if let Source::Reading(messages) = &self.source {
            self.retry = messages.retry().or(self.retry);
            self.resume_after = messages.last_event_id().map(str::to_owned).or(self.resume_after.take());
        } else if self.resume_after.is_none() {
            return Some(self.not_sent(error));
        }
        let can_resume = matches!(error, None | Some(Error::Lost(_) | Error::Connect(_)));
        match &self.resume_after {
            Some(last_event_id) if can_resume && self.resumptions < RESUMPTIONS => {
                self.source = Source::Sending(self.resume(last_event_id.clone()));
                self.resumptions += 1;
                None
            }
            _ if matches!(error, Some(Error::TooLarge(_))) => Some(End::Fault(Fault::UpstreamTooLarge)),
            _ if !was_resuming
                && (self.saw_garbage || matches!(error, Some(Error::Protocol(_) | Error::Status(_)))) =>
            {
                Some(End::Fault(Fault::UpstreamProtocol))
            }
            _ => Some(End::Fault(Fault::OutcomeUnknown)),
        }
    }

    fn resume(&self, last_event_id: String) -> Sending {
        let (route, session) = (Arc::clone(&self.call.route), self.call.session.terms.upstream.clone());
        let pause = self.retry.unwrap_or(RESUME_PAUSE) * (self.resumptions + 1);
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
