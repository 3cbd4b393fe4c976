//! What each operation costs where there are few tasks and where there are many: none looks at all of them.

use std::collections::BTreeMap;

use super::*;

/// What each operation has cost, by its name.
pub(crate) type Costs = BTreeMap<&'static str, u64>;

/// Of a tenant all tasks run.
const ROOM: Limits = Limits { running_tasks: 1_000_000, queued_tasks: 1_000_000, kept_tasks: 1_000_000, ..AMPLE };
/// Of a tenant few run, so that it has a long queue.
const QUEUE: Limits = Limits { running_tasks: 8, ..ROOM };
/// So many are made together.
const TOGETHER: usize = 256;

/// Counts what the store does for each operation, by what it has done in all.
struct Measuring<'m, M> {
    meter: &'m M,
    costs: Costs,
}

impl<M: AsyncFn() -> u64> Measuring<'_, M> {
    async fn of<T>(&mut self, name: &'static str, operation: impl Future<Output = T>) -> T {
        let before = (self.meter)().await;
        let done = operation.await;
        let cost = (self.meter)().await - before;
        assert!(self.costs.insert(name, cost).is_none(), "{name} twice");
        done
    }
}

/// Makes so many tasks, in every state: most of one owner, the others of his tenant and of four more, all of one holder. Gives one
/// that runs, whose tenant has a queue.
pub(crate) async fn fill(store: &dyn Store, count: usize) -> Arc<Task> {
    let of_other = |task| Task { holder: Holder::from_text("other"), ..task };
    let running = store.create(of_other(task(&alice())), None, &QUEUE).await.unwrap();
    for first in (0..count).step_by(TOGETHER) {
        let made = (first..count.min(first + TOGETHER)).map(|n| async move {
            let (owner, limits) = match n % 10 {
                0..6 => (alice(), &QUEUE),
                6 => (owner("acme", "bob"), &QUEUE),
                7 => (owner("umbrella", "eve"), &ROOM),
                _ => (owner(&format!("tenant{}", n % 3), "eve"), &ROOM),
            };
            let ttl = HOUR + Duration::from_secs(n as u64 % 1000);
            let new = of_other(task_made_at(&owner, now(), ttl));
            let made = store.create(new, Some("draft".into()), limits).await.unwrap();
            if n / 10 % 2 == 0 {
                let mut last = Task::clone(&made);
                // It may have got a place meanwhile.
                while store.replace(ended(&last), result("\"done\"")).await.is_err() {
                    last = Task::clone(&store.read(&owner, last.id).await.unwrap().unwrap());
                }
            }
        });
        join_all(made).await;
    }
    running
}

/// What every operation costs in a store that was filled, by what the meter says before and after; `running` is what filling it
/// gave.
pub(crate) async fn costs(store: &dyn Store, running: &Task, meter: &impl AsyncFn() -> u64) -> Costs {
    let mut measuring = Measuring { meter, costs: Costs::new() };
    let (me, dead) = (Holder::from_text("me"), Holder::from_text("dead"));
    let eve = owner("umbrella", "eve");
    let held_by = |holder: &Holder| Task { holder: holder.clone(), ..task(&eve) };
    for holder in [&dead, &me].repeat(3) {
        store.create(held_by(holder), Some("draft".into()), &ROOM).await.unwrap();
    }

    // Creations: one that runs, one that waits in a long queue, one that is refused.
    let runs = measuring.of("create", store.create(task(&eve), Some("draft".into()), &ROOM)).await.unwrap();
    let waits = measuring.of("create in a queue", store.create(task(&alice()), None, &QUEUE)).await.unwrap();
    let full = Limits { kept_tasks: 1, ..QUEUE };
    measuring.of("create too many", store.create(task(&alice()), None, &full)).await.unwrap_err();
    assert!(matches!(runs.state, State::Held(_)));

    // Reads, of what is there and of what is not.
    assert!(measuring.of("read", store.read(&eve, runs.id)).await.unwrap().is_some());
    assert!(measuring.of("read another's", store.read(&alice(), runs.id)).await.unwrap().is_none());
    let mut watch = measuring.of("watch", store.watch(&eve, runs.id)).await.unwrap().unwrap();
    assert_eq!(measuring.of("usage", store.usage("acme")).await.unwrap().running, 8);

    // Pages: the first, one after it, and that of an owner who has nothing.
    let page = measuring.of("list", store.list(&alice(), None, 20)).await.unwrap();
    let last = Position::of(page.last().unwrap());
    let page = measuring.of("list on", store.list(&alice(), Some(last), 20)).await.unwrap();
    assert_eq!(page.len(), 20);
    assert!(measuring.of("list nothing", store.list(&owner("acme", "carol"), None, 20)).await.unwrap().is_empty());

    // A life: asked, answered, noted, done; and one that ends in the queue, and one that ends before a queue.
    let ask = Event::Ask { upstream_id: Id::number(1), method: "m".into(), params: Some("{}".into()) };
    let asked = measuring.of("ask", store.replace(after(&runs, ask), None)).await.unwrap();
    let answer = Event::Answer { number: 0, answer: Answer::Result("{}".into()) };
    let answered = measuring.of("answer", store.replace(after(&asked, answer), None)).await.unwrap();
    let trail = store.note_trail(&eve, runs.id, 1, Step::First, "here".into());
    measuring.of("trail", trail).await.unwrap();
    measuring.of("complete", store.replace(ended(&answered), result("\"done\""))).await.unwrap();
    assert!(watch.changed().await);
    measuring.of("outcome", store.outcome(&eve, runs.id)).await.unwrap().unwrap();
    measuring.of("cancel in a queue", store.replace(cancelled(&waits), None)).await.unwrap();
    measuring.of("cancel before a queue", store.replace(cancelled(running), None)).await.unwrap();
    assert_eq!(store.usage("acme").await.unwrap().running, 8);

    // The dead, and what was given without a word.
    let holders = measuring.of("holders", store.holders()).await.unwrap();
    assert!([&me, &dead].iter().all(|holder| holders.contains(holder)));
    assert_eq!(measuring.of("take over", store.take_over(&dead, &me, 10)).await.unwrap().len(), 3);
    let known = |_, epoch| epoch > 1;
    assert_eq!(measuring.of("take strays", store.take_strays(&me, &known, 10)).await.unwrap().len(), 3);

    // Expiry.
    assert!(measuring.of("nothing is due", store.purge(now(), 10)).await.unwrap().tasks.is_empty());
    store.create(expired(&alice()), None, &QUEUE).await.unwrap();
    assert_eq!(measuring.of("purge", store.purge(now(), 10)).await.unwrap().tasks.len(), 1);
    // The last one, since it is put off.
    assert!(measuring.of("first read", store.note_read(&eve, runs.id)).await.unwrap());
    measuring.costs
}

/// Whether no cost has grown by more than a part of it and so much beside: what looks at all tasks costs as many times more as
/// there are more of them.
pub(crate) fn assert_grown_by_at_most(few: &Costs, many: &Costs, beside: u64) {
    assert_eq!(few.len(), many.len());
    for ((operation, few), many) in few.iter().zip(many.values()) {
        assert!(*many <= few + few / 4 + beside, "{operation}: {many} after {few}");
    }
}
