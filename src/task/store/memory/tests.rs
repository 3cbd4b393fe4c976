//! The memory store under the contract, against a simple model, and under many threads.

mod costs;

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::task::sample;
use crate::task::state::{Asked, Ending};
use crate::task::store::contract::each_contract_test;

each_contract_test!(Arc::new(MemoryStore::shared(Clock::system())));

const HOUR: Duration = Duration::from_secs(3600);
const AMPLE: Limits =
    Limits { running_tasks: 100, queued_tasks: 100, kept_tasks: 1000, kept_bytes: 1 << 20, creates: None };

fn task(tenant: &str, subject: &str, created_at: Timestamp, ttl: Duration) -> Task {
    sample::task(sample::owner(tenant, subject), created_at, ttl)
}

fn with_state(task: &Task, state: State) -> Task {
    Task { state, ..task.clone() }
}

#[tokio::test]
async fn nothing_is_left_of_tasks_that_went() {
    let clock = Clock::system();
    let store = MemoryStore::new(clock);
    let limits = Limits { running_tasks: 2, ..AMPLE };
    let mut watches = Vec::new();
    for n in 0..40 {
        let made = task(&format!("tenant{}", n % 4), &format!("subject{n}"), clock.now(), HOUR);
        let made = store.create(made, None, &limits).await.unwrap();
        watches.push(store.watch(&made.owner, made.id).await.unwrap());
        if n % 3 == 0 {
            let over = with_state(&made, State::Ended(Ending::Errored));
            store.replace(over, Some(Outcome::Error("{}".into()))).await.unwrap();
        }
    }
    store.purge(clock.now().plus(HOUR), 100).await.unwrap();
    drop(watches);
    assert_eq!((store.inner.tasks.len(), store.inner.tenants.len()), (0, 0));
    assert!(lock(&store.inner.expiries).is_empty());
}

#[tokio::test]
async fn a_refused_newcomer_leaves_no_tenant() {
    let clock = Clock::system();
    let store = MemoryStore::new(clock);
    let limits = Limits { kept_tasks: 0, ..AMPLE };
    store.create(task("stranger", "x", clock.now(), HOUR), None, &limits).await.unwrap_err();
    assert!(store.inner.tenants.is_empty());
}

#[tokio::test]
async fn only_watched_tasks_have_a_channel() {
    let clock = Clock::system();
    let store = MemoryStore::new(clock);
    let made = store.create(task("acme", "alice", clock.now(), HOUR), None, &AMPLE).await.unwrap();
    let channels = || lock(&store.inner.tenants.get("acme").unwrap().book).watched();
    assert_eq!(channels(), 0);
    let first = store.watch(&made.owner, made.id).await.unwrap();
    let second = store.watch(&made.owner, made.id).await.unwrap();
    assert_eq!(channels(), 1);
    drop(first);
    assert_eq!(channels(), 1);
    drop(second);
    assert_eq!(channels(), 0);
    let third = store.watch(&made.owner, made.id).await.unwrap();
    store.replace(with_state(&made, State::Ended(Ending::Errored)), None).await.unwrap();
    assert_eq!(channels(), 0);
    drop((third, store.watch(&made.owner, made.id).await.unwrap()));
    assert_eq!(channels(), 0);
}

#[tokio::test]
async fn a_finished_task_is_small() {
    let clock = Clock::system();
    let store = MemoryStore::new(clock);
    let first = store.create(task("acme", "alice", clock.now(), HOUR), None, &AMPLE).await.unwrap();
    let second = store.create(task("acme", "alice", clock.now(), HOUR), None, &AMPLE).await.unwrap();
    assert!(Arc::ptr_eq(&first.owner, &second.owner), "each task would keep its own copy of six members");
    let mut questions = Vec::with_capacity(1000);
    questions.extend(first.state.questions().iter().cloned());
    let asked = with_state(&first, State::Held(Asked { questions, next_number: 0 }));
    let kept = store.replace(asked, None).await.unwrap();
    assert!(matches!(&kept.state, State::Held(asked) if asked.questions.capacity() == 0));

    // Tables and trees are half full at worst, so each entry counts twice.
    let record = size_of::<Task>() + 2 * size_of::<usize>();
    let entry = 2 * (size_of::<(Key, Kept)>() + 1);
    let indexes = 2 * (size_of::<(Timestamp, TaskId, Arc<Owner>)>() + size_of::<Position>());
    assert!(record + entry + indexes <= 512, "{record} + {entry} + {indexes}");
}

/// One step of a random life; numbers pick among what there is.
#[derive(Debug, Clone)]
enum Step {
    Create { tenant: bool, subject: bool, long: bool },
    Apply { pick: usize, event: Event },
    End { pick: usize, ending: Ending, bytes: usize },
    Stale { pick: usize },
    Wait { minutes: u64 },
    Limits { running: usize, queued: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let event = prop_oneof![
        (0_u64..3).prop_map(|id| Event::Ask {
            upstream_id: crate::jsonrpc::Id::number(id),
            method: "m".into(),
            params: Some("{}".into())
        }),
        (0_u32..4, 0_u64..2).prop_map(|(number, stream)| Event::Claim { number, stream }),
        (0_u64..2).prop_map(|stream| Event::Release { stream }),
        (0_u32..4).prop_map(|number| Event::Answer { number, answer: crate::task::Answer::Result("[]".into()) }),
        (0_u64..3).prop_map(|id| Event::Settle { upstream_id: crate::jsonrpc::Id::number(id) }),
    ];
    let ending = prop_oneof![
        any::<bool>().prop_map(|is_error| Ending::Returned { is_error }),
        Just(Ending::Errored),
        Just(Ending::Cancelled),
    ];
    let step = prop_oneof![
        5 => any::<(bool, bool, bool)>().prop_map(|(tenant, subject, long)| Step::Create { tenant, subject, long }),
        4 => (any::<usize>(), event).prop_map(|(pick, event)| Step::Apply { pick, event }),
        4 => (any::<usize>(), ending, 0_usize..9).prop_map(|(pick, ending, bytes)| Step::End { pick, ending, bytes }),
        1 => any::<usize>().prop_map(|pick| Step::Stale { pick }),
        1 => (1_u64..40).prop_map(|minutes| Step::Wait { minutes }),
        1 => (0_usize..4, 0_usize..4).prop_map(|(running, queued)| Step::Limits { running, queued }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The same rules, written for being obvious: one list in order of creation, counted anew each time.
struct Model {
    now: Timestamp,
    given: Limits,
    limits: [Limits; 2],
    tasks: Vec<Modelled>,
}

#[derive(Clone)]
struct Modelled {
    task: Task,
    outcome: usize,
}

const TENANTS: [&str; 2] = ["acme", "umbrella"];

impl Model {
    fn usage(&self, tenant: &str) -> Usage {
        let mut usage = Usage::default();
        for Modelled { task, outcome } in self.tasks.iter().filter(|kept| &*kept.task.owner.tenant == tenant) {
            usage.kept += 1;
            usage.kept_bytes += *outcome as u64;
            match &task.state {
                State::Queued => usage.queued += 1,
                State::Held(asked) => {
                    usage.running += 1;
                    // A question is "m" with "{}", an answer "[]".
                    let answered = asked.questions.len() - asked.unanswered().count();
                    usage.kept_bytes += 3 * asked.questions.len() as u64 + 2 * answered as u64;
                }
                State::Ended(_) => {}
            }
        }
        usage
    }

    fn promote(&mut self, tenant: usize) {
        let name = TENANTS[tenant];
        while self.usage(name).running < self.limits[tenant].running_tasks {
            let mut queued = self.tasks.iter_mut().map(|kept| &mut kept.task);
            let next = queued.find(|task| &*task.owner.tenant == name && task.state == State::Queued);
            let Some(task) = next else { break };
            task.state = State::Held(Asked::default());
            task.version += 1;
        }
    }

    fn promote_all(&mut self) {
        (0..TENANTS.len()).for_each(|tenant| self.promote(tenant));
    }

    /// Where a new task would begin.
    fn admit(&self, tenant: usize) -> Option<State> {
        let Limits { running_tasks, queued_tasks, kept_tasks, kept_bytes, creates: _ } = self.limits[tenant];
        let usage = self.usage(TENANTS[tenant]);
        if usage.kept >= kept_tasks || usage.kept_bytes >= kept_bytes {
            None
        } else if usage.running < running_tasks {
            Some(State::Held(Asked::default()))
        } else {
            (usage.queued < queued_tasks).then_some(State::Queued)
        }
    }

    async fn create(&mut self, store: &MemoryStore, tenant: usize, subject: &str, ttl: Duration) {
        let new = task(TENANTS[tenant], subject, self.now, ttl);
        // A store that keeps nothing of a tenant has no limits of it, and nobody to promote either.
        self.limits[tenant] = self.given;
        self.promote(tenant);
        let before = store.inner.clock.now();
        match (store.create(new.clone(), None, &self.given).await, self.admit(tenant)) {
            (Ok(made), Some(state)) => {
                assert_eq!(made.state, state);
                self.tasks.push(Modelled { task: Task { state, version: 1, ..new }, outcome: 0 });
            }
            (Err(StoreError::Quota(quota)), None) => {
                let expiries = self.tasks.iter().filter(|made| *made.task.owner.tenant == *TENANTS[tenant]);
                let first = expiries.map(|made| made.task.expires_at()).min();
                assert_eq!(quota.until_expiry.is_some(), first.is_some());
                if let Some((first, until)) = first.zip(quota.until_expiry) {
                    // The model's time is not the store's, which lies between these.
                    let between = first.since(store.inner.clock.now())..=first.since(before);
                    assert!(between.contains(&until), "{until:?} {between:?}");
                }
            }
            (made, expected) => panic!("{made:?}, not {expected:?}"),
        }
    }

    async fn apply(&mut self, store: &MemoryStore, pick: usize, event: Event, bytes: usize) {
        let Some(index) = pick.checked_rem(self.tasks.len()) else { return };
        let task = self.tasks[index].task.clone();
        let Ok(state) = task.state.clone().apply(event, self.now) else { return };
        let outcome = state.is_ended().then(|| Outcome::Result("x".repeat(bytes).into()));
        store.replace(with_state(&task, state.clone()), outcome).await.unwrap();
        let version = task.version + 1;
        let outcome = if state.is_ended() { bytes } else { 0 };
        self.tasks[index] = Modelled { task: Task { state, version, ..task }, outcome };
        self.promote_all();
    }

    async fn stale(&self, store: &MemoryStore, pick: usize) {
        let Some(index) = pick.checked_rem(self.tasks.len()) else { return };
        let task = &self.tasks[index].task;
        let stale = Task { version: task.version - 1, state: State::Ended(Ending::Errored), ..task.clone() };
        assert!(matches!(store.replace(stale, None).await, Err(StoreError::Conflict)));
    }

    async fn wait(&mut self, store: &MemoryStore, time: Duration) {
        self.now = self.now.plus(time);
        let purged = store.purge(self.now, 1000).await.unwrap();
        let before = self.tasks.len();
        self.tasks.retain(|kept| kept.task.expires_at() > self.now);
        assert_eq!(purged.tasks.len(), before - self.tasks.len());
        assert_eq!(purged.next, self.tasks.iter().map(|kept| kept.task.expires_at()).min());
        self.promote_all();
    }

    async fn check(&self, store: &MemoryStore) {
        for tenant in TENANTS {
            assert_eq!(store.usage(tenant).await.unwrap(), self.usage(tenant));
            for subject in ["alice", "bob"] {
                let owner = task(tenant, subject, self.now, HOUR).owner;
                let listed = store.list(&owner, None, 1000).await.unwrap();
                let mut expected: Vec<&Task> =
                    self.tasks.iter().map(|kept| &kept.task).filter(|task| task.owner == owner).collect();
                expected.sort_by_key(|task| std::cmp::Reverse(Position::of(task)));
                assert_eq!(listed.len(), expected.len());
                for (kept, expected) in listed.iter().zip(expected) {
                    assert_eq!((kept.id, kept.version), (expected.id, expected.version));
                    assert_eq!(kept.state, expected.state);
                }
            }
        }
    }
}

async fn live(steps: Vec<Step>) {
    let clock = Clock::system();
    let store = MemoryStore::new(clock);
    let given = Limits { running_tasks: 2, queued_tasks: 3, kept_tasks: 12, kept_bytes: 40, creates: None };
    let mut model = Model { now: clock.now(), given, limits: [given; 2], tasks: Vec::new() };
    for step in steps {
        match step {
            Step::Create { tenant, subject, long } => {
                let subject = if subject { "alice" } else { "bob" };
                model.create(&store, usize::from(tenant), subject, if long { HOUR * 3 } else { HOUR }).await;
            }
            Step::Apply { pick, event } => model.apply(&store, pick, event, 0).await,
            Step::End { pick, ending, bytes } => model.apply(&store, pick, Event::End(ending), bytes).await,
            Step::Stale { pick } => model.stale(&store, pick).await,
            Step::Wait { minutes } => model.wait(&store, HOUR * minutes as u32 / 60).await,
            Step::Limits { running, queued } => {
                model.given = Limits { running_tasks: running, queued_tasks: queued, ..model.given };
            }
        }
        model.check(&store).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(live(steps));
    }
}
