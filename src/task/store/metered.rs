//! Any store, with the time of each operation recorded.

use std::sync::Arc;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::metrics::label::StoreOp;

use super::wrapper::{Operation, Wrapper};
use super::{Store, StoreError};

/// A store that is timed.
#[derive(Debug)]
pub struct MeteredStore<S: ?Sized> {
    store: Arc<S>,
    metrics: Arc<Metrics>,
}

impl<S: ?Sized> MeteredStore<S> {
    /// Times this store.
    pub const fn new(store: Arc<S>, metrics: Arc<Metrics>) -> Self {
        Self { store, metrics }
    }
}

impl<S: Store + ?Sized> Wrapper for MeteredStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        operation: Operation<'_>,
        doing: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(label) = label_of(operation) else { return doing.await };
        let started = Instant::now();
        let done = doing.await;
        self.metrics.store(label, started.elapsed());
        done
    }
}

/// What an operation is timed as, if it is.
fn label_of(operation: Operation<'_>) -> Option<StoreOp> {
    match operation {
        Operation::Create => Some(StoreOp::Create),
        Operation::Read | Operation::Outcome | Operation::Kept | Operation::Watch => Some(StoreOp::Get),
        Operation::NoteRead | Operation::Replace | Operation::NoteTrail(_) => Some(StoreOp::Update),
        Operation::List => Some(StoreOp::List),
        Operation::Purge | Operation::Holders | Operation::TakeOver | Operation::TakeStrays => Some(StoreOp::Due),
        Operation::Usage => None,
    }
}
