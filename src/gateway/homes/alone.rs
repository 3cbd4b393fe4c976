//! Sessions of a process that has its store to itself: what has ended stays so after a restart.

use std::time::Duration;

use super::{Asking, CLAIMABLE, Place};
use crate::gateway::Gateway;
use crate::gateway::rejection::{Chain, Kind};
use crate::gateway::session::Session;

/// How soon is written again what could not be written.
const AGAIN: Duration = Duration::from_secs(1);

impl Gateway {
    /// Everything is served here. Before a session of an earlier process is taken up, it is known whether it has ended.
    ///
    /// # Errors
    /// [`Fault::Store`](crate::gateway::rejection::Fault::Store) where that can't be known.
    pub(super) async fn place_alone(&self, asking: &Asking<'_>) -> Result<Place, Kind> {
        let (Some(endings), Some(token)) = (&self.endings, asking.session) else { return Ok(Place::Here) };
        if asking.version.is_modern() || self.sessions.known(token).is_some() {
            return Ok(Place::Here);
        }
        let sealed = self.sessions.open(token).filter(|sealed| sealed.terms.are_of(asking.route, asking.principal));
        if let Some(sealed) = sealed
            && !self.sessions.is_over(&sealed)
        {
            let is_old = self.clock.now().since(sealed.issued) >= CLAIMABLE;
            if is_old || endings.has_ended(sealed.number).await? {
                self.sessions.bury(sealed.number);
            }
        }
        Ok(Place::Here)
    }

    /// Notes for later processes that a session has ended.
    pub(super) fn note_ended(&self, session: &Session) {
        let Some(endings) = self.endings.clone() else { return };
        let Some(sealed) = self.sessions.open(&session.token) else { return };
        let left = CLAIMABLE.saturating_sub(self.clock.now().since(sealed.issued));
        let (number, stopping) = (sealed.number, self.jobs.stopping().clone());
        self.jobs.spawn("end of a session", async move {
            while !left.is_zero()
                && let Err(error) = endings.end_session(number, left).await
            {
                tracing::debug!(error = %Chain(&error), "the end of a session was not noted");
                if stopping.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                    return;
                }
            }
        });
    }
}
