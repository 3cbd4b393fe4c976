//! Clients over HTTP/2 that do not read. On HTTP/1.1 the socket tells: a write waits. On HTTP/2 each answer has a window of its
//! own, and while it is shut nobody asks the answer's body for more, so what it holds (a place at the server, a long answer)
//! would be held for as long as the client answers pings.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// The answers of one connection that are being read.
#[derive(Debug, Default)]
pub(super) struct Readers {
    answers: Mutex<Vec<(Weak<Answer>, u64)>>,
    first: Notify,
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
            self.first.notify_one();
            answer
        });
        Watched { body, answer }
    }

    /// Resolves when one of the answers has not been read for that long; at the latest after twice as long.
    pub(super) async fn stalled(&self, limit: Duration) {
        self.first.notified().await;
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

/// A body that tells how it is read.
#[derive(Debug)]
pub(super) struct Watched<B> {
    body: B,
    answer: Option<Arc<Answer>>,
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(answer) = &self.answer {
            answer.asked.fetch_add(1, Ordering::Relaxed);
            // Where nothing is there, nobody keeps it waiting but the server.
            answer.is_unread.store(polled.is_ready(), Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
