//! The processes that share a store: who of them is alive and where, whose home a session is, what they tell each other.
//!
//! A lease belongs to a [`Holder`], one life of one process. Who lets it run out is taken for dead: others take up what it
//! held, and its sessions get another home. Time is that of what they share, never a replica's clock.

#[cfg(test)]
mod contract;
pub mod disk;
pub mod local;
mod losses;
pub mod redis;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::task::{Holder, SessionNumber, StoreError};

/// So long is told that a lease was given up: who can't take others for dead for a while needs to know it meanwhile.
const LEFT_KEPT: Duration = Duration::from_secs(3600);
/// So many leases is told which key was used last.
const KEY_KEPT: u32 = 3;
/// So many messages of the bus wait for a slow subscriber; what comes then is lost to it.
pub const BUS_DEPTH: usize = 1024;

/// Whether a holder is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its lease runs.
    Alive {
        /// Where other replicas reach it, if they do.
        address: Option<SocketAddr>,
    },
    /// It gave its lease up: it is gone for certain. After some time that is told as [`Standing::Over`].
    Left,
    /// Its lease ran out, or never was.
    Over,
}

impl Standing {
    /// Whether its lease runs no more.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Left | Self::Over)
    }
}

/// Which sessions have ended, for a process that has its store to itself and may be there again.
///
/// Every operation fails with [`StoreError::Unavailable`], and with nothing else, when the store fails.
#[async_trait]
pub trait Endings: fmt::Debug + Send + Sync {
    /// Notes for so long that a session has ended, so that no later process takes it up again.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError>;

    /// Whether that is noted.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError>;
}

/// What replicas share besides tasks.
///
/// Every operation fails with [`StoreError::Unavailable`], and with nothing else, when what they share can't be reached.
#[async_trait]
pub trait Replicas: fmt::Debug + Send + Sync {
    /// Who this process is.
    fn me(&self) -> &Holder;

    /// Begins this process's lease, or makes it run from now on again; also one that was over.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn renew(&self) -> Result<(), StoreError>;

    /// Whether the key that the processes seal sessions with is among those that this one knows, by what stands for each,
    /// its own first. It is the key of whoever said so first, for as long as anybody with the same one says so again within
    /// three leases: one that comes with another makes nobody else a stranger.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn agree(&self, known: &[String]) -> Result<bool, StoreError>;

    /// Ends this process's lease now. Where that can't be told, it runs out.
    async fn leave(&self);

    /// Whether a holder is alive, and where.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn standing(&self, holder: &Holder) -> Result<Standing, StoreError>;

    /// How often by now what all share was found to have lost what it was told. What [`Replicas::standing`] shows of that is
    /// counted before it is answered: then a lease that is over may be one that was lost, of somebody who lives.
    fn losses(&self) -> u64 {
        0
    }

    /// Resolves when this process's lease may have been lost, once for each time: it is to be renewed at once. Cancel-safe.
    async fn shaken(&self) {
        std::future::pending().await
    }

    /// Makes this process the home of a session, unless another was faster; tells whose it is now. It becomes this one's
    /// where no home is noted, and where that is `from` or this process already. Who made a session is its home without a
    /// note: `from` is whom the caller has found dead.
    ///
    /// The note is kept for `keep` from now, so that who means to stay the home asks again before.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn claim_home(
        &self,
        session: SessionNumber,
        from: Option<&Holder>,
        keep: Duration,
    ) -> Result<Holder, StoreError>;

    /// Gives up a session that is at home in this process: whoever is asked for it next claims it from [`Holder::nobody`].
    /// Another's stays another's. A process that is alone has nobody to give it to.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn release_home(&self, _session: SessionNumber, _keep: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    /// Who claimed a session; `None` where nobody did, so that it is still whose who made it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn home_of(&self, session: SessionNumber) -> Result<Option<Holder>, StoreError>;

    /// Notes for so long that a session has ended, so that no replica takes it up again; forgets its home.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError>;

    /// Whether that is noted.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]
    async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError>;

    /// Tells every other replica; each hears it once or, if the worst comes, not at all. Messages of one replica keep their
    /// order. It waits for nobody.
    async fn publish(&self, message: Bytes);

    /// What the others publish from now on; never this process's own. At most [`BUS_DEPTH`] messages wait to be taken.
    fn subscribe(&self) -> mpsc::Receiver<Bytes>;
}
