//! Puts the pieces together: from settings to a gateway that serves, and from a signal to one that has stopped.
//!
//! The only place that sees every module. It decides nothing about a request: it makes the parts, hands each what it needs, and
//! ends them in the order in which they need each other.

mod certificates;
mod remote;
mod sharing;
mod store;

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderMap;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminState};
use crate::auth::claims::Terms;
use crate::auth::resource::{self, Resource};
use crate::auth::{self, Authenticator, introspection};
use crate::clock::Clock;
use crate::config::{
    self, AuthSettings, IntrospectionSettings, JwtSettings, RouteSettings, Settings, TenantLimits as LimitSettings,
    UpstreamCredentials, UpstreamTarget,
};
use crate::downstream::guard::Guard;
use crate::downstream::http::{Endpoint, Endpoints};
use crate::downstream::passing::Passing;
use crate::downstream::well_known::Documents;
use crate::downstream::{forwarded::Trusted, origin, patience::Patience, server};
use crate::gateway::eras::Eras;
use crate::gateway::relay::KEEP_ALIVE;
use crate::gateway::rules::Rules;
use crate::gateway::schemas::Schemas;
use crate::gateway::subjects::Subjects;
use crate::gateway::{Gateway, Parts, Route, TenantLimits, session};
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::task::store::CreateRate;
use crate::task::store::metered::MeteredStore;
use crate::task::{Holder, Limits, Store, sweeper};
use crate::tenant::DEFAULT_TENANT;
use crate::tenant::fair::{FairQueue, Weights};
use crate::tenant::quota::{self, Rate, Rates};
use crate::threads::{self, Threads};
use crate::tls;
use crate::upstream::credentials::{Credentials, Exchanged, Own, Passed};
use crate::upstream::{Upstream, http::Http, stdio::Stdio};

use certificates::Certificates;
pub use sharing::{Join, Keeping};

pub use store::is_misconfigured;

/// How long connections may take to finish once held calls are over.
const CONNECTION_GRACE: Duration = Duration::from_secs(5);
/// How long ending sessions upstream, and then jobs, may take.
const LAST_GRACE: Duration = Duration::from_secs(10);
/// How often certificates are looked at: soon enough for whoever changes one by hand.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(10);

/// What no configuration changes.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long a stream may be silent before something keeps it warm.
    pub keep_alive: Duration,
    /// How long clients may keep the gateway waiting.
    pub patience: Patience,
    /// How many threads serve connections; with none, the caller's runtime does.
    pub threads: usize,
    /// How many connections of clients may be open.
    pub connections: usize,
    /// How often certificates are looked at.
    pub certificates: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            keep_alive: KEEP_ALIVE,
            patience: Patience::default(),
            threads: threads::count(),
            connections: connections(),
            certificates: CERTIFICATES_EVERY,
        }
    }
}

/// Half of the files that may be open: the other half is for servers, so that clients who only connect keep no call from
/// its server.
fn connections() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
}

/// A gateway that serves.
#[derive(Debug)]
pub struct App {
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where operators ask.
    pub admin_address: SocketAddr,
    gateway: Arc<Gateway>,
    routes: Vec<Arc<Route>>,
    admin: Arc<AdminState>,
    jobs: Jobs,
    drain: Duration,
    stop_accepting: CancellationToken,
    serving: JoinHandle<()>,
    internal: Option<JoinHandle<()>>,
    threads: Arc<Threads>,
    look_at_certificates: Arc<Notify>,
}

impl App {
    /// Binds both addresses and serves. Must run inside a runtime.
    ///
    /// # Errors
    /// When an address can't be bound, or the settings can't be met.
    pub async fn start(settings: &Settings) -> anyhow::Result<Self> {
        Self::start_with(settings, Timing::default()).await
    }

    /// As [`App::start`], with other times than the protocol's users are used to: tests can't wait for those.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn start_with(settings: &Settings, timing: Timing) -> anyhow::Result<Self> {
        let jobs = Jobs::default();
        let keeping = store::open(settings, &jobs).await?;
        Self::start_in(settings, timing, keeping, jobs).await
    }

    /// As [`App::start_with`], with another store than the settings name.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn start_keeping(settings: &Settings, timing: Timing, keeping: Keeping) -> anyhow::Result<Self> {
        Self::start_in(settings, timing, keeping, Jobs::default()).await
    }

    async fn start_in(settings: &Settings, timing: Timing, keeping: Keeping, jobs: Jobs) -> anyhow::Result<Self> {
        let Keeping { store, holder, endings, join } = keeping;
        let clock = Clock::system();
        let listener = bind(settings.listen.address).await?;
        let admin_listener = bind(settings.admin.address).await?;
        let authenticator =
            Authenticator::new(auth_of(settings), clock, &jobs).context("an issuer's keys can't be read")?;
        let metrics = Arc::new(metrics_of(settings));
        let weights = Arc::new(weights_of(settings));
        let mut certificates = Certificates::new(clock);
        let tls = certificates.of_listener(settings)?;
        let mut routes = Vec::new();
        for route in &settings.routes {
            let tls = certificates.of_route(route)?;
            routes.push(Arc::new(route_of((route, tls), settings, &metrics, &weights, &jobs)));
        }
        let look_at_certificates = certificates.watch(timing.certificates, &metrics, &jobs);
        let (sharing, internal) = sharing::join(join, settings).await?;
        let is_shared = sharing.is_some();
        let guard = |gateway: &Gateway| Guard::new(holder.as_str(), Arc::clone(gateway.sealer()), clock);
        let store = Arc::new(MeteredStore::new(store, Arc::clone(&metrics)));
        let parts = parts_of(settings, timing, (store, holder.clone()), &metrics, (clock, jobs.clone()))?;
        let gateway = Gateway::among(Parts { endings, ..parts }, sharing);
        sweeper::start(&jobs, gateway.ledger().clone());
        jobs.spawn("idle sessions", Arc::clone(&gateway).reap_idle_sessions(routes.clone()));
        let token = settings.admin.token.as_ref().map(|token| admin::Token::new(token.reveal()));
        let ledger = gateway.ledger().clone();
        let admin = AdminState::new(Arc::clone(&metrics), token).cut_off_by(cut_off(&gateway, &routes));
        let admin = Arc::new(admin.refreshed_by(move |metrics| metrics.set_store_bytes(ledger.bytes())));
        sharing::start(&jobs, &gateway, &routes, &admin).await;
        let (address, admin_address) = (listener.local_addr()?, admin_listener.local_addr()?);
        jobs.spawn("admin", admin::serve(admin_listener, Arc::clone(&admin), jobs.clone()));
        let passing = is_shared.then(|| Passing::new(Arc::clone(gateway.sealer()), clock));
        let endpoints =
            Endpoints { passing, ..endpoints_of(settings, (&gateway, &routes), address, authenticator, metrics) };
        let endpoints = Endpoints { patience: timing.patience, ..endpoints };
        let stop_accepting = CancellationToken::new();
        let threads = Arc::new(Threads::start(timing.threads).context("the threads can't be started")?);
        let (endpoints, serving_on) = (Arc::new(endpoints), Arc::clone(&threads));
        let connections = timing.connections;
        let internal = internal.map(|listener| {
            let door =
                sharing::Door { listener, guard: guard(&gateway), endpoints: Arc::clone(&endpoints), connections };
            door.open(&jobs, &threads, stop_accepting.clone())
        });
        let entrance = server::Entrance { listener, tls, connections, guard: None };
        let serving =
            server::serve(entrance, endpoints, jobs.clone(), serving_on, stop_accepting.clone(), CONNECTION_GRACE);
        let serving = jobs.spawn("listener", serving);
        announce(settings, address);
        Ok(Self {
            address,
            admin_address,
            gateway,
            routes,
            admin,
            jobs,
            drain: settings.drain,
            stop_accepting,
            serving,
            internal,
            threads,
            look_at_certificates,
        })
    }

    /// Asks for a look at the certificates' files, whenever it is notified.
    #[must_use]
    pub fn look_at_certificates(&self) -> Arc<Notify> {
        Arc::clone(&self.look_at_certificates)
    }

    /// Serves until `stop` resolves, then stops in order: not ready, nothing new; held calls finish, or are given up when
    /// the drain time is over; then streams and connections end, then sessions upstream.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        stop.await;
        self.admin.stopping();
        self.gateway.begin_to_leave();
        tracing::info!(drain = ?self.drain, "stopping");
        let over = async {
            self.gateway.leave().await;
            self.gateway.drain();
            self.gateway.calls_over().await;
        };
        if tokio::time::timeout(self.drain, over).await.is_err() {
            self.gateway.drain();
            tracing::warn!("held calls are given up: the drain time is over");
        }
        // Also a call that was being taken while the last one ended.
        self.gateway.give_up();
        if tokio::time::timeout(CONNECTION_GRACE, self.gateway.calls_over()).await.is_err() {
            tracing::warn!("not every held call could be ended in time");
        }
        self.gateway.part().await;
        self.gateway.close_streams();
        self.stop_accepting.cancel();
        for serving in std::iter::once(self.serving).chain(self.internal) {
            if let Err(error) = serving.await {
                tracing::error!(%error, "a listener failed");
            }
        }
        if tokio::time::timeout(LAST_GRACE, self.gateway.close_sessions(&self.routes)).await.is_err() {
            tracing::warn!("not every upstream session could be ended in time");
        }
        let left = self.jobs.stop(LAST_GRACE).await;
        if let Some(threads) = Arc::into_inner(self.threads) {
            threads.stop().await;
        }
        tracing::info!(jobs_left = left, "stopped");
    }
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("can't listen on {address}"))
}

/// Names the routes whose servers can serve nobody.
fn cut_off(gateway: &Arc<Gateway>, routes: &[Arc<Route>]) -> impl Fn() -> Vec<Arc<str>> + Send + Sync + 'static {
    let (gateway, routes) = (Arc::clone(gateway), routes.to_vec());
    move || routes.iter().filter(|route| gateway.is_cut_off(route)).map(|route| Arc::clone(&route.name)).collect()
}

/// One line for each route: where it is, what is behind it, how tasks are kept, who may call.
fn announce(settings: &Settings, address: SocketAddr) {
    let callers = config::describe_callers(settings.auth.as_ref());
    for route in &settings.routes {
        let url = url_of(settings, &route.path, address);
        let upstream = match &route.upstream.target {
            UpstreamTarget::Url { url, .. } => url.to_string(),
            UpstreamTarget::Command { argv } => format!("command {}", argv.first().map_or("", String::as_str)),
        };
        tracing::info!(route = route.name, %url, %upstream, store = settings.store.kind(), callers, "serving");
    }
}

/// A route's URL as clients see it; `address` is where connections are taken.
fn url_of(settings: &Settings, path: &str, address: SocketAddr) -> String {
    match settings.listen.public_url {
        Some(_) => settings.listen.url(path),
        None => settings.listen.url_at(address, path),
    }
}

/// What the gateway is made of.
fn parts_of(
    settings: &Settings,
    timing: Timing,
    (store, holder): (Arc<dyn Store>, Holder),
    metrics: &Arc<Metrics>,
    (clock, jobs): (Clock, Jobs),
) -> anyhow::Result<Parts> {
    Ok(Parts {
        store,
        holder,
        endings: None,
        sessions: session::Config { idle: settings.sessions.idle, max: settings.sessions.max },
        sealer: store::sealer(settings)?,
        rates: rates_of(settings)?,
        limits: limits_of(settings)?,
        metrics: Arc::clone(metrics),
        keep_alive: timing.keep_alive,
        clock,
        jobs,
    })
}

/// What every connection of clients shares.
fn endpoints_of(
    settings: &Settings,
    (gateway, routes): (&Arc<Gateway>, &[Arc<Route>]),
    address: SocketAddr,
    authenticator: Authenticator,
    metrics: Arc<Metrics>,
) -> Endpoints {
    let routes = endpoints(settings, routes, address);
    let documents = routes.iter().map(|(path, endpoint)| (path.as_str(), &*endpoint.resource));
    let documents = Documents::new(documents);
    Endpoints {
        gateway: Arc::clone(gateway),
        routes,
        documents,
        authenticator,
        origin: origin::Config {
            origins: settings.listen.allowed_origins.clone(),
            hosts: settings.listen.allowed_hosts.clone(),
            is_loopback: address.ip().is_loopback(),
        },
        proxies: Trusted(settings.listen.trusted_proxies.clone()),
        max_body: settings.listen.max_body.as_usize(),
        patience: Patience::default(),
        passing: None,
        metrics,
    }
}

/// The routes, each as a resource of its own.
fn endpoints(settings: &Settings, routes: &[Arc<Route>], address: SocketAddr) -> HashMap<String, Endpoint> {
    let auth = settings.auth.as_ref();
    let endpoint = |(number, (of, route)): (u32, (&RouteSettings, &Arc<Route>))| {
        let config = resource::Config {
            url: url_of(settings, &of.path, address),
            name: of.name.clone(),
            authorization_servers: auth.map(AuthSettings::authorization_servers).unwrap_or_default(),
            required_scopes: auth.map(|auth| auth.required_scopes.clone()).unwrap_or_default(),
            other_scopes: of.rules.iter().flat_map(|rule| &rule.scopes).map(|scope| scope.as_ref().into()).collect(),
        };
        let resource = Arc::new(Resource::new(number, &config));
        (of.path.clone(), Endpoint { route: Arc::clone(route), resource })
    };
    (0..).zip(settings.routes.iter().zip(routes)).map(endpoint).collect()
}

fn metrics_of(settings: &Settings) -> Metrics {
    let routes: Vec<Arc<str>> = settings.routes.iter().map(|route| route.name.as_str().into()).collect();
    let mut tenants: Vec<Arc<str>> = settings.tenants.named.keys().map(|name| name.as_str().into()).collect();
    tenants.push(DEFAULT_TENANT.into());
    if let Some(auth) = &settings.auth {
        tenants.extend(auth.api_keys.iter().map(|key| Arc::from(key.tenant.as_str())));
    }
    tenants.sort_unstable();
    tenants.dedup();
    Metrics::new(&routes, &tenants)
}

fn route_of(
    (route, tls): (&RouteSettings, Option<tls::Client>),
    settings: &Settings,
    metrics: &Metrics,
    weights: &Arc<Weights>,
    jobs: &Jobs,
) -> Route {
    let max_message = settings.listen.max_body.as_usize();
    let connect_timeout = route.upstream.connect_timeout;
    let upstream: Arc<dyn Upstream> = match &route.upstream.target {
        UpstreamTarget::Url { url, headers, .. } => {
            let headers: HeaderMap = headers.iter().cloned().collect();
            let url = url.uri().clone();
            Arc::new(Http::new(crate::upstream::http::Config {
                url,
                headers,
                tls,
                credentials: credentials_of(&route.upstream.credentials, jobs),
                connect_timeout,
                max_message,
                jobs: jobs.clone(),
            }))
        }
        UpstreamTarget::Command { argv } => {
            let config = crate::upstream::stdio::Config::new(argv.clone());
            Arc::new(Stdio::new(crate::upstream::stdio::Config { max_line: max_message, ..config }, jobs.clone()))
        }
    };
    Route {
        name: route.name.as_str().into(),
        upstream,
        places: FairQueue::weighted(route.upstream.max_in_flight, route.upstream.queue, Arc::clone(weights)),
        eras: Eras::new(route.upstream.era),
        tools: route.tools.clone(),
        rules: Rules::new(route.rules.clone()),
        schemas: Schemas::default(),
        native: route.native,
        sessions: route.upstream.sessions,
        subjects: needs_subjects(&route.upstream.credentials).then(Subjects::default),
        passes_authorization: route.upstream.credentials == UpstreamCredentials::Passed,
        max_message,
        metrics: Arc::clone(metrics.route(&route.name)),
    }
}

fn credentials_of(settings: &UpstreamCredentials, jobs: &Jobs) -> Option<Arc<dyn Credentials>> {
    match settings {
        UpstreamCredentials::Headers => None,
        UpstreamCredentials::Own(config) => Some(Arc::new(Own::new(config.clone(), jobs.clone()))),
        UpstreamCredentials::Exchanged(config) => Some(Arc::new(Exchanged::new(config.clone(), jobs.clone()))),
        UpstreamCredentials::Passed => Some(Arc::new(Passed)),
    }
}

fn needs_subjects(settings: &UpstreamCredentials) -> bool {
    matches!(settings, UpstreamCredentials::Exchanged(_) | UpstreamCredentials::Passed)
}

fn auth_of(settings: &Settings) -> Option<auth::Config> {
    let key = |key: &config::ApiKey| auth::ApiKey {
        sha256: key.sha256,
        tenant: key.tenant.as_str().into(),
        subject: key.subject.as_str().into(),
    };
    settings.auth.as_ref().map(|auth| auth::Config {
        api_keys: auth.api_keys.iter().map(key).collect(),
        issuers: auth.jwt.iter().map(issuer_of).collect(),
        introspection: auth.introspection.as_ref().map(introspection_of),
        required_scopes: auth.required_scopes.clone(),
    })
}

fn issuer_of(jwt: &JwtSettings) -> auth::jwt::Issuer {
    let JwtSettings { issuer, source, audiences, algorithms, tenant_claim, leeway } = jwt;
    let terms = Terms { audiences: audiences.clone(), tenant_claim: tenant_claim.clone(), leeway: *leeway };
    auth::jwt::Issuer { issuer: issuer.as_str().into(), source: source.clone(), algorithms: algorithms.clone(), terms }
}

fn introspection_of(of: &IntrospectionSettings) -> introspection::Config {
    let basic = |(client, secret): &(String, Option<config::Secret>)| {
        crate::oauth::token::basic(client, secret.as_ref().map_or("", config::Secret::reveal))
    };
    let (audiences, tenant_claim) = (of.audiences.clone(), of.tenant_claim.clone());
    introspection::Config {
        url: of.url.uri().clone(),
        authorization: of.client.as_ref().and_then(basic),
        issuer: of.issuer.as_deref().map(Into::into),
        terms: Terms { audiences, tenant_claim, leeway: Duration::ZERO },
    }
}

fn weights_of(settings: &Settings) -> Weights {
    let named = settings.tenants.named.iter().map(|(name, of)| (Arc::from(name.as_str()), of.weight));
    Weights::new(settings.tenants.default.weight, named)
}

fn rates_of(settings: &Settings) -> anyhow::Result<Rates> {
    let named = settings.tenants.named.iter().map(|(name, limits)| Ok((name.as_str().into(), rates(limits)?)));
    Ok(Rates::new(rates(&settings.tenants.default)?, named.collect::<anyhow::Result<Vec<_>>>()?))
}

fn rates(limits: &LimitSettings) -> anyhow::Result<quota::Limits> {
    let rate = |limit: Option<config::RateLimit>| {
        limit
            .map(|limit| {
                Rate::new(limit.rate.count(), limit.rate.period(), limit.burst).context("a rate is out of range")
            })
            .transpose()
    };
    Ok(quota::Limits { requests: rate(limits.requests)?, polls: rate(limits.polls)? })
}

fn limits_of(settings: &Settings) -> anyhow::Result<TenantLimits> {
    let creates = |limit: config::RateLimit| {
        CreateRate::new(limit.rate.count(), limit.rate.period(), limit.burst)
            .context("a rate of creations is out of range")
    };
    let limits = |limits: &LimitSettings| {
        anyhow::Ok(Limits {
            running_tasks: limits.running_tasks,
            queued_tasks: limits.queued_tasks,
            kept_tasks: limits.kept_tasks,
            kept_bytes: limits.kept_bytes.bytes(),
            creates: limits.creates.map(creates).transpose()?,
        })
    };
    let named = settings.tenants.named.iter().map(|(name, of)| Ok((Arc::from(name.as_str()), limits(of)?)));
    Ok(TenantLimits { default: limits(&settings.tenants.default)?, named: named.collect::<anyhow::Result<_>>()? })
}
