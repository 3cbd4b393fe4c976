//! A task of the extension, followed to its end: polled as the server says, its questions answered on the way.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{Object, string_value};
use crate::mcp::input::{InputRequest, InputRequired};

use super::asking;
use super::modern::{Modern, failure, responses};
use super::{Error, Event, PATIENCE, TRIES, Task, TaskStatus};

/// Polls until the end; the result that the call would have had, as JSON text.
pub(super) async fn follow(client: &Modern, created: Task) -> Result<String, Error> {
    let mut newest = created;
    let mut asked = Asked::default();
    loop {
        // A question that is answered makes the next poll due.
        tokio::select! {
            () = tokio::time::sleep(newest.poll_interval) => {}
            answered = asked.next() => answered?,
        }
        let polled = poll(client, &newest.id).await?;
        let now = Task::read(&polled)?;
        if now != newest {
            client.inner.tell(Event::Status(now.clone()));
        }
        let task = Object::parse(&polled).map_err(|defect| Error::protocol(&defect))?;
        match now.status {
            TaskStatus::Working => asked.keep(&[]),
            TaskStatus::InputRequired => asked.ask(client, &now.id, &polled)?,
            TaskStatus::Completed => {
                let result = task.get("result").map(str::to_owned);
                return result.ok_or_else(|| Error::Protocol("a task was completed without a result".to_owned()));
            }
            TaskStatus::Failed => return Err(failure(&task)),
            TaskStatus::Cancelled => {
                let said = task.get("statusMessage").and_then(string_value).unwrap_or_default();
                return Err(Error::Cancelled(said.into_owned()));
            }
        }
        newest = now;
    }
}

/// `tasks/get`, also when the connection breaks: the task goes on.
async fn poll(client: &Modern, id: &str) -> Result<String, Error> {
    let mut tries = 0;
    loop {
        match client.about_task("tasks/get", id, None).await {
            Err(error) if error.is_passing() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PATIENCE).await;
            }
            ended => return ended,
        }
    }
}

/// The questions of a task that were put. A key stands for one question in the whole life of the task (tasks extension,
/// "Input Required"), so each is put once.
#[derive(Default)]
struct Asked<'a> {
    known: HashMap<Box<str>, CancellationToken>,
    answering: FuturesUnordered<BoxFuture<'a, Result<(), Error>>>,
}

impl<'a> Asked<'a> {
    /// Puts those that are new and withdraws those that are gone.
    fn ask(&mut self, client: &'a Modern, task: &str, polled: &str) -> Result<(), Error> {
        let required = InputRequired::read(polled).map_err(|error| Error::Protocol(error.to_string()))?;
        self.keep(&required.requests);
        for request in required.requests {
            if self.known.contains_key(&request.key) {
                continue;
            }
            let withdrawn = client.inner.closed.child_token();
            self.known.insert(request.key.clone(), withdrawn.clone());
            let task = task.to_owned();
            self.answering.push(Box::pin(async move { answer(client, &task, &request, &withdrawn).await }));
        }
        Ok(())
    }

    fn keep(&self, wanted: &[InputRequest]) {
        for (key, withdrawn) in &self.known {
            if !wanted.iter().any(|request| request.key == *key) {
                withdrawn.cancel();
            }
        }
    }

    /// Waits until an answer has arrived.
    async fn next(&mut self) -> Result<(), Error> {
        match self.answering.next().await {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }
}

async fn answer(
    client: &Modern,
    task: &str,
    request: &InputRequest,
    withdrawn: &CancellationToken,
) -> Result<(), Error> {
    let params = request.params.as_deref().unwrap_or("{}");
    let answer = asking::ask(&client.inner, (&request.method, params), Some(task), withdrawn).await?;
    if withdrawn.is_cancelled() {
        return Ok(());
    }
    let answers = responses(&[(request.key.clone(), answer)]);
    client.about_task("tasks/update", task, Some(&answers)).await.map(|_| ())
}
