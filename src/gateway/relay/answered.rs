//! Whether the response to a call has been passed on. Most of what passes is known not to be it without being read.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::{self, Finder};

use crate::jsonrpc::{self, Id, Message};
use crate::mcp::ESCAPED_ASCII;
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
    if outcome(message).is_none() {
        return false;
    }
    match jsonrpc::split_batch(message) {
        Ok(members) => members.iter().any(|member| is_response(member.get().as_bytes(), id)),
        Err(_) => is_response(message, id),
    }
}

/// Whether one of these whole events answers a request. Only those around one of the words are read. Where the chunk is one
/// plain message, its data are given.
pub(super) fn chunk_answers(chunk: &Bytes, message: Option<&[u8]>, id: &Id) -> bool {
    // What begins with its method is no response, whatever follows.
    if message.is_some_and(|data| data.starts_with(b"{\"jsonrpc\":\"2.0\",\"method\":")) {
        return false;
    }
    let mut from = 0;
    while let Some(place) = chunk.get(from..).and_then(outcome).map(|place| from + place) {
        // Where lines end with CR LF there may be others between these bounds, but never half of one.
        let start = chunk.get(from..place).and_then(|before| memmem::rfind(before, b"\n\n"));
        let start = start.map_or(from, |before| from + before + 2);
        let end = chunk.get(place..).and_then(|after| memmem::find(after, b"\n\n"));
        let end = end.map_or(chunk.len(), |after| place + after + 2);
        if events_answer(chunk.slice(start..end), id) {
            return true;
        }
        from = end;
    }
    false
}

fn events_answer(events: Bytes, id: &Id) -> bool {
    let mut framer = Framer::new(events.len());
    framer.push(events);
    std::iter::from_fn(|| framer.next_frame().ok().flatten())
        .any(|frame| Event::parse(&frame).data.is_some_and(|data| answers(&data, id)))
}

/// Where one of the words stands that no response is without; the last is how one of them may be spelled.
fn outcome(bytes: &[u8]) -> Option<usize> {
    // Made once: making one costs more than searching an event.
    static WORDS: LazyLock<[Finder<'static>; 3]> =
        LazyLock::new(|| ["\"result\"", "\"error\"", ESCAPED_ASCII].map(Finder::new));
    WORDS.iter().filter_map(|word| word.find(bytes)).min()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_other_events() {
        let answer = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
        let others = [
            r#"{"jsonrpc":"2.0","method":"x","params":{"result":1,"error":2}}"#,
            r#"{"jsonrpc":"2.0","id":8,"error":{}}"#,
            r#"{"jsonrpc":"2.0","method":"y"}"#,
        ];
        let id = Id::number(7);
        for (message, is_answer) in others.map(|other| (other, false)).into_iter().chain([
            (answer, true),
            (r#"{"id":7,"result":{},"jsonrpc":"2.0"}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"re\u0073ult":{}}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"\u0065rror":{"code":1,"message":""}}"#, true),
            // One of its own, whatever else it claims to be.
            (r#"{"jsonrpc":"2.0","method":"x","id":7,"result":{}}"#, false),
        ]) {
            let chunk = sse::write_event(None, message.as_bytes());
            assert_eq!(chunk_answers(&chunk, sse::plain_message(&chunk), &id), is_answer, "{message}");
            assert_eq!(is_response(message.as_bytes(), &id), is_answer, "{message}");
        }
        for end in ["\n", "\r\n"] {
            let event = |data: &str| format!("event: message{end}data: {data}{end}{end}");
            let split = format!("data: {{\"jsonrpc\":\"2.0\",{end}data: \"id\":7,\"result\":{{}}}}{end}{end}");
            let before: String = others.map(event).concat();
            for (after, is_answered) in [(String::new(), false), (event(answer), true), (split, true)] {
                for chunk in
                    [format!("{before}{after}{before}"), format!("{after}{before}"), format!("{before}{after}")]
                {
                    let chunk = Bytes::from(chunk);
                    assert_eq!(chunk_answers(&chunk, sse::plain_message(&chunk), &id), is_answered, "{chunk:?}");
                }
            }
        }
    }
}
