//! The one that writes: a thread of its own, since it waits for the disk. It takes every change that waits, does each in
//! order inside one transaction, commits once, and only then answers: many creates share one wait for the disk.
//!
//! Changes that may be lost ride on the next commit, or on one of their own about a second later. Those of them that readers
//! look for are shown to them meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::{Durability, WriteTransaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::super::StoreError;
use super::changes::{Change, Due, Made};
use super::halt::Halt;
use super::tables::{Tables, Told};
use super::{Shared, lock};

/// How many changes may wait; who comes then waits to be allowed to.
const WAITING: usize = 4096;
/// How many changes share a commit at most.
const BATCH: usize = 512;
/// After how many bytes of texts no more changes are taken into a commit.
const BATCH_BYTES: usize = 16 << 20;
/// How long what may be lost waits for a commit.
const LAZY: Duration = Duration::from_secs(1);
/// How many of those wait at most.
const LAZY_CHANGES: usize = 1024;
/// How long new tasks are refused after the disk failed, and how long a look at its room is good.
const PAUSE: Duration = Duration::from_secs(1);
/// New tasks are refused when there is less room than this, so that those which run can end.
pub(super) const RESERVE: u64 = 32 << 20;

/// The thread was gone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(&'static str);

fn unavailable(why: &'static str) -> StoreError {
    StoreError::Unavailable(Refusal(why).into())
}

/// Takes changes to the thread. When this is dropped, the thread has ended and the file is closed.
#[derive(Debug)]
pub(super) struct Writer {
    requests: Mutex<Option<SyncSender<Waiting>>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

struct Waiting {
    request: Box<dyn Request>,
    _place: OwnedSemaphorePermit,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let (requests, waiting) = sync_channel(WAITING);
        // What is logged there goes where the starter's lines go.
        let log = tracing::dispatcher::get_default(Clone::clone);
        let thread = std::thread::Builder::new().name("taskgate-store".to_owned()).spawn(move || {
            let _log = tracing::dispatcher::set_default(&log);
            let writing = Writing {
                shared,
                waiting,
                open: None,
                lazy: 0,
                lazy_since: None,
                refused_until: None,
                room: None,
                doubtful: Vec::new(),
            };
            writing.run();
        })?;
        let room = Arc::new(Semaphore::new(WAITING));
        Ok(Self { requests: Mutex::new(Some(requests)), room, thread: Some(thread) })
    }

    /// Does a change, and waits until it is in the file where it has to be.
    pub(super) async fn change<C: Change>(&self, change: C) -> Result<C::Done, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Box::new(Pending { change, done: None, reply })).await?;
        answer.await.map_err(|_| unavailable("the store's writer has stopped"))?
    }

    /// Opens the file again if that is what it needs.
    pub(super) async fn heal(&self) -> Result<(), StoreError> {
        self.change(Heal).await
    }

    async fn send(&self, request: Box<dyn Request>) -> Result<(), StoreError> {
        let stopped = || unavailable("the store is closed");
        let place = Arc::clone(&self.room).acquire_owned().await.map_err(|_| stopped())?;
        // Never full: there is a place for each that has a permit.
        let requests = lock(&self.requests);
        let requests = requests.as_ref().ok_or_else(stopped)?;
        requests.try_send(Waiting { request, _place: place }).map_err(|_| stopped())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(lock(&self.requests).take());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the store's writer ended by a panic");
        }
    }
}

/// A change that somebody waits for.
trait Request: Send {
    fn is_new(&self) -> bool;
    fn bytes(&self) -> usize;
    /// Does it; says how soon it has to be in the file. Fails only where the transaction is void.
    fn apply(&mut self, tables: &mut Tables<'_>) -> Result<Due, Box<redb::Error>>;
    /// The task that it made when it was done last.
    fn made(&self) -> Option<Made>;
    /// Gives the answer: its own, or why everything came to nothing.
    fn answer(self: Box<Self>, lost: Option<&'static str>);
}

struct Pending<C: Change> {
    change: C,
    done: Option<Result<C::Done, StoreError>>,
    reply: oneshot::Sender<Result<C::Done, StoreError>>,
}

impl<C: Change> Request for Pending<C> {
    fn is_new(&self) -> bool {
        C::IS_NEW
    }

    fn bytes(&self) -> usize {
        self.change.bytes()
    }

    fn apply(&mut self, tables: &mut Tables<'_>) -> Result<Due, Box<redb::Error>> {
        let done = match self.done.take() {
            Some(Ok(before)) => self.change.again(tables, before),
            Some(Err(_)) | None => self.change.apply(tables),
        };
        let (done, due) = match done {
            Ok(done) => {
                let due = C::due(&done);
                (Ok(done), due)
            }
            Err(Halt::Refused(error)) => (Err(error), Due::Never),
            Err(Halt::Broken(error)) => return Err(error),
        };
        self.done = Some(done);
        Ok(due)
    }

    fn made(&self) -> Option<Made> {
        self.done.as_ref()?.as_ref().ok().and_then(C::made)
    }

    fn answer(self: Box<Self>, lost: Option<&'static str>) {
        let nothing = "the store failed";
        let done = match lost {
            Some(why) => Err(unavailable(why)),
            None => self.done.unwrap_or_else(|| Err(unavailable(nothing))),
        };
        // Whoever asked may be gone.
        drop(self.reply.send(done));
    }
}

/// Changes nothing. That it could be done says that the file can be used.
struct Heal;

impl Change for Heal {
    type Done = ();

    fn due((): &()) -> Due {
        Due::Never
    }

    fn apply(&self, _: &mut Tables<'_>) -> Result<(), Halt> {
        Ok(())
    }
}

/// The thread's own.
struct Writing {
    shared: Arc<Shared>,
    waiting: Receiver<Waiting>,
    /// With what may be lost in it and is not looked for by readers.
    open: Option<WriteTransaction>,
    /// How many changes may be lost, in it or beyond it.
    lazy: usize,
    /// Since when.
    lazy_since: Option<Instant>,
    refused_until: Option<Instant>,
    /// When the disk was last looked at, and whether it has room.
    room: Option<(Instant, bool)>,
    /// Tasks whose creation is refused and that may be in the file: where only the last wait for the disk has failed, all of
    /// the transaction is there. They are removed before anything else is done, or the next start would send their calls.
    doubtful: Vec<Made>,
}

impl Writing {
    fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            self.work(batch);
        }
        if !self.doubtful.is_empty() {
            self.work(Vec::new());
        }
        if self.lazy > 0
            && let Err(error) = self.attempt(&mut [], Due::Now)
        {
            tracing::warn!(%error, "the last notes were not written");
        }
        self.shared.file.close();
    }

    /// All that wait; none of them when notes, or tasks in doubt, have waited long enough. `None`: nobody is left to ask.
    fn next_batch(&mut self) -> Option<Vec<Box<dyn Request>>> {
        let patience = match self.lazy_since {
            Some(since) => Some(LAZY.saturating_sub(since.elapsed())),
            None => (!self.doubtful.is_empty()).then_some(PAUSE),
        };
        let first = match patience {
            None => self.waiting.recv().ok()?,
            Some(patience) => match self.waiting.recv_timeout(patience) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return None,
            },
        };
        let mut bytes = first.request.bytes();
        let mut batch = vec![first.request];
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = self.waiting.try_recv() else { break };
            bytes += next.request.bytes();
            batch.push(next.request);
        }
        Some(batch)
    }

    /// Does a batch, and answers it. When the disk fails, what must go on is tried once more, and new tasks are refused: they
    /// are told when they are certain not to be in the file, or that can't be had now.
    fn work(&mut self, mut batch: Vec<Box<dyn Request>>) {
        let mut refused = Vec::new();
        if let Some(why) = self.reason_for_nothing_new() {
            batch = refuse(batch, why, |request| request.is_new());
        }
        for attempt in 0..2 {
            if attempt > 0 {
                let (new, left): (Vec<_>, Vec<_>) = batch.into_iter().partition(|request| request.is_new());
                self.doubtful.extend(new.iter().filter_map(|request| request.made()));
                refused.extend(new);
                batch = left;
                if batch.is_empty() && self.doubtful.is_empty() {
                    break;
                }
            }
            let done = catch_unwind(AssertUnwindSafe(|| self.attempt(&mut batch, Due::Never)));
            let done =
                done.unwrap_or_else(|_| Err(Box::new(redb::Error::Corrupted("a panic while writing".to_owned()))));
            let Err(error) = done else {
                batch.into_iter().for_each(|request| request.answer(None));
                batch = Vec::new();
                break;
            };
            tracing::error!(error = &*error as &dyn std::error::Error, "the store could not be written");
            (self.open, self.lazy, self.lazy_since) = (None, 0, None);
            self.refused_until = Some(Instant::now() + PAUSE);
            self.room = None;
            if let Err(error) = self.shared.file.reopen() {
                tracing::error!(error = &error as &dyn std::error::Error, "the store could not be opened again");
                break;
            }
            self.shared.opened_again();
        }
        // Those that were new are still among them when the file could not be opened again.
        self.doubtful.extend(batch.iter().filter_map(|request| request.made()));
        refused.into_iter().chain(batch).for_each(|request| request.answer(Some("the disk failed")));
    }

    fn reason_for_nothing_new(&mut self) -> Option<&'static str> {
        let now = Instant::now();
        // With a task in doubt as well: each failure could leave more of them.
        if self.refused_until.is_some_and(|until| now < until) || !self.doubtful.is_empty() {
            return Some("the disk failed a moment ago");
        }
        let has_room = match self.room {
            Some((at, has_room)) if now.duration_since(at) < PAUSE => has_room,
            _ => {
                let has_room = self.shared.file.room().is_none_or(|room| room >= RESERVE);
                if !has_room && self.room.is_none_or(|(_, had_room)| had_room) {
                    tracing::error!("the store's disk is full: new tasks are refused");
                }
                self.room = Some((now, has_room));
                has_room
            }
        };
        (!has_room).then_some("the disk is full")
    }

    /// Does a batch in one transaction, which is in the file as soon as the hastiest of them has to be, or earlier.
    fn attempt(&mut self, batch: &mut [Box<dyn Request>], mut due: Due) -> Result<(), Box<redb::Error>> {
        let (mut transaction, mut is_used) = match self.open.take() {
            Some(open) => (open, true),
            None => (self.shared.file.begin_write()?, false),
        };
        let mut tables = Tables::open(&transaction, self.shared.clock.now())?;
        for made in &self.doubtful {
            match made.take_back(&mut tables) {
                Ok(true) => due = Due::Now,
                Ok(false) => {}
                Err(Halt::Refused(error)) => {
                    // Nobody can send its call either.
                    tracing::error!(task = %made.id, %error, "a task whose creation was refused can't be removed");
                }
                Err(Halt::Broken(error)) => return Err(error),
            }
        }
        for request in batch.iter_mut() {
            let its = request.apply(&mut tables)?;
            self.lazy += usize::from(matches!(its, Due::Later | Due::Seen));
            due = due.max(its);
        }
        let (told, bytes) = (std::mem::take(&mut tables.told), tables.bytes);
        due = due.max(tables.due);
        drop(tables);
        if self.lazy >= LAZY_CHANGES || self.lazy_since.is_some_and(|since| since.elapsed() >= LAZY) {
            due = Due::Now;
        }
        is_used |= due == Due::Later;
        match due {
            Due::Now => {
                transaction.commit().map_err(redb::Error::from)?;
                (self.lazy, self.lazy_since) = (0, None);
            }
            Due::Seen => {
                transaction.set_durability(Durability::None).map_err(redb::Error::from)?;
                transaction.commit().map_err(redb::Error::from)?;
            }
            Due::Later | Due::Never if is_used => self.open = Some(transaction),
            Due::Later | Due::Never => transaction.abort().map_err(redb::Error::from)?,
        }
        self.doubtful.clear();
        if self.lazy > 0 {
            self.lazy_since.get_or_insert_with(Instant::now);
        }
        self.tell(told, bytes);
        Ok(())
    }

    fn tell(&self, told: Vec<Told>, bytes: i64) {
        self.shared.note_bytes(bytes);
        if told.is_empty() {
            return;
        }
        let mut watched = lock(&self.shared.watched);
        for told in told {
            match told {
                Told::Changed(task) => watched.announce(&task),
                Told::Gone(id) => watched.close(id),
            }
        }
    }
}

/// Answers those that are not to be done; gives the others.
fn refuse(
    batch: Vec<Box<dyn Request>>,
    why: &'static str,
    is_refused: impl Fn(&dyn Request) -> bool,
) -> Vec<Box<dyn Request>> {
    let (refused, left): (Vec<_>, Vec<_>) = batch.into_iter().partition(|request| is_refused(&**request));
    refused.into_iter().for_each(|request| request.answer(Some(why)));
    left
}
