//! Keeps a command that never gets as far as answering `initialize` from being started again and again.

use std::time::Duration;

use tokio::time::Instant;

/// The wait after the second failure in a row. The first is free: it may have been an accident.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);
/// Failures are forgotten when this long has passed without another.
const MEMORY: Duration = Duration::from_secs(30);

/// The failures of late.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    reason: String,
}

/// The command must not be started yet.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not started again for another {wait:?}, after {failures} failures in a row; the last: {reason}")]
pub(super) struct TooSoon {
    wait: Duration,
    failures: u32,
    reason: String,
}

impl Backoff {
    /// Whether the command may be started now.
    pub(super) fn admit(&self, now: Instant) -> Result<(), TooSoon> {
        let Some(last) = &self.last else { return Ok(()) };
        let wait = (last.at + self.wait()).saturating_duration_since(now);
        if wait.is_zero() {
            return Ok(());
        }
        Err(TooSoon { wait, failures: self.failures, reason: last.reason.clone() })
    }

    /// Notes that a child was of no use.
    pub(super) fn failed(&mut self, now: Instant, reason: String) {
        let forgotten = self.last.as_ref().is_none_or(|last| now.saturating_duration_since(last.at) > MEMORY);
        self.failures = if forgotten { 1 } else { self.failures.saturating_add(1) };
        self.last = Some(Failure { at: now, reason });
    }

    /// Notes that a child has answered `initialize`: the command can be started.
    pub(super) fn worked(&mut self) {
        *self = Self::default();
    }

    fn wait(&self) -> Duration {
        match self.failures {
            0 | 1 => Duration::ZERO,
            failures => FIRST.saturating_mul(2_u32.saturating_pow(failures - 2)).min(LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_to_its_limit_and_is_forgotten() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        assert_eq!(backoff.admit(start), Ok(()));
        let mut waits = Vec::new();
        for _ in 0..100 {
            backoff.failed(start, "why".to_owned());
            waits.push(backoff.admit(start).err().map_or(0, |soon| soon.wait.as_millis()));
        }
        assert_eq!(waits[..9], [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(waits.last(), Some(&5000));
        assert!(backoff.admit(start + LONGEST).is_ok());
        backoff.failed(start + MEMORY + LONGEST, "why".to_owned());
        assert!(backoff.admit(start + MEMORY + LONGEST).is_ok());
        backoff.failed(start + MEMORY + LONGEST, "why".to_owned());
        assert!(backoff.admit(start + MEMORY + LONGEST).is_err());
        backoff.worked();
        assert!(backoff.admit(start + MEMORY + LONGEST).is_ok());
    }
}
