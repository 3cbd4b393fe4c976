//! One plain call of a legacy client on a modern upstream: a job that owns the exchange, so that a client which loses its
//! connection cancels nothing (2025-11-25 transports, "Sending Messages to the Server" 7).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::StatusCode;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::{self, Object};
use crate::mcp::level::Level;
use crate::mcp::method::Method;
use crate::tenant::Principal;
use crate::tenant::fair;
use crate::upstream::Error;

use crate::gateway::eras::Side;
use crate::gateway::exchange::{Dispatch, End as Ended, Exchange, Happening, Refresh};
use crate::gateway::forward::Registration;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::{CancelFlag, Session};

use super::outlet::Outlet;
use super::project::{self, Projection};
use super::replay::Replay;
use super::request::Sent;
use super::state::Input;
use super::talk::Talk;

/// The call.
pub(super) struct PlainCall {
    pub(super) outlet: Outlet,
    /// In whose name the upstream is called: the session's, or that of a client that can't be asked anything.
    pub(super) conversation: Arc<Session>,
    pub(super) principal: Arc<Principal>,
    pub(super) sent: Sent,
    pub(super) projection: Projection,
    pub(super) flag: Arc<CancelFlag>,
    pub(super) registration: Registration,
    pub(super) deadline: Instant,
    /// When a stream is begun to keep the client's connection warm.
    pub(super) begin_at: Instant,
    /// What the client says of questions.
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) talk: Talk,
    /// The last progress that was told.
    pub(super) progress: Option<f64>,
}

/// How a call came to its end.
pub(super) enum End {
    /// As the upstream says.
    Upstream(Ended),
    /// Nobody answered in time, or the gateway stops.
    Failed(Fault),
    /// Too many wait for the upstream.
    Full,
    /// Nobody wants an answer any more.
    Unwanted,
}

impl PlainCall {
    /// Runs the call to its end.
    pub(super) async fn run(mut self) {
        let (end, running) = self.conduct().await;
        let reason = match &end {
            End::Upstream(_) | End::Full => None,
            End::Failed(fault) => Some(fault.reason()),
            End::Unwanted => Some("the client cancelled"),
        };
        let Self { mut outlet, sent, mut projection, registration, mut talk, .. } = self;
        talk.over(&mut outlet, matches!(end, End::Upstream(_)));
        // First: whoever reads the answer must find the request gone.
        drop(registration);
        match end {
            End::Upstream(Ended::Refused { status, error }) if has_turned_legacy(&outlet, status, &error).await => {
                // The client begins anew, and is served as it is.
                outlet.gateway.end_session(&outlet.route, &outlet.session);
                outlet.answer(Err(Kind::NoSession));
            }
            End::Upstream(ended) => {
                if project::is_untyped(&ended) {
                    outlet.gateway.looked_legacy(&outlet.route);
                }
                if let Some(tool) = sent.tool.as_deref().filter(|_| &*sent.method == Method::ToolsCall.as_str()) {
                    projection.wraps = outlet.gateway.shape(&outlet.route, tool).await.wraps_output;
                }
                outlet.answer(projection.ended(&sent, ended));
            }
            End::Failed(fault) => outlet.answer(Err(fault.into())),
            End::Full => {
                let full = Kind::queue_full(&outlet.route);
                outlet.answer(Err(full));
            }
            End::Unwanted => outlet.close(),
        }
        // Last: whoever waits must not wait for an upstream that takes no messages.
        if let (Some(exchange), Some(reason)) = (running, reason) {
            exchange.cancel(reason).await;
        }
    }

    /// Sends the call and reads to its end, unless something else ends it first; gives the exchange, where one began.
    async fn conduct(&mut self) -> (End, Option<Exchange>) {
        let (gateway, flag) = (Arc::clone(&self.outlet.gateway), Arc::clone(&self.flag));
        let session_ended = self.outlet.session.ended.clone();
        let deadline = self.deadline;
        let mut running = None;
        let end = tokio::select! {
            end = self.attempt(&mut running) => end,
            () = cancelled(&flag) => End::Unwanted,
            () = session_ended.cancelled() => End::Unwanted,
            () = gateway.kill.cancelled() => End::Failed(Fault::Shutdown),
            () = tokio::time::sleep_until(deadline) => {
                End::Failed(Fault::Deadline { started: flag.is_dispatched() })
            }
        };
        (end, running)
    }

    async fn attempt(&mut self, running: &mut Option<Exchange>) -> End {
        let Ok(permit) = self.placed().await else { return End::Full };
        let places = Box::new((permit, self.outlet.route.metrics.upstream_in_flight()));
        let refresh = self.mirror_arguments().await;
        self.flag.dispatch();
        let exchange = running.insert(Exchange::new(self.dispatch(places, refresh)));
        self.read(exchange).await
    }

    /// Adds the headers that the called tool wants, which legacy clients never send.
    async fn mirror_arguments(&mut self) -> Option<Refresh> {
        if &*self.sent.method != Method::ToolsCall.as_str() {
            return None;
        }
        let Outlet { gateway, route, .. } = &self.outlet;
        gateway.mirror_arguments(route, &self.sent.params, &mut self.sent.headers).await
    }

    fn dispatch(&mut self, places: Box<dyn Send>, refresh: Option<Refresh>) -> Dispatch {
        let Outlet { gateway, route, session, .. } = &self.outlet;
        Dispatch {
            gateway: Arc::clone(gateway),
            route: Arc::clone(route),
            session: Arc::clone(&self.conversation),
            method: self.sent.method.clone(),
            params: std::mem::take(&mut self.sent.params),
            wants_progress: self.sent.token.is_some(),
            headers: std::mem::take(&mut self.sent.headers),
            log_level: session.bridge.level().map(|level| level.as_str().into()),
            id: None,
            refresh,
            places,
        }
    }

    /// Waits for a place at the upstream; a stream is begun meanwhile, if it takes long.
    async fn placed(&mut self) -> Result<fair::Permit, fair::QueueFull> {
        let route = Arc::clone(&self.outlet.route);
        let tenant = Arc::clone(&self.principal.tenant);
        let mut placed = std::pin::pin!(route.places.acquire(&tenant, fair::Kind::Plain));
        loop {
            tokio::select! {
                placed = &mut placed => return placed,
                () = tokio::time::sleep_until(self.begin_at), if self.outlet.is_open() => drop(self.outlet.stream()),
            }
        }
    }

    /// Reads what the upstream says, and what the client says of it.
    async fn read(&mut self, exchange: &mut Exchange) -> End {
        loop {
            let replay = self.outlet.replay.clone();
            tokio::select! {
                happening = next(replay.as_deref(), exchange) => match happening {
                    Happening::Notified { method, params } => self.notified(&method, params.as_deref()),
                    Happening::Asked { id, method, params } => {
                        self.talk.asked(&mut self.outlet, exchange, (id, &method, params.as_deref()));
                    }
                    Happening::Withdrawn(id) => self.talk.withdrawn(&mut self.outlet, &id),
                    Happening::Undeclared { .. } | Happening::Settled(_) | Happening::Moved(_) => {}
                    Happening::Ended(end) => return End::Upstream(end),
                },
                Some(input) = self.inputs.recv() => self.talk.take(&mut self.outlet, exchange, input),
                () = sleep_until(self.talk.due()) => {
                    self.talk.void(&mut self.outlet);
                    return End::Failed(Fault::InputTimeout);
                }
                () = tokio::time::sleep_until(self.begin_at), if self.outlet.is_open() => drop(self.outlet.stream()),
            }
        }
    }

    /// The upstream tells something.
    fn notified(&mut self, method: &str, params: Option<&str>) {
        let message = match method {
            "notifications/progress" => match self.progressed(params) {
                Some(params) => jsonrpc::notification(method, Some(&params)),
                None => return,
            },
            // 2026-07-28 logging: only for requests that say from which level on.
            "notifications/message" => {
                let wanted = self.outlet.session.bridge.level();
                let level = params.and_then(Level::of_message);
                if wanted.is_none_or(|wanted| level.is_some_and(|level| level < wanted)) {
                    return;
                }
                jsonrpc::notification(method, params)
            }
            _ => jsonrpc::notification(method, params),
        };
        self.outlet.tell(&message);
    }

    /// Progress under the client's own token. It rises over all rounds (2025-11-25 progress, "Progress Flow").
    fn progressed(&mut self, params: Option<&str>) -> Option<String> {
        let token = self.sent.token.as_deref()?;
        let mut params = Object::parse(params?).ok()?;
        let progress: f64 = serde_json::from_str(params.get("progress")?).ok()?;
        if self.progress.is_some_and(|last| progress <= last) {
            return None;
        }
        self.progress = Some(progress);
        Some(params.set("progressToken", token).to_json())
    }
}

/// What happens next, once the client has taken most of what happened before. Cancel-safe.
async fn next(replay: Option<&Replay>, exchange: &mut Exchange) -> Happening {
    if let Some(replay) = replay {
        replay.room().await;
    }
    exchange.next().await
}

/// Whether the server, which refused a call, has meanwhile become one of the legacy era.
async fn has_turned_legacy(outlet: &Outlet, status: StatusCode, error: &str) -> bool {
    let error = Error::Refused { status, error: error.into() };
    let key = outlet.route.key_of(&outlet.session);
    let side = outlet.gateway.modern_refused(&outlet.route, key.subject.as_ref(), &error).await;
    matches!(side, Some(Side::Legacy))
}

async fn cancelled(flag: &CancelFlag) {
    poll_fn(|cx| if flag.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
