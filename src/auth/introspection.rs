//! Tokens that say nothing themselves: a server is asked what they are (RFC 7662).
//!
//! Its answers are remembered for a short while, and everybody who waits for the same answer waits for one request. While the
//! server can't be reached nothing is believed that is past its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::clock::{Clock, Timestamp};
use crate::jobs::Jobs;
use crate::oauth::fetch::{self, Fetcher, encoded};
use crate::tenant::Caller;

use super::cache::{Cache, Key};
use super::claims::{self, Audience, Terms, Why};
use super::members;
use super::resource::Resource;
use super::{Entry, Failure};

/// How long an answer is believed at most; a revoked token is good for so long.
const GOOD: Duration = Duration::from_secs(60);
/// How long it is believed that a token is none.
const BAD: Duration = Duration::from_secs(10);
/// Questions that may be under way; more tokens are turned away for the moment.
const MOST_ASKED: usize = 1024;
/// Those of them that tokens may have which were not good before: whoever invents tokens leaves room for the others.
const MOST_NEW: usize = 768;
/// How often the log repeats a warning that each of many tokens gives cause for.
const WARNING: Duration = Duration::from_secs(60);
/// Refusals that are remembered, apart from the tokens that are good: invented ones push out only each other.
const REFUSALS: usize = 1024;

/// The server that is asked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its endpoint.
    pub url: Uri,
    /// How the gateway shows who it is, from [`basic`].
    pub authorization: Option<HeaderValue>,
    /// Who issues the tokens; without it whoever the answers name, or else the endpoint.
    pub issuer: Option<Arc<str>>,
    /// What is asked of the answers. With an empty list of audiences, those without `aud` will do.
    pub terms: Terms,
}

/// A client's name and secret for HTTP Basic, each encoded as in a form (RFC 6749, 2.3.1).
#[must_use]
pub fn basic(client: &str, secret: &str) -> HeaderValue {
    let credentials = STANDARD.encode(format!("{}:{}", encoded(client), encoded(secret)));
    let value = HeaderValue::from_str(&format!("Basic {credentials}"));
    let mut value = value.expect("base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// What came of a question.
#[derive(Debug, Clone)]
enum Outcome {
    Caller(Arc<Caller>),
    Refused(Why),
    Unavailable,
}

/// A token that is none, until it is asked about again.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    why: Why,
    until: Timestamp,
}

/// Asks.
#[derive(Debug)]
pub(super) struct Introspector {
    config: Config,
    endpoint: Arc<str>,
    /// Issuers whose tokens are checked in another way: nobody else speaks for them.
    others: Box<[Arc<str>]>,
    fetcher: Fetcher,
    cache: Arc<Cache<Entry>>,
    refusals: Cache<Refusal>,
    clock: Clock,
    jobs: Jobs,
    asked: Mutex<HashMap<Key, watch::Receiver<Option<Outcome>>>>,
    is_down: AtomicBool,
    full: Seldom,
    misnamed: Seldom,
}

/// A warning that is not repeated before its time.
#[derive(Debug, Default)]
struct Seldom(Mutex<Option<Timestamp>>);

impl Seldom {
    /// Whether it is to be given now.
    fn is_due(&self, now: Timestamp) -> bool {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = next.is_none_or(|next| next <= now);
        if is_due {
            *next = Some(now.plus(WARNING));
        }
        is_due
    }
}

/// What an introspector needs.
pub(super) struct Parts {
    pub(super) others: Box<[Arc<str>]>,
    pub(super) fetcher: Fetcher,
    pub(super) cache: Arc<Cache<Entry>>,
    pub(super) clock: Clock,
    pub(super) jobs: Jobs,
}

impl Introspector {
    pub(super) fn new(config: Config, parts: Parts) -> Arc<Self> {
        let Parts { others, fetcher, cache, clock, jobs } = parts;
        let url = &config.url;
        let host = url.authority().map(|host| host.as_str()).unwrap_or_default();
        let endpoint = format!("{}://{host}{}", url.scheme_str().unwrap_or_default(), url.path()).into();
        Arc::new(Self {
            config,
            endpoint,
            others,
            fetcher,
            cache,
            refusals: Cache::new(REFUSALS),
            clock,
            jobs,
            asked: Mutex::default(),
            is_down: AtomicBool::new(false),
            full: Seldom::default(),
            misnamed: Seldom::default(),
        })
    }

    /// Who shows this token.
    pub(super) async fn ask(
        self: &Arc<Self>,
        token: &str,
        key: Key,
        resource: &Arc<Resource>,
    ) -> Result<Arc<Caller>, Failure> {
        let mut answer = self.question(token, key, resource)?;
        let outcome = match answer.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            // The process stops.
            Err(_) => None,
        };
        match outcome {
            Some(Outcome::Caller(caller)) => Ok(caller),
            Some(Outcome::Refused(why)) => Err(Failure::Refused(why)),
            Some(Outcome::Unavailable) | None => Err(Failure::Unavailable),
        }
    }

    /// The question about this token that is under way, or a new one: a job, so that it is not lost with whoever asked first.
    fn question(
        self: &Arc<Self>,
        token: &str,
        key: Key,
        resource: &Arc<Resource>,
    ) -> Result<watch::Receiver<Option<Outcome>>, Failure> {
        let mut asked = self.asked();
        if let Some(answer) = asked.get(&key) {
            return Ok(answer.clone());
        }
        // It may have been answered since the cache was looked at.
        let known = self.cache.get(&key);
        let most = if known.is_some() { MOST_ASKED } else { MOST_NEW };
        let good = known.filter(|entry| entry.until > self.clock.now()).map(|entry| Outcome::Caller(entry.caller));
        if let Some(outcome) = good.or_else(|| self.refuses(&key).map(Outcome::Refused)) {
            return Ok(watch::channel(Some(outcome)).1);
        }
        if asked.len() >= most {
            if self.full.is_due(self.clock.now()) {
                tracing::warn!("too many tokens wait for introspection");
            }
            return Err(Failure::Unavailable);
        }
        let (sender, answer) = watch::channel(None);
        asked.insert(key, answer.clone());
        let question = Question { introspector: Arc::clone(self), key };
        let (token, resource) = (token.to_owned(), Arc::clone(resource));
        self.jobs.spawn("introspection", async move {
            let stopping = question.introspector.jobs.stopping().clone();
            if let Some(outcome) = stopping.run_until_cancelled(question.put(&token, &resource)).await {
                sender.send_replace(Some(outcome));
            }
        });
        Ok(answer)
    }

    /// Why a token was refused a moment ago.
    pub(super) fn refuses(&self, key: &Key) -> Option<Why> {
        self.refusals.get(key).filter(|refusal| refusal.until > self.clock.now()).map(|refusal| refusal.why)
    }

    /// Remembers what came of a question.
    fn remember(&self, key: Key, judged: Result<(Caller, Timestamp), Why>) -> Outcome {
        match judged {
            Ok((caller, until)) => {
                let caller = Arc::new(caller);
                self.cache.put(key, Entry { caller: Arc::clone(&caller), until, checked: None });
                Outcome::Caller(caller)
            }
            Err(why) => {
                self.cache.remove(&key);
                self.refusals.put(key, Refusal { why, until: self.clock.now().plus(BAD) });
                Outcome::Refused(why)
            }
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Key, watch::Receiver<Option<Outcome>>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says so once, however many tokens there are.
    fn unavailable(&self, error: &fetch::Error) -> Outcome {
        if !self.is_down.swap(true, Ordering::Relaxed) {
            let cause = std::error::Error::source(error);
            tracing::warn!(%error, cause, endpoint = &*self.endpoint, "tokens can't be introspected");
        }
        Outcome::Unavailable
    }

    async fn fetch(&self, token: &str) -> Result<Map<String, Value>, fetch::Error> {
        let Config { url, authorization, .. } = &self.config;
        let fields = [("token", token), ("token_type_hint", "access_token")];
        let answer = self.fetcher.post_form(url, authorization.clone(), &fields).await?;
        // The status first, and the form as usual; then each member once.
        let _form: Map<String, Value> = answer.json()?;
        members::read(&answer.body).ok_or_else(|| fetch::Error::Json("a member is there twice".to_owned()))
    }

    /// A file that names the wrong issuer, or none, has every token refused: the log has to say so by itself.
    fn misnamed(&self, named: &str, configured: Option<&str>, now: Timestamp) -> Why {
        if self.misnamed.is_due(now) {
            let (endpoint, configured) = (&*self.endpoint, configured.unwrap_or_default());
            tracing::warn!(
                endpoint,
                named,
                configured,
                "an introspected token is refused: its issuer is another one than `auth.introspection.issuer`, or without \
                 that key one of `auth.jwt`"
            );
        }
        "its issuer is not the one that is configured"
    }

    /// Reads an answer about an active token: the bearer, and until when that is believed.
    fn judge(
        &self,
        answer: Map<String, Value>,
        resource: &Resource,
        now: Timestamp,
    ) -> Result<(Caller, Timestamp), Why> {
        let Config { issuer, terms, .. } = &self.config;
        let expires = claims::expiry(&answer, terms.leeway)?;
        if expires.is_some_and(|expires| expires <= now) {
            return Err("it has expired");
        }
        claims::check_begun(&answer, terms.leeway, now)?;
        match claims::audience(&answer, terms, resource)? {
            Audience::Here => {}
            Audience::Nobody if terms.audiences.as_ref().is_some_and(Vec::is_empty) => {}
            Audience::Nobody => return Err("it has no audience"),
            Audience::Elsewhere => return Err("it is for others"),
        }
        let issuer = match (claims::name(&answer, "iss")?, issuer) {
            (None, issuer) => issuer.clone().unwrap_or_else(|| Arc::clone(&self.endpoint)),
            (Some(named), Some(issuer)) if *named == **issuer => Arc::clone(issuer),
            (Some(named), None) if !self.others.iter().any(|other| **other == *named) => named.into(),
            (Some(named), configured) => return Err(self.misnamed(named, configured.as_deref(), now)),
        };
        let caller = claims::caller(answer, &issuer, terms, expires)?;
        let latest = now.plus(GOOD);
        Ok((caller, expires.map_or(latest, |expires| expires.min(latest))))
    }
}

/// A question that is under way. It is none any more when this is dropped, answered or not.
struct Question {
    introspector: Arc<Introspector>,
    key: Key,
}

impl Question {
    async fn put(&self, token: &str, resource: &Resource) -> Outcome {
        let introspector = &self.introspector;
        let answer = match introspector.fetch(token).await {
            Ok(answer) => answer,
            Err(error) => return introspector.unavailable(&error),
        };
        let now = introspector.clock.now();
        let judged = match answer.get("active") {
            Some(Value::Bool(true)) => introspector.judge(answer, resource, now),
            Some(Value::Bool(false)) => Err("it is not active"),
            _ => {
                let what = "it does not say whether the token is active".to_owned();
                return introspector.unavailable(&fetch::Error::Json(what));
            }
        };
        if introspector.is_down.swap(false, Ordering::Relaxed) {
            tracing::info!("tokens can be introspected again");
        }
        introspector.remember(self.key, judged)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.introspector.asked().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource;
    use super::*;

    fn introspector() -> Arc<Introspector> {
        let url = Uri::from_static("http://127.0.0.1:9/introspect");
        let terms = Terms { audiences: Some(Vec::new()), ..Terms::default() };
        let config = Config { url, authorization: None, issuer: None, terms };
        let (cache, jobs) = (Arc::new(Cache::new(1_000)), Jobs::default());
        let others = ["https://signed".into()].into();
        Introspector::new(config, Parts { others, fetcher: Fetcher::new(), cache, clock: Clock::system(), jobs })
    }

    fn key(number: usize) -> Key {
        Key { digest: crate::auth::sha256(&number.to_be_bytes()), resource: 0 }
    }

    fn here() -> Arc<Resource> {
        let config = resource::Config { url: "https://a/mcp".to_owned(), ..Default::default() };
        Arc::new(Resource::new(0, &config))
    }

    impl Introspector {
        fn judged(&self, answer: Value) -> Result<(Caller, Timestamp), Why> {
            let Value::Object(answer) = answer else { panic!("{answer}") };
            self.judge(answer, &here(), self.clock.now())
        }

        fn is_known(&self, number: usize) -> bool {
            self.cache.get(&key(number)).is_some()
        }
    }

    #[test]
    fn tokens_that_are_none_push_out_no_others() {
        let introspector = introspector();
        introspector.remember(key(0), introspector.judged(json!({"sub": "ann"})));
        for number in 1..20_000 {
            introspector.remember(key(number), Err("it is not active"));
            assert!(introspector.refuses(&key(number)).is_some() && !introspector.is_known(number));
        }
        assert!(introspector.is_known(0) && introspector.refuses(&key(1)).is_none());
        // Who was good is so no more.
        introspector.remember(key(0), Err("it is not active"));
        assert!(!introspector.is_known(0) && introspector.refuses(&key(0)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_were_good_have_a_share_of_the_questions() {
        let (introspector, here) = (introspector(), here());
        let may_ask = |number| introspector.question("token", key(number), &here).is_ok();
        for number in MOST_ASKED..2 * MOST_ASKED - MOST_NEW + 1 {
            introspector.remember(key(number), introspector.judged(json!({"sub": "ann"})));
        }
        tokio::time::advance(GOOD + Duration::from_secs(1)).await;
        // None of the questions is put before this test waits for something.
        assert!((0..MOST_NEW).all(may_ask));
        assert!(!may_ask(MOST_NEW), "a token that nobody has seen");
        assert!((MOST_ASKED..2 * MOST_ASKED - MOST_NEW).all(may_ask));
        assert!(!may_ask(2 * MOST_ASKED - MOST_NEW), "more than there may be");
        assert!(may_ask(0), "it is asked about already");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_issuer_is_told_but_not_for_each_token() {
        let introspector = introspector();
        let judge = |iss: &str| introspector.judged(json!({"sub": "ann", "iss": iss})).is_ok();
        assert!(judge("https://i") && introspector.misnamed.0.lock().unwrap().is_none());
        assert!(!judge("https://signed"));
        assert!(!introspector.misnamed.is_due(introspector.clock.now()), "it has been told");
        tokio::time::advance(WARNING + Duration::from_secs(1)).await;
        assert!(introspector.misnamed.is_due(introspector.clock.now()));
        assert!(!introspector.misnamed.is_due(introspector.clock.now()));
    }

    #[test]
    fn an_issuer_is_named_or_it_is_not() {
        let introspector = introspector();
        let (caller, _) = introspector.judged(json!({"sub": "ann"})).unwrap();
        assert_eq!(&*caller.principal.issuer, "http://127.0.0.1:9/introspect");
        let (caller, _) = introspector.judged(json!({"sub": "ann", "iss": "https://i"})).unwrap();
        assert_eq!(&*caller.principal.issuer, "https://i");
        let long = "x".repeat(1025);
        for iss in [json!(""), json!("a\nb"), json!(long), json!(null), json!(7), json!("https://signed")] {
            assert!(introspector.judged(json!({"sub": "ann", "iss": iss})).is_err(), "{iss}");
        }
    }
}
