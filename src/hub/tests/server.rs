//! A Redis server for tests: one for the test process, and ones of a test's own that it may stop.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::hub::Hub;
use crate::hub::address::Address;
use crate::jobs::Jobs;

/// A running server, which ends with this.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// A server of one's own; `None` where there is no program for it, which is a failure in CI.
    pub(crate) fn start() -> Option<Self> {
        Self::start_on(free_port(), &[])
    }

    pub(crate) fn start_on(port: u16, options: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"];
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string()])
            .args(fixed)
            .arg(folder.path())
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self { child, port, _folder: folder }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "redis-server can't be started: {error}");
                eprintln!("skipped: redis-server can't be started: {error}");
                None
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap().local_addr().unwrap().port()
}

/// A server that all tests of the process share.
pub(crate) fn shared_url() -> Option<String> {
    static SHARED: OnceLock<Option<u16>> = OnceLock::new();
    let port = SHARED.get_or_init(ending_with_us).as_ref()?;
    Some(format!("redis://127.0.0.1:{port}"))
}

/// A hub of a prefix that nobody else has, on that server.
pub(crate) fn shared() -> Option<(Hub, Jobs)> {
    let jobs = Jobs::default();
    Some((connected(&shared_url()?, &jobs), jobs))
}

/// A hub of a prefix that nobody else has.
pub(crate) fn connected(url: &str, jobs: &Jobs) -> Hub {
    connected_as(url, &prefix(), jobs)
}

pub(crate) fn connected_as(url: &str, prefix: &str, jobs: &Jobs) -> Hub {
    Hub::start(Address::parse(url).unwrap(), prefix, jobs)
}

pub(crate) fn prefix() -> String {
    format!("test{}", uuid::Uuid::new_v4().simple())
}

/// Starts a server that ends when this process has: its supervisor waits for the end of a pipe.
#[expect(clippy::zombie_processes, reason = "it outlives the process by a moment, so that nobody can wait for it")]
fn ending_with_us() -> Option<u16> {
    let port = free_port();
    let folder = std::env::temp_dir();
    let script = format!(
        "redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no --dir {} >/dev/null 2>&1 & server=$!; \
         cat >/dev/null; kill $server",
        folder.display()
    );
    if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "redis-server is not installed");
        eprintln!("skipped: redis-server is not installed");
        return None;
    }
    let mut child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    // Held open until the process ends.
    std::mem::forget(child.stdin.take());
    Some(port)
}

/// Long enough for a machine that does many things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
