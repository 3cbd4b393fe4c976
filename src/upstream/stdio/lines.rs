//! Cuts a byte stream into lines in bounded memory.
//!
//! Works on bytes: a character that is split over two reads is never looked at before its line is whole. A line that is
//! too long is given up at the limit, not at its end, which may never come.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much is asked for in one read; what a pipe holds on most systems.
const CHUNK: usize = 64 * 1024;
/// Shorter lines are copied out, so that a kept message doesn't keep the buffer that it came in.
const COPIED: usize = 64 * 1024;

/// A piece of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole line without its end.
    Line(Bytes),
    /// The head of a line that is too long. Its rest is skipped.
    Cut(Bytes),
}

/// Lines of at most `max` bytes.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end, so that a slow writer is not scanned again and again.
    scanned: usize,
    max: usize,
    skipping: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(source: R, max: usize) -> Self {
        Self { source, buffer: BytesMut::new(), scanned: 0, max, skipping: false }
    }

    /// The next line; `None` at the end of the stream, where a last line needs no line end. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.cut() {
                return Ok(Some(frame));
            }
            self.buffer.reserve(CHUNK);
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                return Ok(self.rest());
            }
        }
    }

    /// The stream itself, to read it without looking.
    pub(super) fn into_source(self) -> R {
        self.source
    }

    fn cut(&mut self) -> Option<Frame> {
        loop {
            let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', unseen) else {
                return self.overflow();
            };
            let line = self.take(self.scanned + at);
            self.buffer.advance(1);
            if !std::mem::take(&mut self.skipping) {
                return Some(self.judge(line));
            }
        }
    }

    /// What to do while a line has no end yet.
    fn overflow(&mut self) -> Option<Frame> {
        self.scanned = self.buffer.len();
        if self.skipping {
            self.clear();
            return None;
        }
        // One byte more than the limit may be the first half of `\r\n`.
        if self.buffer.len() <= self.max.saturating_add(1) {
            return None;
        }
        let head = self.take(self.max);
        self.clear();
        self.skipping = true;
        Some(Frame::Cut(head))
    }

    fn rest(&mut self) -> Option<Frame> {
        let line = self.take(self.buffer.len());
        (!line.is_empty() && !self.skipping).then(|| self.judge(line))
    }

    fn judge(&self, mut line: Bytes) -> Frame {
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.max {
            line.truncate(self.max);
            return Frame::Cut(line);
        }
        Frame::Line(line)
    }

    fn take(&mut self, length: usize) -> Bytes {
        self.scanned = 0;
        if length >= COPIED {
            return self.buffer.split_to(length).freeze();
        }
        let line = Bytes::copy_from_slice(self.buffer.get(..length).unwrap_or_default());
        self.buffer.advance(length);
        line
    }

    /// Forgets what was read, and the memory that a huge line took.
    fn clear(&mut self) {
        self.buffer = BytesMut::new();
        self.scanned = 0;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn line(text: &str) -> Option<Frame> {
        Some(Frame::Line(Bytes::copy_from_slice(text.as_bytes())))
    }

    #[tokio::test]
    async fn cuts_at_line_ends_of_either_kind() {
        let mut lines = Lines::new(&b"one\r\ntwo\n\nlast"[..], 100);
        for expected in ["one", "two", "", "last"] {
            assert_eq!(lines.next().await.unwrap(), line(expected));
        }
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_limit_is_exact_and_the_next_line_is_whole() {
        let mut lines = Lines::new(&b"12345\r\n123456\n1234567\nok\n"[..], 5);
        assert_eq!(lines.next().await.unwrap(), line("12345"));
        for _ in 0..2 {
            assert_eq!(lines.next().await.unwrap(), Some(Frame::Cut(Bytes::from_static(b"12345"))));
        }
        assert_eq!(lines.next().await.unwrap(), line("ok"));
    }

    #[tokio::test]
    async fn an_endless_line_is_cut_and_skipped_in_bounded_memory() {
        let (mut writer, reader) = tokio::io::duplex(1024);
        let mut lines = Lines::new(reader, 1000);
        let write = async {
            for _ in 0..10_000 {
                writer.write_all(&[b'x'; 1000]).await.unwrap();
            }
            writer.write_all(b"\nafter\n").await.unwrap();
        };
        let read = async {
            assert_eq!(lines.next().await.unwrap(), Some(Frame::Cut(Bytes::from(vec![b'x'; 1000]))));
            assert_eq!(lines.next().await.unwrap(), line("after"));
            assert!(lines.buffer.capacity() <= 4 * CHUNK, "{}", lines.buffer.capacity());
        };
        tokio::join!(write, read);
    }

    #[tokio::test]
    async fn a_character_split_over_reads_stays_whole() {
        let text = "{\"text\":\"漢字 🦀 é\"}";
        let (mut writer, reader) = tokio::io::duplex(1);
        let mut lines = Lines::new(reader, 100);
        let write = async {
            writer.write_all(text.as_bytes()).await.unwrap();
            writer.write_all(b"\n").await.unwrap();
        };
        let (read, ()) = tokio::join!(lines.next(), write);
        assert_eq!(read.unwrap(), line(text));
    }

    #[tokio::test]
    async fn a_long_line_is_passed_without_a_copy_limit() {
        let long = vec![b'y'; 3 * 1024 * 1024];
        let mut input = long.clone();
        input.extend_from_slice(b"\nshort\n");
        let mut lines = Lines::new(&input[..], 4 * 1024 * 1024);
        assert_eq!(lines.next().await.unwrap(), Some(Frame::Line(Bytes::from(long))));
        assert_eq!(lines.next().await.unwrap(), line("short"));
    }
}
