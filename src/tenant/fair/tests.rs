//! The queue: order, fairness, bounds, and places that are never lost.

use super::*;

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::task::noop_waker_ref;
use proptest::prelude::*;

use crate::jobs::Jobs;

fn name(tenant: &str) -> Arc<str> {
    Arc::from(tenant)
}

/// A call in line that owns all it needs, polled by hand.
fn call(queue: &FairQueue, tenant: &str, kind: Kind) -> BoxFuture<'static, Result<Permit, QueueFull>> {
    let (queue, tenant) = (queue.clone(), name(tenant));
    async move { queue.acquire(&tenant, kind).await }.boxed()
}

fn poll(call: &mut BoxFuture<'static, Result<Permit, QueueFull>>) -> Option<Result<Permit, QueueFull>> {
    match call.as_mut().poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn usage(in_use: usize, waiting_plain: usize, waiting_held: usize) -> Usage {
    Usage { in_use, waiting_plain, waiting_held }
}

fn is_empty(queue: &FairQueue) -> bool {
    let line = queue.0.lock();
    line.usage == Usage::default() && line.turns.is_empty() && line.tenants.is_empty()
}

#[test]
fn free_places_are_taken_at_once() {
    let queue = FairQueue::new(2, 0);
    let first = queue.acquire(&name("a"), Kind::Plain).now_or_never().unwrap().unwrap();
    let second = queue.acquire(&name("a"), Kind::Held).now_or_never().unwrap().unwrap();
    assert_eq!(queue.usage(), usage(2, 0, 0));
    assert_eq!(queue.acquire(&name("b"), Kind::Plain).now_or_never().unwrap().err(), Some(QueueFull));
    drop(first);
    assert!(queue.acquire(&name("b"), Kind::Plain).now_or_never().unwrap().is_ok());
    drop(second);
    assert!(is_empty(&queue));
}

#[test]
fn no_places_are_one_place() {
    let queue = FairQueue::new(0, 0);
    assert!(queue.acquire(&name("a"), Kind::Plain).now_or_never().unwrap().is_ok());
}

#[test]
fn plain_calls_wait_up_to_the_bound_and_held_ones_past_it() {
    let queue = FairQueue::new(1, 2);
    let place = poll(&mut call(&queue, "a", Kind::Plain)).unwrap().unwrap();
    let mut waiting: Vec<_> = (0..2).map(|_| call(&queue, "a", Kind::Plain)).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(poll(&mut call(&queue, "b", Kind::Plain)).unwrap().err(), Some(QueueFull));
    let mut held: Vec<_> = (0..50).map(|_| call(&queue, "a", Kind::Held)).collect();
    assert!(held.iter_mut().all(|call| poll(call).is_none()));
    assert_eq!(queue.usage(), usage(1, 2, 50));

    // A plain call that leaves makes room for another.
    waiting.pop();
    let mut another = call(&queue, "b", Kind::Plain);
    assert!(poll(&mut another).is_none());
    assert_eq!(queue.usage(), usage(1, 2, 50));
    drop((place, waiting, held, another));
    assert!(is_empty(&queue));
}

#[test]
fn tenants_take_turns_and_each_is_served_in_order() {
    let queue = FairQueue::new(1, 100);
    let place = poll(&mut call(&queue, "z", Kind::Plain)).unwrap().unwrap();
    let arrivals = ["a1", "a2", "a3", "a4", "b1", "c1", "b2"];
    let mut waiting: Vec<_> = arrivals.iter().map(|name| (*name, call(&queue, &name[..1], Kind::Held))).collect();
    assert!(waiting.iter_mut().all(|(_, call)| poll(call).is_none()));

    let mut served = Vec::new();
    let mut place = Some(place);
    while !waiting.is_empty() {
        drop(place.take());
        let index = waiting.iter_mut().position(|(_, call)| {
            place = poll(call).map(Result::unwrap);
            place.is_some()
        });
        served.push(waiting.remove(index.unwrap()).0);
    }
    assert_eq!(served, ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]);
    drop(place);
    assert!(is_empty(&queue));
}

/// A queue with one place, which is taken.
fn busy(weights: &[(&str, u32)]) -> (FairQueue, Permit) {
    let weights = Weights::new(1, weights.iter().map(|(tenant, weight)| (name(tenant), *weight)));
    let queue = FairQueue::weighted(1, 1000, Arc::new(weights));
    let place = poll(&mut call(&queue, "z", Kind::Plain)).unwrap().unwrap();
    (queue, place)
}

type Call = BoxFuture<'static, Result<Permit, QueueFull>>;

/// Gives the place back, and says who has it then.
fn next(place: &mut Option<Permit>, waiting: &mut Vec<(String, Call)>) -> String {
    drop(place.take());
    let served = waiting.iter_mut().position(|(_, call)| {
        *place = poll(call).map(Result::unwrap);
        place.is_some()
    });
    waiting.remove(served.unwrap()).0
}

/// Puts calls in line.
fn join(queue: &FairQueue, waiting: &mut Vec<(String, Call)>, tenant: &str, calls: usize) {
    for number in 0..calls {
        let kind = if number % 2 == 0 { Kind::Plain } else { Kind::Held };
        waiting.push((tenant.to_owned(), call(queue, tenant, kind)));
        assert!(poll(&mut waiting.last_mut().unwrap().1).is_none());
    }
}

#[test]
fn a_heavier_tenant_is_served_more_often_spread_evenly_and_whatever_it_calls() {
    let (queue, place) = busy(&[("b", 3)]);
    let (mut place, mut waiting) = (Some(place), Vec::new());
    join(&queue, &mut waiting, "a", 4);
    join(&queue, &mut waiting, "b", 8);
    let served: String = (0..12).map(|_| next(&mut place, &mut waiting)).collect();
    assert_eq!(served, "bbabbbabbbaa");
    drop(place);
    assert!(is_empty(&queue));
}

#[test]
fn other_weights_count_from_the_next_turn_on() {
    let (queue, place) = busy(&[]);
    let (mut place, mut waiting) = (Some(place), Vec::new());
    join(&queue, &mut waiting, "a", 10);
    join(&queue, &mut waiting, "b", 10);
    let served: String = (0..4).map(|_| next(&mut place, &mut waiting)).collect();
    assert_eq!(served, "abab");
    queue.set_weights(Arc::new(Weights::new(1, [(name("a"), 4)])));
    let served: String = (0..10).map(|_| next(&mut place, &mut waiting)).collect();
    assert_eq!((served.matches('a').count(), served.matches('b').count()), (8, 2), "{served}");
}

#[test]
fn weights_out_of_range_count_as_the_nearest() {
    let weights = Weights::new(0, [(name("a"), 0), (name("b"), u32::MAX)]);
    assert_eq!((weights.cost("x"), weights.cost("a"), weights.cost("b")), (COST, COST, COST / 100));
}

#[test]
fn a_waiter_that_leaves_keeps_nothing() {
    let queue = FairQueue::new(1, 100);
    let place = poll(&mut call(&queue, "a", Kind::Plain)).unwrap().unwrap();
    let mut gone = call(&queue, "a", Kind::Plain);
    let mut next = call(&queue, "b", Kind::Plain);
    assert!(poll(&mut gone).is_none());
    assert!(poll(&mut next).is_none());
    drop(gone);
    assert_eq!(queue.usage(), usage(1, 1, 0));
    drop(place);
    drop(poll(&mut next).unwrap().unwrap());
    assert!(is_empty(&queue));
}

#[test]
fn a_place_given_to_a_waiter_that_leaves_goes_to_the_next() {
    let queue = FairQueue::new(1, 100);
    let place = poll(&mut call(&queue, "a", Kind::Plain)).unwrap().unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| call(&queue, "a", Kind::Plain)).collect();
    assert!(waiting.iter_mut().all(|call| poll(call).is_none()));
    drop(place);
    // The first owns the place now, and has not noticed.
    assert_eq!(queue.usage(), usage(1, 2, 0));
    drop(waiting.remove(0));
    assert_eq!(queue.usage(), usage(1, 1, 0));
    drop(waiting.remove(0));
    assert_eq!(queue.usage(), usage(1, 0, 0));
    drop(waiting.remove(0));
    assert!(is_empty(&queue));
}

#[test]
fn a_call_that_was_never_polled_is_not_in_line() {
    let queue = FairQueue::new(1, 0);
    drop(call(&queue, "a", Kind::Held));
    assert!(is_empty(&queue));
}

#[tokio::test]
async fn a_waiter_is_woken() {
    let queue = FairQueue::new(1, 1);
    let place = queue.acquire(&name("a"), Kind::Plain).await.unwrap();
    let jobs = Jobs::default();
    let waiter = jobs.spawn("waiter", call(&queue, "b", Kind::Plain));
    while queue.usage().waiting_plain == 0 {
        tokio::task::yield_now().await;
    }
    drop(place);
    drop(waiter.await.unwrap().unwrap());
    assert!(is_empty(&queue));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_place_is_lost_or_made_when_threads_race() {
    const PLACES: usize = 3;
    let queue = FairQueue::new(PLACES, 1000);
    let jobs = Jobs::default();
    let inside = Arc::new(AtomicUsize::new(0));
    let callers = (0..16u64).map(|caller| {
        let (queue, inside) = (queue.clone(), Arc::clone(&inside));
        jobs.spawn("caller", async move {
            let tenant = name(&(caller % 5).to_string());
            for round in 0..300u64 {
                let kind = if round % 2 == 0 { Kind::Plain } else { Kind::Held };
                let patience = Duration::from_micros((caller * 37 + round * 11) % 200);
                let place = tokio::time::timeout(patience, queue.acquire(&tenant, kind)).await;
                if let Ok(Ok(_place)) = place {
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < PLACES);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    assert!(is_empty(&queue));
    let all: Vec<_> = (0..PLACES).map(|_| poll(&mut call(&queue, "a", Kind::Plain)).unwrap().unwrap()).collect();
    assert_eq!(queue.usage().in_use, all.len());
}

/// The queue as one would draw it on paper.
struct Model {
    free: usize,
    plain_queue: usize,
    /// Tenants with waiters, the next one first, each with its waiters in order.
    line: VecDeque<(u8, VecDeque<(usize, Kind)>)>,
    /// Waiters that own a place and have not been polled since.
    chosen: Vec<usize>,
    in_use: usize,
}

impl Model {
    fn waiting(&self, kind: Kind) -> usize {
        self.line.iter().flat_map(|(_, waiters)| waiters).filter(|waiter| waiter.1 == kind).count()
    }

    fn enter(&mut self, id: usize, tenant: u8, kind: Kind) -> Option<Result<(), QueueFull>> {
        if self.free > 0 {
            (self.free, self.in_use) = (self.free - 1, self.in_use + 1);
            return Some(Ok(()));
        }
        if kind == Kind::Plain && self.waiting(Kind::Plain) == self.plain_queue {
            return Some(Err(QueueFull));
        }
        match self.line.iter_mut().find(|(name, _)| *name == tenant) {
            Some((_, waiters)) => waiters.push_back((id, kind)),
            None => self.line.push_back((tenant, VecDeque::from([(id, kind)]))),
        }
        None
    }

    fn release(&mut self) {
        let Some((tenant, mut waiters)) = self.line.pop_front() else {
            (self.free, self.in_use) = (self.free + 1, self.in_use - 1);
            return;
        };
        self.chosen.push(waiters.pop_front().unwrap().0);
        if !waiters.is_empty() {
            self.line.push_back((tenant, waiters));
        }
    }

    fn leave(&mut self, id: usize) {
        if let Some(index) = self.chosen.iter().position(|chosen| *chosen == id) {
            self.chosen.remove(index);
            return self.release();
        }
        for (_, waiters) in &mut self.line {
            waiters.retain(|waiter| waiter.0 != id);
        }
        self.line.retain(|(_, waiters)| !waiters.is_empty());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Enter(u8, Kind),
    Poll(prop::sample::Index),
    Leave(prop::sample::Index),
    Release(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::Plain), Just(Kind::Held)];
    prop_oneof![
        4 => (0..4u8, kind).prop_map(|(tenant, kind)| Step::Enter(tenant, kind)),
        2 => any::<prop::sample::Index>().prop_map(Step::Poll),
        1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// The bound of start-time fair queueing: of two tenants that both wait all the time, neither gets ahead of the other by
    /// more than one call of each, measured by what calls cost them.
    #[test]
    fn who_waits_all_the_time_is_served_by_weight(weights in prop::collection::vec(1..=MAX_WEIGHT, 2..6)) {
        let names: Vec<String> = (0..weights.len()).map(|number| number.to_string()).collect();
        let named: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        let (queue, place) = busy(&named);
        let (mut place, mut waiting) = (Some(place), Vec::new());
        for tenant in &names {
            join(&queue, &mut waiting, tenant, 2);
        }
        let costs: Vec<u64> = weights.iter().map(|weight| COST / u64::from(*weight)).collect();
        let mut paid = vec![0; weights.len()];
        for _ in 0..300 {
            let tenant = next(&mut place, &mut waiting);
            join(&queue, &mut waiting, &tenant, 1);
            let number: usize = tenant.parse().unwrap();
            paid[number] += costs[number];
            for (one, other) in (0..paid.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                prop_assert!(paid[one].abs_diff(paid[other]) <= costs[one] + costs[other], "{weights:?} {paid:?}");
            }
        }
    }

    /// However others come and go, a waiter is served after so many of each of their calls as their weight has to its own.
    #[test]
    fn nobody_starves(
        weights in prop::collection::vec(1..=MAX_WEIGHT, 2..6),
        before in 0..50usize,
        arrivals in prop::collection::vec((1..6usize, 0..3usize), 700),
    ) {
        let names: Vec<String> = (0..weights.len()).map(|number| number.to_string()).collect();
        let named: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(weights.iter().copied()).collect();
        let (queue, place) = busy(&named);
        let (mut place, mut waiting) = (Some(place), Vec::new());
        let mut served_before = 0;
        let most: u32 = weights[1..].iter().map(|weight| weight.div_ceil(weights[0]) + 1).sum();
        for (step, (tenant, calls)) in arrivals.into_iter().enumerate() {
            join(&queue, &mut waiting, &names[1 + tenant % (names.len() - 1)], calls + 1);
            if step == before {
                join(&queue, &mut waiting, &names[0], 1);
            }
            let served = next(&mut place, &mut waiting);
            if served == names[0] {
                return Ok(());
            }
            served_before += u32::from(step >= before);
            prop_assert!(served_before <= most, "{weights:?}");
        }
        prop_assert!(false, "it was never served: {weights:?}");
    }

    #[test]
    fn behaves_as_its_model(steps in prop::collection::vec(step(), 200), places in 1..4usize, plain_queue in 0..5usize) {
        let queue = FairQueue::new(places, plain_queue);
        let mut model = Model { free: places, plain_queue, line: VecDeque::new(), chosen: vec![], in_use: 0 };
        let mut waiting = Vec::new();
        let mut permits = Vec::new();
        for (id, step) in steps.into_iter().enumerate() {
            match step {
                Step::Enter(tenant, kind) => {
                    let mut call = call(&queue, &tenant.to_string(), kind);
                    let answer = poll(&mut call);
                    let expected = model.enter(id, tenant, kind);
                    prop_assert_eq!(answer.as_ref().map(|answer| answer.as_ref().map(|_| ()).map_err(|full| *full)), expected);
                    match answer {
                        Some(answer) => permits.extend(answer),
                        None => waiting.push((id, call)),
                    }
                }
                Step::Poll(index) if !waiting.is_empty() => {
                    let index = index.index(waiting.len());
                    let answer = poll(&mut waiting[index].1);
                    let chosen = model.chosen.iter().position(|chosen| *chosen == waiting[index].0);
                    prop_assert_eq!(answer.is_some(), chosen.is_some());
                    if let (Some(answer), Some(chosen)) = (answer, chosen) {
                        permits.push(answer.unwrap());
                        model.chosen.remove(chosen);
                        drop(waiting.remove(index));
                    }
                }
                Step::Leave(index) if !waiting.is_empty() => {
                    let (id, call) = waiting.remove(index.index(waiting.len()));
                    drop(call);
                    model.leave(id);
                }
                Step::Release(index) if !permits.is_empty() => {
                    drop(permits.remove(index.index(permits.len())));
                    model.release();
                }
                Step::Poll(_) | Step::Leave(_) | Step::Release(_) => {}
            }
            let expected = usage(model.in_use, model.waiting(Kind::Plain), model.waiting(Kind::Held));
            prop_assert_eq!(queue.usage(), expected);
        }
        drop((waiting, permits));
        prop_assert!(is_empty(&queue));
    }
}
