//! The Redis or Valkey server that replicas share: one connection of this process, kept up, which carries everybody's
//! commands and the server's messages.
//!
//! A command never waits for the server to come back: while it is known to be away, commands fail at once. One job notices
//! that it is away, and connects again with growing pauses.

pub mod address;
mod advice;
mod connection;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::jobs::Jobs;
use address::Address;
use connection::{Connection, is_broken};

/// How long a command may take, what its own bytes take left out. When one is late, and nothing was heard of the server since
/// the last ping, those that come are refused at once; those that wait have their own time.
const COMMAND: Duration = Duration::from_secs(2);
/// How long a script may take that walks through more than one record.
pub const LONG_COMMAND: Duration = Duration::from_secs(10);
/// When nothing is heard of the server for so long, the connection leads nowhere.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are sent in a second where the network is slow.
const SLOW: usize = 8 * 1024 * 1024;
/// How long one step of connecting may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the server is asked whether it is there.
const PING: Duration = Duration::from_secs(1);
/// Between two attempts to connect, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why the server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It is not there, and has not been for a while.
    #[error("the Redis server is away")]
    Away,
    /// It did not answer in time.
    #[error("the Redis server did not answer in time")]
    Late,
    /// It said no, or the connection broke.
    #[error("the Redis server failed")]
    Failed(#[from] RedisError),
    /// It answered with something else than the program asked for.
    #[error("the Redis server gave an answer that can't be read: {0}")]
    Unreadable(&'static str),
}

/// Is called with each message of a channel, in line: it must not block.
pub type Listener = Box<dyn Fn(&[u8]) + Send + Sync>;

/// A Lua script, which the server runs as one step.
#[derive(Debug)]
pub struct Script {
    code: redis::Script,
    text: String,
    limit: Duration,
    /// The last connection on which the server has run it; 0 for none.
    known_on: AtomicU64,
}

impl Script {
    /// A script of these parts, one after the other. A server without room refuses one that writes.
    #[must_use]
    pub fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        Self { code: redis::Script::new(&text), text, limit: COMMAND, known_on: AtomicU64::new(0) }
    }

    /// The same with so long to take.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The same for one that writes little, or frees what was taken: a server without room runs it as well.
    #[must_use]
    pub fn always(parts: &[&str]) -> Self {
        Self::new(&[&["#!lua flags=allow-oom\n"], parts].concat())
    }

    fn by_digest(&self) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.code.get_hash());
        command
    }

    fn by_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text);
        command
    }
}

/// The connection. A cheap handle.
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

struct Inner {
    address: Address,
    prefix: String,
    link: watch::Sender<Link>,
    /// Somebody found the connection broken.
    broken: Notify,
    /// There is another channel to listen to.
    listens: Notify,
    listeners: Mutex<Vec<(String, Listener)>>,
    /// When the server answered last.
    heard: Mutex<Instant>,
}

/// Where the connection stands.
#[derive(Clone, Default)]
struct Link {
    /// Counts the connections.
    number: u64,
    /// Counts how often the server was there again.
    returns: u64,
    /// `None` while the server is away.
    connection: Option<Connection>,
    /// A command has waited in vain, and nothing was heard of the server since it was sent.
    is_silent: bool,
}

impl Link {
    /// The connection, while the server answers.
    fn to_use(&self) -> Option<&Connection> {
        self.connection.as_ref().filter(|_| !self.is_silent)
    }
}

impl Hub {
    /// Keeps a connection to that address from now on, and begins to make it. Keys start with `prefix`.
    #[must_use]
    pub fn start(address: Address, prefix: &str, jobs: &Jobs) -> Self {
        let inner = Inner {
            address,
            prefix: prefix.to_owned(),
            link: watch::Sender::default(),
            broken: Notify::new(),
            listens: Notify::new(),
            listeners: Mutex::default(),
            heard: Mutex::new(Instant::now()),
        };
        let hub = Self { inner: Arc::new(inner) };
        let (keeper, stopping) = (hub.clone(), jobs.stopping().clone());
        jobs.spawn("redis connection", async move { stopping.run_until_cancelled(keeper.keep()).await });
        hub
    }

    /// What keys start with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// The key that is there while a holder's lease runs; the beginning of all of them for none.
    #[must_use]
    pub fn lease(&self, holder: &str) -> String {
        format!("{{{}}}:lease:{holder}", self.inner.prefix)
    }

    /// Waits until the server is there, at most so long; says whether it is.
    pub async fn arrives(&self, within: Duration) -> bool {
        let mut link = self.inner.link.subscribe();
        timeout(within, link.wait_for(|link| link.to_use().is_some())).await.is_ok_and(|there| there.is_ok())
    }

    /// Whether the server was there when it was last heard of.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.inner.link.borrow().to_use().is_some()
    }

    /// The number of the connection that was made last. While it stays the same, no connection has been lost.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.inner.link.borrow().number
    }

    /// Whether commands are carried out in the order in which they were begun.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.inner.link.borrow().connection.as_ref().is_some_and(Connection::is_ordered)
    }

    /// Whether these scripts are carried out in the order in which they were begun: on one connection, to a server that knows them.
    /// One that does not know a script is sent its text after whatever was begun meanwhile.
    #[must_use]
    pub fn keeps_order(&self, scripts: &[&Script]) -> bool {
        let connection = self.connections();
        self.is_ordered() && scripts.iter().all(|script| script.known_on.load(Ordering::Relaxed) == connection)
    }

    /// Resolves each time that messages may have been lost and are heard again.
    #[must_use]
    pub fn renewals(&self) -> Renewals {
        let mut link = self.inner.link.subscribe();
        let seen = link.borrow_and_update().returns;
        Renewals { link, seen }
    }

    /// Listens to a channel, as long as the connection is kept.
    pub fn listen(&self, channel: &str, listener: Listener) {
        self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner).push((channel.to_owned(), listener));
        self.inner.listens.notify_one();
    }

    /// Runs a script with these keys, all in one slot of a cluster.
    ///
    /// # Errors
    /// [`HubError`]; whether the script ran is not known unless it is [`HubError::Away`].
    pub async fn call(&self, script: &Script, keys: &[&str], args: &[&[u8]]) -> Result<Value, HubError> {
        let with_args = |mut command: Cmd| {
            command.arg(keys.len()).arg(keys).arg(args);
            command
        };
        let connection = self.connections();
        let done = match self.run_within(&with_args(script.by_digest()), script.limit).await {
            Err(HubError::Failed(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                script.known_on.store(0, Ordering::Relaxed);
                self.run_within(&with_args(script.by_text()), script.limit).await
            }
            done => done,
        };
        if done.is_ok() {
            script.known_on.store(connection, Ordering::Relaxed);
        }
        done
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`Hub::call`].
    pub async fn run(&self, command: &Cmd) -> Result<Value, HubError> {
        self.run_within(command, COMMAND).await
    }

    async fn run_within(&self, command: &Cmd, limit: Duration) -> Result<Value, HubError> {
        let link = self.inner.link.borrow().clone();
        let mut connection = link.to_use().cloned().ok_or(HubError::Away)?;
        let bytes: usize =
            command.args_iter().map(|arg| if let redis::Arg::Simple(arg) = arg { arg.len() } else { 0 }).sum();
        let limit = limit + Duration::from_secs(1).mul_f64(bytes as f64 / SLOW as f64);
        let done = timeout(limit, connection.run(command)).await;
        // A cluster is more than the node that failed; its own connection looks after the others.
        let is_single = connection.is_ordered();
        match &done {
            Ok(Err(error)) if is_broken(error) => {
                if is_single {
                    self.inner.gone(link.number);
                }
            }
            Ok(_) => self.inner.heard(),
            // One that is late fails alone, unless the server says nothing to anybody.
            Err(_) if is_single => self.inner.waited_in_vain(link.number),
            Err(_) => {}
        }
        match done {
            Ok(Ok(value)) => value.extract_error().map_err(HubError::Failed),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(HubError::Late),
        }
    }

    /// Publishes a message to a channel.
    ///
    /// # Errors
    /// As [`Hub::call`].
    pub async fn publish(&self, channel: &str, message: &[u8]) -> Result<(), HubError> {
        self.run(redis::cmd("PUBLISH").arg(channel).arg(message)).await.map(drop)
    }

    /// Connects, again and again, until the process ends.
    async fn keep(&self) {
        let mut pause = PAUSES.0;
        let (mut is_told, mut is_advised) = (false, false);
        let mut number = 0;
        loop {
            number += 1;
            match self.connect(number).await {
                Ok(connection) => {
                    tracing::info!(server = %self.inner.address, "connected to the store");
                    self.inner.arrived(number, connection);
                    if !is_advised {
                        is_advised = true;
                        self.advise().await;
                    }
                    let connected = Instant::now();
                    self.watch_over().await;
                    self.inner.gone(number);
                    tracing::warn!(server = %self.inner.address, "the store is away");
                    is_told = true;
                    // A server that comes and goes at once is as good as one that is away.
                    if connected.elapsed() > PAUSES.1 {
                        pause = PAUSES.0;
                    }
                }
                Err(error) if !is_told => {
                    is_told = true;
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(server = %self.inner.address, error, "the store can't be reached");
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(server = %self.inner.address, error, "the store can't be reached");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn connect(&self, number: u64) -> Result<Connection, HubError> {
        let inner = Arc::downgrade(&self.inner);
        let on_push = Arc::new(move |info| {
            if let Some(inner) = inner.upgrade() {
                inner.pushed(number, &info);
            }
        });
        let opening = Connection::open(&self.inner.address, on_push, CONNECT);
        let mut connection = timeout(CONNECT * 3, opening).await.map_err(|_| HubError::Late)??;
        // A primary that became a replica answers pings, too.
        let mut probe = redis::cmd("SET");
        probe.arg(format!("{}:probe", self.inner.prefix)).arg(1).arg("PX").arg(60_000);
        match timeout(COMMAND, connection.run(&probe)).await.map_err(|_| HubError::Late)?.and_then(Value::extract_error)
        {
            // One that is full, or can't write to its disk, still answers for what there is.
            Err(error) if matches!(error.code(), Some("OOM" | "MISCONF")) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store takes nothing new");
            }
            done => drop(done?),
        }
        self.subscribe(&mut connection).await?;
        Ok(connection)
    }

    /// Subscribes to every channel; to one that is subscribed to already it means nothing.
    async fn subscribe(&self, connection: &mut Connection) -> Result<(), HubError> {
        let channels: Vec<String> = {
            let listeners = self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().map(|(channel, _)| channel.clone()).collect()
        };
        for channel in channels {
            timeout(COMMAND, connection.subscribe(&channel)).await.map_err(|_| HubError::Late)??;
        }
        Ok(())
    }

    /// Resolves when the connection leads nowhere any more.
    async fn watch_over(&self) {
        let mut pings = tokio::time::interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let listens = tokio::select! {
                () = self.inner.broken.notified() => false,
                () = self.inner.listens.notified() => true,
                _ = pings.tick() => false,
            };
            let connection = self.inner.link.borrow().connection.clone();
            let Some(mut connection) = connection else { return };
            if listens && self.subscribe(&mut connection).await.is_err() {
                return;
            }
            let (ping, mut link) = (redis::cmd("PING"), self.inner.link.subscribe());
            tokio::select! {
                answer = connection.run(&ping) => match answer {
                    Ok(_) => self.inner.heard(),
                    Err(_) => return,
                },
                () = self.inner.silence() => return,
                _ = link.wait_for(|link| link.connection.is_none()) => return,
            }
        }
    }
}

impl Inner {
    fn arrived(&self, number: u64, connection: Connection) {
        self.note_heard();
        self.link.send_modify(|link| {
            let returns = link.returns + 1;
            *link = Link { number, returns, connection: Some(connection), is_silent: false };
        });
    }

    fn last_heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The server has answered somebody.
    fn heard(&self) {
        self.note_heard();
        if self.link.borrow().is_silent {
            let is_news = self.link.send_if_modified(|link| {
                link.returns += u64::from(link.is_silent);
                std::mem::take(&mut link.is_silent)
            });
            if is_news {
                tracing::info!(server = %self.address, "the store answers again");
            }
        }
    }

    /// Somebody has waited as long as one may.
    fn waited_in_vain(&self, number: u64) {
        // A server that is there is heard of with each ping at least.
        if self.last_heard().elapsed() < PING.min(COMMAND / 2) {
            return;
        }
        let is_news = self.link.send_if_modified(|link| {
            link.number == number && link.connection.is_some() && !std::mem::replace(&mut link.is_silent, true)
        });
        if is_news {
            tracing::warn!(server = %self.address, "the store does not answer");
        }
    }

    /// Resolves when nothing has been heard for too long.
    async fn silence(&self) {
        while self.last_heard().elapsed() < SILENCE {
            tokio::time::sleep_until(self.last_heard() + SILENCE).await;
        }
    }

    /// The connection of that number is not to be used any more.
    fn gone(&self, number: u64) {
        let is_news = self.link.send_if_modified(|link| {
            let is_it = link.number == number && link.connection.is_some();
            if is_it {
                link.connection = None;
            }
            is_it
        });
        if is_news {
            self.broken.notify_one();
        }
    }

    fn pushed(&self, number: u64, info: &PushInfo) {
        match (&info.kind, &info.data[..]) {
            (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message)]) => {
                let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
                for (_, listener) in listeners.iter().filter(|(of, _)| of.as_bytes() == channel) {
                    listener(message);
                }
            }
            (PushKind::Disconnection, _) => {
                let is_single = self.link.borrow().connection.as_ref().is_some_and(Connection::is_ordered);
                if is_single {
                    self.gone(number);
                }
            }
            _ => {}
        }
    }
}

/// Tells when messages may have been lost.
#[derive(Debug)]
pub struct Renewals {
    link: watch::Receiver<Link>,
    seen: u64,
}

impl Renewals {
    /// Resolves when there is another connection than at the last time. Cancel-safe.
    pub async fn next(&mut self) {
        let seen = self.seen;
        match self.link.wait_for(|link| link.to_use().is_some() && link.returns != seen).await.map(|link| link.returns)
        {
            Ok(number) => self.seen = number,
            Err(_) => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("address", &self.inner.address)
            .field("prefix", &self.inner.prefix)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("number", &self.number).field("is_up", &self.to_use().is_some()).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
