//! The talk with the upstream about one call, as long as its client waits for a plain answer: what is told is passed on, what
//! is asked becomes `input_required` or makes the call a task, and the end is translated.

mod ending;
mod parked;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::gateway::POST_LIMIT;
use crate::gateway::eras::Side;
use crate::gateway::exchange::{Dispatch, End, Exchange, Happening};
use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::Session;
use crate::jsonrpc::Id;
use crate::mcp::project;
use crate::task::state::MAX_QUESTION_BYTES;

use super::client::Client;
use super::course::Course;
use super::job::{Job, Stop, unless_stopped};
use super::parking::Place;
use super::ready::Ready;
use super::refusal::{refusal, required};

/// How long a question waits for those that were sent with it.
const TOGETHER: Duration = Duration::from_millis(20);
/// Why an upstream's call is given up.
const GONE: &str = "the client went away";

/// A call that was sent.
pub(super) struct Talk<'j> {
    pub(super) job: &'j mut Job,
    pub(super) session: Arc<Session>,
    pub(super) lease: Option<Lease>,
    /// `None`: the upstream has answered, or the call is a task's.
    pub(super) exchange: Option<Exchange>,
    /// What the upstream waits for.
    pub(super) asked: Vec<Outstanding>,
    /// Numbers the questions, over all rounds.
    next_key: u32,
    /// Its place among the calls that wait for their clients, once it has asked.
    place: Option<Place>,
    /// How it ended while nobody waited for it.
    ended: Option<End>,
    /// When it becomes a task.
    due: Option<Instant>,
    /// A question makes it one.
    on_question: bool,
    deadline: Instant,
}

/// A question for the client.
pub(super) struct Outstanding {
    key: Box<str>,
    pub(super) method: Box<str>,
    pub(super) params: Option<Box<str>>,
    /// As an `InputRequest`.
    request: String,
    /// The upstream's.
    pub(super) id: Id,
}

/// What a talk leaves to its job.
pub(super) enum Left {
    /// Nothing: the client has its answer, or is gone.
    Nothing,
    /// The upstream knew nothing of the session.
    SessionGone(Client),
}

/// What happens next.
enum Turn {
    Happened(Happening),
    /// It took so long that it becomes a task.
    Due,
    /// What it failed for is done: it can be sent once more.
    Again,
    Stopped(Stop),
}

/// What is done about it.
enum Step {
    On,
    /// The client gets this; the upstream is through with the call.
    Answer(Result<String, Kind>),
    /// The client gets this, and the upstream is told to stop.
    Refuse(Kind),
    /// The client is asked.
    Ask,
    /// It becomes a task.
    Task,
    /// It is sent once more.
    Again,
    SessionGone,
}

impl<'j> Talk<'j> {
    /// Sends the call.
    pub(super) fn new(job: &'j mut Job, ready: Ready, deadline: Instant) -> Self {
        let Ready { session, lease, places } = ready;
        let (after, on_question) = match job.course {
            Course::Open { after, on_question } => (after, on_question),
            Course::Refused | Course::AtOnce | Course::Plain => (None, false),
        };
        let mut talk = Self {
            job,
            session,
            lease,
            exchange: None,
            asked: Vec::new(),
            next_key: 1,
            place: None,
            ended: None,
            due: after.map(|after| Instant::now() + after),
            on_question,
            deadline,
        };
        talk.send(places);
        talk
    }

    fn send(&mut self, places: Box<dyn Send>) {
        let job = &*self.job;
        let may_be_task = matches!(job.course, Course::Open { .. });
        let params = super::without_context(&job.params, self.session.terms.upstream.version);
        let params = params.filter(|_| &*job.method == "completion/complete").unwrap_or_else(|| job.params.clone());
        // The client's own headers fit what was known of the tool; it may have changed since.
        let mirrors = job.tool.is_some() && !self.session.terms.upstream.version.has_sessions();
        let refresh = if mirrors { job.gateway.mirror_anew(&job.route, &job.params) } else { None };
        let mut exchange = Exchange::new(Dispatch {
            gateway: Arc::clone(&job.gateway),
            route: Arc::clone(&job.route),
            session: Arc::clone(&self.session),
            method: job.method.clone(),
            params,
            // What may become a task tells how far it is.
            wants_progress: may_be_task || job.wants_progress,
            headers: job.headers.clone(),
            log_level: job.log_level.clone(),
            id: None,
            refresh,
            places,
        });
        // The client's own affair, until the call is a task.
        exchange.pass_rounds(!self.on_question);
        self.exchange = Some(exchange);
    }

    /// Goes on until the client has its answer.
    pub(super) async fn run(mut self, mut client: Client) -> Left {
        loop {
            let mut step = match self.turn(&mut client).await {
                Turn::Happened(happening) => self.happened(happening, &mut client).await,
                Turn::Due => Step::Task,
                Turn::Again => Step::Again,
                Turn::Stopped(Stop::Gone) => {
                    self.abandon(GONE).await;
                    return Left::Nothing;
                }
                Turn::Stopped(Stop::Fault(fault)) => Step::Refuse(fault.into()),
            };
            if let Step::Task = step {
                client = match self.become_task(client).await {
                    Some(client) => client,
                    None => return Left::Nothing,
                };
                // It can't be one: it goes on as if it never could have been.
                (self.due, self.on_question) = (None, false);
                step = if self.asked.is_empty() { Step::On } else { Step::Ask };
            }
            match step {
                Step::On | Step::Task => {}
                Step::Answer(answer) => {
                    let answer = answer.map(|result| client.response(&result));
                    drop(self);
                    client.answer(answer).await;
                    return Left::Nothing;
                }
                Step::Refuse(kind) => {
                    let reason = reason_of(&kind);
                    tokio::join!(client.answer(Err(kind)), self.abandon(reason));
                    return Left::Nothing;
                }
                Step::Ask => match self.ask(client).await {
                    Some(back) => client = back,
                    None => return Left::Nothing,
                },
                Step::Again => match self.send_again(&mut client).await {
                    Ok(()) => {}
                    Err(Stop::Gone) => return Left::Nothing,
                    Err(Stop::Fault(fault)) => {
                        client.answer(Err(fault.into())).await;
                        return Left::Nothing;
                    }
                },
                Step::SessionGone => return Left::SessionGone(client),
            }
        }
    }

    /// Waits for what happens next.
    async fn turn(&mut self, client: &mut Client) -> Turn {
        if let Some(end) = self.ended.take() {
            return Turn::Happened(Happening::Ended(end));
        }
        // Also when something else has happened at the same moment: what is to be a task at once is one.
        if self.due.is_some_and(|due| due <= Instant::now()) {
            return Turn::Due;
        }
        let Some(exchange) = &mut self.exchange else { return Turn::Again };
        let kill = &self.job.gateway.kill;
        tokio::select! {
            happening = exchange.next() => Turn::Happened(happening),
            () = client.gone() => Turn::Stopped(Stop::Gone),
            () = sleep_until(self.due) => Turn::Due,
            () = tokio::time::sleep_until(self.deadline) => {
                Turn::Stopped(Stop::Fault(Fault::Deadline { started: true }))
            }
            () = kill.cancelled() => Turn::Stopped(Stop::Fault(Fault::Shutdown)),
        }
    }

    async fn happened(&mut self, happening: Happening, client: &mut Client) -> Step {
        match happening {
            Happening::Notified { method, params } => {
                client.tell(&method, params.as_deref());
                Step::On
            }
            Happening::Asked { id, method, params } => {
                if !self.take_question(id, method, params) {
                    return Step::On;
                }
                // Whatever else is asked at the same time goes with it.
                if let Some(end) = self.take_the_rest(client).await {
                    return self.ended(end);
                }
                if self.on_question { Step::Task } else { Step::Ask }
            }
            Happening::Undeclared { method, params } => self.undeclared(&method, params.as_deref()),
            Happening::Withdrawn(id) => {
                self.asked.retain(|question| question.id != id);
                Step::On
            }
            Happening::Settled(_) | Happening::Moved(_) => Step::On,
            Happening::Ended(end) => self.ended(end),
        }
    }

    /// Takes what happens together with a question; the end, if it is that. A server with sessions sends each of its
    /// questions by itself, and a question that misses its round costs the client another one.
    async fn take_the_rest(&mut self, client: &mut Client) -> Option<End> {
        let comes_apart = !self.on_question && self.session.terms.upstream.version.has_sessions();
        let patience = if comes_apart { TOGETHER } else { Duration::ZERO };
        loop {
            let exchange = self.exchange.as_mut()?;
            match tokio::time::timeout(patience, exchange.next()).await.ok()? {
                Happening::Asked { id, method, params } => drop(self.take_question(id, method, params)),
                Happening::Withdrawn(id) => {
                    self.asked.retain(|question| question.id != id);
                }
                Happening::Notified { method, params } => client.tell(&method, params.as_deref()),
                Happening::Undeclared { .. } | Happening::Settled(_) | Happening::Moved(_) => {}
                Happening::Ended(end) => return Some(end),
            }
        }
    }

    /// Takes a question, if the client can be asked it; says whether it can.
    fn take_question(&mut self, id: Id, method: Box<str>, params: Option<Box<str>>) -> bool {
        let open: usize = self.asked.iter().map(|question| question.request.len()).sum();
        let request = project::input_request(&method, params.as_deref())
            .filter(|request| self.job.may_ask && open + request.len() <= MAX_QUESTION_BYTES);
        let Some(request) = request else {
            // 2026-07-28 patterns, "Supported Requests": the answers to all other methods can't ask. Nor can more be asked
            // at once than a client is made to read.
            if let Some(exchange) = &mut self.exchange {
                exchange.answer(&id, &refusal(&method));
            }
            return false;
        };
        let key = self.mint_key();
        self.asked.push(Outstanding { key, method, params, request, id });
        true
    }

    fn mint_key(&mut self) -> Box<str> {
        let key = format!("q{}", self.next_key);
        self.next_key = self.next_key.saturating_add(1);
        key.into()
    }

    /// The upstream asked what its client did not declare, and was refused.
    fn undeclared(&self, method: &str, params: Option<&str>) -> Step {
        match required(method, params) {
            Some(required) if self.job.may_ask => Step::Refuse(Kind::MissingCapability {
                required,
                message: "The server needs input that this client can't give; the call had begun and may have had effects",
            }),
            _ => Step::On,
        }
    }

    /// Sends the call once more on the same conversation.
    async fn send_again(&mut self, client: &mut Client) -> Result<(), Stop> {
        let job = &*self.job;
        let places = job.places(&self.session, None);
        match unless_stopped(&job.gateway, client, self.deadline, places).await? {
            Ok(places) => {
                self.send(places);
                Ok(())
            }
            Err(Kind::Fault(fault)) => Err(Stop::Fault(fault)),
            Err(_) => Err(Stop::Fault(Fault::UpstreamUnreachable)),
        }
    }

    /// Gives the call up: what the upstream waits for is refused, then the call is cancelled. It may still be busy, so that
    /// nobody else gets its session.
    async fn abandon(&mut self, reason: &str) {
        if let Some(lease) = &mut self.lease {
            lease.spoil();
        }
        let Some(mut exchange) = self.exchange.take() else { return };
        let open: Vec<Outstanding> = std::mem::take(&mut self.asked);
        let mut waiting: Vec<Id> = Vec::new();
        for question in open {
            exchange.answer(&question.id, &refusal(&question.method));
            waiting.push(question.id);
        }
        let settled = async {
            while !waiting.is_empty() {
                match exchange.next().await {
                    Happening::Settled(id) => waiting.retain(|waiting| *waiting != id),
                    Happening::Ended(_) => return true,
                    _ => {}
                }
            }
            false
        };
        let is_over = tokio::time::timeout(POST_LIMIT, settled).await.unwrap_or(false);
        if !is_over {
            exchange.cancel(reason).await;
        }
    }

    /// Whether the upstream has sessions.
    fn is_legacy(&self) -> bool {
        self.job.side == Side::Legacy
    }
}

/// Why the upstream is told to stop.
fn reason_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Fault(fault) => fault.reason(),
        Kind::MissingCapability { .. } => "the client can't be asked",
        _ => "the call was given up",
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
