//! What this process remembers of homes and of who is alive, so that not every request asks the store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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

    /// Notes how a holder stands; whoever waits for one that is gone waits no more.
    pub(super) fn note_standing(&self, holder: &Holder, standing: Standing) {
        let mut notes = self.notes();
        if notes.standings.len() >= MOST {
            notes.standings.clear();
        }
        notes.standings.insert(holder.clone(), (Instant::now(), standing));
        if standing == Standing::Over
            && let Some(gone) = notes.gone.remove(holder)
        {
            gone.cancel();
        }
    }

    pub(super) fn forget_standing(&self, holder: &Holder) {
        self.notes().standings.remove(holder);
    }

    /// Cancelled when that holder is found to be gone.
    pub(super) fn gone(&self, holder: &Holder) -> CancellationToken {
        self.notes().gone.entry(holder.clone()).or_default().clone()
    }

    /// Those whose end somebody may wait for.
    pub(super) fn awaited(&self) -> Vec<Holder> {
        self.notes().gone.keys().cloned().collect()
    }
}
