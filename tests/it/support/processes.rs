//! Processes of this machine, found by a word of their command line.

use std::fs;
use std::path::Path;

use super::within;

/// The ids of the processes that have this argument, zombies left out.
pub(crate) fn with_argument(argument: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|found| found == argument.as_bytes())
    })
    .collect()
}

/// Waits until so many processes have this argument.
#[track_caller]
pub(crate) fn until_there_are(count: usize, argument: &str) -> impl Future<Output = Vec<u32>> {
    within(async move {
        loop {
            let found = with_argument(argument);
            if found.len() == count {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
}

/// Whether a process is there, be it as a zombie.
pub(crate) fn exists(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

/// How many files a process has open.
pub(crate) fn open_files(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count)
}

/// The resident memory of a process in KiB.
pub(crate) fn resident(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Sends a signal to a process of this test's own.
pub(crate) fn signal(id: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
}
