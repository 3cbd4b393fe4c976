//! Upstream sessions of a holder that is gone, for as long as calls of it go on here.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::gateway::bridge::{Declared, Offer};
use crate::gateway::held::stored::{StoredCall, Way};
use crate::gateway::session::{Session, Terms};
use crate::gateway::{Gateway, Route};
use crate::mcp::level::Level;

/// A route and the upstream's own name of a session.
type Name = (Arc<str>, Arc<str>);

/// Those that are there, by route and the upstream's own name: calls that were on one session are on one again.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Adoptions {
    // Held for a few map operations and never across an await.
    by_name: Mutex<HashMap<Name, Weak<Adoption>>>,
}

/// One of them. Dropping the last handle of one that was the holder's own ends it upstream.
pub(in crate::gateway) struct Adoption {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    session: Arc<Session>,
    /// It is nobody's but the gateway's.
    closes: AtomicBool,
}

impl fmt::Debug for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption").field("session", &self.session.number).finish_non_exhaustive()
    }
}

impl Adoption {
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Another process goes on with its calls: it is not ended from here.
    pub(super) fn leave(&self) {
        self.closes.store(false, Ordering::Relaxed);
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        if self.closes.load(Ordering::Relaxed) {
            self.session.end_unlisted();
            self.gateway.close_upstream(&self.route, &self.session);
        }
    }
}

impl Gateway {
    /// The conversation of a call whose holder is gone. A client's own is the one that it uses here, if it does.
    pub(super) fn adopt(
        self: &Arc<Self>,
        route: &Arc<Route>,
        call: &StoredCall<'_>,
        mut terms: Terms,
    ) -> Arc<Adoption> {
        let has_sessions = terms.upstream.version.has_sessions();
        if !has_sessions {
            terms.upstream = route.upstream.stateless();
        }
        let name = terms.upstream.id.clone().filter(|_| has_sessions).map(|id| (Arc::clone(&route.name), id));
        let mut by_name = self.adoptions.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(adoption) = name.as_ref().and_then(|name| by_name.get(name)?.upgrade()) {
            return adoption;
        }
        let is_own = call.way == Way::Own;
        let here = if is_own { self.sessions.by_number(call.number()) } else { None };
        let session = here.unwrap_or_else(|| self.unlisted(call, terms, is_own));
        let closes = AtomicBool::new(call.way == Way::Pooled && name.is_some());
        let adoption = Arc::new(Adoption { gateway: Arc::clone(self), route: Arc::clone(route), session, closes });
        if let Some(name) = name {
            by_name.retain(|_, adoption| adoption.strong_count() > 0);
            by_name.insert(name, Arc::downgrade(&adoption));
        }
        adoption
    }

    fn unlisted(&self, call: &StoredCall<'_>, terms: Terms, is_own: bool) -> Arc<Session> {
        let session = self.sessions.unlisted(terms, None);
        let (capabilities, info) = (call.capabilities.as_ref().into(), call.client_info.as_ref().into());
        session.bridge.begin(Declared { capabilities, info, tells_of_roots: false }, Offer::default());
        if let Some(level) = call.log_level.as_deref().and_then(Level::parse) {
            session.bridge.set_level(level);
        }
        // Its standalone stream is for the client, which may come back with it anywhere: a server gives each session one.
        session.live().listening_refused = is_own;
        session
    }
}
