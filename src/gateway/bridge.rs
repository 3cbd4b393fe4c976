//! Legacy clients on servers of the modern era: the session is the gateway's own, every request goes out with an envelope,
//! and what the server asks inside its answers becomes requests to the client.

mod call;
mod handshake;
mod listening;
mod outlet;
mod project;
mod questions;
mod replay;
mod request;
mod state;
mod talk;

use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::jsonrpc::{self, Object, Outcome, Raw, string_value};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::level::Level;
use crate::mcp::method::Method;

use call::PlainCall;
pub(super) use handshake::{askable, begin, welcome};
use outlet::Outlet;
use project::Projection;
pub(super) use replay::CALL_EVENT;
use request::Sent;
use state::{Asked, Input};
pub(super) use state::{Declared, Offer, State};
use talk::Talk;

use super::call::{Answer, Call};
use super::forward::{Manner, Registration};
use super::rejection::{Fault, Kind};
use super::session::{CancelFlag, Plain, Session, Terms};
use super::{Gateway, Request, Route};

/// What a client says of its call's questions and nobody has looked at yet.
const WAITING_INPUTS: usize = 64;

impl Terms {
    /// Whether the session is the gateway's alone: the client has one, its server has none.
    pub(super) fn is_bridged(&self) -> bool {
        self.version.has_sessions() && !self.upstream.version.has_sessions()
    }
}

impl Gateway {
    /// The table of such sessions, for what is no task operation.
    pub(super) async fn bridged_request(
        self: &Arc<Self>,
        call: &mut Call,
        session: Arc<Session>,
        request: &Request<'_>,
        manner: Manner,
    ) -> Result<Answer, Kind> {
        match request.method {
            Method::Ping => Ok(Answer::json(jsonrpc::response(&request.id, "{}"))),
            Method::SetLevel => self.set_level(call, &session, request).await,
            Method::ResourcesSubscribe => self.bridged_subscribe(call, &session, request).await,
            Method::ResourcesUnsubscribe => self.bridged_unsubscribe(call, &session, request).await,
            // Of the server's era, not of this session's.
            Method::Discover | Method::Listen | Method::TasksUpdate => {
                Err(Kind::NotServed("This method is not part of this protocol version"))
            }
            _ => self.bridged_call(call, session, request, manner).await,
        }
    }

    /// Keeps the level for the session's requests, each of which says it anew.
    async fn set_level(
        self: &Arc<Self>,
        call: &Call,
        session: &Session,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        if !self.offer(&call.route, session).await?.logging {
            return Err(Kind::NotServed("The server behind the gateway has no log levels"));
        }
        let params = Object::parse(request.params.whole.map_or("{}", Raw::get)).unwrap_or_default();
        let level = params.get("level").and_then(string_value).and_then(|level| Level::parse(&level));
        session.bridge.set_level(level.ok_or(Kind::Params("`level` must be one of the eight log levels"))?);
        Ok(Answer::json(jsonrpc::response(&request.id, "{}")))
    }

    /// Starts the job that holds a call, and waits for the head of its answer.
    async fn bridged_call(
        self: &Arc<Self>,
        call: &mut Call,
        session: Arc<Session>,
        request: &Request<'_>,
        manner: Manner,
    ) -> Result<Answer, Kind> {
        let flag = Arc::new(CancelFlag::default());
        let plain = Plain { id: request.id.clone(), upstream_id: request.id.clone(), flag: Arc::clone(&flag) };
        session.live().plain.push(plain);
        let registration = Registration::Call(Arc::clone(&session), Arc::clone(&flag), self.calls.token());
        call.begins();
        let sent = Sent::new(request, std::mem::take(&mut call.headers));
        let policy = match (request.method, &sent.tool) {
            (Method::ToolsCall, Some(tool)) => call.route.tools.of(tool),
            _ => &call.route.tools.otherwise,
        };
        let (first, head) = oneshot::channel();
        let (said, inputs) = mpsc::channel(WAITING_INPUTS);
        let now = Instant::now();
        let job = PlainCall {
            principal: Arc::clone(&call.caller.principal),
            projection: Projection { rewrite: manner.rewrite, wraps: false },
            flag,
            registration,
            deadline: now + manner.deadline.unwrap_or(policy.deadline),
            begin_at: now + self.keep_alive,
            inputs,
            talk: Talk::new(said, policy.input_timeout),
            progress: None,
            sent,
            conversation: self.in_the_name_of(&session, call.accept.events),
            outlet: Outlet {
                gateway: Arc::clone(self),
                route: Arc::clone(&call.route),
                session,
                accept: call.accept,
                id: request.id.clone(),
                call: self.mint_number(),
                first: Some(first),
                replay: None,
            },
        };
        self.jobs.spawn("bridged call", job.run());
        head.await.unwrap_or(Err(Fault::Shutdown.into()))
    }

    /// The conversation for one call. A client that takes no events can't be asked, whatever it declared.
    fn in_the_name_of(&self, session: &Arc<Session>, takes_questions: bool) -> Arc<Session> {
        if takes_questions {
            return Arc::clone(session);
        }
        let silent = Terms { client: ClientCapabilities::default(), ..session.terms.clone() };
        self.sessions.unlisted(silent, None)
    }

    /// The rest of a call's stream, for a client that lost its connection.
    pub(super) fn bridged_rest(
        &self,
        route: &Arc<Route>,
        session: &Arc<Session>,
        event_id: &str,
    ) -> Result<Answer, Kind> {
        let unusable = Kind::Unusable("Nothing is kept that comes after this Last-Event-ID");
        let (replay, after) = session.bridge.find(event_id).ok_or(unusable)?;
        let held = (session.open_stream(self.clock), route.metrics.stream());
        Ok(Answer::Events(replay.read(after, false, self.keep_alive, Box::new(held)).boxed_unsync()))
    }
}

/// Takes a notification: there is nobody upstream who could.
pub(super) fn notified(session: &Session, method: Method, params: Option<Raw<'_>>) -> Answer {
    match method {
        Method::Progress => {
            let params = Object::parse_optional(params).unwrap_or_default();
            let token = params.get("progressToken").and_then(string_value);
            if let Some((number, inputs)) = token.and_then(|token| session.bridge.asked(&token)) {
                // One that finds no room is one of many.
                drop(inputs.try_send(Input::Progressed(number)));
            }
        }
        Method::RootsListChanged => session.bridge.forget_roots(),
        _ => {}
    }
    Answer::Accepted
}

/// Takes the answer to a question in a plain call.
pub(super) async fn answered(session: &Session, id: Option<&str>, outcome: Outcome<'_>) -> Result<Answer, Kind> {
    // An error without an id says that something was not understood; nobody waits for it.
    let Some(id) = id else { return Ok(Answer::Accepted) };
    if !questions::is_question_id(id) {
        return Err(Kind::Unusable("No such request was sent to this client"));
    }
    // One that comes too late is well-formed, and nobody's fault.
    let Some(Asked { number, inputs }) = session.bridge.take(id) else { return Ok(Answer::Accepted) };
    let input = match outcome {
        Outcome::Result(result) => Input::Answered(number, result.get().into()),
        Outcome::Error(_) => Input::Refused(number),
    };
    // The call may have ended meanwhile.
    drop(inputs.send(input).await);
    Ok(Answer::Accepted)
}
