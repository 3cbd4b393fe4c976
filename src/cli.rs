//! The command line: what each command takes, and its exit code.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use crate::app::App;
use crate::config::{self, Settings, describe};

/// The exit code for a bad configuration (sysexits.h, EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;

/// MCP tasks for MCP servers that have none.
#[derive(Debug, Parser)]
#[command(name = "taskgate", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How log lines on stderr look.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Which log lines are written: error, warn, info, debug, trace, or a filter such as `taskgate=debug`.
    #[arg(long, global = true, default_value = "info")]
    log_level: String,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway.
    Serve(Serve),
    /// Say what a configuration means, or every mistake in it.
    Check(Check),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").required(true).args(["config", "upstream", "command"]))]
struct Serve {
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
struct Check {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    // A wrong command line is answered with the usage and exit code 2.
    let Cli { command, log_format, log_level } = Cli::parse();
    match start_logging(log_format, &log_level) {
        Ok(()) => {}
        Err(message) => return usage(&message),
    }
    match command {
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => check.run(),
    }
}

fn usage(message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(2)
}

#[expect(clippy::print_stderr, reason = "a command answers whoever typed it")]
fn complain(message: &str) {
    eprintln!("{}", message.trim_end());
}

fn start_logging(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(level).map_err(|error| format!("--log-level: {error}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("logging can't be started: {error}"))
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("taskgate").build()
}

impl Serve {
    fn settings(&self) -> Result<Settings, config::Errors> {
        let mut settings = match (&self.config, &self.upstream) {
            (Some(file), _) => config::load(file, &environment)?,
            (None, Some(url)) => Settings::for_upstream_url(url)?,
            (None, None) => Settings::for_command(self.command.clone())?,
        };
        settings.listen.address = self.listen.unwrap_or(settings.listen.address);
        settings.admin.address = self.admin.unwrap_or(settings.admin.address);
        Ok(settings)
    }

    fn run(self) -> ExitCode {
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
        let served = runtime().map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(serve(&settings)));
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("taskgate: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }
}

async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let app = App::start(settings).await?;
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
    }
    Ok(())
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
    fn run(self) -> ExitCode {
        match config::load(&self.config, &environment) {
            Ok(settings) => {
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
