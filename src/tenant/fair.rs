//! An upstream's places, and the queue before them: fair between tenants, by their weights, in order within a tenant.
//!
//! A tenant that waits is served whenever the queue's time has come to its turn, and its next turn is then as much later as
//! its weight is small (start-time fair queueing, with every call taken to cost the same). Tenants of one weight so take
//! turns one by one; a tenant of weight 3 is served three times for each time of one of weight 1, spread evenly.
//!
//! Held and plain calls share the places. Plain calls that wait have a bound here; held ones wait under their tenant's
//! own limits. A place is never lost: it belongs to a [`Permit`], to a waiter that was chosen, or to the queue.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

/// What kind of call asks for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client waits for it on an open request.
    Plain,
    /// A task's: it waits as long as its task may.
    Held,
}

/// So many plain calls wait already that one more is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the upstream's queue is full")]
pub struct QueueFull;

/// How the places are used at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Places taken.
    pub in_use: usize,
    /// Plain calls that wait.
    pub waiting_plain: usize,
    /// Held calls that wait.
    pub waiting_held: usize,
}

/// What one call costs a tenant of weight 1, in the queue's time. Each weight up to 16 divides it, so that their shares are
/// exact; those of greater ones are off by less than one in 7,000.
const COST: u64 = 720_720;

/// The greatest weight.
pub const MAX_WEIGHT: u32 = 100;

/// How tenants share places for which several of them wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    default: u32,
    named: HashMap<Arc<str>, u32>,
}

impl Default for Weights {
    /// Everybody's is the same.
    fn default() -> Self {
        Self::new(1, [])
    }
}

impl Weights {
    /// Weights of `named` tenants, and that of every other one; each counts as at least 1 and at most [`MAX_WEIGHT`].
    #[must_use]
    pub fn new(default: u32, named: impl IntoIterator<Item = (Arc<str>, u32)>) -> Self {
        Self { default, named: named.into_iter().collect() }
    }

    /// What one call costs a tenant.
    fn cost(&self, tenant: &str) -> u64 {
        let weight = self.named.get(tenant).copied().unwrap_or(self.default);
        COST / u64::from(weight.clamp(1, MAX_WEIGHT))
    }
}

/// The places of one upstream. A cheap handle.
#[derive(Debug, Clone)]
pub struct FairQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    places: usize,
    plain_queue: usize,
    // Held for a few map operations at most and never across an await.
    line: Mutex<Line>,
}

/// One place at the upstream, given back on drop.
pub struct Permit(Arc<Shared>);

impl FairQueue {
    /// How many plain calls may wait.
    #[must_use]
    pub fn plain_queue(&self) -> usize {
        self.0.plain_queue
    }

    /// How many places there are.
    #[must_use]
    pub fn places(&self) -> usize {
        self.0.places
    }

    /// `places` places, of which there is always at least one; at most `plain_queue` plain calls wait for them.
    #[must_use]
    pub fn new(places: usize, plain_queue: usize) -> Self {
        Self::weighted(places, plain_queue, Arc::default())
    }

    /// The same, shared by tenants according to their weights.
    #[must_use]
    pub fn weighted(places: usize, plain_queue: usize, weights: Arc<Weights>) -> Self {
        let line = Mutex::new(Line { weights, ..Line::default() });
        Self(Arc::new(Shared { places: places.max(1), plain_queue, line }))
    }

    /// Other weights, from each tenant's next turn on.
    pub fn set_weights(&self, weights: Arc<Weights>) {
        self.0.lock().weights = weights;
    }

    /// Waits for a place. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`QueueFull`], at once, for a plain call when too many wait.
    pub async fn acquire(&self, tenant: &Arc<str>, kind: Kind) -> Result<Permit, QueueFull> {
        let waiting = {
            let mut line = self.0.lock();
            // Whoever gives a place back hands it to a waiter, so a free place means that nobody waits.
            if line.usage.in_use < self.0.places {
                line.usage.in_use += 1;
                return Ok(Permit(Arc::clone(&self.0)));
            }
            if kind == Kind::Plain && line.usage.waiting_plain >= self.0.plain_queue {
                return Err(QueueFull);
            }
            let (ticket, turn) = line.enter(tenant, kind);
            Waiting { shared: &self.0, tenant, ticket, turn, taken: false }
        };
        Ok(waiting.await)
    }

    /// How the places are used now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.lock().usage
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a place back: to the next in line, or to the queue.
    fn release(&self) {
        let mut line = self.lock();
        let next = line.choose();
        if next.is_none() {
            line.usage.in_use -= 1;
        }
        drop(line);
        // Outside the lock: waking may run whatever the waiter's executor does.
        if let Some(turn) = next {
            turn.waker.wake();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

/// Who waits, and in which order they are served.
#[derive(Debug, Default)]
struct Line {
    usage: Usage,
    weights: Arc<Weights>,
    /// Numbers waiters and turns, always upward.
    next_number: u64,
    /// The queue's time: that of the turn which was taken last.
    now: u64,
    /// Tenants with waiters, by the turn in which they are served next.
    turns: BTreeMap<TurnAt, Arc<str>>,
    tenants: HashMap<Arc<str>, Tenant>,
}

/// When a tenant is served: at a point of the queue's time, and among several at the same one by the number.
type TurnAt = (u64, u64);

#[derive(Debug)]
struct Tenant {
    turn: TurnAt,
    /// In the order of arrival.
    waiters: BTreeMap<u64, (Kind, Arc<Turn>)>,
}

/// Tells a waiter that its turn has come.
#[derive(Debug, Default)]
struct Turn {
    /// Set while the line is locked, so that a waiter that leaves knows whether it owns a place.
    came: AtomicBool,
    waker: AtomicWaker,
}

impl Line {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn enter(&mut self, tenant: &Arc<str>, kind: Kind) -> (u64, Arc<Turn>) {
        let ticket = self.number();
        let turn = Arc::new(Turn::default());
        self.count(kind, 1);
        if !self.tenants.contains_key(tenant) {
            let turn = self.next_turn(tenant);
            self.turns.insert(turn, Arc::clone(tenant));
            self.tenants.insert(Arc::clone(tenant), Tenant { turn, waiters: BTreeMap::new() });
        }
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.waiters.insert(ticket, (kind, Arc::clone(&turn)));
        }
        (ticket, turn)
    }

    /// The next turn of a tenant that is served now, or joins now. Whoever waits for nothing is owed nothing: being away
    /// gains no turns, and coming back costs none.
    fn next_turn(&mut self, tenant: &str) -> TurnAt {
        if self.turns.is_empty() {
            self.now = 0;
        }
        (self.now.saturating_add(self.weights.cost(tenant)), self.number())
    }

    /// Takes the next waiter out: the oldest one of the tenant whose turn it is.
    fn choose(&mut self) -> Option<Arc<Turn>> {
        let ((now, _), name) = self.turns.pop_first()?;
        self.now = now;
        let next = self.next_turn(&name);
        let tenant = self.tenants.get_mut(&name)?;
        let (_, (kind, turn)) = tenant.waiters.pop_first()?;
        tenant.turn = next;
        if tenant.waiters.is_empty() {
            self.tenants.remove(&name);
        } else {
            self.turns.insert(next, name);
        }
        self.count(kind, -1);
        turn.came.store(true, Ordering::Release);
        Some(turn)
    }

    /// Takes out a waiter that gives up.
    fn leave(&mut self, name: &Arc<str>, ticket: u64) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let Some((kind, _)) = tenant.waiters.remove(&ticket) else { return };
        if tenant.waiters.is_empty() {
            self.turns.remove(&tenant.turn);
            self.tenants.remove(name);
        }
        self.count(kind, -1);
    }

    fn count(&mut self, kind: Kind, change: isize) {
        let waiting = match kind {
            Kind::Plain => &mut self.usage.waiting_plain,
            Kind::Held => &mut self.usage.waiting_held,
        };
        *waiting = waiting.saturating_add_signed(change);
    }
}

/// A call in line.
struct Waiting<'a> {
    shared: &'a Arc<Shared>,
    tenant: &'a Arc<str>,
    ticket: u64,
    turn: Arc<Turn>,
    /// The place has become a permit.
    taken: bool,
}

impl Future for Waiting<'_> {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        // Registered before the look, so that a turn that comes in between wakes.
        self.turn.waker.register(cx.waker());
        if !self.turn.came.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.taken = true;
        Poll::Ready(Permit(Arc::clone(self.shared)))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut line = self.shared.lock();
        let came = self.turn.came.load(Ordering::Acquire);
        if !came {
            line.leave(self.tenant, self.ticket);
        }
        drop(line);
        if came {
            self.shared.release();
        }
    }
}

#[cfg(test)]
mod tests;
