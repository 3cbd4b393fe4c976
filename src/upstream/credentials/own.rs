//! The gateway's own token for a server, by its client credentials.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderValue;

use crate::jobs::Jobs;
use crate::oauth::secret::SubjectToken;

use super::cell::Cell;
use super::{Config, Credentials, Error, Refused, Source};

/// One token for all messages to a server.
#[derive(Debug)]
pub struct Own {
    source: Arc<Source>,
    cell: Arc<Cell>,
}

impl Own {
    /// A source that asks for a token when the first message needs one.
    #[must_use]
    pub fn new(config: Config, jobs: Jobs) -> Self {
        Self { source: Source::new(config, jobs), cell: Cell::new(None, None) }
    }
}

#[async_trait]
impl Credentials for Own {
    async fn authorization(&self, _: Option<&Arc<SubjectToken>>) -> Result<Option<HeaderValue>, Error> {
        Ok(Some(self.cell.header(&self.source).await?))
    }

    async fn refused(&self, refused: &Refused<'_>) -> Result<bool, Error> {
        Ok(refused.is_worth_another() && self.cell.forget(refused.shown))
    }
}
