//! What the kernel says about a process and its descendants: their CPU time, their memory, their open files.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A clock tick of `/proc`, which Linux fixes at a hundredth of a second for every program.
const TICK: Duration = Duration::from_millis(10);

/// A process with all its descendants, as they were when it was looked at.
#[derive(Debug)]
pub(crate) struct Tree(Vec<u32>);

impl Tree {
    pub(crate) fn of(root: u32) -> Result<Self> {
        let mut parents = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may end while the others are looked at.
            if let Some(parent) = stat(pid).ok().and_then(|stat| stat.get(1)?.parse::<u32>().ok()) {
                parents.insert(pid, parent);
            }
        }
        let mut tree = vec![root];
        let mut at = 0;
        while let Some(&parent) = tree.get(at) {
            tree.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        Ok(Self(tree))
    }

    /// Kills each of them at once.
    pub(crate) fn kill(&self) -> Result<()> {
        let pids = self.0.iter().map(u32::to_string);
        let killed = std::process::Command::new("kill").arg("-KILL").args(pids).status()?;
        ensure!(killed.success(), "a process could not be killed");
        Ok(())
    }

    /// User and system time so far.
    ///
    /// The times of the threads are exact and lack the threads that have ended; those of the process have these too,
    /// in whole ticks. The greater is the better.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let times = self.0.iter().map(|pid| Ok(ticks(*pid)?.max(threads(*pid)?)));
        times.sum()
    }

    /// Resident bytes.
    pub(crate) fn resident(&self) -> Result<f64> {
        let mut bytes = 0.0;
        for pid in &self.0 {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
            let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
            bytes += kib * 1024.0;
        }
        Ok(bytes)
    }

    pub(crate) fn pids(&self) -> &[u32] {
        &self.0
    }
}

fn ticks(pid: u32) -> Result<Duration> {
    let stat = stat(pid)?;
    let mut ticks = 0;
    for field in [11, 12] {
        let field: u32 = stat.get(field).context("a short /proc/PID/stat")?.parse()?;
        ticks += field;
    }
    Ok(TICK * ticks)
}

fn threads(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // Absent where the kernel was built without it, and when the thread ends meanwhile.
        let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let on_cpu: u64 = stat.split_whitespace().next().unwrap_or_default().parse()?;
        nanos += on_cpu;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The fields of `/proc/PID/stat` after the name, which may itself hold spaces: the first is the state.
fn stat(pid: u32) -> Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    let (_, fields) = stat.rsplit_once(')').context("an odd /proc/PID/stat")?;
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

/// How many files a process may open once it has raised its own limit.
pub(crate) fn most_files() -> Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).context("no limit of open files")?;
    let hard = line.split_whitespace().nth(1).context("no hard limit of open files")?;
    Ok(hard.parse().unwrap_or(1_000_000))
}
