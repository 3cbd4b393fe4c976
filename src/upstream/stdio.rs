//! MCP servers that talk over their stdin and stdout: one child process for each session, or one for all.
//!
//! In the legacy era a session is a child: opening one starts it, and it ends with it. It is never started again for a
//! session that has ended with it: what it knew is lost, and the client must open a new one. In the modern era all calls
//! share one child, which is started again when it has died (`stateless`). Owns which children run; how one talks is in
//! `conversation`, who gets what it says in `table`, how it starts and dies in `process`.

mod backoff;
mod conversation;
mod lines;
mod outlet;
mod process;
mod session_stream;
mod stateless;
mod stderr;
mod table;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use tokio::io::AsyncRead;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Error, Listening, Opened, Outgoing, Reply, SessionKey, Upstream};
use crate::jobs::Jobs;
use crate::jsonrpc::{Message, Object, Outcome, string_value};
use crate::mcp::version::ProtocolVersion;
use crate::oauth::secret::SubjectToken;
use backoff::Backoff;
use conversation::{Conversation, End, Outbox};
use lines::Lines;
use process::{Group, Pipes};
use stateless::Shared;
use table::Manners;

/// How a stdio server is run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The program and its arguments. It gets the gateway's environment but for variables named `TASKGATE_*`.
    pub command: Vec<String>,
    /// The longest line that a child may write, in bytes. One that is longer ends the child.
    pub max_line: usize,
    /// How long a child may take to start and to answer `initialize`.
    pub connect_timeout: Duration,
    /// How long a child may take to answer `server/discover`: servers of the legacy era say nothing.
    pub probe_timeout: Duration,
    /// How long a child may take to end after its stdin was closed, and again after SIGTERM, before it is killed.
    pub grace: Duration,
    /// How long a question that belongs to no call waits for the client to open a stream, before the child is told that
    /// nobody will answer.
    pub stream_wait: Duration,
}

impl Config {
    /// The defaults for a command.
    #[must_use]
    pub fn new(command: Vec<String>) -> Self {
        Self {
            command,
            max_line: 64 * 1024 * 1024,
            // Package runners may have to download the server first.
            connect_timeout: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            stream_wait: Duration::from_secs(5),
        }
    }
}

/// An upstream that starts a child process for each session.
pub struct Stdio {
    config: Arc<Config>,
    jobs: Jobs,
    children: Arc<Children>,
    shared: Shared,
}

/// The children of one upstream.
#[derive(Debug, Default)]
struct Children {
    by_session: Mutex<HashMap<Arc<str>, Arc<Child>>>,
    running: AtomicUsize,
    backoff: Mutex<Backoff>,
}

/// One child as its callers see it.
#[derive(Debug)]
struct Child {
    conversation: Conversation,
    /// Tells it to end; also when the gateway stops.
    stop: CancellationToken,
    /// It has ended and is reaped.
    gone: CancellationToken,
    ending: OnceLock<Ending>,
}

/// How a child ended.
#[derive(Debug)]
struct Ending {
    end: End,
    status: Option<ExitStatus>,
}

impl Stdio {
    /// An upstream that runs this command. Starts nothing yet.
    #[must_use]
    pub fn new(config: Config, jobs: Jobs) -> Self {
        Self { config: Arc::new(config), jobs, children: Arc::default(), shared: Shared::default() }
    }

    /// How many children run, those that are being ended included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.children.running.load(Ordering::Relaxed)
    }

    /// Starts a child and the job that it lives in.
    fn start(&self, key: &Arc<str>, manners: Manners) -> Result<Arc<Child>, Error> {
        let stop = self.jobs.stopping().child_token();
        if stop.is_cancelled() {
            return Err(Error::Connect("the gateway is stopping".into()));
        }
        let (group, pipes) = Group::start(&self.config.command).map_err(|error| {
            self.children.backoff().failed(Instant::now(), error.to_string());
            Error::Connect(error.into())
        })?;
        let (conversation, outbox) = Conversation::new(self.config.stream_wait, manners);
        let child = Arc::new(Child { conversation, stop, gone: CancellationToken::new(), ending: OnceLock::new() });
        let place = Place::take(&self.children, key, &child);
        let config = Arc::clone(&self.config);
        let span = tracing::info_span!("server", program = config.command.first(), pid = group.id());
        let life = async move { live(group, pipes, outbox, &place, &config).await };
        self.jobs.spawn("stdio child", life.instrument(span));
        Ok(child)
    }

    /// Sends `initialize` and reads what came of it.
    async fn handshake(&self, child: &Child, params: &str) -> Result<(ProtocolVersion, Box<str>), Failed> {
        let limit = self.config.connect_timeout;
        let answer = timeout(limit, child.conversation.initialize(params)).await.map_err(|_elapsed| {
            let message = format!("no answer to `initialize` within {}", humantime::format_duration(limit));
            Failed::Useless(Error::Connect(message.into()))
        })?;
        let Some(answer) = answer else {
            return Err(Failed::Useless(self.obituary(child).await));
        };
        read_initialize(&answer)
    }

    /// Why a child ended before it had answered.
    async fn obituary(&self, child: &Child) -> Error {
        // The exit status follows the end of the pipe at once, unless the child has closed its stdout and lives on.
        let _known = timeout(self.config.grace, child.gone.cancelled()).await;
        match child.ending.get() {
            Some(ending @ Ending { end: End::TooLong, .. }) => Error::Protocol(ending.to_string()),
            Some(ending) => Error::Connect(format!("the server ended before it was initialized: {ending}").into()),
            None => Error::Connect("the server closed its stdout before it was initialized".into()),
        }
    }

    fn child(&self, session: &SessionKey) -> Result<Arc<Child>, Error> {
        let key = session.id.as_ref().ok_or(Error::SessionGone)?;
        self.children.by_session().get(key).cloned().ok_or(Error::SessionGone)
    }
}

#[async_trait]
impl Upstream for Stdio {
    async fn open(
        &self,
        params: &str,
        _headers: HeaderMap,
        _subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Opened, Error> {
        self.children.backoff().admit(Instant::now()).map_err(|soon| Error::Connect(soon.into()))?;
        let key = new_key();
        let child = self.start(&key, Manners::Legacy)?;
        // Whether this fails or its caller goes away: a child that is not handed out must end.
        let unused = child.stop.clone().drop_guard();
        match self.handshake(&child, params).await {
            Ok((version, result)) => {
                unused.disarm();
                self.children.backoff().worked();
                Ok(Opened { session: SessionKey { id: Some(key), version, subject: None }, result })
            }
            Err(Failed::Answered(error)) => Err(error),
            Err(Failed::Useless(error)) => {
                self.children.backoff().failed(Instant::now(), explain(&error));
                Err(error)
            }
        }
    }

    async fn discover(&self, params: &str, _subject: Option<&Arc<SubjectToken>>) -> Result<Opened, Error> {
        let result = self.probe(params).await?;
        Ok(Opened { session: self.stateless(), result })
    }

    fn stateless(&self) -> SessionKey {
        SessionKey { id: Some(Arc::clone(&self.shared.key)), version: ProtocolVersion::LATEST_MODERN, subject: None }
    }

    async fn send(&self, session: &SessionKey, message: Outgoing) -> Result<Reply, Error> {
        if session.version.has_sessions() {
            self.child(session)?.conversation.send(message).await
        } else {
            self.send_shared(message).await
        }
    }

    async fn listen(&self, session: &SessionKey, last_event_id: Option<&str>) -> Result<Listening, Error> {
        if !session.version.has_sessions() {
            return Ok(Listening::NotOffered);
        }
        let child = self.child(session)?;
        // Messages on a pipe have no event ids, so there is no stream that one could name.
        if last_event_id.is_some() {
            return Ok(Listening::NotOffered);
        }
        Ok(Listening::Messages(child.conversation.listen()?))
    }

    /// Ends the child and waits until it is reaped: at most thrice the grace, and the time that a kill takes.
    async fn close(&self, session: &SessionKey) {
        let Ok(child) = self.child(session) else { return };
        child.stop.cancel();
        child.gone.cancelled().await;
    }

    fn binds_sessions(&self) -> bool {
        true
    }
}

impl fmt::Debug for Stdio {
    /// Leaves the arguments out, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdio")
            .field("program", &self.config.command.first())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl Children {
    fn by_session(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Child>>> {
        self.by_session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{} ({status})", self.end),
            None => self.end.fmt(f),
        }
    }
}

/// A running child's entry. Taken out by its drop, so that callers are released however the child's job ends.
struct Place {
    children: Arc<Children>,
    key: Arc<str>,
    child: Arc<Child>,
}

impl Place {
    fn take(children: &Arc<Children>, key: &Arc<str>, child: &Arc<Child>) -> Self {
        children.running.fetch_add(1, Ordering::Relaxed);
        children.by_session().insert(Arc::clone(key), Arc::clone(child));
        Self { children: Arc::clone(children), key: Arc::clone(key), child: Arc::clone(child) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.child.conversation.end();
        self.children.by_session().remove(&self.key);
        self.children.running.fetch_sub(1, Ordering::Relaxed);
        self.child.gone.cancel();
    }
}

/// A child's whole life after its start.
async fn live(group: Group, pipes: Pipes, outbox: Outbox, place: &Place, config: &Config) {
    let Pipes { stdin, stdout, stderr } = pipes;
    let life = async {
        let (mut group, mut lines) = (group, Lines::new(stdout, config.max_line));
        let conversation = &place.child.conversation;
        let end = {
            let run = conversation.run(&mut lines, stdin, outbox, config.grace);
            talk(&mut group, run, &place.child.stop, config.grace).await
        };
        conversation.end();
        let status = match end {
            // What it says on its way out is read, so that it need not die of a closed pipe.
            End::Stopped => tokio::select! {
                status = group.end(config.grace) => status,
                never = discard(lines.into_source()) => match never {},
            },
            _ => {
                drop(lines);
                group.end(config.grace).await
            }
        };
        bury(place, Ending { end, status });
    };
    let (mut life, mut stderr) = (pin!(life), pin!(stderr::log(stderr)));
    tokio::select! {
        () = &mut stderr => life.await,
        () = &mut life => {
            // Its last words often say why it died. A process that left the group may hold the pipe for ever.
            let _read_out = timeout(config.grace, stderr).await;
        }
    }
}

/// Runs the conversation until it ends, the child exits, or it is told to stop.
async fn talk(group: &mut Group, run: impl Future<Output = End>, stop: &CancellationToken, grace: Duration) -> End {
    let mut run = pin!(run);
    tokio::select! {
        biased;
        () = stop.cancelled() => return End::Stopped,
        end = &mut run => return end,
        () = group.exited() => {}
    }
    // What it wrote before it exited is still in the pipe. Whoever else of its group holds the pipe goes now, and a
    // process that left the group must not keep the callers waiting.
    group.kill();
    timeout(grace, run).await.unwrap_or(End::Closed)
}

/// Notes how a child ended. Only starts and handshakes that fail count against the command: what ends a child after that
/// may be one client's call, which must not keep the others from starting theirs.
fn bury(place: &Place, ending: Ending) {
    if matches!(ending.end, End::Stopped) {
        tracing::debug!(%ending, "a server process was ended");
    } else {
        tracing::warn!(%ending, "a server process ended by itself or broke the protocol");
    }
    let _first = place.child.ending.set(ending);
}

/// Reads a stream without looking, and never ends.
async fn discard<R: AsyncRead + Unpin>(mut source: R) -> Infallible {
    let _copied = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
    std::future::pending().await
}

/// Why a handshake failed.
enum Failed {
    /// The server works, but refused these parameters.
    Answered(Error),
    /// The child is of no use.
    Useless(Error),
}

/// Reads the answer to `initialize`.
fn read_initialize(answer: &[u8]) -> Result<(ProtocolVersion, Box<str>), Failed> {
    let useless = |message: String| Failed::Useless(Error::Protocol(message));
    let result = match Message::parse(answer) {
        Ok(Message::Response { outcome: Outcome::Result(result), .. }) => result.get(),
        Ok(Message::Response { outcome: Outcome::Error(error), .. }) => {
            // A pipe has no HTTP status; over HTTP such an answer comes with 200.
            return Err(Failed::Answered(Error::Refused { status: StatusCode::OK, error: error.get().into() }));
        }
        Ok(_) => return Err(useless("the answer to `initialize` is no response".to_owned())),
        Err(defect) => return Err(useless(format!("the answer to `initialize` is unusable: {defect}"))),
    };
    let object = Object::parse(result).map_err(|defect| useless(format!("the result of `initialize`: {defect}")))?;
    let version = object.get("protocolVersion").and_then(string_value);
    match version.as_deref().and_then(ProtocolVersion::parse_legacy) {
        Some(version) => Ok((version, result.into())),
        None => Err(useless("the server speaks no protocol version that is known".to_owned())),
    }
}

fn new_key() -> Arc<str> {
    uuid::Uuid::new_v4().to_string().into()
}

/// An error with its cause, in one line.
fn explain(error: &Error) -> String {
    match error {
        Error::Connect(source) | Error::Lost(source) => source.to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
