//! Wall time that follows the runtime's clock, so that tests which pause or advance the one move the other.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A moment in wall time, in whole milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The moment `duration` later, or the last one that can be written.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds and `Z` (2025-11-25 tasks, "Task").
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The formatter knows no year past 9999.
        let last = 253_402_300_799_999;
        let time = UNIX_EPOCH + Duration::from_millis(self.0.min(last));
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

/// Tells the time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    started_at: Timestamp,
}

impl Clock {
    /// A clock set from the machine's wall clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place where the wall clock is read")]
    pub fn system() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_at: Timestamp(0).plus(since_epoch) }
    }

    /// The same clock, so much ahead or behind.
    #[cfg(test)]
    pub(crate) fn off_by(self, millis: i64) -> Self {
        Self { started_at: Timestamp(self.started_at.0.saturating_add_signed(millis)), ..self }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.started_at.plus(self.started.elapsed())
    }

    /// The runtime's instant for a moment in wall time, to sleep until it. A moment before the clock was set is now.
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Instant {
        // A year is far past any deadline, and keeps the sum inside what the platform's clock can hold.
        let ahead = at.since(self.started_at).min(Duration::from_secs(366 * 24 * 3600));
        self.started + ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_rfc_3339() {
        assert_eq!(Timestamp::from_millis(1_764_444_444_007).to_string(), "2025-11-29T19:27:24.007Z");
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[tokio::test(start_paused = true)]
    async fn follows_the_runtime() {
        let clock = Clock::system();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now().since(before), Duration::from_secs(5));
        assert_eq!(clock.instant(clock.now()), Instant::now());
    }
}
