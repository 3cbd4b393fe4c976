//! A call on its way, apart from the connection that it came on.

use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use super::{Begun, Kind, Plan, Sending, Source, drain};

/// A call on its way upstream that goes on when its client goes away.
pub(in crate::gateway) struct Detached {
    parts: Option<(Sending, Plan)>,
}

impl Detached {
    /// A call that has been sent, or waits for its place.
    #[must_use]
    pub(in crate::gateway) fn new(sending: Sending, plan: Plan) -> Self {
        Self { parts: Some((sending, plan)) }
    }

    /// Waits for the answer's beginning at most until `limit`; then gives everything back.
    pub(in crate::gateway) async fn begun(mut self, limit: Instant) -> Waited {
        let cancelled_or_begun = std::future::poll_fn(|cx| {
            let Some((sending, plan)) = &mut self.parts else { return Poll::Ready(None) };
            if plan.cancelled.poll(cx) {
                return Poll::Ready(None);
            }
            sending.as_mut().poll(cx).map(Some)
        });
        let waited = tokio::time::timeout_at(limit, cancelled_or_begun).await;
        let parts = self.parts.take();
        match (waited, parts) {
            (Ok(Some(Ok((begun, places)))), Some((_, mut plan))) => {
                plan.places = Some(places);
                Waited::Begun(begun, plan)
            }
            (Ok(Some(Err(kind))), _) => Waited::Failed(kind),
            (Err(_), Some((sending, plan))) => Waited::Late(sending, plan),
            (Ok(_), _) | (Err(_), None) => Waited::Cancelled,
        }
    }
}

/// What came of waiting for a reply.
pub(in crate::gateway) enum Waited {
    /// It has begun.
    Begun(Begun, Plan),
    /// There will be none.
    Failed(Kind),
    /// It is late.
    Late(Sending, Plan),
    /// The client cancelled the request.
    Cancelled,
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some((sending, plan)) = self.parts.take() {
            let gateway = Arc::clone(&plan.gateway);
            gateway.jobs.spawn("drain", drain(Source::Waiting(sending), plan, None));
        }
    }
}
