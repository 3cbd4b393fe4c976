//! The store of a single process: a concurrent map of records, and a book for each tenant.
//!
//! Reads touch one shard of the map. Changes hold the lock of their tenant's book, then a shard or the expiry index,
//! never the other way round and never two shards, so that no operation waits for another tenant's.

mod book;
mod holders;
mod walks;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use dashmap::DashMap;
use tokio::sync::watch;

use super::counting::outcome_bytes;
use super::creates::Buckets;
use super::{Known, Limits, Orphan, Position, Purged, Step, Store, StoreError, Usage, Watch, lock};
use crate::clock::{Clock, Timestamp};
use crate::task::state::{Event, State};
use crate::task::{Holder, Outcome, Owner, Task, TaskId};
use book::Book;
use holders::Holders;
use walks::{step, walk};

/// Keeps tasks in this process's memory.
#[derive(Debug)]
pub struct MemoryStore {
    inner: Inner,
}

struct Inner {
    clock: Clock,
    tasks: DashMap<Key, Kept>,
    tenants: DashMap<Arc<str>, Arc<Tenant>>,
    /// When each record goes, the earliest first.
    expiries: Mutex<BTreeMap<(Timestamp, TaskId), Arc<Owner>>>,
    creates: Buckets,
    /// Where there may be several of them.
    holders: Option<Holders>,
}

struct Tenant {
    name: Arc<str>,
    book: Mutex<Book>,
}

/// A record and, apart from it, its outcome: polls clone the pointer to the record alone.
#[derive(Debug)]
struct Kept {
    task: Arc<Task>,
    outcome: Option<Outcome>,
    /// The outcome was handed out.
    is_read: AtomicBool,
    /// For the next holder of an unfinished one.
    luggage: Option<Box<Luggage>>,
}

/// What goes with a task's call from holder to holder. Rare here: a process that shares its memory with nobody has no next.
#[derive(Debug, Default)]
struct Luggage {
    draft: Option<Arc<str>>,
    trail: Option<Arc<str>>,
}

/// Owner and id together: to look for somebody else's task is to look for one that does not exist.
struct Key {
    owner: Arc<Owner>,
    id: TaskId,
}

/// Lets a lookup borrow the owner.
trait Keyed {
    fn parts(&self) -> (&Owner, TaskId);
}

impl Keyed for Key {
    fn parts(&self) -> (&Owner, TaskId) {
        (&self.owner, self.id)
    }
}

impl Keyed for (&Owner, TaskId) {
    fn parts(&self) -> (&Owner, TaskId) {
        *self
    }
}

impl<'a> Borrow<dyn Keyed + 'a> for Key {
    fn borrow(&self) -> &(dyn Keyed + 'a) {
        self
    }
}

impl Hash for dyn Keyed + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // An id is 122 random bits; hashing the owner's six members as well would spread nothing better.
        self.parts().1.hash(state);
    }
}

impl PartialEq for dyn Keyed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Keyed + '_ {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self as &dyn Keyed).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl MemoryStore {
    /// An empty store that goes by this clock, of a single gateway: nobody could take its calls up.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let (tasks, tenants) = (DashMap::new(), DashMap::new());
        Self {
            inner: Inner {
                clock,
                tasks,
                tenants,
                expiries: Mutex::default(),
                creates: Buckets::default(),
                holders: None,
            },
        }
    }

    /// The same for several gateways in this process, which take up each other's calls.
    #[must_use]
    pub fn shared(clock: Clock) -> Self {
        Self { inner: Inner { holders: Some(Holders::default()), ..Self::new(clock).inner } }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.inner.create(task, draft, limits)
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        Ok(self.inner.read(owner, id, |kept| kept.task.clone()))
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        Ok(self.inner.read(owner, id, |kept| kept.outcome.clone()).flatten())
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        let first = self.inner.read(owner, id, |kept| !kept.is_read.swap(true, Ordering::Relaxed));
        Ok(first.unwrap_or(false))
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        self.inner.replace(task, outcome)
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        Ok(self.inner.list(owner, after, limit))
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        Ok(self.inner.purge(now, at_most))
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        Ok(self.inner.watch(owner, id))
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        let tenant = self.inner.tenants.get(tenant).map(|entry| entry.value().clone());
        Ok(tenant.map(|tenant| lock(&tenant.book).usage()).unwrap_or_default())
    }

    fn outlives_holders(&self) -> bool {
        self.inner.holders.is_some()
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        _: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        self.inner.note_trail(owner, id, epoch, trail)
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        Ok(self.inner.holders.iter().flat_map(Holders::all).collect())
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        let theirs = self.inner.holders.iter().flat_map(|holders| holders.of(from, at_most));
        Ok(theirs.filter_map(|(id, owner)| self.inner.take_over(&owner, id, from, by)).collect())
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        let own = self.inner.holders.iter().flat_map(|holders| holders.of(by, usize::MAX));
        let strays = walk(own).filter(|(id, owner)| {
            let key = (&**owner, *id);
            self.inner.tasks.get(&key as &dyn Keyed).is_some_and(|kept| !known(*id, kept.task.epoch))
        });
        Ok(strays.take(at_most).filter_map(|(id, owner)| self.inner.take_over(&owner, id, by, by)).collect())
    }

    /// Whoever asks is told.
    fn lost_words(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        // The books are locked only when no shard is: who holds a book may wait for its shard.
        let tenants: Vec<Arc<Tenant>> = walk(self.inner.tenants.iter()).map(|tenant| Arc::clone(&tenant)).collect();
        walk(tenants.iter()).map(|tenant| lock(&tenant.book).usage().kept_bytes).sum()
    }
}

impl Inner {
    fn read<T>(&self, owner: &Owner, id: TaskId, pick: impl FnOnce(&Kept) -> T) -> Option<T> {
        let key = (owner, id);
        let kept = self.tasks.get(&key as &dyn Keyed)?;
        // Expired is gone, even before the purge comes by.
        (kept.task.expires_at() > self.clock.now()).then(|| pick(&kept))
    }

    fn create(&self, mut task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.with_book(&task.owner.tenant.clone(), |book| {
            let key = (&*task.owner, task.id);
            if self.tasks.contains_key(&key as &dyn Keyed) {
                return Err(StoreError::Conflict);
            }
            book.limits = *limits;
            // A limit that was raised serves those who wait before it serves the newcomer.
            self.promote(book);
            let now = self.clock.now();
            let full = limits.creates.map(|rate| self.creates.admit(&task.owner.tenant, rate, now)).transpose()?;
            task.state = book.admit(now)?;
            if let Some(full) = full {
                self.creates.set(&task.owner.tenant, full, now);
            }
            task.epoch = 1;
            task.version = 1;
            task.owner = book.index(&task);
            let id = task.id;
            let task = Arc::new(task);
            book.enter(&task);
            self.tasks.insert(
                Key { owner: task.owner.clone(), id },
                Kept {
                    task: task.clone(),
                    outcome: None,
                    is_read: AtomicBool::new(false),
                    luggage: draft
                        .filter(|_| self.holders.is_some())
                        .map(|draft| Box::new(Luggage { draft: Some(draft), trail: None })),
                },
            );
            self.holders.iter().for_each(|holders| holders.note(&task));
            lock(&self.expiries).insert((task.expires_at(), id), task.owner.clone());
            Ok(task)
        })
    }

    fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        self.with_book(&task.owner.tenant.clone(), |book| {
            let bytes = outcome_bytes(outcome.as_ref());
            let (before, after) = self.exchange(task, outcome)?;
            book.leave(&before, None);
            book.enter(&after);
            book.count_bytes(bytes);
            book.announce(&after);
            self.holders.iter().for_each(|holders| holders.note(&after));
            self.promote(book);
            Ok(after)
        })
    }

    /// Puts the changed record into the map; gives what was there before, which had no outcome, and what is there now.
    fn exchange(&self, mut task: Task, outcome: Option<Outcome>) -> Result<(Arc<Task>, Arc<Task>), StoreError> {
        let owner = task.owner.clone();
        let key = (&*owner, task.id);
        let mut kept = self.tasks.get_mut(&key as &dyn Keyed).ok_or(StoreError::NotFound)?;
        if kept.task.expires_at() <= self.clock.now() {
            return Err(StoreError::NotFound);
        }
        if kept.task.version != task.version || kept.task.state.is_ended() {
            return Err(StoreError::Conflict);
        }
        task.version += 1;
        task.owner = kept.task.owner.clone();
        task.created_at = kept.task.created_at;
        task.ttl = kept.task.ttl;
        task.holder = kept.task.holder.clone();
        task.epoch = kept.task.epoch;
        if let State::Held(asked) = &mut task.state {
            asked.questions.shrink_to_fit();
        }
        if task.state.is_ended() {
            kept.luggage = None;
        }
        kept.outcome = outcome;
        let after = Arc::new(task);
        let before = std::mem::replace(&mut kept.task, Arc::clone(&after));
        Ok((before, after))
    }

    fn take_over(&self, owner: &Owner, id: TaskId, from: &Holder, by: &Holder) -> Option<Orphan> {
        self.with_book(&owner.tenant, |book| {
            let key = (owner, id);
            let mut kept = self.tasks.get_mut(&key as &dyn Keyed)?;
            if kept.task.state.is_ended() || kept.task.holder != *from {
                return None;
            }
            let mut task = Task::clone(&kept.task);
            task.holder = by.clone();
            task.epoch += 1;
            task.version += 1;
            let task = Arc::new(task);
            let before = std::mem::replace(&mut kept.task, Arc::clone(&task));
            let (draft, trail) =
                kept.luggage.as_ref().map(|luggage| (luggage.draft.clone(), luggage.trail.clone())).unwrap_or_default();
            drop(kept);
            self.holders.iter().for_each(|holders| holders.forget(&before.holder, id));
            self.holders.iter().for_each(|holders| holders.note(&task));
            book.announce(&task);
            Some(Orphan { task, draft, trail })
        })
    }

    fn note_trail(&self, owner: &Owner, id: TaskId, epoch: u64, trail: Arc<str>) -> Result<(), StoreError> {
        let key = (owner, id);
        let mut kept = self.tasks.get_mut(&key as &dyn Keyed).ok_or(StoreError::NotFound)?;
        if kept.task.expires_at() <= self.clock.now() {
            return Err(StoreError::NotFound);
        }
        if kept.task.epoch != epoch || kept.task.state.is_ended() {
            return Err(StoreError::Conflict);
        }
        if self.holders.is_some() {
            kept.luggage.get_or_insert_default().trail = Some(trail);
        }
        Ok(())
    }

    /// Gives free places to those who wait longest.
    fn promote(&self, book: &mut Book) {
        while let Some((owner, id)) = book.next_in_line() {
            step();
            let key = (&*owner, id);
            let Some(mut kept) = self.tasks.get_mut(&key as &dyn Keyed) else { continue };
            let mut task = Task::clone(&kept.task);
            // The time is that of a question, which starting never asks.
            let Ok(held) = task.state.apply(Event::Start, task.updated_at) else { continue };
            task.state = held;
            task.version += 1;
            kept.task = Arc::new(task);
            book.started(&kept.task);
        }
    }

    fn list(&self, owner: &Owner, mut after: Option<Position>, limit: usize) -> Vec<Arc<Task>> {
        let mut page = Vec::new();
        let Some(tenant) = self.tenants.get(&*owner.tenant).map(|entry| entry.value().clone()) else { return page };
        while page.len() < limit {
            // Only the positions are taken under the lock. Where some have expired, a second round fills the page.
            let positions = lock(&tenant.book).positions(owner, after, limit - page.len());
            let Some(last) = positions.last() else { break };
            after = Some(*last);
            page.extend(
                walk(positions.iter()).filter_map(|position| self.read(owner, position.id, |kept| kept.task.clone())),
            );
        }
        page
    }

    fn purge(&self, now: Timestamp, at_most: usize) -> Purged {
        let mut tasks = Vec::new();
        while tasks.len() < at_most {
            let Some((id, owner)) = self.pop_expired(now) else { break };
            step();
            let removed = self.with_book(&owner.tenant, |book| {
                let key = (&*owner, id);
                let (_, kept) = self.tasks.remove(&key as &dyn Keyed)?;
                book.leave(&kept.task, kept.outcome.as_ref());
                book.forget(&kept.task);
                self.holders.iter().for_each(|holders| holders.forget(&kept.task.holder, id));
                self.promote(book);
                Some(kept.task)
            });
            tasks.extend(removed);
        }
        let next = lock(&self.expiries).first_key_value().map(|((at, _), _)| *at);
        Purged { tasks, next }
    }

    fn pop_expired(&self, now: Timestamp) -> Option<(TaskId, Arc<Owner>)> {
        let mut expiries = lock(&self.expiries);
        let first = expiries.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let ((_, id), owner) = first.remove_entry();
        Some((id, owner))
    }

    fn watch(&self, owner: &Owner, id: TaskId) -> Option<Watch> {
        loop {
            let tenant = self.tenants.get(&*owner.tenant)?.value().clone();
            let mut book = lock(&tenant.book);
            if book.closed {
                continue;
            }
            let task = self.read(owner, id, |kept| kept.task.clone())?;
            if task.state.is_ended() {
                return Some(Watch::new(watch::channel(task.version).1, None));
            }
            let versions = book.watch(&task);
            let registration = Registration { tenant: Arc::downgrade(&tenant), id };
            return Some(Watch::new(versions, Some(Box::new(registration))));
        }
    }

    /// Runs with a tenant's book locked. The tenant goes when nothing of it is left, so that names do not pile up.
    fn with_book<T>(&self, tenant: &Arc<str>, act: impl FnOnce(&mut Book) -> T) -> T {
        loop {
            let tenant = self.tenant(tenant);
            let mut book = lock(&tenant.book);
            if book.closed {
                continue;
            }
            let done = act(&mut book);
            if book.is_empty() {
                book.closed = true;
                self.tenants.remove(&*tenant.name);
            }
            return done;
        }
    }

    fn tenant(&self, name: &Arc<str>) -> Arc<Tenant> {
        if let Some(tenant) = self.tenants.get(name) {
            return tenant.value().clone();
        }
        let new = || Arc::new(Tenant { name: name.clone(), book: Mutex::default() });
        self.tenants.entry(name.clone()).or_insert_with(new).value().clone()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("tasks", &self.tasks.len())
            .field("tenants", &self.tenants.len())
            .finish_non_exhaustive()
    }
}

/// Ends a task's channel with its last watch.
struct Registration {
    tenant: Weak<Tenant>,
    id: TaskId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(tenant) = self.tenant.upgrade() {
            lock(&tenant.book).unwatch(self.id);
        }
    }
}

#[cfg(test)]
mod tests;
