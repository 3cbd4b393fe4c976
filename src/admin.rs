//! The address for operators: is it alive, is it ready, what does it count. Clients never reach it.
//!
//! `/livez` and `/readyz` are open, since orchestrators have no credentials; `/metrics` wants the token where one is
//! configured. On a loopback address only loopback names are taken as `Host`, so that a web page whose name is made to
//! point there reads nothing.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::{same_digest, sha256};
use crate::jobs::Jobs;
use crate::metrics::{self, Metrics};
use crate::oauth::secret::bearer_of;

/// As many connections are served at the same time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may take for its request line and headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection may last in all. Each serves one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait after the system could not accept: out of files, most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Where operators ask, and what they have to show.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address.
    pub address: SocketAddr,
    /// What `/metrics` wants to see. Required unless the address is loopback.
    pub token: Option<Token>,
}

impl Config {
    /// Whether the token that the address calls for is missing.
    #[must_use]
    pub fn lacks_token(&self) -> bool {
        self.token.is_none() && !self.address.ip().is_loopback()
    }
}

/// The operators' token, known by its digest alone.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// A token as it is sent.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(sha256(secret.as_bytes()))
    }

    fn is_shown(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        bearer_of(value.as_bytes()).is_some_and(|shown| same_digest(&self.0, &sha256(shown.as_bytes())))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What the answers say.
#[derive(Debug)]
pub struct AdminState {
    metrics: Arc<Metrics>,
    token: Option<Token>,
    stopping: AtomicBool,
    store_down: AtomicBool,
    key_differs: AtomicBool,
    refresh: Option<Refresh>,
    cut_off: Option<CutOff>,
}

/// Sets figures before they are shown.
struct Refresh(Box<dyn Fn(&Metrics) + Send + Sync>);

impl fmt::Debug for Refresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refresh")
    }
}

/// Names the routes that can serve nobody.
struct CutOff(Box<dyn Fn() -> Vec<Arc<str>> + Send + Sync>);

impl fmt::Debug for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutOff")
    }
}

impl AdminState {
    /// Ready from the start.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, token: Option<Token>) -> Self {
        Self {
            metrics,
            token,
            stopping: AtomicBool::new(false),
            store_down: AtomicBool::new(false),
            key_differs: AtomicBool::new(false),
            refresh: None,
            cut_off: None,
        }
    }

    /// The same, with figures that are looked up only when they are asked for.
    #[must_use]
    pub fn refreshed_by(self, refresh: impl Fn(&Metrics) + Send + Sync + 'static) -> Self {
        Self { refresh: Some(Refresh(Box::new(refresh))), ..self }
    }

    /// The same, and not ready while there are routes that can serve nobody. What gives their names must not block.
    #[must_use]
    pub fn cut_off_by(self, cut_off: impl Fn() -> Vec<Arc<str>> + Send + Sync + 'static) -> Self {
        Self { cut_off: Some(CutOff(Box::new(cut_off))), ..self }
    }

    /// From now on not ready, so that no new clients are sent here.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Tells whether the store can be used.
    pub fn set_store_available(&self, available: bool) {
        self.store_down.store(!available, Ordering::Relaxed);
    }

    /// Tells whether the other replicas have a key that is not known here.
    pub fn set_key_differs(&self, differs: bool) {
        self.key_differs.store(differs, Ordering::Relaxed);
    }

    /// Why no clients should be sent here, if so.
    fn not_ready(&self) -> Option<Cow<'static, str>> {
        if self.stopping.load(Ordering::Relaxed) {
            return Some("stopping\n".into());
        }
        if self.store_down.load(Ordering::Relaxed) {
            return Some("store unavailable\n".into());
        }
        if self.key_differs.load(Ordering::Relaxed) {
            return Some("secrets.key is not that of the other replicas\n".into());
        }
        let CutOff(cut_off) = self.cut_off.as_ref()?;
        let say = |route| format!("route {route}: its server speaks no protocol version that is spoken here\n");
        let lines: String = cut_off().into_iter().map(say).collect();
        (!lines.is_empty()).then(|| lines.into())
    }
}

/// Answers operators until jobs are told to stop, which is to come after clients have been drained: an orchestrator
/// keeps asking meanwhile.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, jobs: Jobs) {
    let loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let state = Arc::clone(&state);
                    jobs.spawn("admin connection", connection(stream, state, jobs.clone(), loopback, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin address could not accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = jobs.stopping().cancelled() => {}
    }
}

/// Serves one request. The limit on the whole covers peers that send slowly and peers that do not read.
async fn connection(stream: TcpStream, state: Arc<AdminState>, jobs: Jobs, loopback: bool, slot: OwnedSemaphorePermit) {
    let service = service_fn(|request| {
        let response = answer(&request, &state, &jobs, loopback);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(16 * 1024)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(ANSWER_WITHIN, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin connection ended early"),
        Err(_) => tracing::debug!("an admin connection took too long"),
    }
    drop(slot);
}

fn answer<B>(request: &Request<B>, state: &AdminState, jobs: &Jobs, loopback: bool) -> Response<Full<Bytes>> {
    if loopback && !names_loopback(request) {
        return plain(StatusCode::FORBIDDEN, "not a name of this host\n");
    }
    let path = request.uri().path();
    if !matches!(path, "/livez" | "/readyz" | "/metrics") {
        return plain(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/livez" => plain(StatusCode::OK, "alive\n"),
        "/readyz" => match state.not_ready() {
            None => plain(StatusCode::OK, "ready\n"),
            Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why.into_owned()),
        },
        _ => exposition(request.headers(), state, jobs),
    }
}

fn exposition(headers: &HeaderMap, state: &AdminState, jobs: &Jobs) -> Response<Full<Bytes>> {
    if state.token.as_ref().is_some_and(|token| !token.is_shown(headers)) {
        let mut response = plain(StatusCode::UNAUTHORIZED, "the admin token is needed\n");
        let challenge = HeaderValue::from_static(r#"Bearer realm="taskgate admin""#);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        return response;
    }
    state.metrics.set_jobs(jobs.running());
    if let Some(Refresh(refresh)) = &state.refresh {
        refresh(&state.metrics);
    }
    let mut response = plain(StatusCode::OK, state.metrics.encode());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the request was sent to a loopback name. Without a `Host` (HTTP/1.0) no browser sent it.
fn names_loopback<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => true,
        (Some(host), None) => host.to_str().is_ok_and(is_loopback_name),
        (Some(_), Some(_)) => false,
    }
}

fn is_loopback_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
