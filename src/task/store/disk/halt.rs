//! Why an operation stopped: because it may not be done, or because the file can't be used.

use super::super::{Quota, StoreError};
use crate::task::codec::Malformed;

/// Nothing of the operation was done.
#[derive(Debug)]
pub(super) enum Halt {
    /// For this operation's own reasons; others in the same transaction are not concerned.
    Refused(StoreError),
    /// Reading or writing failed; the whole transaction is void.
    Broken(Box<redb::Error>),
}

/// What the file says contradicts itself.
#[derive(Debug, thiserror::Error)]
#[error("the file contradicts itself: {0}")]
struct Inconsistent(&'static str);

impl Halt {
    pub(super) fn inconsistent(what: &'static str) -> Self {
        Self::Refused(StoreError::Spoilt(Inconsistent(what).into()))
    }

    /// As callers of the store see it.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            // Also where a page makes no sense: it is many tasks', and says of none of them that it can never be read again.
            Self::Broken(error) => StoreError::Unavailable(error),
        }
    }
}

impl<E: Into<redb::Error>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Broken(Box::new(error.into()))
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<Quota> for Halt {
    fn from(quota: Quota) -> Self {
        Self::Refused(StoreError::Quota(quota))
    }
}

impl From<Malformed> for Halt {
    fn from(error: Malformed) -> Self {
        Self::Refused(StoreError::Spoilt(error.into()))
    }
}
