//! Something counted for each of many names that nobody knows beforehand, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::Clock as _;

use super::RuntimeClock;

/// How many names are counted by themselves at the same time. Those beyond it share one, so that memory has a bound whatever
/// names credentials carry.
pub(super) const MOST: usize = 10_000;

/// What is counted, and is as good as new some time after it was used last.
pub(in crate::tenant) trait Fills {
    /// After so long without use a new one would be no different.
    fn full_after(&self) -> Duration;
}

/// What is counted for each name.
#[derive(Debug)]
pub(in crate::tenant) struct Crowd<K, B> {
    // Held for a few map operations, and for one sweep a second at most.
    known: Mutex<Known<K, B>>,
    clock: RuntimeClock,
    /// Shared by those for whom there is no room.
    shared: Arc<B>,
}

#[derive(Debug)]
struct Known<K, B> {
    names: HashMap<K, Counted<B>>,
    /// When those that are full again were last looked for.
    swept: Duration,
}

#[derive(Debug)]
struct Counted<B> {
    counted: Arc<B>,
    used: Duration,
}

impl<K: Eq + Hash + Clone, B: Fills> Crowd<K, B> {
    /// Nobody is known yet.
    pub(in crate::tenant) fn new(shared: B, clock: RuntimeClock) -> Self {
        let known = Known { names: HashMap::new(), swept: Duration::ZERO };
        Self { known: Mutex::new(known), clock, shared: Arc::new(shared) }
    }

    /// What those share for whom there is no room.
    pub(super) fn shared(&self) -> &B {
        &self.shared
    }

    /// What is counted for a name, which is used now; `new` makes one that is full.
    pub(in crate::tenant) fn of(&self, name: &K, new: impl FnOnce() -> B) -> Arc<B> {
        let now = self.clock.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = known.names.get_mut(name) {
            counted.used = now;
            return Arc::clone(&counted.counted);
        }
        if known.names.len() >= MOST {
            known.sweep(now);
        }
        if known.names.len() >= MOST {
            return Arc::clone(&self.shared);
        }
        let counted = Arc::new(new());
        known.names.insert(name.clone(), Counted { counted: Arc::clone(&counted), used: now });
        counted
    }

    /// How many names are counted by themselves.
    #[cfg(test)]
    pub(in crate::tenant) fn len(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).names.len()
    }
}

impl<K, B: Fills> Known<K, B> {
    /// Forgets those that have filled since they were last used. Once a second at most, so that a crowd of names costs no more
    /// than a look-up each.
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept) < Duration::from_secs(1) {
            return;
        }
        self.swept = now;
        self.names.retain(|_, Counted { counted, used }| now.saturating_sub(*used) < counted.full_after());
    }
}
