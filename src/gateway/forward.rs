//! Plain calls: sent on as they are, answered as the upstream answers.
//!
//! A call waits for its place, is sent, and its answer is passed on as it comes; or, where the upstream is slow, a stream is
//! begun for it and the relay goes on. Whether a call may become a task is settled before it comes here.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::jsonrpc::{self, Id, Object};
use crate::mcp::method::Method;
use crate::mcp::{RELATED_TASK_WORD, may_hold};
use crate::metrics::Counted;
use crate::metrics::label::UpstreamOutcome;
use crate::oauth::secret::SubjectToken;
use crate::task::dialect::core;
use crate::tenant::fair;
use crate::upstream::messages::{Messages, collect, collect_pieces};
use crate::upstream::{Error, Kind as MessageKind, Outgoing, Reply, SessionKey};

use super::call::{Answer, Call};
use super::rejection::{Fault, Kind};
use super::relay::{Begun, Detached, Minted, Plan, Relay, Rewrite, Sending, Waited};
use super::session::{CancelFlag, OpenStream, Plain, Session};
use super::{Gateway, POST_LIMIT, Request, Route};

/// A JSON answer of at most this many bytes is read before it is passed on, so that one which breaks off becomes an error.
const SMALL: u64 = 64 * 1024;

/// An answer of at least this many bytes is not copied to change its id.
const LARGE: usize = 16 * 1024;

/// What is special about a plain call.
#[derive(Default)]
pub(super) struct Manner {
    /// Changes the result.
    pub(super) rewrite: Option<Rewrite>,
    /// The tool runs alone on its session.
    pub(super) exclusive: bool,
    /// The tool's deadline, where it is not the route's.
    pub(super) deadline: Option<std::time::Duration>,
    /// `params` in place of the client's.
    pub(super) params: Option<String>,
    /// `rewrite` leaves complete results as they are.
    pub(super) keeps_complete: bool,
    /// `rewrite` leaves out what the client must not see: what it can't be asked about does not pass.
    pub(super) filters: bool,
    /// The upstream does tasks itself, and may see what is said of them.
    pub(super) passes_tasks: bool,
}

/// A call's entry in its session, or that of a stream which is taken up again.
#[expect(dead_code, reason = "a stream ends when it is dropped")]
pub(super) enum Registration {
    Call(Arc<Session>, Arc<CancelFlag>, TaskTrackerToken),
    Stream(OpenStream, Counted),
}

impl Registration {
    /// Notes that the upstream asks the client something on this call's stream.
    pub(super) fn note_asked(&self, id: &Id) {
        if let Self::Call(session, ..) = self {
            session.note_asked(id);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Self::Call(session, own, _) = self {
            session.live().plain.retain(|plain| !Arc::ptr_eq(&plain.flag, own));
        }
    }
}

impl Gateway {
    /// Passes a request on.
    pub(super) async fn forward(
        self: &Arc<Self>,
        call: &mut Call,
        session: Arc<Session>,
        request: &Request<'_>,
        manner: Manner,
    ) -> Result<Answer, Kind> {
        if session.terms.is_bridged() {
            // Boxed, since every call would have room for it.
            return Box::pin(self.bridged_request(call, session, request, manner)).await;
        }
        let manner = Manner { passes_tasks: call.route.passes_tasks(&session), ..manner };
        let now = Instant::now();
        let plan = self.plan(call, &session, request, &manner, now);
        // Registered among the calls that are waited for.
        call.begins();
        let limit = (now + self.keep_alive).min(plan.deadline);
        let accept = call.accept;
        let flag = Arc::clone(&plan.cancelled);
        let needs = Needs {
            flag: Arc::clone(&flag),
            id: plan.upstream_id().clone(),
            limit: plan.limit,
            whole: plan.rewrite.is_some() || plan.minted.is_some() || plan.split_batches || !accept.json,
            pieces: plan.is_stateless && plan.minted.is_some() && plan.keeps_complete && accept.json,
            no_events: !accept.events,
            exclusive: manner.exclusive,
            // 2025-11-25 ping: answered promptly, however busy the server is with calls.
            at_once: request.method == Method::Ping,
            is_call: request.method == Method::ToolsCall,
        };
        let message = outgoing(request, &plan, &manner, std::mem::take(&mut call.headers));
        let sending = self.sending(call, session, message, needs);
        let mut waited = Detached::new(sending, plan).begun(limit).await;
        loop {
            return match waited {
                Waited::Begun(begun, plan) => answer(begun, plan, accept.events),
                Waited::Failed(_) if flag.is_unwanted() => Ok(Answer::Accepted),
                Waited::Failed(kind) => Err(kind),
                // 2025-11-25 cancellation: no response for a cancelled request.
                Waited::Cancelled => Ok(Answer::Accepted),
                Waited::Late(_, mut plan) if Instant::now() >= plan.deadline => Err(plan.time_out().into()),
                Waited::Late(sending, plan) if accept.events => {
                    let sending = self.apart(sending, plan.deadline, plan.is_stateless);
                    Ok(Answer::Events(Relay::of_sending(sending, plan).boxed_unsync()))
                }
                Waited::Late(sending, plan) => {
                    let limit = plan.deadline;
                    waited = Detached::new(sending, plan).begun(limit).await;
                    continue;
                }
            };
        }
    }

    fn plan(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        request: &Request<'_>,
        manner: &Manner,
        now: Instant,
    ) -> Plan {
        let (version, upstream) = (session.terms.version, session.terms.upstream.version);
        let id = &request.id;
        // Without a session of its own a client shares the upstream's with all others (design: ids and tokens).
        let minted = session.terms.upstream.id.is_none() || !upstream.has_sessions();
        let minted = minted.then(|| Minted { id: self.mint(), token: request.params.progress_token() });
        let upstream_id = minted.as_ref().map_or(id, |minted| &minted.id).clone();
        let flag = Arc::new(CancelFlag::default());
        let plain = Plain { id: id.clone(), upstream_id, flag: Arc::clone(&flag) };
        session.live().plain.push(plain);
        let registration = Registration::Call(Arc::clone(session), Arc::clone(&flag), self.calls.token());
        let deadline = manner.deadline.unwrap_or(call.route.tools.otherwise.deadline);
        Plan {
            id: id.clone(),
            split_batches: manner.filters
                || upstream.has_batches() && (!version.has_batches() || manner.rewrite.is_some() || minted.is_some()),
            minted,
            limit: call.route.max_message,
            drop_priming: upstream.has_priming_events() && !version.has_priming_events(),
            rewrite: manner.rewrite.clone(),
            filters: manner.filters,
            keeps_complete: manner.keeps_complete || manner.rewrite.is_none(),
            needs_joining: call.route.upstream.needs_joining(),
            deadline: now + deadline,
            keep_alive: self.keep_alive,
            cancelled: flag,
            gateway: Arc::clone(self),
            registration,
            places: None,
            cancels: Some((Arc::clone(&call.route), Arc::clone(session))),
            is_stateless: !version.has_sessions(),
        }
    }

    /// Goes on with a call in a job of its own: a client that reads nothing must not keep it from its places.
    /// It ends with a client whose going away is a cancel.
    fn apart(&self, sending: Sending, deadline: Instant, ends_with_client: bool) -> Sending {
        let (mut done, begun) = oneshot::channel();
        self.jobs.spawn("late call", async move {
            let sent = tokio::select! {
                sent = tokio::time::timeout_at(deadline, sending) => sent,
                () = done.closed(), if ends_with_client => return,
            };
            if let Ok(sent) = sent {
                drop(done.send(sent));
            }
        });
        Box::pin(async move {
            match begun.await {
                Ok(sent) => sent,
                // The deadline: the answer's own clock says so to the client, and to the upstream.
                Err(_) => std::future::pending().await,
            }
        })
    }

    /// Waits for the places, sends the request and reads as much of the answer as is needed.
    fn sending(self: &Arc<Self>, call: &Call, session: Arc<Session>, message: Outgoing, needs: Needs) -> Sending {
        let (gateway, route, principal, subject) =
            (Arc::clone(self), Arc::clone(&call.route), Arc::clone(&call.caller.principal), call.subject.clone());
        Box::pin(async move {
            // The gate first: whoever waits for it keeps nobody else from a place.
            let (gate, permit) = if needs.at_once {
                ((None, None), None)
            } else {
                // Only calls of tools may ask the client something, so only they are kept apart.
                let gate = if needs.is_call { route.gate(&session, needs.exclusive).await } else { (None, None) };
                let permit = route.places.acquire(&principal.tenant, fair::Kind::Plain).await;
                (gate, Some(permit.map_err(|_| Kind::queue_full(&route))?))
            };
            let in_flight = route.metrics.upstream_in_flight();
            needs.flag.dispatch();
            let key = addressed(&session, subject.as_ref());
            let sent = route.upstream.send(&key, message).await;
            route.metrics.upstream_request(outcome_of(&sent));
            if matches!(sent, Err(Error::SessionGone)) {
                gateway.end_session(&route, &session);
            }
            if let Err(error) = &sent
                // Boxed like all that is rare here, since every call would have room for it.
                && Box::pin(gateway.has_changed_era(&route, &key, error)).await
            {
                if !key.version.has_sessions() {
                    return Err(Kind::OtherEra);
                }
                // The server has no sessions any more. The client opens a new one, which will be translated.
                gateway.end_session(&route, &session);
                return Err(Kind::NoSession);
            }
            let begun = needs.begin(sent?, Elsewhere { gateway: &gateway, route: &route, session: &session }).await?;
            Ok((begun, (permit, gate, in_flight)))
        })
    }

    /// Passes a notification or response on.
    pub(super) async fn forward_one_way(
        &self,
        call: &mut Call,
        session: &Arc<Session>,
        body: Bytes,
    ) -> Result<Answer, Kind> {
        let body = if call.route.passes_tasks(session) { body } else { without_related(body) };
        let message = Outgoing { kind: MessageKind::OneWay, body, headers: std::mem::take(&mut call.headers) };
        let key = addressed(session, call.subject.as_ref());
        let sending = call.route.upstream.send(&key, message);
        let late = |_| Err(Error::Lost("it did not take a message in time".into()));
        let sent = tokio::time::timeout(POST_LIMIT, sending).await.unwrap_or_else(late);
        call.route.metrics.upstream_request(outcome_of(&sent));
        if matches!(sent, Err(Error::SessionGone)) {
            self.end_session(&call.route, session);
        }
        sent?;
        Ok(Answer::Accepted)
    }
}

/// The conversation behind a session, addressed on behalf of whoever calls now.
fn addressed<'a>(session: &'a Session, subject: Option<&Arc<SubjectToken>>) -> Cow<'a, SessionKey> {
    let key = &session.terms.upstream;
    if subject.is_none() { Cow::Borrowed(key) } else { Cow::Owned(key.clone().on_behalf_of(subject)) }
}

fn outcome_of(sent: &Result<Reply, Error>) -> UpstreamOutcome {
    match sent {
        Ok(_) => UpstreamOutcome::Answered,
        Err(Error::Connect(_) | Error::Credentials(_)) => UpstreamOutcome::Unreachable,
        Err(Error::Lost(_)) => UpstreamOutcome::Lost,
        Err(Error::Protocol(_) | Error::Status(_) | Error::Denied(_) | Error::TooLarge(_)) => UpstreamOutcome::Protocol,
        Err(Error::SessionGone) => UpstreamOutcome::SessionGone,
        Err(Error::Refused { .. }) => UpstreamOutcome::Refused,
    }
}

/// The request as the upstream gets it.
fn outgoing(request: &Request<'_>, plan: &Plan, manner: &Manner, headers: HeaderMap) -> Outgoing {
    let changed = match &manner.params {
        Some(params) => Some(with_params(request, params)),
        None if !manner.passes_tasks && request.params.speaks_of_tasks() => Some(without_tasks(request)),
        None => None,
    };
    let (body, progress_token) = match (&plan.minted, changed) {
        (None, changed) => (changed.unwrap_or_else(|| request.body.clone()), request.params.progress_token()),
        (Some(minted), changed) => {
            let body = match changed {
                Some(body) => with_minted(body, minted),
                None => minted_in_place(request, minted).unwrap_or_else(|| with_minted(request.body.clone(), minted)),
            };
            (body, minted.token.as_ref().map(|_| minted.id.as_json().into()))
        }
    };
    Outgoing { kind: MessageKind::Request { id: plan.upstream_id().clone(), progress_token }, body, headers }
}

/// The request as it was written but for the id, and the token, that no other client's has. `None` where its token is not
/// in one place.
fn minted_in_place(request: &Request<'_>, minted: &Minted) -> Option<Bytes> {
    let own = minted.id.as_json();
    match &minted.token {
        None => jsonrpc::spliced(request.body, [(request.id_text, own)]),
        Some(_) => {
            jsonrpc::spliced(request.body, [(request.id_text, own), (request.params.only_progress_token()?, own)])
        }
    }
}

/// The same for a request that was written anew.
fn with_minted(body: Bytes, minted: &Minted) -> Bytes {
    let whole = || -> Option<String> {
        let mut message = Object::parse(std::str::from_utf8(&body).ok()?).ok()?;
        message.set("id", minted.id.as_json());
        if minted.token.is_some() {
            let text = message.get("params")?.to_owned();
            let mut params = Object::parse(&text).ok()?;
            let text = params.get("_meta")?.to_owned();
            let mut meta = Object::parse(&text).ok()?;
            let meta = meta.set("progressToken", minted.id.as_json()).to_json();
            message.set("params", params.set("_meta", meta).to_json());
        }
        Some(message.to_json())
    };
    whole().map_or(body, Bytes::from)
}

/// The request with other parameters.
fn with_params(request: &Request<'_>, params: &str) -> Bytes {
    let whole = || -> Option<String> {
        let mut message = Object::parse(std::str::from_utf8(request.body).ok()?).ok()?;
        Some(message.set("params", params).to_json())
    };
    whole().map_or_else(|| request.body.clone(), Bytes::from)
}

/// The request without what upstreams must not see.
fn without_tasks(request: &Request<'_>) -> Bytes {
    let whole = || -> Option<String> {
        let body = std::str::from_utf8(request.body).ok()?;
        let mut message = Object::parse(body).ok()?;
        let mut params = Object::parse(request.params.whole?.get()).ok()?;
        params.remove("task");
        message.set("params", core::without_related(&params.to_json()));
        Some(message.to_json())
    };
    whole().map_or_else(|| request.body.clone(), Bytes::from)
}

/// A notification or response without the name of a task, which clients repeat from what they were sent.
fn without_related(body: Bytes) -> Bytes {
    let whole = || -> Option<String> {
        let mut message = Object::parse(std::str::from_utf8(&body).ok()?).ok()?;
        let payload = ["params", "result"].into_iter().find(|payload| {
            let members = message.get(payload).and_then(|payload| Object::parse(payload).ok());
            members.is_some_and(|members| members.get("_meta").is_some_and(core::has_related))
        })?;
        let text = message.get(payload).map(core::without_related)?;
        Some(message.set(payload, text).to_json())
    };
    let may_name_one = may_hold(&body, RELATED_TASK_WORD);
    may_name_one.then(whole).flatten().map_or(body, Bytes::from)
}

/// What a call needs: alone on its session or not, and how much of its answer before that can be passed on.
struct Needs {
    /// Is told when the request goes out.
    flag: Arc<CancelFlag>,
    id: Id,
    /// The longest message that is read whole.
    limit: usize,
    /// JSON is to be changed.
    whole: bool,
    /// But most probably only where it begins.
    pieces: bool,
    /// The client takes no events: the answer alone, however it comes.
    no_events: bool,
    /// The tool runs alone on its session.
    exclusive: bool,
    /// It waits for no place.
    at_once: bool,
    /// It calls a tool.
    is_call: bool,
}

/// Where messages go that an answer without a stream has no place for.
struct Elsewhere<'a> {
    gateway: &'a Gateway,
    route: &'a Route,
    session: &'a Arc<Session>,
}

impl Elsewhere<'_> {
    /// To the session's own stream; a question that nobody can be asked is refused, since the call would wait for it.
    async fn take(&self, message: Bytes) {
        self.gateway.dispatch(self.route, self.session, message, None).await;
    }
}

impl Needs {
    async fn begin(&self, reply: Reply, elsewhere: Elsewhere<'_>) -> Result<Begun, Kind> {
        match reply {
            Reply::Json(mut body) => {
                let is_small = body.size_hint().exact().is_some_and(|size| size <= SMALL);
                if !self.whole && !is_small {
                    return Ok(Begun::Json(body));
                }
                let limit = self.limit.max(usize::try_from(SMALL).unwrap_or(usize::MAX));
                if self.pieces {
                    return begun_of(collect_pieces(&mut body, limit).await?);
                }
                let message = collect(&mut body, limit).await?;
                // Found without parsing: an answer that was cut where its length still fits.
                if is_cut(&message) { Err(Fault::UpstreamProtocol.into()) } else { Ok(Begun::Whole(message)) }
            }
            Reply::Events(body) if !self.no_events => Ok(Begun::Events(body)),
            Reply::Messages(mut channel) => {
                // An answer that comes first needs no stream.
                let Some(first) = channel.recv().await else { return Err(Fault::OutcomeUnknown.into()) };
                if is_answer(&first, &self.id) {
                    Ok(Begun::Whole(first))
                } else if self.no_events {
                    Box::pin(elsewhere.take(first)).await;
                    Box::pin(self.only_answer(Reply::Messages(channel), elsewhere)).await
                } else {
                    Ok(Begun::Messages(first, channel))
                }
            }
            other => Box::pin(self.only_answer(other, elsewhere)).await,
        }
    }

    async fn only_answer(&self, reply: Reply, elsewhere: Elsewhere<'_>) -> Result<Begun, Kind> {
        let mut messages = Messages::of_reply(reply, self.limit);
        while let Some(message) = messages.next().await? {
            if is_answer(&message, &self.id) {
                return Ok(Begun::Whole(message));
            }
            elsewhere.take(message).await;
        }
        Err(Fault::OutcomeUnknown.into())
    }
}

/// A message that came in pieces; one that is cut is none.
fn begun_of(mut pieces: Vec<Bytes>) -> Result<Begun, Kind> {
    if pieces.iter().map(Bytes::len).sum::<usize>() >= LARGE {
        let is_plain = |(first, last): (&Bytes, &Bytes)| first.starts_with(b"{") && last.ends_with(b"}");
        if pieces.first().zip(pieces.last()).is_some_and(is_plain) {
            return Ok(Begun::Pieces(pieces));
        }
    }
    let message = if pieces.len() > 1 { pieces.concat().into() } else { pieces.pop().unwrap_or_default() };
    if is_cut(&message) { Err(Fault::UpstreamProtocol.into()) } else { Ok(Begun::Whole(message)) }
}

/// Whether a message can't be a whole object or array.
fn is_cut(message: &[u8]) -> bool {
    let message = message.trim_ascii();
    !matches!((message.first(), message.last()), (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')))
}

/// Passes an answer on in the form in which it came, as far as that is possible.
fn answer(begun: Begun, plan: Plan, accepts_events: bool) -> Result<Answer, Kind> {
    match begun {
        Begun::Whole(message) => whole(message, &plan, accepts_events),
        Begun::Pieces(pieces) => match plan.unread_pieces(&pieces) {
            Some(pieces) => Ok(Answer::Pieces(pieces)),
            None => whole(pieces.concat().into(), &plan, accepts_events),
        },
        Begun::Json(body) => Ok(Answer::JsonBody(Relay::of_json(body, plan).boxed_unsync())),
        Begun::Events(body) => Ok(Answer::Events(Relay::of_events(body, plan).boxed_unsync())),
        Begun::Messages(first, channel) => Ok(Answer::Events(Relay::of_channel(&first, channel, plan).boxed_unsync())),
    }
}

/// Whether a message answers the request. An error without an id does: a server wrote it that could not read the id, and nothing
/// else was asked on that exchange.
fn is_answer(message: &[u8], id: &Id) -> bool {
    match jsonrpc::Message::parse(message) {
        Ok(jsonrpc::Message::Response { id: Some(answered), .. }) => answered == *id,
        Ok(jsonrpc::Message::Response { outcome, .. }) => matches!(outcome, jsonrpc::Outcome::Error(_)),
        _ => false,
    }
}

/// One whole message as the answer.
fn whole(message: Bytes, plan: &Plan, accepts_events: bool) -> Result<Answer, Kind> {
    let is_array = message.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if !is_array || !plan.split_batches {
        return Ok(Answer::json(plan.answer(message).ok_or(Fault::UpstreamProtocol)?));
    }
    let members = jsonrpc::split_batch(&message).map_err(|_| Fault::UpstreamProtocol)?;
    let members = members.iter().map(|member| Bytes::copy_from_slice(member.get().as_bytes()));
    let (answers, others) = members.partition(|member| is_answer(member, plan.upstream_id()));
    let (others, last) = plan.one_answer(answers, others).ok_or(Fault::UpstreamProtocol)?;
    match others.is_empty() || !accepts_events {
        true => Ok(Answer::json(last)),
        false => Ok(Relay::of_messages(&others, &last)),
    }
}
