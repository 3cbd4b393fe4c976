//! The Redis or Valkey server that replicas share: one connection of this process, kept up, which carries everybody's
//! commands and the server's messages.
//!
//! A command never waits for the server to come back: while it is known to be away, commands fail at once. One job notices
//! that it is away, and connects again with growing pauses.

pub mod address;
mod advice;
mod connection;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use crate::jobs::Jobs;
use address::Address;
use connection::{Connection, is_broken};

/// How long a command may take, what its own bytes take left out. More, and the server counts as away.
const COMMAND: Duration = Duration::from_secs(2);
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
}

impl Script {
    /// A script of these parts, one after the other. A server without room refuses one that writes.
    #[must_use]
    pub fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        Self { code: redis::Script::new(&text), text }
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
}

/// Where the connection stands.
#[derive(Clone, Default)]
struct Link {
    /// Counts the connections, and what in them may have lost messages.
    number: u64,
    /// `None` while the server is away.
    connection: Option<Connection>,
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
        timeout(within, link.wait_for(|link| link.connection.is_some())).await.is_ok_and(|there| there.is_ok())
    }

    /// Whether the server was there when it was last heard of.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.inner.link.borrow().connection.is_some()
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

    /// Resolves each time that messages may have been lost and are heard again.
    #[must_use]
    pub fn renewals(&self) -> Renewals {
        let mut link = self.inner.link.subscribe();
        let seen = link.borrow_and_update().number;
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
        match self.run(&with_args(script.by_digest())).await {
            Err(HubError::Failed(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.run(&with_args(script.by_text())).await
            }
            done => done,
        }
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`Hub::call`].
    pub async fn run(&self, command: &Cmd) -> Result<Value, HubError> {
        let Link { number, connection } = self.inner.link.borrow().clone();
        let mut connection = connection.ok_or(HubError::Away)?;
        let bytes: usize =
            command.args_iter().map(|arg| if let redis::Arg::Simple(arg) = arg { arg.len() } else { 0 }).sum();
        let limit = COMMAND + Duration::from_secs(1).mul_f64(bytes as f64 / SLOW as f64);
        let done = timeout(limit, connection.run(command)).await;
        let is_broken = match &done {
            Ok(Ok(_)) => false,
            Ok(Err(error)) => is_broken(error),
            Err(_) => true,
        };
        // A cluster is more than the node that failed; its own connection looks after the others.
        if is_broken && connection.is_ordered() {
            self.inner.gone(number);
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
                    self.inner.link.send_replace(Link { number, connection: Some(connection) });
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
            if !matches!(timeout(COMMAND, connection.run(&redis::cmd("PING"))).await, Ok(Ok(_))) {
                return;
            }
        }
    }
}

impl Inner {
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
        match self.link.wait_for(|link| link.connection.is_some() && link.number != seen).await.map(|link| link.number)
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
        f.debug_struct("Link").field("number", &self.number).field("is_up", &self.connection.is_some()).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
