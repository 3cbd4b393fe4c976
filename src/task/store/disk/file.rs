//! The file: how it is made, opened, and opened again after the disk failed.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageError, WriteTransaction};
use tokio::sync::watch;

use super::format;
use super::halt::Halt;

/// The file's name in the store's folder.
pub(super) const NAME: &str = "tasks.redb";
/// Its name until it is a store.
const UNFINISHED: &str = "tasks.redb.new";
/// How much of the file is kept in memory. What a million tasks need beside their records fits in.
const CACHE: usize = 96 << 20;

/// Why the store can't be opened. Nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder can't be made, or not be used.
    #[error("the store's folder {} can't be used: make it, or give this user the right to write in it", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// Another process has it.
    #[error("the store in {} belongs to another process that runs: stop that, or give this one a folder of its own", .0.display())]
    Locked(PathBuf),
    /// A later version wrote it.
    #[error(
        "the store in {} has format {found}, and this version knows no later one than {known}: start the version that wrote it",
        folder.display()
    )]
    Newer {
        /// Where it is.
        folder: PathBuf,
        /// The file's version.
        found: u64,
        /// The latest that is known.
        known: u64,
    },
    /// It is not what was written.
    #[error("{} is damaged, or no store: move it away, or put a copy of it in its place", .0.display())]
    Damaged(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// The disk failed.
    #[error("{} can't be read or written", .0.display())]
    Disk(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Opens the file, or what stands for it.
pub(super) trait Medium: fmt::Debug + Send + Sync {
    /// Opens it with these settings; makes it where there is none.
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// How many bytes are free, where that is known.
    fn room(&self) -> Option<u64>;

    /// How many bytes it takes, where that is known.
    fn size(&self) -> Option<u64>;
}

/// A file in a folder.
#[derive(Debug)]
struct Disk {
    path: PathBuf,
}

impl Disk {
    fn file(&self) -> Result<fs::File, DatabaseError> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
        Ok(options.open(&self.path).map_err(StorageError::from)?)
    }
}

impl Medium for Disk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        builder.create_with_backend(FileBackend::new(self.file()?)?)
    }

    fn room(&self) -> Option<u64> {
        let about = rustix::fs::statvfs(&self.path).ok()?;
        Some(about.f_bavail.saturating_mul(about.f_frsize))
    }

    fn size(&self) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        // What it takes, not how long it is: it has holes.
        fs::metadata(&self.path).ok().map(|about| about.blocks() * 512)
    }
}

/// The open file. Readers hold it while they read; who opens it again waits for them, and they for it.
pub(super) struct File {
    folder: PathBuf,
    medium: Box<dyn Medium>,
    database: RwLock<Option<Database>>,
    /// Told when it was opened again, or closed.
    openings: watch::Sender<()>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl File {
    /// Opens the store in a folder, which is made where there is none, for this user alone.
    pub(super) fn open(folder: &Path) -> Result<Self, OpenError> {
        or_damaged(folder, || Self::open_in(folder))
    }

    fn open_in(folder: &Path) -> Result<Self, OpenError> {
        let in_folder = |error| OpenError::Folder(folder.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(in_folder)?;
        let path = folder.join(NAME);
        if !path.try_exists().map_err(in_folder)? {
            make(folder, &path)?;
        }
        // Later errors of the library don't tell a file without rights from a disk that fails.
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(in_folder)?;
        if file.metadata().map_err(in_folder)?.len() == 0 {
            // It gets its name when it is a store, so this was one: the library would make a new one of it, and tell nobody.
            return Err(OpenError::Damaged(path, "nothing is in it".into()));
        }
        if let Ok(database) = Builder::new().set_cache_size(CACHE).open_read_only(&path) {
            // To open a file for writing is to write into it. After a crash there is no other way.
            format::check(format::version(&database).unwrap_or_default(), folder)?;
        }
        Self::open_on(folder.to_owned(), Box::new(Disk { path }))
    }

    /// The same on any medium.
    #[cfg(test)]
    pub(super) fn on(folder: PathBuf, medium: Box<dyn Medium>) -> Result<Self, OpenError> {
        or_damaged(&folder.clone(), || Self::open_on(folder, medium))
    }

    fn open_on(folder: PathBuf, medium: Box<dyn Medium>) -> Result<Self, OpenError> {
        let path = folder.join(NAME);
        let mut database = open(&*medium).map_err(|error| opened(error, &folder))?;
        format::bring_up_to_date(&database, &folder)?;
        format::compact(&mut database, medium.size()).map_err(|error| OpenError::Disk(path, error.into()))?;
        Ok(Self { folder, medium, database: RwLock::new(Some(database)), openings: watch::Sender::new(()) })
    }

    /// Reads, with the file held open. To open it again may take long: whoever waits for that keeps no thread from others, and
    /// no place in a line, which a job that looks elsewhere meanwhile would keep from who opens it.
    pub(super) async fn read<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T, Halt>) -> Result<T, Halt> {
        let mut openings = None;
        loop {
            if let Some(database) = self.try_database() {
                return read_from(&database, read);
            }
            match &mut openings {
                None => openings = Some(self.openings.subscribe()),
                // It never fails: the sender is here.
                Some(openings) => drop(openings.changed().await),
            }
        }
    }

    /// The same on a thread that may block.
    pub(super) fn read_blocking<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T, Halt>) -> Result<T, Halt> {
        read_from(&self.database(), read)
    }

    /// Begins a change; each is saved with what makes the next opening quick, whatever happens until then.
    pub(super) fn begin_write(&self) -> Result<WriteTransaction, redb::Error> {
        let database = self.database();
        let database = database.as_ref().ok_or_else(closed)?;
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        Ok(transaction)
    }

    /// Closes the file and opens it: the library refuses everything after an error of the disk.
    pub(super) fn reopen(&self) -> Result<(), redb::Error> {
        let opened = self.instead(|| open(&*self.medium).map(Some));
        Ok(opened?)
    }

    /// Closes it.
    pub(super) fn close(&self) {
        drop(self.instead(|| Ok(None)));
    }

    /// Closes the file, and puts this in its place.
    fn instead(&self, next: impl FnOnce() -> Result<Option<Database>, DatabaseError>) -> Result<(), DatabaseError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        drop(database.take());
        let next = next().map(|next| *database = next);
        drop(database);
        // After the lock, or who is told would find it locked.
        self.openings.send_replace(());
        next
    }

    /// How many bytes are free on the disk.
    pub(super) fn room(&self) -> Option<u64> {
        self.medium.room()
    }

    fn database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while it is opened again.
    fn try_database(&self) -> Option<RwLockReadGuard<'_, Option<Database>>> {
        match self.database.try_read() {
            Ok(database) => Some(database),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

fn read_from<T>(
    database: &Option<Database>,
    read: impl FnOnce(&ReadTransaction) -> Result<T, Halt>,
) -> Result<T, Halt> {
    let database = database.as_ref().ok_or_else(closed)?;
    // A page that the disk has spoilt can make the library panic.
    catch_unwind(AssertUnwindSafe(|| read(&database.begin_read()?)))
        .unwrap_or_else(|_| Err(redb::Error::Corrupted("it made no sense".to_owned()).into()))
}

/// Makes the file under another name: a power cut in the middle leaves what is no store, and nobody would dare to remove it.
fn make(folder: &Path, path: &Path) -> Result<(), OpenError> {
    let in_folder = |error| OpenError::Folder(folder.to_owned(), error);
    let unfinished = Disk { path: folder.join(UNFINISHED) };
    let mut database = open(&unfinished);
    let is_torn = match &database {
        Err(DatabaseError::Storage(StorageError::Io(error))) => error.kind() == io::ErrorKind::InvalidData,
        Err(DatabaseError::Storage(StorageError::Corrupted(_))) => true,
        Ok(_) | Err(_) => false,
    };
    if is_torn {
        fs::remove_file(&unfinished.path).map_err(in_folder)?;
        database = open(&unfinished);
    }
    let database = match database {
        Err(DatabaseError::Storage(StorageError::Io(error))) => return Err(in_folder(error)),
        database => database.map_err(|error| opened(error, folder))?,
    };
    format::bring_up_to_date(&database, folder)?;
    drop(database);
    fs::rename(&unfinished.path, path).map_err(in_folder)?;
    // Or a power cut could leave the file nameless.
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(in_folder)
}

/// Opens, all of it: a file that somebody has written into can make the library panic wherever it looks.
fn or_damaged<T>(folder: &Path, open: impl FnOnce() -> Result<T, OpenError>) -> Result<T, OpenError> {
    catch_unwind(AssertUnwindSafe(open))
        .unwrap_or_else(|_| Err(OpenError::Damaged(folder.join(NAME), "it made no sense".into())))
}

fn closed() -> redb::Error {
    redb::Error::DatabaseClosed
}

fn open(medium: &dyn Medium) -> Result<Database, DatabaseError> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder.set_repair_callback(|session| {
        tracing::warn!(progress = session.progress(), "the store was not closed well and is looked through");
    });
    // The same when it is opened again, and while it is made: there it is an error as others.
    catch_unwind(AssertUnwindSafe(|| medium.open(&builder)))
        .unwrap_or_else(|_| Err(StorageError::Corrupted("it made no sense".to_owned()).into()))
}

fn opened(error: DatabaseError, folder: &Path) -> OpenError {
    let path = folder.join(NAME);
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::Locked(folder.to_owned()),
        DatabaseError::Storage(StorageError::Io(error)) if error.kind() != io::ErrorKind::InvalidData => {
            OpenError::Disk(path, error.into())
        }
        error => OpenError::Damaged(path, error.into()),
    }
}
