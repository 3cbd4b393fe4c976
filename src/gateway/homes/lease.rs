//! Being alive among others: this process's lease is renewed, and what those held whose lease is over is taken up.
//!
//! A third of a lease is the time between two renewals, a half that between two looks: a death is seen within two leases,
//! and one renewal that fails is none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::task::Holder;

use super::{CLAIM_AGAIN, CLAIMABLE, Gateway, Homes};
use crate::gateway::Route;
use crate::gateway::rejection::Chain;
use crate::gateway::session::Session;
use crate::gateway::takeover::Lost;

/// How often a lease is renewed while it lasts.
const RENEWALS: u32 = 3;
/// How often is looked for those that are gone.
const LOOKS: u32 = 2;
/// So many sessions are claimed at once.
const TOGETHER: usize = 64;
/// How long a process that is alone waits before it looks again at what it could not take up.
const TRY_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// How a process stands among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// It is one of them.
    Well,
    /// Its lease is over: what all share can't be reached.
    Away,
    /// They seal with a key that it does not know.
    Strange,
}

impl Gateway {
    /// Keeps this process alive among the others until jobs are told to stop, and tells at each change how it stands.
    /// While it can't be, what it holds goes on. At the end its lease is given up.
    pub async fn keep_lease(self: Arc<Self>, begun: Among, tell: impl Fn(Among) + Send) {
        let Some(homes) = &self.homes else { return };
        let lease = homes.sharing.lease;
        let (is_alive, mut differs) = (begun != Among::Away, begun == Among::Strange);
        let tell = |is_over: bool, differs: bool| {
            tell(match (is_over, differs) {
                (true, _) => Among::Away,
                (false, true) => Among::Strange,
                (false, false) => Among::Well,
            });
        };
        let (mut renewed, mut is_away, mut is_over) = (Instant::now(), false, !is_alive);
        let mut losses = homes.replicas().losses();
        loop {
            let asked = Instant::now();
            match tokio::time::timeout(lease / RENEWALS, homes.replicas().renew()).await {
                Ok(Ok(())) => {
                    if is_away {
                        tracing::info!("the store is back: this replica is one of several again");
                    }
                    // Others may have taken it for dead meanwhile. What was noted of homes is forgotten before anybody believes
                    // in the new lease.
                    if is_over || renewed.elapsed() > lease {
                        homes.cache.forget_homes();
                        homes.lapses.fetch_add(1, Ordering::Relaxed);
                    }
                    homes.note_renewed(asked);
                    let lost = homes.replicas().losses();
                    if std::mem::replace(&mut losses, lost) != lost {
                        self.tell_claims(homes);
                    }
                    let differed = differs;
                    differs = self.has_another_key(homes, differed).await;
                    if is_over || differs != differed {
                        tell(false, differs);
                    }
                    (renewed, is_away, is_over) = (asked, false, false);
                }
                failed => {
                    homes.note_failed();
                    if !is_away {
                        let error = failed.ok().and_then(Result::err);
                        let error =
                            error.as_ref().map_or_else(|| "no answer".to_owned(), |error| Chain(error).to_string());
                        tracing::error!(
                            error,
                            "the lease of this replica can't be renewed: the others will take it for dead"
                        );
                    }
                    is_away = true;
                    if !is_over && renewed.elapsed() >= lease {
                        is_over = true;
                        tell(true, differs);
                    }
                }
            }
            let pause = tokio::time::timeout(lease / RENEWALS, homes.replicas().shaken());
            if self.jobs.stopping().run_until_cancelled(pause).await.is_none() {
                // From here, so that no renewal comes after it: what this process has left is others' at once.
                return homes.replicas().leave().await;
            }
        }
    }

    /// Begins the lease, and says how this process stands; a failure is [`Gateway::keep_lease`]'s to tell.
    pub async fn begin_lease(&self) -> Among {
        let Some(homes) = &self.homes else { return Among::Well };
        let asked = Instant::now();
        if !matches!(tokio::time::timeout(homes.sharing.lease, homes.replicas().renew()).await, Ok(Ok(()))) {
            return Among::Away;
        }
        homes.note_renewed(asked);
        if self.has_another_key(homes, false).await { Among::Strange } else { Among::Well }
    }

    /// Whether the others seal with a key that is not known here. Where that can't be told now, it is as it was.
    async fn has_another_key(&self, homes: &Homes, before: bool) -> bool {
        let known = self.sealer.known_keys();
        let agreed = homes.replicas().agree(&known);
        let Ok(Ok(agrees)) = tokio::time::timeout(homes.sharing.lease / RENEWALS, agreed).await else { return before };
        if !agrees && !before {
            tracing::error!(
                "`secrets.key` of the other replicas is neither that of this one nor in its `secrets.previous`: sessions \
                 and requests of the ones are refused by the other, and this replica is not ready"
            );
        } else if agrees && before {
            tracing::info!("the other replicas have a `secrets.key` that is known here");
        }
        !agrees
    }

    /// Takes up what those held who are gone, until jobs are told to stop. A process that is alone does it once: there can
    /// be nobody else.
    pub async fn look_after_others(self: Arc<Self>, routes: Vec<Arc<Route>>) {
        let Some(homes) = &self.homes else {
            while !self.take_up_all(&routes).await {
                let pause = tokio::time::sleep(TRY_AGAIN);
                if self.jobs.stopping().run_until_cancelled(pause).await.is_none() {
                    return;
                }
            }
            return;
        };
        let mut looked = self.ledger.lost_words();
        loop {
            looked = self.look_for_strays(&routes, looked).await;
            let awaited = homes.cache.awaited();
            let holders: BTreeSet<Holder> = self.other_holders().await.into_iter().chain(awaited).collect();
            for holder in holders {
                self.look_at(homes, &routes, &holder).await;
            }
            let pause = tokio::time::sleep(homes.sharing.lease / LOOKS);
            if self.jobs.stopping().run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Takes up what this process was given without a word that arrived, where a word was lost since the last look; gives the
    /// number of those that this look has seen to.
    async fn look_for_strays(self: &Arc<Self>, routes: &[Arc<Route>], looked: u64) -> u64 {
        let lost = self.ledger.lost_words();
        if lost == looked {
            return looked;
        }
        match self.take_up_strays(routes, Lost::Replica).await {
            Ok(calls) => {
                if calls > 0 {
                    tracing::info!(calls, "calls that this replica did not know it held were taken up");
                }
                lost
            }
            // Its failure is told where the lease is renewed; the next look is for the same.
            Err(_) => looked,
        }
    }

    /// Takes up what earlier lives of a process that is alone have left; says whether that is all of it.
    async fn take_up_all(self: &Arc<Self>, routes: &[Arc<Route>]) -> bool {
        let Ok(holders) = self.ledger.other_holders().await else { return false };
        let mut are_all = true;
        for holder in holders {
            are_all &= self.take_up_from(routes, &holder, Lost::Restart).await;
        }
        are_all
    }

    /// Whether a holder that was found dead has not come back since: what it does from then on is its own.
    pub(in crate::gateway) async fn is_still_gone(&self, holder: &Holder) -> bool {
        match &self.homes {
            Some(homes) => homes.replicas().standing(holder).await.is_ok_and(|standing| homes.is_gone(standing)),
            None => true,
        }
    }

    async fn look_at(self: &Arc<Self>, homes: &Homes, routes: &[Arc<Route>], holder: &Holder) {
        if *holder == *homes.replicas().me() {
            return;
        }
        // The store's failure is told where the lease is renewed.
        let Ok(standing) = homes.replicas().standing(holder).await else { return };
        homes.note_standing(holder, standing);
        if homes.is_gone(standing) {
            self.take_up_from(routes, holder, Lost::Replica).await;
            self.deliveries.streams_gone(&self.ledger, holder).await;
        }
    }

    /// Goes on with what a holder held that is gone; says whether that was all of it. The next look finds the rest.
    async fn take_up_from(self: &Arc<Self>, routes: &[Arc<Route>], holder: &Holder, lost: Lost) -> bool {
        match self.take_up(routes, holder, lost).await {
            Ok(0) => true,
            Ok(calls) => {
                tracing::info!(%holder, calls, "the calls of a holder that is gone were taken up");
                true
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), %holder, "not every call of a holder that is gone was taken up");
                false
            }
        }
    }

    async fn other_holders(&self) -> Vec<Holder> {
        self.ledger.other_holders().await.unwrap_or_default()
    }

    /// Says again whose home all those sessions are that this process has claimed: what was noted of it is lost, and whoever asks
    /// would take somebody else for their home.
    fn tell_claims(self: &Arc<Self>, homes: &Arc<Homes>) {
        tracing::warn!("what replicas share was lost: it is told again");
        let (gateway, homes) = (Arc::clone(self), Arc::clone(homes));
        self.jobs.spawn("claims", async move {
            let claimed = |session: &Arc<Session>| session.claimed().is_some() && !session.is_elsewhere();
            let sessions: Vec<Arc<Session>> = gateway.sessions.all().into_iter().filter(claimed).collect();
            for some in sessions.chunks(TOGETHER) {
                let claims = join_all(some.iter().map(|session| gateway.tell_claim(&homes, session)));
                if gateway.jobs.stopping().run_until_cancelled(claims).await.is_none() {
                    return;
                }
            }
        });
    }

    /// Until it is written, or another process has the session.
    async fn tell_claim(&self, homes: &Homes, session: &Arc<Session>) {
        loop {
            match homes.replicas().claim_home(session.number, None, CLAIMABLE).await {
                Ok(home) => {
                    homes.cache.note_home(session.number, &home);
                    if home != *homes.replicas().me() {
                        self.sessions.forget(session);
                    }
                    return;
                }
                Err(_) => tokio::time::sleep(homes.sharing.lease / RENEWALS).await,
            }
        }
    }

    /// Says again whose home those sessions are that this process has claimed.
    pub(in crate::gateway) fn claim_again(self: &Arc<Self>) {
        if self.homes.is_none() {
            return;
        }
        let now = self.clock.now();
        for session in self.sessions.all() {
            let is_due = session.claimed().is_some_and(|claimed| now.since(claimed) >= CLAIM_AGAIN);
            if !is_due || session.is_elsewhere() {
                continue;
            }
            session.claimed_at(now);
            let gateway = Arc::clone(self);
            self.jobs.spawn("claim", async move {
                let Some(homes) = &gateway.homes else { return };
                // One that is lost by it is found out by its next request.
                drop(homes.replicas().claim_home(session.number, None, CLAIMABLE).await);
            });
        }
    }
}
