//! What this process remembers of homes and of who is alive, so that not every request asks the store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::replica::Standing;
use crate::task::{Holder, SessionNumber};

/// So many homes are remembered; then all are forgotten and asked for again.
const MOST: usize = 65_536;

/// Remembers for a while; what is older is there for when the store is away.
#[derive(Debug)]
pub(super) struct Cache {
    fresh: Duration,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    homes: HashMap<SessionNumber, (Instant, Holder)>,
    standings: HashMap<Holder, (Instant, Standing)>,
    gone: HashMap<Holder, CancellationToken>,
    leaving: HashMap<Holder, Leaving>,
    ways: HashMap<Holder, TaskTracker>,
    /// Those that could not be connected to, and when.
    unreachable: HashMap<Holder, Instant>,
}

/// How far a process is with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// It takes nothing new.
    Begun,
    /// It is about to close its doors: it takes nothing.
    Closing,
}

impl Cache {
    pub(super) fn new(fresh: Duration) -> Self {
        Self { fresh, notes: Mutex::default() }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn home(&self, session: SessionNumber) -> Option<Holder> {
        let notes = self.notes();
        let (noted, home) = notes.homes.get(&session)?;
        (noted.elapsed() < self.fresh).then(|| home.clone())
    }

    pub(super) fn last_home(&self, session: SessionNumber) -> Option<Holder> {
        self.notes().homes.get(&session).map(|(_, home)| home.clone())
    }

    pub(super) fn note_home(&self, session: SessionNumber, home: &Holder) {
        let mut notes = self.notes();
        if notes.homes.len() >= MOST {
            notes.homes.clear();
        }
        notes.homes.insert(session, (Instant::now(), home.clone()));
    }

    pub(super) fn forget_home(&self, session: SessionNumber) {
        self.notes().homes.remove(&session);
    }

    pub(super) fn forget_homes(&self) {
        self.notes().homes.clear();
    }

    pub(super) fn standing(&self, holder: &Holder) -> Option<Standing> {
        let notes = self.notes();
        let (noted, standing) = notes.standings.get(holder)?;
        (noted.elapsed() < self.fresh).then_some(*standing)
    }

    pub(super) fn last_standing(&self, holder: &Holder) -> Option<Standing> {
        self.notes().standings.get(holder).map(|(_, standing)| *standing)
    }

    /// Notes how a holder stands; whoever waits for one that is gone for sure waits no more.
    pub(super) fn note_standing(&self, holder: &Holder, standing: Standing, is_gone: bool) {
        let mut notes = self.notes();
        if notes.standings.len() >= MOST {
            notes.standings.clear();
        }
        notes.standings.insert(holder.clone(), (Instant::now(), standing));
        if is_gone {
            notes.leaving.remove(holder);
            notes.ways.remove(holder);
            notes.unreachable.remove(holder);
            if let Some(gone) = notes.gone.remove(holder) {
                gone.cancel();
            }
        }
    }

    pub(super) fn forget_standing(&self, holder: &Holder) {
        self.notes().standings.remove(holder);
    }

    /// Cancelled when that holder is found to be gone.
    pub(super) fn gone(&self, holder: &Holder) -> CancellationToken {
        self.notes().gone.entry(holder.clone()).or_default().clone()
    }

    /// Notes that a holder is there; says whether that is news.
    pub(super) fn note_alive(&self, holder: &Holder) -> bool {
        let mut notes = self.notes();
        let is_new = !notes.gone.contains_key(holder);
        notes.gone.entry(holder.clone()).or_default();
        is_new
    }

    /// Notes that a holder is about to stop.
    pub(super) fn note_leaving(&self, holder: &Holder) {
        self.notes().leaving.entry(holder.clone()).or_insert(Leaving::Begun);
    }

    /// Notes that a holder is about to close its doors: from now on it is as good as gone. Gives what is on its way to it.
    pub(super) fn note_closing(&self, holder: &Holder) -> TaskTracker {
        let mut notes = self.notes();
        notes.leaving.insert(holder.clone(), Leaving::Closing);
        let way = notes.ways.entry(holder.clone()).or_default().clone();
        way.close();
        way
    }

    pub(super) fn is_closing(&self, holder: &Holder) -> bool {
        self.notes().leaving.get(holder) == Some(&Leaving::Closing)
    }

    /// To be kept while something is on its way to that holder.
    pub(super) fn on_the_way(&self, holder: &Holder) -> TaskTrackerToken {
        self.notes().ways.entry(holder.clone()).or_default().token()
    }

    /// Notes that a holder could not be connected to.
    pub(super) fn note_unreachable(&self, holder: &Holder) {
        self.notes().unreachable.insert(holder.clone(), Instant::now());
    }

    /// Those that may begin something new, as far as they can be reached.
    pub(super) fn staying(&self) -> Vec<Holder> {
        let notes = self.notes();
        let is_out_of_reach =
            |holder: &Holder| notes.unreachable.get(holder).is_some_and(|noted| noted.elapsed() < self.fresh);
        let stays = |holder: &&Holder| !notes.leaving.contains_key(*holder) && !is_out_of_reach(holder);
        notes.gone.keys().filter(stays).cloned().collect()
    }

    /// Those whose end somebody may wait for.
    pub(super) fn awaited(&self) -> Vec<Holder> {
        self.notes().gone.keys().cloned().collect()
    }
}
