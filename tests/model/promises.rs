//! What must hold in every state that can be reached, and what must be reached, lest the first be empty words.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use taskgate::task::{Progress, State};

use super::steps::Action;
use super::world::{Lost, Past, Process, Record, Setup, Stage, Wish, World, end_of};

/// At most one write ends a task.
pub(crate) const ONE_END: &str = "a task ends once";
/// An ended record stays, and so does what clients were told.
pub(crate) const END_STAYS: &str = "an end stays";
/// One job at most may write, and no other does.
pub(crate) const ONE_HOLDER: &str = "one holder writes";
/// A call is sent once, and once more for each takeover where that is allowed.
pub(crate) const RUNS: &str = "no call is sent too often";
/// Where nothing is left that must happen, all tasks have ended and all waits know.
pub(crate) const ALL_ENDS: &str = "everything ends and everybody learns of it";
/// The counters are what can be counted.
pub(crate) const COUNTERS: &str = "counters are right";
/// Nobody answers what another has answered, and no question goes to two streams.
pub(crate) const ONE_ANSWER: &str = "a question has one answer and one stream";

/// What a client was told is not there does not run, as long as who told it lives.
pub(crate) const REFUSED: &str = "what was refused does not run";
/// A question that a stream has is on the stream, or will be.
pub(crate) const SHOWN: &str = "a claimed question is shown";
/// A question on record is one whose answer the upstream gets.
pub(crate) const WAITED: &str = "a question on record is waited for";

/// The promises of a setup.
pub(crate) fn of(setup: &Setup) -> Vec<Property<Setup>> {
    let mut all = vec![
        Property::always(ONE_END, |_, world: &World| world.past.iter().all(|past| past.ends <= 1)),
        Property::always(END_STAYS, |_, world: &World| {
            !world.past.iter().any(|past| past.is_rewritten) && tells_the_same(world)
        }),
        Property::always(ONE_HOLDER, |_, world: &World| one_holder(world)),
        Property::always(RUNS, |setup: &Setup, world: &World| {
            let again = |takeovers| if setup.lost == Lost::RunsAgain { takeovers } else { 0 };
            world.past.iter().all(|past| past.runs <= 1 + again(past.takeovers))
        }),
        Property::always(ALL_ENDS, |setup: &Setup, world: &World| !is_at_rest(setup, world) || is_over(world)),
        Property::always(COUNTERS, |_, world: &World| {
            let held = world.records.iter().flatten().filter(|record| matches!(record.state, State::Held(_))).count();
            world.running == held
        }),
        Property::always(ONE_ANSWER, |_, world: &World| {
            let differ = |numbers: &[u32]| numbers.iter().collect::<BTreeSet<_>>().len() == numbers.len();
            world.past.iter().all(|past| differ(&past.answered) && differ(&past.heard))
        }),
        Property::always(REFUSED, |_, world: &World| {
            world.past.iter().all(|past| !past.is_refused || past.runs == 0 || past.takeovers > 0)
        }),
        Property::always(SHOWN, |_, world: &World| claims_are_shown(world)),
        Property::always(WAITED, |_, world: &World| {
            let is_unheard = |task: usize, id: &u8| {
                let asked = world.records[task].as_ref().map_or(&[][..], |record| record.state.questions());
                asked.iter().any(|question| question.upstream_id.as_json() == id.to_string())
            };
            (0..world.past.len()).all(|task| !world.past[task].unheard.iter().any(|id| is_unheard(task, id)))
        }),
        Property::sometimes("the call returns", |_, world: &World| has_ended(world, 1)),
        Property::sometimes("all is over", |setup: &Setup, world: &World| is_at_rest(setup, world)),
    ];
    if setup.faults.crashes + setup.faults.stalls > 0 {
        all.push(Property::sometimes("a task is taken over", |_, world: &World| {
            world.past.iter().any(|past| past.takeovers > 0)
        }));
    }
    if setup.faults.unanswered > 0 {
        all.push(Property::sometimes("something comes late", |_, world: &World| !world.late.is_empty()));
    }
    if setup.faults.stalls > 0 {
        all.push(Property::sometimes("an earlier holder wakes with something to write", |_, world: &World| {
            world.jobs.iter().any(|job| {
                let is_awake = world.replicas[job.replica].process == Process::Up;
                is_awake && job.change.is_some() && world.record(job.task).epoch != job.epoch
            })
        }));
        if setup.lost == Lost::RunsAgain {
            all.push(Property::sometimes("a call is sent again", |_, world: &World| {
                world.past.iter().any(|past| past.runs > 1)
            }));
        }
    }
    if setup.clients.contains(&Wish::Cancel) {
        all.push(Property::sometimes("a client cancels", |_, world: &World| has_ended(world, 3)));
    }
    if setup.clients.contains(&Wish::Answer) {
        all.push(Property::sometimes("an answer is taken", |_, world: &World| !world.past[0].answered.is_empty()));
    }
    if setup.places < setup.tasks {
        all.push(Property::sometimes("a task waits", |_, world: &World| !world.queue.is_empty()));
    }
    all
}

fn has_ended(world: &World, how: u8) -> bool {
    world.records.iter().flatten().any(|record| end_of(&record.state) == Some(how))
}

fn tells_the_same(world: &World) -> bool {
    let Some(record) = &world.records[0] else { return true };
    world.waiters.iter().all(|waiter| waiter.told.is_none() || waiter.told == end_of(&record.state))
}

fn one_holder(world: &World) -> bool {
    let may_write = |task: usize| {
        let Some(record) = &world.records[task] else { return 0 };
        let holds =
            |job: &&super::world::Job| job.task == task && job.epoch == record.epoch && job.stage != Stage::Over;
        world.jobs.iter().filter(holds).count()
    };
    (0..world.records.len()).all(|task| may_write(task) <= 1) && !world.past.iter().any(|past| past.is_written_late)
}

fn claims_are_shown(world: &World) -> bool {
    let Some(record) = &world.records[0] else { return true };
    let is_shown = |number: u32| {
        world.past[0].heard.contains(&number) || world.clients.iter().any(|client| client.doubt == Some(number))
    };
    let claimed = record.state.questions().iter().filter(|asked| matches!(asked.progress, Progress::Claimed(_)));
    claimed.map(|question| question.number).all(is_shown)
}

/// Nothing is left that must happen. Since each path is finite, each comes here where faults and wishes stop.
fn is_at_rest(setup: &Setup, world: &World) -> bool {
    let mut actions = Vec::new();
    setup.actions(world, &mut actions);
    !actions.into_iter().any(|action: Action| Setup::is_due(world, action))
}

fn is_over(world: &World) -> bool {
    let has_ended = |(record, past): (&Option<Record>, &Past)| match record {
        Some(record) => record.state.is_ended(),
        None => past.is_taken_back,
    };
    world.records.iter().zip(&world.past).all(has_ended)
        && world.waiters.iter().all(|waiter| waiter.told.is_some())
        && world.jobs.iter().all(|job| job.stage == Stage::Over)
        && (world.running, world.queue.len()) == (0, 0)
}
