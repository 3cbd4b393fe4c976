//! Opening a session: the handshake as the gateway itself, in a job that no client's going away breaks off.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use futures_util::FutureExt;
use futures_util::future::Shared;
use http::{HeaderMap, StatusCode};
use tokio::sync::Semaphore;

use crate::gateway::handshake::Offer;
use crate::gateway::rejection::{Fault, Kind, QUOTA_RETRY};
use crate::gateway::session::{NoRoom, Room, Terms};
use crate::gateway::{Gateway, Route};
use crate::jsonrpc;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;
use crate::upstream::{Denied, Error};

use super::{Key, Lease, Pooled};

/// A handshake that several may wait for.
pub(super) type Opening = Shared<Pin<Box<dyn Future<Output = Result<Arc<Pooled>, Failure>> + Send>>>;

/// Why there is no session: told to everybody who waited for it.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Fault(Fault),
    /// As many sessions as may be are in use.
    Full(usize),
    /// The upstream turned out to have no sessions.
    OtherEra,
    /// The upstream refused the handshake.
    Refused(StatusCode, Arc<str>),
    /// It did not take what the client itself showed it.
    Denied(Box<Denied>),
}

impl From<Failure> for Kind {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fault(fault) => fault.into(),
            Failure::OtherEra => Self::OtherEra,
            Failure::Denied(denied) => Self::Denied(denied),
            Failure::Full(max) => {
                let limit = u64::try_from(max).unwrap_or(u64::MAX);
                Self::Quota { reason: "sessions", limit, retry_after: QUOTA_RETRY }
            }
            Failure::Refused(status, error) => {
                // It says something of the gateway's own hop, which is not the client's business.
                tracing::warn!(%status, %error, "the upstream refused to open a session");
                Fault::UpstreamProtocol.into()
            }
        }
    }
}

impl From<Kind> for Failure {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Fault(fault) => Self::Fault(fault),
            Kind::OtherEra => Self::OtherEra,
            Kind::Denied(denied) => Self::Denied(denied),
            Kind::Upstream { status, error } => Self::Refused(status, error.into()),
            other => {
                tracing::warn!(error = ?other, "a session can't be opened");
                Self::Fault(Fault::UpstreamProtocol)
            }
        }
    }
}

/// A session that is open already.
pub(super) fn opened(pooled: Arc<Pooled>) -> Opening {
    let opened: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(std::future::ready(Ok(pooled)));
    let opened = opened.shared();
    // So that a glance at it shows the session.
    drop(opened.clone().now_or_never());
    opened
}

impl Gateway {
    /// Opens a session for one who waits for it alone.
    pub(super) async fn open_one(
        self: &Arc<Self>,
        route: &Arc<Route>,
        key: &Key,
        headers: &HeaderMap,
    ) -> Result<Arc<Pooled>, Kind> {
        Ok(self.start_opening(route, key, headers).await?)
    }

    /// The session that the calls of a key share; opened once, however many ask for it.
    pub(super) async fn lease_shared(
        self: &Arc<Self>,
        route: &Arc<Route>,
        key: &Key,
        headers: &HeaderMap,
        alone: bool,
    ) -> Result<Lease, Kind> {
        // One that is found to be gone is opened anew; a second one that is gone at once would be so for ever.
        for _ in 0..2 {
            let (number, opening) = self.pool.shared(key, || self.start_opening(route, key, headers));
            match opening.await {
                Ok(pooled) if !self.is_gone(&pooled) => {
                    let turn = if alone { Some(pooled.take_turn().await?) } else { None };
                    if !self.is_gone(&pooled) {
                        return Ok(Lease::shared(self, pooled, turn));
                    }
                    self.pool.forget(key, number);
                }
                Ok(_) => self.pool.forget(key, number),
                Err(failure) => {
                    self.pool.forget(key, number);
                    return Err(failure.into());
                }
            }
        }
        Err(Fault::UpstreamUnreachable.into())
    }

    fn start_opening(self: &Arc<Self>, route: &Arc<Route>, key: &Key, headers: &HeaderMap) -> Opening {
        let (gateway, route, key, headers) = (Arc::clone(self), Arc::clone(route), key.clone(), headers.clone());
        let opening = self.jobs.spawn("open session", async move { gateway.open_session(&route, &key, headers).await });
        let opened: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(opening.map(|opened| opened.unwrap_or(Err(Failure::Fault(Fault::Shutdown)))));
        opened.shared()
    }

    /// `initialize` as the gateway with exactly the key's profile, then `notifications/initialized`; and a standalone
    /// stream where the upstream may ask, since some servers ask nowhere else.
    async fn open_session(
        self: &Arc<Self>,
        route: &Arc<Route>,
        key: &Key,
        headers: HeaderMap,
    ) -> Result<Arc<Pooled>, Failure> {
        if self.is_draining() {
            return Err(Failure::Fault(Fault::Shutdown));
        }
        let room = self.room()?;
        let opened = self.open_for_stateless(route, &key.principal, &Offer::of_gateway(key.profile), headers).await?;
        let terms = Terms {
            route: Arc::clone(&route.name),
            principal: key.principal,
            version: ProtocolVersion::LATEST_MODERN,
            upstream: opened.session,
            client: key.profile,
        };
        let now = self.clock.now();
        let pooled = Arc::new(Pooled {
            session: self.sessions.unlisted(terms, Some(route.metrics.session())),
            welcome: opened.result,
            route: Arc::clone(route),
            jobs: self.jobs.clone(),
            opened_at: now,
            last_used: AtomicU64::new(now.as_millis()),
            uses: AtomicUsize::new(0),
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            level: Arc::default(),
            is_closed: AtomicBool::new(false),
            _room: room,
        });
        let initialized = jsonrpc::notification("notifications/initialized", None);
        self.post_upstream(route, &pooled.session, initialized).await.map_err(|error| of_opening(&error))?;
        if key.profile != ClientCapabilities::default() && !pooled.is_stateless() {
            self.listen(route, &pooled.session, None);
        }
        Ok(pooled)
    }

    /// Room for one more session, made by ending one that nobody uses where that is needed.
    fn room(&self) -> Result<Room, Failure> {
        loop {
            match self.sessions.reserve(None) {
                Ok(room) => return Ok(room),
                Err(_) if self.pool.evict() => {}
                Err(NoRoom::Full(max) | NoRoom::Share(max)) => return Err(Failure::Full(max)),
                Err(NoRoom::TooLong) => return Err(Failure::Fault(Fault::UpstreamProtocol)),
            }
        }
    }
}

/// No tool could have run yet.
fn of_opening(error: &Error) -> Failure {
    Failure::Fault(match error {
        Error::Connect(_) | Error::Lost(_) => Fault::UpstreamUnreachable,
        Error::Credentials(_) => Fault::Credentials,
        Error::Status(status) if status.is_server_error() => Fault::UpstreamUnreachable,
        Error::SessionGone
        | Error::Protocol(_)
        | Error::TooLarge(_)
        | Error::Status(_)
        | Error::Denied(_)
        | Error::Refused { .. } => Fault::UpstreamProtocol,
    })
}
