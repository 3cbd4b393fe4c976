//! What a call's stream has said, kept for a client that loses its connection and comes back (2025-11-25 transports,
//! "Resumability and Redelivery"). An upstream of the modern era resumes nothing, so the gateway keeps it itself.
//!
//! A job writes, and at most one connection reads: the newest. A slow one holds the job back. Where nobody reads and more is
//! written than is kept, notifications are forgotten, oldest first; questions stay until they are answered, and the answer
//! stays until its time is over.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use crate::sse;
use crate::upstream::Error;

/// Before the ids of events on the streams of plain calls.
pub(in crate::gateway) const CALL_EVENT: &str = "c.";
/// So much of a call's stream is kept.
pub(super) const KEPT_BYTES: usize = 1024 * 1024;
/// So long it is kept after the call's end.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(5 * 60);
/// So much may wait for a slow reader before the call is read no further.
const WAITING_BYTES: usize = KEPT_BYTES / 2;
/// How soon a client that lost its stream should come back, in milliseconds.
const RETRY_MS: u64 = 1000;
/// As much as is joined into one write.
const JOINED: usize = 64 * 1024;

/// The stream of one call.
#[derive(Debug)]
pub(in crate::gateway) struct Replay {
    /// The call's number within the process, which no other process has.
    call: u64,
    kept: Mutex<Kept>,
    /// The reader has taken something, or is gone.
    taken: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Entry>,
    bytes: usize,
    /// The number of the last event that was written; 0 is the stream's beginning.
    written: u64,
    /// When the call ended. Nothing is written after that.
    ended: Option<Instant>,
    /// What stands for an answer that is too large to be kept.
    instead: Bytes,
    /// Which connection reads: the newest. 0 while none has been.
    reader: u64,
    is_read: bool,
    /// The last event that it has taken.
    position: u64,
    /// Bytes that it has yet to take.
    unread: usize,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    kind: Kind,
    event: Bytes,
}

/// What an event is, as far as it decides how long it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Notice,
    Question(u32),
    Answer,
    /// An answer that is too large to be kept: it is there for the connection that reads, and for no other.
    Large,
}

impl Replay {
    pub(super) fn new(call: u64) -> Arc<Self> {
        Arc::new(Self { call, kept: Mutex::default(), taken: Notify::new() })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a notification.
    pub(super) fn notice(&self, message: &[u8]) {
        self.write(Kind::Notice, message);
    }

    /// Writes a question.
    pub(super) fn question(&self, number: u32, message: &[u8]) {
        self.write(Kind::Question(number), message);
    }

    /// Forgets a question that needs no answer any more: nobody is to be asked it when the stream is taken up again.
    pub(super) fn settled(&self, number: u32) {
        let mut kept = self.kept();
        kept.forget(|entry| entry.kind == Kind::Question(number));
    }

    /// Writes the answer; then the stream ends. `instead` stands for an answer that is too large to be kept.
    pub(super) fn end(&self, answer: &[u8], instead: &[u8]) {
        if answer.len() <= KEPT_BYTES {
            self.write(Kind::Answer, answer);
        } else {
            let mut kept = self.kept();
            kept.instead = sse::write_event(Some(&event_id(self.call, kept.written + 1)), instead);
            drop(kept);
            self.write(Kind::Large, answer);
            let mut kept = self.kept();
            if !kept.is_read {
                kept.shrink();
            }
        }
        self.close();
    }

    /// Ends the stream without an answer.
    pub(super) fn close(&self) {
        let mut kept = self.kept();
        kept.ended.get_or_insert_with(Instant::now);
        kept.wake();
    }

    fn write(&self, kind: Kind, message: &[u8]) {
        let mut kept = self.kept();
        if kept.ended.is_some() {
            return;
        }
        kept.written += 1;
        let number = kept.written;
        let event = sse::write_event(Some(&event_id(self.call, number)), message);
        kept.bytes += event.len();
        kept.unread += event.len();
        kept.events.push_back(Entry { number, kind, event });
        while kept.bytes > KEPT_BYTES && kept.forget_oldest_notice() {}
        kept.wake();
    }

    /// Waits until the connection that reads has taken enough; not at all where nobody reads.
    pub(super) async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            {
                let kept = self.kept();
                if !kept.is_read || kept.unread <= WAITING_BYTES {
                    return;
                }
            }
            taken.await;
        }
    }

    /// Whether the call has ended and its stream has been kept for long enough.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.kept().ended.is_some_and(|ended| now.saturating_duration_since(ended) >= KEPT_FOR)
    }

    /// Whether the call has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.kept().ended.is_some()
    }

    /// How many bytes are kept.
    pub(super) fn bytes(&self) -> usize {
        self.kept().bytes
    }

    /// Whether anything can come after that event.
    fn has_rest(&self, after: u64) -> bool {
        let kept = self.kept();
        after <= kept.written && (kept.ended.is_none() || kept.events.iter().any(|entry| entry.number > after))
    }

    /// A connection that reads from after an event on. Whoever read before reads no more.
    pub(super) fn read(
        self: &Arc<Self>,
        after: u64,
        primes: bool,
        keep_alive: Duration,
        held: Box<dyn Send>,
    ) -> Reader {
        let mut kept = self.kept();
        kept.reader += 1;
        kept.is_read = true;
        kept.move_to(after);
        kept.wake();
        let reader = kept.reader;
        drop(kept);
        let priming = primes.then(|| sse::write_priming(&event_id(self.call, after), RETRY_MS));
        Reader {
            replay: Arc::clone(self),
            number: reader,
            after,
            priming,
            keep_alive,
            tick: Box::pin(tokio::time::sleep(keep_alive)),
            silent: true,
            _held: held,
        }
    }
}

impl Kept {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn forget(&mut self, is_over: impl Fn(&Entry) -> bool) {
        self.events.retain(|entry| !is_over(entry));
        self.bytes = self.events.iter().map(|entry| entry.event.len()).sum();
        self.move_to(self.position);
    }

    /// The reader has taken everything up to an event.
    fn move_to(&mut self, number: u64) {
        self.position = number;
        let first = self.events.partition_point(|entry| entry.number <= number);
        self.unread = self.events.iter().skip(first).map(|entry| entry.event.len()).sum();
    }

    /// Not one that a connection is about to take: those are bounded by [`Replay::room`].
    fn forget_oldest_notice(&mut self) -> bool {
        let is_past = |entry: &Entry| !self.is_read || entry.number <= self.position;
        let place = self.events.iter().position(|entry| entry.kind == Kind::Notice && is_past(entry));
        let forgotten = place.and_then(|place| self.events.remove(place));
        let size = forgotten.as_ref().map_or(0, |entry| entry.event.len());
        self.bytes -= size;
        if forgotten.as_ref().is_some_and(|entry| entry.number > self.position) {
            self.unread -= size;
        }
        forgotten.is_some()
    }

    /// Puts what stands for it in the place of an answer that is too large to be kept, once its connection has taken it.
    fn shrink_up_to(&mut self, number: u64) {
        if self.events.back().is_some_and(|entry| entry.kind == Kind::Large && entry.number <= number) {
            self.shrink();
        }
    }

    fn shrink(&mut self) {
        if let Some(entry) = self.events.back_mut().filter(|entry| entry.kind == Kind::Large) {
            (entry.kind, entry.event) = (Kind::Answer, std::mem::take(&mut self.instead));
            self.forget(|_| false);
        }
    }

    /// What comes after an event, as much as goes into one write; and the number of the last of it.
    fn after(&self, number: u64) -> Option<(Bytes, u64)> {
        let first = self.events.partition_point(|entry| entry.number <= number);
        let mut rest = self.events.iter().skip(first);
        let only = rest.next()?;
        let Some(second) = rest.next() else { return Some((only.event.clone(), only.number)) };
        let mut joined = BytesMut::from(only.event.as_ref());
        let mut last = only.number;
        for entry in std::iter::once(second).chain(rest) {
            if joined.len() >= JOINED {
                break;
            }
            joined.extend_from_slice(&entry.event);
            last = entry.number;
        }
        Some((joined.freeze(), last))
    }
}

/// The id of an event.
fn event_id(call: u64, number: u64) -> String {
    format!("{CALL_EVENT}{call}.{number}")
}

/// Reads an id without its prefix: the call and the event.
fn parse_event_id(id: &str) -> Option<(u64, u64)> {
    let (call, number) = id.split_once('.')?;
    Some((call.parse().ok()?, number.parse().ok()?))
}

/// The stream, among these, that an event id names, if anything comes after that event.
pub(super) fn find<'a>(replays: impl IntoIterator<Item = &'a Arc<Replay>>, id: &str) -> Option<(Arc<Replay>, u64)> {
    let (call, number) = parse_event_id(id)?;
    let replay = replays.into_iter().find(|replay| replay.call == call)?;
    replay.has_rest(number).then(|| (Arc::clone(replay), number))
}

/// One connection's view of a call's stream.
pub(super) struct Reader {
    replay: Arc<Replay>,
    number: u64,
    after: u64,
    priming: Option<Bytes>,
    keep_alive: Duration,
    tick: Pin<Box<Sleep>>,
    silent: bool,
    _held: Box<dyn Send>,
}

impl HttpBody for Reader {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if let Some(priming) = this.priming.take() {
            return Poll::Ready(Some(Ok(Frame::data(priming))));
        }
        {
            let mut kept = this.replay.kept();
            if kept.reader != this.number {
                return Poll::Ready(None);
            }
            if let Some((events, last)) = kept.after(this.after) {
                this.after = last;
                this.silent = false;
                kept.unread = kept.unread.saturating_sub(events.len());
                kept.position = last;
                kept.shrink_up_to(last);
                this.replay.taken.notify_one();
                return Poll::Ready(Some(Ok(Frame::data(events))));
            }
            if kept.ended.is_some() {
                return Poll::Ready(None);
            }
            kept.waker = Some(cx.waker().clone());
        }
        std::task::ready!(this.tick.as_mut().poll(cx));
        this.tick.as_mut().reset(Instant::now() + this.keep_alive);
        cx.waker().wake_by_ref();
        let was_silent = std::mem::replace(&mut this.silent, true);
        if was_silent { Poll::Ready(Some(Ok(Frame::data(sse::KEEP_ALIVE)))) } else { Poll::Pending }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.replay.kept();
        if kept.reader == self.number {
            kept.is_read = false;
            kept.waker = None;
            kept.shrink();
            self.replay.taken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn reader(replay: &Arc<Replay>, after: u64) -> Reader {
        replay.read(after, false, Duration::from_secs(3600), Box::new(()))
    }

    /// Everything to the stream's end.
    async fn rest(mut reader: Reader) -> String {
        let mut all = Vec::new();
        while let Some(frame) = reader.frame().await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn a_reader_takes_up_the_stream_after_any_event() {
        let replay = Replay::new(7);
        replay.notice(b"one");
        replay.question(1, b"two");
        replay.notice(b"three");
        replay.settled(1);
        replay.end(b"four", b"");
        replay.notice(b"too late");
        assert_eq!(
            rest(reader(&replay, 0)).await,
            "id: c.7.1\ndata: one\n\nid: c.7.3\ndata: three\n\nid: c.7.4\ndata: four\n\n"
        );
        assert_eq!(rest(reader(&replay, 3)).await, "id: c.7.4\ndata: four\n\n");
        let found = |id: &str| find([&replay], id).map(|(_, after)| after);
        assert_eq!(
            (found("7.3"), found("7.4"), found("7.5"), found("8.1"), found("7")),
            (Some(3), None, None, None, None)
        );
        assert!(!replay.is_stale(Instant::now()) && replay.is_stale(Instant::now() + KEPT_FOR));
    }

    #[tokio::test]
    async fn the_newest_reader_reads_alone() {
        let replay = Replay::new(7);
        let mut first = reader(&replay, 0);
        let waiting = at_once(&mut first);
        assert!(waiting.is_none());
        let second = reader(&replay, 0);
        assert!(first.frame().await.is_none());
        drop(first);
        replay.end(b"x", b"");
        assert_eq!(rest(second).await, "id: c.7.1\ndata: x\n\n");
    }

    /// What is there at once.
    fn at_once(reader: &mut Reader) -> Option<Bytes> {
        let frame = futures_util::FutureExt::now_or_never(reader.frame())??;
        frame.unwrap().into_data().ok()
    }

    #[tokio::test]
    async fn notifications_are_forgotten_before_anything_else() {
        let replay = Replay::new(7);
        replay.question(1, b"asked");
        let long = vec![b'x'; KEPT_BYTES / 4];
        for _ in 0..10 {
            replay.notice(&long);
        }
        assert!(replay.bytes() <= KEPT_BYTES);
        replay.end(b"answer", b"");
        let all = rest(reader(&replay, 0)).await;
        assert!(all.starts_with("id: c.7.1\ndata: asked\n\n") && all.ends_with("data: answer\n\n"));
        assert!(all.contains("id: c.7.11\n") && !all.contains("id: c.7.2\n"));
    }

    #[tokio::test]
    async fn what_a_connection_is_about_to_take_stays_beside_a_large_answer() {
        let replay = Replay::new(1);
        let reader = reader(&replay, 0);
        replay.notice(b"first");
        replay.end(&vec![b'x'; KEPT_BYTES + 1], b"too large");
        let read = rest(reader).await;
        assert!(read.contains("data: first\n") && read.contains("xxx"), "{}", read.len());
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_there_for_whoever_waits_for_it() {
        let large = vec![b'x'; KEPT_BYTES + 1];
        let replay = Replay::new(7);
        let waiting = reader(&replay, 0);
        replay.end(&large, b"instead");
        assert!(rest(waiting).await.len() > KEPT_BYTES);
        assert_eq!(rest(reader(&replay, 0)).await, "id: c.7.1\ndata: instead\n\n");
        let unread = Replay::new(8);
        unread.end(&large, b"instead");
        assert_eq!(rest(reader(&unread, 0)).await, "id: c.8.1\ndata: instead\n\n");
        let lost = Replay::new(9);
        let leaving = reader(&lost, 0);
        lost.end(&large, b"instead");
        drop(leaving);
        assert_eq!(rest(reader(&lost, 0)).await, "id: c.9.1\ndata: instead\n\n");
    }

    #[tokio::test]
    async fn a_slow_reader_holds_the_writer_back_and_nobody_does_not() {
        use futures_util::FutureExt as _;
        let replay = Replay::new(7);
        let third = vec![b'x'; KEPT_BYTES / 3];
        let mut slow = reader(&replay, 0);
        replay.notice(&third);
        assert!(replay.room().now_or_never().is_some());
        replay.notice(&third);
        assert!(replay.room().now_or_never().is_none());
        assert!(at_once(&mut slow).is_some());
        assert!(replay.room().now_or_never().is_some());
        replay.notice(&third);
        assert!(replay.room().now_or_never().is_none());
        drop(slow);
        assert!(replay.room().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_silent_stream_is_kept_warm() {
        tokio::time::pause();
        let replay = Replay::new(7);
        let mut reader = replay.read(0, true, Duration::from_secs(1), Box::new(()));
        let priming = reader.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(priming, "id: c.7.0\nretry: 1000\ndata: \n\n");
        assert_eq!(reader.frame().await.unwrap().unwrap().into_data().unwrap(), sse::KEEP_ALIVE);
    }
}
