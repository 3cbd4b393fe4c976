//! A large result without its large values: what is said of it is decided by the rest, so that it can be shown without being
//! held.
//!
//! The result's own text is read once, piece by piece. Each member's value that is large is replaced by a mark; what comes of it
//! is a small result, which dialects render like any other. Where a mark is afterwards, there the value goes as it is. A
//! rendering that has looked into a mark, or changed one, can't be used, and the result has to be read whole.

use std::ops::Range;

use memchr::memchr2;
use memchr::memmem;

use crate::jsonrpc::Object;

/// Members that decide what is shown of others, or are shown only in part.
const LOOKED_INTO: [&str; 2] = ["_meta", "resultType"];

/// Values that are longer are left out, in bytes.
const LARGE: usize = 16 << 10;
/// The most that may be left, in bytes.
const MOST: usize = 256 << 10;

/// A result without its large values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// With marks in their places.
    text: Box<str>,
    mark: Box<str>,
    values: Vec<Value>,
}

/// A value that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    /// Where it is in the result.
    place: Range<u64>,
    /// What it begins with: an outline has values of the same kind.
    first: u8,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part<'a> {
    /// This text.
    Text(&'a [u8]),
    /// These bytes of the result.
    Value(Range<u64>),
}

impl Outline {
    /// The result with marks, as JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether nothing was left out.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.values.is_empty()
    }

    /// What was made of the outline, with the values in the places of their marks; in the order of the result, and with a text
    /// at its end. `None` where a mark was changed.
    #[must_use]
    pub fn fill<'a>(&self, made: &'a [u8]) -> Option<Vec<Part<'a>>> {
        let (mut parts, mut values, mut from) = (Vec::new(), self.values.iter().enumerate(), 0);
        for place in memmem::find_iter(made, self.mark.as_bytes()) {
            let (number, value) = values.by_ref().find(|(number, value)| {
                let (before, after) = value.mark(*number);
                let is_before = made.get(from..place).is_some_and(|text| text.ends_with(before));
                let rest = made.get(place + self.mark.len()..);
                is_before && rest.is_some_and(|rest| rest.starts_with(after.as_bytes()))
            })?;
            let (before, after) = value.mark(number);
            parts.push(Part::Text(made.get(from..place - before.len())?));
            parts.push(Part::Value(value.place.clone()));
            from = place + self.mark.len() + after.len();
        }
        parts.push(Part::Text(made.get(from..)?));
        Some(parts)
    }
}

impl Value {
    /// What stands before and after the mark's word.
    fn mark(&self, number: usize) -> (&'static [u8], String) {
        match self.first {
            b'{' => (b"{\"", format!(".{number}\":0}}")),
            b'[' => (b"[\"", format!(".{number}\"]")),
            _ => (b"\"", format!(".{number}\"")),
        }
    }
}

/// Makes an outline of a result that comes in pieces.
#[derive(Debug)]
pub struct Outliner {
    mark: Box<str>,
    large: usize,
    /// How much has come.
    at: u64,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    /// A member's name is over, and its value is next.
    is_due: bool,
    value: Option<Reading>,
    text: Vec<u8>,
    values: Vec<Value>,
    /// It is no object, or too much is left of it.
    is_vain: bool,
}

/// A member's value that is being read.
#[derive(Debug)]
struct Reading {
    value: Value,
    /// Where it stands in the outline.
    from: usize,
    /// It is not kept.
    is_large: bool,
    /// Spaces after it, once it is not kept.
    spaces: Vec<u8>,
}

impl Outliner {
    /// For one result. The mark is a word, fit for a JSON string as it is, that whoever wrote the result does not know.
    #[must_use]
    pub fn new(mark: &str) -> Self {
        Self {
            mark: mark.into(),
            large: LARGE,
            at: 0,
            depth: 0,
            in_string: false,
            is_escaped: false,
            is_due: false,
            value: None,
            text: Vec::new(),
            values: Vec::new(),
            is_vain: false,
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, mut piece: &[u8]) {
        while let (Some(first), false) = (piece.first(), self.is_vain) {
            let taken = if self.in_string { self.string(piece) } else { self.structure(*first) };
            let (now, rest) = piece.split_at(taken.min(piece.len()));
            self.keep(now);
            self.at += now.len() as u64;
            piece = rest;
        }
    }

    /// The outline; `None` for what is no object, has too much that is small, or metadata that are large: dialects take names out
    /// of those, and would find none in a mark.
    #[must_use]
    pub fn finish(self) -> Option<Outline> {
        let is_whole = !self.is_vain && self.depth == 0 && !self.in_string && self.value.is_none();
        let text = String::from_utf8(self.text).ok().filter(|text| is_whole && text.trim_start().starts_with('{'))?;
        let is_hidden = |(name, value): (&str, &str)| LOOKED_INTO.contains(&name) && value.contains(&*self.mark);
        if !self.values.is_empty() && Object::parse(&text).ok()?.iter().any(is_hidden) {
            return None;
        }
        Some(Outline { text: text.into(), mark: self.mark, values: self.values })
    }

    /// How much of the piece belongs to the string: it is kept in one.
    fn string(&mut self, piece: &[u8]) -> usize {
        let taken = if std::mem::take(&mut self.is_escaped) {
            1
        } else {
            let end = memchr2(b'"', b'\\', piece);
            match end.and_then(|end| piece.get(end)) {
                Some(b'"') => self.in_string = false,
                Some(_) => self.is_escaped = true,
                None => {}
            }
            end.map_or(piece.len(), |end| end + 1)
        };
        self.reaches(self.at + taken as u64);
        taken
    }

    /// Looks at a byte outside of strings.
    fn structure(&mut self, byte: u8) -> usize {
        if byte.is_ascii_whitespace() {
            return 1;
        }
        let is_member = self.depth == 1;
        if is_member && matches!(byte, b',' | b'}') {
            self.end_value();
        }
        if std::mem::take(&mut self.is_due) {
            let value = Value { place: self.at..self.at, first: byte };
            self.value = Some(Reading { value, from: self.text.len(), is_large: false, spaces: Vec::new() });
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => self.depth -= 1,
            b'}' | b']' => self.is_vain = true,
            b':' if is_member && self.value.is_none() => self.is_due = true,
            _ => {}
        }
        self.reaches(self.at + 1);
        1
    }

    /// The value that is being read is no shorter than that.
    fn reaches(&mut self, end: u64) {
        if let Some(reading) = &mut self.value {
            reading.value.place.end = end;
            reading.spaces.clear();
        }
    }

    fn end_value(&mut self) {
        let Some(reading) = self.value.take() else { return };
        if reading.is_large {
            let (before, after) = reading.value.mark(self.values.len());
            for part in [before, self.mark.as_bytes(), after.as_bytes(), &reading.spaces] {
                self.text.extend_from_slice(part);
            }
            self.values.push(reading.value);
        }
    }

    /// Puts bytes that were looked at into the outline, unless they are a large value's.
    fn keep(&mut self, bytes: &[u8]) {
        let is_space = !self.in_string && bytes.iter().all(u8::is_ascii_whitespace);
        match &mut self.value {
            Some(reading) if reading.is_large => {
                if is_space {
                    reading.spaces.extend_from_slice(bytes);
                }
            }
            Some(reading) => {
                self.text.extend_from_slice(bytes);
                if self.text.len() - reading.from > self.large {
                    let length =
                        usize::try_from(reading.value.place.end - reading.value.place.start).unwrap_or(usize::MAX);
                    let spaces = self.text.get(reading.from.saturating_add(length)..).unwrap_or_default();
                    // Spaces alone make no value large.
                    if length > self.large {
                        reading.spaces = spaces.to_vec();
                        reading.is_large = true;
                        self.text.truncate(reading.from);
                    }
                }
            }
            None => self.text.extend_from_slice(bytes),
        }
        let spaces = self.value.as_ref().map_or(0, |reading| reading.spaces.len());
        self.is_vain |= self.text.len() + spaces > MOST;
    }
}

#[cfg(test)]
mod tests;
