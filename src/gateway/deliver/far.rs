//! Messages about tasks towards streams that are open in other processes: which one has such a stream is asked on the bus,
//! and one is told. Best effort, as all messages are that nobody waits for.

use std::time::Duration;

use bytes::Bytes;
use dashmap::{DashMap, DashSet};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::gateway::homes::bus::Message;
use crate::task::{Holder, SessionNumber, Task, TaskId};

use super::{OWN_STREAMS, first_stream};

/// So many tasks are known to be heard elsewhere; then all are forgotten and asked for again.
const MOST: usize = 4096;
/// So many messages of a task wait while it is asked who hears of it.
const MOST_WAITING: usize = 8;
/// How long they wait.
const ASKED: Duration = Duration::from_secs(1);

/// The other processes, as far as streams go.
#[derive(Debug)]
pub(in crate::gateway) struct Far {
    pub(in crate::gateway) me: Holder,
    /// How long it is remembered who hears of a task, or that nobody does.
    pub(in crate::gateway) fresh: Duration,
    /// Sessions have no homes.
    pub(super) are_apart: bool,
    outlet: mpsc::Sender<Message>,
    ways: DashMap<TaskId, Way>,
    /// The part of their streams' numbers that was of those who are gone.
    dead: DashSet<u64>,
    /// That of those who said that they are there.
    alive: DashSet<u64>,
}

#[derive(Debug)]
enum Way {
    /// That one has a stream.
    To(Holder, Instant),
    /// Nobody has answered yet; what waits.
    Asked(Instant, SessionNumber, Vec<Bytes>),
}

/// The part of a stream's number that says whose it is.
fn part_of(stream: u64) -> u64 {
    stream & !OWN_STREAMS
}

impl Far {
    /// What is to be told comes out of the other end, and is lost when nobody takes it for long.
    pub(super) fn new(me: Holder, fresh: Duration, are_apart: bool) -> (Self, mpsc::Receiver<Message>) {
        let (outlet, messages) = mpsc::channel(crate::replica::BUS_DEPTH);
        (
            Self { me, fresh, are_apart, outlet, ways: DashMap::new(), dead: DashSet::new(), alive: DashSet::new() },
            messages,
        )
    }

    pub(super) fn tell(&self, message: Message) {
        if self.outlet.try_send(message).is_err() {
            tracing::debug!("a message for other replicas is lost: too many wait");
        }
    }

    /// Whether a stream of this number is this process's.
    pub(super) fn is_mine(&self, stream: u64) -> bool {
        part_of(stream) == first_stream(&self.me)
    }

    /// Notes that a process is gone, with its streams.
    pub(super) fn note_dead(&self, holder: &Holder) {
        self.alive.remove(&first_stream(holder));
        self.dead.insert(first_stream(holder));
    }

    /// Notes that a process is there, be it again.
    pub(in crate::gateway) fn note_alive(&self, holder: &Holder) {
        self.dead.remove(&first_stream(holder));
        if self.alive.len() >= MOST {
            self.alive.clear();
        }
        self.alive.insert(first_stream(holder));
    }

    /// Whether a stream of this number is of a process that was heard of, and not of its end.
    pub(super) fn is_alive(&self, stream: u64) -> bool {
        self.alive.contains(&part_of(stream))
    }

    /// Whether a stream of this number is that holder's.
    pub(super) fn is_of(&self, stream: u64, holder: &Holder) -> bool {
        part_of(stream) == first_stream(holder)
    }

    /// Whether the stream went with its process.
    pub(super) fn is_dead(&self, stream: u64) -> bool {
        self.dead.contains(&part_of(stream))
    }

    /// Sends an event about a task to the process that has a stream for it. Where that is not known, it is asked only for a
    /// task whose streams may be anywhere.
    pub(super) fn notify(&self, task: &Task, event: &Bytes, may_be_anywhere: bool) {
        let is_fresh = |noted: &Instant| noted.elapsed() < self.fresh;
        match self.ways.get_mut(&task.id).as_deref_mut() {
            Some(Way::To(holder, noted)) if is_fresh(noted) => {
                return self.tell(Message::event((task.id, task.session), holder, &self.me, event));
            }
            Some(Way::Asked(asked, _, waiting)) if asked.elapsed() < ASKED => {
                if waiting.len() < MOST_WAITING {
                    waiting.push(event.clone());
                }
                return;
            }
            Some(Way::Asked(asked, ..)) if is_fresh(asked) => return,
            _ => {}
        }
        if !may_be_anywhere {
            return;
        }
        if self.ways.len() >= MOST {
            self.ways.clear();
        }
        self.ways.insert(task.id, Way::Asked(Instant::now(), task.session, vec![event.clone()]));
        self.tell(Message::who(task, &self.me));
    }

    /// Somebody has a stream for the task.
    pub(in crate::gateway) fn hears(&self, task: TaskId, holder: &Holder) {
        if self.ways.len() >= MOST {
            self.ways.clear();
        }
        let before = self.ways.insert(task, Way::To(holder.clone(), Instant::now()));
        if let Some(Way::Asked(asked, session, waiting)) = before
            && asked.elapsed() < ASKED
        {
            waiting.iter().for_each(|event| self.tell(Message::event((task, session), holder, &self.me, event)));
        }
    }

    /// That one has none any more.
    pub(in crate::gateway) fn hears_no_more(&self, task: TaskId, holder: &Holder) {
        self.ways.remove_if(&task, |_, way| matches!(way, Way::To(known, _) if known == holder));
    }

    /// Has questions of a task offered by whoever has its session's stream.
    pub(super) fn offer(&self, task: &Task) {
        self.tell(Message::offer(task));
    }
}

#[cfg(test)]
mod tests;
