//! Gateways that share a store, each as a process of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::{Clock, Timestamp};
use crate::demo::server::{Options, Server};
use crate::gateway::call::{Accept, Answer, Call, VersionHeader};
use crate::gateway::eras::{Eras, Setting};
use crate::gateway::policy::{TaskPolicy, ToolPolicy};
use crate::gateway::pool::SessionPolicy;
use crate::gateway::rules::Rules;
use crate::gateway::schemas::Schemas;
use crate::gateway::takeover::Lost;
use crate::gateway::{Gateway, Parts, Route, TenantLimits, session};
use crate::jobs::Jobs;
use crate::mcp::version::ProtocolVersion;
use crate::metrics::{Asked, Metrics};
use crate::seal::Sealer;
use crate::task::store::memory::MemoryStore;
use crate::task::store::{Known, Purged, Watch};
use crate::task::{Holder, Limits, Orphan, Outcome, Owner, Position, Step, Store, StoreError, Task, TaskId, Usage};
use crate::tenant::fair::FairQueue;
use crate::tenant::quota::{self, Rates};
use crate::tenant::{Caller, Principal};
use crate::upstream::http::{Config, Http};

/// What several gateways share, and the server behind them.
pub(super) struct World {
    pub(super) upstream: Server,
    pub(super) store: Arc<Noting>,
    pub(super) policy: TaskPolicy,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
}

impl World {
    pub(super) async fn new(options: Options, policy: TaskPolicy) -> Self {
        let clock = Clock::system();
        Self {
            upstream: Server::start_on_loopback(options).await.unwrap(),
            store: Arc::new(Noting::over(MemoryStore::shared(clock))),
            policy,
            limits: Limits { running_tasks: 64, queued_tasks: 64, kept_tasks: 64, kept_bytes: 1 << 20, creates: None },
            clock,
        }
    }

    /// A gateway in this runtime.
    pub(super) fn replica(&self, name: &str) -> Replica {
        let (jobs, clock) = (Jobs::default(), self.clock);
        let metrics = Arc::new(Metrics::new(&["r".into()], &["acme".into()]));
        let http = Config {
            url: self.upstream.url().parse().unwrap(),
            headers: HeaderMap::new(),
            credentials: None,
            tls: None,
            connect_timeout: Duration::from_secs(60),
            max_message: 1 << 20,
            jobs: Jobs::default(),
        };
        let route = Route {
            name: "r".into(),
            upstream: Arc::new(Http::new(http)),
            places: FairQueue::new(64, 64),
            eras: Eras::new(Setting::Auto),
            tools: ToolPolicy { otherwise: self.policy.clone(), ..ToolPolicy::default() },
            rules: Rules::default(),
            schemas: Schemas::default(),
            native: false,
            subjects: None,
            passes_authorization: false,
            sessions: SessionPolicy::Pooled,
            max_message: 1 << 20,
            metrics: Arc::clone(metrics.route("r")),
        };
        let holder = Holder::begin(name);
        let gateway = Gateway::new(Parts {
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            holder: holder.clone(),
            endings: None,
            sessions: session::Config { idle: Duration::from_secs(600), max: 64 },
            sealer: Sealer::new([7; 32], []),
            rates: Rates::new(quota::Limits::default(), []),
            limits: TenantLimits { default: self.limits, named: std::collections::HashMap::new() },
            metrics: Arc::clone(&metrics),
            keep_alive: Duration::from_secs(15),
            clock,
            jobs: jobs.clone(),
        });
        let caller = Arc::new(Caller::of(Arc::new(Principal::of_api_key("acme".into(), "alice".into()))));
        Replica { gateway, route: Arc::new(route), holder, caller, metrics, jobs, process: None }
    }

    /// A gateway in a process of its own.
    pub(super) fn process(&self, name: &str) -> Replica {
        let process = Process::start();
        let entered = process.handle.enter();
        let mut replica = self.replica(name);
        drop(entered);
        replica.process = Some(process);
        replica
    }
}

/// A thread with a runtime, which can stand still at any moment and go on as if nothing had been.
pub(super) struct Process {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A process that stands still until this is dropped.
pub(super) struct Frozen {
    _thaw: mpsc::Sender<()>,
}

impl Process {
    fn start() -> Self {
        let (tell, told) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            tell.send(runtime.handle().clone()).unwrap();
            drop(runtime.block_on(ended));
            runtime.shutdown_background();
        });
        Self { handle: told.recv().unwrap(), end: Some(end), thread: Some(thread) }
    }

    async fn freeze(&self) -> Frozen {
        let (thaw, thawed) = mpsc::channel::<()>();
        let (tell, told) = oneshot::channel();
        self.handle.spawn(async move {
            tell.send(()).unwrap();
            thawed.recv().unwrap_err();
        });
        told.await.unwrap();
        Frozen { _thaw: thaw }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// One of the gateways.
pub(super) struct Replica {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    pub(super) holder: Holder,
    pub(super) metrics: Arc<Metrics>,
    caller: Arc<Caller>,
    jobs: Jobs,
    process: Option<Process>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

impl Replica {
    pub(super) async fn freeze(&self) -> Frozen {
        self.process.as_ref().unwrap().freeze().await
    }

    pub(super) async fn take_up(&self, from: &Self) -> usize {
        let routes = [Arc::clone(&self.route)];
        self.gateway.take_up(&routes, &from.holder, Lost::Replica).await.unwrap()
    }

    pub(super) async fn take_up_strays(&self) -> usize {
        self.gateway.take_up_strays(&[Arc::clone(&self.route)], Lost::Replica).await.unwrap()
    }

    fn call(&self, version: ProtocolVersion, session: Option<&str>, body: &Value) -> Call {
        let mut headers = HeaderMap::new();
        if !version.has_sessions() {
            headers.insert("mcp-method", HeaderValue::from_str(body["method"].as_str().unwrap()).unwrap());
            if let Some(name) = ["name", "taskId"].iter().find_map(|key| body["params"][key].as_str()) {
                headers.insert("mcp-name", HeaderValue::from_str(name).unwrap());
            }
        }
        Call {
            route: Arc::clone(&self.route),
            caller: Arc::clone(&self.caller),
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

    /// Posts a request of a client that takes no stream, whose place was just found; waits for the answer.
    pub(super) async fn placed(&self, session: &str, method: &str, params: Value, placing: TaskTrackerToken) {
        let body = json!({"jsonrpc": "2.0", "id": 8, "method": method, "params": params});
        let call = self.call(ProtocolVersion::LATEST_LEGACY, Some(session), &body);
        let mut call = Call { accept: Accept { json: true, events: false }, placing: Some(placing), ..call };
        drop(self.gateway.post(&mut call, &mut Asked::Unread).await);
    }

    async fn post(&self, version: ProtocolVersion, session: Option<&str>, body: Value) -> (Value, Option<String>) {
        let mut call = self.call(version, session, &body);
        let gateway = Arc::clone(&self.gateway);
        let posting = async move { gateway.post(&mut call, &mut Asked::Unread).await };
        let answer = match &self.process {
            Some(process) => process.handle.spawn(posting).await.unwrap(),
            None => posting.await,
        };
        match answer.unwrap() {
            Answer::Json { message, session } => {
                (serde_json::from_slice(&message).unwrap(), session.map(|session| session.to_string()))
            }
            Answer::JsonBody(body) => {
                (serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap(), None)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn modern(&self, method: &str, mut params: Value) -> Value {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities":
                {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}});
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let mut answer = self.post(ProtocolVersion::LATEST_MODERN, None, body).await.0;
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].take()
    }

    /// A session, on a gateway that passes its answer on as JSON.
    pub(super) async fn session(&self) -> String {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "0"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        self.post(ProtocolVersion::LATEST_LEGACY, None, body).await.1.unwrap()
    }

    pub(super) async fn legacy(&self, session: &str, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let mut answer = self.post(ProtocolVersion::LATEST_LEGACY, Some(session), body).await.0;
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].take()
    }

    /// The task of a call by a client of that era.
    pub(super) async fn start(&self, client: Client, tool: &str, arguments: Value) -> String {
        let id = match client {
            Client::Modern => {
                let created = self.modern("tools/call", json!({"name": tool, "arguments": arguments})).await;
                created["taskId"].clone()
            }
            Client::Legacy => {
                let session = self.session().await;
                let params = json!({"name": tool, "arguments": arguments, "task": {}, "_meta": {"progressToken": 1}});
                self.legacy(&session, "tools/call", params).await["task"]["taskId"].clone()
            }
        };
        id.as_str().unwrap().to_owned()
    }

    /// The task as clients of the extension see it, once it is like that.
    pub(super) async fn until(&self, id: &str, status: &str) -> Value {
        let owner = Owner {
            tenant: "acme".into(),
            issuer: "".into(),
            subject: "alice".into(),
            client: "".into(),
            principal: self.caller.principal.digest(),
            route: "r".into(),
        };
        let parsed = TaskId::parse(id).unwrap();
        let shown = |task: &Task| task.state.status().as_str() == status;
        drop(self.gateway.ledger().wait(&owner, parsed, shown).await);
        let task = self.modern("tasks/get", json!({"taskId": id})).await;
        assert_eq!(task["status"], status, "{task}");
        task
    }
}

/// What kind of client makes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    Legacy,
    Modern,
}

/// A store that tells what is noted of calls, and is away for a while.
#[derive(Debug)]
pub(super) struct Noting {
    store: MemoryStore,
    notes: watch::Sender<Vec<Arc<str>>>,
    /// So many of the next changes fail.
    pub(super) failing: AtomicUsize,
    /// So many of the next changes are written, and nobody is told so.
    pub(super) unanswered: AtomicUsize,
    /// The same of takeovers.
    pub(super) unanswered_takeovers: AtomicUsize,
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Noting {
    fn over(store: MemoryStore) -> Self {
        let [failing, unanswered, unanswered_takeovers] = Default::default();
        Self { store, notes: watch::Sender::default(), failing, unanswered, unanswered_takeovers }
    }

    /// Waits until an event of a call was noted.
    pub(super) async fn noted_event(&self) {
        self.noted("\"event\":\"").await;
    }

    /// Waits until something with that in it was noted.
    pub(super) async fn noted(&self, part: &str) {
        let has_it = |notes: &Vec<Arc<str>>| notes.iter().any(|note| note.contains(part));
        drop(self.notes.subscribe().wait_for(has_it).await.unwrap());
    }
}

#[async_trait]
impl Store for Noting {
    async fn create(&self, task: Task, draft: Option<Arc<str>>, limits: &Limits) -> Result<Arc<Task>, StoreError> {
        self.store.create(task, draft, limits).await
    }

    async fn read(&self, owner: &Owner, id: TaskId) -> Result<Option<Arc<Task>>, StoreError> {
        self.store.read(owner, id).await
    }

    async fn outcome(&self, owner: &Owner, id: TaskId) -> Result<Option<Outcome>, StoreError> {
        self.store.outcome(owner, id).await
    }

    async fn note_read(&self, owner: &Owner, id: TaskId) -> Result<bool, StoreError> {
        self.store.note_read(owner, id).await
    }

    async fn replace(&self, task: Task, outcome: Option<Outcome>) -> Result<Arc<Task>, StoreError> {
        if take(&self.failing) {
            return Err(StoreError::Unavailable("away".into()));
        }
        let replaced = self.store.replace(task, outcome).await;
        if replaced.is_ok() && take(&self.unanswered) {
            return Err(StoreError::Unavailable("no answer".into()));
        }
        replaced
    }

    async fn list(&self, owner: &Owner, after: Option<Position>, limit: usize) -> Result<Vec<Arc<Task>>, StoreError> {
        self.store.list(owner, after, limit).await
    }

    async fn purge(&self, now: Timestamp, at_most: usize) -> Result<Purged, StoreError> {
        self.store.purge(now, at_most).await
    }

    async fn watch(&self, owner: &Owner, id: TaskId) -> Result<Option<Watch>, StoreError> {
        self.store.watch(owner, id).await
    }

    async fn usage(&self, tenant: &str) -> Result<Usage, StoreError> {
        self.store.usage(tenant).await
    }

    fn outlives_holders(&self) -> bool {
        self.store.outlives_holders()
    }

    async fn note_trail(
        &self,
        owner: &Owner,
        id: TaskId,
        epoch: u64,
        step: Step,
        trail: Arc<str>,
    ) -> Result<(), StoreError> {
        let noted = self.store.note_trail(owner, id, epoch, step, Arc::clone(&trail)).await;
        if noted.is_ok() {
            self.notes.send_modify(|notes| notes.push(trail));
        }
        noted
    }

    async fn holders(&self) -> Result<Vec<Holder>, StoreError> {
        self.store.holders().await
    }

    async fn take_over(&self, from: &Holder, by: &Holder, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        let taken = self.store.take_over(from, by, at_most).await?;
        if !taken.is_empty() && take(&self.unanswered_takeovers) {
            return Err(StoreError::Unavailable("no answer".into()));
        }
        Ok(taken)
    }

    async fn take_strays(&self, by: &Holder, known: &Known<'_>, at_most: usize) -> Result<Vec<Orphan>, StoreError> {
        self.store.take_strays(by, known, at_most).await
    }

    fn lost_words(&self) -> u64 {
        self.store.lost_words()
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}
