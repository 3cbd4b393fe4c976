//! Histories of tasks behind three gateways over one Redis, while gateways die and wires to the Redis break and heal. What each
//! client is told must be what one task with one caller at a time could have told.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use taskgate::jobs::Jobs;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Route, settle};
use super::fleet::{Fleet, Kept};
use super::history::History;
use super::proxy::{Proxy, Wire};
use super::redis::Redis;
use super::seed::Chance;
use super::task::{Answer, End, Operation};
use super::upstream::{TOOLS, Upstream};
use super::{PATIENCE, within};

const REPLICAS: usize = 3;
/// Tasks that are followed at the same time; below what a tenant may have.
const AT_ONCE: u64 = 4;
const BATCHES: u64 = 4;
const FOLLOWERS: u64 = 3;
/// Looks of one client at one task.
const STEPS: u64 = 40;
/// How long a client waits for an answer before it goes on without: nothing is asserted of it.
const IMPATIENT: Duration = Duration::from_secs(2);

type Tasks = Arc<History<String>>;

/// A client that writes down what it does.
struct Follower {
    client: Client,
    history: Tasks,
    chance: Chance,
}

impl Follower {
    /// Makes a task, with everything that its holder may do to it at any later time.
    async fn create(&mut self, key: &str) -> Option<String> {
        let (tool, _) = *self.chance.one(&TOOLS[..3]);
        let called = self.history.tick();
        let is_modern = self.chance.below(2) == 0;
        if !is_modern && !self.client.has_session() {
            soon(self.client.open()).await?;
        }
        let id = soon(self.client.create(is_modern, tool, key)).await?.ok()?;
        self.history.note(&id, Operation::Create, called, Some(Answer::Done));
        let result = Operation::End(End::Returned(key.to_owned()));
        for later in [Operation::Ask(0), Operation::Ask(1), result, Operation::End(End::Failed)] {
            self.history.note(&id, later, called, None);
        }
        Some(id)
    }

    async fn follow(mut self, id: String, key: String) {
        for step in 0..STEPS {
            if self.chance.below(30) == 0 && step > STEPS / 2 {
                self.cancel(&id).await;
            }
            let called = self.history.tick();
            let seen = soon(self.client.shown(&id)).await;
            let (answer, open) = match seen {
                Some(Ok(shown)) => {
                    let end = match shown.status.as_str() {
                        "completed" => {
                            assert!(shown.end.unwrap_or_default().contains(&key), "{id} has another's result");
                            Some(End::Returned(key.clone()))
                        }
                        "failed" => Some(End::Failed),
                        "cancelled" => Some(End::Cancelled),
                        _ => None,
                    };
                    let mut open: Vec<(u32, String)> =
                        shown.open.iter().map(|open| (number(open), open.clone())).collect();
                    open.sort();
                    let numbers = open.iter().map(|(number, _)| *number).collect();
                    (Some(end.map_or(Answer::Open(numbers), Answer::Ended)), open)
                }
                Some(Err(error)) if error["code"] == -32602 => (Some(Answer::NotFound), Vec::new()),
                // The store was away.
                Some(Err(_)) | None => (None, Vec::new()),
            };
            self.history.note(&id, Operation::Get, called, answer);
            if let Some((number, question)) = open.first().filter(|_| self.chance.below(3) == 0) {
                let answered = async {
                    let is_taken = soon(self.client.answer(&id, question)).await?;
                    is_taken.then_some(Answer::Acknowledged)
                };
                self.history.record(&id, Operation::Answer(*number), answered).await;
            }
            tokio::time::sleep(Duration::from_millis(self.chance.below(60))).await;
        }
    }

    async fn cancel(&mut self, id: &str) {
        if !self.client.has_session() && soon(self.client.open()).await.is_none() {
            return;
        }
        let cancelled = async {
            let reply = soon(self.client.legacy("tasks/cancel", json!({"taskId": id}))).await?;
            match reply.error() {
                None => Some(Answer::Done),
                Some(error) if error["code"] == -32602 => Some(Answer::Refused),
                // Whether it was written before the store went away, nobody knows.
                Some(_) => None,
            }
        };
        self.history.record(&id.to_owned(), Operation::Cancel, cancelled).await;
    }
}

/// The number inside a question's key.
fn number(key: &str) -> u32 {
    key.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

async fn soon<T>(awaited: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(IMPATIENT, awaited).await.ok().flatten()
}

/// What goes wrong, one thing after the other, until it is told to stop; everything is whole then.
async fn harm(fleet: &mut Fleet, wires: &[Proxy], mut chance: Chance, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let which = usize::try_from(chance.below(REPLICAS as u64)).unwrap();
        let pause = Duration::from_millis(50 + chance.below(1500));
        match chance.below(5) {
            0 => {
                fleet.kill(which).await;
                tokio::time::sleep(pause).await;
                fleet.restart(which).await;
            }
            choice => {
                let late = Duration::from_millis(chance.below(100));
                wires[which].set([Wire::Cut, Wire::Silent, Wire::Slow(late), Wire::Whole][choice as usize - 1]);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stop.cancelled() => {}
                }
                wires[which].set(Wire::Whole);
            }
        }
    }
}

/// A round of that seed; the tasks and operations that were looked at.
pub(crate) async fn run(seed: u64) -> (usize, usize) {
    let mut chance = Chance::new(seed);
    let (redis, upstream) = (Redis::start().await, Upstream::start(chance.split()).await);
    let wires = join_all((0..REPLICAS).map(|_| Proxy::start(redis.address))).await;
    let addresses = wires.iter().map(|wire| wire.address).collect();
    let mut fleet = Fleet::start(Kept::Redis(addresses), upstream.address).await;
    let (jobs, history, places) = (Jobs::default(), Tasks::new(History::new()), fleet.places.clone());
    let follower = |chance: &mut Chance, route| Follower {
        client: Client::new(places.clone(), route),
        history: history.clone(),
        chance: chance.split(),
    };
    for batch in 0..BATCHES {
        let stop = CancellationToken::new();
        let harmed = harm(&mut fleet, &wires, chance.split(), stop.clone());
        let load = async {
            let mut following = Vec::new();
            for number in 0..AT_ONCE {
                let route = *chance.one(&[Route::Legacy, Route::Modern]);
                let key = format!("{batch}-{number}");
                let Some(id) = follower(&mut chance, route).create(&key).await else { continue };
                following.extend((0..FOLLOWERS).map(|_| {
                    let follower = follower(&mut chance, route);
                    jobs.spawn("follower", follower.follow(id.clone(), key.clone()))
                }));
            }
            join_all(following).await.into_iter().for_each(Result::unwrap);
            stop.cancel();
        };
        within("a batch", async { tokio::join!(harmed, load) }).await;
    }
    // Now that everything is whole, no task stays open.
    let clients = [Route::Legacy, Route::Modern].map(|route| Client::opened(places.clone(), route));
    let settled = tokio::time::timeout(PATIENCE, async { settle(&join_all(clients).await, |_, _| {}).await }).await;
    assert!(settled.is_ok(), "tasks stay open:\n{}\n{}", fleet.held().await, fleet.logs());
    history.check()
}
