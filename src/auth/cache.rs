//! What was found out about tokens, for a while: a bounded map in several parts, so that threads seldom meet.
//!
//! A part forgets in halves: what was not asked for since half of the room was filled anew is gone. That keeps whatever is
//! in use, costs nothing on the way, and needs no list of ages.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts; a power of two.
const PARTS: usize = 16;

/// Which token at which resource: the token's SHA-256, and the resource's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) digest: [u8; 32],
    pub(super) resource: u32,
}

/// The map.
#[derive(Debug)]
pub(super) struct Cache<V> {
    parts: [Mutex<Part<V>>; PARTS],
    /// Entries of half a part.
    half: usize,
}

#[derive(Debug)]
struct Part<V> {
    young: HashMap<Key, V>,
    old: HashMap<Key, V>,
}

impl<V: Clone> Cache<V> {
    /// One that never holds more than `room` entries, or `2 * PARTS` where that is more.
    pub(super) fn new(room: usize) -> Self {
        let part = |_| Mutex::new(Part { young: HashMap::new(), old: HashMap::new() });
        Self { parts: std::array::from_fn(part), half: (room / (2 * PARTS)).max(1) }
    }

    /// What is known.
    pub(super) fn get(&self, key: &Key) -> Option<V> {
        let mut part = self.part(key);
        if let Some(value) = part.young.get(key) {
            return Some(value.clone());
        }
        let value = part.old.remove(key)?;
        part.put(*key, value.clone(), self.half);
        Some(value)
    }

    /// Remembers.
    pub(super) fn put(&self, key: Key, value: V) {
        let mut part = self.part(&key);
        part.old.remove(&key);
        part.put(key, value, self.half);
    }

    /// Forgets.
    pub(super) fn remove(&self, key: &Key) {
        let mut part = self.part(key);
        part.young.remove(key);
        part.old.remove(key);
    }

    fn part(&self, key: &Key) -> MutexGuard<'_, Part<V>> {
        let [first, ..] = key.digest;
        let part = self.parts.get(usize::from(first) % PARTS).unwrap_or(&self.parts[0]);
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap()).map(|part| part.young.len() + part.old.len()).sum()
    }
}

impl<V> Part<V> {
    fn put(&mut self, key: Key, value: V, half: usize) {
        if self.young.len() >= half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key { digest: crate::auth::sha256(&number.to_be_bytes()), resource: 0 }
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let cache = Cache::new(1_000);
        cache.put(key(0), 0);
        for number in 1..20_000 {
            cache.put(key(number), number);
            assert_eq!(cache.get(&key(0)), Some(0));
        }
        assert!(cache.len() <= 1_000, "{}", cache.len());
        assert_eq!(cache.get(&key(1)), None);
        assert_eq!(cache.get(&key(19_999)), Some(19_999));
    }

    #[test]
    fn the_resource_is_part_of_the_key_and_the_last_word_counts() {
        let cache = Cache::new(1);
        let other = Key { resource: 1, ..key(1) };
        cache.put(key(1), 1);
        assert_eq!(cache.get(&other), None);
        cache.put(other, 2);
        cache.put(key(1), 3);
        assert_eq!((cache.get(&key(1)), cache.get(&other)), (Some(3), Some(2)));
        cache.remove(&key(1));
        assert_eq!((cache.get(&key(1)), cache.get(&other)), (None, Some(2)));
    }
}
