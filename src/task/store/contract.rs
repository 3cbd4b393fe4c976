//! What every store must do, as test functions. A store runs them all with [`each_contract_test`].

pub(crate) mod costs;
mod holders;
mod large;
mod limits;
mod watches;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{CreateRate, Limits, Position, Quota, QuotaReason, Step, Store, StoreError, Usage};
use crate::clock::{Clock, Timestamp};
use crate::jobs::Jobs;
use crate::jsonrpc::Id;
use crate::task::sample::{self, owner};
use crate::task::state::{Answer, Ending, Event, State};
use crate::task::{Holder, Outcome, Owner, Task, TaskId};

/// Makes a test of each function of the contract; the expression gives a new, empty store.
macro_rules! each_contract_test {
    ($store:expr) => {
        $crate::task::store::contract::each_contract_test! { $store =>
            keeps_what_it_is_given,
            shows_a_task_to_its_owner_alone,
            refuses_an_id_that_is_taken,
            replaces_by_version,
            never_replaces_an_ended_task,
            keeps_who_and_when_through_changes,
            keeps_an_outcome_apart,
            hands_out_an_outcome_as_it_is_kept,
            tells_the_first_read_apart,
            counts_each_state,
            counts_questions_as_bytes,
            gives_places_to_the_longest_waiting,
            lets_the_waiting_leave_the_queue,
            bounds_running_and_queued,
            bounds_running_without_a_queue,
            bounds_kept_tasks,
            bounds_kept_bytes,
            tenants_do_not_count_against_each_other,
            raised_limits_serve_the_waiting_first,
            lowered_limits_give_no_places,
            lists_newest_first_and_only_the_owners,
            pages_are_stable_while_tasks_come_and_go,
            hides_the_expired,
            purges_only_the_expired,
            purges_in_batches,
            a_purge_frees_what_was_counted,
            tells_watchers_of_changes,
            tells_watchers_of_a_place,
            ends_watches_with_the_task,
            closes_watches_on_purge,
            cancel_against_complete,
            bounds_creations_in_time,
            what_is_refused_is_no_creation,
            concurrent_creators_stay_within_limits,
            concurrent_endings_give_each_place_once,
            hands_luggage_to_the_next_holder,
            takes_over_queued_tasks_without_a_place,
            a_task_goes_to_one_new_holder,
            gives_a_holder_what_it_does_not_know_of,
        }
    };
    ($store:expr => $($name:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::task::store::contract::$name($store).await;
            }
        )+
    };
}
pub(crate) use each_contract_test;
pub(crate) use holders::*;
pub(crate) use large::*;
pub(crate) use limits::*;
pub(crate) use watches::*;

const HOUR: Duration = Duration::from_secs(3600);
const AMPLE: Limits =
    Limits { running_tasks: 1000, queued_tasks: 1000, kept_tasks: 100_000, kept_bytes: 1 << 30, creates: None };

fn alice() -> Owner {
    owner("acme", "alice")
}

fn now() -> Timestamp {
    Clock::system().now()
}

fn task(owner: &Owner) -> Task {
    task_made_at(owner, now(), HOUR)
}

fn task_made_at(owner: &Owner, created_at: Timestamp, ttl: Duration) -> Task {
    let deadline = created_at.plus(HOUR);
    Task { progress_token: Some("\"p\"".into()), deadline, ..sample::task(owner.clone(), created_at, ttl) }
}

/// A task that expired a second ago.
fn expired(owner: &Owner) -> Task {
    task_made_at(owner, Timestamp::from_millis(now().as_millis() - 2000), Duration::from_secs(1))
}

fn after(task: &Task, event: Event) -> Task {
    let mut next = task.clone();
    next.state = next.state.apply(event, task.created_at).unwrap();
    next
}

fn ended(task: &Task) -> Task {
    after(task, Event::End(Ending::Returned { is_error: false }))
}

fn cancelled(task: &Task) -> Task {
    after(task, Event::End(Ending::Cancelled))
}

fn result(text: &str) -> Option<Outcome> {
    Some(Outcome::Result(text.into()))
}

async fn usage(store: &Arc<dyn Store>, tenant: &str) -> Usage {
    store.usage(tenant).await.unwrap()
}

async fn state(store: &Arc<dyn Store>, task: &Task) -> State {
    store.read(&task.owner, task.id).await.unwrap().unwrap().state.clone()
}

async fn refusal(store: &Arc<dyn Store>, task: Task, limits: &Limits) -> (QuotaReason, u64) {
    match store.create(task, None, limits).await {
        Err(StoreError::Quota(quota)) => (quota.reason, quota.limit),
        other => panic!("not refused: {other:?}"),
    }
}

async fn ids(store: &Arc<dyn Store>, owner: &Owner, from: Option<Position>, limit: usize) -> Vec<TaskId> {
    store.list(owner, from, limit).await.unwrap().iter().map(|task| task.id).collect()
}

pub(crate) async fn keeps_what_it_is_given(store: Arc<dyn Store>) {
    let given = task(&alice());
    let made = store.create(given.clone(), None, &AMPLE).await.unwrap();
    let read = store.read(&alice(), given.id).await.unwrap().unwrap();
    for kept in [made, read] {
        assert_eq!(*kept.owner, alice());
        assert_eq!((kept.id, &kept.tool, kept.session), (given.id, &given.tool, 7));
        assert_eq!(kept.progress_token, given.progress_token);
        assert_eq!((kept.created_at, kept.updated_at, kept.ttl), (given.created_at, given.updated_at, given.ttl));
        assert_eq!((kept.poll_interval, kept.deadline), (given.poll_interval, given.deadline));
        assert_eq!((&kept.status_message, kept.version), (&None, 1));
        assert!(matches!(&kept.state, State::Held(asked) if asked.questions.is_empty()));
    }
}

pub(crate) async fn shows_a_task_to_its_owner_alone(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let others = [
        owner("acme", "bob"),
        owner("umbrella", "alice"),
        Owner { issuer: "https://login.example".into(), ..alice() },
        Owner { client: "cli".into(), ..alice() },
        Owner { principal: [1; 16], ..alice() },
        Owner { route: "other".into(), ..alice() },
    ];
    for other in others {
        assert!(store.read(&other, made.id).await.unwrap().is_none(), "{other:?}");
        assert!(store.outcome(&other, made.id).await.unwrap().is_none());
        assert!(store.watch(&other, made.id).await.unwrap().is_none());
        assert!(store.list(&other, None, 10).await.unwrap().is_empty());
        let stolen = Task { owner: Arc::new(other), ..ended(&made) };
        assert!(matches!(store.replace(stolen, None).await, Err(StoreError::NotFound)));
    }
    assert!(store.read(&alice(), TaskId::random()).await.unwrap().is_none());
    assert_eq!(store.read(&alice(), made.id).await.unwrap().unwrap().version, 1);
}

pub(crate) async fn refuses_an_id_that_is_taken(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let again = store.create(Task::clone(&made), None, &AMPLE).await;
    assert!(matches!(again, Err(StoreError::Conflict)));
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 0, kept: 1, kept_bytes: 0 });
}

pub(crate) async fn replaces_by_version(store: Arc<dyn Store>) {
    let first = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let changed = Task { status_message: Some("half".into()), ..Task::clone(&first) };
    let second = store.replace(changed, None).await.unwrap();
    assert_eq!((second.version, second.status_message.as_deref()), (2, Some("half")));
    assert!(matches!(store.replace(ended(&first), None).await, Err(StoreError::Conflict)));
    let read = store.read(&alice(), first.id).await.unwrap().unwrap();
    assert_eq!((read.version, read.status_message.as_deref()), (2, Some("half")));
    let unknown = Task { id: TaskId::random(), ..Task::clone(&second) };
    assert!(matches!(store.replace(unknown, None).await, Err(StoreError::NotFound)));
}

pub(crate) async fn never_replaces_an_ended_task(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let over = store.replace(ended(&made), result("1")).await.unwrap();
    let revived = Task { state: made.state.clone(), ..Task::clone(&over) };
    assert!(matches!(store.replace(revived, result("2")).await, Err(StoreError::Conflict)));
    assert_eq!(store.outcome(&alice(), made.id).await.unwrap(), result("1"));
    assert_eq!(usage(&store, "acme").await, Usage { running: 0, queued: 0, kept: 1, kept_bytes: 1 });
}

pub(crate) async fn keeps_who_and_when_through_changes(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let changed = Task { created_at: Timestamp::from_millis(1), ttl: HOUR * 9, ..Task::clone(&made) };
    let kept = store.replace(changed, None).await.unwrap();
    assert_eq!((kept.created_at, kept.ttl), (made.created_at, made.ttl));
    assert_eq!(ids(&store, &alice(), None, 10).await, [made.id]);
}

pub(crate) async fn tells_the_first_read_apart(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    store.replace(ended(&made), result("1")).await.unwrap();
    let other = Owner { subject: "mallory".into(), ..alice() };
    assert!(!store.note_read(&other, made.id).await.unwrap());
    assert!(store.note_read(&alice(), made.id).await.unwrap());
    assert!(!store.note_read(&alice(), made.id).await.unwrap());
}

pub(crate) async fn keeps_an_outcome_apart(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    assert_eq!(store.outcome(&alice(), made.id).await.unwrap(), None);
    let text = r#"{"content":[],"n":1.50e3,"x":{"b":1,"a":2}}"#;
    store.replace(ended(&made), result(text)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(store.outcome(&alice(), made.id).await.unwrap(), result(text));
    }
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let error = Some(Outcome::Error(r#"{"code":-1,"message":"no"}"#.into()));
    store.replace(after(&made, Event::End(Ending::Errored)), error.clone()).await.unwrap();
    assert_eq!(store.outcome(&alice(), made.id).await.unwrap(), error);
}

pub(crate) async fn counts_each_state(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    assert_eq!(usage(&store, "acme").await, Usage::default());
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 0, kept: 1, kept_bytes: 0 });
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    assert_eq!(second.state, State::Queued);
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 1, kept: 2, kept_bytes: 0 });
    store.replace(ended(&first), result("12345")).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 0, kept: 2, kept_bytes: 5 });
    let second = store.read(&alice(), second.id).await.unwrap().unwrap();
    store.replace(cancelled(&second), None).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage { running: 0, queued: 0, kept: 2, kept_bytes: 5 });
}

pub(crate) async fn counts_questions_as_bytes(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let ask = Event::Ask { upstream_id: Id::number(1), method: "m".into(), params: Some("{}".into()) };
    let asked = store.replace(after(&made, ask), None).await.unwrap();
    assert_eq!(usage(&store, "acme").await.kept_bytes, 3);
    let answer = Event::Answer { number: 0, answer: Answer::Result("[1,2]".into()) };
    let answered = store.replace(after(&asked, answer), None).await.unwrap();
    assert_eq!(usage(&store, "acme").await.kept_bytes, 8);
    store.replace(ended(&answered), result("1")).await.unwrap();
    assert_eq!(usage(&store, "acme").await.kept_bytes, 1);
}

pub(crate) async fn lists_newest_first_and_only_the_owners(store: Arc<dyn Store>) {
    let start = now();
    let mut mine = Vec::new();
    for n in 0..5_u64 {
        let at = start.plus(Duration::from_millis(n / 2));
        mine.push(Position::of(&store.create(task_made_at(&alice(), at, HOUR), None, &AMPLE).await.unwrap()));
        store.create(task(&owner("acme", "bob")), None, &AMPLE).await.unwrap();
        store.create(task(&Owner { route: "other".into(), ..alice() }), None, &AMPLE).await.unwrap();
    }
    mine.sort_unstable_by(|a, b| b.cmp(a));
    let expected: Vec<TaskId> = mine.iter().map(|position| position.id).collect();
    assert_eq!(ids(&store, &alice(), None, 100).await, expected);
    assert_eq!(ids(&store, &alice(), None, 0).await, []);
    let mut paged = Vec::new();
    let mut from = None;
    loop {
        let page = store.list(&alice(), from, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        from = Some(Position::of(last));
        paged.extend(page.iter().map(|task| task.id));
    }
    assert_eq!(paged, expected);
    assert!(ids(&store, &owner("nobody", ""), None, 10).await.is_empty());
}

pub(crate) async fn pages_are_stable_while_tasks_come_and_go(store: Arc<dyn Store>) {
    let start = now();
    let mut made = Vec::new();
    for n in 0..9 {
        // The middle ones go first, among them the one at which the page was cut.
        let ttl = if (3..6).contains(&n) { HOUR / 2 } else { HOUR };
        let at = start.plus(Duration::from_millis(n));
        made.push(store.create(task_made_at(&alice(), at, ttl), None, &AMPLE).await.unwrap());
    }
    made.reverse();
    let page = store.list(&alice(), None, 4).await.unwrap();
    assert_eq!(page.iter().map(|task| task.id).collect::<Vec<_>>(), made[..4].iter().map(|t| t.id).collect::<Vec<_>>());
    let from = Position::of(&page[3]);
    store.create(task_made_at(&alice(), start.plus(HOUR / 100), HOUR), None, &AMPLE).await.unwrap();
    let purged = store.purge(start.plus(HOUR / 2 + HOUR / 100), 100).await.unwrap();
    assert_eq!(purged.tasks.len(), 3);
    let rest = ids(&store, &alice(), Some(from), 100).await;
    assert_eq!(rest, made[6..].iter().map(|task| task.id).collect::<Vec<_>>());
}

pub(crate) async fn hides_the_expired(store: Arc<dyn Store>) {
    let gone = store.create(expired(&alice()), None, &AMPLE).await.unwrap();
    let newer = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let older =
        store.create(task_made_at(&alice(), Timestamp::from_millis(1), HOUR * 24 * 365 * 300), None, &AMPLE).await;
    let older = older.unwrap();
    assert!(store.read(&alice(), gone.id).await.unwrap().is_none());
    assert!(store.outcome(&alice(), gone.id).await.unwrap().is_none());
    assert!(store.watch(&alice(), gone.id).await.unwrap().is_none());
    assert!(matches!(store.replace(ended(&gone), result("1")).await, Err(StoreError::NotFound)));
    // It leaves no hole in a page either.
    assert_eq!(ids(&store, &alice(), None, 2).await, [newer.id, older.id]);
}

pub(crate) async fn purges_only_the_expired(store: Arc<dyn Store>) {
    let empty = store.purge(now(), 10).await.unwrap();
    assert!(empty.tasks.is_empty() && empty.next.is_none());
    let at = now();
    let long = store.create(task_made_at(&alice(), at, HOUR), None, &AMPLE).await.unwrap();
    let short = store.create(task_made_at(&alice(), at, HOUR / 2), None, &AMPLE).await.unwrap();
    let early = store.purge(at.plus(HOUR / 2 - Duration::from_millis(1)), 10).await.unwrap();
    assert_eq!((early.tasks.len(), early.next), (0, Some(short.expires_at())));
    let purged = store.purge(short.expires_at(), 10).await.unwrap();
    assert_eq!(purged.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [short.id]);
    assert_eq!(purged.next, Some(long.expires_at()));
    assert!(store.read(&alice(), short.id).await.unwrap().is_none());
    assert_eq!(ids(&store, &alice(), None, 10).await, [long.id]);
}

pub(crate) async fn purges_in_batches(store: Arc<dyn Store>) {
    let mut made = HashSet::new();
    for _ in 0..5 {
        made.insert(store.create(expired(&alice()), None, &AMPLE).await.unwrap().id);
    }
    for (left, expected) in [(3, 2), (1, 2), (0, 1)] {
        let purged = store.purge(now(), 2).await.unwrap();
        assert_eq!(purged.tasks.len(), expected);
        assert_eq!(purged.next.is_some(), left > 0);
        assert!(purged.tasks.iter().all(|task| made.remove(&task.id)));
        assert_eq!(usage(&store, "acme").await.kept, left);
    }
}

pub(crate) async fn a_purge_frees_what_was_counted(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, queued_tasks: 2, kept_tasks: 3, ..AMPLE };
    let at = now();
    // One that runs, one that waits and one that has ended; the last waits and stays.
    let over = store.create(task_made_at(&alice(), at, HOUR / 2), None, &limits).await.unwrap();
    store.replace(ended(&over), result("12345")).await.unwrap();
    let running = store.create(task_made_at(&alice(), at, HOUR / 2), None, &limits).await.unwrap();
    store.create(task_made_at(&alice(), at, HOUR / 2), None, &limits).await.unwrap();
    let last = store.create(task(&alice()), None, &Limits { kept_tasks: 4, ..limits }).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 2, kept: 4, kept_bytes: 5 });
    let purged = store.purge(running.expires_at(), 10).await.unwrap();
    assert_eq!(purged.tasks.len(), 3);
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 0, kept: 1, kept_bytes: 0 });
    assert!(matches!(state(&store, &last).await, State::Held(_)));
}

pub(crate) async fn cancel_against_complete(store: Arc<dyn Store>) {
    let jobs = Jobs::default();
    for round in 0..10_000 {
        let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
        let cancel = {
            let (store, task) = (store.clone(), cancelled(&made));
            jobs.spawn("cancel", async move { store.replace(task, None).await.is_ok() })
        };
        let complete = store.replace(ended(&made), result("1")).await.is_ok();
        let cancel = cancel.await.unwrap();
        assert!(cancel != complete, "round {round}: cancel {cancel}, complete {complete}");
        let outcome = store.outcome(&alice(), made.id).await.unwrap();
        assert_eq!(outcome.is_some(), complete);
        let is_cancelled = state(&store, &made).await == State::Ended(Ending::Cancelled);
        assert_eq!(is_cancelled, cancel);
        store.purge(made.expires_at(), 10).await.unwrap();
        assert_eq!(usage(&store, "acme").await, Usage::default());
    }
}

pub(crate) async fn concurrent_creators_stay_within_limits(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 10, queued_tasks: 20, kept_tasks: 1000, ..AMPLE };
    let jobs = Jobs::default();
    let creators = (0..100).map(|n| {
        let store = store.clone();
        let task = task(&owner("acme", if n % 2 == 0 { "alice" } else { "bob" }));
        jobs.spawn("creator", async move { store.create(task, None, &limits).await })
    });
    let made = join_all(creators).await.into_iter().map(Result::unwrap);
    let (kept, refused): (Vec<_>, Vec<_>) = made.partition(Result::is_ok);
    assert_eq!((kept.len(), refused.len()), (30, 70));
    assert_eq!(usage(&store, "acme").await, Usage { running: 10, queued: 20, kept: 30, kept_bytes: 0 });
}

pub(crate) async fn concurrent_endings_give_each_place_once(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 8, ..AMPLE };
    let jobs = Jobs::default();
    let lives = (0..200).map(|_| {
        let (store, task) = (store.clone(), task(&alice()));
        jobs.spawn("life", async move {
            let mut task = store.create(task, None, &limits).await.unwrap();
            let mut watch = store.watch(&task.owner, task.id).await.unwrap().unwrap();
            loop {
                task = store.read(&task.owner, task.id).await.unwrap().unwrap();
                if task.state != State::Queued {
                    break;
                }
                assert!(store.usage("acme").await.unwrap().running <= 8);
                assert!(watch.changed().await);
            }
            store.replace(ended(&task), result("1")).await.unwrap();
        })
    });
    for life in join_all(lives).await {
        life.unwrap();
    }
    assert_eq!(usage(&store, "acme").await, Usage { running: 0, queued: 0, kept: 200, kept_bytes: 200 });
}
