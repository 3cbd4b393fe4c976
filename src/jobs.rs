//! The only place where jobs start: each has a name, belongs to the process and ends with it.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TrackedFuture;
use tracing::Instrument;
use tracing::instrument::Instrumented;

/// Starts jobs, tells them to stop, and waits for them. A cheap handle.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    tracker: TaskTracker,
    stopping: CancellationToken,
}

impl Jobs {
    /// Starts a job under a span of that name.
    #[expect(clippy::disallowed_methods, reason = "the one place where jobs start")]
    pub fn spawn<F>(&self, name: &'static str, job: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.named(name, job))
    }

    /// Starts a job under a span of that name in another runtime than the caller's.
    pub fn spawn_on<F>(&self, runtime: &Handle, name: &'static str, job: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        runtime.spawn(self.named(name, job))
    }

    fn named<F: Future>(&self, name: &'static str, job: F) -> TrackedFuture<Instrumented<F>> {
        self.tracker.track_future(job.instrument(tracing::debug_span!("job", name)))
    }

    /// Resolves when jobs are told to stop.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// How many jobs run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Tells every job to stop and waits at most `limit`; gives the number of those that are still running then.
    pub async fn stop(&self, limit: Duration) -> usize {
        self.stopping.cancel();
        self.tracker.close();
        let all_ended = tokio::time::timeout(limit, self.tracker.wait()).await.is_ok();
        if all_ended { 0 } else { self.tracker.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stopping_waits_for_jobs_and_counts_the_stuck() {
        let jobs = Jobs::default();
        let stopping = jobs.stopping().clone();
        jobs.spawn("polite", async move { stopping.cancelled().await });
        jobs.spawn("stuck", std::future::pending::<()>());
        assert_eq!(jobs.running(), 2);
        assert_eq!(jobs.stop(Duration::from_secs(1)).await, 1);
    }
}
