//! The core dialect of 2025-11-25: `params.task`, the Task object, and where a message names its task.

use std::fmt::Write as _;
use std::time::Duration;

use crate::jsonrpc::{Object, Raw, raw_string, string_value};
use crate::mcp::input::is_typed;
use crate::mcp::project::{self, result_for_legacy};
use crate::mcp::{MODEL_IMMEDIATE_RESPONSE, RELATED_TASK, RELATED_TASK_WORD, may_hold};
use crate::task::{Outcome, Question, Task, TaskId};

/// The ttl that `params.task` asks for; `None` when it does not say.
///
/// The schema wants an integer and the prose a number: a fraction is rounded down, `null` counts as absent, and what is
/// longer than any ttl is cut by policy (2025-11-25 tasks, "Creating Tasks").
///
/// # Errors
/// What is wrong with it.
pub fn requested_ttl(task: &str) -> Result<Option<Duration>, &'static str> {
    let task = Object::parse(task).map_err(|_| "`task` must be an object")?;
    if task.repeats("ttl") {
        return Err("`task.ttl` is given twice");
    }
    let Some(ttl) = task.get("ttl").filter(|ttl| *ttl != "null") else { return Ok(None) };
    let wrong = "`task.ttl` must be a number of milliseconds, zero or more";
    let ttl: f64 = serde_json::from_str(ttl).map_err(|_| wrong)?;
    if ttl.is_sign_negative() && ttl != 0.0 {
        return Err(wrong);
    }
    // A cast to an integer rounds towards zero and stops at the largest.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and the sign was checked")]
    Ok(Some(Duration::from_millis(ttl as u64)))
}

/// The Task object: every member present, integers in milliseconds, nothing null ("Task"; older generated schemas
/// refuse a null ttl).
#[must_use]
pub fn task(task: &Task) -> String {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut out = String::with_capacity(320);
    write!(
        out,
        "{{\"taskId\":\"{}\",\"status\":\"{}\",\"createdAt\":\"{}\",\"lastUpdatedAt\":\"{}\",\"ttl\":{},\"pollInterval\":{}",
        task.id,
        task.state.status().as_str(),
        task.created_at,
        task.updated_at,
        millis(task.ttl),
        millis(task.poll_interval),
    )
    .expect("a String takes everything");
    if let Some(message) = &task.status_message {
        out.push_str(",\"statusMessage\":");
        out.push_str(&raw_string(message));
    }
    out.push('}');
    out
}

/// `CreateTaskResult`: the task nested, its id once more as related-task metadata, and the text for the model if there
/// is one ("Creating Tasks"; "Model Immediate Response").
#[must_use]
pub fn create_result(created: &Task, immediate_response: Option<&str>) -> String {
    let immediate = immediate_response
        .map(|text| format!(",\"{MODEL_IMMEDIATE_RESPONSE}\":{}", raw_string(text)))
        .unwrap_or_default();
    format!("{{\"task\":{},\"_meta\":{{\"{RELATED_TASK}\":{}{immediate}}}}}", task(created), related(created.id))
}

/// `ListTasksResult` ("Listing Tasks").
#[must_use]
pub fn list_result<'a>(tasks: impl Iterator<Item = &'a Task>, next_cursor: Option<&str>) -> String {
    let tasks: Vec<String> = tasks.map(task).collect();
    let next = next_cursor.map(|cursor| format!(",\"nextCursor\":{}", raw_string(cursor))).unwrap_or_default();
    format!("{{\"tasks\":[{}]{next}}}", tasks.join(","))
}

/// The value of the related-task key.
#[must_use]
pub fn related(id: TaskId) -> String {
    format!("{{\"taskId\":\"{id}\"}}")
}

/// An object (`params` or `result`) with the related task named in its `_meta`; all else as it was. What is no object
/// stays as it is: there is no place for it.
#[must_use]
pub fn with_related(object: Option<&str>, id: TaskId) -> String {
    let Ok(mut object) = Object::parse(object.unwrap_or("{}")) else { return object.unwrap_or("{}").to_owned() };
    let meta = object.get("_meta").unwrap_or("{}").to_owned();
    let mut meta = Object::parse(&meta).unwrap_or_default();
    meta.set(RELATED_TASK, related(id));
    object.set("_meta", meta.to_json());
    object.to_json()
}

/// Whether a message's metadata (JSON text) names the task that it belongs to, however the name is escaped.
#[must_use]
pub fn has_related(meta: &str) -> bool {
    may_hold(meta, RELATED_TASK_WORD) && Object::parse(meta).is_ok_and(|meta| meta.get(RELATED_TASK).is_some())
}

/// An object without the related task in its `_meta`, and without a `_meta` that held nothing else.
#[must_use]
pub fn without_related(object: &str) -> String {
    let Ok(mut parsed) = Object::parse(object) else { return object.to_owned() };
    let Some(meta) = parsed.get("_meta").map(str::to_owned) else { return object.to_owned() };
    let Ok(mut meta) = Object::parse(&meta) else { return object.to_owned() };
    if meta.get(RELATED_TASK).is_none() {
        return object.to_owned();
    }
    meta.remove(RELATED_TASK);
    if meta.is_empty() {
        parsed.remove("_meta")
    } else {
        parsed.set("_meta", meta.to_json())
    };
    parsed.to_json()
}

/// The payload of the answer to `tasks/result`: a result with the related task named and nothing else changed, or the
/// very error that the call got, which has no place for metadata ("Retrieving Task Results"). A result of the other era
/// loses what only that has; `wraps`: the tool's output schema was shown wrapped.
#[must_use]
pub fn outcome(outcome: &Outcome, id: TaskId, wraps: bool) -> Payload {
    match outcome {
        Outcome::Result(result) if is_typed(result) => {
            let result = result_for_legacy("tools/call", result, wraps);
            Payload::Result(with_related(result.as_deref(), id))
        }
        Outcome::Result(result) => Payload::Result(with_related(Some(result), id)),
        Outcome::Error(error) => Payload::Error(error.as_ref().into()),
    }
}

/// Whether an outcome is a result of the other era with structured content, which may have to be wrapped.
#[must_use]
pub fn is_translated(outcome: &Outcome) -> bool {
    let Outcome::Result(result) = outcome else { return false };
    is_typed(result) && result.contains("structuredContent")
}

/// What an answer carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// For the `result` member.
    Result(String),
    /// For the `error` member.
    Error(String),
}

/// The task that a `taskId` member names; `None` for anything that is no id that was ever given out.
#[must_use]
pub fn task_id(task_id: Option<Raw<'_>>) -> Option<TaskId> {
    TaskId::parse(&string_value(task_id?.get())?)
}

/// The id under which a question is put to a client: it names the task, so that an answer finds it wherever it arrives.
#[must_use]
pub fn question_id(id: TaskId, number: u32) -> String {
    format!("tg.{id}.{number}")
}

/// The parameters of a question as they are put to a client. A URL that a server of the other era wants visited gets the id
/// that it is known by here: the question's own (2025-11-25 elicitation, "URL Mode Elicitation Requests").
#[must_use]
pub fn question_params(question: &Question, id: TaskId) -> String {
    let params = question.params.as_deref();
    let has_id = params.and_then(|params| Object::parse(params).ok()?.get("elicitationId").map(|_| ())).is_some();
    if has_id {
        return with_related(params, id);
    }
    let params = project::question_params(&question.method, params, || question_id(id, question.number));
    with_related(params.as_deref(), id)
}

/// The reverse of [`question_id`].
#[must_use]
pub fn parse_question_id(text: &str) -> Option<(TaskId, u32)> {
    let (id, number) = text.strip_prefix("tg.")?.rsplit_once('.')?;
    Some((TaskId::parse(id)?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_spelling_of_a_ttl() {
        let millis = |text: &str| requested_ttl(text).map(|ttl| ttl.map(|ttl| ttl.as_millis()));
        assert_eq!(millis("{}"), Ok(None));
        assert_eq!(millis(r#"{"ttl":null}"#), Ok(None));
        assert_eq!(millis(r#"{"ttl":0}"#), Ok(Some(0)));
        assert_eq!(millis(r#"{"ttl":-0}"#), Ok(Some(0)));
        assert_eq!(millis(r#"{"ttl":1.5}"#), Ok(Some(1)));
        assert_eq!(millis(r#"{"ttl":60000}"#), Ok(Some(60_000)));
        assert_eq!(millis(r#"{"ttl":1e308}"#), Ok(Some(u128::from(u64::MAX))));
        for wrong in [
            r#"{"ttl":-1}"#,
            r#"{"ttl":"60000"}"#,
            r#"{"ttl":[]}"#,
            r#"{"ttl":true}"#,
            r#"{"ttl":1,"ttl":2}"#,
            "[]",
            "5",
        ] {
            assert!(requested_ttl(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_the_task_and_changes_nothing_else() {
        let id = TaskId::random();
        let text = format!(r#"{{"content":[],"zz":1.10,"_meta":{{"x":1E3,"{RELATED_TASK}":{{"taskId":"{id}"}}}}}}"#);
        assert_eq!(with_related(Some(r#"{"content":[],"zz":1.10,"_meta":{"x":1E3}}"#), id), text);
        assert_eq!(without_related(&text), r#"{"content":[],"zz":1.10,"_meta":{"x":1E3}}"#);
        let bare = with_related(None, id);
        assert_eq!(without_related(&bare), "{}");
        assert_eq!(without_related("{\"_meta\": 5}"), "{\"_meta\": 5}");
    }

    #[test]
    fn question_ids_are_read_back() {
        let id = TaskId::random();
        assert_eq!(parse_question_id(&question_id(id, 7)), Some((id, 7)));
        for other in ["", "tg.", "tg.x.1", "7", &format!("tg.{id}."), &format!("tg.{id}.-1")] {
            assert_eq!(parse_question_id(other), None, "{other}");
        }
    }
}
