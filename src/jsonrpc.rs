//! The JSON-RPC 2.0 envelope: one flat parse that borrows, and the few ways to write a message.
//!
//! Payloads (`params`, `result`, `error`) stay raw JSON text, so that numbers, key order and unknown members pass
//! unchanged. Nothing here knows a method's meaning, does I/O or keeps state.

mod error;
mod object;
mod scan;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

pub use error::{Defect, ErrorObject, code};
pub use object::{Object, raw_string, string_value};
pub use scan::{Raw, members, members_along, present};

/// The longest request id that is accepted, in bytes of its JSON text.
pub const MAX_ID_BYTES: usize = 1024;

/// A request id: a JSON string or integer, kept as the text the peer wrote.
///
/// Ids are equal when they mean the same, however they are spelled: servers write strings anew.
#[derive(Clone)]
pub struct Id {
    text: Arc<str>,
    /// The plain spelling, where the text has escapes.
    plain: Option<Arc<str>>,
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.meaning() == other.meaning()
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.meaning().hash(state);
    }
}

impl Id {
    fn new(text: &str) -> Self {
        let plain = text.contains('\\').then(|| string_value(text).map(|value| raw_string(&value).into())).flatten();
        Self { text: text.into(), plain }
    }

    fn meaning(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.text)
    }

    /// An integer id of the gateway's own.
    #[must_use]
    pub fn number(value: u64) -> Self {
        Self { text: value.to_string().into(), plain: None }
    }

    /// A string id of the gateway's own.
    #[must_use]
    pub fn string(value: &str) -> Self {
        Self::new(&raw_string(value))
    }

    /// Reads an id as JSON text.
    ///
    /// # Errors
    /// [`Defect::Invalid`] for anything but a string or an integer of at most [`MAX_ID_BYTES`]
    /// (2025-11-25 basic, "Requests": a string or integer, never null).
    pub fn from_json(text: &str) -> Result<Self, Defect> {
        let integer = || {
            let digits = text.strip_prefix('-').unwrap_or(text);
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        if text.len() > MAX_ID_BYTES {
            return Err(Defect::Invalid("the request id is longer than 1024 bytes"));
        }
        if text.starts_with('"') || integer() {
            Ok(Self::new(text))
        } else {
            Err(Defect::Invalid("the request id must be a string or an integer"))
        }
    }

    /// The id as JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.text
    }

    /// The text of a string id; `None` for an integer.
    #[must_use]
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        string_value(&self.text)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One JSON-RPC message with borrowed, unread payloads.
#[derive(Debug, Clone)]
pub enum Message<'a> {
    /// Expects an answer under `id`.
    Request {
        /// The sender's id.
        id: Id,
        /// The method's name.
        method: Cow<'a, str>,
        /// The parameters, if any.
        params: Option<Raw<'a>>,
    },
    /// Expects no answer.
    Notification {
        /// The method's name.
        method: Cow<'a, str>,
        /// The parameters, if any.
        params: Option<Raw<'a>>,
    },
    /// Answers a request of the receiver.
    Response {
        /// The request's id; absent only where an error could not be tied to one.
        id: Option<Id>,
        /// What came of the request.
        outcome: Outcome<'a>,
    },
}

/// A message that was read.
#[derive(Debug)]
pub struct Parsed<'a> {
    /// The message.
    pub message: Message<'a>,
    /// The text of its id where it stands, for [`spliced`].
    pub id_text: Option<&'a str>,
    /// All members along the path were given out. Otherwise those that were mean nothing.
    pub is_along: bool,
}

/// The payload of a response.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// The `result` member.
    Result(Raw<'a>),
    /// The `error` member.
    Error(Raw<'a>),
}

impl<'a> Message<'a> {
    /// Reads one message.
    ///
    /// # Errors
    /// [`Defect::Syntax`] when the bytes are not JSON in UTF-8, [`Defect::Batch`] for an array and
    /// [`Defect::Invalid`] for JSON that is no single message, repeats a member that decides, or has an unusable id.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Defect> {
        Self::parse_with_id(bytes).map(|(message, _)| message)
    }

    /// The same, with the text of the id where it stands in the message, for [`spliced`].
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn parse_with_id(bytes: &'a [u8]) -> Result<(Self, Option<&'a str>), Defect> {
        let Parsed { message, id_text, .. } = Self::parse_along(bytes, &[], |_, _, _| true)?;
        Ok((message, id_text))
    }

    /// The same, where `take` is given the members that [`members_along`] gives, but for those of the message itself.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn parse_along(
        bytes: &'a [u8],
        path: &[&str],
        take: impl FnMut(usize, &'a str, Raw<'a>) -> bool,
    ) -> Result<Parsed<'a>, Defect> {
        match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => {}
            Some(b'[') => return Err(Defect::Batch),
            // Whatever else is JSON is still not a message; let the parser tell the two apart.
            _ => {
                return Err(match serde_json::from_slice::<&RawValue>(bytes) {
                    Ok(_) => Defect::Invalid("a message must be a JSON object"),
                    Err(error) => Defect::Syntax(error.to_string()),
                });
            }
        }
        let (envelope, is_along) = Envelope::read(bytes, path, take)?;
        let id_text = envelope.id.map(Raw::get);
        Ok(Parsed { message: envelope.classify()?, id_text, is_along })
    }

    /// The method, unless this is a response.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        match self {
            Self::Request { method, .. } | Self::Notification { method, .. } => Some(method),
            Self::Response { .. } => None,
        }
    }
}

/// A text in which some parts, each given as the slice of it that it is, are replaced, and all else is as it was. `None`
/// where one is no slice of it or two overlap.
#[must_use]
pub fn spliced<const N: usize>(text: &[u8], mut changes: [(&str, &str); N]) -> Option<Bytes> {
    let start = text.as_ptr().addr();
    changes.sort_unstable_by_key(|(part, _)| part.as_ptr().addr());
    let added: usize = changes.iter().map(|(_, new)| new.len()).sum();
    let mut out = Vec::with_capacity(text.len() + added);
    let mut from = 0;
    for (part, new) in changes {
        let place = part.as_ptr().addr().checked_sub(start)?;
        out.extend_from_slice(text.get(from..place)?);
        out.extend_from_slice(new.as_bytes());
        from = place + part.len();
    }
    out.extend_from_slice(text.get(from..)?);
    Some(out.into())
}

/// Splits a batch into its members' texts (2025-03-26 basic, "Batching").
///
/// # Errors
/// [`Defect::Syntax`] when the bytes are not a JSON array, [`Defect::Invalid`] when it is empty.
pub fn split_batch(bytes: &[u8]) -> Result<Vec<&RawValue>, Defect> {
    let members: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(|error| Defect::from_serde(&error))?;
    if members.is_empty() {
        return Err(Defect::Invalid("a batch must not be empty"));
    }
    Ok(members)
}

/// The members that make an envelope. serde's derive refuses a repeated one; all others are skipped unread.
#[derive(Default, Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<Raw<'a>>,
}

impl<'a> Envelope<'a> {
    /// Reads a message, and says whether it gave out what stands along the path.
    fn read(
        bytes: &'a [u8],
        path: &[&str],
        take: impl FnMut(usize, &'a str, Raw<'a>) -> bool,
    ) -> Result<(Self, bool), Defect> {
        // serde_json leaves members that it skips unchecked.
        let text = std::str::from_utf8(bytes).map_err(|error| Defect::Syntax(error.to_string()))?;
        match Self::scan(text, path, take) {
            Some(read) => Ok((read, true)),
            None => Ok((serde_json::from_str(text).map_err(|error| Defect::from_serde(&error))?, false)),
        }
    }

    fn scan(text: &'a str, path: &[&str], mut take: impl FnMut(usize, &'a str, Raw<'a>) -> bool) -> Option<Self> {
        let mut read = Self::default();
        let is_whole = members_along(text, path, |depth, name, value| {
            if depth > 0 {
                return take(depth, name, value);
            }
            let member = match name {
                "jsonrpc" => &mut read.jsonrpc,
                "id" => &mut read.id,
                "method" => &mut read.method,
                "params" => &mut read.params,
                "result" => &mut read.result,
                "error" => &mut read.error,
                _ => return true,
            };
            member.replace(value).is_none()
        });
        is_whole.then_some(read)
    }

    fn classify(self) -> Result<Message<'a>, Defect> {
        if self.jsonrpc.map(Raw::get) != Some("\"2.0\"") {
            return Err(Defect::Invalid("`jsonrpc` must be \"2.0\""));
        }
        if let Some(method) = self.method {
            let method = string_value(method.get()).ok_or(Defect::Invalid("`method` must be a string"))?;
            let params = self.params;
            if params.is_some_and(|params| !params.get().starts_with(['{', '['])) {
                return Err(Defect::Invalid("`params` must be an object or an array"));
            }
            return Ok(match self.id {
                Some(id) => Message::Request { id: Id::from_json(id.get())?, method, params },
                None => Message::Notification { method, params },
            });
        }
        let outcome = match (self.result, self.error) {
            (Some(result), None) => Outcome::Result(result),
            (None, Some(error)) => Outcome::Error(error),
            _ => return Err(Defect::Invalid("a message has a `method`, or either `result` or `error`")),
        };
        let id = match self.id.map(Raw::get) {
            None | Some("null") => None,
            Some(text) => Some(Id::from_json(text)?),
        };
        if id.is_none() && matches!(outcome, Outcome::Result(_)) {
            return Err(Defect::Invalid("a result must name the request that it answers"));
        }
        Ok(Message::Response { id, outcome })
    }
}

/// Writes a request.
#[must_use]
pub fn request(id: &Id, method: &str, params: Option<&str>) -> Bytes {
    write(Some(id), Some(method), params.map(|params| ("params", params)))
}

/// Writes a notification.
#[must_use]
pub fn notification(method: &str, params: Option<&str>) -> Bytes {
    write(None, Some(method), params.map(|params| ("params", params)))
}

/// Writes a successful response whose `result` is the given JSON text.
#[must_use]
pub fn response(id: &Id, result: &str) -> Bytes {
    write(Some(id), None, Some(("result", result)))
}

/// Writes an error response whose `error` is the given JSON text; without an id where nothing had one.
#[must_use]
pub fn raw_error_response(id: Option<&Id>, error: &str) -> Bytes {
    write(id, None, Some(("error", error)))
}

/// Writes an error response; without an id where the request's could not be read (2025-11-25 makes it optional).
#[must_use]
pub fn error_response(id: Option<&Id>, error: &ErrorObject) -> Bytes {
    write(id, None, Some(("error", &error.to_json())))
}

fn write(id: Option<&Id>, method: Option<&str>, payload: Option<(&str, &str)>) -> Bytes {
    let size = 64 + id.map_or(0, |id| id.text.len()) + payload.map_or(0, |(_, text)| text.len());
    let mut out = String::with_capacity(size);
    out.push_str("{\"jsonrpc\":\"2.0\"");
    if let Some(id) = id {
        out.push_str(",\"id\":");
        out.push_str(&id.text);
    }
    if let Some(method) = method {
        out.push_str(",\"method\":");
        object::push_string(&mut out, method);
    }
    if let Some((name, text)) = payload {
        out.push_str(",\"");
        out.push_str(name);
        out.push_str("\":");
        out.push_str(text);
    }
    out.push('}');
    Bytes::from(out)
}

#[cfg(test)]
mod tests;
