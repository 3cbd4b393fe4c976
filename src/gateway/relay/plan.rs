//! How one plain call's answer is to be passed on, and what is kept until then.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::gateway::forward::Registration;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::{CancelFlag, Session};
use crate::gateway::{Gate, Gateway, Route};
use crate::jsonrpc::{self, Id, Message, Object, Outcome};
use crate::metrics::Counted;
use crate::tenant::fair::Permit;
use crate::upstream::Body;

/// An upstream's answer on its way. Everything that must be there before the client's answer can begin is waited for
/// here, so that the deadline, a cancel and the client's going away apply to all of it.
pub(in crate::gateway) type Sending = Pin<Box<dyn Future<Output = Result<(Begun, Places), Kind>> + Send>>;
/// What a call keeps as long as the upstream works on it.
pub(in crate::gateway) type Places = (Option<Permit>, Gate, Counted);
/// Looks at the outcome of the answer.
pub(in crate::gateway) type Rewrite = Arc<dyn Fn(&Outcome<'_>) -> Rewritten + Send + Sync>;

/// What becomes of an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) enum Rewritten {
    /// It passes as it is.
    Same,
    /// This `result` in its place, as JSON text.
    Result(String),
    /// This `error` in its place, as JSON text.
    Error(String),
}

/// An upstream's answer, as far as it has to be there before the client's can begin.
pub(in crate::gateway) enum Begun {
    /// All of it, as one message.
    Whole(Bytes),
    /// One message that is passed on as it comes.
    Json(Body),
    /// A stream of events.
    Events(Body),
    /// Messages, of which the first is there.
    Messages(Bytes, mpsc::Receiver<Bytes>),
}

/// What stands upstream for a request's id and progress token, where other clients' requests may be beside it.
pub(in crate::gateway) struct Minted {
    /// Both, as the upstream sees them.
    pub id: Id,
    /// The client's own token as JSON text.
    pub token: Option<Box<str>>,
}

/// How one plain call's answer is to be passed on.
pub(in crate::gateway) struct Plan {
    /// The client's request.
    pub id: Id,
    /// What the upstream knows it by, if not by that.
    pub minted: Option<Minted>,
    /// The longest event or message in bytes.
    pub limit: usize,
    /// Leave out events without data: the client would read them as JSON.
    pub drop_priming: bool,
    /// Split arrays: the client's version does not know them, or something inside is to be changed.
    pub split_batches: bool,
    /// What to do with the result.
    pub rewrite: Option<Rewrite>,
    /// When to give up.
    pub deadline: Instant,
    /// How long the answer may be silent.
    pub keep_alive: Duration,
    /// Is set when the client cancels the request.
    pub cancelled: Arc<CancelFlag>,
    /// Runs what must outlive the client's connection.
    pub gateway: Arc<Gateway>,
    /// The call's registration in its session, until it is over.
    #[expect(dead_code, reason = "ends when it is dropped")]
    pub registration: Registration,
    /// Its places, once it has them.
    pub places: Option<Places>,
    /// Where a cancel goes when the deadline passes.
    pub cancels: Option<(Arc<Route>, Arc<Session>)>,
    /// The client is stateless: it gets no requests and no event ids, and its going away is a cancel (2026-07-28
    /// transports, "Cancellation").
    pub is_stateless: bool,
}

impl Plan {
    /// The request's id upstream.
    pub(in crate::gateway) fn upstream_id(&self) -> &Id {
        self.minted.as_ref().map_or(&self.id, |minted| &minted.id)
    }

    /// The message as the client gets it.
    #[must_use]
    pub(in crate::gateway) fn rewritten(&self, message: Bytes) -> Bytes {
        self.changed(&message).unwrap_or(message)
    }

    /// The message with what is to be changed in it, if it is one of those that are.
    pub(super) fn changed(&self, message: &[u8]) -> Option<Bytes> {
        if self.rewrite.is_none() && self.minted.is_none() {
            return None;
        }
        match Message::parse(message).ok()? {
            Message::Response { id: Some(answered), outcome } if answered == *self.upstream_id() => {
                match self.rewrite.as_ref().map_or(Rewritten::Same, |rewrite| rewrite(&outcome)) {
                    Rewritten::Result(result) => return Some(jsonrpc::response(&self.id, &result)),
                    Rewritten::Error(error) => return Some(jsonrpc::raw_error_response(Some(&self.id), &error)),
                    Rewritten::Same => {}
                }
                self.minted.as_ref()?;
                let mut whole = Object::parse(std::str::from_utf8(message).ok()?).ok()?;
                Some(whole.set("id", self.id.as_json()).to_json().into())
            }
            Message::Notification { method, params } if method == "notifications/progress" => {
                let Minted { id, token } = self.minted.as_ref()?;
                let mut params = Object::parse_optional(params).ok()?;
                let token = token.as_deref().filter(|_| params.get("progressToken") == Some(id.as_json()))?;
                params.set("progressToken", token);
                Some(jsonrpc::notification(&method, Some(&params.to_json())))
            }
            _ => None,
        }
    }

    /// Gives the places back at the deadline, even if the client reads so little that nobody asks for more until then.
    pub(super) fn watch_places(&mut self) -> Option<DropGuard> {
        let places = self.places.take()?;
        let (over, deadline) = (CancellationToken::new(), self.deadline);
        let watching = over.clone();
        self.gateway.jobs.spawn("places", async move {
            tokio::select! {
                () = watching.cancelled() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
            drop(places);
        });
        Some(over.drop_guard())
    }

    /// The deadline has passed: the upstream is told, if it has seen the request.
    pub(in crate::gateway) fn time_out(&mut self) -> Fault {
        let started = self.cancelled.is_dispatched();
        self.cancel_upstream("deadline");
        Fault::Deadline { started }
    }

    /// Tells an upstream that has seen the request to stop. Stateless ones on HTTP see it by the end of the connection, and
    /// nothing else would tell them (2026-07-28 transports, "Cancellation").
    pub(super) fn cancel_upstream(&mut self, reason: &str) {
        let started = self.cancelled.is_dispatched();
        let is_told = |session: &Session| session.terms.upstream.is_told_of_cancels();
        if let Some((route, session)) = self.cancels.take().filter(|(_, session)| started && is_told(session)) {
            let id = self.upstream_id().as_json();
            let params = format!("{{\"requestId\":{id},\"reason\":{}}}", jsonrpc::raw_string(reason));
            let gateway = Arc::clone(&self.gateway);
            self.gateway.jobs.spawn("cancel", async move {
                let body = jsonrpc::notification("notifications/cancelled", Some(&params));
                // Best effort, and logged.
                drop(gateway.post_upstream(&route, &session, body).await);
            });
        }
    }

    /// Whether a message is one that this client must not see.
    pub(super) fn is_withheld(&self, message: &[u8]) -> bool {
        self.is_stateless && matches!(Message::parse(message), Ok(Message::Request { .. }))
    }
}
