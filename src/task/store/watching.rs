//! A wait for changes of one task: level-triggered, so that a change before the wait is never lost.

use std::any::Any;
use std::fmt;

use tokio::sync::watch;

/// Tells of changes of one task, until it has ended or is gone. Dropping it unregisters it.
pub struct Watch {
    // Dropped before the registration, which counts the receivers that are left.
    versions: watch::Receiver<u64>,
    _registration: Option<Box<dyn Any + Send + Sync>>,
}

impl Watch {
    /// A watch over the versions that come; the registration is dropped after the receiver.
    #[must_use]
    pub fn new(versions: watch::Receiver<u64>, registration: Option<Box<dyn Any + Send + Sync>>) -> Self {
        Self { versions, _registration: registration }
    }

    /// Resolves when the task was changed since the watch began or since the last time this resolved with `true`;
    /// with `false` when no change can come any more: it has ended, or is gone. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        self.versions.changed().await.is_ok()
    }

    /// The version that was announced last.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.versions.borrow()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("version", &self.version()).finish_non_exhaustive()
    }
}
