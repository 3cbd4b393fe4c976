//! Requests of the modern era over HTTP: checked, served, and cancelled when the client leaves.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use crate::jsonrpc::{self, Defect, ErrorObject, Id, Message, Object, Outcome, code};
use crate::mcp::method::Method;

use super::super::Shared;
use super::super::modern::{self, Registration, Request, Served};
use super::super::protocol;
use super::super::session::Session;
use super::super::stats;
use super::super::stream::Stream;
use super::answer::{self, Refusal, Reply};
use super::{check, fault_of};

/// Whether a request is for this era.
pub(super) fn concerns(shared: &Shared, headers: &HeaderMap, message: Option<&Message<'_>>) -> bool {
    modern::concerns(shared.era(), message, check::version(headers))
}

/// Takes a message and answers.
pub(super) async fn post(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    parsed: Result<Message<'_>, Defect>,
) -> Result<Reply, Refusal> {
    let message = parsed.map_err(|defect| Refusal::new(StatusCode::BAD_REQUEST, defect.code(), defect.to_string()))?;
    match &message {
        Message::Request { id, method, params } => {
            let method_label = Method::parse(method).as_str();
            let read = protocol::read_params(*params);
            let envelope = stats::Envelope {
                headers: check::fields(headers),
                meta: read.as_ref().ok().and_then(|read| read.get("_meta")).unwrap_or_default().to_owned(),
            };
            shared.note(|stats| {
                *stats.methods.entry(method_label).or_default() += 1;
                stats.envelopes.insert(method_label, envelope);
            });
            let broken = fault_of(shared, &message);
            if let Some(fault) = broken.filter(|fault| fault.comes_first()) {
                return Ok(Reply::Broken(fault));
            }
            let served = read.and_then(|read| serve(shared, headers, (id, method), &read));
            Ok(match served {
                Ok(served) => reply(served, broken).await,
                Err(error) => {
                    shared.note(|stats| stats.refused += 1);
                    refusal(Some(id), &error, StatusCode::BAD_REQUEST)
                }
            })
        }
        Message::Notification { method, .. } => {
            shared.note(|stats| *stats.methods.entry(Method::parse(method).as_str()).or_default() += 1);
            Ok(Reply::Accepted)
        }
        // 2026-07-28 transports, "Sending Messages to the Server": a client never answers.
        Message::Response { .. } => Err(Refusal::bad_request("a client sends requests and notifications")),
    }
}

fn serve(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    (id, method): (&Id, &str),
    params: &Object<'_>,
) -> Result<Served, ErrorObject> {
    shared.note(|stats| stats.note_request(method, params));
    let request = Request { id, method, params, headers: Some(headers) };
    let envelope = request.check()?;
    Ok(request.serve(shared, &envelope, None))
}

async fn reply(served: Served, broken: Option<super::Fault>) -> Reply {
    let Served { session, stream, registration } = served;
    let mut leaving = Leaving { session: Arc::clone(&session), stream: Arc::clone(&stream), registration, means: true };
    // What the server breaks itself is not the client's leaving.
    leaving.means = broken.is_none();
    if leaving.registration.is_some() && leaving.means {
        return Reply::Events(answer::Events::of_call(&session, &stream, None).watched(leaving));
    }
    match answer::to_requests(session, stream, false, broken).await {
        Reply::Events(events) => Reply::Events(events.watched(leaving)),
        Reply::Json { session: None, body } => match Message::parse(&body) {
            Ok(Message::Response { outcome: Outcome::Error(error), .. }) => {
                Reply::Refused { status: status(error.get(), StatusCode::OK), body }
            }
            _ => Reply::Json { session: None, body },
        },
        other => other,
    }
}

fn refusal(id: Option<&Id>, error: &ErrorObject, otherwise: StatusCode) -> Reply {
    Reply::Refused { status: status(&error.to_json(), otherwise), body: jsonrpc::error_response(id, error) }
}

/// The status that goes with an error (2026-07-28 transports; basic, "Error Codes").
fn status(error: &str, otherwise: StatusCode) -> StatusCode {
    let error = Object::parse(error).unwrap_or_default();
    match error.get("code").and_then(|code| code.parse().ok()) {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => StatusCode::BAD_REQUEST,
        _ => otherwise,
    }
}

/// The client of a request: when it leaves, the request is cancelled (2026-07-28 cancellation, "Streamable HTTP").
pub(super) struct Leaving {
    session: Arc<Session>,
    stream: Arc<Stream>,
    /// What ends with the request.
    registration: Option<Registration>,
    means: bool,
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leaving")
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.means && !self.stream.has_ended() {
            self.session.end();
            self.session.shared.note(|stats| stats.disconnected += 1);
        }
    }
}
