//! The load generator: carries out one plan in a process of its own and prints what it saw.

#![expect(clippy::print_stdout, reason = "the starter reads the figures there")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use crate::noise::Noise;
use crate::plan::{Action, Era, Figure, Plan, Sample, Tool};
use crate::tasks;
use crate::upstream;
use crate::window::{self, Latencies};

/// A call that starts later than this after its time is charged for the wait; less is the timer's own coarseness.
const TIMER: Duration = Duration::from_millis(2);

/// Carries out the plan.
pub(crate) async fn run(plan: &str) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).context("not a plan")?;
    let sample = match plan.action {
        Action::Closed { tool, connections } => closed(&plan, tool, connections).await?,
        Action::Open { tool, connections, per_second } => open(&plan, tool, connections, per_second).await?,
        Action::Quiet { tool, connections, per_second, noise } => {
            let noise = if noise { Some(Noise::start(&plan).await?) } else { None };
            let mut sample = open(&plan, tool, connections, per_second).await?;
            if let Some(noise) = noise {
                noise.end(&mut sample).await?;
            }
            sample
        }
        Action::Lives { connections } => tasks::lives(&plan, connections).await?,
        Action::Creates { connections } => tasks::creates(&plan, connections).await?,
        Action::Polls { connections, count } => tasks::polls(&plan, connections, count).await?,
        Action::Takeover { count } => tasks::takeover(&plan, count).await?,
        Action::HeldTasks { connections, few, many } => tasks::held(&plan, connections, few, many).await?,
        Action::HeldCalls { count } => tasks::held_calls(&plan, count).await?,
        Action::Finished { connections, count } => tasks::finished(&plan, connections, count).await?,
        Action::Idle => tasks::idle(&plan).await?,
    };
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

/// Connections with a session each, as so many clients have.
pub(crate) async fn clients(address: SocketAddr, count: usize, key: Option<&str>) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Client::initialize(address, key).await?);
    }
    Ok(clients)
}

/// Connections that have called a tool once, whatever they speak, and `params` for the next calls.
async fn callers(plan: &Plan, tool: Tool, count: usize) -> Result<(Vec<Client>, Arc<str>)> {
    let (mut clients, params) = match plan.era {
        Era::Legacy => (clients(plan.proxy, count, plan.key.as_deref()).await?, tool.params(false)),
        Era::Modern => {
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(Client::stateless(plan.proxy, tool, plan.key.as_deref()).await?);
            }
            (clients, tool.modern_params())
        }
    };
    for client in &mut clients {
        client.call_tool(tool, &params).await.context("the first call")?;
    }
    Ok((clients, params.into()))
}

/// How often the upstream was asked so far.
async fn upstream_requests(plan: &Plan) -> Result<usize> {
    let mut upstream = Client::connect(plan.upstream, None).await?;
    let answer = upstream.get(upstream::REQUESTS_PATH).await?;
    Ok(std::str::from_utf8(answer.body)?.parse()?)
}

async fn closed(plan: &Plan, tool: Tool, connections: usize) -> Result<Sample> {
    let (clients, params) = callers(plan, tool, connections).await?;
    let before = upstream_requests(plan).await?;
    let (seen, meter) = window::measure(plan, clients, |_, mut client, window| {
        let params = Arc::clone(&params);
        async move {
            let mut latencies = Latencies::default();
            let mut calls = 0;
            let mut begun = Instant::now();
            while !window.is_over(begun) {
                client.call_tool(tool, &params).await?;
                let ended = Instant::now();
                calls += 1;
                if window.holds(ended) {
                    latencies.push(ended - begun);
                }
                begun = ended;
            }
            Ok((latencies, calls))
        }
    })
    .await?;
    let requests = upstream_requests(plan).await? - before;
    let (seen, calls): (Vec<_>, Vec<usize>) = seen.into_iter().unzip();
    let mut sample = report(seen, &meter, tool);
    sample.insert(Figure::Requests, requests as f64 / calls.iter().sum::<usize>().max(1) as f64);
    Ok(sample)
}

async fn open(plan: &Plan, tool: Tool, connections: usize, per_second: u32) -> Result<Sample> {
    let (clients, params) = callers(plan, tool, connections).await?;
    let apart = Duration::from_secs(1) / per_second.max(1);
    let rest = apart * u32::try_from(connections)?;
    let (seen, meter) = window::measure(plan, clients, |at, mut client, window| {
        let params = Arc::clone(&params);
        async move {
            let mut latencies = Latencies::default();
            let mut due = window.begins() + apart * u32::try_from(at)?;
            while !window.is_over(due) {
                sleep_until(due).await;
                let begun = Instant::now();
                client.call_tool(tool, &params).await?;
                let from = if begun - due > TIMER { due } else { begun };
                latencies.push(from.elapsed());
                due += rest;
            }
            Ok(latencies)
        }
    })
    .await?;
    Ok(report(seen, &meter, tool))
}

fn report(seen: Vec<Latencies>, meter: &window::Meter, tool: Tool) -> Sample {
    let latencies = Latencies::all(seen);
    let mut sample = Sample::new();
    meter.report(&mut sample, latencies.len(), latencies.len() * tool.events().max(1));
    sample.extend(latencies.percentile(50).map(|p50| (Figure::P50, p50)));
    sample.extend(latencies.percentile(99).map(|p99| (Figure::P99, p99)));
    sample
}
