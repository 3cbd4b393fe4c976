//! Gateways that share a store, each as a process of its own.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Clock;
use crate::demo::server::{Options, Server};
use crate::gateway::call::{Accept, Answer, Call};
use crate::gateway::policy::{TaskPolicy, ToolPolicy};
use crate::gateway::takeover::Lost;
use crate::gateway::{Gateway, Parts, Route, TenantLimits, owner, sample};
use crate::jobs::Jobs;
use crate::mcp::version::ProtocolVersion;
use crate::metrics::{Asked, Metrics};
use crate::task::store::faulty::FaultyStore;
use crate::task::store::memory::MemoryStore;
use crate::task::{Holder, Limits, Task, TaskId};
use crate::tenant::{Caller, Principal};

/// What several gateways share, and the server behind them.
pub(super) struct World {
    pub(super) upstream: Server,
    pub(super) store: Arc<FaultyStore>,
    pub(super) policy: TaskPolicy,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
}

impl World {
    pub(super) async fn new(options: Options, policy: TaskPolicy) -> Self {
        let clock = Clock::system();
        Self {
            upstream: Server::start_on_loopback(options).await.unwrap(),
            store: Arc::new(FaultyStore::over(MemoryStore::shared(clock))),
            policy,
            limits: sample::LIMITS,
            clock,
        }
    }

    /// A gateway in this runtime.
    pub(super) fn replica(&self, name: &str) -> Replica {
        let (jobs, clock) = (Jobs::default(), self.clock);
        let metrics = Arc::new(Metrics::new(&["r".into()], &["acme".into()]));
        let route = Route {
            tools: ToolPolicy { otherwise: self.policy.clone(), ..ToolPolicy::default() },
            ..sample::route("r", sample::server_at(&self.upstream.url()), &metrics)
        };
        let holder = Holder::begin(name);
        let limits = TenantLimits { default: self.limits, named: HashMap::new() };
        let parts = sample::parts(Arc::clone(&self.store) as _, holder.clone(), &metrics, clock, &jobs);
        let gateway = Gateway::new(Parts { limits, ..parts });
        let caller = Arc::new(Caller::of(Arc::new(Principal::of_api_key("acme".into(), "alice".into()))));
        Replica { gateway, route: Arc::new(route), holder, caller, metrics, jobs, process: None }
    }

    /// A call of a tool that is at work on the server, made on that gateway; its task.
    pub(super) async fn begin_on(&self, replica: &Replica, client: Client, tool: &str, arguments: Value) -> String {
        let id = replica.start(client, tool, arguments).await;
        self.upstream.until(|stats| stats.tool(tool).started == 1).await;
        id
    }

    /// A report of which one section is there, and whose stream can be taken up after that.
    pub(super) async fn report_on(&self, replica: &Replica, client: Client, sections: u32) -> String {
        let id = self.begin_on(replica, client, "report", json!({"sections": sections})).await;
        self.upstream.release();
        self.store.noted("\"event\":\"").await;
        id
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

    /// Posts a request of a client that takes no stream, whose place was just found; waits for the answer.
    pub(super) async fn placed(&self, session: &str, method: &str, params: Value, placing: TaskTrackerToken) {
        let body = json!({"jsonrpc": "2.0", "id": 8, "method": method, "params": params});
        let call = sample::call(&self.route, &self.caller, ProtocolVersion::LATEST_LEGACY, Some(session), &body);
        let mut call = Call { accept: Accept { json: true, events: false }, placing: Some(placing), ..call };
        drop(self.gateway.post(&mut call, &mut Asked::Unread).await);
    }

    async fn post(&self, version: ProtocolVersion, session: Option<&str>, body: Value) -> (Value, Option<String>) {
        let mut call = sample::call(&self.route, &self.caller, version, session, &body);
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
        let owner = owner(&self.caller.principal, &self.route);
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
