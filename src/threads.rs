//! The threads that serve connections. Each has a runtime of its own and its own connections to upstreams, so that a call
//! and its answer stay on one thread and wake no other.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::jobs::Jobs;

thread_local! {
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of this thread, below [`count`], if it is one of those that serve connections.
#[must_use]
pub fn number() -> Option<usize> {
    NUMBER.get()
}

/// How many threads serve connections: one for each core.
#[must_use]
pub fn count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub struct Threads {
    threads: Vec<Thread>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    jobs: Arc<AtomicUsize>,
    /// Resolves when the thread's runtime is gone.
    ended: oneshot::Receiver<()>,
}

impl Threads {
    /// Starts them.
    ///
    /// # Errors
    /// When the system gives no thread, or no file for its runtime.
    pub fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let threads = (0..count).map(|number| Thread::start(number, stop.clone())).collect::<io::Result<_>>();
        // Those that were started already must not be left behind.
        let threads = threads.inspect_err(|_| stop.cancel())?;
        Ok(Self { threads, stop })
    }

    /// Starts a job on the thread that has the fewest, where it stays; without threads, on the caller's runtime.
    pub fn spawn<F>(&self, jobs: &Jobs, name: &'static str, job: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(thread) = self.threads.iter().min_by_key(|thread| thread.jobs.load(Ordering::Relaxed)) else {
            jobs.spawn(name, job);
            return;
        };
        let counted = Counted::new(&thread.jobs);
        jobs.spawn_on(&thread.runtime, name, async move {
            let _counted = counted;
            job.await;
        });
    }

    /// Ends them, with whatever still runs there, and waits until they are gone.
    pub async fn stop(mut self) {
        self.stop.cancel();
        join_all(self.threads.drain(..).map(|thread| thread.ended)).await;
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Thread {
    fn start(number: usize, stop: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        // What is logged there goes where the starter's lines go.
        let log = tracing::dispatcher::get_default(Clone::clone);
        std::thread::Builder::new().name(format!("taskgate-{number}")).spawn(move || {
            NUMBER.set(Some(number));
            let _log = tracing::dispatcher::set_default(&log);
            runtime.block_on(stop.cancelled());
            // A name that is being looked up must not keep the process.
            runtime.shutdown_background();
            drop(end);
        })?;
        Ok(Self { runtime: handle, jobs: Arc::default(), ended })
    }
}

/// One job of a thread, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(jobs: &Arc<AtomicUsize>) -> Self {
        jobs.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(jobs))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn jobs_are_spread_and_stay() {
        let (threads, jobs) = (Threads::start(count()).unwrap(), Jobs::default());
        let (seen, mut numbers) = mpsc::channel(64);
        for _ in 0..2 * count() {
            let seen = seen.clone();
            threads.spawn(&jobs, "counted", async move {
                let before = number();
                tokio::task::yield_now().await;
                seen.send((before, number())).await.unwrap();
                std::future::pending::<()>().await;
            });
        }
        let mut on = vec![0; count()];
        for _ in 0..2 * count() {
            let (before, after) = numbers.recv().await.unwrap();
            assert_eq!(before, after);
            on[before.unwrap()] += 1;
        }
        assert_eq!(on, vec![2; count()]);
        assert_eq!(number(), None);
        threads.stop().await;
        assert_eq!(jobs.running(), 0);
    }
}
