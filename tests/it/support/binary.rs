//! The gateway and its fixture as processes of their own: for signals, exit codes, open files and memory.

use std::net::{SocketAddr, TcpListener};
use std::process::{ExitStatus, Stdio};

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use super::client::Opening;
use super::processes::{open_files, resident, signal};
use super::{Connection, Exposition, within};

/// A running `taskgate serve`. It is killed when it is dropped.
pub(crate) struct Binary {
    child: Child,
    log: tokio::io::Lines<BufReader<ChildStderr>>,
    pub(crate) id: u32,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// An address that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Binary {
    /// Starts it with a configuration, given its sections but for `listen` and `admin`, and waits until it serves.
    pub(crate) async fn start(sections: &str) -> Self {
        let (address, admin) = (free(), free());
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("listen: {{address: \"{address}\"}}\nadmin: {{address: \"{admin}\"}}\n{sections}");
        std::fs::write(file.path(), yaml).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_taskgate"))
            .args(["--log-level", "info", "serve", "--config"])
            .arg(file.path())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        let id = child.id().unwrap();
        let mut binary = Self { child, log, id, address, admin };
        binary.says("serving").await;
        binary
    }

    /// Waits for a line of the log that has this in it.
    pub(crate) async fn says(&mut self, wanted: &str) {
        let mut heard = Vec::new();
        loop {
            match within(self.log.next_line()).await.unwrap() {
                Some(line) if line.contains(wanted) => return,
                Some(line) => heard.push(line),
                None => panic!("it ended without saying `{wanted}`: {heard:#?}"),
            }
        }
    }

    /// Reads its log to the end, so that it never waits for a reader, until it exits.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        within(async {
            while let Ok(Some(_)) = self.log.next_line().await {}
            self.child.wait().await.unwrap()
        })
        .await
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.id, which);
    }

    pub(crate) fn client(&self) -> Opening {
        Opening::new(format!("http://{}", self.address))
    }

    pub(crate) async fn metrics(&self) -> Exposition {
        Exposition::fetch(self.admin, None).await
    }

    /// The status and text of a page of the admin address.
    pub(crate) async fn asked(&self, path: &str) -> (u16, String) {
        let mut connection = Connection::open(self.admin).await;
        connection.send(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.admin)).await;
        let answer = connection.answer().await;
        (answer.status, answer.text())
    }

    /// How many files it has open.
    pub(crate) fn open_files(&self) -> usize {
        open_files(self.id)
    }

    /// Its resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        resident(self.id)
    }
}
