//! Who gets what a child writes: the calls in flight, the child's own questions, and the rules of attribution.
//!
//! Does no I/O and never waits, so that it can live under a plain lock. What the child must be told at once comes back
//! as messages to write.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::outlet::{Offer, Outlet, Worth};
use super::session_stream::{Refused, SessionStream};
use crate::jsonrpc::{self, Defect, ErrorObject, Id, Message, Object, Raw, code, string_value};
use crate::mcp::method::Method;
use crate::mcp::subscription::subscription_of;

/// Questions whose way is remembered, so that their withdrawal goes the same way. Over it the oldest is forgotten.
const QUESTIONS: usize = 256;
/// Unusable lines that are reported as warnings; a child that prints more of them does so at debug level.
const LOUD_NOISE: u32 = 5;
/// How much of an unusable line the log shows.
const EXCERPT: usize = 200;

/// Why a message is not sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// The child has ended, or its pipes have.
    Ended,
    /// A request with this id is in flight.
    Duplicate,
}

/// What a request in flight is to attribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// `initialize`: what comes beside its answer concerns the session.
    Handshake,
    /// `subscriptions/listen`: what belongs to it says so.
    Subscription,
    /// Any other request: the child may ask because of it.
    Call,
}

#[derive(Debug)]
struct Call {
    outlet: Outlet,
    token: Option<Box<str>>,
    role: Role,
    cancelled: bool,
}

impl Call {
    /// A cancelled call that nobody reads. The child need not answer it (2025-11-25 cancellation, "Behavior
    /// Requirements" 3), so its entry must not wait for that.
    fn is_over(&self) -> bool {
        self.cancelled && self.outlet.is_closed()
    }
}

/// Where a question of the child's went.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Call(Id),
    Session,
}

/// Which era's rules hold on the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manners {
    /// The child may ask, and has a stream of its own.
    Legacy,
    /// The child only answers, and tells of the calls in flight (2026-07-28 stdio, "Receiving Messages").
    Modern,
}

/// What is in flight between the gateway and one child.
#[derive(Debug)]
pub(super) struct Table {
    manners: Manners,
    calls: HashMap<Id, Call>,
    tokens: HashMap<Box<str>, Id>,
    questions: VecDeque<(Id, Place)>,
    session: SessionStream,
    noise: u32,
    answered: bool,
    ended: bool,
}

impl Table {
    /// `patience` is how long a question waits for a standalone stream.
    pub(super) fn new(patience: Duration, manners: Manners) -> Self {
        Self {
            manners,
            calls: HashMap::new(),
            tokens: HashMap::new(),
            questions: VecDeque::new(),
            session: SessionStream::new(patience),
            noise: 0,
            answered: false,
            ended: false,
        }
    }

    /// Enters a request that is about to be written, and gives the reader of its messages.
    pub(super) fn register(
        &mut self,
        id: &Id,
        token: Option<&str>,
        role: Role,
    ) -> Result<mpsc::Receiver<Bytes>, Rejected> {
        self.sweep();
        let id = canonical(id);
        if self.ended {
            return Err(Rejected::Ended);
        }
        if self.calls.contains_key(&id) {
            return Err(Rejected::Duplicate);
        }
        let token = token.map(canonical_token);
        if let Some(token) = &token {
            self.tokens.insert(token.clone(), id.clone());
        }
        let (outlet, reader) = Outlet::new();
        self.calls.insert(id, Call { outlet, token, role, cancelled: false });
        Ok(reader)
    }

    /// What a request that is about to be written is to attribution.
    pub(super) fn role_of(&self, body: &[u8]) -> Role {
        // Only one era has streams that are requests, and only there the body need be read for it.
        let is_listen = self.manners == Manners::Modern
            && Message::parse(body).is_ok_and(|message| message.method().map(Method::parse) == Some(Method::Listen));
        if is_listen { Role::Subscription } else { Role::Call }
    }

    /// Whether nothing is in flight any more, nor can be.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether a request has been answered.
    pub(super) fn has_answered(&self) -> bool {
        self.answered
    }

    /// Takes note of a notification or response that is about to be written.
    pub(super) fn note(&mut self, body: &[u8]) -> Result<(), Rejected> {
        if self.ended {
            return Err(Rejected::Ended);
        }
        match Message::parse(body) {
            Ok(Message::Response { id: Some(id), .. }) => self.forget_question(&canonical(&id)),
            Ok(Message::Notification { method, params }) if Method::parse(&method) == Method::Cancelled => {
                if let Some(call) = cancelled_id(params).and_then(|id| self.calls.get_mut(&id)) {
                    call.cancelled = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Opens a standalone stream.
    pub(super) fn listen(&mut self) -> Result<mpsc::Receiver<Bytes>, Rejected> {
        if self.ended { Err(Rejected::Ended) } else { Ok(self.session.open()) }
    }

    /// Takes a line that the child wrote, and gives what must be written back.
    pub(super) fn receive(&mut self, line: &Bytes) -> Vec<Bytes> {
        let mut answers = Vec::new();
        match Message::parse(line) {
            Ok(message) => answers.extend(self.message(message, line)),
            Err(Defect::Batch) => match jsonrpc::split_batch(line) {
                Ok(members) => {
                    for member in members {
                        let member = line.slice_ref(member.get().as_bytes());
                        answers.extend(match Message::parse(&member) {
                            Ok(message) => self.message(message, &member),
                            Err(defect) => self.unusable(&member, &defect),
                        });
                    }
                }
                Err(defect) => answers.extend(self.unusable(line, &defect)),
            },
            Err(defect) => answers.extend(self.unusable(line, &defect)),
        }
        answers
    }

    /// When a question has waited long enough for a standalone stream.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        self.session.next_overdue()
    }

    /// Gives up the questions that have waited long enough, and gives what the child must be told.
    pub(super) fn refuse_overdue(&mut self) -> Vec<Bytes> {
        let overdue = self.session.take_overdue(Instant::now());
        overdue.iter().map(|id| self.refuse(id)).collect()
    }

    /// Ends everything: readers get what waits for them and then the end; nothing is taken any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.calls.clear();
        self.tokens.clear();
        self.questions.clear();
        self.session = SessionStream::new(Duration::ZERO);
    }

    fn message(&mut self, message: Message<'_>, line: &Bytes) -> Option<Bytes> {
        match message {
            Message::Response { id: Some(id), .. } => {
                self.answer(&id, line);
                None
            }
            Message::Response { id: None, .. } => {
                tracing::warn!("the server sent an error that names no request; it is dropped");
                None
            }
            Message::Request { method, .. } if self.manners == Manners::Modern => {
                // 2026-07-28 stdio, "Sending Messages": nor may it be told that it must not ask.
                tracing::warn!(
                    method = Method::parse(&method).as_str(),
                    "the server asks, which it must not; it is not answered"
                );
                None
            }
            Message::Request { id, method, .. } => match Method::parse(&method) {
                Method::Ping => Some(jsonrpc::response(&id, "{}")),
                method => self.ask(&id, method, line),
            },
            Message::Notification { method, params } => {
                match self.manners {
                    Manners::Legacy => self.notify(&method, params, line),
                    Manners::Modern => self.tell(&method, params, line),
                }
                None
            }
        }
    }

    fn answer(&mut self, id: &Id, line: &Bytes) {
        self.answered = true;
        let id = canonical(id);
        let Some(call) = self.calls.remove(&id) else {
            tracing::debug!("the server answered a request that is not in flight");
            return;
        };
        self.forget(&id, &call);
        // A reader that has gone is no fault: the entry goes all the same.
        call.outlet.offer(line.clone(), Worth::Answer);
    }

    /// Passes a question on, or gives the refusal for the child.
    ///
    /// Nothing on a pipe says which call a question belongs to. With one call in flight it is that one's; with several
    /// it is never guessed, and goes to the session as one that belongs to no call.
    fn ask(&mut self, id: &Id, method: Method, line: &Bytes) -> Option<Bytes> {
        let taken = match self.candidates() {
            Candidates::One(call) => {
                let taken = self.offer_call(&call, line, Worth::Question);
                taken.then_some(Place::Call(call))
            }
            Candidates::None => self.ask_session(id, line),
            Candidates::Several(count) => {
                tracing::warn!(
                    method = method.as_str(),
                    calls = count,
                    "a request of the server's can't be tied to one of the calls in flight and goes to the session; \
                     `exclusive: true` for tools that ask makes it certain"
                );
                self.ask_session(id, line)
            }
        };
        let Some(place) = taken else {
            return Some(self.refuse(id));
        };
        let id = canonical(id);
        self.forget_question(&id);
        if self.questions.len() >= QUESTIONS {
            self.questions.pop_front();
        }
        self.questions.push_back((id, place));
        None
    }

    fn ask_session(&mut self, id: &Id, line: &Bytes) -> Option<Place> {
        self.session.offer(line.clone(), Some(id)).ok().map(|()| Place::Session)
    }

    /// Gives a notification of the modern era to the call that it belongs to. Whatever belongs to none is dropped.
    fn tell(&mut self, method: &str, params: Option<Raw<'_>>, line: &Bytes) {
        match Method::parse(method) {
            Method::Progress => self.progress(params, line),
            // The server may end a subscription so, and nothing else (2026-07-28 cancellation, "Behavior Requirements" 2).
            Method::Cancelled => {
                let Some(id) = cancelled_id(params) else { return };
                let is_subscription = |call: &Call| call.role == Role::Subscription;
                if self.calls.get(&id).is_some_and(is_subscription) {
                    self.offer_call(&id, line, Worth::Notification);
                    self.calls.remove(&id);
                }
            }
            // A log message names no call: with several nobody can say whose it is.
            Method::Message => {
                if let Candidates::One(call) = self.candidates() {
                    self.offer_call(&call, line, Worth::Notification);
                }
            }
            _ => {
                if let Some(id) = subscription_of(params).and_then(|id| Id::from_json(&id).ok()) {
                    self.offer_call(&canonical(&id), line, Worth::Notification);
                }
            }
        }
    }

    fn progress(&mut self, params: Option<Raw<'_>>, line: &Bytes) {
        let token =
            params.and_then(|params| Object::parse(params.get()).ok()?.get("progressToken").map(canonical_token));
        if let Some(call) = token.and_then(|token| self.tokens.get(&token)).cloned() {
            self.offer_call(&call, line, Worth::Notification);
        }
    }

    fn notify(&mut self, method: &str, params: Option<Raw<'_>>, line: &Bytes) {
        match Method::parse(method) {
            Method::Progress => self.progress(params, line),
            Method::Cancelled => self.withdraw(params, line),
            _ if concerns_session(method) && self.session.is_open() => self.notify_session(line),
            _ => self.attribute(line),
        }
    }

    /// The child takes a question back: the word goes where the question went.
    fn withdraw(&mut self, params: Option<Raw<'_>>, line: &Bytes) {
        let Some(id) = cancelled_id(params) else { return };
        let place = self.questions.iter().find(|(question, _)| *question == id).map(|(_, place)| place.clone());
        self.forget_question(&id);
        match place {
            Some(Place::Call(call)) => {
                self.offer_call(&call, line, Worth::Question);
            }
            Some(Place::Session) if self.session.withdraw(&id) => {}
            Some(Place::Session) => self.notify_session(line),
            None => self.attribute(line),
        }
    }

    fn attribute(&mut self, line: &Bytes) {
        match self.candidates() {
            Candidates::One(call) => {
                self.offer_call(&call, line, Worth::Notification);
            }
            Candidates::None | Candidates::Several(_) => self.notify_session(line),
        }
    }

    fn notify_session(&mut self, line: &Bytes) {
        if self.session.offer(line.clone(), None) == Err(Refused) {
            tracing::debug!("a notification of the server's is dropped: the session's stream is not being read");
        }
    }

    fn offer_call(&self, id: &Id, line: &Bytes, worth: Worth) -> bool {
        let offer = self.calls.get(id).map_or(Offer::Closed, |call| call.outlet.offer(line.clone(), worth));
        if offer == Offer::Full {
            tracing::debug!(?worth, "a message of the server's is dropped: its call is not being read");
        }
        offer == Offer::Taken
    }

    /// The calls that an unmarked message may belong to.
    fn candidates(&mut self) -> Candidates {
        self.sweep();
        let mut calls = self.calls.iter().filter(|(_, call)| call.role == Role::Call).map(|(id, _)| id);
        match (calls.next(), calls.count()) {
            (None, _) => Candidates::None,
            (Some(id), 0) => Candidates::One(id.clone()),
            (Some(_), others) => Candidates::Several(others + 1),
        }
    }

    /// Drops the calls that wait for nothing.
    fn sweep(&mut self) {
        let over: Vec<Id> = self.calls.iter().filter(|(_, call)| call.is_over()).map(|(id, _)| id.clone()).collect();
        for id in over {
            if let Some(call) = self.calls.remove(&id) {
                self.forget(&id, &call);
            }
        }
    }

    /// Drops what refers to a call that has been taken out.
    fn forget(&mut self, id: &Id, call: &Call) {
        if let Some(token) = &call.token
            && self.tokens.get(token) == Some(id)
        {
            self.tokens.remove(token);
        }
        self.questions.retain(|(_, place)| *place != Place::Call(id.clone()));
    }

    fn forget_question(&mut self, id: &Id) {
        self.questions.retain(|(question, _)| question != id);
    }

    fn refuse(&mut self, id: &Id) -> Bytes {
        self.forget_question(&canonical(id));
        let error = ErrorObject::new(code::INTERNAL_ERROR, "No client stream is open that could take this request.");
        jsonrpc::error_response(Some(id), &error)
    }

    /// A line that is no message. When it can be tied to a call, that call ends with it, and its caller sees what is
    /// wrong at once rather than at its deadline.
    fn unusable(&mut self, line: &Bytes, defect: &Defect) -> Option<Bytes> {
        let object = std::str::from_utf8(line).ok().and_then(|text| Object::parse(text).ok());
        if let Some(object) = &object
            && object.get("method").is_none()
            && let Some(id) = object.get("id").and_then(|id| Id::from_json(id).ok())
            && self.calls.contains_key(&canonical(&id))
        {
            self.answer(&id, line);
            return None;
        }
        self.noise = self.noise.saturating_add(1);
        let shown = if line.starts_with(b"{") || line.starts_with(b"[") {
            // What looks like a message may hold arguments or results, which are not logged.
            String::new()
        } else {
            String::from_utf8_lossy(line.get(..EXCERPT).unwrap_or(line)).into_owned()
        };
        if self.noise <= LOUD_NOISE {
            tracing::warn!(%defect, line = shown, "the server's stdout has a line that is no message; it is skipped");
        } else {
            tracing::debug!(%defect, line = shown, "the server's stdout has a line that is no message; it is skipped");
        }
        None
    }
}

enum Candidates {
    None,
    One(Id),
    Several(usize),
}

/// Notifications about the session's state, which a call that happens to run has nothing to do with.
fn concerns_session(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}

/// The id that a `notifications/cancelled` names.
fn cancelled_id(params: Option<Raw<'_>>) -> Option<Id> {
    let params = Object::parse(params?.get()).ok()?;
    Id::from_json(params.get("requestId")?).ok().map(|id| canonical(&id))
}

/// One spelling for each id: a child that reads JSON and writes it again may choose other escapes.
fn canonical(id: &Id) -> Id {
    if !id.as_json().contains('\\') {
        return id.clone();
    }
    id.as_text().map_or_else(|| id.clone(), |text| Id::string(&text))
}

/// As [`canonical`], for progress tokens.
fn canonical_token(json: &str) -> Box<str> {
    if !json.contains('\\') {
        return json.into();
    }
    string_value(json).map_or_else(|| json.into(), |text| jsonrpc::raw_string(&text).into())
}

#[cfg(test)]
mod tests;
