//! One call with an upstream, from the moment it is sent to its end, told in the words of neither era.
//!
//! Whoever runs a call (a task, a front) sees what happens to it and answers what is asked. How the upstream asks, how
//! its answers travel and how a broken stream is taken up again stays in here.

mod legacy;
mod modern;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, Outcome, Raw, code};
use crate::mcp::capabilities::Undeclared;
use crate::metrics::label::UpstreamOutcome;
use crate::task::state::MAX_QUESTIONS;
use crate::task::{Answer, Owner, Question, TaskId};
use crate::upstream::messages::{Came, Messages};
use crate::upstream::{Denied, Error, Reply, SessionKey};

use super::rejection::{Chain, Fault};
use super::session::{Held, Session};
use super::{Gateway, Route};

use legacy::Resumption;
pub(super) use modern::Asking;
pub(super) use modern::Refresh;
use modern::{Again, Draft, Refreshing, Rounds};

/// Messages for a call that came elsewhere than on its own stream and wait to be looked at.
const SIDE_MESSAGES: usize = 32;
/// So many answers to the upstream may be on their way before more of its messages are read.
const POSTINGS: usize = 32;
/// How long to wait before an answer is posted again to an upstream that could not be reached, and how often.
const POST_AGAIN: Duration = Duration::from_secs(1);
const POSTS: usize = 5;

type Posting = Pin<Box<dyn Future<Output = Option<Id>> + Send>>;
type Sending = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

/// A call that is to be sent.
pub(super) struct Dispatch {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    /// The conversation on which it is sent.
    pub(super) session: Arc<Session>,
    pub(super) method: Box<str>,
    /// `params` as JSON text, without task vocabulary. The progress token in it is replaced.
    pub(super) params: String,
    /// Whether to ask the upstream for progress.
    pub(super) wants_progress: bool,
    /// Header fields of the client's that may go on, and those that repeat arguments.
    pub(super) headers: HeaderMap,
    /// From which level on log messages are wanted of a modern upstream.
    pub(super) log_level: Option<Box<str>>,
    /// The request id upstream, where it was minted before; above all of this call.
    pub(super) id: Option<Id>,
    /// How to come by headers that repeat arguments when those that are there are wrong.
    pub(super) refresh: Option<Refresh>,
    /// What the call occupies (a place, a gate, a lease); given back at its end.
    pub(super) places: Box<dyn Send>,
}

/// What happens to a call. After [`Happening::Ended`] nothing does.
#[derive(Debug)]
pub(super) enum Happening {
    /// The upstream tells something. Progress is this call's own, and rises.
    Notified { method: Box<str>, params: Option<Box<str>> },
    /// The upstream asks something that the client declared it can answer.
    Asked { id: Id, method: Box<str>, params: Option<Box<str>> },
    /// The upstream asked something that was not declared, and was refused.
    Undeclared { method: Box<str>, params: Option<Box<str>> },
    /// The upstream withdraws a question.
    Withdrawn(Id),
    /// The upstream has the answer to a question.
    Settled(Id),
    /// The call has come as far as this. Told only where it is asked for, after all that happened before.
    Moved(Trace),
    /// The call is over.
    Ended(End),
}

/// How a call came to its end.
#[derive(Debug)]
pub(super) enum End {
    /// The upstream's whole response.
    Answered(Bytes),
    /// The upstream refused with an HTTP error status and this JSON-RPC error.
    Refused { status: StatusCode, error: Box<str> },
    /// The upstream did not take what the client itself showed it; it ran nothing.
    Denied(Box<Denied>),
    /// The upstream does not know the session; it ran nothing.
    SessionGone,
    /// It failed.
    Fault(Fault),
}

/// By what somebody else could take a call up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trace {
    /// The request id upstream.
    pub(super) id: Id,
    /// The last event id of the call's own stream.
    pub(super) event: Option<Box<str>>,
    /// What a stateless upstream waits for, or waited.
    pub(super) round: Option<Asking>,
}

/// A call of somebody else's that goes on.
pub(super) enum Resumed {
    /// Its stream.
    Stream {
        /// What comes after the last event that was seen.
        reply: Reply,
        /// By what it was taken up.
        trace: Trace,
        /// Questions that the upstream has put, which are not settled.
        asked: Vec<Id>,
    },
    /// It waits for answers, and the upstream does nothing until then.
    Round(Asking, Vec<Question>),
}

/// A call that was sent. Dropped before its end, it tells a legacy upstream nothing; see [`Exchange::cancel`].
pub(super) struct Exchange {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    session: Arc<Session>,
    draft: Draft,
    /// Names it in its session.
    key: Id,
    /// The request id upstream, which is the progress token too.
    id: Id,
    source: Source,
    side: mpsc::Receiver<Bytes>,
    postings: FuturesUnordered<Posting>,
    open: Vec<Open>,
    ready: VecDeque<Happening>,
    resumption: Resumption,
    rounds: Rounds,
    /// What was added when the call was sent last.
    last: Option<Again>,
    /// The upstream may be at work on it.
    is_out: bool,
    /// Something on the stream was no message.
    saw_garbage: bool,
    progress: Option<f64>,
    /// What was told of how far it has come; `None`: nobody wants to know.
    traced: Option<Trace>,
    /// `None`: they were given back.
    places: Option<Box<dyn Send>>,
}

/// A question that is not settled with the upstream.
struct Open {
    id: Id,
    /// Each is answered once.
    is_answered: bool,
}

enum Source {
    Sending(Sending),
    Reading(Box<Messages>),
    Refreshing(Refreshing),
    /// Nothing is read: it waits for answers, or is at its end.
    Over,
}

impl Exchange {
    /// Sends the call, as soon as somebody asks what happens next.
    pub(super) fn new(dispatch: Dispatch) -> Self {
        let mut exchange = Self::begin(dispatch);
        exchange.send(None, Duration::ZERO);
        if !exchange.is_modern() && !exchange.may_visit() {
            exchange.draft.forget();
        }
        exchange
    }

    /// Goes on with a call that was sent by another process.
    pub(super) fn resume(dispatch: Dispatch, resumed: Resumed) -> Self {
        let (reply, trace, asked) = match resumed {
            Resumed::Stream { reply, trace, asked } => (reply, trace, asked),
            Resumed::Round(asking, questions) => {
                let mut exchange = Self::begin(dispatch);
                exchange.ask_on(&asking, questions);
                return exchange;
            }
        };
        let mut exchange = Self::begin(Dispatch { id: Some(trace.id), ..dispatch });
        exchange.resumption = Resumption::after(trace.event.map(Into::into));
        exchange.source = Source::Sending(Box::pin(std::future::ready(Ok(reply))));
        exchange.open = asked.into_iter().map(|id| Open { id, is_answered: false }).collect();
        exchange
    }

    fn begin(dispatch: Dispatch) -> Self {
        let Dispatch { gateway, route, session, places, .. } = dispatch;
        let Dispatch { method, params, wants_progress, headers, log_level, refresh, id, .. } = dispatch;
        let draft = Draft { method, params, headers, wants_progress, log_level, refresh };
        let id = id.unwrap_or_else(|| gateway.mint());
        let (side, side_messages) = mpsc::channel(SIDE_MESSAGES);
        session.live().held.insert(id.clone(), Held { task: None, token: id.as_json().into(), side });
        let is_legacy = session.terms.upstream.version.has_sessions();
        if is_legacy {
            gateway.listen(&route, &session, None);
        }
        Self {
            draft: if is_legacy { draft.for_legacy() } else { draft },
            gateway,
            route,
            session,
            key: id.clone(),
            id,
            source: Source::Over,
            side: side_messages,
            postings: FuturesUnordered::new(),
            open: Vec::new(),
            ready: VecDeque::new(),
            resumption: Resumption::default(),
            rounds: Rounds::default(),
            last: None,
            is_out: true,
            saw_garbage: false,
            progress: None,
            traced: None,
            places: Some(places),
        }
    }

    fn is_modern(&self) -> bool {
        !self.session.terms.upstream.version.has_sessions()
    }

    /// Whether questions in a modern upstream's result are passed on as its answer, instead of being asked.
    pub(super) fn pass_rounds(&mut self, pass: bool) {
        self.rounds.pass = pass;
    }

    /// Whether a question stood in an answer, so that the call can't go on without its own.
    pub(super) fn is_in_round(&self, id: &Id) -> bool {
        self.rounds.has(id)
    }

    /// From now on the call is a task's: streams that open on its session get the task's questions.
    pub(super) fn becomes(&self, task: TaskId, owner: &Arc<Owner>) {
        if let Some(held) = self.session.live().held.get_mut(&self.key) {
            held.task = Some((task, Arc::clone(owner)));
        }
    }

    /// From now on it is told how far the call has come, so that another process could go on with it.
    pub(super) fn trace(&mut self) {
        self.traced = Some(Trace { id: self.id.clone(), event: None, round: None });
        self.moved();
    }

    /// The request id upstream.
    pub(super) fn id(&self) -> &Id {
        &self.id
    }

    /// The conversation with the upstream.
    pub(super) fn conversation(&self) -> &SessionKey {
        &self.session.terms.upstream
    }

    /// Tells how far the call has come, if that has changed.
    fn moved(&mut self) {
        let Some(traced) = &mut self.traced else { return };
        let event = match &self.source {
            Source::Reading(messages) if !messages.is_between_events() => return,
            Source::Reading(messages) => messages.last_event_id(),
            Source::Sending(_) | Source::Refreshing(_) | Source::Over => self.resumption.last_event_id(),
        };
        let round = self.rounds.asking();
        let is_new_event = event.is_some_and(|event| traced.event.as_deref() != Some(event));
        if traced.id != self.id || is_new_event || (round.is_some() && traced.round != round) {
            *traced = Trace { id: self.id.clone(), event: event.map(Into::into), round };
            self.ready.push_back(Happening::Moved(traced.clone()));
        }
    }

    /// Has these happen again, before anything else.
    pub(super) fn put_back(&mut self, happenings: Vec<Happening>) {
        happenings.into_iter().rev().for_each(|happening| self.ready.push_front(happening));
    }

    /// What happens next. Cancel-safe.
    pub(super) async fn next(&mut self) -> Happening {
        loop {
            if let Some(happening) = self.ready.pop_front() {
                if let Happening::Ended(end) = &happening {
                    self.over(outcome_of(end));
                }
                return happening;
            }
            if let Source::Refreshing(refreshing) = &mut self.source {
                let headers = refreshing.await;
                self.refreshed(headers);
            }
            // A server that asks and takes no answers is read no further.
            let may_read = self.postings.len() < POSTINGS;
            tokio::select! {
                came = next_message(&mut self.source, self.route.max_message), if may_read => {
                    match came {
                        Ok(Some(Came::Message(message))) => self.take(&message),
                        Ok(Some(Came::Mark)) => {}
                        Ok(None) => self.lost(None),
                        Err(error) => self.lost(Some(error)),
                    }
                    self.moved();
                }
                Some(message) = self.side.recv(), if may_read => self.take(&message),
                Some(settled) = self.postings.next() => if let Some(id) = settled {
                    self.open.retain(|open| open.id != id);
                    self.ready.push_back(Happening::Settled(id));
                },
            }
        }
    }

    /// Answers a question, once; [`Happening::Settled`] tells when the upstream has it.
    pub(super) fn answer(&mut self, id: &Id, answer: &Answer) {
        if self.rounds.has(id) {
            return self.answer_in_round(id, answer);
        }
        let Some(open) = self.open.iter_mut().find(|open| open.id == *id && !open.is_answered) else { return };
        open.is_answered = true;
        let body = match answer {
            Answer::Result(result) => jsonrpc::response(id, result),
            Answer::Error(error) => jsonrpc::raw_error_response(Some(id), error),
        };
        self.post(body, Some(id.clone()));
    }

    /// Answers a question with an error of the gateway's own and forgets it.
    pub(super) fn refuse(&mut self, id: &Id, error: &ErrorObject) {
        if self.rounds.has(id) {
            return self.answer_in_round(id, &Answer::Error(error.to_json().into()));
        }
        self.open.retain(|open| open.id != *id);
        self.post(jsonrpc::error_response(Some(id), error), None);
    }

    /// Gives the call's places back: nobody waits for it any more.
    pub(super) fn give_up(&mut self) {
        self.over(UpstreamOutcome::Abandoned);
    }

    /// Gives the call up and tells the upstream. On a session, closing the connection would leave the work running: only
    /// the notification stops it (2025-11-25 cancellation). Without one it is the other way round, except that a pipe
    /// can't be closed for one request (2026-07-28 cancellation).
    pub(super) async fn cancel(mut self, reason: &str) {
        self.give_up();
        let is_told = !self.is_modern() || (self.is_out && self.session.terms.upstream.id.is_some());
        if !is_told {
            return;
        }
        let params = format!("{{\"requestId\":{},\"reason\":{}}}", self.id.as_json(), jsonrpc::raw_string(reason));
        let body = jsonrpc::notification("notifications/cancelled", Some(&params));
        let (gateway, route, session) = (Arc::clone(&self.gateway), Arc::clone(&self.route), Arc::clone(&self.session));
        // Best effort, and logged.
        drop(gateway.post_upstream(&route, &session, body).await);
        drop(self);
    }

    /// Lets go of a call that another process has taken up: the upstream hears nothing more of it from here.
    pub(super) fn let_go(mut self) {
        self.postings.clear();
        self.give_up();
    }

    /// Counts the call's end, once, and gives its places back.
    fn over(&mut self, outcome: UpstreamOutcome) {
        if self.places.take().is_some() {
            self.source = Source::Over;
            self.route.metrics.upstream_request(outcome);
        }
    }

    fn end(&mut self, end: End) {
        self.source = Source::Over;
        self.is_out = false;
        self.ready.push_back(Happening::Ended(end));
    }

    fn post(&mut self, body: Bytes, settles: Option<Id>) {
        let (gateway, route, session) = (Arc::clone(&self.gateway), Arc::clone(&self.route), Arc::clone(&self.session));
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

    /// Takes one message of the upstream's.
    fn take(&mut self, message: &Bytes) {
        let Ok(parsed) = Message::parse(message) else {
            tracing::warn!(route = %self.route.name, "the upstream sent something that is no message");
            self.saw_garbage = true;
            return;
        };
        self.resumption.works();
        match parsed {
            Message::Response { id: Some(id), .. } if id == self.id => self.responded(message),
            // Its id could not be read; nothing else was asked on this exchange.
            Message::Response { id: None, outcome: Outcome::Error(_) } => self.responded(message),
            Message::Response { .. } => tracing::debug!("the upstream answered something else"),
            Message::Request { method, .. } if self.is_modern() => {
                // 2026-07-28 basic, "Messages": it can't be answered either.
                tracing::warn!(%method, route = %self.route.name, "a stateless upstream sent a request");
            }
            Message::Request { id, method, params } => self.asked(id, &method, params.map(Raw::get)),
            Message::Notification { method, params } => self.notified(&method, params.map(Raw::get)),
        }
    }

    /// The upstream asks the client.
    fn asked(&mut self, id: Id, method: &str, params: Option<&str>) {
        if method == "ping" {
            self.post(jsonrpc::response(&id, "{}"), None);
            return;
        }
        // Seen again after a resumption, it is already under way.
        if self.open.iter().any(|open| open.id == id) {
            return;
        }
        if let Err(undeclared) = self.session.terms.client.permit(method, params) {
            self.refuse(&id, &refusal_of(undeclared));
            self.ready.push_back(Happening::Undeclared { method: method.into(), params: params.map(Into::into) });
            return;
        }
        if self.open.len() >= MAX_QUESTIONS {
            self.refuse(&id, &ErrorObject::new(code::INVALID_REQUEST, "The question can't be taken"));
            return;
        }
        self.open.push(Open { id: id.clone(), is_answered: false });
        self.ready.push_back(Happening::Asked { id, method: method.into(), params: params.map(Into::into) });
    }

    /// The upstream tells something.
    fn notified(&mut self, method: &str, params: Option<&str>) {
        match method {
            "notifications/progress" if !self.has_progressed(params) => {}
            "notifications/cancelled" => self.withdrawn(params),
            // The gateway alone tells of tasks; whatever this one is about, it is none of them.
            "notifications/tasks/status" | "notifications/tasks" => {}
            _ => self.ready.push_back(Happening::Notified { method: method.into(), params: params.map(Into::into) }),
        }
    }

    /// Whether this is the call's own progress, and more than before (2025-11-25 and 2026-07-28 progress: it must rise).
    fn has_progressed(&mut self, params: Option<&str>) -> bool {
        let Ok(params) = Object::parse(params.unwrap_or("{}")) else { return false };
        if params.get("progressToken") != Some(self.id.as_json()) {
            return false;
        }
        let progress = params.get("progress").and_then(|progress| serde_json::from_str::<f64>(progress).ok());
        let more = progress.filter(|progress| self.progress.is_none_or(|last| *progress > last));
        self.progress = more.or(self.progress);
        more.is_some()
    }

    /// The upstream withdraws a question.
    fn withdrawn(&mut self, params: Option<&str>) {
        let Ok(params) = Object::parse(params.unwrap_or("{}")) else { return };
        let Some(Ok(id)) = params.get("requestId").map(Id::from_json) else { return };
        if self.open.iter().any(|open| open.id == id) {
            self.open.retain(|open| open.id != id);
            self.ready.push_back(Happening::Withdrawn(id));
        }
    }

    /// The stream ended, or the call could not be sent.
    fn lost(&mut self, error: Option<Error>) {
        // A refusal is an answer, and a client can cause as many as it likes.
        if let Some(error) = error.as_ref().filter(|error| !matches!(error, Error::Refused { .. })) {
            tracing::warn!(error = %Chain(error), route = %self.route.name, "the upstream's answer did not come");
        }
        let error = match error {
            Some(Error::Refused { status, error }) if self.is_modern() || !self.resumption.is_under_way() => {
                return self.refused_with(status, error);
            }
            other => other,
        };
        match self.resumed(error) {
            Ok(again) => self.source = Source::Sending(again),
            Err(end) => {
                if matches!(end, End::SessionGone) {
                    self.gateway.end_session(&self.route, &self.session);
                }
                self.end(end);
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.give_up();
        let postings = std::mem::take(&mut self.postings);
        if !postings.is_empty() {
            // The upstream may wait for them, whatever has become of the call.
            self.gateway.jobs.spawn("postings", postings.for_each(|_| std::future::ready(())));
        }
        self.session.live().held.remove(&self.key);
        Gateway::listen_no_more(&self.session);
    }
}

/// What the client did not declare, it is not asked (2025-11-25 lifecycle, "Operation").
fn refusal_of(undeclared: Undeclared) -> ErrorObject {
    match undeclared {
        Undeclared::Method => ErrorObject::new(code::METHOD_NOT_FOUND, "The client did not declare this capability"),
        Undeclared::Feature => {
            ErrorObject::new(code::INVALID_PARAMS, "The client did not declare this mode or feature")
        }
    }
}

fn outcome_of(end: &End) -> UpstreamOutcome {
    match end {
        End::Answered(_) => UpstreamOutcome::Answered,
        End::Refused { .. } => UpstreamOutcome::Refused,
        End::Denied(_) => UpstreamOutcome::Protocol,
        End::SessionGone => UpstreamOutcome::SessionGone,
        End::Fault(fault) => upstream_outcome(*fault),
    }
}

/// How a fault counts among the messages to the upstream.
fn upstream_outcome(fault: Fault) -> UpstreamOutcome {
    match fault {
        Fault::UpstreamUnreachable | Fault::Credentials => UpstreamOutcome::Unreachable,
        Fault::UpstreamProtocol | Fault::UpstreamTooLarge => UpstreamOutcome::Protocol,
        Fault::OutcomeUnknown | Fault::ReplicaLost => UpstreamOutcome::Lost,
        Fault::Deadline { .. }
        | Fault::InputTimeout
        | Fault::Shutdown
        | Fault::Store
        | Fault::Spoilt
        | Fault::NoRoute { .. } => UpstreamOutcome::Abandoned,
    }
}

/// What comes next, whether the reply has begun or not. Cancel-safe.
async fn next_message(source: &mut Source, limit: usize) -> Result<Option<Came>, Error> {
    loop {
        match source {
            Source::Sending(sending) => {
                let reply = sending.as_mut().await?;
                *source = Source::Reading(Box::new(Messages::of_reply(reply, limit)));
            }
            Source::Reading(messages) => return messages.advance().await,
            Source::Refreshing(_) | Source::Over => return std::future::pending().await,
        }
    }
}
