//! Replicas that share a Redis: leases and notes of sessions are keys that run out, the bus is a channel.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::{Cmd, FromRedisValue, cmd, from_redis_value};
use tokio::sync::mpsc;

use super::losses::Losses;
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

/// Renews a lease. KEYS: the lease, the mark. ARGV: what it says, for how many milliseconds, with what mark it must be there, a new
/// mark, for how many milliseconds a mark is kept. Gives the mark.
const RENEW: &str = "local mark = redis.call('GET', KEYS[2]) \
    if not mark or (mark == ARGV[3] and redis.call('EXISTS', KEYS[1]) == 0) then mark = ARGV[4] end \
    redis.call('SET', KEYS[2], mark, 'PX', ARGV[5]) \
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
    return mark";

/// Looks at a lease. KEYS: the lease, that of who asks, the mark. Gives what the first says, whether the second is there, the
/// mark.
const STANDING: &str = "return {redis.call('GET', KEYS[1]), redis.call('EXISTS', KEYS[2]), redis.call('GET', KEYS[3])}";

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
    renew: Script,
    standing: Script,
    subscribers: Arc<Subscribers>,
    losses: Losses,
    /// The connection and the count of losses for which the lease was renewed, or is about to be.
    renewed_for: Mutex<(u64, u64)>,
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
        let (renew, standing) = (Script::always(&[RENEW]), Script::new(&[STANDING]));
        let (losses, renewed_for) = (Losses::default(), Mutex::default());
        Self { hub, me, address, lease, channel, claim, note, agree, renew, standing, subscribers, losses, renewed_for }
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

    /// In the slot of the leases.
    fn mark(&self) -> String {
        format!("{{{}}}:mark", self.hub.prefix())
    }

    /// Notes for what the lease is renewed; says whether that is news.
    fn renews_for(&self, what: (u64, u64)) -> bool {
        let mut renewed_for = self.renewed_for.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *renewed_for, what) != what
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
        let (asked, connection) = (self.losses.ask(self.lease), self.hub.connections());
        let (lease, kept) = (millis(self.lease).to_string(), millis(LEFT_KEPT.max(self.lease * KEY_KEPT)).to_string());
        let new_mark = self.losses.new_mark(self.me.as_str());
        let args = [&address, &lease, asked.mark_of_lease(), &new_mark, &kept].map(str::as_bytes);
        let keys = [self.hub.lease(self.me.as_str()), self.mark()];
        let mark = self.hub.call(&self.renew, &keys.each_ref().map(String::as_str), &args).await?;
        let mark: String = from_redis_value(mark).map_err(|_| HubError::Unreadable("a mark"))?;
        self.losses.renewed(&asked, &mark);
        self.renews_for((connection, self.losses.count()));
        Ok(())
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
        let asked = self.losses.ask(self.lease);
        let keys = [self.hub.lease(holder.as_str()), self.hub.lease(self.me.as_str()), self.mark()];
        let standing = self.hub.call(&self.standing, &keys.each_ref().map(String::as_str), &[]).await?;
        let (lease, is_mine_there, mark): (Option<String>, bool, Option<String>) =
            from_redis_value(standing).map_err(|_| HubError::Unreadable("a lease"))?;
        self.losses.see(&asked, mark.as_deref(), is_mine_there);
        if let Some(address) = lease {
            return Ok(Standing::Alive { address: address.parse().ok() });
        }
        let has_left: bool = self.run(cmd("EXISTS").arg(self.left(holder))).await?;
        Ok(if has_left { Standing::Left } else { Standing::Over })
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    async fn shaken(&self) {
        let (mut losses, mut renewals) = (self.losses.subscribe(), self.hub.renewals());
        // Each counts once, so that nothing is renewed again and again where that fails.
        while !self.hub.is_there() || !self.renews_for((self.hub.connections(), self.losses.count())) {
            tokio::select! {
                // It never fails: the sender is here.
                _ = losses.changed() => {}
                () = renewals.next() => {}
            }
        }
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
    use super::super::contract::{self, each_contract_test};
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

    async fn forget(hub: &Hub, keys: &[String]) {
        hub.run(cmd("DEL").arg(keys)).await.unwrap();
    }

    /// A server that begins again without its data, or with old ones, in which leases are over and the mark is there.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_server_has_lost_is_noticed_before_it_is_answered() {
        let (Some(url), jobs, long) = (server::shared_url(), Jobs::default(), Duration::from_secs(600)) else { return };
        for (is_mark_lost, first) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let prefix = server::prefix();
            let both = ["a", "b"].map(|name| join(&url, &prefix, &jobs, Holder::begin(name), (None, long)));
            for one in &both {
                one.renew().await.unwrap();
            }
            let [asks, other] = [&both[0], &both[1]];
            assert!(!asks.standing(other.me()).await.unwrap().is_gone());
            assert_eq!((asks.losses(), other.losses()), (0, 0));
            let hub = asks.hub.clone();
            let mut lost = both.each_ref().map(|one| hub.lease(one.me.as_str())).to_vec();
            lost.extend(is_mark_lost.then(|| asks.mark()));
            forget(&hub, &lost).await;
            // Given one that renews its lease first, or none yet,
            if first == 1 {
                asks.renew().await.unwrap();
            }
            // then whoever is told that the other's is over has been told why, and renews its own.
            assert_eq!(asks.standing(other.me()).await.unwrap(), Standing::Over);
            assert_eq!(asks.losses(), 1);
            if first == 0 {
                asks.shaken().await;
                asks.renew().await.unwrap();
            }
            assert!(!other.standing(asks.me()).await.unwrap().is_gone());
            assert_eq!(other.losses(), 1, "the first to renew has made another mark");
            other.shaken().await;
            other.renew().await.unwrap();
            for one in &both {
                one.renew().await.unwrap();
            }
            assert!(!asks.standing(other.me()).await.unwrap().is_gone());
            assert_eq!((asks.losses(), other.losses()), (1, 1));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_loss_is_counted_once_by_each() {
        let (Some(url), prefix, jobs) = (server::shared_url(), server::prefix(), Jobs::default()) else { return };
        let long = Duration::from_secs(600);
        let [a, b] = ["a", "b"].map(|name| join(&url, &prefix, &jobs, Holder::begin(name), (None, long)));
        let lose = async |is_mark_lost: bool| {
            let mut lost = [&a, &b].map(|one| one.hub.lease(one.me.as_str())).to_vec();
            lost.extend(is_mark_lost.then(|| a.mark()));
            forget(&a.hub, &lost).await;
        };
        contract::a_loss_is_counted_once([&a, &b], lose).await;
    }

    /// Nothing was lost there.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lease_that_ran_out_is_no_loss() {
        let (Some(url), prefix, jobs) = (server::shared_url(), server::prefix(), Jobs::default()) else { return };
        let short = join(&url, &prefix, &jobs, Holder::begin("a"), (None, Duration::from_millis(50)));
        let long = join(&url, &prefix, &jobs, Holder::begin("b"), (None, Duration::from_secs(600)));
        long.renew().await.unwrap();
        for _ in 0..3 {
            short.renew().await.unwrap();
            while long.standing(short.me()).await.unwrap() != Standing::Over {}
            assert!(!short.standing(long.me()).await.unwrap().is_gone());
        }
        short.renew().await.unwrap();
        assert_eq!((short.losses(), long.losses()), (0, 0));
    }

    mod on_a_cluster {
        use super::*;

        each_contract_test!({
            let (Some(url), prefix, jobs) = (cluster::shared_url(), server::prefix(), Jobs::default()) else { return };
            move |me, address, lease| join(&url, &prefix, &jobs, me, (address, lease))
        });
    }
}
