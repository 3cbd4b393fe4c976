//! What a task is to its callers, if there were one of them at a time.

use std::collections::BTreeMap;

use super::checker::Object;

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    Missing,
    /// By number, whether a question is still open.
    Open(BTreeMap<u32, bool>),
    Ended(End),
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum End {
    Returned(String),
    Failed,
    Cancelled,
}

/// What callers do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Get,
    Cancel,
    /// To that question.
    Answer(u32),
    /// The holder has that question from the upstream.
    Ask(u32),
    /// The holder has the end from the upstream, or gives up.
    End(End),
}

/// What they are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was done.
    Done,
    /// It was too late, or meant nothing.
    Refused,
    /// It was done or not; the dialect does not say.
    Acknowledged,
    NotFound,
    /// The task is open, with these open questions.
    Open(Vec<u32>),
    Ended(End),
}

impl Task {
    fn changed(&self, operation: &Operation) -> Option<Self> {
        match (self, operation) {
            (Self::Missing, Operation::Create) => Some(Self::Open(BTreeMap::new())),
            (Self::Open(_), Operation::Cancel) => Some(Self::Ended(End::Cancelled)),
            (Self::Open(_), Operation::End(end)) => Some(Self::Ended(end.clone())),
            (Self::Open(questions), Operation::Ask(number)) if !questions.contains_key(number) => {
                let mut questions = questions.clone();
                questions.insert(*number, true);
                Some(Self::Open(questions))
            }
            (Self::Open(questions), Operation::Answer(number)) if questions.get(number) == Some(&true) => {
                let mut questions = questions.clone();
                questions.insert(*number, false);
                Some(Self::Open(questions))
            }
            _ => None,
        }
    }
}

impl Object for Task {
    type Operation = Operation;
    type Answer = Answer;

    fn after(&self, operation: &Operation, answer: Option<&Answer>) -> Option<Self> {
        if *operation == Operation::Get {
            let is_right = match (self, answer) {
                (_, None) | (Self::Missing, Some(Answer::NotFound)) => true,
                (Self::Open(questions), Some(Answer::Open(seen))) => {
                    questions.iter().filter(|(_, is_open)| **is_open).map(|(number, _)| number).eq(seen)
                }
                (Self::Ended(end), Some(Answer::Ended(seen))) => end == seen,
                _ => false,
            };
            return is_right.then(|| self.clone());
        }
        let changed = self.changed(operation);
        match answer {
            Some(Answer::Done) => changed,
            Some(Answer::Refused) => (changed.is_none() && *self != Self::Missing).then(|| self.clone()),
            Some(Answer::NotFound) => (*self == Self::Missing).then(|| self.clone()),
            Some(Answer::Acknowledged) if *self == Self::Missing => None,
            Some(Answer::Acknowledged) | None => Some(changed.unwrap_or_else(|| self.clone())),
            Some(Answer::Open(_) | Answer::Ended(_)) => None,
        }
    }
}
