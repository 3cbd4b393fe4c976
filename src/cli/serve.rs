//! `serve` and `check`: the two commands that read a configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgGroup, Args};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::app::{self, App};
use crate::config::{self, Settings, describe};

use super::complain;

/// The exit code for a bad configuration (sysexits.h, EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true).args(["config", "upstream", "command"]))]
pub(super) struct Serve {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One route at /mcp in front of this server, without a file.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// The address for clients, instead of the configuration's.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The address for operators, instead of the configuration's.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// One route at /mcp in front of a server that is started with this command and speaks stdio.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Serve {
    fn settings(&self) -> Result<Settings, config::Errors> {
        let mut settings = match (&self.config, &self.upstream) {
            (Some(file), _) => config::load(file, &environment)?.with_programs(Some(file))?,
            (None, Some(url)) => Settings::for_upstream_url(url)?,
            (None, None) => Settings::for_command(self.command.clone())?.with_programs(None)?,
        };
        settings.listen.address = self.listen.unwrap_or(settings.listen.address);
        settings.admin.address = self.admin.unwrap_or(settings.admin.address);
        Ok(settings)
    }

    /// Runs the gateway until a signal.
    pub(super) async fn run(self) -> ExitCode {
        let settings = match self.settings() {
            Ok(settings) => settings,
            Err(errors) => {
                complain(&errors.to_string());
                return ExitCode::from(BAD_CONFIGURATION);
            }
        };
        if settings.admin.token.is_none() && !settings.admin.address.ip().is_loopback() {
            complain("`admin.token` is required unless the admin address is loopback");
            return ExitCode::from(BAD_CONFIGURATION);
        }
        raise_file_limit();
        match serve(&settings).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("taskgate: {error:#}"));
                if app::is_misconfigured(&error) { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::FAILURE }
            }
        }
    }
}

async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hang_up = signal(SignalKind::hangup())?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let app = App::start(settings).await?;
    let look = app.look_at_certificates();
    let (first, stop) = tokio::sync::oneshot::channel::<()>();
    let running = app.run_until(async move { drop(stop.await) });
    let signals = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        drop(first);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::warn!("a second signal: stopping at once");
    };
    tokio::select! {
        () = running => {}
        () = signals => {}
        () = reload(hang_up, look) => {}
    }
    Ok(())
}

/// Takes new certificates. Nobody's held calls are to end because somebody expected more.
async fn reload(mut hang_up: Signal, look: Arc<Notify>) {
    while hang_up.recv().await.is_some() {
        tracing::warn!("SIGHUP: certificates are looked at; the rest of the configuration needs a restart");
        look.notify_one();
    }
    std::future::pending().await
}

/// Each held call and each client is an open file; the limit that a shell sets is for shells.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit on open files could not be raised");
        }
    }
}

impl Check {
    #[expect(clippy::print_stdout, reason = "the command's answer")]
    /// Says what the file means, or what is wrong with it.
    pub(super) fn run(self) -> ExitCode {
        match config::load(&self.config, &environment) {
            Ok(mut settings) => {
                // The file may be for another machine, so this is no mistake in it.
                settings.warnings.extend(settings.missing_programs());
                print!("{}", describe(&settings));
                ExitCode::SUCCESS
            }
            Err(errors) => {
                complain(&errors.to_string());
                ExitCode::FAILURE
            }
        }
    }
}
