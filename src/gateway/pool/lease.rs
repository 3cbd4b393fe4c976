//! The right to use a session for one call.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;

use crate::gateway::Gateway;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::Session;

use super::{Key, Pooled};

/// A session in use. When it is dropped the session is kept for the next call, or ends, as the policy says.
#[derive(Debug)]
pub(in crate::gateway) struct Lease {
    gateway: Arc<Gateway>,
    /// Always there until this is dropped.
    pooled: Option<Arc<Pooled>>,
    session: Arc<Session>,
    /// Where to keep it; `None` where it ends, or is kept already.
    kept: Option<Key>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// One that others may use as well.
    pub(super) fn shared(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, turn: Option<OwnedSemaphorePermit>) -> Self {
        Self::new(gateway, pooled, None, turn)
    }

    /// One that nobody else uses now; kept afterwards.
    pub(super) fn kept(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, key: Key) -> Self {
        Self::new(gateway, pooled, Some(key), None)
    }

    /// One for this call alone.
    pub(super) fn once(gateway: &Arc<Gateway>, pooled: Arc<Pooled>) -> Self {
        Self::new(gateway, pooled, None, None)
    }

    fn new(gateway: &Arc<Gateway>, pooled: Arc<Pooled>, kept: Option<Key>, turn: Option<OwnedSemaphorePermit>) -> Self {
        pooled.uses.fetch_add(1, Ordering::Relaxed);
        let session = Arc::clone(&pooled.session);
        Self { gateway: Arc::clone(gateway), pooled: Some(pooled), session, kept, _turn: turn }
    }

    /// The `result` of the upstream's `initialize`.
    pub(in crate::gateway) fn welcome(&self) -> &str {
        self.pooled.as_ref().map_or("{}", |pooled| &pooled.welcome)
    }

    /// The upstream may still be busy with the call: nobody else is to get what comes of it.
    pub(in crate::gateway) fn spoil(&mut self) {
        self.kept = None;
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
