//! The caller's own `Authorization`, passed on as it is: only where the gateway itself authenticates nobody, so that the token
//! was made for the server.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderValue;

use crate::oauth::secret::SubjectToken;

use super::{Credentials, Error, Refused};

/// What the caller showed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Passed;

#[async_trait]
impl Credentials for Passed {
    async fn authorization(&self, subject: Option<&Arc<SubjectToken>>) -> Result<Option<HeaderValue>, Error> {
        Ok(subject.map(|subject| subject.header().clone()))
    }

    async fn refused(&self, _: &Refused<'_>) -> Result<bool, Error> {
        Ok(false)
    }

    fn are_of_client(&self) -> bool {
        true
    }
}
