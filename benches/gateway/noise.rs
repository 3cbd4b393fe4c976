//! A tenant that asks for ten times what it may, beside another one whose calls are measured.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use crate::plan::{Figure, Plan, Sample, Tool};
use crate::stand::{NOISY_KEY, NOISY_RATE};

/// Connections of the noisy tenant.
const CONNECTIONS: u32 = 8;
/// How much more it asks for than it may.
const TIMES: u32 = 10;

/// The noise, until it is stopped.
pub(crate) struct Noise(JoinSet<Result<Heard>>);

/// What came of it.
#[derive(Default)]
struct Heard {
    sent: usize,
    refused: usize,
}

impl Noise {
    /// Begins: plain calls and creations of tasks in turn, from before the window until after it.
    pub(crate) async fn start(plan: &Plan) -> Result<Self> {
        let until = Instant::now() + plan.warm_up() + plan.window();
        let apart = Duration::from_secs(1) * CONNECTIONS / (NOISY_RATE * TIMES);
        let mut workers = JoinSet::new();
        for at in 0..CONNECTIONS {
            let client = Client::initialize(plan.proxy, Some(NOISY_KEY)).await.context("the noisy tenant's session")?;
            workers.spawn(ask(client, Instant::now() + apart * at / CONNECTIONS, apart, until));
        }
        Ok(Self(workers))
    }

    /// Waits for its end, and reports how much of it was refused.
    pub(crate) async fn end(mut self, sample: &mut Sample) -> Result<()> {
        let mut all = Heard::default();
        while let Some(heard) = self.0.join_next().await {
            let Heard { sent, refused } = heard??;
            (all.sent, all.refused) = (all.sent + sent, all.refused + refused);
        }
        ensure!(all.refused > 0, "the noisy tenant was refused nothing: it is not over its rates");
        sample.insert(Figure::Refused, all.refused as f64 / all.sent as f64);
        Ok(())
    }
}

async fn ask(mut client: Client, first: Instant, apart: Duration, until: Instant) -> Result<Heard> {
    let (plain, task) = (Tool::Small.params(false), Tool::Noop.params(true));
    let mut heard = Heard::default();
    let mut due = first;
    while due < until {
        sleep_until(due).await;
        let params = if heard.sent.is_multiple_of(2) { &plain } else { &task };
        heard.refused += usize::from(!client.attempt("tools/call", params).await?);
        heard.sent += 1;
        due += apart;
    }
    Ok(heard)
}
