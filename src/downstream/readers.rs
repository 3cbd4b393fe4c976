//! Clients over HTTP/2 that do not read. On HTTP/1.1 the socket tells: a write waits. On HTTP/2 each answer has a window of its
//! own, and while it is shut nobody asks the answer's body for more, so what it holds (a place at the server, a long answer)
//! would be held for as long as the client answers pings.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The answers of one connection that are being read.
#[derive(Debug, Default)]
pub(super) struct Readers {
    answers: Mutex<Vec<(Weak<Answer>, u64)>>,
    have_begun: AtomicBool,
}

/// How far one has come.
#[derive(Debug)]
struct Answer {
    /// How often it was asked for more.
    asked: AtomicU64,
    /// It has something that nobody has asked for, or that nobody asked for more after.
    is_unread: AtomicBool,
}

impl Readers {
    /// Notes that there will be answers to watch.
    pub(super) fn begin(&self) {
        self.have_begun.store(true, Ordering::Relaxed);
    }

    /// Whether there may be any. Before, nothing can be [stalled](Self::stalled).
    pub(super) fn have_begun(&self) -> bool {
        self.have_begun.load(Ordering::Relaxed)
    }

    /// The body, which tells how it is read where `is_watched`.
    pub(super) fn watch<B>(&self, body: B, is_watched: bool) -> Watched<B> {
        let answer = is_watched.then(|| {
            let answer = Arc::new(Answer { asked: AtomicU64::new(0), is_unread: AtomicBool::new(true) });
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            // Not at each answer, or a connection with many would look at all of them for each.
            if answers.len() == answers.capacity() {
                answers.retain(|(answer, _)| answer.strong_count() > 0);
            }
            answers.push((Arc::downgrade(&answer), 0));
            answer
        });
        Watched { body, rest: Bytes::new(), answer }
    }

    /// Resolves when one of the answers has not been read for that long; at the latest after twice as long.
    pub(super) async fn stalled(&self, limit: Duration) {
        while !self.look() {
            tokio::time::sleep(limit).await;
        }
    }

    /// Whether an answer that is unread is where it was at the last look.
    fn look(&self) -> bool {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_stalled = false;
        answers.retain_mut(|(answer, seen)| {
            let Some(answer) = answer.upgrade() else { return false };
            // One more than it was asked: 0 is an answer that was never looked at.
            let asked = answer.asked.load(Ordering::Relaxed) + 1;
            is_stalled |= asked == *seen && answer.is_unread.load(Ordering::Relaxed);
            *seen = asked;
            true
        });
        is_stalled
    }
}

/// A watched body gives no more at once: what was given is kept by the connection until it is read, and the body's last
/// bytes take the body with them.
const PIECE: usize = 64 * 1024;

/// A body that tells how it is read.
#[derive(Debug)]
pub(super) struct Watched<B> {
    body: B,
    /// What the body has given and this has not.
    rest: Bytes,
    answer: Option<Arc<Answer>>,
}

impl<B: Body<Data = Bytes> + Unpin> Watched<B> {
    /// The next piece, of what is left or of what comes.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Ok(Ok(data))) => self.rest = data,
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.answer.is_none() {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        let polled = self.poll_piece(cx);
        if let Some(answer) = &self.answer {
            answer.asked.fetch_add(1, Ordering::Relaxed);
            // Where nothing is there, nobody keeps it waiting but the server.
            answer.is_unread.store(polled.is_ready(), Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}
