//! The `requestState` of a modern upstream on its way through a client: sealed, since the upstream sees one caller where
//! there are many, and can't tell who brings it back (2026-07-28 patterns, "Multi Round-Trip Requests").
//!
//! Both sides are JSON text, quotes included, so that the upstream gets its own spelling back byte for byte.

use crate::gateway::Gateway;
use crate::gateway::call::Call;
use crate::gateway::session::Terms;
use crate::jsonrpc::{raw_string, string_value};
use crate::seal::Purpose;

/// An upstream's state as this caller gets it.
pub(in crate::gateway) fn wrap(gateway: &Gateway, call: &Call, state: &str) -> String {
    seal(gateway, bound(call.principal.digest(), &call.route.name), state)
}

/// The same for the one whose conversation it is.
pub(super) fn wrap_for(gateway: &Gateway, terms: &Terms, state: &str) -> String {
    seal(gateway, bound(terms.principal, &terms.route), state)
}

fn seal(gateway: &Gateway, mut plain: Vec<u8>, state: &str) -> String {
    plain.extend_from_slice(state.as_bytes());
    raw_string(&gateway.sealer.seal(Purpose::State, &plain))
}

/// The upstream's state out of what a client sent; `None` when this caller never got it on this route.
pub(in crate::gateway) fn unwrap(gateway: &Gateway, call: &Call, state: &str) -> Option<String> {
    let plain = gateway.sealer.open(Purpose::State, &string_value(state)?)?;
    let state = plain.strip_prefix(&*bound(call.principal.digest(), &call.route.name))?;
    String::from_utf8(state.to_vec()).ok()
}

/// Whose it is and where. No prefix of one is another: the principal's part is of one length, the route's ends in zero.
fn bound(principal: [u8; 16], route: &str) -> Vec<u8> {
    let mut bound = principal.to_vec();
    bound.extend_from_slice(route.as_bytes());
    bound.push(0);
    bound
}
