//! Of which tasks it was told that what is kept of them is spoilt: whoever asks for one is answered, and the log says it once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::Ledger;
use crate::task::store::Pieces;
use crate::task::{StoreError, TaskId};

/// So many are remembered. A disk that has spoilt more is told of again.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Spoilt {
    told: Mutex<HashSet<TaskId>>,
}

impl Spoilt {
    /// Tells of an error, where it is one of these and was not told of that task.
    pub(super) fn tell(&self, id: TaskId, error: &StoreError) {
        if error.is_spoilt() && self.is_news(id) {
            let error = error as &dyn std::error::Error;
            tracing::error!(error, task = %id, "what is kept of a task is spoilt: whoever asks for it is refused");
        }
    }

    fn is_news(&self, id: TaskId) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST {
            told.clear();
        }
        told.insert(id)
    }
}

/// A large result under its reader: that it is spoilt may be seen only there.
pub(super) struct Told {
    pub(super) pieces: Box<dyn Pieces>,
    pub(super) id: TaskId,
    pub(super) ledger: Ledger,
}

#[async_trait]
impl Pieces for Told {
    async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        self.pieces.next().await.inspect_err(|error| self.ledger.inner.spoilt.tell(self.id, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_news_once_and_no_more_are_remembered_than_that() {
        let (spoilt, id) = (Spoilt::default(), TaskId::random());
        assert!(spoilt.is_news(id) && !spoilt.is_news(id));
        for _ in 0..MOST {
            assert!(spoilt.is_news(TaskId::random()));
        }
        assert!(spoilt.is_news(id));
        assert!(spoilt.told.lock().unwrap().len() <= MOST);
    }
}
