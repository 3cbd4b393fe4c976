//! A bucket that takes back what turned out to be nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

use super::{Bucket, RetryAfter, RuntimeClock, wait};

/// Counts what may fail after it was counted.
#[derive(Debug)]
pub(super) struct Returnable {
    limiter: RateLimiter<NotKeyed, Level, RuntimeClock, NoOpMiddleware<Duration>>,
    level: Level,
    interval: u64,
}

/// How full the bucket is, in the limiter's own terms: the time at which it will be full.
#[derive(Debug, Clone, Default)]
struct Level(Arc<InMemoryState>);

impl StateStore for Level {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, measure)
    }
}

impl Returnable {
    pub(super) fn new(quota: Quota, clock: RuntimeClock) -> Self {
        let level = Level::default();
        let interval = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        Self { limiter: RateLimiter::new(quota, level.clone(), clock), level, interval }
    }

    /// Takes back what was counted once: each count moves the time of being full by one interval, so this moves it back.
    pub(super) fn give_back(&self) {
        let earlier = |full: Option<Nanos>| {
            let full = full.map_or(0, Nanos::as_u64).saturating_sub(self.interval);
            Ok::<_, Infallible>(((), Nanos::new(full)))
        };
        let Ok(()) = self.level.measure_and_replace(&NotKeyed::NonKey, earlier);
    }
}

impl Bucket for Returnable {
    type Admitted = ();

    fn count(&self) -> Result<(), RetryAfter> {
        self.limiter.check().map_err(|until| wait(&until, self.limiter.clock()))
    }
}
