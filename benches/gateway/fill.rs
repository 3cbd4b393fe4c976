//! Makes the disk store of a gateway that has been busy: so many tasks that have ended, each with a small result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::stream::{self, TryStreamExt as _};
use taskgate::clock::Clock;
use taskgate::task::store::disk::DiskStore;
use taskgate::task::{Ending, Event, Holder, Limits, Outcome, Owner, State, Store, Task, TaskId};

use crate::upstream;

/// So many are made at the same time, so that they share their waits for the disk.
const AT_ONCE: usize = 2_000;
/// So many callers have made them.
const OWNERS: usize = 100;
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn run(folder: &Path, count: usize) -> Result<()> {
    let clock = Clock::system();
    let store = DiskStore::open(folder, clock)?;
    let limits =
        Limits { running_tasks: AT_ONCE, queued_tasks: 0, kept_tasks: count + 1, kept_bytes: u64::MAX, creates: None };
    let owners: Vec<Arc<Owner>> = (0..OWNERS).map(|number| Arc::new(owner(number))).collect();
    let holder = Holder::begin("bench");
    stream::iter(owners.iter().cycle().take(count).map(Ok))
        .try_for_each_concurrent(AT_ONCE, |owner| {
            let (store, holder) = (&store, &holder);
            async move {
                let made = store.create(task(owner, holder, clock), None, &limits).await?;
                let mut ended = Task::clone(&made);
                ended.state = ended.state.apply(Event::End(Ending::Returned { is_error: false }), clock.now())?;
                let content = upstream::content(upstream::SMALL_TEXT);
                store.replace(ended, Some(Outcome::Result(content.into()))).await?;
                Ok::<_, anyhow::Error>(())
            }
        })
        .await?;
    let usage = store.usage("default").await?;
    ensure!(usage.kept == count, "{} tasks are kept and not {count}", usage.kept);
    Ok(())
}

fn owner(number: usize) -> Owner {
    Owner {
        tenant: "default".into(),
        issuer: "".into(),
        subject: format!("caller-{number}").into(),
        client: "".into(),
        principal: [0; 16],
        route: "bench".into(),
    }
}

fn task(owner: &Arc<Owner>, holder: &Holder, clock: Clock) -> Task {
    let now = clock.now();
    Task {
        id: TaskId::random(),
        owner: Arc::clone(owner),
        tool: "small".into(),
        session: 0,
        progress_token: None,
        created_at: now,
        updated_at: now,
        ttl: DAY,
        poll_interval: Duration::from_secs(1),
        deadline: now.plus(DAY),
        state: State::Queued,
        status_message: None,
        holder: holder.clone(),
        epoch: 0,
        version: 0,
    }
}
