//! Reads an upstream session's standalone stream while anybody needs it, and says whose each message is.
//!
//! There is at most one such stream per upstream session. The client's GET streams are fed from it; so are held calls,
//! whose upstream may ask there instead of on the call's own stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{self, ErrorObject, Message, Object, code};
use crate::sse;
use crate::task::Answer;
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Outgoing};

use super::front::refusal;
use super::rejection::Chain;
use super::session::{Live, Session};
use super::{Gateway, POST_LIMIT, Route, SHORTEST_PAUSE};

/// Before the ids of standalone events, which are resumed by the listener and not by a stream of their own.
pub(super) const LISTENER_EVENT: &str = "g.";
/// How long to wait before listening again, when the upstream does not say.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait, after several failures.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

impl Gateway {
    /// Starts listening for a session, unless it is done already or the upstream has nothing to listen to.
    pub(super) fn listen(self: &Arc<Self>, route: &Arc<Route>, session: &Arc<Session>, last_event_id: Option<String>) {
        if session.terms.is_bridged() {
            return self.bridged_listen(route, session);
        }
        let stop = {
            let mut live = session.live();
            if live.listening_refused || (live.listener.is_some() && last_event_id.is_none()) {
                return;
            }
            if let Some(running) = live.listener.take() {
                running.cancel();
            }
            live.listener.insert(self.jobs.stopping().child_token()).clone()
        };
        let (gateway, route, session) = (Arc::clone(self), Arc::clone(route), Arc::clone(session));
        self.jobs.spawn("listener", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = gateway.run_listener(&route, &session, last_event_id) => {
                    let mut live = session.live();
                    // Unless another has taken this one's place meanwhile.
                    if !stop.is_cancelled() {
                        live.listener = None;
                    }
                }
            }
        });
    }

    /// Stops listening when no stream, no call and no unfinished task needs it.
    pub(super) fn listen_no_more(session: &Session) {
        let mut live = session.live();
        // One without a client is listened to for as long as it lasts.
        if live.streams.is_empty() && live.held.is_empty() && live.unfinished == 0 && !session.is_unlisted() {
            live.listener.take().iter().for_each(CancellationToken::cancel);
        }
    }

    async fn run_listener(&self, route: &Arc<Route>, session: &Arc<Session>, mut last_event_id: Option<String>) {
        let mut failures = 0_u32;
        loop {
            let listening = route.upstream.listen(&route.key_of(session), last_event_id.as_deref()).await;
            let mut pause = RETRY;
            match listening.map(|listening| Messages::of_listening(listening, route.max_message)) {
                Ok(Some(mut messages)) => {
                    let broken = loop {
                        match messages.next().await {
                            Ok(Some(message)) => {
                                failures = 0;
                                let id = messages.last_event_id().map(|id| format!("{LISTENER_EVENT}{id}"));
                                self.dispatch(route, session, message, id.as_deref()).await;
                            }
                            Ok(None) => break None,
                            Err(error) => break Some(error),
                        }
                    };
                    if let Some(error) = broken {
                        tracing::debug!(error = %Chain(&error), "the upstream's standalone stream broke off");
                        failures += 1;
                    }
                    last_event_id = messages.last_event_id().map(str::to_owned).or(last_event_id);
                    pause = messages.retry().unwrap_or(pause);
                }
                // An upstream that resumes nothing may still have a stream.
                Ok(None) if last_event_id.take().is_some() => {}
                Ok(None) => {
                    session.live().listening_refused = true;
                    return;
                }
                Err(Error::SessionGone) => {
                    self.end_session(route, session);
                    return;
                }
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "the upstream's standalone stream failed");
                    // An id that the upstream can't resume would fail for ever.
                    last_event_id = None;
                    failures += 1;
                }
            }
            let pause = pause * 2_u32.saturating_pow(failures.min(8));
            tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_RETRY)).await;
        }
    }

    /// Takes a message to whoever it is for.
    pub(super) async fn dispatch(&self, route: &Route, session: &Arc<Session>, message: Bytes, event_id: Option<&str>) {
        let parsed = match Message::parse(&message) {
            Ok(parsed) => parsed,
            Err(defect) => {
                tracing::warn!(%defect, "the upstream sent something that is no message");
                return;
            }
        };
        match parsed {
            Message::Response { .. } => {}
            Message::Request { id, method, .. } if method == "ping" => {
                drop(self.post_upstream(route, session, jsonrpc::response(&id, "{}")).await);
            }
            Message::Request { id, method, .. } => {
                if to_held(session, &message) {
                    return;
                }
                let calls = session.live().held.len();
                if calls > 0 {
                    tracing::warn!(%method, calls, "nobody can say whose question this is; `exclusive: true` for its tool would tell");
                }
                session.note_asked(&id);
                if to_stream(session, &message, event_id) {
                    return;
                }
                tracing::warn!(%method, "a question can't be put to anybody");
                let body = if session.is_unlisted() {
                    // Stateless clients are asked nothing outside of their calls.
                    match refusal(&method) {
                        Answer::Result(result) => jsonrpc::response(&id, &result),
                        Answer::Error(error) => jsonrpc::raw_error_response(Some(&id), &error),
                    }
                } else {
                    let error = ErrorObject::new(code::INTERNAL_ERROR, "No client listens for this request");
                    jsonrpc::error_response(Some(&id), &error)
                };
                drop(self.post_upstream(route, session, body).await);
            }
            Message::Notification { method, params } => match &*method {
                // The gateway alone tells of its tasks.
                "notifications/tasks/status" if !route.native => {}
                "notifications/progress" => {
                    let params = Object::parse_optional(params).unwrap_or_default();
                    let token = params.get("progressToken").unwrap_or("null");
                    let held = session.live().held.values().find(|held| *held.token == *token).cloned();
                    match held {
                        Some(held) => drop(held.side.try_send(message)),
                        // Progress stops at the task's end (2025-11-25 progress, "Behavior Requirements"), and its
                        // token never was the client's.
                        None if self.has_minted(token) => {}
                        None => drop(to_stream(session, &message, event_id)),
                    }
                }
                "notifications/cancelled" => {
                    let held: Vec<_> = session.live().held.values().cloned().collect();
                    held.iter().for_each(|held| drop(held.side.try_send(message.clone())));
                    to_stream(session, &message, event_id);
                }
                "notifications/message" | "notifications/elicitation/complete" => {
                    if !to_held(session, &message) {
                        to_stream(session, &message, event_id);
                    }
                }
                _ => drop(to_stream(session, &message, event_id)),
            },
        }
    }

    /// Posts a notification or response of the gateway's own on a session.
    ///
    /// # Errors
    /// As the upstream fails, or [`Error::Lost`] when it takes too long; already logged.
    pub(super) async fn post_upstream(&self, route: &Route, session: &Session, body: Bytes) -> Result<(), Error> {
        let message = Outgoing { kind: MessageKind::OneWay, body, headers: HeaderMap::new() };
        let key = route.key_of(session);
        let sending = route.upstream.send(&key, message);
        let late = |_| Err(Error::Lost("it did not take a message in time".into()));
        let sent = tokio::time::timeout(POST_LIMIT, sending).await.unwrap_or_else(late);
        sent.map(drop).inspect_err(|error| tracing::warn!(error = %Chain(error), "the upstream did not take a message"))
    }
}

/// Gives a message to the one call in flight, if that is a held one: with several nobody can say whose it is (design:
/// attribution).
fn to_held(session: &Session, message: &Bytes) -> bool {
    let live = session.live();
    let Live { plain, held, .. } = &*live;
    let mut calls = held.values();
    let is_plain = plain.iter().any(|plain| plain.flag.is_dispatched());
    match (is_plain, calls.next(), calls.next()) {
        (false, Some(only), None) => only.side.try_send(message.clone()).is_ok(),
        _ => false,
    }
}

/// Gives a message to the client's newest GET stream.
pub(super) fn to_stream(session: &Session, message: &Bytes, event_id: Option<&str>) -> bool {
    let streams = session.live().streams.clone();
    let event = sse::write_event(event_id, message);
    streams.iter().rev().any(|stream| stream.offer(&event))
}
