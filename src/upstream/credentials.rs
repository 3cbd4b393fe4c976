//! Where the `Authorization` of a message comes from, when it is not one of a route's fixed headers.

mod cell;
mod exchanged;
mod own;
mod passed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderValue, Uri};

use crate::jobs::Jobs;
use crate::oauth::fetch::Fetcher;
use crate::oauth::secret::SubjectToken;
use crate::oauth::token::{self, Client, Grant, Request, Tokens};

use super::{Denied, Error};

pub use exchanged::Exchanged;
pub use own::Own;
pub use passed::Passed;

/// A source of credentials for one server. Asked for each message, so it is quick while what it has is good.
#[async_trait]
pub trait Credentials: fmt::Debug + Send + Sync {
    /// What to show with a message on behalf of a caller; `None` for nothing.
    ///
    /// # Errors
    /// [`Error::Credentials`]; the message is not sent then.
    async fn authorization(&self, subject: Option<&Arc<SubjectToken>>) -> Result<Option<HeaderValue>, Error>;

    /// The server refused a message, which it has not acted on. Whether it is to be sent again with what
    /// [`Credentials::authorization`] gives now.
    ///
    /// # Errors
    /// [`Error::Credentials`] when there can't be others, and that says more than the refusal.
    async fn refused(&self, refused: &Refused<'_>) -> Result<bool, Error>;

    /// Whether what is shown is the client's own, who then has to hear what the server says about it.
    fn are_of_client(&self) -> bool {
        false
    }
}

/// A message that was refused with 401 or 403.
#[derive(Debug)]
pub struct Refused<'a> {
    /// How.
    pub denied: &'a Denied,
    /// What was shown.
    pub shown: Option<&'a HeaderValue>,
    /// On whose behalf it was.
    pub subject: Option<&'a Arc<SubjectToken>>,
    /// The how manieth sending it was, from 1.
    pub attempt: u32,
}

impl Refused<'_> {
    /// Whether a new token may help: the first time, and only where it is about who asks, not about what they may do.
    fn is_worth_another(&self) -> bool {
        self.attempt == 1 && self.denied.status == http::StatusCode::UNAUTHORIZED
    }
}

/// Where tokens are made, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The token endpoint.
    pub token_url: Uri,
    /// What the gateway is there.
    pub client: Client,
    /// The scopes asked for, separated by spaces.
    pub scope: Option<String>,
    /// The resource that tokens are for (RFC 8707).
    pub resource: Option<String>,
    /// The name of the service that exchanged tokens are for (RFC 8693, 2.1).
    pub audience: Option<String>,
}

/// Asks for tokens in jobs of its own: a caller that goes away takes the token from nobody.
#[derive(Debug)]
struct Source {
    config: Config,
    fetcher: Fetcher,
    jobs: Jobs,
}

impl Source {
    fn new(config: Config, jobs: Jobs) -> Arc<Self> {
        Arc::new(Self { config, fetcher: Fetcher::new(), jobs })
    }

    /// A token on behalf of a subject (RFC 8693), or the gateway's own (RFC 6749, 4.4).
    async fn token(&self, subject: Option<&str>) -> Result<Tokens, token::Error> {
        let Config { token_url, client, scope, resource, audience } = &self.config;
        let grant = match subject {
            Some(subject) => Grant::Exchange { subject, audience: audience.as_deref() },
            None => Grant::ClientCredentials,
        };
        let request = Request { grant, scope: scope.as_deref(), resource: resource.as_deref() };
        token::request(&self.fetcher, token_url, client, &request).await
    }
}

/// Why there is no token. Told to everybody who waited for it.
#[derive(Debug, Clone, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Token(Arc<token::Error>),
    #[error("the caller has shown no token that could be exchanged")]
    NoSubject,
    #[error("the gateway is stopping")]
    Stopping,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Credentials(Box::new(failure))
    }
}

/// After how much of its life a token is renewed: 80 %, and at the latest a minute before it ends, where it lives longer.
fn renewed_after(life: Duration) -> Duration {
    const MINUTE: Duration = Duration::from_secs(60);
    let most = life.mul_f64(0.8);
    if life > 2 * MINUTE { most.min(life.saturating_sub(MINUTE)) } else { most }
}

#[cfg(test)]
mod tests;
