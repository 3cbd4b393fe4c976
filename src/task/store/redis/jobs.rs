//! What the store does beside what it is asked: looks at what is watched, and sums up bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::super::lock;
use super::Inner;
use super::reply::{Parts, read};
use super::watches::News;
use crate::jobs::Jobs;
use crate::task::{Owner, StoreError, TaskId};

/// How often what is watched is looked at.
const LOOK: Duration = Duration::from_secs(3);
/// So many are looked at together.
const TOGETHER: usize = 64;
/// How often bytes are summed up.
const SUM: Duration = Duration::from_secs(5);
/// So many tenants in one step of that.
const SUMMED: usize = 500;

pub(super) fn start(inner: &Arc<Inner>, jobs: &Jobs) {
    let (watcher, stopping) = (Arc::clone(inner), jobs.stopping().clone());
    jobs.spawn("watched tasks", async move { stopping.run_until_cancelled(watcher.look_after_watches()).await });
    let (summer, stopping) = (Arc::clone(inner), jobs.stopping().clone());
    jobs.spawn("store bytes", async move { stopping.run_until_cancelled(summer.sum_up()).await });
}

impl Inner {
    async fn look_after_watches(&self) {
        let mut renewals = self.hub.renewals();
        loop {
            tokio::select! {
                () = renewals.next() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            self.take_back().await;
            let watched = self.watches.all();
            for some in watched.chunks(TOGETHER) {
                let looks = some.iter().map(|(id, owner)| self.look_at(owner, *id));
                // It is away: there is another round when it is back.
                if join_all(looks).await.iter().any(Result::is_err) {
                    break;
                }
            }
        }
    }

    /// Takes creations back that nobody knows of. What fails is tried again at the next look.
    async fn take_back(&self) {
        // They stay among the doubtful until it is done: meanwhile nobody may take one for a stray.
        let doubtful: Vec<(TaskId, Arc<Owner>)> =
            lock(&self.doubtful).iter().map(|(id, owner)| (*id, Arc::clone(owner))).collect();
        for some in doubtful.chunks(TOGETHER) {
            let taking = some.iter().map(|(id, owner)| self.of_task(&self.scripts.take_back, owner, *id, &[]));
            let taken = join_all(taking).await;
            let mut doubtful = lock(&self.doubtful);
            for ((id, _), _) in some.iter().zip(&taken).filter(|(_, taken)| taken.is_ok()) {
                doubtful.remove(id);
            }
            if taken.iter().any(Result::is_err) {
                break;
            }
        }
    }

    async fn look_at(&self, owner: &Owner, id: TaskId) -> Result<(), StoreError> {
        let news = match self.of_task(&self.scripts.peek, owner, id, &[]).await? {
            Value::Nil => News::Gone,
            found => {
                let mut parts = Parts::of(found, "a version")?;
                News::of(parts.next()?, &parts.next::<String>()?)
            }
        };
        self.watches.tell_owner(owner, id, news);
        Ok(())
    }

    async fn sum_up(&self) {
        loop {
            if let Err(error) = self.sum_up_once().await {
                tracing::debug!(error = &error as &dyn std::error::Error, "bytes could not be summed up");
            }
            tokio::time::sleep(SUM).await;
        }
    }

    pub(super) async fn sum_up_once(&self) -> Result<(), StoreError> {
        let mut changed: Vec<(String, u64)> = lock(&self.changed_sizes).drain().collect();
        loop {
            let some: Vec<(String, String)> =
                changed.iter().rev().take(SUMMED).map(|(tenant, bytes)| (tenant.clone(), bytes.to_string())).collect();
            let args: Vec<&[u8]> =
                some.iter().flat_map(|(tenant, bytes)| [tenant.as_bytes(), bytes.as_bytes()]).collect();
            let summed = self.hub.call(&self.scripts.sizes, &[&self.keys.sizes, &self.keys.total], &args).await;
            match summed.map_err(StoreError::from).and_then(|sum| read::<u64>(sum, "a sum")) {
                Ok(sum) => self.bytes.store(sum, Ordering::Relaxed),
                Err(error) => {
                    let mut newer = lock(&self.changed_sizes);
                    for (tenant, bytes) in changed {
                        newer.entry(tenant).or_insert(bytes);
                    }
                    return Err(error);
                }
            }
            changed.truncate(changed.len() - some.len());
            if changed.is_empty() {
                return Ok(());
            }
        }
    }
}
