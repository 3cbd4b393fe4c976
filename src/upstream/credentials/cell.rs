//! One token, kept while it is good and renewed before it ends, once for all who need it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Shared;
use http::HeaderValue;
use tokio::time::Instant;

use crate::oauth::secret::Secret;
use crate::oauth::token::{self, Tokens};

use super::{Failure, Source, renewed_after};

/// A server that gave no token is not asked again so soon.
const PAUSE: Duration = Duration::from_secs(1);
/// The same while there is still a token that is good.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request for a token that several may wait for.
type Fetching = Shared<Pin<Box<dyn Future<Output = Result<HeaderValue, Failure>> + Send>>>;

/// A token's place.
#[derive(Debug)]
pub(super) struct Cell {
    /// Whose token is exchanged; `None` for the gateway's own. Kept as long as the cell.
    subject: Option<Secret>,
    /// How long a token without an end is used.
    longest: Option<Duration>,
    // Held for a few instructions and never across an await.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    token: Option<Token>,
    fetching: Option<Fetching>,
    failed: Option<(Instant, Failure)>,
}

#[derive(Debug)]
struct Token {
    header: HeaderValue,
    got_at: Instant,
    /// `None`: nobody says.
    renew_at: Option<Instant>,
    ends_at: Option<Instant>,
}

impl Cell {
    pub(super) fn new(subject: Option<&str>, longest: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { subject: subject.map(Secret::from), longest, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The header, as soon as there is a token.
    pub(super) async fn header(self: &Arc<Self>, source: &Arc<Source>) -> Result<HeaderValue, Failure> {
        let fetching = {
            let now = Instant::now();
            let mut state = self.state();
            match state.good(now) {
                Some((header, is_due)) => {
                    if is_due && state.may_try(now, PATIENCE) {
                        drop(self.fetch(&mut state, source));
                    }
                    return Ok(header);
                }
                None => match &state.failed {
                    Some((at, failure)) if now < *at + PAUSE => return Err(failure.clone()),
                    _ => self.fetch(&mut state, source),
                },
            }
        };
        fetching.await
    }

    /// Forgets a token that was refused; says whether another may help. One that is new was refused for another reason than
    /// its age, and asking again and again helps nobody.
    pub(super) fn forget(&self, shown: Option<&HeaderValue>) -> bool {
        let mut state = self.state();
        match &state.token {
            Some(token) if Some(&token.header) != shown => true,
            Some(token) if token.got_at.elapsed() < PATIENCE => false,
            Some(_) => {
                state.token = None;
                true
            }
            // It ended meanwhile, or others have forgotten it.
            None => true,
        }
    }

    /// Asks for a token, unless that is being done.
    fn fetch(self: &Arc<Self>, state: &mut State, source: &Arc<Source>) -> Fetching {
        if let Some(fetching) = &state.fetching {
            return fetching.clone();
        }
        let (cell, asked) = (Arc::clone(self), Arc::clone(source));
        let job = source.jobs.spawn("token", async move {
            let stopping = asked.jobs.stopping().clone();
            let given = stopping.run_until_cancelled(asked.token(cell.subject.as_ref().map(Secret::reveal))).await;
            cell.settle(given)
        });
        let fetching: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(job.map(|ended| ended.unwrap_or(Err(Failure::Stopping))));
        state.fetching.insert(fetching.shared()).clone()
    }

    fn settle(&self, given: Option<Result<Tokens, token::Error>>) -> Result<HeaderValue, Failure> {
        let now = Instant::now();
        let given = match given {
            Some(Ok(tokens)) => Token::new(&tokens, now, self.longest),
            Some(Err(error)) => Err(error),
            None => {
                self.state().fetching = None;
                return Err(Failure::Stopping);
            }
        };
        let mut state = self.state();
        state.fetching = None;
        match given {
            Ok(token) => {
                state.failed = None;
                Ok(state.token.insert(token).header.clone())
            }
            Err(error) => {
                tracing::warn!(error = %error, cause = ?std::error::Error::source(&error), "no token for the upstream");
                let failure = Failure::Token(Arc::new(error));
                state.failed = Some((now, failure.clone()));
                Err(failure)
            }
        }
    }
}

impl State {
    /// The header while it is good, and whether it is time for another.
    fn good(&mut self, now: Instant) -> Option<(HeaderValue, bool)> {
        self.token.take_if(|token| token.ends_at.is_some_and(|end| end <= now));
        let token = self.token.as_ref()?;
        Some((token.header.clone(), token.renew_at.is_some_and(|at| at <= now)))
    }

    fn may_try(&self, now: Instant, pause: Duration) -> bool {
        self.failed.as_ref().is_none_or(|(at, _)| *at + pause <= now)
    }
}

impl Token {
    fn new(tokens: &Tokens, now: Instant, longest: Option<Duration>) -> Result<Self, token::Error> {
        let header = tokens.access.to_bearer().ok_or(token::Error::Unusable("it can't stand in a header"))?;
        let life = tokens.expires_in.or(longest);
        Ok(Self {
            header,
            got_at: now,
            renew_at: life.map(|life| now + renewed_after(life)),
            ends_at: life.map(|life| now + life),
        })
    }
}
