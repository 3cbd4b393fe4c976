//! What a request means and where it goes. Sees messages and streams of messages, never sockets.
//!
//! One table leads from a method to what is done with it: a task operation, maybe a task (`tools/call`), a rewrite
//! (`initialize`, `tools/list`), or a plain pass-through.

pub mod call;
mod counted;
pub mod deliver;
pub mod policy;
pub mod rejection;
pub mod rules;
pub mod session;

mod access;
mod batch;
mod bridge;
pub mod eras;
mod exchange;
mod extension;
pub mod fields;
mod forward;
mod front;
mod handshake;
mod held;
pub mod homes;
mod inbound;
mod ladder;
mod listener;
mod modern;
mod params;
pub mod pool;
pub mod relay;
#[cfg(test)]
mod sample;
pub mod schemas;
mod streamed;
mod streams;
pub mod subjects;
mod subscriptions;
pub mod takeover;
mod tasks;
mod tools;

pub use counted::{is_of_access, named_in, reject_reason};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::jsonrpc::{Defect, Id, Message};
use crate::mcp::method::Method;
use crate::metrics::{Asked, Metrics, RouteMetrics};
use crate::replica::Endings;
use crate::seal::Sealer;
use crate::task::{
    ApplyError, Finish, Holder, Ledger, Limits, Owner, Progress, Question, State, Store, Task, TaskId, Transition,
};
use crate::tenant::Principal;
use crate::tenant::fair::FairQueue;
use crate::tenant::quota::{Lookups, Rates, RetryAfter};
use crate::tenant::refusals::Refusals;
use crate::upstream::Upstream;

use call::{Answer, Call, VersionHeader};
use counted::observe;
use deliver::Deliveries;
use forward::Manner;
use front::Parking;
use homes::{Homes, Sharing};
use ladder::Era;
use params::{Params, Request};
use policy::ToolPolicy;
use pool::{Pool, Pooled};
use rejection::{Kind, Rejection};
use session::{Session, Sessions};
use subscriptions::Subscriptions;
use takeover::Adoptions;

/// Upstream sessions that are ended at the same time.
const CLOSED_AT_ONCE: usize = 64;

/// One endpoint with the server behind it.
#[derive(Debug)]
pub struct Route {
    /// Its name in metrics, logs and owners.
    pub name: Arc<str>,
    /// The server.
    pub upstream: Arc<dyn Upstream>,
    /// How many calls may be with the server at once.
    pub places: FairQueue,
    /// Which eras it speaks.
    pub eras: eras::Eras,
    /// Which tools there are, and how their tasks live.
    pub tools: ToolPolicy,
    /// Who may call which.
    pub rules: rules::Rules,
    /// What is known of its tools.
    pub schemas: schemas::Schemas,
    /// The server makes its tasks itself, and the gateway makes none (`tasks.mode: native`).
    pub native: bool,
    /// How its sessions are shared by clients that have none.
    pub sessions: pool::SessionPolicy,
    /// On whose behalf it is addressed; `None` where all callers are alike to it.
    pub subjects: Option<subjects::Subjects>,
    /// The caller's own `Authorization` goes to the server, and what the server says of it comes back.
    pub passes_authorization: bool,
    /// The longest message of the server that is read whole, in bytes.
    pub max_message: usize,
    /// What is counted.
    pub metrics: Arc<RouteMetrics>,
}

/// How long the upstream may take over a notification or response. It answers those without working on anything.
const POST_LIMIT: Duration = Duration::from_secs(30);
/// An upstream that lets streams be taken up again at once gets this much peace at least.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The right to be on an upstream session beside others, or alone.
type Gate = (Option<OwnedRwLockReadGuard<()>>, Option<OwnedRwLockWriteGuard<()>>);

impl Route {
    /// Whether the gateway's tasks, in the core dialect, are offered on a session.
    fn adds_tasks(&self, session: &Session) -> bool {
        !self.native && session.terms.version.has_tasks()
    }

    /// Whether the upstream's own tasks pass on a session: where both sides speak the same dialect, which no translation
    /// between the eras leaves whole.
    fn passes_tasks(&self, session: &Session) -> bool {
        self.native && !session.terms.is_bridged()
    }

    /// Waits until a call may be on its session. Free where no tool is exclusive.
    async fn gate(&self, session: &Session, exclusive: bool) -> Gate {
        if exclusive {
            (None, Some(session.exclusive().write_owned().await))
        } else if self.tools.has_exclusive() {
            (Some(session.exclusive().read_owned().await), None)
        } else {
            (None, None)
        }
    }
}

/// What tenants may have at the same time.
#[derive(Debug, Clone)]
pub struct TenantLimits {
    /// For tenants that are not named.
    pub default: Limits,
    /// For those that are.
    pub named: HashMap<Arc<str>, Limits>,
}

impl TenantLimits {
    fn of(&self, tenant: &str) -> &Limits {
        self.named.get(tenant).unwrap_or(&self.default)
    }
}

/// What a gateway is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where tasks are kept.
    pub store: Arc<dyn Store>,
    /// Who this process is among those that hold calls.
    pub holder: Holder,
    /// What is kept of sessions that have ended, where this process is alone and may be there again.
    pub endings: Option<Arc<dyn Endings>>,
    /// How sessions live.
    pub sessions: session::Config,
    /// Seals session ids, cursors and event ids.
    pub sealer: Sealer,
    /// How often tenants may ask.
    pub rates: Rates,
    /// What they may have.
    pub limits: TenantLimits,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How long a stream may be silent: [`relay::KEEP_ALIVE`], except in tests.
    pub keep_alive: Duration,
    /// The time.
    pub clock: Clock,
    /// Where jobs start.
    pub jobs: Jobs,
}

/// The gateway behind every listener.
#[derive(Debug)]
pub struct Gateway {
    sessions: Arc<Sessions>,
    /// Where there are other processes.
    homes: Option<Arc<Homes>>,
    endings: Option<Arc<dyn Endings>>,
    ledger: Ledger,
    pool: Pool,
    adoptions: Adoptions,
    parking: Parking,
    deliveries: Arc<Deliveries>,
    subscriptions: Subscriptions,
    sealer: Arc<Sealer>,
    rates: Rates,
    lookups: Lookups,
    refusals: Refusals,
    limits: TenantLimits,
    metrics: Arc<Metrics>,
    keep_alive: Duration,
    clock: Clock,
    jobs: Jobs,
    /// No new tasks or sessions any more.
    draining: AtomicBool,
    /// Held calls are given up when this is cancelled.
    kill: CancellationToken,
    /// Calls that are with an upstream or wait for it, held and plain.
    calls: TaskTracker,
    /// Standalone streams end when this is cancelled.
    closing: CancellationToken,
    /// The first id that was given to a held call.
    first_minted: u64,
    /// The next one.
    minted: AtomicU64,
}

impl Gateway {
    /// A gateway that is ready.
    #[must_use]
    pub fn new(parts: Parts) -> Arc<Self> {
        Self::among(parts, None)
    }

    /// The same, where it may be one of several that share their store.
    #[must_use]
    pub fn among(parts: Parts, sharing: Option<Sharing>) -> Arc<Self> {
        let sealer = Arc::new(parts.sealer);
        let sessions = Sessions::new(parts.sessions, Arc::clone(&sealer), parts.clock);
        let sessions = Arc::new(sessions.at_home(sharing.is_some().then(|| parts.holder.clone())));
        let deliveries = Arc::new(match &sharing {
            Some(sharing) => {
                let are_apart = sharing.address.is_none();
                Deliveries::among(Arc::clone(&sessions), &parts.holder, sharing.lease, are_apart)
            }
            None => Deliveries::new(Arc::clone(&sessions), &parts.holder),
        });
        let homes = sharing.map(|sharing| Arc::new(Homes::new(sharing)));
        let observer = {
            let (metrics, deliveries) = (Arc::clone(&parts.metrics), Arc::clone(&deliveries));
            Arc::new(move |transition: &Transition<'_>| observe(&metrics, &deliveries, transition))
        };
        // Above 2^32, apart from what clients count from; below 2^53, which every reader keeps exactly; and far from what
        // another process would begin with on the same upstream session.
        let first = (1 << 32) + (Uuid::new_v4().as_u64_pair().0 & ((1 << 51) - 1));
        Arc::new(Self {
            ledger: Ledger::new(parts.store, parts.holder, parts.clock, observer),
            sessions,
            homes,
            endings: parts.endings,
            pool: Pool::default(),
            adoptions: Adoptions::default(),
            parking: Parking::default(),
            deliveries,
            subscriptions: Subscriptions::default(),
            sealer,
            rates: parts.rates,
            lookups: Lookups::default(),
            refusals: Refusals::new(parts.jobs.clone()),
            limits: parts.limits,
            metrics: parts.metrics,
            keep_alive: parts.keep_alive,
            clock: parts.clock,
            jobs: parts.jobs,
            draining: AtomicBool::new(false),
            kill: CancellationToken::new(),
            calls: TaskTracker::new(),
            closing: CancellationToken::new(),
            first_minted: first,
            minted: AtomicU64::new(first),
        })
    }

    /// The ledger, for the sweeper.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Seals what goes to clients, and signs what goes to other replicas.
    #[must_use]
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// From now on nothing new is begun.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Waits until no call, held or plain, is with an upstream any more; to be used once nothing new is begun.
    pub async fn calls_over(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    /// Ends the standalone streams, so that connections can finish.
    pub fn close_streams(&self) {
        self.closing.cancel();
    }

    /// Gives up every held call: cancelled upstream, `failed` in the record.
    pub fn give_up(&self) {
        self.kill.cancel();
    }

    /// Takes one message, or a batch, that a client posted.
    ///
    /// # Errors
    /// [`Rejection`] with the request's id where there is one.
    pub async fn post(self: &Arc<Self>, call: &mut Call, asked: &mut Asked) -> Result<Answer, Rejection> {
        call.note_subject();
        let body = std::mem::take(&mut call.body);
        let mut params = None;
        match params::read_message(&body, &mut params) {
            Ok((message, id_text)) => self.message(call, &body, (message, id_text, &mut params), asked).await,
            // Rare and large: every request would have room for it.
            Err(defect) => Box::pin(self.no_message(call, &body, defect)).await,
        }
    }

    /// Answers what is no message by itself.
    async fn no_message(self: &Arc<Self>, call: &mut Call, body: &Bytes, defect: Defect) -> Result<Answer, Rejection> {
        match defect {
            Defect::Batch if !call.version.is_modern() => self.batch(call, body).await,
            defect => Err(Kind::Malformed(defect).into()),
        }
    }

    async fn message<'a>(
        self: &Arc<Self>,
        call: &mut Call,
        body: &Bytes,
        (message, id_text, read): (Message<'a>, Option<&str>, &mut Option<Params<'a>>),
        asked: &mut Asked,
    ) -> Result<Answer, Rejection> {
        match message {
            Message::Request { id, method, params } => {
                let (method, name) = (Method::parse(&method), method);
                *asked = Asked::Method(method);
                let params = Params::of(params, read).map_err(|defect| Kind::Malformed(defect).answering(&id))?;
                let request = Request { id, id_text: id_text.unwrap_or_default(), name, method, params, body };
                let answered = self.request(call, &request).await;
                answered.map_err(|kind| match kind {
                    Kind::NoTask(_) => self.missed(&call.caller.principal, kind).answering(&request.id),
                    kind => kind.answering(&request.id),
                })
            }
            Message::Notification { method, params } => {
                let method = Method::parse(&method);
                *asked = Asked::Method(method);
                self.rates.check_request(&call.caller.principal.tenant).map_err(over("requests"))?;
                let claims = Params::of(params, read);
                if ladder::of_notification(claims.unwrap_or(&Params::default()), &call.version) == Era::Modern {
                    // None is defined for clients on HTTP. A cancel above all is not obeyed: its id is anybody's guess.
                    return Ok(Answer::Accepted);
                }
                call.forget_mirrors();
                let session = self.session(call)?;
                if method.is_request() {
                    // What is decided for requests would be passed by.
                    return Err(Kind::Unusable("This method is a request, which needs an id").into());
                }
                Ok(self.notification(call, &session, method, params, body).await?)
            }
            Message::Response { id, outcome } => {
                *asked = Asked::Answer;
                // 2026-07-28 basic, "Responses": a client never sends one.
                if call.version.is_modern() {
                    return Err(Kind::Unusable("This protocol version has no responses of clients").into());
                }
                call.forget_mirrors();
                let session = self.session(call)?;
                Ok(self.answer(call, &session, id, outcome, body).await?)
            }
        }
    }

    /// The table from a method to what is done with it.
    async fn request(self: &Arc<Self>, call: &mut Call, request: &Request<'_>) -> Result<Answer, Kind> {
        let tenant = &call.caller.principal.tenant;
        if request.method.is_poll() {
            self.rates.admit_poll(tenant).await.map_err(over("polls"))?;
        } else {
            self.rates.check_request(tenant).map_err(over("requests"))?;
        }
        if ladder::of_request(request.method, request.params, &call.version)? == Era::Modern {
            return self.modern_request(call, request).await;
        }
        call.forget_mirrors();
        if request.method == Method::Initialize {
            return self.initialize(call, request).await;
        }
        let session = self.session(call)?;
        let has_tasks = call.route.adds_tasks(&session);
        match request.method {
            Method::ToolsCall => self.tools_call(call, session, request).await,
            Method::ToolsList => self.tools_list(call, session, request).await,
            Method::TasksGet if has_tasks => self.tasks_get(call, request).await,
            Method::TasksResult if has_tasks => self.tasks_result(call, &session, request).await,
            Method::TasksCancel if has_tasks => self.tasks_cancel(call, request).await,
            Method::TasksList if has_tasks && call.caller.principal.authenticated => {
                self.tasks_list(call, request).await
            }
            Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList
                if call.route.passes_tasks(&session) =>
            {
                self.forward(call, session, request, Manner::default()).await
            }
            // 2025-11-25 lifecycle, "Operation": only what was negotiated.
            Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksList => {
                Err(Kind::NotServed("This method is not offered on this session"))
            }
            _ => self.forward(call, session, request, Manner::default()).await,
        }
    }

    /// The call's session.
    fn session(&self, call: &Call) -> Result<Arc<Session>, Kind> {
        if matches!(call.version, VersionHeader::Other(_)) {
            return Err(Kind::Unusable("The MCP-Protocol-Version header names no version that is served"));
        }
        let Some(token) = &call.session else {
            return Err(Kind::Unusable("The MCP-Session-Id header is missing; initialize a session first"));
        };
        self.sessions
            .find(token, &call.route, &call.caller.principal)
            .ok_or_else(|| self.missed(&call.caller.principal, Kind::NoSession))
    }

    /// Where refused accesses are put on record.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Ends a session at its client's wish (2025-11-25 transports, "Session Management" 5). Its tasks live on.
    ///
    /// # Errors
    /// When there is no such session.
    pub fn delete(self: &Arc<Self>, call: &Call) -> Result<Answer, Rejection> {
        call.note_subject();
        let session = self.session(call)?;
        self.end_session(&call.route, &session);
        Ok(Answer::SessionEnded)
    }

    /// Ends a session here at once, and upstream when the last held call is over.
    fn end_session(&self, route: &Arc<Route>, session: &Arc<Session>) {
        if !self.sessions.end(session) {
            return;
        }
        self.tell_ended(session);
        if session.live().unfinished == 0 {
            self.close_upstream(route, session);
        }
    }

    fn close_upstream(&self, route: &Arc<Route>, session: &Session) {
        // Calls of others may be on it.
        if session.is_elsewhere() {
            return;
        }
        let (upstream, key) = (Arc::clone(&route.upstream), route.key_of(session).into_owned());
        self.jobs.spawn("close", async move { upstream.close(&key).await });
    }

    /// Ends sessions that nobody uses, until jobs are told to stop.
    pub async fn reap_idle_sessions(self: Arc<Self>, routes: Vec<Arc<Route>>) {
        let routes: HashMap<Arc<str>, Arc<Route>> =
            routes.into_iter().map(|route| (Arc::clone(&route.name), route)).collect();
        let mut tick = tokio::time::interval(self.sessions.idle_check());
        while self.jobs.stopping().run_until_cancelled(tick.tick()).await.is_some() {
            self.sessions.all().iter().for_each(|session| session.bridge.tidy());
            self.reap_pool();
            self.claim_again();
            for session in self.sessions.idle() {
                if session.is_elsewhere() {
                    self.sessions.forget(&session);
                    continue;
                }
                tracing::debug!(route = %session.terms.route, "an idle session is ended");
                match routes.get(&session.terms.route) {
                    Some(route) => self.end_session(route, &session),
                    None => drop(self.sessions.end(&session)),
                }
            }
        }
    }

    /// Ends every session, here and upstream: the process is stopping. Where clients can go on with theirs elsewhere, or here
    /// when it has started again, only those end that live in this process.
    pub async fn close_sessions(&self, routes: &[Arc<Route>]) {
        let go_on = self.homes.is_some() || self.ledger.outlives_holders();
        let route_of = |session: &Session| routes.iter().find(|route| route.name == session.terms.route).cloned();
        let ends = |(session, route): &(Arc<Session>, Option<Arc<Route>>)| {
            let is_bound = route.as_ref().is_some_and(|route| session.terms.is_bound(route));
            if go_on && !is_bound {
                self.sessions.forget(session);
                return false;
            }
            self.sessions.end(session)
        };
        let all = self.sessions.all().into_iter().map(|session| {
            let route = route_of(&session);
            (session, route)
        });
        let closing = all.filter(ends).map(|(session, route)| async move {
            if let Some(route) = route {
                route.upstream.close(&route.key_of(&session)).await;
            }
        });
        futures_util::stream::iter(closing).for_each_concurrent(CLOSED_AT_ONCE, |closing| closing).await;
        let pooled = self.pool.take_all().into_iter().map(Pooled::close_last);
        futures_util::stream::iter(pooled).for_each_concurrent(CLOSED_AT_ONCE, |closing| closing).await;
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn mint(&self) -> Id {
        Id::number(self.mint_number())
    }

    fn mint_number(&self) -> u64 {
        self.minted.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether an id or a progress token, as JSON text, is a held call's.
    fn has_minted(&self, id: &str) -> bool {
        let minted = self.first_minted..self.minted.load(Ordering::Relaxed);
        id.parse().is_ok_and(|id: u64| minted.contains(&id))
    }

    /// Ends a task, and tells clients that questions which they have seen are void.
    async fn end_task(&self, owner: &Owner, id: TaskId, finish: Finish) -> Result<Arc<Task>, ApplyError> {
        let before = self.ledger.get(owner, id).await.ok().flatten();
        let task = self.ledger.end(owner, id, finish).await?;
        self.void_open(before, &task);
        Ok(task)
    }

    /// The same for the holder of the task's call.
    async fn end_held(&self, held: &Task, finish: Finish) -> Result<Arc<Task>, ApplyError> {
        let before = self.ledger.get(&held.owner, held.id).await.ok().flatten();
        let task = self.ledger.end_held(held, finish).await?;
        self.void_open(before, &task);
        Ok(task)
    }

    /// Tells clients that the open questions of a task that has ended are void.
    fn void_open(&self, before: Option<Arc<Task>>, task: &Task) {
        if let Some(State::Held(asked)) = before.map(|before| before.state.clone()) {
            let seen = |question: &Question| matches!(question.progress, Progress::Claimed(_));
            let open: Vec<Question> = asked.questions.into_iter().filter(seen).collect();
            self.deliveries.task_ended(task, &open);
        }
    }
}

/// Whose tasks a caller sees on a route.
fn owner(principal: &Principal, route: &Route) -> Owner {
    Owner {
        tenant: Arc::clone(&principal.tenant),
        issuer: Arc::clone(&principal.issuer),
        subject: Arc::clone(&principal.subject),
        client: Arc::clone(&principal.client),
        principal: principal.digest(),
        route: Arc::clone(&route.name),
    }
}

fn over(reason: &'static str) -> impl Fn(RetryAfter) -> Kind {
    move |RetryAfter(retry_after)| Kind::Rate { reason, retry_after }
}
