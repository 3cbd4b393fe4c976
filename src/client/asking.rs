//! Questions of the modern era: they come inside results and are answered with the next request.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::jsonrpc::{Object, string_value};
use crate::mcp::input::InputRequest;

use super::incoming::Question;
use super::modern::responses;
use super::{Error, Event, Inner};

/// Puts the questions of a round to the program, one after the other; the answers as JSON text, where there are any.
pub(super) async fn answers(inner: &Arc<Inner>, requests: &[InputRequest]) -> Result<Option<String>, Error> {
    let mut answers = Vec::new();
    for request in requests {
        let params = request.params.as_deref().unwrap_or("{}");
        let answer = ask(inner, (&request.method, params), None, &inner.closed.child_token()).await?;
        answers.push((request.key.clone(), answer));
    }
    Ok((!answers.is_empty()).then(|| responses(&answers)))
}

/// Puts one question to the program. Cancelled when the answer is no longer wanted, or when nobody takes it.
pub(super) async fn ask(
    inner: &Inner,
    (method, params): (&str, &str),
    task: Option<&str>,
    withdrawn: &CancellationToken,
) -> Result<String, Error> {
    let params = Object::parse(params).map_err(|defect| Error::protocol(&defect))?;
    // 2026-07-28 basic, "Capabilities": nothing else was declared.
    if method != "elicitation/create" || params.get("mode").is_some_and(|mode| mode != "\"form\"") {
        return Err(Error::Protocol(format!("it asks for what this client does not offer: {method}")));
    }
    let (reply, answer) = oneshot::channel();
    let question = Question::new(
        params.get("message").and_then(string_value).unwrap_or_default().into_owned(),
        params.get("requestedSchema").unwrap_or("{}").to_owned(),
        task.map(str::to_owned),
        (reply, withdrawn.clone()),
    );
    let asked = async {
        // When nobody takes the question it is dropped with the error, which dismisses it.
        if inner.events.send(Event::Question(question)).await.is_err() {
            tracing::debug!("nobody is there to ask");
        }
        answer.await.ok()
    };
    let answer: Option<Value> = withdrawn.run_until_cancelled(asked).await.flatten();
    Ok(answer.unwrap_or_else(|| json!({"action": "cancel"})).to_string())
}
