//! Calls through tasks: the handle, the polls, the result.

use std::time::Duration;

use http::HeaderMap;
use serde_json::json;

use crate::jsonrpc::{Id, Object, string_value};

use super::error::Error;
use super::incoming::Event;
use super::{CallId, Client, call_params};

/// How often to ask when the server does not say.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest and longest that a server may make the client wait between polls.
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    /// At work.
    Working,
    /// Waiting for an answer.
    InputRequired,
    /// Ended with a result.
    Completed,
    /// Ended without, or with an error.
    Failed,
    /// Ended by `tasks/cancel`.
    Cancelled,
}

impl TaskStatus {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "working" => Self::Working,
            "input_required" => Self::InputRequired,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => return None,
        })
    }

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it stays so.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A task as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// What it is doing.
    pub status: TaskStatus,
    /// What the server says about that.
    pub message: Option<String>,
    /// How often to ask.
    pub poll_interval: Duration,
    /// How long the server keeps it from its creation on; `None` for ever.
    pub ttl: Option<Duration>,
}

impl Task {
    /// Reads a task object of either dialect (2025-11-25 tasks, "Task"; tasks extension, "Task").
    pub(super) fn read(json: &str) -> Result<Self, Error> {
        let broken = |what: &str| Error::Protocol(format!("a task {what}"));
        let task = Object::parse(json).map_err(|_| broken("is no object"))?;
        let text = |name: &str| task.get(name).and_then(string_value).map(std::borrow::Cow::into_owned);
        let millis = |name: &str| task.get(name).and_then(|number| number.parse().ok()).map(Duration::from_millis);
        // The two dialects name their times differently.
        let either = |core: &str, extension: &str| millis(extension).or_else(|| millis(core));
        let status = text("status").as_deref().and_then(TaskStatus::parse);
        Ok(Self {
            id: text("taskId").ok_or_else(|| broken("has no taskId"))?,
            status: status.ok_or_else(|| broken("has no status that is known"))?,
            message: text("statusMessage"),
            poll_interval: either("pollInterval", "pollIntervalMs")
                .unwrap_or(POLL_INTERVAL)
                .clamp(POLL_BOUNDS.0, POLL_BOUNDS.1),
            ttl: either("ttl", "ttlMs"),
        })
    }
}

impl Client {
    /// Calls a tool through a task and gives its handle.
    ///
    /// # Errors
    /// [`Error::NoTasks`] where the server has none, [`Error::NoHandle`] where it ran the call all the same, or any
    /// other [`Error`].
    pub async fn create_task(
        &self,
        call: CallId,
        tool: &str,
        arguments: Option<&str>,
        ttl: Option<Duration>,
    ) -> Result<Task, Error> {
        if !self.has_tasks() {
            return Err(Error::NoTasks(self.version().as_str()));
        }
        let ttl = ttl.map(|ttl| format!("{{\"ttl\":{}}}", ttl.as_millis()));
        let params = call_params(call, tool, arguments, Some(ttl.as_deref().unwrap_or("{}")));
        let result = self.inner.request(&Id::number(call.0), "tools/call", Some(&params)).await?;
        let created = Object::parse(&result).map_err(|defect| Error::protocol(&defect))?;
        Task::read(created.get("task").ok_or(Error::NoHandle)?)
    }

    /// Asks how a task is (`tasks/get`).
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        Task::read(&self.inner.repeat("tasks/get", Some(&named(id)), HeaderMap::new()).await?)
    }

    /// Waits for a task's result (`tasks/result`), as JSON text.
    ///
    /// # Errors
    /// Any [`Error`]; a call that ended with a JSON-RPC error gives that.
    pub async fn task_result(&self, id: &str) -> Result<String, Error> {
        self.inner.repeat("tasks/result", Some(&named(id)), HeaderMap::new()).await
    }

    /// Cancels a task (`tasks/cancel`).
    ///
    /// # Errors
    /// Any [`Error`]; an ended task can't be cancelled.
    pub async fn cancel_task(&self, id: &str) -> Result<Task, Error> {
        let request = Id::number(self.new_call().0);
        Task::read(&self.inner.request(&request, "tasks/cancel", Some(&named(id))).await?)
    }

    /// Follows a task to its end and fetches its result, as JSON text. Progress under the call's token, changes of
    /// status and questions come through the events.
    ///
    /// # Errors
    /// As [`Client::task_result`].
    pub async fn follow(&self, call: CallId, task: Task) -> Result<String, Error> {
        let _token = self.inner.token(call);
        let mut task = task;
        loop {
            while task.status == TaskStatus::Working {
                task = self.next_poll(&task).await?;
            }
            match self.await_result(&mut task).await {
                // Connections end, also those that wait for a result. The task goes on.
                Err(error) if error.is_passing() => task = self.next_poll(&task).await?,
                ended => return ended,
            }
        }
    }

    /// Waits on `tasks/result`, where the questions come if nowhere else (2025-11-25 tasks, "Input Required Status"),
    /// and goes on to ask how the task is.
    async fn await_result(&self, task: &mut Task) -> Result<String, Error> {
        let request = Id::number(self.new_call().0);
        let params = named(&task.id);
        let mut result = std::pin::pin!(self.inner.request(&request, "tasks/result", Some(&params)));
        while !task.status.is_final() {
            tokio::select! {
                biased;
                result = &mut result => return result,
                polled = self.next_poll(task) => *task = polled?,
            }
        }
        result.await
    }

    /// Asks again when it is time, or at once when the server has announced another status.
    async fn next_poll(&self, task: &Task) -> Result<Task, Error> {
        let mut announced = self.inner.announced.subscribe();
        let differs =
            |now: &Option<Task>| now.as_ref().is_some_and(|now| now.id == task.id && now.status != task.status);
        let woken = async { announced.wait_for(differs).await.is_ok() };
        tokio::select! {
            () = tokio::time::sleep(task.poll_interval) => {}
            // Each announcement makes one poll.
            _ = woken => {
                self.inner.announced.send_replace(None);
            }
        }
        let now = self.task(&task.id).await?;
        if now != *task {
            self.inner.tell(Event::Status(now.clone()));
        }
        Ok(now)
    }
}

fn named(id: &str) -> String {
    json!({"taskId": id}).to_string()
}
