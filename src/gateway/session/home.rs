//! How a session stands to this process, among those that share it (see `gateway::homes`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Timestamp;

use super::Session;

/// Whose home a session is, as far as this process knows.
#[derive(Debug, Default)]
pub(super) struct HomeState {
    /// The home is another process, for which this one stands in.
    is_elsewhere: AtomicBool,
    /// Up to which lapse of this process's lease it is known whose home it is.
    confirmed: AtomicU64,
    /// When it was claimed, in milliseconds; 0 where this process made it.
    claimed: AtomicU64,
}

impl Session {
    /// Whether another process is its home: that one ends it upstream, and judges whether it is idle.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere.load(Ordering::Relaxed)
    }

    /// Notes that another process is its home.
    pub(in crate::gateway) fn give_away(&self) {
        self.home.is_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Notes that this process is its home since then, by a claim.
    pub(in crate::gateway) fn claimed_at(&self, now: Timestamp) {
        self.home.claimed.store(now.as_millis(), Ordering::Relaxed);
        self.home.is_elsewhere.store(false, Ordering::Relaxed);
    }

    /// When it was claimed last; `None` where this process made it.
    pub(in crate::gateway) fn claimed(&self) -> Option<Timestamp> {
        let claimed = self.home.claimed.load(Ordering::Relaxed);
        (claimed > 0).then(|| Timestamp::from_millis(claimed))
    }

    /// Whether it is known whose home it is since the lease of this process lapsed so many times.
    pub(in crate::gateway) fn is_confirmed(&self, lapses: u64) -> bool {
        self.home.confirmed.load(Ordering::Relaxed) >= lapses
    }

    /// Notes that.
    pub(in crate::gateway) fn confirm(&self, lapses: u64) {
        self.home.confirmed.fetch_max(lapses, Ordering::Relaxed);
    }
}
