//! Streamable HTTP towards a server: the client's half of the transport (2025-11-25 and older).
//!
//! One request is one POST, and what comes back is one message or a stream of them; what they say is nothing to it. A request
//! that was sent is sent again in one case alone: the server refused the credentials, and there are others.

mod pool;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    WWW_AUTHENTICATE,
};
use http::uri::Scheme;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as Failure};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::jobs::Jobs;
use crate::jsonrpc::{self, Id, Message, Outcome};
use crate::mcp::version::ProtocolVersion;
use crate::oauth::secret::SubjectToken;
use crate::threads;
use crate::tls;

use super::credentials::{Credentials, Refused};
use super::messages::{Messages, collect};
use super::{Body, Denied, Error, Kind, Listening, Opened, Outgoing, Reply, SessionKey, Upstream};

use pool::{Arriving, Pool, Sent};

/// How long a handshake, or a refusal's body, may take. Tool work is not bounded by any timer of the transport.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// How long ending a session may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Idle connections are dropped before the servers most in use do it (Node: 5 s), so that no request meets a dead one.
const IDLE_LIMIT: Duration = Duration::from_secs(4);
/// No thread keeps more idle connections to one server.
const MOST_IDLE: usize = 512;
/// How often a request is sent that is refused for its credentials: two logins that each ask for more are the most.
const MOST_ATTEMPTS: u32 = 6;
/// The longest body of a refusal that is read.
const REFUSAL_LIMIT: usize = 64 * 1024;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Where the server is and how it is reached.
#[derive(Debug, Clone)]
pub struct Config {
    /// The MCP endpoint, `http` or `https`.
    pub url: Uri,
    /// The gateway's own headers for it, credentials among them; they replace a client's of the same name.
    pub headers: HeaderMap,
    /// Where credentials come from that the headers don't have.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// Certificates of connections to it, where not everything is usual.
    pub tls: Option<tls::Client>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The longest message that is read whole, in bytes.
    pub max_message: usize,
    /// Where the jobs start that it needs.
    pub jobs: Jobs,
}

/// How a server is reached.
#[derive(Debug, Clone)]
enum Connections {
    /// Without TLS, and so in HTTP/1.1.
    Plain(Arc<Pool>),
    /// With TLS, in HTTP/1.1 or HTTP/2.
    Secure(Box<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>),
}

/// A server behind streamable HTTP.
#[derive(Debug)]
pub struct Http {
    /// One with connections of its own for each thread that serves: whoever is answered would otherwise be woken by
    /// another thread.
    of_threads: Vec<Connections>,
    /// For all other threads.
    shared: Connections,
    /// What every request's `Host` is, where none can be of HTTP/2, which has no such field.
    host: Option<HeaderValue>,
    /// What is asked for: a path, and for the pools of HTTP/2 the server's address.
    target: Uri,
    config: Config,
}

impl Http {
    /// A client of that server; nothing is sent yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(config.connect_timeout));
        connector.set_keepalive(Some(Duration::from_secs(60)));
        let host = host_of(&config.url);
        let connections = || match &host {
            Some(_) => Connections::Plain(Pool::new(connector.clone(), config.url.clone(), config.jobs.clone())),
            None => Connections::Secure(Box::new(secure(connector.clone(), config.tls.as_ref()))),
        };
        let target = target_of(&config.url, host.is_some());
        let of_threads = (0..threads::count()).map(|_| connections()).collect();
        Self { of_threads, shared: connections(), host, target, config }
    }

    fn connections(&self) -> &Connections {
        threads::number().and_then(|number| self.of_threads.get(number)).unwrap_or(&self.shared)
    }

    /// A request with what this hop decides beside the client's headers.
    fn request(
        &self,
        method: Method,
        mut headers: HeaderMap,
        session: Option<&SessionKey>,
        body: Bytes,
    ) -> Result<Box<Sent>, Error> {
        // Once, for all fields of this hop, and for no more: a larger table costs a larger allocation.
        headers.reserve(4 + self.config.headers.len());
        headers.insert(ACCEPT_ENCODING, IDENTITY);
        // The client would write it anew for each.
        if let Some(host) = &self.host {
            headers.insert(HOST, host.clone());
        }
        if let Some(session) = session {
            if let Some(id) = &session.id {
                let id = HeaderValue::from_str(id).map_err(|_| Error::Protocol("unusable session id".into()))?;
                headers.insert(SESSION_ID, id);
            }
            if session.version.has_version_header() {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(session.version.as_str()));
            }
        }
        for (name, value) in &self.config.headers {
            headers.insert(name.clone(), value.clone());
        }
        // Boxed, since it goes through many hands, each of which would have room for it.
        let mut request = Box::new(Request::new(Full::new(body)));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends a request and waits for the head of its answer.
    async fn exchange(&self, request: Box<Sent>) -> Result<Response<Arriving>, Error> {
        match self.connections() {
            Connections::Plain(pool) => pool.request(request).await,
            Connections::Secure(client) => {
                let failed = |error: Failure| {
                    if error.is_connect() { Error::Connect(error.into()) } else { Error::Lost(error.into()) }
                };
                Ok(client.request(*request).await.map_err(failed)?.map(Arriving::from))
            }
        }
    }

    /// Posts a message and waits for the head of its answer; answers with an error status become errors.
    async fn post(&self, asked: Asked<'_>, message: Outgoing) -> Result<Response<Arriving>, Error> {
        let Outgoing { mut headers, body, .. } = message;
        headers.insert(ACCEPT, BOTH);
        headers.insert(CONTENT_TYPE, JSON);
        let response = match (&self.config.credentials, asked.late) {
            (None, None) => self.exchange(self.request(Method::POST, headers, asked.session, body)?).await?,
            // Boxed, as what follows: every call would have room for it.
            (None, Some(_)) => {
                let request = self.request(Method::POST, headers, asked.session, body)?;
                Box::pin(asked.in_time(self.exchange(request))).await?
            }
            (Some(credentials), _) => Box::pin(self.shown(credentials, Method::POST, headers, &asked, body)).await?,
        };
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(Box::pin(self.refusal(asked.session, response)).await) }
    }

    /// What an error status means (2025-11-25 transports, "Session Management" 3 for 404).
    async fn refusal(&self, session: Option<&SessionKey>, response: Response<Arriving>) -> Error {
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session.is_some_and(|session| session.id.is_some()) {
            return Error::SessionGone;
        }
        // It is about the credentials of this hop, and so is whatever its body says.
        if is_about_credentials(status) {
            let is_for_client = self.config.credentials.as_ref().is_some_and(|credentials| credentials.are_of_client());
            return Error::Denied(Box::new(denied(&response, is_for_client)));
        }
        if is_type(response.headers(), "application/json") {
            let mut body = body_of(response);
            if let Ok(Ok(text)) = tokio::time::timeout(HANDSHAKE_LIMIT, collect(&mut body, REFUSAL_LIMIT)).await
                && let Ok(Message::Response { outcome: Outcome::Error(error), .. }) = Message::parse(&text)
            {
                return Error::Refused { status, error: error.get().into() };
            }
        }
        // A proxy in between may say so after the server has begun.
        if status.is_server_error() {
            return Error::Lost(format!("it answered with HTTP status {}", status.as_u16()).into());
        }
        Error::Status(status)
    }

    /// Sends a request without a message.
    async fn ask(&self, method: Method, headers: HeaderMap, session: &SessionKey) -> Result<Response<Arriving>, Error> {
        let asked = Asked { session: Some(session), subject: session.subject.as_ref(), late: None };
        match &self.config.credentials {
            None => self.exchange(self.request(method, headers, Some(session), Bytes::new())?).await,
            Some(credentials) => self.shown(credentials, method, headers, &asked, Bytes::new()).await,
        }
    }

    /// Sends a request with credentials, and once more with others when it was refused for them: a server that refuses has
    /// not acted. How long it takes to come by them is their own business.
    async fn shown(
        &self,
        credentials: &Arc<dyn Credentials>,
        method: Method,
        headers: HeaderMap,
        asked: &Asked<'_>,
        body: Bytes,
    ) -> Result<Response<Arriving>, Error> {
        let mut attempt = 1;
        loop {
            let authorization = credentials.authorization(asked.subject).await?;
            let mut headers = headers.clone();
            if let Some(authorization) = &authorization {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let sending = self.exchange(self.request(method.clone(), headers, asked.session, body.clone())?);
            let response = asked.in_time(sending).await?;
            if !is_about_credentials(response.status()) {
                return Ok(response);
            }
            let denied = denied(&response, credentials.are_of_client());
            let refused = Refused { denied: &denied, shown: authorization.as_ref(), subject: asked.subject, attempt };
            if attempt == MOST_ATTEMPTS || !credentials.refused(&refused).await? {
                return Ok(response);
            }
            attempt += 1;
        }
    }
}

/// On whose behalf a request is, on which session, and what it means if its answer does not begin in time.
struct Asked<'a> {
    session: Option<&'a SessionKey>,
    subject: Option<&'a Arc<SubjectToken>>,
    late: Option<fn() -> Error>,
}

impl Asked<'_> {
    async fn in_time(
        &self,
        answer: impl Future<Output = Result<Response<Arriving>, Error>>,
    ) -> Result<Response<Arriving>, Error> {
        match self.late {
            None => answer.await,
            Some(late) => tokio::time::timeout(HANDSHAKE_LIMIT, answer).await.map_err(|_| late())?,
        }
    }
}

/// The `Host` of requests to a server without TLS, which is never spoken to in HTTP/2 here.
fn host_of(url: &Uri) -> Option<HeaderValue> {
    let plain = url.authority().filter(|_| url.scheme() == Some(&Scheme::HTTP))?;
    let host = match plain.port_u16() {
        Some(port) if port != 80 => Cow::Owned(format!("{}:{port}", plain.host())),
        _ => Cow::Borrowed(plain.host()),
    };
    HeaderValue::from_str(&host).ok()
}

/// What requests ask the server for: with TLS the whole address, which HTTP/2 has in every request.
fn target_of(url: &Uri, is_plain: bool) -> Uri {
    let path = url.path_and_query().filter(|_| is_plain);
    path.map_or_else(|| url.clone(), |path| Uri::from(path.clone()))
}

/// A client for servers with TLS.
fn secure(connector: HttpConnector, tls: Option<&tls::Client>) -> Client<HttpsConnector<HttpConnector>, Full<Bytes>> {
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = match tls {
        Some(tls) => builder.with_tls_config(tls.config()),
        None => builder.with_webpki_roots(),
    };
    let connector = builder.https_or_http().enable_http1().enable_http2().wrap_connector(connector);
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_LIMIT)
        .pool_max_idle_per_host(MOST_IDLE)
        .build(connector)
}

fn is_about_credentials(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

fn denied(response: &Response<Arriving>, is_for_client: bool) -> Denied {
    let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter().cloned().collect();
    Denied { status: response.status(), challenges, is_for_client }
}

fn body_of(response: Response<Arriving>) -> Body {
    response.into_body().boxed_unsync()
}

/// Whether the body is of a media type, whatever its parameters.
fn is_type(headers: &HeaderMap, wanted: &str) -> bool {
    let is_wanted = |value: &HeaderValue| {
        let essence = || value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        value == wanted || essence().eq_ignore_ascii_case(wanted)
    };
    headers.get(CONTENT_TYPE).is_some_and(is_wanted)
}

/// Tells the two kinds of answer apart. Bytes that were compressed unasked can't be passed on as what they claim to be.
fn reply_of(response: Response<Arriving>) -> Result<Reply, Error> {
    let headers = response.headers();
    if headers.get_all(CONTENT_ENCODING).iter().any(|encoding| encoding != IDENTITY) {
        return Err(Error::Protocol("it compressed an answer that was asked for uncompressed".into()));
    }
    if is_type(headers, "application/json") {
        Ok(Reply::Json(body_of(response)))
    } else if is_type(headers, "text/event-stream") {
        Ok(Reply::Events(body_of(response)))
    } else {
        Err(Error::Protocol("its answer is neither JSON nor an event stream".into()))
    }
}

/// Reads the answer to `initialize`, or to `server/discover`, out of a reply.
async fn handshake(reply: Reply, id: &Id, limit: usize) -> Result<Box<str>, Error> {
    let mut messages = Messages::of_reply(reply, limit);
    while let Some(message) = messages.next().await? {
        match Message::parse(&message) {
            Ok(Message::Response { id: Some(answered), outcome }) if answered == *id => {
                return match outcome {
                    Outcome::Result(result) => Ok(result.get().into()),
                    Outcome::Error(error) => Err(Error::Refused { status: StatusCode::OK, error: error.get().into() }),
                };
            }
            Ok(_) => {}
            Err(defect) => return Err(Error::Protocol(defect.to_string())),
        }
    }
    Err(Error::Protocol("it did not answer the first request".into()))
}

impl Http {
    /// Reads the answer to `initialize`; a session that the server has begun by then is not left behind.
    async fn finish_opening(
        &self,
        response: Response<Arriving>,
        id: &Id,
        session: Option<Arc<str>>,
        subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Opened, Error> {
        let subject = subject.cloned();
        let read = async {
            let result = handshake(reply_of(response)?, id, self.config.max_message).await?;
            let version = ProtocolVersion::of_initialize_result(&result)
                .ok_or_else(|| Error::Protocol("it chose a protocol version that is not spoken here".into()))?;
            Ok((result, version))
        };
        match read.await {
            Ok((result, version)) => Ok(Opened { session: SessionKey { id: session, version, subject }, result }),
            Err(error) => {
                self.close(&SessionKey { id: session, version: ProtocolVersion::LATEST_LEGACY, subject }).await;
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Upstream for Http {
    async fn open(
        &self,
        params: &str,
        headers: HeaderMap,
        subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Opened, Error> {
        let id = Id::number(0);
        let body = jsonrpc::request(&id, "initialize", Some(params));
        let kind = Kind::Request { id: id.clone(), progress_token: None };
        let late = || Error::Protocol("it did not answer `initialize` in time".into());
        let asked = Asked { session: None, subject, late: Some(late) };
        let response = self.post(asked, Outgoing { kind, body, headers }).await?;
        let session = response.headers().get(&SESSION_ID).map(session_id).transpose()?;
        let finishing = self.finish_opening(response, &id, session, subject);
        tokio::time::timeout(HANDSHAKE_LIMIT, finishing).await.map_err(|_| late())?
    }

    async fn discover(&self, params: &str, subject: Option<&Arc<SubjectToken>>) -> Result<Opened, Error> {
        let id = Id::number(0);
        let body = jsonrpc::request(&id, "server/discover", Some(params));
        let kind = Kind::Request { id: id.clone(), progress_token: None };
        let headers = HeaderMap::from_iter([(METHOD, HeaderValue::from_static("server/discover"))]);
        let session = self.stateless().on_behalf_of(subject);
        let late = || Error::Lost("it did not answer `server/discover` in time".into());
        let asked = Asked { session: Some(&session), subject, late: Some(late) };
        let response = self.post(asked, Outgoing { kind, body, headers }).await?;
        let reading = async {
            // A server of the other era that takes anything for the beginning of a session.
            let begun = response.headers().get(&SESSION_ID).map(session_id).transpose()?;
            let result = async { handshake(reply_of(response)?, &id, self.config.max_message).await }.await;
            if begun.is_some() {
                let subject = subject.cloned();
                self.close(&SessionKey { id: begun, version: ProtocolVersion::LATEST_LEGACY, subject }).await;
            }
            result
        };
        let result = tokio::time::timeout(HANDSHAKE_LIMIT, reading).await.map_err(|_| late())??;
        Ok(Opened { session, result })
    }

    fn stateless(&self) -> SessionKey {
        SessionKey { id: None, version: ProtocolVersion::LATEST_MODERN, subject: None }
    }

    async fn send(&self, session: &SessionKey, message: Outgoing) -> Result<Reply, Error> {
        let one_way = message.kind == Kind::OneWay;
        let asked = Asked { session: Some(session), subject: session.subject.as_ref(), late: None };
        let response = self.post(asked, message).await?;
        if one_way {
            return Ok(Reply::Accepted);
        }
        if response.status() == StatusCode::ACCEPTED {
            return Err(Error::Protocol("it accepted a request without an answer".into()));
        }
        reply_of(response)
    }

    async fn listen(&self, session: &SessionKey, last_event_id: Option<&str>) -> Result<Listening, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, EVENTS);
        if let Some(id) = last_event_id {
            let id = HeaderValue::from_str(id).map_err(|_| Error::Protocol("unusable event id".into()))?;
            headers.insert(LAST_EVENT_ID, id);
        }
        let response = self.ask(Method::GET, headers, session).await?;
        match response.status() {
            StatusCode::OK => match reply_of(response)? {
                Reply::Events(body) => Ok(Listening::Events(body)),
                _ => Ok(Listening::NotOffered),
            },
            // 2025-11-25 transports, "Listening for Messages from the Server" 2.
            StatusCode::METHOD_NOT_ALLOWED => Ok(Listening::NotOffered),
            _ => match self.refusal(Some(session), response).await {
                // Servers without streams answer with many a status; with an event id the client must hear of it.
                Error::Refused { .. } if last_event_id.is_none() => Ok(Listening::NotOffered),
                error => Err(error),
            },
        }
    }

    fn needs_joining(&self) -> bool {
        matches!(self.shared, Connections::Secure(_))
    }

    async fn close(&self, session: &SessionKey) {
        if session.id.is_none() {
            return;
        }
        let exchange = self.ask(Method::DELETE, HeaderMap::new(), session);
        match tokio::time::timeout(CLOSE_LIMIT, exchange).await {
            Ok(Ok(response)) => tracing::debug!(status = response.status().as_u16(), "upstream session closed"),
            Ok(Err(error)) => tracing::debug!(%error, "upstream session not closed"),
            Err(_) => tracing::debug!("closing the upstream session took too long"),
        }
    }
}

/// 2025-11-25 transports, "Session Management" 1: visible ASCII only.
fn session_id(value: &HeaderValue) -> Result<Arc<str>, Error> {
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.map(Arc::from).ok_or_else(|| Error::Protocol("its session id is not visible ASCII".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_tls_is_named_once() {
        for (url, host, target) in [
            ("http://localhost/mcp", Some("localhost"), "/mcp"),
            ("http://localhost:80/mcp?a=b", Some("localhost"), "/mcp?a=b"),
            ("http://mcp.example.com:8080/", Some("mcp.example.com:8080"), "/"),
            ("http://user:secret@[::1]:9000/mcp", Some("[::1]:9000"), "/mcp"),
            ("https://mcp.example.com:8443/mcp", None, "https://mcp.example.com:8443/mcp"),
        ] {
            let url: Uri = url.parse().unwrap();
            let named = host_of(&url);
            assert_eq!(named.as_ref().map(|host| host.to_str().unwrap()), host, "{url}");
            assert_eq!(target_of(&url, named.is_some()).to_string(), target);
        }
    }
}
