//! The command line: what each command takes, and its exit code.

mod call;
mod demo;
mod form;
mod login;
mod screen;
mod serve;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::app::App;
use crate::config::Settings;

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
    /// Without it, `serve` writes from info on and the other commands from warn on.
    #[arg(long, global = true)]
    log_level: Option<String>,
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
    Serve(serve::Serve),
    /// Say what a configuration means, or every mistake in it.
    Check(serve::Check),
    /// Call a tool of an MCP server, through a task if asked to, and print its result as JSON.
    Call(call::CallArgs),
    /// Show what taskgate does, with a server of its own.
    Demo(demo::DemoArgs),
}

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    // A wrong command line is answered with the usage and exit code 2.
    let Cli { command, log_format, log_level } = Cli::parse();
    let usual = if matches!(command, Command::Serve(_)) { "info" } else { "warn" };
    if let Err(message) = start_logging(log_format, log_level.as_deref().unwrap_or(usual)) {
        return usage(&message);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("taskgate").build() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("the runtime can't be started: {error}")),
    };
    match command {
        Command::Serve(serve) => runtime.block_on(serve.run()),
        Command::Check(check) => check.run(),
        Command::Call(args) => runtime.block_on(call::run(args)),
        Command::Demo(args) => runtime.block_on(demo::run(args, gateway_for_demo)),
    }
}

/// A gateway on free ports in front of a server.
async fn gateway_for_demo(upstream: String) -> anyhow::Result<(String, App)> {
    let mut settings = Settings::for_upstream_url(&upstream)?;
    settings.listen.address.set_port(0);
    settings.admin.address.set_port(0);
    let app = App::start(&settings).await?;
    Ok((format!("http://{}/mcp", app.address), app))
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
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("logging can't be started: {error}"))
}
