//! A stream of messages that outlives its readers: what a request or a session has to say, kept until it was read or
//! for as long as it may be resumed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// The most messages that a stream keeps; a reader that is further behind loses the oldest.
const KEPT: usize = 16 * 1024;

/// One message on a stream.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// Its place, from 1.
    pub place: u64,
    /// The message, or an array of them.
    pub message: Bytes,
    /// Whether it answers a request.
    pub response: bool,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Event>,
    /// The place of the newest event.
    newest: u64,
    /// The newest place that a reader has taken.
    taken: u64,
    /// How many requests are still to be answered here; `None` for a stream that answers none and ends by itself.
    unanswered: Option<usize>,
    ended: bool,
    /// Grows when a reader takes the stream over, so that the one before it stops.
    reader: u64,
}

impl Log {
    fn add(&mut self, message: Bytes, response: bool) {
        if self.ended {
            return;
        }
        self.newest += 1;
        self.events.push_back(Event { place: self.newest, message, response });
        if self.events.len() > KEPT {
            self.events.pop_front();
        }
    }

    /// The first event and whether it is the last; an inner `None` when there will be none, an outer when it is unknown.
    fn first(&self) -> Option<Option<(Event, bool)>> {
        match self.events.front() {
            Some(event) => Some(Some((event.clone(), self.ended && self.newest == event.place))),
            None if self.ended => Some(None),
            None => None,
        }
    }
}

/// A log with any number of readers over time, one at a time.
#[derive(Debug)]
pub(super) struct Stream {
    /// Its number within the session; part of event ids.
    pub number: u64,
    /// Whether events stay after they were read.
    keeps: bool,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
}

impl Stream {
    /// A stream that answers `unanswered` requests and ends with the last answer; with `None` it stays open.
    pub(super) fn new(number: u64, keeps: bool, unanswered: Option<usize>) -> Self {
        let log = Log { unanswered, ..Log::default() };
        Self { number, keeps, log: Mutex::new(log), changed: watch::Sender::new(()) }
    }

    /// Adds a request or a notification.
    pub(super) fn push(&self, message: Bytes) {
        self.log().add(message, false);
        self.changed.send_replace(());
    }

    /// Settles one request: with its response, or with none when it was cancelled.
    pub(super) fn settle(&self, response: Option<Bytes>) {
        let mut log = self.log();
        if let Some(response) = response {
            log.add(response, true);
        }
        if let Some(unanswered) = &mut log.unanswered {
            *unanswered = unanswered.saturating_sub(1);
            log.ended |= *unanswered == 0;
        }
        drop(log);
        self.changed.send_replace(());
    }

    pub(super) fn end(&self) {
        self.log().ended = true;
        self.changed.send_replace(());
    }

    /// Whether nothing follows the given place, now or ever.
    pub(super) fn is_over_at(&self, place: u64) -> bool {
        let log = self.log();
        log.ended && log.newest <= place
    }

    /// Whether events stay after they were read.
    pub(super) const fn keeps(&self) -> bool {
        self.keeps
    }

    /// The next event for that reader if it is there already.
    pub(super) fn ready(&self, cursor: &mut Cursor) -> Option<Event> {
        match self.poll(cursor) {
            Next::Event(event) => Some(event),
            Next::Wait | Next::Over => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.log().ended
    }

    pub(super) fn newest(&self) -> u64 {
        self.log().newest
    }

    /// Begins to read after the given place, or after what was taken before; whoever read until now stops.
    pub(super) fn read(&self, after: Option<u64>) -> Cursor {
        let mut log = self.log();
        log.reader += 1;
        let cursor = Cursor { reader: log.reader, place: after.unwrap_or(log.taken) };
        drop(log);
        self.changed.send_replace(());
        cursor
    }

    /// The next event for that reader; `None` when there will be none.
    pub(super) async fn next(&self, cursor: &mut Cursor) -> Option<Event> {
        let mut changed = self.changed.subscribe();
        loop {
            match self.poll(cursor) {
                Next::Event(event) => return Some(event),
                Next::Over => return None,
                Next::Wait => changed.changed().await.ok()?,
            }
        }
    }

    /// Waits for the first event, and tells whether the stream is over with it.
    pub(super) async fn first(&self) -> Option<(Event, bool)> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(first) = self.log().first() {
                return first;
            }
            changed.changed().await.ok()?;
        }
    }

    /// Waits until the stream has ended and takes what it holds.
    pub(super) async fn all(&self) -> Vec<Event> {
        let mut changed = self.changed.subscribe();
        loop {
            if self.has_ended() {
                return self.log().events.iter().cloned().collect();
            }
            if changed.changed().await.is_err() {
                return Vec::new();
            }
        }
    }

    fn poll(&self, cursor: &mut Cursor) -> Next {
        let mut log = self.log();
        if log.reader != cursor.reader {
            return Next::Over;
        }
        let oldest = log.events.front().map_or(0, |event| event.place);
        let index = usize::try_from((cursor.place + 1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        let Some(event) = log.events.get(index).cloned() else {
            return if log.ended { Next::Over } else { Next::Wait };
        };
        cursor.place = event.place;
        log.taken = log.taken.max(event.place);
        if !self.keeps {
            let place = event.place;
            log.events.retain(|kept| kept.place > place);
        }
        Next::Event(event)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a reader is.
#[derive(Debug)]
pub(super) struct Cursor {
    reader: u64,
    place: u64,
}

impl Cursor {
    /// The place of the newest event that was read.
    pub(super) const fn place(&self) -> u64 {
        self.place
    }
}

enum Next {
    Event(Event),
    Wait,
    Over,
}
