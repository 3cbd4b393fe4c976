//! The store that replicas share, and this process among them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::sharing::Keeping;
use crate::clock::Clock;
use crate::config::{RedisSettings, ReplicaSettings};
use crate::hub::Hub;
use crate::hub::address::Address;
use crate::jobs::Jobs;
use crate::replica::redis::RedisReplicas;
use crate::task::Holder;
use crate::task::store::redis::RedisStore;

/// How long a start waits for the server. It goes on without: what needs the store is refused until that is there.
const FIRST: Duration = Duration::from_secs(3);

/// Connects to the server that the settings name.
pub(super) async fn keeping(redis: &RedisSettings, replica: &ReplicaSettings, jobs: &Jobs) -> anyhow::Result<Keeping> {
    let address = Address::parse(redis.url.reveal()).map_err(anyhow::Error::msg).context("store.url")?;
    let hub = Hub::start(address, &redis.prefix, jobs);
    let store = Arc::new(RedisStore::start(hub.clone(), Clock::system(), jobs));
    let holder = Holder::begin(replica.id.as_deref().unwrap_or("replica"));
    if !hub.arrives(FIRST).await {
        tracing::warn!("started without its store");
    }
    let (me, lease) = (holder.clone(), replica.lease);
    let join = Box::new(move |address| Arc::new(RedisReplicas::join(hub, me, address, lease)) as _);
    Ok(Keeping { store, holder, endings: None, join: Some(join) })
}
