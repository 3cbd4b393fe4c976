//! Takeovers, and what was taken over or made without a word of it: a reply that was lost leaves tasks with this process that it
//! knows nothing of.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use redis::Value;

use super::super::lock;
use super::reply::{Parts, Row};
use super::{FULL, Inner, is_certain};
use crate::hub::Script;
use crate::task::store::{Known, Orphan, StoreError};
use crate::task::{Holder, TaskId};

/// The own tasks of so many tenants are looked at together.
const TOGETHER: usize = 64;

/// So many of a holder's own tasks are looked at in one step: meanwhile the server does nothing else. How many there are is
/// bounded by what tenants may have unfinished.
const PAGE: &str = "1000";

/// What one such step gave.
struct Page {
    /// Each with its epoch.
    own: Vec<(String, u64)>,
    /// Where there may be more: after which.
    last: Option<(String, String)>,
}

/// Takeovers of which nobody knows what came of them.
#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// Counts the looks for strays. What an earlier takeover has not done by then it does no more.
    round: AtomicU64,
    /// How often an answer was lost.
    lost: AtomicU64,
    /// The tenants whose tasks they were about.
    doubtful: Mutex<BTreeSet<String>>,
}

impl Takeovers {
    /// How often an answer was lost by now.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Inner {
    /// See [`Store::take_over`](super::super::Store::take_over).
    pub(super) async fn take_over(
        &self,
        from: &Holder,
        by: &Holder,
        at_most: usize,
    ) -> Result<Vec<Orphan>, StoreError> {
        let mut orphans = Vec::new();
        match self.take_over_into(&mut orphans, from, by, at_most).await {
            // What is this process's now is nobody else's to go on with.
            Err(error) if !orphans.is_empty() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a takeover was cut short");
                Ok(orphans)
            }
            taken => taken.map(|()| orphans),
        }
    }

    async fn take_over_into(
        &self,
        orphans: &mut Vec<Orphan>,
        from: &Holder,
        by: &Holder,
        at_most: usize,
    ) -> Result<(), StoreError> {
        for (tenant, times) in self.tenants_of(from).await? {
            if orphans.len() >= at_most {
                break;
            }
            // Before as well as after: a task that is taken must not be missed where this process dies between.
            self.index(&tenant, by, None).await?;
            let left = (at_most - orphans.len()).to_string();
            let round = self.takeovers.round.load(Ordering::SeqCst).to_string();
            let args = [from.as_str().as_bytes(), by.as_str().as_bytes(), left.as_bytes(), round.as_bytes(), FULL];
            let mut doubt = TakeoverInDoubt { inner: self, tenant: &tenant, is_over: false };
            let mut parts = Parts::of(doubt.call(&self.scripts.take_over, &args).await?, "a takeover")?;
            let before = orphans.len();
            read_orphans(parts.value(), orphans)?;
            if orphans.len() > before {
                self.index(&tenant, by, None).await?;
            }
            doubt.is_over = self.hub.is_ordered();
            drop(doubt);
            if parts.next::<u64>()? == 0 {
                self.drained(from, Some((&tenant, &times))).await?;
            }
        }
        Ok(())
    }

    /// See [`Store::take_strays`](super::super::Store::take_strays).
    pub(super) async fn take_strays(
        &self,
        by: &Holder,
        known: &Known<'_>,
        at_most: usize,
    ) -> Result<Vec<Orphan>, StoreError> {
        let mut orphans = Vec::new();
        match self.take_strays_into(&mut orphans, by, known, at_most).await {
            Err(error) if !orphans.is_empty() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a look for strays was cut short");
                Ok(orphans)
            }
            taken => taken.map(|()| orphans),
        }
    }

    async fn take_strays_into(
        &self,
        orphans: &mut Vec<Orphan>,
        by: &Holder,
        known: &Known<'_>,
        at_most: usize,
    ) -> Result<(), StoreError> {
        let round = (self.takeovers.round.fetch_add(1, Ordering::SeqCst) + 1).to_string();
        let doubtful = lock(&self.takeovers.doubtful).clone();
        for tenant in &doubtful {
            // Whoever took this process for dead meanwhile may have struck it out.
            self.index(tenant, by, None).await?;
        }
        let tenants = self.tenants_of(by).await?;
        for some in tenants.chunks(TOGETHER) {
            let looks = join_all(some.iter().map(|(tenant, _)| self.own(by, &round, tenant, None))).await;
            for ((tenant, times), first) in some.iter().zip(looks) {
                let (mut page, mut has_any, mut has_strays) = (first?, false, false);
                loop {
                    has_any |= !page.own.is_empty();
                    let strays = self.strays(&page.own, known);
                    has_strays |= !strays.is_empty();
                    self.take(by, tenant, &strays, at_most, orphans).await?;
                    if orphans.len() >= at_most {
                        return Ok(());
                    }
                    let Some(last) = page.last else { break };
                    page = self.own(by, &round, tenant, Some(&last)).await?;
                }
                if !has_any {
                    self.drained(by, Some((tenant, times))).await?;
                }
                if !has_strays {
                    lock(&self.takeovers.doubtful).remove(tenant);
                }
            }
        }
        Ok(())
    }

    /// Some of a holder's unfinished tasks of a tenant, in the order of their creation.
    async fn own(
        &self,
        by: &Holder,
        round: &str,
        tenant: &str,
        after: Option<&(String, String)>,
    ) -> Result<Page, StoreError> {
        let (at, id) = after.map(|(at, id)| (at.as_str(), id.as_str())).unwrap_or_default();
        let args = [by.as_str(), round, at, id, PAGE].map(str::as_bytes);
        let mut parts = Parts::of(self.of_tenant(&self.scripts.own, tenant, &args).await?, "own tasks")?;
        let (own, at, id) = (parts.next()?, parts.next::<Option<String>>()?, parts.next::<Option<String>>()?);
        Ok(Page { own, last: at.zip(id) })
    }

    /// Gives these tasks of its own to a holder anew, until it has `at_most`.
    async fn take(
        &self,
        by: &Holder,
        tenant: &str,
        strays: &[(&str, u64)],
        at_most: usize,
        orphans: &mut Vec<Orphan>,
    ) -> Result<(), StoreError> {
        if strays.is_empty() {
            return Ok(());
        }
        let epochs: Vec<String> = strays.iter().map(|(_, epoch)| epoch.to_string()).collect();
        let mut args = vec![by.as_str().as_bytes(), FULL];
        for ((id, _), epoch) in strays.iter().zip(&epochs).take(at_most - orphans.len()) {
            args.extend([id.as_bytes(), epoch.as_bytes()]);
        }
        let mut doubt = TakeoverInDoubt { inner: self, tenant, is_over: false };
        let mut parts = Parts::of(doubt.call(&self.scripts.take_strays, &args).await?, "strays")?;
        read_orphans(parts.value(), orphans)?;
        doubt.is_over = self.hub.is_ordered();
        Ok(())
    }

    /// Those of which this process does not know. What it has refused to make is not among them: that is taken back.
    fn strays<'a>(&self, own: &'a [(String, u64)], known: &Known<'_>) -> Vec<(&'a str, u64)> {
        let refused = lock(&self.doubtful);
        let is_stray = |(id, epoch): &&(String, u64)| {
            TaskId::parse(id).is_some_and(|id| !known(id, *epoch) && !refused.contains_key(&id))
        };
        own.iter().filter(is_stray).map(|(id, epoch)| (id.as_str(), *epoch)).collect()
    }
}

/// A takeover whose answer may be lost; unless that is over, there may be strays of the tenant's.
struct TakeoverInDoubt<'a> {
    inner: &'a Inner,
    tenant: &'a str,
    is_over: bool,
}

impl TakeoverInDoubt<'_> {
    /// Runs the script. Where that fails for certain, there is no doubt.
    async fn call(&mut self, script: &Script, args: &[&[u8]]) -> Result<Value, StoreError> {
        let done = self.inner.of_tenant(script, self.tenant, args).await;
        self.is_over = done.as_ref().is_err_and(is_certain);
        done
    }
}

impl Drop for TakeoverInDoubt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.inner.takeovers.doubtful).insert(self.tenant.to_owned());
            self.inner.takeovers.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn read_orphans(taken: Value, orphans: &mut Vec<Orphan>) -> Result<(), StoreError> {
    for taken in Parts::of(taken, "orphans")?.rest() {
        // It has this holder already, as the others have.
        match orphan(taken) {
            Ok(orphan) => orphans.push(orphan),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a task can't be taken over");
            }
        }
    }
    Ok(())
}

fn orphan(taken: Value) -> Result<Orphan, StoreError> {
    let mut parts = Parts::of(taken, "an orphan")?;
    let task = Arc::new(Row::read(parts.value())?.task()?);
    let (draft, trail): (Option<String>, Option<String>) = (parts.next()?, parts.next()?);
    Ok(Orphan { task, draft: draft.map(Into::into), trail: trail.map(Into::into) })
}
