//! The rounds: every run of a case in turn, again and again, so that what moves the machine moves all of them.

#![expect(clippy::print_stdout, reason = "a bench is read where it is run")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cases::{self, Case, Run};
use crate::plan::{Plan, Sample};
use crate::stand::{Stand, Target};
use crate::{nginx, process, redis, report};

/// What to measure and for how long.
pub(crate) struct Options {
    pub(crate) cases: Vec<String>,
    pub(crate) targets: Vec<Target>,
    pub(crate) taskgate: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) warm_up: f64,
    pub(crate) seconds: f64,
    /// Held tasks, few and many.
    pub(crate) held_tasks: (usize, usize),
    pub(crate) held_calls: usize,
    pub(crate) finished: usize,
    /// Tasks that are read in turn.
    pub(crate) polled: usize,
    /// Tasks that a disk has when its gateway starts.
    pub(crate) kept: usize,
}

/// Files that a process needs beside one for each call it holds.
const SPARE_FILES: usize = 500;

impl Options {
    pub(crate) fn full() -> Self {
        Self {
            cases: Vec::new(),
            targets: Vec::new(),
            taskgate: PathBuf::new(),
            rounds: 5,
            warm_up: 0.5,
            seconds: 2.5,
            held_tasks: (1_000, 10_000),
            held_calls: 5_000,
            finished: 50_000,
            polled: 10_000,
            kept: 1_000_000,
        }
    }

    /// Everything once and small: it shows that the bench works, and measures nothing.
    pub(crate) fn quick() -> Self {
        let seconds = 0.2;
        Self {
            rounds: 1,
            warm_up: 0.1,
            seconds,
            held_tasks: (50, 200),
            held_calls: 100,
            finished: 500,
            polled: 500,
            kept: 5_000,
            ..Self::full()
        }
    }

    /// A held task takes one file of the proxy and a held plain call two.
    fn within(&self, files: usize) -> (usize, usize) {
        let free = files.saturating_sub(SPARE_FILES);
        (self.held_tasks.1.min(free), self.held_calls.min(free / 2))
    }
}

/// The samples of one round, by run.
pub(crate) type Round = BTreeMap<&'static str, Sample>;

/// Runs the cases and prints what came of them.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut targets = options.targets.clone();
    if targets.contains(&Target::Nginx) && !nginx::is_installed() {
        println!("nginx is not installed (Debian package nginx): its rows are left out\n");
        targets.retain(|target| *target != Target::Nginx);
    }
    if targets.contains(&Target::TaskgateRedis) && !redis::is_installed() {
        println!("redis is not installed (Debian package redis-server): its rows are left out\n");
        targets.retain(|target| *target != Target::TaskgateRedis);
    }
    let files = process::most_files()?;
    if options.within(files) != (options.held_tasks.1, options.held_calls) {
        bail!("a process may open {files} files only: too few for {} held calls", options.held_tasks.1);
    }
    let mut summary = Vec::new();
    let mut failed = Vec::new();
    for mut case in wanted(options)? {
        case.runs.retain(|run| targets.contains(&run.target));
        if case.runs.is_empty() {
            continue;
        }
        match rounds(&case, options).await {
            Ok(rounds) => {
                report::case(&case, &rounds, options);
                summary.extend(report::verdicts(&case, &rounds));
            }
            Err(error) => {
                println!("{}: {error:#}\n", case.name);
                failed.push(case.name);
            }
        }
    }
    report::summary(&summary);
    if failed.is_empty() { Ok(()) } else { bail!("not measured: {}", failed.join(", ")) }
}

/// The cases of that name, or else those whose names hold it.
fn wanted(options: &Options) -> Result<Vec<Case>> {
    let mut cases = cases::all(options);
    let exact: Vec<_> = cases.iter().map(|case| case.name).collect();
    let matches = |case: &Case, wanted: &String| {
        if exact.contains(&wanted.as_str()) { case.name == wanted } else { case.name.contains(wanted.as_str()) }
    };
    for name in &options.cases {
        if !cases.iter().any(|case| matches(case, name)) {
            bail!("no case is called {name}; there are {}", exact.join(", "));
        }
    }
    cases.retain(|case| options.cases.is_empty() || options.cases.iter().any(|name| matches(case, name)));
    Ok(cases)
}

async fn rounds(case: &Case, options: &Options) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    // To fill a disk takes minutes.
    let count = if case.setup.kept > 0 { 1 } else { options.rounds };
    for at in 0..count {
        let mut round = Round::new();
        // Each round starts with another run, so that none always follows the same one.
        let turn = at % case.runs.len();
        for run in case.runs.iter().cycle().skip(turn).take(case.runs.len()) {
            let sample = once(case, *run, options).await.with_context(|| format!("round {}, {}", at + 1, run.label))?;
            round.insert(run.label, sample);
        }
        rounds.push(round);
    }
    Ok(rounds)
}

async fn once(case: &Case, run: Run, options: &Options) -> Result<Sample> {
    let mut stand = Stand::start(run.target, case.setup, &options.taskgate).await?;
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let plan = Plan {
        action: run.action,
        era: case.setup.clients,
        key: None,
        proxy: nowhere,
        other: None,
        upstream: nowhere,
        watch: None,
        warm_up: options.warm_up,
        seconds: options.seconds,
    };
    stand.load(run.target, plan).await
}
