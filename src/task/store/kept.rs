//! An outcome as it is handed out: what is large stays in the store, and is read as its reader takes it.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use super::StoreError;
use crate::task::Outcome;
use crate::task::outline::Outline;

/// What the upstream said in the end.
#[derive(Debug)]
pub enum Kept {
    /// All of it.
    Whole(Outcome),
    /// A result that was found to be as it was written, and is not held.
    Large(Large),
}

/// A result that is read as its reader takes it.
pub struct Large {
    /// The result without its large values.
    pub outline: Outline,
    /// Its text.
    pub pieces: Box<dyn Pieces>,
}

/// The text of a result from its beginning. Whoever reads it holds one piece at a time.
#[async_trait]
pub trait Pieces: Send {
    /// The next piece; `None` at the end. The last one is given only where all of them are what was written.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] where the task is not there any more, [`StoreError::Spoilt`], [`StoreError::Unavailable`]. What
    /// was read so far is no result then.
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError>;
}

impl Kept {
    /// The outcome as far as it is held: a large one with marks in it, see [`Outline`].
    #[must_use]
    pub fn shown(&self) -> Outcome {
        match self {
            Self::Whole(outcome) => outcome.clone(),
            Self::Large(large) => Outcome::Result(large.outline.text().into()),
        }
    }
}

impl fmt::Debug for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Large").finish_non_exhaustive()
    }
}
