//! A plain MCP server that has no tasks: slow, asking, failing and faulty on request.
//!
//! It is the first thing that a newcomer puts behind the gateway, and what the tests put there: what it has seen can be
//! waited for, held calls go on when the test says so, and it breaks in the ways that servers in the field do.

mod call;
mod fault;
mod http;
mod modern;
mod options;
mod origin;
mod protocol;
mod session;
mod stats;
mod stdio;
mod stream;
mod tools;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::jobs::Jobs;

pub use fault::Fault;
pub use options::{Era, Options, TaskSupport};
pub use stats::{Envelope, Stats, ToolStats};
pub use stdio::serve as serve_stdio;
pub use tools::EXACT;

/// The path of the MCP endpoint.
pub const ENDPOINT: &str = "/mcp";

/// How long jobs may take to notice that the server stops.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What every part of one server shares.
#[derive(Debug)]
struct Shared {
    options: Options,
    jobs: Jobs,
    stats: watch::Sender<Stats>,
    /// Counts releases; held calls wait for the next.
    released: watch::Sender<u64>,
    sessions: Mutex<HashMap<Box<str>, Arc<session::Session>>>,
    faults: Mutex<Vec<fault::Plan>>,
    /// Which eras are spoken now.
    era: watch::Sender<Era>,
    states: modern::States,
    listens: modern::Listens,
}

impl Shared {
    fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            era: watch::Sender::new(options.era),
            options,
            jobs: Jobs::default(),
            stats: watch::Sender::default(),
            released: watch::Sender::default(),
            sessions: Mutex::default(),
            faults: Mutex::default(),
            states: modern::States::new(),
            listens: modern::Listens::default(),
        })
    }

    fn note(&self, change: impl FnOnce(&mut Stats)) {
        self.stats.send_modify(change);
    }

    fn era(&self) -> Era {
        *self.era.borrow()
    }

    fn release(&self) {
        self.released.send_modify(|releases| *releases += 1);
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<Box<str>, Arc<session::Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server that runs in this process over streamable HTTP. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Server {
    /// Starts to serve. Returns at once; connections that are made from now on are answered.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn start(listener: TcpListener, options: Options) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Shared::new(options);
        shared.jobs.spawn("demo server", http::accept(Arc::clone(&shared), listener));
        Ok(Self { shared, address })
    }

    /// Starts on a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start_on_loopback(options: Options) -> io::Result<Self> {
        Self::start(TcpListener::bind("127.0.0.1:0").await?, options)
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The MCP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{ENDPOINT}", self.address)
    }

    /// What it has seen so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats.borrow().clone()
    }

    /// Waits until what it has seen fulfils a condition. Never returns when that does not come.
    pub async fn until(&self, condition: impl FnMut(&Stats) -> bool) -> Stats {
        let mut stats = self.shared.stats.subscribe();
        match stats.wait_for(condition).await {
            Ok(seen) => seen.clone(),
            // The sender is a field of `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Lets calls of `hold` without a time end, and each `report` without a time write its next section.
    pub fn release(&self) {
        self.shared.release();
    }

    /// Breaks the next `times` messages of that method: a JSON-RPC method, `response`, or the HTTP methods `GET` and
    /// `DELETE`.
    pub fn fail(&self, method: &str, fault: Fault, times: u32) {
        fault::plan(&self.shared, method, fault, times);
    }

    /// Forgets every session, as a restarted server does.
    pub fn forget_sessions(&self) {
        let forgotten: Vec<_> = self.shared.sessions().drain().collect();
        for (_, session) in forgotten {
            session.end();
            self.shared.note(|stats| stats.sessions = stats.sessions.saturating_sub(1));
        }
    }

    /// Ends the GET streams that are open, as a proxy between does; they can be opened again.
    pub fn drop_get_streams(&self) {
        for session in self.shared.sessions().values() {
            // A reader that takes over and goes away.
            session.general.read(None);
        }
    }

    /// Speaks other eras from now on. Sessions that are open stay, though nobody can use them in the modern era.
    pub fn set_era(&self, era: Era) {
        self.shared.era.send_replace(era);
    }

    /// Ends the `subscriptions/listen` streams that are open: properly, or as a broken connection does.
    pub fn end_listens(&self, properly: bool) {
        self.shared.listens.end(properly);
    }

    /// Sends a message to every session on its GET stream, such as `notifications/tools/list_changed`, and on each
    /// `subscriptions/listen` stream that asked for it.
    pub fn announce(&self, method: &str, params: Option<&str>) {
        self.shared.listens.announce(method, params);
        for session in self.shared.sessions().values() {
            session.general.push(crate::jsonrpc::notification(method, params));
        }
    }

    /// Closes the port and every connection, stops every call, and waits for that.
    pub async fn stop(&self) {
        self.shared.jobs.stop(STOP_LIMIT).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.jobs.stopping().cancel();
    }
}

#[cfg(test)]
mod tests;
