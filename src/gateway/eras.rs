//! Which eras the server behind a route speaks: one verdict for each era, found out by asking, remembered for a while, and
//! mended by what calls meet.
//!
//! A client is served in its own era where the server speaks it too. So a legacy client's `initialize` is tried as it is,
//! and only a server that turns out to be of the modern era makes a translation of it; a modern client's request is
//! preceded by `server/discover` once, and then goes on as it is or is translated (2026-07-28 versioning, "Backward
//! Compatibility with Initialization-Based Versions").

mod verdict;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::jsonrpc::Object;
use crate::mcp::envelope::{Claim, GATEWAY_INFO, SERVER_INFO, with_claim};
use crate::mcp::probe::{self, Finding};
use crate::oauth::secret::SubjectToken;
use crate::upstream::{Denied, Error, SessionKey, Upstream};

use super::rejection::{Chain, Fault, Kind};
use super::{Gateway, Route};
use verdict::{Advice, Standing, Verdicts};

pub use verdict::{Discovered, Setting};

/// How a client's requests go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// The server is stateless; the key stands for it.
    Modern(SessionKey),
    /// The server has sessions.
    Legacy,
}

/// What is known of one server.
#[derive(Debug)]
pub struct Eras {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    verdicts: Verdicts,
    /// Its `Implementation` as JSON text, as it said last.
    identity: Option<Arc<str>>,
    /// The answers to the questions that are being asked, for all who wait for them, by the one on whose behalf each is asked.
    asking: HashMap<Asker, Asking>,
}

/// On whose behalf the server is asked: the digest of what they showed, where that makes a difference.
type Asker = Option<[u8; 32]>;

/// The answer to a question, when it comes.
type Asking = watch::Receiver<Option<Found>>;

/// What came of asking.
#[derive(Debug, Clone)]
enum Found {
    Modern(Arc<Discovered>),
    Legacy,
    Disjoint,
    /// Nothing, and why.
    Nothing(Fault),
    /// It did not take the credentials of the client on whose behalf it was asked.
    Denied(Box<Denied>),
}

impl Eras {
    /// Nothing is known yet but what the configuration says.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self { state: Mutex::new(State { verdicts: Verdicts::new(setting), identity: None, asking: HashMap::new() }) }
    }

    /// Who the server is, an `Implementation` as JSON text, where it has said so: the gateway's own results name it as the
    /// server's do, since clients keep apart what different servers say.
    pub(super) fn identity(&self) -> Option<Arc<str>> {
        self.state().identity.clone()
    }

    /// To be told of a modern server's `DiscoverResult` that passes.
    pub(super) fn introduced(&self, discovered: &str) {
        let identity = identity_of(discovered);
        let mut state = self.state();
        state.identity = identity.or(state.identity.take());
    }

    /// To be told of each handshake that the server took, with the `result`.
    pub(super) fn welcomed(&self, result: &str) {
        let identity = Object::parse(result).ok().and_then(|result| implementation(result.get("serverInfo")?));
        let mut state = self.state();
        state.verdicts.handshake_ended(true);
        state.identity = identity.or(state.identity.take());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    /// Whether it may be about the one on whose behalf it was asked, and so tells nobody else anything.
    fn is_personal(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Nothing(Fault::Credentials | Fault::UpstreamProtocol))
    }
}

impl State {
    /// Takes what came of asking.
    fn learn(&mut self, found: &Found) {
        let now = Instant::now();
        match found {
            Found::Modern(discovered) => {
                let identity = discovered.result.as_deref().and_then(identity_of);
                self.identity = identity.or(self.identity.take());
                self.verdicts.is_modern(Arc::clone(discovered), now);
            }
            Found::Legacy => self.verdicts.is_legacy(now),
            Found::Disjoint => self.verdicts.is_disjoint(now),
            // Never remembered.
            Found::Nothing(_) | Found::Denied(_) => {}
        }
    }
}

/// Who a server of the modern era is, by what it says of itself.
fn identity_of(discovered: &str) -> Option<Arc<str>> {
    let discovered = Object::parse(discovered).ok()?;
    implementation(Object::parse(discovered.get("_meta")?).ok()?.get(SERVER_INFO)?)
}

/// An `Implementation`, if it is one: what is malformed counts as absent (2026-07-28 basic, "Result").
fn implementation(json: &str) -> Option<Arc<str>> {
    let read = Object::parse(json).ok()?;
    let is_text = |member: &str| read.get(member).is_some_and(|value| value.starts_with('"'));
    (is_text("name") && is_text("version")).then(|| json.into())
}

impl Gateway {
    /// How the request of a modern client that shows this goes on at this route.
    ///
    /// # Errors
    /// The server can't be asked, or speaks only modern versions that are not spoken here.
    pub(super) async fn side_of(
        self: &Arc<Self>,
        route: &Arc<Route>,
        subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Side, Kind> {
        let advice = route.eras.state().verdicts.for_modern(Instant::now());
        match advice {
            Advice::Modern => Ok(modern(route, subject)),
            Advice::Legacy => Ok(Side::Legacy),
            Advice::LegacyForNow => {
                // It may have learnt the other era since; those who ask now need not wait for that.
                route.eras.state().verdicts.doubted(Instant::now());
                drop(self.ask(route, subject));
                Ok(Side::Legacy)
            }
            Advice::Disjoint => Err(disjoint(route)),
            Advice::Ask => self.asked(route, subject).await,
        }
    }

    /// How a legacy client's handshake goes on: as it is, or in translation where the server is known to have none.
    pub(super) fn side_of_handshake(&self, route: &Route, subject: Option<&Arc<SubjectToken>>) -> Side {
        if route.eras.state().verdicts.has_handshake(Instant::now()) { Side::Legacy } else { modern(route, subject) }
    }

    /// What a modern server says of itself to whoever shows this, not older than it allows. What it told somebody else may be
    /// theirs alone (2026-07-28 caching, `cacheScope`).
    ///
    /// # Errors
    /// As [`Gateway::side_of`]; also where it needs a handshake.
    pub(super) async fn discovered(
        self: &Arc<Self>,
        route: &Arc<Route>,
        subject: Option<&Arc<SubjectToken>>,
    ) -> Result<Arc<Discovered>, Kind> {
        let is_shared = route.subjects.is_none();
        let known = route.eras.state().verdicts.discovered(Instant::now(), is_shared);
        if let Some(known) = known {
            return Ok(known);
        }
        match answer_of(self.ask(route, subject)).await {
            Found::Modern(discovered) if discovered.result.is_some() => Ok(discovered),
            Found::Modern(_) | Found::Legacy => Err(Fault::UpstreamProtocol.into()),
            Found::Disjoint => Err(disjoint(route)),
            Found::Nothing(fault) => Err(fault.into()),
            Found::Denied(denied) => Err(Kind::Denied(denied)),
        }
    }

    /// To be told of each modern request that the server refused, whoever sent it. Gives the side to which the request
    /// may be sent once more, in the other way: it was not executed, and the server is not what it was.
    pub(super) async fn modern_refused(
        self: &Arc<Self>,
        route: &Arc<Route>,
        subject: Option<&Arc<SubjectToken>>,
        error: &Error,
    ) -> Option<Side> {
        let is_suspect = match error {
            Error::Status(status) => probe::looks_legacy(status.as_u16(), None),
            Error::Refused { status, error } => probe::looks_legacy(status.as_u16(), Some(error)),
            Error::Connect(_)
            | Error::Lost(_)
            | Error::Protocol(_)
            | Error::TooLarge(_)
            | Error::SessionGone
            | Error::Denied(_)
            | Error::Credentials(_) => false,
        };
        if !is_suspect || !route.eras.state().verdicts.may_doubt(Instant::now()) {
            return None;
        }
        tracing::debug!(route = %route.name, %error, "a modern request was refused in a way of the legacy era; asking again");
        match self.found(route, subject).await {
            Found::Legacy => Some(Side::Legacy),
            Found::Modern(_) => {
                route.eras.state().verdicts.doubted(Instant::now());
                None
            }
            Found::Disjoint | Found::Nothing(_) | Found::Denied(_) => None,
        }
    }

    /// To be told of each request that the server refused. Says whether it was not executed because the server is of the
    /// other era now than the conversation.
    pub(super) async fn has_changed_era(self: &Arc<Self>, route: &Arc<Route>, key: &SessionKey, error: &Error) -> bool {
        if key.version.has_sessions() {
            // A server of both eras has no cause to say so of a session.
            matches!(error, Error::Refused { error, .. } if probe::knows_no_sessions(error))
        } else {
            self.modern_refused(route, key.subject.as_ref(), error).await.is_some()
        }
    }

    /// To be told of each handshake that the server refused. Gives the side to which the client's requests go in
    /// translation, where the server turns out to be modern.
    pub(super) async fn legacy_refused(
        self: &Arc<Self>,
        route: &Arc<Route>,
        subject: Option<&Arc<SubjectToken>>,
        error: &Error,
    ) -> Option<Side> {
        // A modern server that knows no handshake may refuse it with any error: it is an unknown method without claims.
        let is_refusal = matches!(error, Error::Refused { .. } | Error::Status(_) | Error::Protocol(_));
        // Credentials and rates are no question of eras.
        let is_about_access =
            matches!(error, Error::Status(status) if probe::of_status(status.as_u16()) == Finding::Inconclusive);
        if !is_refusal || is_about_access {
            return None;
        }
        {
            let mut state = route.eras.state();
            state.verdicts.handshake_ended(false);
            if !state.verdicts.may_be_modern() {
                return None;
            }
        }
        match self.found(route, subject).await {
            Found::Modern(_) => {
                route.eras.state().verdicts.handshake_refused(Instant::now());
                Some(modern(route, subject))
            }
            Found::Legacy | Found::Disjoint | Found::Nothing(_) | Found::Denied(_) => None,
        }
    }

    /// To be told when a modern request was answered with a result that lacks `resultType`: a server of the legacy era has
    /// executed it. The result stands, the request is never sent again, and the next one is preceded by asking.
    pub(super) fn looked_legacy(&self, route: &Route) {
        let mut state = route.eras.state();
        if state.verdicts.may_doubt(Instant::now()) {
            tracing::warn!(route = %route.name, "a result of the server lacks `resultType`: its era will be asked for again");
            state.verdicts.forget_modern();
            state.verdicts.doubted(Instant::now());
        }
    }

    /// Whether no client can be served at a route, because its server is known to speak only modern versions that are not
    /// spoken here. A server that was so for a while is asked again, since clients that are sent elsewhere ask nothing.
    #[must_use]
    pub fn is_cut_off(self: &Arc<Self>, route: &Arc<Route>) -> bool {
        let now = Instant::now();
        let standing = route.eras.state().verdicts.standing(now);
        if standing == Standing::CutOffBefore {
            route.eras.state().verdicts.doubted(now);
            drop(self.ask(route, route.any_subject().as_ref()));
        }
        standing != Standing::Served
    }

    /// Asks, and gives the side.
    async fn asked(self: &Arc<Self>, route: &Arc<Route>, subject: Option<&Arc<SubjectToken>>) -> Result<Side, Kind> {
        match self.found(route, subject).await {
            Found::Modern(_) => Ok(modern(route, subject)),
            Found::Legacy => Ok(Side::Legacy),
            Found::Disjoint => Err(disjoint(route)),
            Found::Nothing(fault) => Err(fault.into()),
            Found::Denied(denied) => Err(Kind::Denied(denied)),
        }
    }

    /// Asks, and waits for what comes of it. What another has asked already tells everybody, unless it came to no more than a
    /// refusal of theirs: then this one asks for itself.
    async fn found(self: &Arc<Self>, route: &Arc<Route>, subject: Option<&Arc<SubjectToken>>) -> Found {
        let other = route.eras.state().asked_by_other(asker(subject));
        if let Some(other) = other {
            let found = answer_of(other).await;
            if !found.is_personal() {
                return found;
            }
        }
        answer_of(self.ask(route, subject)).await
    }

    /// Asks the server on behalf of a caller, unless that is being done. In a job: a client that goes away takes the answer
    /// from nobody.
    fn ask(self: &Arc<Self>, route: &Arc<Route>, subject: Option<&Arc<SubjectToken>>) -> Asking {
        let asker = asker(subject);
        let mut state = route.eras.state();
        if let Some(asking) = state.asking.get(&asker) {
            return asking.clone();
        }
        let (answer, asking) = watch::channel(None);
        state.asking.insert(asker, asking.clone());
        drop(state);
        let (gateway, route, subject) = (Arc::clone(self), Arc::clone(route), subject.cloned());
        self.jobs.spawn("probe", async move {
            let over = Over(&route, asker);
            let asking = question(&*route.upstream, subject.as_ref());
            let found = gateway.jobs.stopping().run_until_cancelled(asking).await;
            let found = found.unwrap_or(Found::Nothing(Fault::Shutdown));
            tracing::debug!(route = %route.name, ?found, "the server was asked for its era");
            route.eras.state().learn(&found);
            drop(over);
            answer.send_replace(Some(found));
        });
        asking
    }
}

impl State {
    /// The question of somebody else, where this one has not asked.
    fn asked_by_other(&self, asker: Asker) -> Option<Asking> {
        if self.asking.contains_key(&asker) { None } else { self.asking.values().next().cloned() }
    }
}

fn asker(subject: Option<&Arc<SubjectToken>>) -> Asker {
    subject.map(|subject| *subject.digest())
}

/// Waits for an answer.
async fn answer_of(mut asking: Asking) -> Found {
    let found = asking.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    // The job ends without an answer only when the process does.
    found.unwrap_or(Found::Nothing(Fault::Shutdown))
}

/// The server as a stateless one. What goes on later keeps what the caller showed now, should they be forgotten.
fn modern(route: &Route, subject: Option<&Arc<SubjectToken>>) -> Side {
    Side::Modern(route.upstream.stateless().on_behalf_of(subject))
}

/// Lets the next one ask again, however the asking ends.
struct Over<'a>(&'a Route, Asker);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.eras.state().asking.remove(&self.1);
    }
}

/// Asks; a server that names another version is asked once more with that. Never with a call: a server that is not strict
/// may execute one.
async fn question(upstream: &dyn Upstream, subject: Option<&Arc<SubjectToken>>) -> Found {
    let claim = Claim { capabilities: "{}", client_info: GATEWAY_INFO, log_level: None, progress_token: None };
    let params = with_claim("{}", &claim);
    let mut tries = 0;
    loop {
        tries += 1;
        let answer = upstream.discover(&params, subject).await;
        if let Err(Error::Denied(denied)) = &answer
            && denied.is_for_client
        {
            return Found::Denied(denied.clone());
        }
        let finding = finding_of(&answer);
        let result = answer.ok().map(|opened| opened.result);
        return match finding {
            Ok(Finding::Modern(_)) => Found::Modern(Arc::new(Discovered::new(result, Instant::now()))),
            Ok(Finding::Again(_)) if tries < 2 => continue,
            Ok(Finding::Again(_) | Finding::ModernFault) => {
                tracing::error!(
                    "a modern server refuses `server/discover`: its answers can't be trusted, or ours is wrong"
                );
                Found::Modern(Arc::new(Discovered::new(None, Instant::now())))
            }
            Ok(Finding::Legacy) => Found::Legacy,
            Ok(Finding::Disjoint) => Found::Disjoint,
            Ok(Finding::Inconclusive) => Found::Nothing(Fault::UpstreamProtocol),
            Err(fault) => Found::Nothing(fault),
        };
    }
}

/// What an answer, or its absence, says.
fn finding_of(answer: &Result<crate::upstream::Opened, Error>) -> Result<Finding, Fault> {
    match answer {
        Ok(opened) => Ok(probe::of_result(&opened.result)),
        Err(Error::Refused { status, error }) => Ok(probe::of_error(status.as_u16(), error)),
        Err(Error::Status(status)) => Ok(probe::of_status(status.as_u16())),
        Err(Error::Denied(denied)) => Ok(probe::of_status(denied.status.as_u16())),
        Err(Error::Protocol(_)) => Ok(Finding::Legacy),
        Err(error @ Error::Credentials(_)) => {
            tracing::warn!(error = %Chain(error), "the server can't be asked for its era");
            Err(Fault::Credentials)
        }
        Err(error @ (Error::Connect(_) | Error::Lost(_) | Error::TooLarge(_) | Error::SessionGone)) => {
            tracing::warn!(error = %Chain(error), "the server can't be asked for its era; `era` in the configuration would tell");
            // Nothing has run, whatever became of the question.
            Err(Fault::UpstreamUnreachable)
        }
    }
}

fn disjoint(route: &Route) -> Kind {
    tracing::error!(route = %route.name, "the server speaks only versions of the stateless era that are not spoken here");
    Fault::UpstreamProtocol.into()
}
