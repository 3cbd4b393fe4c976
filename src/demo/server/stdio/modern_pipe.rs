//! Requests of the modern era on a pipe, which carries many side by side.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, code};
use crate::mcp::method::Method;

use super::super::Shared;
use super::super::modern::{Registration, Request, Served};
use super::super::protocol;
use super::super::session::Session;
use super::super::stats;
use super::super::stream::Stream;

/// The requests that are served.
#[derive(Default)]
pub(super) struct Requests {
    running: HashMap<Id, Weak<Session>>,
    /// Subscriptions, which last until they are cancelled.
    listening: HashMap<Id, Registration>,
}

impl Requests {
    /// Takes a message in; what answers it goes to the pipe.
    pub(super) fn take(&mut self, shared: &Arc<Shared>, message: &Message<'_>, pipe: &Arc<Stream>) {
        let method = message.method().map(Method::parse);
        if let Some(method) = method {
            shared.note(|stats| *stats.methods.entry(method.as_str()).or_default() += 1);
        }
        match message {
            Message::Request { id, method, params } => {
                let served =
                    protocol::read_params(*params).and_then(|params| self.serve(shared, (id, method), &params, pipe));
                if let Err(error) = served {
                    shared.note(|stats| stats.refused += 1);
                    pipe.settle(Some(jsonrpc::error_response(Some(id), &error)));
                }
            }
            Message::Notification { .. } => {
                self.cancel(message);
            }
            // Nothing was asked.
            Message::Response { .. } => shared.note(|stats| stats.stray_answers += 1),
        }
    }

    fn serve(
        &mut self,
        shared: &Arc<Shared>,
        (id, method): (&Id, &str),
        params: &Object<'_>,
        pipe: &Arc<Stream>,
    ) -> Result<(), ErrorObject> {
        let envelope =
            stats::Envelope { headers: Vec::new(), meta: params.get("_meta").unwrap_or_default().to_owned() };
        shared.note(|stats| {
            stats.note_request(method, params);
            stats.envelopes.insert(Method::parse(method).as_str(), envelope);
        });
        self.running.retain(|_, session| session.strong_count() > 0);
        self.listening.retain(|_, registration| !registration.is_over());
        if self.running.contains_key(id) || self.listening.contains_key(id) {
            return Err(ErrorObject::new(code::INVALID_REQUEST, "a request with this id is running"));
        }
        let request = Request { id, method, params, headers: None };
        let envelope = request.check()?;
        let Served { session, registration, .. } = request.serve(shared, &envelope, Some(pipe));
        self.running.insert(id.clone(), Arc::downgrade(&session));
        if let Some(registration) = registration {
            self.listening.insert(id.clone(), registration);
        }
        Ok(())
    }

    /// Cancels what a `notifications/cancelled` names, and tells whether that was one of these requests.
    pub(super) fn cancel(&mut self, message: &Message<'_>) -> bool {
        let Message::Notification { method, params } = message else { return false };
        let params = Object::parse_optional(*params).unwrap_or_default();
        let Some(Ok(id)) = params.get("requestId").map(Id::from_json) else { return false };
        if Method::parse(method) != Method::Cancelled {
            return false;
        }
        let ran = self.running.remove(&id).and_then(|session| session.upgrade());
        if let Some(session) = &ran {
            session.cancel(&id);
        }
        self.listening.remove(&id).is_some() || ran.is_some()
    }
}
