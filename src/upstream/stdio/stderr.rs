//! A child's stderr, which goes to the log: shortened, and no more lines than a reader of logs can bear.
//!
//! 2025-11-25 transports, "stdio": what stands there is no sign of an error.

use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::lines::{Frame, Lines};

/// Longer lines are cut.
const LINE: usize = 2048;
/// Lines that are logged in each [`WINDOW`]; more are counted only.
const LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(1);

/// Logs until the stream ends.
pub(super) async fn log<R: AsyncRead + Unpin>(stderr: R) {
    let mut lines = Lines::new(stderr, LINE);
    let mut meter = Meter::new();
    loop {
        let (line, cut) = match lines.next().await {
            Ok(Some(Frame::Line(line))) => (line, false),
            Ok(Some(Frame::Cut(line))) => (line, true),
            Ok(None) | Err(_) => break,
        };
        let admitted = meter.admit(Instant::now());
        if let Some(dropped) = admitted.dropped_before {
            tracing::info!(target: "upstream::stderr", dropped, "lines were left out");
        }
        if admitted.shown {
            tracing::info!(target: "upstream::stderr", cut, "{}", printable(&line));
        }
    }
    if meter.dropped > 0 {
        tracing::info!(target: "upstream::stderr", dropped = meter.dropped, "lines were left out");
    }
}

/// Text of a child's as it may stand in a log, where a carriage return or an escape sequence could overwrite other lines.
pub(super) fn printable(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in String::from_utf8_lossy(text).trim_end().chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Counts the lines of the present window.
#[derive(Debug)]
struct Meter {
    since: Instant,
    shown: u32,
    dropped: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Admitted {
    shown: bool,
    /// How many were left out in the window that has just ended.
    dropped_before: Option<u64>,
}

impl Meter {
    fn new() -> Self {
        Self { since: Instant::now(), shown: 0, dropped: 0 }
    }

    fn admit(&mut self, now: Instant) -> Admitted {
        let mut dropped_before = None;
        if now.duration_since(self.since) >= WINDOW {
            dropped_before = (self.dropped > 0).then_some(self.dropped);
            *self = Self { since: now, shown: 0, dropped: 0 };
        }
        let shown = self.shown < LINES;
        if shown {
            self.shown += 1;
        } else {
            self.dropped += 1;
        }
        Admitted { shown, dropped_before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_the_next_window_says_so() {
        let mut meter = Meter::new();
        let start = Instant::now();
        let shown = (0..250).filter(|_| meter.admit(start).shown).count();
        assert_eq!(shown, 100);
        assert_eq!(meter.admit(start + WINDOW), Admitted { shown: true, dropped_before: Some(150) });
        assert_eq!(meter.admit(start + WINDOW), Admitted { shown: true, dropped_before: None });
    }

    #[test]
    fn what_moves_a_terminal_is_shown_as_text() {
        assert_eq!(printable("ré\tsumé \\n \"x\" \r\n".as_bytes()), r#"ré\tsumé \n "x""#);
        assert_eq!(printable(b"\rfake\x1b[2K\x07\0"), r"\rfake\u{1b}[2K\u{7}\u{0}");
        assert_eq!(printable("\u{85}\u{9b}x\u{9b}2J".as_bytes()), r"\u{85}\u{9b}x\u{9b}2J");
    }

    #[tokio::test]
    async fn an_endless_line_does_not_keep_the_rest_from_being_read() {
        let mut text = vec![b'x'; 10 * LINE];
        text.extend_from_slice(b"\n\xff\xfe not UTF-8\nlast");
        log(&text[..]).await;
    }
}
