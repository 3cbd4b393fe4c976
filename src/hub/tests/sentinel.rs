//! A primary with a replica and a Sentinel that watches over them.

use std::process::{Child, Command, Stdio};

use super::cluster::wait_a_moment;
use super::server::{Server, free_port};

/// The three of them, which end with this.
#[derive(Debug)]
pub(crate) struct Watched {
    primary: Server,
    replica: Server,
    sentinel: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Watched {
    /// `None` where there is no program for it, which is a failure in CI.
    pub(crate) fn start() -> Option<Self> {
        let primary = Server::start()?;
        let port = primary.port.to_string();
        let replica =
            Server::start_on(free_port(), &["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"])?;
        let (folder, at) = (tempfile::tempdir().unwrap(), free_port());
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {at}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n",
            folder.path().display()
        );
        std::fs::write(&file, text).unwrap();
        let mut sentinel = Command::new("redis-server");
        let sentinel =
            sentinel.arg(&file).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let watched = Self { primary, replica, sentinel, port: at, _folder: folder };
        // Only a Sentinel that knows the replica can promote it.
        watched.until_told(at, &["sentinel", "replicas", "main"], "master-link-status\nok");
        Some(watched)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/main", self.port)
    }

    pub(crate) fn until_the_replica_has_all(&self) {
        self.until_told(self.primary.port, &["wait", "1", "1000"], "1");
        self.until_told(self.replica.port, &["info", "replication"], "master_link_status:up");
    }

    pub(crate) fn kill_the_primary(&self) {
        self.primary.signal("KILL");
    }

    fn until_told(&self, port: u16, asked: &[&str], expected: &str) {
        loop {
            let told = Command::new("redis-cli").args(["-p", &port.to_string()]).args(asked).output().unwrap();
            if String::from_utf8_lossy(&told.stdout).contains(expected) {
                return;
            }
            wait_a_moment();
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.sentinel.kill());
        drop(self.sentinel.wait());
    }
}
