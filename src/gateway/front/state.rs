//! The `requestState` of a modern upstream on its way through a client: sealed, since the upstream sees one caller where
//! there are many, and can't tell who brings it back (2026-07-28 patterns, "Multi Round-Trip Requests").
//!
//! Both sides are JSON text, quotes included, so that the upstream gets its own spelling back byte for byte.

use std::sync::Arc;

use crate::gateway::call::Call;
use crate::gateway::session::Terms;
use crate::jsonrpc::{raw_string, string_value};
use crate::seal::{Purpose, Sealer};

/// Whose state it is and where.
#[derive(Debug, Clone)]
pub(in crate::gateway) struct Binding {
    principal: [u8; 16],
    route: Arc<str>,
}

impl Binding {
    /// That of a call's caller on its route.
    pub(in crate::gateway) fn of(call: &Call) -> Self {
        Self { principal: call.caller.principal.digest(), route: Arc::clone(&call.route.name) }
    }

    /// That of the one whose conversation it is.
    pub(super) fn of_terms(terms: &Terms) -> Self {
        Self { principal: terms.principal, route: Arc::clone(&terms.route) }
    }

    /// None begins another: the principal's part is of one length, the route's ends in zero.
    fn bytes(&self) -> Vec<u8> {
        [&self.principal[..], self.route.as_bytes(), &[0]].concat()
    }

    /// An upstream's state as this caller gets it.
    pub(in crate::gateway) fn wrap(&self, sealer: &Sealer, state: &str) -> String {
        raw_string(&sealer.seal(Purpose::State, &[&self.bytes(), state.as_bytes()].concat()))
    }

    /// The upstream's state out of what a client sent; `None` when this caller never got it on this route.
    pub(in crate::gateway) fn unwrap(&self, sealer: &Sealer, state: &str) -> Option<String> {
        let plain = sealer.open(Purpose::State, &string_value(state)?)?;
        let state = plain.strip_prefix(&*self.bytes())?;
        String::from_utf8(state.to_vec()).ok()
    }
}
