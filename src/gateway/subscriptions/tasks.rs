//! The tasks that a stream tells of: each once at the beginning, and then after each change that a client can see.

use std::collections::{BTreeSet, VecDeque};
use std::hash::RandomState;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::jsonrpc::{self, Id};
use crate::mcp::method::Method;
use crate::mcp::subscription::tagged;
use crate::task::dialect::extension;
use crate::task::store::{StoreError, Watch};
use crate::task::{Ledger, Outcome, Owner, Task, TaskId};

use super::super::streamed::Message;

/// Waits for a change of one task; says whether there may be more of them.
type Changed = Pin<Box<dyn Future<Output = (TaskId, Watch, bool)> + Send>>;

/// Tasks, and what was told of them.
pub(super) struct Watched {
    owner: Owner,
    tasks: Vec<(TaskId, Option<u64>)>,
    /// Those that are not there for the owner, as far as their ids are any.
    absent: Vec<Option<TaskId>>,
    /// Waits for a change of one task each.
    changes: FuturesUnordered<Changed>,
    /// Tasks that may have changed.
    due: VecDeque<TaskId>,
    hasher: RandomState,
}

/// A task as it is told.
pub(super) struct Shown {
    /// The notification.
    pub(super) message: Message,
    /// Its outcome is in it.
    pub(super) has_outcome: bool,
    pub(super) task: Arc<Task>,
}

impl Watched {
    /// Watches those of the tasks that are there, this owner's, and not among those denied to the caller. All others are left
    /// out in silence: somebody else's task does not exist.
    ///
    /// # Errors
    /// The store fails.
    pub(super) async fn begin(
        ledger: &Ledger,
        owner: Owner,
        named: Option<&BTreeSet<Box<str>>>,
        denied: &[TaskId],
    ) -> Result<Option<Self>, StoreError> {
        let Some(named) = named else { return Ok(None) };
        let mut watched = Self {
            owner,
            tasks: Vec::new(),
            absent: Vec::new(),
            changes: FuturesUnordered::new(),
            due: VecDeque::new(),
            hasher: RandomState::new(),
        };
        for id in named.iter().map(|id| TaskId::parse(id)) {
            // Watched before it is read: what changes in between is told.
            let watch = match id {
                Some(id) if !denied.contains(&id) => ledger.watch(&watched.owner, id).await?.map(|watch| (id, watch)),
                Some(_) | None => None,
            };
            let Some((id, watch)) = watch else {
                watched.absent.push(id);
                continue;
            };
            watched.tasks.push((id, None));
            watched.due.push_back(id);
            watched.changes.push(Box::pin(changed(id, watch)));
        }
        Ok(Some(watched))
    }

    /// The tasks that are told of.
    pub(super) fn named(&self) -> BTreeSet<Box<str>> {
        self.tasks.iter().map(|(id, _)| id.to_string().into()).collect()
    }

    /// Those that were named and are not there for the owner.
    pub(super) fn absent(&self) -> &[Option<TaskId>] {
        &self.absent
    }

    /// The next task that is not as it was told, on a stream of that id. Never, when no task can change any more. Cancel-safe.
    pub(super) async fn next(&mut self, ledger: &Ledger, stream: &Id) -> Shown {
        loop {
            while let Some(id) = self.due.front().copied() {
                let shown = shown(&self.owner, ledger, id, stream).await;
                // Only now, so that a wait which is given up loses nothing.
                self.due.pop_front();
                if let Some(shown) = shown.filter(|shown| self.is_news(id, &shown.message)) {
                    return shown;
                }
            }
            match self.changes.next().await {
                Some((id, watch, may_change)) => {
                    if !self.due.contains(&id) {
                        self.due.push_back(id);
                    }
                    if may_change {
                        self.changes.push(Box::pin(changed(id, watch)));
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Whether that was not told before; it counts as told from now on.
    fn is_news(&mut self, id: TaskId, shown: &Message) -> bool {
        let digest = shown.digest(&self.hasher);
        let told = self.tasks.iter_mut().find(|(task, _)| *task == id).map(|(_, told)| told.replace(digest));
        told != Some(Some(digest))
    }
}

async fn changed(id: TaskId, mut watch: Watch) -> (TaskId, Watch, bool) {
    let may_change = watch.changed().await;
    (id, watch, may_change)
}

/// The task as a read at this moment shows it.
async fn shown(owner: &Owner, ledger: &Ledger, id: TaskId, stream: &Id) -> Option<Shown> {
    let failed = |error: &StoreError| {
        // That is told by the ledger, once.
        if !error.is_spoilt() {
            tracing::error!(%error, "a task could not be read for its listener");
        }
    };
    let task = ledger.get(owner, id).await.inspect_err(failed).ok()??;
    let show = |outcome: Option<&Outcome>| {
        let params = tagged(Some(&extension::detailed(&task, outcome)), stream.as_json());
        jsonrpc::notification(Method::TasksNotification.as_str(), Some(&params))
    };
    let kept = match task.state.is_ended() {
        true => ledger.kept(owner, id).await.inspect_err(failed).ok()?,
        false => None,
    };
    let has_outcome = kept.is_some();
    let message = match kept {
        Some(kept) => {
            let message = Message::of(ledger, &task, kept, |outcome| show(Some(outcome))).await;
            message.inspect_err(failed).ok()??
        }
        None => Message::Whole(show(None)),
    };
    Some(Shown { message, has_outcome, task })
}
