//! What a legacy server tells of changes, for clients that have no session: one session of the gateway's own for each
//! caller and route, whose standalone stream is read while anybody listens.
//!
//! A caller's streams share it. What they are subscribed to is the union of what each wants; a resource is subscribed to
//! upstream when the first stream names it, and unsubscribed from when the last one that did is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::jsonrpc::{self, ErrorObject, Message, Object, Outcome, code, raw_string};
use crate::mcp::method::Method;
use crate::mcp::subscription::Filter;
use crate::tenant::Principal;
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Outgoing};

use super::super::pool::Lease;
use super::super::rejection::{Chain, Fault, Kind};
use super::super::{Gateway, POST_LIMIT, Route};
use super::inbox::{Change, Inbox};

/// Resources that one watcher subscribes to; more are not honoured.
const MAX_WATCHED: usize = 4096;
/// How long to wait before the stream is opened again, the first time.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait, after several failures.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The watchers that run: one for each route and principal.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Watchers {
    by_caller: Mutex<HashMap<Caller, Arc<Watcher>>>,
}

type Caller = (Arc<str>, [u8; 16]);

/// One session that is watched.
#[derive(Debug)]
struct Watcher {
    readers: Mutex<Readers>,
    /// What is wanted may have changed.
    wanted: Notify,
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Default)]
struct Readers {
    next: u64,
    inboxes: HashMap<u64, Arc<Inbox>>,
    uris: HashMap<u64, BTreeSet<Box<str>>>,
}

/// How far a watcher is.
#[derive(Debug)]
enum Phase {
    Opening,
    Open {
        /// What the server says that it tells of.
        offered: Offered,
        /// The resources that were asked for, and whether the server took each.
        answers: HashMap<Box<str>, bool>,
    },
    Over(Fault),
}

/// What a server says that it tells of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Offered {
    tools: bool,
    prompts: bool,
    resources: bool,
    subscribe: bool,
}

/// One stream's share of a watcher. Dropping it gives it back.
#[derive(Debug)]
pub(in crate::gateway) struct Watching {
    watcher: Arc<Watcher>,
    number: u64,
    inbox: Arc<Inbox>,
}

impl Watching {
    /// Joins the watcher of a caller, or starts one; gives what the server honours of the filter.
    ///
    /// # Errors
    /// No session can be opened.
    pub(in crate::gateway) async fn join(
        gateway: &Arc<Gateway>,
        route: &Arc<Route>,
        principal: &Arc<Principal>,
        filter: &Filter,
    ) -> Result<(Self, Filter), Kind> {
        let watching = gateway.subscriptions.watchers.join(gateway, route, principal, filter);
        let mut phase = watching.watcher.phase.subscribe();
        let settled = phase.wait_for(|phase| match phase {
            Phase::Opening => false,
            Phase::Open { offered, answers } => {
                !offered.subscribe || filter.uris.iter().all(|uri| answers.contains_key(uri))
            }
            Phase::Over(_) => true,
        });
        let settled = timeout(POST_LIMIT, settled).await.map_err(|_late| Fault::UpstreamUnreachable)?;
        let honoured = match &*settled.map_err(|_| Fault::Shutdown)? {
            Phase::Open { offered, answers } => {
                let taken = |uri: &&Box<str>| answers.get(*uri) == Some(&true);
                Filter {
                    tools: filter.tools && offered.tools,
                    prompts: filter.prompts && offered.prompts,
                    resources: filter.resources && offered.resources,
                    uris: filter.uris.iter().filter(taken).cloned().collect(),
                    tasks: None,
                }
            }
            Phase::Over(fault) => return Err((*fault).into()),
            Phase::Opening => return Err(Fault::Shutdown.into()),
        };
        watching.inbox.admit_only(honoured.clone());
        Ok((watching, honoured))
    }

    /// The next change; `None` when the watcher has ended. Cancel-safe.
    pub(in crate::gateway) async fn next(&self) -> Option<Change> {
        self.inbox.next().await
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut readers = self.watcher.readers();
        readers.inboxes.remove(&self.number);
        readers.uris.remove(&self.number);
        drop(readers);
        self.watcher.wanted.notify_one();
    }
}

impl Watchers {
    fn by_caller(&self) -> MutexGuard<'_, HashMap<Caller, Arc<Watcher>>> {
        self.by_caller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(
        &self,
        gateway: &Arc<Gateway>,
        route: &Arc<Route>,
        principal: &Arc<Principal>,
        filter: &Filter,
    ) -> Watching {
        let caller = (Arc::clone(&route.name), principal.digest());
        let mut by_caller = self.by_caller();
        let watcher = by_caller.entry(caller.clone()).or_insert_with(|| {
            let watcher = Arc::new(Watcher {
                readers: Mutex::default(),
                wanted: Notify::new(),
                phase: watch::Sender::new(Phase::Opening),
            });
            let job = Job {
                gateway: Arc::clone(gateway),
                route: Arc::clone(route),
                principal: Arc::clone(principal),
                watcher: Arc::clone(&watcher),
                caller,
                subscribed: BTreeSet::new(),
                failures: 0,
            };
            gateway.jobs.spawn("watcher", job.run());
            watcher
        });
        // Entered before the table is let go, so that the watcher does not end in between.
        let inbox = Arc::new(Inbox::default());
        let mut readers = watcher.readers();
        readers.next += 1;
        let number = readers.next;
        readers.inboxes.insert(number, Arc::clone(&inbox));
        readers.uris.insert(number, filter.uris.clone());
        drop(readers);
        watcher.wanted.notify_one();
        Watching { watcher: Arc::clone(watcher), number, inbox }
    }

    /// Takes a watcher out if nobody reads it; says whether that was so.
    fn leave(&self, caller: &Caller, watcher: &Watcher) -> bool {
        let mut by_caller = self.by_caller();
        let is_unread = watcher.readers().inboxes.is_empty();
        if is_unread {
            by_caller.remove(caller);
        }
        is_unread
    }

    /// Takes a watcher out that can't go on, and ends its readers.
    fn fail(&self, caller: &Caller, watcher: &Watcher, fault: Fault) {
        let mut by_caller = self.by_caller();
        by_caller.remove(caller);
        watcher.phase.send_replace(Phase::Over(fault));
        watcher.readers().inboxes.values().for_each(|inbox| inbox.end());
        drop(by_caller);
    }
}

impl Watcher {
    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inboxes(&self) -> Vec<Arc<Inbox>> {
        self.readers().inboxes.values().cloned().collect()
    }

    /// The resources that any reader wants.
    fn wanted(&self) -> BTreeSet<Box<str>> {
        self.readers().uris.values().flatten().cloned().collect()
    }
}

/// Keeps the session and reads its stream.
struct Job {
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
    async fn run(mut self) {
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
        let listening = self.route.upstream.listen(&lease.terms.upstream, None);
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
                let params = params.map(serde_json::value::RawValue::get);
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
        let unwanted: Vec<Box<str>> = self.subscribed.difference(&wanted).cloned().collect();
        for uri in unwanted {
            self.subscribed.remove(&uri);
            self.ask(lease, Method::ResourcesUnsubscribe, &uri).await?;
        }
        let settled = |uri: &Box<str>| matches!(&*self.watcher.phase.borrow(), Phase::Open { answers, .. } if answers.contains_key(uri));
        let missing: Vec<Box<str>> =
            wanted.iter().filter(|uri| !self.subscribed.contains(*uri) && !settled(uri)).cloned().collect();
        self.forget_unwanted(&wanted);
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
            let reply = self.route.upstream.send(&lease.terms.upstream, message).await?;
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
