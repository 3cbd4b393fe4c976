//! Replicas that share a Redis: leases and notes of sessions are keys that run out, the bus is a channel.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{Cmd, FromRedisValue, cmd, from_redis_value};
use tokio::sync::mpsc;

use super::{BUS_DEPTH, KEY_KEPT, LEFT_KEPT, Replicas, Standing};
use crate::hub::{Hub, HubError, Script};
use crate::task::{Holder, SessionNumber, StoreError};

/// Hands a session on: KEYS: its note. ARGV: from whom, to whom, for how many milliseconds. Gives whose it is.
const CLAIM: &str = "local home = redis.call('GET', KEYS[1]) \
    if home and home ~= ARGV[1] and home ~= ARGV[2] then return home end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) \
    return ARGV[2]";

/// Keeps a note. KEYS: where. ARGV: what, for how many milliseconds.
const NOTE: &str = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])";

/// Agrees on a key. KEYS: its note. ARGV: for how many milliseconds, the keys that are known, the one in use first.
const AGREE: &str = "local last = redis.call('GET', KEYS[1]) \
    local is_known = not last \
    for at = 2, #ARGV do is_known = is_known or ARGV[at] == last end \
    if not last or last == ARGV[2] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1]) end \
    return is_known and 1 or 0";

/// This process among those that share a Redis.
#[derive(Debug)]
pub struct RedisReplicas {
    hub: Hub,
    me: Holder,
    address: Option<SocketAddr>,
    lease: Duration,
    channel: String,
    claim: Script,
    note: Script,
    agree: Script,
    subscribers: Arc<Subscribers>,
}

#[derive(Debug, Default)]
struct Subscribers(Mutex<Vec<mpsc::Sender<Bytes>>>);

impl RedisReplicas {
    /// The process of that holder, whom others reach at `address`.
    #[must_use]
    pub fn join(hub: Hub, me: Holder, address: Option<SocketAddr>, lease: Duration) -> Self {
        let channel = format!("{}:bus", hub.prefix());
        let subscribers = Arc::new(Subscribers::default());
        let (heard_by, own) = (Arc::clone(&subscribers), me.clone());
        hub.listen(&channel, Box::new(move |message| heard_by.hear(&own, message)));
        let (claim, note, agree) = (Script::always(&[CLAIM]), Script::always(&[NOTE]), Script::always(&[AGREE]));
        Self { hub, me, address, lease, channel, claim, note, agree, subscribers }
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let value = self.hub.run(command).await?;
        Ok(from_redis_value(value).map_err(|_| HubError::Unreadable("a note"))?)
    }

    async fn keep(&self, key: &str, text: &str, time: Duration) -> Result<(), StoreError> {
        self.hub.call(&self.note, &[key], &[text.as_bytes(), millis(time).to_string().as_bytes()]).await?;
        Ok(())
    }

    /// Gives a session of the one to the other; tells whose it is now.
    async fn hand_on(
        &self,
        session: SessionNumber,
        from: &Holder,
        to: &Holder,
        keep: Duration,
    ) -> Result<Holder, StoreError> {
        let keep = millis(keep).to_string();
        let args = [from.as_str(), to.as_str(), &keep].map(str::as_bytes);
        let home = self.hub.call(&self.claim, &[&self.home(session)], &args).await?;
        let home: String = from_redis_value(home).map_err(|_| HubError::Unreadable("a home"))?;
        Ok(Holder::from_text(&home))
    }

    fn home(&self, session: SessionNumber) -> String {
        format!("{}:home:{session:x}", self.hub.prefix())
    }

    fn left(&self, holder: &Holder) -> String {
        format!("{}:left:{holder}", self.hub.prefix())
    }

    fn ended(&self, session: SessionNumber) -> String {
        format!("{}:ended:{session:x}", self.hub.prefix())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}

#[async_trait]
impl Replicas for RedisReplicas {
    fn me(&self) -> &Holder {
        &self.me
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        self.keep(&self.hub.lease(self.me.as_str()), &address, self.lease).await
    }

    async fn agree(&self, known: &[String]) -> Result<bool, StoreError> {
        let (key, keep) = (format!("{}:key", self.hub.prefix()), millis(self.lease * KEY_KEPT).to_string());
        let args: Vec<&[u8]> = std::iter::once(keep.as_bytes()).chain(known.iter().map(String::as_bytes)).collect();
        let agreed = self.hub.call(&self.agree, &[&key], &args).await?;
        Ok(from_redis_value(agreed).map_err(|_| HubError::Unreadable("a key's note"))?)
    }

    async fn leave(&self) {
        let left = async {
            // The mark first: in between it is still taken for alive, and never for one that may come back.
            self.keep(&self.left(&self.me), "1", LEFT_KEPT).await?;
            self.run::<()>(cmd("DEL").arg(self.hub.lease(self.me.as_str()))).await
        };
        if let Err(error) = left.await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the lease will run out");
        }
    }

    async fn standing(&self, holder: &Holder) -> Result<Standing, StoreError> {
        let lease: Option<String> = self.run(cmd("GET").arg(self.hub.lease(holder.as_str()))).await?;
        if let Some(address) = lease {
            return Ok(Standing::Alive { address: address.parse().ok() });
        }
        let has_left: bool = self.run(cmd("EXISTS").arg(self.left(holder))).await?;
        Ok(if has_left { Standing::Left } else { Standing::Over })
    }

    async fn claim_home(
        &self,
        session: SessionNumber,
        from: Option<&Holder>,
        keep: Duration,
    ) -> Result<Holder, StoreError> {
        self.hand_on(session, from.unwrap_or(&self.me), &self.me, keep).await
    }

    async fn release_home(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        self.hand_on(session, &self.me, &Holder::nobody(), keep).await.map(drop)
    }

    async fn home_of(&self, session: SessionNumber) -> Result<Option<Holder>, StoreError> {
        let home: Option<String> = self.run(cmd("GET").arg(self.home(session))).await?;
        Ok(home.as_deref().map(Holder::from_text))
    }

    async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        self.keep(&self.ended(session), "1", keep).await?;
        self.run(cmd("DEL").arg(self.home(session))).await
    }

    async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError> {
        self.run(cmd("EXISTS").arg(self.ended(session))).await
    }

    async fn publish(&self, message: Bytes) {
        let told = [self.me.as_str().as_bytes(), b"\n", &message].concat();
        if let Err(error) = self.hub.publish(&self.channel, &told).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the other replicas were not told");
        }
    }

    fn subscribe(&self) -> mpsc::Receiver<Bytes> {
        let (sender, messages) = mpsc::channel(BUS_DEPTH);
        self.subscribers.lock().push(sender);
        messages
    }
}

impl Subscribers {
    fn lock(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a message: who tells it, a line's end, and what is told.
    fn hear(&self, me: &Holder, told: &[u8]) {
        let Some(end) = told.iter().position(|byte| *byte == b'\n') else { return };
        let (teller, message) = told.split_at(end);
        if teller == me.as_str().as_bytes() {
            return;
        }
        let message = Bytes::copy_from_slice(message.get(1..).unwrap_or_default());
        let mut subscribers = self.lock();
        subscribers.retain(|subscriber| !subscriber.is_closed());
        for subscriber in &*subscribers {
            // Full is lost: who listens must bear that anyhow.
            drop(subscriber.try_send(message.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::each_contract_test;
    use super::*;
    use crate::hub::tests::cluster;
    use crate::hub::tests::server::{self, PATIENCE};
    use crate::jobs::Jobs;

    fn join(url: &str, prefix: &str, jobs: &Jobs, me: Holder, at: (Option<SocketAddr>, Duration)) -> RedisReplicas {
        let hub = server::connected_as(url, prefix, jobs);
        let joined = RedisReplicas::join(hub.clone(), me, at.0, at.1);
        let arrived = hub.arrives(PATIENCE);
        assert!(tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(arrived)));
        joined
    }

    each_contract_test!({
        let (Some(url), prefix, jobs) = (server::shared_url(), server::prefix(), Jobs::default()) else { return };
        move |me, address, lease| join(&url, &prefix, &jobs, me, (address, lease))
    });

    mod on_a_cluster {
        use super::*;

        each_contract_test!({
            let (Some(url), prefix, jobs) = (cluster::shared_url(), server::prefix(), Jobs::default()) else { return };
            move |me, address, lease| join(&url, &prefix, &jobs, me, (address, lease))
        });
    }
}
