//! What is counted for one route, and how one request is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::label::{Era, Outcome, TakenUp, TaskStatus, UpstreamOutcome};
use super::{Counted, Labels, Series, histograms, increment, observe, register, request_seconds, task_seconds};
use crate::mcp::method::Method;

/// Where a task that has not ended may stand, in the order of [`TaskStatus`].
const UNFINISHED: [TaskStatus; 3] = [TaskStatus::Queued, TaskStatus::Working, TaskStatus::InputRequired];
/// No gauge's index.
const NOWHERE: usize = usize::MAX;

/// What a request is, for its `method` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Turned away before its method was known.
    Unread,
    /// A GET: a stream.
    Listen,
    /// A DELETE: the end of a session.
    Close,
    /// A client's answer to a question.
    Answer,
    /// A request or notification.
    Method(Method),
}

impl Asked {
    pub(super) const COUNT: usize = Method::ALL.len() + 4;

    pub(super) fn index(self) -> usize {
        match self {
            Self::Unread => 0,
            Self::Listen => 1,
            Self::Close => 2,
            Self::Answer => 3,
            Self::Method(method) => 4 + method as usize,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Listen => "GET",
            Self::Close => "DELETE",
            Self::Answer => "response",
            Self::Method(method) => method.as_str(),
        }
    }
}

/// The families that routes share.
#[derive(Debug, Clone)]
pub(super) struct Families {
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Histogram>,
    tasks: Family<Labels, Gauge>,
    tasks_created: Family<Labels, Counter>,
    tasks_taken_over: Family<Labels, Counter>,
    task_seconds: Family<Labels, Histogram>,
    task_queue_seconds: Family<Labels, Histogram>,
    upstream_requests: Family<Labels, Counter>,
    upstream_in_flight: Family<Labels, Gauge>,
    sessions: Family<Labels, Gauge>,
    streams: Family<Labels, Gauge>,
    unchecked_calls: Family<Labels, Counter>,
    unnamed_requests: Family<Labels, Counter>,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: register(registry, "requests", "Requests of clients", Family::default()),
            request_seconds: register(
                registry,
                "request_seconds",
                "Time from a request's head to the head of its answer",
                histograms(request_seconds),
            ),
            tasks: register(registry, "tasks", "Unfinished tasks whose calls this process holds", Family::default()),
            tasks_created: register(registry, "tasks_created", "Tasks that were made", Family::default()),
            tasks_taken_over: register(registry, "tasks_taken_over", "Tasks whose holder was gone", Family::default()),
            task_seconds: register(
                registry,
                "task_seconds",
                "Time from a task's creation to its end",
                histograms(task_seconds),
            ),
            task_queue_seconds: register(
                registry,
                "task_queue_seconds",
                "Time from a task's creation to its dispatch",
                histograms(task_seconds),
            ),
            upstream_requests: register(registry, "upstream_requests", "Messages to upstreams", Family::default()),
            upstream_in_flight: register(
                registry,
                "upstream_in_flight",
                "Calls that have a place upstream",
                Family::default(),
            ),
            sessions: register(registry, "sessions", "Sessions of clients", Family::default()),
            streams: register(registry, "streams", "Open event streams to clients", Family::default()),
            unchecked_calls: register(
                registry,
                "unchecked_calls",
                "Calls of tools whose schemas could not be read",
                Family::default(),
            ),
            unnamed_requests: register(
                registry,
                "unnamed_requests",
                "Requests about tasks without the header that names the task",
                Family::default(),
            ),
        }
    }

    pub(super) fn route(&self, name: &str) -> Arc<RouteMetrics> {
        let route = || Labels::new([("route", name)]);
        let tasks = UNFINISHED
            .iter()
            .map(|status| self.tasks.get_or_create_owned(&Labels::new([("route", name), ("status", status.as_str())])));
        Arc::new(RouteMetrics {
            name: Arc::from(name),
            requests: Series::new(&self.requests, Asked::COUNT * Era::ALL.len() * Outcome::ALL.len()),
            request_seconds: Series::new(&self.request_seconds, Asked::COUNT),
            tasks: tasks.collect(),
            tasks_created: self.tasks_created.get_or_create_owned(&route()),
            tasks_taken_over: Series::new(&self.tasks_taken_over, TakenUp::ALL.len()),
            task_seconds: self.task_seconds.get_or_create_owned(&route()),
            task_queue_seconds: self.task_queue_seconds.get_or_create_owned(&route()),
            upstream_requests: Series::new(&self.upstream_requests, UpstreamOutcome::ALL.len()),
            upstream_in_flight: self.upstream_in_flight.get_or_create_owned(&route()),
            sessions: self.sessions.get_or_create_owned(&route()),
            streams: self.streams.get_or_create_owned(&route()),
            unchecked_calls: Series::new(&self.unchecked_calls, 1),
            unnamed_requests: Series::new(&self.unnamed_requests, 1),
        })
    }
}

/// What is counted for one route.
#[derive(Debug)]
pub struct RouteMetrics {
    name: Arc<str>,
    requests: Series<Counter>,
    request_seconds: Series<Histogram>,
    tasks: Box<[Gauge]>,
    tasks_created: Counter,
    tasks_taken_over: Series<Counter>,
    task_seconds: Histogram,
    task_queue_seconds: Histogram,
    upstream_requests: Series<Counter>,
    upstream_in_flight: Gauge,
    sessions: Gauge,
    streams: Gauge,
    unchecked_calls: Series<Counter>,
    unnamed_requests: Series<Counter>,
}

impl RouteMetrics {
    /// Starts the clock of a request.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> RequestTimer {
        RequestTimer {
            route: Arc::clone(self),
            asked: Asked::Unread,
            era: Era::Legacy,
            outcome: Outcome::Dropped,
            is_counted: true,
            started: Instant::now(),
        }
    }

    /// Counts a task that was made.
    pub fn task_created(&self) {
        self.tasks_created.inc();
    }

    /// Counts a task of a holder that was gone, by what was done with it.
    pub fn task_taken_over(&self, how: TakenUp) {
        let labels = || Labels::new([("route", &*self.name), ("how", how.as_str())]);
        increment(self.tasks_taken_over.at(how as usize, labels));
    }

    /// Counts a task whose call this process holds, where it stands, for as long as the guard lives. One that has ended is
    /// not counted.
    #[must_use]
    pub fn task_held(self: &Arc<Self>, status: TaskStatus) -> HeldTask {
        let held = HeldTask { route: Arc::clone(self), status: AtomicUsize::new(NOWHERE) };
        held.stands(Some(status));
        held
    }

    /// Records a task's whole life.
    pub fn task_took(&self, life: Duration) {
        self.task_seconds.observe(life.as_secs_f64());
    }

    /// Records how long a task waited for its place.
    pub fn task_queued_for(&self, waited: Duration) {
        self.task_queue_seconds.observe(waited.as_secs_f64());
    }

    /// Counts a message to the upstream.
    pub fn upstream_request(&self, outcome: UpstreamOutcome) {
        let labels = || Labels::new([("route", &self.name), ("outcome", outcome.as_str())]);
        increment(self.upstream_requests.at(outcome as usize, labels));
    }

    /// Counts a call that has a place upstream for as long as the guard lives.
    #[must_use]
    pub fn upstream_in_flight(&self) -> Counted {
        Counted::new(&self.upstream_in_flight)
    }

    /// Counts a client's session for as long as the guard lives.
    #[must_use]
    pub fn session(&self) -> Counted {
        Counted::new(&self.sessions)
    }

    /// Counts an open event stream for as long as the guard lives.
    #[must_use]
    pub fn stream(&self) -> Counted {
        Counted::new(&self.streams)
    }

    /// Counts a call of a tool whose schema could not be read: what it repeats in headers is the upstream's to check.
    pub fn unchecked_call(&self) {
        increment(self.unchecked_calls.at(0, || Labels::new([("route", &*self.name)])));
    }

    /// Counts a request about a task that lacks `Mcp-Name`, which clients have to send and some leave out.
    pub fn unnamed_request(&self) {
        increment(self.unnamed_requests.at(0, || Labels::new([("route", &*self.name)])));
    }

    fn finished(&self, request: &RequestTimer) {
        let (asked, era, outcome) = (request.asked, request.era, request.outcome);
        let index = (asked.index() * Era::ALL.len() + era as usize) * Outcome::ALL.len() + outcome as usize;
        let labels = || {
            Labels::new([
                ("route", &*self.name),
                ("method", asked.as_str()),
                ("era", era.as_str()),
                ("outcome", outcome.as_str()),
            ])
        };
        increment(self.requests.at(index, labels));
        let labels = || Labels::new([("route", &*self.name), ("method", asked.as_str())]);
        observe(self.request_seconds.at(asked.index(), labels), request.started.elapsed());
    }
}

/// Counts a task that is held here, under one status at a time.
#[derive(Debug)]
pub struct HeldTask {
    route: Arc<RouteMetrics>,
    /// The index of its gauge; any other number is none.
    status: AtomicUsize,
}

impl HeldTask {
    /// Counts it there from now on; `None`: it is not held any more.
    pub fn stands(&self, status: Option<TaskStatus>) {
        let to = status.map_or(NOWHERE, |status| status as usize);
        let from = self.status.swap(to, Ordering::Relaxed);
        if let Some(gauge) = self.route.tasks.get(from) {
            gauge.dec();
        }
        if let Some(gauge) = self.route.tasks.get(to) {
            gauge.inc();
        }
    }
}

impl Drop for HeldTask {
    fn drop(&mut self) {
        self.stands(None);
    }
}

/// Counts one request, once, when it is dropped: with the outcome it was given, or as dropped by the client.
#[derive(Debug)]
pub struct RequestTimer {
    /// What it turned out to be.
    pub asked: Asked,
    /// The era of its protocol.
    pub era: Era,
    route: Arc<RouteMetrics>,
    outcome: Outcome,
    is_counted: bool,
    started: Instant,
}

impl RequestTimer {
    /// Counts nothing: another process does.
    pub fn forget(&mut self) {
        self.is_counted = false;
    }

    /// Counts the request with this outcome.
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if self.is_counted {
            self.route.finished(self);
        }
    }
}
