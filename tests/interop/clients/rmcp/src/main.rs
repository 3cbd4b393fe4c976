//! rmcp as a client of taskgate: in 2026-07-28 with the tasks extension, where the application drives the task itself, or
//! with its default handshake of 2025-11-25, in which it declares the extension all the same.
//!
//! It prints one JSON line for each check and exits 0 once all have run; whether one failed is read from the lines.

#![expect(deprecated, reason = "sampling is deprecated, and there for years")]

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities, ClientConfig,
    CreateMessageRequestParams, CreateMessageResult, DetailedTask, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, GetTaskParams, Implementation, JsonObject, ProtocolVersion, SamplingMessage,
    TaskPayload, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, ServiceExt};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

type Failure = Box<dyn Error + Send + Sync>;
type Outcome = Result<(), Failure>;
type Connection = RunningService<RoleClient, Answering>;

const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// How often to look for what may not come.
const WAITS: usize = 60;
const INVALID_PARAMS: i32 = -32602;
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// Answers every question, and counts them.
#[derive(Clone, Default)]
struct Answering {
    asked: Arc<AtomicUsize>,
}

impl ClientHandler for Answering {
    fn get_info(&self) -> ClientConfig {
        let declared = json!({"elicitation": {}, "sampling": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
        let capabilities: ClientCapabilities = serde_json::from_value(declared).unwrap_or_default();
        ClientConfig::new(capabilities, Implementation::new("interop-rmcp", "1.0.0"))
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }

    async fn create_message(
        &self,
        _params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(CreateMessageResult::new(SamplingMessage::assistant_text("short"), "none".to_owned()))
    }
}

/// What the command line and the catalogue of tools say.
struct Options {
    values: HashMap<String, String>,
    tools: Value,
}

impl Options {
    fn read() -> Result<Self, Failure> {
        let mut values = HashMap::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value =
                if name == "--extension" { String::new() } else { arguments.next().ok_or("a value is missing")? };
            values.insert(name.trim_start_matches('-').to_owned(), value);
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../servers/tools.json");
        let label = values.get("label").ok_or("--label is missing")?;
        let all: Value = serde_json::from_str(&std::fs::read_to_string(path)?.replace("LABEL", label))?;
        let own = &all[values.get("tools").ok_or("--tools is missing")?.as_str()];
        let mut tools = own["like"].as_str().map_or_else(|| json!({}), |like| all[like].clone());
        for (kind, call) in own.as_object().ok_or("no such server")? {
            tools[kind] = call.clone();
        }
        let without: &[&str] = match values.get("without").map(String::as_str) {
            Some("ask") => &["ask"],
            Some("questions") => &["ask", "ask_twice", "sample"],
            _ => &[],
        };
        for kind in without {
            tools[*kind] = Value::Null;
        }
        Ok(Self { values, tools })
    }

    fn modern(&self) -> bool {
        self.values.get("era").is_none_or(|era| era == "modern")
    }

    fn tool(&self, kind: &str) -> Option<&Value> {
        Some(&self.tools[kind]).filter(|call| !call.is_null())
    }

    /// Waits until this client's slow call has reached the server, by the record of what was sent there.
    async fn begun(&self) -> Outcome {
        let record = self.values.get("record").ok_or("--record is missing")?;
        while !std::fs::read_to_string(record)?.lines().any(|line| self.is_slow_call(line)) {
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Whether a line of the record is this client's slow call. Members may have any order, and it calls other tools under
    /// the same label.
    fn is_slow_call(&self, line: &str) -> bool {
        let slow = &self.tools["cancel"];
        line.contains(&format!("\"label\":{}", slow["arguments"]["label"]))
            && line.contains(&format!("\"name\":{}", slow["name"]))
    }

    /// Waits until the server has heard that this client's slow call is cancelled, by the same record: the client must not be
    /// gone before its notification has left. Where the server is told by the end of a stream, a while has to do.
    async fn cancelled(&self) -> Outcome {
        let record = self.values.get("record").ok_or("--record is missing")?;
        for _ in 0..WAITS {
            let sent = std::fs::read_to_string(record)?;
            let call = sent.lines().find(|line| self.is_slow_call(line)).unwrap_or("{}");
            let call: Value = serde_json::from_str(call).unwrap_or_default();
            let cancel = format!("\"requestId\":{}", call["message"]["id"]);
            if sent.lines().any(|line| line.contains(&cancel) && line.contains("notifications/cancelled")) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}

async fn connect(options: &Options, url: &str) -> Result<Connection, Failure> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    if let Some(key) = options.values.get("key") {
        config = config.auth_header(key);
    }
    let transport = StreamableHttpClientTransport::from_config(config);
    if !options.modern() {
        return Ok(Answering::default().serve(transport).await?);
    }
    let lifecycle =
        ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::V_2026_07_28], legacy_version: None };
    Ok(Answering::default().serve_with_lifecycle(transport, lifecycle).await?)
}

fn request(call: &Value) -> CallToolRequestParams {
    let name = call["name"].as_str().unwrap_or_default().to_owned();
    CallToolRequestParams::new(name).with_arguments(call["arguments"].as_object().cloned().unwrap_or_default())
}

/// A result without what belongs to the era that it came in.
fn bare(result: &Value) -> Value {
    let mut result = result.clone();
    if let Some(members) = result.as_object_mut() {
        members.remove("resultType");
        if let Some(meta) = members.get_mut("_meta").and_then(Value::as_object_mut) {
            meta.retain(|key, _| !key.starts_with("io.modelcontextprotocol/"));
            if meta.is_empty() {
                members.remove("_meta");
            }
        }
        // rmcp writes the default out.
        if members.get("isError") == Some(&Value::Bool(false)) {
            members.remove("isError");
        }
    }
    result
}

fn of(result: &CallToolResult) -> Result<Value, Failure> {
    Ok(bare(&serde_json::to_value(result)?))
}

/// The result in a task as the client would have read it, had it come by itself.
fn inlined(result: JsonObject) -> Result<Value, Failure> {
    of(&serde_json::from_value(Value::Object(result))?)
}

fn same(actual: &Value, expected: &Value) -> Outcome {
    if actual == expected {
        return Ok(());
    }
    let short = |value: &Value| value.to_string().chars().take(160).collect::<String>();
    Err(format!("got {} instead of {}", short(actual), short(expected)).into())
}

/// The id of the task that a call has become.
async fn start(there: &Connection, call: &Value) -> Result<String, Failure> {
    match there.call_tool_once(request(call)).await? {
        CallToolResponse::Task(handle) => Ok(handle.task.task_id),
        other => Err(format!("answered with {other:?}").into()),
    }
}

/// Drives a task to its end, answering what it asks.
async fn drive(there: &Connection, task_id: &str) -> Result<DetailedTask, Failure> {
    let mut answered: Vec<String> = Vec::new();
    loop {
        let task = there.get_task(GetTaskParams::new(task_id)).await?.task;
        match &task.payload {
            TaskPayload::Working => {}
            TaskPayload::InputRequired { input_requests } => {
                let mut answers = BTreeMap::new();
                for (key, question) in input_requests {
                    if answered.contains(key) {
                        return Err(format!("{key} was answered before").into());
                    }
                    answered.push(key.clone());
                    let is_sampling = serde_json::to_value(question)?["method"] == "sampling/createMessage";
                    let answer = if is_sampling {
                        json!({"role": "assistant", "model": "none", "content": {"type": "text", "text": "short"}})
                    } else {
                        json!({"action": "accept", "content": {"name": "Ada"}})
                    };
                    answers.insert(key.clone(), answer);
                }
                there.service().asked.fetch_add(answers.len(), Ordering::Relaxed);
                there.update_task(UpdateTaskParams::new(task_id, answers)).await?;
            }
            _ => return Ok(task),
        }
        sleep(POLL).await;
    }
}

/// Calls a tool, whatever way the server answers, and gives its result.
async fn settled(there: &Connection, call: &Value) -> Result<Value, Failure> {
    match there.call_tool_once(request(call)).await? {
        CallToolResponse::Complete(result) => of(&result),
        CallToolResponse::InputRequired(_) => of(&there.call_tool(request(call)).await?),
        CallToolResponse::Task(handle) => match drive(there, &handle.task.task_id).await?.payload {
            TaskPayload::Completed { result } => inlined(result),
            other => Err(format!("ended with {other:?}").into()),
        },
        other => Err(format!("answered with {other:?}").into()),
    }
}

async fn same_both_ways(there: &Connection, direct: &Connection, call: &Value, questions: usize) -> Outcome {
    there.service().asked.store(0, Ordering::Relaxed);
    let result = settled(there, call).await?;
    let asked = there.service().asked.load(Ordering::Relaxed);
    if asked != questions {
        return Err(format!("asked {asked} times").into());
    }
    same(&result, &of(&direct.call_tool(request(call)).await?)?)
}

fn code<T>(outcome: Result<T, ServiceError>) -> Option<i32> {
    match outcome {
        Err(ServiceError::McpError(error)) => Some(error.code.0),
        _ => None,
    }
}

fn refused<T>(outcome: Result<T, ServiceError>) -> Outcome {
    match code(outcome) {
        Some(INVALID_PARAMS) => Ok(()),
        other => Err(format!("expected error {INVALID_PARAMS}, got {other:?}").into()),
    }
}

/// Runs one check under a time limit and prints how it went.
async fn check(name: &str, body: impl Future<Output = Outcome>) {
    let outcome = timeout(LIMIT, body).await.unwrap_or_else(|_| Err("not done in time".into()));
    let line = match outcome {
        Ok(()) => json!({"check": name, "status": "passed"}),
        Err(failure) => json!({"check": name, "status": "failed", "detail": failure.to_string()}),
    };
    println!("{line}");
}

#[tokio::main]
async fn main() -> Outcome {
    let options = Options::read()?;
    let there = connect(&options, &options.values["url"]).await?;
    let direct = connect(&options, &options.values["direct"]).await?;

    check("list: the tools of the server", lists(&options, &there, &direct)).await;
    for call in options.tools["same"].as_array().ok_or("no tools to compare")? {
        let name = format!("the result equals the direct one: {}", call["name"].as_str().unwrap_or_default());
        check(&name, same_both_ways(&there, &direct, call, 0)).await;
    }
    for (kind, name, questions) in [
        ("ask", "a question is answered", 1),
        ("ask_twice", "two questions, one after the other", 2),
        ("sample", "a sampling request is answered", 1),
        ("fail", "isError comes as it is", 0),
    ] {
        if let Some(call) = options.tool(kind) {
            check(name, same_both_ways(&there, &direct, call, questions)).await;
        }
    }
    check("an unknown tool gives what the server gives", unknown_tool(&options, &there, &direct)).await;
    if options.tool("count").is_some() {
        check("a tool runs once", counts_once(&options, &there, &direct)).await;
    }
    if options.modern() {
        check_tasks(&options, &there, &direct).await;
    } else {
        check("twenty calls at once", twenty_calls(&options, &there, &direct)).await;
        check("a call that is given up is cancelled", gives_up(&options, &there)).await;
    }
    there.cancel().await?;
    direct.cancel().await?;
    Ok(())
}

async fn check_tasks(options: &Options, there: &Connection, direct: &Connection) {
    check("a quick call is answered plainly", async {
        // A machine that is busy may make it slow.
        for _ in 0..5 {
            if let CallToolResponse::Complete(_) = there.call_tool_once(request(&options.tools["same"][0])).await? {
                return Ok(());
            }
        }
        Err("always a task".into())
    })
    .await;
    check("a slow call becomes a task, with the result of the direct call", async {
        let task_id = start(there, &options.tools["steps"]).await?;
        let TaskPayload::Completed { result } = drive(there, &task_id).await?.payload else {
            return Err("it did not complete".into());
        };
        same(&inlined(result)?, &of(&direct.call_tool(request(&options.tools["steps"])).await?)?)
    })
    .await;
    check("a cancelled task stays cancelled", async {
        let task_id = start(there, &options.tools["cancel"]).await?;
        options.begun().await?;
        there.cancel_task(CancelTaskParams::new(&task_id)).await?;
        match drive(there, &task_id).await?.payload {
            TaskPayload::Cancelled => Ok(()),
            other => Err(format!("ended with {other:?}").into()),
        }
    })
    .await;
    check("twenty tasks at once", twenty_tasks(options, there, direct)).await;
    check("an unknown task is refused", async {
        refused(there.get_task(GetTaskParams::new(NOBODY)).await)?;
        refused(there.update_task(UpdateTaskParams::new(NOBODY, BTreeMap::new())).await)?;
        refused(there.cancel_task(CancelTaskParams::new(NOBODY)).await)
    })
    .await;
    check("a task outlives the client that made it", async {
        let first = connect(options, &options.values["url"]).await?;
        let task_id = start(&first, &options.tools["steps"]).await?;
        first.cancel().await?;
        match drive(there, &task_id).await?.payload {
            TaskPayload::Completed { .. } => Ok(()),
            other => Err(format!("ended with {other:?}").into()),
        }
    })
    .await;
}

async fn lists(_: &Options, there: &Connection, direct: &Connection) -> Outcome {
    let mut names = Vec::new();
    for client in [there, direct] {
        let listed = client.list_all_tools().await?;
        let all = listed.into_iter().map(|tool| Value::from(tool.name.into_owned()));
        names.push(all.collect::<Value>());
    }
    same(&names[0], &names[1])
}

async fn unknown_tool(options: &Options, there: &Connection, direct: &Connection) -> Outcome {
    let mut outcomes = Vec::new();
    for client in [there, direct] {
        let outcome = client.call_tool(request(&options.tools["unknown"])).await;
        outcomes.push(match outcome {
            Ok(result) => of(&result)?,
            refusal => json!(code(refusal)),
        });
    }
    same(&outcomes[0], &outcomes[1])
}

async fn counts_once(options: &Options, there: &Connection, direct: &Connection) -> Outcome {
    let mut counted = Vec::new();
    for client in [there, direct] {
        counted.push(settled(client, &options.tools["count"]).await?["content"][0]["text"].clone());
    }
    same(&json!(counted), &json!(["1", "2"]))
}

async fn twenty_tasks(options: &Options, there: &Connection, direct: &Connection) -> Outcome {
    let call = &options.tools["steps"];
    let straight = of(&direct.call_tool(request(call)).await?)?;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(start(there, call).await?);
    }
    for task_id in &ids {
        let TaskPayload::Completed { result } = drive(there, task_id).await?.payload else {
            return Err("one did not complete".into());
        };
        same(&inlined(result)?, &straight)?;
    }
    ids.sort();
    ids.dedup();
    if ids.len() == 20 { Ok(()) } else { Err("task ids repeat".into()) }
}

async fn twenty_calls(options: &Options, there: &Connection, direct: &Connection) -> Outcome {
    let call = &options.tools["steps"];
    let straight = of(&direct.call_tool(request(call)).await?)?;
    let mut running = Vec::new();
    for _ in 0..20 {
        let (peer, call) = (there.peer().clone(), request(call));
        running.push(tokio::spawn(async move { peer.call_tool(call).await }));
    }
    for one in running {
        same(&of(&one.await??)?, &straight)?;
    }
    Ok(())
}

async fn gives_up(options: &Options, there: &Connection) -> Outcome {
    let (peer, call) = (there.peer().clone(), request(&options.tools["cancel"]));
    let running = tokio::spawn(async move { peer.call_tool(call).await });
    options.begun().await?;
    running.abort();
    options.cancelled().await
}
