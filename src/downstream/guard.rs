//! The door between replicas: takes requests that another replica passes on, and nothing else. Whoever can't show that it
//! has the key gets 401 and no word; the caller's own credentials are looked at again behind it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::request::Parts;
use ::http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::clock::{Clock, Timestamp};
use crate::seal::Sealer;

use super::answer::{ResponseBody, empty};
use super::headers;
use super::http::{Arrival, Endpoints};
use super::passage::{NO, PEER, Passage, SEAL, Seal, TAKEN, TO, YES, digest};
use super::seldom::Seldom;

/// As far apart may the clocks of two replicas be, with the way between them.
const SKEW: Duration = Duration::from_secs(30);
/// So many requests are remembered, so that none is taken twice.
const MOST: usize = 1 << 20;

/// Knows who may pass requests on.
#[derive(Debug)]
pub struct Guard {
    me: Box<str>,
    sealer: Arc<Sealer>,
    clock: Clock,
    taken: Mutex<Taken>,
    told: Seldom,
}

/// Whether a request is let in.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// For whom it is passed on, and the digest that its body must have.
    Taken(IpAddr, [u8; 32]),
    /// It is for one who was at this address before.
    ForAnother,
    /// Nobody who has the key sent this, or not now, or not for the first time.
    Refused,
}

/// Requests that were taken, by their time.
#[derive(Debug, Default)]
struct Taken {
    nonces: BTreeSet<(u64, [u8; 16])>,
    /// What is not later is refused: it may have been forgotten.
    floor: u64,
}

impl Taken {
    /// Notes a request; `false`: it was there before, or may have been.
    fn note(&mut self, at: u64, nonce: [u8; 16], now: Timestamp, most: usize) -> bool {
        let skew = u64::try_from(SKEW.as_millis()).unwrap_or(u64::MAX);
        let oldest = now.as_millis().saturating_sub(skew);
        while let Some(first) = self.nonces.first().copied() {
            if first.0 >= oldest && self.nonces.len() < most {
                break;
            }
            self.floor = self.floor.max(first.0);
            self.nonces.pop_first();
        }
        at > self.floor && self.nonces.insert((at, nonce))
    }
}

impl Guard {
    /// The guard of the replica of that name.
    #[must_use]
    pub fn new(me: &str, sealer: Arc<Sealer>, clock: Clock) -> Self {
        Self { me: me.into(), sealer, clock, taken: Mutex::default(), told: Seldom::default() }
    }

    /// Looks at the head of a request.
    fn admit(&self, parts: &Parts) -> Admission {
        self.look_at(parts).unwrap_or(Admission::Refused)
    }

    fn look_at(&self, parts: &Parts) -> Option<Admission> {
        let Seal { at, nonce, body, signature } = Seal::read(&parts.headers)?;
        let target = parts.uri.path_and_query()?.as_str();
        let named = headers::single(&parts.headers, &TO).ok()?;
        let to = named.as_deref().unwrap_or(&self.me);
        let passage = Passage { to, method: &parts.method, target, at, nonce, body };
        let now = self.clock.now();
        if !self.sealer.is_signed(&passage.to_signed(&parts.headers), &signature) {
            if self.told.is_due(now) {
                tracing::error!(
                    "a request to `replica.address` is refused: it is not signed with `secrets.key` or a key of \
                     `secrets.previous`; either another replica has another key, or it is no replica"
                );
            }
            return None;
        }
        if *to != *self.me {
            return Some(Admission::ForAnother);
        }
        let sent = Timestamp::from_millis(at);
        if now.since(sent) > SKEW || sent.since(now) > SKEW {
            tracing::warn!(%sent, "a request of another replica is refused: the clocks are too far apart");
            return None;
        }
        let is_new = self.taken.lock().unwrap_or_else(PoisonError::into_inner).note(at, nonce, now, MOST);
        let peer = headers::single(&parts.headers, &PEER).ok()??.parse().ok()?;
        is_new.then_some(Admission::Taken(peer, body))
    }

    /// Answers a request that came to the internal address.
    ///
    /// # Errors
    /// Never: every failure is an answer.
    pub async fn handle(
        self: Arc<Self>,
        endpoints: Arc<Endpoints>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        Ok(Box::pin(self.answer(&endpoints, request)).await)
    }

    async fn answer(&self, endpoints: &Endpoints, request: Request<Incoming>) -> Response<ResponseBody> {
        let (mut parts, body) = request.into_parts();
        let (peer, expected) = match self.admit(&parts) {
            Admission::Taken(peer, expected) => (peer, expected),
            Admission::Refused => return empty(StatusCode::UNAUTHORIZED),
            Admission::ForAnother => {
                let mut response = empty(StatusCode::MISDIRECTED_REQUEST);
                response.headers_mut().insert(TAKEN, NO);
                return response;
            }
        };
        let Ok(body) = endpoints.read(body, &parts.headers).await else { return empty(StatusCode::BAD_REQUEST) };
        if digest(&body) != expected {
            return empty(StatusCode::UNAUTHORIZED);
        }
        for name in [SEAL, PEER, TO] {
            parts.headers.remove(name);
        }
        let mut response = endpoints.respond(&mut parts, Arrival::Passed(body), peer).await;
        response.headers_mut().insert(TAKEN, YES);
        response
    }
}

#[cfg(test)]
mod tests;
