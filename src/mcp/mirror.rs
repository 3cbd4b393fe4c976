//! What a request's HTTP headers repeat of its body, so that intermediaries can route without reading it: how values are
//! written and compared, and which arguments a tool asks to be repeated (2026-07-28 transports, "Standard Request
//! Headers" and "Custom Headers from Tool Parameters").

mod annotation;
mod number;

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::jsonrpc::{Object, string_value};

pub use annotation::{InvalidTool, Mirrored, annotations};
use number::Decimal;

/// Before a value that is not plain. In lower case: anything else is a value that only looks like one ("Value Encoding").
const PREFIX: &str = "=?base64?";
/// After it.
const SUFFIX: &str = "?=";

/// A value as it stands in a header: itself where it can, else its bytes in base64 between markers.
#[must_use]
pub fn encode(value: &str) -> Cow<'_, str> {
    let is_safe = value.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) && value.trim_matches(' ') == value;
    let looks_encoded = value.starts_with(PREFIX) && value.ends_with(SUFFIX);
    if is_safe && !looks_encoded {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{PREFIX}{}{SUFFIX}", STANDARD.encode(value)))
}

/// A header's value is not one that may stand there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A character that no field may have, or that has to be encoded.
    #[error("has a character that must be encoded")]
    Character,
    /// Between the markers is no padded standard base64 of UTF-8 text.
    #[error("is not base64 of UTF-8 text, though it is marked as such")]
    Base64,
}

/// The value that a header stands for. A value with one marker alone, or with one in upper case, stands for itself.
///
/// # Errors
/// When it is [`Unreadable`].
pub fn decode(header: &[u8]) -> Result<Cow<'_, str>, Unreadable> {
    let is_field = |byte: &u8| matches!(byte, b'\t' | 0x20..=0x7e);
    let text = std::str::from_utf8(header).map_err(|_| Unreadable::Character)?;
    // RFC 9110 5.5: whitespace around a field's value is no part of it.
    let text = text.trim_matches([' ', '\t']);
    if !text.as_bytes().iter().all(is_field) {
        return Err(Unreadable::Character);
    }
    let Some(encoded) = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else {
        return Ok(Cow::Borrowed(text));
    };
    let bytes = STANDARD.decode(encoded).map_err(|_| Unreadable::Base64)?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Unreadable::Base64)
}

/// An argument (JSON text) as text for a header, not yet encoded; `None` for what has no such form: null, objects, arrays.
#[must_use]
pub fn text_of(argument: &str) -> Option<Cow<'_, str>> {
    match argument.as_bytes().first()? {
        b'"' => string_value(argument),
        b't' | b'f' => Some(Cow::Borrowed(argument)),
        b'-' | b'0'..=b'9' => {
            let integer = Decimal::parse(argument).and_then(|number| number.to_integer());
            Some(integer.map_or(Cow::Borrowed(argument), Cow::Owned))
        }
        _ => None,
    }
}

/// Whether a decoded header's value and an argument (JSON text) are the same. Numbers are, however they are spelled
/// ("Server Validation": `42.0` is 42).
#[must_use]
pub fn agrees(value: &str, argument: &str) -> bool {
    match argument.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => {
            let numbers = (Decimal::parse(value), Decimal::parse(argument));
            matches!(numbers, (Some(value), Some(argument)) if value == argument)
        }
        _ => text_of(argument).is_some_and(|text| text == value),
    }
}

/// A header and the argument that it repeats are not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The header's name.
    pub header: Box<str>,
    /// What is wrong with it.
    pub why: Why,
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There is an argument and no header.
    Missing,
    /// There is a header and no argument.
    Unfounded,
    /// It is there twice: readers of the first and of the last would differ.
    Repeated,
    /// It says something else.
    Different,
    /// It can't be read.
    Unreadable(Unreadable),
}

impl fmt::Display for Mismatch {
    /// Never the values: they may be private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, why } = self;
        match why {
            Why::Missing => write!(f, "the header {header} is missing"),
            Why::Unfounded => write!(f, "the header {header} repeats an argument that is not there"),
            Why::Repeated => write!(f, "the header {header} is there more than once"),
            Why::Different => write!(f, "the header {header} and the argument that it repeats differ"),
            Why::Unreadable(why) => write!(f, "the header {header} {why}"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Checks the headers that a tool asks for against the call's `arguments`. Headers of other names are nobody's concern
/// here ("Server Behavior for Custom Headers").
///
/// # Errors
/// The first [`Mismatch`].
pub fn check<'h, V>(mirrored: &[Mirrored], arguments: Option<&str>, values: impl Fn(&str) -> V) -> Result<(), Mismatch>
where
    V: IntoIterator<Item = &'h [u8]>,
{
    for mirrored in mirrored {
        let mut values = values(&mirrored.header).into_iter();
        let found =
            (values.next(), values.next(), mirrored.argument(arguments).filter(|argument| text_of(argument).is_some()));
        let wrong = match found {
            (_, Some(_), _) => Some(Why::Repeated),
            (None, None, None) => None,
            (None, None, Some(_)) => Some(Why::Missing),
            (Some(_), None, None) => Some(Why::Unfounded),
            (Some(value), None, Some(argument)) => match decode(value) {
                Ok(value) if agrees(&value, &argument) => None,
                Ok(_) => Some(Why::Different),
                Err(unreadable) => Some(Why::Unreadable(unreadable)),
            },
        };
        if let Some(why) = wrong {
            return Err(Mismatch { header: mirrored.header.clone(), why });
        }
    }
    Ok(())
}

/// The headers that a call with these `arguments` carries, as names and values that are fit to be sent.
pub fn headers<'m>(
    mirrored: &'m [Mirrored],
    arguments: Option<&'m str>,
) -> impl Iterator<Item = (&'m str, String)> + 'm {
    mirrored.iter().filter_map(move |mirrored| {
        let argument = mirrored.argument(arguments)?;
        Some((&*mirrored.header, encode(&text_of(&argument)?).into_owned()))
    })
}

/// The member of an object along a path of names, as JSON text; nothing for null ("Schema Extension").
fn value_at(object: &str, path: &[Box<str>]) -> Option<String> {
    let (name, rest) = path.split_first()?;
    let object = Object::parse(object).ok()?;
    let value = object.get(name).filter(|value| *value != "null")?;
    if rest.is_empty() { Some(value.to_owned()) } else { value_at(value, rest) }
}

#[cfg(test)]
mod tests;
