//! Streamable HTTP: from sockets to messages.

mod answer;
mod check;
mod modern;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};

use crate::jsonrpc::{self, Defect, Id, Message, Raw, code, split_batch};

use super::fault::{self, Fault};
use super::protocol;
use super::session::Session;
use super::{ENDPOINT, Shared, origin};

use answer::{Broken, Refusal, Reply};

/// The largest request body.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// The most sessions that are open at once.
const MAX_SESSIONS: usize = 100_000;

/// Takes connections until the server stops.
pub(super) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let stopping = shared.jobs.stopping().clone();
    loop {
        let connection = tokio::select! {
            () = stopping.cancelled() => return,
            connection = listener.accept() => connection,
        };
        match connection {
            Ok((socket, _)) => {
                shared.jobs.spawn("demo connection", connected(Arc::clone(&shared), socket));
            }
            // Out of files, or the peer has gone already: neither ends the server.
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn connected(shared: Arc<Shared>, socket: TcpStream) {
    let _open = answer::Open::new(&shared, |stats| &mut stats.connections);
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let stopping = shared.jobs.stopping().clone();
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move {
            tokio::select! {
                biased;
                response = handle(Arc::clone(&shared), request) => response.and_then(|response| {
                    // What a stopping server would say is not what the call came to.
                    if shared.jobs.stopping().is_cancelled() { Err(Broken) } else { Ok(response) }
                }),
                () = shared.jobs.stopping().cancelled() => Err(Broken),
            }
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let served = builder.serve_connection(TokioIo::new(socket), service);
    tokio::select! {
        () = stopping.cancelled() => {}
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke");
        },
    }
}

async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<answer::Body>, Broken> {
    shared.note(|stats| {
        stats.http_requests += 1;
        stats.last_headers = check::all_headers(&request);
    });
    if !origin::is_welcome(request.headers()) {
        return Ok(Refusal::new(StatusCode::FORBIDDEN, code::INVALID_REQUEST, "this page may not use the server")
            .into_response());
    }
    if request.uri().path() != ENDPOINT {
        return Ok(Refusal::new(StatusCode::NOT_FOUND, code::INVALID_REQUEST, "the endpoint is /mcp").into_response());
    }
    let method = request.method().clone();
    let answered = if method == Method::POST {
        post(&shared, request).await
    } else if modern::concerns(&shared, request.headers(), None) {
        Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, code::INVALID_REQUEST, "only POST is offered")
            .allowing("POST"))
    } else if method == Method::GET && !shared.options.stateless {
        get(&shared, &request)
    } else if method == Method::DELETE && !shared.options.stateless {
        delete(&shared, &request)
    } else {
        Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, code::INVALID_REQUEST, "not offered here"))
    };
    match answered {
        Ok(reply) => reply.into_response().await,
        Err(refusal) => Ok(refusal.into_response()),
    }
}

/// Takes a message, or on 2025-03-26 several, and answers. An error is an answer, too.
async fn post(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<Reply, Refusal> {
    check::content(request.headers())?;
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|_| {
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, code::INVALID_REQUEST, "the body is too large or was cut")
    })?;
    let body = body.to_bytes();
    shared.note(|stats| stats.note_body(&body));
    let parsed = Message::parse(&body);
    if modern::concerns(shared, &head.headers, parsed.as_ref().ok()) {
        return modern::post(shared, &head.headers, parsed).await;
    }
    if let Ok(Message::Request { id, method, params }) = &parsed
        && method == "initialize"
    {
        if head.headers.contains_key(check::SESSION_ID) {
            return Err(Refusal::bad_request("the session is initialized already"));
        }
        return initialize(shared, id, *params).await;
    }
    let session = check::session(shared, &head.headers)?;
    match parsed {
        Ok(message) => one(shared, &session, message).await,
        Err(Defect::Batch) if session.terms.version.has_batches() => several(&session, &body),
        Err(defect) => Err(Refusal::new(StatusCode::BAD_REQUEST, defect.code(), defect.to_string())),
    }
}

async fn initialize(shared: &Arc<Shared>, id: &Id, params: Option<Raw<'_>>) -> Result<Reply, Refusal> {
    shared.note(|stats| *stats.methods.entry("initialize").or_default() += 1);
    let broken = fault::planned(shared, "initialize");
    if let Some(fault) = broken.filter(|fault| fault.comes_first()) {
        return Ok(Reply::Broken(fault));
    }
    let terms = match protocol::negotiate(shared, params) {
        Ok(terms) => terms,
        Err(error) => {
            return Ok(Reply::Json { session: None, body: jsonrpc::error_response(Some(id), &error) });
        }
    };
    let session_id: Option<Box<str>> =
        (!shared.options.stateless).then(|| uuid::Uuid::new_v4().simple().to_string().into());
    let session = Session::new(shared, session_id.clone(), terms, session_id.is_some());
    if let Some(session_id) = &session_id {
        remember(shared, session_id, &session)?;
    }
    let stream = session.open_stream(1);
    stream.settle(Some(jsonrpc::response(id, &protocol::welcome(&session.terms))));
    Ok(answer::to_requests(session, stream, true, broken).await)
}

fn remember(shared: &Shared, id: &str, session: &Arc<Session>) -> Result<(), Refusal> {
    let mut sessions = shared.sessions();
    if sessions.len() >= MAX_SESSIONS {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code::INTERNAL_ERROR, "too many sessions"));
    }
    sessions.insert(id.into(), Arc::clone(session));
    drop(sessions);
    shared.note(|stats| {
        stats.sessions += 1;
        stats.sessions_opened += 1;
    });
    Ok(())
}

/// The fault that is planned for a message or that it asks for itself.
fn fault_of(shared: &Shared, message: &Message<'_>) -> Option<Fault> {
    fault::planned(shared, message.method().unwrap_or("response"))
        .or_else(|| fault::kind_asked(message).and_then(|kind| kind.parse().ok()))
}

async fn one(shared: &Arc<Shared>, session: &Arc<Session>, message: Message<'_>) -> Result<Reply, Refusal> {
    let broken = fault_of(shared, &message);
    if let Some(fault) = broken.filter(|fault| fault.comes_first()) {
        if fault == Fault::SessionGone
            && let Some(id) = &session.id
        {
            check::forget(shared, id);
        }
        return Ok(Reply::Broken(fault));
    }
    if !matches!(message, Message::Request { .. }) {
        protocol::take(session, message, &session.general);
        return Ok(broken.map_or(Reply::Accepted, Reply::Broken));
    }
    let stream = session.open_stream(1);
    protocol::take(session, message, &stream);
    Ok(answer::to_requests(Arc::clone(session), stream, false, broken).await)
}

/// 2025-03-26 basic, "Batching": implementations MUST receive batches, never with `initialize` among them.
fn several(session: &Arc<Session>, body: &Bytes) -> Result<Reply, Refusal> {
    let defective = |defect: Defect| Refusal::new(StatusCode::BAD_REQUEST, defect.code(), defect.to_string());
    let members = split_batch(body).map_err(defective)?;
    let messages = members
        .iter()
        .map(|member| Message::parse(member.get().as_bytes()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(defective)?;
    if messages.iter().any(|message| message.method() == Some("initialize")) {
        return Err(Refusal::bad_request("`initialize` can't be part of a batch"));
    }
    let requests = messages.iter().filter(|message| matches!(message, Message::Request { .. })).count();
    let stream = if requests == 0 { Arc::clone(&session.general) } else { session.open_stream(requests) };
    for message in messages {
        protocol::take(session, message, &stream);
    }
    Ok(if requests == 0 { Reply::Accepted } else { Reply::Events(answer::Events::of_call(session, &stream, None)) })
}

/// Opens the session's own stream, or resumes one of its streams.
fn get(shared: &Arc<Shared>, request: &Request<Incoming>) -> Result<Reply, Refusal> {
    check::accepts_events(request.headers())?;
    let session = check::session(shared, request.headers())?;
    let broken = fault::planned(shared, "GET");
    if let Some(fault) = broken.filter(|fault| fault.comes_first()) {
        return Ok(Reply::Broken(fault));
    }
    if let Some(fault @ (Fault::Close | Fault::Silent)) = broken {
        return Ok(Reply::Broken(fault));
    }
    let Some(last) = request.headers().get("last-event-id") else {
        return Ok(Reply::Events(answer::Events::of_session(&session, None, broken)));
    };
    let place = last.to_str().ok().and_then(|text| text.split_once('.'));
    let place = place.and_then(|(stream, place)| Some((stream.parse().ok()?, place.parse::<u64>().ok()?)));
    let stream = place.and_then(|(number, place)| Some((session.stream(number)?, place)));
    let Some((stream, place)) = stream.filter(|(stream, place)| *place <= stream.newest() && stream.keeps()) else {
        return Err(Refusal::bad_request("`Last-Event-ID` names no event of this session"));
    };
    // Nothing will ever come: some clients come back again and again for an empty stream.
    if stream.is_over_at(place) {
        return Err(Refusal::bad_request("the stream of `Last-Event-ID` is over"));
    }
    shared.note(|stats| stats.resumed += 1);
    Ok(Reply::Events(if stream.number == session.general.number {
        answer::Events::of_session(&session, Some(place), broken)
    } else {
        answer::Events::resumed(&session, &stream, place, broken)
    }))
}

fn delete(shared: &Arc<Shared>, request: &Request<Incoming>) -> Result<Reply, Refusal> {
    let session = check::session(shared, request.headers())?;
    if let Some(fault) = fault::planned(shared, "DELETE") {
        return Ok(Reply::Broken(fault));
    }
    if let Some(id) = &session.id {
        check::forget(shared, id);
        shared.note(|stats| stats.deleted += 1);
    }
    Ok(Reply::Ended)
}
