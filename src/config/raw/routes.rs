//! Routes in a file: the server behind each, its tools, and how their calls become tasks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::text::{Defer, Duration, Secret};

/// An MCP endpoint in front of one server.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Route {
    /// Its name in logs and metrics: letters, digits, `_`, `-` and `.`, at most 64.
    #[schemars(extend("x-required" = true))]
    pub(crate) name: Option<String>,
    /// Its path; clients use it as the URL of the server.
    #[schemars(extend("x-required" = true, "examples" = ["/reports/mcp"]))]
    pub(crate) path: Option<String>,
    /// The server behind it: exactly one of `url`, `command` and `sse`.
    #[schemars(extend("x-required" = true))]
    pub(crate) upstream: Option<Upstream>,
    /// Which tools clients see and may call.
    pub(crate) tools: Tools,
    /// Who may call which tool, and with what. Every entry that fits a tool must hold: see
    /// [authorization](authorization.md).
    pub(crate) authorize: Vec<Authorize>,
    /// How calls become tasks.
    pub(crate) tasks: Tasks,
}

/// What must hold for the calls of the tools that match: at least one of `allow` and `scopes`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Authorize {
    /// Pattern of tool names: `*` is any characters, `?` one.
    #[serde(rename = "match")]
    pub(crate) pattern: String,
    /// A condition in CEL over `principal`, `claims`, `tenant`, `tool` and `arguments`, of at most 4096 bytes. To a caller for
    /// whom it does not hold, or can't be decided, the tool does not exist.
    #[schemars(extend("examples" = ["claims.role == 'admin'"]))]
    pub(crate) allow: Option<String>,
    /// Scopes that the caller's token must have; without them the answer is 403, which names all that the tool needs.
    /// Callers that have no tokens need none.
    pub(crate) scopes: Vec<String>,
}

impl Default for Authorize {
    fn default() -> Self {
        Self { pattern: "*".to_owned(), allow: None, scopes: Vec::new() }
    }
}

/// The server behind a route.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Upstream {
    /// A server that speaks streamable HTTP.
    #[schemars(extend("examples" = ["http://10.0.0.7:9000/mcp"]))]
    pub(crate) url: Option<String>,
    /// A server that speaks the HTTP with SSE of 2024-11-05.
    #[schemars(extend("x-later" = "the HTTP+SSE transport of 2024-11-05"))]
    pub(crate) sse: Option<String>,
    /// A server that speaks stdio: a program and its arguments. It is started for each session, or once for all clients
    /// where it is stateless, with taskgate's working directory and environment; only variables named `TASKGATE_*` are kept
    /// from it. So give the secrets of this file such names, and those that the server needs other ones.
    #[schemars(length(min = 1))]
    pub(crate) command: Option<Vec<String>>,
    /// Which protocol versions the server speaks.
    pub(crate) era: Era,
    /// Headers of every request to the server, such as taskgate's own credentials there.
    pub(crate) headers: BTreeMap<String, Secret>,
    /// Tokens for the server: taskgate's own, or one for each caller.
    pub(crate) oauth: Option<OAuth>,
    /// Hand the caller's `Authorization` to the server, as it is: only without `auth`, so that the token is the server's own
    /// affair. Tasks and sessions then belong to the very token; whoever shows a new one does not find them again.
    pub(crate) pass_authorization: bool,
    /// Certificates for the connection to an `https` server.
    pub(crate) tls: Option<UpstreamTls>,
    /// Calls in flight at the same time, held and plain together; more wait, fairly between tenants.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) max_in_flight: u64,
    /// How long a connection may take to open.
    pub(crate) connect_timeout: Duration,
    /// Plain calls that may wait; tasks wait under their tenant's limit.
    #[schemars(range(max = 1_000_000))]
    pub(crate) queue: u64,
    /// How sessions of a server of 2025-11-25 or older are shared by the calls of clients of 2026-07-28, which have none.
    /// Never between callers.
    pub(crate) sessions: UpstreamSessions,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            url: None,
            sse: None,
            command: None,
            era: Era::Auto,
            headers: BTreeMap::new(),
            oauth: None,
            pass_authorization: false,
            tls: None,
            max_in_flight: 64,
            connect_timeout: Duration::from("5s"),
            queue: 1_000,
            sessions: UpstreamSessions::Auto,
        }
    }
}

/// Which protocol versions a server speaks.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Era {
    /// Found out.
    Auto,
    /// 2025-11-25 and older.
    Legacy,
    /// 2026-07-28 and newer.
    Modern,
}

/// Tokens for a server, by taskgate's client credentials (RFC 6749, 4.4).
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OAuth {
    /// Where tokens are made: https, or http on a loopback address.
    #[schemars(extend("x-required" = true))]
    pub(crate) token_url: Option<String>,
    /// The name that taskgate has there.
    #[schemars(extend("x-required" = true))]
    pub(crate) client_id: Option<String>,
    /// The secret that goes with it.
    #[schemars(extend("x-required" = true))]
    pub(crate) client_secret: Option<Secret>,
    /// The scopes asked for, separated by spaces.
    pub(crate) scope: Option<String>,
    /// The resource asked for (RFC 8707). Without the key the server's URL; an empty text asks for none, for token endpoints
    /// that know no such parameter.
    pub(crate) resource: Option<String>,
    /// A token for each caller, in exchange for theirs (RFC 8693), instead of one for all: `true`, or
    /// `{audience: NAME}` for one that is for that service.
    /// Needs `auth.jwt` or `auth.introspection`; callers with API keys can't use the route.
    pub(crate) exchange: Option<Exchange>,
}

/// Whether callers' tokens are exchanged.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Exchange {
    /// Whether they are.
    Switch(bool),
    /// They are, for this service.
    For(ExchangeFor),
}

/// What exchanged tokens are for.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ExchangeFor {
    /// The name of the service that tokens are asked for (`audience` in RFC 8693, 2.1).
    #[schemars(extend("x-required" = true))]
    pub(crate) audience: Option<String>,
}

/// Certificates for the connection to a server.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UpstreamTls {
    /// Certificate authorities to trust instead of those that browsers trust, a PEM file.
    pub(crate) ca: Option<String>,
    /// taskgate's own certificate chain for servers that ask for one, a PEM file. Needs `key`; new ones are taken as for
    /// `listen.tls`.
    pub(crate) cert: Option<String>,
    /// Its key, a PEM file.
    pub(crate) key: Option<String>,
}

/// How sessions of a server are shared.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpstreamSessions {
    /// `pooled` for authenticated callers, else `per_call`.
    Auto,
    /// One for each call.
    PerCall,
    /// Idle ones are used again for calls of the same caller.
    Pooled,
    /// One for each caller, for servers whose tools remember earlier calls.
    Pinned,
}

/// Which tools clients see and may call. Patterns know `*` (any characters) and `?` (one).
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tools {
    /// Patterns of tools that are there.
    pub(crate) allow: Vec<String>,
    /// Patterns of tools that are not; they win over `allow`.
    pub(crate) deny: Vec<String>,
}

impl Default for Tools {
    fn default() -> Self {
        Self { allow: vec!["*".to_owned()], deny: Vec::new() }
    }
}

/// How calls become tasks.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tasks {
    /// Who makes the tasks.
    pub(crate) mode: Mode,
    /// Whether clients may, must or must not call a tool as a task.
    pub(crate) support: Support,
    /// For clients of protocol 2026-07-28 with the tasks extension: a call that takes longer becomes a task. `0s`: every
    /// call does, at once. `never`: none does for that reason. Where a question goes into the call (see `questions`), a call
    /// waits 5s at least, so that the question can come before the task.
    pub(crate) defer: Defer,
    /// For clients of protocol 2026-07-28 with the tasks extension: where a question goes that the server asks before the
    /// task exists. `in_task`: the question makes the call a task, which asks. `in_call`: the answer to the call asks. `auto`:
    /// in the call where the server speaks 2026-07-28, else in the task.
    pub(crate) questions: Questions,
    /// A call runs alone on its upstream session, so that questions which arrive there are surely its own.
    pub(crate) exclusive: bool,
    /// How long a call may take from the creation of its task, waiting and questions included; then it is cancelled
    /// upstream and its task fails.
    pub(crate) deadline: Duration,
    /// How long a question to the client may stay open.
    pub(crate) input_timeout: Duration,
    /// How long tasks are kept, from their creation.
    pub(crate) ttl: Ttl,
    /// How long a result can be read at least: no task is kept shorter than `deadline` + `retention`.
    pub(crate) retention: Duration,
    /// How often clients are asked to poll.
    pub(crate) poll_interval: Duration,
    /// What happens to a task whose process is gone, where the server may have seen the call and its answer can't be taken
    /// up (with `store: disk` and `redis`). `fail`: the task fails. `retry_idempotent`: a tool that lists `idempotentHint:
    /// true` or `readOnlyHint: true` for itself is called again; of any other the task fails.
    pub(crate) on_lost: OnLost,
    /// A text that the client's model gets at once, in place of the result (`model-immediate-response`).
    #[schemars(extend("x-null" = true))]
    pub(crate) immediate_response: Option<String>,
    /// Differences for single tools. The first entry that matches is used.
    pub(crate) tools: Vec<Override>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            mode: Mode::Add,
            support: Support::Optional,
            defer: Defer::from("500ms"),
            questions: Questions::Auto,
            exclusive: false,
            deadline: Duration::from("30m"),
            input_timeout: Duration::from("10m"),
            ttl: Ttl::default(),
            retention: Duration::from("10m"),
            poll_interval: Duration::from("1s"),
            on_lost: OnLost::Fail,
            immediate_response: None,
            tools: Vec::new(),
        }
    }
}

/// Who makes the tasks.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// taskgate does.
    Add,
    /// The server does, and its tasks pass untouched.
    Native,
}

/// Whether clients may, must or must not call a tool as a task.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Support {
    /// The client's choice.
    Optional,
    /// Only as a task.
    Required,
    /// Never as a task.
    Forbidden,
}

/// Where a question goes that the server asks before the task exists.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Questions {
    /// In the call where the server speaks 2026-07-28, else in the task.
    Auto,
    /// The call becomes a task that asks.
    InTask,
    /// The answer to the call asks.
    InCall,
}

/// What happens to a task whose process is gone.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnLost {
    /// It fails.
    Fail,
    /// It runs again where the tool itself says that this does no harm.
    RetryIdempotent,
}

/// How long tasks are kept.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ttl {
    /// When the client asks for nothing.
    pub(crate) default: Duration,
    /// The most a client gets.
    pub(crate) max: Duration,
}

impl Default for Ttl {
    fn default() -> Self {
        Self { default: Duration::from("1h"), max: Duration::from("24h") }
    }
}

/// Differences for the tools that match a pattern; what it doesn't set is the route's.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Override {
    /// Pattern of tool names: `*` is any characters, `?` one.
    #[serde(rename = "match")]
    #[schemars(extend("x-required" = true, "examples" = ["render_*"]))]
    pub(crate) pattern: Option<String>,
    /// As for the route.
    pub(crate) support: Option<Support>,
    /// As for the route.
    pub(crate) defer: Option<Defer>,
    /// As for the route.
    pub(crate) questions: Option<Questions>,
    /// As for the route.
    pub(crate) exclusive: Option<bool>,
    /// As for the route.
    pub(crate) deadline: Option<Duration>,
    /// As for the route.
    pub(crate) input_timeout: Option<Duration>,
    /// As for the route.
    pub(crate) ttl: TtlOverride,
    /// As for the route.
    pub(crate) retention: Option<Duration>,
    /// As for the route.
    pub(crate) poll_interval: Option<Duration>,
    /// As for the route.
    pub(crate) on_lost: Option<OnLost>,
    /// As for the route; null for none.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("x-null" = true))]
    pub(crate) immediate_response: Option<Option<String>>,
}

/// How long tasks of some tools are kept.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TtlOverride {
    /// As for the route.
    pub(crate) default: Option<Duration>,
    /// As for the route.
    pub(crate) max: Option<Duration>,
}

/// Tells a null from a key that is absent.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
