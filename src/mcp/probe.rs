//! What a server's answers say about its era: the table behind probing with `server/discover`, and what a refusal of a
//! modern call may mean (2026-07-28 versioning, "Backward Compatibility with Initialization-Based Versions").
//!
//! On a pipe there are no HTTP statuses; an error that came over one counts as one that came with 200.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::jsonrpc::{Object, code, string_value};

use super::version::ProtocolVersion;

/// What the answer to `server/discover` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It speaks this modern version.
    Modern(ProtocolVersion),
    /// It refused the version that was asked with, and says that it speaks this one: ask again with it.
    Again(ProtocolVersion),
    /// Only modern servers refuse in this way, and our own request was wrong.
    ModernFault,
    /// It needs the handshake.
    Legacy,
    /// It speaks modern versions, and none that is spoken here. The handshake is no way out.
    Disjoint,
    /// It says nothing: ask another time.
    Inconclusive,
}

/// Reads the `result` of `server/discover`. Whatever is no such result came from a server that answers anything.
#[must_use]
pub fn of_result(result: &str) -> Finding {
    let versions = Object::parse(result).ok().and_then(|result| versions(result.get("supportedVersions")?));
    match versions.as_deref().map(spoken) {
        Some(Some(version)) => Finding::Modern(version),
        // Also one that answers the question and then negotiates down.
        Some(None) | None => Finding::Legacy,
    }
}

/// Reads the `error` that came with this HTTP status.
#[must_use]
pub fn of_error(status: u16, error: &str) -> Finding {
    let error = Object::parse(error).unwrap_or_default();
    match error.get("code").and_then(number) {
        Some(code::UNSUPPORTED_VERSION) => of_supported(error.get("data")),
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY) => Finding::ModernFault,
        // A proxy or a guard in between may have spoken.
        _ => match of_status(status) {
            Finding::Inconclusive if !(200..300).contains(&status) => Finding::Inconclusive,
            _ => Finding::Legacy,
        },
    }
}

/// Reads an HTTP error status that came without a JSON-RPC error.
#[must_use]
pub fn of_status(status: u16) -> Finding {
    match status {
        401 | 403 | 407 | 408 | 429 => Finding::Inconclusive,
        400..500 => Finding::Legacy,
        _ => Finding::Inconclusive,
    }
}

/// Whether only modern servers refuse with this `error`.
fn is_modern_error(error: &str) -> bool {
    let code = Object::parse(error).ok().and_then(|error| number(error.get("code")?));
    matches!(code, Some(code::UNSUPPORTED_VERSION | code::HEADER_MISMATCH | code::MISSING_CAPABILITY))
}

/// Whether a request on a session was refused as only servers without sessions do: in one of their ways, or because it
/// makes no claims (2026-07-28 basic, "Per-request metadata": the error names the key that is missing).
#[must_use]
pub fn knows_no_sessions(error: &str) -> bool {
    let parsed = Object::parse(error).unwrap_or_default();
    let misses_claims = parsed.get("code").and_then(number) == Some(code::INVALID_PARAMS)
        && parsed.get("message").is_some_and(|message| message.contains("io.modelcontextprotocol"));
    misses_claims || is_modern_error(error)
}

/// Whether a modern call that was refused so, `error` being the JSON-RPC error in the body if there was one, may have met
/// a server that needs the handshake. Nothing was executed then: servers answer with such a status before they look at a
/// call (2026-07-28 streamable HTTP, "Backward Compatibility").
#[must_use]
pub fn looks_legacy(status: u16, error: Option<&str>) -> bool {
    if of_status(status) != Finding::Legacy {
        return false;
    }
    let code = error.and_then(|error| number(Object::parse(error).ok()?.get("code")?));
    // What modern servers say with such a status: the three codes of the revision, an unknown method, bad parameters.
    !matches!(
        code,
        Some(
            code::UNSUPPORTED_VERSION
                | code::HEADER_MISMATCH
                | code::MISSING_CAPABILITY
                | code::METHOD_NOT_FOUND
                | code::INVALID_PARAMS
        )
    )
}

/// What `data` of an unsupported version says.
fn of_supported(data: Option<&str>) -> Finding {
    let supported = data.and_then(|data| versions(Object::parse(data).ok()?.get("supported")?)).unwrap_or_default();
    match spoken(&supported) {
        Some(version) => Finding::Again(version),
        None if supported.iter().any(|version| ProtocolVersion::is_modern_name(version)) => Finding::Disjoint,
        // The code alone is a modern server's, and one that lists nothing can't be served.
        None if supported.is_empty() => Finding::Disjoint,
        None => Finding::Legacy,
    }
}

/// The newest modern version of a list that is spoken here.
fn spoken(versions: &[String]) -> Option<ProtocolVersion> {
    let known = versions.iter().filter_map(|version| ProtocolVersion::parse(version));
    known.filter(|version| !version.has_sessions()).max()
}

/// A list of versions; members that are no strings are left out.
fn versions(json: &str) -> Option<Vec<String>> {
    let list: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    Some(list.into_iter().filter_map(|version| string_value(version.get()).map(Cow::into_owned)).collect())
}

fn number(json: &str) -> Option<i64> {
    json.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODERN: ProtocolVersion = ProtocolVersion::V2026_07_28;

    #[test]
    fn results_of_discover() {
        for (result, finding) in [
            (r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#, Finding::Modern(MODERN)),
            (r#"{"supportedVersions":["2027-01-01","2026-07-28","2025-11-25"]}"#, Finding::Modern(MODERN)),
            (r#"{"supportedVersions":[5,null,"2026-07-28"]}"#, Finding::Modern(MODERN)),
            (r#"{"supportedVersions":["2025-11-25"]}"#, Finding::Legacy),
            (r#"{"supportedVersions":[]}"#, Finding::Legacy),
            (r#"{"supportedVersions":"2026-07-28"}"#, Finding::Legacy),
            (r#"{"content":[]}"#, Finding::Legacy),
            ("[]", Finding::Legacy),
            ("null", Finding::Legacy),
        ] {
            assert_eq!(of_result(result), finding, "{result}");
        }
    }

    #[test]
    fn errors_of_discover() {
        let unsupported = |data: &str| format!(r#"{{"code":-32022,"message":"no","data":{data}}}"#);
        let plain = |code: i64| format!(r#"{{"code":{code},"message":"no"}}"#);
        for (status, error, finding) in [
            (400, unsupported(r#"{"supported":["2026-07-28"],"requested":"x"}"#), Finding::Again(MODERN)),
            (200, unsupported(r#"{"supported":["2025-11-25","2026-07-28"]}"#), Finding::Again(MODERN)),
            (400, unsupported(r#"{"supported":["2025-11-25","2025-06-18"]}"#), Finding::Legacy),
            (400, unsupported(r#"{"supported":["2027-03-01"]}"#), Finding::Disjoint),
            (400, unsupported(r#"{"supported":["2027-03-01","2025-11-25"]}"#), Finding::Disjoint),
            (400, unsupported("{}"), Finding::Disjoint),
            (400, plain(-32020), Finding::ModernFault),
            (400, plain(-32021), Finding::ModernFault),
            (500, plain(-32021), Finding::ModernFault),
            (400, plain(-32000), Finding::Legacy),
            (400, plain(-32600), Finding::Legacy),
            (404, plain(-32601), Finding::Legacy),
            (200, plain(-32601), Finding::Legacy),
            (200, plain(-32602), Finding::Legacy),
            (200, "{}".to_owned(), Finding::Legacy),
            (200, "[]".to_owned(), Finding::Legacy),
            (401, plain(-32000), Finding::Inconclusive),
            (429, plain(-32000), Finding::Inconclusive),
            (503, plain(-32603), Finding::Inconclusive),
        ] {
            assert_eq!(of_error(status, &error), finding, "{status} {error}");
        }
    }

    #[test]
    fn statuses_without_a_message() {
        for status in [401, 403, 407, 408, 429, 500, 502, 503, 504, 301] {
            assert_eq!(of_status(status), Finding::Inconclusive, "{status}");
        }
        for status in [400, 404, 405, 406, 410, 415, 422, 499] {
            assert_eq!(of_status(status), Finding::Legacy, "{status}");
        }
    }

    #[test]
    fn refusals_of_modern_calls() {
        let error = |code: i64| Some(format!(r#"{{"code":{code},"message":"no"}}"#));
        for (status, error, legacy) in [
            (400, error(-32000), true),
            (400, error(-32600), true),
            (400, None, true),
            (404, None, true),
            (405, None, true),
            (400, error(-32020), false),
            (400, error(-32021), false),
            (400, error(-32022), false),
            (404, error(-32601), false),
            (400, error(-32602), false),
            (401, None, false),
            (403, error(-32000), false),
            (429, None, false),
            (500, None, false),
            (200, error(-32000), false),
        ] {
            assert_eq!(looks_legacy(status, error.as_deref()), legacy, "{status} {error:?}");
        }
        assert!(is_modern_error(r#"{"code":-32022,"message":""}"#) && !is_modern_error(r#"{"code":-32601}"#));
        let misses = r#"{"code":-32602,"message":"`_meta` lacks io.modelcontextprotocol/protocolVersion"}"#;
        assert!(knows_no_sessions(misses) && knows_no_sessions(r#"{"code":-32020,"message":""}"#));
        assert!(!knows_no_sessions(r#"{"code":-32602,"message":"Unknown tool"}"#) && !knows_no_sessions("[]"));
    }
}
