//! What happens to a call that was sent, written into its task's record, and what the record says, told to the call.

use std::time::Duration;

use tokio::time::Instant;

use crate::jsonrpc::{self, ErrorObject, Id, Object, code, string_value};
use crate::sse;
use crate::task::dialect::core;
use crate::task::store::Watch;
use crate::task::{Event, Progress, Question, State, Step, Task};

use crate::gateway::exchange::{Exchange, Happening, Trace};
use crate::gateway::rejection::Fault;

use super::ending::shorten;
use super::stored::Trail;
use super::{End, READ_AGAIN, Record, Unapplied};

/// A progress message becomes the status message at most this often.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// How often at most it is noted how far a call has come.
const TRAIL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a question that found every stream full is offered again.
const OFFER_INTERVAL: Duration = Duration::from_secs(1);
/// How often at least to other processes, though its client's streams should be here: what a process knows of that may be old.
const ANYWHERE_INTERVAL: Duration = Duration::from_secs(8);

/// A call that was sent, and its record.
pub(super) struct Conversation<'a> {
    record: &'a Record,
    exchange: &'a mut Exchange,
    noted: Option<Instant>,
    /// When to put waiting questions to clients once more.
    offer_again: Option<Instant>,
    /// When they were put to clients wherever they are, and how long it takes until that is done again.
    offered_anywhere: Option<(Instant, Duration)>,
    /// How far the call has come, as long as it is not noted.
    moved: Option<Trace>,
    /// What was noted last of that, and when.
    trail: Option<(Trace, Instant)>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(record: &'a Record, exchange: &'a mut Exchange) -> Self {
        if record.is_shared() {
            exchange.trace();
        }
        Self { record, exchange, noted: None, offer_again: None, offered_anywhere: None, moved: None, trail: None }
    }

    pub(super) async fn run(mut self, watch: &mut Watch) -> End {
        let Record { gateway, hold, .. } = self.record;
        // Before the look at the record: whoever looks for streams that went meanwhile finds the task.
        hold.may_ask();
        if let Ok(Some(task)) = self.record.current().await {
            gateway.deliveries.release_dead(&gateway.ledger, &task).await;
        }
        // A call that became a task under way may have asked already.
        let mut questions_end = match self.read_record(true).await {
            Ok(end) => end,
            Err(end) => return end,
        };
        loop {
            let note_at = self.note_at();
            let ended = tokio::select! {
                happening = self.exchange.next() => self.take(happening).await.map_or(Ok(questions_end), Err),
                is_changed = watch.changed() => self.read_record(is_changed).await,
                () = sleep_until(questions_end) => self.time_out_questions().await,
                () = sleep_until(self.offer_again) => self.offer().await,
                () = sleep_until(note_at) => {
                    self.note_moved().await;
                    Ok(questions_end)
                }
            };
            match ended {
                Ok(end) => questions_end = end,
                Err(end) => return end,
            }
        }
    }

    /// Writes down what happened; gives the end if this was it.
    async fn take(&mut self, happening: Happening) -> Option<End> {
        match happening {
            Happening::Notified { method, params } => self.notified(&method, params.as_deref()).await,
            Happening::Asked { id, method, params } => return self.asked(id, method, params).await,
            // It was refused, and the call ends as it will.
            Happening::Undeclared { .. } => {}
            Happening::Withdrawn(id) => self.withdrawn(id).await,
            Happening::Settled(upstream_id) => return self.settled(upstream_id).await,
            Happening::Moved(trace) => {
                self.moved = Some(trace);
                // Not by the timer: a holder that dies within its tick would leave nothing to take up.
                if self.note_at().is_some_and(|at| at <= Instant::now()) {
                    self.note_moved().await;
                }
            }
            Happening::Ended(end) => return Some(End::Call(end)),
        }
        None
    }

    /// Looks at the record after a change: gives answers to the call, finds the next question to time out; the end where it
    /// is over.
    async fn read_record(&mut self, is_changed: bool) -> Result<Option<Instant>, End> {
        let Ok(task) = self.record.current().await else {
            // What was changed must not be missed.
            self.offer_again = Some(Instant::now() + READ_AGAIN);
            return Ok(None);
        };
        let asked = match task {
            Some(task) if self.record.is_others(&task) => return Err(End::Fenced),
            Some(task) => match &task.state {
                State::Held(asked) => asked.clone(),
                State::Queued => return Ok(None),
                State::Ended(_) => return Err(End::Over),
            },
            None => return Err(End::Over),
        };
        if !is_changed {
            return Err(End::Over);
        }
        for question in &asked.questions {
            if let Progress::Answered(answer) = &question.progress {
                self.exchange.answer(&question.upstream_id, answer);
            }
        }
        let deliveries = &self.record.gateway.deliveries;
        let is_waiting = asked.questions.iter().any(|question| question.progress == Progress::Waiting);
        // One that was dead before it could claim may have done so all the same.
        let is_lost = asked.questions.iter().any(|question| deliveries.is_dead_end(question));
        // A stream that was full may have room by then.
        self.offer_again = (is_waiting || is_lost).then(|| Instant::now() + OFFER_INTERVAL);
        if !is_waiting {
            self.offered_anywhere = None;
        }
        let first = asked.questions.iter().filter(|question| !matches!(question.progress, Progress::Answered(_)));
        let first = first.map(|question| question.asked_at).min();
        Ok(first.map(|asked_at| self.record.gateway.clock.instant(asked_at.plus(self.record.input_timeout))))
    }

    /// Puts waiting questions to clients once more; now and then to those of all other processes as well.
    async fn offer(&mut self) -> Result<Option<Instant>, End> {
        self.offer_again = None;
        if let Ok(Some(task)) = self.record.current().await
            && !self.record.is_others(&task)
        {
            let (deliveries, ledger) = (&self.record.gateway.deliveries, &self.record.gateway.ledger);
            deliveries.release_dead(ledger, &task).await;
            let now = Instant::now();
            if self.offered_anywhere.is_none_or(|(at, pause)| now >= at + pause) {
                let pause =
                    self.offered_anywhere.map_or(OFFER_INTERVAL, |(_, pause)| (pause * 2).min(ANYWHERE_INTERVAL));
                self.offered_anywhere = Some((now, pause));
                deliveries.offer_anywhere(ledger, &task).await;
            } else {
                deliveries.offer(ledger, &task).await;
            }
        }
        self.read_record(true).await
    }

    /// When it is to be noted how far the call has come.
    fn note_at(&self) -> Option<Instant> {
        let moved = self.moved.as_ref()?;
        Some(match (&self.trail, self.step_to(moved)) {
            (Some((_, at)), Step::Further) => *at + TRAIL_INTERVAL,
            (_, Step::First | Step::Further) => Instant::now(),
        })
    }

    /// Whatever was noted of another request, or before the upstream asked for this round, is of no use.
    fn step_to(&self, moved: &Trace) -> Step {
        match &self.trail {
            Some((noted, _)) if noted.id == moved.id && noted.round == moved.round => Step::Further,
            _ => Step::First,
        }
    }

    /// Notes how far the call has come.
    async fn note_moved(&mut self) {
        if let Some(trace) = self.moved.take() {
            let step = self.step_to(&trace);
            self.record.note(step, &Trail::of(&trace, self.exchange.conversation())).await;
            self.trail = Some((trace, Instant::now()));
        }
    }

    /// Answers for the client what nobody answered in time, so that the upstream's call can end. A call that can't go on
    /// without the answer is at its end itself.
    async fn time_out_questions(&mut self) -> Result<Option<Instant>, End> {
        let now = self.record.gateway.clock.now();
        let task = self.record.current().await.ok().flatten().filter(|task| !self.record.is_others(task));
        let Some(State::Held(asked)) = task.as_ref().map(|task| &task.state) else {
            return self.read_record(true).await;
        };
        let late = |question: &&Question| {
            !matches!(question.progress, Progress::Answered(_))
                && question.asked_at.plus(self.record.input_timeout) <= now
        };
        let late: Vec<Question> = asked.questions.iter().filter(late).cloned().collect();
        if late.iter().any(|question| self.exchange.is_in_round(&question.upstream_id)) {
            return Err(End::Fault(Fault::InputTimeout));
        }
        for question in late {
            if let Some(task) = &task {
                self.record.gateway.deliveries.void(task, &question);
            }
            if self.record.apply(Event::Settle { upstream_id: question.upstream_id.clone() }).await.is_ok() {
                self.exchange.refuse(&question.upstream_id, &Fault::InputTimeout.to_error());
            }
        }
        self.read_record(true).await
    }

    /// The upstream has an answer, or gets it as soon as this is written: whoever takes the call up goes by the record, and a
    /// round that still stands in it is sent again.
    async fn settled(&mut self, upstream_id: Id) -> Option<End> {
        loop {
            match self.record.apply(Event::Settle { upstream_id: upstream_id.clone() }).await {
                Err(Unapplied::Fenced) => return Some(End::Fenced),
                Err(Unapplied::Away) if self.record.is_shared() => tokio::time::sleep(READ_AGAIN).await,
                Ok(_) | Err(Unapplied::Away | Unapplied::Refused) => return None,
            }
        }
    }

    /// The upstream asks the client.
    async fn asked(&mut self, id: Id, method: Box<str>, params: Option<Box<str>>) -> Option<End> {
        let mut is_doubtful = false;
        loop {
            let event = Event::Ask { upstream_id: id.clone(), method: method.clone(), params: params.clone() };
            let failed = match self.record.apply(event).await {
                Ok(task) => {
                    self.record.gateway.deliveries.offer(&self.record.gateway.ledger, &task).await;
                    return None;
                }
                Err(Unapplied::Fenced) => return Some(End::Fenced),
                Err(Unapplied::Away) => self.record.is_shared(),
                // What the store was told before it did not answer may stand there by now.
                Err(Unapplied::Refused) if is_doubtful => match self.record.current().await {
                    Ok(now) if now.as_ref().is_some_and(|now| has_asked(now, &id, &method, params.as_deref())) => {
                        self.offer_again = Some(Instant::now());
                        return None;
                    }
                    Ok(_) => false,
                    Err(()) => true,
                },
                Err(Unapplied::Refused) => false,
            };
            if !failed {
                let error = ErrorObject::new(code::INVALID_REQUEST, "The question can't be taken");
                self.exchange.refuse(&id, &error);
                return None;
            }
            // A question that was refused might still come to stand in the record, where nobody would wait for its answer.
            is_doubtful = true;
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    /// The upstream tells something.
    async fn notified(&mut self, method: &str, params: Option<&str>) {
        if method == "notifications/progress" {
            self.progressed(params).await;
        } else {
            // 2025-11-25 tasks, "Related Task Metadata": everything on the call's stream belongs to the task.
            let params = core::with_related(params, self.record.task.id);
            self.tell(&jsonrpc::notification(method, Some(&params)));
        }
    }

    fn tell(&self, message: &[u8]) {
        self.record.gateway.deliveries.notify(&self.record.task, &sse::write_event(None, message));
    }

    /// Progress goes on under the client's own token until the task ends.
    async fn progressed(&mut self, params: Option<&str>) {
        let Ok(mut params) = Object::parse(params.unwrap_or("{}")) else { return };
        let message = message_of_progress(&params);
        if let Some(token) = &self.record.task.progress_token {
            params.set("progressToken", token.as_ref());
            let params = core::with_related(Some(&params.to_json()), self.record.task.id);
            self.tell(&jsonrpc::notification("notifications/progress", Some(&params)));
        }
        let is_due = self.noted.is_none_or(|noted| noted.elapsed() >= NOTE_INTERVAL);
        if let Some(message) = message.filter(|_| is_due) {
            self.noted = Some(Instant::now());
            drop(self.record.apply(Event::Note(message)).await);
        }
    }

    /// The upstream withdraws a question.
    async fn withdrawn(&mut self, upstream_id: Id) {
        let Ok(Some(task)) = self.record.current().await else { return };
        let is_it = |question: &&Question| question.upstream_id == upstream_id;
        if let Some(question) = task.state.questions().iter().find(is_it) {
            self.record.gateway.deliveries.void(&task, question);
            drop(self.record.apply(Event::Settle { upstream_id }).await);
        }
    }
}

/// Whether the record has that question of the upstream's.
fn has_asked(task: &Task, id: &Id, method: &str, params: Option<&str>) -> bool {
    let is_it = |question: &Question| {
        question.upstream_id == *id && &*question.method == method && question.params.as_deref() == params
    };
    task.state.questions().iter().any(is_it)
}

/// What progress says to people: its own words, or how far it is.
fn message_of_progress(params: &Object<'_>) -> Option<Box<str>> {
    let own = params.get("message").and_then(string_value).filter(|message| !message.trim().is_empty());
    match own {
        Some(message) => Some(shorten(&message)),
        None => Some(format!("{}/{}", params.get("progress")?, params.get("total")?).into()),
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
