//! A bucket of a fixed size that is nobody's setting.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use super::crowd::Fills;
use super::{RetryAfter, RuntimeClock, wait};

/// So many at once, and then one in each interval.
#[derive(Debug)]
pub(in crate::tenant) struct Bounded {
    limiter: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<Duration>>,
    quota: Quota,
}

impl Bounded {
    pub(in crate::tenant) fn new(burst: NonZeroU32, interval: Duration, clock: RuntimeClock) -> Self {
        let interval = interval.max(Duration::from_nanos(1));
        let quota = Quota::with_period(interval).unwrap_or(Quota::per_second(burst)).allow_burst(burst);
        Self { limiter: RateLimiter::direct_with_clock(quota, clock), quota }
    }

    /// Counts so many. More than there may be at once count as that: they are admitted when nothing else was counted for long
    /// enough.
    ///
    /// # Errors
    /// [`RetryAfter`] over the bound; nothing is counted then.
    pub(in crate::tenant) fn count(&self, number: NonZeroU32) -> Result<(), RetryAfter> {
        let number = number.min(self.quota.burst_size());
        match self.limiter.check_n(number) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => Err(wait(&until, self.limiter.clock())),
            // Not more than the burst.
            Err(_) => Err(RetryAfter(self.full_after())),
        }
    }
}

impl Fills for Bounded {
    fn full_after(&self) -> Duration {
        self.quota.burst_size_replenished_in()
    }
}
