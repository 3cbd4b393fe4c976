//! Waiting for a store that is away.

use std::time::Duration;

use crate::task::StoreError;

/// How soon a store that was away is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Asks the store until it answers: who waits for a task goes on waiting while the store is away.
///
/// # Errors
/// [`StoreError`], where asking again is in vain: any but [`StoreError::Unavailable`].
pub async fn patient<T, R: Future<Output = Result<T, StoreError>>>(read: impl Fn() -> R) -> Result<T, StoreError> {
    loop {
        match read().await {
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(ASK_AGAIN).await,
            answer => return answer,
        }
    }
}
