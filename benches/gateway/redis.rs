//! A Redis server with nothing in it, which writes nothing to disk: what is measured is the gateway.

use std::net::SocketAddr;
use std::path::Path;

/// Whether there is one.
pub(crate) fn is_installed() -> bool {
    std::process::Command::new("redis-server").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What it is started with.
pub(crate) fn arguments(address: SocketAddr, dir: &Path) -> Vec<String> {
    let (ip, port, dir) = (address.ip().to_string(), address.port().to_string(), dir.display().to_string());
    let pairs = [("--bind", ip.as_str()), ("--port", &port), ("--save", ""), ("--appendonly", "no"), ("--dir", &dir)];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]).collect()
}
