//! Each reader gets the message that it is, and holds no more of it than a piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::*;
use crate::sse;
use crate::task::outline::{Outline, Outliner};

/// Text that is handed out in pieces, each counted until nobody has it any more.
struct Counted {
    text: Arc<[u8]>,
    piece: usize,
    at: usize,
    held: Arc<AtomicUsize>,
    /// Where it turns out to be spoilt, if it is.
    spoilt_at: usize,
}

struct Held(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

#[async_trait]
impl Pieces for Counted {
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let end = (self.at + self.piece).min(self.text.len());
        if end > self.spoilt_at {
            return Err(StoreError::Spoilt("another checksum".into()));
        }
        let piece = self.text[std::mem::replace(&mut self.at, end)..end].to_vec();
        if piece.is_empty() {
            return Ok(None);
        }
        self.held.fetch_add(piece.len(), Ordering::SeqCst);
        Ok(Some(Bytes::from_owner(Held(piece, Arc::clone(&self.held)))))
    }
}

const KIB: usize = 1 << 10;

fn outline(text: &str) -> Outline {
    let mut outliner = Outliner::new("mark");
    outliner.push(text.as_bytes());
    outliner.finish().unwrap()
}

/// A result with two large values, and lines in between.
fn result(size: usize) -> String {
    let half = "x".repeat(size / 2);
    format!("{{\"content\":[\"{half}\",\n 1],\r\n\"other\" :\"{half}\",\"isError\":false\r}}")
}

fn message(text: &str, piece: usize, held: &Arc<AtomicUsize>, spoilt_at: usize) -> Streamed {
    let outline = outline(text);
    let message = Bytes::from(format!("{{\"id\":7,\"result\":{}}}", outline.text()));
    let pieces = Counted { text: text.as_bytes().into(), piece, at: 0, held: Arc::clone(held), spoilt_at };
    Streamed::new(TaskId::random(), &message, Large { outline, pieces: Box::new(pieces) }).unwrap()
}

#[tokio::test]
async fn it_is_the_message_byte_for_byte() {
    let (text, held) = (result(100 * KIB), Arc::default());
    let whole = format!("{{\"id\":7,\"result\":{text}}}");
    for piece in [1000, 64 * KIB, 100 * KIB / 2 + 14, 1000 * KIB] {
        let body = Streaming::of(message(&text, piece, &held, usize::MAX));
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        assert!(body.collect().await.unwrap().to_bytes() == whole, "{piece}");
        for id in [None, Some("e1")] {
            let event = Streaming::of(message(&text, piece, &held, usize::MAX).into_event(id));
            let expected = sse::write_event(id, whole.as_bytes());
            assert!(event.collect().await.unwrap().to_bytes() == expected, "{piece}");
        }
    }
    assert_eq!(held.load(Ordering::SeqCst), 0);
}

/// What is handed out and not taken is one piece for each reader, however large the result and many the readers are.
#[tokio::test]
async fn slow_readers_hold_a_piece_each() {
    const READERS: usize = 20;
    let (text, held): (String, Arc<AtomicUsize>) = (result(16 << 20), Arc::default());
    let mut readers: Vec<Streaming> =
        (0..READERS).map(|_| Streaming::of(message(&text, 64 * KIB, &held, usize::MAX))).collect();
    let (mut most, mut taken) = (0, 0);
    while !readers.is_empty() {
        let mut left = Vec::new();
        for mut reader in readers {
            if let Some(frame) = reader.frame().await {
                most = most.max(held.load(Ordering::SeqCst));
                taken += frame.unwrap().into_data().unwrap().len();
                left.push(reader);
            }
        }
        readers = left;
    }
    assert_eq!(taken, READERS * (text.len() + "{\"id\":7,\"result\":}".len()));
    assert!(most <= READERS * 64 * KIB, "{most}");
    assert_eq!(held.load(Ordering::SeqCst), 0);
}

/// Also where only the very last bytes, which are not a part of what is large, are spoilt.
#[tokio::test]
async fn what_is_spoilt_breaks_off_and_never_looks_whole() {
    let (text, held) = (result(200 * KIB), Arc::default());
    for spoilt_at in [0, 100 * KIB, text.len() - 1] {
        let mut body = Streaming::of(message(&text, 64 * KIB, &held, spoilt_at));
        let length = body.size_hint().exact().unwrap();
        let mut taken = 0;
        let broken = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => taken += frame.into_data().unwrap().len() as u64,
                Err(error) => break error,
            }
        };
        assert!(taken < length && matches!(broken, Error::Lost(_)), "{spoilt_at}");
        assert!(body.is_end_stream() && body.frame().await.is_none());
        let mut event = message(&text, 64 * KIB, &held, spoilt_at).into_event(None);
        let mut taken = Vec::new();
        while let Ok(Some(part)) = event.next().await {
            taken.extend_from_slice(&part);
        }
        assert!(event.next().await.unwrap().is_none());
        assert!(!taken.windows(2).any(|end| end == b"\n\n"), "{spoilt_at}");
    }
}
