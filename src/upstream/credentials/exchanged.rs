//! A token for each caller, in exchange for the one that they showed (RFC 8693).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use tokio::time::Instant;

use crate::jobs::Jobs;
use crate::oauth::secret::SubjectToken;

use super::cell::Cell;
use super::{Config, Credentials, Error, Failure, Refused, Source};

/// So many tokens are kept.
const MOST: usize = 10_000;
/// So long is one used that does not say when it ends.
const LONGEST: Duration = Duration::from_secs(300);

/// The tokens of all callers, by the digest of what each showed: whoever shows another token may have other rights.
#[derive(Debug)]
pub struct Exchanged {
    source: Arc<Source>,
    // Held for a few map operations and never across an await.
    cells: Mutex<HashMap<[u8; 32], Kept>>,
}

#[derive(Debug)]
struct Kept {
    cell: Arc<Cell>,
    used: Instant,
}

impl Exchanged {
    /// A source that asks for a token when a caller's first message needs one.
    #[must_use]
    pub fn new(config: Config, jobs: Jobs) -> Self {
        Self { source: Source::new(config, jobs), cells: Mutex::default() }
    }

    fn cell(&self, subject: Option<&Arc<SubjectToken>>) -> Result<Arc<Cell>, Failure> {
        let subject = subject.ok_or(Failure::NoSubject)?;
        let token = subject.bearer().ok_or(Failure::NoSubject)?;
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.len() >= MOST && !cells.contains_key(subject.digest()) {
            make_room(&mut cells);
        }
        let kept = cells
            .entry(*subject.digest())
            .or_insert_with(|| Kept { cell: Cell::new(Some(token), Some(LONGEST)), used: Instant::now() });
        kept.used = Instant::now();
        Ok(Arc::clone(&kept.cell))
    }
}

/// Drops the tenth that was used longest ago.
fn make_room(cells: &mut HashMap<[u8; 32], Kept>) {
    let mut used: Vec<Instant> = cells.values().map(|kept| kept.used).collect();
    used.sort_unstable();
    if let Some(oldest) = used.get(MOST / 10) {
        cells.retain(|_, kept| kept.used > *oldest);
    }
}

#[async_trait]
impl Credentials for Exchanged {
    async fn authorization(&self, subject: Option<&Arc<SubjectToken>>) -> Result<Option<HeaderValue>, Error> {
        Ok(Some(self.cell(subject)?.header(&self.source).await?))
    }

    async fn refused(&self, refused: &Refused<'_>) -> Result<bool, Error> {
        Ok(refused.is_worth_another() && self.cell(refused.subject)?.forget(refused.shown))
    }
}
