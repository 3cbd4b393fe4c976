//! The right to use a session for one call.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit};

use crate::gateway::Gateway;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::Session;
use crate::mcp::level::Level;

use super::{Key, Pooled};

/// A session in use. When it is dropped the session is kept for the next call, or ends, as the policy says.
#[derive(Debug)]
pub(in crate::gateway) struct Lease {
    gateway: Arc<Gateway>,
    /// Always there until this is dropped.
    pooled: Option<Arc<Pooled>>,
    session: Arc<Session>,
    level: Arc<Mutex<Option<Level>>>,
    /// Where to keep it; `None` where it ends, or is kept already.
    kept: Option<Key>,
    /// Later calls may be on it.
    lasts: bool,
    turn: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// One that others may use as well.
    pub(super) fn shared(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, turn: Option<OwnedSemaphorePermit>) -> Self {
        let mut lease = Self::new(gateway, pooled, None, true);
        lease.turn = turn;
        lease
    }

    /// One that nobody else uses now; kept afterwards.
    pub(super) fn kept(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, key: Key) -> Self {
        Self::new(gateway, pooled, Some(key), true)
    }

    /// One for this call alone.
    pub(super) fn once(gateway: &Arc<Gateway>, pooled: Arc<Pooled>) -> Self {
        Self::new(gateway, pooled, None, false)
    }

    fn new(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, kept: Option<Key>, lasts: bool) -> Self {
        pooled.uses.fetch_add(1, Ordering::Relaxed);
        let (session, level) = (Arc::clone(&pooled.session), Arc::clone(&pooled.level));
        Self { gateway: Arc::clone(gateway), pooled: Some(pooled), session, level, kept, lasts, turn: None }
    }

    /// The `result` of the upstream's `initialize`.
    pub(in crate::gateway) fn welcome(&self) -> &str {
        self.pooled.as_ref().map_or("{}", |pooled| &pooled.welcome)
    }

    /// Whether later calls may be on the same session.
    pub(in crate::gateway) fn is_kept(&self) -> bool {
        self.lasts
    }

    /// From which level on the server sends log messages on the session, if it was told. Locked while it is being told.
    pub(in crate::gateway) async fn log_level(&self) -> MutexGuard<'_, Option<Level>> {
        self.level.lock().await
    }

    /// A server that gave no session may have become one that wants them: the next call greets it again.
    pub(in crate::gateway) fn doubt(&self) {
        if let Some(pooled) = self.pooled.as_ref().filter(|pooled| pooled.is_stateless()) {
            pooled.session.end_unlisted();
        }
    }

    /// The upstream may still be busy with the call: nobody else is to get what comes of it.
    pub(in crate::gateway) fn spoil(&mut self) {
        self.kept = None;
    }

    /// Another process goes on with the call: the session is not ended upstream from here.
    pub(in crate::gateway) fn leave(&mut self) {
        self.kept = None;
        if let Some(pooled) = &self.pooled {
            pooled.is_closed.store(true, Ordering::Relaxed);
        }
    }
}

impl Deref for Lease {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(pooled) = self.pooled.take() else { return };
        pooled.last_used.store(self.gateway.clock.now().as_millis(), Ordering::Relaxed);
        pooled.uses.fetch_sub(1, Ordering::Relaxed);
        match self.kept.take() {
            Some(key) if !self.gateway.is_draining() && !pooled.session.ended.is_cancelled() => {
                self.gateway.pool.keep(key, pooled);
            }
            // Whoever holds it last ends it.
            _ => drop(pooled),
        }
    }
}

impl Pooled {
    /// Waits until no other call on the session may ask its client something.
    pub(super) async fn take_turn(&self) -> Result<OwnedSemaphorePermit, Kind> {
        if let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(turn);
        }
        let waiting = Waiting(self);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.route.places.plain_queue() {
            return Err(Kind::queue_full(&self.route));
        }
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        drop(waiting);
        turn.map_err(|_| Fault::Shutdown.into())
    }
}

struct Waiting<'a>(&'a Pooled);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
