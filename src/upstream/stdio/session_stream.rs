//! What belongs to no call: the session's standalone stream, and what waits for one to open.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::outlet::{Offer, Outlet, Worth};
use crate::jsonrpc::Id;

/// Streams that are kept open at once. A client that reconnects leaves dead ones behind, which are noticed late.
const STREAMS: usize = 8;
/// Messages that wait while no stream is open: enough for a client that opens its stream a moment later.
const WAITING: usize = 32;
/// Bytes that wait while no stream is open.
const WAITING_BYTES: usize = 1024 * 1024;

/// The child can't be heard: no stream takes its question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// The session's streams, newest last, and the messages that wait for one.
#[derive(Debug)]
pub(super) struct SessionStream {
    streams: Vec<Outlet>,
    waiting: VecDeque<Waiting>,
    /// How long a question waits for a stream before the child is told that nobody will answer.
    patience: Duration,
}

#[derive(Debug)]
struct Waiting {
    message: Bytes,
    question: Option<Question>,
}

#[derive(Debug)]
struct Question {
    id: Id,
    until: Instant,
}

impl SessionStream {
    pub(super) fn new(patience: Duration) -> Self {
        Self { streams: Vec::new(), waiting: VecDeque::new(), patience }
    }

    /// Opens a stream; it takes all messages from now on, and those that wait. Older ones stay open, and take over when
    /// it closes: ending them would make their clients connect again and again.
    pub(super) fn open(&mut self) -> mpsc::Receiver<Bytes> {
        let (stream, reader) = Outlet::new();
        for waiting in self.waiting.drain(..) {
            // Never refused: a new stream has more room than this queue.
            stream.offer(waiting.message, Worth::Question);
        }
        self.streams.retain(|stream| !stream.is_closed());
        if self.streams.len() >= STREAMS {
            self.streams.remove(0);
        }
        self.streams.push(stream);
        reader
    }

    /// Whether somebody listens.
    pub(super) fn is_open(&self) -> bool {
        self.streams.iter().any(|stream| !stream.is_closed())
    }

    /// Gives a message to the newest open stream, or keeps it for one. `question` is the child's id if it asks.
    pub(super) fn offer(&mut self, message: Bytes, question: Option<&Id>) -> Result<(), Refused> {
        let worth = if question.is_some() { Worth::Question } else { Worth::Notification };
        while let Some(stream) = self.streams.last() {
            match stream.offer(message.clone(), worth) {
                Offer::Taken => return Ok(()),
                Offer::Full => return Err(Refused),
                Offer::Closed => self.streams.pop(),
            };
        }
        self.keep(message, question)
    }

    /// Takes back a question that still waits for a stream.
    pub(super) fn withdraw(&mut self, question: &Id) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.question.as_ref().is_none_or(|waiting| waiting.id != *question));
        self.waiting.len() < before
    }

    /// When the next question has waited long enough.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        self.waiting.iter().find_map(|waiting| waiting.question.as_ref()).map(|question| question.until)
    }

    /// Takes the questions that have waited long enough.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<Id> {
        let mut overdue = Vec::new();
        self.waiting.retain(|waiting| match &waiting.question {
            Some(question) if question.until <= now => {
                overdue.push(question.id.clone());
                false
            }
            _ => true,
        });
        overdue
    }

    /// Keeps a message while there is room. The oldest notification gives way, a question never does.
    fn keep(&mut self, message: Bytes, question: Option<&Id>) -> Result<(), Refused> {
        while !self.has_room(message.len()) {
            let Some(oldest) = self.waiting.iter().position(|waiting| waiting.question.is_none()) else {
                return Err(Refused);
            };
            self.waiting.remove(oldest);
        }
        let question = question.map(|id| Question { id: id.clone(), until: Instant::now() + self.patience });
        self.waiting.push_back(Waiting { message, question });
        Ok(())
    }

    fn has_room(&self, size: usize) -> bool {
        let bytes: usize = self.waiting.iter().map(|waiting| waiting.message.len()).sum();
        self.waiting.is_empty() || (self.waiting.len() < WAITING && bytes.saturating_add(size) <= WAITING_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> SessionStream {
        SessionStream::new(Duration::from_secs(5))
    }

    fn message(number: usize) -> Bytes {
        Bytes::from(number.to_string())
    }

    #[tokio::test]
    async fn notifications_give_way_to_newer_ones_and_to_questions() {
        let mut session = stream();
        for number in 0..WAITING + 3 {
            assert_eq!(session.offer(message(number), None), Ok(()));
        }
        for number in 0..WAITING {
            let id = Id::number(number as u64);
            assert_eq!(session.offer(message(100 + number), Some(&id)), Ok(()));
        }
        assert_eq!(session.offer(message(999), Some(&Id::number(999))), Err(Refused));
        let mut reader = session.open();
        for number in 0..WAITING {
            assert_eq!(reader.try_recv().unwrap(), message(100 + number));
        }
        assert!(reader.try_recv().is_err());
    }

    #[tokio::test]
    async fn the_newest_stream_takes_all_and_the_older_takes_over() {
        let mut session = stream();
        let (mut older, mut newer) = (session.open(), session.open());
        assert_eq!(session.offer(message(1), None), Ok(()));
        assert_eq!(newer.try_recv().unwrap(), message(1));
        drop(newer);
        assert_eq!(session.offer(message(2), None), Ok(()));
        assert_eq!(older.try_recv().unwrap(), message(2));
        drop(older);
        assert!(!session.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn questions_wait_for_a_while_and_can_be_withdrawn() {
        let mut session = stream();
        let (first, second) = (Id::number(1), Id::number(2));
        assert_eq!(session.offer(message(1), Some(&first)), Ok(()));
        assert_eq!(session.offer(message(2), Some(&second)), Ok(()));
        assert!(session.withdraw(&first) && !session.withdraw(&first));
        assert!(session.take_overdue(Instant::now()).is_empty());
        let at = session.next_overdue().unwrap();
        tokio::time::sleep_until(at).await;
        assert_eq!(session.take_overdue(Instant::now()), [second]);
        assert_eq!(session.next_overdue(), None);
    }
}
