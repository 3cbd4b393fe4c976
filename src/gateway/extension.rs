//! `tasks/get`, `tasks/update` and `tasks/cancel` of the tasks extension. Tasks of either dialect are read, answered and
//! cancelled here alike: they are the same records.

use crate::jsonrpc::{self, Object};
use crate::mcp::input::{InputResponse, check_response, responses};
use crate::task::dialect::extension;
use crate::task::{self, ApplyError, Ending, Event, Finish, Outcome, Question, State, Task};

use super::call::{Answer, Call};
use super::rejection::Kind;
use super::streamed::Message;
use super::{Gateway, Request};

impl Gateway {
    /// The task as it is now, with its open questions or what it came to ("Getting Tasks").
    pub(super) async fn extension_get(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        // Nothing changes an ended record any more, so both are of the same version.
        let server = call.route.eras.identity();
        let show = |outcome: Option<&Outcome>| {
            jsonrpc::response(&request.id, &extension::get_result(&task, outcome, server.as_deref()))
        };
        if !matches!(task.state, State::Ended(Ending::Returned { .. } | Ending::Errored)) {
            return Ok(Answer::json(show(None)));
        }
        let gone = || Kind::NoTask(Some(task.id));
        let kept = self.ledger.kept(&task.owner, task.id).await?.ok_or_else(gone)?;
        let message = Message::of(&self.ledger, &task, kept, |outcome| show(Some(outcome))).await?.ok_or_else(gone)?;
        self.note_read(&task).await;
        Ok(message.answer(call.accept))
    }

    /// Takes answers ("Updating Tasks"). What is not open any more, or never was, is ignored; of answers that are none, not
    /// even the good ones beside them are taken.
    pub(super) async fn extension_update(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        let given = given(request)?;
        let mut answers = Vec::new();
        for InputResponse { key, value } in given {
            let Some(question) = extension::question_of(&task, &key) else { continue };
            if let Err(why) = check_response(&question.method, &value) {
                return Err(Kind::Response(format!("`inputResponses.{key}`: {why}").into()));
            }
            answers.push((question, value));
        }
        for (question, value) in answers {
            self.take_answer(&task, question, value).await?;
        }
        Ok(Answer::json(jsonrpc::response(&request.id, extension::ACKNOWLEDGED)))
    }

    async fn take_answer(&self, task: &Task, question: &Question, value: Box<str>) -> Result<(), Kind> {
        let answer = task::Answer::Result(value);
        match self.ledger.apply(&task.owner, task.id, Event::Answer { number: question.number, answer }).await {
            // A client of the other dialect may have it on its screen.
            Ok(_) => self.deliveries.void(task, question),
            // Somebody was faster, or the task has ended.
            Err(ApplyError::Refused { .. } | ApplyError::Fenced | ApplyError::NotFound) => {}
            Err(ApplyError::Store(error)) => return Err(error.into()),
        }
        Ok(())
    }

    /// Ends the task before it answers; one that has ended already is acknowledged too ("Cancelling Tasks").
    pub(super) async fn extension_cancel(&self, call: &Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let task = self.named_task(call, request).await?;
        let id = task.id;
        match self.end_task(&task.owner, id, Finish::cancelled(None)).await {
            Ok(_) | Err(ApplyError::Refused { .. } | ApplyError::Fenced) => {
                Ok(Answer::json(jsonrpc::response(&request.id, extension::ACKNOWLEDGED)))
            }
            Err(ApplyError::NotFound) => Err(Kind::NoTask(Some(id))),
            Err(ApplyError::Store(error)) => Err(error.into()),
        }
    }
}

/// The answers that a request brings.
fn given(request: &Request<'_>) -> Result<Vec<InputResponse>, Kind> {
    let params = Object::parse_optional(request.params.whole).unwrap_or_default();
    if params.repeats("inputResponses") {
        return Err(Kind::Params("`inputResponses` is given twice"));
    }
    let given = params.get("inputResponses").ok_or(Kind::Params("`inputResponses` must be an object"))?;
    responses(given).map_err(Kind::Params)
}
