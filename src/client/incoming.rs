//! What a server sends by itself: progress, status, log messages and questions. Each question is answered once.

use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{self, ErrorObject, Id, Message, Object, Raw, code, string_value};
use crate::mcp::RELATED_TASK;
use crate::mcp::method::Method;

use super::Inner;
use super::task::Task;

/// How many answered questions are remembered, so that a repeated one is known.
const REMEMBERED: usize = 1024;

/// Something the server said.
#[derive(Debug)]
pub enum Event {
    /// A call came further.
    Progress(Progress),
    /// A call has come to a task, whoever wanted that.
    Created(Task),
    /// A task changed; from a poll or a notification.
    Status(Task),
    /// A log message.
    Log {
        /// Its level.
        level: String,
        /// Its data as JSON text.
        data: String,
    },
    /// The server asks the user.
    Question(Question),
}

/// How far a call is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// How far.
    pub progress: f64,
    /// Of how much, where that is known.
    pub total: Option<f64>,
    /// What is being done.
    pub message: Option<String>,
}

/// A form that the server wants filled in. Dropping it dismisses it.
#[derive(Debug)]
pub struct Question {
    /// What to tell the user.
    pub message: String,
    /// The schema of the form as JSON text: an object with flat properties.
    pub schema: String,
    /// The task that waits for it, if any.
    pub task: Option<String>,
    reply: oneshot::Sender<Value>,
    withdrawn: CancellationToken,
}

impl Question {
    pub(super) fn new(
        message: String,
        schema: String,
        task: Option<String>,
        (reply, withdrawn): (oneshot::Sender<Value>, CancellationToken),
    ) -> Self {
        Self { message, schema, task, reply, withdrawn }
    }

    /// Answers with the fields' values.
    pub fn accept(self, content: Map<String, Value>) {
        self.send(Value::from_iter([("action", Value::from("accept")), ("content", Value::Object(content))]));
    }

    /// Refuses to answer.
    pub fn decline(self) {
        self.send(json!({"action": "decline"}));
    }

    /// Resolves when the server no longer wants an answer.
    #[must_use]
    pub fn withdrawn(&self) -> CancellationToken {
        self.withdrawn.clone()
    }

    fn send(self, answer: Value) {
        if self.reply.send(answer).is_err() {
            tracing::debug!("the question was withdrawn");
        }
    }
}

/// Where a question stands.
pub(super) enum Standing {
    Waiting(CancellationToken),
    Answered,
}

impl Inner {
    /// Takes in a message that is no response to a request of ours. Waits only when too many answers are on their way.
    pub(super) async fn take(self: &Arc<Self>, message: Message<'_>) {
        match message {
            Message::Request { id, method, params } => self.question(id, &method, params).await,
            Message::Notification { method, params } => {
                let params = Object::parse_optional(params).unwrap_or_default();
                self.news(&method, &params);
            }
            // A stale answer to a request that nobody waits for.
            Message::Response { .. } => {}
        }
    }

    fn news(&self, method: &str, params: &Object<'_>) {
        let text = |name: &str| params.get(name).and_then(string_value).map(std::borrow::Cow::into_owned);
        let number = |name: &str| params.get(name).and_then(|json| json.parse().ok());
        match Method::parse(method) {
            Method::Progress => {
                let known = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
                let ours = params.get("progressToken").is_some_and(|token| known.iter().any(|known| known == token));
                drop(known);
                if let (true, Some(progress)) = (ours, number("progress")) {
                    self.tell(Event::Progress(Progress { progress, total: number("total"), message: text("message") }));
                }
            }
            Method::TasksStatus => {
                if let Ok(task) = Task::read(&params.to_json()) {
                    self.announced.send_replace(Some(task.clone()));
                    self.tell(Event::Status(task));
                }
            }
            Method::Message => {
                let data = params.get("data").unwrap_or("null").to_owned();
                self.tell(Event::Log { level: text("level").unwrap_or_default(), data });
            }
            Method::Cancelled => {
                if let Some(Ok(id)) = params.get("requestId").map(Id::from_json) {
                    self.withdraw(&id);
                }
            }
            _ => {}
        }
    }

    /// Tells the program, unless it is too slow to listen.
    pub(super) fn tell(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            tracing::debug!("an event found nobody to take it");
        }
    }

    fn withdraw(&self, id: &Id) {
        let questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Standing::Waiting(withdrawn)) = questions.get(id) {
            withdrawn.cancel();
        }
    }

    async fn question(self: &Arc<Self>, id: Id, method: &str, params: Option<Raw<'_>>) {
        let params = Object::parse_optional(params).unwrap_or_default();
        match Method::parse(method) {
            Method::Ping => self.answer_with(&id, jsonrpc::response(&id, "{}")).await,
            Method::ElicitationCreate => self.form(id, &params).await,
            _ => {
                let error = ErrorObject::new(code::METHOD_NOT_FOUND, "this client offers forms only");
                self.answer_with(&id, jsonrpc::error_response(Some(&id), &error)).await;
            }
        }
    }

    /// Posts an answer without holding up the stream that the question came on.
    async fn answer_with(self: &Arc<Self>, id: &Id, body: bytes::Bytes) {
        let Ok(permit) = Arc::clone(&self.answering).acquire_owned().await else { return };
        let (inner, id) = (Arc::clone(self), id.clone());
        self.jobs.spawn("client answer", async move {
            inner.deliver(&id, body).await;
            drop(permit);
        });
    }

    async fn deliver(&self, id: &Id, body: bytes::Bytes) {
        if let Err(error) = self.post(body).await {
            tracing::warn!(%error, "an answer did not reach the server");
            // When the server asks again, it gets one.
            self.questions.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
    }

    async fn form(self: &Arc<Self>, id: Id, params: &Object<'_>) {
        if params.get("mode").is_some_and(|mode| mode != "\"form\"") {
            let error = ErrorObject::new(code::INVALID_PARAMS, "this client offers forms only");
            return self.answer_with(&id, jsonrpc::error_response(Some(&id), &error)).await;
        }
        let withdrawn = self.closed.child_token();
        if !self.register(&id, &withdrawn) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.answering).acquire_owned().await else { return };
        let meta = Object::parse(params.get("_meta").unwrap_or("{}")).unwrap_or_default();
        let related = meta.get(RELATED_TASK).map(str::to_owned);
        let (reply, answer) = oneshot::channel();
        let question = Question::new(
            params.get("message").and_then(string_value).unwrap_or_default().into_owned(),
            params.get("requestedSchema").unwrap_or("{}").to_owned(),
            related.as_deref().and_then(task_id),
            (reply, withdrawn.clone()),
        );
        let inner = Arc::clone(self);
        self.jobs.spawn("client answer", async move {
            inner.put(id, question, answer, withdrawn, related).await;
            drop(permit);
        });
    }

    /// Puts the question to the program and posts what comes of it.
    async fn put(
        &self,
        id: Id,
        question: Question,
        answer: oneshot::Receiver<Value>,
        withdrawn: CancellationToken,
        related: Option<String>,
    ) {
        // When nobody takes the question it is dropped with the error, which dismisses it.
        let asked = async { self.events.send(Event::Question(question)).await.is_ok() };
        let answer = tokio::select! {
            biased;
            () = withdrawn.cancelled() => None,
            answer = async {
                if !asked.await {
                    tracing::debug!("nobody is there to ask");
                }
                answer.await.unwrap_or_else(|_| json!({"action": "cancel"}))
            } => Some(answer),
        };
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), Standing::Answered);
        let Some(answer) = answer else { return };
        let text = answer.to_string();
        let mut result = Object::parse(&text).unwrap_or_default();
        if let Some(related) = related {
            // 2025-11-25 tasks, "Related Task Metadata": all that belongs to a task says so.
            let mut meta = Object::default();
            meta.set(RELATED_TASK, related);
            result.set("_meta", meta.to_json());
        }
        self.deliver(&id, jsonrpc::response(&id, &result.to_json())).await;
    }

    /// Notes a question; `false` for one that is known.
    fn register(&self, id: &Id, withdrawn: &CancellationToken) -> bool {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if questions.contains_key(id) {
            return false;
        }
        if questions.len() >= REMEMBERED {
            questions.retain(|_, standing| matches!(standing, Standing::Waiting(_)));
        }
        questions.insert(id.clone(), Standing::Waiting(withdrawn.clone()));
        true
    }
}

fn task_id(related: &str) -> Option<String> {
    let related = Object::parse(related).ok()?;
    related.get("taskId").and_then(string_value).map(std::borrow::Cow::into_owned)
}
