//! Addresses, URLs, hosts, headers and names: from the text of a file to a checked value.
//!
//! Errors say what is expected. They repeat the text only where it can't be a credential.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderName, HeaderValue, Uri};
use ipnet::IpNet;

use super::{problem::quote, settings::HttpUrl};
use crate::oauth::discovery;

/// Longest name of a route, which becomes a metric's label.
const LONGEST_LABEL: usize = 64;
/// Longest name of a tenant or subject.
const LONGEST_NAME: usize = 128;
/// Longest name of an issuer, audience or client.
const LONGEST_AUDIENCE: usize = 1024;
/// Longest path of a route.
const LONGEST_PATH: usize = 256;

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected an IP address and a port such as `127.0.0.1:8080` or `[::1]:8080`";
    text.parse().map_err(|_| format!("{expected}, found {}", quote(text)))
}

/// A URL to which credentials go, or from which keys come: https, or on this machine.
pub(super) fn secure_url(text: &str) -> Result<HttpUrl, String> {
    let url = http_url(text)?;
    discovery::secure(text, None).map_err(|why| why.to_string())?;
    Ok(url)
}

pub(super) fn http_url(text: &str) -> Result<HttpUrl, &'static str> {
    let uri: Uri = text.parse().map_err(|_| "expected a URL such as `http://10.0.0.7:9000/mcp`")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("a URL must start with `http://` or `https://`");
    }
    if text.contains('#') {
        return Err("a URL must not have a fragment (`#`)");
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.contains('@') {
        return Err("a URL must not have a user or password; credentials belong in `headers`");
    }
    host(authority)?;
    Ok(HttpUrl::new(uri))
}

/// A URL that paths are added to.
pub(super) fn base_url(text: &str) -> Result<HttpUrl, &'static str> {
    let url = http_url(text.strip_suffix('/').unwrap_or(text))?;
    match url.uri().query() {
        None => Ok(url),
        Some(_) => Err("the public URL must not have a query (`?`)"),
    }
}

/// An entry of `allowed_hosts`, in lower case.
pub(super) fn allowed_host(text: &str) -> Result<String, String> {
    match host(text) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(message) => Err(format!("{message}; expected a host such as `mcp.example.com`, found {}", quote(text))),
    }
}

/// An entry of `allowed_origins` as browsers send it: in lower case, without the scheme's own port.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let expected = |why| format!("{why}; expected an origin such as `https://app.example.com`, found {}", quote(text));
    let (scheme, authority) = text.split_once("://").ok_or_else(|| expected("an origin has a scheme"))?;
    let mut letters = scheme.chars();
    if !letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        || !letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-'))
    {
        return Err(expected("not a scheme"));
    }
    if authority.contains('/') {
        return Err(expected("an origin has no path"));
    }
    let port = host(authority).map_err(expected)?;
    let origin = text.to_ascii_lowercase();
    let (scheme, port) = (scheme.to_ascii_lowercase(), port.unwrap_or_default());
    let own = (scheme == "https" && port == 443) || (scheme == "http" && port == 80);
    Ok(match origin.rsplit_once(':') {
        Some((without_port, _)) if own => without_port.to_owned(),
        _ => origin,
    })
}

/// A network, or an address as the network of that one.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let expected = || format!("expected a network such as `10.0.0.0/8` or an address, found {}", quote(text));
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| expected())?,
    };
    // More was meant to count, or less.
    if network.trunc() != network {
        return Err(format!("{} has more than the network in it; did you mean `{}`?", quote(text), network.trunc()));
    }
    Ok(network)
}

/// Checks `host` or `host:port`, and returns the port.
fn host(text: &str) -> Result<Option<u16>, &'static str> {
    let end = match text.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(inside) => inside + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at_checked(end).unwrap_or((text, ""));
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let valid = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let letters = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
            letters && !host.is_empty() && host.len() <= 253
        }
    };
    if !valid {
        return Err("not a host name");
    }
    let Some(port) = port.strip_prefix(':') else {
        return if port.is_empty() { Ok(None) } else { Err("not a host name") };
    };
    match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Some(number)),
        _ => Err("not a port"),
    }
}

/// The path of a route. Only spellings that every client and proxy leaves alone, so that it can be matched whole.
pub(super) fn route_path(text: &str) -> Result<String, String> {
    let fault = match text {
        _ if !text.starts_with('/') => "a path starts with `/`",
        _ if text.contains(['?', '#']) => "a path has no query or fragment",
        _ if text.len() > LONGEST_PATH => "a path has at most 256 characters",
        _ if text.len() > 1 && text.ends_with('/') => "a path doesn't end with `/`",
        _ if text.contains("//") => "a path has no empty parts (`//`)",
        _ if text.split('/').any(|part| matches!(part, "." | "..")) => "a path has no `.` or `..`",
        _ if text.starts_with("/.well-known") => "paths under `/.well-known` are for metadata",
        _ if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&b)) => {
            "a path has only letters, digits and -._~!$&'()*+,;=:@"
        }
        _ => return Ok(text.to_owned()),
    };
    Err(format!("{fault}; found {}", quote(text)))
}

pub(super) fn label(text: &str) -> Result<String, String> {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if letters && !text.is_empty() && text.len() <= LONGEST_LABEL {
        return Ok(text.to_owned());
    }
    Err(format!("a name has 1 to {LONGEST_LABEL} letters, digits, `_`, `-` or `.`; found {}", quote(text)))
}

/// The name of a tenant or subject: any text that can stand in a line of a log.
pub(super) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > LONGEST_NAME || text.contains(char::is_control) {
        return Err(format!("a name has 1 to {LONGEST_NAME} bytes and no control characters"));
    }
    Ok(text.to_owned())
}

/// An issuer, an audience or a client: a text that is compared as it is.
pub(super) fn audience(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > LONGEST_AUDIENCE || text.contains(char::is_control) {
        return Err(format!("expected 1 to {LONGEST_AUDIENCE} bytes without control characters"));
    }
    Ok(text.to_owned())
}

/// A scope (RFC 6749, 3.3).
pub(super) fn scope(text: &str) -> Result<String, String> {
    let letters = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    if letters && !text.is_empty() && text.len() <= LONGEST_NAME {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a scope has 1 to {LONGEST_NAME} visible ASCII characters, no spaces, `\"` or `\\`; found {}",
        quote(text)
    ))
}

pub(super) fn sha256(text: &str) -> Result<[u8; 32], &'static str> {
    let expected = "expected 64 hex digits: `printf %s \"$KEY\" | sha256sum`";
    let mut hash = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != hash.len() || !rest.is_empty() {
        return Err(expected);
    }
    for (byte, pair) in hash.iter_mut().zip(pairs) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
        let (Some(high), Some(low)) = (high, low) else { return Err(expected) };
        *byte = high << 4 | low;
    }
    Ok(hash)
}

/// A header that an operator may add to requests. Those that taskgate or the connection decides are refused.
pub(super) fn header_name(text: &str) -> Result<HeaderName, String> {
    const OWN: [&str; 15] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let name: HeaderName = text.parse().map_err(|_| format!("{} is not a header name", quote(text)))?;
    if OWN.contains(&name.as_str()) || name.as_str().starts_with("mcp-") {
        return Err("taskgate sets this header itself".to_owned());
    }
    Ok(name)
}

pub(super) fn header_value(text: &str) -> Result<HeaderValue, &'static str> {
    let value = HeaderValue::from_str(text).ok().filter(|value| value.to_str().is_ok());
    match value {
        None => Err("a header's value has only visible ASCII characters"),
        Some(_) if text.trim() != text => Err("a header's value must not begin or end with spaces"),
        Some(value) => Ok(value),
    }
}

/// Checks a program and its arguments.
pub(super) fn argv(argv: &[String]) -> Result<(), &'static str> {
    match argv.first().map(String::as_str) {
        None | Some("") => Err("expected a program, and its arguments"),
        _ if argv.iter().any(|argument| argument.contains('\0')) => Err("an argument has no NUL characters"),
        _ => Ok(()),
    }
}
