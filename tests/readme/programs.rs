//! The programs of this package, run as anybody runs them.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taskgate::jobs::Jobs;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

/// How long anything may take. Nothing depends on how long it does.
const PATIENCE: Duration = Duration::from_secs(60);

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
const DEMO_SERVER: &str = env!("CARGO_BIN_EXE_demo_server");

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// A command in the project's folder, with both programs in its path and nothing of ours in its environment.
fn command(program: &str, environment: &[(&str, &str)]) -> Command {
    let mut path = OsString::from(std::path::Path::new(DEMO_SERVER).parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.current_dir(super::root()).env("PATH", path).stdin(Stdio::null());
    for name in ["KEY", "ADMIN_TOKEN", "REPORTS_KEY", "UPSTREAM", "LISTEN", "ADMIN"] {
        command.env_remove(format!("TASKGATE_{name}"));
    }
    command.envs(environment.iter().copied());
    command
}

/// Runs `taskgate` to its end.
pub(crate) fn taskgate(arguments: &[impl AsRef<str>], environment: &[(&str, &str)]) -> Ended {
    let mut command = command(TASKGATE, environment);
    let ended = command.args(arguments.iter().map(AsRef::as_ref)).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: ended.status.code().unwrap_or(-1), output: text(ended.stdout), errors: text(ended.stderr) }
}

/// A program that runs until it is told to stop.
pub(crate) struct Running {
    child: Child,
    /// Where it serves MCP.
    pub(crate) url: String,
    signal: Signal,
}

impl Running {
    /// The demo server; the last `--listen` must be a free port.
    pub(crate) async fn server(arguments: &[&str]) -> Self {
        Self::start(DEMO_SERVER, arguments, &[], "listens on ", Signal::INT).await
    }

    /// `taskgate serve` with these arguments, on free ports.
    pub(crate) async fn gateway(arguments: &[impl AsRef<str>], environment: &[(&str, &str)]) -> Self {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        all.extend(arguments.iter().map(AsRef::as_ref));
        Self::start(TASKGATE, &all, environment, "url=", Signal::TERM).await
    }

    /// `taskgate serve` as that file says, with its addresses.
    pub(crate) async fn configured(path: &str, environment: &[(&str, &str)]) -> Self {
        Self::start(TASKGATE, &["serve", "--config", path], environment, "url=", Signal::TERM).await
    }

    async fn start(
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
        before: &str,
        signal: Signal,
    ) -> Self {
        let mut command = tokio::process::Command::from(command(program, environment));
        let mut child = command.args(arguments).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let announced = async {
            let mut seen = String::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, url)) = line.split_once(before) {
                    return url.split_whitespace().next().unwrap().to_owned();
                }
                seen.push_str(&format!("{line}\n"));
            }
            panic!("{program} {arguments:?} ended:\n{seen}")
        };
        let url = tokio::time::timeout(PATIENCE, announced).await.expect("it says where it serves");
        // What it says later must be read, or it would wait for a reader.
        Jobs::default().spawn("stderr", async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, url, signal }
    }

    /// Its host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().split('/').next().unwrap()
    }

    /// Tells it to stop, which must be a clean end.
    pub(crate) async fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, self.signal).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it stops").unwrap();
        assert_eq!(ended.code(), Some(0));
    }
}
