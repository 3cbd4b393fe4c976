//! What the next process on a disk has to know of the sessions of this one.

use std::time::Duration;

use async_trait::async_trait;

use super::Endings;
use crate::task::store::disk::DiskStore;
use crate::task::{SessionNumber, StoreError};

#[async_trait]
impl Endings for DiskStore {
    async fn end_session(&self, session: SessionNumber, keep: Duration) -> Result<(), StoreError> {
        Self::end_session(self, session, keep).await
    }

    async fn has_ended(&self, session: SessionNumber) -> Result<bool, StoreError> {
        Self::has_ended(self, session).await
    }
}
