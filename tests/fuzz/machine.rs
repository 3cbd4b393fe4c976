//! The task machine against a model of it that is as dull as can be.

use std::collections::BTreeSet;

use taskgate::clock::Timestamp;
use taskgate::jsonrpc::Id;
use taskgate::task::state::{
    Answer, Ending, Event, MAX_QUESTION_BYTES, MAX_QUESTIONS, Progress, Refused, State, Status,
};

/// What a few of the questions hold: two of them, and not a third.
const BIG: usize = MAX_QUESTION_BYTES / 3 + 1;

/// A question as the model knows it.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    number: u32,
    id: u64,
    size: usize,
    stream: Option<u64>,
    is_answered: bool,
}

/// What has happened so far.
#[derive(Debug, Default)]
struct Model {
    is_started: bool,
    ending: Option<Ending>,
    asked: Vec<Asked>,
    /// Every number that was ever given.
    given: BTreeSet<u32>,
}

/// Each two bytes are something that happens to a task.
pub(crate) fn machine(data: &[u8]) {
    let (mut state, mut model) = (State::Queued, Model::default());
    for (step, pair) in data.chunks_exact(2).take(400).enumerate() {
        let [what, which] = *pair else { return };
        let event = event(what, which);
        let expected = model.takes(&event);
        let after = state.clone().apply(event.clone(), Timestamp::from_millis(step as u64));
        assert_eq!(after.as_ref().err(), expected.err().as_ref(), "{event:?} in {state:?}");
        if let Ok(after) = after {
            state = after;
            model.apply(&event, &state);
        }
        model.check(&state);
    }
}

fn event(what: u8, which: u8) -> Event {
    let (number, stream, id) = (u32::from(which % 64), u64::from(which % 5), Id::number(u64::from(which % 80)));
    match what % 16 {
        0 => Event::Start,
        1..=4 => {
            let params = (which >= 0xfd).then(|| "x".repeat(BIG).into());
            Event::Ask { upstream_id: id, method: "m".into(), params }
        }
        5..=7 => Event::Claim { number, stream },
        8 | 9 => Event::Release { stream },
        10 | 11 => Event::Answer { number, answer: Answer::Result("{}".into()) },
        12 | 13 => Event::Settle { upstream_id: id },
        14 => Event::Note("n".into()),
        _ if which < 16 => Event::End(Ending::Cancelled),
        _ if which < 32 => Event::End(Ending::Returned { is_error: which.is_multiple_of(2) }),
        _ if which < 40 => Event::End(Ending::Errored),
        _ => Event::Note("n".into()),
    }
}

fn id_of(id: &Id) -> u64 {
    id.as_json().parse().unwrap()
}

impl Model {
    /// Whether that may happen now, by the words of the specification.
    fn takes(&self, event: &Event) -> Result<(), Refused> {
        let fits = |fits: bool| if fits { Ok(()) } else { Err(Refused::NotApplicable) };
        if self.ending.is_some() {
            return Err(Refused::Ended);
        }
        match event {
            Event::Start => fits(!self.is_started),
            Event::Note(_) | Event::End(_) => Ok(()),
            _ if !self.is_started => fits(false),
            Event::Ask { upstream_id, params, .. } => {
                fits(self.asked.iter().all(|asked| asked.id != id_of(upstream_id)))?;
                let size = params.as_ref().map_or(0, |params| params.len());
                let held: usize = self.asked.iter().map(|asked| asked.size).sum();
                let has_room = self.asked.len() < MAX_QUESTIONS && held + size <= MAX_QUESTION_BYTES;
                if has_room { Ok(()) } else { Err(Refused::TooManyQuestions) }
            }
            Event::Claim { number, .. } => {
                let free = |asked: &Asked| asked.number == *number && asked.stream.is_none() && !asked.is_answered;
                fits(self.asked.iter().any(free))
            }
            Event::Release { stream } => {
                fits(self.asked.iter().any(|asked| asked.stream == Some(*stream) && !asked.is_answered))
            }
            Event::Answer { number, .. } => {
                fits(self.asked.iter().any(|asked| asked.number == *number && !asked.is_answered))
            }
            Event::Settle { upstream_id } => fits(self.asked.iter().any(|asked| asked.id == id_of(upstream_id))),
        }
    }

    /// Lets it happen. New numbers are whatever the machine gave, as long as nobody had them before.
    fn apply(&mut self, event: &Event, after: &State) {
        let number_of =
            |id: u64| after.questions().iter().find(|asked| id_of(&asked.upstream_id) == id).unwrap().number;
        match event {
            Event::Start => self.is_started = true,
            Event::Note(_) => {}
            Event::End(ending) => {
                self.ending = Some(*ending);
                self.asked.clear();
            }
            Event::Ask { upstream_id, params, .. } => {
                let (id, size) = (id_of(upstream_id), params.as_ref().map_or(0, |params| params.len()));
                let number = number_of(id);
                assert!(self.given.insert(number), "{number} is given again");
                self.asked.push(Asked { number, id, size, stream: None, is_answered: false });
            }
            Event::Claim { number, stream } => {
                self.asked
                    .iter_mut()
                    .filter(|asked| asked.number == *number)
                    .for_each(|asked| asked.stream = Some(*stream));
            }
            Event::Release { stream } => {
                for asked in self.asked.iter_mut().filter(|asked| asked.stream == Some(*stream) && !asked.is_answered) {
                    asked.stream = None;
                    asked.number = number_of(asked.id);
                    assert!(self.given.insert(asked.number), "{} is given again", asked.number);
                }
            }
            Event::Answer { number, .. } => {
                self.asked
                    .iter_mut()
                    .filter(|asked| asked.number == *number)
                    .for_each(|asked| asked.is_answered = true);
            }
            Event::Settle { upstream_id } => self.asked.retain(|asked| asked.id != id_of(upstream_id)),
        }
    }

    /// What clients see is what has happened.
    fn check(&self, state: &State) {
        let expected = match self.ending {
            Some(ending) => ending.status(),
            None if self.asked.iter().any(|asked| !asked.is_answered) => Status::InputRequired,
            None => Status::Working,
        };
        assert_eq!((state.status(), state.is_ended()), (expected, self.ending.is_some()));
        let seen: Vec<_> =
            state.questions().iter().map(|question| (question.number, id_of(&question.upstream_id))).collect();
        let known: Vec<_> = self.asked.iter().map(|asked| (asked.number, asked.id)).collect();
        assert_eq!(seen, known);
        for (question, asked) in state.questions().iter().zip(&self.asked) {
            let progress = match (&question.progress, asked.is_answered, asked.stream) {
                (Progress::Answered(_), true, _) | (Progress::Waiting, false, None) => true,
                (Progress::Claimed(stream), false, Some(known)) => *stream == known,
                _ => false,
            };
            assert!(progress, "{question:?} is not {asked:?}");
        }
    }
}
