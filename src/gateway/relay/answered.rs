//! Whether the response to a call has been passed on. Most of what passes is known not to be it without being read.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use crate::jsonrpc::{self, Id, Message};
use crate::sse::{self, Event, Framer};

/// What was passed on last: a copy, since a piece of the upstream's body keeps the whole buffer that it was read into.
#[derive(Default)]
pub(super) struct Last {
    bytes: Vec<u8>,
    /// Whole events, the message among them.
    are_events: bool,
}

impl Last {
    pub(super) fn set(&mut self, bytes: &[u8], are_events: bool) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.are_events = are_events;
    }

    pub(super) fn answers(&self, id: &Id) -> bool {
        let bytes = || Bytes::copy_from_slice(&self.bytes);
        if self.are_events {
            sse::last_message(bytes()).is_some_and(|message| is_response(&message, id))
        } else {
            is_response(&self.bytes, id)
        }
    }
}

/// Whether a message, or one of an array, answers a request; most are known not to without being parsed.
pub(super) fn answers(message: &[u8], id: &Id) -> bool {
    if !has_outcome(message) {
        return false;
    }
    match jsonrpc::split_batch(message) {
        Ok(members) => members.iter().any(|member| is_response(member.get().as_bytes(), id)),
        Err(_) => is_response(message, id),
    }
}

/// Whether one of these events answers a request.
pub(super) fn chunk_answers(chunk: &Bytes, id: &Id) -> bool {
    if !has_outcome(chunk) {
        return false;
    }
    let mut framer = Framer::new(chunk.len());
    framer.push(chunk.clone());
    std::iter::from_fn(|| framer.next_frame().ok().flatten())
        .any(|frame| Event::parse(&frame).data.is_some_and(|data| answers(&data, id)))
}

/// No response is without one of these words.
fn has_outcome(bytes: &[u8]) -> bool {
    // Made once: making one costs more than searching an event.
    static WORDS: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| ["\"result\"", "\"error\""].map(Finder::new));
    WORDS.iter().any(|word| word.find(bytes).is_some())
}

/// Whether a message answers a request. Anything with an error but no readable id counts as well.
pub(super) fn is_response(message: &[u8], id: &Id) -> bool {
    match Message::parse(message) {
        Ok(Message::Response { id: answered, .. }) => answered.is_none_or(|answered| answered == *id),
        // A batch can hold the response; it is passed on whole only to clients that read batches.
        Err(jsonrpc::Defect::Batch) => true,
        _ => false,
    }
}
