//! Messages with a result in them that is too large to be held for each of its readers: it is read from the store as they take it.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::sse::EventWriter;
use crate::task::outline;
use crate::task::store::{Kept, Large, Pieces};
use crate::task::{Ledger, Outcome, StoreError, Task, TaskId};
use crate::upstream::Error;

use super::call::{Accept, Answer};
use super::rejection::Chain;
use super::session::Stream;

/// A message that is there, or is read as its reader takes it.
#[derive(Debug)]
pub(super) enum Message {
    Whole(Bytes),
    Streamed(Box<Streamed>),
}

/// A message of which the large values are in the store.
pub(super) struct Streamed {
    rest: Rest,
    event: Option<EventWriter>,
    /// Of the whole message, in bytes.
    length: u64,
}

/// What of it was not taken yet.
struct Rest {
    task: TaskId,
    parts: VecDeque<Part>,
    pieces: Box<dyn Pieces>,
    /// The piece in hand, as far as it was not passed.
    piece: Bytes,
    /// Where that begins in the result.
    at: u64,
}

#[derive(Hash)]
enum Part {
    Text(Bytes),
    Value(Range<u64>),
}

impl Message {
    /// The message that shows what a task came to; `None` where it is gone. `show` makes it of the outcome, and is not told
    /// whether that is the outcome itself or an outline of it.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(super) async fn of(
        ledger: &Ledger,
        task: &Task,
        kept: Kept,
        show: impl Fn(&Outcome) -> Bytes,
    ) -> Result<Option<Self>, StoreError> {
        let shown = show(&kept.shown());
        let Kept::Large(large) = kept else { return Ok(Some(Self::Whole(shown))) };
        if let Some(streamed) = Streamed::new(task.id, &shown, large) {
            return Ok(Some(Self::Streamed(Box::new(streamed))));
        }
        // What is large in it has to be looked at.
        let outcome = ledger.outcome(&task.owner, task.id).await?;
        Ok(outcome.map(|outcome| Self::Whole(show(&outcome))))
    }

    /// A number that is the same for the same message of a task, read again. What is large in it is not looked at.
    pub(super) fn digest(&self, hasher: &impl BuildHasher) -> u64 {
        match self {
            Self::Whole(message) => hasher.hash_one(message),
            Self::Streamed(message) => hasher.hash_one(&message.rest.parts),
        }
    }

    /// As the answer for a client that takes such.
    pub(super) fn answer(self, accept: Accept) -> Answer {
        match self {
            Self::Whole(message) => Answer::json(message),
            Self::Streamed(message) if accept.json => Answer::JsonBody(Streaming::of(*message).boxed_unsync()),
            Self::Streamed(message) => Answer::Events(Streaming::of(message.into_event(None)).boxed_unsync()),
        }
    }
}

impl Streamed {
    /// A message that was made of the outline of a task's result. `None` where that can't be filled.
    fn new(task: TaskId, message: &Bytes, large: Large) -> Option<Self> {
        let part = |part: outline::Part<'_>| match part {
            outline::Part::Text(text) => Part::Text(message.slice_ref(text)),
            outline::Part::Value(place) => Part::Value(place),
        };
        let parts: VecDeque<Part> = large.outline.fill(message)?.into_iter().map(part).collect();
        let length = |part: &Part| match part {
            Part::Text(text) => text.len() as u64,
            Part::Value(place) => place.end - place.start,
        };
        let length = parts.iter().map(length).sum();
        let rest = Rest { task, parts, pieces: large.pieces, piece: Bytes::new(), at: 0 };
        Some(Self { rest, event: None, length })
    }

    /// The same as an event.
    pub(super) fn into_event(self, id: Option<&str>) -> Self {
        Self { event: Some(EventWriter::new(id)), ..self }
    }

    /// Sends it a piece at a time; says whether its reader got all of it.
    pub(super) async fn send(mut self, stream: &Stream) -> bool {
        loop {
            match self.next().await {
                Ok(Some(part)) => {
                    if !stream.send_alone(part).await {
                        return false;
                    }
                }
                Ok(None) => return true,
                // What is wrong was told.
                Err(_) => return false,
            }
        }
    }

    /// The next bytes of it; `None` at its end. No more is read than is asked for.
    ///
    /// # Errors
    /// [`StoreError`], which the log was told: what was given so far is to break off.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let Some(event) = &mut self.event else { return self.rest.next().await };
        if let Some(head) = event.head() {
            return Ok(Some(head));
        }
        match self.rest.next().await {
            Ok(Some(bytes)) => Ok(Some(event.lines(bytes))),
            Ok(None) => Ok(event.tail()),
            Err(error) => {
                self.event = None;
                Err(error)
            }
        }
    }
}

impl Rest {
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let next = self.read().await;
        if let Err(error) = &next {
            match error {
                // It has expired, or the ledger has told it.
                StoreError::NotFound | StoreError::Spoilt(_) => {
                    tracing::debug!(error = %Chain(error), task = %self.task, "an answer with a large result breaks off");
                }
                _ => {
                    tracing::error!(error = %Chain(error), task = %self.task, "an answer with a large result breaks off")
                }
            }
            self.parts.clear();
        }
        next
    }

    async fn read(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            match self.parts.pop_front() {
                None => return Ok(None),
                Some(Part::Text(text)) => {
                    // The end is not said before all of the result was found to be as it was written.
                    while self.parts.is_empty() && self.pieces.next().await?.is_some() {}
                    if !text.is_empty() {
                        return Ok(Some(text));
                    }
                }
                Some(Part::Value(place)) if place.is_empty() => {}
                Some(Part::Value(place)) => {
                    let bytes = self.until(&place).await?;
                    self.parts.push_front(Part::Value(place.start + bytes.len() as u64..place.end));
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// The first bytes of what lies there, as many as one piece has.
    async fn until(&mut self, place: &Range<u64>) -> Result<Bytes, StoreError> {
        loop {
            let skipped = usize::try_from(place.start.saturating_sub(self.at)).unwrap_or(usize::MAX);
            let skipped = skipped.min(self.piece.len());
            self.piece.advance(skipped);
            self.at += skipped as u64;
            if !self.piece.is_empty() {
                let length = usize::try_from(place.end - place.start).unwrap_or(usize::MAX).min(self.piece.len());
                self.at += length as u64;
                return Ok(self.piece.split_to(length));
            }
            let next = self.pieces.next().await?;
            self.piece = next.ok_or_else(|| StoreError::Spoilt("the result is shorter than it was".into()))?;
        }
    }
}

/// It as a body.
struct Streaming {
    state: State,
    /// How much is still to come, where that is known.
    left: Option<u64>,
}

type Reading = Pin<Box<dyn Future<Output = (Streamed, Result<Option<Bytes>, StoreError>)> + Send>>;

enum State {
    Idle(Box<Streamed>),
    Reading(Reading),
    Over,
}

impl Streaming {
    fn of(message: Streamed) -> Self {
        let left = message.event.is_none().then_some(message.length);
        Self { state: State::Idle(Box::new(message)), left }
    }
}

impl HttpBody for Streaming {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut reading: Reading = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return Poll::Ready(None),
            State::Reading(reading) => reading,
            State::Idle(mut message) => Box::pin(async move {
                let next = message.next().await;
                (*message, next)
            }),
        };
        let Poll::Ready((message, next)) = reading.as_mut().poll(cx) else {
            self.state = State::Reading(reading);
            return Poll::Pending;
        };
        Poll::Ready(match next {
            Ok(Some(bytes)) => {
                self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
                self.state = State::Idle(Box::new(message));
                Some(Ok(Frame::data(bytes)))
            }
            Ok(None) => None,
            // A body that breaks off must not look complete.
            Err(error) => Some(Err(Error::Lost(error.into()))),
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Over) || self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl std::fmt::Debug for Streamed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streamed").field("task", &self.rest.task).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
