//! The sessions that clients hold: what a sealed session id says, and what happens on a session right now.
//!
//! The id carries all that outlives a restart; the table here keeps only what is alive. A session is one client's,
//! with one upstream session of its own behind it.

mod home;
mod room;
mod token;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dashmap::{DashMap, DashSet};
use futures_util::task::AtomicWaker;
use tokio::sync::{RwLock, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::{Clock, Timestamp};
use crate::jsonrpc::Id;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;
use crate::metrics::{Counted, RouteMetrics};
use crate::seal::{MAX_PLAIN, Purpose, Sealer};
use crate::task::{Holder, Owner, SessionNumber, TaskId};
use crate::tenant::Principal;
use crate::upstream::SessionKey;

use super::{Route, bridge};
use home::HomeState;
pub use room::{NoRoom, Room};
use room::{Rooms, Share};
pub(super) use token::Sealed;

/// The number of a conversation that nothing belongs to; no drawn one is that.
const UNNUMBERED: SessionNumber = 0;
/// Questions of a server without sessions that are remembered, so that nobody else answers them.
const MOST_ASKED: usize = 256;
/// So much may wait for a slow reader of a stream.
const WAITING_BYTES: usize = 1024 * 1024;

/// How sessions live.
#[derive(Debug, Clone)]
pub struct Config {
    /// After how long without a request, an open stream or an unfinished task a session is ended.
    pub idle: Duration,
    /// How many there may be.
    pub max: usize,
}

/// What `initialize` settled.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The route's name.
    pub route: Arc<str>,
    /// [`Principal::digest`] of the one whose session it is.
    pub principal: [u8; 16],
    /// The version spoken with the client.
    pub version: ProtocolVersion,
    /// The conversation behind it.
    pub upstream: SessionKey,
    /// What the client can answer.
    pub client: ClientCapabilities,
}

impl Terms {
    /// Whether they were settled with that caller on that route.
    pub(super) fn are_of(&self, route: &Route, principal: &Principal) -> bool {
        self.route == route.name && self.principal == principal.digest()
    }

    /// Whether the conversation behind them ends with the process that opened it.
    pub(super) fn is_bound(&self, route: &Route) -> bool {
        self.upstream.version.has_sessions() && route.upstream.binds_sessions()
    }
}

/// One client's session.
#[derive(Debug)]
pub struct Session {
    /// Its number, unguessable.
    pub number: SessionNumber,
    /// What was settled for it.
    pub terms: Terms,
    /// The sealed id.
    pub token: Arc<str>,
    /// Cancelled when the session has ended.
    pub ended: CancellationToken,
    /// See [`Session::exclusive`].
    exclusive: OnceLock<Arc<RwLock<()>>>,
    /// What is kept here because the server keeps nothing.
    pub(super) bridge: bridge::State,
    last_seen: AtomicU64,
    open_streams: AtomicUsize,
    live: Mutex<Live>,
    home: HomeState,
    _counted: Option<Counted>,
    _share: Option<Share>,
}

/// What goes on in a session at this moment.
#[derive(Debug, Default)]
pub struct Live {
    /// Plain calls in flight and those that wait for their place.
    pub plain: Vec<Plain>,
    /// Calls that the upstream has seen and that messages are told apart for, by their ids upstream.
    pub held: HashMap<Id, Held>,
    /// Unfinished tasks, those in the queue included.
    pub unfinished: usize,
    /// Blocked `tasks/result` requests.
    pub waits: Vec<(Id, CancellationToken)>,
    /// Open GET streams, oldest first.
    pub streams: Vec<Stream>,
    /// Stops the job that reads the upstream's standalone stream, while there is one.
    pub listener: Option<CancellationToken>,
    /// The upstream has no standalone stream.
    pub listening_refused: bool,
    /// What a server without sessions has asked this client, oldest first.
    asked: VecDeque<Id>,
}

impl Live {
    /// The tasks whose calls are held here, with their owners.
    #[must_use]
    pub fn owners(&self) -> Vec<(TaskId, Arc<Owner>)> {
        self.held.values().filter_map(|held| held.task.clone()).collect()
    }
}

/// A plain call as the session knows it.
#[derive(Debug)]
pub struct Plain {
    /// The client's id.
    pub id: Id,
    /// The id upstream.
    pub upstream_id: Id,
    /// How far it is.
    pub flag: Arc<CancelFlag>,
}

/// A held call as the session knows it.
#[derive(Debug, Clone)]
pub struct Held {
    /// The task that it is held for, and whose that is.
    pub task: Option<(TaskId, Arc<Owner>)>,
    /// Its progress token upstream, as JSON text; the same as its request id.
    pub token: Box<str>,
    /// Takes messages for it that arrive elsewhere than on its own stream.
    pub side: mpsc::Sender<Bytes>,
}

/// One of a client's streams.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Its number within the gateway.
    pub number: u64,
    /// Takes events, ready to be sent.
    pub events: mpsc::Sender<Bytes>,
    /// Bytes that its reader has not taken yet.
    pub waiting: Arc<AtomicUsize>,
    /// Its last event has been sent or is about to be.
    pub over: Arc<Mutex<bool>>,
}

impl Stream {
    /// Gives an event to the stream. One whose reader is too slow does not take it: notifications may be lost, memory
    /// may not.
    #[must_use]
    pub fn offer(&self, event: &Bytes) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever the size, one event always has room.
        if *over || self.waiting.load(Ordering::Relaxed) > WAITING_BYTES {
            return false;
        }
        let Ok(room) = self.events.try_reserve() else { return false };
        self.waiting.fetch_add(event.len(), Ordering::Relaxed);
        room.send(event.clone());
        drop(over);
        true
    }

    /// Sends the last event: nothing that others offer comes after it.
    pub async fn finish(&self, event: Bytes) -> bool {
        self.ends();
        self.send(event).await
    }

    /// Sends a part of the last event, as soon as its reader has taken all before it.
    pub async fn send_alone(&self, part: Bytes) -> bool {
        let Ok(mut room) = self.events.reserve_many(self.events.max_capacity()).await else { return false };
        self.waiting.fetch_add(part.len(), Ordering::Relaxed);
        room.next().is_some_and(|room| {
            room.send(part);
            true
        })
    }

    /// From now on nothing that others offer comes.
    pub fn ends(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Waits for room for an event that must not be lost; says whether anybody will read it.
    pub async fn send(&self, event: Bytes) -> bool {
        let Ok(room) = self.events.reserve().await else { return false };
        self.waiting.fetch_add(event.len(), Ordering::Relaxed);
        room.send(event);
        true
    }
}

/// Says to a waiting body that its request was cancelled, and to others how far it is.
#[derive(Debug, Default)]
pub struct CancelFlag {
    set: AtomicBool,
    dispatched: AtomicBool,
    unwanted: AtomicBool,
    waker: AtomicWaker,
}

impl CancelFlag {
    /// Cancels.
    pub fn cancel(&self) {
        self.set.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Notes that the client has cancelled, before the upstream hears of it: what comes of the request from now on is not
    /// told.
    pub fn disown(&self) {
        self.unwanted.store(true, Ordering::Release);
    }

    /// Whether the client wants no answer any more.
    pub fn is_unwanted(&self) -> bool {
        self.unwanted.load(Ordering::Acquire)
    }

    /// Notes that the upstream may see the request from now on, and so may ask because of it.
    pub fn dispatch(&self) {
        self.dispatched.store(true, Ordering::Release);
    }

    /// Whether the upstream may have seen the request.
    pub fn is_dispatched(&self) -> bool {
        self.dispatched.load(Ordering::Acquire)
    }

    /// Whether it was cancelled; if not, the job that asks is woken when it is.
    pub fn poll(&self, cx: &std::task::Context<'_>) -> bool {
        self.waker.register(cx.waker());
        self.set.load(Ordering::Acquire)
    }
}

impl Session {
    /// Notes that this client was asked something by a server that can't tell its clients apart.
    pub(super) fn note_asked(&self, id: &Id) {
        if self.terms.upstream.id.is_some() {
            return;
        }
        let asked = &mut self.live().asked;
        if asked.len() == MOST_ASKED {
            asked.pop_front();
        }
        asked.push_back(id.clone());
    }

    /// Whether an answer to that question may come from this client: where the server knows its sessions, it says so
    /// itself.
    pub(super) fn may_answer(&self, id: Option<&Id>) -> bool {
        self.terms.upstream.id.is_some() || id.is_none_or(|id| self.live().asked.contains(id))
    }

    fn new(number: SessionNumber, token: Arc<str>, terms: Terms, now: Timestamp, counted: Option<Counted>) -> Self {
        Self {
            number,
            terms,
            token,
            ended: CancellationToken::new(),
            exclusive: OnceLock::new(),
            bridge: bridge::State::default(),
            last_seen: AtomicU64::new(now.as_millis()),
            open_streams: AtomicUsize::new(0),
            live: Mutex::default(),
            home: HomeState::default(),
            _counted: counted,
            _share: None,
        }
    }

    /// What goes on in it. Held only for a few instructions.
    pub fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shared by calls, alone for those of exclusive tools. Made when the first asks, since most routes have no such tool.
    pub fn exclusive(&self) -> Arc<RwLock<()>> {
        Arc::clone(self.exclusive.get_or_init(Arc::default))
    }

    /// Whether tools have run in it of which some must be alone.
    pub(super) fn has_exclusive(&self) -> bool {
        self.exclusive.get().is_some()
    }

    /// Whether no client holds an id of it (see [`Sessions::unlisted`]).
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        self.token.is_empty()
    }

    /// Ends a session that is in no table: nothing is read for it any more.
    pub fn end_unlisted(&self) {
        self.ended.cancel();
        self.live().listener.take().iter().for_each(CancellationToken::cancel);
    }

    /// Notes that the client is there.
    pub fn touch(&self, now: Timestamp) {
        self.last_seen.fetch_max(now.as_millis(), Ordering::Relaxed);
    }

    /// Keeps the session from being idle while a stream is open.
    #[must_use]
    pub fn open_stream(self: &Arc<Self>, clock: Clock) -> OpenStream {
        self.open_streams.fetch_add(1, Ordering::Relaxed);
        OpenStream { session: Arc::clone(self), clock }
    }

    /// Whether it was not used for so long, and nothing goes on in it.
    pub(super) fn is_idle(&self, now: Timestamp, idle: Duration) -> bool {
        let seen = Timestamp::from_millis(self.last_seen.load(Ordering::Relaxed));
        if now.since(seen) < idle || self.open_streams.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let live = self.live();
        live.unfinished == 0 && live.plain.is_empty() && live.waits.is_empty()
    }
}

/// An open stream of a session; dropping it closes it.
#[derive(Debug)]
pub struct OpenStream {
    session: Arc<Session>,
    clock: Clock,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.session.touch(self.clock.now());
        self.session.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every session that is alive here.
#[derive(Debug)]
pub struct Sessions {
    config: Config,
    sealer: Arc<Sealer>,
    clock: Clock,
    /// Sessions older than this process may be taken up again by their token.
    started: Timestamp,
    rooms: Rooms,
    by_token: DashMap<Arc<str>, Arc<Session>>,
    by_number: DashMap<SessionNumber, Arc<Session>>,
    /// Taken-up sessions that have ended: their tokens would open again.
    ended_here: DashSet<SessionNumber>,
    /// Who this process is, where sessions have homes: then they are taken up only by [`Sessions::adopt`].
    home: Option<Holder>,
}

impl Sessions {
    /// An empty table.
    #[must_use]
    pub fn new(config: Config, sealer: Arc<Sealer>, clock: Clock) -> Self {
        Self {
            config,
            sealer,
            clock,
            started: clock.now(),
            rooms: Rooms::default(),
            by_token: DashMap::new(),
            by_number: DashMap::new(),
            ended_here: DashSet::new(),
            home: None,
        }
    }

    /// The same, for a process that is one of several.
    #[must_use]
    pub fn at_home(self, home: Option<Holder>) -> Self {
        Self { home, ..self }
    }

    /// Takes room for a session that is to be opened, so that not more upstream sessions are opened than may be. A caller's own
    /// session is also one of its tenant's.
    ///
    /// # Errors
    /// [`NoRoom::Full`], [`NoRoom::Share`]
    pub fn reserve(&self, principal: Option<&Principal>) -> Result<Room, NoRoom> {
        self.rooms.reserve(self.by_number.len(), self.config.max, principal)
    }

    /// Makes a session where there is room.
    ///
    /// # Errors
    /// [`NoRoom::TooLong`]; the caller ends the upstream's session then.
    pub fn create(&self, mut room: Room, terms: Terms, metrics: &RouteMetrics) -> Result<Arc<Session>, NoRoom> {
        let number = Uuid::new_v4().as_u128();
        let now = self.clock.now();
        let plain = token::encode(number, now, self.home.as_ref(), &terms);
        if plain.len() > MAX_PLAIN {
            return Err(NoRoom::TooLong);
        }
        let token = self.sealer.seal(Purpose::Session, &plain);
        let session = self.insert(number, token.into(), terms, (metrics.session(), room.take_share()));
        drop(room);
        Ok(session)
    }

    /// A conversation that no client holds an id of: it is in no table, and lasts as long as whoever has it.
    #[must_use]
    pub fn unlisted(&self, terms: Terms, counted: Option<Counted>) -> Arc<Session> {
        let number = Uuid::new_v4().as_u128();
        Arc::new(Session::new(number, Arc::default(), terms, self.clock.now(), counted))
    }

    /// The same for a call that passes as it is: nothing ever asks for its number, so that it is drawn for none.
    #[must_use]
    pub fn passing(&self, terms: Terms) -> Arc<Session> {
        Arc::new(Session::new(UNNUMBERED, Arc::default(), terms, self.clock.now(), None))
    }

    /// The session of that id, if it is alive and that caller's on that route. Anything else is the same nothing.
    #[must_use]
    pub fn find(&self, token: &str, route: &Route, principal: &Principal) -> Option<Arc<Session>> {
        let session = match self.by_token.get(token) {
            Some(session) => Arc::clone(&session),
            None => self.take_up(token, route, principal)?,
        };
        if !session.terms.are_of(route, principal) || session.ended.is_cancelled() {
            return None;
        }
        session.touch(self.clock.now());
        Some(session)
    }

    /// A session by its number, while it is alive.
    #[must_use]
    pub fn by_number(&self, number: SessionNumber) -> Option<Arc<Session>> {
        self.by_number.get(&number).map(|session| Arc::clone(&session))
    }

    /// Ends a session: its streams close, its id is unknown from now on. Says whether this call ended it.
    pub fn end(&self, session: &Session) -> bool {
        if session.is_unlisted() {
            // Whoever has it ends it upstream, when they let go of it.
            session.end_unlisted();
            return false;
        }
        if self.by_number.remove(&session.number).is_none() {
            return false;
        }
        self.by_token.remove(&session.token);
        if !session.is_elsewhere()
            && let Some(sealed) = self.open(&session.token)
            && (sealed.issued < self.started || sealed.maker != self.home)
        {
            self.ended_here.insert(session.number);
        }
        session.ended.cancel();
        let mut live = session.live();
        live.streams.clear();
        if live.unfinished == 0 {
            live.listener.take().iter().for_each(CancellationToken::cancel);
        }
        true
    }

    /// Sessions that nobody has used for so long that they are to be ended.
    #[must_use]
    pub fn idle(&self) -> Vec<Arc<Session>> {
        let now = self.clock.now();
        let idle = |session: &Arc<Session>| session.is_idle(now, self.config.idle);
        self.by_number.iter().filter(|entry| idle(entry.value())).map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Every live session.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.by_number.iter().map(|entry| Arc::clone(entry.value())).collect()
    }

    /// After how long without use a session is ended.
    #[must_use]
    pub fn idle_limit(&self) -> Duration {
        self.config.idle
    }

    /// How often to look for idle ones.
    #[must_use]
    pub fn idle_check(&self) -> Duration {
        (self.config.idle / 10).clamp(Duration::from_millis(50), Duration::from_secs(30))
    }

    /// How many are alive.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// What an id says that was made with a key that is still in use.
    pub(super) fn open(&self, token: &str) -> Option<Sealed> {
        token::decode(&self.sealer.open(Purpose::Session, token)?)
    }

    /// The session of that id, whoever asks, if it is in the table.
    pub(super) fn known(&self, token: &str) -> Option<Arc<Session>> {
        self.by_token.get(token).map(|session| Arc::clone(&session))
    }

    /// Takes up a session that another process made: it is in the table from now on.
    /// `None` where it has ended here.
    pub(super) fn adopt(&self, sealed: Sealed, token: &str, route: &Route) -> Option<Arc<Session>> {
        let is_over = self.ended_here.contains(&sealed.number);
        (!is_over).then(|| self.insert(sealed.number, token.into(), sealed.terms, (route.metrics.session(), None)))
    }

    /// Whether the id opens no session here any more.
    pub(super) fn is_over(&self, sealed: &Sealed) -> bool {
        sealed.issued >= self.started || self.ended_here.contains(&sealed.number)
    }

    /// Takes up a session of an earlier process never again.
    pub(super) fn bury(&self, number: SessionNumber) {
        self.ended_here.insert(number);
    }

    /// Takes a session out of the table whose home is elsewhere; there it goes on.
    pub(super) fn forget(&self, session: &Session) {
        session.give_away();
        self.end(session);
    }

    /// Opens an id from before this process.
    fn take_up(&self, token: &str, route: &Route, principal: &Principal) -> Option<Arc<Session>> {
        if self.home.is_some() {
            return None;
        }
        let sealed = self.open(token)?;
        // Whatever this process gave out and no longer knows has ended.
        if sealed.issued >= self.started || !sealed.terms.are_of(route, principal) {
            return None;
        }
        self.adopt(sealed, token, route)
    }

    fn insert(
        &self,
        number: SessionNumber,
        token: Arc<str>,
        terms: Terms,
        (counted, share): (Counted, Option<Share>),
    ) -> Arc<Session> {
        let session = self.by_number.entry(number).or_insert_with(|| {
            let session = Session::new(number, Arc::clone(&token), terms, self.clock.now(), Some(counted));
            Arc::new(Session { _share: share, ..session })
        });
        let session = Arc::clone(&session);
        self.by_token.insert(token, Arc::clone(&session));
        session
    }
}

#[cfg(test)]
mod tests;
