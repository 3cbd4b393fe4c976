//! A request that one replica passes on to another, as both write it down: what is signed, and in which fields the rest
//! travels.

use ::http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, ORIGIN, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use ::http::{HeaderMap, Method};

use crate::auth::sha256;

/// When it was passed on, its nonce, the digest of its body, and the signature over all of it.
pub(super) const SEAL: HeaderName = HeaderName::from_static("taskgate-passage");
/// For whom it is passed on: the client's address.
pub(super) const PEER: HeaderName = HeaderName::from_static("taskgate-peer");
/// Whom it is passed on to, so that who has come to that address since can say that it is another.
pub(super) const TO: HeaderName = HeaderName::from_static("taskgate-to");
/// In an answer: who was asked has looked at the request, and is or is not the one whom it was for.
pub(super) const TAKEN: HeaderName = HeaderName::from_static("taskgate-taken");
pub(super) const YES: HeaderValue = HeaderValue::from_static("1");
pub(super) const NO: HeaderValue = HeaderValue::from_static("0");

/// Fields of one hop alone (RFC 9110, 7.6.1), and those that say where the client has come in.
const HOP: [HeaderName; 10] =
    [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, ORIGIN, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, SEAL];

/// What is signed besides the fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage<'a> {
    /// Whom it is passed on to: nobody else takes it.
    pub(super) to: &'a str,
    pub(super) method: &'a Method,
    pub(super) target: &'a str,
    /// When, in milliseconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) nonce: [u8; 16],
    /// The digest of the body.
    pub(super) body: [u8; 32],
}

impl Passage<'_> {
    /// The text that is signed: no two passages have the same.
    pub(super) fn to_signed(self, headers: &HeaderMap) -> Vec<u8> {
        let mut fields: Vec<(&str, &[u8])> = headers
            .iter()
            .filter(|(name, _)| !HOP.contains(name))
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        // Values of one name keep their order.
        fields.sort_by_key(|(name, _)| *name);
        let mut text = b"taskgate passage 1\n".to_vec();
        let mut add = |part: &[u8]| {
            text.extend((part.len() as u64).to_be_bytes());
            text.extend(part);
        };
        for part in [self.to, self.method.as_str(), self.target] {
            add(part.as_bytes());
        }
        add(&self.at.to_be_bytes());
        add(&self.nonce);
        add(&self.body);
        for (name, value) in fields {
            add(name.as_bytes());
            add(value);
        }
        text
    }

    /// The seal's field.
    pub(super) fn to_seal(self, signature: &[u8; 32]) -> Option<HeaderValue> {
        let seal = format!("{}.{}.{}.{}", self.at, hex(&self.nonce), hex(&self.body), hex(signature));
        HeaderValue::from_str(&seal).ok()
    }
}

/// What a seal says.
pub(super) struct Seal {
    pub(super) at: u64,
    pub(super) nonce: [u8; 16],
    pub(super) body: [u8; 32],
    pub(super) signature: [u8; 32],
}

impl Seal {
    /// Reads the field; `None` for anything else, and where it is not there once.
    pub(super) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(SEAL).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let mut parts = value.to_str().ok()?.split('.');
        let at = parts.next()?.parse().ok()?;
        let seal =
            Self { at, nonce: unhex(parts.next()?)?, body: unhex(parts.next()?)?, signature: unhex(parts.next()?)? };
        parts.next().is_none().then_some(seal)
    }
}

/// The fields of a client's request that are passed on. Those of replicas are never a client's.
pub(super) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        if !is_of_hop(headers, name) && !name.as_str().starts_with("taskgate-") {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// Takes out of an answer what is of the hop between replicas.
pub(super) fn strip_answer(headers: &mut HeaderMap) {
    let of_hop: Vec<HeaderName> = headers.keys().filter(|name| is_of_hop(headers, name)).cloned().collect();
    for name in of_hop {
        headers.remove(name);
    }
    headers.remove(TAKEN);
}

fn is_of_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let is_named = |value: &HeaderValue| {
        let names = value.to_str().unwrap_or_default().split(',');
        names.into_iter().any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
    };
    HOP.contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "proxy-authorization" | "proxy-authenticate")
        || headers.get_all(CONNECTION).iter().any(is_named)
}

/// The digest of a body.
pub(super) fn digest(body: &[u8]) -> [u8; 32] {
    sha256(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
