//! What a session on a modern upstream hears of changes: one subscription to the server, which tells of all that the
//! client subscribed to and feeds its GET streams (2025-11-25 resources, "Subscriptions"; 2026-07-28 subscriptions).
//!
//! While no stream is open, the newest of each kind of change waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::jsonrpc::{self, Raw, string_value};
use crate::mcp::method::Method;
use crate::mcp::project::code_of;
use crate::mcp::subscription::{Filter, MAX_NAMES};
use crate::upstream::Error;

use crate::gateway::call::{Answer, Call};
use crate::gateway::listener::to_stream;
use crate::gateway::rejection::{Chain, Fault, Kind};
use crate::gateway::session::Session;
use crate::gateway::subscriptions::feed::Feed;
use crate::gateway::{Gateway, Request, Route};

/// A session's subscription.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// Changed by one request at a time, in their order.
    current: tokio::sync::Mutex<Current>,
    /// A stream was opened.
    opened: Notify,
}

#[derive(Debug, Default)]
struct Current {
    feed: Option<Arc<Feed>>,
    /// The resources that the client subscribed to.
    uris: BTreeSet<Box<str>>,
}

impl Gateway {
    /// Begins to listen, unless that is done already; a GET stream is there that takes what comes.
    pub(in crate::gateway) fn bridged_listen(self: &Arc<Self>, route: &Arc<Route>, session: &Arc<Session>) {
        session.bridge.listening.opened.notify_one();
        let (gateway, route, session) = (Arc::clone(self), Arc::clone(route), Arc::clone(session));
        self.jobs.spawn("listen", async move {
            let listening = async {
                let mut current = session.bridge.listening.current.lock().await;
                if current.feed.is_none()
                    && let Err(failed) = gateway.subscribe(&route, &session, &mut current, None).await
                {
                    tracing::debug!(?failed, "a session hears of no changes");
                }
            };
            session.ended.run_until_cancelled(listening).await;
        });
    }

    /// The resource that a request is about, where the server has subscriptions.
    async fn subscribable(
        self: &Arc<Self>,
        call: &Call,
        session: &Session,
        request: &Request<'_>,
    ) -> Result<Box<str>, Kind> {
        let uri = uri_of(request)?;
        if !self.offer(&call.route, session).await?.subscribe {
            return Err(Kind::NotServed("The server behind the gateway has no subscriptions to resources"));
        }
        Ok(uri)
    }

    /// `resources/subscribe`: the answer says that the server tells of the resource from now on.
    pub(super) async fn bridged_subscribe(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let uri = self.subscribable(call, session, request).await?;
        let mut current = session.bridge.listening.current.lock().await;
        if !current.uris.contains(&uri) || current.feed.is_none() {
            if current.uris.len() >= MAX_NAMES {
                return Err(Kind::Params("This session has subscribed to 1024 resources already"));
            }
            self.subscribe(&call.route, session, &mut current, Some(uri.clone())).await?;
        }
        // 2026-07-28 subscriptions, "Acknowledgement": what it omits, the server does not tell of.
        if !current.uris.contains(&uri) {
            return Err(Kind::Params("The server behind the gateway does not tell of changes of this resource"));
        }
        Ok(Answer::json(jsonrpc::response(&request.id, "{}")))
    }

    /// `resources/unsubscribe`
    pub(super) async fn bridged_unsubscribe(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let uri = self.subscribable(call, session, request).await?;
        let mut current = session.bridge.listening.current.lock().await;
        if current.uris.remove(&uri) && current.feed.is_some() {
            self.subscribe(&call.route, session, &mut current, None).await?;
        }
        Ok(Answer::json(jsonrpc::response(&request.id, "{}")))
    }

    /// Asks the server to tell of every list that it says it does, and of the session's resources with `more`.
    async fn subscribe(
        self: &Arc<Self>,
        route: &Arc<Route>,
        session: &Arc<Session>,
        current: &mut Current,
        more: Option<Box<str>>,
    ) -> Result<(), Kind> {
        let offer = self.offer(route, session).await?;
        let uris: BTreeSet<Box<str>> = current.uris.iter().cloned().chain(more).collect();
        let filter = Filter {
            tools: offer.tools_changed,
            prompts: offer.prompts_changed,
            resources: offer.resources_changed,
            uris: uris.clone(),
            tasks: None,
        };
        if filter.is_empty() && current.feed.is_none() {
            return Ok(());
        }
        let honoured = match &current.feed {
            Some(feed) => feed.change(filter).await.map_err(refused)?,
            None => {
                let (key, principal) = (session.terms.upstream.clone(), session.terms.principal);
                let (feed, honoured) = Feed::open(self, route, key, principal, filter).await.map_err(refused)?;
                let feed = Arc::new(feed);
                current.feed = Some(Arc::clone(&feed));
                let (route, session) = (Arc::clone(route), Arc::clone(session));
                self.jobs.spawn("changes", async move { tell(&route, &session, &feed).await });
                honoured
            }
        };
        current.uris = &uris & &honoured.uris;
        Ok(())
    }
}

fn uri_of(request: &Request<'_>) -> Result<Box<str>, Kind> {
    let uri = request.params.uri.map(Raw::get).and_then(string_value);
    uri.map(Into::into).ok_or(Kind::Params("`uri` must be a string"))
}

/// A server that has no subscriptions at all may advertise them all the same.
fn refused(error: Error) -> Kind {
    match error {
        Error::Refused { error, .. } if code_of(&error) == Some(jsonrpc::code::METHOD_NOT_FOUND) => {
            Kind::NotServed("The server behind the gateway has no subscriptions")
        }
        Error::Connect(_) | Error::Lost(_) => {
            tracing::warn!(error = %Chain(&error), "a subscription to the server could not be opened");
            // Whether the server saw it or not, nothing was run.
            Fault::UpstreamUnreachable.into()
        }
        other => {
            tracing::warn!(error = %Chain(&other), "a subscription to the server could not be opened");
            Fault::UpstreamProtocol.into()
        }
    }
}

/// Takes changes to the client while its session lasts. None is taken while nobody could hear of it.
async fn tell(route: &Route, session: &Arc<Session>, feed: &Feed) {
    let telling = async {
        loop {
            has_stream(session).await;
            let Some(change) = feed.next().await else { return };
            if Method::parse(&change.method) == Method::ToolsListChanged {
                route.schemas.forget();
            }
            let message = jsonrpc::notification(&change.method, change.params.as_deref());
            // A stream that closed just now is waited for; one whose reader is too slow loses notifications.
            while !to_stream(session, &message, None) && session.live().streams.is_empty() {
                has_stream(session).await;
            }
        }
    };
    session.ended.run_until_cancelled(telling).await;
    session.bridge.listening.current.lock().await.feed = None;
}

/// Waits until the client has a stream.
async fn has_stream(session: &Session) {
    loop {
        let opened = session.bridge.listening.opened.notified();
        if !session.live().streams.is_empty() {
            return;
        }
        opened.await;
    }
}
