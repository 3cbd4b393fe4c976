//! Changes through the ledger: races, waits, audit lines, and a store that fails.

use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;
use crate::jobs::Jobs;
use crate::jsonrpc::Id;
use crate::task::sample;
use crate::task::state::{Answer, Progress};
use crate::task::store::faulty::FaultyStore;
use crate::task::store::memory::MemoryStore;

const LIMITS: Limits =
    Limits { running_tasks: 100_000, queued_tasks: 10, kept_tasks: 100_000, kept_bytes: 1 << 30, creates: None };

type Told = Arc<Mutex<Vec<(Option<Status>, Option<Status>, &'static str)>>>;

fn ledger_over(store: impl FnOnce(Clock) -> Arc<dyn Store>) -> (Ledger, Told) {
    let clock = Clock::system();
    let told = Told::default();
    let tell = told.clone();
    let observer: Observer = Arc::new(move |transition| {
        tell.lock().unwrap().push((transition.from, transition.to, transition.reason));
    });
    (Ledger::new(store(clock), Holder::begin("test"), clock, observer), told)
}

fn ledger() -> Ledger {
    observed().0
}

fn observed() -> (Ledger, Told) {
    ledger_over(|clock| Arc::new(MemoryStore::new(clock)))
}

fn conflicting(conflicts: usize) -> Ledger {
    ledger_over(|clock| {
        let store = FaultyStore::new(clock);
        store.conflicts.store(conflicts, Ordering::SeqCst);
        Arc::new(store)
    })
    .0
}

fn alice() -> Owner {
    Owner { issuer: "https://login.example".into(), ..sample::owner("acme", "alice") }
}

fn new_task() -> NewTask {
    NewTask {
        owner: Arc::new(alice()),
        tool: "report".into(),
        session: 7,
        progress_token: Some("1".into()),
        ttl: Duration::from_secs(3600),
        poll_interval: Duration::from_secs(1),
        deadline: Duration::from_secs(1800),
        draft: None,
    }
}

async fn create(ledger: &Ledger) -> Arc<Task> {
    ledger.create(new_task(), &LIMITS).await.unwrap().0
}

fn ask(upstream_id: u64) -> Event {
    Event::Ask { upstream_id: Id::number(upstream_id), method: "elicitation/create".into(), params: None }
}

fn returned() -> Finish {
    Finish::returned(false, r#"{"content":[]}"#.into(), None)
}

#[tokio::test(start_paused = true)]
async fn a_new_task_can_be_read() {
    let ledger = ledger();
    let task = create(&ledger).await;
    let read = ledger.get(&alice(), task.id).await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&task, &read));
    assert_eq!(read.created_at, read.updated_at);
    assert_eq!(read.deadline.since(read.created_at), Duration::from_secs(1800));
    assert_eq!(read.expires_at().since(read.created_at), Duration::from_secs(3600));
    let listed = ledger.list(&alice(), None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id]);
}

#[tokio::test]
async fn only_what_is_held_and_may_ask_is_looked_at_for_questions() {
    let ledger = ledger();
    let _quiet = ledger.create(new_task(), &LIMITS).await.unwrap();
    let (task, hold) = ledger.create(new_task(), &LIMITS).await.unwrap();
    assert_eq!(ledger.asking(), []);
    hold.may_ask();
    assert_eq!(ledger.asking(), [(Arc::clone(&task.owner), task.id)]);
    drop(hold);
    assert_eq!(ledger.asking(), []);
}

#[tokio::test]
async fn what_an_earlier_holder_writes_is_void() {
    let store = Arc::new(MemoryStore::shared(Clock::system()));
    let (first, _) = ledger_over(|_| Arc::clone(&store) as Arc<dyn Store>);
    let (second, told) = ledger_over(|_| Arc::clone(&store) as Arc<dyn Store>);
    let held = create(&first).await;
    first.apply_held(&held, ask(1)).await.unwrap();
    let [(orphan, _)] = &second.take_over(&held.holder, 10).await.unwrap()[..] else { panic!("one task") };
    assert!(matches!(first.apply_held(&held, ask(2)).await, Err(ApplyError::Fenced)));
    assert!(matches!(first.end_held(&held, returned()).await, Err(ApplyError::Fenced)));
    let late = first.note_trail(&held, Step::First, "late".into()).await;
    assert!(matches!(late, Err(StoreError::Conflict)));
    assert!(told.lock().unwrap().is_empty());
    // A client's word counts wherever it comes in.
    let answer = Event::Answer { number: 0, answer: Answer::Result("{}".into()) };
    first.apply(&alice(), held.id, answer).await.unwrap();
    second.apply_held(&orphan.task, Event::Settle { upstream_id: Id::number(1) }).await.unwrap();
    second.end_held(&orphan.task, returned()).await.unwrap();
    assert!(matches!(first.end_held(&held, returned()).await, Err(ApplyError::Fenced)));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_change_never_goes_back() {
    let behind = Clock::system();
    tokio::time::advance(Duration::from_secs(5)).await;
    let store = Arc::new(MemoryStore::shared(behind));
    let task = Task { updated_at: behind.now().plus(Duration::from_secs(5)), ..Task::clone(&*create(&ledger()).await) };
    let made = store.create(task, None, &LIMITS).await.unwrap();
    let (ledger, _) = ledger_over(|_| store);
    let noted = ledger.apply(&alice(), made.id, Event::Note("on".into())).await.unwrap();
    assert_eq!(noted.updated_at, made.updated_at);
}

#[tokio::test]
async fn a_refused_task_is_told_to_nobody() {
    let (ledger, told) = observed();
    let limits = Limits { kept_tasks: 0, ..LIMITS };
    assert!(matches!(ledger.create(new_task(), &limits).await, Err(StoreError::Quota(_))));
    assert!(told.lock().unwrap().is_empty());
}

#[tokio::test]
async fn each_change_of_status_is_told_once() {
    let (ledger, told) = observed();
    let id = create(&ledger).await.id;
    let answer = Answer::Result("{}".into());
    for event in [
        Event::Note("a".into()),
        ask(1),
        ask(2),
        Event::Claim { number: 0, stream: 3 },
        Event::Answer { number: 0, answer: answer.clone() },
        Event::Answer { number: 1, answer },
        Event::Settle { upstream_id: Id::number(1) },
    ] {
        ledger.apply(&alice(), id, event).await.unwrap();
    }
    ledger.end(&alice(), id, Finish::errored("deadline", "{}".into(), None)).await.unwrap();
    ledger.apply(&alice(), id, Event::End(Ending::Cancelled)).await.unwrap_err();
    let expected = [
        (None, Some(Status::Working), "created"),
        (Some(Status::Working), Some(Status::InputRequired), "asked"),
        (Some(Status::InputRequired), Some(Status::Working), "answered"),
        (Some(Status::Working), Some(Status::Failed), "deadline"),
    ];
    assert_eq!(*told.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn updated_at_follows_status_and_message_alone() {
    let ledger = ledger();
    let mut last = create(&ledger).await;
    let steps = [
        (ask(1), true),
        (Event::Claim { number: 0, stream: 1 }, false),
        (Event::Release { stream: 1 }, false),
        (Event::Answer { number: 1, answer: Answer::Error("{}".into()) }, true),
        (Event::Settle { upstream_id: Id::number(1) }, false),
        (Event::Note("half".into()), true),
        (Event::Note("half".into()), false),
        (Event::End(Ending::Errored), true),
    ];
    for (event, is_news) in steps {
        tokio::time::advance(Duration::from_secs(1)).await;
        let next = ledger.apply(&alice(), last.id, event.clone()).await.unwrap();
        assert_eq!(next.updated_at > last.updated_at, is_news, "{event:?}");
        last = next;
    }
}

#[tokio::test]
async fn a_note_that_says_nothing_new_writes_nothing() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    let first = ledger.apply(&alice(), id, Event::Note("half".into())).await.unwrap();
    let second = ledger.apply(&alice(), id, Event::Note("half".into())).await.unwrap();
    assert_eq!((first.version, second.version), (2, 2));
}

#[tokio::test]
async fn long_messages_are_cut_between_characters() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    for text in ["é".repeat(2000), "x".to_owned() + &"é".repeat(2000), "€".repeat(1000)] {
        let task = ledger.apply(&alice(), id, Event::Note(text.as_str().into())).await.unwrap();
        let kept = task.status_message.as_deref().unwrap();
        assert!((MAX_MESSAGE_BYTES - 3..=MAX_MESSAGE_BYTES).contains(&kept.len()), "{}", kept.len());
        assert!(text.starts_with(kept.strip_suffix('…').unwrap()));
    }
    let exact = "x".repeat(MAX_MESSAGE_BYTES);
    let task = ledger.end(&alice(), id, Finish::cancelled(Some(exact.as_str().into()))).await.unwrap();
    assert_eq!(task.status_message.as_deref(), Some(exact.as_str()));
}

#[tokio::test]
async fn an_end_comes_with_its_outcome_and_its_own_message() {
    let ledger = ledger();
    for (finish, status, outcome) in [
        (returned(), Status::Completed, Some(Outcome::Result(r#"{"content":[]}"#.into()))),
        (Finish::returned(true, "{}".into(), None), Status::Failed, Some(Outcome::Result("{}".into()))),
        (Finish::errored("error", "{}".into(), None), Status::Failed, Some(Outcome::Error("{}".into()))),
        (Finish::cancelled(None), Status::Cancelled, None),
    ] {
        let id = create(&ledger).await.id;
        ledger.apply(&alice(), id, Event::Note("page 3 of 10".into())).await.unwrap();
        let task = ledger.end(&alice(), id, finish).await.unwrap();
        assert_eq!(task.state.status(), status);
        assert_eq!(task.status_message, None, "progress is over");
        assert_eq!(ledger.outcome(&alice(), id).await.unwrap(), outcome);
    }
}

#[tokio::test]
async fn an_ended_task_refuses_and_shows_itself() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    ledger.end(&alice(), id, returned()).await.unwrap();
    let late = ledger.end(&alice(), id, Finish::cancelled(None)).await;
    let Err(ApplyError::Refused { refused: Refused::Ended, task }) = late else { panic!("{late:?}") };
    assert_eq!(task.state.status(), Status::Completed);
    assert!(ledger.outcome(&alice(), id).await.unwrap().is_some());
}

#[tokio::test]
async fn somebody_elses_task_does_not_exist() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    let bob = Owner { subject: "bob".into(), ..alice() };
    for (owner, id) in [(&bob, id), (&alice(), TaskId::random())] {
        assert!(ledger.get(owner, id).await.unwrap().is_none());
        assert!(ledger.wait(owner, id, |_| true).await.unwrap().is_none());
        assert!(matches!(ledger.apply(owner, id, ask(1)).await, Err(ApplyError::NotFound)));
        assert!(matches!(ledger.end(owner, id, returned()).await, Err(ApplyError::NotFound)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_task_does_not_exist_even_unswept() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    tokio::time::advance(Duration::from_secs(3600) - Duration::from_millis(1)).await;
    assert!(ledger.get(&alice(), id).await.unwrap().is_some());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(ledger.get(&alice(), id).await.unwrap().is_none());
    assert!(ledger.list(&alice(), None, 10).await.unwrap().is_empty());
    assert!(matches!(ledger.end(&alice(), id, returned()).await, Err(ApplyError::NotFound)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_all_kept() {
    let ledger = ledger();
    let jobs = Jobs::default();
    let id = create(&ledger).await.id;
    let asking = (0..50).map(|n| {
        let ledger = ledger.clone();
        jobs.spawn("asking", async move { ledger.apply(&alice(), id, ask(n)).await.unwrap() })
    });
    join_all(asking).await;
    let task = ledger.get(&alice(), id).await.unwrap().unwrap();
    assert_eq!((task.state.questions().len(), task.version), (50, 51));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stream_gets_a_question() {
    let ledger = ledger();
    let jobs = Jobs::default();
    let id = create(&ledger).await.id;
    ledger.apply(&alice(), id, ask(1)).await.unwrap();
    let claiming = (0..20).map(|stream| {
        let ledger = ledger.clone();
        let claim = Event::Claim { number: 0, stream };
        jobs.spawn("claiming", async move { ledger.apply(&alice(), id, claim).await.ok().map(|_| stream) })
    });
    let winners: Vec<u64> = join_all(claiming).await.into_iter().filter_map(Result::unwrap).collect();
    let [winner] = winners[..] else { panic!("{winners:?}") };
    let task = ledger.get(&alice(), id).await.unwrap().unwrap();
    assert_eq!(task.state.questions()[0].progress, Progress::Claimed(winner));
}

#[tokio::test]
async fn conflicts_are_retried_only_while_somebody_gets_ahead() {
    let ledger = conflicting(1);
    let id = create(&ledger).await.id;
    let stuck = ledger.apply(&alice(), id, ask(1)).await;
    assert!(matches!(stuck, Err(ApplyError::Store(StoreError::Conflict))));
    ledger.apply(&alice(), id, ask(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_begins_as_the_task_ends_is_not_lost() {
    let ledger = ledger();
    let jobs = Jobs::default();
    for _ in 0..10_000 {
        let id = create(&ledger).await.id;
        let waiting = {
            let ledger = ledger.clone();
            jobs.spawn("waiter", async move { ledger.wait(&alice(), id, |_| false).await.unwrap().unwrap() })
        };
        ledger.end(&alice(), id, returned()).await.unwrap();
        assert_eq!(waiting.await.unwrap().state.status(), Status::Completed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_begins_as_the_upstream_asks_is_not_lost() {
    let ledger = ledger();
    let jobs = Jobs::default();
    let id = create(&ledger).await.id;
    let start = Arc::new(tokio::sync::Barrier::new(2));
    for _ in 0..10_000 {
        let waiting = {
            let (ledger, start) = (ledger.clone(), start.clone());
            let asked = |task: &Task| task.state.status() == Status::InputRequired;
            jobs.spawn("waiter", async move {
                start.wait().await;
                ledger.wait(&alice(), id, asked).await.unwrap().unwrap()
            })
        };
        start.wait().await;
        ledger.apply(&alice(), id, ask(1)).await.unwrap();
        // Nothing else will change the task, so a lost wake-up would be for ever.
        let woken = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert_eq!(woken.unwrap().unwrap().state.questions().len(), 1);
        ledger.apply(&alice(), id, Event::Settle { upstream_id: Id::number(1) }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_one_of_300_waiters_is_woken() {
    let ledger = ledger();
    let jobs = Jobs::default();
    let id = create(&ledger).await.id;
    let waiters = (0..300).map(|_| {
        let ledger = ledger.clone();
        jobs.spawn("waiter", async move { ledger.wait(&alice(), id, |_| false).await.unwrap().unwrap() })
    });
    let waiters: Vec<_> = waiters.collect();
    ledger.apply(&alice(), id, Event::Note("half".into())).await.unwrap();
    ledger.end(&alice(), id, returned()).await.unwrap();
    for waiter in join_all(waiters).await {
        assert_eq!(waiter.unwrap().state.status(), Status::Completed);
    }
    assert_eq!(jobs.running(), 0);
}

#[tokio::test]
async fn a_wait_ends_with_what_it_waits_for() {
    let ledger = ledger();
    let id = create(&ledger).await.id;
    let owner = alice();
    let mut wait = Box::pin(ledger.wait(&owner, id, |task| task.state.status() == Status::InputRequired));
    assert!((&mut wait).now_or_never().is_none());
    ledger.apply(&alice(), id, Event::Note("half".into())).await.unwrap();
    assert!((&mut wait).now_or_never().is_none());
    ledger.apply(&alice(), id, ask(1)).await.unwrap();
    assert_eq!(wait.await.unwrap().unwrap().state.status(), Status::InputRequired);
    // What already holds is not waited for.
    assert!(ledger.wait(&alice(), id, |_| true).now_or_never().unwrap().unwrap().is_some());
}

/// A ledger, and its store, which can be made to fail.
fn ledger_over_faulty() -> (Ledger, Arc<FaultyStore>) {
    let mut store = None;
    let (ledger, _) = ledger_over(|clock| store.insert(Arc::new(FaultyStore::new(clock))).clone());
    (ledger, store.unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_waits_goes_on_waiting_while_the_store_is_away() {
    let (ledger, store) = ledger_over_faulty();
    let (id, owner) = (create(&ledger).await.id, alice());
    // Away as the wait begins,
    store.failing_reads.store(3, Ordering::SeqCst);
    let waiting = async { ledger.wait(&owner, id, |_| false).await.unwrap() };
    let ending = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(store.failing_reads.load(Ordering::SeqCst), 0);
        // and when the task has ended.
        ledger.end(&owner, id, returned()).await.unwrap();
        store.failing_reads.store(5, Ordering::SeqCst);
    };
    let (ended, ()) = tokio::join!(waiting, ending);
    assert_eq!(ended.unwrap().state.status(), Status::Completed);
    assert_eq!(store.failing_reads.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_spoilt_is_told_so() {
    let (ledger, store) = ledger_over_faulty();
    let (id, owner) = (create(&ledger).await.id, alice());
    let waiting = async { ledger.wait(&owner, id, |_| false).await };
    let spoiling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Something wakes it, and its record is not to be read any more.
        let noted = ledger.apply(&owner, id, Event::Note("half".into())).await;
        store.is_spoilt.store(true, Ordering::SeqCst);
        noted.unwrap();
    };
    let (ended, ()) = tokio::join!(waiting, spoiling);
    assert!(matches!(ended, Err(StoreError::Spoilt(_))));
    // At once, where it is known from the beginning; and nothing else is done about it either.
    let again = ledger.wait(&owner, id, |_| false).now_or_never().unwrap();
    assert!(matches!(again, Err(StoreError::Spoilt(_))));
    let ended = ledger.end(&owner, id, returned()).now_or_never().unwrap();
    assert!(matches!(ended, Err(ApplyError::Store(StoreError::Spoilt(_)))));
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_audit_names_who_and_what_but_not_what_was_said() {
    let written = Written::default();
    let writer = written.clone();
    // With a single subscriber in the process, a test on another thread that comes first to the line switches it off
    // for all threads; with two, both are asked.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let ledger = ledger();
    let id = create(&ledger).await.id;
    let secret = "s3cret";
    ledger.apply(&alice(), id, Event::Note(secret.into())).await.unwrap();
    let finish = Finish::errored("deadline", format!("{{\"message\":\"{secret}\"}}").into(), Some(secret.into()));
    ledger.end(&alice(), id, finish).await.unwrap();
    drop(guard);
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains(secret));
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for (line, from, to, reason) in
        [(&lines[0], "none", "working", "created"), (&lines[1], "working", "failed", "deadline")]
    {
        let fields = serde_json::json!({
            "message": "task", "tenant": "acme", "subject": "alice", "issuer": "https://login.example",
            "route": "reports", "tool": "report", "task": id.to_string(), "from": from, "to": to, "reason": reason,
        });
        assert_eq!((&line["target"], &line["fields"]), (&"audit".into(), &fields));
    }
}
