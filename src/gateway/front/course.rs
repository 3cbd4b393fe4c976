//! What a modern client's call becomes: a plain answer, or a task, and where a question goes meanwhile. Pure: the tables of
//! what routes say.

use std::time::Duration;

use crate::gateway::policy::{Questions, Support, TaskPolicy};

/// How long a call that may be asked something waits for that, before it becomes a task.
pub(super) const FIRST_QUESTION: Duration = Duration::from_secs(5);

/// What is known of a call before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// The request declares the tasks extension.
    pub(super) declares_tasks: bool,
    /// The upstream asks inside its results, as modern servers do.
    pub(super) is_modern: bool,
    /// The request brings answers to questions that were put to its client before.
    pub(super) has_answers: bool,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// It can't be served: the request does not declare the tasks extension.
    Refused,
    /// A task, before anything is sent.
    AtOnce,
    /// A plain answer, however long it takes.
    Plain,
    /// A plain answer, or a task.
    Open {
        /// How long after the dispatch it becomes one; `None`: never by time alone.
        after: Option<Duration>,
        /// A question makes it one.
        on_question: bool,
    },
}

/// The course of a call of a tool with this policy (design: when a call is a task; questions before the handle).
pub(super) fn course(policy: &TaskPolicy, asked: Asked) -> Course {
    match (policy.support, asked.declares_tasks) {
        (Support::Forbidden, _) | (Support::Optional, false) => Course::Plain,
        (Support::Required, false) => Course::Refused,
        (Support::Required, true) => Course::AtOnce,
        (Support::Optional, true) => {
            let in_call = match policy.questions {
                Questions::InCall => true,
                Questions::InTask => false,
                // Tasks extension, "Multi round-trip requests": what is asked that way is asked before the handle.
                Questions::Auto => asked.is_modern,
            };
            open(policy.defer, in_call, asked.has_answers)
        }
    }
}

fn open(defer: Option<Duration>, in_call: bool, has_answers: bool) -> Course {
    let after = match defer {
        Some(defer) if in_call && !has_answers => Some(defer.max(FIRST_QUESTION)),
        defer => defer,
    };
    match after {
        Some(Duration::ZERO) => Course::AtOnce,
        after => Course::Open { after, on_question: !in_call },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { declares_tasks: true, is_modern: false, has_answers: false };

    fn policy(support: Support, questions: Questions, defer: Option<u64>) -> TaskPolicy {
        TaskPolicy { support, questions, defer: defer.map(Duration::from_millis), ..TaskPolicy::default() }
    }

    #[test]
    fn support_and_the_extension_decide() {
        let of = |support, declares_tasks| {
            course(&policy(support, Questions::Auto, Some(500)), Asked { declares_tasks, ..ASKED })
        };
        let by_time = Course::Open { after: Some(Duration::from_millis(500)), on_question: true };
        assert_eq!(of(Support::Required, true), Course::AtOnce);
        assert_eq!(of(Support::Required, false), Course::Refused);
        assert_eq!(of(Support::Optional, true), by_time);
        assert_eq!(of(Support::Optional, false), Course::Plain);
        assert_eq!(of(Support::Forbidden, true), Course::Plain);
        assert_eq!(of(Support::Forbidden, false), Course::Plain);
    }

    #[test]
    fn questions_go_where_the_route_says() {
        let of = |questions, defer, is_modern, has_answers| {
            course(&policy(Support::Optional, questions, defer), Asked { is_modern, has_answers, ..ASKED })
        };
        let open =
            |after: Option<u64>, on_question| Course::Open { after: after.map(Duration::from_millis), on_question };
        for (questions, defer, is_modern, has_answers, expected) in [
            (Questions::Auto, Some(500), false, false, open(Some(500), true)),
            (Questions::Auto, Some(500), true, false, open(Some(5000), false)),
            (Questions::Auto, Some(500), true, true, open(Some(500), false)),
            (Questions::InTask, Some(500), true, false, open(Some(500), true)),
            (Questions::InTask, Some(0), false, false, Course::AtOnce),
            (Questions::InTask, None, false, false, open(None, true)),
            (Questions::InCall, Some(0), false, false, open(Some(5000), false)),
            (Questions::InCall, Some(0), false, true, Course::AtOnce),
            (Questions::InCall, Some(9000), false, false, open(Some(9000), false)),
            (Questions::InCall, Some(9000), false, true, open(Some(9000), false)),
            (Questions::InCall, None, false, false, open(None, false)),
            (Questions::InCall, None, false, true, open(None, false)),
        ] {
            assert_eq!(
                of(questions, defer, is_modern, has_answers),
                expected,
                "{questions:?} {defer:?} {is_modern} {has_answers}"
            );
        }
    }
}
