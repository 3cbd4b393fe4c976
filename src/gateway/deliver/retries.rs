//! Claims, and their ends, of which the store did not say whether they were written: each is told again until it says so. A
//! question that nobody was shown does not wait for an answer.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use crate::task::{ApplyError, Event, Ledger, Owner, Progress, Task, TaskId};

use super::Deliveries;
use crate::gateway::Gateway;
use crate::gateway::session::Stream;

/// So many are remembered; what is more waits for the timeout of its question.
const MOST: usize = 65_536;
/// How soon is told again what the store did not take.
const AGAIN: Duration = Duration::from_secs(1);

/// A change that is not known to be written.
#[derive(Debug, Clone)]
pub(super) enum Retry {
    /// The claim of the question of that number for a stream of this process. Nothing is on the stream yet.
    Claim(u32, Fading),
    /// The release of what the stream of that number had claimed: it is closed.
    Release(u64),
    /// The release of what streams had claimed that went with their process; which ones, the record says.
    ReleaseDead,
}

/// A stream that is there as long as somebody else has it: it ends when it is over, whatever is in doubt about it.
#[derive(Debug, Clone)]
pub(super) struct Fading {
    number: u64,
    events: mpsc::WeakSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    over: Arc<Mutex<bool>>,
}

impl Fading {
    pub(super) fn of(stream: &Stream) -> Self {
        let Stream { number, events, waiting, over } = stream;
        Self { number: *number, events: events.downgrade(), waiting: Arc::clone(waiting), over: Arc::clone(over) }
    }

    fn stream(&self) -> Option<Stream> {
        let (waiting, over) = (Arc::clone(&self.waiting), Arc::clone(&self.over));
        Some(Stream { number: self.number, events: self.events.upgrade()?, waiting, over })
    }
}

/// Each is of one task; of one stream there is a claim of each question, and one release.
type Place = (TaskId, u64, u32);

/// All of this process.
#[derive(Debug, Default)]
pub(super) struct Retries {
    open: Mutex<HashMap<Place, (Arc<Owner>, Retry)>>,
    more: Notify,
}

impl Retries {
    pub(super) fn note(&self, owner: &Arc<Owner>, task: TaskId, retry: Retry) {
        let place = match &retry {
            Retry::Claim(number, stream) => (task, stream.number, *number),
            Retry::Release(stream) => (task, *stream, u32::MAX),
            Retry::ReleaseDead => (task, u64::MAX, u32::MAX),
        };
        let mut open = self.lock();
        if open.len() < MOST {
            open.insert(place, (Arc::clone(owner), retry));
        }
        drop(open);
        self.more.notify_one();
    }

    fn take(&self) -> HashMap<Place, (Arc<Owner>, Retry)> {
        std::mem::take(&mut *self.lock())
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, (Arc<Owner>, Retry)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Tells the store again what it did not take of streams and questions, until jobs are told to stop.
    pub async fn retry_deliveries(self: Arc<Self>) {
        let retrying = async {
            loop {
                self.deliveries.retries.more.notified().await;
                loop {
                    self.deliveries.retry(&self.ledger).await;
                    if self.deliveries.retries.is_empty() {
                        break;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        };
        let _never: Option<()> = self.jobs.stopping().run_until_cancelled(retrying).await;
    }
}

impl Deliveries {
    /// Tells each once more. What the store does not take now either is told again.
    pub(super) async fn retry(&self, ledger: &Ledger) {
        for ((task, ..), (owner, retry)) in self.retries.take() {
            match retry {
                Retry::Claim(number, stream) => self.claim_again(ledger, (&owner, task), number, &stream).await,
                Retry::Release(stream) => self.release_task(ledger, &owner, task, stream).await,
                Retry::ReleaseDead => self.look_for_dead(ledger, &owner, task).await,
            }
        }
    }

    /// Claims a question for a stream that may have it already. Whatever the answer is, a claim that is still under way comes
    /// too late for the version that it names.
    async fn claim_again(&self, ledger: &Ledger, (owner, id): (&Arc<Owner>, TaskId), number: u32, stream: &Fading) {
        let has_it = |task: &Task| {
            let claimed = Progress::Claimed(stream.number);
            task.state.questions().iter().any(|question| question.number == number && question.progress == claimed)
        };
        let task = match ledger.apply(owner, id, Event::Claim { number, stream: stream.number }).await {
            Ok(task) => task,
            Err(ApplyError::Refused { task, .. }) if has_it(&task) => task,
            Err(ApplyError::Store(error)) if !error.is_spoilt() => {
                return self.retries.note(owner, id, Retry::Claim(number, stream.clone()));
            }
            Err(_) => {
                self.disclaim(stream.number, id, number);
                return;
            }
        };
        let question = task.state.questions().iter().find(|question| question.number == number);
        let to = stream.stream().and_then(|to| Some((to.events.clone().try_reserve_owned().ok()?, to)));
        match (question, to) {
            (Some(question), Some((room, to))) => self.show(ledger, &task, question, &to, room).await,
            // It was closed, or has no room: others may have.
            _ => {
                self.disclaim(stream.number, id, number);
                self.release_task(ledger, owner, id, stream.number).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
