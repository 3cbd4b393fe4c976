//! An issuer's keys over time: fetched when they are first needed, again before they are old, and once when a token names a
//! key that is not among them. A good set replaces the one before; anything else leaves it in place, however old it is.
//!
//! One job fetches. Requests that can't wait for the next time say so and wait together for its end.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, Method, Uri};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::oauth::discovery;
use crate::oauth::fetch::{self, Fetcher};

use super::{KeySet, Unusable};

/// How long fetching may take, discovery included: requests wait for it.
const LIMIT: Duration = fetch::LIMIT;
/// How often unknown keys may have the set fetched in the long run: whoever invents names of keys causes no more than this.
const PAUSE: Duration = Duration::from_secs(30);
/// How often at once, after a while without: one invented name must not keep out the next key.
const AT_ONCE: u32 = 4;
/// The pause while there is no set at all.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long a set is good when its server does not say, and the bounds of what it may say.
const USUAL_AGE: Duration = Duration::from_secs(15 * 60);
const LEAST_AGE: Duration = Duration::from_secs(5 * 60);
const MOST_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Where an issuer's keys are.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// Where the issuer's metadata say.
    Discovery,
    /// At this URL.
    Url(Uri),
    /// In this file.
    File(PathBuf),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A query may be a credential.
        let without_query = |uri: &Uri| format!("{}{}", uri.host().unwrap_or_default(), uri.path());
        match self {
            Self::Discovery => f.write_str("Discovery"),
            Self::Url(url) => write!(f, "Url({})", without_query(url)),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Discovery(#[from] discovery::Error),
    #[error(transparent)]
    Fetch(#[from] fetch::Error),
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error("the issuer's metadata have no `jwks_uri`")]
    NoKeys,
    #[error("it took too long")]
    Late,
}

/// The keys.
#[derive(Debug)]
pub(in crate::auth) struct Keys {
    issuer: Arc<str>,
    source: Source,
    fetcher: Fetcher,
    state: watch::Sender<State>,
    wanted: Notify,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    set: Option<Arc<KeySet>>,
    /// Fetches that have ended, well or not.
    ended: u64,
    is_fetching: bool,
    /// When a request last had the set fetched while there was none.
    asked: Option<Instant>,
    /// When all fetches that unknown keys have caused are made up for.
    quiet: Option<Instant>,
}

impl State {
    /// Whether a request may have the set fetched now; if so, that counts.
    fn permits(&mut self, now: Instant) -> bool {
        if self.set.is_none() {
            let permits = self.asked.is_none_or(|asked| now.duration_since(asked) >= FIRST_PAUSE);
            if permits {
                self.asked = Some(now);
            }
            return permits;
        }
        let quiet = self.quiet.map_or(now, |quiet| quiet.max(now)) + PAUSE;
        let permits = quiet.duration_since(now) <= PAUSE * AT_ONCE;
        if permits {
            self.quiet = Some(quiet);
        }
        permits
    }
}

impl Keys {
    /// The keys of an issuer, of which a file is read now.
    pub(in crate::auth) fn new(issuer: Arc<str>, source: Source, fetcher: Fetcher) -> Result<Self, Unusable> {
        let set = match &source {
            Source::File(path) => Some(Arc::new(KeySet::read(path)?)),
            Source::Discovery | Source::Url(_) => None,
        };
        let state = watch::Sender::new(State { set, ..State::default() });
        Ok(Self { issuer, source, fetcher, state, wanted: Notify::new(), generation: AtomicU64::new(0) })
    }

    /// The set of now, if there has ever been one.
    pub(in crate::auth) fn current(&self) -> Option<Arc<KeySet>> {
        self.state.borrow().set.clone()
    }

    /// Grows whenever the set becomes another one: what was believed by an earlier set has to be checked again.
    pub(in crate::auth) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Has the set fetched and waits for it; says whether that has been tried, which it isn't too often.
    pub(in crate::auth) async fn refetched(&self) -> bool {
        let mut state = self.state.subscribe();
        let Some(number) = self.want() else { return false };
        let ended = state.wait_for(|state| state.ended >= number);
        timeout(LIMIT * 2, ended).await.is_ok_and(|ended| ended.is_ok())
    }

    /// The number of the fetch to wait for.
    fn want(&self) -> Option<u64> {
        let mut number = None;
        self.state.send_if_modified(|state| {
            if !state.is_fetching {
                if !state.permits(Instant::now()) {
                    return false;
                }
                state.is_fetching = true;
                self.wanted.notify_one();
            }
            number = Some(state.ended + 1);
            false
        });
        number
    }

    /// Fetches whenever it is time, until the process stops.
    pub(in crate::auth) async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let mut next = None;
        while stopping.run_until_cancelled(self.due(next)).await.is_some() {
            self.state.send_if_modified(|state| {
                state.is_fetching = true;
                false
            });
            let Some(fetched) = stopping.run_until_cancelled(timeout(LIMIT, self.fetch())).await else { return };
            let age = self.take(fetched.unwrap_or(Err(Error::Late)));
            // A file is read again only when it is asked for.
            next = (!matches!(self.source, Source::File(_))).then(|| Instant::now() + age);
        }
    }

    async fn due(&self, next: Option<Instant>) {
        let timer = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.wanted.notified() => {}
            () = timer => {}
        }
    }

    /// Puts a good set in place; says after which time the next one is to be fetched.
    fn take(&self, fetched: Result<(KeySet, Duration), Error>) -> Duration {
        let (set, wait) = match fetched {
            // Before it is old, so that nobody has to wait.
            Ok((set, age)) => (Some(set), age * 3 / 4),
            Err(error) => {
                let has_keys = self.current().is_some();
                let (issuer, cause) = (&*self.issuer, std::error::Error::source(&error));
                tracing::warn!(issuer, %error, cause, has_keys, "an issuer's keys could not be fetched");
                (None, PAUSE)
            }
        };
        self.state.send_modify(|state| {
            state.ended += 1;
            state.is_fetching = false;
            let Some(set) = set else { return };
            match &state.set {
                Some(known) if **known == set => return,
                None => {}
                Some(_) => tracing::info!(issuer = &*self.issuer, "an issuer's keys have changed"),
            }
            state.set = Some(Arc::new(set));
            self.generation.fetch_add(1, Ordering::Release);
        });
        wait
    }

    async fn fetch(&self) -> Result<(KeySet, Duration), Error> {
        let url = match &self.source {
            Source::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || KeySet::read(&path)).await;
                return Ok((read.map_err(|_| Error::Late)??, MOST_AGE));
            }
            Source::Url(url) => url.clone(),
            Source::Discovery => {
                let metadata = discovery::server_metadata(&self.fetcher, &self.issuer).await?;
                metadata.jwks_uri.ok_or(Error::NoKeys)?
            }
        };
        let answer = self.fetcher.exchange(Method::GET, &url, HeaderMap::new(), Bytes::new()).await?;
        Ok((KeySet::of(&answer.json()?)?, age(&answer.headers)))
    }
}

/// How long a document is good (RFC 9111, 5.2.2.1), within bounds.
fn age(headers: &HeaderMap) -> Duration {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let directive = |directive: &str| {
        let (name, value) = directive.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("max-age").then(|| Duration::from_secs(seconds))
    };
    values.flat_map(|value| value.split(',')).find_map(directive).unwrap_or(USUAL_AGE).clamp(LEAST_AGE, MOST_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_how_long_keys_are_good_within_bounds() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, http::HeaderValue::from_static(value));
            age(&headers).as_secs()
        };
        assert_eq!(age(&HeaderMap::new()).as_secs(), 900);
        for (value, seconds) in [
            ("max-age=3600", 3600),
            ("public, Max-Age=\"1200\", must-revalidate", 1200),
            ("max-age=10", 300),
            ("max-age=0", 300),
            ("max-age=99999999", 86_400),
            ("max-age=-1", 900),
            ("s-maxage=3600", 900),
            ("no-store", 900),
            ("", 900),
        ] {
            assert_eq!(of(value), seconds, "{value}");
        }
    }
}
