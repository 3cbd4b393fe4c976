//! Who waits for which task. Changes are told by messages; since those get lost, what is watched is also looked at: every
//! few seconds, and whenever messages may have been lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use crate::task::store::Watch;
use crate::task::{Owner, TaskId};

/// The tasks that somebody in this process watches.
#[derive(Debug, Default)]
pub(super) struct Watches {
    tasks: Mutex<HashMap<TaskId, Vec<Watched>>>,
}

/// Who asks for a task that is not theirs is told so, and nobody else: each owner has a channel of its own.
#[derive(Debug)]
struct Watched {
    owner: Arc<Owner>,
    versions: watch::Sender<u64>,
}

/// What was heard of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It has this version now.
    Changed(u64),
    /// It has this version, and ended with it.
    Ended(u64),
    /// It is not there any more.
    Gone,
}

impl News {
    /// As scripts say it.
    pub(super) fn of(version: u64, state: &str) -> Self {
        match state {
            "e" => Self::Ended(version),
            "x" => Self::Gone,
            _ => Self::Changed(version),
        }
    }
}

impl Watches {
    /// A watch that hears of changes from now on. What it watches is to be read after this, and told to [`Watches::seen`].
    pub(super) fn watch(self: &Arc<Self>, owner: &Owner, id: TaskId) -> Watch {
        let mut tasks = self.lock();
        let watched = tasks.entry(id).or_default();
        let versions = match watched.iter().find(|watched| *watched.owner == *owner) {
            Some(watched) => watched.versions.subscribe(),
            None => {
                let (versions, heard) = watch::channel(0);
                watched.push(Watched { owner: Arc::new(owner.clone()), versions });
                heard
            }
        };
        Watch::new(versions, Some(Box::new(Registration { watches: Arc::downgrade(self), id })))
    }

    /// Whoever watches has read this version: it is no news.
    pub(super) fn seen(&self, owner: &Owner, id: TaskId, version: u64) {
        for watched in self.lock().get(&id).into_iter().flatten().filter(|watched| *watched.owner == *owner) {
            watched.versions.send_if_modified(|last| {
                *last = version.max(*last);
                false
            });
        }
    }

    /// Wakes who watches the task, unless that is known already.
    pub(super) fn tell(&self, id: TaskId, news: News) {
        self.tell_some(id, news, |_| true);
    }

    /// The same for what one owner was shown.
    pub(super) fn tell_owner(&self, owner: &Owner, id: TaskId, news: News) {
        self.tell_some(id, news, |of| *of == *owner);
    }

    fn tell_some(&self, id: TaskId, news: News, is_told: impl Fn(&Owner) -> bool) {
        let mut tasks = self.lock();
        let Some(all) = tasks.get_mut(&id) else { return };
        if let News::Changed(version) | News::Ended(version) = news {
            for watched in all.iter().filter(|watched| is_told(&watched.owner)) {
                watched.versions.send_if_modified(|last| {
                    let is_news = version > *last;
                    *last = version.max(*last);
                    is_news
                });
            }
        }
        if !matches!(news, News::Changed(_)) {
            all.retain(|watched| !is_told(&watched.owner));
        }
        if all.is_empty() {
            tasks.remove(&id);
        }
    }

    /// Takes in a message: id, version and state.
    pub(super) fn heard(&self, message: &[u8]) {
        let mut words = std::str::from_utf8(message).unwrap_or_default().split(' ');
        let (id, version, state) = (words.next(), words.next(), words.next());
        let id = id.and_then(TaskId::parse);
        if let (Some(id), Some(Ok(version)), Some(state)) = (id, version.map(str::parse), state) {
            self.tell(id, News::of(version, state));
        }
    }

    /// Everything that is watched.
    pub(super) fn all(&self) -> Vec<(TaskId, Arc<Owner>)> {
        let tasks = self.lock();
        tasks.iter().flat_map(|(id, all)| all.iter().map(|watched| (*id, Arc::clone(&watched.owner)))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Vec<Watched>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends an owner's channel with its last watch.
struct Registration {
    watches: Weak<Watches>,
    id: TaskId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(watches) = self.watches.upgrade() else { return };
        let mut tasks = watches.lock();
        let Some(all) = tasks.get_mut(&self.id) else { return };
        all.retain(|watched| watched.versions.receiver_count() > 0);
        if all.is_empty() {
            tasks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::sample;

    fn owner(tenant: &str) -> Owner {
        sample::owner(tenant, "alice")
    }

    #[tokio::test]
    async fn only_what_is_new_wakes_and_nothing_is_left() {
        let watches = Arc::new(Watches::default());
        let owner = owner("a");
        let id = TaskId::random();
        let (mut first, second) = (watches.watch(&owner, id), watches.watch(&owner, id));
        watches.seen(&owner, id, 3);
        watches.heard(format!("{id} 3 h").as_bytes());
        watches.heard(b"nonsense");
        watches.heard(format!("{id} x h").as_bytes());
        watches.heard(format!("{id} 4 h").as_bytes());
        assert!(first.changed().await);
        assert_eq!(first.version(), 4);
        watches.heard(format!("{id} 5 e").as_bytes());
        assert!(first.changed().await && !first.changed().await);
        assert!(watches.all().is_empty());
        let third = watches.watch(&owner, id);
        drop((second, first));
        assert_eq!(watches.all().len(), 1);
        drop(third);
        assert!(watches.all().is_empty());
        let mut fourth = watches.watch(&owner, id);
        watches.heard(format!("{id} 0 x").as_bytes());
        assert!(!fourth.changed().await);
    }

    #[tokio::test]
    async fn what_one_owner_is_told_is_nobody_elses() {
        let (watches, id) = (Arc::new(Watches::default()), TaskId::random());
        // Given somebody who asks first for what is not theirs,
        let mut foreign = watches.watch(&owner("b"), id);
        let mut own = watches.watch(&owner("a"), id);
        watches.seen(&owner("a"), id, 3);
        assert_eq!(watches.all().len(), 2);
        // when that is found out, then nobody else's watch ends with it,
        watches.tell_owner(&owner("b"), id, News::Gone);
        assert!(!foreign.changed().await);
        watches.tell_owner(&owner("a"), id, News::Changed(4));
        assert!(own.changed().await);
        assert_eq!(own.version(), 4);
        // and those that come and go leave it alone.
        drop((watches.watch(&owner("b"), id), foreign));
        watches.heard(format!("{id} 5 h").as_bytes());
        assert!(own.changed().await);
        drop(own);
        assert!(watches.all().is_empty());
    }
}
