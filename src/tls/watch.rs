//! Looks at certificates again and again, and when somebody asks for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::metrics::label::Reload;

use super::{Defect, Identity, Look};

/// An identity, and where it is used.
#[derive(Debug, Clone)]
pub struct Watched {
    /// What is looked at.
    pub identity: Arc<Identity>,
    /// The route towards whose server it is shown; `None` for the listener's.
    pub route: Option<Arc<str>>,
}

/// The job that looks.
#[derive(Debug)]
pub struct Watch {
    /// What is looked at.
    pub watched: Vec<Watched>,
    /// How often.
    pub every: Duration,
    /// Asks for a look at once.
    pub asked: Arc<Notify>,
    /// Where looks are counted.
    pub metrics: Arc<Metrics>,
    /// What the time is.
    pub clock: Clock,
}

impl Watch {
    /// Looks until jobs are told to stop.
    pub async fn run(self, jobs: Jobs) {
        self.watched.iter().for_each(|watched| self.show_expiry(watched));
        let watching = async {
            loop {
                let is_asked = tokio::select! {
                    () = tokio::time::sleep(self.every) => false,
                    () = self.asked.notified() => true,
                };
                for watched in &self.watched {
                    self.look(watched, is_asked).await;
                }
            }
        };
        jobs.stopping().run_until_cancelled(watching).await;
    }

    async fn look(&self, watched: &Watched, is_asked: bool) {
        let (identity, now) = (Arc::clone(&watched.identity), self.clock.now());
        // Files may be on a disk that takes its time, and this thread serves others.
        let looked = tokio::task::spawn_blocking(move || identity.look(now)).await;
        let route = watched.route.as_deref().unwrap_or_default();
        match looked {
            Ok(Ok(Look::Same)) if is_asked => tracing::info!(route, "the certificate is the same as before"),
            Ok(Ok(Look::Same)) => {}
            Ok(Ok(Look::Replaced)) => {
                self.metrics.certificate_reload(Reload::Replaced);
                self.show_expiry(watched);
                let until = watched.identity.pair().valid_until;
                tracing::info!(route, valid_until = %until, "a new certificate is in use");
            }
            Ok(Err(defect)) => self.refused(route, &defect),
            Err(error) => tracing::error!(route, %error, "the certificate could not be looked at"),
        }
    }

    fn refused(&self, route: &str, defect: &Defect) {
        self.metrics.certificate_reload(Reload::Refused);
        tracing::warn!(route, %defect, "a new certificate is not taken; the one before it stays in use");
    }

    fn show_expiry(&self, watched: &Watched) {
        let until = watched.identity.pair().valid_until.as_millis() / 1000;
        self.metrics.set_certificate_expiry(watched.route.as_deref().unwrap_or_default(), until);
    }
}
