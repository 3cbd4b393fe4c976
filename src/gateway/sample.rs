//! A gateway for tests that hand it calls themselves: what a test does not name does not matter to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::mcp::version::ProtocolVersion;
use crate::metrics::Metrics;
use crate::seal::Sealer;
use crate::task::{Holder, Limits, Store};
use crate::tenant::Caller;
use crate::tenant::fair::FairQueue;
use crate::tenant::quota::{self, Rates};
use crate::upstream::Upstream;
use crate::upstream::http::{Config, Http};

use super::call::{Accept, Call, VersionHeader};
use super::eras::{Eras, Setting};
use super::policy::ToolPolicy;
use super::pool::SessionPolicy;
use super::rules::Rules;
use super::schemas::Schemas;
use super::{Parts, Route, TenantLimits, session};

pub(super) const LIMITS: Limits =
    Limits { running_tasks: 64, queued_tasks: 64, kept_tasks: 64, kept_bytes: 1 << 20, creates: None };

/// A server over HTTP.
pub(super) fn server_at(url: &str) -> Arc<dyn Upstream> {
    let config = Config {
        url: url.parse().unwrap(),
        headers: HeaderMap::new(),
        credentials: None,
        tls: None,
        connect_timeout: Duration::from_secs(60),
        max_message: 1 << 20,
        jobs: Jobs::default(),
    };
    Arc::new(Http::new(config))
}

/// A route without rules.
pub(super) fn route(name: &str, upstream: Arc<dyn Upstream>, metrics: &Metrics) -> Route {
    Route {
        name: name.into(),
        upstream,
        places: FairQueue::new(64, 64),
        eras: Eras::new(Setting::Auto),
        tools: ToolPolicy::default(),
        rules: Rules::default(),
        schemas: Schemas::default(),
        native: false,
        subjects: None,
        passes_authorization: false,
        sessions: SessionPolicy::Pooled,
        max_message: 1 << 20,
        metrics: Arc::clone(metrics.route(name)),
    }
}

/// The parts of a gateway; all that are made here open each other's sessions.
pub(super) fn parts(store: Arc<dyn Store>, holder: Holder, metrics: &Arc<Metrics>, clock: Clock, jobs: &Jobs) -> Parts {
    Parts {
        store,
        holder,
        endings: None,
        sessions: session::Config { idle: Duration::from_secs(600), max: 64 },
        sealer: Sealer::new([7; 32], []),
        rates: Rates::new(quota::Limits::default(), []),
        limits: TenantLimits { default: LIMITS, named: HashMap::new() },
        metrics: Arc::clone(metrics),
        keep_alive: Duration::from_secs(15),
        clock,
        jobs: jobs.clone(),
    }
}

/// A POST of a message, with the header fields that its era wants.
pub(super) fn call(
    route: &Arc<Route>,
    caller: &Arc<Caller>,
    version: ProtocolVersion,
    session: Option<&str>,
    body: &Value,
) -> Call {
    let mut headers = HeaderMap::new();
    if !version.has_sessions() {
        headers.insert("mcp-method", HeaderValue::from_str(body["method"].as_str().unwrap()).unwrap());
        if let Some(name) = ["name", "taskId"].iter().find_map(|key| body["params"][key].as_str()) {
            headers.insert("mcp-name", HeaderValue::from_str(name).unwrap());
        }
    }
    Call {
        route: Arc::clone(route),
        caller: Arc::clone(caller),
        subject: None,
        peer: None,
        session: session.map(str::to_owned),
        version: VersionHeader::Known(version),
        last_event_id: None,
        accept: Accept { json: true, events: true },
        headers,
        body: Bytes::from(body.to_string()),
        placing: None,
    }
}
