//! Reads what scripts give back.

use std::time::Duration;

use redis::{FromRedisValue, Value, from_redis_value};

use crate::clock::Timestamp;
use crate::hub::HubError;
use crate::task::state::{Asked, State};
use crate::task::{Holder, StoreError, Task, codec};

impl From<HubError> for StoreError {
    fn from(error: HubError) -> Self {
        Self::Unavailable(error.into())
    }
}

/// The answer is none that the script gives.
pub(super) fn unreadable(what: &'static str) -> StoreError {
    HubError::Unreadable(what).into()
}

/// Reads a whole answer.
pub(super) fn read<T: FromRedisValue>(value: Value, what: &'static str) -> Result<T, StoreError> {
    from_redis_value(value).map_err(|_| unreadable(what))
}

/// An array's members, one by one.
pub(super) struct Parts {
    parts: std::vec::IntoIter<Value>,
    what: &'static str,
}

impl Parts {
    pub(super) fn of(value: Value, what: &'static str) -> Result<Self, StoreError> {
        match value {
            Value::Array(parts) => Ok(Self { parts: parts.into_iter(), what }),
            _ => Err(unreadable(what)),
        }
    }

    /// The next one; a missing one reads as null.
    pub(super) fn next<T: FromRedisValue>(&mut self) -> Result<T, StoreError> {
        read(self.value(), self.what)
    }

    pub(super) fn value(&mut self) -> Value {
        self.parts.next().unwrap_or(Value::Nil)
    }

    pub(super) fn rest(self) -> impl Iterator<Item = Value> {
        self.parts
    }
}

/// A record as `shown` in `lib.lua` gives it: what scripts change stands beside the text, which says it as it was once.
#[derive(Debug)]
pub(super) struct Row {
    text: Vec<u8>,
    version: u64,
    epoch: u64,
    holder: String,
    state: String,
    created: u64,
    updated: u64,
    deadline: u64,
    expiry: u64,
}

impl Row {
    pub(super) fn read(value: Value) -> Result<Self, StoreError> {
        let mut parts = Parts::of(value, "a record")?;
        Ok(Self {
            text: parts.next()?,
            version: parts.next()?,
            epoch: parts.next()?,
            holder: parts.next()?,
            state: parts.next()?,
            created: parts.next()?,
            updated: parts.next()?,
            deadline: parts.next()?,
            expiry: parts.next()?,
        })
    }

    /// The record.
    pub(super) fn task(self) -> Result<Task, StoreError> {
        let task = codec::decode(&self.text).map_err(|error| StoreError::Spoilt(error.into()))?;
        Ok(self.over(task))
    }

    /// The record, where what the text says is known.
    pub(super) fn over(self, task: Task) -> Task {
        let state = match (self.state.as_str(), task.state) {
            ("q", _) => State::Queued,
            ("h", State::Queued) => State::Held(Asked::default()),
            (_, state) => state,
        };
        Task {
            created_at: Timestamp::from_millis(self.created),
            updated_at: Timestamp::from_millis(self.updated),
            deadline: Timestamp::from_millis(self.deadline),
            ttl: Duration::from_millis(self.expiry.saturating_sub(self.created)),
            state,
            holder: Holder::from_text(&self.holder),
            epoch: self.epoch,
            version: self.version,
            ..task
        }
    }
}

/// The letter of a state.
pub(super) const fn letter(state: &State) -> &'static str {
    match state {
        State::Queued => "q",
        State::Held(_) => "h",
        State::Ended(_) => "e",
    }
}
