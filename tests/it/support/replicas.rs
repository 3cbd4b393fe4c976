//! Several gateways that share a store, each in a runtime of its own so that it can die at any moment, and a balancer before
//! them that takes another one for each request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use taskgate::app::{App, Keeping, Timing};
use taskgate::clock::Clock;
use taskgate::config::Settings;
use taskgate::jobs::Jobs;
use taskgate::replica::Replicas;
use taskgate::replica::local::{Neighbour, Neighbourhood};
use taskgate::task::Holder;
use taskgate::task::store::memory::MemoryStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// What all gateways share.
pub(crate) struct Common {
    pub(crate) store: Arc<MemoryStore>,
    neighbourhood: Neighbourhood,
}

impl Common {
    pub(crate) fn new() -> Self {
        let clock = Clock::system();
        Self { store: Arc::new(MemoryStore::shared(clock)), neighbourhood: Neighbourhood::new(clock) }
    }
}

/// Its end of what they share, and where the others reach it.
type Joined = (Arc<Neighbour>, Option<SocketAddr>);

/// One of the gateways.
pub(crate) struct Replica {
    app: Option<App>,
    runtime: Option<Runtime>,
    stopping: Option<JoinHandle<()>>,
    /// Its end of what they share.
    pub(crate) neighbour: Arc<Neighbour>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Where the others reach it.
    pub(crate) internal: Option<SocketAddr>,
}

impl Replica {
    pub(crate) async fn start(common: &Common, settings: Settings, timing: Timing) -> Self {
        let holder = Holder::begin("test");
        let joined: Arc<Mutex<Option<Joined>>> = Arc::default();
        let (neighbourhood, lease) = (common.neighbourhood.clone(), settings.replica.lease);
        let (me, note) = (holder.clone(), Arc::clone(&joined));
        let join = move |address| {
            let neighbour = Arc::new(neighbourhood.join(me, address, lease));
            *note.lock().unwrap() = Some((Arc::clone(&neighbour), address));
            neighbour as Arc<dyn Replicas>
        };
        let keeping =
            Keeping { store: Arc::clone(&common.store) as _, holder, endings: None, join: Some(Box::new(join)) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let timing = Timing { threads: 0, ..timing };
        let app = runtime.spawn(async move { App::start_keeping(&settings, timing, keeping).await.unwrap() });
        let app = app.await.unwrap();
        let (neighbour, internal) = joined.lock().unwrap().take().unwrap();
        let (address, admin) = (app.address, app.admin_address);
        Self { app: Some(app), runtime: Some(runtime), stopping: None, neighbour, address, admin, internal }
    }

    /// It is gone from one moment to the next, with all its connections.
    pub(crate) fn kill(&mut self) {
        self.app = None;
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// The same, waiting until its sockets are closed.
    pub(crate) async fn die(&mut self) {
        self.kill();
        for address in [Some(self.address), self.internal].into_iter().flatten() {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// It begins to stop as a signal stops it.
    pub(crate) fn begin_to_stop(&mut self) {
        if let (Some(app), Some(runtime)) = (self.app.take(), &self.runtime) {
            self.stopping = Some(runtime.spawn(app.run_until(async {})));
        }
    }

    /// Waits for its end, once it has begun to stop.
    pub(crate) async fn stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            stopping.await.unwrap();
        }
        self.kill();
    }

    /// Both.
    pub(crate) async fn stop(&mut self) {
        self.begin_to_stop();
        self.stopped().await;
    }

    pub(crate) fn is_there(&self) -> bool {
        self.app.is_some()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends each request to the next gateway; to those that are there.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    targets: Arc<Mutex<Vec<SocketAddr>>>,
    /// Those that it asks whether they are ready: their addresses for clients and for operators.
    checked: Arc<Mutex<Vec<(SocketAddr, SocketAddr)>>>,
}

impl Balancer {
    pub(crate) async fn start(targets: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let targets = Arc::new(Mutex::new(targets));
        let (shared, turn) = (Arc::clone(&targets), Arc::new(AtomicUsize::new(0)));
        let client: Client<HttpConnector, Incoming> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        let jobs = Jobs::default();
        jobs.clone().spawn("balancer", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (client, shared, turn) = (client.clone(), Arc::clone(&shared), Arc::clone(&turn));
                let service = service_fn(move |request| {
                    let target = {
                        let targets = shared.lock().unwrap();
                        targets[turn.fetch_add(1, Ordering::SeqCst) % targets.len()]
                    };
                    pass(client.clone(), target, request)
                });
                jobs.spawn(
                    "balanced",
                    http1::Builder::new().half_close(false).serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, targets, checked: Arc::default() }
    }

    /// From now on these are asked whether they are ready, again and again; requests go to those that say so.
    pub(crate) fn check(&self, replicas: &[Replica]) {
        let is_new = self.checked.lock().unwrap().is_empty();
        *self.checked.lock().unwrap() = replicas.iter().map(|replica| (replica.address, replica.admin)).collect();
        if !is_new {
            return;
        }
        let (checked, targets) = (Arc::clone(&self.checked), Arc::clone(&self.targets));
        Jobs::default().spawn("health checks", async move {
            loop {
                let all = checked.lock().unwrap().clone();
                let mut ready = Vec::new();
                for (address, admin) in all {
                    if is_ready(admin).await {
                        ready.push(address);
                    }
                }
                *targets.lock().unwrap() = ready;
                tokio::time::sleep(BETWEEN_CHECKS).await;
            }
        });
    }

    /// Whether requests go there.
    pub(crate) fn asks(&self, address: SocketAddr) -> bool {
        self.targets.lock().unwrap().contains(&address)
    }

    /// From now on only these are asked.
    pub(crate) fn use_only(&self, targets: Vec<SocketAddr>) {
        *self.targets.lock().unwrap() = targets;
    }
}

/// How often a balancer asks.
const BETWEEN_CHECKS: Duration = Duration::from_millis(20);

async fn is_ready(admin: SocketAddr) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(format!("GET /readyz HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    asking.await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

type Passed = Response<BoxBody<Bytes, hyper::Error>>;

async fn pass(
    client: Client<HttpConnector, Incoming>,
    target: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Passed, hyper_util::client::legacy::Error> {
    let path = request.uri().path_and_query().unwrap().clone();
    *request.uri_mut() =
        Uri::builder().scheme("http").authority(target.to_string()).path_and_query(path).build().unwrap();
    match client.request(request).await {
        Ok(mut response) => {
            // Of one hop alone: one that stops says so.
            response.headers_mut().remove(CONNECTION);
            Ok(response.map(BodyExt::boxed))
        }
        Err(error) if error.is_connect() => {
            let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed());
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(response)
        }
        Err(error) => Err(error),
    }
}
