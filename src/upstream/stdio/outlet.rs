//! A bounded channel to one reader that never makes the writer wait.
//!
//! All callers of a child share its one stdout, so a reader that is slow or gone must cost the others nothing. What is
//! given up when the channel is full depends on what it is: notifications first, then questions, never the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Messages that may wait for a reader. Far more than one read of the pipe holds, so that only a reader that stands
/// still loses any. The channel takes its memory as it fills.
const SLOTS: usize = 1024;
/// Slots that notifications leave to questions.
const QUESTION_SLOTS: usize = 32;
/// The slot that all leave to the answer.
const ANSWER_SLOT: usize = 1;
/// Bytes that may wait for a reader. One message goes through at any size when nothing else waits.
const BYTES: usize = 8 * 1024 * 1024;

/// What a message is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    /// Given up first: the protocol promises no delivery.
    Notification,
    /// Given up only when it can't be kept; its sender must be told.
    Question,
    /// Always kept; at most one for each outlet.
    Answer,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// The reader will get it.
    Taken,
    /// The reader is too far behind.
    Full,
    /// There is no reader any more.
    Closed,
}

/// The writing end. Dropping it ends the reader's stream after what waits.
#[derive(Debug)]
pub(super) struct Outlet {
    sender: mpsc::Sender<Bytes>,
    waiting: Arc<AtomicUsize>,
}

impl Outlet {
    /// An outlet and its reader. When full, messages are refused by their [`Worth`]; nothing ever waits for a place.
    pub(super) fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(SLOTS + QUESTION_SLOTS + ANSWER_SLOT);
        (Self { sender, waiting: Arc::default() }, receiver)
    }

    /// Hands a message to the reader if there is room for its kind.
    pub(super) fn offer(&self, message: Bytes, worth: Worth) -> Offer {
        if self.is_closed() {
            return Offer::Closed;
        }
        let (kept_free, bytes) = match worth {
            Worth::Notification => (ANSWER_SLOT + QUESTION_SLOTS, BYTES / 2),
            Worth::Question => (ANSWER_SLOT, BYTES),
            Worth::Answer => (0, usize::MAX),
        };
        if self.sender.capacity() <= kept_free || self.waiting.load(Ordering::Relaxed) >= bytes {
            return Offer::Full;
        }
        let charged = Bytes::from_owner(Charged::new(message, &self.waiting));
        match self.sender.try_send(charged) {
            Ok(()) => Offer::Taken,
            Err(mpsc::error::TrySendError::Full(_)) => Offer::Full,
            Err(mpsc::error::TrySendError::Closed(_)) => Offer::Closed,
        }
    }

    /// Whether the reader has gone.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Counts a message as waiting until the last reader has dropped it.
struct Charged {
    message: Bytes,
    waiting: Arc<AtomicUsize>,
}

impl Charged {
    fn new(message: Bytes, waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(message.len(), Ordering::Relaxed);
        Self { message, waiting: Arc::clone(waiting) }
    }
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.message.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_outlet_gives_up_notifications_then_questions_and_keeps_the_answer() {
        let (outlet, mut reader) = Outlet::new();
        let offer = |worth| outlet.offer(Bytes::from_static(b"m"), worth) == Offer::Taken;
        assert_eq!((0..2 * SLOTS).filter(|_| offer(Worth::Notification)).count(), SLOTS);
        assert_eq!((0..2 * SLOTS).filter(|_| offer(Worth::Question)).count(), QUESTION_SLOTS);
        assert_eq!(outlet.offer(Bytes::from_static(b"answer"), Worth::Answer), Offer::Taken);
        drop(outlet);
        let mut last = Bytes::new();
        let mut count = 0;
        while let Ok(message) = reader.try_recv() {
            (last, count) = (message, count + 1);
        }
        assert_eq!((&last[..], count), (&b"answer"[..], SLOTS + QUESTION_SLOTS + 1));
    }

    #[test]
    fn bytes_are_bounded_and_come_free_when_read() {
        let (outlet, mut reader) = Outlet::new();
        let huge = Bytes::from(vec![0; BYTES]);
        assert_eq!(outlet.offer(huge.clone(), Worth::Notification), Offer::Taken);
        assert_eq!(outlet.offer(Bytes::from_static(b"n"), Worth::Notification), Offer::Full);
        assert_eq!(outlet.offer(Bytes::from_static(b"q"), Worth::Question), Offer::Full);
        assert_eq!(outlet.offer(huge, Worth::Answer), Offer::Taken);
        drop((reader.try_recv(), reader.try_recv()));
        assert_eq!(outlet.offer(Bytes::from_static(b"n"), Worth::Notification), Offer::Taken);
        drop(reader);
        assert_eq!(outlet.offer(Bytes::from_static(b"n"), Worth::Notification), Offer::Closed);
    }
}
