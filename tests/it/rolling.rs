//! A rolling restart of three gateways under load, behind a balancer that asks each whether it is ready: nobody notices but
//! those whose call is with a server that takes longer.

use std::cell::{Cell, RefCell};

use taskgate::demo::server::{Era, Options};

use crate::support::{Client, Gateway, Modern, json, text_of, within};

const ELICIT: &str = "elicitation/create";

/// Those who work until told to stop, and count.
#[derive(Default)]
struct Shift {
    is_over: Cell<bool>,
    rounds: [Cell<u64>; 2],
    /// Every task that was made.
    tasks: RefCell<Vec<String>>,
}

impl Shift {
    /// Waits until everybody has done so much more.
    async fn goes_on(&self, rounds: u64) {
        let wanted: Vec<u64> = self.rounds.iter().map(|done| done.get() + rounds).collect();
        within(async {
            while self.rounds.iter().zip(&wanted).any(|(done, wanted)| done.get() < *wanted) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    fn note(&self, id: &str) {
        self.tasks.borrow_mut().push(id.to_owned());
    }

    /// Plain calls and tasks with questions in one session.
    async fn legacy(&self, client: Client) {
        while !self.is_over.get() {
            assert_eq!(text_of(&client.call("echo", json!({"text": "a"})).await), "a");
            let id = client.start("ask", json!({})).await;
            self.note(&id);
            let mut waiting = client.wait_for(&id).await;
            let question = waiting.until_method(ELICIT).await;
            client.accept(&question, json!({"name": "Ann"})).await;
            assert_eq!(text_of(waiting.messages().await.last().unwrap()), "Hello, Ann");
            self.rounds[0].set(self.rounds[0].get() + 1);
        }
    }

    /// Plain calls, calls that ask, and tasks that ask.
    async fn modern(&self, plain: Modern, with_tasks: Modern) {
        let named = |key: &str| json!({key: {"action": "accept", "content": {"name": "Ann"}}});
        while !self.is_over.get() {
            assert_eq!(plain.text("echo", json!({"text": "a"})).await, "a");
            let asked = plain.call("ask", json!({})).await;
            let done = plain.answer("ask", json!({}), &asked.result, named(&asked.key())).await;
            assert_eq!(done.text(), "Hello, Ann");
            let id = with_tasks.start("ask", json!({})).await;
            self.note(&id);
            let asking = with_tasks.until(&id, "input_required").await;
            let key = asking["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            with_tasks.update(&id, named(&key)).await;
            with_tasks.until(&id, "completed").await;
            self.rounds[1].set(self.rounds[1].get() + 1);
        }
    }
}

async fn rolls(options: Options) {
    let setup = Gateway::setup().replicas(3).server(options).sections("shutdown: {drain: 60s}");
    let mut gateway = setup.tasks("defer: 0s, questions: in_task").start().await;
    gateway.check_health();
    let shift = Shift::default();
    let client = gateway.open().await;
    let (plain, with_tasks) = (Modern::new(&gateway), Modern::new(&gateway).with_tasks());
    let reader = Modern::new(&gateway).with_tasks();
    let rolling = async {
        for number in 0..3 {
            // What it holds keeps it from its end,
            let opened = gateway.moved_opening(number).open().await;
            let held = opened.start("hold", json!({})).await;
            shift.note(&held);
            gateway.started("hold", number as u64 + 1).await;
            gateway.replicas[number].begin_to_stop();
            // and meanwhile others serve those who still ask it, with new tasks and new sessions as well,
            gateway.is_asked(number, false).await;
            shift.goes_on(1).await;
            let done = opened.start("exact", json!({})).await;
            shift.note(&done);
            opened.outcome(&done).await;
            let other = gateway.moved_opening(number).open().await;
            assert_eq!(text_of(&other.call("echo", json!({"text": "b"})).await), "b");
            assert_eq!(opened.task(&held).await["status"], "working");
            // and what it held comes to its end.
            gateway.upstream.release();
            within(gateway.replicas[number].stopped()).await;
            let moved = gateway.client().with_session_of(&opened);
            assert_eq!(text_of(&moved.outcome(&held).await), "held to the end");
            gateway.restart(number).await;
            gateway.check_health();
            gateway.is_asked(number, true).await;
            shift.goes_on(1).await;
        }
        shift.is_over.set(true);
    };
    tokio::join!(rolling, shift.legacy(client), shift.modern(plain, with_tasks));
    let stats = gateway.upstream.stats();
    assert_eq!((stats.tool("hold").started, stats.cancelled.len()), (3, 0));
    // All that was begun is there, in either era, and nothing counts any more.
    let tasks = shift.tasks.take();
    assert!(tasks.len() >= 12, "{}", tasks.len());
    for id in &tasks {
        assert_eq!(reader.task(id).await["status"], "completed", "{id}");
    }
    let usage = gateway.usage().await;
    assert_eq!((usage.running, usage.queued, usage.kept), (0, 0, tasks.len()));
}

#[tokio::test]
async fn nobody_notices_in_front_of_a_server_with_sessions() {
    Box::pin(rolls(Options::default())).await;
}

#[tokio::test]
async fn nobody_notices_in_front_of_a_server_without() {
    Box::pin(rolls(Options { era: Era::Modern, ..Options::default() })).await;
}
