//! What a caller showed, kept for routes whose upstream is addressed on their behalf.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};

use crate::gateway::Route;
use crate::metrics::label::RejectReason;
use crate::oauth::secret::SubjectToken;
use crate::tenant::{Caller, Principal, Scopes};

use super::http::Refusal;

/// The caller as the route sees them, and what they showed that its upstream needs.
///
/// Where the gateway asks for no credentials and passes them on, whoever shows another token is another caller: all that is
/// known of them is what they show.
pub(super) fn of(
    route: &Route,
    caller: Arc<Caller>,
    headers: &HeaderMap,
) -> Result<(Arc<Caller>, Option<Arc<SubjectToken>>), Refusal> {
    if route.subjects.is_none() {
        return Ok((caller, None));
    }
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = shown.next() else { return Ok((caller, None)) };
    if shown.next().is_some() {
        return Err(Refusal::Message(
            StatusCode::BAD_REQUEST,
            RejectReason::Header,
            "The Authorization header is there more than once",
        ));
    }
    let token = SubjectToken::new(value.clone());
    if route.passes_authorization {
        let caller = Caller::of(Arc::new(Principal::of_passed_token(token.digest())));
        return Ok((Arc::new(caller), Some(Arc::new(token))));
    }
    // Keys are the gateway's own and mean nothing elsewhere.
    let is_token = matches!(caller.scopes, Scopes::These(_));
    Ok((caller, is_token.then(|| Arc::new(token))))
}
