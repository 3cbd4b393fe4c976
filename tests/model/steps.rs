//! Who may do what next. A change is two steps, a read and a write, between which anything may happen.

use stateright::{Model, Property};
use taskgate::task::{Progress, State};

use super::promises;
use super::store::NOW;
use super::world::{
    Broken, Change, Client, ClientStep, Intent, Job, Late, Lost, Past, Process, Replica, Setup, Stage, Waiter, Wish,
    World, end_of,
};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A replica makes a task.
    Create {
        task: usize,
        replica: usize,
    },
    /// A job looks at its task, to see whether it may go on.
    Look(usize),
    /// A job sends the call upstream.
    Send(usize),
    /// A job has heard something of its upstream, or has something to tell it.
    Intend(usize, Intent),
    /// A job reads its task and decides what to write.
    Read(usize),
    /// It writes that.
    Write(usize),
    /// A client's request reads the task.
    ClientReads(usize),
    /// It writes.
    ClientWrites(usize),
    Watches(usize),
    WaiterReads(usize),
    /// A wait acts on the word that came.
    Wakes(usize),
    /// A wait finds by itself that there is something new.
    Polls(usize),
    Crashes(usize),
    Stalls(usize),
    GoesOn(usize),
    Renews(usize),
    LeaseEnds(usize),
    TakesOver {
        by: usize,
        task: usize,
    },
    /// The word that came for a wait is lost.
    IsLost(usize),
    /// A step that the store is asked to do, and does not answer to.
    Unanswered(Unanswered),
    /// What was not answered is done now.
    Arrives(usize),
    /// It never is.
    Vanishes(usize),
    /// Who made a task and was not answered takes it back.
    TakesBack(usize),
    /// A replica looks for tasks that it has and does not know of.
    LooksForStrays(usize),
}

/// The steps whose answer may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    Create {
        task: usize,
        replica: usize,
    },
    TakesOver {
        by: usize,
        task: usize,
    },
    Write(usize),
    /// A claim; who cancels or answers is told that nobody knows.
    ClientWrites(usize),
}

impl Model for Setup {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let waiter = |number| Waiter { replica: number % self.replicas, ..Waiter::default() };
        vec![World {
            records: vec![None; self.tasks],
            running: 0,
            queue: Vec::new(),
            jobs: Vec::new(),
            replicas: vec![Replica { process: Process::Up, is_leased: true, doubts: false, round: 0 }; self.replicas],
            clients: self
                .clients
                .iter()
                .map(|wish| Client { wish: *wish, step: ClientStep::Idle, doubt: None })
                .collect(),
            waiters: (0..self.waiters).map(waiter).collect(),
            left: self.faults,
            late: Vec::new(),
            past: vec![Past::default(); self.tasks],
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.replicas_may(world, actions);
        for number in 0..world.jobs.len() {
            self.job_may(world, number, actions);
        }
        for (number, client) in world.clients.iter().enumerate() {
            match client.step {
                ClientStep::Idle | ClientStep::Conflicted if world.records[0].is_some() => {
                    actions.push(Action::ClientReads(number));
                }
                ClientStep::Decided(..) => {
                    actions.push(Action::ClientWrites(number));
                    if world.left.unanswered > 0 && matches!(client.wish, Wish::Hear(_)) {
                        actions.push(Action::Unanswered(Unanswered::ClientWrites(number)));
                    }
                }
                ClientStep::Idle | ClientStep::Conflicted | ClientStep::Done => {}
            }
        }
        for number in 0..world.waiters.len() {
            self.waiter_may(world, number, actions);
        }
        for number in 0..world.late.len() {
            actions.extend([Action::Arrives(number), Action::Vanishes(number)]);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Create { task, replica } => {
                world.create(self, task, replica);
                world.jobs.push(Job::new(task, replica, 1, Stage::Waiting));
            }
            Action::Look(number) => self.look(&mut world, number),
            Action::Send(number) => {
                let job = &mut world.jobs[number];
                job.stage = Stage::Running;
                world.past[job.task].runs += 1;
            }
            Action::Intend(number, intent) => {
                let job = &mut world.jobs[number];
                job.intent = Some(intent);
                world.past[job.task].asked += u8::from(matches!(intent, Intent::Ask(_)));
            }
            Action::Read(number) => self.read(&mut world, number),
            Action::Write(number) => self.write(&mut world, number),
            Action::ClientReads(number) => client_reads(&mut world, number),
            Action::ClientWrites(number) => self.client_writes(&mut world, number),
            Action::Watches(number) => world.waiters[number].is_watching = true,
            Action::WaiterReads(number) => {
                let (version, told) = (world.record(0).version, end_of(&world.record(0).state));
                let waiter = &mut world.waiters[number];
                if told.is_some() {
                    *waiter = Waiter { told, ..Waiter::default() };
                } else {
                    waiter.read = Some(version);
                }
            }
            Action::Wakes(number) => {
                let waiter = &mut world.waiters[number];
                (waiter.is_woken, waiter.read) = (false, None);
            }
            Action::Polls(number) => world.waiters[number].read = None,
            Action::Crashes(replica) => crash(&mut world, replica),
            Action::Stalls(replica) => {
                world.left.stalls -= 1;
                world.replicas[replica].process = Process::Stalled;
            }
            Action::GoesOn(replica) => world.replicas[replica].process = Process::Up,
            Action::Renews(replica) => world.replicas[replica].is_leased = true,
            Action::LeaseEnds(replica) => world.replicas[replica].is_leased = false,
            Action::TakesOver { by, task } => self.take_over(&mut world, by, task),
            Action::IsLost(number) => {
                world.left.losses -= 1;
                world.waiters[number].is_woken = false;
            }
            Action::Unanswered(step) => {
                world.left.unanswered -= 1;
                let late = self.unanswered(&mut world, step);
                world.late.push(late);
            }
            Action::Arrives(number) => {
                let late = world.late.remove(number);
                world.carry_out(self, late);
            }
            Action::Vanishes(number) => drop(world.late.remove(number)),
            Action::TakesBack(task) => world.take_back(self, task),
            Action::LooksForStrays(replica) => self.look_for_strays(&mut world, replica),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::of(self)
    }
}

impl Setup {
    /// Whether a step happens sooner or later where it stays possible. The others are faults and wishes.
    pub(crate) fn is_due(world: &World, action: Action) -> bool {
        match action {
            Action::Crashes(_)
            | Action::Stalls(_)
            | Action::IsLost(_)
            | Action::Unanswered(_)
            | Action::Intend(_, Intent::Ask(_)) => false,
            Action::LeaseEnds(replica) => world.replicas[replica].process == Process::Dead,
            Action::ClientReads(number) => world.clients[number].step == ClientStep::Conflicted,
            _ => true,
        }
    }

    fn replicas_may(&self, world: &World, actions: &mut Vec<Action>) {
        let is_last = world.replicas.iter().filter(|replica| replica.process != Process::Dead).count() == 1;
        for (number, replica) in world.replicas.iter().enumerate() {
            match replica.process {
                Process::Up => {
                    let is_missing = |task: &usize| world.records[*task].is_none() && !world.past[*task].is_refused;
                    if let Some(task) = (0..self.tasks).find(is_missing) {
                        actions.push(Action::Create { task, replica: number });
                        if world.left.unanswered > 0 && self.creations_fail {
                            actions.push(Action::Unanswered(Unanswered::Create { task, replica: number }));
                        }
                    }
                    if replica.doubts && self.broken != Broken::Strays {
                        actions.push(Action::LooksForStrays(number));
                    }
                    if !replica.is_leased {
                        actions.push(Action::Renews(number));
                    }
                    if world.left.stalls > 0 {
                        actions.push(Action::Stalls(number));
                    }
                }
                Process::Stalled => actions.push(Action::GoesOn(number)),
                Process::Dead => {}
            }
            if replica.process == Process::Up && world.left.crashes > 0 && !is_last {
                actions.push(Action::Crashes(number));
            }
            if replica.process != Process::Up && replica.is_leased {
                actions.push(Action::LeaseEnds(number));
            }
            if replica.process == Process::Up && replica.is_leased {
                let is_orphan = |task: &usize| {
                    world.records[*task]
                        .as_ref()
                        .is_some_and(|record| !record.state.is_ended() && !world.replicas[record.holder].is_leased)
                };
                for task in (0..self.tasks).filter(is_orphan) {
                    actions.push(Action::TakesOver { by: number, task });
                    if world.left.unanswered > 0 {
                        actions.push(Action::Unanswered(Unanswered::TakesOver { by: number, task }));
                    }
                }
            }
        }
        let is_doubtful = |task: &usize| world.past[*task].is_doubtful && self.broken != Broken::TakeBack;
        actions.extend((0..self.tasks).filter(is_doubtful).map(Action::TakesBack));
    }

    fn job_may(&self, world: &World, number: usize, actions: &mut Vec<Action>) {
        let job = &world.jobs[number];
        if world.replicas[job.replica].process != Process::Up {
            return;
        }
        if job.change.is_some() {
            if world.left.unanswered > 0 {
                actions.push(Action::Unanswered(Unanswered::Write(number)));
            }
            return actions.push(Action::Write(number));
        }
        if job.intent.is_some() {
            return actions.push(Action::Read(number));
        }
        let record = world.record(job.task);
        match job.stage {
            Stage::Waiting if record.state == State::Queued && record.epoch == job.epoch => {}
            Stage::Waiting | Stage::Voiding => actions.push(Action::Look(number)),
            Stage::Ready => actions.push(Action::Send(number)),
            Stage::Running => {
                let asked = world.past[job.task].asked;
                if asked < self.questions {
                    actions.push(Action::Intend(number, Intent::Ask(asked)));
                }
                let is_answered = |progress: &Progress| matches!(progress, Progress::Answered(_));
                let answered = record.state.questions().iter().find(|question| is_answered(&question.progress));
                if let Some(id) = answered.and_then(|question| question.upstream_id.as_json().parse().ok()) {
                    actions.push(Action::Intend(number, Intent::Settle(id)));
                }
                actions.push(Action::Intend(number, Intent::Return));
            }
            Stage::Over => {}
        }
    }

    fn waiter_may(&self, world: &World, number: usize, actions: &mut Vec<Action>) {
        let waiter = &world.waiters[number];
        let Some(record) = &world.records[0] else { return };
        if waiter.told.is_some() || world.replicas[waiter.replica].process != Process::Up {
            return;
        }
        let watches_first = self.broken != Broken::WatchFirst;
        if !waiter.is_watching && (watches_first || waiter.read.is_some()) {
            actions.push(Action::Watches(number));
        }
        if waiter.read.is_none() && (waiter.is_watching || !watches_first) {
            actions.push(Action::WaiterReads(number));
        }
        if waiter.is_woken && waiter.read.is_some() {
            actions.push(Action::Wakes(number));
        }
        let has_news = waiter.read.is_some_and(|version| version != record.version);
        if self.is_lossy && self.broken != Broken::Poll && waiter.is_watching && has_news {
            actions.push(Action::Polls(number));
        }
        if self.is_lossy && waiter.is_woken && world.left.losses > 0 {
            actions.push(Action::IsLost(number));
        }
    }

    /// Whether somebody else holds the job's task.
    fn is_fenced(&self, world: &World, job: &Job) -> bool {
        self.broken != Broken::Fencing && world.record(job.task).epoch != job.epoch
    }

    fn look(&self, world: &mut World, number: usize) {
        let mut job = world.jobs[number].clone();
        let state = &world.record(job.task).state;
        if state.is_ended() || self.is_fenced(world, &job) {
            job.end();
        } else if let Some(question) = state.questions().first().filter(|_| job.stage == Stage::Voiding) {
            job.intent = question.upstream_id.as_json().parse().ok().map(Intent::Settle);
        } else {
            job.stage = Stage::Ready;
        }
        world.jobs[number] = job;
    }

    fn read(&self, world: &mut World, number: usize) {
        let mut job = world.jobs[number].clone();
        let record = world.record(job.task);
        let intent = job.intent.expect("it reads to write");
        if record.state.is_ended() || self.is_fenced(world, &job) {
            job.end();
        } else if let Ok(next) = record.state.clone().apply(intent.event(), NOW) {
            job.change = Some(Change { version: record.version, next });
        } else {
            job.intent = None;
        }
        world.jobs[number] = job;
    }

    fn write(&self, world: &mut World, number: usize) {
        let mut job = world.jobs[number].clone();
        let change = job.change.take().expect("it has decided");
        if world.replace(self, job.task, &change, Some(job.epoch)) {
            job.intent = None;
            if change.next.is_ended() {
                job.end();
            }
        }
        world.jobs[number] = job;
    }

    fn client_writes(&self, world: &mut World, number: usize) {
        let client = &mut world.clients[number];
        let wish = client.wish;
        let ClientStep::Decided(change, about) = std::mem::replace(&mut client.step, ClientStep::Done) else {
            unreachable!("it has decided")
        };
        if world.replace(self, 0, &change, None) {
            world.clients[number].doubt = None;
            match wish {
                Wish::Answer => world.past[0].answered.extend(about),
                Wish::Hear(_) => world.past[0].heard.extend(about),
                Wish::Cancel => {}
            }
        } else {
            world.clients[number].step = ClientStep::Conflicted;
        }
    }

    /// What comes of a step that is not answered; gives what is on its way.
    fn unanswered(&self, world: &mut World, step: Unanswered) -> Late {
        match step {
            Unanswered::Create { task, replica } => {
                let past = &mut world.past[task];
                (past.is_refused, past.is_doubtful) = (true, true);
                // Whoever has lost a word of any kind looks whether it was of a takeover.
                world.replicas[replica].doubts = true;
                Late::Create { task, replica }
            }
            Unanswered::TakesOver { by, task } => {
                let from = world.record(task).holder;
                world.replicas[by].doubts = true;
                Late::TakeOver { task, from, by, round: world.replicas[by].round }
            }
            Unanswered::Write(number) => {
                let job = &mut world.jobs[number];
                let change = job.change.take().expect("it has decided");
                // It reads again, and decides anew.
                if let (Some(Intent::Ask(id)), Broken::AskAgain) = (job.intent, self.broken) {
                    job.intent = None;
                    world.past[job.task].unheard.push(id);
                }
                Late::Replace { task: job.task, change, epoch: Some(job.epoch) }
            }
            Unanswered::ClientWrites(number) => {
                let client = &mut world.clients[number];
                let ClientStep::Decided(change, about) = std::mem::replace(&mut client.step, ClientStep::Conflicted)
                else {
                    unreachable!("it has decided")
                };
                if self.broken == Broken::ClaimAgain {
                    client.step = ClientStep::Done;
                } else {
                    client.doubt = about;
                }
                Late::Replace { task: 0, change, epoch: None }
            }
        }
    }

    fn look_for_strays(&self, world: &mut World, replica: usize) {
        world.replicas[replica].doubts = false;
        world.replicas[replica].round += 1;
        for task in 0..self.tasks {
            let Some(record) = &world.records[task] else { continue };
            let is_its = |job: &Job| {
                (job.task, job.replica, job.epoch) == (task, replica, record.epoch) && job.stage != Stage::Over
            };
            let is_known =
                world.jobs.iter().any(is_its) || (world.past[task].is_doubtful && self.broken != Broken::TakeBack);
            if record.holder == replica && !record.state.is_ended() && !is_known {
                world.hand_over(task, replica);
                self.begin(world, replica, task);
            }
        }
    }

    fn take_over(&self, world: &mut World, by: usize, task: usize) {
        world.take_over(task, by);
        self.begin(world, by, task);
    }

    /// Goes on with the call of a task that has a new holder.
    fn begin(&self, world: &mut World, by: usize, task: usize) {
        let record = world.record(task);
        let (was_sent, is_queued) = (world.past[task].runs > 0, record.state == State::Queued);
        let stage = if is_queued {
            Stage::Waiting
        } else if self.lost == Lost::RunsAgain {
            Stage::Voiding
        } else {
            Stage::Running
        };
        let mut job = Job::new(task, by, record.epoch, stage);
        // An upstream that was never asked refuses to resume.
        let gives_up = self.lost == Lost::Fails || !was_sent;
        job.intent = (stage == Stage::Running && gives_up).then_some(Intent::GiveUp);
        world.jobs.push(job);
    }
}

impl Job {
    fn new(task: usize, replica: usize, epoch: u8, stage: Stage) -> Self {
        Self { task, replica, epoch, stage, intent: None, change: None }
    }

    fn end(&mut self) {
        (self.stage, self.intent, self.change) = (Stage::Over, None, None);
    }
}

fn client_reads(world: &mut World, number: usize) {
    let record = world.record(0);
    let (state, version) = (record.state.clone(), record.version);
    let client = &mut world.clients[number];
    if let (Wish::Hear(stream), Some(doubt)) = (client.wish, client.doubt) {
        let asked = state.questions().iter().find(|question| question.number == doubt);
        match asked.map(|question| &question.progress) {
            Some(Progress::Waiting) => {}
            found => {
                // It is this one's, or it never will be.
                if found == Some(&Progress::Claimed(stream)) {
                    world.past[0].heard.push(doubt);
                }
                (client.step, client.doubt) = (ClientStep::Done, None);
                return;
            }
        }
    }
    let wanted = client.wish.event(&state);
    let decided = wanted.and_then(|(event, about)| Some((state.apply(event, NOW).ok()?, about)));
    client.step = match decided {
        Some((next, about)) => ClientStep::Decided(Change { version, next }, about),
        None => ClientStep::Done,
    };
}

/// A process dies with its jobs. Its clients come again elsewhere; what a client's request was about to write may still be
/// written, since that may have been under way.
fn crash(world: &mut World, replica: usize) {
    world.left.crashes -= 1;
    world.replicas[replica].process = Process::Dead;
    world.jobs.iter_mut().filter(|job| job.replica == replica).for_each(Job::end);
    let next = world.replicas.iter().position(|replica| replica.process != Process::Dead).expect("one lives");
    for waiter in world.waiters.iter_mut().filter(|waiter| waiter.replica == replica && waiter.told.is_none()) {
        *waiter = Waiter { replica: next, ..Waiter::default() };
    }
}
