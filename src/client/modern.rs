//! Calls in the modern era, 2026-07-28: no session; each request says all of itself. A call comes to a plain result, to
//! questions that another call answers, or to a task, as the server decides.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;

use crate::jobs::Jobs;
use crate::jsonrpc::{Id, Object, code, raw_string, string_value};
use crate::mcp::envelope::{Claim, GATEWAY_INFO, declares_tasks, with_claim};
use crate::mcp::input::{InputRequired, ResultType};
use crate::mcp::mirror;
use crate::mcp::probe::{self, Finding};
use crate::upstream::http::{Config, Http};
use crate::upstream::{self, Upstream};

use super::asking;
use super::following;
use super::{CallId, Client, Error, Event, Inner, Task, call_params, page};

/// What the client can do: forms, and tasks.
const CAPABILITIES: &str = r#"{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// How often a call is made again with answers.
const ROUNDS: u32 = 16;
/// How long to wait before a call is made again with nothing but a state, the first time.
const PACE: Duration = Duration::from_millis(250);

/// Which era to speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Era {
    /// What the server says when it is asked.
    #[default]
    Auto,
    /// Sessions: 2025-11-25 and older.
    Legacy,
    /// Stateless: 2026-07-28.
    Modern,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}

/// A server of either era.
#[derive(Debug)]
pub enum Connected {
    /// A session.
    Legacy(Client),
    /// A server without sessions.
    Modern(Modern),
}

/// A server of the modern era.
#[derive(Debug)]
pub struct Modern {
    pub(super) inner: Arc<Inner>,
    /// The task that a call has come to.
    running: Mutex<Option<String>>,
}

/// Finds out which era a server speaks, where that is not given, and connects (2026-07-28 versioning, "Backward
/// Compatibility with Initialization-Based Versions"). What the server says by itself comes through the receiver.
///
/// # Errors
/// Any [`Error`]. Credentials that are refused, a server that fails and one that is away say nothing of the era.
pub async fn connect(config: Config, era: Era, jobs: Jobs) -> Result<(Connected, mpsc::Receiver<Event>), Error> {
    if era != Era::Legacy {
        let http = Http::new(config.clone());
        if let Some(discovered) = discover(&http, era).await? {
            let (inner, events) = Inner::new(http, config.max_message, discovered, jobs);
            return Ok((Connected::Modern(Modern { inner, running: Mutex::default() }), events));
        }
    }
    let (client, events) = Client::connect(config, jobs).await.map_err(|error| match error {
        Error::Server(error) if probe::knows_no_sessions(&error.json) => Error::OtherEra(Era::Modern),
        error => error,
    })?;
    Ok((Connected::Legacy(client), events))
}

/// Asks the server what it is. `None`: it needs the handshake.
async fn discover(http: &Http, era: Era) -> Result<Option<upstream::Opened>, Error> {
    let params = claimed("{}", None);
    let mut answer = http.discover(&params, None).await;
    if matches!(finding(&answer), Some(Finding::Again(_))) {
        answer = http.discover(&params, None).await;
    }
    match (finding(&answer), answer) {
        (Some(Finding::Modern(_)), Ok(opened)) => Ok(Some(opened)),
        (Some(Finding::Legacy), _) if era == Era::Auto => Ok(None),
        // Nothing is there, rather than something of another era.
        (_, Err(upstream::Error::Status(StatusCode::NOT_FOUND))) => Err(Error::NoEndpoint),
        (Some(Finding::Legacy), _) => Err(Error::OtherEra(Era::Legacy)),
        (Some(Finding::Disjoint), _) => {
            Err(Error::Protocol("it speaks only versions that are not spoken here".to_owned()))
        }
        (_, Err(error)) => Err(error.into()),
        (_, Ok(_)) => Err(Error::Protocol("its answer to `server/discover` says nothing".to_owned())),
    }
}

fn finding(answer: &Result<upstream::Opened, upstream::Error>) -> Option<Finding> {
    match answer {
        Ok(opened) => Some(probe::of_result(&opened.result)),
        Err(upstream::Error::Refused { status, error }) => Some(probe::of_error(status.as_u16(), error)),
        Err(upstream::Error::Status(status)) => Some(probe::of_status(status.as_u16())),
        Err(upstream::Error::Denied(denied)) => Some(probe::of_status(denied.status.as_u16())),
        // It answers, but not as any server of this era.
        Err(upstream::Error::Protocol(_)) => Some(Finding::Legacy),
        Err(_) => None,
    }
}

/// `params` with what a request says of itself.
fn claimed(params: &str, token: Option<&str>) -> String {
    let claim = Claim { capabilities: CAPABILITIES, client_info: GATEWAY_INFO, log_level: None, progress_token: token };
    with_claim(params, &claim)
}

impl Modern {
    /// Whether the server says that it makes tasks.
    ///
    /// # Errors
    /// [`Error::NoTasks`].
    pub fn require_tasks(&self) -> Result<(), Error> {
        let discovered = Object::parse(&self.inner.welcome).unwrap_or_default();
        match discovered.get("capabilities").is_some_and(declares_tasks) {
            true => Ok(()),
            false => Err(Error::NoTasks(self.inner.session.version.as_str())),
        }
    }

    /// Calls a tool and waits for its result, as JSON text, through questions and a task where the server wants them.
    /// Dropping the future cancels a call that has come to no task yet; for one that has, see [`Modern::cancel`].
    ///
    /// # Errors
    /// Any [`Error`]; a tool that fails is a result with `isError`, not an error.
    pub async fn call(&self, tool: &str, arguments: Option<&str>) -> Result<String, Error> {
        let mut answers: Option<String> = None;
        let mut state: Option<Box<str>> = None;
        let mut silent = 0;
        for _ in 0..ROUNDS {
            let result = self.round(tool, arguments, (answers.as_deref(), state.as_deref())).await?;
            match ResultType::of(&result) {
                ResultType::Complete => return Ok(result),
                ResultType::Task => return self.follow(&result).await,
                ResultType::InputRequired => {
                    let asked = InputRequired::read(&result).map_err(|error| Error::Protocol(error.to_string()))?;
                    silent = if asked.requests.is_empty() { silent + 1 } else { 0 };
                    if silent > 0 {
                        // 2026-07-28 MRTR: a state alone asks for patience.
                        tokio::time::sleep(PACE * silent).await;
                    }
                    answers = asking::answers(&self.inner, &asked.requests).await?;
                    state = asked.state;
                }
                ResultType::Unknown => return Err(Error::Protocol("its result is of an unknown type".to_owned())),
            }
        }
        Err(Error::Protocol("it asks again and again".to_owned()))
    }

    /// Makes the call once, with what came of the round before.
    async fn round(
        &self,
        tool: &str,
        arguments: Option<&str>,
        (answers, state): (Option<&str>, Option<&str>),
    ) -> Result<String, Error> {
        let mut headers = HeaderMap::new();
        for mirrors in [false, true] {
            let call = self.new_call();
            let _token = self.inner.token(call);
            let params = call_params(call, tool, arguments, None);
            let mut params = Object::parse(&params).map_err(|defect| Error::protocol(&defect))?;
            if let Some(answers) = answers {
                params.set("inputResponses", answers);
            }
            if let Some(state) = state {
                params.set("requestState", state);
            }
            let params = claimed(&params.to_json(), Some(&call.0.to_string()));
            let sent = self.request(call, ("tools/call", Some(tool)), &params, headers.clone()).await;
            match sent {
                // 2026-07-28 transports, "Custom Headers": the tool's schema says what is to be repeated.
                Err(Error::Server(error)) if error.code == code::HEADER_MISMATCH && !mirrors => {
                    headers = self.mirrored(tool, arguments).await?;
                    if headers.is_empty() {
                        return Err(Error::Server(error));
                    }
                }
                ended => return ended,
            }
        }
        Err(Error::Protocol("it refuses the header fields that its own list of tools asks for".to_owned()))
    }

    /// The header fields for a tool's arguments.
    async fn mirrored(&self, tool: &str, arguments: Option<&str>) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        let standard = standard_headers(HeaderMap::new(), "tools/list", None)?;
        let asking = |cursor: Option<&str>| {
            let params = cursor.map_or_else(|| "{}".to_owned(), page);
            (Some(claimed(&params, None)), standard.clone())
        };
        for listed in self.inner.list_tools(asking).await?.iter().filter(|listed| listed.name == tool) {
            let declaration = Object::parse(&listed.declaration).unwrap_or_default();
            let mirrored = mirror::annotations(declaration.get("inputSchema").unwrap_or("{}"))
                .map_err(|error| Error::Protocol(error.to_string()))?;
            for (name, value) in mirror::headers(&mirrored, arguments) {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                    headers.insert(name, value);
                }
            }
        }
        Ok(headers)
    }

    async fn follow(&self, handle: &str) -> Result<String, Error> {
        let task = Task::read(handle)?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.id.clone());
        self.inner.tell(Event::Created(task.clone()));
        let ended = following::follow(self, task).await;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
        ended
    }

    /// Cancels the task that a call has come to (`tasks/cancel`). Without one there is nothing to do: the future of the
    /// call is dropped, and that cancels it.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn cancel(&self) -> Result<(), Error> {
        let task = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(task) = task else { return Ok(()) };
        self.about_task("tasks/cancel", &task, None).await.map(|_| ())
    }

    /// Sends a `tasks/*` request about a task.
    pub(super) async fn about_task(&self, method: &str, task: &str, answers: Option<&str>) -> Result<String, Error> {
        let params = json!({"taskId": task}).to_string();
        let mut params = Object::parse(&params).map_err(|defect| Error::protocol(&defect))?;
        if let Some(answers) = answers {
            params.set("inputResponses", answers);
        }
        let params = claimed(&params.to_json(), None);
        self.request(self.new_call(), (method, Some(task)), &params, HeaderMap::new()).await
    }

    fn new_call(&self) -> CallId {
        self.inner.new_call()
    }

    async fn request(
        &self,
        call: CallId,
        (method, name): (&str, Option<&str>),
        params: &str,
        headers: HeaderMap,
    ) -> Result<String, Error> {
        let headers = standard_headers(headers, method, name)?;
        self.inner.exchange(&Id::number(call.0), method, Some(params), headers).await
    }
}

/// The fields that every request has (2026-07-28 transports, "Standard Request Headers"; tasks extension, "HTTP headers").
fn standard_headers(mut headers: HeaderMap, method: &str, name: Option<&str>) -> Result<HeaderMap, Error> {
    let field = |text: &str| text.parse::<HeaderValue>().map_err(|_| Error::Protocol("no header field".to_owned()));
    headers.insert("mcp-method", field(method)?);
    if let Some(name) = name {
        headers.insert("mcp-name", field(&mirror::encode(name))?);
    }
    Ok(headers)
}

/// A map of answers as JSON text, from keys and JSON texts.
pub(super) fn responses(answers: &[(Box<str>, String)]) -> String {
    let members: Vec<String> = answers.iter().map(|(key, answer)| format!("{}:{answer}", raw_string(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// The `error` inside of a task that failed, or that it has none.
pub(super) fn failure(task: &Object<'_>) -> Error {
    match task.get("error") {
        Some(error) => Error::Server(super::ServerError::read(error)),
        None => {
            let said = task.get("statusMessage").and_then(string_value).unwrap_or_default();
            Error::Protocol(format!("a task failed without an error: {said}"))
        }
    }
}
