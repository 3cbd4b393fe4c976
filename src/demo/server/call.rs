//! One call of a tool: a job that the client's connection does not end, with what a tool may do meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{self, ErrorObject, Id, Object, code, string_value};
use crate::mcp::capabilities::Undeclared;

use super::Shared;
use super::modern::{self, Rounds};
use super::protocol::shorten;
use super::session::{Answer, Question, Running, Session};
use super::stream::Stream;
use super::tools::{self, Tool};

/// Log levels, least severe first (2025-11-25 logging, "Log Levels").
pub(super) const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The longest that a tool waits or works.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Why a tool has no ordinary result.
#[derive(Debug)]
pub(super) enum Failure {
    /// A result with `isError`.
    Tool(String),
    /// A JSON-RPC error.
    Error(ErrorObject),
    /// The client must answer questions first, and call again.
    Unanswered,
}

/// A question that was put.
#[derive(Debug)]
pub(super) enum Asked {
    /// As a request to the client, which is yet to be answered.
    Sent(Question),
    /// In an earlier round, with this answer.
    Answered(Value),
    /// In this round.
    InRound,
}

/// A call in hand.
#[derive(Debug)]
pub(super) struct Call {
    pub session: Arc<Session>,
    pub tool: &'static Tool,
    id: Id,
    arguments: String,
    /// The progress token as JSON text.
    token: Option<String>,
    stream: Arc<Stream>,
    gate: watch::Receiver<u64>,
    opened: u64,
    /// How questions are asked where servers send no requests.
    rounds: Option<Rounds>,
}

/// Starts the call that a `tools/call` request asks for, or settles the request with an error.
pub(super) fn start(session: &Arc<Session>, id: Id, params: &Object<'_>, stream: &Arc<Stream>) {
    let refuse = |error: ErrorObject| stream.settle(Some(jsonrpc::error_response(Some(&id), &error)));
    let name = params.get("name").and_then(string_value).unwrap_or_default();
    let Some(tool) = tools::TOOLS.iter().find(|tool| tool.name == name) else {
        return refuse(ErrorObject::new(code::INVALID_PARAMS, format!("Unknown tool: {}", shorten(&name))));
    };
    let arguments = params.get("arguments").unwrap_or("{}");
    if !arguments.starts_with('{') {
        return refuse(ErrorObject::new(code::INVALID_PARAMS, "`arguments` must be an object"));
    }
    let rounds = (!session.terms.version.has_sessions()).then(|| Rounds::read(&session.shared, params)).transpose();
    let rounds = match rounds {
        Ok(rounds) => rounds,
        Err(error) => return refuse(error),
    };
    let Some(running) = session.begin(&id) else {
        return refuse(ErrorObject::new(code::INVALID_REQUEST, "a request with this id is running"));
    };
    let meta = Object::parse(params.get("_meta").unwrap_or("{}")).unwrap_or_default();
    let gate = session.shared.released.subscribe();
    let opened = *gate.borrow();
    let call = Call {
        session: Arc::clone(session),
        tool,
        id,
        arguments: arguments.to_owned(),
        token: meta.get("progressToken").map(str::to_owned),
        stream: Arc::clone(stream),
        gate,
        opened,
        rounds,
    };
    session.shared.jobs.spawn("demo call", run(call, running));
}

async fn run(mut call: Call, running: Running) {
    let shared = Arc::clone(&call.session.shared);
    let name = call.tool.name;
    shared.note(|stats| stats.tools.entry(name).or_default().started += 1);
    let cancelled: CancellationToken = running.cancelled.clone();
    let outcome = tokio::select! {
        biased;
        () = cancelled.cancelled(), if name != "stubborn" => None,
        outcome = tools::run(&mut call) => Some(outcome),
    };
    // Whoever sees the response may use its id again.
    drop(running);
    shared.note(|stats| {
        let of = stats.tools.entry(name).or_default();
        of.finished += 1;
        of.cancelled += u64::from(outcome.is_none());
    });
    // 2025-11-25 cancellation: a cancelled request gets no response.
    let response = outcome.map(|outcome| call.response(outcome));
    call.stream.settle(response);
}

impl Call {
    pub(super) fn shared(&self) -> &Shared {
        &self.session.shared
    }

    fn response(&mut self, outcome: Result<String, Failure>) -> Bytes {
        let result = match outcome {
            Ok(result) => result,
            Err(Failure::Error(error)) => return jsonrpc::error_response(Some(&self.id), &error),
            Err(Failure::Tool(text)) => {
                json!({"content": [{"type": "text", "text": text}], "isError": true}).to_string()
            }
            Err(Failure::Unanswered) => {
                self.rounds.as_mut().map(|rounds| rounds.result(&self.session.shared)).unwrap_or_default()
            }
        };
        match self.rounds {
            Some(_) => jsonrpc::response(&self.id, &modern::complete(&result)),
            None => jsonrpc::response(&self.id, &result),
        }
    }

    /// Reads the tool's arguments.
    pub(super) fn arguments<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        // 2025-11-25 tools, "Error Handling": bad input is the tool's error, so that a model can correct itself.
        serde_json::from_str(&self.arguments)
            .map_err(|error| Failure::Tool(format!("invalid arguments for `{}`: {error}", self.tool.name)))
    }

    /// Reports progress where the caller gave a token.
    pub(super) fn progress(&self, progress: u32, total: u32, message: &str) {
        let Some(token) = &self.token else { return };
        let mut params = Object::default();
        params
            .set("progressToken", token.as_str())
            .set("progress", progress.to_string())
            .set("total", total.to_string())
            .set("message", jsonrpc::raw_string(message));
        self.stream_for_news().push(jsonrpc::notification("notifications/progress", Some(&params.to_json())));
    }

    /// Logs at a level of [`LEVELS`], unless the client wants only worse.
    pub(super) fn log(&self, level: usize, data: &Value) {
        if level < usize::from(self.session.log_level.load(Ordering::Relaxed)) {
            return;
        }
        let level = LEVELS.get(level).copied().unwrap_or("info");
        let params = json!({"level": level, "logger": "demo", "data": data}).to_string();
        self.stream_for_news().push(jsonrpc::notification("notifications/message", Some(&params)));
    }

    /// Puts a question to the client.
    pub(super) fn ask(&mut self, method: &str, params: &str) -> Result<Asked, Failure> {
        if !self.session.can_ask {
            return Err(Failure::Tool(format!("a server without sessions cannot send {method}")));
        }
        let permitted = self.session.terms.client.permit(method, Some(params));
        if let Some(rounds) = &mut self.rounds {
            permitted.map_err(|_| Failure::Error(modern::required(method, params)))?;
            return Ok(rounds.ask(&self.session.shared, method, params).map_or(Asked::InRound, Asked::Answered));
        }
        match permitted {
            Ok(()) => {}
            Err(Undeclared::Method) => return Err(Failure::Tool(format!("the client does not offer {method}"))),
            Err(Undeclared::Feature) => {
                return Err(Failure::Tool(format!("the client does not offer this kind of {method}")));
            }
        }
        let on_get = self.session.shared.options.ask_on_get;
        let stream = if on_get { &self.session.general } else { self.stream_for_news() };
        Ok(Asked::Sent(self.session.ask(stream, method, params)))
    }

    /// Waits so long, or until the test's next release where no time is given.
    pub(super) async fn pause(&mut self, seconds: Option<f64>) {
        let Some(seconds) = seconds else {
            self.opened += 1;
            let wanted = self.opened;
            // The sender lives as long as the server; without it nothing would ever come.
            if self.gate.wait_for(|opened| *opened >= wanted).await.is_err() {
                std::future::pending::<()>().await;
            }
            return;
        };
        let duration = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(LONGEST).min(LONGEST);
        tokio::time::sleep(duration).await;
    }

    /// Where to write what comes before the result.
    fn stream_for_news(&self) -> &Arc<Stream> {
        if self.session.shared.options.always_json { &self.session.general } else { &self.stream }
    }
}

/// The result inside an answer, or why there is none.
pub(super) async fn result_of(asked: Asked) -> Result<Value, Failure> {
    let question = match asked {
        Asked::Sent(question) => question,
        Asked::Answered(answer) => return Ok(answer),
        Asked::InRound => return Err(Failure::Unanswered),
    };
    match question.answer().await {
        Some(Answer::Result(result)) => serde_json::from_str(&result)
            .map_err(|error| Failure::Tool(format!("the client's answer can't be read: {error}"))),
        Some(Answer::Error(error)) => {
            let error = Object::parse(&error).unwrap_or_default();
            let message = error.get("message").and_then(string_value).unwrap_or_default();
            Err(Failure::Tool(format!("the client refused the question: {}", shorten(&message))))
        }
        None => Err(Failure::Tool("the client did not answer".to_owned())),
    }
}
