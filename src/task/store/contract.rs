//! What every store must do, as test functions. A store runs them all with [`each_contract_test`].

mod holders;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{CreateRate, Limits, Position, Quota, QuotaReason, Store, StoreError, Usage};
use crate::clock::{Clock, Timestamp};
use crate::jobs::Jobs;
use crate::jsonrpc::Id;
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

const HOUR: Duration = Duration::from_secs(3600);
const AMPLE: Limits =
    Limits { running_tasks: 1000, queued_tasks: 1000, kept_tasks: 100_000, kept_bytes: 1 << 30, creates: None };

fn owner(tenant: &str, subject: &str) -> Owner {
    Owner {
        tenant: tenant.into(),
        issuer: "".into(),
        subject: subject.into(),
        client: "".into(),
        principal: [0; 16],
        route: "reports".into(),
    }
}

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
    Task {
        id: TaskId::random(),
        owner: Arc::new(owner.clone()),
        tool: "report".into(),
        session: 7,
        progress_token: Some("\"p\"".into()),
        created_at,
        updated_at: created_at,
        ttl,
        poll_interval: Duration::from_secs(1),
        deadline: created_at.plus(HOUR),
        state: State::Queued,
        status_message: None,
        holder: Holder::from_text("first"),
        epoch: 0,
        version: 0,
    }
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

pub(crate) async fn gives_places_to_the_longest_waiting(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    // All at one moment and of two owners: neither the clock nor the owner decides.
    let at = now();
    let mut waiting = Vec::new();
    for n in 0..6 {
        let owner = owner("acme", if n % 2 == 0 { "alice" } else { "bob" });
        waiting.push(store.create(task_made_at(&owner, at, HOUR), None, &limits).await.unwrap());
    }
    for (turn, current) in waiting.iter().enumerate() {
        for (place, task) in waiting.iter().enumerate().skip(turn) {
            let is_queued = state(&store, task).await == State::Queued;
            assert_eq!(is_queued, place > turn, "task {place} at turn {turn}");
        }
        let current = store.read(&current.owner, current.id).await.unwrap().unwrap();
        assert_eq!(current.version, if turn == 0 { 1 } else { 2 });
        assert_eq!(current.updated_at, at);
        store.replace(ended(&current), None).await.unwrap();
    }
    assert_eq!(usage(&store, "acme").await, Usage { running: 0, queued: 0, kept: 6, kept_bytes: 0 });
}

pub(crate) async fn lets_the_waiting_leave_the_queue(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, queued_tasks: 2, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    let third = store.create(task(&alice()), None, &limits).await.unwrap();
    store.replace(cancelled(&second), None).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 1, kept: 3, kept_bytes: 0 });
    let fourth = store.create(task(&alice()), None, &limits).await.unwrap();
    assert_eq!(fourth.state, State::Queued);
    store.replace(ended(&first), None).await.unwrap();
    assert!(matches!(state(&store, &third).await, State::Held(_)));
    assert_eq!(state(&store, &second).await, State::Ended(Ending::Cancelled));
}

pub(crate) async fn bounds_running_and_queued(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 2, queued_tasks: 2, ..AMPLE };
    let mut made = Vec::new();
    for is_queued in [false, false, true, true] {
        let task = store.create(task(&alice()), None, &limits).await.unwrap();
        assert_eq!(task.state == State::Queued, is_queued);
        made.push(task);
    }
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::QueuedTasks, 2));
    assert_eq!(usage(&store, "acme").await, Usage { running: 2, queued: 2, kept: 4, kept_bytes: 0 });
    store.replace(ended(&made[0]), None).await.unwrap();
    assert_eq!(store.create(task(&alice()), None, &limits).await.unwrap().state, State::Queued);
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::QueuedTasks, 2));
}

pub(crate) async fn bounds_running_without_a_queue(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, queued_tasks: 0, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::RunningTasks, 1));
    store.replace(ended(&first), None).await.unwrap();
    assert!(matches!(store.create(task(&alice()), None, &limits).await.unwrap().state, State::Held(_)));
}

/// A tenant that keeps all it may is told when the first of its tasks goes, whoever of it they are.
async fn says_when_room_comes(store: &Arc<dyn Store>, limits: &Limits) {
    match store.create(task(&alice()), None, limits).await {
        Err(StoreError::Quota(quota)) => {
            let until = quota.until_expiry.unwrap();
            assert!(until > HOUR / 2 && until <= HOUR, "{until:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) async fn bounds_kept_tasks(store: Arc<dyn Store>) {
    let limits = Limits { kept_tasks: 2, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    store.create(task(&owner("acme", "bob")), None, &limits).await.unwrap();
    store.replace(ended(&first), None).await.unwrap();
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::KeptTasks, 2));
    says_when_room_comes(&store, &limits).await;
    assert_eq!(usage(&store, "acme").await.kept, 2);
    assert_eq!(refusal(&store, task(&owner("new", "x")), &Limits { kept_tasks: 0, ..AMPLE }).await.1, 0);
    assert_eq!(usage(&store, "new").await, Usage::default());
}

pub(crate) async fn bounds_kept_bytes(store: Arc<dyn Store>) {
    let limits = Limits { kept_bytes: 10, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    store.replace(ended(&first), result("123456789")).await.unwrap();
    store.create(task(&alice()), None, &limits).await.unwrap();
    // A result is kept whatever the limit: the tool has run.
    store.replace(ended(&second), result("1")).await.unwrap();
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::KeptBytes, 10));
    assert_eq!(usage(&store, "acme").await, Usage { running: 1, queued: 0, kept: 3, kept_bytes: 10 });
}

fn creates(count: u32, burst: u32) -> Limits {
    let of = |number| std::num::NonZeroU32::new(number).unwrap();
    Limits { creates: CreateRate::new(of(count), HOUR, of(burst)), ..AMPLE }
}

pub(crate) async fn bounds_creations_in_time(store: Arc<dyn Store>) {
    let limits = creates(1, 2);
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    store.create(task(&owner("acme", "bob")), None, &limits).await.unwrap();
    match store.create(task(&alice()), None, &limits).await {
        Err(StoreError::Quota(quota)) => {
            let wait = quota.until_expiry.unwrap();
            assert_eq!((quota.reason, quota.limit), (QuotaReason::Creates, 2));
            assert!(wait > HOUR / 2 && wait <= HOUR, "{wait:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
    // Tasks that go give nothing back, not even the last of a tenant's.
    store.purge(first.expires_at().plus(HOUR), 10).await.unwrap();
    assert_eq!(usage(&store, "acme").await, Usage::default());
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::Creates, 2));
    store.create(task(&owner("umbrella", "x")), None, &limits).await.unwrap();
    store.create(task(&alice()), None, &AMPLE).await.unwrap();
    // 36,000 in an hour: one each 100 ms.
    let quick = creates(36_000, 1);
    store.create(task(&owner("quick", "x")), None, &quick).await.unwrap();
    while let Err(error) = store.create(task(&owner("quick", "x")), None, &quick).await {
        assert!(matches!(error, StoreError::Quota(Quota { reason: QuotaReason::Creates, .. })), "{error:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn what_is_refused_is_no_creation(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, queued_tasks: 0, ..creates(1, 2) };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    for _ in 0..5 {
        assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::RunningTasks, 1));
        let again = store.create(Task::clone(&first), None, &limits).await;
        assert!(matches!(again, Err(StoreError::Conflict)));
    }
    store.replace(ended(&first), None).await.unwrap();
    store.create(task(&alice()), None, &limits).await.unwrap();
    // The rate comes first: over both limits it is the one that is told.
    assert_eq!(refusal(&store, task(&alice()), &limits).await, (QuotaReason::Creates, 2));
}

pub(crate) async fn tenants_do_not_count_against_each_other(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, queued_tasks: 0, kept_tasks: 1, kept_bytes: 1, creates: None };
    for tenant in ["acme", "umbrella"] {
        let made = store.create(task(&owner(tenant, "alice")), None, &limits).await.unwrap();
        store.replace(ended(&made), result("1")).await.unwrap();
        assert_eq!(usage(&store, tenant).await, Usage { running: 0, queued: 0, kept: 1, kept_bytes: 1 });
    }
}

pub(crate) async fn raised_limits_serve_the_waiting_first(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    store.create(task(&alice()), None, &limits).await.unwrap();
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    let third = store.create(task(&alice()), None, &Limits { running_tasks: 2, ..AMPLE }).await.unwrap();
    assert!(matches!(state(&store, &second).await, State::Held(_)));
    assert_eq!(third.state, State::Queued);
}

pub(crate) async fn lowered_limits_give_no_places(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let first = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let second = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let third = store.create(task(&alice()), None, &limits).await.unwrap();
    store.replace(ended(&first), None).await.unwrap();
    assert_eq!(state(&store, &third).await, State::Queued);
    store.replace(ended(&second), None).await.unwrap();
    assert!(matches!(state(&store, &third).await, State::Held(_)));
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

pub(crate) async fn tells_watchers_of_changes(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut first = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let mut second = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let changed = store.replace(Task::clone(&made), None).await.unwrap();
    // Before the wait began, and still told.
    assert!(first.changed().await && second.changed().await);
    assert_eq!(first.version(), changed.version);
    let waiting = Jobs::default().spawn("waiter", async move { first.changed().await });
    let next = store.replace(Task::clone(&changed), None).await.unwrap();
    assert!(waiting.await.unwrap() && second.changed().await);
    assert_eq!(second.version(), next.version);
}

pub(crate) async fn tells_watchers_of_a_place(store: Arc<dyn Store>) {
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let first = store.create(task(&alice()), None, &limits).await.unwrap();
    let second = store.create(task(&alice()), None, &limits).await.unwrap();
    let mut watch = store.watch(&alice(), second.id).await.unwrap().unwrap();
    store.replace(ended(&first), None).await.unwrap();
    assert!(watch.changed().await);
    assert!(matches!(state(&store, &second).await, State::Held(_)));
}

pub(crate) async fn ends_watches_with_the_task(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut watch = store.watch(&alice(), made.id).await.unwrap().unwrap();
    let over = store.replace(ended(&made), None).await.unwrap();
    assert!(watch.changed().await, "the end itself is told");
    assert_eq!(watch.version(), over.version);
    assert!(!watch.changed().await, "nothing comes after it");
    let mut late = store.watch(&alice(), made.id).await.unwrap().unwrap();
    assert!(!late.changed().await);
}

pub(crate) async fn closes_watches_on_purge(store: Arc<dyn Store>) {
    let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
    let mut watch = store.watch(&alice(), made.id).await.unwrap().unwrap();
    store.purge(made.expires_at(), 10).await.unwrap();
    assert!(!watch.changed().await);
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
