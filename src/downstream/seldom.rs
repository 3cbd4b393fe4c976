//! What is worth a line in the log, and not one for every request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(60);

/// Lets the first of its kind through, and then one in a minute.
#[derive(Debug, Default)]
pub(super) struct Seldom(AtomicU64);

impl Seldom {
    /// Whether this one is told.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        let told = self.0.load(Ordering::Relaxed);
        let is_due = told == 0 || now.as_millis() >= told.saturating_add(pause);
        is_due && self.0.compare_exchange(told, now.as_millis(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_one_in_a_minute() {
        let seldom = Seldom::default();
        let told = |at| seldom.is_due(Timestamp::from_millis(at));
        let told: Vec<bool> = [1, 2, 60_000, 60_001, 60_002, 200_000].map(told).to_vec();
        assert_eq!(told, [true, false, false, true, false, true]);
    }
}
