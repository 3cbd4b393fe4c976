//! What a process has to do with the others that share its store: its lease, their bus, and the door between them.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admin::AdminState;
use crate::config::Settings;
use crate::downstream::guard::Guard;
use crate::downstream::http::Endpoints;
use crate::downstream::server;
use crate::gateway::homes::{Among, Sharing};
use crate::gateway::{Gateway, Route};
use crate::jobs::Jobs;
use crate::replica::{Endings, Replicas};
use crate::task::{Holder, Store};
use crate::threads::Threads;

use super::{CONNECTION_GRACE, bind};

/// Makes a process one of those that share a store, when it is known where they reach it.
pub type Join = Box<dyn FnOnce(Option<SocketAddr>) -> Arc<dyn Replicas> + Send>;

/// Where tasks are kept, and with whom that is shared.
pub struct Keeping {
    /// Where they are kept.
    pub store: Arc<dyn Store>,
    /// Who this process is.
    pub holder: Holder,
    /// Where it is kept which sessions have ended, where it is shared with nobody and outlives the process.
    pub endings: Option<Arc<dyn Endings>>,
    /// With whom the store is shared; `None`: with nobody.
    pub join: Option<Join>,
}

impl std::fmt::Debug for Keeping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeping").field("store", &self.store).field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// Joins the others, if there may be any. The address on which they pass requests on is bound first, so that nobody hears of
/// one that is not.
pub(super) async fn join(
    join: Option<Join>,
    settings: &Settings,
) -> anyhow::Result<(Option<Sharing>, Option<TcpListener>)> {
    let Some(join) = join else { return Ok((None, None)) };
    let listener = match settings.replica.address {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let address = match &listener {
        Some(listener) => Some(listener.local_addr()?),
        None => None,
    };
    Ok((Some(Sharing { replicas: join(address), lease: settings.replica.lease, address }), listener))
}

/// Starts the jobs of a process that is one of several, or that may find what an earlier one has left.
pub(super) async fn start(jobs: &Jobs, gateway: &Arc<Gateway>, routes: &[Arc<Route>], admin: &Arc<AdminState>) {
    let begun = gateway.begin_lease().await;
    let state = Arc::clone(admin);
    let tell = move |stands: Among| {
        state.set_store_available(stands != Among::Away);
        state.set_key_differs(stands == Among::Strange);
    };
    tell(begun);
    jobs.spawn("bus", Arc::clone(gateway).hear_others(routes.to_vec()));
    jobs.spawn("lease", Arc::clone(gateway).keep_lease(begun, tell));
    jobs.spawn("delivery retries", Arc::clone(gateway).retry_deliveries());
    jobs.spawn("other replicas", Arc::clone(gateway).look_after_others(routes.to_vec()));
}

/// The door between replicas.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) guard: Guard,
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) connections: usize,
}

impl Door {
    /// Serves until told to stop.
    pub(super) fn open(self, jobs: &Jobs, threads: &Arc<Threads>, stop: CancellationToken) -> JoinHandle<()> {
        let Self { listener, guard, endpoints, connections } = self;
        let entrance = server::Entrance { listener, tls: None, connections, guard: Some(Arc::new(guard)) };
        let serving = server::serve(entrance, endpoints, jobs.clone(), Arc::clone(threads), stop, CONNECTION_GRACE);
        jobs.spawn("internal listener", serving)
    }
}
