//! Replicas within one process: the one that is alone, and several gateways side by side.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::losses::Losses;
use super::{BUS_DEPTH, KEY_KEPT, LEFT_KEPT, Replicas, Standing};
use crate::clock::{Clock, Timestamp};
use crate::task::{Holder, SessionNumber, StoreError};

/// A process that shares its store with nobody: everybody else is dead, and every session is its own.
#[derive(Debug)]
pub struct Alone {
    me: Holder,
}

impl Alone {
    /// The process of that holder.
    #[must_use]
    pub const fn new(me: Holder) -> Self {
        Self { me }
    }
}

#[async_trait]
impl Replicas for Alone {
    fn me(&self) -> &Holder {
        &self.me
    }

    async fn renew(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn agree(&self, _: &[String]) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn leave(&self) {}

    async fn standing(&self, holder: &Holder) -> Result<Standing, StoreError> {
        Ok(if *holder == self.me { Standing::Alive { address: None } } else { Standing::Over })
    }

    async fn claim_home(&self, _: SessionNumber, _: Option<&Holder>, _: Duration) -> Result<Holder, StoreError> {
        Ok(self.me.clone())
    }

    async fn home_of(&self, _: SessionNumber) -> Result<Option<Holder>, StoreError> {
        Ok(Some(self.me.clone()))
    }

    /// The process itself knows which of its sessions have ended.
    async fn end_session(&self, _: SessionNumber, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn has_ended(&self, _: SessionNumber) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn publish(&self, _: Bytes) {}

    fn subscribe(&self) -> mpsc::Receiver<Bytes> {
        mpsc::channel(1).1
    }
}

/// What gateways side by side share. A cheap handle.
#[derive(Debug, Clone)]
pub struct Neighbourhood {
    shared: Arc<Shared>,
}

/// One of the gateways in a [`Neighbourhood`].
#[derive(Debug)]
pub struct Neighbour {
    me: Holder,
    address: Option<SocketAddr>,
    lease: Duration,
    is_cut_off: Arc<AtomicBool>,
    losses: Losses,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    leases: HashMap<Holder, (Timestamp, Option<SocketAddr>)>,
    left: HashMap<Holder, Timestamp>,
    key: Option<(Timestamp, String)>,
    mark: Option<String>,
    homes: HashMap<SessionNumber, (Timestamp, Holder)>,
    ended: HashMap<SessionNumber, Timestamp>,
    subscribers: Vec<Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    who: Holder,
    is_cut_off: Arc<AtomicBool>,
    messages: mpsc::Sender<Bytes>,
}

impl Neighbourhood {
    /// Nobody is there yet. Leases and notes go by this clock.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { shared: Arc::new(Shared { clock, notes: Mutex::default() }) }
    }

    /// One who shares; its lease begins with the first [`Replicas::renew`].
    #[must_use]
    pub fn join(&self, me: Holder, address: Option<SocketAddr>, lease: Duration) -> Neighbour {
        let (is_cut_off, losses) = (Arc::default(), Losses::default());
        Neighbour { me, address, lease, is_cut_off, losses, shared: Arc::clone(&self.shared) }
    }
}

impl Neighbour {
    /// Whether everything fails for it from now on, as where the network is cut: what it publishes and what is published to
    /// it is lost.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::SeqCst);
    }

    /// All that is shared is lost, as where a server begins again without its data; who listens goes on.
    pub fn forget_all(&self) {
        let mut notes = self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let subscribers = std::mem::take(&mut notes.subscribers);
        *notes = Notes { subscribers, ..Notes::default() };
    }

    fn notes(&self) -> Result<MutexGuard<'_, Notes>, StoreError> {
        if self.is_cut_off.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("cut off".into()));
        }
        let mut notes = self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.shared.clock.now();
        notes.leases.retain(|_, (until, _)| *until > now);
        notes.left.retain(|_, until| *until > now);
        notes.homes.retain(|_, (until, _)| *until > now);
        notes.ended.retain(|_, until| *until > now);
        Ok(notes)
    }

    fn until(&self, keep: Duration) -> Timestamp {
        self.shared.clock.now().plus(keep)
    }
}

#[async_trait]
impl Replicas for Neighbour {
    fn me(&self) -> &Holder {
        &self.me
    }

    async fn renew(&self) -> Result<(), StoreError> {
        let asked = self.losses.ask(self.lease);
        let mut notes = self.notes()?;
        let before = notes.leases.insert(self.me.clone(), (self.until(self.lease), self.address));
        let lost = |mark: &String| mark == asked.mark_of_lease() && before.is_none();
        let mark = notes.mark.take_if(|mark| !lost(mark)).unwrap_or_else(|| self.losses.new_mark(self.me.as_str()));
        notes.mark = Some(mark.clone());
        self.losses.renewed(&asked, &mark);
        Ok(())
    }

    async fn agree(&self, known: &[String]) -> Result<bool, StoreError> {
        let mut notes = self.notes()?;
        let now = self.shared.clock.now();
        let last = notes.key.as_ref().filter(|(until, _)| *until > now).map(|(_, key)| key.clone());
        if last.is_none() || last.as_ref() == known.first() {
            notes.key = known.first().map(|key| (self.until(self.lease * KEY_KEPT), key.clone()));
        }
        Ok(last.is_none_or(|last| known.contains(&last)))
    }

    async fn leave(&self) {
        if let Ok(mut notes) = self.notes() {
            notes.leases.remove(&self.me);
            notes.left.insert(self.me.clone(), self.until(LEFT_KEPT));
        }
    }

    async fn standing(&self, holder: &Holder) -> Result<Standing, StoreError> {
        let asked = self.losses.ask(self.lease);
        let notes = self.notes()?;
        self.losses.see(&asked, notes.mark.as_deref(), notes.leases.contains_key(&self.me));
        Ok(match notes.leases.get(holder) {
            Some((_, address)) => Standing::Alive { address: *address },
            None if notes.left.contains_key(holder) => Standing::Left,
            None => Standing::Over,
        })
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    async fn claim_home(
        &self,
        session: SessionNumber,
        from: Option<&Holder>,
        keep: Duration,
    ) -> Result<Holder, StoreError> {
        let mut notes = self.notes()?;
        match notes.homes.get(&session) {
            Some((_, home)) if Some(home) != from && *home != self.me => return Ok(home.clone()),
            _ => {}
        }
        notes.homes.insert(session, (self.until(keep), self.me.clone()));
        Ok(self.me.clone())
    }

    async fn release_home(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        let mut notes = self.notes()?;
        if notes.homes.get(&session).is_none_or(|(_, home)| *home == self.me) {
            notes.homes.insert(session, (self.until(keep), Holder::nobody()));
        }
        Ok(())
    }

    async fn home_of(&self, session: SessionNumber) -> Result<Option<Holder>, StoreError> {
        Ok(self.notes()?.homes.get(&session).map(|(_, home)| home.clone()))
    }

    async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        let mut notes = self.notes()?;
        notes.homes.remove(&session);
        notes.ended.insert(session, self.until(keep));
        Ok(())
    }

    async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError> {
        Ok(self.notes()?.ended.contains_key(&session))
    }

    async fn publish(&self, message: Bytes) {
        let Ok(mut notes) = self.notes() else { return };
        notes.subscribers.retain(|subscriber| !subscriber.messages.is_closed());
        let hears =
            |subscriber: &&Subscriber| subscriber.who != self.me && !subscriber.is_cut_off.load(Ordering::SeqCst);
        for subscriber in notes.subscribers.iter().filter(hears) {
            // Full is lost: who listens must bear that anyhow.
            drop(subscriber.messages.try_send(message.clone()));
        }
    }

    fn subscribe(&self) -> mpsc::Receiver<Bytes> {
        let (sender, messages) = mpsc::channel(BUS_DEPTH);
        let subscriber =
            Subscriber { who: self.me.clone(), is_cut_off: Arc::clone(&self.is_cut_off), messages: sender };
        self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner).subscribers.push(subscriber);
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{self, each_contract_test};
    use super::*;

    each_contract_test!({
        let neighbourhood = Neighbourhood::new(Clock::system());
        move |me, address, lease| neighbourhood.join(me, address, lease)
    });

    #[tokio::test]
    async fn who_is_cut_off_reaches_nobody_and_is_reached_by_nobody() {
        let neighbourhood = Neighbourhood::new(Clock::system());
        let join = |name: &str| neighbourhood.join(Holder::begin(name), None, Duration::from_secs(60));
        let (a, b) = (join("a"), join("b"));
        let (mut heard_by_a, mut heard_by_b) = (a.subscribe(), b.subscribe());
        b.cut_off(true);
        assert!(matches!(b.renew().await, Err(StoreError::Unavailable(_))));
        a.publish(Bytes::from("1")).await;
        b.publish(Bytes::from("2")).await;
        b.cut_off(false);
        a.publish(Bytes::from("3")).await;
        b.publish(Bytes::from("4")).await;
        assert_eq!(heard_by_a.recv().await.unwrap(), "4");
        assert_eq!(heard_by_b.recv().await.unwrap(), "3");
    }

    #[tokio::test]
    async fn a_loss_is_counted_once_by_each() {
        let neighbourhood = Neighbourhood::new(Clock::system());
        let [a, b] = ["a", "b"].map(|name| neighbourhood.join(Holder::begin(name), None, Duration::from_secs(600)));
        let lose = async |is_mark_lost: bool| {
            if is_mark_lost {
                a.forget_all();
            } else {
                a.notes().unwrap().leases.clear();
            }
        };
        contract::a_loss_is_counted_once([&a, &b], lose).await;
    }

    #[tokio::test]
    async fn who_is_alone_has_every_session_and_hears_nothing() {
        let (me, other) = (Holder::begin("alone"), Holder::begin("alone"));
        let alone = Alone::new(me.clone());
        assert_eq!(alone.standing(&me).await.unwrap(), Standing::Alive { address: None });
        assert_eq!(alone.standing(&other).await.unwrap(), Standing::Over);
        assert_eq!(alone.claim_home(7, None, Duration::from_secs(1)).await.unwrap(), me);
        alone.publish(Bytes::from("1")).await;
        assert_eq!(alone.subscribe().recv().await, None);
    }
}
