//! The modern era, 2026-07-28: no handshake and no sessions. Each request says all that must be known to serve it, and
//! is checked strictly, as careful servers do. Here is what holds on every transport.

mod envelope;
mod listen;
mod methods;
mod mirror;
mod rounds;
mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::HeaderMap;
use serde_json::json;

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, code};
use crate::mcp::version::ProtocolVersion;

use super::Shared;
use super::call;
use super::options::Era;
use super::session::{Session, Terms};
use super::stream::Stream;

pub(super) use envelope::{Envelope, required};
pub(super) use listen::{Listens, Registration};
pub(super) use methods::complete;
pub(super) use mirror::mirrored;
pub(super) use rounds::Rounds;
pub(super) use state::States;

/// The protocol version of this era.
pub(super) const VERSION: ProtocolVersion = ProtocolVersion::V2026_07_28;

/// Whether a message is for this era: its body decides where both are spoken, and its header where the body is silent.
pub(super) fn concerns(era: Era, message: Option<&Message<'_>>, header: Option<&str>) -> bool {
    match era {
        Era::Legacy => false,
        Era::Modern => true,
        Era::Both => header.is_some_and(ProtocolVersion::is_modern_name) || message.is_some_and(envelope::has_claim),
    }
}

/// A request that is to be served.
pub(super) struct Request<'a> {
    pub id: &'a Id,
    pub method: &'a str,
    pub params: &'a Object<'a>,
    /// Absent over stdio.
    pub headers: Option<&'a HeaderMap>,
}

impl Request<'_> {
    /// Checks it in the order that the specification's conformance tests expect: what it says of itself, whether its
    /// header fields agree, whether its version is spoken, whether its method exists, whether its parameters are
    /// mirrored.
    ///
    /// # Errors
    /// What it is refused with.
    pub(super) fn check(&self) -> Result<Envelope, ErrorObject> {
        let envelope = Envelope::read(self.method, self.params)?;
        if let Some(headers) = self.headers {
            mirror::check(headers, self.method, self.params, &envelope.version)?;
        }
        if envelope.version != VERSION.as_str() {
            return Err(unsupported(&envelope.version));
        }
        methods::check(self.method)?;
        match self.headers {
            Some(headers) if self.method == "tools/call" => mirror::check_arguments(headers, self.params)?,
            _ => {}
        }
        Ok(envelope)
    }

    /// Serves it: what answers it goes to the stream of the session that is made for it alone, or to the pipe.
    pub(super) fn serve(&self, shared: &Arc<Shared>, envelope: &Envelope, pipe: Option<&Arc<Stream>>) -> Served {
        let terms = Terms { version: VERSION, client: envelope.client };
        let session = match pipe {
            Some(pipe) => Session::on_pipe(shared, terms, Arc::clone(pipe)),
            None => Session::new(shared, None, terms, true),
        };
        session.log_level.store(envelope.level, Ordering::Relaxed);
        let stream = pipe.map_or_else(|| session.open_stream(1), Arc::clone);
        let mut registration = None;
        match self.method {
            "tools/call" => call::start(&session, self.id.clone(), self.params, &stream),
            "subscriptions/listen" => match shared.listens.open(&session, self.id, self.params, &stream) {
                Ok(open) => registration = Some(open),
                Err(error) => stream.settle(Some(jsonrpc::error_response(Some(self.id), &error))),
            },
            _ => stream.settle(Some(match methods::answer(shared, self.method, self.params) {
                Ok(result) => jsonrpc::response(self.id, &result),
                Err(error) => jsonrpc::error_response(Some(self.id), &error),
            })),
        }
        Served { session, stream, registration }
    }
}

/// A request in service.
pub(super) struct Served {
    pub session: Arc<Session>,
    pub stream: Arc<Stream>,
    /// What keeps a subscription alive.
    pub registration: Option<Registration>,
}

/// 2026-07-28 basic, "Protocol Version Negotiation": the error says what is spoken.
pub(super) fn unsupported(requested: &str) -> ErrorObject {
    ErrorObject::new(code::UNSUPPORTED_VERSION, "this protocol version is not spoken here")
        .with_data(&json!({"supported": [VERSION.as_str()], "requested": requested}))
}
