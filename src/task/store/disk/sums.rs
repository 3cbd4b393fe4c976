//! Checksums. The library has some of its own, and looks at them only after a crash: what the disk spoils later it reads and
//! hands out. So all that is handed out has one here, which is held against what was read, every time.

use ring::digest::{Context, SHA256};

use super::super::StoreError;
use super::halt::Halt;
use crate::task::{Outcome, Task, codec};

/// A digest, cut: it is against faults, not against people.
type Sum = [u8; 8];

/// Stands before a record with a sum. Version 1 wrote records without, which begin with a brace.
const RECORD: u8 = 1;
/// In the kind of an outcome: it has a sum. Version 1 wrote none.
const SUMMED: u8 = 0x80;

/// What was read is not what was written.
#[derive(Debug, thiserror::Error)]
#[error("the disk has changed what was written: its checksum is another")]
struct Spoilt;

fn spoilt() -> Halt {
    Halt::Refused(StoreError::Spoilt(Spoilt.into()))
}

fn sum(parts: [&[u8]; 2]) -> Sum {
    let mut context = Context::new(&SHA256);
    parts.into_iter().for_each(|part| context.update(part));
    cut(context)
}

fn cut(context: Context) -> Sum {
    context.finish().as_ref().first_chunk().copied().unwrap_or_default()
}

/// The sum of a text that comes in pieces.
#[derive(Clone)]
pub(super) struct Summing(Context);

impl Summing {
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }
}

/// A record as it is kept.
pub(super) fn record(task: &Task) -> Vec<u8> {
    let text = codec::encode(task);
    let sum = sum([&[RECORD], text.as_bytes()]);
    [&[RECORD], &sum[..], text.as_bytes()].concat()
}

/// The record that was kept.
pub(super) fn read_record(kept: &[u8]) -> Result<Task, Halt> {
    let Some((&RECORD, rest)) = kept.split_first() else { return Ok(codec::decode(kept)?) };
    let (expected, text) = rest.split_first_chunk().ok_or_else(spoilt)?;
    if sum([&[RECORD], text]) != *expected {
        return Err(spoilt());
    }
    Ok(codec::decode(text)?)
}

/// What the next holder of a call is told.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Luggage {
    Draft = b'd',
    Trail = b't',
}

impl Luggage {
    /// As it is kept: after its sum.
    pub(super) fn kept(self, text: &str) -> Vec<u8> {
        [&self.sum(text.as_bytes())[..], text.as_bytes()].concat()
    }

    /// What was kept.
    pub(super) fn read(self, kept: &[u8]) -> Result<&str, Halt> {
        let (expected, text) = kept.split_first_chunk().ok_or_else(spoilt)?;
        if self.sum(text) != *expected {
            return Err(spoilt());
        }
        std::str::from_utf8(text).map_err(|_| spoilt())
    }

    fn sum(self, text: &[u8]) -> Sum {
        sum([&[self as u8], text])
    }
}

/// What stands before the text of an outcome.
#[derive(Debug)]
pub(super) struct Head {
    kind: u8,
    /// Of the whole text, in bytes.
    pub(super) length: u64,
    sum: Option<Sum>,
}

impl Head {
    /// That of an outcome with this text.
    pub(super) fn of(outcome: &Outcome, text: &[u8]) -> Self {
        let (kind, length) = (codec::kind_of(outcome) | SUMMED, text.len() as u64);
        Self { kind, length, sum: Some(sum([&front(kind, length), text])) }
    }

    /// As bytes, with what is to stand beside it.
    pub(super) fn with(&self, beside: &[u8]) -> Vec<u8> {
        let sum = self.sum.as_ref().map_or(&[][..], |sum| &sum[..]);
        [&front(self.kind, self.length), sum, beside].concat()
    }

    /// The head, and what stands beside it: the text where that is small.
    pub(super) fn read(kept: &[u8]) -> Result<(Self, &[u8]), Halt> {
        let cut = || Halt::inconsistent("an outcome is cut");
        let ([kind, length @ ..], rest) = kept.split_first_chunk::<9>().ok_or_else(cut)?;
        let length = u64::from_be_bytes(*length);
        if kind & SUMMED == 0 {
            return Ok((Self { kind: *kind, length, sum: None }, rest));
        }
        let (sum, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        Ok((Self { kind: *kind, length, sum: Some(*sum) }, rest))
    }

    /// Whether it is a result's with a sum.
    pub(super) fn is_result(&self) -> bool {
        self.sum.is_some() && self.kind & !SUMMED == codec::kind_of(&Outcome::Result("".into()))
    }

    /// Begins the sum of its text.
    pub(super) fn summing(&self) -> Summing {
        let mut context = Context::new(&SHA256);
        context.update(&front(self.kind, self.length));
        Summing(context)
    }

    /// Whether a text of that length and sum is its own.
    pub(super) fn check(&self, length: u64, summing: Summing) -> Result<(), Halt> {
        if length != self.length {
            return Err(Halt::inconsistent("a piece of an outcome is missing"));
        }
        if self.sum.is_some_and(|expected| cut(summing.0) != expected) { Err(spoilt()) } else { Ok(()) }
    }

    /// The outcome, where this is its text.
    pub(super) fn outcome(&self, text: &[u8]) -> Result<Outcome, Halt> {
        let mut summing = self.summing();
        summing.add(text);
        self.check(text.len() as u64, summing)?;
        Ok(codec::outcome(self.kind & !SUMMED, text)?)
    }
}

/// How long the text is that stands beside a head, by what is there: what the head says may be spoilt.
pub(super) fn beside(kept: &[u8]) -> u64 {
    let Some(([kind, length @ ..], rest)) = kept.split_first_chunk::<9>() else { return 0 };
    let (bare, summed) = (rest.len() as u64, (rest.len() as u64).saturating_sub(size_of::<Sum>() as u64));
    // The kind may be spoilt, too: then the length tells.
    let is_bare = kind & SUMMED == 0 && u64::from_be_bytes(*length) != summed;
    if is_bare { bare } else { summed }
}

fn front(kind: u8, length: u64) -> [u8; 9] {
    let mut front = [kind; 9];
    let (_, rest) = front.split_at_mut(1);
    rest.copy_from_slice(&length.to_be_bytes());
    front
}
