//! Where a Redis or Valkey is, as one URL says it: a single server, servers behind Sentinels, or a cluster.

use std::fmt;

/// The port of a server when the URL has none.
const PORT: u16 = 6379;
/// The port of a Sentinel when the URL has none.
const SENTINEL_PORT: u16 = 26379;

/// Where the server is and what it asks for. Neither `Debug` nor `Display` shows credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// How the nodes belong together.
    pub kind: Kind,
    /// Whether every connection is TLS.
    pub tls: bool,
    /// Hosts and ports; one for a single server.
    pub nodes: Vec<(String, u16)>,
    /// The ACL user, where one is named.
    pub user: Option<String>,
    /// The password, where there is one.
    pub password: Option<String>,
}

/// How the nodes of an address belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Server {
        /// The number of its database.
        db: u16,
    },
    /// The nodes are Sentinels that know which server is the primary.
    Sentinel {
        /// The primary's name among them.
        primary: String,
        /// The number of its database.
        db: u16,
    },
    /// The nodes are some of a cluster's.
    Cluster,
}

impl Address {
    /// Reads `redis://user:password@host:port/db`, `redis-sentinel://...@host,host/primary/db` or
    /// `redis-cluster://...@host,host`; each with `rediss` for TLS, and `valkey` as well as `redis`. Credentials are
    /// percent-encoded.
    ///
    /// # Errors
    /// What is wrong, without repeating any of it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let scheme_expected = "a Redis URL must start with `redis://`, or `rediss://` for TLS";
        let (scheme, rest) = text.split_once("://").ok_or("expected a URL such as `redis://127.0.0.1:6379/0`")?;
        let (base, suffix) = scheme.split_once('-').map_or((scheme, None), |(base, suffix)| (base, Some(suffix)));
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(scheme_expected),
        };
        if rest.contains(['?', '#']) {
            return Err("a Redis URL has neither `?` nor `#`; in a password they are written `%3F` and `%23`");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, places) = match authority.rsplit_once('@') {
            Some((credentials, places)) => (Some(credentials), places),
            None => (None, authority),
        };
        let (user, password) = credentials.map_or(Ok((None, None)), read_credentials)?;
        let mut path = path.split('/').filter(|part| !part.is_empty());
        let kind = match suffix {
            None => Kind::Server { db: read_db(path.next())? },
            Some("sentinel") => {
                let primary =
                    path.next().ok_or("the name of the primary is missing: `redis-sentinel://HOST:PORT/NAME`")?;
                Kind::Sentinel { primary: decode(primary)?, db: read_db(path.next())? }
            }
            Some("cluster") => Kind::Cluster,
            Some(_) => return Err(scheme_expected),
        };
        if path.next().is_some() {
            return Err("more behind the host than a Redis URL has; a cluster has no numbered databases");
        }
        let port = if matches!(kind, Kind::Sentinel { .. }) { SENTINEL_PORT } else { PORT };
        let nodes = places.split(',').map(|place| read_node(place, port)).collect::<Result<Vec<_>, _>>()?;
        if matches!(kind, Kind::Server { .. }) && nodes.len() > 1 {
            return Err("several hosts: `redis-sentinel://` or `redis-cluster://` says what they are");
        }
        Ok(Self { kind, tls, nodes, user, password })
    }
}

fn read_credentials(text: &str) -> Result<(Option<String>, Option<String>), &'static str> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let given = |part: &str| if part.is_empty() { Ok(None) } else { decode(part).map(Some) };
    let (user, password) = (given(user)?, given(password)?);
    if user.is_some() && password.is_none() {
        return Err("a user without a password: `redis://USER:PASSWORD@HOST`, or `redis://:PASSWORD@HOST`");
    }
    Ok((user, password))
}

fn read_db(text: Option<&str>) -> Result<u16, &'static str> {
    text.map_or(Ok(0), |text| text.parse().map_err(|_| "the database is no number"))
}

fn read_node(place: &str, port: u16) -> Result<(String, u16), &'static str> {
    let bad = "expected a host, or a host and a port";
    let (host, given) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(bad)?;
            (host, rest.strip_prefix(':'))
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return Err(bad);
    }
    Ok((host.to_owned(), given.map_or(Ok(port), |given| given.parse().map_err(|_| bad))?))
}

/// Reads percent-encoding.
fn decode(text: &str) -> Result<String, &'static str> {
    let bad = "a `%` that begins no percent-encoded byte; in a password it is written `%25`";
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad) };
        decoded.push(u8::try_from(high * 16 + low).map_err(|_| bad)?);
    }
    String::from_utf8(decoded).map_err(|_| "a user or a password that is no UTF-8")
}

impl fmt::Display for Address {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss" } else { "redis" })?;
        f.write_str(match &self.kind {
            Kind::Server { .. } => "",
            Kind::Sentinel { .. } => "-sentinel",
            Kind::Cluster => "-cluster",
        })?;
        for (number, (host, port)) in self.nodes.iter().enumerate() {
            f.write_str(if number == 0 { "://" } else { "," })?;
            if host.contains(':') { write!(f, "[{host}]:{port}")? } else { write!(f, "{host}:{port}")? }
        }
        match &self.kind {
            Kind::Server { db } => write!(f, "/{db}"),
            Kind::Sentinel { primary, db } => write!(f, "/{primary}/{db}"),
            Kind::Cluster => Ok(()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_it_is_and_never_the_secret() {
        for (text, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("valkeys://u:p%40%2f@cache.example:7000/3", "rediss://cache.example:7000/3"),
            ("redis://:p@[::1]:7000/", "redis://[::1]:7000/0"),
            ("redis-sentinel://:p@a,b:27000/main/2", "redis-sentinel://a:26379,b:27000/main/2"),
            ("rediss-cluster://a:1,b:2,c", "rediss-cluster://a:1,b:2,c:6379"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.to_string(), format!("{address:?}")), (shown.to_owned(), shown.to_owned()));
        }
        let address = Address::parse("redis://us%65r:p%40%2f@h").unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("user"), Some("p@/")));
    }

    #[test]
    fn refuses_what_it_can_not_follow() {
        for text in [
            "127.0.0.1:6379",
            "http://h",
            "redis-other://h",
            "redis://",
            "redis://h:x",
            "redis://h/x",
            "redis://h/0/1",
            "redis://a,b",
            "redis://u@h",
            "redis://u:%zz@h",
            "redis://u:%f@h",
            "redis://h?db=1",
            "redis://u:p#q@h",
            "redis://h /0",
            "redis-sentinel://h",
            "redis-sentinel://h/main/x",
            "redis-cluster://h/1",
            "redis-cluster://a,,b",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
