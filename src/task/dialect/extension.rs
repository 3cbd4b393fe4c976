//! The dialect of the modern era, the extension `io.modelcontextprotocol/tasks`: flat tasks, with the outcome and the open
//! questions inside.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use crate::jsonrpc::{ErrorObject, Object, code, raw_string, string_value};
use crate::mcp::envelope::SERVER_INFO;
use crate::mcp::input::is_typed;
use crate::mcp::project::{error_for_modern, input_request, result_for_modern};
use crate::task::{Ending, Outcome, Question, State, Task};

use super::core::without_related;

/// The answer to `tasks/update` and `tasks/cancel`: nothing of the task (tasks extension, "Updating Tasks", "Cancelling
/// Tasks").
pub const ACKNOWLEDGED: &str = r#"{"resultType":"complete"}"#;

/// What stands in `statusMessage` of a failure that says nothing itself.
const FAILED: &str = "The call failed";

/// `CreateTaskResult`, the one shape with `resultType: "task"` ("Creating Tasks"). `server` is the `Implementation` of the
/// endpoint's server as JSON text, where it is known.
#[must_use]
pub fn create_result(created: &Task, server: Option<&str>) -> String {
    let mut out = String::from("{\"resultType\":\"task\",");
    push_members(&mut out, created, None);
    push_server(&mut out, server);
    out.push('}');
    out
}

/// The result of `tasks/get` ("Getting Tasks"). `outcome` is what an ended task came to, `server` as in [`create_result`].
#[must_use]
pub fn get_result(task: &Task, outcome: Option<&Outcome>, server: Option<&str>) -> String {
    let mut out = String::from("{\"resultType\":\"complete\",");
    push_detailed(&mut out, task, outcome);
    push_server(&mut out, server);
    out.push('}');
    out
}

/// Who answers (2026-07-28 basic, "Result"): results should say it. Acknowledgements are bare all the same, since clients
/// take nothing else there.
fn push_server(out: &mut String, server: Option<&str>) {
    if let Some(server) = server {
        push_member(out, "_meta", &format!("{{\"{SERVER_INFO}\":{server}}}"));
    }
}

/// `DetailedTask`, as notifications carry it ("Task Notifications").
#[must_use]
pub fn detailed(task: &Task, outcome: Option<&Outcome>) -> String {
    let mut out = String::from("{");
    push_detailed(&mut out, task, outcome);
    out.push('}');
    out
}

/// The members that every shape has; all of them, integers, nothing null.
fn push_members(out: &mut String, task: &Task, message: Option<&str>) {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    write!(
        out,
        "\"taskId\":\"{}\",\"status\":\"{}\",\"createdAt\":\"{}\",\"lastUpdatedAt\":\"{}\",\"ttlMs\":{},\"pollIntervalMs\":{}",
        task.id,
        status(&task.state),
        task.created_at,
        task.updated_at,
        millis(task.ttl),
        millis(task.poll_interval),
    )
    .expect("a String takes everything");
    if let Some(message) = task.status_message.as_deref().or(message) {
        push_member(out, "statusMessage", &raw_string(message));
    }
}

/// Those, and what the status dictates.
fn push_detailed(out: &mut String, task: &Task, outcome: Option<&Outcome>) {
    match (&task.state, outcome) {
        (State::Ended(Ending::Returned { .. }), Some(Outcome::Result(result))) => {
            push_members(out, task, None);
            push_member(out, "result", &inlined(result));
        }
        (State::Ended(Ending::Returned { .. } | Ending::Errored), outcome) => {
            let error = match outcome {
                Some(Outcome::Error(error)) => error_for_modern(error),
                // Only a store that lost what it had can bring this about.
                _ => Cow::Owned(ErrorObject::new(code::INTERNAL_ERROR, FAILED).to_json()),
            };
            let message =
                Object::parse(&error).ok().and_then(|error| Some(string_value(error.get("message")?)?.into()));
            let message: String = message.unwrap_or_else(|| FAILED.to_owned());
            push_members(out, task, Some(&message));
            push_member(out, "error", &error);
        }
        (State::Ended(Ending::Cancelled) | State::Queued, _) => push_members(out, task, None),
        (State::Held(asked), _) => {
            push_members(out, task, None);
            if asked.unanswered().next().is_some() {
                push_member(out, "inputRequests", &input_requests(asked.unanswered()));
            }
        }
    }
}

fn push_member(out: &mut String, name: &str, json: &str) {
    out.push_str(",\"");
    out.push_str(name);
    out.push_str("\":");
    out.push_str(json);
}

/// The status's word. What a tool says of its own failure is a completed task here, in the other dialect a failed one
/// ("Task Status").
fn status(state: &State) -> &'static str {
    match state {
        State::Queued => "working",
        State::Held(asked) if asked.unanswered().next().is_some() => "input_required",
        State::Held(_) => "working",
        State::Ended(Ending::Returned { .. }) => "completed",
        State::Ended(Ending::Errored) => "failed",
        State::Ended(Ending::Cancelled) => "cancelled",
    }
}

/// What the direct call would have returned: a result of this era, whichever its server speaks, that names no task. Who
/// answered stands beside it and not inside: what an ended task came to is the same whenever and however it is told.
fn inlined(result: &str) -> Cow<'_, str> {
    if is_typed(result) {
        return Cow::Owned(without_related(result));
    }
    result_for_modern("tools/call", result, None).map_or(Cow::Borrowed(result), Cow::Owned)
}

/// Every question that is open ("Input Required").
fn input_requests<'a>(questions: impl Iterator<Item = &'a Question>) -> String {
    let entries = questions.filter_map(|question| {
        let request = input_request(&question.method, question.params.as_deref())?;
        Some(format!("\"{}\":{request}", key(question.number)))
    });
    format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
}

/// The key under which a question is shown. Numbers never repeat within a task, and neither do keys.
fn key(number: u32) -> String {
    format!("q{number}")
}

/// The question that a key names among those of a task; none for a key that is not, or no longer, shown.
#[must_use]
pub fn question_of<'a>(task: &'a Task, key: &str) -> Option<&'a Question> {
    let State::Held(asked) = &task.state else { return None };
    asked.unanswered().find(|question| self::key(question.number) == key)
}

#[cfg(test)]
mod tests;
