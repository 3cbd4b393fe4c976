//! One job that removes tasks when their ttl is over, whether or not anybody asks for them. It has one timer, whatever
//! the number of tasks.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use crate::clock::Timestamp;
use crate::jobs::Jobs;

/// How many tasks are removed before others get a turn.
const BATCH: usize = 256;

/// How long to wait for a store that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the sweeper of a ledger.
pub fn start(jobs: &Jobs, ledger: Ledger) -> JoinHandle<()> {
    jobs.spawn("sweeper", sweep(ledger, jobs.stopping().clone()))
}

async fn sweep(ledger: Ledger, stopping: CancellationToken) {
    let sweeping = async {
        let mut is_told = false;
        loop {
            match purge_all(&ledger).await {
                Ok(next) => {
                    is_told = false;
                    ledger.sleep_until_expiry(next).await;
                }
                Err(error) => {
                    // Once, and not each second while it lasts.
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(error = &error as &dyn std::error::Error, "expired tasks could not be removed");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    stopping.run_until_cancelled(sweeping).await;
}

/// Removes all that has expired; gives the earliest expiry that remains.
async fn purge_all(ledger: &Ledger) -> Result<Option<Timestamp>, super::StoreError> {
    ledger.forget_earliest();
    loop {
        let purged = ledger.purge(BATCH).await?;
        if purged.tasks.len() < BATCH {
            return Ok(purged.next);
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests;
