//! Keeps web pages out (2025-11-25 transports, "Security Warning": validate `Origin`).

use http::HeaderMap;
use http::header::ORIGIN;
use http::uri::Uri;

/// Whether a request may come in: it has no `Origin`, or one on this machine.
pub(super) fn is_welcome(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
    let host = host.as_ref().and_then(Uri::host);
    host.is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_pages_are_welcome() {
        let welcome = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().unwrap());
            is_welcome(&headers)
        };
        assert!(is_welcome(&HeaderMap::new()));
        assert!(welcome("http://localhost:3000") && welcome("http://127.0.0.1") && welcome("http://[::1]:80"));
        for foreign in ["null", "https://evil.example", "http://localhost.evil.example", "", "\u{e9}"] {
            assert!(!welcome(foreign), "{foreign}");
        }
    }
}
