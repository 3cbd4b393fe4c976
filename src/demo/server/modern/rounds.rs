//! Questions in the modern era: a call ends with `input_required` and is made again with the answers (2026-07-28
//! "Multi Round-Trip Requests"). The tool runs from its beginning each time; what was answered it gets at once.

use serde_json::{Map, Value, json};

use crate::jsonrpc::{ErrorObject, Object, code, string_value};

use super::super::Shared;
use super::state::State;

/// The rounds of one call, as seen from the newest.
#[derive(Debug)]
pub(in super::super) struct Rounds {
    /// Which call it is: the state is good for this one only.
    call: String,
    state: State,
    /// The answers that came with this request.
    given: Map<String, Value>,
    /// The questions of this round, by key.
    asking: Map<String, Value>,
    /// Their keys by their places in the call.
    keys: Vec<(usize, String)>,
    /// The place of the next question.
    next: usize,
}

impl Rounds {
    /// Reads what a request brings from earlier rounds.
    ///
    /// # Errors
    /// When it was changed on the way, belongs to another call, or is malformed.
    pub(in super::super) fn read(shared: &Shared, params: &Object<'_>) -> Result<Self, ErrorObject> {
        let invalid = |text: &str| {
            shared.note(|stats| stats.refused += 1);
            ErrorObject::new(code::INVALID_PARAMS, text)
        };
        let arguments: Value = serde_json::from_str(params.get("arguments").unwrap_or("{}")).unwrap_or_default();
        let call = format!("{} {arguments}", params.get("name").unwrap_or_default());
        let given = match params.get("inputResponses").map(serde_json::from_str::<Map<String, Value>>) {
            None => Map::new(),
            Some(Ok(given)) if given.values().all(Value::is_object) => given,
            Some(_) => return Err(invalid("`inputResponses` must be an object of objects")),
        };
        let state = match params.get("requestState").map(string_value) {
            None if given.is_empty() || shared.options.no_request_state => State::default(),
            None => return Err(invalid("`requestState` is missing")),
            Some(_) if shared.options.no_request_state => return Err(invalid("`requestState` was never given out")),
            Some(text) => text
                .and_then(|text| shared.states.read(&call, &text))
                .ok_or_else(|| invalid("`requestState` is not what was given out for this call"))?,
        };
        Ok(Self { call, state, given, asking: Map::new(), keys: Vec::new(), next: 0 })
    }

    /// Puts a question; its answer where it has come already.
    pub(in super::super) fn ask(&mut self, shared: &Shared, method: &str, params: &str) -> Option<Value> {
        let place = self.next;
        self.next += 1;
        if let Some(answer) = self.state.answers.get(&place) {
            return Some(answer.clone());
        }
        let usual = format!("q{}", place + 1);
        let key = self.state.asked.get(&place).unwrap_or(&usual);
        if let Some(answer) = self.given.get(key) {
            shared.note(|stats| stats.answers += 1);
            self.state.answers.insert(place, answer.clone());
            return Some(answer.clone());
        }
        let key = if shared.options.reuse_keys { format!("q{}", self.keys.len() + 1) } else { usual };
        let params: Value = serde_json::from_str(&without_legacy(params)).unwrap_or_default();
        self.asking.insert(key.clone(), json!({"method": method, "params": params}));
        self.keys.push((place, key));
        None
    }

    /// The `input_required` result with what was asked.
    pub(in super::super) fn result(&mut self, shared: &Shared) -> String {
        let mut result = json!({"resultType": "input_required"});
        let is_silent = self.state.silent < shared.options.state_rounds;
        let asked = if is_silent { 0 } else { self.keys.len() };
        shared.note(|stats| {
            stats.rounds += 1;
            stats.questions += u64::try_from(asked).unwrap_or_default();
        });
        self.state.asked = if is_silent { Default::default() } else { self.keys.drain(..).collect() };
        self.state.silent += u32::from(is_silent);
        if let Some(members) = result.as_object_mut() {
            if !is_silent {
                members.insert("inputRequests".to_owned(), Value::Object(std::mem::take(&mut self.asking)));
            }
            if !shared.options.no_request_state {
                members.insert("requestState".to_owned(), shared.states.write(&self.call, &self.state).into());
            }
        }
        result.to_string()
    }
}

/// 2026-07-28 elicitation: there are no ids of elicitations any more.
fn without_legacy(params: &str) -> String {
    let mut params = Object::parse(params).unwrap_or_default();
    params.remove("elicitationId").remove("_meta");
    params.to_json()
}
