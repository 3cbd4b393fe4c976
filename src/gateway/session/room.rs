//! How many sessions there may be, and how many of them one tenant may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;

use crate::tenant::Principal;

/// Where callers are told apart, one tenant has at most this part of all sessions: none takes the room of all.
const SHARE: usize = 2;
/// When so many tenants are known, those without sessions are forgotten.
const KNOWN_TENANTS: usize = 4_096;

/// Why there is no new session.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// There are as many as may be.
    Full(usize),
    /// The tenant has as many as one may have.
    Share(usize),
    /// What its id would have to carry is longer than a token may be.
    TooLong,
}

/// Room for one session, kept while it is opened and given back when it is not.
#[derive(Debug)]
pub struct Room {
    _taken: Counted,
    share: Option<Share>,
}

impl Room {
    /// The session's place in its tenant's share, which lasts as long as the session.
    pub(super) fn take_share(&mut self) -> Option<Share> {
        self.share.take()
    }
}

/// One session among those of its tenant, while it lasts.
pub(super) type Share = Counted;

/// One in a count.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// One more, and how many there were before.
    fn one_of(count: &Arc<AtomicUsize>) -> (Self, usize) {
        let before = count.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(count)), before)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the rooms that are taken.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// For sessions that are being opened, and for those that no client holds.
    opening: Arc<AtomicUsize>,
    /// By tenant, sessions that are being opened included.
    by_tenant: DashMap<Arc<str>, Arc<AtomicUsize>>,
}

impl Rooms {
    /// Takes room where there are fewer than `max` sessions: `open` that clients hold, and those that are counted here.
    pub(super) fn reserve(&self, open: usize, max: usize, principal: Option<&Principal>) -> Result<Room, NoRoom> {
        let share = match principal {
            Some(principal) if principal.authenticated => Some(self.share_of(&principal.tenant, max)?),
            _ => None,
        };
        let (taken, before) = Counted::one_of(&self.opening);
        if open + before >= max { Err(NoRoom::Full(max)) } else { Ok(Room { _taken: taken, share }) }
    }

    fn share_of(&self, tenant: &Arc<str>, max: usize) -> Result<Share, NoRoom> {
        if self.by_tenant.len() >= KNOWN_TENANTS {
            self.by_tenant.retain(|_, count| Arc::strong_count(count) > 1);
        }
        let most = (max / SHARE).max(1);
        let (share, before) = Counted::one_of(&self.by_tenant.entry(Arc::clone(tenant)).or_default());
        if before >= most { Err(NoRoom::Share(most)) } else { Ok(share) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: &str) -> Principal {
        Principal::of_api_key(tenant.into(), "somebody".into())
    }

    #[test]
    fn no_tenant_takes_the_room_of_all() {
        let rooms = Rooms::default();
        let (acme, other) = (of("acme"), of("other"));
        let mut first = rooms.reserve(0, 4, Some(&acme)).unwrap();
        let kept = first.take_share();
        let second = rooms.reserve(0, 4, Some(&acme)).unwrap();
        assert_eq!(rooms.reserve(0, 4, Some(&acme)).map(drop), Err(NoRoom::Share(2)));
        assert!(rooms.reserve(0, 4, Some(&other)).is_ok());
        // Open, and no room any more: it still counts for its tenant until it has ended.
        drop(first);
        assert_eq!(rooms.reserve(1, 4, Some(&acme)).map(drop), Err(NoRoom::Share(2)));
        drop(kept);
        assert!(rooms.reserve(1, 4, Some(&acme)).is_ok());
        drop(second);
        assert_eq!(rooms.reserve(4, 4, Some(&other)).map(drop), Err(NoRoom::Full(4)));
        assert!(rooms.by_tenant.iter().all(|entry| entry.value().load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn callers_who_are_all_one_share_nothing() {
        let rooms = Rooms::default();
        let nobody = Principal::anonymous();
        let taken: Vec<_> = (0..4).map(|_| rooms.reserve(0, 4, Some(&nobody)).unwrap()).collect();
        assert_eq!(rooms.reserve(0, 4, None).map(drop), Err(NoRoom::Full(4)));
        drop(taken);
        assert!(rooms.reserve(0, 4, None).is_ok());
    }
}
