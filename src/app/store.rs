//! The store that the settings name, and the key that it keeps.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::remote;
use super::sharing::Keeping;
use crate::clock::Clock;
use crate::config::{SealKey, Settings, StoreSettings};
use crate::jobs::Jobs;
use crate::seal::{self, Sealer};
use crate::task::store::disk::{DiskStore, OpenError};
use crate::task::store::memory::MemoryStore;
use crate::task::{Holder, Store};

/// Where the key is that a store in a folder keeps.
const KEY: &str = "secrets.key";

/// Whether the store could not be opened for a reason that starting again does not change, but the operator can.
#[must_use]
pub fn is_misconfigured(error: &anyhow::Error) -> bool {
    let is_folder = |error: &OpenError| matches!(error, OpenError::Folder(..));
    error.chain().filter_map(|error| error.downcast_ref()).any(is_folder)
}

/// Opens the store.
///
/// # Errors
/// [`OpenError`]
pub(super) async fn open(settings: &Settings, jobs: &Jobs) -> anyhow::Result<Keeping> {
    let alone = |store: Arc<dyn Store>| Keeping { store, holder: Holder::begin("alone"), endings: None, join: None };
    Ok(match &settings.store {
        StoreSettings::Memory => alone(Arc::new(MemoryStore::new(Clock::system()))),
        StoreSettings::Disk { path } => {
            let store = Arc::new(DiskStore::open(path, Clock::system())?);
            Keeping { endings: Some(Arc::clone(&store) as _), ..alone(store) }
        }
        StoreSettings::Redis(redis) => remote::keeping(redis, &settings.replica, jobs).await?,
    })
}

/// What seals session ids: the configured key, else one that lives as long as the store.
///
/// # Errors
/// When the key of a store in a folder can't be read or kept.
pub(super) fn sealer(settings: &Settings) -> anyhow::Result<Sealer> {
    let previous = || settings.secrets.previous.iter().map(|key| *key.reveal());
    Ok(match (&settings.secrets.key, &settings.store) {
        (Some(key), _) => Sealer::new(*key.reveal(), previous()),
        (None, StoreSettings::Disk { path }) => Sealer::new(kept_key(path)?, previous()),
        (None, _) => Sealer::random(),
    })
}

/// The key in a folder; it is made where there is none.
fn kept_key(folder: &Path) -> anyhow::Result<[u8; seal::KEY_LEN]> {
    let path = folder.join(KEY);
    let what = || format!("the key in {}", path.display());
    match SealKey::read_file(&path) {
        Ok(Some(key)) => return Ok(*key.reveal()),
        Ok(None) => {}
        Err(error) => anyhow::bail!("{} can't be used: {error}", what()),
    }
    let key = SealKey::new(Sealer::draw_key());
    keep(folder, &key).with_context(|| format!("{} can't be kept", what()))?;
    Ok(*key.reveal())
}

/// Under its name only when it is on the disk as a whole.
fn keep(folder: &Path, key: &SealKey) -> io::Result<()> {
    let unfinished = folder.join(format!("{KEY}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "{}", key.to_text().reveal())?;
    file.sync_all()?;
    fs::rename(&unfinished, folder.join(KEY))?;
    fs::File::open(folder)?.sync_all()
}
