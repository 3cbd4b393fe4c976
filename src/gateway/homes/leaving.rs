//! A process that is about to stop: what is new begins at another one, and its sessions go to others while it finishes what
//! it holds.
//!
//! A session goes with the first request that comes for it, so that nothing is given away which nobody uses: its home is
//! given up in the store, and whoever serves the request claims it. When nothing is held any more the others say that they
//! have nothing on the way to it, and only then its doors are closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::replica::Standing;
use crate::task::{Holder, StoreError};

use super::bus::Message;
use super::{Asking, CLAIMABLE, Gateway, Homes, Place};
use crate::gateway::Route;
use crate::gateway::session::{Sealed, Session};

/// How long the process waits for requests that found their place in it before: nothing new is refused to them.
const PLACED_LIMIT: Duration = Duration::from_secs(5);
/// How long it waits for the others to say that nothing is on its way to it. One that died in this moment says nothing.
const PARTING: Duration = Duration::from_secs(1);

/// How this process leaves.
#[derive(Debug, Default)]
pub(super) struct Leave {
    /// It is about to stop.
    has_begun: AtomicBool,
    /// Requests whose place is looked for, or that begin.
    placed: TaskTracker,
    /// Whose turn it is to take what comes meanwhile.
    turns: AtomicUsize,
    /// Those that may have something on the way to it.
    others: watch::Sender<BTreeSet<Holder>>,
}

impl Homes {
    fn is_leaving(&self) -> bool {
        self.leave.has_begun.load(Ordering::Acquire)
    }

    /// Whether a session that is known here stays here, without a look at anything else.
    pub(super) fn is_settled(&self, session: &Session) -> bool {
        !session.is_elsewhere() && session.is_confirmed(self.lapses()) && self.is_leased() && !self.is_leaving()
    }

    /// Where something new begins: here, unless this process is about to stop and another is there that was not asked in
    /// vain.
    pub(super) async fn place_of_new(&self, tried: &[Holder]) -> Place {
        if !self.is_leaving() {
            return Place::Here;
        }
        let others: Vec<Holder> = self.cache.staying().into_iter().filter(|other| !tried.contains(other)).collect();
        let turn = self.leave.turns.fetch_add(1, Ordering::Relaxed);
        for number in 0..others.len() {
            let Some(other) = others.get(turn.wrapping_add(number) % others.len()) else { break };
            if let Ok(Standing::Alive { address: Some(address) }) = self.standing(other).await {
                return self.elsewhere(other.clone(), address);
            }
        }
        Place::Here
    }

    /// Somebody has nothing on the way to this process.
    pub(super) fn parted(&self, other: &Holder) {
        self.leave.others.send_if_modified(|others| others.remove(other));
    }
}

impl Gateway {
    /// What comes from now on is passed on to others where there are any, and refused where it is new and there are none.
    pub fn begin_to_leave(&self) {
        match &self.homes {
            Some(homes) => homes.leave.has_begun.store(true, Ordering::Release),
            None => self.drain(),
        }
    }

    /// Tells the others of it, and waits until what came before has begun, so that it is not refused.
    pub async fn leave(&self) {
        let Some(homes) = &self.homes else { return };
        homes.tell(&Message::Leaving { from: homes.replicas().me().to_string() }).await;
        homes.leave.placed.close();
        drop(tokio::time::timeout(PLACED_LIMIT, homes.leave.placed.wait()).await);
    }

    /// Takes leave of the others, when nothing is held any more: returns when nothing of theirs is on its way.
    pub async fn part(&self) {
        let Some(homes) = &self.homes else { return };
        let mut others = homes.leave.others.subscribe();
        homes.leave.others.send_replace(homes.cache.awaited().into_iter().collect());
        homes.tell(&Message::Closing { from: homes.replicas().me().to_string() }).await;
        let parted = tokio::time::timeout(PARTING, others.wait_for(BTreeSet::is_empty)).await;
        if parted.is_err() {
            tracing::debug!("not every replica has taken leave");
        }
    }

    /// From now on nothing is passed on to that process; it is told when nothing is on its way.
    pub(super) fn part_from(self: &Arc<Self>, other: Holder) {
        let Some(homes) = self.homes.clone() else { return };
        let way = homes.cache.note_closing(&other);
        self.jobs.spawn("parting", async move {
            drop(tokio::time::timeout(PARTING, way.wait()).await);
            homes.tell(&Message::Parted { to: other.to_string(), from: homes.replicas().me().to_string() }).await;
        });
    }

    /// To be kept from before a request's place is looked for until it has begun, where there are several processes.
    #[must_use]
    pub fn placing(&self) -> Option<TaskTrackerToken> {
        self.homes.as_ref().filter(|homes| !homes.is_leaving()).map(|homes| homes.leave.placed.token())
    }

    /// Gives away a session that is at home in this process, if that is about to stop; says where it is served.
    pub(super) async fn hand_over(
        &self,
        homes: &Homes,
        asking: &Asking<'_>,
        sealed: &Sealed,
        known: Option<&Arc<Session>>,
    ) -> Result<Option<Place>, StoreError> {
        let can_go = |session: &&Arc<Session>| homes.is_leaving() && self.can_go(sealed, session, asking.route);
        let Some(session) = known.filter(can_go) else { return Ok(None) };
        let place @ Place::There(_) = homes.place_of_new(asking.tried).await else { return Ok(None) };
        homes.replicas().release_home(sealed.number, CLAIMABLE).await?;
        homes.cache.forget_home(sealed.number);
        // What goes on in it here ends as it would; its client opens its streams again, there.
        session.give_away();
        session.live().streams.clear();
        Self::listen_no_more(session);
        Ok(Some(place))
    }

    /// Whether nothing of the session is in this process alone that messages of its client may be about.
    fn can_go(&self, sealed: &Sealed, session: &Session, route: &Route) -> bool {
        if sealed.terms.is_bound(route) || self.clock.now().since(sealed.issued) > CLAIMABLE {
            return false;
        }
        // A server with sessions finds its calls itself.
        let is_servers_own = session.terms.upstream.id.is_some();
        let is_exclusive = session.has_exclusive();
        let live = session.live();
        (is_servers_own || live.plain.is_empty()) && (!is_exclusive || (live.unfinished == 0 && live.plain.is_empty()))
    }
}
