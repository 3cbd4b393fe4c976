//! Processes that the bench starts: each ends by its own id when its guard is dropped, however the run ended.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child as Process, Command};
use tokio::time::timeout;

use crate::process::Tree;

/// Raises the soft limit of open files to the hard one, which a held call on either side uses up one by one.
const RAISE: &str = r#"ulimit -n "$(ulimit -Hn)" || :; exec "$@""#;
const PATIENCE: Duration = Duration::from_secs(10);
const STOP_POLLS: u32 = 200;

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At once: it has nothing to tidy up and nothing below it.
    Kill,
    /// Asked first: its workers outlive it otherwise.
    Ask,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    name: String,
    end: End,
}

impl Child {
    /// Starts a program; what it prints goes to `log`.
    pub(crate) fn start(name: &str, program: &Path, arguments: &[String], log: &Path, end: End) -> Result<Self> {
        let mut command = raised(program, arguments);
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { process, name: name.to_owned(), end })
    }

    /// Starts a role of this program and reads the address that it prints.
    pub(crate) async fn role(arguments: &[String]) -> Result<(Self, String)> {
        let name = arguments.first().context("no role")?.clone();
        let mut command = raised(&std::env::current_exe()?, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let stdout = process.stdout.take().context("no stdout")?;
        let child = Self { process, name, end: End::Kill };
        let mut line = String::new();
        timeout(PATIENCE, BufReader::new(stdout).read_line(&mut line))
            .await
            .with_context(|| format!("{} does not say its address", child.name))??;
        Ok((child, line.trim().to_owned()))
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Fails when the process is gone, with what it said last.
    pub(crate) fn still_runs(&mut self, log: &Path) -> Result<()> {
        let Some(status) = self.process.try_wait()? else {
            return Ok(());
        };
        bail!("{} ended with {status}: {}", self.name, tail(log))
    }

    /// Waits until it is gone; the time is short and bounded, and nothing else is to be done meanwhile.
    #[expect(clippy::disallowed_methods, reason = "a drop cannot await")]
    fn gone(&mut self) -> bool {
        for _ in 0..STOP_POLLS {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(pid) = self.process.id() else { return };
        if self.end == End::Ask {
            let below = Tree::of(pid).map(|tree| tree.pids().to_vec()).unwrap_or_default();
            signal("TERM", &[pid]);
            if self.gone() {
                return;
            }
            signal("KILL", &below);
        }
        // An error says that it has ended by itself.
        drop(self.process.start_kill());
        self.gone();
    }
}

fn signal(name: &str, pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    // A process that has ended meanwhile is what is wanted.
    drop(std::process::Command::new("kill").arg(format!("-{name}")).args(pids).stderr(Stdio::null()).status());
}

fn raised(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", RAISE, "sh"]).arg(program).args(arguments).kill_on_drop(true);
    command
}

/// The end of a log, for an error.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let skip = text.chars().count().saturating_sub(2_000);
    text.chars().skip(skip).collect::<String>().trim().to_owned()
}
