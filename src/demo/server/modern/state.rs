//! `requestState`: what a call knows from its earlier rounds, kept by the client and made safe against it.
//!
//! The text is readable, so that a test can see what it broke, and spelled such that a careless relay changes it.

use std::collections::BTreeMap;
use std::fmt;

use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::SystemRandom;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What makes the text hard to copy by accident.
const FLOURISH: &str = "\u{e9}\"\\/\u{1f511} \t%2F+";

/// What is remembered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// Rounds that asked nothing.
    pub silent: u32,
    /// The answers so far, by the place of their question in the call.
    pub answers: BTreeMap<usize, Value>,
    /// The keys of the questions that were asked last, by the same places.
    pub asked: BTreeMap<usize, String>,
}

/// Writes and reads states.
pub(in super::super) struct States(Key);

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("States")
    }
}

impl States {
    /// # Panics
    /// When the system gives no random bytes.
    pub(in super::super) fn new() -> Self {
        let key = Key::generate(HMAC_SHA256, &SystemRandom::new());
        Self(key.expect("a system without random bytes keeps no secrets"))
    }

    /// A state's text, good for the same call only.
    pub(super) fn write(&self, call: &str, state: &State) -> String {
        let body = serde_json::to_string(state).unwrap_or_default();
        format!("{body}{FLOURISH}{}", self.mark(call, &body))
    }

    /// The state in a text that came back unchanged for the same call.
    pub(super) fn read(&self, call: &str, text: &str) -> Option<State> {
        let (body, mark) = text.rsplit_once(FLOURISH)?;
        // A fixture on this machine: how long the comparison takes tells nobody anything.
        (mark == self.mark(call, body)).then(|| serde_json::from_str(body).ok()).flatten()
    }

    fn mark(&self, call: &str, body: &str) -> String {
        let tag = sign(&self.0, format!("{}:{call}{body}", call.len()).as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
