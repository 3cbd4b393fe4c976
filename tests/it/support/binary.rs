//! The gateway and its fixture as processes of their own: for signals, exit codes, open files and memory.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::Signal;
use taskgate::jobs::Jobs;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::client::Opening;
use super::processes::{open_files, resident, signal};
use super::{Connection, Exposition, within};

/// A running `taskgate serve`. It is killed when it is dropped.
pub(crate) struct Binary {
    child: Child,
    /// Its log so far. It is read all the time: a full pipe would stop the process.
    log: watch::Receiver<Vec<String>>,
    /// How many lines [`Binary::says`] has passed.
    passed: usize,
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
        Self::start_with(&["--log-level", "info"], file.path(), address, admin).await
    }

    /// The same, and this file has all authorities that it trusts.
    pub(crate) async fn start_trusting(authorities: &Path, sections: &str) -> Self {
        let (address, admin) = (free(), free());
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("listen: {{address: \"{address}\"}}\nadmin: {{address: \"{admin}\"}}\n{sections}");
        std::fs::write(file.path(), yaml).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        program.env("SSL_CERT_FILE", authorities);
        Self::start_as(program, &["--log-level", "info"], file.path(), address, admin).await
    }

    /// Starts it with a configuration that it can't serve; its exit code and what it said.
    pub(crate) async fn fails(sections: &str) -> (Option<i32>, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = format!("listen: {{address: \"{}\"}}\nadmin: {{address: \"{}\"}}\n{sections}", free(), free());
        std::fs::write(file.path(), yaml).unwrap();
        let mut serve = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        let ended = serve.args(["serve", "--config"]).arg(file.path()).kill_on_drop(true).output().await.unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    }

    /// Starts it with these arguments before `serve`, and a whole file but for the two addresses, and waits until it serves.
    pub(crate) async fn start_on(arguments: &[&str], file: &Path) -> Self {
        Self::start_with(arguments, file, free(), free()).await
    }

    async fn start_with(arguments: &[&str], file: &Path, address: SocketAddr, admin: SocketAddr) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        Self::start_as(program, arguments, file, address, admin).await
    }

    async fn start_as(
        mut program: Command,
        arguments: &[&str],
        file: &Path,
        address: SocketAddr,
        admin: SocketAddr,
    ) -> Self {
        let mut child = program
            .args(arguments)
            .args(["serve", "--listen", &address.to_string(), "--admin", &admin.to_string(), "--config"])
            .arg(file)
            // Memory that the allocator keeps for each thread is not the program's.
            .env("MALLOC_ARENA_MAX", "1")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (heard, log) = watch::channel(Vec::new());
        Jobs::default().spawn("log", async move {
            while let Ok(Some(line)) = lines.next_line().await {
                heard.send_modify(|heard| heard.push(line));
            }
        });
        let id = child.id().unwrap();
        let mut binary = Self { child, log, passed: 0, id, address, admin };
        binary.says("serving").await;
        binary
    }

    /// Waits for the next line of the log that has this in it.
    pub(crate) async fn says(&mut self, wanted: &str) {
        let passed = self.passed;
        let place = |log: &Vec<String>| log.iter().skip(passed).position(|line| line.contains(wanted));
        let found = within(self.log.wait_for(|log| place(log).is_some())).await.map(|log| place(&log).unwrap());
        match found {
            Ok(found) => self.passed += found + 1,
            Err(_) => panic!("it ended without saying `{wanted}`: {:#?}", *self.log.borrow()),
        }
    }

    /// Everything that it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.borrow().join("\n")
    }

    /// Waits until it exits.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        within(self.child.wait()).await.unwrap()
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(self.id, which);
    }

    pub(crate) fn client(&self) -> Opening {
        Opening::at(self.address)
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
