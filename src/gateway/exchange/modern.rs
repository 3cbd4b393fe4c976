//! What only calls with modern upstreams need: claims and headers, and rounds. Such a server asks in its result, and is
//! called once more with the answers (2026-07-28 patterns, "Multi Round-Trip Requests").
//!
//! A legacy server that wants a URL visited first asks in an error; its questions take the same way.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};

use crate::gateway::rejection::Fault;
use crate::gateway::session::Session;
use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, Outcome, code, raw_string, string_value};
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::envelope::{Claim, with_claim};
use crate::mcp::input::{InputRequest, InputRequired, ResultType, is_typed, may_ask};
use crate::mcp::method::Method;
use crate::mcp::mirror;
use crate::mcp::project::{HopError, input_response, url_elicitations};
use crate::metrics::label::UpstreamOutcome;
use crate::task::{Answer, Question};
use crate::upstream::{Error, Kind as MessageKind, Outgoing};

use super::legacy::{self, Resumption};
use super::{End, Exchange, Happening, Source};

/// The most rounds of one call.
const MOST_ROUNDS: u32 = 10;
/// How many in a row may ask nothing.
const MOST_EMPTY_ROUNDS: u32 = 3;
/// The shortest pause before a call is sent again that nothing was answered for; it doubles each time.
const ROUND_PAUSE: Duration = Duration::from_millis(250);

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Before the names of headers that repeat arguments.
const PARAM: &str = "mcp-param-";

/// The headers that repeat a call's arguments, as the server's current tools want them.
pub(in crate::gateway) type Refreshing = Pin<Box<dyn Future<Output = HeaderMap> + Send>>;
/// Asks anew which those are.
pub(in crate::gateway) type Refresh = Box<dyn FnOnce() -> Refreshing + Send>;

/// What it takes to send a call.
pub(super) struct Draft {
    pub(super) method: Box<str>,
    pub(super) params: String,
    pub(super) headers: HeaderMap,
    pub(super) wants_progress: bool,
    pub(super) log_level: Option<Box<str>>,
    pub(super) refresh: Option<Refresh>,
}

impl Draft {
    /// Drops the headers that only the other era knows.
    pub(super) fn for_legacy(mut self) -> Self {
        let is_modern = |name: &HeaderName| *name == METHOD || *name == NAME || name.as_str().starts_with(PARAM);
        let names: Vec<HeaderName> = self.headers.keys().filter(|name| is_modern(name)).cloned().collect();
        for name in names {
            self.headers.remove(name);
        }
        self
    }

    /// Lets go of what only another sending would need.
    pub(super) fn forget(&mut self) {
        self.params = String::new();
        self.headers = HeaderMap::new();
    }

    /// The message under an id, with what a round adds.
    pub(super) fn message(&self, id: &Id, session: &Session, again: Option<&Again>) -> Outgoing {
        let progress_token: Option<Box<str>> = self.wants_progress.then(|| id.as_json().into());
        let mut headers = self.headers.clone();
        let is_modern = !session.terms.upstream.version.has_sessions();
        if is_modern {
            mirror_in(&mut headers, &self.method, &self.params);
        }
        let params = match again {
            Some(again) if is_modern => Cow::Owned(again.added_to(&self.params)),
            _ => Cow::Borrowed(&*self.params),
        };
        let params = match &progress_token {
            token if is_modern => Cow::Owned(claimed(&params, session, self.log_level.as_deref(), token.as_deref())),
            Some(token) => Cow::Owned(legacy::with_progress_token(&params, token)),
            None => params,
        };
        let kind = MessageKind::Request { id: id.clone(), progress_token };
        Outgoing { kind, body: jsonrpc::request(id, &self.method, Some(&params)), headers }
    }
}

/// `params` with what the request says of itself: what the conversation's client declared, in the client's name where it has
/// given one.
fn claimed(params: &str, session: &Session, log_level: Option<&str>, progress_token: Option<&str>) -> String {
    let declared = session.bridge.client(session.terms.client);
    let claim = Claim { capabilities: &declared.capabilities, client_info: &declared.info, log_level, progress_token };
    with_claim(params, &claim)
}

/// `Mcp-Method` and `Mcp-Name` repeat what the body says (2026-07-28 transports, "Standard Request Headers").
fn mirror_in(headers: &mut HeaderMap, method: &str, params: &str) {
    let named_by = Method::parse(method).named_by();
    let params = Object::parse(params).unwrap_or_default();
    let name = named_by.and_then(|parameter| string_value(params.get(parameter)?));
    for (header, value) in [(METHOD, Some(method.into())), (NAME, name)] {
        match value.and_then(|value| HeaderValue::from_str(&mirror::encode(&value)).ok()) {
            Some(value) => drop(headers.insert(header, value)),
            None => drop(headers.remove(header)),
        }
    }
}

/// What a round adds to the call when it is sent again: of this round alone, and the state exactly as it came or not at
/// all (2026-07-28 patterns, "Client Requirements").
pub(super) struct Again {
    /// `None` where nothing was asked.
    responses: Option<String>,
    state: Option<Box<str>>,
}

impl Again {
    fn added_to(&self, params: &str) -> String {
        let Ok(mut params) = Object::parse(params) else { return params.to_owned() };
        params.remove("inputResponses").remove("requestState");
        if let Some(responses) = &self.responses {
            params.set("inputResponses", responses.as_str());
        }
        if let Some(state) = &self.state {
            params.set("requestState", state.as_ref());
        }
        params.to_json()
    }
}

/// How the rounds of a call go.
#[derive(Default)]
pub(super) struct Rounds {
    /// Questions in results are the client's own affair.
    pub(super) pass: bool,
    count: u32,
    empty_in_a_row: u32,
    /// How often a URL was agreed to.
    visits: u32,
    now: Option<Round>,
}

/// Questions that were asked together and are answered together.
struct Round {
    slots: Vec<Slot>,
    state: Option<Box<str>>,
    /// They stood in the error of a legacy server, which takes no answers.
    in_error: bool,
}

struct Slot {
    id: Id,
    request: InputRequest,
    response: Option<String>,
}

/// A round as somebody else can go on with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) struct Asking {
    /// Which one it is.
    pub(in crate::gateway) number: u32,
    /// How many questions there are.
    pub(in crate::gateway) count: usize,
    /// The upstream's `requestState` as JSON text.
    pub(in crate::gateway) state: Option<Box<str>>,
}

impl Asking {
    /// Whether these are all of its questions. Before a call is sent again each is settled in the record, so that it has not
    /// been then.
    pub(in crate::gateway) fn waits_for(&self, questions: &[Question]) -> bool {
        questions.len() == self.count && questions.iter().all(|question| self.key_of(&question.upstream_id).is_some())
    }

    fn key_of(&self, id: &Id) -> Option<Box<str>> {
        Some(id.as_text()?.strip_prefix(&format!("r{}.", self.number))?.into())
    }
}

impl Rounds {
    /// The round that waits for answers.
    pub(super) fn asking(&self) -> Option<Asking> {
        let round = self.now.as_ref().filter(|round| !round.in_error)?;
        Some(Asking { number: self.count, count: round.slots.len(), state: round.state.clone() })
    }

    pub(super) fn has(&self, id: &Id) -> bool {
        self.now.as_ref().is_some_and(|round| round.slots.iter().any(|slot| slot.id == *id))
    }
}

impl Exchange {
    /// The upstream's response: the end, or a round.
    pub(super) fn responded(&mut self, message: &Bytes) {
        let end = End::Answered(message.clone());
        let Ok(Message::Response { outcome, .. }) = Message::parse(message) else {
            return self.end(End::Fault(Fault::UpstreamProtocol));
        };
        match outcome {
            Outcome::Error(error) => self.refused(error.get(), end),
            Outcome::Result(_) if !self.is_modern() => self.end(end),
            Outcome::Result(result) => match ResultType::of(result.get()) {
                ResultType::Complete => {
                    if !is_typed(result.get()) {
                        self.gateway.looked_legacy(&self.route);
                    }
                    self.end(end);
                }
                ResultType::InputRequired if !may_ask(&self.draft.method) => {
                    self.broken("a question where none may be")
                }
                ResultType::InputRequired if self.rounds.pass => self.end(end),
                ResultType::InputRequired => self.asked_in_result(result.get()),
                ResultType::Task => self.broken("a task, though it was not told of any"),
                ResultType::Unknown => self.broken("a result of an unknown type"),
            },
        }
    }

    /// The upstream answered with an error: the end as it stands, unless it is about the hop to the upstream.
    pub(super) fn refused(&mut self, error: &str, end: End) {
        if !self.is_modern() {
            return match url_elicitations(error).filter(|urls| !urls.is_empty()) {
                Some(urls) if self.may_visit() => self.asked_to_visit(urls),
                _ => self.end(end),
            };
        }
        match HopError::of(error) {
            // The server's tools have changed since they were listed (2026-07-28 transports, "Server Validation").
            Some(HopError::HeaderMismatch) => match self.draft.refresh.take() {
                Some(refresh) => self.source = Source::Refreshing(refresh()),
                None => self.end(end),
            },
            Some(HopError::MissingCapability) => self.lacking(error, end),
            Some(HopError::UnsupportedVersion) | None => self.end(end),
        }
    }

    /// The call needs a capability that was not declared.
    fn lacking(&mut self, error: &str, end: End) {
        let terms = &self.session.terms;
        let needed = needed_capabilities(error);
        let lacks = needed.and(terms.client) != needed;
        if !lacks {
            self.broken("that a capability is missing which was declared, or which no client may have");
        } else if terms.version.has_sessions() {
            let names = names_of(error);
            // A conversation without a session stands for a client that takes no event streams.
            let why = if self.session.is_unlisted() {
                format!(
                    "The server needs to ask the client something ({names}), and this client can't receive requests"
                )
            } else {
                format!("The server needs what this client did not declare: {names}")
            };
            self.end_unanswered(&why, None);
        } else {
            self.end(end);
        }
    }

    /// Headers that repeat arguments are there anew.
    pub(super) fn refreshed(&mut self, fresh: HeaderMap) {
        let headers = &mut self.draft.headers;
        let old: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PARAM)).cloned().collect();
        for name in old {
            headers.remove(name);
        }
        headers.extend(fresh);
        let again = self.last.take();
        self.send_again(again, Duration::ZERO);
    }

    /// Whether a legacy server's wish to have a URL visited can be put to the client: one of its own era knows how to
    /// deal with the error.
    pub(super) fn may_visit(&self) -> bool {
        let terms = &self.session.terms;
        !terms.version.has_sessions() && terms.client.url
    }

    fn asked_to_visit(&mut self, urls: Vec<String>) {
        let request = |(number, params): (usize, String)| InputRequest {
            key: number.to_string().into(),
            method: "elicitation/create".into(),
            params: Some(params.into()),
        };
        let requests = urls.into_iter().enumerate().map(request).collect();
        self.begin_round(requests, None, true);
    }

    fn asked_in_result(&mut self, result: &str) {
        let asked = match InputRequired::read(result) {
            Ok(asked) => asked,
            Err(unusable) => {
                tracing::warn!(%unusable, route = %self.route.name, "the upstream asked badly");
                return self.end(End::Fault(Fault::UpstreamProtocol));
            }
        };
        // "Server Requirements": only what the request declares.
        if asked.refused(self.session.terms.client).is_some() {
            return self.broken("a question that the client can't be asked");
        }
        self.begin_round(asked.requests, asked.state, false);
    }

    fn begin_round(&mut self, requests: Vec<InputRequest>, state: Option<Box<str>>, in_error: bool) {
        let rounds = &mut self.rounds;
        rounds.count += 1;
        let is_empty = requests.is_empty();
        rounds.empty_in_a_row = if is_empty { rounds.empty_in_a_row + 1 } else { 0 };
        if rounds.count > MOST_ROUNDS || rounds.empty_in_a_row > MOST_EMPTY_ROUNDS {
            return self.broken("more rounds than a call may take");
        }
        self.source = Source::Over;
        self.is_out = false;
        if is_empty {
            let pause = ROUND_PAUSE * 2_u32.saturating_pow(rounds.empty_in_a_row - 1);
            return self.send_again(Some(Again { responses: None, state }), pause);
        }
        let number = rounds.count;
        let slots: Vec<Slot> = requests
            .into_iter()
            .map(|request| Slot { id: Id::string(&format!("r{number}.{}", request.key)), request, response: None })
            .collect();
        self.ready.extend(slots.iter().map(|Slot { id, request, .. }| Happening::Asked {
            id: id.clone(),
            method: request.method.clone(),
            params: request.params.clone(),
        }));
        rounds.now = Some(Round { slots, state, in_error });
    }

    /// Waits for the answers to a round of somebody else's.
    pub(super) fn ask_on(&mut self, asking: &Asking, questions: Vec<Question>) {
        let slot = |question: Question| {
            let Question { upstream_id: id, method, params, .. } = question;
            Some(Slot { request: InputRequest { key: asking.key_of(&id)?, method, params }, id, response: None })
        };
        let slots = questions.into_iter().filter_map(slot).collect();
        self.is_out = false;
        self.rounds.count = asking.number;
        self.rounds.now = Some(Round { slots, state: asking.state.clone(), in_error: false });
    }

    /// An answer to a question of the round; the last one sends the call again.
    pub(super) fn answer_in_round(&mut self, id: &Id, answer: &Answer) {
        let slot = self.rounds.now.as_mut().and_then(|round| round.slots.iter_mut().find(|slot| slot.id == *id));
        let Some(slot) = slot.filter(|slot| slot.response.is_none()) else { return };
        let is_elicitation = &*slot.request.method == "elicitation/create";
        slot.response = match answer {
            Answer::Result(result) => input_response(result),
            // The one kind of question whose answer can say no.
            Answer::Error(_) if is_elicitation => Some(r#"{"action":"cancel"}"#.to_owned()),
            Answer::Error(_) => None,
        };
        let method = slot.request.method.clone();
        match (&slot.response, answer) {
            (Some(_), _) => self.close_round(),
            (None, Answer::Error(error)) => {
                self.end_unanswered(&format!("The client refused the server's `{method}`"), Some(error));
            }
            (None, Answer::Result(_)) => self.end_unanswered("The client gave an answer that is none", None),
        }
    }

    /// Sends the call again once every question of the round is answered.
    fn close_round(&mut self) {
        let is_whole = |round: &mut Round| round.slots.iter().all(|slot| slot.response.is_some());
        let Some(round) = self.rounds.now.take_if(is_whole) else { return };
        let is_accepted = |slot: &Slot| {
            let response = slot.response.as_deref().and_then(|response| Object::parse(response).ok());
            response.is_some_and(|response| response.get("action") == Some("\"accept\""))
        };
        if round.in_error && !round.slots.iter().all(is_accepted) {
            return self.end_unanswered("The user did not agree to open the URL that the server needs", None);
        }
        let visited = |slot: &&Slot| is_accepted(slot) && is_visit(&slot.request);
        // To agree is not yet to have visited.
        let pause = if round.slots.iter().any(|slot| visited(&slot)) {
            self.rounds.visits += 1;
            ROUND_PAUSE * 2_u32.saturating_pow(self.rounds.visits - 1)
        } else {
            Duration::ZERO
        };
        self.ready.extend(round.slots.iter().map(|slot| Happening::Settled(slot.id.clone())));
        let responses = round.slots.iter().map(|slot| {
            let response = slot.response.as_deref().unwrap_or("{}");
            format!("{}:{response}", raw_string(&slot.request.key))
        });
        let responses = format!("{{{}}}", responses.collect::<Vec<_>>().join(","));
        self.send_again(Some(Again { responses: Some(responses), state: round.state }), pause);
    }

    /// Sends the call once more, under an id that no request has had.
    fn send_again(&mut self, again: Option<Again>, pause: Duration) {
        self.route.metrics.upstream_request(UpstreamOutcome::Answered);
        self.id = self.gateway.mint();
        self.resumption = Resumption::default();
        self.send(again, pause);
    }

    /// Sends the call.
    pub(super) fn send(&mut self, again: Option<Again>, pause: Duration) {
        self.is_out = true;
        if let Some(held) = self.session.live().held.get_mut(&self.key) {
            held.token = self.id.as_json().into();
        }
        let message = self.draft.message(&self.id, &self.session, again.as_ref());
        self.last = again;
        let (gateway, route) = (Arc::clone(&self.gateway), Arc::clone(&self.route));
        let key = self.route.key_of(&self.session).into_owned();
        self.source = Source::Sending(Box::pin(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            match route.upstream.send(&key, message).await {
                // What was begun with the server that it was is not known to the one that it is.
                Err(error) if gateway.has_changed_era(&route, &key, &error).await => Err(Error::SessionGone),
                sent => sent,
            }
        }));
    }

    /// Ends a call that can't go on without an answer: for a tool as its own failure, which models read (2025-11-25 and
    /// 2026-07-28 tools, "Error Handling").
    fn end_unanswered(&mut self, why: &str, error: Option<&str>) {
        self.rounds.now = None;
        let message = match (&*self.draft.method, error) {
            ("tools/call", _) => {
                let text = raw_string(why);
                let result = format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":true}}"#);
                jsonrpc::response(&self.id, &result)
            }
            (_, Some(error)) => jsonrpc::raw_error_response(Some(&self.id), error),
            (_, None) => jsonrpc::error_response(Some(&self.id), &ErrorObject::new(code::INTERNAL_ERROR, why)),
        };
        self.end(End::Answered(message));
    }

    /// Ends a call whose upstream did what no upstream may.
    fn broken(&mut self, what: &str) {
        tracing::warn!(route = %self.route.name, "the upstream broke the protocol: it answered {what}");
        self.end(End::Fault(Fault::UpstreamProtocol));
    }

    /// The upstream refused with an HTTP error status.
    pub(super) fn refused_with(&mut self, status: StatusCode, error: Box<str>) {
        let text = error.clone();
        self.refused(&text, End::Refused { status, error });
    }
}

fn is_visit(request: &InputRequest) -> bool {
    let params = Object::parse(request.params.as_deref().unwrap_or("{}")).unwrap_or_default();
    params.get("mode") == Some("\"url\"")
}

/// What a -32021 says is needed, as far as clients can have it.
fn needed_capabilities(error: &str) -> ClientCapabilities {
    let needed = || -> Option<ClientCapabilities> {
        let error = Object::parse(error).ok()?;
        let data = Object::parse(error.get("data")?).ok()?;
        ClientCapabilities::read(data.get("requiredCapabilities")?).ok()
    };
    needed().unwrap_or_default()
}

/// The same in words, for whoever reads why a call failed.
fn names_of(error: &str) -> String {
    let names = || -> Option<String> {
        let error = Object::parse(error).ok()?;
        let data = Object::parse(error.get("data")?).ok()?;
        let needed = Object::parse(data.get("requiredCapabilities")?).ok()?;
        let names: Vec<String> = needed.iter().map(|(name, _)| name.chars().take(64).collect()).take(8).collect();
        Some(names.join(", "))
    };
    names().filter(|names| !names.is_empty()).unwrap_or_else(|| "a capability".to_owned())
}
