//! What the gateway counts. Names start with `taskgate_`; labels come from closed sets and from the configuration, never
//! from a caller.
//!
//! Series are found by index, not by hashing labels: a request costs two readings of the clock and a few atomic
//! operations. Each series is made at its first use, so that those that never occur are not exposed.

pub mod label;
mod route;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

pub use route::{Asked, HeldTask, RequestTimer, RouteMetrics};

use label::{EndReason, PassedOn, RejectReason, Reload, StoreOp, TaskStatus};
use route::Families;

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The label of every route and tenant that the configuration does not name.
const OTHER: &str = "other";

/// Upper bounds in seconds of what a client waits for.
const REQUEST_SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];
/// Upper bounds in seconds of a task's life and of its time in the queue.
const TASK_SECONDS: [f64; 14] =
    [0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0];
/// Upper bounds in seconds of one operation of the store.
const STORE_SECONDS: [f64; 10] = [1e-6, 1e-5, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 0.1, 1.0, 10.0];

/// Labels of one series: few, and only looked at when the series is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Labels(Vec<(&'static str, Arc<str>)>);

impl Labels {
    fn new<const N: usize>(labels: [(&'static str, &str); N]) -> Self {
        Self(labels.into_iter().map(|(name, value)| (name, Arc::from(value))).collect())
    }
}

impl prometheus_client::encoding::EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::EncodeLabel;
        self.0.iter().try_for_each(|(name, value)| (*name, &**value).encode(encoder.encode_label()))
    }
}

/// Series of one family behind indices.
#[derive(Debug)]
struct Series<M> {
    family: Family<Labels, M>,
    cells: Box<[OnceLock<M>]>,
}

impl<M: Clone> Series<M> {
    fn new(family: &Family<Labels, M>, count: usize) -> Self {
        Self { family: family.clone(), cells: (0..count).map(|_| OnceLock::new()).collect() }
    }

    fn at(&self, index: usize, labels: impl FnOnce() -> Labels) -> Option<&M> {
        Some(self.cells.get(index)?.get_or_init(|| self.family.get_or_create_owned(&labels())))
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    routes: HashMap<Arc<str>, Arc<RouteMetrics>>,
    other_route: Arc<RouteMetrics>,
    rejected: HashMap<Arc<str>, Series<Counter>>,
    other_rejected: Series<Counter>,
    ended: Series<Counter>,
    store_seconds: Series<Histogram>,
    store_bytes: Gauge,
    certificate_expires: Family<Labels, Gauge>,
    certificate_reloads: Series<Counter>,
    passed_on: Series<Counter>,
    connections: Gauge,
    jobs: Gauge,
}

impl Metrics {
    /// Metrics for these routes and tenants; whatever else comes counts as `other`.
    #[must_use]
    pub fn new(routes: &[Arc<str>], tenants: &[Arc<str>]) -> Self {
        let mut registry = Registry::with_prefix("taskgate");
        let families = Families::register(&mut registry);
        let rejected = register(&mut registry, "rejected", "Requests that were turned away", Family::default());
        let ended = register(&mut registry, "tasks_ended", "Tasks that ended", Family::default());
        let store = register(&mut registry, "store_seconds", "Time that the store took", histograms(store_seconds));
        let help = "When certificates expire, in seconds since 1970";
        let expires = register(&mut registry, "certificate_expires_seconds", help, Family::default());
        let help = "Looks at changed certificate files";
        let reloads = register(&mut registry, "certificate_reloads", help, Family::default());
        let help = "Requests passed on to other replicas";
        let passed_on = register(&mut registry, "passed_on", help, Family::default());
        let refusals = || Series::new(&rejected, RejectReason::ALL.len());
        Self {
            routes: routes.iter().map(|name| (Arc::clone(name), families.route(name))).collect(),
            other_route: families.route(OTHER),
            rejected: tenants.iter().map(|name| (Arc::clone(name), refusals())).collect(),
            other_rejected: refusals(),
            ended: Series::new(&ended, TaskStatus::ALL.len() * EndReason::ALL.len()),
            store_seconds: Series::new(&store, StoreOp::ALL.len()),
            store_bytes: register(&mut registry, "store_bytes", "Bytes of kept results", Gauge::default()),
            certificate_expires: expires,
            certificate_reloads: Series::new(&reloads, Reload::ALL.len()),
            passed_on: Series::new(&passed_on, PassedOn::ALL.len()),
            connections: register(&mut registry, "connections", "Open connections of clients", Gauge::default()),
            jobs: register(&mut registry, "jobs", "Jobs that run", Gauge::default()),
            registry,
        }
    }

    /// The metrics of a route; those of `other` for a name that the configuration does not have.
    #[must_use]
    pub fn route(&self, name: &str) -> &Arc<RouteMetrics> {
        self.routes.get(name).unwrap_or(&self.other_route)
    }

    /// Counts a request that was turned away. A tenant that the configuration does not name counts as `other`, and so
    /// does "" before the tenant is known.
    pub fn rejected(&self, tenant: &str, reason: RejectReason) {
        let (label, series) = match self.rejected.get_key_value(tenant) {
            Some((name, series)) => (&**name, series),
            None => (OTHER, &self.other_rejected),
        };
        let labels = || Labels::new([("tenant", label), ("reason", reason.as_str())]);
        increment(series.at(reason as usize, labels));
    }

    /// Counts a task that ended in `status`.
    pub fn task_ended(&self, status: TaskStatus, reason: EndReason) {
        let index = status as usize * EndReason::ALL.len() + reason as usize;
        let labels = || Labels::new([("status", status.as_str()), ("reason", reason.as_str())]);
        increment(self.ended.at(index, labels));
    }

    /// Records how long an operation of the store took.
    pub fn store(&self, op: StoreOp, took: Duration) {
        observe(self.store_seconds.at(op as usize, || Labels::new([("op", op.as_str())])), took);
    }

    /// Sets the bytes of kept results.
    pub fn set_store_bytes(&self, bytes: u64) {
        self.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Sets when a certificate expires, in seconds since 1970. The route towards whose server it is shown is one of the
    /// configuration's; "" for the listener's.
    pub fn set_certificate_expiry(&self, route: &str, seconds: u64) {
        let gauge = self.certificate_expires.get_or_create_owned(&Labels::new([("route", route)]));
        gauge.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Counts certificate files that changed.
    pub fn certificate_reload(&self, outcome: Reload) {
        increment(self.certificate_reloads.at(outcome as usize, || Labels::new([("outcome", outcome.as_str())])));
    }

    /// Counts a request that another replica was asked to serve.
    pub fn passed_on(&self, outcome: PassedOn) {
        increment(self.passed_on.at(outcome as usize, || Labels::new([("outcome", outcome.as_str())])));
    }

    /// Sets the number of jobs that run.
    pub fn set_jobs(&self, running: usize) {
        self.jobs.set(i64::try_from(running).unwrap_or(i64::MAX));
    }

    /// Counts a client's connection for as long as the guard lives.
    #[must_use]
    pub fn connection(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// All of it in Prometheus' text format, version 0.0.4.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)
            .expect("a String takes everything, and every histogram has buckets");
        text
    }
}

/// One more in a gauge, until it is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn histograms(new: fn() -> Histogram) -> Family<Labels, Histogram> {
    Family::new_with_constructor(new)
}

fn request_seconds() -> Histogram {
    Histogram::new(REQUEST_SECONDS)
}

fn task_seconds() -> Histogram {
    Histogram::new(TASK_SECONDS)
}

fn store_seconds() -> Histogram {
    Histogram::new(STORE_SECONDS)
}

fn increment(counter: Option<&Counter<u64, AtomicU64>>) {
    if let Some(counter) = counter {
        counter.inc();
    }
}

fn observe(histogram: Option<&Histogram>, took: Duration) {
    if let Some(histogram) = histogram {
        histogram.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
