//! What an upstream hears whose question nobody can be asked, and what its client hears whose capability was missing.

use std::borrow::Cow;

use crate::jsonrpc::{ErrorObject, Object, code};
use crate::task::Answer;

/// How the specification lets a client say no to a sampling request (2025-11-25 sampling, "Error Handling").
const USER_REJECTED: i64 = -1;

/// The answer to a question that was put to nobody: what a client would say that does not want to.
pub(in crate::gateway) fn refusal(method: &str) -> Answer {
    let error = |code, message| Answer::Error(ErrorObject::new(code, message).to_json().into());
    match method {
        "elicitation/create" => Answer::Result("{\"action\":\"cancel\"}".into()),
        "sampling/createMessage" => error(USER_REJECTED, "User rejected sampling request"),
        "roots/list" => error(code::INTERNAL_ERROR, "No client can be asked for its roots now"),
        _ => error(code::METHOD_NOT_FOUND, "The client does not serve this method"),
    }
}

/// What a client must declare to be asked this, as a `ClientCapabilities` object in JSON; `None` for what is no question.
pub(super) fn required(method: &str, params: Option<&str>) -> Option<Cow<'static, str>> {
    let params = Object::parse(params.unwrap_or("{}")).unwrap_or_default();
    let required = match method {
        "elicitation/create" if params.get("mode") == Some("\"url\"") => r#"{"elicitation":{"url":{}}}"#,
        "elicitation/create" => r#"{"elicitation":{"form":{}}}"#,
        "sampling/createMessage" if params.get("tools").is_some() || params.get("toolChoice").is_some() => {
            r#"{"sampling":{"tools":{}}}"#
        }
        "sampling/createMessage" => r#"{"sampling":{}}"#,
        "roots/list" => r#"{"roots":{}}"#,
        _ => return None,
    };
    Some(required.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_to_the_level_that_is_needed() {
        let named = |method, params| required(method, params).unwrap_or_default().into_owned();
        assert_eq!(named("elicitation/create", Some(r#"{"mode":"url"}"#)), r#"{"elicitation":{"url":{}}}"#);
        assert_eq!(named("elicitation/create", Some(r#"{"mode":"form"}"#)), r#"{"elicitation":{"form":{}}}"#);
        assert_eq!(named("elicitation/create", None), r#"{"elicitation":{"form":{}}}"#);
        assert_eq!(named("sampling/createMessage", Some(r#"{"tools":[]}"#)), r#"{"sampling":{"tools":{}}}"#);
        assert_eq!(named("sampling/createMessage", Some("{}")), r#"{"sampling":{}}"#);
        assert_eq!(named("roots/list", None), r#"{"roots":{}}"#);
        assert_eq!(required("vendor/ask", None), None);
    }
}
