//! What there is in the model: records in a store that all replicas share, their jobs, clients and waits. The states of tasks
//! are the library's own.

use std::hash::{Hash, Hasher};

use taskgate::jsonrpc::Id;
use taskgate::task::{Answer, Ending, Event, Progress, State};

/// What is left out of the protocol, to see that the checker notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Nothing.
    Nothing,
    /// A job writes although its task has another holder.
    Fencing,
    /// A write takes the place of whatever is there.
    CompareAndSet,
    /// A wait reads first and watches then.
    WatchFirst,
    /// Messages may be lost, and nobody looks by himself.
    Poll,
    /// A creation that was not answered is left as it is.
    TakeBack,
    /// Nobody looks for what he may have taken over.
    Strays,
    /// A takeover that was not answered may still be carried out after its taker has looked for strays.
    Rounds,
    /// A claim that was not answered is left as it is.
    ClaimAgain,
    /// So is a question.
    AskAgain,
}

/// What a new holder does with a call that may have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Gives the task up.
    Fails,
    /// Sends the call again.
    RunsAgain,
    /// Takes up the upstream's stream.
    Resumes,
}

/// How much there is of everything.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) replicas: usize,
    pub(crate) tasks: usize,
    /// Tasks that may be held at the same time.
    pub(crate) places: usize,
    /// Questions that a task's upstream may ask.
    pub(crate) questions: u8,
    pub(crate) clients: Vec<Wish>,
    /// Waits for the end of the first task.
    pub(crate) waiters: usize,
    pub(crate) faults: Faults,
    pub(crate) lost: Lost,
    /// Word of a change may be lost between replicas; waits look by themselves now and then.
    pub(crate) is_lossy: bool,
    /// Creations may be among what is not answered.
    pub(crate) creations_fail: bool,
    pub(crate) broken: Broken,
}

/// What a client wants of the first task, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Cancel,
    /// To answer whatever question is open then.
    Answer,
    /// To have a question written to the stream of that number.
    Hear(u64),
}

/// How often something may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A process dies.
    pub(crate) crashes: u8,
    /// A process sleeps for as long as it likes, or the store is out of its reach.
    pub(crate) stalls: u8,
    /// Word of a change does not arrive.
    pub(crate) losses: u8,
    /// An answer of the store does not arrive, be it to what was done, or will be, or never is.
    pub(crate) unanswered: u8,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct World {
    pub(crate) records: Vec<Option<Record>>,
    /// The tenant's counter of held tasks.
    pub(crate) running: usize,
    /// Tasks without a place, the oldest first.
    pub(crate) queue: Vec<usize>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) clients: Vec<Client>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) left: Faults,
    /// What was asked of the store, and nobody waits for.
    pub(crate) late: Vec<Late>,
    /// For each task, what happened to it.
    pub(crate) past: Vec<Past>,
}

/// A request to the store that is on its way, or lost.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) enum Late {
    Create {
        task: usize,
        replica: usize,
    },
    TakeOver {
        task: usize,
        from: usize,
        by: usize,
        round: u8,
    },
    /// By a job, under its epoch, or by a client.
    Replace {
        task: usize,
        change: Change,
        epoch: Option<u8>,
    },
}

/// A task as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) version: u8,
    pub(crate) epoch: u8,
    pub(crate) holder: usize,
}

/// One replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) process: Process,
    pub(crate) is_leased: bool,
    /// A takeover of this one was not answered.
    pub(crate) doubts: bool,
    /// How often it has looked for what it may have taken.
    pub(crate) round: u8,
}

/// How a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Up,
    Stalled,
    Dead,
}

/// The job that holds a task's call, under one epoch.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct Job {
    pub(crate) task: usize,
    pub(crate) replica: usize,
    pub(crate) epoch: u8,
    pub(crate) stage: Stage,
    /// What it is about to write.
    pub(crate) intent: Option<Intent>,
    /// That, decided on what it has read.
    pub(crate) change: Option<Change>,
}

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// For a place.
    Waiting,
    /// It takes back what an earlier run has asked.
    Voiding,
    /// It has seen that the task is its own, and will send the call.
    Ready,
    /// The call is with the upstream.
    Running,
    Over,
}

/// What a job wants to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Intent {
    /// The upstream's question of that id.
    Ask(u8),
    /// It is answered and posted, or void.
    Settle(u8),
    /// The result.
    Return,
    /// That nobody knows.
    GiveUp,
}

/// A change between its read and its write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub(crate) version: u8,
    pub(crate) next: State,
}

/// One client with one wish.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct Client {
    pub(crate) wish: Wish,
    pub(crate) step: ClientStep,
    /// The question that it may have claimed.
    pub(crate) doubt: Option<u32>,
}

/// How far its request has come, at whichever replica has it.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) enum ClientStep {
    Idle,
    /// About a question of that number, where it is about one.
    Decided(Change, Option<u32>),
    Conflicted,
    Done,
}

/// A wait for the end of the first task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Waiter {
    pub(crate) replica: usize,
    pub(crate) is_watching: bool,
    /// Word has come that it has not acted on.
    pub(crate) is_woken: bool,
    /// The version that it has read and found unfinished.
    pub(crate) read: Option<u8>,
    /// The end, as it was told its client.
    pub(crate) told: Option<u8>,
}

/// What has happened to a task, for the promises.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Past {
    /// Calls that the upstream got.
    pub(crate) runs: u8,
    pub(crate) takeovers: u8,
    pub(crate) asked: u8,
    /// Writes that ended it.
    pub(crate) ends: u8,
    /// An ended record was written over.
    pub(crate) is_rewritten: bool,
    /// A job wrote under another epoch than the record's.
    pub(crate) is_written_late: bool,
    /// Questions whose answer was taken, in order.
    pub(crate) answered: Vec<u32>,
    /// Questions that went to a stream, in order.
    pub(crate) heard: Vec<u32>,
    /// Its creation was not answered, so that its client was told that it is not there.
    pub(crate) is_refused: bool,
    /// Who made it has not taken it back yet.
    pub(crate) is_doubtful: bool,
    pub(crate) is_taken_back: bool,
    /// The upstream's ids of questions that it was told nobody will answer.
    pub(crate) unheard: Vec<u8>,
}

impl Intent {
    pub(crate) fn event(self) -> Event {
        let upstream_id = |id: u8| Id::number(id.into());
        match self {
            Self::Ask(id) => {
                Event::Ask { upstream_id: upstream_id(id), method: "elicitation/create".into(), params: None }
            }
            Self::Settle(id) => Event::Settle { upstream_id: upstream_id(id) },
            Self::Return => Event::End(Ending::Returned { is_error: false }),
            Self::GiveUp => Event::End(Ending::Errored),
        }
    }
}

impl Wish {
    /// What it makes of the task as it is, and the question that it is about; `None`: there is nothing that it could want.
    pub(crate) fn event(self, state: &State) -> Option<(Event, Option<u32>)> {
        match self {
            Self::Cancel => Some((Event::End(Ending::Cancelled), None)),
            Self::Answer => {
                let open = state.questions().iter().find(|asked| !matches!(asked.progress, Progress::Answered(_)))?;
                let (number, answer) = (open.number, Answer::Result("{}".into()));
                Some((Event::Answer { number, answer }, Some(number)))
            }
            Self::Hear(stream) => {
                let open = state.questions().iter().find(|asked| asked.progress == Progress::Waiting)?;
                Some((Event::Claim { number: open.number, stream }, Some(open.number)))
            }
        }
    }
}

/// How a task ended, as a number that can be compared and hashed.
pub(crate) fn end_of(state: &State) -> Option<u8> {
    match state {
        State::Queued | State::Held(_) => None,
        State::Ended(Ending::Returned { .. }) => Some(1),
        State::Ended(Ending::Errored) => Some(2),
        State::Ended(Ending::Cancelled) => Some(3),
    }
}

fn hash_state<H: Hasher>(state: &State, hasher: &mut H) {
    end_of(state).hash(hasher);
    if let State::Held(asked) = state {
        asked.next_number.hash(hasher);
        asked.questions.len().hash(hasher);
        for question in &asked.questions {
            (question.number, &question.upstream_id).hash(hasher);
            match &question.progress {
                Progress::Waiting => 0_u64.hash(hasher),
                Progress::Claimed(stream) => (1 + stream).hash(hasher),
                Progress::Answered(_) => u64::MAX.hash(hasher),
            }
        }
    } else {
        u32::MAX.hash(hasher);
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { state, version, epoch, holder } = self;
        (version, epoch, holder).hash(hasher);
        hash_state(state, hasher);
    }
}

impl Hash for Change {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.version.hash(hasher);
        hash_state(&self.next, hasher);
    }
}
