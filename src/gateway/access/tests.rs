//! One caller whose credential says something else each time: what its scopes and claims let it do with tools and with
//! the tasks that it has made before.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::*;
use crate::clock::Clock;
use crate::demo::server::{Options, Server};
use crate::gateway::call::{Accept, Answer, VersionHeader};
use crate::gateway::eras::{Eras, Setting};
use crate::gateway::policy::{Pattern, TaskPolicy, ToolPolicy};
use crate::gateway::pool::SessionPolicy;
use crate::gateway::rejection::Rejection;
use crate::gateway::rules::{Expression, Rule, Rules};
use crate::gateway::schemas::Schemas;
use crate::gateway::{Parts, TenantLimits, session};
use crate::jobs::Jobs;
use crate::mcp::version::ProtocolVersion;
use crate::metrics::{Asked, Metrics};
use crate::seal::Sealer;
use crate::task::store::memory::MemoryStore;
use crate::task::{Holder, Limits};
use crate::tenant::Scopes;
use crate::tenant::fair::FairQueue;
use crate::tenant::quota::{self, Rates};
use crate::upstream::http::{Config, Http};

const NEVER: &str = "00000000-0000-4000-8000-000000000000";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A gateway before a server with sessions; tasks are made at once. `ask` is for admins and two scopes, all else for one.
struct Fixture {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    upstream: Server,
    principal: Arc<Principal>,
    jobs: Jobs,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

impl Fixture {
    async fn start() -> Self {
        let upstream = Server::start_on_loopback(Options::default()).await.unwrap();
        let (jobs, clock) = (Jobs::default(), Clock::system());
        let metrics = Arc::new(Metrics::new(&["r".into()], &["acme".into()]));
        let rule = |pattern, allow: Option<&str>, scopes: &[&str]| Rule {
            pattern: Pattern::parse(pattern).unwrap(),
            allow: allow.map(|allow| Expression::parse(allow).unwrap()),
            scopes: scopes.iter().map(|scope| (*scope).into()).collect(),
        };
        let rules = vec![rule("ask", Some("claims.role == 'admin'"), &["mcp:ask"]), rule("*", None, &["mcp:tools"])];
        let otherwise = TaskPolicy { defer: Some(Duration::ZERO), ..TaskPolicy::default() };
        let http = Config {
            url: upstream.url().parse().unwrap(),
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
            tools: ToolPolicy { otherwise, ..ToolPolicy::default() },
            rules: Rules::new(rules),
            schemas: Schemas::default(),
            native: false,
            subjects: None,
            passes_authorization: false,
            sessions: SessionPolicy::Pooled,
            max_message: 1 << 20,
            metrics: Arc::clone(metrics.route("r")),
        };
        let limits = Limits { running_tasks: 64, queued_tasks: 64, kept_tasks: 64, kept_bytes: 1 << 20, creates: None };
        let gateway = Gateway::new(Parts {
            store: Arc::new(MemoryStore::new(clock)),
            holder: Holder::begin("test"),
            endings: None,
            sessions: session::Config { idle: Duration::from_secs(600), max: 64 },
            sealer: Sealer::random(),
            rates: Rates::new(quota::Limits::default(), []),
            limits: TenantLimits { default: limits, named: std::collections::HashMap::new() },
            metrics,
            keep_alive: Duration::from_secs(15),
            clock,
            jobs: jobs.clone(),
        });
        let principal = Arc::new(Principal::of_api_key("acme".into(), "alice".into()));
        Self { gateway, route: Arc::new(route), upstream, principal, jobs }
    }

    /// Always the same principal.
    fn caller(&self, scopes: &str, role: &str) -> Arc<Caller> {
        let scopes = Scopes::listed(scopes);
        let claims = Arc::new(json!({"role": role}));
        Arc::new(Caller { scopes, claims, ..Caller::of(Arc::clone(&self.principal)) })
    }

    fn call(&self, caller: &Arc<Caller>, version: ProtocolVersion, session: Option<&str>, body: &Value) -> Call {
        let mut headers = HeaderMap::new();
        if !version.has_sessions() {
            headers.insert("mcp-method", HeaderValue::from_str(body["method"].as_str().unwrap()).unwrap());
            if let Some(name) = ["name", "taskId"].iter().find_map(|key| body["params"][key].as_str()) {
                headers.insert("mcp-name", HeaderValue::from_str(name).unwrap());
            }
        }
        Call {
            route: Arc::clone(&self.route),
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

    async fn post(&self, mut call: Call) -> Result<Answer, Rejection> {
        self.gateway.post(&mut call, &mut Asked::Unread).await
    }

    async fn modern(&self, caller: &Arc<Caller>, method: &str, mut params: Value) -> Result<Answer, Rejection> {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}});
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        self.post(self.call(caller, ProtocolVersion::LATEST_MODERN, None, &body)).await
    }

    async fn legacy(
        &self,
        caller: &Arc<Caller>,
        session: Option<&str>,
        method: &str,
        params: Value,
    ) -> Result<Answer, Rejection> {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        self.post(self.call(caller, ProtocolVersion::LATEST_LEGACY, session, &body)).await
    }

    async fn session(&self, caller: &Arc<Caller>) -> String {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "0"}});
        match self.legacy(caller, None, "initialize", params).await {
            Ok(Answer::Json { session: Some(session), .. }) => session.to_string(),
            other => panic!("{other:?}"),
        }
    }

    /// A task of an admin's with all scopes that has asked its question.
    async fn asking(&self) -> String {
        let admin = self.caller("mcp:ask mcp:tools", "admin");
        let created = json_of(self.modern(&admin, "tools/call", json!({"name": "ask"})).await).await;
        let id = created["result"]["taskId"].as_str().unwrap().to_owned();
        loop {
            let task = json_of(self.modern(&admin, "tasks/get", json!({"taskId": id})).await).await;
            if task["result"]["status"] == "input_required" {
                return id;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Everything that can be done about a task but to list it.
    async fn all_on(&self, caller: &Arc<Caller>, session: &str, id: &str) -> Vec<Result<Answer, Rejection>> {
        let named = || json!({"taskId": id});
        let mut answers = Vec::new();
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            answers.push(self.legacy(caller, Some(session), method, named()).await);
        }
        let answer = json!({"jsonrpc": "2.0", "id": format!("tg.{id}.0"), "result": {"action": "decline"}});
        answers.push(self.post(self.call(caller, ProtocolVersion::LATEST_LEGACY, Some(session), &answer)).await);
        answers.push(self.modern(caller, "tasks/get", named()).await);
        answers.push(self.modern(caller, "tasks/update", json!({"taskId": id, "inputResponses": {}})).await);
        answers.push(self.modern(caller, "tasks/cancel", named()).await);
        answers
    }

    async fn listed(&self, caller: &Arc<Caller>, session: &str) -> Vec<String> {
        let list = json_of(self.legacy(caller, Some(session), "tasks/list", json!({})).await).await;
        let tasks = list["result"]["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
    }
}

async fn json_of(answer: Result<Answer, Rejection>) -> Value {
    let body = match answer {
        Ok(Answer::Json { message, .. }) => message,
        Ok(Answer::JsonBody(body)) => body.collect().await.unwrap().to_bytes(),
        other => panic!("{other:?}"),
    };
    serde_json::from_slice(&body).unwrap()
}

/// What a client can tell a refusal by.
#[track_caller]
fn refusal(answer: Result<Answer, Rejection>) -> (StatusCode, String) {
    let rejection = answer.expect_err("it is refused");
    (rejection.status(), String::from_utf8(rejection.to_message().to_vec()).unwrap())
}

#[track_caller]
fn assert_lacks(answer: Result<Answer, Rejection>, scopes: &str) {
    match answer {
        Err(rejection) => {
            assert!(matches!(&rejection.kind, Kind::Scopes(needed) if **needed == *scopes), "{rejection:?}");
            assert_eq!(rejection.status(), StatusCode::FORBIDDEN);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn scopes_are_asked_for_before_anything_is_made() {
    let fixture = Fixture::start().await;
    let poor = fixture.caller("mcp:tools", "admin");
    let session = fixture.session(&poor).await;
    let call = || json!({"name": "ask", "arguments": {}});
    assert_lacks(fixture.modern(&poor, "tools/call", call()).await, "mcp:ask mcp:tools");
    assert_lacks(fixture.legacy(&poor, Some(&session), "tools/call", call()).await, "mcp:ask mcp:tools");
    let task = json!({"name": "ask", "arguments": {}, "task": {}});
    assert_lacks(fixture.legacy(&poor, Some(&session), "tools/call", task).await, "mcp:ask mcp:tools");
    // Whoever may never call it is not sent for a scope.
    let other = fixture.caller("", "guest");
    let (status, message) = refusal(fixture.modern(&other, "tools/call", call()).await);
    assert!(status == StatusCode::OK && message.contains("Unknown tool"), "{message}");
    assert_lacks(fixture.modern(&other, "tools/call", json!({"name": "echo"})).await, "mcp:tools");
    assert_eq!(fixture.upstream.stats().method("tools/call"), 0);
    assert!(fixture.listed(&poor, &session).await.is_empty());
    // The list shows what a scope would make possible.
    let list = json_of(fixture.modern(&poor, "tools/list", json!({})).await).await.to_string();
    assert!(list.contains("\"name\":\"ask\"") && list.contains("\"name\":\"echo\""), "{list}");
    let list = json_of(fixture.modern(&other, "tools/list", json!({})).await).await.to_string();
    assert!(!list.contains("\"name\":\"ask\"") && list.contains("\"name\":\"echo\""), "{list}");
}

#[tokio::test]
async fn a_task_needs_the_scopes_of_its_tool_later_too() {
    let fixture = Fixture::start().await;
    let id = fixture.asking().await;
    let poor = fixture.caller("mcp:tools", "admin");
    let session = fixture.session(&poor).await;
    for answer in fixture.all_on(&poor, &session, &id).await {
        assert_lacks(answer, "mcp:ask mcp:tools");
    }
    let listening = json!({"notifications": {"taskIds": [id]}});
    assert_lacks(fixture.modern(&poor, "subscriptions/listen", listening).await, "mcp:ask mcp:tools");
    // It is known to be there.
    assert_eq!(fixture.listed(&poor, &session).await, [id.as_str()]);
    // Nothing has happened to it, and with the scopes all goes on.
    let admin = fixture.caller("mcp:ask mcp:tools other", "admin");
    let task = json_of(fixture.modern(&admin, "tasks/get", json!({"taskId": id})).await).await;
    assert_eq!(task["result"]["status"], "input_required");
    assert!(fixture.legacy(&admin, Some(&session), "tasks/cancel", json!({"taskId": id})).await.is_ok());
}

#[tokio::test]
async fn a_task_whose_tool_is_denied_now_is_as_unknown() {
    let fixture = Fixture::start().await;
    let id = fixture.asking().await;
    let guest = fixture.caller("mcp:ask mcp:tools", "guest");
    let session = fixture.session(&guest).await;
    let theirs = fixture.all_on(&guest, &session, &id).await;
    let never = fixture.all_on(&guest, &session, NEVER).await;
    for (theirs, never) in theirs.into_iter().zip(never) {
        assert_eq!(refusal(theirs), refusal(never));
    }
    assert!(fixture.listed(&guest, &session).await.is_empty());
    let mut acknowledged = Vec::new();
    for named in [id.as_str(), NEVER] {
        let answer =
            fixture.modern(&guest, "subscriptions/listen", json!({"notifications": {"taskIds": [named]}})).await;
        let Ok(Answer::Events(body)) = answer else { panic!("{answer:?}") };
        acknowledged.push(body.collect().await.unwrap().to_bytes());
    }
    assert_eq!(acknowledged[0], acknowledged[1]);
    let admin = fixture.caller("mcp:ask mcp:tools", "admin");
    assert_eq!(fixture.listed(&admin, &session).await, [id.as_str()]);
}

#[tokio::test]
async fn a_stream_is_taken_up_again_under_the_same_rules() {
    let fixture = Fixture::start().await;
    let id = fixture.asking().await;
    let admin = fixture.caller("mcp:ask mcp:tools", "admin");
    let session = fixture.session(&admin).await;
    let waiting = fixture.legacy(&admin, Some(&session), "tasks/result", json!({"taskId": id})).await;
    let Ok(Answer::Events(mut body)) = waiting else { panic!("{waiting:?}") };
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    let event = first.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    let take_up = async |caller: &Arc<Caller>, event: &str| {
        let body = json!({"method": "none"});
        let call = fixture.call(caller, ProtocolVersion::LATEST_LEGACY, Some(&session), &body);
        fixture.gateway.get(Call { last_event_id: Some(event.to_owned()), ..call }).await
    };
    assert_lacks(take_up(&fixture.caller("mcp:tools", "admin"), &event).await, "mcp:ask mcp:tools");
    let guest = fixture.caller("mcp:ask mcp:tools", "guest");
    assert_eq!(refusal(take_up(&guest, &event).await), refusal(take_up(&guest, "t.never").await));
    assert!(matches!(take_up(&admin, &event).await, Ok(Answer::Events(_))));
}
