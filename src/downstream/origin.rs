//! Who may ask: `Origin` and `Host`, so that no web page reaches the gateway through somebody's browser (2025-11-25
//! transports, "Security Warning").

use std::net::IpAddr;

use ::http::header::{HOST, ORIGIN};
use ::http::{HeaderMap, HeaderValue, Uri};

/// What is allowed.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Origins as browsers send them; `None` allows those of loopback names on a loopback address, else no origin.
    pub origins: Option<Vec<String>>,
    /// Host names without a port; `None` allows the loopback names on a loopback address, else every name.
    pub hosts: Option<Vec<String>>,
    /// The gateway listens on a loopback address.
    pub is_loopback: bool,
}

/// Which check failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// `Origin`
    Origin,
    /// `Host`
    Host,
}

impl Config {
    /// Checks a request. Without an `Origin` it does not come from a web page.
    ///
    /// # Errors
    /// [`Foreign`]
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Foreign> {
        let is_allowed = |origin: &HeaderValue| origin.to_str().is_ok_and(|origin| self.allows_origin(origin));
        if headers.contains_key(ORIGIN) && !headers.get_all(ORIGIN).iter().all(is_allowed) {
            return Err(Foreign::Origin);
        }
        let mut hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        // HTTP/2 has the name in the request target instead.
        let authority = uri.authority().map(::http::uri::Authority::as_str);
        let is_allowed = |host: &str| self.allows_host(host);
        if hosts.by_ref().all(is_allowed) && authority.is_none_or(is_allowed) { Ok(()) } else { Err(Foreign::Host) }
    }

    fn allows_origin(&self, origin: &str) -> bool {
        if let Some(allowed) = &self.origins {
            return allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin.trim_end_matches('/')));
        }
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        self.is_loopback && host.and_then(without_port).is_some_and(is_loopback_name)
    }

    fn allows_host(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        match &self.hosts {
            Some(allowed) => {
                allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(host))
            }
            None => !self.is_loopback || is_loopback_name(name),
        }
    }
}

/// The name in `name` or `name:port`; `None` where more stands there, of which another reader could take another part.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.strip_prefix('[') {
        Some(inside) => inside.find(']')? + 2,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at_checked(end)?;
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

/// Whether a name can only mean this machine.
fn is_loopback_name(name: &str) -> bool {
    // As nearly every client on this machine writes it.
    if name == "127.0.0.1" {
        return true;
    }
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &Config, origin: Option<&str>, host: &str) -> Result<(), Foreign> {
        let mut headers = HeaderMap::new();
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        headers.insert(HOST, host.parse().unwrap());
        config.check(&headers, &Uri::from_static("/mcp"))
    }

    #[test]
    fn on_loopback_only_loopback_names_pass() {
        let config = Config { is_loopback: true, ..Config::default() };
        for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "127.0.0.2", "LOCALHOST"] {
            assert_eq!(check(&config, None, host), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "[::2]",
            "localhost:80:evil.example",
        ] {
            assert_eq!(check(&config, None, host), Err(Foreign::Host), "{host}");
        }
        for host in [
            "[::1]evil.example",
            "[::1",
            "::1",
            "localhost:x",
            "localhost@evil.example",
            "localhost/x",
            "evil]",
            "[[::1]",
            "[::1]]",
        ] {
            assert_eq!(check(&config, None, host), Err(Foreign::Host), "{host}");
            assert_eq!(check(&config, Some(&format!("http://{host}")), "localhost"), Err(Foreign::Origin), "{host}");
        }
        assert_eq!(check(&config, Some("http://localhost:3000"), "localhost"), Ok(()));
        for origin in ["http://evil.example", "null", "", "http://localhost.evil.example", "file://localhost"] {
            assert_eq!(check(&config, Some(origin), "localhost"), Err(Foreign::Origin), "{origin}");
        }
    }

    #[test]
    fn lists_replace_the_defaults() {
        let config = Config {
            origins: Some(vec!["https://app.example.com".into()]),
            hosts: Some(vec!["mcp.example.com".into()]),
            is_loopback: false,
        };
        assert_eq!(check(&config, Some("https://app.example.com"), "mcp.example.com:443"), Ok(()));
        assert_eq!(check(&config, Some("https://other.example.com"), "mcp.example.com"), Err(Foreign::Origin));
        assert_eq!(check(&config, None, "localhost"), Err(Foreign::Host));
        let open = Config::default();
        assert_eq!(check(&open, None, "any.name"), Ok(()));
        assert_eq!(check(&open, Some("https://any.name"), "any.name"), Err(Foreign::Origin));
    }
}
