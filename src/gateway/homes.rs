//! Whose home a session is, where several processes share a store: all that goes on in a session goes on in one of them.
//!
//! The home is who made the session, as its id says, while that process lives; after it, whoever claims the session in what
//! the processes share. A request that lands elsewhere is passed on to the home. Where the home can't be connected to,
//! nothing was sent, and this process stands in for it with what the id says; only a conversation with a process that the
//! home has started can't be had from elsewhere.

mod alone;
pub(super) mod bus;
mod cache;
mod lease;
mod leaving;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::jsonrpc::{Message, string_value};
use crate::mcp::may_hold;
use crate::replica::{Replicas, Standing};
use crate::task::{Holder, SessionNumber, StoreError};
use crate::tenant::Principal;

use super::call::VersionHeader;
use super::front::{listed_at, parked_at};
use super::params::Params;
use super::rejection::Kind;
use super::session::{Sealed, Session};
use super::{Gateway, Route};
use cache::Cache;
pub use lease::Among;
use leaving::Leave;

/// How long after it was made a session can be claimed by another process; so long is kept who claimed it, and that it has
/// ended.
const CLAIMABLE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often a claim is renewed.
const CLAIM_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// As often is asked again whose home a session is, when others are always faster.
const MOST_TRIES: usize = 4;

/// What makes a process one of several.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// The others.
    pub replicas: Arc<dyn Replicas>,
    /// How long the others wait before they take over.
    pub lease: Duration,
    /// Where the others reach this one; `None`: sessions are served wherever their requests land.
    pub address: Option<SocketAddr>,
}

/// So long a replica may need to notice that what all share is back.
const LONGEST_RECONNECT: Duration = Duration::from_secs(2);

/// The homes of sessions, as this process knows them.
#[derive(Debug)]
pub(super) struct Homes {
    pub(super) sharing: Sharing,
    cache: Cache,
    /// How often this process's lease has lapsed: others may have claimed its sessions then.
    lapses: AtomicU64,
    patience: Mutex<Patience>,
    /// The last renewal of this process's lease has failed: others' may have, too.
    is_failing: AtomicBool,
    begun: Instant,
    /// When the renewal was asked for that was the last to succeed, in milliseconds after `begun`, and one; 0: none has.
    renewed: AtomicU64,
    leave: Leave,
}

/// How long nobody is taken for dead.
#[derive(Debug)]
struct Patience {
    /// When others may be again.
    until: Instant,
    /// For so many losses of what all share they have had the time to renew their leases.
    losses: u64,
    /// When what was lost of claims has been told again.
    told: Instant,
}

/// What of a request decides where it is served.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// The endpoint it came to.
    pub route: &'a Route,
    /// Whose it is.
    pub principal: &'a Principal,
    /// What the version header says.
    pub version: &'a VersionHeader,
    /// The session id, as it was sent.
    pub session: Option<&'a str>,
    /// The whole body.
    pub body: &'a [u8],
    /// Who was asked in vain.
    pub tried: &'a [Holder],
}

/// Where a request is served.
#[derive(Debug)]
pub enum Place {
    /// By this process.
    Here,
    /// By another one.
    There(Elsewhere),
}

/// Another process.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    /// Who it is.
    pub holder: Holder,
    /// Where it takes requests of this one.
    pub address: SocketAddr,
    /// Cancelled when its lease is over.
    pub gone: CancellationToken,
    /// To be kept until the request has come to it.
    _on_the_way: TaskTrackerToken,
}

impl Homes {
    pub(super) fn new(sharing: Sharing) -> Self {
        // A death is known to all within two leases, and nobody asks about one session more than thrice in one.
        let cache = Cache::new(sharing.lease / 3);
        let begun = Instant::now();
        let patience =
            Mutex::new(Patience { until: begun + sharing.lease, losses: sharing.replicas.losses(), told: begun });
        let (lapses, renewed) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_failing = AtomicBool::new(false);
        Self { sharing, cache, lapses, patience, is_failing, begun, renewed, leave: Leave::default() }
    }

    /// Has everybody time to renew their lease: what all share was away, and may have been for them as well.
    fn have_patience(&self) {
        self.patience().until = Instant::now() + self.sharing.lease + LONGEST_RECONNECT;
    }

    fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a lease that is over means that its holder is gone. Not while this process's own is in doubt, nor before the
    /// others have had the time to renew theirs after that, or after all leases were lost.
    fn may_bury(&self) -> bool {
        let believes = Instant::now() >= self.patience_now().until;
        believes && self.is_leased() && !self.is_failing.load(Ordering::Acquire)
    }

    /// With what was found to be lost by now.
    fn patience_now(&self) -> MutexGuard<'_, Patience> {
        let losses = self.replicas().losses();
        let mut patience = self.patience();
        if losses != patience.losses {
            let until = Instant::now() + self.sharing.lease + LONGEST_RECONNECT;
            *patience = Patience { until, losses, told: until };
        }
        patience
    }

    /// Whether a session of that holder's that nobody has claimed, as it seems, was not claimed by somebody whose note was lost.
    /// That the holder is gone may be remembered since before.
    async fn may_claim(&self, from: &Holder) -> Result<bool, StoreError> {
        // Whatever it is now, what was lost shows with it.
        self.replicas().standing(from).await?;
        Ok(Instant::now() >= self.patience_now().told)
    }

    /// Whether a holder of that standing is gone for sure.
    fn is_gone(&self, standing: Standing) -> bool {
        standing == Standing::Left || (standing == Standing::Over && self.may_bury())
    }

    /// Notes how a holder stands.
    fn note_standing(&self, holder: &Holder, standing: Standing) {
        self.cache.note_standing(holder, standing, self.is_gone(standing));
    }

    /// Notes that a renewal has failed.
    fn note_failed(&self) {
        self.is_failing.store(true, Ordering::Release);
    }

    /// Notes that a renewal that was asked for then has succeeded.
    fn note_renewed(&self, asked: Instant) {
        if self.is_failing.load(Ordering::Acquire) {
            self.have_patience();
            self.is_failing.store(false, Ordering::Release);
        }
        let after = asked.saturating_duration_since(self.begun).as_millis();
        self.renewed.store(u64::try_from(after).unwrap_or(0) + 1, Ordering::Relaxed);
    }

    /// Whether this process's lease runs for sure: nobody can have claimed a session of its.
    fn is_leased(&self) -> bool {
        let Some(renewed) = self.renewed.load(Ordering::Relaxed).checked_sub(1) else { return false };
        self.begun.elapsed() < Duration::from_millis(renewed) + self.sharing.lease
    }

    fn replicas(&self) -> &dyn Replicas {
        &*self.sharing.replicas
    }

    fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Relaxed)
    }

    /// Whose home a session is; `None`: it has ended.
    async fn home_of(&self, sealed: &Sealed) -> Result<Option<Holder>, StoreError> {
        if let Some(home) = self.cache.home(sealed.number) {
            return Ok(Some(home));
        }
        if self.replicas().has_ended(sealed.number).await? {
            return Ok(None);
        }
        let claimed = self.replicas().home_of(sealed.number).await?;
        let home = claimed.or_else(|| sealed.maker.clone()).unwrap_or_else(Holder::nobody);
        self.cache.note_home(sealed.number, &home);
        Ok(Some(home))
    }

    /// Whether that holder is the home of a session, as far as can be told.
    async fn is_home(&self, holder: &Holder, sealed: &Sealed) -> bool {
        let home = self.home_of(sealed).await.ok().flatten();
        home.or_else(|| self.cache.last_home(sealed.number)).or_else(|| sealed.maker.clone()).as_ref() == Some(holder)
    }

    async fn standing(&self, holder: &Holder) -> Result<Standing, StoreError> {
        if *holder == Holder::nobody() || self.cache.is_closing(holder) {
            return Ok(Standing::Left);
        }
        if let Some(standing) = self.cache.standing(holder) {
            return Ok(standing);
        }
        let standing = self.replicas().standing(holder).await?;
        self.note_standing(holder, standing);
        Ok(standing)
    }

    fn elsewhere(&self, holder: Holder, address: SocketAddr) -> Place {
        let (gone, on_the_way) = (self.cache.gone(&holder), self.cache.on_the_way(&holder));
        Place::There(Elsewhere { holder, address, gone, _on_the_way: on_the_way })
    }
}

/// Why a session has no place.
enum NoPlace {
    /// It is answered so.
    Refused(Kind),
    /// Whose home it is can't be known: the store failed.
    Unknown(StoreError),
}

impl From<Kind> for NoPlace {
    fn from(kind: Kind) -> Self {
        Self::Refused(kind)
    }
}

impl From<StoreError> for NoPlace {
    fn from(error: StoreError) -> Self {
        Self::Unknown(error)
    }
}

impl From<NoPlace> for Kind {
    fn from(why: NoPlace) -> Self {
        match why {
            NoPlace::Refused(kind) => kind,
            NoPlace::Unknown(error) => error.into(),
        }
    }
}

impl Gateway {
    /// Whether it has to be asked before each request where that is to be served.
    #[must_use]
    pub fn has_places(&self) -> bool {
        self.homes.is_some() || self.endings.is_some()
    }

    /// Where a request is to be served. A session that is to be served here from now on is known when this returns.
    ///
    /// # Errors
    /// [`Fault::Store`](super::rejection::Fault::Store) where that can't be known; [`Kind::Away`] where only a process could serve it that can't be reached.
    pub async fn place(&self, asking: &Asking<'_>) -> Result<Place, Kind> {
        let Some(homes) = &self.homes else { return self.place_alone(asking).await };
        if asking.version.is_modern() {
            return self.place_of_stateless(homes, asking).await;
        }
        let Some(token) = asking.session else { return Ok(homes.place_of_new(asking.tried).await) };
        let known = self.sessions.known(token);
        if known.as_ref().is_some_and(|session| homes.is_settled(session)) {
            return Ok(Place::Here);
        }
        // What is not theirs is nobody's home to them, and answered as such.
        let sealed = self.sessions.open(token).filter(|sealed| sealed.terms.are_of(asking.route, asking.principal));
        let Some(sealed) = sealed else { return Ok(Place::Here) };
        if known.is_some() && !homes.is_leased() {
            // Another may have claimed it since that was noted.
            homes.cache.forget_home(sealed.number);
        }
        match self.place_of_session(homes, asking, token, &sealed, known.as_ref()).await {
            // What this process holds goes on without the store.
            Err(NoPlace::Unknown(_)) if known.is_some() => Ok(Place::Here),
            Err(NoPlace::Unknown(error)) => homes.remembered(&sealed).ok_or_else(|| error.into()),
            placed => Ok(placed?),
        }
    }

    /// The same when what was known of it proved wrong, as somebody may have said who was asked for it.
    ///
    /// # Errors
    /// As [`Gateway::place`].
    pub async fn place_anew(&self, asking: &Asking<'_>) -> Result<Place, Kind> {
        let Some(homes) = &self.homes else { return self.place(asking).await };
        if let Some(sealed) = asking.session.and_then(|token| self.sessions.open(token)) {
            homes.cache.forget_home(sealed.number);
        }
        if let Some(last) = asking.tried.last() {
            homes.cache.forget_standing(last);
        }
        self.place(asking).await
    }

    /// Where a request is served whose place could not be connected to: nothing was sent to it. It is among those that were
    /// tried.
    ///
    /// # Errors
    /// [`Kind::Away`] where only that process could serve it.
    pub async fn place_without(&self, asking: &Asking<'_>, elsewhere: &Elsewhere) -> Result<Place, Kind> {
        let Some(homes) = &self.homes else { return Ok(Place::Here) };
        homes.cache.forget_standing(&elsewhere.holder);
        homes.cache.note_unreachable(&elsewhere.holder);
        let sealed = asking
            .session
            .filter(|_| !asking.version.is_modern())
            .and_then(|token| Some((token, self.sessions.open(token)?)));
        // A retry finds nobody who waits for it; what is new may begin at yet another.
        let Some((token, sealed)) = sealed else { return Ok(homes.place_of_new(asking.tried).await) };
        match homes.standing(&elsewhere.holder).await {
            Ok(Standing::Alive { .. }) | Err(_) if homes.is_home(&elsewhere.holder, &sealed).await => {
                self.stand_in(homes, asking.route, token, sealed)
            }
            Ok(_) => {
                let known = self.sessions.known(token);
                Ok(self.place_of_session(homes, asking, token, &sealed, known.as_ref()).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// By the home's standing.
    async fn place_of_session(
        &self,
        homes: &Homes,
        asking: &Asking<'_>,
        token: &str,
        sealed: &Sealed,
        known: Option<&Arc<Session>>,
    ) -> Result<Place, NoPlace> {
        let route = asking.route;
        let (me, lapses) = (homes.replicas().me(), homes.lapses());
        let (mut known, mut is_claimed) = (known.cloned(), false);
        let Some(mut home) = homes.home_of(sealed).await? else {
            known.iter().for_each(|session| self.sessions.forget(session));
            return Ok(Place::Here);
        };
        for _ in 0..MOST_TRIES {
            if home == *me {
                if let Some(place) = self.hand_over(homes, asking, sealed, known.as_ref()).await? {
                    return Ok(place);
                }
                let is_made_here = sealed.maker.as_ref() == Some(me);
                // Whatever it made and no longer knows has ended, unless another one had it meanwhile.
                let may_adopt = !is_made_here || is_claimed;
                let adopted = || may_adopt.then(|| self.sessions.adopt(sealed.clone(), token, route)).flatten();
                if let Some(session) = known.or_else(adopted) {
                    // One that was given away may be back, when nobody else is there.
                    if may_adopt || session.is_elsewhere() {
                        session.claimed_at(self.clock.now());
                    }
                    session.confirm(lapses);
                }
                return Ok(Place::Here);
            }
            if let Some(session) = known.take_if(|session| !session.is_elsewhere()) {
                // It was claimed while the lease of this process had lapsed.
                self.sessions.forget(&session);
            }
            match homes.standing(&home).await? {
                Standing::Alive { address: Some(address) } => return Ok(homes.elsewhere(home, address)),
                Standing::Alive { address: None } => return Ok(self.stand_in(homes, route, token, sealed.clone())?),
                // Perhaps it only could not tell, as this process could not.
                Standing::Over if !homes.may_bury() => match homes.replicas().home_of(sealed.number).await? {
                    Some(claimed) if claimed != home => {
                        homes.cache.note_home(sealed.number, &claimed);
                        home = claimed;
                    }
                    _ => return Ok(self.stand_in(homes, route, token, sealed.clone())?),
                },
                // It went with its process, and the answer says so.
                Standing::Left | Standing::Over if sealed.terms.is_bound(route) => return Ok(Place::Here),
                Standing::Left | Standing::Over if self.clock.now().since(sealed.issued) > CLAIMABLE => {
                    return Ok(Place::Here);
                }
                Standing::Left | Standing::Over => match homes.place_of_new(asking.tried).await {
                    Place::Here if !homes.may_claim(&home).await? => {
                        return Ok(self.stand_in(homes, route, token, sealed.clone())?);
                    }
                    Place::Here => {
                        home = self.claim_home(homes, sealed.number, &home).await?;
                        is_claimed = home == *me;
                    }
                    there @ Place::There(_) => return Ok(there),
                },
            }
            if home == *me && homes.replicas().has_ended(sealed.number).await? {
                homes.cache.forget_home(sealed.number);
                return Ok(Place::Here);
            }
        }
        Err(Kind::Away(homes.sharing.lease).into())
    }

    async fn claim_home(&self, homes: &Homes, number: SessionNumber, from: &Holder) -> Result<Holder, StoreError> {
        let home = homes.replicas().claim_home(number, Some(from), CLAIMABLE).await?;
        homes.cache.note_home(number, &home);
        if home == *homes.replicas().me() {
            let from = (*from != Holder::nobody()).then(|| from.as_str());
            tracing::info!(from, "a session of a replica that is gone, or is about to go, goes on here");
        }
        Ok(home)
    }

    /// Serves a session whose home is elsewhere with what its id says.
    fn stand_in(&self, homes: &Homes, route: &Route, token: &str, sealed: Sealed) -> Result<Place, Kind> {
        if sealed.terms.is_bound(route) {
            return Err(Kind::Away(homes.sharing.lease));
        }
        if self.sessions.known(token).is_none()
            && let Some(session) = self.sessions.adopt(sealed, token, route)
        {
            session.give_away();
        }
        Ok(Place::Here)
    }

    /// A retry is served where its call waits, and the next page of a list where the session is that the last one was of.
    async fn place_of_stateless(&self, homes: &Homes, asking: &Asking<'_>) -> Result<Place, Kind> {
        let Some(holder) = self.holder_named(asking.body) else {
            return Ok(homes.place_of_new(asking.tried).await);
        };
        if holder == *homes.replicas().me() {
            return Ok(Place::Here);
        }
        match homes.standing(&holder).await {
            Ok(Standing::Alive { address: Some(address) }) => Ok(homes.elsewhere(holder, address)),
            // The call is not there any more, or nobody gets to it.
            Ok(Standing::Alive { address: None } | Standing::Left | Standing::Over) => Ok(Place::Here),
            Err(error) => match homes.cache.last_standing(&holder) {
                Some(Standing::Alive { address: Some(address) }) => Ok(homes.elsewhere(holder, address)),
                _ => Err(error.into()),
            },
        }
    }

    /// Which process a request of the stateless era says that it goes on from.
    fn holder_named(&self, body: &[u8]) -> Option<Holder> {
        // Most requests have neither, and are not parsed here.
        if !may_hold(body, "requestState") && !may_hold(body, "\"cursor\"") {
            return None;
        }
        let Ok(Message::Request { params: Some(params), .. }) = Message::parse(body) else { return None };
        let params = Params::read(params).ok()?;
        let state = params.request_state.and_then(|state| string_value(state.get()));
        let parked = state.and_then(|state| parked_at(&self.sealer, &state));
        parked.or_else(|| {
            let cursor = params.cursor.and_then(|cursor| string_value(cursor.get()))?;
            listed_at(&self.sealer, &cursor)
        })
    }

    /// Who has the calls that wait for their clients here, where that may be another process.
    pub(super) fn home_of_calls(&self) -> Option<&Holder> {
        self.homes.as_ref().map(|homes| homes.replicas().me())
    }

    /// Tells all processes that a session has ended.
    pub(super) fn tell_ended(&self, session: &Session) {
        let Some(homes) = self.homes.clone() else { return self.note_ended(session) };
        let Some(sealed) = self.sessions.open(&session.token) else { return };
        let left = CLAIMABLE.saturating_sub(self.clock.now().since(sealed.issued));
        let (number, pause, stopping) = (sealed.number, homes.sharing.lease / 3, self.jobs.stopping().clone());
        homes.cache.forget_home(number);
        self.jobs.spawn("end of a session", async move {
            homes.tell(&bus::Message::ended(number)).await;
            // Until then another could take it up; after so long no id of it is good.
            while !left.is_zero() && homes.replicas().end_session(number, left).await.is_err() {
                if stopping.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
            }
        });
    }
}

impl Homes {
    /// Tells the other processes something.
    async fn tell(&self, message: &bus::Message) {
        match serde_json::to_vec(message) {
            Ok(text) => self.replicas().publish(text.into()).await,
            Err(error) => tracing::error!(%error, "a message for other replicas can't be written"),
        }
    }

    async fn tell_alive(&self) {
        self.tell(&bus::Message::Alive { from: self.replicas().me().to_string() }).await;
    }

    /// Where a session was served last, as far as this process remembers.
    fn remembered(&self, sealed: &Sealed) -> Option<Place> {
        let home = self.cache.last_home(sealed.number).or_else(|| sealed.maker.clone())?;
        match self.cache.last_standing(&home)? {
            Standing::Alive { address: Some(address) } => Some(self.elsewhere(home, address)),
            Standing::Alive { address: None } | Standing::Left | Standing::Over => None,
        }
    }
}
