//! What the store does in one atomic step.

use taskgate::clock::Timestamp;
use taskgate::task::{Event, State};

use super::world::{Broken, Change, Late, Record, Setup, World};

/// No time passes in the model: whatever is late may come at any moment.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(0);

impl World {
    /// The record of a task that is there.
    pub(crate) fn record(&self, task: usize) -> &Record {
        self.records[task].as_ref().expect("it was made")
    }

    /// Keeps a new task of that holder, with a place where there is one.
    pub(crate) fn create(&mut self, setup: &Setup, task: usize, holder: usize) {
        self.records[task] = Some(Record { state: State::Queued, version: 1, epoch: 1, holder });
        self.queue.push(task);
        self.promote(setup);
    }

    /// Puts a changed state in the place of that which was read. `epoch` is the job's that writes; clients have none.
    pub(crate) fn replace(&mut self, setup: &Setup, task: usize, change: &Change, epoch: Option<u8>) -> bool {
        let record = self.records[task].as_mut().expect("it was made");
        let is_current = record.version == change.version && !record.state.is_ended();
        if !is_current && setup.broken != Broken::CompareAndSet {
            return false;
        }
        let before = std::mem::replace(&mut record.state, change.next.clone());
        record.version += 1;
        let past = &mut self.past[task];
        past.is_rewritten |= before.is_ended();
        past.ends += u8::from(change.next.is_ended());
        past.is_written_late |= epoch.is_some_and(|epoch| epoch != record.epoch);
        match before {
            State::Queued => self.queue.retain(|queued| *queued != task),
            State::Held(_) => self.running -= 1,
            State::Ended(_) => {}
        }
        match change.next {
            State::Queued => self.queue.push(task),
            State::Held(_) => self.running += 1,
            State::Ended(_) => {}
        }
        self.announce(task);
        self.promote(setup);
        true
    }

    /// Gives an unfinished task to another holder.
    pub(crate) fn take_over(&mut self, task: usize, by: usize) {
        self.past[task].takeovers += 1;
        self.hand_over(task, by);
    }

    /// Gives an unfinished task to whoever has it already, and does not know.
    pub(crate) fn hand_over(&mut self, task: usize, by: usize) {
        let record = self.records[task].as_mut().expect("it was made");
        record.holder = by;
        record.epoch += 1;
        record.version += 1;
        self.announce(task);
    }

    /// Removes a task that was made in spite of what its client was told; one that is still to be made won't be.
    pub(crate) fn take_back(&mut self, setup: &Setup, task: usize) {
        let past = &mut self.past[task];
        (past.is_doubtful, past.is_taken_back) = (false, true);
        match self.records[task].take().map(|record| record.state) {
            Some(State::Queued) => self.queue.retain(|queued| *queued != task),
            Some(State::Held(_)) => self.running -= 1,
            Some(State::Ended(_)) | None => {}
        }
        self.promote(setup);
    }

    /// Does what nobody waits for any more.
    pub(crate) fn carry_out(&mut self, setup: &Setup, late: Late) {
        match late {
            Late::Create { task, replica } => {
                if !self.past[task].is_taken_back {
                    self.create(setup, task, replica);
                }
            }
            Late::TakeOver { task, from, by, round } => {
                let record = self.record(task);
                let is_in_time = round >= self.replicas[by].round || setup.broken == Broken::Rounds;
                if record.holder == from && !record.state.is_ended() && is_in_time {
                    self.take_over(task, by);
                }
            }
            Late::Replace { task, change, epoch } => {
                self.replace(setup, task, &change, epoch);
            }
        }
    }

    /// Gives free places to those who wait longest.
    fn promote(&mut self, setup: &Setup) {
        while self.running < setup.places && !self.queue.is_empty() {
            let task = self.queue.remove(0);
            let record = self.records[task].as_mut().expect("it was made");
            record.state = record.state.clone().apply(Event::Start, NOW).expect("it waits");
            record.version += 1;
            self.running += 1;
            self.announce(task);
        }
    }

    /// Only the first task is waited for.
    fn announce(&mut self, task: usize) {
        if task == 0 {
            self.waiters.iter_mut().for_each(|waiter| waiter.is_woken |= waiter.is_watching && waiter.told.is_none());
        }
    }
}
