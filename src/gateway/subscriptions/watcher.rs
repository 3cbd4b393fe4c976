//! What a legacy server tells of changes, for clients that have no session: one session of the gateway's own for each
//! caller and route, whose standalone stream is read while anybody listens.
//!
//! A caller's streams share it. What they are subscribed to is the union of what each wants; a resource is subscribed to
//! upstream when the first stream names it, and unsubscribed from when the last one that did is gone.

mod job;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::{Gateway, POST_LIMIT, Route};
use crate::mcp::subscription::Filter;
use crate::tenant::Principal;

use super::inbox::{Change, Inbox};
use job::Job;

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
                let taken = |uri: &str| answers.get(uri) == Some(&true);
                Filter {
                    tools: filter.tools && offered.tools,
                    prompts: filter.prompts && offered.prompts,
                    resources: filter.resources && offered.resources,
                    uris: filter.uris.iter().filter(|uri| taken(uri)).cloned().collect(),
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
            let job = Job::new(gateway, route, principal, &watcher, caller);
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
