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
    tasks: Mutex<HashMap<TaskId, Watched>>,
}

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
        let watched = tasks
            .entry(id)
            .or_insert_with(|| Watched { owner: Arc::new(owner.clone()), versions: watch::Sender::new(0) });
        let registration = Registration { watches: Arc::downgrade(self), id };
        Watch::new(watched.versions.subscribe(), Some(Box::new(registration)))
    }

    /// Whoever watches has read this version: it is no news.
    pub(super) fn seen(&self, id: TaskId, version: u64) {
        if let Some(watched) = self.lock().get(&id) {
            watched.versions.send_if_modified(|last| {
                *last = version.max(*last);
                false
            });
        }
    }

    /// Wakes who watches the task, unless that is known already.
    pub(super) fn tell(&self, id: TaskId, news: News) {
        let mut tasks = self.lock();
        let Some(watched) = tasks.get(&id) else { return };
        if let News::Changed(version) | News::Ended(version) = news {
            watched.versions.send_if_modified(|last| {
                let is_news = version > *last;
                *last = version.max(*last);
                is_news
            });
        }
        if !matches!(news, News::Changed(_)) {
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
        self.lock().iter().map(|(id, watched)| (*id, Arc::clone(&watched.owner))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, Watched>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a task's channel with its last watch.
struct Registration {
    watches: Weak<Watches>,
    id: TaskId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(watches) = self.watches.upgrade() else { return };
        let mut tasks = watches.lock();
        if tasks.get(&self.id).is_some_and(|watched| watched.versions.receiver_count() == 0) {
            tasks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_is_new_wakes_and_nothing_is_left() {
        let watches = Arc::new(Watches::default());
        let owner = Owner {
            tenant: "a".into(),
            issuer: "".into(),
            subject: "".into(),
            client: "".into(),
            principal: [0; 16],
            route: "r".into(),
        };
        let id = TaskId::random();
        let (mut first, second) = (watches.watch(&owner, id), watches.watch(&owner, id));
        watches.seen(id, 3);
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
}
