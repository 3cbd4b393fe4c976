//! The ways in which servers and what stands before them break.

use std::str::FromStr;
use std::sync::PoisonError;

use bytes::{BufMut, Bytes, BytesMut};

use crate::jsonrpc::{Message, Object, string_value};

use super::Shared;

/// One way to break. Except for the first five the call itself runs, so that its side effects happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An HTTP error status with a text body; the call does not run.
    Status(u16),
    /// Status 200 with an HTML page; the call does not run.
    Html,
    /// A redirect (307) to another path; the call does not run.
    Redirect,
    /// The session is forgotten: 404; the call does not run.
    SessionGone,
    /// JSON that stops in the middle of the message, with a length that fits; the call does not run.
    CutJson,
    /// The connection closes before the response's headers.
    Close,
    /// Nothing is ever answered.
    Silent,
    /// An event stream whose connection breaks after the first event.
    Reset,
    /// An event stream that ends properly after the first event, without the response.
    EndEarly,
    /// The JSON is compressed, unasked.
    Gzip,
    /// The response names another request's id.
    WrongId,
    /// Between the events stands one that is no JSON.
    Garbage,
    /// The response comes twice.
    Twice,
    /// An event that never ends.
    Flood,
}

impl Fault {
    /// Whether the message never reaches the protocol.
    pub(super) const fn comes_first(self) -> bool {
        matches!(self, Self::Status(_) | Self::Html | Self::Redirect | Self::SessionGone | Self::CutJson)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "html" => Self::Html,
            "redirect" => Self::Redirect,
            "session_gone" => Self::SessionGone,
            "cut_json" => Self::CutJson,
            "close" => Self::Close,
            "silent" => Self::Silent,
            "reset" => Self::Reset,
            "end_early" => Self::EndEarly,
            "gzip" => Self::Gzip,
            "wrong_id" => Self::WrongId,
            "garbage" => Self::Garbage,
            "twice" => Self::Twice,
            "flood" => Self::Flood,
            _ => {
                let status = text.strip_prefix("http_").and_then(|digits| digits.parse().ok());
                let status = status.filter(|status| (400..600).contains(status));
                Self::Status(status.ok_or_else(|| "no such fault".to_owned())?)
            }
        })
    }
}

/// A fault that waits for messages of one method.
#[derive(Debug)]
pub(super) struct Plan {
    method: String,
    fault: Fault,
    times: u32,
}

pub(super) fn plan(shared: &Shared, method: &str, fault: Fault, times: u32) {
    let plan = Plan { method: method.to_owned(), fault, times };
    shared.faults.lock().unwrap_or_else(PoisonError::into_inner).push(plan);
}

/// The fault that waits for that method, if any; uses it up.
pub(super) fn planned(shared: &Shared, method: &str) -> Option<Fault> {
    let mut plans = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = plans.iter_mut().find(|plan| plan.method == method && plan.times > 0)?;
    plan.times -= 1;
    let fault = plan.fault;
    plans.retain(|plan| plan.times > 0);
    Some(fault)
}

/// The `kind` that a call of the tool `fault` asks for.
pub(super) fn kind_asked(message: &Message<'_>) -> Option<String> {
    let Message::Request { method, params: Some(params), .. } = message else { return None };
    let params = Object::parse(params.get()).ok().filter(|_| method == "tools/call")?;
    if params.get("name") != Some("\"fault\"") {
        return None;
    }
    let arguments = Object::parse(params.get("arguments")?).ok()?;
    arguments.get("kind").and_then(string_value).map(|kind| kind.into_owned())
}

/// A gzip file that holds the bytes uncompressed (RFC 1951, 3.2.4; RFC 1952).
pub(super) fn gzip(bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(bytes.len() + 64);
    out.put_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    let mut blocks = bytes.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.put_u8(u8::from(blocks.peek().is_none()));
        out.put_u16_le(length);
        out.put_u16_le(!length);
        out.put_slice(block);
    }
    out.put_u32_le(crc32(bytes));
    out.put_u32_le(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.freeze()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read() {
        assert_eq!("http_503".parse(), Ok(Fault::Status(503)));
        assert_eq!("reset".parse(), Ok(Fault::Reset));
        for unknown in ["", "http_", "http_200", "http_99999", "Reset"] {
            assert!(unknown.parse::<Fault>().is_err(), "{unknown}");
        }
    }

    #[test]
    fn checksum_is_the_standard_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
