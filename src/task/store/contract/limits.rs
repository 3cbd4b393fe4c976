//! What every store must do where a tenant has as much as it may.

use super::*;

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
