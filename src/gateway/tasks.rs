//! `tasks/get`, `tasks/result`, `tasks/cancel` and `tasks/list` of the core dialect (2025-11-25 tasks).

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::jsonrpc::{self, Id, string_value};
use crate::seal::Purpose;
use crate::sse;
use crate::task::dialect::core::{self, Payload};
use crate::task::ledger::patient;
use crate::task::{ApplyError, Ending, Finish, Outcome, Owner, Position, State, StoreError, Task, TaskId};

use super::call::{Answer, Call};
use super::rejection::{Fault, Kind};
use super::relay::EventStream;
use super::session::{Session, Stream};
use super::streamed::Message;
use super::streams::reached;
use super::{Gateway, Request, Route, owner};

/// Tasks on one page of `tasks/list`.
const PAGE: usize = 50;
/// Events that may wait for a slow reader before they are dropped.
const WAITING_EVENTS: usize = 64;
/// How soon a client that lost a stream should come back, in milliseconds.
const RETRY_MS: u64 = 1000;
/// Before the ids of events on `tasks/result` streams.
pub(super) const TASK_EVENT: &str = "t.";

impl Gateway {
    /// The task as it is now ("Getting Tasks").
    pub(super) async fn tasks_get(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        Ok(Answer::json(jsonrpc::response(&request.id, &core::task(&task))))
    }

    /// Ends the task before it answers; the job that holds the call tells the upstream ("Cancelling Tasks").
    pub(super) async fn tasks_cancel(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        let id = task.id;
        match self.end_task(&task.owner, id, Finish::cancelled(None)).await {
            Ok(task) => Ok(Answer::json(jsonrpc::response(&request.id, &core::task(&task)))),
            Err(ApplyError::NotFound) => Err(Kind::NoTask(Some(id))),
            Err(ApplyError::Refused { .. } | ApplyError::Fenced) => {
                Err(Kind::Params("The task has already ended and can't be cancelled"))
            }
            Err(ApplyError::Store(error)) => Err(error.into()),
        }
    }

    /// The caller's tasks on this route, page by page ("Listing Tasks").
    pub(super) async fn tasks_list(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let owner = owner(&call.caller.principal, &call.route);
        let bad = Kind::Params("The cursor is not one that was given out for this list");
        let after = match request.params.cursor {
            None => None,
            Some(cursor) => {
                let position = string_value(cursor.get()).and_then(|cursor| self.open_cursor(&cursor, call));
                Some(position.ok_or(bad)?)
            }
        };
        let mut tasks = self.ledger.list(&owner, after, PAGE + 1).await?;
        let next = (tasks.len() > PAGE).then(|| {
            tasks.truncate(PAGE);
            tasks.last().map(|last| self.seal_cursor(&Position::of(last), call))
        });
        let shown: Vec<_> = tasks.iter().filter_map(|task| call.route.listed_task(&call.caller, task)).collect();
        let result = core::list_result(shown.iter().map(Cow::as_ref), next.flatten().as_deref());
        Ok(Answer::json(jsonrpc::response(&request.id, &result)))
    }

    /// A cursor is bound to its owner, so that nobody learns from another's.
    fn seal_cursor(&self, position: &Position, call: &Call) -> String {
        let text = format!("{}\n{}\n{}", position.created_at.as_millis(), position.id, call.route.name);
        let plain = [call.caller.principal.digest().as_slice(), text.as_bytes()].concat();
        self.sealer.seal(Purpose::Cursor, &plain)
    }

    fn open_cursor(&self, cursor: &str, call: &Call) -> Option<Position> {
        let plain = self.sealer.open(Purpose::Cursor, cursor)?;
        let (digest, text) = plain.split_first_chunk::<16>()?;
        let text = std::str::from_utf8(text).ok()?;
        let (created_at, rest) = text.split_once('\n')?;
        let (id, route) = rest.split_once('\n')?;
        let is_theirs = *digest == call.caller.principal.digest() && *route == *call.route.name;
        let created_at = Timestamp::from_millis(created_at.parse().ok()?);
        is_theirs.then_some(Position { created_at, id: TaskId::parse(id)? })
    }

    /// What the call came to: at once when it is over, else on a stream that waits for it and carries the upstream's
    /// questions meanwhile ("Retrieving Task Results", "Input Required Status").
    pub(super) async fn tasks_result(
        self: &Arc<Self>,
        call: &mut Call,
        session: &Arc<Session>,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        let owner = Owner::clone(&task.owner);
        if task.state.is_ended() {
            let fetched = self.fetch(&call.route, &task, &request.id).await?;
            return self.hand_out(&task, fetched).await.map(|message| message.answer(call.accept));
        }
        if call.accept.events {
            return Ok(self.result_stream(call, session, owner, task.id, request.id.clone()));
        }
        let wait = Wait::begin(session, request.id.clone());
        call.begins();
        tokio::select! {
            message = async {
                let task = self.ledger.wait(&owner, task.id, |_| false).await?.ok_or(Kind::NoTask(Some(task.id)))?;
                let fetched = patient(|| self.fetch(&call.route, &task, &request.id)).await?;
                self.hand_out(&task, fetched).await
            } => message.map(|message| message.answer(call.accept)),
            () = wait.cancelled.cancelled() => Ok(Answer::Accepted),
            () = self.kill.cancelled() => Err(Fault::Shutdown.into()),
        }
    }

    /// What answers `tasks/result` for a task that is over. What fails is the store.
    async fn fetch(self: &Arc<Self>, route: &Arc<Route>, task: &Task, id: &Id) -> Result<Fetched, StoreError> {
        if task.state == State::Ended(Ending::Cancelled) {
            return Ok(Fetched::Cancelled);
        }
        let Some(kept) = self.ledger.kept(&task.owner, task.id).await? else { return Ok(Fetched::Gone) };
        // The result is shown as the list of tools has announced it.
        let wraps = core::is_translated(&kept.shown()) && self.shape(route, &task.tool).await.wraps_output;
        let show = |outcome: &Outcome| match core::outcome(outcome, task.id, wraps) {
            Payload::Result(result) => jsonrpc::response(id, &result),
            Payload::Error(error) => jsonrpc::raw_error_response(Some(id), &error),
        };
        Ok(Message::of(&self.ledger, task, kept, show).await?.map_or(Fetched::Gone, Fetched::Message))
    }

    /// The message that was fetched, on record as handed out.
    async fn hand_out(&self, task: &Task, fetched: Fetched) -> Result<Message, Kind> {
        match fetched {
            Fetched::Message(message) => {
                self.note_read(task).await;
                Ok(message)
            }
            Fetched::Cancelled => Err(Kind::Cancelled(task.id)),
            Fetched::Gone => Err(Kind::NoTask(Some(task.id))),
        }
    }

    /// A stream that ends with the answer to `tasks/result`. It needs no buffer: whoever takes it up again gets the open
    /// questions and the outcome once more.
    pub(super) fn result_stream(
        self: &Arc<Self>,
        call: &Call,
        session: &Arc<Session>,
        owner: Owner,
        task: TaskId,
        id: Id,
    ) -> Answer {
        let route = &call.route;
        let (events, receiver) = mpsc::channel(WAITING_EVENTS);
        let stream = self.deliveries.stream(events);
        let waiting = Arc::clone(&stream.waiting);
        let opened = (session.open_stream(self.clock), route.metrics.stream());
        let job = ResultJob {
            gateway: Arc::clone(self),
            route: Arc::clone(route),
            session: Arc::clone(session),
            wait: Wait::begin(session, id.clone()),
            owner,
            task,
            id,
            stream,
            expires: self.expiry(&call.caller),
        };
        self.jobs.spawn("tasks/result", job.run());
        Answer::Events(EventStream::new(receiver, pending(), self.keep_alive, waiting, Box::new(opened)).boxed_unsync())
    }

    /// The event id from which a `tasks/result` stream can be taken up.
    fn seal_event(&self, task: TaskId, id: &Id, is_last: bool) -> String {
        let plain = format!("{task}\n{}\n{}", u8::from(is_last), id.as_json());
        format!("{TASK_EVENT}{}", self.sealer.seal(Purpose::EventId, plain.as_bytes()))
    }

    /// Reads such an id: the task, the request, and whether nothing comes after it.
    pub(super) fn open_event(&self, event_id: &str) -> Option<(TaskId, Id, bool)> {
        let plain = self.sealer.open(Purpose::EventId, event_id)?;
        let mut parts = std::str::from_utf8(&plain).ok()?.splitn(3, '\n');
        let task = TaskId::parse(parts.next()?)?;
        let is_last = parts.next()? == "1";
        Some((task, Id::from_json(parts.next()?).ok()?, is_last))
    }

    /// Notes in the audit log that a result was fetched, the first time.
    pub(super) async fn note_read(&self, task: &Task) {
        if !self.ledger.note_read(&task.owner, task.id).await.unwrap_or(false) {
            return;
        }
        let Owner { tenant, issuer, subject, route, .. } = &*task.owner;
        tracing::info!(target: "audit", event = "result_read", %tenant, %issuer, %subject, %route, tool = %task.tool, task = %task.id);
    }
}

/// What there is to answer `tasks/result` with.
enum Fetched {
    /// The response.
    Message(Message),
    /// The task was cancelled, and has none.
    Cancelled,
    /// The task has gone meanwhile.
    Gone,
}

/// A blocked `tasks/result` that its client can cancel (2025-11-25 cancellation).
struct Wait {
    session: Arc<Session>,
    cancelled: CancellationToken,
    id: Id,
}

impl Wait {
    fn begin(session: &Arc<Session>, id: Id) -> Self {
        let cancelled = session.ended.child_token();
        session.live().waits.push((id.clone(), cancelled.clone()));
        Self { session: Arc::clone(session), cancelled, id }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        // Another request of the same id may have begun; the oldest is this one's.
        let mut live = self.session.live();
        if let Some(place) = live.waits.iter().position(|(id, _)| *id == self.id) {
            live.waits.remove(place);
        }
    }
}

/// Feeds one `tasks/result` stream.
struct ResultJob {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    session: Arc<Session>,
    wait: Wait,
    owner: Owner,
    task: TaskId,
    id: Id,
    stream: Stream,
    /// The client comes again with another credential then, and goes on where it was.
    expires: Option<Instant>,
}

impl ResultJob {
    async fn run(self) {
        let Self { gateway, session, .. } = &self;
        let priming = sse::write_priming(&gateway.seal_event(self.task, &self.id, false), RETRY_MS);
        let stream = self.stream.clone();
        if stream.send(priming).await {
            gateway.deliveries.attach(self.task, stream.clone(), session.terms.client);
            // That holds to the very end: a reader may take its time over a large one.
            tokio::select! {
                () = stream.events.closed() => {}
                () = self.wait.cancelled.cancelled() => {}
                () = reached(self.expires) => {}
                () = self.finish() => {}
            }
            gateway.deliveries.detach(self.task, stream.number);
        }
        gateway.deliveries.release(&gateway.ledger, stream.number).await;
    }

    /// Waits for the end of the task, and sends the last event. Where that breaks off, the stream ends without the event's end: so
    /// it is none, and the client takes the stream up again after the one before.
    async fn finish(&self) {
        let end = self.outcome().await;
        self.gateway.deliveries.detach(self.task, self.stream.number);
        let id = self.gateway.seal_event(self.task, &self.id, true);
        match end {
            Message::Whole(end) => drop(self.stream.finish(sse::write_event(Some(&id), &end)).await),
            Message::Streamed(end) => {
                self.stream.ends();
                end.into_event(Some(&id)).send(&self.stream).await;
            }
        }
    }

    /// Waits for the end of the task; the message that answers the request. What it asks meanwhile is put on the stream from
    /// here, since its call may be held by another process.
    async fn outcome(&self) -> Message {
        let Self { gateway, route, task, id, .. } = self;
        let message = async {
            let ended = self.ended().await?.ok_or(Kind::NoTask(Some(*task)))?;
            let fetched = patient(|| gateway.fetch(route, &ended, id)).await?;
            gateway.hand_out(&ended, fetched).await
        };
        message.await.unwrap_or_else(|kind| Message::Whole(kind.answering(id).to_message()))
    }

    /// The task when it has ended; `None` when it is gone.
    async fn ended(&self) -> Result<Option<Arc<Task>>, StoreError> {
        let Self { gateway, owner, task, .. } = self;
        let read = || gateway.ledger.get(owner, *task);
        // Watched before it is read: a change in between wakes the wait below.
        let Some(mut watch) = patient(|| gateway.ledger.watch(owner, *task)).await? else { return Ok(None) };
        loop {
            let Some(task) = patient(read).await? else { return Ok(None) };
            if task.state.is_ended() {
                return Ok(Some(task));
            }
            gateway.deliveries.announce(&task);
            gateway.deliveries.offer_here(&gateway.ledger, &task).await;
            let again = gateway.deliveries.announce_every().map(|every| Instant::now() + every);
            tokio::select! {
                is_there = watch.changed() => if !is_there {
                    return patient(read).await;
                },
                () = reached(again) => {}
            }
        }
    }
}
