//! Questions inside results: what an `InputRequiredResult` may hold, and what an answer to each kind of question must look
//! like (2026-07-28 patterns, "Multi Round-Trip Requests").

use std::collections::HashSet;
use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::jsonrpc::{Object, string_value};

use super::capabilities::{ClientCapabilities, Undeclared};

/// The most questions that one result may ask.
pub const MOST_REQUESTS: usize = 128;
/// The methods whose answers may ask ("Supported Requests").
const MAY_ASK: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// What kind of result it is (2026-07-28 basic, "Responses").
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultType {
    /// The answer; also where the member is absent, as in every older version.
    Complete,
    /// Questions.
    InputRequired,
    /// A task, of the extension.
    Task,
    /// One that nobody negotiated.
    Unknown,
}

impl ResultType {
    /// The type of a `result` (JSON text).
    #[must_use]
    pub fn of(result: &str) -> Self {
        match declared_type(result).as_deref() {
            None | Some("\"complete\"") => Self::Complete,
            Some("\"input_required\"") => Self::InputRequired,
            Some("\"task\"") => Self::Task,
            Some(_) => Self::Unknown,
        }
    }
}

/// Whether a `result` says which type it is: modern servers always do.
#[must_use]
pub fn is_typed(result: &str) -> bool {
    declared_type(result).is_some()
}

/// Whether a result, or the message that it is part of, says that it is complete, and says so in the plainest form: such a
/// one need not be read. `false` decides nothing.
#[must_use]
pub fn is_plainly_complete(result: &[u8]) -> bool {
    // Made once: making one costs more than searching a short result.
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"resultType\""));
    let mut places = NAME.find_iter(result);
    let (Some(place), None) = (places.next(), places.next()) else { return false };
    let value = result.get(place + NAME.needle().len()..).and_then(|rest| rest.trim_ascii_start().strip_prefix(b":"));
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"\"complete\""))
}

fn declared_type(result: &str) -> Option<String> {
    let result = Object::parse(result).ok()?;
    let declared = result.get("resultType")?;
    // However it is spelled.
    Some(string_value(declared).map_or_else(|| declared.to_owned(), |text| crate::jsonrpc::raw_string(&text)))
}

/// Whether an answer to the method may ask.
#[must_use]
pub fn may_ask(method: &str) -> bool {
    MAY_ASK.contains(&method)
}

/// The questions of one round, and the state to be sent back with the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequired {
    /// The questions, in the server's order.
    pub requests: Vec<InputRequest>,
    /// `requestState` as JSON text, to be echoed byte for byte; an absent one must stay absent.
    pub state: Option<Box<str>>,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The server's name for it, unique in this round alone.
    pub key: Box<str>,
    /// What is asked for.
    pub method: Box<str>,
    /// Its `params` as JSON text.
    pub params: Option<Box<str>>,
}

/// Why an `InputRequiredResult` can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Neither questions nor state.
    #[error("a result that asks has neither `inputRequests` nor `requestState`")]
    Empty,
    /// `inputRequests` is no map of questions.
    #[error("`inputRequests` is not a map from keys to requests")]
    Shape,
    /// A key stands there twice.
    #[error("`inputRequests` has a key twice")]
    Repeated,
    /// More than are taken.
    #[error("`inputRequests` has more than 128 requests")]
    TooMany,
    /// Something that is no question.
    #[error("`inputRequests` has a request of an unknown method, or without its `params`")]
    Method,
    /// `requestState` is no string.
    #[error("`requestState` is not a string")]
    State,
}

impl InputRequired {
    /// Reads an `InputRequiredResult`.
    ///
    /// # Errors
    /// [`Unusable`]: the server broke the protocol. Whether the client may be asked is another matter, see
    /// [`InputRequired::refused`].
    pub fn read(result: &str) -> Result<Self, Unusable> {
        let result = Object::parse(result).map_err(|_| Unusable::Shape)?;
        let state = result.get("requestState");
        if state.is_some_and(|state| !state.starts_with('"')) {
            return Err(Unusable::State);
        }
        let requests = result.get("inputRequests");
        if state.is_none() && requests.is_none() {
            return Err(Unusable::Empty);
        }
        let requests = requests.map_or(Ok(Vec::new()), read_requests)?;
        Ok(Self { requests, state: state.map(Box::from) })
    }

    /// The first question that a client with these capabilities may not be asked, and why ("Server Requirements" 6).
    #[must_use]
    pub fn refused(&self, client: ClientCapabilities) -> Option<(&InputRequest, Undeclared)> {
        self.requests.iter().find_map(|request| {
            let undeclared = client.permit(&request.method, request.params.as_deref()).err()?;
            Some((request, undeclared))
        })
    }
}

fn read_requests(text: &str) -> Result<Vec<InputRequest>, Unusable> {
    let map = Object::parse(text).map_err(|_| Unusable::Shape)?;
    let mut requests: Vec<InputRequest> = Vec::new();
    for (key, request) in map.iter() {
        if requests.len() == MOST_REQUESTS {
            return Err(Unusable::TooMany);
        }
        if requests.iter().any(|other| *other.key == *key) {
            return Err(Unusable::Repeated);
        }
        requests.push(read_request(key, request)?);
    }
    Ok(requests)
}

fn read_request(key: &str, request: &str) -> Result<InputRequest, Unusable> {
    let request = Object::parse(request).map_err(|_| Unusable::Shape)?;
    let method = request.get("method").and_then(string_value).ok_or(Unusable::Shape)?;
    let params = request.get("params");
    let is_whole = match &*method {
        "elicitation/create" | "sampling/createMessage" => params.is_some_and(is_object),
        "roots/list" => params.is_none_or(is_object),
        _ => false,
    };
    if !is_whole {
        return Err(Unusable::Method);
    }
    Ok(InputRequest { key: key.into(), method: method.into(), params: params.map(Box::from) })
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputResponse {
    /// The question's key.
    pub key: Box<str>,
    /// The bare result as JSON text.
    pub value: Box<str>,
}

/// The answers of a request's `inputResponses` (JSON text).
///
/// # Errors
/// When it is no map, or names a key twice.
pub fn responses(text: &str) -> Result<Vec<InputResponse>, &'static str> {
    let map = Object::parse(text).map_err(|_| "`inputResponses` must be an object")?;
    let mut keys = HashSet::new();
    if !map.iter().all(|(key, _)| keys.insert(key)) {
        return Err("`inputResponses` has a key twice");
    }
    Ok(map.iter().map(|(key, value)| InputResponse { key: key.into(), value: value.into() }).collect())
}

/// Checks the shape of an answer (JSON text) to a question of that method: the bare result, with what every such result
/// has. Whether it fits the question's schema is the server's business.
///
/// # Errors
/// What is wrong with it.
pub fn check_response(method: &str, response: &str) -> Result<(), &'static str> {
    let answer = Object::parse(response).map_err(|_| "an input response must be an object")?;
    let text = |name: &str| answer.get(name).and_then(string_value);
    match method {
        "elicitation/create" => check_elicited(text("action").as_deref(), answer.get("content")),
        "sampling/createMessage" => {
            let role = text("role");
            let content = answer.get("content");
            if !matches!(role.as_deref(), Some("assistant" | "user")) {
                Err("a sampling response needs the `role` `assistant` or `user`")
            } else if !content.is_some_and(|content| content.starts_with(['{', '['])) {
                Err("a sampling response needs `content`")
            } else if text("model").is_none() {
                Err("a sampling response needs the name of the `model`")
            } else {
                Ok(())
            }
        }
        "roots/list" => match answer.get("roots") {
            Some(roots) if roots.starts_with('[') => Ok(()),
            _ => Err("a roots response needs the list `roots`"),
        },
        _ => Err("nothing of this kind was asked"),
    }
}

fn check_elicited(action: Option<&str>, content: Option<&str>) -> Result<(), &'static str> {
    if !matches!(action, Some("accept" | "decline" | "cancel")) {
        return Err("an elicitation response needs the `action` `accept`, `decline` or `cancel`");
    }
    if content.is_some_and(|content| !is_object(content)) {
        return Err("the `content` of an elicitation response must be an object");
    }
    Ok(())
}

fn is_object(json: &str) -> bool {
    json.starts_with('{')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_plainly_complete_is_complete() {
        for plain in [r#"{"resultType":"complete"}"#, r#"{"a":[1],"resultType" :	"complete","b":{}}"#] {
            assert!(is_plainly_complete(plain.as_bytes()) && ResultType::of(plain) == ResultType::Complete);
        }
        for other in [
            "{}",
            r#"{"resultType":"task"}"#,
            r#"{"resultType":"completed"}"#,
            r#"{"resultType":["complete"]}"#,
            r#"{"resultType":"complete","resultType":"task"}"#,
            r#"{"a":{"resultType":"complete"},"resultType":"input_required"}"#,
            r#"{"text":"\"resultType\":\"complete\""}"#,
            r#"{"text":"resultType","x":"complete"}"#,
            r#"["resultType"]"#,
            r#"{"resultType""#,
        ] {
            assert!(!is_plainly_complete(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_result_says_what_it_is_and_an_old_one_is_complete() {
        for (result, kind) in [
            (r#"{"content":[]}"#, ResultType::Complete),
            (r#"{"resultType":"complete"}"#, ResultType::Complete),
            (r#"{"resultType":"input\u005frequired"}"#, ResultType::InputRequired),
            (r#"{"resultType":"task","taskId":"1"}"#, ResultType::Task),
            (r#"{"resultType":"later"}"#, ResultType::Unknown),
            (r#"{"resultType":null}"#, ResultType::Unknown),
            ("[]", ResultType::Complete),
        ] {
            assert_eq!(ResultType::of(result), kind, "{result}");
        }
        assert!(is_typed(r#"{"resultType":"complete"}"#) && !is_typed("{}"));
        assert!(may_ask("prompts/get") && !may_ask("tools/list"));
    }

    #[test]
    fn questions_come_in_their_order_with_state_as_it_is_spelled() {
        let read = InputRequired::read(
            r#"{"resultType":"input_required","requestState":"a\u0062 c","inputRequests":{
                "z":{"method":"elicitation/create","params":{"message":"?","n":1.0}},
                "a":{"method":"roots/list"},
                "m":{"method":"sampling/createMessage","params":{"messages":[]}}}}"#,
        )
        .unwrap();
        assert_eq!(read.state.as_deref(), Some(r#""a\u0062 c""#));
        let shown: Vec<_> = read.requests.iter().map(|r| (&*r.key, &*r.method, r.params.as_deref())).collect();
        assert_eq!(
            shown,
            [
                ("z", "elicitation/create", Some(r#"{"message":"?","n":1.0}"#)),
                ("a", "roots/list", None),
                ("m", "sampling/createMessage", Some(r#"{"messages":[]}"#)),
            ]
        );
        let form = ClientCapabilities { form: true, ..ClientCapabilities::default() };
        assert_eq!(read.refused(form), Some((&read.requests[1], Undeclared::Method)));
        let all = ClientCapabilities::from_bits(0b11111);
        assert_eq!(read.refused(all), None);
        let state_only = InputRequired::read(r#"{"requestState":""}"#).unwrap();
        assert_eq!((state_only.requests.len(), state_only.state.as_deref()), (0, Some(r#""""#)));
        assert_eq!(InputRequired::read(r#"{"inputRequests":{}}"#).unwrap().state, None);
    }

    #[test]
    fn a_result_that_asks_badly_is_unusable() {
        let asks = |requests: &str| InputRequired::read(&format!(r#"{{"inputRequests":{requests}}}"#)).unwrap_err();
        assert_eq!(InputRequired::read("{}"), Err(Unusable::Empty));
        assert_eq!(InputRequired::read(r#"{"requestState":1}"#), Err(Unusable::State));
        for shape in ["[]", "1", r#"{"a":1}"#, r#"{"a":{}}"#, r#"{"a":{"method":1}}"#] {
            assert_eq!(asks(shape), Unusable::Shape, "{shape}");
        }
        for method in [
            r#"{"a":{"method":"tools/call","params":{}}}"#,
            r#"{"a":{"method":"elicitation/create"}}"#,
            r#"{"a":{"method":"sampling/createMessage","params":[]}}"#,
            r#"{"a":{"method":"roots/list","params":7}}"#,
        ] {
            assert_eq!(asks(method), Unusable::Method, "{method}");
        }
        let roots = r#"{"method":"roots/list"}"#;
        assert_eq!(asks(&format!(r#"{{"a":{roots},"\u0061":{roots}}}"#)), Unusable::Repeated);
        let many: Vec<String> = (0..=MOST_REQUESTS).map(|n| format!(r#""{n}":{roots}"#)).collect();
        assert_eq!(asks(&format!("{{{}}}", many.join(","))), Unusable::TooMany);
    }

    #[test]
    fn an_answer_is_the_bare_result_of_its_kind() {
        let (elicitation, sampling, roots) = ("elicitation/create", "sampling/createMessage", "roots/list");
        for (method, good) in [
            (elicitation, r#"{"action":"accept","content":{"a":1}}"#),
            (elicitation, r#"{"action":"decline"}"#),
            (elicitation, r#"{"action":"cancel","vendor":1}"#),
            (sampling, r#"{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}"#),
            (sampling, r#"{"role":"user","content":[],"model":"m","stopReason":"endTurn"}"#),
            (roots, r#"{"roots":[]}"#),
        ] {
            assert_eq!(check_response(method, good), Ok(()), "{good}");
        }
        for (method, bad) in [
            (elicitation, r#"{"action":"yes"}"#),
            (elicitation, r#"{"action":"accept","content":[1]}"#),
            (elicitation, r#"{"result":{"action":"accept"}}"#),
            (elicitation, r#"{"method":"elicitation/create","result":{"action":"accept"}}"#),
            (elicitation, "null"),
            (sampling, r#"{"role":"system","content":{},"model":"m"}"#),
            (sampling, r#"{"role":"user","content":"x","model":"m"}"#),
            (sampling, r#"{"role":"user","content":{}}"#),
            (roots, r#"{"roots":{}}"#),
            (roots, "[]"),
            ("tools/call", "{}"),
        ] {
            assert!(check_response(method, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn responses_are_a_map() {
        let read = responses(r#"{"a":{"action":"accept"},"b":1.0}"#).unwrap();
        let read: Vec<_> = read.iter().map(|response| (&*response.key, &*response.value)).collect();
        assert_eq!(read, [("a", r#"{"action":"accept"}"#), ("b", "1.0")]);
        assert_eq!(responses("{}").unwrap(), []);
        assert!(responses("[]").is_err() && responses(r#"{"a":1,"a":2}"#).is_err());
    }

    proptest! {
        #[test]
        fn nothing_is_too_odd_to_be_read(text in "\\PC*|[\\[\\]{}\":,a-z0-9]{0,40}") {
            drop((InputRequired::read(&text), responses(&text), check_response("elicitation/create", &text)));
            prop_assert!(InputRequired::read(&text).is_err() || ResultType::of(&text) != ResultType::Task);
        }
    }
}
