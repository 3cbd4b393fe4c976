//! A store that does as it is told and does not say so: each question is shown to exactly one stream all the same.

use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::gateway::session::{Config, Sessions};
use crate::jsonrpc::Id;
use crate::mcp::capabilities::ClientCapabilities;
use crate::seal::Sealer;
use crate::task::store::faulty::FaultyStore;
use crate::task::{Hold, Holder, Limits, NewTask, sample};

struct World {
    store: Arc<FaultyStore>,
    ledger: Ledger,
    deliveries: Deliveries,
    task: Arc<Task>,
    hold: Hold,
}

impl World {
    /// A task that asks something.
    async fn new() -> Self {
        let (clock, me) = (Clock::system(), Holder::begin("me"));
        let store = Arc::new(FaultyStore::new(clock));
        let ledger = Ledger::new(Arc::clone(&store) as _, me.clone(), clock, Arc::new(|_| {}));
        let config = Config { idle: Duration::from_secs(600), max: 64 };
        let sessions = Sessions::new(config, Arc::new(Sealer::new([7; 32], [])), clock);
        let deliveries = Deliveries::new(Arc::new(sessions), &me);
        let hour = Duration::from_secs(3600);
        let new = NewTask {
            owner: Arc::new(sample::owner("t", "s")),
            tool: "x".into(),
            session: 7,
            progress_token: None,
            ttl: hour,
            poll_interval: hour,
            deadline: hour,
            draft: None,
        };
        let limits = Limits { running_tasks: 9, queued_tasks: 9, kept_tasks: 9, kept_bytes: 1 << 20, creates: None };
        let (task, hold) = ledger.create(new, &limits).await.unwrap();
        let ask = Event::Ask { upstream_id: Id::number(1), method: "elicitation/create".into(), params: None };
        let task = ledger.apply(&task.owner, task.id, ask).await.unwrap();
        Self { store, ledger, deliveries, task, hold }
    }

    /// A stream that waits for the task's result.
    fn open(&self, room: usize) -> (Stream, mpsc::Receiver<Bytes>) {
        let (events, shown) = mpsc::channel(room);
        let stream = self.deliveries.stream(events);
        self.deliveries.attach(self.task.id, stream.clone(), ClientCapabilities { form: true, ..Default::default() });
        (stream, shown)
    }

    async fn offer(&self) {
        let task = self.now().await;
        self.deliveries.offer(&self.ledger, &task).await;
    }

    async fn now(&self) -> Arc<Task> {
        self.ledger.get(&self.task.owner, self.task.id).await.unwrap().unwrap()
    }

    async fn settle(&self) {
        while !self.deliveries.retries.is_empty() {
            self.deliveries.retry(&self.ledger).await;
        }
    }
}

/// The numbers of questions that were shown since the last look, and of those that were voided.
fn shown(stream: &mut mpsc::Receiver<Bytes>) -> (usize, usize) {
    let texts: Vec<String> =
        std::iter::from_fn(|| stream.try_recv().ok()).map(|event| String::from_utf8(event.to_vec()).unwrap()).collect();
    let count = |part: &str| texts.iter().map(|text| text.matches(part).count()).sum();
    (count("\"elicitation/create\""), count("\"notifications/cancelled\""))
}

#[tokio::test]
async fn what_a_process_has_claimed_that_is_gone_or_unknown_is_given_back() {
    for is_known in [false, true] {
        let mut world = World::new().await;
        let sessions = Arc::clone(&world.deliveries.sessions);
        let (me, other) = (world.ledger.holder().clone(), Holder::begin("other"));
        world.deliveries = Deliveries::among(sessions, &me, Duration::from_secs(10), false);
        let far = world.deliveries.far().unwrap();
        if is_known {
            far.note_alive(&other);
        }
        let claim = |number| Event::Claim { number, stream: crate::gateway::deliver::first_stream(&other) + 1 };
        let task = world.ledger.apply(&world.task.owner, world.task.id, claim(0)).await.unwrap();
        // Given another holder that is gone, then it keeps what it has claimed as long as it was heard of.
        world.deliveries.release_lost(&world.ledger, &task, &Holder::begin("gone")).await;
        let task = world.now().await;
        assert_eq!(task.state.questions()[0].progress == Progress::Waiting, !is_known);
        if is_known {
            assert!(!world.deliveries.is_dead_end(&task.state.questions()[0]));
            // Given its end, then no longer, not even where it claims after that; but when it is back.
            world.deliveries.streams_gone(&world.ledger, &other).await;
            assert!(world.deliveries.is_dead_end(&task.state.questions()[0]));
            world.deliveries.release_dead(&world.ledger, &task).await;
            let number = world.now().await.state.questions()[0].number;
            let task = world.ledger.apply(&world.task.owner, world.task.id, claim(number)).await.unwrap();
            assert!(world.deliveries.is_dead_end(&task.state.questions()[0]));
            far.note_alive(&other);
            assert!(!world.deliveries.is_dead_end(&task.state.questions()[0]));
        }
    }
}

#[tokio::test]
async fn of_a_process_that_is_gone_the_questions_of_calls_held_here_wait_again() {
    let mut world = World::new().await;
    let (me, other) = (world.ledger.holder().clone(), Holder::begin("other"));
    let sessions = Arc::clone(&world.deliveries.sessions);
    world.deliveries = Deliveries::among(sessions, &me, Duration::from_secs(10), false);
    let claim = Event::Claim { number: 0, stream: crate::gateway::deliver::first_stream(&other) + 1 };
    world.ledger.apply(&world.task.owner, world.task.id, claim).await.unwrap();
    // Given a call that was not sent, nothing is looked at; given one that was, its question is.
    for is_sent in [false, true] {
        if is_sent {
            world.hold.may_ask();
        }
        world.deliveries.streams_gone(&world.ledger, &other).await;
        assert_eq!(world.now().await.state.questions()[0].progress == Progress::Waiting, is_sent);
    }
}

#[tokio::test]
async fn a_claim_that_was_not_answered_is_shown_once() {
    let world = World::new().await;
    let (stream, mut events) = world.open(8);
    world.store.lost_replies.store(1, Ordering::SeqCst);
    // Given a claim that is written and not answered, when others offer the same to the same stream meanwhile,
    world.offer().await;
    world.offer().await;
    assert_eq!(shown(&mut events), (0, 0));
    // then the question is on the stream, once.
    world.settle().await;
    world.offer().await;
    assert_eq!(shown(&mut events), (1, 0));
    assert_eq!(world.now().await.state.questions()[0].progress, Progress::Claimed(stream.number));
}

#[tokio::test]
async fn a_claim_that_was_not_written_is_made_again_or_left_to_who_was_faster() {
    for is_other_faster in [false, true] {
        let world = World::new().await;
        let (_stream, mut events) = world.open(8);
        world.store.failing_reads.store(1, Ordering::SeqCst);
        world.deliveries.offer(&world.ledger, &world.task).await;
        assert_eq!(shown(&mut events), (0, 0));
        if is_other_faster {
            let claim = Event::Claim { number: world.task.state.questions()[0].number, stream: 5 };
            world.ledger.apply(&world.task.owner, world.task.id, claim).await.unwrap();
        }
        world.settle().await;
        assert_eq!(shown(&mut events), (usize::from(!is_other_faster), 0));
        assert!(is_other_faster == world.deliveries.claims.is_empty());
    }
}

#[tokio::test]
async fn what_was_claimed_in_doubt_by_a_stream_that_closes_goes_to_the_next() {
    let world = World::new().await;
    let (stream, events) = world.open(8);
    world.store.lost_replies.store(1, Ordering::SeqCst);
    world.offer().await;
    // Given a stream that closes while nobody knows whether it has the question, and a store that fails on,
    drop(events);
    world.deliveries.detach(world.task.id, stream.number);
    world.store.failing_reads.store(2, Ordering::SeqCst);
    world.deliveries.release(&world.ledger, stream.number).await;
    let (_next, mut events) = world.open(8);
    // then the next stream has it.
    world.settle().await;
    world.offer().await;
    assert_eq!(shown(&mut events).0, 1);
    assert!(matches!(world.now().await.state.questions()[0].progress, Progress::Claimed(to) if to != stream.number));
}

#[tokio::test]
async fn a_closed_stream_is_told_of_until_that_is_written() {
    for (failing_reads, lost_replies) in [(1, 0), (2, 0), (0, 1)] {
        let world = World::new().await;
        let (stream, mut events) = world.open(8);
        world.offer().await;
        assert_eq!(shown(&mut events), (1, 0));
        // Given a stream whose end the store does not take, or not say that it has,
        drop(events);
        world.deliveries.detach(world.task.id, stream.number);
        world.store.failing_reads.store(failing_reads, Ordering::SeqCst);
        world.store.lost_replies.store(lost_replies, Ordering::SeqCst);
        world.deliveries.release(&world.ledger, stream.number).await;
        // then what it had is shown to the next, which hears that the old number is void, once.
        let (_next, mut events) = world.open(8);
        world.settle().await;
        world.offer().await;
        assert_eq!(shown(&mut events), (1, 1), "{failing_reads} {lost_replies}");
    }
}

#[tokio::test]
async fn a_question_in_doubt_keeps_no_stream_open() {
    let world = World::new().await;
    let (stream, mut events) = world.open(8);
    world.store.failing_reads.store(usize::MAX, Ordering::SeqCst);
    world.deliveries.offer(&world.ledger, &world.task).await;
    assert!(!world.deliveries.retries.is_empty());
    // Given a claim that the store does not take, when whoever waited on the stream is done with it,
    world.deliveries.detach(world.task.id, stream.number);
    drop(stream);
    // then it ends, though the doubt is there,
    assert!(events.recv().await.is_none());
    world.deliveries.retry(&world.ledger).await;
    assert!(!world.deliveries.retries.is_empty());
    // and the question goes to the next one when the store is back.
    let (next, mut events) = world.open(8);
    world.store.failing_reads.store(0, Ordering::SeqCst);
    world.settle().await;
    world.offer().await;
    assert_eq!(shown(&mut events).0, 1);
    assert_eq!(world.now().await.state.questions()[0].progress, Progress::Claimed(next.number));
}
