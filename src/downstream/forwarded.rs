//! For whom a request speaks that comes through a proxy: `X-Forwarded-For` and `Forwarded` (RFC 7239), where the proxy is
//! trusted. Only logs use it. What stands there about the host or the scheme is believed nowhere: `public_url` says those.

use std::net::{IpAddr, SocketAddr};

use ::http::HeaderMap;
use ::http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Proxies that are believed.
#[derive(Debug, Clone, Default)]
pub struct Trusted(pub Vec<IpNet>);

impl Trusted {
    /// The address of the client: of all hops from the connection's other end backwards, the first that is no trusted
    /// proxy. What stands before that hop anybody may have written.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return peer;
        }
        let (listed, standard) = (headers.contains_key(X_FORWARDED_FOR), headers.contains_key(FORWARDED));
        match (listed, standard) {
            (false, false) => peer,
            (true, false) => self.last(peer, hops(headers, &X_FORWARDED_FOR).map(address)),
            (false, true) => self.last(peer, hops(headers, &FORWARDED).map(for_parameter)),
            // A proxy writes one of them and may let the other one pass as a client wrote it.
            (true, true) => {
                let first = self.last(peer, hops(headers, &X_FORWARDED_FOR).map(address));
                let second = self.last(peer, hops(headers, &FORWARDED).map(for_parameter));
                if first == second { first } else { peer }
            }
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    fn last(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for hop in hops {
            // One that hides its name ends what can be known.
            let Some(hop) = hop else { break };
            client = hop.to_canonical();
            if !self.contains(client) {
                break;
            }
        }
        client
    }
}

/// The elements of a field's lists, the last one first.
fn hops<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).iter().rev();
    lines.flat_map(|line| line.to_str().unwrap_or("unreadable").rsplit(',')).map(str::trim)
}

/// An address with or without a port, in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<IpAddr>().ok();
    text.parse::<SocketAddr>().map(|address| address.ip()).ok().or_else(bare)
}

/// The `for` of an element of `Forwarded`.
fn for_parameter(element: &str) -> Option<IpAddr> {
    let parameters = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = parameters.into_iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let node = node.trim();
    address(node.strip_prefix('"').and_then(|node| node.strip_suffix('"')).unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use ::http::HeaderValue;

    use super::*;

    fn client(peer: &str, fields: &[(&'static str, &str)]) -> String {
        let trusted = Trusted(["10.0.0.0/8", "fd00::/8"].iter().map(|network| network.parse().unwrap()).collect());
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        trusted.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_proxies_are_believed() {
        for name in ["x-forwarded-for", "forwarded"] {
            let value = if name == "forwarded" { "for=192.0.2.1" } else { "192.0.2.1" };
            assert_eq!(client("203.0.113.9", &[(name, value)]), "203.0.113.9");
            assert_eq!(client("10.1.2.3", &[(name, value)]), "192.0.2.1");
            // A socket for both versions shows addresses of the older one so.
            assert_eq!(client("::ffff:10.1.2.3", &[(name, value)]), "192.0.2.1");
        }
        assert_eq!(Trusted::default().client("10.1.2.3".parse().unwrap(), &HeaderMap::new()).to_string(), "10.1.2.3");
    }

    #[test]
    fn the_last_address_that_is_no_proxys_is_the_clients() {
        for (value, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("6.6.6.6, 192.0.2.1", "192.0.2.1"),
            ("6.6.6.6, 192.0.2.1, 10.9.9.9", "192.0.2.1"),
            ("10.8.8.8, 10.9.9.9", "10.8.8.8"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]:4711", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("6.6.6.6, unknown", "10.0.0.1"),
            ("6.6.6.6, unknown, 10.9.9.9", "10.9.9.9"),
            ("6.6.6.6,", "10.0.0.1"),
            ("", "10.0.0.1"),
            ("1.2.3.4.5", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", value)]), expected, "{value}");
        }
        let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.1")];
        assert_eq!(client("10.0.0.1", &lines), "192.0.2.1");
    }

    #[test]
    fn the_standard_field_is_read_as_well() {
        for (value, expected) in [
            ("for=192.0.2.1;proto=https;by=10.0.0.1", "192.0.2.1"),
            ("For=6.6.6.6, proto=http; FOR=\"192.0.2.1:80\"", "192.0.2.1"),
            ("for=\"[2001:db8::1]:80\"", "2001:db8::1"),
            ("for=6.6.6.6, for=_hidden", "10.0.0.1"),
            ("for=6.6.6.6, proto=http", "10.0.0.1"),
            ("for", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[("forwarded", value)]), expected, "{value}");
        }
    }

    #[test]
    fn of_two_that_disagree_neither_is_believed() {
        let both = |first, second| client("10.0.0.1", &[("x-forwarded-for", first), ("forwarded", second)]);
        assert_eq!(both("192.0.2.1", "for=192.0.2.1"), "192.0.2.1");
        assert_eq!(both("192.0.2.1", "for=6.6.6.6"), "10.0.0.1");
    }
}
