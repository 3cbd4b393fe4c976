//! The store that replicas share: a Redis or Valkey server, in which scripts change a record and its tenant's counters in
//! one step.
//!
//! Everything of one tenant is in one slot of a cluster. What spans tenants (who has something to purge, who holds tasks of
//! whom) lives in small indexes, which are written before a task is there, so that none is missed whose maker dies, and again
//! after, before its creation is acknowledged, since they are tidied up meanwhile. Time is the server's: scripts judge expiry by
//! it and stamp records with it.

mod jobs;
mod keys;
mod reply;
mod scripts;
mod takeovers;
mod watches;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::join3;
use redis::{ErrorKind, Value};
use tokio::sync::watch;

use super::counting::question_bytes;
use super::{Known, Limits, Orphan, Position, Purged, Quota, QuotaReason, Step, Store, StoreError, Usage, Watch, lock};
use crate::clock::{Clock, Timestamp};
use crate::hub::{Hub, HubError, Script};
use crate::jobs::Jobs;
use crate::task::state::State;
use crate::task::{Holder, Outcome, Owner, Task, TaskId, codec};
use keys::Keys;
use reply::{Parts, Row, letter, read, unreadable};
use scripts::Scripts;
use takeovers::Takeovers;
use watches::{News, Watches};

/// The last moment that is written: what scripts reckon with are doubles.
const LAST: u64 = 900_000_000_000_000;
/// So many tenants are taken at once, to purge them.
const TENANTS: &[u8] = b"16";

/// No script goes on giving records and drafts when it has given so many bytes: meanwhile the server does nothing else.
const FULL: &[u8] = b"1048576";
/// So many creations in doubt are remembered; more than are under way at once where connections are bounded as by default.
const MOST_DOUBTFUL: usize = 65_536;

/// Keeps tasks in a server that replicas share.
#[derive(Debug)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    hub: Hub,
    clock: Clock,
    keys: Keys,
    scripts: Scripts,
    watches: Arc<Watches>,
    /// Tenants whose bytes have changed, with what they are, until that is summed up.
    changed_sizes: Mutex<HashMap<String, u64>>,
    /// Creations that failed, though they may have been carried out or still will be, until they are taken back.
    doubtful: Mutex<HashMap<TaskId, Arc<Owner>>>,
    takeovers: Takeovers,
    bytes: AtomicU64,
}

impl RedisStore {
    /// The tasks under the prefix of that server; `clock` is how this process tells the time.
    #[must_use]
    pub fn start(hub: Hub, clock: Clock, jobs: &Jobs) -> Self {
        let store = Self::over(hub, clock, "");
        jobs::start(&store.inner, jobs);
        store
    }

    /// Without what it does beside what it is asked; `prelude` is what each script begins with.
    fn over(hub: Hub, clock: Clock, prelude: &str) -> Self {
        let watches = Arc::new(Watches::default());
        let keys = Keys::new(&hub);
        let listener = Arc::clone(&watches);
        hub.listen(&keys.changes, Box::new(move |message| listener.heard(message)));
        let inner = Inner {
            hub,
            clock,
            keys,
            scripts: Scripts::new(prelude),
            watches,
            changed_sizes: Mutex::default(),
            doubtful: Mutex::default(),
            takeovers: Takeovers::default(),
            bytes: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.inner.create(task, draft.as_deref(), limits).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.inner.read(owner, id).await
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        let found = self.inner.of_task(&self.inner.scripts.outcome, owner, id, &[]).await?;
        if found == Value::Nil {
            return Ok(None);
        }
        let mut parts = Parts::of(found, "an outcome")?;
        let (kind, text): (Option<Vec<u8>>, Option<Vec<u8>>) = (parts.next()?, parts.next()?);
        let Some(([kind], text)) = kind.as_deref().zip(text) else { return Ok(None) };
        codec::outcome(*kind, &text).map(Some).map_err(|error| StoreError::Spoilt(error.into()))
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        read(self.inner.of_task(&self.inner.scripts.note_read, owner, id, &[]).await?, "a note")
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        self.inner.replace(task, outcome).await
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        let (mut at, mut id) = after.map(|after| (millis(after.created_at), after.id.to_string())).unwrap_or_default();
        let (of, tenant, mut left) = (keys::owner(owner), keys::tenant(&owner.tenant), limit);
        let mut tasks = Vec::new();
        loop {
            let most = left.to_string();
            let args: [&[u8]; 5] = [of.as_bytes(), most.as_bytes(), at.as_bytes(), id.as_bytes(), FULL];
            let page = self.inner.of_tenant(&self.inner.scripts.list, &tenant, &args).await?;
            let mut parts = Parts::of(page, "a page")?;
            let rows: Vec<Value> = Parts::of(parts.value(), "records")?.rest().collect();
            left = left.saturating_sub(rows.len());
            // One that can't be read does not hide the others.
            tasks.extend(rows.into_iter().filter_map(|row| Row::read(row).and_then(Row::task).ok()).map(Arc::new));
            match (parts.next::<Option<String>>()?, parts.next::<Option<String>>()?) {
                (Some(last_at), Some(last)) if left > 0 => (at, id) = (last_at, last),
                _ => return Ok(tasks),
            }
        }
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        self.inner.purge(now, at_most).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        let watch = self.inner.watches.watch(owner, id);
        let Some(task) = self.inner.read(owner, id).await? else { return Ok(None) };
        if task.state.is_ended() {
            return Ok(Some(Watch::new(watch::channel(task.version).1, None)));
        }
        self.inner.watches.seen(owner, id, task.version);
        Ok(Some(watch))
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        let counters = self.inner.of_tenant(&self.inner.scripts.usage, &keys::tenant(tenant), &[]).await?;
        let (running, queued, kept, kept_bytes) = read(counters, "counters")?;
        Ok(Usage { running, queued, kept, kept_bytes })
    }

    fn outlives_holders(&self) -> bool {
        true
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        _: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        let epoch = epoch.to_string();
        let args = [epoch.as_bytes(), trail.as_bytes()];
        let noted = self.inner.of_task(&self.inner.scripts.note_trail, owner, id, &args).await?;
        match read::<String>(noted, "a note")?.as_str() {
            "noted" => Ok(()),
            "conflict" => Err(StoreError::Conflict),
            _ => Err(StoreError::NotFound),
        }
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.inner.holders().await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.inner.take_over(from, by, at_most).await
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.inner.take_strays(by, known, at_most).await
    }

    fn lost_words(&self) -> u64 {
        self.inner.hub.connections() + self.inner.takeovers.lost()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }
}

impl Inner {
    async fn of_tenant(&self, script: &Script, tenant: &str, args: &[&[u8]]) -> Result<Value, StoreError> {
        Ok(self.hub.call(script, &[&self.keys.counters(tenant)], args).await?)
    }

    async fn of_task(&self, script: &Script, owner: &Owner, id: TaskId, args: &[&[u8]]) -> Result<Value, StoreError> {
        let (id, of) = (id.to_string(), keys::owner(owner));
        let args: Vec<&[u8]> = [id.as_bytes(), of.as_bytes()].into_iter().chain(args.iter().copied()).collect();
        self.of_tenant(script, &keys::tenant(&owner.tenant), &args).await
    }

    fn sent(&self) -> String {
        millis(self.clock.now())
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        match self.of_task(&self.scripts.read, owner, id, &[]).await? {
            Value::Nil => Ok(None),
            row => Ok(Some(Arc::new(Row::read(row)?.task()?))),
        }
    }

    async fn create(&self, task: Task, draft: Option<&str>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        let task = Task { state: State::Queued, ..task };
        let tenant = keys::tenant(&task.owner.tenant);
        let (created, deadline, expiry) = (millis(task.created_at), millis(task.deadline), millis(task.expires_at()));
        let Limits { running_tasks, queued_tasks, kept_tasks, kept_bytes, creates } = *limits;
        let limited = [running_tasks as u64, queued_tasks as u64, kept_tasks as u64, kept_bytes].map(|n| n.to_string());
        let (id, owner, record, sent) =
            (task.id.to_string(), keys::owner(&task.owner), codec::encode(&task), self.sent());
        let mut args: Vec<&[u8]> = [&id, &owner, &record, task.holder.as_str(), &sent, &created, &deadline, &expiry]
            .map(str::as_bytes)
            .to_vec();
        args.extend(limited.iter().map(String::as_bytes));
        let rate = creates.map(|rate| (rate.interval().as_nanos().to_string(), rate.burst().to_string()));
        let (interval, burst) = rate.unwrap_or_default();
        args.extend([draft.unwrap_or_default(), &interval, &burst].map(str::as_bytes));
        let creating = self.of_tenant(&self.scripts.create, &tenant, &args);
        let indexing = || self.index(&tenant, &task.holder, Some((&expiry, &sent)));
        // Before, so that the task is found where this process dies between; after, since who tidies up before the task is there
        // may strike the note out.
        let is_ordered = self.hub.keeps_order(&[&self.scripts.index, &self.scripts.create]);
        if !is_ordered {
            indexing().await?;
        }
        // Also where whoever wants the task goes away meanwhile.
        let mut doubt = CreationInDoubt { inner: self, owner: Arc::clone(&task.owner), id: task.id, is_over: false };
        let (made, indexed) = if is_ordered {
            // Sent together, carried out one after the other.
            let (_noted, made, indexed) = join3(indexing(), creating, indexing()).await;
            (made, indexed)
        } else {
            match creating.await {
                Ok(made) => (Ok(made), indexing().await),
                failed => (failed, Ok(())),
            }
        };
        doubt.is_over = made.as_ref().map_or_else(is_certain, |_| indexed.is_ok());
        let made = indexed.and(made)?;
        let mut parts = Parts::of(made, "a creation")?;
        let word = parts.next::<String>()?;
        // Ids do not repeat: in a cluster it was sent twice, and the first answer was lost.
        doubt.is_over &= word != "conflict" || self.hub.is_ordered();
        drop(doubt);
        match word.as_str() {
            "made" => Ok(Arc::new(Row::read(parts.value())?.over(task))),
            "conflict" => Err(StoreError::Conflict),
            reason => Err(refusal(reason, parts.next()?, limits)),
        }
    }

    /// Notes that the tenant has a task of that holder, and when it expires where that is news.
    async fn index(&self, tenant: &str, holder: &Holder, expiry: Option<(&String, &String)>) -> Result<(), StoreError> {
        let (expiry, sent) = expiry.map_or(("", ""), |(expiry, sent)| (expiry, sent));
        let keys = [&*self.keys.due, &self.keys.holders, &self.keys.tenants_of(holder.as_str())];
        let args = [tenant, holder.as_str(), expiry, sent].map(str::as_bytes);
        self.hub.call(&self.scripts.index, &keys, &args).await?;
        Ok(())
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        let (version, record, updated) = (task.version.to_string(), codec::encode(&task), millis(task.updated_at));
        let bytes = question_bytes(&task.state).to_string();
        let kind = outcome.as_ref().map(|outcome| [codec::kind_of(outcome)]);
        let text = match &outcome {
            Some(Outcome::Result(text) | Outcome::Error(text)) => text.as_bytes(),
            None => b"",
        };
        let args: [&[u8]; 7] = [
            version.as_bytes(),
            record.as_bytes(),
            letter(&task.state).as_bytes(),
            bytes.as_bytes(),
            updated.as_bytes(),
            kind.as_ref().map_or(b"", |kind| kind),
            text,
        ];
        let replaced = self.of_task(&self.scripts.replace, &task.owner, task.id, &args).await?;
        let mut parts = Parts::of(replaced, "a change")?;
        match parts.next::<String>()?.as_str() {
            "replaced" => {}
            "conflict" => return Err(StoreError::Conflict),
            _ => return Err(StoreError::NotFound),
        }
        let task = Row::read(parts.value())?.over(task);
        self.note_size(keys::tenant(&task.owner.tenant), parts.next()?);
        self.watches.tell(task.id, News::of(task.version, letter(&task.state)));
        Ok(Arc::new(task))
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        let (at, mut purged) = (millis(now), Purged::default());
        loop {
            let is_full = purged.tasks.len() >= at_most;
            let (claimed, next) = self.claim(&at, if is_full { b"0" } else { TENANTS }).await?;
            if claimed.is_empty() {
                purged.next = next;
                return Ok(purged);
            }
            for (tenant, before, claim) in claimed {
                let next = match at_most - purged.tasks.len() {
                    0 => Some(before),
                    left => self.purge_tenant(&tenant, &at, left, &mut purged).await?,
                };
                let args = [&tenant, &claim, next.as_deref().unwrap_or_default()].map(str::as_bytes);
                self.hub.call(&self.scripts.settle, &[&self.keys.due], &args).await?;
            }
        }
    }

    /// Takes some tenants that have something to purge, each with its scores before and now; and tells when the next one has.
    async fn claim(
        &self,
        at: &str,
        at_most: &[u8],
    ) -> Result<(Vec<(String, String, String)>, Option<Timestamp>), StoreError> {
        let sent = self.sent();
        let args = [at.as_bytes(), sent.as_bytes(), at_most];
        let claimed = self.hub.call(&self.scripts.claim, &[&self.keys.due], &args).await?;
        let mut parts = Parts::of(claimed, "tenants")?;
        Ok((parts.next()?, parts.next::<Option<u64>>()?.map(Timestamp::from_millis)))
    }

    /// Purges some of a tenant's; gives when its next one expires.
    async fn purge_tenant(
        &self,
        tenant: &str,
        at: &str,
        at_most: usize,
        purged: &mut Purged,
    ) -> Result<Option<String>, StoreError> {
        let (sent, at_most) = (self.sent(), at_most.to_string());
        let args = [at.as_bytes(), sent.as_bytes(), at_most.as_bytes(), FULL];
        let mut parts = Parts::of(self.of_tenant(&self.scripts.purge, tenant, &args).await?, "a purge")?;
        for row in Parts::of(parts.value(), "purged records")?.rest() {
            // One that can't be read is gone all the same.
            match Row::read(row).and_then(Row::task) {
                Ok(task) => {
                    self.watches.tell(task.id, News::Gone);
                    purged.tasks.push(Arc::new(task));
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "an expired record can't be read");
                }
            }
        }
        let next = parts.next()?;
        self.note_size(tenant.to_owned(), parts.next()?);
        Ok(next)
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        let keys = [&*self.keys.holders, &self.keys.leases];
        let all: Vec<(String, bool)> = read(self.hub.call(&self.scripts.holders, &keys, &[]).await?, "holders")?;
        let mut holders = Vec::new();
        for (holder, is_alive) in all {
            let holder = Holder::from_text(&holder);
            // Whoever is alive has a say in the matter itself: that it may have none left is nobody's business.
            if is_alive || self.holds_any(&holder).await? {
                holders.push(holder);
            }
        }
        holders.sort_unstable();
        Ok(holders)
    }

    async fn holds_any(&self, holder: &Holder) -> Result<bool, StoreError> {
        for (tenant, times) in self.tenants_of(holder).await? {
            let held = self.keys.held(&tenant, holder);
            if read(self.hub.run(redis::cmd("EXISTS").arg(held)).await?, "whether it holds tasks")? {
                return Ok(true);
            }
            self.drained(holder, Some((&tenant, &times))).await?;
        }
        self.drained(holder, None).await?;
        Ok(false)
    }

    /// The tenants of which it has tasks, or had, each with how often that was noted.
    async fn tenants_of(&self, holder: &Holder) -> Result<Vec<(String, String)>, StoreError> {
        let tenants = self.hub.run(redis::cmd("HGETALL").arg(self.keys.tenants_of(holder.as_str()))).await?;
        let mut tenants: Vec<(String, String)> = read(tenants, "a holder's tenants")?;
        tenants.sort_unstable();
        Ok(tenants)
    }

    async fn drained(&self, holder: &Holder, tenant: Option<(&String, &String)>) -> Result<(), StoreError> {
        let keys = [&*self.keys.holders, &self.keys.tenants_of(holder.as_str())];
        let mut args = vec![holder.as_str().as_bytes()];
        args.extend(tenant.into_iter().flat_map(|(tenant, times)| [tenant.as_bytes(), times.as_bytes()]));
        self.hub.call(&self.scripts.drained, &keys, &args).await?;
        Ok(())
    }

    fn note_size(&self, tenant: String, bytes: u64) {
        lock(&self.changed_sizes).insert(tenant, bytes);
    }
}

/// A creation of which nobody knows whether it was carried out, or still will be. Unless that is over, it is taken back,
/// since nobody would hold its call.
struct CreationInDoubt<'a> {
    inner: &'a Inner,
    owner: Arc<Owner>,
    id: TaskId,
    is_over: bool,
}

impl Drop for CreationInDoubt<'_> {
    fn drop(&mut self) {
        let mut doubtful = lock(&self.inner.doubtful);
        if !self.is_over && doubtful.len() < MOST_DOUBTFUL {
            doubtful.insert(self.id, Arc::clone(&self.owner));
        }
    }
}

/// Whether what failed so was not carried out, and won't be.
fn is_certain(error: &StoreError) -> bool {
    let StoreError::Unavailable(source) = error else { return true };
    match source.downcast_ref() {
        Some(HubError::Late | HubError::Unreadable(_)) => false,
        Some(HubError::Failed(error)) => matches!(error.kind(), ErrorKind::Server(_)) || error.code().is_some(),
        Some(HubError::Away) | None => true,
    }
}

/// What a script's refusal means; it comes with the milliseconds until there may be room, or less than none.
fn refusal(reason: &str, until: i64, limits: &Limits) -> StoreError {
    let (reason, limit) = match reason {
        "kept" => (QuotaReason::KeptTasks, limits.kept_tasks as u64),
        "bytes" => (QuotaReason::KeptBytes, limits.kept_bytes),
        "creates" => (QuotaReason::Creates, limits.creates.map_or(0, |rate| rate.burst().into())),
        // To a tenant without a queue, the word "queue" would explain nothing.
        "places" if limits.queued_tasks == 0 => (QuotaReason::RunningTasks, limits.running_tasks as u64),
        "places" => (QuotaReason::QueuedTasks, limits.queued_tasks as u64),
        _ => return unreadable("a refusal"),
    };
    let until_expiry = u64::try_from(until).ok().map(std::time::Duration::from_millis);
    StoreError::Quota(Quota { reason, limit, until_expiry })
}

fn millis(at: Timestamp) -> String {
    at.as_millis().min(LAST).to_string()
}

#[cfg(test)]
mod tests;
