//! The project's own small client of either era: calls tools plainly or through tasks over streamable HTTP.
//!
//! It does what a careful client does: keeps a GET stream, resumes streams that drop, polls at the server's interval,
//! answers each question once and ends its session. It speaks to any server, not only to this gateway.

mod asking;
mod error;
mod following;
mod incoming;
mod listening;
pub mod login;
mod modern;
mod task;
pub mod tokens;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::jobs::Jobs;
use crate::jsonrpc::{self, Id, Message, Object, string_value};
use crate::mcp::version::ProtocolVersion;
use crate::upstream::http::Http;
use crate::upstream::messages::Messages;
use crate::upstream::{Kind, Opened, Outgoing, Reply, SessionKey, Upstream};

pub use crate::upstream::credentials::Credentials;
pub use crate::upstream::http::Config;
pub use error::{Error, ServerError};
pub use incoming::{Event, Progress, Question};
pub use modern::{Connected, Era, Modern, connect};
pub use task::{Task, TaskStatus};

/// How many events wait for the program. Progress and status that find no place are left out; questions wait.
const EVENTS: usize = 64;
/// How many answers are on their way at once.
const ANSWERS: usize = 32;
/// How often a broken exchange is taken up again without anything new.
const TRIES: u32 = 5;
/// How long to wait before that, unless the server says.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest wait that a server may ask for.
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);

/// A session with a server.
#[derive(Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: Http,
    session: SessionKey,
    /// The `result` of `initialize`.
    welcome: Box<str>,
    max_message: usize,
    jobs: Jobs,
    next_id: AtomicU64,
    events: mpsc::Sender<Event>,
    /// Progress tokens in use.
    tokens: Mutex<Vec<String>>,
    questions: Mutex<HashMap<Id, incoming::Standing>>,
    /// The newest `notifications/tasks/status`.
    announced: watch::Sender<Option<Task>>,
    answering: Arc<Semaphore>,
    closed: CancellationToken,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("http", &self.http).field("session", &self.session).finish_non_exhaustive()
    }
}

/// A tool as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// `execution.taskSupport`, where the server gives it.
    pub task_support: Option<String>,
    /// The whole declaration as JSON text.
    pub declaration: String,
}

/// A call's id, to cancel it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallId(u64);

impl Client {
    /// Opens a session and its GET stream. What the server says by itself comes through the receiver; when that is
    /// dropped, questions are dismissed.
    ///
    /// # Errors
    /// Any [`Error`]; no session is left open then.
    pub async fn connect(config: Config, jobs: Jobs) -> Result<(Self, mpsc::Receiver<Event>), Error> {
        let max_message = config.max_message;
        let http = Http::new(config);
        let params = json!({
            "protocolVersion": ProtocolVersion::LATEST_LEGACY.as_str(),
            // An empty object means forms (2025-11-25 elicitation, "Capabilities"), to older servers as well.
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "taskgate", "version": env!("CARGO_PKG_VERSION")},
        });
        let opened = http.open(&params.to_string(), HeaderMap::new(), None).await?;
        let (inner, receiver) = Inner::new(http, max_message, opened, jobs);
        inner.notify("notifications/initialized", None).await?;
        inner.jobs.spawn("client stream", listening::listen(Arc::clone(&inner)));
        Ok((Self { inner }, receiver))
    }

    /// The protocol version of the session.
    #[must_use]
    pub fn version(&self) -> ProtocolVersion {
        self.inner.session.version
    }

    /// The `result` of `initialize` as JSON text.
    #[must_use]
    pub fn welcome(&self) -> &str {
        &self.inner.welcome
    }

    /// Whether the server takes `tools/call` through tasks.
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        fn inside<'a>(object: &'a Object<'_>, name: &str) -> Option<Object<'a>> {
            Object::parse(object.get(name)?).ok()
        }
        let welcome = Object::parse(&self.inner.welcome).unwrap_or_default();
        let requests = || {
            let capabilities = inside(&welcome, "capabilities")?;
            let tasks = inside(&capabilities, "tasks")?;
            let requests = inside(&tasks, "requests")?;
            let tools = inside(&requests, "tools")?;
            tools.get("call").map(|_| ())
        };
        self.version().has_tasks() && requests().is_some()
    }

    /// Every page of `tools/list`.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn tools(&self) -> Result<Vec<Tool>, Error> {
        self.inner.list_tools(|cursor| (cursor.map(page), HeaderMap::new())).await
    }

    /// A new id for a call.
    #[must_use]
    pub fn new_call(&self) -> CallId {
        self.inner.new_call()
    }

    /// Calls a tool plainly and waits for its result, as JSON text.
    ///
    /// # Errors
    /// Any [`Error`]; a tool that fails is a result with `isError`, not an error.
    pub async fn call(&self, call: CallId, tool: &str, arguments: Option<&str>) -> Result<String, Error> {
        let _token = self.inner.token(call);
        let params = call_params(call, tool, arguments, None);
        self.inner.request(&Id::number(call.0), "tools/call", Some(&params)).await
    }

    /// Cancels a plain call. Its future resolves only when the server closes the response; drop it instead.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn cancel(&self, call: CallId, reason: &str) -> Result<(), Error> {
        let params = json!({"requestId": call.0, "reason": reason}).to_string();
        self.inner.notify("notifications/cancelled", Some(&params)).await
    }

    /// Ends the session. Tasks live on.
    pub async fn close(self) {
        self.inner.closed.cancel();
        self.inner.http.close(&self.inner.session).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.inner.closed.cancel();
    }
}

/// The `params` that ask for the page at a cursor, which is JSON text.
fn page(cursor: &str) -> String {
    format!("{{\"cursor\":{cursor}}}")
}

fn tool(declaration: &Object<'_>) -> Tool {
    let text = |json: Option<&str>| json.and_then(string_value).map(std::borrow::Cow::into_owned);
    let execution = Object::parse(declaration.get("execution").unwrap_or("{}")).unwrap_or_default();
    Tool {
        name: text(declaration.get("name")).unwrap_or_default(),
        task_support: text(execution.get("taskSupport")),
        declaration: declaration.to_json(),
    }
}

/// The `params` of a `tools/call`, with a progress token of its own.
fn call_params(call: CallId, tool: &str, arguments: Option<&str>, task: Option<&str>) -> String {
    let mut params = Object::default();
    params.set("name", jsonrpc::raw_string(tool));
    params.set("arguments", arguments.unwrap_or("{}"));
    if let Some(task) = task {
        params.set("task", task);
    }
    params.set("_meta", format!("{{\"progressToken\":{}}}", call.0));
    params.to_json()
}

/// A progress token in use.
struct Token {
    inner: Arc<Inner>,
    token: String,
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut tokens = self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|token| *token != self.token);
    }
}

impl Inner {
    /// What is shared about a server that has been asked who it is.
    fn new(http: Http, max_message: usize, opened: Opened, jobs: Jobs) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (events, receiver) = mpsc::channel(EVENTS);
        let inner = Self {
            http,
            session: opened.session,
            welcome: opened.result,
            max_message,
            closed: jobs.stopping().child_token(),
            jobs,
            next_id: AtomicU64::new(1),
            events,
            tokens: Mutex::default(),
            questions: Mutex::default(),
            announced: watch::Sender::default(),
            answering: Arc::new(Semaphore::new(ANSWERS)),
        };
        (Arc::new(inner), receiver)
    }

    fn new_call(&self) -> CallId {
        CallId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Every page of `tools/list`; `asking` gives the `params` and header fields for the page at a cursor.
    async fn list_tools(
        self: &Arc<Self>,
        asking: impl Fn(Option<&str>) -> (Option<String>, HeaderMap) + Send,
    ) -> Result<Vec<Tool>, Error> {
        let mut tools = Vec::new();
        let mut cursor: Option<String> = None;
        // A server that pages in a circle must not hold the client for good.
        for _ in 0..1000 {
            let (params, headers) = asking(cursor.as_deref());
            let result = self.repeat("tools/list", params.as_deref(), headers).await?;
            let page = Object::parse(&result).map_err(|defect| Error::protocol(&defect))?;
            let listed: Vec<Object<'_>> = serde_json::from_str(page.get("tools").unwrap_or("[]"))
                .map_err(|error| Error::Protocol(format!("it lists tools that can't be read: {error}")))?;
            tools.extend(listed.iter().map(tool));
            cursor = page.get("nextCursor").filter(|cursor| *cursor != "null").map(str::to_owned);
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(Error::Protocol("its list of tools has no end".to_owned()))
    }

    /// Takes progress under the call's token until the guard goes.
    fn token(self: &Arc<Self>, call: CallId) -> Token {
        let token = call.0.to_string();
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token.clone());
        Token { inner: Arc::clone(self), token }
    }

    async fn notify(&self, method: &str, params: Option<&str>) -> Result<(), Error> {
        self.post(jsonrpc::notification(method, params)).await
    }

    async fn post(&self, body: Bytes) -> Result<(), Error> {
        let message = Outgoing { kind: Kind::OneWay, body, headers: HeaderMap::new() };
        self.http.send(&self.session, message).await?;
        Ok(())
    }

    /// A request that may be sent again when the connection breaks, since it changes nothing.
    async fn repeat(self: &Arc<Self>, method: &str, params: Option<&str>, headers: HeaderMap) -> Result<String, Error> {
        let mut tries = 0;
        loop {
            let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
            match self.exchange(&id, method, params, headers.clone()).await {
                Err(Error::Connect(_) | Error::Lost(_)) if tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(PATIENCE).await;
                }
                ended => return ended,
            }
        }
    }

    /// Sends a request without header fields of its own.
    async fn request(self: &Arc<Self>, id: &Id, method: &str, params: Option<&str>) -> Result<String, Error> {
        self.exchange(id, method, params, HeaderMap::new()).await
    }

    /// Sends a request and reads until its response; what comes before is taken in. A stream that drops is resumed
    /// where the server gave event ids.
    async fn exchange(
        self: &Arc<Self>,
        id: &Id,
        method: &str,
        params: Option<&str>,
        headers: HeaderMap,
    ) -> Result<String, Error> {
        let body = jsonrpc::request(id, method, params);
        let kind = Kind::Request { id: id.clone(), progress_token: None };
        let reply = self.http.send(&self.session, Outgoing { kind, body, headers }).await?;
        let is_whole = matches!(reply, Reply::Json(_));
        let mut messages = Messages::of_reply(reply, self.max_message);
        let mut resume = Resume::default();
        loop {
            match messages.next().await {
                Ok(Some(message)) => {
                    resume.note(&messages);
                    if let Some(result) = self.response(id, &message).await? {
                        return Ok(result);
                    }
                }
                Ok(None) if is_whole => return Err(Error::Protocol("its answer is not to this request".to_owned())),
                ended => {
                    resume.see(&messages);
                    let lost =
                        ended.err().map_or_else(|| Error::Lost("it ended the stream too early".into()), Error::from);
                    messages = self.resume(&mut resume, lost).await?;
                }
            }
        }
    }

    /// The result when the message is the response to `id`; anything else is taken in.
    async fn response(self: &Arc<Self>, id: &Id, message: &Bytes) -> Result<Option<String>, Error> {
        match Message::parse(message).map_err(|defect| Error::protocol(&defect))? {
            Message::Response { id: answered, outcome } if answered.as_ref() == Some(id) => match outcome {
                jsonrpc::Outcome::Result(result) => Ok(Some(result.get().to_owned())),
                jsonrpc::Outcome::Error(error) => Err(Error::Server(ServerError::read(error.get()))),
            },
            message => {
                self.take(message).await;
                Ok(None)
            }
        }
    }

    /// Opens the rest of a stream that dropped, or gives up with why it did.
    async fn resume(&self, resume: &mut Resume, lost: Error) -> Result<Messages, Error> {
        if !lost.is_passing() {
            return Err(lost);
        }
        loop {
            let Some(after) = resume.after.clone().filter(|_| resume.tries < TRIES) else { return Err(lost) };
            resume.tries += 1;
            tokio::time::sleep(resume.wait).await;
            match self.http.listen(&self.session, Some(&after)).await.map_err(Error::from) {
                Ok(listening) => {
                    return Messages::of_listening(listening, self.max_message).ok_or(lost);
                }
                Err(error) if error.is_passing() => {}
                // The stream can't be had any more; that it was lost says more.
                Err(_) => return Err(lost),
            }
        }
    }
}

/// Where to take a stream up again.
#[derive(Debug)]
struct Resume {
    after: Option<String>,
    wait: Duration,
    tries: u32,
}

impl Default for Resume {
    fn default() -> Self {
        Self { after: None, wait: PATIENCE, tries: 0 }
    }
}

impl Resume {
    fn see(&mut self, messages: &Messages) {
        if let Some(id) = messages.last_event_id() {
            self.after = Some(id.to_owned());
        }
        self.wait = messages.retry().unwrap_or(self.wait).min(LONGEST_PATIENCE);
    }

    /// Something new came.
    fn note(&mut self, messages: &Messages) {
        self.see(messages);
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests;
