//! A Redis that is lost with what its replica had not heard of yet: what the replica has is kept, the rest may be gone, and
//! everything heals.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::client::{Client, Route};
use super::fleet::{Fleet, Kept};
use super::proxy::{Proxy, Wire};
use super::redis::Redis;
use super::seed::Chance;
use super::upstream::Upstream;
use super::within;

/// The end of a task, once it has one.
async fn end(client: &Client, id: &str) -> String {
    loop {
        if let Some(end) = client.shown(id).await.and_then(|shown| shown.ok()?.end) {
            return end;
        }
        tokio::task::yield_now().await;
    }
}

/// Makes a task, however often it takes; its id.
async fn create(client: &Client, key: &str) -> String {
    loop {
        if let Some(Ok(id)) = client.create(true, "work", key).await {
            return id;
        }
        tokio::task::yield_now().await;
    }
}

/// A round of that seed; the tasks that survived.
pub(crate) async fn run(seed: u64) -> usize {
    let (first, second) = (Redis::start().await, Redis::start().await);
    second.follow(Some(first.address)).await;
    let upstream = Upstream::start(Chance::new(seed)).await;
    let wires = join_all((0..2).map(|_| Proxy::start(first.address))).await;
    let fleet = Fleet::start(Kept::Redis(wires.iter().map(|wire| wire.address).collect()), upstream.address).await;
    let client = Client::new(fleet.places.clone(), Route::Legacy);
    // Given tasks that both know, and some of which nobody can say whether both do,
    let mut known = HashMap::new();
    for number in 0..5 {
        let id = within("a task", create(&client, &format!("known-{number}"))).await;
        known.insert(id.clone(), within("its end", end(&client, &id)).await);
    }
    second.is_in_step_with(&first).await;
    let mut unknown = Vec::new();
    for number in 0..5 {
        unknown.push(within("a task", create(&client, &format!("unknown-{number}"))).await);
    }
    // when the second takes the place of the first,
    wires.iter().for_each(|wire| wire.set(Wire::Cut));
    second.follow(None).await;
    drop(first);
    for wire in &wires {
        wire.lead_to(second.address);
        wire.set(Wire::Whole);
    }
    // then new tasks come and go as ever,
    let id = within("a task after the promotion", create(&client, "after")).await;
    within("its end", end(&client, &id)).await;
    // what both knew is as it was,
    for (id, before) in &known {
        assert_eq!(within("an end that was known", end(&client, id)).await, *before);
    }
    // and what may be lost is there with an end, or not at all.
    for id in &unknown {
        within("an end or a loss", async {
            loop {
                match client.shown(id).await {
                    Some(Ok(shown)) if shown.end.is_some() => return,
                    Some(Err(error)) if error["code"] == -32602 => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        })
        .await;
    }
    known.len()
}
