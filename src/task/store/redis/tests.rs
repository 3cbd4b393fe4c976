//! The redis store under the contract, and what only a server can do to it: clocks that differ, records that it drops,
//! messages that are lost, and its going away.

mod costs;

use std::time::Duration;

use super::*;
use crate::hub::tests::cluster;
use crate::hub::tests::proxy::{Proxy, Weather};
use crate::hub::tests::sentinel::Watched;
use crate::hub::tests::server::{self, PATIENCE, Server};
use crate::replica::Replicas;
use crate::replica::redis::RedisReplicas;
use crate::task::sample;
use crate::task::state::{Ending, Event};
use crate::task::store::contract::each_contract_test;

each_contract_test!({
    let Some(url) = server::shared_url() else { return };
    Arc::new(store(&url, &server::prefix(), Clock::system(), &Jobs::default()).await) as Arc<dyn Store>
});

/// What spans tenants, and so nodes, is the same there.
mod on_a_cluster {
    use super::*;

    each_contract_test!({
        let Some(url) = cluster::shared_url() else { return };
        Arc::new(store(&url, &server::prefix(), Clock::system(), &Jobs::default()).await) as Arc<dyn Store>
    });
}

const HOUR: Duration = Duration::from_secs(3600);
const LIMITS: Limits =
    Limits { running_tasks: 10, queued_tasks: 10, kept_tasks: 1000, kept_bytes: 1 << 20, creates: None };

async fn store(url: &str, prefix: &str, clock: Clock, jobs: &Jobs) -> RedisStore {
    let hub = server::connected_as(url, prefix, jobs);
    let store = RedisStore::start(hub.clone(), clock, jobs);
    assert!(hub.arrives(PATIENCE).await);
    store
}

fn task(tenant: &str, clock: Clock, ttl: Duration) -> Task {
    sample::task(sample::owner(tenant, "alice"), clock.now(), ttl)
}

fn ended(task: &Task) -> Task {
    let state = task.state.clone().apply(Event::End(Ending::Cancelled), task.created_at).unwrap();
    Task { state, ..task.clone() }
}

#[tokio::test]
async fn replicas_whose_clocks_differ_agree() {
    let Some(url) = server::shared_url() else { return };
    let (jobs, prefix, right) = (Jobs::default(), server::prefix(), Clock::system());
    let clocks = [right.off_by(-5000), right, right.off_by(5000)];
    let mut stores = Vec::new();
    for clock in clocks {
        stores.push(store(&url, &prefix, clock, &jobs).await);
    }
    for (store, clock) in stores.iter().zip(clocks) {
        let made = store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
        assert!(right.now().since(made.created_at) + made.created_at.since(right.now()) < Duration::from_secs(2));
        assert_eq!((made.ttl, made.updated_at), (HOUR, made.created_at));
        assert_eq!(made.deadline, made.expires_at());
        let short = store.create(task("acme", clock, Duration::from_secs(4)), None, &LIMITS).await.unwrap();
        for (other, its) in stores.iter().zip(clocks) {
            let read = other.read(&made.owner, made.id).await.unwrap().unwrap();
            assert_eq!((read.created_at, read.updated_at, read.ttl), (made.created_at, made.updated_at, made.ttl));
            assert!(other.read(&short.owner, short.id).await.unwrap().is_some());
            // Nobody removes it before its time.
            assert!(other.purge(its.now(), 10).await.unwrap().tasks.is_empty());
        }
        let noted = Task { status_message: Some("half".into()), updated_at: clock.now(), ..Task::clone(&made) };
        let noted = store.replace(noted, None).await.unwrap();
        assert!(noted.updated_at >= noted.created_at);
        assert!(right.now().since(noted.updated_at) + noted.updated_at.since(right.now()) < Duration::from_secs(2));
    }
}

#[tokio::test]
async fn counters_are_right_again_where_the_server_dropped_a_record() {
    let Some(url) = server::shared_url() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&url, &server::prefix(), clock, &jobs).await;
    let mut made = Vec::new();
    for ttl in [HOUR, HOUR, HOUR * 2, HOUR * 2] {
        made.push(store.create(task("acme", clock, ttl), None, &LIMITS).await.unwrap());
    }
    store.replace(ended(&made[3]), Some(Outcome::Result("12345".into()))).await.unwrap();
    let dropped = format!("{{{}:{}}}:t:{}", store.inner.hub.prefix(), keys::tenant("acme"), made[0].id);
    assert_eq!(store.inner.hub.run(redis::cmd("DEL").arg(dropped)).await.unwrap(), Value::Int(1));
    assert!(store.read(&made[0].owner, made[0].id).await.unwrap().is_none());
    assert_eq!(store.list(&made[0].owner, None, 10).await.unwrap().len(), 3);
    assert!(matches!(store.replace(ended(&made[0]), None).await, Err(StoreError::NotFound)));
    let taken = store.take_over(&made[0].holder, &Holder::from_text("second"), 10).await.unwrap();
    assert_eq!(taken.len(), 2);
    assert_eq!(store.purge(made[1].expires_at(), 10).await.unwrap().tasks.len(), 1);
    let usage = store.usage("acme").await.unwrap();
    assert_eq!(usage, Usage { running: 1, queued: 0, kept: 2, kept_bytes: 5 });
}

/// While a script runs the server does nothing else: what is large comes in pieces, and all of it comes.
#[tokio::test]
async fn what_is_large_comes_in_pieces() {
    let Some(url) = server::shared_url() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&url, &server::prefix(), clock, &jobs).await;
    let large = "x".repeat(700_000);
    let mut made = Vec::new();
    for _ in 0..5 {
        let task = Task { status_message: Some(large.as_str().into()), ..task("acme", clock, HOUR) };
        made.push(store.create(task, Some("draft".into()), &LIMITS).await.unwrap());
    }
    let (first, second) = (made[0].holder.clone(), Holder::from_text("second"));
    let mut taken = Vec::new();
    for most in [2, 2, 1, 0] {
        let some = store.take_over(&first, &second, 64).await.unwrap();
        assert_eq!(some.len(), most);
        taken.extend(some.iter().map(|orphan| orphan.task.id));
    }
    assert_eq!(taken.len(), 5);
    for (limit, expected) in [(10, 5), (4, 4), (2, 2)] {
        let listed = store.list(&made[0].owner, None, limit).await.unwrap();
        let mut ids: Vec<TaskId> = listed.iter().map(|task| task.id).collect();
        assert!(listed.is_sorted_by(|a, b| a.created_at >= b.created_at));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), expected);
    }
    assert_eq!(store.purge(made[4].expires_at(), 100).await.unwrap().tasks.len(), 5);
    assert_eq!(store.usage("acme").await.unwrap(), Usage { running: 0, queued: 0, kept: 0, kept_bytes: 0 });
}

#[tokio::test]
async fn nothing_is_left_of_what_went() {
    let Some(url) = server::shared_url() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&url, &server::prefix(), clock, &jobs).await;
    let limits = Limits { running_tasks: 3, ..LIMITS };
    let mut last = clock.now();
    for number in 0..20 {
        let made = task(["acme", "umbrella"][number % 2], clock, HOUR);
        let made = store.create(made, Some("draft".into()), &limits).await.unwrap();
        store.note_trail(&made.owner, made.id, 1, Step::First, "trail".into()).await.unwrap();
        if number % 3 == 0 {
            store.replace(ended(&made), Some(Outcome::Error("{}".into()))).await.unwrap();
        }
        last = made.expires_at();
    }
    let keys = async || -> Vec<String> {
        let pattern = format!("*{}*", store.inner.hub.prefix());
        let keys = store.inner.hub.run(redis::cmd("KEYS").arg(pattern)).await.unwrap();
        read::<Vec<String>>(keys, "keys").unwrap()
    };
    // Whatever dies: nothing of a tenant's stays for ever.
    for key in keys().await.iter().filter(|key| !key.starts_with(&format!("{{{}}}", store.inner.hub.prefix()))) {
        let ttl = store.inner.hub.run(redis::cmd("PTTL").arg(key)).await.unwrap();
        assert!(matches!(ttl, Value::Int(1..)), "{key}: {ttl:?}");
    }
    store.inner.sum_up_once().await.unwrap();
    assert_eq!(store.bytes(), 14);
    assert_eq!(store.purge(last, 100).await.unwrap().tasks.len(), 20);
    assert!(store.holders().await.unwrap().is_empty());
    store.inner.sum_up_once().await.unwrap();
    assert_eq!(store.bytes(), 0);
    let mut left = keys().await;
    left.retain(|key| !key.ends_with(":probe") && !key.ends_with(":total"));
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_watch_hears_of_what_others_do_even_where_no_message_comes() {
    let Some(url) = server::shared_url() else { return };
    let (jobs, prefix, clock) = (Jobs::default(), server::prefix(), Clock::system());
    let (here, there) = (store(&url, &prefix, clock, &jobs).await, store(&url, &prefix, clock, &jobs).await);
    let made = here.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    let mut watch = here.watch(&made.owner, made.id).await.unwrap().unwrap();
    let second = there.replace(Task::clone(&made), None).await.unwrap();
    assert!(watch.changed().await);
    assert_eq!(watch.version(), second.version);
    // As if nothing had been published: what is written past the scripts wakes nobody.
    let record = format!("{{{prefix}:{}}}:t:{}", keys::tenant("acme"), made.id);
    here.inner.hub.run(redis::cmd("HSET").arg(record).arg("v").arg(9)).await.unwrap();
    assert!(watch.changed().await);
    assert_eq!(watch.version(), 9);
}

#[tokio::test]
async fn away_is_told_at_once_and_watches_wait_on() {
    let Some(server) = Server::start() else { return };
    let (jobs, prefix, clock) = (Jobs::default(), server::prefix(), Clock::system());
    let proxy = Proxy::start(server.port, &jobs).await;
    let beside = store(&server.url(), &prefix, clock, &jobs).await;
    let store = store(&proxy.url(), &prefix, clock, &jobs).await;
    let mut made = store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    let mut watch = store.watch(&made.owner, made.id).await.unwrap().unwrap();
    for weather in [Weather::Cut, Weather::Swallowed, Weather::Cut] {
        let mut renewals = store.inner.hub.renewals();
        proxy.set(weather);
        let refused = store.create(task("acme", clock, HOUR), None, &LIMITS).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        // From the first failure on it is known, and nothing waits for it any more.
        assert!(!store.inner.hub.is_there());
        for _ in 0..100 {
            assert!(store.create(task("acme", clock, HOUR), None, &LIMITS).await.is_err_and(|error| error.is_known()));
            assert!(store.read(&made.owner, made.id).await.is_err());
            assert!(store.usage("acme").await.is_err());
            assert!(store.watch(&made.owner, made.id).await.is_err());
            assert!(store.purge(clock.now(), 1).await.is_err());
        }
        made = beside.replace(Task::clone(&made), None).await.unwrap();
        proxy.set(Weather::Fine);
        renewals.next().await;
        // Its message was lost with the connection.
        assert!(watch.changed().await);
        assert_eq!(watch.version(), made.version);
        store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_hangs_or_starts_again_is_found_again() {
    let Some(first) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&first.url(), &server::prefix(), clock, &jobs).await;
    let made = store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    let mut watch = store.watch(&made.owner, made.id).await.unwrap().unwrap();
    let mut renewals = store.inner.hub.renewals();
    first.signal("STOP");
    assert!(matches!(store.read(&made.owner, made.id).await, Err(StoreError::Unavailable(_))));
    assert!(store.read(&made.owner, made.id).await.is_err_and(|error| error.is_known()));
    first.signal("CONT");
    renewals.next().await;
    assert!(store.read(&made.owner, made.id).await.unwrap().is_some());
    // One that starts empty has lost the task: who waits for it is told that it is gone.
    let port = first.port;
    drop(first);
    let _second = Server::start_on(port, &[]).unwrap();
    renewals.next().await;
    while watch.changed().await {}
    assert!(store.read(&made.owner, made.id).await.unwrap().is_none());
    store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_new_tasks_alone() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let hub = server::connected(&server.url(), &jobs);
    let replica = RedisReplicas::join(hub.clone(), Holder::from_text("first"), None, Duration::from_secs(10));
    let store = RedisStore::start(hub.clone(), clock, &jobs);
    assert!(hub.arrives(PATIENCE).await);
    let short = store.create(task("acme", clock, Duration::from_secs(4)), None, &LIMITS).await.unwrap();
    let made = store.create(task("acme", clock, HOUR), Some("draft".into()), &LIMITS).await.unwrap();
    let mut full = redis::cmd("CONFIG");
    hub.run(full.arg("SET").arg("maxmemory").arg("1")).await.unwrap();
    // Given a server without room, then nothing new is taken,
    let refused = store.create(task("acme", clock, HOUR), None, &LIMITS).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    // but what runs goes on, is taken over and ends,
    store.note_trail(&made.owner, made.id, made.epoch, Step::First, "here".into()).await.unwrap();
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    assert_eq!(store.take_over(&first, &second, 10).await.unwrap().len(), 2);
    let mut ended = Task::clone(&store.read(&made.owner, made.id).await.unwrap().unwrap());
    ended.state = ended.state.apply(Event::End(Ending::Errored), clock.now()).unwrap();
    store.replace(ended, Some(Outcome::Error("{}".into()))).await.unwrap();
    assert!(store.note_read(&made.owner, made.id).await.unwrap());
    // who lives stays alive, and sessions find their home and their end,
    replica.renew().await.unwrap();
    assert_eq!(replica.claim_home(7, None, HOUR).await.unwrap(), first);
    replica.end_session(7, HOUR).await.unwrap();
    assert!(replica.has_ended(7).await.unwrap());
    // and what frees memory does.
    let purging = async { while store.purge(short.expires_at(), 10).await.unwrap().tasks.is_empty() {} };
    tokio::time::timeout(PATIENCE, purging).await.unwrap();
    assert_eq!(store.usage("acme").await.unwrap().kept, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_was_refused_leaves_nothing() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&server.url(), "taskgate", clock, &jobs).await;
    let (late, mut renewals) = (task("acme", clock, HOUR), store.inner.hub.renewals());
    let (owner, id) = (Arc::clone(&late.owner), late.id);
    // Whoever has made none on its connection waits for the index first, and sends no creation.
    store.create(task("umbrella", clock, HOUR), None, &LIMITS).await.unwrap();
    // Given a server that reads a creation only when its caller has given up,
    server.signal("STOP");
    assert!(matches!(store.create(late.clone(), None, &LIMITS).await, Err(StoreError::Unavailable(_))));
    server.signal("CONT");
    renewals.next().await;
    // then it is taken back, whether it was carried out or not,
    let mark = format!("{{taskgate:{}}}:n:{id}", keys::tenant("acme"));
    while store.inner.hub.run(redis::cmd("EXISTS").arg(&mark)).await.unwrap() == Value::Int(0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(store.read(&owner, id).await.unwrap().is_none());
    assert_eq!(store.usage("acme").await.unwrap(), Usage { running: 0, queued: 0, kept: 0, kept_bytes: 0 });
    // and one that comes after that is refused.
    assert!(matches!(store.create(late, None, &LIMITS).await, Err(StoreError::Conflict)));
    assert_eq!(store.usage("acme").await.unwrap().kept, 0);
}

/// Which scripts the server knows: it asks for the text of the others.
#[derive(Debug, Clone, Copy)]
enum Knows {
    Nothing,
    Creations,
    All,
}

/// Whenever a process dies while it makes a task, either there is none or its holder is found by those who are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_maker_dies_before_it_says_so_is_found() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let beside = store(&server.url(), "taskgate", clock, &jobs).await;
    for (is_first, knows) in [(true, Knows::Nothing), (true, Knows::Creations), (true, Knows::All), (false, Knows::All)]
    {
        let (mut commands, mut found) = (0, [0, 0]);
        loop {
            beside.inner.hub.run(redis::cmd("SCRIPT").arg("FLUSH")).await.unwrap();
            match knows {
                Knows::Nothing => {}
                // It fails without arguments, and is known.
                Knows::Creations => {
                    let failed = beside.inner.of_tenant(&beside.inner.scripts.create, "none", &[]).await;
                    failed.expect_err("a creation of nothing");
                }
                Knows::All => drop(beside.create(task("none", clock, HOUR), None, &LIMITS).await.unwrap()),
            }
            let proxy = Proxy::start(server.port, &jobs).await;
            let dying = store(&proxy.url(), "taskgate", clock, &jobs).await;
            if !is_first {
                dying.create(task("none", clock, HOUR), None, &LIMITS).await.unwrap();
            }
            let holder = Holder::from_text(&format!("holder-{commands}-{is_first}-{knows:?}"));
            let made = Task { holder: holder.clone(), ..task("acme", clock, HOUR) };
            // Given a process that dies after that many of the commands that a creation takes,
            proxy.set(Weather::Last(commands, "holder-"));
            let is_whole = tokio::select! {
                made = dying.create(made.clone(), None, &LIMITS) => made.is_ok(),
                () = proxy.until(Weather::Swallowed) => false,
            };
            // then whoever takes over from the holders that the store names has the task, if there is one.
            let is_there = beside.read(&made.owner, made.id).await.unwrap().is_some();
            let mut taken = 0;
            if beside.holders().await.unwrap().contains(&holder) {
                taken = beside.take_over(&holder, &Holder::from_text("survivor"), 10).await.unwrap().len();
            }
            assert_eq!(taken, usize::from(is_there), "after {commands} commands, the first: {is_first}, {knows:?}");
            found[usize::from(is_there)] += 1;
            if is_whole {
                break;
            }
            commands += 1;
        }
        assert!(found[0] > 0 && found[1] > 1, "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_over_without_an_answer_is_found() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let proxy = Proxy::start(server.port, &jobs).await;
    let beside = store(&server.url(), "taskgate", clock, &jobs).await;
    let store = store(&proxy.url(), "taskgate", clock, &jobs).await;
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let mut made = Vec::new();
    for tenant in ["acme", "umbrella"] {
        made.push(beside.create(task(tenant, clock, HOUR), Some("draft".into()), &LIMITS).await.unwrap());
    }
    // Else the server would ask for the script first, and that answer be the lost one.
    let nobody = ["nobody", "nobody", "1", "0", "1048576"].map(str::as_bytes);
    store.inner.of_tenant(&store.inner.scripts.take_over, "none", &nobody).await.unwrap();
    // Given a takeover that is carried out and not answered,
    let before = store.lost_words();
    proxy.set(Weather::Unanswered("\r\nfirst\r\n"));
    assert!(matches!(store.take_over(&first, &second, 10).await, Err(StoreError::Unavailable(_))));
    proxy.set(Weather::Fine);
    let mut taken = 0;
    for made in &made {
        taken += usize::from(beside.read(&made.owner, made.id).await.unwrap().unwrap().holder == second);
    }
    assert_eq!(taken, 1);
    // then it is known that a word was lost,
    assert_ne!(store.lost_words(), before);
    // and its holder gets what it does not know of, with what it takes to go on; once.
    let strays = loop {
        // It may be on the way to its next connection.
        match store.take_strays(&second, &|_, _| false, 10).await {
            Ok(strays) => break strays,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let [stray] = &strays[..] else { panic!("one task") };
    assert_eq!((stray.task.epoch, &stray.task.holder, stray.draft.as_deref()), (3, &second, Some("draft")));
    let known = |id, epoch| (id, epoch) == (stray.task.id, 3);
    assert!(store.take_strays(&second, &known, 10).await.unwrap().is_empty());
    // What nobody had taken is there for whoever takes it.
    assert_eq!(store.take_over(&first, &second, 10).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_that_comes_late_takes_nothing() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&server.url(), "taskgate", clock, &jobs).await;
    let made = store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    let (second, counters) = (Holder::from_text("second"), format!("{{taskgate:{}}}:c", keys::tenant("acme")));
    // Given a look for strays after a takeover that was not answered, when the server carries it out only then,
    store.inner.index(&keys::tenant("acme"), &second, None).await.unwrap();
    assert!(store.take_strays(&second, &|_, _| false, 10).await.unwrap().is_empty());
    let late = ["first", "second", "10", "0", "1048576"].map(str::as_bytes);
    store.inner.hub.call(&store.inner.scripts.take_over, &[&counters], &late).await.unwrap();
    // then nothing has changed; and one of now takes what there is.
    assert_eq!(store.read(&made.owner, made.id).await.unwrap().unwrap().epoch, 1);
    assert_eq!(store.take_over(&made.holder, &second, 10).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_no_stray() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let proxy = Proxy::start(server.port, &jobs).await;
    let beside = store(&server.url(), "taskgate", clock, &jobs).await;
    let store = store(&proxy.url(), "taskgate", clock, &jobs).await;
    let first = Holder::from_text("first");
    // Given a creation that is carried out and not answered,
    let made = store.create(task("umbrella", clock, HOUR), None, &LIMITS).await.unwrap();
    store.replace(ended(&made), None).await.unwrap();
    proxy.set(Weather::Unanswered("\r\nfirst\r\n"));
    let refused = task("acme", clock, HOUR);
    assert!(matches!(store.create(refused.clone(), None, &LIMITS).await, Err(StoreError::Unavailable(_))));
    let mut renewals = store.inner.hub.renewals();
    proxy.set(Weather::Fine);
    renewals.next().await;
    // then nobody goes on with it, before it was taken back and after.
    while beside.usage("acme").await.unwrap().kept > 0 {
        assert!(store.take_strays(&first, &|_, _| false, 10).await.unwrap().is_empty());
    }
    assert!(store.take_strays(&first, &|_, _| false, 10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_is_followed() {
    let Some(watched) = Watched::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let store = store(&watched.url(), "taskgate", clock, &jobs).await;
    let made = store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
    let mut watch = store.watch(&made.owner, made.id).await.unwrap().unwrap();
    watched.until_the_replica_has_all();
    let mut renewals = store.inner.hub.renewals();
    watched.kill_the_primary();
    // Given another primary, when it has been found, then the task is there and its watch goes on.
    renewals.next().await;
    let read = store.read(&made.owner, made.id).await.unwrap().unwrap();
    let second = store.replace(Task::clone(&read), None).await.unwrap();
    assert!(watch.changed().await);
    assert_eq!(watch.version(), second.version);
    store.create(task("acme", clock, HOUR), None, &LIMITS).await.unwrap();
}

/// What docs/stores.md says is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let Some(server) = Server::start() else { return };
    let (jobs, clock) = (Jobs::default(), Clock::system());
    let admin = server::connected(&server.url(), &jobs);
    assert!(admin.arrives(PATIENCE).await);
    let page = include_str!("../../../../docs/stores.md");
    let rights = page.split("ACL SETUSER taskgate on >PASSWORD").nth(1).unwrap().split("```").next().unwrap();
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER").arg("taskgate").arg("on").arg(">p@ss").arg(rights.split_whitespace().collect::<Vec<_>>());
    admin.run(&acl).await.unwrap();
    let url = format!("redis://taskgate:p%40ss@127.0.0.1:{}", server.port);
    let store = store(&url, "taskgate", clock, &jobs).await;
    let made = store.create(task("acme", clock, HOUR), Some("draft".into()), &LIMITS).await.unwrap();
    let mut watch = store.watch(&made.owner, made.id).await.unwrap().unwrap();
    store.note_trail(&made.owner, made.id, 1, Step::First, "trail".into()).await.unwrap();
    let second = Holder::from_text("second");
    assert_eq!(store.take_over(&made.holder, &second, 10).await.unwrap().len(), 1);
    assert_eq!(store.take_strays(&second, &|_, _| false, 10).await.unwrap().len(), 1);
    assert_eq!(store.holders().await.unwrap(), [second]);
    let made = store.read(&made.owner, made.id).await.unwrap().unwrap();
    store.replace(ended(&made), Some(Outcome::Result("1".into()))).await.unwrap();
    assert!(watch.changed().await);
    assert!(store.outcome(&made.owner, made.id).await.unwrap().is_some());
    assert!(store.note_read(&made.owner, made.id).await.unwrap());
    assert_eq!(store.list(&made.owner, None, 10).await.unwrap().len(), 1);
    store.inner.sum_up_once().await.unwrap();
    assert_eq!(store.purge(made.expires_at(), 10).await.unwrap().tasks.len(), 1);
    assert!(store.holders().await.unwrap().is_empty());
    // What replicas share beside tasks.
    let hub = &store.inner.hub;
    hub.run(redis::cmd("SET").arg(hub.lease("me")).arg("").arg("PX").arg(1000)).await.unwrap();
    hub.run(redis::cmd("GET").arg("taskgate:home:7")).await.unwrap();
    hub.run(redis::cmd("EXISTS").arg("taskgate:ended:7")).await.unwrap();
    hub.publish("taskgate:bus", b"x").await.unwrap();
    hub.run(redis::cmd("INFO").arg("memory")).await.unwrap();
    assert!(matches!(hub.run(redis::cmd("GET").arg("other")).await, Err(HubError::Failed(_))));
}
