//! What clients send without expecting an answer: notifications, and their answers to the upstream's questions.

use std::sync::Arc;

use bytes::Bytes;

use crate::jsonrpc::{Id, Object, Outcome, Raw};
use crate::mcp::method::Method;
use crate::task::dialect::core;
use crate::task::{self, ApplyError, Event, State};

use super::call::{Answer, Call};
use super::held::is_error_object;
use super::rejection::Kind;
use super::session::Session;
use super::{Gateway, bridge};

impl Gateway {
    /// Takes a notification.
    pub(super) async fn notification(
        self: &Arc<Self>,
        call: &mut Call,
        session: &Arc<Session>,
        method: Method,
        params: Option<Raw<'_>>,
        body: &Bytes,
    ) -> Result<Answer, Kind> {
        match method {
            Method::Cancelled if session.terms.is_bridged() => {
                let id = cancelled_id(params);
                if !id.as_ref().is_some_and(|id| end_wait(session, id)) {
                    id.iter().for_each(|id| end_plain(session, id));
                }
                Ok(Answer::Accepted)
            }
            _ if session.terms.is_bridged() => Ok(bridge::notified(session, method, params)),
            Method::Cancelled => {
                let id = cancelled_id(params);
                if id.as_ref().is_some_and(|id| end_wait(session, id)) {
                    return Ok(Answer::Accepted);
                }
                // What has not been sent is not sent any more, and there is nothing to cancel upstream.
                if id.as_ref().is_some_and(|id| end_queued(session, id)) {
                    return Ok(Answer::Accepted);
                }
                id.iter().for_each(|id| disown(session, id));
                let answer = match id.as_ref().map(|id| cancel_for_upstream(session, id, body)) {
                    Some(Some(body)) => self.forward_one_way(call, session, body).await,
                    Some(None) => Ok(Answer::Accepted),
                    None => self.forward_one_way(call, session, body.clone()).await,
                };
                // Only now: the call's own end frees what the notification still needs.
                id.iter().for_each(|id| end_plain(session, id));
                answer
            }
            // A status of the client's own tasks: no upstream was ever told that it has any.
            Method::TasksStatus if !call.route.native => Ok(Answer::Accepted),
            _ => self.forward_one_way(call, session, body.clone()).await,
        }
    }

    /// Takes an answer: to a question of a task's, or else to one that the upstream put on this session itself.
    pub(super) async fn answer(
        self: &Arc<Self>,
        call: &mut Call,
        session: &Arc<Session>,
        id: Option<Id>,
        outcome: Outcome<'_>,
        body: &Bytes,
    ) -> Result<Answer, Kind> {
        let text = id.as_ref().and_then(Id::as_text);
        let never = Kind::Unusable("No such request was sent to this client");
        let Some((task_id, number)) = text.as_deref().and_then(core::parse_question_id) else {
            if session.terms.is_bridged() {
                return bridge::answered(session, text.as_deref(), outcome).await;
            }
            if !session.may_answer(id.as_ref()) {
                return Err(never);
            }
            return self.forward_one_way(call, session, body.clone()).await;
        };
        let task = match self.task_of(call, task_id).await {
            Err(Kind::NoTask(_)) => {
                self.note_absent(call, Some(task_id));
                return Err(self.missed(&call.caller.principal, never));
            }
            task => task?,
        };
        if matches!(&task.state, State::Held(asked) if number >= asked.next_number) || task.state == State::Queued {
            return Err(never);
        }
        let is_usable = match outcome {
            Outcome::Result(result) => result.get().starts_with('{'),
            Outcome::Error(error) => is_error_object(error.get()),
        };
        if !is_usable {
            return Err(Kind::Unusable(
                "An answer has an object as its `result`, or an `error` with a code and a message",
            ));
        }
        let answer = match outcome {
            Outcome::Result(result) => task::Answer::Result(core::without_related(result.get()).into()),
            Outcome::Error(error) => task::Answer::Error(error.get().into()),
        };
        let applied = self.ledger.apply(&task.owner, task_id, Event::Answer { number, answer }).await;
        if let (Ok(_), Some(question)) =
            (&applied, task.state.questions().iter().find(|question| question.number == number))
        {
            self.deliveries.answered(task_id, question);
        }
        match applied {
            // An answer that comes too late is well-formed, and nobody's fault.
            Ok(_) | Err(ApplyError::Refused { .. } | ApplyError::Fenced | ApplyError::NotFound) => Ok(Answer::Accepted),
            Err(ApplyError::Store(error)) => Err(error.into()),
        }
    }
}

/// Which request a cancel names.
fn cancelled_id(params: Option<Raw<'_>>) -> Option<Id> {
    let params = Object::parse_optional(params).ok()?;
    Id::from_json(params.get("requestId")?).ok()
}

/// Ends a blocked `tasks/result`, not its task; says whether there was one.
fn end_wait(session: &Session, id: &Id) -> bool {
    let live = session.live();
    let wait = live.waits.iter().rev().find(|(waiting, _)| waiting == id);
    wait.inspect(|(_, cancelled)| cancelled.cancel()).is_some()
}

/// The cancel of a request as the upstream gets it. `None`: there it would name somebody else's request, or none.
fn cancel_for_upstream(session: &Session, id: &Id, body: &Bytes) -> Option<Bytes> {
    if session.terms.upstream.id.is_some() {
        return Some(body.clone());
    }
    let upstream_id = session.live().plain.iter().find(|plain| plain.id == *id)?.upstream_id.clone();
    let mut message = Object::parse(std::str::from_utf8(body).ok()?).ok()?;
    let text = message.get("params")?.to_owned();
    let params = Object::parse(&text).ok()?.set("requestId", upstream_id.as_json()).to_json();
    Some(message.set("params", params).to_json().into())
}

/// Ends a plain call that waits for its place; says whether there was one.
fn end_queued(session: &Session, id: &Id) -> bool {
    let live = session.live();
    let queued = live.plain.iter().find(|plain| plain.id == *id && !plain.flag.is_dispatched());
    queued.inspect(|plain| plain.flag.cancel()).is_some()
}

/// The upstream may end a call as soon as it hears that it is cancelled; that is then no fault to tell of.
fn disown(session: &Session, id: &Id) {
    let live = session.live();
    live.plain.iter().filter(|plain| plain.id == *id).for_each(|plain| plain.flag.disown());
}

/// Ends a plain call's answer without a response.
fn end_plain(session: &Session, id: &Id) {
    let live = session.live();
    live.plain.iter().filter(|plain| plain.id == *id).for_each(|plain| plain.flag.cancel());
}
