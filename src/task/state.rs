//! The state machine: what may happen to a task in each state, as a pure function. Dialects only render it.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::clock::Timestamp;
use crate::jsonrpc::Id;

/// How many questions a task keeps that are not settled with the upstream; one more is refused.
pub const MAX_QUESTIONS: usize = 64;
/// The most that the open questions of a task may hold, in bytes of their parameters.
pub const MAX_QUESTION_BYTES: usize = 4 * 1024 * 1024;

/// Where a task stands.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Accepted, waiting for one of the tenant's places. The upstream has seen nothing.
    Queued,
    /// It has a place: the upstream works, or waits for answers. Without an unanswered question the status is `working`.
    Held(Asked),
    /// Over; nothing changes it any more (2025-11-25 tasks, "Task Status Lifecycle" 3).
    Ended(Ending),
}

/// How a task ended, neutral between the dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The upstream returned a result. `is_error`: the tool says that it failed (`failed` in the core dialect,
    /// `completed` in the extension).
    Returned {
        /// The result's own `isError`.
        is_error: bool,
    },
    /// The upstream answered with a JSON-RPC error, or the gateway gave up with one.
    Errored,
    /// The client cancelled it.
    Cancelled,
}

/// The status words that clients see in the core dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// `working`
    Working,
    /// `input_required`
    InputRequired,
    /// `completed`
    Completed,
    /// `failed`
    Failed,
    /// `cancelled`
    Cancelled,
}

/// The upstream's questions that have not been settled with it, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// Unanswered ones, and answered ones whose answer has not been posted upstream.
    pub questions: Vec<Question>,
    /// The number of the next question to be written to a client; numbers never repeat within a task.
    pub next_number: u32,
}

/// A request of the upstream to the client, inside a held call.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Names it towards clients, as `tg.<taskId>.<number>`; a new one each time it is asked again.
    pub number: u32,
    /// The upstream's own id for it.
    pub upstream_id: Id,
    /// Its method, for example `elicitation/create`.
    pub method: Box<str>,
    /// Its parameters as JSON text, as the upstream wrote them.
    pub params: Option<Box<str>>,
    /// When the upstream asked; `input_timeout` counts from here.
    pub asked_at: Timestamp,
    /// How far it has come.
    pub progress: Progress,
}

/// How far a question has come.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// On no stream.
    Waiting,
    /// Written to the stream of that number, unanswered.
    Claimed(u64),
    /// Answered; not yet posted upstream.
    Answered(Answer),
}

/// A client's answer, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The `result` member.
    Result(Box<str>),
    /// The `error` member.
    Error(Box<str>),
}

/// What can happen to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The tenant has a place for it.
    Start,
    /// The upstream asks. The machine gives the question its number.
    Ask {
        /// The upstream's id.
        upstream_id: Id,
        /// The method.
        method: Box<str>,
        /// The parameters as JSON text.
        params: Option<Box<str>>,
    },
    /// A stream takes a waiting question, before it writes it: exactly one does.
    Claim {
        /// The question.
        number: u32,
        /// The stream's number.
        stream: u64,
    },
    /// A stream closed: what it had claimed and was not answered waits again, under new numbers.
    Release {
        /// The stream's number.
        stream: u64,
    },
    /// A client answered a claimed question.
    Answer {
        /// The question.
        number: u32,
        /// What it said.
        answer: Answer,
    },
    /// The question is settled with the upstream: its answer was posted, it was withdrawn, or it timed out.
    Settle {
        /// The upstream's id.
        upstream_id: Id,
    },
    /// Something to tell people.
    Note(Box<str>),
    /// The held call is over.
    End(Ending),
}

/// Why an event changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The task is over.
    #[error("the task has ended")]
    Ended,
    /// The event does not fit the state: somebody was faster, or it names what is not there.
    #[error("the event does not fit the task's state")]
    NotApplicable,
    /// The upstream has [`MAX_QUESTIONS`] open already, or they would hold more than [`MAX_QUESTION_BYTES`].
    #[error("the task has too many open questions")]
    TooManyQuestions,
}

impl State {
    /// The state after an event, or why nothing changes.
    ///
    /// # Errors
    /// [`Refused`]; the state is as it was then.
    pub fn apply(self, event: Event, now: Timestamp) -> Result<Self, Refused> {
        match self {
            Self::Queued => match event {
                Event::Start => Ok(Self::Held(Asked::default())),
                Event::Note(_) => Ok(Self::Queued),
                Event::End(ending) => Ok(Self::Ended(ending)),
                Event::Ask { .. }
                | Event::Claim { .. }
                | Event::Release { .. }
                | Event::Answer { .. }
                | Event::Settle { .. } => Err(Refused::NotApplicable),
            },
            Self::Held(asked) => match event {
                Event::Start => Err(Refused::NotApplicable),
                Event::Note(_) => Ok(Self::Held(asked)),
                Event::End(ending) => Ok(Self::Ended(ending)),
                Event::Ask { upstream_id, method, params } => {
                    asked.ask(upstream_id, method, params, now).map(Self::Held)
                }
                Event::Claim { number, stream } => asked.claim(number, stream).map(Self::Held),
                Event::Release { stream } => asked.release(stream).map(Self::Held),
                Event::Answer { number, answer } => asked.answer(number, answer).map(Self::Held),
                Event::Settle { upstream_id } => asked.settle(&upstream_id).map(Self::Held),
            },
            // 2025-11-25 tasks, "Task Status Lifecycle" 3: terminal states never change.
            Self::Ended(_) => Err(Refused::Ended),
        }
    }

    /// The status in the core dialect. A queued task is `working`: the dialect has no word for waiting.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Queued => Status::Working,
            Self::Held(asked) if asked.unanswered().next().is_some() => Status::InputRequired,
            Self::Held(_) => Status::Working,
            Self::Ended(ending) => ending.status(),
        }
    }

    /// Whether nothing changes it any more.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match self {
            Self::Queued | Self::Held(_) => false,
            Self::Ended(_) => true,
        }
    }

    /// The questions that are not settled with the upstream, oldest first; none unless it is held.
    #[must_use]
    pub fn questions(&self) -> &[Question] {
        match self {
            Self::Held(asked) => &asked.questions,
            Self::Queued | Self::Ended(_) => &[],
        }
    }
}

impl Ending {
    /// The status in the core dialect, the one place that maps it: there `isError: true` is `failed` (2025-11-25 tasks,
    /// "Task Status"). The extension calls the same ending `completed`, and maps [`Ending`] itself.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Returned { is_error: false } => Status::Completed,
            Self::Returned { is_error: true } | Self::Errored => Status::Failed,
            Self::Cancelled => Status::Cancelled,
        }
    }
}

impl Status {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Asked {
    /// The questions that no client has answered, oldest first: on a stream or waiting for one.
    pub fn unanswered(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| match question.progress {
            Progress::Waiting | Progress::Claimed(_) => true,
            Progress::Answered(_) => false,
        })
    }

    fn ask(
        mut self,
        upstream_id: Id,
        method: Box<str>,
        params: Option<Box<str>>,
        asked_at: Timestamp,
    ) -> Result<Self, Refused> {
        if self.questions.iter().any(|question| question.upstream_id == upstream_id) {
            return Err(Refused::NotApplicable);
        }
        let bytes = |params: &Option<Box<str>>| params.as_ref().map_or(0, |params| params.len());
        let open: usize = self.questions.iter().map(|question| bytes(&question.params)).sum();
        if self.questions.len() >= MAX_QUESTIONS || open + bytes(&params) > MAX_QUESTION_BYTES {
            return Err(Refused::TooManyQuestions);
        }
        let number = self.take_number()?;
        self.questions.push(Question { number, upstream_id, method, params, asked_at, progress: Progress::Waiting });
        Ok(self)
    }

    fn claim(mut self, number: u32, stream: u64) -> Result<Self, Refused> {
        let question = self.find(number)?;
        match question.progress {
            Progress::Waiting => question.progress = Progress::Claimed(stream),
            Progress::Claimed(_) | Progress::Answered(_) => return Err(Refused::NotApplicable),
        }
        Ok(self)
    }

    fn release(mut self, stream: u64) -> Result<Self, Refused> {
        let mut next_number = self.next_number;
        for question in &mut self.questions {
            if question.progress == Progress::Claimed(stream) {
                // 2025-11-25 basic, "Requests": an id is never used twice in a session, so it is asked under a new one.
                question.number = next_number;
                question.progress = Progress::Waiting;
                next_number = next_number.checked_add(1).ok_or(Refused::TooManyQuestions)?;
            }
        }
        if next_number == self.next_number {
            return Err(Refused::NotApplicable);
        }
        self.next_number = next_number;
        Ok(self)
    }

    fn answer(mut self, number: u32, answer: Answer) -> Result<Self, Refused> {
        let question = self.find(number)?;
        match question.progress {
            // The extension shows questions on polls, which claim nothing.
            Progress::Waiting | Progress::Claimed(_) => question.progress = Progress::Answered(answer),
            Progress::Answered(_) => return Err(Refused::NotApplicable),
        }
        Ok(self)
    }

    fn settle(mut self, upstream_id: &Id) -> Result<Self, Refused> {
        let before = self.questions.len();
        self.questions.retain(|question| question.upstream_id != *upstream_id);
        if self.questions.len() == before {
            return Err(Refused::NotApplicable);
        }
        Ok(self)
    }

    fn find(&mut self, number: u32) -> Result<&mut Question, Refused> {
        self.questions.iter_mut().find(|question| question.number == number).ok_or(Refused::NotApplicable)
    }

    fn take_number(&mut self) -> Result<u32, Refused> {
        let number = self.next_number;
        self.next_number = number.checked_add(1).ok_or(Refused::TooManyQuestions)?;
        Ok(number)
    }
}

#[cfg(test)]
mod tests;
