//! Passing requests on to the replica that is to serve them: whole, signed, and once. The answer comes back as it arrives.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::header::{CONTENT_TYPE, HeaderValue};
use ::http::request::Parts;
use ::http::{Method, Request, Response, StatusCode, Uri};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::clock::Clock;
use crate::gateway::homes::{Asking, Elsewhere, Place};
use crate::gateway::rejection::{Fault, Kind, Rejection};
use crate::jsonrpc::{Id, Message};
use crate::mcp;
use crate::metrics::label::PassedOn;
use crate::seal::Sealer;
use crate::sse::{self, Framer};
use crate::upstream::Error;

use super::answer::ResponseBody;
use super::headers::{self, SESSION_ID};
use super::http::{Endpoints, Refusal};
use super::passage::{NO, PEER, Passage, SEAL, TAKEN, TO, digest, passed_on, strip_answer};
use super::seldom::Seldom;

/// How long connecting to another replica may take: they are near each other.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Idle connections are dropped before the other side does it.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// So often another replica is asked for one request: they may leave one after the other.
const MOST_TRIES: usize = 8;
/// When it is worth another try, after replicas that each meant another.
const RETRY: Duration = Duration::from_secs(1);

/// The way to other replicas.
#[derive(Clone)]
pub struct Passing {
    client: Client<HttpConnector, Full<Bytes>>,
    sealer: Arc<Sealer>,
    clock: Clock,
    told: Arc<Seldom>,
}

/// How it went.
enum Passed {
    /// It was answered.
    Answered(Response<ResponseBody>),
    /// Nothing was done with it.
    Undone,
    /// Who was asked says that it is another's to serve.
    Misdirected,
    /// It was sent, and its answer did not come.
    Lost,
}

impl Passed {
    const fn outcome(&self) -> PassedOn {
        match self {
            Self::Answered(_) => PassedOn::Answered,
            Self::Undone => PassedOn::Undone,
            Self::Misdirected => PassedOn::Misdirected,
            Self::Lost => PassedOn::Lost,
        }
    }
}

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passing")
    }
}

impl Passing {
    /// A way that signs with that sealer's key.
    #[must_use]
    pub fn new(sealer: Arc<Sealer>, clock: Clock) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_LIMIT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .build(connector);
        Self { client, sealer, clock, told: Arc::default() }
    }

    fn request(&self, to: &Elsewhere, parts: &Parts, body: &Bytes, peer: IpAddr) -> Option<Request<Full<Bytes>>> {
        let target = parts.uri.path_and_query()?;
        let mut headers = passed_on(&parts.headers);
        headers.insert(PEER, HeaderValue::from_str(&peer.to_string()).ok()?);
        headers.insert(TO, HeaderValue::from_str(to.holder.as_str()).ok()?);
        let passage = Passage {
            to: to.holder.as_str(),
            method: &parts.method,
            target: target.as_str(),
            at: self.clock.now().as_millis(),
            nonce: self.sealer.nonce(),
            body: digest(body),
        };
        let seal = passage.to_seal(&self.sealer.sign(&passage.to_signed(&headers)))?;
        headers.insert(SEAL, seal);
        let uri = Uri::builder().scheme("http").authority(to.address.to_string()).path_and_query(target.clone());
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = uri.build().ok()?;
        *request.headers_mut() = headers;
        Some(request)
    }

    async fn pass(&self, to: &Elsewhere, parts: &Parts, body: &Bytes, peer: IpAddr) -> Passed {
        let Some(request) = self.request(to, parts, body, peer) else { return Passed::Undone };
        let answer = tokio::select! {
            answer = self.client.request(request) => answer,
            // It may hang with its connections open.
            () = to.gone.cancelled() => return Passed::Lost,
        };
        let mut response = match answer {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                tracing::debug!(%error, to = %to.holder, "another replica can't be connected to");
                return Passed::Undone;
            }
            Err(error) => {
                tracing::warn!(%error, to = %to.holder, "another replica went away under a request");
                return Passed::Lost;
            }
        };
        let taken = response.headers().get(TAKEN);
        let (is_taken, is_another) = (taken.is_some(), taken == Some(&NO));
        match response.status() {
            // The process has begun anew: what it was before is found gone when its lease is over.
            StatusCode::MISDIRECTED_REQUEST if is_another => {
                tracing::debug!(to = %to.holder, "another replica has been started anew");
                return Passed::Undone;
            }
            StatusCode::MISDIRECTED_REQUEST if is_taken => return Passed::Misdirected,
            StatusCode::UNAUTHORIZED if !is_taken => {
                if self.told.is_due(self.clock.now()) {
                    tracing::error!(to = %to.holder, "another replica refuses this one: `secrets.key` or the clocks differ");
                }
                return Passed::Undone;
            }
            _ if !is_taken => {
                tracing::error!(to = %to.holder, "who answers at the address of another replica is none");
                return Passed::Lost;
            }
            _ => {}
        }
        strip_answer(response.headers_mut());
        let asked = (parts.method == Method::POST).then(|| asked(body)).flatten();
        // A client that reads asks again where an answer breaks off; an error would be one.
        let asked = asked.filter(|asked| !asked.only_reads).map(|asked| asked.id);
        let (parts, incoming) = response.into_parts();
        let is_events = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let gone = to.gone.clone();
        let passed = PassedBody {
            incoming: Some(incoming),
            gone: Box::pin(async move { gone.cancelled().await }),
            events: is_events.then(|| Events { framer: Framer::new(LONGEST), may_resume: false }),
            asked,
        };
        Passed::Answered(Response::from_parts(parts, ResponseBody::Passing(passed.boxed_unsync())))
    }
}

impl Endpoints {
    /// The answer of another process, where the request is another's to serve.
    ///
    /// # Errors
    /// [`Refusal::Misdirected`] for a request that was passed on already: none is twice.
    pub(super) async fn elsewhere(
        &self,
        parts: &Parts,
        asking: Asking<'_>,
        body: &Bytes,
        (is_passed, peer): (bool, IpAddr),
    ) -> Result<Option<Response<ResponseBody>>, Refusal> {
        let session = headers::single(&parts.headers, &SESSION_ID)?;
        let mut tried = Vec::new();
        let asking = Asking { session: session.as_deref(), tried: &[], ..asking };
        let answering = |kind: Kind| match asked(body) {
            Some(asked) => Refusal::from(kind.answering(&asked.id)),
            None => Refusal::from(Rejection::from(kind)),
        };
        let mut place = self.gateway.place(&asking).await.map_err(answering)?;
        if is_passed && matches!(place, Place::There(_)) {
            // Who passed it on may know more than is remembered here.
            place = self.gateway.place_anew(&asking).await.map_err(answering)?;
        }
        for _ in 0..MOST_TRIES {
            let (Place::There(to), Some(passing)) = (place, &self.passing) else { return Ok(None) };
            if is_passed {
                return Err(Refusal::Misdirected);
            }
            let passed = passing.pass(&to, parts, body, peer).await;
            self.metrics.passed_on(passed.outcome());
            tried.push(to.holder.clone());
            let asking = Asking { tried: &tried, ..asking };
            place = match passed {
                Passed::Answered(response) => return Ok(Some(response)),
                Passed::Undone => self.gateway.place_without(&asking, &to).await.map_err(answering)?,
                Passed::Misdirected => self.gateway.place_anew(&asking).await.map_err(answering)?,
                Passed::Lost if only_reads(&parts.method, body) => {
                    self.gateway.place_without(&asking, &to).await.map_err(answering)?
                }
                Passed::Lost => return Err(answering(Kind::Fault(Fault::OutcomeUnknown))),
            };
        }
        match place {
            Place::Here => Ok(None),
            Place::There(_) => Err(answering(Kind::Away(RETRY))),
        }
    }
}

/// Whether asking twice is as good as asking once: also for a stream of the session's own.
fn only_reads(method: &Method, body: &[u8]) -> bool {
    *method == Method::GET || (*method == Method::POST && asked(body).is_some_and(|asked| asked.only_reads))
}

/// A request in a body.
struct Asked {
    id: Id,
    /// It may be sent again.
    only_reads: bool,
}

fn asked(body: &[u8]) -> Option<Asked> {
    match Message::parse(body) {
        Ok(Message::Request { id, method, .. }) => {
            Some(Asked { id, only_reads: mcp::method::Method::parse(&method).only_reads() })
        }
        _ => None,
    }
}

/// Events that are longer are not looked at any more.
const LONGEST: usize = 1024 * 1024;

/// An answer on its way. When it breaks off, a stream that can't be taken up again ends with an error for its request;
/// anything else breaks off as well.
struct PassedBody {
    incoming: Option<Incoming>,
    gone: BoxFuture<'static, ()>,
    events: Option<Events>,
    /// The request that is answered.
    asked: Option<Id>,
}

struct Events {
    framer: Framer,
    /// Some event had an id: its client comes back with it.
    may_resume: bool,
}

impl Events {
    fn look(&mut self, chunk: &Bytes) {
        if self.may_resume {
            return;
        }
        self.framer.push(chunk.clone());
        loop {
            match self.framer.next_frame() {
                Ok(Some(frame)) => self.may_resume |= sse::Event::parse(&frame).id.is_some(),
                Ok(None) => return,
                Err(_) => self.may_resume = true,
            }
            if self.may_resume {
                return;
            }
        }
    }
}

impl PassedBody {
    fn broken(&mut self, why: Error) -> Option<Result<Frame<Bytes>, Error>> {
        self.incoming = None;
        let is_whole = self.events.as_ref().is_some_and(|events| !events.may_resume && events.framer.at_boundary());
        match self.asked.take().filter(|_| is_whole) {
            Some(id) => {
                let message = Kind::Fault(Fault::OutcomeUnknown).answering(&id).to_message();
                Some(Ok(Frame::data(sse::write_event(None, &message))))
            }
            None => Some(Err(why)),
        }
    }
}

impl HttpBody for PassedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(cx) else {
            ready!(this.gone.as_mut().poll(cx));
            return Poll::Ready(this.broken(Error::Lost("the lease of the replica is over".into())));
        };
        match frame {
            Some(Ok(frame)) => {
                if let (Some(events), Some(chunk)) = (&mut this.events, frame.data_ref()) {
                    events.look(chunk);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(this.broken(Error::Lost(error.into()))),
            None => {
                this.incoming = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.incoming.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
