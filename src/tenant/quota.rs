//! How often a tenant may ask: requests and polls, each a rate with a burst. Creations of tasks are counted where tasks are
//! kept.
//!
//! Requests over their rate are refused. A poll over its rate is delayed first, since a client that polls
//! too often is better slowed than broken; only a poll that would have to wait longer than [`LONGEST_DELAY`] is refused.

mod bounded;
mod crowd;
mod lookups;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::{NoOpMiddleware, StateInformationMiddleware};
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use tokio::time::Instant;

pub(super) use bounded::Bounded;
pub(super) use crowd::{Crowd, Fills};
pub use lookups::Lookups;

/// How long a poll is held back at most.
pub const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A rate that can be kept: so many in so much time, and a burst above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(Quota);

impl Rate {
    /// `count` in each `period`, and up to `burst` at once. `None` where a bucket would fill in less than a nanosecond
    /// a piece, or take more than a year.
    #[must_use]
    pub fn new(count: NonZeroU32, period: Duration, burst: NonZeroU32) -> Option<Self> {
        let interval = period.checked_div(count.get())?;
        let year = Duration::from_secs(366 * 24 * 3600);
        interval.checked_mul(burst.get()).filter(|filling| *filling <= year)?;
        Some(Self(Quota::with_period(interval)?.allow_burst(burst)))
    }

    /// The same rate with room for as many more as come free within [`LONGEST_DELAY`]: those wait.
    fn with_delay(self) -> (Quota, u32) {
        let waiting = LONGEST_DELAY.as_nanos() / self.0.replenish_interval().as_nanos();
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX).min(u32::MAX - self.0.burst_size().get());
        (self.0.allow_burst(self.0.burst_size().saturating_add(waiting)), waiting)
    }
}

/// A tenant's rates. `None`: no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Everything but polls.
    pub requests: Option<Rate>,
    /// `tasks/get`, `tasks/list` and `tasks/result`.
    pub polls: Option<Rate>,
}

impl Limits {
    fn are_set(&self) -> bool {
        self.requests.is_some() || self.polls.is_some()
    }
}

/// Refused for now: when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tenant asks too often")]
pub struct RetryAfter(pub Duration);

/// Everybody's rates.
#[derive(Debug)]
pub struct Rates {
    /// Whether any rate is set at all; without one, checks cost nothing.
    any: bool,
    default: Limits,
    named: HashMap<Arc<str>, Buckets>,
    unnamed: Crowd<Arc<str>, Buckets>,
    clock: RuntimeClock,
}

impl Rates {
    /// Rates of `named` tenants, and `default` ones that each other tenant has for itself.
    #[must_use]
    pub fn new(default: Limits, named: impl IntoIterator<Item = (Arc<str>, Limits)>) -> Self {
        let clock = RuntimeClock::start();
        let named: Vec<_> = named.into_iter().collect();
        Self {
            any: default.are_set() || named.iter().any(|(_, limits)| limits.are_set()),
            default,
            named: named.into_iter().map(|(tenant, limits)| (tenant, Buckets::new(&limits, clock))).collect(),
            unnamed: Crowd::new(Buckets::new(&default, clock), clock),
            clock,
        }
    }

    /// Counts a request that is no poll.
    ///
    /// # Errors
    /// [`RetryAfter`] over the rate; nothing is counted then.
    pub fn check_request(&self, tenant: &Arc<str>) -> Result<(), RetryAfter> {
        self.check(tenant, |buckets| buckets.requests.as_ref())
    }

    /// Counts a poll, and over the rate waits until its turn has come. Turns are handed out in the order of arrival and
    /// kept when the future is dropped, so that hanging up gains nothing.
    ///
    /// # Errors
    /// [`RetryAfter`] at once when the turn would come too late.
    pub async fn admit_poll(&self, tenant: &Arc<str>) -> Result<(), RetryAfter> {
        let delay = self.check(tenant, |buckets| buckets.polls.as_ref())?;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(())
    }

    fn check<B: Bucket>(
        &self,
        tenant: &Arc<str>,
        bucket: impl Fn(&Buckets) -> Option<&B>,
    ) -> Result<B::Admitted, RetryAfter> {
        if !self.any {
            return Ok(B::Admitted::default());
        }
        let count = |buckets: &Buckets| bucket(buckets).map_or(Ok(B::Admitted::default()), B::count);
        match self.named.get(tenant) {
            Some(buckets) => count(buckets),
            // All of these have the same limits, so that any tells whether there is anything to count.
            None if bucket(self.unnamed.shared()).is_some() => count(&self.unnamed(tenant)),
            None => Ok(B::Admitted::default()),
        }
    }

    fn unnamed(&self, tenant: &Arc<str>) -> Arc<Buckets> {
        self.unnamed.of(tenant, || Buckets::new(&self.default, self.clock))
    }
}

/// The buckets of one tenant.
#[derive(Debug)]
struct Buckets {
    requests: Option<Strict>,
    polls: Option<Patient>,
    /// After so long without use, all are as full as new ones.
    full_after: Duration,
}

impl Buckets {
    fn new(limits: &Limits, clock: RuntimeClock) -> Self {
        let polls = limits.polls.map(|rate| Patient::new(rate, clock));
        let filled_in = |quota: Quota| quota.burst_size_replenished_in();
        let full_after =
            [limits.requests.map(|rate| filled_in(rate.0)), polls.as_ref().map(|polls| filled_in(polls.quota))];
        Self {
            requests: limits.requests.map(|rate| Strict(RateLimiter::direct_with_clock(rate.0, clock))),
            polls,
            full_after: full_after.into_iter().flatten().max().unwrap_or_default(),
        }
    }
}

impl Fills for Buckets {
    fn full_after(&self) -> Duration {
        self.full_after
    }
}

/// How long until the next one is admitted.
fn wait(until: &NotUntil<Duration>, clock: &RuntimeClock) -> RetryAfter {
    RetryAfter(until.wait_time_from(clock.now()))
}

/// Something that counts one more, or says when it could.
trait Bucket {
    type Admitted: Default;

    fn count(&self) -> Result<Self::Admitted, RetryAfter>;
}

#[derive(Debug)]
struct Strict(RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>);

impl Bucket for Strict {
    type Admitted = ();

    fn count(&self) -> Result<(), RetryAfter> {
        self.0.check().map_err(|until| wait(&until, self.0.clock()))
    }
}

/// A bucket that admits ahead of time and says how long to wait: the last `waiting` of its burst are borrowed from the
/// next [`LONGEST_DELAY`].
#[derive(Debug)]
struct Patient {
    limiter: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, StateInformationMiddleware>,
    quota: Quota,
    interval: Duration,
    waiting: u32,
}

impl Patient {
    fn new(rate: Rate, clock: RuntimeClock) -> Self {
        let (quota, waiting) = rate.with_delay();
        let limiter = RateLimiter::direct_with_clock(quota, clock).with_middleware();
        Self { limiter, quota, interval: rate.0.replenish_interval(), waiting }
    }
}

impl Bucket for Patient {
    type Admitted = Duration;

    fn count(&self) -> Result<Duration, RetryAfter> {
        match self.limiter.check() {
            Ok(state) => Ok(self.interval * self.waiting.saturating_sub(state.remaining_burst_capacity())),
            Err(until) => Err(wait(&until, self.limiter.clock())),
        }
    }
}

/// The runtime's clock, so that rates and delays agree on the time, in tests too.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuntimeClock {
    started: Instant,
}

impl RuntimeClock {
    pub(super) fn start() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for RuntimeClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests;
