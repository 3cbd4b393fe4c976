//! Whether what replicas share has lost what it was told: a server that is there again without its data, or with old ones. Then a
//! lease that is not there says nothing of whose it was.
//!
//! Two things show it. There is a mark which whoever finds none makes, so that one that is gone or another was lost with all the
//! rest. And the lease of whoever asks must be there for as long as it runs: who renews one that was lost makes another mark, so
//! that all the others learn of it before they see anything else.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// What one process knows of it.
#[derive(Debug, Default)]
pub(super) struct Losses {
    count: watch::Sender<u64>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    mark: Option<String>,
    /// When the renewal was asked for that was the last to succeed.
    renewed: Option<Instant>,
    /// Makes marks differ.
    renewals: u64,
}

impl Losses {
    /// How many were found by now.
    pub(super) fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// Tells of each that is found from now on.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Whether this process's lease must be there. Said of the first half of it alone: a command may be long on its way.
    pub(super) fn must_be_there(&self, lease: Duration) -> bool {
        self.known().renewed.is_some_and(|renewed| renewed.elapsed() < lease / 2)
    }

    /// A mark that nobody has made before; `me` is who makes it.
    pub(super) fn new_mark(&self, me: &str) -> String {
        let mut known = self.known();
        known.renewals += 1;
        format!("{me}.{}", known.renewals)
    }

    /// Notes a renewal that was asked for then, and the mark after it.
    pub(super) fn renewed(&self, asked: Instant, mark: &str) {
        self.see(Some(mark));
        self.known().renewed = Some(asked);
    }

    /// Notes the mark of an answer.
    pub(super) fn see(&self, mark: Option<&str>) {
        let mut known = self.known();
        let is_lost = mark.is_none() || (known.mark.is_some() && known.mark.as_deref() != mark);
        known.mark = mark.map(str::to_owned);
        drop(known);
        if is_lost {
            self.found();
        }
    }

    /// Notes that something was lost.
    pub(super) fn found(&self) {
        self.count.send_modify(|count| *count += 1);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
