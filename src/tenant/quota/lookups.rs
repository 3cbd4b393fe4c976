//! How often a caller may ask for what is not there: tasks and sessions that are unknown, expired or somebody else's.
//!
//! Nobody guesses an id of 122 random bits. The bound keeps whoever tries from having the gateway look things up, and its
//! operators read about it, without end (decision 39).

use std::num::NonZeroU32;
use std::time::Duration;

use super::bounded::Bounded;
use super::crowd::Crowd;
use super::{RetryAfter, RuntimeClock};
use crate::tenant::Principal;

/// So many at once. A client that comes back to tasks which are gone, after a restart or a holiday, learns so of all of them.
const BURST: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// And then one in so much time.
const INTERVAL: Duration = Duration::from_millis(100);
/// Callers who are not authenticated are one principal. It gets as much as so many others.
const ANYBODY: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Counts what each principal asked for in vain.
#[derive(Debug)]
pub struct Lookups {
    principals: Crowd<[u8; 16], Bounded>,
    anybody: Bounded,
    clock: RuntimeClock,
}

impl Default for Lookups {
    fn default() -> Self {
        let clock = RuntimeClock::start();
        let anybody = Bounded::new(BURST.saturating_mul(ANYBODY), INTERVAL / ANYBODY.get(), clock);
        Self { principals: Crowd::new(Bounded::new(BURST, INTERVAL, clock), clock), anybody, clock }
    }
}

impl Lookups {
    /// Counts names that a caller gave for things which are not there for it, all of them in one request. More than it may
    /// give at once count as so many: they are admitted as soon as nothing else was asked for.
    ///
    /// What is there is never counted, so nobody's vain requests stand in the way of what belongs to somebody.
    ///
    /// # Errors
    /// [`RetryAfter`] over the bound; nothing is counted then.
    pub fn missed(&self, principal: &Principal, names: u32) -> Result<(), RetryAfter> {
        let names = NonZeroU32::new(names).unwrap_or(NonZeroU32::MIN);
        if !principal.authenticated {
            return self.anybody.count(names);
        }
        let new = || Bounded::new(BURST, INTERVAL, self.clock);
        self.principals.of(&principal.digest(), new).count(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> Principal {
        Principal::of_api_key("acme".into(), name.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_told_the_truth_and_then_ten_in_a_second() {
        let lookups = Lookups::default();
        let (eve, ann) = (caller("eve"), caller("ann"));
        for _ in 0..BURST.get() {
            assert_eq!(lookups.missed(&eve, 1), Ok(()));
        }
        assert_eq!(lookups.missed(&eve, 1), Err(RetryAfter(INTERVAL)));
        // Of the same tenant, and not touched.
        assert_eq!(lookups.missed(&ann, 1), Ok(()));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((lookups.missed(&eve, 1), lookups.missed(&eve, 1)), (Ok(()), Err(RetryAfter(INTERVAL))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_names_counts_as_many_and_is_admitted_in_the_end() {
        let (lookups, eve) = (Lookups::default(), caller("eve"));
        assert_eq!(lookups.missed(&eve, 60), Ok(()));
        assert_eq!(lookups.missed(&eve, 60), Err(RetryAfter(20 * INTERVAL)));
        // What is refused counts for nothing.
        assert_eq!(lookups.missed(&eve, 40), Ok(()));
        let RetryAfter(wait) = lookups.missed(&eve, 1024).unwrap_err();
        assert_eq!(wait, BURST.get() * INTERVAL);
        tokio::time::advance(wait).await;
        assert_eq!(lookups.missed(&eve, 1024), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_cannot_be_told_apart_share_more() {
        let (lookups, anybody) = (Lookups::default(), Principal::anonymous());
        for _ in 0..ANYBODY.get() * BURST.get() {
            assert_eq!(lookups.missed(&anybody, 1), Ok(()));
        }
        assert_eq!(lookups.missed(&anybody, 1), Err(RetryAfter(INTERVAL / ANYBODY.get())));
        assert_eq!(lookups.missed(&caller("ann"), 1), Ok(()));
    }
}
