//! Where a call's messages go: one JSON answer while nothing came before it, else a stream of events.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use crate::jsonrpc::{self, ErrorObject, Id, code};

use crate::gateway::call::{Accept, Answer};
use crate::gateway::listener::to_stream;
use crate::gateway::rejection::Kind;
use crate::gateway::session::Session;
use crate::gateway::{Gateway, Route};

use super::replay::Replay;

/// How the request is answered.
pub(super) type First = Result<Answer, Kind>;

/// The client's side of one call.
pub(super) struct Outlet {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    pub(super) session: Arc<Session>,
    pub(super) accept: Accept,
    /// The client's id.
    pub(super) id: Id,
    /// The call's number, in event ids.
    pub(super) call: u64,
    /// Takes the head of the answer, until it has been sent.
    pub(super) first: Option<oneshot::Sender<First>>,
    /// The stream, once there is one.
    pub(super) replay: Option<Arc<Replay>>,
}

impl Outlet {
    /// Whether nothing has been sent yet, so that a stream can still be begun.
    pub(super) fn is_open(&self) -> bool {
        self.first.is_some() && self.accept.events
    }

    /// Begins a stream, unless it is done or the client takes none.
    pub(super) fn stream(&mut self) -> Option<&Arc<Replay>> {
        if self.is_open()
            && let Some(first) = self.first.take()
            && !first.is_closed()
        {
            let replay = Replay::new(self.call);
            let primes = self.session.terms.version.has_priming_events();
            let held = (self.session.open_stream(self.gateway.clock), self.route.metrics.stream());
            let reader = replay.read(0, primes, self.gateway.keep_alive, Box::new(held));
            if first.send(Ok(Answer::Events(reader.boxed_unsync()))).is_ok() {
                self.session.bridge.keep(Arc::clone(&replay));
                self.replay = Some(replay);
            }
        }
        self.replay.as_ref()
    }

    /// Tells something on the call's stream; where it has none, on the session's own.
    pub(super) fn tell(&mut self, message: &Bytes) {
        match self.stream() {
            Some(replay) => replay.notice(message),
            None => drop(to_stream(&self.session, message, None)),
        }
    }

    /// Asks something there. Says whether anybody can hear it.
    pub(super) fn ask(&mut self, number: u32, message: &Bytes) -> bool {
        match self.stream() {
            Some(replay) => {
                replay.question(number, message);
                true
            }
            None => to_stream(&self.session, message, None),
        }
    }

    /// Forgets a question.
    pub(super) fn settled(&self, number: u32) {
        self.replay.iter().for_each(|replay| replay.settled(number));
    }

    /// Answers the request.
    pub(super) fn answer(mut self, answer: Result<Bytes, Kind>) {
        if !self.accept.json {
            self.stream();
        }
        match (self.replay.take(), self.first.take()) {
            (Some(replay), _) => {
                let message = answer.unwrap_or_else(|kind| kind.answering(&self.id).to_message());
                let instead = ErrorObject::new(
                    code::INTERNAL_ERROR,
                    "The answer came while nobody was connected, and is too large to be kept until somebody is.",
                );
                replay.end(&message, &jsonrpc::error_response(Some(&self.id), &instead));
            }
            (None, Some(first)) => drop(first.send(answer.map(Answer::json))),
            (None, None) => {}
        }
    }

    /// Ends it without an answer: the client has cancelled, or ended its session.
    pub(super) fn close(mut self) {
        if let Some(first) = self.first.take() {
            drop(first.send(Ok(Answer::Accepted)));
        }
    }
}

impl Drop for Outlet {
    /// Whatever ended the job, nothing more comes.
    fn drop(&mut self) {
        self.replay.iter().for_each(|replay| replay.close());
    }
}
