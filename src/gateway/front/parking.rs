//! Calls that wait for their clients: an upstream has asked, the answer to its call is `input_required`, and the call goes
//! on when the client calls again with what it was asked (2026-07-28 patterns, "Multi Round-Trip Requests").
//!
//! The state that the client brings back is sealed: it names the call, its round, its caller and what was called, until
//! when. Each round is good for one retry. Whatever is wrong with a state is answered in the same words.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::clock::Timestamp;
use crate::gateway::call::Call;
use crate::gateway::rejection::{Kind, QUOTA_RETRY};
use crate::gateway::{Gateway, Request, Route};
use crate::jsonrpc::{Object, Raw, raw_string, string_value};
use crate::mcp::input::{self, InputResponse};
use crate::seal::{Purpose, Sealer, fingerprint};
use crate::task::Holder;

use super::client::Client;

/// How many calls of one caller may wait at the same time, whatever their route has room for.
const MOST_PARKED: usize = 64;

/// How many calls may wait at a route, of one caller and of all. Each keeps its place at the upstream: the greater part has to
/// be left to calls that go on, and to other callers.
fn most_parked(route: &Route) -> (usize, usize) {
    let places = route.places.places();
    ((places / 4).clamp(1, MOST_PARKED), (places / 2).max(1))
}

/// What is wrong with a state, whatever it is.
const STALE: &str = "This `requestState` is not valid, or not any more; call again without it";

/// A client that called again.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) client: Client,
    pub(super) answers: Vec<InputResponse>,
    /// This request declares the tasks extension.
    pub(super) declares_tasks: bool,
}

/// The calls that wait, or may do so again.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Parking {
    // Held for a few map operations and never across an await.
    calls: Mutex<HashMap<u64, Parked>>,
}

#[derive(Debug)]
struct Parked {
    principal: [u8; 16],
    route: Arc<str>,
    /// The round that may be answered now.
    round: Option<u32>,
    /// Keys and methods of what was asked in it.
    asked: Vec<(Box<str>, Box<str>)>,
    retries: mpsc::Sender<Retry>,
}

impl Parking {
    fn calls(&self) -> MutexGuard<'_, HashMap<u64, Parked>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's place among those that wait; given back on drop.
pub(super) struct Place {
    gateway: Arc<Gateway>,
    number: u64,
    round: u32,
    ticket: Ticket,
    retries: mpsc::Receiver<Retry>,
}

impl Place {
    /// Takes a place for a call.
    ///
    /// # Errors
    /// When its caller has as many as may be.
    pub(super) fn take(
        gateway: &Arc<Gateway>,
        route: &Route,
        principal: [u8; 16],
        subject: [u8; 32],
    ) -> Result<Self, Kind> {
        let (of_caller, of_all) = most_parked(route);
        let number = gateway.mint_number();
        let (sender, retries) = mpsc::channel(1);
        let mut calls = gateway.parking.calls();
        let here = || calls.values().filter(|parked| parked.route == route.name);
        let own = here().filter(|parked| parked.principal == principal).count();
        if own >= of_caller || here().count() >= of_all {
            let limit = u64::try_from(of_caller).unwrap_or(u64::MAX);
            return Err(Kind::Quota { reason: "parked_calls", limit, retry_after: QUOTA_RETRY });
        }
        let route = Arc::clone(&route.name);
        calls.insert(number, Parked { principal, route, round: None, asked: Vec::new(), retries: sender });
        drop(calls);
        let ticket = Ticket { number, round: 0, expires: Timestamp::from_millis(0), principal, subject };
        Ok(Self { gateway: Arc::clone(gateway), number, round: 0, ticket, retries })
    }

    /// Begins a round with these questions (key, method); the `requestState` that answers it, as JSON text.
    pub(super) fn ask(&mut self, asked: Vec<(Box<str>, Box<str>)>, expires: Timestamp) -> String {
        self.round = self.round.saturating_add(1);
        if let Some(parked) = self.gateway.parking.calls().get_mut(&self.number) {
            parked.round = Some(self.round);
            parked.asked = asked;
        }
        let ticket = Ticket { round: self.round, expires, ..self.ticket };
        raw_string(&ticket.seal(&self.gateway.sealer, self.gateway.home_of_calls()))
    }

    /// The retry that answers the round.
    pub(super) async fn retry(&mut self) -> Option<Retry> {
        self.retries.recv().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let parked = self.gateway.parking.calls().remove(&self.number);
        // A retry that came just now finds nobody: its client hears that the gateway gave the call up.
        drop(parked);
    }
}

/// What a state says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket {
    number: u64,
    round: u32,
    expires: Timestamp,
    principal: [u8; 16],
    subject: [u8; 32],
}

impl Ticket {
    /// As a token that also says who has the call, where that may be another process.
    fn seal(&self, sealer: &Sealer, holder: Option<&Holder>) -> String {
        let holder = holder.map_or("", Holder::as_str);
        let mut plain = Vec::with_capacity(TICKET + holder.len());
        plain.extend(self.number.to_be_bytes());
        plain.extend(self.round.to_be_bytes());
        plain.extend(self.expires.as_millis().to_be_bytes());
        plain.extend(self.principal);
        plain.extend(self.subject);
        plain.extend(holder.as_bytes());
        sealer.seal(Purpose::Parked, &plain)
    }

    fn open(sealer: &Sealer, token: &str) -> Option<Self> {
        let plain = sealer.open(Purpose::Parked, token)?;
        let (number, rest) = plain.split_first_chunk()?;
        let (round, rest) = rest.split_first_chunk()?;
        let (expires, rest) = rest.split_first_chunk()?;
        let (principal, rest) = rest.split_first_chunk()?;
        let (subject, _holder) = rest.split_first_chunk()?;
        Some(Self {
            number: u64::from_be_bytes(*number),
            round: u32::from_be_bytes(*round),
            expires: Timestamp::from_millis(u64::from_be_bytes(*expires)),
            principal: *principal,
            subject: *subject,
        })
    }
}

/// Bytes of a ticket before the name of who has the call.
const TICKET: usize = 68;

/// Which process has the call that a state is of, where the state says so.
pub(in crate::gateway) fn parked_at(sealer: &Sealer, state: &str) -> Option<Holder> {
    let plain = sealer.open(Purpose::Parked, state)?;
    let holder = std::str::from_utf8(plain.get(TICKET..)?).ok()?;
    (!holder.is_empty()).then(|| Holder::from_text(holder))
}

/// Stands for what is called and with what, however a client spells it the second time: all of `params` but what belongs
/// to one request alone.
pub(super) fn subject_of(route: &str, method: &str, params: &str) -> [u8; 32] {
    let mut params: Value = serde_json::from_str(params).unwrap_or_default();
    if let Some(members) = params.as_object_mut() {
        for of_one_request in ["_meta", "inputResponses", "requestState", "task"] {
            members.remove(of_one_request);
        }
    }
    fingerprint(&[route, method, &params.to_string()])
}

/// The answers that a request brings.
///
/// # Errors
/// When they are no map.
fn answers_of(request: &Request<'_>) -> Result<Vec<InputResponse>, Kind> {
    request
        .params
        .input_responses
        .map_or(Ok(Vec::new()), |answers| input::responses(answers.get()))
        .map_err(Kind::Params)
}

/// A state that is good, with what answers it.
pub(super) struct Claim {
    ticket: Ticket,
    answers: Vec<InputResponse>,
}

impl Gateway {
    /// Looks at the state and the answers of a retry. Nothing is used up by it.
    pub(super) fn check_retry(&self, call: &Call, request: &Request<'_>, state: &str) -> Result<Claim, Kind> {
        let stale = || Kind::Params(STALE);
        let ticket = string_value(state).and_then(|state| Ticket::open(&self.sealer, &state)).ok_or_else(stale)?;
        let params = request.params.whole.map_or("{}", Raw::get);
        let is_theirs = ticket.principal == call.caller.principal.digest()
            && ticket.subject == subject_of(&call.route.name, &request.name, params);
        if !is_theirs || ticket.expires <= self.clock.now() {
            return Err(stale());
        }
        let asked = {
            let calls = self.parking.calls();
            let parked = calls.get(&ticket.number).filter(|parked| parked.round == Some(ticket.round));
            parked.map(|parked| parked.asked.clone()).ok_or_else(stale)?
        };
        let answers = answers_of(request)?;
        for (key, method) in &asked {
            if let Some(answer) = answers.iter().find(|answer| answer.key == *key) {
                input::check_response(method, &answer.value).map_err(Kind::Params)?;
            }
        }
        Ok(Claim { ticket, answers })
    }

    /// Hands a retry to the call that waits for it; only one retry of a round is.
    pub(super) fn claim(&self, claim: Claim, client: Client, declares_tasks: bool) -> Result<(), Kind> {
        let Claim { ticket, answers } = claim;
        let retries = {
            let mut calls = self.parking.calls();
            let parked = calls.get_mut(&ticket.number).filter(|parked| parked.round == Some(ticket.round));
            let Some(parked) = parked else { return Err(Kind::Params(STALE)) };
            parked.round = None;
            parked.retries.clone()
        };
        // There is room: a round has one retry, and it is taken before the next round.
        retries.try_send(Retry { client, answers, declares_tasks }).map_err(|_| Kind::Params(STALE))
    }
}

/// An `InputRequiredResult` (2026-07-28 patterns). `requests` are keys and `InputRequest`s.
pub(super) fn input_required<'a>(requests: impl Iterator<Item = (&'a str, &'a str)>, state: &str) -> String {
    let mut asked = Object::default();
    for (key, request) in requests {
        asked.set(key, request);
    }
    format!("{{\"resultType\":\"input_required\",\"inputRequests\":{},\"requestState\":{state}}}", asked.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        let expires = Timestamp::from_millis(1 << 40);
        Ticket { number: 1 << 60, round: 7, expires, principal: [1; 16], subject: [2; 32] }
    }

    #[test]
    fn a_state_comes_back_whole_or_not_at_all() {
        let sealer = Sealer::random();
        let state = ticket().seal(&sealer, None);
        assert_eq!(parked_at(&sealer, &state), None);
        let holder = Holder::begin("a");
        let elsewhere = ticket().seal(&sealer, Some(&holder));
        assert_eq!(parked_at(&sealer, &elsewhere), Some(holder));
        assert_eq!(Ticket::open(&sealer, &elsewhere), Some(ticket()));
        assert_eq!(Ticket::open(&sealer, &state), Some(ticket()));
        assert_eq!(Ticket::open(&Sealer::random(), &state), None);
        assert_eq!(Ticket::open(&sealer, &state[1..]), None);
        let other = sealer.seal(Purpose::State, &[0; 68]);
        assert_eq!(Ticket::open(&sealer, &other), None);
        let short = sealer.seal(Purpose::Parked, &[0; 67]);
        assert_eq!(Ticket::open(&sealer, &short), None);
    }

    #[test]
    fn an_answer_that_asks_holds_questions_and_the_state() {
        let result = input_required([("q1", r#"{"method":"roots/list"}"#)].into_iter(), "\"s\"");
        assert_eq!(
            result,
            r#"{"resultType":"input_required","inputRequests":{"q1":{"method":"roots/list"}},"requestState":"s"}"#
        );
    }
}
