//! Claims, and their ends, of which the store did not say whether they were written: each is told again until it says so. A
//! question that nobody was shown does not wait for an answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::task::{ApplyError, Event, Ledger, Owner, Progress, Task, TaskId};

use super::Deliveries;
use crate::gateway::Gateway;
use crate::gateway::session::Stream;

/// So many are remembered; what is more waits for the timeout of its question.
const MOST: usize = 65_536;
/// How soon is told again what the store did not take.
const AGAIN: Duration = Duration::from_secs(1);

/// What is not known to be written.
#[derive(Debug, Clone)]
pub(super) enum Doubt {
    /// That a stream of this process has taken the question of that number. Nothing is on the stream yet.
    Claimed(u32, Stream),
    /// That the stream of that number is closed.
    Closed(u64),
    /// That streams went with their process; which ones, the record says.
    Dead,
}

/// Each is of one task; of one stream there is one about each question, and one that it is closed.
type Place = (TaskId, u64, u32);

/// All of this process.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    open: Mutex<HashMap<Place, (Arc<Owner>, Doubt)>>,
    more: Notify,
}

impl Doubts {
    pub(super) fn note(&self, owner: &Arc<Owner>, task: TaskId, doubt: Doubt) {
        let place = match &doubt {
            Doubt::Claimed(number, stream) => (task, stream.number, *number),
            Doubt::Closed(stream) => (task, *stream, u32::MAX),
            Doubt::Dead => (task, u64::MAX, u32::MAX),
        };
        let mut open = self.lock();
        if open.len() < MOST {
            open.insert(place, (Arc::clone(owner), doubt));
        }
        drop(open);
        self.more.notify_one();
    }

    fn take(&self) -> HashMap<Place, (Arc<Owner>, Doubt)> {
        std::mem::take(&mut *self.lock())
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, (Arc<Owner>, Doubt)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Tells the store again what it did not take of streams and questions, until jobs are told to stop.
    pub async fn settle_doubts(self: Arc<Self>) {
        let settling = async {
            loop {
                self.deliveries.doubts.more.notified().await;
                loop {
                    self.deliveries.settle(&self.ledger).await;
                    if self.deliveries.doubts.is_empty() {
                        break;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        };
        let _never: Option<()> = self.jobs.stopping().run_until_cancelled(settling).await;
    }
}

impl Deliveries {
    /// Tells each once more. What the store does not take now either stays in doubt.
    pub(super) async fn settle(&self, ledger: &Ledger) {
        for ((task, ..), (owner, doubt)) in self.doubts.take() {
            match doubt {
                Doubt::Claimed(number, stream) => self.claim_again(ledger, (&owner, task), number, &stream).await,
                Doubt::Closed(stream) => self.release_task(ledger, &owner, task, stream).await,
                Doubt::Dead => self.look_for_dead(ledger, &owner, task).await,
            }
        }
    }

    /// Claims a question for a stream that may have it already. Whatever the answer is, a claim that is still under way comes
    /// too late for the version that it names.
    async fn claim_again(&self, ledger: &Ledger, (owner, id): (&Arc<Owner>, TaskId), number: u32, stream: &Stream) {
        let has_it = |task: &Task| {
            let claimed = Progress::Claimed(stream.number);
            task.state.questions().iter().any(|question| question.number == number && question.progress == claimed)
        };
        let task = match ledger.apply(owner, id, Event::Claim { number, stream: stream.number }).await {
            Ok(task) => task,
            Err(ApplyError::Refused { task, .. }) if has_it(&task) => task,
            Err(ApplyError::Store(error)) if !error.is_spoilt() => {
                return self.doubts.note(owner, id, Doubt::Claimed(number, stream.clone()));
            }
            Err(_) => {
                self.disclaim(stream.number, id, number);
                return;
            }
        };
        let question = task.state.questions().iter().find(|question| question.number == number);
        match (question, stream.events.clone().try_reserve_owned()) {
            (Some(question), Ok(room)) => self.show(ledger, &task, question, stream, room).await,
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
