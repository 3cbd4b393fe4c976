//! Sessions of upstreams that need them, for clients that have none.
//!
//! A session is one principal's and one capability profile's: what it remembers must not leak to others, and what was
//! declared in `initialize` stands for its whole life. Nobody ends a session by hand: the last of whoever uses or keeps it
//! ends it upstream by dropping it.

mod lease;
mod opening;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use http::HeaderMap;
use tokio::sync::Semaphore;

use crate::clock::Timestamp;
use crate::jobs::Jobs;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::level::Level;
use crate::tenant::Principal;

use super::rejection::Kind;
use super::session::{Room, Session};
use super::{Gateway, Route};

pub(super) use lease::Lease;
use opening::{Failure, Opening};

/// How the sessions of an upstream are shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionPolicy {
    /// Pooled for callers who are authenticated, one for each call for those who can't be told apart.
    #[default]
    Auto,
    /// One for each call.
    PerCall,
    /// Kept for the next call of the same caller.
    Pooled,
    /// One for all calls of a caller.
    Pinned,
}

impl SessionPolicy {
    /// What it comes to for a caller.
    fn for_caller(self, principal: &Principal) -> Self {
        match self {
            Self::Auto if principal.authenticated => Self::Pooled,
            Self::Auto => Self::PerCall,
            chosen => chosen,
        }
    }
}

/// As many sessions of one caller and profile are kept for later calls.
const MOST_IDLE: usize = 16;

/// Whose session it is and what it was opened with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    route: Arc<str>,
    principal: [u8; 16],
    profile: ClientCapabilities,
}

/// Sessions that are kept for later calls.
#[derive(Debug, Default)]
pub(super) struct Pool {
    // Held for a few map operations and never across an await.
    shelves: Mutex<HashMap<Key, Shelf>>,
    openings: AtomicU64,
}

/// The sessions of one key.
#[derive(Debug, Default)]
struct Shelf {
    /// The one that calls share, or its opening.
    shared: Option<(u64, Opening)>,
    /// Those that only one call uses at a time and none does now, the one used last at the end.
    idle: Vec<Arc<Pooled>>,
}

/// A session of an upstream. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Pooled {
    session: Arc<Session>,
    /// The `result` of `initialize`.
    welcome: Box<str>,
    route: Arc<Route>,
    jobs: Jobs,
    opened_at: Timestamp,
    last_used: AtomicU64,
    /// Leases of it.
    uses: AtomicUsize,
    /// Taken by the one call that may ask its client something.
    turn: Arc<Semaphore>,
    /// Calls that wait for their turn.
    waiting: AtomicUsize,
    /// From which level on the server sends log messages, if it was told.
    level: Arc<tokio::sync::Mutex<Option<Level>>>,
    /// It has been ended upstream.
    is_closed: AtomicBool,
    /// Counts it among the sessions that there may be.
    _room: Room,
}

impl Pooled {
    /// The upstream gave no session: one handshake is as good as another, and calls are not kept apart.
    fn is_stateless(&self) -> bool {
        self.session.terms.upstream.id.is_none()
    }

    /// Not to be used any more: the upstream has forgotten it, or it may have become another server meanwhile, of which
    /// nothing would tell.
    fn is_gone(&self, now: Timestamp, idle: Duration) -> bool {
        self.session.ended.is_cancelled() || (self.is_stateless() && now.since(self.opened_at) >= idle)
    }

    fn is_idle(&self, now: Timestamp, idle: Duration) -> bool {
        let last_used = Timestamp::from_millis(self.last_used.load(Ordering::Relaxed));
        self.uses.load(Ordering::Relaxed) == 0 && now.since(last_used) >= idle
    }

    /// Ends it here; whoever does so first ends it upstream.
    fn end(&self) -> bool {
        let is_known_upstream = !self.session.ended.is_cancelled();
        self.session.end_unlisted();
        is_known_upstream && !self.is_stateless() && !self.is_closed.swap(true, Ordering::Relaxed)
    }

    async fn close(&self) {
        if self.end() {
            self.route.upstream.close(&self.route.key_of(&self.session)).await;
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.end() {
            let (upstream, key) = (Arc::clone(&self.route.upstream), self.route.key_of(&self.session).into_owned());
            self.jobs.spawn("close", async move { upstream.close(&key).await });
        }
    }
}

impl Pool {
    fn shelves(&self) -> MutexGuard<'_, HashMap<Key, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session that calls of a key share, or its opening; `open` starts one.
    fn shared(&self, key: &Key, open: impl FnOnce() -> Opening) -> (u64, Opening) {
        let mut shelves = self.shelves();
        let shelf = shelves.entry(key.clone()).or_default();
        let number = || self.openings.fetch_add(1, Ordering::Relaxed);
        let (number, opening) = shelf.shared.get_or_insert_with(|| (number(), open()));
        (*number, opening.clone())
    }

    /// The session that all calls of a key share because the upstream has none.
    fn stateless(&self, key: &Key) -> Option<Arc<Pooled>> {
        let shelves = self.shelves();
        let (_, opening) = shelves.get(key)?.shared.as_ref()?;
        opening.peek()?.as_ref().ok().filter(|pooled| pooled.is_stateless()).cloned()
    }

    /// Forgets a shared session that can't be used.
    fn forget(&self, key: &Key, number: u64) {
        let forgotten = {
            let mut shelves = self.shelves();
            let Some(shelf) = shelves.get_mut(key) else { return };
            let forgotten = shelf.shared.take_if(|(shared, _)| *shared == number);
            if shelf.shared.is_none() && shelf.idle.is_empty() {
                shelves.remove(key);
            }
            forgotten
        };
        drop(forgotten);
    }

    /// Takes a session that nobody uses.
    fn take_idle(&self, key: &Key) -> Option<Arc<Pooled>> {
        self.shelves().get_mut(key)?.idle.pop()
    }

    /// Keeps a session for the next call.
    fn keep(&self, key: Key, pooled: Arc<Pooled>) {
        let mut shelves = self.shelves();
        let shelf = shelves.entry(key).or_default();
        if pooled.is_stateless() {
            let number = self.openings.fetch_add(1, Ordering::Relaxed);
            shelf.shared.get_or_insert_with(|| (number, opening::opened(pooled)));
            return;
        }
        // The one used longest ago goes: a burst of calls must not leave as many sessions behind.
        let surplus = (shelf.idle.len() >= MOST_IDLE).then(|| shelf.idle.remove(0));
        shelf.idle.push(pooled);
        drop(shelves);
        drop(surplus);
    }

    /// Forgets the idle sessions of a route whose upstream has lost one: it has most likely lost them all.
    pub(super) fn forget_idle(&self, route: &Route) {
        drop(self.take_out(|pooled| pooled.route.name == route.name && pooled.is_unused()));
    }

    /// Ends the sessions that nobody has used for long.
    pub(super) fn reap(&self, now: Timestamp, idle: Duration) {
        let ended: Vec<_> = self.take_out(|pooled| pooled.is_idle(now, idle) || pooled.session.ended.is_cancelled());
        drop(ended);
    }

    /// Ends the session that has been idle for longest, to make room; says whether there was one.
    pub(super) fn evict(&self) -> bool {
        let last_used = |pooled: &Arc<Pooled>| pooled.last_used.load(Ordering::Relaxed);
        let oldest =
            self.shelves().values().flat_map(Shelf::sessions).filter(|pooled| pooled.is_unused()).min_by_key(last_used);
        let Some(oldest) = oldest else { return false };
        let evicted = self.take_out(|pooled| std::ptr::eq(pooled, &*oldest));
        drop(oldest);
        !evicted.is_empty()
    }

    /// Takes out every session, to be ended.
    pub(super) fn take_all(&self) -> Vec<Arc<Pooled>> {
        self.take_out(|_| true)
    }

    fn take_out(&self, is_to_go: impl Fn(&Pooled) -> bool) -> Vec<Arc<Pooled>> {
        let mut taken = Vec::new();
        self.shelves().retain(|_, shelf| {
            taken.extend(shelf.idle.extract_if(.., |pooled| is_to_go(pooled)));
            match shelf.opened() {
                Some(Ok(pooled)) if is_to_go(&pooled) => {
                    taken.push(pooled);
                    shelf.shared = None;
                }
                Some(Err(_)) => shelf.shared = None,
                _ => {}
            }
            shelf.shared.is_some() || !shelf.idle.is_empty()
        });
        taken
    }
}

impl Shelf {
    /// What came of the shared session's opening, if it is over.
    fn opened(&self) -> Option<Result<Arc<Pooled>, Failure>> {
        // Nobody may have waited for it to the end.
        self.shared.as_ref().and_then(|(_, opening)| opening.clone().now_or_never())
    }

    fn sessions(&self) -> impl Iterator<Item = Arc<Pooled>> {
        self.idle.iter().cloned().chain(self.opened().and_then(Result::ok))
    }
}

impl Pooled {
    fn is_unused(&self) -> bool {
        self.uses.load(Ordering::Relaxed) == 0
    }
}

impl Gateway {
    /// A session of the route's upstream for one call, opened with exactly this profile. `interactive`: the call may ask
    /// its client something, so nothing else that may do so is on the session.
    ///
    /// The headers are the caller's, and go with the handshake where there is one.
    pub(super) async fn lease(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &Principal,
        profile: ClientCapabilities,
        interactive: bool,
        headers: &HeaderMap,
    ) -> Result<Lease, Kind> {
        let key = Key { route: Arc::clone(&route.name), principal: principal.digest(), profile };
        if let Some(pooled) = self.pool.stateless(&key)
            && !self.is_gone(&pooled)
        {
            return Ok(Lease::shared(self, pooled, None));
        }
        let may_ask = interactive && profile != ClientCapabilities::default();
        match route.sessions.for_caller(principal) {
            SessionPolicy::Auto | SessionPolicy::PerCall => {
                let pooled = self.open_one(route, &key, headers).await?;
                Ok(if pooled.is_stateless() { Lease::kept(self, pooled, key) } else { Lease::once(self, pooled) })
            }
            SessionPolicy::Pooled if may_ask => {
                while let Some(pooled) = self.pool.take_idle(&key) {
                    if !self.is_gone(&pooled) {
                        return Ok(Lease::kept(self, pooled, key));
                    }
                }
                let pooled = self.open_one(route, &key, headers).await?;
                Ok(Lease::kept(self, pooled, key))
            }
            SessionPolicy::Pooled => self.lease_shared(route, &key, headers, false).await,
            SessionPolicy::Pinned => self.lease_shared(route, &key, headers, may_ask).await,
        }
    }

    /// A session for one use that lasts, whatever the policy; it ends with the lease.
    pub(super) async fn lease_alone(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &Principal,
    ) -> Result<Lease, Kind> {
        let profile = ClientCapabilities::default();
        let key = Key { route: Arc::clone(&route.name), principal: principal.digest(), profile };
        Ok(Lease::once(self, self.open_one(route, &key, &HeaderMap::new()).await?))
    }

    /// Ends the pool's idle sessions.
    pub(super) fn reap_pool(&self) {
        self.pool.reap(self.clock.now(), self.sessions.idle_limit());
    }

    fn is_gone(&self, pooled: &Pooled) -> bool {
        pooled.is_gone(self.clock.now(), self.sessions.idle_limit())
    }
}

impl Pooled {
    /// Ends it at the process's end, when somebody still waits for that.
    pub(super) async fn close_last(self: Arc<Self>) {
        self.close().await;
    }
}
