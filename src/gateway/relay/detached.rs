//! A call on its way, apart from the connection that it came on.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use crate::waits::{Spare, Wait};

use super::{Begun, Kind, Places, Plan, Sending, Source, drain};

thread_local! {
    static SPARE: Spare = const { RefCell::new(Vec::new()) };
}

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
        let mut wait = Wait::until(limit, &SPARE);
        let came = std::future::poll_fn(|cx| {
            let Some((sending, plan)) = &mut self.parts else { return Poll::Ready(Came::Cancel) };
            if plan.cancelled.poll(cx) {
                return Poll::Ready(Came::Cancel);
            }
            if let Poll::Ready(begun) = sending.as_mut().poll(cx) {
                return Poll::Ready(Came::Begun(begun));
            }
            Pin::new(&mut wait).poll(cx).map(|()| Came::Limit)
        })
        .await;
        match (came, self.parts.take()) {
            (Came::Begun(Ok((begun, places))), Some((_, mut plan))) => {
                plan.places = Some(places);
                Waited::Begun(begun, plan)
            }
            (Came::Begun(Err(kind)), _) => Waited::Failed(kind),
            (Came::Limit, Some((sending, plan))) => Waited::Late(sending, plan),
            (_, _) => Waited::Cancelled,
        }
    }
}

/// What ended a wait.
enum Came {
    Begun(Result<(Begun, Places), Kind>),
    Cancel,
    Limit,
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
        if let Some((sending, mut plan)) = self.parts.take() {
            if plan.is_stateless {
                plan.cancel_upstream(super::GONE);
                return;
            }
            let gateway = Arc::clone(&plan.gateway);
            gateway.jobs.spawn("drain", drain(Source::Waiting(sending), plan, None));
        }
    }
}
