//! What a call needs before it is sent: a conversation with the upstream, and its places.

use std::sync::Arc;

use http::HeaderMap;

use crate::gateway::bridge::{Declared, Offer};
use crate::gateway::eras::Side;
use crate::gateway::exchange::{Dispatch, End, Exchange, Happening};
use crate::gateway::pool::{Lease, SessionPolicy};
use crate::gateway::rejection::Kind;
use crate::gateway::session::{Session, Terms};
use crate::gateway::{Gateway, Route};
use crate::jsonrpc::{Message, Object, Outcome};
use crate::mcp::level::Level;
use crate::mcp::version::ProtocolVersion;
use crate::tenant::fair::{self, Permit};

use super::client::Client;
use super::job::Job;

/// What a call needs.
pub(super) struct Ready {
    pub(super) session: Arc<Session>,
    /// The right to be on the session, where it is a server's with sessions.
    pub(super) lease: Option<Lease>,
    pub(super) places: Box<dyn Send>,
}

impl Job {
    /// Gets what the call needs. Where calls wait for each other's turn on a conversation, that comes before the place: whoever
    /// waits for the former keeps nobody else from the latter. Else the place comes first, so that a burst of calls opens hardly
    /// more sessions, or children, than there are places.
    pub(super) fn get_ready(&self, client: &Client) -> impl Future<Output = Result<Ready, Kind>> + use<'_> {
        let level = client.level();
        async move {
            let takes_turns = self.route.sessions == SessionPolicy::Pinned || self.route.tools.has_exclusive();
            let early = if takes_turns { None } else { Some(self.place().await?) };
            let (session, lease) = self.conversation(level).await?;
            let places = self.places(&session, early).await?;
            Ok(Ready { session, lease, places })
        }
    }

    async fn place(&self) -> Result<Permit, Kind> {
        let permit = self.route.places.acquire(&self.caller.principal.tenant, fair::Kind::Plain).await;
        permit.map_err(|_| Kind::queue_full(&self.route))
    }

    /// The gate of its session, and its place, if it has none yet.
    pub(super) async fn places(&self, session: &Session, early: Option<Permit>) -> Result<Box<dyn Send>, Kind> {
        let is_call = self.tool.is_some();
        let gate = if is_call { self.route.gate(session, self.policy.exclusive).await } else { (None, None) };
        let permit = match early {
            Some(permit) => permit,
            None => self.place().await?,
        };
        Ok(Box::new((permit, gate, self.route.metrics.upstream_in_flight())))
    }

    /// A conversation with the upstream, that a task may go on with.
    pub(super) async fn conversation(&self, level: Option<Level>) -> Result<(Arc<Session>, Option<Lease>), Kind> {
        let Self { gateway, route, caller, .. } = self;
        let principal = &caller.principal;
        match &self.side {
            Side::Legacy => {
                let lease = gateway.lease(route, principal, self.profile, self.may_ask, &self.headers).await?;
                if let Some(level) = level {
                    self.set_level(&lease, level).await;
                }
                Ok((Arc::clone(&lease), Some(lease)))
            }
            Side::Modern(upstream) => {
                let terms = Terms {
                    route: Arc::clone(&route.name),
                    principal: principal.digest(),
                    version: ProtocolVersion::LATEST_MODERN,
                    upstream: upstream.clone(),
                    client: self.profile,
                };
                let session = gateway.sessions.unlisted(terms, None);
                let (capabilities, info) = self.claims.clone();
                session.bridge.begin(Declared { capabilities, info, tells_of_roots: false }, Offer::default());
                Ok((session, None))
            }
        }
    }

    /// Has the server send log messages from that level on, unless it does already. What a request does not want of them it
    /// is not told.
    async fn set_level(&self, lease: &Lease, level: Level) {
        let welcome = Object::parse(lease.welcome()).unwrap_or_default();
        let capabilities = Object::parse(welcome.get("capabilities").unwrap_or("{}")).unwrap_or_default();
        if capabilities.get("logging").is_none() {
            return;
        }
        let mut current = lease.log_level().await;
        if current.is_some_and(|current| current <= level) {
            return;
        }
        let params = format!("{{\"level\":\"{}\"}}", level.as_str());
        let asked = ask((&self.gateway, &self.route), lease, &self.headers, "logging/setLevel", params);
        if asked.await.is_some() {
            *current = Some(level);
        }
    }
}

/// Asks something of the upstream for the gateway's own sake; the result, where it answers with one.
pub(in crate::gateway) async fn ask(
    (gateway, route): (&Arc<Gateway>, &Arc<Route>),
    lease: &Lease,
    headers: &HeaderMap,
    method: &str,
    params: String,
) -> Option<Box<str>> {
    let mut exchange = Exchange::new(Dispatch {
        gateway: Arc::clone(gateway),
        route: Arc::clone(route),
        session: Arc::clone(lease),
        method: method.into(),
        params,
        wants_progress: false,
        headers: headers.clone(),
        log_level: None,
        id: None,
        refresh: None,
        places: Box::new(()),
    });
    loop {
        match exchange.next().await {
            Happening::Ended(End::Answered(message)) => match Message::parse(&message) {
                Ok(Message::Response { outcome: Outcome::Result(result), .. }) => return Some(result.get().into()),
                _ => return None,
            },
            Happening::Ended(_) => return None,
            Happening::Asked { id, method, .. } => exchange.answer(&id, &super::refusal(&method)),
            _ => {}
        }
    }
}
