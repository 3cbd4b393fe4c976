//! The measured window: what runs before it warms up, what ends within it counts, and the proxy's CPU is read at both
//! its ends.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::Client;
use crate::plan::{Figure, Plan, Sample};
use crate::process::Tree;

/// From when to when.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    start: Instant,
    stop: Instant,
}

impl Window {
    pub(crate) fn is_over(self, now: Instant) -> bool {
        now >= self.stop
    }

    pub(crate) fn holds(self, ended: Instant) -> bool {
        ended > self.start && ended <= self.stop
    }

    pub(crate) fn begins(self) -> Instant {
        self.start
    }
}

/// The proxy's CPU and the length of the window, as measured.
pub(crate) struct Meter {
    cpu: Option<Duration>,
    took: Duration,
}

impl Meter {
    /// Reports a rate of so many, and the CPU that each of `units` took.
    pub(crate) fn report(&self, sample: &mut Sample, count: usize, units: usize) {
        sample.insert(Figure::PerSecond, count as f64 / self.took.as_secs_f64());
        if let Some(cpu) = self.cpu_each(units) {
            sample.insert(Figure::Cpu, cpu);
        }
    }

    /// Microseconds of CPU for each of so many.
    pub(crate) fn cpu_each(&self, units: usize) -> Option<f64> {
        let cpu = self.cpu?;
        (units > 0).then(|| cpu.as_secs_f64() * 1e6 / units as f64)
    }
}

/// Lets every client work through the window and hands back what each saw.
pub(crate) async fn measure<T, F, W>(plan: &Plan, clients: Vec<Client>, work: W) -> Result<(Vec<T>, Meter)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
    W: Fn(usize, Client, Window) -> F,
{
    let tree = plan.watch.map(Tree::of).transpose()?;
    let start = Instant::now() + plan.warm_up();
    let window = Window { start, stop: start + plan.window() };
    let mut workers = JoinSet::new();
    for (at, client) in clients.into_iter().enumerate() {
        workers.spawn(work(at, client, window));
    }
    let working = async {
        let mut seen = Vec::new();
        while let Some(ended) = workers.join_next().await {
            seen.push(ended??);
        }
        Ok(seen)
    };
    let metering = async {
        sleep_until(window.start).await;
        let (from, before) = (Instant::now(), cpu(tree.as_ref())?);
        sleep_until(window.stop).await;
        let (to, after) = (Instant::now(), cpu(tree.as_ref())?);
        let cpu = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(Meter { cpu, took: to - from })
    };
    timeout(plan.patience(), async { tokio::try_join!(working, metering) })
        .await
        .context("the window has not ended: an answer is missing")?
}

fn cpu(tree: Option<&Tree>) -> Result<Option<Duration>> {
    tree.map(Tree::cpu).transpose()
}

/// Latencies, in nanoseconds.
#[derive(Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn all(of: impl IntoIterator<Item = Self>) -> Self {
        let mut all: Vec<u64> = of.into_iter().flat_map(|latencies| latencies.0).collect();
        all.sort_unstable();
        Self(all)
    }

    /// The percentile in microseconds, of latencies that [`Self::all`] has put in order.
    pub(crate) fn percentile(&self, percent: usize) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        self.0.get((self.0.len() * percent / 100).min(last)).map(|nanos| *nanos as f64 / 1e3)
    }
}
