//! An upstream's questions in one call as requests to a legacy client, and what the client's answers come to.
//!
//! The era of the upstream has no answer that says no, except elicitation's `action` (2026-07-28 MRTR): a client that
//! refuses anything else ends the call.

use tokio::time::Instant;

use crate::jsonrpc::{Id, Object, raw_string, string_value};
use crate::mcp::version::ProtocolVersion;
use crate::mcp::{input, project};

/// Before the ids of questions in plain calls.
const QUESTION: &str = "q.";
/// So often the same URL is waited for before the client is asked once more.
const WAITS: u32 = 5;

/// A question that the client has been asked.
#[derive(Debug)]
pub(super) struct Question {
    /// Its number in the call.
    pub(super) number: u32,
    /// Its id in the exchange.
    pub(super) id: Id,
    pub(super) kind: Kind,
    /// What the client knows it by, where it is about a URL.
    pub(super) elicitation_id: Option<Box<str>>,
    /// When nobody waits for its answer any more.
    pub(super) due: Instant,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Form,
    Url(Box<str>),
    Sampling,
    Roots,
}

impl Kind {
    pub(super) fn of(method: &str, params: Option<&str>) -> Option<Self> {
        match method {
            "elicitation/create" => {
                let params = Object::parse(params?).ok()?;
                if params.get("mode") == Some("\"url\"") {
                    Some(Self::Url(string_value(params.get("url")?)?.into()))
                } else {
                    Some(Self::Form)
                }
            }
            "sampling/createMessage" => Some(Self::Sampling),
            "roots/list" => Some(Self::Roots),
            _ => None,
        }
    }

    /// What it is, for people.
    pub(super) const fn as_str(&self) -> &'static str {
        match self {
            Self::Form | Self::Url(_) => "elicitation",
            Self::Sampling => "sampling",
            Self::Roots => "roots",
        }
    }

    /// The answer for the upstream; `None` when there is none that says what the client said.
    pub(super) fn input(&self, result: Option<&str>) -> Option<String> {
        let input = result.and_then(project::input_response);
        match (self, input.filter(|input| input::check_response(self.method(), input).is_ok())) {
            (_, Some(input)) => Some(input),
            (Self::Form | Self::Url(_), None) => Some("{\"action\":\"cancel\"}".to_owned()),
            (Self::Sampling | Self::Roots, None) => None,
        }
    }

    const fn method(&self) -> &'static str {
        match self {
            Self::Form | Self::Url(_) => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }
}

/// Whether an input agrees to what was asked.
pub(super) fn accepts(input: &str) -> bool {
    Object::parse(input).is_ok_and(|input| input.get("action") == Some("\"accept\""))
}

/// The name of a question, unlike any other's in this process.
pub(super) fn question_id(call: u64, number: u32) -> String {
    format!("{QUESTION}{call}.{number}")
}

/// Whether an id is one that only the gateway gives.
pub(super) fn is_question_id(id: &str) -> bool {
    id.starts_with(QUESTION)
}

/// A question's `params` as a client of that version takes them: a token to tell of progress with, and, where it is about
/// a URL, the id that the other era has no more.
pub(super) fn params_for_client(
    params: Option<&str>,
    id: &str,
    elicitation_id: Option<&str>,
    version: ProtocolVersion,
) -> String {
    let mut params = Object::parse(params.unwrap_or("{}")).unwrap_or_default();
    if !version.has_url_elicitation() && params.get("mode") == Some("\"form\"") {
        params.remove("mode");
    }
    if let Some(elicitation_id) = elicitation_id {
        params.set("elicitationId", raw_string(elicitation_id));
    }
    let meta = params.get("_meta").unwrap_or("{}").to_owned();
    let meta = Object::parse(&meta).unwrap_or_default().set("progressToken", raw_string(id)).to_json();
    params.set("_meta", meta).to_json()
}

/// A URL that the client has agreed to open. Agreement says nothing of what came of it: the upstream asks again until it
/// knows (2026-07-28 elicitation, "URL Mode").
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) url: Box<str>,
    pub(super) elicitation_id: Box<str>,
    asked: u32,
}

impl Opened {
    pub(super) fn new(url: Box<str>, elicitation_id: Box<str>) -> Self {
        Self { url, elicitation_id, asked: 0 }
    }

    /// Whether it is too early to ask the client again.
    pub(super) fn is_waited_for(&mut self) -> bool {
        self.asked += 1;
        self.asked <= WAITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_elicitation_can_be_refused() {
        assert_eq!(Kind::Form.input(None).as_deref(), Some(r#"{"action":"cancel"}"#));
        assert_eq!(Kind::Form.input(Some(r#"{"x":1}"#)).as_deref(), Some(r#"{"action":"cancel"}"#));
        assert_eq!(Kind::Sampling.input(None), None);
        assert_eq!(Kind::Roots.input(Some(r#"{"roots":5}"#)), None);
        assert_eq!(
            Kind::Form.input(Some(r#"{"_meta":{},"action":"accept","content":{"n":1.0}}"#)).as_deref(),
            Some(r#"{"action":"accept","content":{"n":1.0}}"#)
        );
        assert_eq!(Kind::Roots.input(Some(r#"{"roots":[]}"#)).as_deref(), Some(r#"{"roots":[]}"#));
    }

    #[test]
    fn a_client_gets_what_its_version_knows() {
        let url = Some(r#"{"mode":"url","message":"m","url":"https://x"}"#);
        assert_eq!(Kind::of("elicitation/create", url), Some(Kind::Url("https://x".into())));
        assert_eq!(
            params_for_client(url, "q.1.1", Some("e"), ProtocolVersion::V2025_11_25),
            r#"{"mode":"url","message":"m","url":"https://x","elicitationId":"e","_meta":{"progressToken":"q.1.1"}}"#
        );
        let form = Some(r#"{"mode":"form","message":"m","requestedSchema":{}}"#);
        assert_eq!(
            params_for_client(form, "q.1.2", None, ProtocolVersion::V2025_06_18),
            r#"{"message":"m","requestedSchema":{},"_meta":{"progressToken":"q.1.2"}}"#
        );
        assert_eq!(Kind::of("vendor/ask", None), None);
    }

    #[test]
    fn the_same_url_is_waited_for_and_then_asked_for_again() {
        let mut opened = Opened::new("https://x".into(), "e".into());
        assert!((0..WAITS).all(|_| opened.is_waited_for()) && !opened.is_waited_for());
    }
}
