//! A process that is about to stop: what is new begins at another one, and its sessions go to others while it finishes what
//! it holds.
//!
//! A session goes with the first request that comes for it, so that nothing is given away which nobody uses: its home is
//! given up in the store, and whoever serves the request claims it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::replica::Standing;
use crate::task::StoreError;

use super::{CLAIMABLE, Gateway, Homes, Place};
use crate::gateway::Route;
use crate::gateway::session::{Sealed, Session};

/// How long the process waits for requests that found their place in it before: nothing new is refused to them.
const PLACED_LIMIT: Duration = Duration::from_secs(1);

impl Homes {
    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Whether a session that is known here stays here, without a look at anything else.
    pub(super) fn is_settled(&self, session: &Session) -> bool {
        !session.is_elsewhere() && session.is_confirmed(self.lapses()) && !self.is_leaving()
    }

    /// Where something new begins: here, unless this process is about to stop and another is there.
    pub(super) async fn place_of_new(&self) -> Place {
        if !self.is_leaving() {
            return Place::Here;
        }
        let others = self.cache.awaited();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        for number in 0..others.len() {
            let Some(other) = others.get(turn.wrapping_add(number) % others.len()) else { break };
            if let Ok(Standing::Alive { address: Some(address) }) = self.standing(other).await {
                return self.elsewhere(other.clone(), address);
            }
        }
        Place::Here
    }
}

impl Gateway {
    /// Begins to leave: what comes from now on is passed on to others, where there are any. Returns when what came before
    /// has begun, so that it is not refused.
    pub async fn leave(&self) {
        let Some(homes) = &self.homes else { return };
        homes.leaving.store(true, Ordering::Release);
        homes.placed.close();
        drop(tokio::time::timeout(PLACED_LIMIT, homes.placed.wait()).await);
    }

    /// To be kept from before a request's place is looked for until it has begun, where there are several processes.
    #[must_use]
    pub fn placing(&self) -> Option<TaskTrackerToken> {
        self.homes.as_ref().filter(|homes| !homes.is_leaving()).map(|homes| homes.placed.token())
    }

    /// Gives away a session that is at home in this process, if that is about to stop; says where it is served.
    pub(super) async fn hand_over(
        &self,
        homes: &Homes,
        route: &Route,
        sealed: &Sealed,
        known: Option<&Arc<Session>>,
    ) -> Result<Option<Place>, StoreError> {
        let Some(session) = known.filter(|session| homes.is_leaving() && self.can_go(sealed, session, route)) else {
            return Ok(None);
        };
        let place @ Place::There(_) = homes.place_of_new().await else { return Ok(None) };
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
        (is_servers_own || live.plain.is_empty()) && (!is_exclusive || live.unfinished == 0)
    }
}
