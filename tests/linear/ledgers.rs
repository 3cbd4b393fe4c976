//! Many callers of the ledgers of several gateways over one store, each at its own pace.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use taskgate::clock::Clock;
use taskgate::jobs::Jobs;
use taskgate::jsonrpc::Id;
use taskgate::task::store::disk::DiskStore;
use taskgate::task::store::memory::MemoryStore;
use taskgate::task::{
    Answer as Said, ApplyError, Ending, Event, Finish, Holder, Ledger, Limits, NewTask, Outcome, Owner, State, Store,
    Task, TaskId,
};

use super::history::History;
use super::task::{Answer, End, Operation};

const LIMITS: Limits =
    Limits { running_tasks: 1000, queued_tasks: 1000, kept_tasks: 100_000, kept_bytes: 1 << 30, creates: None };
const HOUR: Duration = Duration::from_secs(3600);

fn owner() -> Owner {
    let (tenant, subject, route) = ("acme".into(), "alice".into(), "reports".into());
    Owner { tenant, issuer: "".into(), subject, client: "".into(), principal: [0; 16], route }
}

/// One caller of one gateway.
#[derive(Clone)]
struct Caller {
    ledger: Ledger,
    holder: Holder,
    history: Arc<History<TaskId>>,
    /// It is shown what it saw last, and looks again only now and then, as no gateway may.
    is_lagging: bool,
}

impl Caller {
    async fn create(&self) -> Arc<Task> {
        let called = self.history.tick();
        let new = NewTask {
            owner: Arc::new(owner()),
            tool: "report".into(),
            session: 1,
            progress_token: None,
            ttl: HOUR,
            poll_interval: HOUR,
            deadline: HOUR,
            draft: None,
        };
        let task = self.ledger.create(new, &LIMITS).await.unwrap().0;
        self.history.note(&task.id, Operation::Create, called, Some(Answer::Done));
        task
    }

    async fn seen(&self, id: TaskId) -> Option<Answer> {
        let Some(task) = self.ledger.get(&owner(), id).await.ok()? else { return Some(Answer::NotFound) };
        Some(match &task.state {
            State::Queued => Answer::Open(Vec::new()),
            State::Held(asked) => Answer::Open(asked.unanswered().map(|question| question.number).collect()),
            State::Ended(Ending::Cancelled) => Answer::Ended(End::Cancelled),
            State::Ended(Ending::Errored) => Answer::Ended(End::Failed),
            State::Ended(Ending::Returned { .. }) => match self.ledger.outcome(&owner(), id).await.ok()? {
                Some(Outcome::Result(text)) => Answer::Ended(End::Returned(text.to_string())),
                other => panic!("a result without its text: {other:?}"),
            },
        })
    }

    async fn get(&self, id: TaskId, last: &mut Option<Answer>) {
        let seen = self
            .history
            .record(&id, Operation::Get, async {
                match last.take() {
                    Some(seen) if self.is_lagging => Some(seen),
                    _ => self.seen(id).await,
                }
            })
            .await;
        *last = seen;
    }

    /// What a client does.
    async fn change(&self, id: TaskId, operation: Operation) {
        let act = async {
            answered(&match operation {
                Operation::Cancel => self.ledger.end(&owner(), id, Finish::cancelled(None)).await,
                Operation::Answer(number) => {
                    let event = Event::Answer { number, answer: Said::Result("{}".into()) };
                    self.ledger.apply(&owner(), id, event).await
                }
                ref other => unreachable!("{other:?} is the holder's"),
            })
        };
        self.history.record(&id, operation.clone(), act).await;
    }

    /// What a holder does, under the epoch in which it got the task. What it may not write has not happened.
    async fn write(&self, held: &Task, operation: Operation) {
        let called = self.history.tick();
        let written = match &operation {
            Operation::End(End::Returned(text)) => {
                self.ledger.end_held(held, Finish::returned(false, text.as_str().into(), None)).await
            }
            Operation::Ask(number) => {
                let (upstream_id, method) = (Id::number((*number).into()), "elicitation/create".into());
                self.ledger.apply_held(held, Event::Ask { upstream_id, method, params: None }).await
            }
            other => unreachable!("{other:?} is the client's"),
        };
        if !matches!(written, Err(ApplyError::Fenced)) {
            self.history.note(&held.id, operation, called, answered(&written));
        }
    }
}

fn answered<T>(done: &Result<T, ApplyError>) -> Option<Answer> {
    match done {
        Ok(_) => Some(Answer::Done),
        Err(ApplyError::Refused { .. }) => Some(Answer::Refused),
        Err(ApplyError::NotFound) => Some(Answer::NotFound),
        Err(_) => None,
    }
}

/// The holder's part: it asks twice and ends the task.
async fn hold(caller: Caller, task: Arc<Task>, pace: usize) {
    for number in 0..2 {
        rest(pace).await;
        caller.write(&task, Operation::Ask(number)).await;
    }
    rest(pace * 3).await;
    caller.write(&task, Operation::End(End::Returned(format!("\"{pace}\"")))).await;
}

/// Another's part, who takes the task while its holder is at work, and ends it otherwise.
async fn inherit(caller: Caller, from: Holder, pace: usize) {
    rest(pace * 2).await;
    for (orphan, _) in caller.ledger.take_over(&from, 10).await.unwrap() {
        rest(pace).await;
        caller.write(&orphan.task, Operation::End(End::Returned("\"inherited\"".to_owned()))).await;
    }
}

/// A client's part: it looks all the time, answers, and in the end may cancel.
async fn follow(caller: Caller, id: TaskId, number: usize, pace: usize) {
    let mut last = None;
    for step in 0..30 {
        rest((pace + number * step) % 5).await;
        match (step + number) % 10 {
            4 => caller.change(id, Operation::Answer(0)).await,
            7 => caller.change(id, Operation::Answer(1)).await,
            _ => caller.get(id, &mut last).await,
        }
    }
    if pace.is_multiple_of(3) {
        caller.change(id, Operation::Cancel).await;
    }
    caller.get(id, &mut None).await;
}

async fn rest(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Tasks one after the other, each with a holder and clients at three gateways; gives the history.
pub(crate) async fn run(store: Arc<dyn Store>, tasks: usize, is_lagging: bool) -> Arc<History<TaskId>> {
    let (jobs, history) = (Jobs::default(), Arc::new(History::new()));
    let gateway = |name: &str| {
        let holder = Holder::begin(name);
        let ledger = Ledger::new(store.clone(), holder.clone(), Clock::system(), Arc::new(|_| ()));
        Caller { ledger, holder, history: history.clone(), is_lagging }
    };
    let callers = ["a", "b", "c"].map(gateway);
    for pace in 0..tasks {
        let (first, next) = (&callers[pace % 3], &callers[(pace + 1) % 3]);
        let task = first.create().await;
        let id = task.id;
        let mut parts = vec![jobs.spawn("holder", hold(first.clone(), task, pace % 7))];
        if pace.is_multiple_of(2) {
            parts.push(jobs.spawn("heir", inherit(next.clone(), first.holder.clone(), pace % 11)));
        }
        parts.extend((0..5).map(|number| {
            let caller = callers[(pace + number) % 3].clone();
            jobs.spawn("client", follow(caller, id, number, pace))
        }));
        join_all(parts).await.into_iter().for_each(Result::unwrap);
    }
    history
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store() {
    let history = run(Arc::new(MemoryStore::shared(Clock::system())), 300, false).await;
    let (tasks, operations) = history.check();
    assert!(tasks == 300 && operations > 300 * 100, "{operations}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_disk_store() {
    let folder = tempfile::tempdir().unwrap();
    let history = run(Arc::new(DiskStore::open(folder.path(), Clock::system()).unwrap()), 100, false).await;
    let (tasks, operations) = history.check();
    assert!(tasks == 100 && operations > 100 * 100, "{operations}");
}

/// The checker sees it where what is shown may be old.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[should_panic(expected = "no order explains")]
async fn a_cache_is_found_out() {
    run(Arc::new(MemoryStore::shared(Clock::system())), 20, true).await.check();
}
