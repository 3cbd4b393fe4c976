//! Streams of events that the gateway itself fills: standalone ones, and those of `tasks/result`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use crate::sse;
use crate::upstream::Error;

use super::JOINED;

/// A stream of events that the gateway itself fills.
pub(in crate::gateway) struct EventStream {
    events: mpsc::Receiver<Bytes>,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    keep_alive: Duration,
    waiting: Arc<AtomicUsize>,
    tick: Pin<Box<Sleep>>,
    silent: bool,
    /// Nothing of an event was given whose end is to come.
    is_between: bool,
    is_over: bool,
    _held: Box<dyn Send>,
}

impl EventStream {
    /// A stream that lasts until its senders are gone or `ended` resolves. The bytes that its reader takes are taken off
    /// `waiting`; `held` goes with the stream.
    #[must_use]
    pub(in crate::gateway) fn new(
        events: mpsc::Receiver<Bytes>,
        ended: impl Future<Output = ()> + Send + 'static,
        keep_alive: Duration,
        waiting: Arc<AtomicUsize>,
        held: Box<dyn Send>,
    ) -> Self {
        let tick = Box::pin(tokio::time::sleep(keep_alive));
        let ended = Box::pin(ended);
        Self { events, ended, keep_alive, waiting, tick, silent: true, is_between: true, is_over: false, _held: held }
    }
}

impl HttpBody for EventStream {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        match this.events.poll_recv(cx) {
            Poll::Ready(Some(first)) => {
                this.silent = false;
                let joined = join(first, &mut this.events);
                // Parts of an event end anywhere but at a line's end.
                this.is_between = matches!(joined.last(), Some(b'\n' | b'\r'));
                let less = |waiting: usize| Some(waiting.saturating_sub(joined.len()));
                let _before = this.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                return Poll::Ready(Some(Ok(Frame::data(joined))));
            }
            Poll::Ready(None) => {
                this.is_over = true;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        if this.ended.as_mut().poll(cx).is_ready() {
            this.is_over = true;
            return Poll::Ready(None);
        }
        std::task::ready!(this.tick.as_mut().poll(cx));
        this.tick.as_mut().reset(Instant::now() + this.keep_alive);
        cx.waker().wake_by_ref();
        let was_silent = std::mem::replace(&mut this.silent, true) && this.is_between;
        if was_silent { Poll::Ready(Some(Ok(Frame::data(sse::KEEP_ALIVE)))) } else { Poll::Pending }
    }
}

/// One write for all events that are there already.
fn join(first: Bytes, events: &mut mpsc::Receiver<Bytes>) -> Bytes {
    let Ok(second) = events.try_recv() else { return first };
    let mut joined = BytesMut::from(first);
    joined.extend_from_slice(&second);
    while joined.len() < JOINED
        && let Ok(next) = events.try_recv()
    {
        joined.extend_from_slice(&next);
    }
    joined.freeze()
}
