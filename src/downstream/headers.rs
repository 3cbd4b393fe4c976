//! What the header fields of a client's request say, and which of them may go on to an upstream.

use std::borrow::Cow;

use ::http::header::{ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use ::http::{HeaderMap, Version};

use crate::gateway::call::{Accept, VersionHeader};
use crate::gateway::fields::{Repeated, only};
use crate::mcp::version::ProtocolVersion;

/// The session's id (2025-11-25 transports, "Session Management").
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The protocol version (2025-11-25 transports, "Protocol Version Header").
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The event after which a stream is resumed.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The one value of a field; text that is not ASCII matches nothing that was ever given out, and comes back as such.
///
/// # Errors
/// [`Repeated`]
pub fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, str>>, Repeated> {
    // The lossy reading is the slower one.
    Ok(only(headers, name)?.map(|value| match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(value.as_bytes()),
    }))
}

/// RFC 9112, 3.2: a request of HTTP/1.1 has one `Host`. Which of two another reader takes, nobody knows.
#[must_use]
pub fn has_one_host(version: Version, headers: &HeaderMap) -> bool {
    let least = usize::from(version == Version::HTTP_11);
    only(headers, &HOST).is_ok_and(|host| usize::from(host.is_some()) >= least)
}

/// What the version header says. A repeated one names no version.
#[must_use]
pub fn version(headers: &HeaderMap) -> VersionHeader {
    match single(headers, &PROTOCOL_VERSION) {
        Ok(None) => VersionHeader::Absent,
        Ok(Some(value)) => match ProtocolVersion::parse(&value) {
            Some(version) => VersionHeader::Known(version),
            None => VersionHeader::Other((*value).into()),
        },
        Err(Repeated) => VersionHeader::Other("(repeated)".into()),
    }
}

/// Which kinds of answer the client takes: by media ranges and weights (RFC 9110, 12.5.1), over all lines of the field.
/// Without the field everything is taken.
#[must_use]
pub fn accept(headers: &HeaderMap) -> Accept {
    // Absent, or as nearly every client writes it.
    if headers.get(ACCEPT).is_none_or(|line| line == "application/json, text/event-stream") {
        return Accept { json: true, events: true };
    }
    let (mut json, mut events) = (Taken::default(), Taken::default());
    for line in headers.get_all(ACCEPT) {
        let Ok(line) = line.to_str() else { continue };
        for range in line.split(',') {
            let mut parts = range.split(';');
            let range = parts.next().unwrap_or_default().trim();
            let is_taken = !parts.any(|part| is_zero_weight(part.trim()));
            json.look(range, "application", "json", is_taken);
            events.look(range, "text", "event-stream", is_taken);
        }
    }
    Accept { json: json.is_taken, events: events.is_taken }
}

/// Whether a media type is taken, by the most specific range so far.
#[derive(Default)]
struct Taken {
    specificity: u8,
    is_taken: bool,
}

impl Taken {
    fn look(&mut self, range: &str, main: &str, sub: &str, is_taken: bool) {
        let Some((range_main, range_sub)) = range.split_once('/') else { return };
        let same = |left: &str, right: &str| left.trim().eq_ignore_ascii_case(right);
        let specificity = match (range_main, range_sub) {
            ("*", "*") => 1,
            (range_main, "*") if same(range_main, main) => 2,
            (range_main, range_sub) if same(range_main, main) && same(range_sub, sub) => 3,
            _ => return,
        };
        if specificity >= self.specificity {
            *self = Self { specificity, is_taken };
        }
    }
}

fn is_zero_weight(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let value = value.trim();
    name.trim().eq_ignore_ascii_case("q")
        && value.starts_with('0')
        && value.chars().all(|digit| matches!(digit, '0' | '.'))
}

/// Whether the body is JSON as it stands: of that type, and not compressed.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    let is_identity = !headers.contains_key(CONTENT_ENCODING)
        || headers
            .get_all(CONTENT_ENCODING)
            .iter()
            .all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    let is_json = |value: &HeaderValue| {
        let essence = || value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        value == "application/json" || essence().eq_ignore_ascii_case("application/json")
    };
    // Of two, another reader could take the other one.
    is_identity && only(headers, &CONTENT_TYPE).is_ok_and(|content_type| content_type.is_some_and(is_json))
}

/// Room that is made at once for fields that are kept.
const MOST_ROOM: usize = 12;

/// The fields that may go on: neither this hop's own, nor credentials meant for the gateway, nor what only its framing
/// and negotiation are about (RFC 9110, 7.6.1; 2025-11-25 authorization, "Access Token Privilege Restriction").
#[must_use]
pub fn for_upstream(headers: HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut kept = HeaderMap::new();
    // What is kept is joined by the fields of the next hop. Mostly nothing is, and the map stays without room.
    let room = headers.len().min(MOST_ROOM);
    let mut current = None;
    for (name, value) in headers {
        // The map gives a name once and then only values.
        current = name.or(current);
        let Some(name) = &current else { continue };
        if !is_ours(name.as_str()) && !named.iter().any(|named| named == name.as_str()) {
            if kept.is_empty() {
                kept.reserve(room);
            }
            kept.append(name.clone(), value);
        }
    }
    kept
}

fn is_ours(name: &str) -> bool {
    // Many a server reads `_` as `-` (RFC 3875, 4.1.18): one with it would pass for another that is dropped or replaced here.
    name.contains('_')
        || matches!(
            name,
            "accept"
                | "accept-encoding"
                | "authorization"
                | "connection"
                | "content-encoding"
                | "content-length"
                | "content-type"
                | "cookie"
                | "expect"
                | "forwarded"
                | "host"
                | "keep-alive"
                | "last-event-id"
                | "mcp-protocol-version"
                | "mcp-session-id"
                | "origin"
                | "referer"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "via"
                | "x-api-key"
                | "x-real-ip"
        )
        || ["proxy-", "sec-", "x-forwarded-"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(lines: &[&'static str]) -> (bool, bool) {
        let mut headers = HeaderMap::new();
        lines.iter().for_each(|line| {
            headers.append(ACCEPT, ::http::HeaderValue::from_static(line));
        });
        let accept = accept(&headers);
        (accept.json, accept.events)
    }

    #[test]
    fn accept_is_read_as_clients_write_it() {
        for (lines, taken) in [
            (&[][..], (true, true)),
            (&["*/*"], (true, true)),
            (&["application/json"], (true, false)),
            (&["application/*"], (true, false)),
            (&["text/event-stream, application/json"], (true, true)),
            (&["APPLICATION/JSON;q=0.9", "Text/Event-Stream; q=0.1"], (true, true)),
            (&["application/json;q=0, */*"], (false, true)),
            (&["*/*, application/json;q=0.000"], (false, true)),
            (&["text/html"], (false, false)),
            (&["nonsense", ";;,"], (false, false)),
        ] {
            assert_eq!(accepts(lines), taken, "{lines:?}");
        }
    }

    #[test]
    fn credentials_and_hop_by_hop_fields_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("cookie", "secret"),
            ("origin", "http://localhost"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.0.0.1"),
            ("mcp-session-id", "s"),
            ("traceparent", "00-1-2-01"),
            ("mcp-param-region", "eu"),
            ("x_api_key", "secret"),
            ("x-twice", "1"),
        ] {
            headers.append(HeaderName::from_static(name), ::http::HeaderValue::from_static(value));
        }
        headers.append("x-twice", ::http::HeaderValue::from_static("2"));
        let kept = for_upstream(headers);
        let mut names: Vec<&str> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["mcp-param-region", "traceparent", "x-twice"]);
        assert_eq!(kept.get_all("x-twice").iter().count(), 2);
    }
}
