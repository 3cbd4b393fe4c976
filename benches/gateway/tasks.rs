//! The errands with tasks and with memory: whole lives, held tasks, held calls, finished tasks, and doing nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Client;
use crate::load::clients;
use crate::plan::{Figure, Plan, Sample, Tool};
use crate::process::Tree;
use crate::upstream;
use crate::window::{self, Latencies, Meter};

/// So many polls of a task come as fast as their answers, and the later ones with pauses.
const EAGER_POLLS: usize = 1_000;
/// Polls of a task that does nothing; more mean that it never ends.
const MOST_POLLS: usize = 10_000;
/// Tasks that end before memory is read for the first time, so that buffers, threads and tables exist.
const WARM: usize = 1_000;
/// How often a task is looked at that ends within seconds.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A replica that has just begun believes nobody dead for a lease, or for a lease and two seconds if its store was away.
const BELIEVES: Duration = Duration::from_secs(3);
/// What is let go of after the last answer is let go of within this.
const SETTLE: Duration = Duration::from_millis(500);

/// A worker's lives: all of them, the answers with a handle alone, and the polls.
#[derive(Default)]
struct Lives {
    whole: Latencies,
    handles: Latencies,
    polls: usize,
}

pub(crate) async fn lives(plan: &Plan, connections: usize) -> Result<Sample> {
    let clients = clients(plan.proxy, connections, None).await?;
    let (seen, meter) = window::measure(plan, clients, |_, mut client, window| async move {
        let params = Tool::Noop.params(true);
        let mut lives = Lives::default();
        let mut begun = Instant::now();
        while !window.is_over(begun) {
            let task = create(&mut client, &params).await?;
            let handle = begun.elapsed();
            let polls = poll(&mut client, &task).await?;
            let answer = client.call("tasks/result", &task).await?;
            ensure!(answer.has(b"\"content\""), "tasks/result has no content");
            let ended = Instant::now();
            if window.holds(ended) {
                lives.whole.push(ended - begun);
                lives.handles.push(handle);
                lives.polls += polls;
            }
            begun = ended;
        }
        Ok(lives)
    })
    .await?;
    let polls: usize = seen.iter().map(|lives| lives.polls).sum();
    let (whole, handles): (Vec<_>, Vec<_>) = seen.into_iter().map(|lives| (lives.whole, lives.handles)).unzip();
    let (whole, handles) = (Latencies::all(whole), Latencies::all(handles));
    let mut sample = Sample::new();
    meter.report(&mut sample, whole.len(), whole.len());
    sample.insert(Figure::Polls, polls as f64 / whole.len().max(1) as f64);
    sample.extend(whole.percentile(50).map(|p50| (Figure::P50, p50)));
    sample.extend(whole.percentile(99).map(|p99| (Figure::P99, p99)));
    sample.extend(handles.percentile(99).map(|p99| (Figure::HandleP99, p99)));
    Ok(sample)
}

/// Handles as fast as they come. What they stand for ends by itself.
pub(crate) async fn creates(plan: &Plan, connections: usize) -> Result<Sample> {
    let clients = clients(plan.proxy, connections, None).await?;
    let (seen, meter) = window::measure(plan, clients, |_, mut client, window| async move {
        let params = Tool::Noop.params(true);
        let mut handles = Latencies::default();
        let mut begun = Instant::now();
        while !window.is_over(begun) {
            create(&mut client, &params).await?;
            let ended = Instant::now();
            if window.holds(ended) {
                handles.push(ended - begun);
            }
            begun = ended;
        }
        Ok(handles)
    })
    .await?;
    let handles = Latencies::all(seen);
    let mut sample = Sample::new();
    meter.report(&mut sample, handles.len(), handles.len());
    sample.extend(handles.percentile(50).map(|p50| (Figure::P50, p50)));
    sample.extend(handles.percentile(99).map(|p99| (Figure::P99, p99)));
    Ok(sample)
}

/// Tasks that have ended, read in turn.
pub(crate) async fn polls(plan: &Plan, connections: usize, count: usize) -> Result<Sample> {
    let ended = for_each(plan, connections, count, Tool::Small, true).await?;
    Ok(read(plan, connections, &ended, "completed").await?.map(|cpu| (Figure::Cpu, cpu)).into_iter().collect())
}

/// From the death of the replica that holds the calls to the end of the last of their tasks, as another replica tells it.
pub(crate) async fn takeover(plan: &Plan, count: usize) -> Result<Sample> {
    let victim = tree(plan)?;
    let key = plan.key.as_deref();
    let mut client = Client::initialize(plan.proxy, key).await?;
    let mut other = Client::initialize(plan.other.context("no other replica")?, key).await?;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(create(&mut client, &Tool::Hold.params(true)).await?);
    }
    wait_until_held(plan, count).await?;
    sleep(BELIEVES).await;
    victim.kill()?;
    let killed = Instant::now();
    let all = async {
        for id in &ids {
            while other.call("tasks/get", id).await?.text("status")? == "working" {
                sleep(LOOK_AGAIN).await;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    timeout(plan.patience(), all).await.context("tasks of a dead replica do not end")??;
    Ok(Sample::from([(Figure::Takeover, killed.elapsed().as_secs_f64() * 1e3)]))
}

pub(crate) async fn held(plan: &Plan, connections: usize, few: usize, many: usize) -> Result<Sample> {
    let tree = tree(plan)?;
    end(plan, connections, WARM).await?;
    sleep(SETTLE).await;
    let before = tree.resident()?;
    let mut ids = hold(plan, connections, few).await?;
    wait_until_held(plan, few).await?;
    let with_few = read(plan, connections, &ids, "working").await?;
    ids.extend(hold(plan, connections, many.saturating_sub(few)).await?);
    wait_until_held(plan, many).await?;
    let with_many = read(plan, connections, &ids, "working").await?;
    sleep(SETTLE).await;
    let mut sample = Sample::new();
    sample.insert(Figure::Bytes, (tree.resident()? - before) / many as f64);
    sample.extend(with_few.map(|cpu| (Figure::CpuFew, cpu)));
    sample.extend(with_many.map(|cpu| (Figure::CpuMany, cpu)));
    Ok(sample)
}

pub(crate) async fn held_calls(plan: &Plan, count: usize) -> Result<Sample> {
    let tree = tree(plan)?;
    let mut first = Client::initialize(plan.proxy, None).await?;
    warm_up(plan).await?;
    sleep(SETTLE).await;
    let before = tree.resident()?;
    let params = Tool::Hold.params(false);
    let mut waiting = Vec::new();
    for at in 0..count {
        let mut client = Client::connect(plan.proxy, first.session()).await?;
        client.count_from(1_000_000 + u32::try_from(at)?);
        client.send("tools/call", &params).await?;
        waiting.push(client);
    }
    wait_until_held(plan, count).await?;
    sleep(SETTLE).await;
    let after = tree.resident()?;
    first.call("ping", "{}").await.context("while calls are held")?;
    Ok(Sample::from([(Figure::Bytes, (after - before) / count as f64)]))
}

pub(crate) async fn finished(plan: &Plan, connections: usize, count: usize) -> Result<Sample> {
    let tree = tree(plan)?;
    end(plan, connections, WARM).await?;
    sleep(SETTLE).await;
    let before = tree.resident()?;
    end(plan, connections, count).await?;
    sleep(SETTLE).await;
    let kept = (tree.resident()? - before) / count as f64;
    let result = upstream::content(upstream::SMALL_TEXT).len();
    Ok(Sample::from([(Figure::Bytes, kept - result as f64)]))
}

pub(crate) async fn idle(plan: &Plan) -> Result<Sample> {
    let tree = tree(plan)?;
    let mut client = Client::initialize(plan.proxy, None).await?;
    client.call_tool(Tool::Small, &Tool::Small.params(false)).await?;
    sleep(SETTLE).await;
    Ok(Sample::from([(Figure::Bytes, tree.resident()?)]))
}

fn tree(plan: &Plan) -> Result<Tree> {
    Tree::of(plan.watch.context("no process to look at")?)
}

/// Creates a task and hands back `params` for everything that is asked of it.
async fn create(client: &mut Client, params: &str) -> Result<Box<str>> {
    let answer = client.call("tools/call", params).await?;
    let id = answer.text("taskId").context("no handle: is the call a task?")?;
    Ok(format!(r#"{{"taskId":"{id}"}}"#).into())
}

/// Reads a task until it is done, as fast as the answers come, and counts how often. A disk may take seconds for one of its
/// waits where others use it too: polls are then not to keep it from all that there is of the CPU.
async fn poll(client: &mut Client, task: &str) -> Result<usize> {
    for polls in 1..=MOST_POLLS {
        match client.call("tasks/get", task).await?.text("status")? {
            "completed" => return Ok(polls),
            "working" if polls > EAGER_POLLS => sleep(LOOK_AGAIN).await,
            "working" => {}
            other => bail!("a task that does nothing is {other}"),
        }
    }
    bail!("a task that does nothing is not done after {MOST_POLLS} polls")
}

/// So many tasks, from creation to their end.
async fn end(plan: &Plan, connections: usize, count: usize) -> Result<()> {
    for_each(plan, connections, count, Tool::Small, true).await.map(drop)
}

/// So many tasks whose calls do not end.
async fn hold(plan: &Plan, connections: usize, count: usize) -> Result<Vec<Box<str>>> {
    for_each(plan, connections, count, Tool::Hold, false).await
}

async fn for_each(
    plan: &Plan,
    connections: usize,
    count: usize,
    tool: Tool,
    to_the_end: bool,
) -> Result<Vec<Box<str>>> {
    let mut workers = JoinSet::new();
    for (at, mut client) in clients(plan.proxy, connections, None).await?.into_iter().enumerate() {
        let share = count / connections + usize::from(at < count % connections);
        workers.spawn(async move {
            let params = tool.params(true);
            let mut made = Vec::new();
            for _ in 0..share {
                let task = create(&mut client, &params).await?;
                if to_the_end {
                    poll(&mut client, &task).await?;
                }
                made.push(task);
            }
            Ok::<_, anyhow::Error>(made)
        });
    }
    let all = async {
        let mut all = Vec::new();
        while let Some(made) = workers.join_next().await {
            all.extend(made??);
        }
        Ok(all)
    };
    timeout(plan.patience(), all).await.context("the tasks take too long")?
}

/// CPU of a `tasks/get` while the connections read these tasks in turn.
async fn read(plan: &Plan, connections: usize, tasks: &[Box<str>], are: &'static str) -> Result<Option<f64>> {
    let tasks: Arc<[Box<str>]> = tasks.into();
    let clients = clients(plan.proxy, connections, None).await?;
    let (seen, meter): (Vec<usize>, Meter) = window::measure(plan, clients, |at, mut client, window| {
        let tasks = Arc::clone(&tasks);
        async move {
            let mut count = 0;
            let mut turns = tasks.iter().cycle().skip(at * tasks.len() / connections);
            let mut now = Instant::now();
            while !window.is_over(now) {
                let task = turns.next().context("no task to read")?;
                let status = client.call("tasks/get", task).await?.text("status")?;
                ensure!(status == are, "a task is {status} and not {are}");
                now = Instant::now();
                count += usize::from(window.holds(now));
            }
            Ok(count)
        }
    })
    .await?;
    Ok(meter.cpu_each(seen.into_iter().sum()))
}

/// Calls plainly for a while, so that memory is not charged for what only the first calls need.
async fn warm_up(plan: &Plan) -> Result<()> {
    for mut client in clients(plan.proxy, 16, None).await? {
        for _ in 0..WARM / 16 {
            client.call_tool(Tool::Small, &Tool::Small.params(false)).await?;
        }
    }
    Ok(())
}

async fn wait_until_held(plan: &Plan, count: usize) -> Result<()> {
    let mut upstream = Client::connect(plan.upstream, None).await?;
    let mut held = 0;
    let give_up = Instant::now() + plan.patience();
    while Instant::now() < give_up {
        let answer = upstream.get(upstream::HELD_PATH).await?;
        held = std::str::from_utf8(answer.body)?.parse()?;
        if held == count {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the upstream holds {held} calls and not {count}")
}
