//! Refused accesses in the audit log: a line for each, until somebody is refused so often that more lines would say nothing
//! but fill a disk. From then on they are counted, and the count has a line.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Principal;
use super::quota::{Bounded, Crowd, Fills, RuntimeClock};
use crate::jobs::Jobs;

/// As many lines at once for one caller and reason.
const LINES: NonZeroU32 = NonZeroU32::new(50).unwrap();
/// And then one in so much time.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long those without a line are counted before the count is told.
const COUNTED_FOR: Duration = Duration::from_secs(10);

/// An access that was refused.
#[derive(Debug, Clone, Copy)]
pub struct RefusedAccess<'a> {
    /// Who was refused, where that is known.
    pub principal: Option<&'a Principal>,
    /// The address of whoever asked, where that is known.
    pub peer: Option<IpAddr>,
    /// Where; empty where that is no route.
    pub route: &'a str,
    /// The tool that was asked for, or nothing.
    pub tool: &'a str,
    /// The task that was asked for, or nothing.
    pub task: &'a str,
    /// Why: a word from a fixed list.
    pub reason: &'static str,
}

/// Writes the lines.
#[derive(Debug)]
pub struct Refusals {
    // By the principal's digest, none for callers without one, and by reason.
    callers: Crowd<([u8; 16], &'static str), Lines>,
    clock: RuntimeClock,
    jobs: Jobs,
}

/// What one caller is refused for one reason.
#[derive(Debug)]
struct Lines {
    bound: Bounded,
    /// Refusals without a line that were not told yet.
    untold: AtomicU64,
}

impl Lines {
    fn new(clock: RuntimeClock) -> Self {
        Self { bound: Bounded::new(LINES, INTERVAL, clock), untold: AtomicU64::new(0) }
    }
}

impl Fills for Lines {
    fn full_after(&self) -> Duration {
        self.bound.full_after()
    }
}

impl Refusals {
    /// Nobody was refused yet; counts are told by jobs of these.
    #[must_use]
    pub fn new(jobs: Jobs) -> Self {
        let clock = RuntimeClock::start();
        Self { callers: Crowd::new(Lines::new(clock), clock), clock, jobs }
    }

    /// Notes one. Must run inside a runtime.
    pub fn note(&self, refused: &RefusedAccess<'_>) {
        let RefusedAccess { principal, peer, route, tool, task, reason } = *refused;
        let caller = principal.map_or([0; 16], |principal| principal.digest());
        let lines = self.callers.of(&(caller, reason), || Lines::new(self.clock));
        if lines.bound.count(NonZeroU32::MIN).is_ok() {
            let (tenant, issuer, subject) = principal.map_or(("", "", ""), names);
            let peer = peer.map(tracing::field::display);
            tracing::info!(target: "audit", event = "refused", tenant, issuer, subject, peer, route, tool, task, reason);
        } else if lines.untold.fetch_add(1, Ordering::Relaxed) == 0 {
            self.tell_later(principal.cloned(), reason, lines);
        }
    }

    /// Tells of those without a line when some time has passed, or the process stops.
    fn tell_later(&self, principal: Option<Principal>, reason: &'static str, lines: Arc<Lines>) {
        let stopping = self.jobs.stopping().clone();
        self.jobs.spawn("audit", async move {
            let _is_over = stopping.run_until_cancelled(tokio::time::sleep(COUNTED_FOR)).await;
            let count = lines.untold.swap(0, Ordering::Relaxed);
            let (tenant, issuer, subject) = principal.as_ref().map_or(("", "", ""), names);
            tracing::info!(target: "audit", event = "refused_more", tenant, issuer, subject, reason, count);
        });
    }
}

fn names(principal: &Principal) -> (&str, &str, &str) {
    (&principal.tenant, &principal.issuer, &principal.subject)
}

#[cfg(test)]
mod tests;
