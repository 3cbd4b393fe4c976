//! One round: load, deaths under it, and then what must be true of everything that was acknowledged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::{Value, json};
use taskgate::jobs::Jobs;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Route, settle, sure};
use super::fleet::{Fleet, Kept, QUEUED, RUNNING};
use super::seed::Chance;
use super::upstream::{TOOLS, Upstream};
use super::within;

/// Clients of each route.
const CLIENTS: u64 = 3;
/// How often the gateways of a round die.
pub(crate) const LIVES: u64 = 3;

/// What clients know of a task.
#[derive(Debug, Clone)]
struct Known {
    route: Route,
    tool: &'static str,
    key: String,
    is_cancelled: bool,
    /// Questions whose answer was acknowledged.
    answered: HashSet<String>,
    /// Its end, as each dialect told it, once it was told.
    ended: BTreeMap<&'static str, String>,
}

/// What all clients know, and how much of it there is.
#[derive(Default)]
struct Notes {
    tasks: Mutex<HashMap<String, Known>>,
    acknowledged: watch::Sender<u64>,
}

impl Notes {
    /// Does nothing for a task whose handle never came.
    fn change(&self, id: &str, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.tasks.lock().unwrap().get_mut(id) {
            change(known);
            self.acknowledged.send_modify(|count| *count += 1);
        }
    }

    fn all(&self) -> HashMap<String, Known> {
        self.tasks.lock().unwrap().clone()
    }

    /// An end is the same whenever it is told.
    fn has_ended(&self, id: &str, dialect: &'static str, text: &str) {
        self.change(id, |known| {
            let told = known.ended.entry(dialect).or_insert_with(|| text.to_owned());
            assert_eq!(told, text, "the end of {id} has changed");
        });
    }
}

/// One client at work.
struct Worker {
    client: Client,
    notes: Arc<Notes>,
    chance: Chance,
    is_modern: bool,
    route: Route,
    own: Vec<String>,
    name: String,
}

impl Worker {
    /// Does this and that until it is told to stop.
    async fn work(mut self, stop: CancellationToken) {
        let mut step = 0;
        while !stop.is_cancelled() {
            let has_session = self.client.has_session() || self.client.open().await.is_some();
            match self.chance.below(10) {
                _ if !has_session => tokio::task::yield_now().await,
                0..5 => {
                    step += 1;
                    self.create(step).await.unwrap_or_default();
                }
                _ if self.own.is_empty() => {}
                choice => {
                    let id = self.chance.one(&self.own).clone();
                    let done = if choice < 9 { self.look(&id).await } else { self.cancel(&id).await };
                    done.unwrap_or_default();
                }
            }
        }
    }

    async fn create(&mut self, step: u64) -> Option<()> {
        let (tool, _) = *self.chance.one(&TOOLS[..3]);
        let key = format!("{}-{step}", self.name);
        let Ok(id) = self.client.create(self.is_modern, tool, &key).await? else {
            // The tenant has as many as it may. Those that ask wait for an answer, and who was to give it may be long gone.
            let open = self.client.open_tasks().await?;
            let id = open.get(usize::try_from(self.chance.below(open.len() as u64)).unwrap())?;
            return self.look(id).await;
        };
        let known = Known {
            route: self.route,
            tool,
            key,
            is_cancelled: false,
            answered: HashSet::new(),
            ended: BTreeMap::new(),
        };
        self.notes.tasks.lock().unwrap().insert(id.clone(), known);
        self.notes.acknowledged.send_modify(|count| *count += 1);
        self.own.push(id);
        Some(())
    }

    async fn look(&self, id: &str) -> Option<()> {
        let shown = self.client.shown(id).await?.unwrap_or_else(|error| panic!("{id} can't be read: {error}"));
        if let Some(end) = &shown.end {
            self.notes.has_ended(id, "extension", end);
            let reply = self.client.legacy("tasks/result", json!({"taskId": id})).await?;
            self.notes.has_ended(id, "core", &reply.text());
        }
        for question in &shown.open {
            if self.client.answer(id, question).await? {
                self.notes.change(id, |known| known.answered.extend([question.clone()]));
            }
        }
        Some(())
    }

    async fn cancel(&self, id: &str) -> Option<()> {
        let reply = self.client.legacy("tasks/cancel", json!({"taskId": id})).await?;
        if reply.result().is_some() {
            self.notes.change(id, |known| known.is_cancelled = true);
        }
        Some(())
    }
}

/// A round of that seed.
pub(crate) async fn run(kept: Kept, seed: u64) -> usize {
    let mut chance = Chance::new(seed);
    let upstream = Upstream::start(chance.split()).await;
    let is_mortal = !matches!(kept, Kept::Memory);
    let mut fleet = Fleet::start(kept, upstream.address).await;
    let (jobs, notes) = (Jobs::default(), Arc::new(Notes::default()));
    for life in 0..LIVES {
        let stop = CancellationToken::new();
        let workers: Vec<_> = (0..4 * CLIENTS)
            .map(|number| {
                let route = if number % 2 == 0 { Route::Legacy } else { Route::Modern };
                let worker = Worker {
                    client: Client::new(fleet.places.clone(), route),
                    notes: notes.clone(),
                    chance: chance.split(),
                    is_modern: number / 2 % 2 == 0,
                    route,
                    own: Vec::new(),
                    name: format!("{life}-{number}"),
                };
                jobs.spawn("worker", worker.work(stop.clone()))
            })
            .collect();
        let enough = *notes.acknowledged.borrow() + 1 + chance.below(120);
        let mut acknowledged = notes.acknowledged.subscribe();
        let load = within("load", acknowledged.wait_for(|count| *count >= enough)).await;
        drop(load.unwrap());
        tokio::time::sleep(Duration::from_micros(chance.below(4000))).await;
        let victim = usize::try_from(chance.below(fleet.size() as u64)).unwrap();
        if is_mortal {
            fleet.kill(victim).await;
        }
        stop.cancel();
        within("the workers' end", join_all(workers)).await.into_iter().for_each(Result::unwrap);
        if is_mortal {
            fleet.restart(victim).await;
        }
    }
    let tasks = notes.all();
    let stage = Mutex::new(String::new());
    let settled = async {
        *stage.lock().unwrap() = "tasks end".to_owned();
        let clients = [Route::Legacy, Route::Modern].map(|route| Client::opened(fleet.places.clone(), route));
        let clients = join_all(clients).await;
        let asked = |id: &str, question: &str| {
            let tasks = notes.tasks.lock().unwrap();
            // One that is run again asks again.
            if let Some(known) = tasks.get(id).filter(|known| known.tool != "again") {
                assert!(!known.answered.contains(question), "an answer of {id} was lost: {known:?}");
            }
        };
        settle(&clients, asked).await;
        for (route, client) in [Route::Legacy, Route::Modern].into_iter().zip(&clients) {
            *stage.lock().unwrap() = format!("what was acknowledged of {route:?} is there");
            check(client, &notes, &tasks, route).await;
        }
        effects(&upstream, &tasks);
        *stage.lock().unwrap() = "all places are free".to_owned();
        let client = Client::opened(fleet.places.clone(), Route::Legacy).await;
        quotas(&client, &upstream, seed).await;
    };
    let settled = tokio::time::timeout(Duration::from_secs(120), AssertUnwindSafe(settled).catch_unwind()).await;
    if !matches!(settled, Ok(Ok(()))) {
        let stage = stage.into_inner().unwrap();
        println!("{stage}:\n{}\n{}\n{}", unfinished(&fleet).await, fleet.held().await, fleet.logs());
    }
    settled.expect("it comes to rest").unwrap_or_else(|panic| resume_unwind(panic));
    tasks.len()
}

/// The tasks that have not ended, as each place shows them.
async fn unfinished(fleet: &Fleet) -> String {
    let mut shown = String::new();
    let places = fleet.places.each().into_iter();
    for ((place, alone), route) in places.flat_map(|place| [(place.clone(), Route::Legacy), (place, Route::Modern)]) {
        let asking = async {
            let client = Client::opened(alone, route).await;
            for id in client.open_tasks().await.unwrap_or_default() {
                let task = client.legacy("tasks/get", json!({"taskId": id})).await.map(|reply| reply.text());
                shown += &format!("{place} {route:?} {task:?}\n");
            }
        };
        let is_late = tokio::time::timeout(Duration::from_secs(10), asking).await.is_err();
        if is_late {
            shown += &format!("{place} {route:?} does not say\n");
        }
    }
    shown
}

/// What was acknowledged is there, and as it was.
async fn check(client: &Client, notes: &Notes, tasks: &HashMap<String, Known>, route: Route) {
    for (id, known) in tasks.iter().filter(|(_, known)| known.route == route) {
        let shown = sure(async || client.shown(id).await).await;
        let shown = shown.unwrap_or_else(|error| panic!("the acknowledged task {id} is gone: {error} {known:?}"));
        if let Some(end) = &shown.end {
            notes.has_ended(id, "extension", end);
        }
        let reply = sure(async || client.legacy("tasks/result", json!({"taskId": id})).await).await;
        notes.has_ended(id, "core", &reply.text());
        match shown.status.as_str() {
            "completed" => {
                let text = reply.result().expect("a result")["content"][0]["text"].to_string();
                assert!(text.contains(&format!("{} ", known.key)), "{id} has another's result: {text}");
                assert!(!known.is_cancelled, "a cancelled task has completed: {id} {known:?}");
            }
            "cancelled" => {}
            "failed" => {
                assert!(!known.is_cancelled, "a cancelled task has failed: {id} {known:?}");
                let reason = reply.error().unwrap_or_default()["data"]["reason"].clone();
                let lost = ["outcome_unknown", "replica_lost"].map(Value::from);
                assert!(lost.contains(&reason), "{id} failed: {} {known:?}", reply.text());
                assert!(known.tool != "again", "{id} could have been run again: {} {known:?}", reply.text());
            }
            other => panic!("{id} is {other}"),
        }
    }
}

/// Nothing was done twice, but for what may be.
fn effects(upstream: &Upstream, tasks: &HashMap<String, Known>) {
    let idempotent: HashSet<&str> =
        tasks.values().filter(|known| known.tool == "again").map(|known| known.key.as_str()).collect();
    let all: HashSet<&str> = tasks.values().map(|known| known.key.as_str()).collect();
    for (key, times) in upstream.effects() {
        // Of a call that nobody acknowledged it is not known which tool it was.
        let most = if idempotent.contains(key.as_str()) || !all.contains(key.as_str()) { 1 + LIVES } else { 1 };
        assert!(times <= most, "the call {key} was run {times} times");
    }
}

/// The tenant may have exactly as many tasks as it could in the beginning.
async fn quotas(client: &Client, upstream: &Upstream, seed: u64) {
    let mut made = Vec::new();
    let keys: Vec<String> = (0..RUNNING + QUEUED).map(|number| format!("hold-{seed}-{number}")).collect();
    for key in &keys {
        let id = sure(async || client.create(false, "hold", key).await).await;
        made.push(id.unwrap_or_else(|error| panic!("a place was lost: {error} after {} tasks", made.len())));
    }
    within("the calls that have a place", upstream.has_run(&keys[..RUNNING])).await;
    let refused = sure(async || client.create(false, "hold", "too much").await).await.expect_err("one too many");
    assert_eq!(refused["data"]["reason"], "queued_tasks", "{refused}");
    for id in &made {
        sure(async || client.legacy("tasks/cancel", json!({"taskId": id})).await).await;
    }
}
