//! One HTTP request from its head to its answer: the outer function counts and logs it once, the inner one is the
//! straight line through every check.
//!
//! The gateway sees a call and never the HTTP that it came in; what becomes of it is decided there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{ALLOW, EXPECT, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use ::http::request::Parts;
use ::http::{HeaderMap, Method, Request, Response, StatusCode};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::auth::resource::Resource;
use crate::auth::{Authenticator, Refused, Seen};
use crate::gateway::call::{Accept, Answer, Call, VersionHeader};
use crate::gateway::fields::Repeated;
use crate::gateway::homes::Asking;
use crate::gateway::rejection::{Kind, Rejection};
use crate::gateway::{Gateway, Route, is_of_access, named_in, reject_reason};
use crate::jsonrpc::{self, ErrorObject, code};
use crate::metrics::label::{Era, Outcome, RejectReason};
use crate::metrics::{Asked, Metrics};
use crate::oauth::secret::SubjectToken;
use crate::tenant::Caller;
use crate::tenant::refusals::RefusedAccess;

pub use super::answer::ResponseBody;
use super::answer::{empty, json, response_of, text};
use super::cors;
use super::forwarded::Trusted;
use super::headers::{self, LAST_EVENT_ID, SESSION_ID};
use super::origin::{self, Foreign};
use super::passing::Passing;
use super::patience::{PAUSES, Patience};
use super::subject;
use super::well_known::{Documents, Page};

/// What every connection shares.
#[derive(Debug)]
pub struct Endpoints {
    /// What messages mean.
    pub gateway: Arc<Gateway>,
    /// Endpoints by path.
    pub routes: HashMap<String, Endpoint>,
    /// What clients without credentials are to know.
    pub documents: Documents,
    /// Which callers there are.
    pub authenticator: Authenticator,
    /// Which pages and names may ask.
    pub origin: origin::Config,
    /// Proxies that are believed about whom they speak for.
    pub proxies: Trusted,
    /// The longest body in bytes.
    pub max_body: usize,
    /// How long clients may keep the gateway waiting.
    pub patience: Patience,
    /// How requests come to other replicas, where there are any.
    pub passing: Option<Passing>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What is served at a path.
#[derive(Debug)]
pub struct Endpoint {
    /// Where its messages go.
    pub route: Arc<Route>,
    /// What its callers' credentials are for.
    pub resource: Arc<Resource>,
}

/// An answer that the transport itself gives.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Nothing is served at that path.
    NoRoute,
    /// A browser's question beforehand, with its header fields; no refusal.
    Preflight(HeaderMap),
    /// A document about the endpoints; no refusal either.
    Document(Page),
    /// A method that is not served; those that are.
    Method(&'static str),
    /// Browser checks.
    Foreign(Foreign),
    /// Credentials.
    Credentials(Refused),
    /// The message itself, with a status of HTTP's own.
    Message(StatusCode, RejectReason, &'static str),
    /// What the gateway refused.
    Rejected(Box<Rejection>),
    /// The client went away while it sent.
    Gone,
    /// It was passed on to a replica that is not the one to serve it (any more).
    Misdirected,
}

/// A request's body, and who brought it.
pub(super) enum Arrival {
    /// A client.
    Direct(Incoming),
    /// Another replica, which has looked at where it comes from.
    Passed(Bytes),
}

/// Who answered.
enum Answered {
    /// This process.
    Here(Answer, Accept),
    /// Another one.
    There(Response<ResponseBody>),
}

impl From<Repeated> for Refusal {
    fn from(_: Repeated) -> Self {
        Self::Message(StatusCode::BAD_REQUEST, RejectReason::Header, "A header that decides is given more than once")
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(Box::new(rejection))
    }
}

impl Endpoints {
    /// Answers a request that came from that address.
    ///
    /// # Errors
    /// Never: every failure is an answer.
    pub fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send {
        // Outside, so that the request has no place of its own beside its parts in what each connection keeps.
        let (mut parts, body) = request.into_parts();
        async move {
            let peer = self.proxies.client(peer, &parts.headers);
            Ok(self.respond(&mut parts, Arrival::Direct(body), peer).await)
        }
    }

    /// Answers a request, for a client of that address.
    pub(super) async fn respond(&self, parts: &mut Parts, body: Arrival, peer: IpAddr) -> Response<ResponseBody> {
        let endpoint = self.routes.get(parts.uri.path());
        let route = endpoint.map(|endpoint| &endpoint.route);
        let metrics = route.map_or_else(|| self.metrics.route("other"), |route| &route.metrics);
        let mut timer = metrics.request();
        let version = headers::version(&parts.headers);
        if version.is_modern() {
            timer.era = Era::Modern;
        }
        let page = parts.headers.get(ORIGIN).cloned();
        let mut caller = None;
        let answered = self.answer((parts, version, body, peer), endpoint, &mut timer.asked, &mut caller).await;
        let is_for_pages = !matches!(
            answered,
            Err(Refusal::Foreign(_) | Refusal::NoRoute | Refusal::Preflight(_) | Refusal::Document(_))
        );
        let tenant = caller.as_ref().map_or("", |caller| &caller.principal.tenant);
        let (outcome, mut response) = match answered {
            Ok(Answered::Here(answer, accept)) => (Outcome::Ok, response_of(answer, accept)),
            // Who answered has counted it.
            Ok(Answered::There(response)) => {
                timer.forget();
                (Outcome::Ok, response)
            }
            Err(refusal) => {
                let (outcome, reason) = refusal.counts_as();
                if let Some(reason) = reason {
                    self.metrics.rejected(tenant, reason);
                    let route = route.map_or("", |route| &route.name);
                    self.audit((peer, caller.as_deref()), route, &refusal, reason);
                }
                (outcome, refusal.into_response(endpoint.map(|endpoint| &*endpoint.resource)))
            }
        };
        if let Some(origin) = page.filter(|_| is_for_pages) {
            cors::allow(origin, response.headers_mut());
        }
        tracing::debug!(asked = ?timer.asked, status = response.status().as_u16(), tenant, %peer, "request");
        timer.finish(outcome);
        response
    }

    async fn answer(
        &self,
        (parts, version, body, peer): (&mut Parts, VersionHeader, Arrival, IpAddr),
        endpoint: Option<&Endpoint>,
        asked: &mut Asked,
        known: &mut Option<Arc<Caller>>,
    ) -> Result<Answered, Refusal> {
        if !headers::has_one_host(parts.version, &parts.headers) {
            let message = "The request needs one Host header";
            return Err(Refusal::Message(StatusCode::BAD_REQUEST, RejectReason::Host, message));
        }
        let Some(Endpoint { route, resource }) = endpoint else {
            let page = self.documents.answer(&parts.method, parts.uri.path());
            return Err(page.map_or(Refusal::NoRoute, Refusal::Document));
        };
        let is_passed = matches!(body, Arrival::Passed(_));
        // Whoever passed it on has looked.
        if !is_passed {
            self.origin.check(&parts.headers, &parts.uri).map_err(Refusal::Foreign)?;
            // Browsers send no credentials along with the question.
            if cors::is_preflight(&parts.method, &parts.headers) {
                return Err(Refusal::Preflight(std::mem::take(&mut parts.headers)));
            }
        }
        let caller = match self.authenticator.see(resource, &parts.headers).map_err(Refusal::Credentials)? {
            Seen::Caller(caller) => caller,
            // Boxed, since only the first request with a token comes here.
            Seen::New(token) => {
                Box::pin(self.authenticator.verify(resource, token)).await.map_err(Refusal::Credentials)?
            }
        };
        let (caller, subject) = subject::of(route, caller, &parts.headers)?;
        *known = Some(Arc::clone(&caller));
        self.authenticator.permit(&caller).map_err(Refusal::Credentials)?;
        // 2026-07-28 transports, "Streamable HTTP": there is nothing to GET or DELETE in that era.
        if parts.method != Method::POST && version.is_modern() {
            return Err(Refusal::Method("POST"));
        }
        let body = match (&parts.method, body) {
            (_, Arrival::Passed(body)) => body,
            (&Method::POST, Arrival::Direct(body)) => {
                if !headers::is_json(&parts.headers) {
                    return Err(Refusal::Message(
                        StatusCode::UNSUPPORTED_MEDIA_TYPE,
                        RejectReason::Header,
                        "The body must be uncompressed application/json",
                    ));
                }
                self.read(body, &parts.headers).await?
            }
            (_, Arrival::Direct(_)) => Bytes::new(),
        };
        let placing = self.gateway.placing();
        if self.gateway.has_places() && matches!(parts.method, Method::POST | Method::GET | Method::DELETE) {
            let asking = Asking {
                route,
                principal: &caller.principal,
                version: &version,
                session: None,
                body: &body,
                tried: &[],
            };
            // Boxed: every request would have room for it.
            if let Some(response) = Box::pin(self.elsewhere(parts, asking, &body, (is_passed, peer))).await? {
                return Ok(Answered::There(response));
            }
        }
        match parts.method {
            Method::POST => {
                let mut call = call_of(parts, version, route, (caller, subject, body))?;
                (call.peer, call.placing) = (Some(peer), placing);
                let accept = call.accept;
                Ok(Answered::Here(self.gateway.post(&mut call, asked).await?, accept))
            }
            Method::GET => {
                *asked = Asked::Listen;
                let call = call_of(parts, version, route, (caller, subject, body))?;
                if !call.accept.events {
                    return Err(not_acceptable());
                }
                let accept = call.accept;
                Ok(Answered::Here(self.gateway.get(call).await?, accept))
            }
            Method::DELETE => {
                *asked = Asked::Close;
                let call = call_of(parts, version, route, (caller, subject, body))?;
                Ok(Answered::Here(self.gateway.delete(&call)?, call.accept))
            }
            _ => Err(Refusal::Method("POST, GET, DELETE")),
        }
    }

    /// Reads a body of at most `max_body` bytes that never pauses for long, and does not come in drops for ever.
    pub(super) async fn read(&self, mut body: Incoming, headers: &HeaderMap) -> Result<Bytes, Refusal> {
        let too_large =
            Refusal::Message(StatusCode::PAYLOAD_TOO_LARGE, RejectReason::TooLarge, "The body is too large");
        let announced = headers.get(::http::header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let announced = announced.and_then(|length| length.parse::<u64>().ok()).unwrap_or(0);
        if announced > u64::try_from(self.max_body).unwrap_or(u64::MAX) {
            // One that asks beforehand has not begun to send.
            if !headers.contains_key(EXPECT) {
                Box::pin(self.discard(body, Instant::now() + self.patience.body * PAUSES)).await;
            }
            return Err(too_large);
        }
        let mut first = Bytes::new();
        let mut all = Vec::new();
        // Since the first time that there was something to wait for.
        let mut last = None;
        loop {
            // Most bodies are there with the head: they need no timer.
            let frame = match body.frame().now_or_never() {
                Some(frame) => frame,
                None => {
                    let now = Instant::now();
                    let last = *last.get_or_insert_with(|| now + self.patience.body * PAUSES);
                    let limit = last.min(now + self.patience.body);
                    Box::pin(tokio::time::timeout_at(limit, body.frame())).await.map_err(|_| late_body())?
                }
            };
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| Refusal::Gone)?.into_data() else { continue };
            if first.len() + all.len() + data.len() > self.max_body {
                drop((first, all));
                let last = last.unwrap_or_else(|| Instant::now() + self.patience.body * PAUSES);
                Box::pin(self.discard(body, last)).await;
                return Err(too_large);
            }
            if first.is_empty() && all.is_empty() {
                first = data;
            } else {
                all.extend_from_slice(&std::mem::take(&mut first));
                all.extend_from_slice(&data);
            }
        }
        Ok(if all.is_empty() { first } else { Bytes::from(all) })
    }
}

/// Of a body that is too large, this many times the most that is taken is read and thrown away.
const DISCARDED: usize = 4;
/// Whoever pauses for so long is not sending any more, and waits for the answer.
const DISCARD_PAUSE: Duration = Duration::from_millis(500);

impl Endpoints {
    /// Reads on in a body that is refused, within bounds: a client that is still sending when the connection closes may never
    /// see why (RFC 9112, 9.6).
    async fn discard(&self, mut body: Incoming, last: Instant) {
        let mut left = self.max_body.saturating_mul(DISCARDED);
        loop {
            let limit = last.min(Instant::now() + DISCARD_PAUSE);
            let Ok(Some(Ok(frame))) = tokio::time::timeout_at(limit, body.frame()).await else { return };
            let read = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(read) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }
}

fn late_body() -> Refusal {
    Refusal::Message(StatusCode::REQUEST_TIMEOUT, RejectReason::Message, "The body did not arrive in time")
}

fn not_acceptable() -> Refusal {
    Refusal::Message(
        StatusCode::NOT_ACCEPTABLE,
        RejectReason::Header,
        "The Accept header takes neither application/json nor text/event-stream where it is needed",
    )
}

fn call_of(
    parts: &mut Parts,
    version: VersionHeader,
    route: &Arc<Route>,
    (caller, subject, body): (Arc<Caller>, Option<Arc<SubjectToken>>, Bytes),
) -> Result<Call, Refusal> {
    let accept = headers::accept(&parts.headers);
    if !accept.json && !accept.events {
        return Err(not_acceptable());
    }
    Ok(Call {
        route: Arc::clone(route),
        caller,
        subject,
        peer: None,
        session: headers::single(&parts.headers, &SESSION_ID)?.map(Cow::into_owned),
        version,
        last_event_id: headers::single(&parts.headers, &LAST_EVENT_ID)?.map(Cow::into_owned),
        accept,
        headers: headers::for_upstream(std::mem::take(&mut parts.headers)),
        body,
        placing: None,
    })
}

impl Endpoints {
    /// Puts a refused access on record: who, where and why; never what else they sent.
    fn audit(&self, (peer, caller): (IpAddr, Option<&Caller>), route: &str, refusal: &Refusal, reason: RejectReason) {
        if !is_of_access(reason) {
            return;
        }
        let kind = match refusal {
            Refusal::Rejected(rejection) => Some(&rejection.kind),
            _ => None,
        };
        let (task, tool) = kind.map(named_in).unwrap_or_default();
        let principal = caller.map(|caller| &*caller.principal);
        let (peer, task, reason) = (Some(peer), &*task, reason.as_str());
        self.gateway.refusals().note(&RefusedAccess { principal, peer, route, tool, task, reason });
    }
}

impl Refusal {
    fn counts_as(&self) -> (Outcome, Option<RejectReason>) {
        let rejected = |reason| (Outcome::Rejected, Some(reason));
        match self {
            Self::NoRoute | Self::Method(_) => rejected(RejectReason::Route),
            Self::Preflight(_) | Self::Document(_) => (Outcome::Ok, None),
            Self::Foreign(Foreign::Origin) => rejected(RejectReason::Origin),
            Self::Foreign(Foreign::Host) => rejected(RejectReason::Host),
            Self::Credentials(Refused::Missing | Refused::Invalid) => rejected(RejectReason::Credentials),
            Self::Credentials(Refused::Scopes) => rejected(RejectReason::Scopes),
            Self::Credentials(Refused::Unavailable) => (Outcome::Failed, None),
            Self::Message(_, reason, _) => rejected(*reason),
            Self::Gone => (Outcome::Dropped, None),
            // The one who passed it on asks elsewhere.
            Self::Misdirected => (Outcome::Failed, None),
            Self::Rejected(rejection) => match reject_reason(&rejection.kind) {
                Some(reason) => rejected(reason),
                None if rejection.is_upstreams_own() => (Outcome::Error, None),
                None => (Outcome::Failed, None),
            },
        }
    }

    fn into_response(self, resource: Option<&Resource>) -> Response<ResponseBody> {
        match self {
            Self::Preflight(asked) => {
                let mut response = empty(StatusCode::NO_CONTENT);
                cors::grant(&asked, response.headers_mut());
                response
            }
            Self::Document(page) => document(page),
            Self::NoRoute => text(StatusCode::NOT_FOUND, "There is no MCP endpoint at this path\n"),
            Self::Method(allowed) => {
                let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "This method is not served here\n");
                response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
                response
            }
            Self::Foreign(Foreign::Origin) => text(StatusCode::FORBIDDEN, "This Origin is not allowed\n"),
            Self::Foreign(Foreign::Host) => text(StatusCode::FORBIDDEN, "This Host is not served\n"),
            Self::Credentials(refused) => {
                credentials(refused, resource.and_then(|resource| resource.challenge(refused)))
            }
            Self::Message(status, _, message) => {
                let error = ErrorObject::new(code::INVALID_REQUEST, message);
                json(status, jsonrpc::error_response(None, &error))
            }
            Self::Gone => text(StatusCode::BAD_REQUEST, "The request broke off\n"),
            Self::Misdirected => empty(StatusCode::MISDIRECTED_REQUEST),
            Self::Rejected(rejection) if matches!(rejection.kind, Kind::Denied(_)) => {
                // What the client showed was for the server, and so is what the server says of it.
                let mut response = text(rejection.status(), "The server behind this does not take the credentials\n");
                if let Kind::Denied(denied) = rejection.kind {
                    for challenge in denied.challenges {
                        response.headers_mut().append(WWW_AUTHENTICATE, challenge);
                    }
                }
                response
            }
            Self::Rejected(rejection) => {
                if let Kind::Scopes(needed) = &rejection.kind {
                    let challenge = resource.map(|resource| resource.insufficient_scope(needed));
                    return credentials(Refused::Scopes, challenge);
                }
                let mut response = json(rejection.status(), rejection.to_message());
                if let Some(retry_after) = rejection.retry_after() {
                    let seconds = retry_after.as_secs_f64().ceil().max(1.0);
                    if let Ok(value) = HeaderValue::from_str(&format!("{seconds:.0}")) {
                        response.headers_mut().insert(RETRY_AFTER, value);
                    }
                }
                response
            }
        }
    }
}

/// A client comes again with what it has, after so many seconds.
const RETRY_CREDENTIALS: HeaderValue = HeaderValue::from_static("5");

/// The answer to credentials that are not good. Whatever is wrong with them, the same words.
fn credentials(refused: Refused, challenge: Option<HeaderValue>) -> Response<ResponseBody> {
    let mut response = match refused {
        Refused::Missing | Refused::Invalid => text(StatusCode::UNAUTHORIZED, "Credentials are missing or not valid\n"),
        Refused::Scopes => text(StatusCode::FORBIDDEN, "The credentials lack scopes that this needs\n"),
        Refused::Unavailable => {
            let mut response = text(
                StatusCode::SERVICE_UNAVAILABLE,
                "The credentials can't be checked at the moment. Try again later.\n",
            );
            response.headers_mut().insert(RETRY_AFTER, RETRY_CREDENTIALS);
            response
        }
    };
    if let Some(challenge) = challenge {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

fn document(page: Page) -> Response<ResponseBody> {
    let mut response = match page.document {
        Some(document) => json(page.status, document),
        None => empty(page.status),
    };
    response.headers_mut().extend(page.headers);
    response
}
