//! One child process and all that it starts: a process group that ends as a whole and is always reaped.
//!
//! The only place that knows signals. Nothing can end a group when the gateway itself is killed with SIGKILL; its
//! children see the end of their stdin then.

use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::SignalKind;
use tokio::time::timeout;

/// Names of environment variables that are the gateway's own: its secrets are none of the servers' business.
const OWN_VARIABLES: &[u8] = b"TASKGATE_";

/// A child's three streams.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running child with its process group. Dropping it kills the group.
#[derive(Debug)]
pub(super) struct Group {
    leader: Box<dyn ChildWrapper>,
    reaped: bool,
}

impl Group {
    /// Starts a command in a group of its own. It inherits the gateway's environment but for `TASKGATE_*`, and its
    /// working directory.
    pub(super) fn start(command: &[String]) -> io::Result<(Self, Pipes)> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
        let own = std::env::vars_os().map(|(name, _)| name).filter(|name| is_own_variable(name));
        let mut leader = CommandWrap::with_new(program, |command| {
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            for name in own {
                command.env_remove(name);
            }
        })
        .wrap(KillOnDrop)
        .wrap(ProcessGroup::leader())
        .spawn()?;
        let pipes = (leader.stdin().take(), leader.stdout().take(), leader.stderr().take());
        let group = Self { leader, reaped: false };
        match pipes {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((group, Pipes { stdin, stdout, stderr })),
            _ => Err(io::Error::other("the process has no pipes")),
        }
    }

    /// The process id of the leader, which names the group; `None` once it was seen to have exited.
    pub(super) fn id(&self) -> Option<u32> {
        self.leader.id()
    }

    /// Waits until the leader has exited, whatever others of the group do. Can be dropped and called again.
    pub(super) async fn exited(&mut self) {
        // The inner child: the group's own wait would, where orphans become our children, wait for each of them.
        if let Err(error) = self.leader.inner_mut().wait().await {
            tracing::warn!(%error, "waiting for a server process failed");
        }
    }

    /// Kills every process of the group.
    pub(super) fn kill(&mut self) {
        // Fails when none is left, which is as well.
        let _gone = self.leader.start_kill();
    }

    /// Ends the group; its stdin must be closed. Waits for `grace`, asks with SIGTERM, waits again, kills what is left.
    pub(super) async fn end(mut self, grace: Duration) -> Option<ExitStatus> {
        if timeout(grace, self.exited()).await.is_err() {
            tracing::debug!("a server process has not ended with its stdin and is sent SIGTERM");
            // Fails only when none is left.
            let _gone = self.leader.signal(SignalKind::terminate().as_raw_value());
            if timeout(grace, self.exited()).await.is_err() {
                tracing::warn!("a server process has not ended after SIGTERM and is killed");
            }
        }
        self.kill();
        let status = self.leader.wait().await;
        self.reaped = true;
        status.inspect_err(|error| tracing::warn!(%error, "a server process could not be reaped")).ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
        }
    }
}

fn is_own_variable(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OWN_VARIABLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateways_own_variables_are_known_by_name() {
        assert!(is_own_variable(OsStr::new("TASKGATE_KEY")));
        assert!(!is_own_variable(OsStr::new("PATH")));
        assert!(!is_own_variable(OsStr::new("MY_TASKGATE_KEY")));
    }
}
