//! Server-sent events as bytes: cutting a stream into events, reading one, writing one. Both sides of the gateway use it.
//!
//! Events are cut on bytes and read whole, so no character is ever split, and an event that needs no change is passed on
//! as the bytes that came. The format is the HTML standard's, section 9.2.6 "Interpreting an event stream".

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr_iter, memchr2};

/// A comment that keeps a silent connection open and means nothing to the reader.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

/// An event was longer than the stream's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct TooLong {
    /// The limit in bytes.
    pub limit: usize,
}

/// Cuts a byte stream into frames: the bytes of one event with the blank line that ends it.
///
/// Memory is bounded by one frame of at most `limit` bytes and the chunk in hand. What has no end when the stream does
/// is no event and is dropped, as the standard says.
#[derive(Debug)]
pub struct Framer {
    chunk: Bytes,
    partial: BytesMut,
    /// How much of `chunk` has been looked at.
    seen: usize,
    /// Nothing but line ends stands since the last one: the next line end makes a blank line.
    line_is_empty: bool,
    /// The last byte was a CR, so that a LF after it ends no line of its own.
    after_cr: bool,
    limit: usize,
}

impl Framer {
    /// A framer for one stream whose events may have `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { chunk: Bytes::new(), partial: BytesMut::new(), seen: 0, line_is_empty: true, after_cr: false, limit }
    }

    /// Adds bytes. Take every frame before the next push, or the rest is copied.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
            self.seen = 0;
        } else {
            self.partial.extend_from_slice(&std::mem::replace(&mut self.chunk, chunk));
            self.seen = 0;
        }
    }

    /// Whether the stream stands between two events.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.partial.is_empty() && self.chunk.is_empty()
    }

    /// Reads past a chunk of [`plain_events`], where the stream stands between two events.
    pub fn pass(&mut self, chunk: &[u8]) -> Option<bool> {
        let may_pass = self.at_boundary() && chunk.len() <= self.limit;
        let has_messages = if may_pass { plain_events(chunk)? } else { return None };
        self.after_cr = false;
        Some(has_messages)
    }

    /// Reads past a chunk that is one [`plain_message`], where the stream stands between two events; gives its data.
    pub fn pass_message<'c>(&mut self, chunk: &'c [u8]) -> Option<&'c [u8]> {
        let may_pass = self.at_boundary() && chunk.len() <= self.limit;
        let data = may_pass.then(|| plain_message(chunk)).flatten()?;
        self.after_cr = false;
        Some(data)
    }

    /// The next whole frame, if its end has come. Frames that hold nothing but line ends are left out.
    ///
    /// # Errors
    /// [`TooLong`]; the stream can't be read further.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, TooLong> {
        if self.chunk.is_empty() {
            return Ok(None);
        }
        while let Some(end) = self.find_end() {
            let head = self.chunk.split_to(end);
            self.seen = 0;
            let frame = if self.partial.is_empty() {
                head
            } else {
                self.partial.extend_from_slice(&head);
                self.partial.split().freeze()
            };
            if frame.len() > self.limit {
                return Err(TooLong { limit: self.limit });
            }
            if frame.iter().any(|byte| !matches!(byte, b'\r' | b'\n')) {
                return Ok(Some(frame));
            }
        }
        self.partial.extend_from_slice(&self.chunk);
        self.chunk = Bytes::new();
        self.seen = 0;
        if self.partial.len() > self.limit { Err(TooLong { limit: self.limit }) } else { Ok(None) }
    }

    /// Looks for the end of a blank line in the chunk; the place just after it.
    fn find_end(&mut self) -> Option<usize> {
        if self.after_cr && self.seen == 0 && self.chunk.first() == Some(&b'\n') {
            // The second half of a CR LF that was cut, or that ended the frame before.
            if self.partial.is_empty() {
                self.chunk.advance(1);
            } else {
                self.seen = 1;
            }
            self.after_cr = false;
        } else if !self.chunk.is_empty() && self.seen == 0 {
            self.after_cr = false;
        }
        loop {
            let rest = self.chunk.get(self.seen..)?;
            let Some(offset) = memchr2(b'\n', b'\r', rest) else {
                self.line_is_empty &= rest.is_empty();
                self.seen = self.chunk.len();
                return None;
            };
            let blank = self.line_is_empty && offset == 0;
            let is_cr = rest.get(offset) == Some(&b'\r');
            let mut end = self.seen + offset + 1;
            self.after_cr = false;
            if is_cr {
                match self.chunk.get(end) {
                    Some(b'\n') => end += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.seen = end;
            self.line_is_empty = true;
            if blank {
                return Some(end);
            }
        }
    }
}

/// One event's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field; `None` means `message`.
    pub name: Option<Cow<'a, str>>,
    /// The `data` lines joined by line feeds; `None` when there is no such line.
    pub data: Option<Cow<'a, [u8]>>,
    /// The `id` field; an empty one clears the reader's last event id.
    pub id: Option<Cow<'a, str>>,
    /// The `retry` field in milliseconds.
    pub retry: Option<u64>,
}

impl<'a> Event<'a> {
    /// Reads a frame. Unknown fields and comments are skipped, as the standard says.
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Self {
        let mut event = Self::default();
        for line in lines(frame.strip_prefix(b"\xef\xbb\xbf").unwrap_or(frame)) {
            let (field, value) = field(line);
            match field {
                b"data" => match &mut event.data {
                    None => event.data = Some(Cow::Borrowed(value)),
                    Some(data) => {
                        let data = data.to_mut();
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                },
                b"id" if memchr(0, value).is_none() => event.id = Some(String::from_utf8_lossy(value)),
                b"event" => event.name = Some(String::from_utf8_lossy(value)),
                b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                    event.retry = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                }
                _ => {}
            }
        }
        event
    }

    /// Whether a message is in it: it has data that is not empty and is of the default type.
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.data.as_ref().is_some_and(|data| !data.is_empty())
            && self.name.as_ref().is_none_or(|name| name.is_empty() || name == "message")
    }
}

/// Whether bytes that begin between two events are whole events in the plainest form, which nearly all servers write:
/// messages and comments without ids, names or retry times. Says then whether there is a message among them; such bytes
/// can be passed on unread.
#[must_use]
pub fn plain_events(bytes: &[u8]) -> Option<bool> {
    if plain_message(bytes).is_some() {
        return Some(true);
    }
    if !bytes.ends_with(b"\n\n") && !bytes.ends_with(b"\n\r\n") {
        return None;
    }
    let has_cr = memchr(b'\r', bytes).is_some();
    let mut has_messages = false;
    let mut start = 0;
    for end in memchr_iter(b'\n', bytes) {
        let line = bytes.get(start..end)?;
        start = end + 1;
        match line.strip_suffix(b"\r").unwrap_or(line) {
            [] | [b':', ..] | b"event: message" => {}
            // More than the space after the colon.
            [b'd', b'a', b't', b'a', b':', _, _, ..] => has_messages = true,
            _ => return None,
        }
        // A CR inside a line would end it.
        if has_cr && memchr(b'\r', line).is_some_and(|place| place + 1 < line.len()) {
            return None;
        }
    }
    Some(has_messages)
}

/// The data of bytes that are one message and nothing else, in the form in which nearly all come: one line of data, with or
/// without its name.
#[must_use]
pub fn plain_message(bytes: &[u8]) -> Option<&[u8]> {
    let field = bytes.strip_prefix(b"event: message\n").unwrap_or(bytes);
    let data = field.strip_prefix(b"data: ")?.strip_suffix(b"\n\n")?;
    (!data.is_empty() && memchr2(b'\n', b'\r', data).is_none()).then_some(data)
}

/// The data of the last message in whole events.
#[must_use]
pub fn last_message(events: Bytes) -> Option<Vec<u8>> {
    let mut framer = Framer::new(events.len());
    framer.push(events);
    let mut last = None;
    while let Ok(Some(frame)) = framer.next_frame() {
        let event = Event::parse(&frame);
        if event.has_message() {
            last = event.data.map(Cow::into_owned);
        }
    }
    last
}

/// Writes an event with an id and data; line ends inside the data become several `data` lines.
#[must_use]
pub fn write_event(id: Option<&str>, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 16 + id.map_or(0, |id| id.len() + 5));
    push_event(&mut out, id, data);
    out.freeze()
}

/// The same, after what there is already.
pub fn push_event(out: &mut BytesMut, id: Option<&str>, data: &[u8]) {
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\n");
    }
    let mut rest = data;
    loop {
        let end = memchr2(b'\n', b'\r', rest);
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
        match after {
            [] => break,
            [b'\r', b'\n', next @ ..] | [_, next @ ..] => rest = next,
        }
    }
    out.extend_from_slice(b"\n");
}

/// Writes an event whose data comes in pieces: the same bytes as [`write_event`] writes of all of them.
#[derive(Debug)]
pub struct EventWriter {
    head: Option<Bytes>,
    /// The last piece ended with a CR, so that a LF after it ends no line of its own.
    after_cr: bool,
    tail: Option<Bytes>,
}

impl EventWriter {
    /// Begins an event with that id.
    #[must_use]
    pub fn new(id: Option<&str>) -> Self {
        let head = id.map_or_else(|| "data: ".to_owned(), |id| format!("id: {id}\ndata: "));
        Self { head: Some(head.into()), after_cr: false, tail: Some(Bytes::from_static(b"\n\n")) }
    }

    /// What comes before the first piece, once.
    pub fn head(&mut self) -> Option<Bytes> {
        self.head.take()
    }

    /// A piece as it stands in the event.
    pub fn lines(&mut self, mut piece: Bytes) -> Bytes {
        if piece.is_empty() {
            return piece;
        }
        if std::mem::take(&mut self.after_cr) && piece.first() == Some(&b'\n') {
            piece.advance(1);
        }
        if memchr2(b'\n', b'\r', &piece).is_none() {
            return piece;
        }
        self.after_cr = piece.last() == Some(&b'\r');
        let mut out = BytesMut::with_capacity(piece.len() + 64);
        while let Some(end) = memchr2(b'\n', b'\r', &piece) {
            out.extend_from_slice(&piece.split_to(end));
            out.extend_from_slice(b"\ndata: ");
            piece.advance(if piece.starts_with(b"\r\n") { 2 } else { 1 });
        }
        out.extend_from_slice(&piece);
        out.freeze()
    }

    /// What comes after the last piece, once. Without it there is no event.
    pub fn tail(&mut self) -> Option<Bytes> {
        self.tail.take()
    }
}

/// Writes an event that gives an id and says how soon to come back, and has no message (2025-11-25 transports, "Sending
/// Messages to the Server" 6: the server SHOULD prime the client to reconnect).
#[must_use]
pub fn write_priming(id: &str, retry_ms: u64) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {retry_ms}\ndata: \n\n"))
}

/// The frame with `prefix` before the value of each `id` field that is not empty; the same bytes when there is none.
#[must_use]
pub fn prefix_ids(frame: Bytes, prefix: &str) -> Bytes {
    if !lines(&frame).any(|line| field(line).0 == b"id") {
        return frame;
    }
    let mut out = BytesMut::with_capacity(frame.len() + prefix.len() + 2);
    for line in lines(&frame) {
        let (name, value) = field(line);
        if name == b"id" && !value.is_empty() {
            out.extend_from_slice(b"id: ");
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(value);
        } else {
            out.extend_from_slice(line);
        }
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"\n");
    out.freeze()
}

/// A frame's lines without their ends; blank ones left out.
fn lines(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = frame;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            if !line.is_empty() {
                return Some(line);
            }
        }
        None
    })
}

/// A line's field name and value; a comment has an empty name.
fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b':', line) {
        None => (line, &[]),
        Some(colon) => {
            let (name, value) = line.split_at(colon);
            let value = value.get(1..).unwrap_or_default();
            (name, value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

#[cfg(test)]
mod tests;
