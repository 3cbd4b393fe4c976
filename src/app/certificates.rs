//! Which certificates are in use, and the job that looks whether there are new ones.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::{RouteSettings, Settings, UpstreamTarget, UpstreamTls};
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::tls::{self, Watch, Watched};

/// The certificates in use, collected while the parts that use them are made.
pub(super) struct Certificates {
    clock: Clock,
    watched: Vec<Watched>,
}

impl Certificates {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, watched: Vec::new() }
    }

    pub(super) fn of_listener(&mut self, settings: &Settings) -> anyhow::Result<Option<tls::Acceptor>> {
        let Some(files) = &settings.listen.tls else { return Ok(None) };
        let identity = self.load(files, None).context("`listen.tls`")?;
        Ok(Some(tls::acceptor(identity)?))
    }

    pub(super) fn of_route(&mut self, route: &RouteSettings) -> anyhow::Result<Option<tls::Client>> {
        let UpstreamTarget::Url { tls, .. } = &route.upstream.target else { return Ok(None) };
        let UpstreamTls { authorities, identity } = tls;
        if authorities.is_none() && identity.is_none() {
            return Ok(None);
        }
        let place = || format!("`upstream.tls` of route {}", route.name);
        let authorities = authorities.as_deref().map(tls::authorities).transpose();
        let authorities =
            authorities.map_err(|what| anyhow::anyhow!("the file of authorities {what}")).with_context(place)?;
        let identity = match identity {
            Some(files) => Some(self.load(files, Some(route.name.as_str().into())).with_context(place)?),
            None => None,
        };
        Ok(Some(tls::Client::new(authorities, identity)?))
    }

    fn load(&mut self, files: &tls::Files, route: Option<Arc<str>>) -> anyhow::Result<Arc<tls::Identity>> {
        let identity = tls::Identity::load(files.clone(), self.clock.now())?;
        self.watched.push(Watched { identity: Arc::clone(&identity), route });
        Ok(identity)
    }

    /// Starts the job that looks at them, where there are any.
    pub(super) fn watch(self, every: Duration, metrics: &Arc<Metrics>, jobs: &Jobs) -> Arc<Notify> {
        let (asked, Self { clock, watched }) = (Arc::new(Notify::new()), self);
        if !watched.is_empty() {
            let watch = Watch { watched, every, asked: Arc::clone(&asked), metrics: Arc::clone(metrics), clock };
            jobs.spawn("certificates", watch.run(jobs.clone()));
        }
        asked
    }
}
