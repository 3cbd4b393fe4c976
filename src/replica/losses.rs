//! Whether what replicas share has lost what it was told: a server that is there again without its data, or with old ones. Then a
//! lease that is not there says nothing of whose it was.
//!
//! Two things show it. There is a mark which whoever finds none makes, so that one that is gone or another was lost with all the
//! rest. And the lease of whoever asks must be there for as long as it runs: who renews one that was lost makes another mark, so
//! that all the others learn of it before they see anything else. Where the mark is another than at the last renewal, the loss is
//! shown already: those who renew after the first make none, or each loss would count once for every replica.

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
    mark: Mark,
    /// When the renewal was asked for that was the last to succeed, and the mark after it.
    renewed: Option<(Instant, String)>,
    /// Whether the lease that was renewed then was found to be lost.
    is_lease_lost: bool,
    /// Makes marks differ.
    renewals: u64,
}

/// What was last seen of the mark.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mark {
    #[default]
    Unseen,
    Gone,
    There(String),
}

/// What was known when something was asked.
#[derive(Debug)]
pub(super) struct Asked {
    at: Instant,
    losses: u64,
    /// Where this process's lease must be there: the mark after its last renewal.
    renewed_at: Option<String>,
}

impl Asked {
    /// With that mark this process's lease must be there. It is nobody's where it need not be.
    pub(super) fn mark_of_lease(&self) -> &str {
        self.renewed_at.as_deref().unwrap_or_default()
    }
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

    /// To be noted before anything is asked. This process's lease must be there in the first half of it alone: a command may be
    /// long on its way.
    pub(super) fn ask(&self, lease: Duration) -> Asked {
        let known = self.known();
        let renewed = known.renewed.as_ref().filter(|(renewed, _)| renewed.elapsed() < lease / 2);
        Asked { at: Instant::now(), losses: self.count(), renewed_at: renewed.map(|(_, mark)| mark.clone()) }
    }

    /// A mark that nobody has made before; `me` is who makes it.
    pub(super) fn new_mark(&self, me: &str) -> String {
        let mut known = self.known();
        known.renewals += 1;
        format!("{me}.{}", known.renewals)
    }

    /// Notes a renewal that was asked for then, and the mark after it.
    pub(super) fn renewed(&self, asked: &Asked, mark: &str) {
        let mut known = self.known();
        let is_lost = known.tells_of_a_loss(Some(mark));
        known.mark = Mark::There(mark.to_owned());
        known.renewed = Some((asked.at, mark.to_owned()));
        known.is_lease_lost = false;
        self.note(asked, is_lost);
    }

    /// Notes an answer: the mark, and whether this process's lease is there.
    pub(super) fn see(&self, asked: &Asked, mark: Option<&str>, is_lease_there: bool) {
        let mut known = self.known();
        if self.count() != asked.losses {
            // What it shows may be older than what is known by now, and what that was counted for.
            return;
        }
        let mut is_lost = known.tells_of_a_loss(mark);
        known.mark = mark.map_or(Mark::Gone, |mark| Mark::There(mark.to_owned()));
        if !is_lease_there && mark.is_some() && asked.renewed_at.as_deref() == mark {
            is_lost |= !std::mem::replace(&mut known.is_lease_lost, true);
        }
        self.note(asked, is_lost);
    }

    /// With what is known held, so that of two answers to what was asked at once only one counts.
    fn note(&self, asked: &Asked, is_lost: bool) {
        if is_lost {
            self.count.send_if_modified(|count| {
                let is_news = *count == asked.losses;
                *count += u64::from(is_news);
                is_news
            });
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether a mark shows a loss that was not counted.
    fn tells_of_a_loss(&self, mark: Option<&str>) -> bool {
        match (&self.mark, mark) {
            (Mark::Gone, _) | (Mark::Unseen, Some(_)) => false,
            (Mark::Unseen, None) => true,
            (Mark::There(before), now) => {
                let is_another = now != Some(before.as_str());
                // It is what was lost with the lease.
                let is_counted =
                    self.is_lease_lost && self.renewed.as_ref().is_some_and(|(_, renewed)| renewed == before);
                is_another && !is_counted
            }
        }
    }
}
