//! The job behind a watcher: it keeps a session open, subscribes to what is wanted, and reads the session's stream.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::{Instant, sleep_until, timeout};

use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Chain, Fault, Kind};
use crate::gateway::{Gateway, POST_LIMIT, Route};
use crate::jsonrpc::{self, ErrorObject, Message, Object, Outcome, Raw, code, raw_string};
use crate::mcp::method::Method;
use crate::tenant::Principal;
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Outgoing};

use super::{Caller, Offered, Phase, Watcher};

/// Resources that one watcher subscribes to; more are not honoured.
const MAX_WATCHED: usize = 4096;
/// How long to wait before the stream is opened again, the first time.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait, after several failures.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Keeps the session and reads its stream.
pub(super) struct Job {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    principal: Arc<Principal>,
    watcher: Arc<Watcher>,
    caller: Caller,
    /// What is subscribed to on the session that is open.
    subscribed: BTreeSet<Box<str>>,
    failures: u32,
}

/// Why a session is not watched any longer.
enum Over {
    /// Nobody reads.
    Unread,
    /// The server has forgotten the session, or tells nothing on it any more.
    SessionGone,
    /// Nothing will come: whoever listens asks anew.
    Failed(Fault),
}

impl Job {
    /// The job of a watcher whose session is yet to be opened.
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        route: &Arc<Route>,
        principal: &Arc<Principal>,
        watcher: &Arc<Watcher>,
        caller: Caller,
    ) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            route: Arc::clone(route),
            principal: Arc::clone(principal),
            watcher: Arc::clone(watcher),
            caller,
            subscribed: BTreeSet::new(),
            failures: 0,
        }
    }

    /// Runs until nobody reads, or it can't go on.
    pub(super) async fn run(mut self) {
        let stopping = self.gateway.jobs.stopping().clone();
        let fault = stopping.run_until_cancelled(self.watch()).await.unwrap_or(Some(Fault::Shutdown));
        if let Some(fault) = fault {
            self.gateway.subscriptions.watchers.fail(&self.caller, &self.watcher, fault);
        }
    }

    /// Watches one session after the other. `None` when nobody reads any more.
    async fn watch(&mut self) -> Option<Fault> {
        let mut is_first = true;
        loop {
            let opened = self.gateway.lease_alone(&self.route, &self.principal).await;
            match opened {
                Ok(lease) => match self.watch_session(&lease, is_first).await {
                    Over::Unread => return None,
                    Over::SessionGone => {}
                    Over::Failed(fault) => return Some(fault),
                },
                // A server of the other era now: whoever listens asks anew.
                Err(Kind::OtherEra) => return Some(Fault::UpstreamUnreachable),
                Err(kind) if is_first => {
                    return Some(if let Kind::Fault(fault) = kind { fault } else { Fault::UpstreamProtocol });
                }
                Err(kind) => tracing::debug!(?kind, "a session that tells of changes could not be opened again"),
            }
            is_first = false;
            self.subscribed.clear();
            if self.pause_unread().await {
                return None;
            }
        }
    }

    async fn watch_session(&mut self, lease: &Lease, is_first: bool) -> Over {
        let mut stream = match self.listen(lease).await {
            Ok(stream) => stream,
            Err(Error::SessionGone) => return Over::SessionGone,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "a session that tells of changes has no stream");
                return if is_first { Over::Failed(Fault::from(&error)) } else { Over::SessionGone };
            }
        };
        // Without a stream there is no way for a change to come.
        let offered = if stream.is_some() { offered_by(lease.welcome()) } else { Offered::default() };
        self.watcher.phase.send_if_modified(|phase| {
            let is_opening = matches!(phase, Phase::Opening);
            if is_opening {
                *phase = Phase::Open { offered, answers: HashMap::new() };
            }
            is_opening
        });
        if !is_first {
            if stream.is_none() {
                // It had one before.
                return Over::Failed(Fault::UpstreamUnreachable);
            }
            self.resubscribe(lease, offered).await;
            self.watcher.inboxes().iter().for_each(|inbox| inbox.offer_everything());
        }
        let mut reopen = None;
        loop {
            let watcher = Arc::clone(&self.watcher);
            tokio::select! {
                () = watcher.wanted.notified() => {
                    if self.gateway.subscriptions.watchers.leave(&self.caller, &self.watcher) {
                        return Over::Unread;
                    }
                    if offered.subscribe && matches!(self.settle(lease).await, Err(Error::SessionGone)) {
                        return Over::SessionGone;
                    }
                }
                message = next(&mut stream) => match message {
                    Ok(Some(message)) => self.take(lease, &message).await,
                    Ok(None) | Err(_) => {
                        stream = None;
                        reopen = Some(self.next_try());
                    }
                },
                () = at(reopen) => {
                    reopen = None;
                    match self.listen(lease).await {
                        Ok(Some(again)) => {
                            stream = Some(again);
                            // Changes may have been missed meanwhile.
                            self.watcher.inboxes().iter().for_each(|inbox| inbox.offer_everything());
                        }
                        // It had a stream: it is not what it was.
                        Ok(None) | Err(Error::SessionGone) => return Over::SessionGone,
                        Err(_) => reopen = Some(self.next_try()),
                    }
                }
            }
        }
    }

    /// Opens the standalone stream; `None` where the server has none.
    async fn listen(&self, lease: &Lease) -> Result<Option<Messages>, Error> {
        let late = |_| Err(Error::Lost("it did not open its stream in time".into()));
        let key = self.route.key_of(lease);
        let listening = self.route.upstream.listen(&key, None);
        let listening = timeout(POST_LIMIT, listening).await.unwrap_or_else(late)?;
        Ok(Messages::of_listening(listening, self.route.max_message))
    }

    /// When the stream is opened again.
    fn next_try(&mut self) -> Instant {
        let pause = RETRY.saturating_mul(2_u32.saturating_pow(self.failures.min(16))).min(LONGEST_RETRY);
        self.failures += 1;
        Instant::now() + pause
    }

    /// Waits before the next session; says whether nobody reads any more by then.
    async fn pause_unread(&mut self) -> bool {
        sleep_until(self.next_try()).await;
        self.gateway.subscriptions.watchers.leave(&self.caller, &self.watcher)
    }

    /// Gives a message of the session's to the readers.
    async fn take(&mut self, lease: &Lease, message: &Bytes) {
        match Message::parse(message) {
            Ok(Message::Notification { method, params }) => {
                self.failures = 0;
                let params = params.map(Raw::get);
                self.watcher.inboxes().iter().for_each(|inbox| inbox.offer(&method, params));
            }
            Ok(Message::Request { id, method, .. }) => {
                // The gateway declared nothing, so there is nobody who could be asked.
                let answer = if Method::parse(&method) == Method::Ping {
                    jsonrpc::response(&id, "{}")
                } else {
                    let error = ErrorObject::new(code::METHOD_NOT_FOUND, "This client answers no requests");
                    jsonrpc::error_response(Some(&id), &error)
                };
                drop(self.gateway.post_upstream(&self.route, lease, answer).await);
            }
            Ok(Message::Response { .. }) => {}
            Err(defect) => tracing::warn!(%defect, "the upstream sent something that is no message"),
        }
    }

    /// Subscribes to what is wanted and not subscribed to, and the other way round.
    async fn settle(&mut self, lease: &Lease) -> Result<(), Error> {
        let wanted = self.watcher.wanted();
        // First, so that whoever names such a resource now waits until it is subscribed to again.
        self.forget_unwanted(&wanted);
        let unwanted: Vec<Box<str>> = self.subscribed.difference(&wanted).cloned().collect();
        for uri in unwanted {
            self.subscribed.remove(&uri);
            self.ask(lease, Method::ResourcesUnsubscribe, &uri).await?;
        }
        let settled = |uri: &str| matches!(&*self.watcher.phase.borrow(), Phase::Open { answers, .. } if answers.contains_key(uri));
        let missing: Vec<Box<str>> =
            wanted.iter().filter(|uri| !self.subscribed.contains(*uri) && !settled(uri)).cloned().collect();
        for uri in missing {
            let has_room = self.subscribed.len() < MAX_WATCHED;
            let taken = has_room && self.ask(lease, Method::ResourcesSubscribe, &uri).await?;
            if taken {
                self.subscribed.insert(uri.clone());
            }
            self.answered(uri, taken);
        }
        Ok(())
    }

    /// What nobody wants any more is asked for anew when somebody does.
    fn forget_unwanted(&self, wanted: &BTreeSet<Box<str>>) {
        self.watcher.phase.send_if_modified(|phase| {
            if let Phase::Open { answers, .. } = phase {
                answers.retain(|uri, _| wanted.contains(uri));
            }
            false
        });
    }

    fn answered(&self, uri: Box<str>, taken: bool) {
        self.watcher.phase.send_modify(|phase| {
            if let Phase::Open { answers, .. } = phase {
                answers.insert(uri, taken);
            }
        });
    }

    /// Subscribes on a new session to all that is wanted.
    async fn resubscribe(&mut self, lease: &Lease, offered: Offered) {
        for uri in self.watcher.wanted() {
            let may = offered.subscribe && self.subscribed.len() < MAX_WATCHED;
            let taken = may && matches!(self.ask(lease, Method::ResourcesSubscribe, &uri).await, Ok(true));
            if taken {
                self.subscribed.insert(uri.clone());
            }
            self.answered(uri, taken);
        }
    }

    /// Sends a request about a resource; says whether the server took it.
    async fn ask(&self, lease: &Lease, method: Method, uri: &str) -> Result<bool, Error> {
        let id = self.gateway.mint();
        let params = format!("{{\"uri\":{}}}", raw_string(uri));
        let message = Outgoing {
            kind: MessageKind::Request { id: id.clone(), progress_token: None },
            body: jsonrpc::request(&id, method.as_str(), Some(&params)),
            headers: HeaderMap::new(),
        };
        let answer = async {
            let reply = self.route.upstream.send(&self.route.key_of(lease), message).await?;
            let mut messages = Messages::of_reply(reply, self.route.max_message);
            while let Some(message) = messages.next().await? {
                match Message::parse(&message) {
                    Ok(Message::Response { id: Some(answered), outcome }) if answered == id => {
                        return Ok(matches!(outcome, Outcome::Result(_)));
                    }
                    _ => {}
                }
            }
            Ok(false)
        };
        match timeout(POST_LIMIT, answer).await {
            Ok(Err(Error::SessionGone)) => Err(Error::SessionGone),
            Ok(Err(error)) => {
                tracing::debug!(error = %Chain(&error), method = method.as_str(), "a subscription was not taken");
                Ok(false)
            }
            Ok(taken) => taken,
            Err(_late) => Ok(false),
        }
    }
}

/// What the result of `initialize` offers.
fn offered_by(welcome: &str) -> Offered {
    let welcome = Object::parse(welcome).unwrap_or_default();
    let capabilities = Object::parse(welcome.get("capabilities").unwrap_or("{}")).unwrap_or_default();
    let has = |part: &str, feature: &str| {
        Object::parse(capabilities.get(part).unwrap_or("{}")).is_ok_and(|part| part.get(feature) == Some("true"))
    };
    Offered {
        tools: has("tools", "listChanged"),
        prompts: has("prompts", "listChanged"),
        resources: has("resources", "listChanged"),
        subscribe: has("resources", "subscribe"),
    }
}

async fn next(stream: &mut Option<Messages>) -> Result<Option<Bytes>, Error> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_tells_of_what_it_says_that_it_tells_of() {
        let offered = offered_by(
            r#"{"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":false}}}"#,
        );
        assert_eq!(offered, Offered { tools: true, prompts: false, resources: false, subscribe: true });
        assert_eq!(offered_by("[]"), Offered::default());
        assert_eq!(offered_by(r#"{"capabilities":5}"#), Offered::default());
    }
}
