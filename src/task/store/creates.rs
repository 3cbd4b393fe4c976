//! How often a tenant may create tasks. A store counts a creation in the step that makes the task, so that what is refused
//! counts for nothing and replicas that share a store share the count.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Quota, QuotaReason};
use crate::clock::Timestamp;

/// A rate that is kept by one number (GCRA): the time at which the bucket is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateRate {
    interval: Duration,
    burst: u32,
}

impl CreateRate {
    /// `count` in each `period`, and up to `burst` at once. `None` where a bucket would fill in less than a microsecond a
    /// piece, or take more than a year.
    #[must_use]
    pub fn new(count: NonZeroU32, period: Duration, burst: NonZeroU32) -> Option<Self> {
        let interval = period.checked_div(count.get()).filter(|interval| *interval >= Duration::from_micros(1))?;
        let year = Duration::from_secs(366 * 24 * 3600);
        interval.checked_mul(burst.get()).filter(|filling| *filling <= year)?;
        Some(Self { interval, burst: burst.get() })
    }

    /// The time that one creation takes to come free again.
    #[must_use]
    pub const fn interval(self) -> Duration {
        self.interval
    }

    /// How many at once.
    #[must_use]
    pub const fn burst(self) -> u32 {
        self.burst
    }

    /// Counts one more at `now` where the bucket is full at `full`, both since the epoch: gives when it is full then.
    ///
    /// # Errors
    /// How long to wait, where there is no room.
    pub fn admit(self, full: Duration, now: Duration) -> Result<Duration, Duration> {
        let full = full.max(now);
        // A bucket with room for one is full after all of its burst but one.
        let latest = now + self.interval * (self.burst - 1);
        if full > latest { Err(full - latest) } else { Ok(full + self.interval) }
    }
}

/// The buckets of a store that counts in this process. Full ones are forgotten.
#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    full: HashMap<Arc<str>, Duration>,
    /// At so many the full ones are looked for.
    tidy_at: usize,
}

/// Tenants with a bucket, before full ones are looked for.
const FEW: usize = 1024;

impl Buckets {
    /// Whether the tenant may create one more: what to [`Buckets::set`] when it has.
    ///
    /// # Errors
    /// Where it may not, with how long to wait.
    pub(super) fn admit(&self, tenant: &str, rate: CreateRate, now: Timestamp) -> Result<Duration, Quota> {
        let full = self.lock().full.get(tenant).copied().unwrap_or_default();
        let quota = |wait| Quota { reason: QuotaReason::Creates, limit: rate.burst.into(), until_expiry: Some(wait) };
        rate.admit(full, since_epoch(now)).map_err(quota)
    }

    /// Counts what was admitted. Nobody else asks for the tenant in between.
    pub(super) fn set(&self, tenant: &Arc<str>, full: Duration, now: Timestamp) {
        let mut kept = self.lock();
        kept.full.insert(Arc::clone(tenant), full);
        if kept.full.len() >= kept.tidy_at.max(FEW) {
            kept.full.retain(|_, full| *full > since_epoch(now));
            kept.tidy_at = kept.full.len() * 2;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn since_epoch(at: Timestamp) -> Duration {
    Duration::from_millis(at.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(count: u32, period: Duration, burst: u32) -> Option<CreateRate> {
        CreateRate::new(NonZeroU32::new(count).unwrap(), period, NonZeroU32::new(burst).unwrap())
    }

    #[test]
    fn a_burst_passes_and_then_one_at_each_interval() {
        let (rate, at) = (rate(10, Duration::from_secs(1), 3).unwrap(), Duration::from_millis);
        let now = at(1_764_444_444_007);
        let mut full = Duration::ZERO;
        for _ in 0..3 {
            full = rate.admit(full, now).unwrap();
        }
        assert_eq!(rate.admit(full, now), Err(at(100)));
        assert_eq!(rate.admit(full, now + at(99)), Err(at(1)));
        full = rate.admit(full, now + at(100)).unwrap();
        assert_eq!(rate.admit(full, now + at(130)), Err(at(70)));
        // Unused time fills the bucket, but never past the burst.
        let later = now + at(5000);
        let passed = (0..10).filter(|_| rate.admit(full, later).map(|next| full = next).is_ok()).count();
        assert_eq!(passed, 3);
    }

    #[test]
    fn rates_that_no_bucket_can_keep_are_refused() {
        let year = Duration::from_secs(366 * 24 * 3600);
        assert!(rate(1, Duration::ZERO, 1).is_none());
        assert!(rate(2, Duration::from_micros(1), 1).is_none());
        assert!(rate(1, Duration::MAX, u32::MAX).is_none());
        assert!(rate(1, year + Duration::from_micros(1), 1).is_none());
        assert!(rate(1, year, 1).is_some());
        assert!(rate(1_000_000, Duration::from_secs(1), u32::MAX).is_some());
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let (buckets, rate) = (Buckets::default(), rate(1, Duration::from_secs(1), 1).unwrap());
        let count = |number: usize, at: u64| {
            let (tenant, now) = (Arc::from(number.to_string()), Timestamp::from_millis(at));
            let full = buckets.admit(&tenant, rate, now)?;
            buckets.set(&tenant, full, now);
            Ok::<_, Quota>(())
        };
        for number in 0..FEW - 1 {
            count(number, 1000).unwrap();
        }
        assert!(count(0, 1500).is_err());
        assert_eq!(buckets.lock().full.len(), FEW - 1);
        count(FEW, 3000).unwrap();
        assert_eq!(buckets.lock().full.len(), 1);
        assert!(count(FEW, 3000).is_err());
    }
}
