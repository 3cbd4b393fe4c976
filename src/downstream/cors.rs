//! What browsers are told, so that pages of allowed origins can call (Fetch standard, "CORS protocol").

use ::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use ::http::{HeaderMap, Method};

/// The header fields that any client may send.
const FIELDS: &str = "Authorization, Content-Type, X-API-Key, MCP-Protocol-Version, MCP-Session-Id, Last-Event-ID, \
                      Mcp-Method, Mcp-Name";
/// Those of answers that pages may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("MCP-Session-Id, WWW-Authenticate, Retry-After");
const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE");
/// How long browsers may remember the answer, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
/// The most names of further headers that one preflight is granted.
const MOST_FIELDS: usize = 64;

/// Whether a browser asks beforehand if a page may send something.
#[must_use]
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The header fields of the answer to a page whose origin is allowed.
pub fn allow(origin: HeaderValue, answer: &mut HeaderMap) {
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    answer.append(VARY, HeaderValue::from_static("Origin"));
}

/// The header fields of the answer to a preflight. `Mcp-Param-*` fields are granted by name as they are asked for: a
/// pattern would not do where credentials are sent.
pub fn grant(request: &HeaderMap, answer: &mut HeaderMap) {
    request.get(ORIGIN).cloned().into_iter().for_each(|origin| allow(origin, answer));
    answer.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    let asked = request.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|asked| asked.to_str().ok()).unwrap_or_default();
    let mirrored = |name: &&str| name.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("mcp-param-"));
    let mirrored = asked.split(',').map(str::trim).filter(mirrored).take(MOST_FIELDS);
    let fields: Vec<&str> = std::iter::once(FIELDS).chain(mirrored).collect();
    // What was read from one field can stand in another.
    if let Ok(fields) = HeaderValue::from_str(&fields.join(", ")) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_clients_send_is_granted() {
        let mut request = HeaderMap::new();
        request.insert(ORIGIN, HeaderValue::from_static("http://localhost:3000"));
        request.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST"));
        request.insert(
            ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static("content-type, mcp-param-region, x-other, Mcp-Param-Zone"),
        );
        assert!(is_preflight(&Method::OPTIONS, &request) && !is_preflight(&Method::POST, &request));
        let mut answer = HeaderMap::new();
        grant(&request, &mut answer);
        let fields = answer[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap();
        assert!(fields.ends_with("Mcp-Name, mcp-param-region, Mcp-Param-Zone"), "{fields}");
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "http://localhost:3000");
    }
}
