//! The questions of one call: put to the client on the call's own stream, each as a request, all of a round at once.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use crate::jsonrpc::{self, ErrorObject, Id, code, raw_string};
use crate::task::Answer;

use crate::gateway::exchange::Exchange;

use super::outlet::Outlet;
use super::questions::{self, Kind, Opened, Question, question_id};
use super::state::{Asked, Input};

/// How far the questions of a call are.
#[derive(Debug)]
pub(super) struct Talk {
    /// Takes what the client says of them.
    inputs: mpsc::Sender<Input>,
    timeout: Duration,
    last_number: u32,
    open: Vec<Question>,
    /// URLs that the client has agreed to open.
    opened: Vec<Opened>,
}

/// Agreement to open a URL.
const ACCEPTED: &str = r#"{"action":"accept"}"#;

/// A question as the exchange tells of it: its id, method and `params`.
type Told<'a> = (Id, &'a str, Option<&'a str>);

impl Talk {
    pub(super) fn new(inputs: mpsc::Sender<Input>, timeout: Duration) -> Self {
        Self { inputs, timeout, last_number: 0, open: Vec::new(), opened: Vec::new() }
    }

    /// Puts a question to the client.
    pub(super) fn asked(&mut self, outlet: &mut Outlet, exchange: &mut Exchange, (id, method, params): Told<'_>) {
        let Some(kind) = Kind::of(method, params) else {
            return exchange.refuse(&id, &ErrorObject::new(code::METHOD_NOT_FOUND, "This can't be asked"));
        };
        self.last_number += 1;
        if kind == Kind::Roots
            && let Some(roots) = outlet.session.bridge.roots()
        {
            return exchange.answer(&id, &Answer::Result(roots));
        }
        if let Kind::Url(url) = &kind
            && let Some(opened) = self.opened.iter_mut().find(|opened| opened.url == *url)
            && opened.is_waited_for()
        {
            // The exchange waits a while before it calls again.
            return exchange.answer(&id, &Answer::Result(ACCEPTED.into()));
        }
        let number = self.last_number;
        let name = question_id(outlet.call, number);
        let elicitation_id = matches!(kind, Kind::Url(_)).then(|| Uuid::new_v4().to_string());
        let version = outlet.session.terms.version;
        let params = questions::params_for_client(params, &name, elicitation_id.as_deref(), version);
        let message = jsonrpc::request(&Id::string(&name), method, Some(&params));
        outlet.session.bridge.ask(&name, Asked { number, inputs: self.inputs.clone() });
        let elicitation_id = elicitation_id.map(Into::into);
        self.open.push(Question { number, id, kind, elicitation_id, due: Instant::now() + self.timeout });
        if !outlet.ask(number, &message) {
            self.take(outlet, exchange, Input::Refused(number));
        }
    }

    /// Takes what the client says of a question.
    pub(super) fn take(&mut self, outlet: &mut Outlet, exchange: &mut Exchange, input: Input) {
        let (Input::Answered(number, _) | Input::Refused(number) | Input::Progressed(number)) = &input;
        let Some(place) = self.open.iter().position(|question| question.number == *number) else { return };
        let result = match input {
            Input::Progressed(_) => {
                if let Some(question) = self.open.get_mut(place) {
                    question.due = Instant::now() + self.timeout;
                }
                return;
            }
            Input::Answered(_, result) => Some(result),
            Input::Refused(_) => None,
        };
        let question = self.open.swap_remove(place);
        outlet.settled(question.number);
        outlet.session.bridge.take(&question_id(outlet.call, question.number));
        let Some(input) = question.kind.input(result.as_deref()) else {
            let message = format!("The client refused what the server asked for: {}", question.kind.as_str());
            let error = ErrorObject::new(code::INTERNAL_ERROR, message);
            return exchange.answer(&question.id, &Answer::Error(error.to_json().into()));
        };
        match question.kind {
            Kind::Url(url) if questions::accepts(&input) => {
                self.opened.retain(|opened| opened.url != url);
                self.opened.push(Opened::new(url, question.elicitation_id.unwrap_or_default()));
            }
            Kind::Roots => outlet.session.bridge.keep_roots(&input),
            Kind::Form | Kind::Url(_) | Kind::Sampling => {}
        }
        exchange.answer(&question.id, &Answer::Result(input.into()));
    }

    /// When the next question has been open for too long.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.iter().map(|question| question.due).min()
    }

    /// The upstream withdraws a question.
    pub(super) fn withdrawn(&mut self, outlet: &mut Outlet, id: &Id) {
        let withdrawn: Vec<Question> = self.open.extract_if(.., |question| question.id == *id).collect();
        withdrawn.iter().for_each(|question| tell_void(outlet, question));
    }

    /// Tells the client that no question needs an answer any more.
    pub(super) fn void(&mut self, outlet: &mut Outlet) {
        std::mem::take(&mut self.open).iter().for_each(|question| tell_void(outlet, question));
    }

    /// The call is over: what is still open is void, and, where the upstream has ended it, what was opened is done.
    pub(super) fn over(&mut self, outlet: &mut Outlet, is_done: bool) {
        self.void(outlet);
        self.opened.retain(|_| is_done);
        for opened in std::mem::take(&mut self.opened) {
            tell_complete(outlet, &opened);
        }
    }
}

/// Tells the client that a question needs no answer (2025-11-25 cancellation).
fn tell_void(outlet: &mut Outlet, question: &Question) {
    let name = question_id(outlet.call, question.number);
    outlet.session.bridge.take(&name);
    outlet.settled(question.number);
    let params = format!("{{\"requestId\":{}}}", raw_string(&name));
    outlet.tell(&jsonrpc::notification("notifications/cancelled", Some(&params)));
}

/// Tells the client that the upstream has what was behind a URL (2025-11-25 elicitation, "Completion Notifications for URL
/// Mode").
fn tell_complete(outlet: &mut Outlet, opened: &Opened) {
    let params = format!("{{\"elicitationId\":{}}}", raw_string(&opened.elicitation_id));
    outlet.tell(&jsonrpc::notification("notifications/elicitation/complete", Some(&params)));
}
