//! A Redis of the test's own, which keeps what it has acknowledged.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::{PATIENCE, within};

/// The server. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Redis {
    _child: Child,
    _folder: TempDir,
    pub(crate) address: SocketAddr,
}

/// Whether there is such a program; in CI there must be.
pub(crate) fn is_there() -> bool {
    let found = std::process::Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    assert!(is_there || std::env::var("CI").as_deref() != Ok("true"), "CI needs redis-server");
    if !is_there {
        println!("skipped: there is no redis-server");
    }
    is_there
}

/// Whose lease runs, who is looked after when it does not, and each unfinished task with its state, holder and epoch.
const HELD: &str = "EVAL \"local told = {'leases:', unpack(redis.call('KEYS', '{*}:lease:*'))} \
    for _, of in ipairs(redis.call('KEYS', '{*}:of:*')) do told[#told + 1] = of end \
    told[#told + 1] = 'holders: ' .. table.concat(redis.call('SMEMBERS', '{taskgate}:holders'), ' ') \
    for _, key in ipairs(redis.call('KEYS', '{*}:t:*')) do \
      local of = redis.call('HMGET', key, 's', 'h', 'e') \
      if of[1] ~= 'e' then told[#told + 1] = key .. ' ' .. table.concat(of, ' ') end \
    end \
    return told\" 0";

/// What the server at that address knows of who holds what.
pub(crate) async fn held(address: SocketAddr) -> String {
    let said = say(address, HELD).await.unwrap_or_default();
    said.lines().filter(|line| !line.starts_with(['$', '*'])).collect::<Vec<_>>().join("\n")
}

async fn say(address: SocketAddr, line: &str) -> Option<String> {
    let saying = async {
        let mut socket = TcpStream::connect(address).await.ok()?;
        // It hangs up when it has said everything.
        socket.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).await.ok()?;
        let mut said = String::new();
        socket.read_to_string(&mut said).await.ok()?;
        said.strip_suffix("+OK\r\n").map(str::to_owned)
    };
    tokio::time::timeout(PATIENCE, saying).await.ok()?
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir", folder.path().to_str().unwrap()])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let redis = Self { _child: child, _folder: folder, address };
        within("a redis-server that answers", async {
            while redis.say("PING").await.is_none_or(|said| !said.starts_with("+PONG")) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        redis
    }

    /// Says one line to it; what it says to that.
    pub(crate) async fn say(&self, line: &str) -> Option<String> {
        say(self.address, line).await
    }

    /// Makes it follow another one, or nobody.
    pub(crate) async fn follow(&self, leader: Option<SocketAddr>) {
        let line = match leader {
            Some(leader) => format!("REPLICAOF {} {}", leader.ip(), leader.port()),
            None => "REPLICAOF NO ONE".to_owned(),
        };
        assert_eq!(self.say(&line).await.as_deref(), Some("+OK\r\n"));
    }

    /// How far its log of changes goes, as it calls it itself.
    async fn offset(&self, name: &str) -> Option<u64> {
        let said = self.say("INFO replication").await?;
        said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    }

    /// Waits until it has everything that its leader has now.
    pub(crate) async fn is_in_step_with(&self, leader: &Self) {
        within("a replica in step", async {
            let wanted = loop {
                if let Some(wanted) = leader.offset("master_repl_offset").await {
                    break wanted;
                }
            };
            while self.offset("slave_repl_offset").await.is_none_or(|offset| offset < wanted) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
