//! What operations cost the server: commands, those of scripts as well, and what these look at.

use std::collections::HashSet;

use super::*;
use crate::task::store::contract::costs::{Costs, assert_grown_by_at_most, costs, fill};

/// Before every script: each command notes how many elements it gave back, since one that looks at many gives many back; and
/// what the script has got that got most.
const COUNTING: &str = "\
    local server = redis \
    local function size(reply) \
      if type(reply) ~= 'table' then return 1 end \
      local sum = 0 \
      for _, part in ipairs(reply) do sum = sum + size(part) end \
      return sum \
    end \
    local all = 0 \
    local redis = {call = function(...) \
      local reply = server.call(...) \
      local elements = size(reply) \
      all = all + elements \
      server.call('INCRBYFLOAT', 'elements', elements) \
      if all > (tonumber(server.call('GETRANGE', 'largest', 0, -1)) or 0) then server.call('PSETEX', 'largest', 3600000, all) end \
      return reply \
    end} \n";

async fn number(hub: &Hub, key: &str) -> u64 {
    let text = hub.run(redis::cmd("GETRANGE").arg(key).arg(0).arg(-1)).await.unwrap();
    read::<String>(text, "a number").unwrap().parse().unwrap_or_default()
}

/// What it has done so far: commands, what they gave back to scripts, and one for each that was called beside scripts.
async fn work(hub: &Hub) -> u64 {
    let info: String = read(hub.run(redis::cmd("INFO").arg("commandstats")).await.unwrap(), "info").unwrap();
    let calls = |line: &str| -> Option<u64> {
        let (command, about) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        // The connection's own, and the counting.
        let is_none = ["ping", "info", "incrbyfloat", "getrange", "psetex"].contains(&command);
        (!is_none).then(|| about.split(',').next().unwrap().parse().unwrap())
    };
    info.lines().filter_map(calls).sum::<u64>() + number(hub, "elements").await
}

async fn measured(count: usize) -> Option<Costs> {
    let (server, jobs) = (Server::start()?, Jobs::default());
    let hub = server::connected(&server.url(), &jobs);
    assert!(hub.arrives(PATIENCE).await);
    let running = fill(&RedisStore::over(hub.clone(), Clock::system(), ""), count).await;
    let store = RedisStore::over(hub.clone(), Clock::system(), COUNTING);
    Some(costs(&store, &running, &async || work(&hub).await).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_do_not_grow_with_the_number_of_tasks() {
    let Some(few) = measured(100).await else { return };
    let many = measured(5000).await.unwrap();
    assert_grown_by_at_most(&few, &many, 32);
}

/// The one operation that looks at all of a holder's unfinished tasks of a tenant, of which quotas bound the number: no script
/// looks at more of them than a page has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_for_strays_goes_page_by_page() {
    let (Some(server), jobs, clock) = (Server::start(), Jobs::default(), Clock::system()) else { return };
    let hub = server::connected(&server.url(), &jobs);
    assert!(hub.arrives(PATIENCE).await);
    let store = RedisStore::over(hub.clone(), clock, COUNTING);
    let limits = Limits { running_tasks: 10_000, kept_tasks: 10_000, ..LIMITS };
    let mut made = Vec::new();
    let now = clock.now();
    while made.len() < 2500 {
        // Some of the same moment, so that pages end among them.
        let created_at = now.plus(Duration::from_millis(made.len() as u64));
        let some = (0..70).map(|_| store.create(Task { created_at, ..task("acme", clock, HOUR) }, None, &limits));
        made.extend(futures_util::future::join_all(some).await.into_iter().map(|made| made.unwrap().id));
    }
    let first = Holder::from_text("first");
    let strays = Mutex::new(HashSet::from([made[0], made[1200], made[2500]]));
    let looked = Mutex::new(HashSet::new());
    let known = |id, epoch| {
        looked.lock().unwrap().insert(id);
        epoch > 1 || !strays.lock().unwrap().contains(&id)
    };
    let taken = store.take_strays(&first, &known, 10).await.unwrap();
    let taken: HashSet<TaskId> = taken.iter().map(|orphan| orphan.task.id).collect();
    assert_eq!((&taken, looked.lock().unwrap().len()), (&*strays.lock().unwrap(), made.len()));
    let largest = number(&hub, "largest").await;
    assert!(largest < 6000, "{largest}");
    assert!(store.take_strays(&first, &known, 10).await.unwrap().is_empty());
}
