//! The bench: what taskgate costs, as ratios to the smallest proxy that could stand in its place.
//!
//! `cargo bench --bench gateway` starts, on loopback and each in a process of its own, an upstream, the proxies to
//! compare and a load generator, and prints medians of interleaved rounds beside the targets. It asserts no time:
//! a figure missed is printed as missed. `docs/performance.md` says what each figure means.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench is read where it is run")]

mod cases;
mod child;
mod client;
mod fill;
mod floor;
#[path = "../../tests/it/support/keys.rs"]
#[expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "it is the tests' file; a bench without its key can't go on"
)]
mod keys;
mod listen;
mod load;
mod nginx;
mod noise;
mod plan;
mod process;
mod redis;
mod report;
mod rounds;
mod stand;
mod tasks;
mod upstream;
mod window;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::plan::Era;
use crate::rounds::Options;
use crate::stand::Target;

#[derive(Debug, Parser)]
#[command(about = "What taskgate costs, as ratios to the smallest proxy")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Smoke run: seconds instead of minutes, figures that mean nothing
    #[arg(long)]
    quick: bool,
    /// Only the case of this name, or those whose names hold it; may be given more than once
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Rounds of every case; the figures are medians over them
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Seconds of each measured window
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// The gateway to measure
    #[arg(long, value_name = "PATH", default_value = env!("CARGO_BIN_EXE_taskgate"))]
    taskgate: PathBuf,
    /// What to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "direct,floor,nginx,taskgate,taskgate-jwt,ruled,taskgate-disk,taskgate-full,taskgate-redis"
    )]
    targets: Vec<Target>,
    /// Names the cases and stops
    #[arg(long)]
    list: bool,
    /// Passed by `cargo bench`; means nothing
    #[arg(long, hide = true)]
    bench: bool,
}

/// The programs that the bench starts from itself.
#[derive(Debug, Subcommand)]
enum Role {
    /// The server behind every proxy
    #[command(hide = true)]
    Upstream { era: Era },
    /// The smallest proxy
    #[command(hide = true)]
    Floor { upstream: SocketAddr },
    /// Makes a disk store with so many tasks that have ended
    #[command(hide = true)]
    Fill { folder: PathBuf, count: usize },
    /// Carries out one plan and prints what it saw as JSON
    #[command(hide = true)]
    Load { plan: String },
}

fn main() -> ExitCode {
    match act(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(arguments: Arguments) -> Result<()> {
    match arguments.role {
        // One thread each, so that on few cores the proxy in the middle is what has to be shared out.
        Some(Role::Upstream { era }) => one_thread()?.block_on(upstream::run(era)),
        Some(Role::Fill { folder, count }) => {
            Builder::new_multi_thread().enable_all().build()?.block_on(fill::run(&folder, count))
        }
        Some(Role::Load { plan }) => one_thread()?.block_on(load::run(&plan)),
        Some(Role::Floor { upstream }) => {
            Builder::new_multi_thread().enable_all().build()?.block_on(floor::run(upstream))
        }
        None if arguments.list => {
            cases::names().for_each(|name| println!("{name}"));
            Ok(())
        }
        None => one_thread()?.block_on(until_signalled(options(arguments))),
    }
}

fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn options(arguments: Arguments) -> Options {
    let mut options = if arguments.quick { Options::quick() } else { Options::full() };
    options.cases = arguments.cases;
    options.targets = arguments.targets;
    options.taskgate = arguments.taskgate;
    options.rounds = arguments.rounds.unwrap_or(options.rounds).max(1);
    options.seconds = arguments.seconds.unwrap_or(options.seconds).clamp(0.1, 600.0);
    options
}

/// Dropping the run is what ends its children, so a signal must drop it instead of ending the process.
async fn until_signalled(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        ended = rounds::run(&options) => ended,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}
