//! What a configuration file may contain, key by key.
//!
//! The doc comments here are what users read: they become the descriptions in `config/taskgate.schema.json` and the
//! tables in `docs/configuration.md`, and the `Default`s are the defaults in both. Values keep the spelling of the file
//! (a duration is still text); their meaning is checked by `build`. Nothing here is `Debug`, so nothing here can leak a
//! secret.
//!
//! `x-later` marks a key whose feature comes in a later version: the file may name it, but only with a value of
//! `x-accepted` (without that list: its default). `x-required` and `x-null` mark keys that must be there and that may be
//! null; they are turned into plain JSON Schema.

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The configuration of taskgate.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "taskgate configuration")]
pub(super) struct File {
    /// Where clients connect.
    pub(super) listen: Listen,
    /// The operator's address: `/livez`, `/readyz` and `/metrics`.
    pub(super) admin: Admin,
    /// Where tasks are kept.
    pub(super) store: Store,
    /// This process among several that share a store.
    #[schemars(extend("x-later" = "sharing work between replicas"))]
    pub(super) replica: Option<Replica>,
    /// Keys that seal session ids and cursors.
    pub(super) secrets: Secrets,
    /// Sessions of clients.
    pub(super) sessions: Sessions,
    /// What happens when the process is told to stop.
    pub(super) shutdown: Shutdown,
    /// How callers prove who they are. Without this section callers are not authenticated.
    pub(super) auth: Option<Auth>,
    /// Quotas. `default` applies to every tenant that has no entry of its own.
    pub(super) tenants: Tenants,
    /// The MCP endpoints, each in front of one server. At least one.
    #[schemars(extend("x-required" = true), length(min = 1))]
    pub(super) routes: Vec<Route>,
}

/// Where clients connect.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Listen {
    /// IP address and port.
    #[schemars(extend("examples" = ["127.0.0.1:8080"]))]
    pub(super) address: String,
    /// Certificate and key for TLS.
    #[schemars(extend("x-later" = "TLS towards clients"))]
    pub(super) tls: Option<ListenTls>,
    /// The base URL as clients see it, when that differs from the address (a load balancer, TLS in front).
    #[schemars(extend("examples" = ["https://mcp.example.com"]))]
    pub(super) public_url: Option<String>,
    /// Web origins that may call. A request with an `Origin` that is not listed is refused (403); without the key no
    /// foreign origin is accepted.
    pub(super) allowed_origins: Option<Vec<String>>,
    /// Host names that requests may be addressed to, with or without a port. Without the key: the loopback names when
    /// the address is loopback, else any.
    pub(super) allowed_hosts: Option<Vec<String>>,
    /// Proxies whose `X-Forwarded-For` and `Forwarded` are believed, as networks.
    #[schemars(extend("x-later" = "believing forwarded addresses"))]
    pub(super) trusted_proxies: Vec<String>,
    /// The biggest request body.
    pub(super) max_body: Size,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:8080".to_owned(),
            tls: None,
            public_url: None,
            allowed_origins: None,
            allowed_hosts: None,
            trusted_proxies: Vec::new(),
            max_body: Size::from("16MiB"),
        }
    }
}

/// A certificate and its key.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListenTls {
    /// Certificate chain, a PEM file.
    #[schemars(extend("x-required" = true))]
    pub(super) cert: Option<String>,
    /// Private key, a PEM file.
    #[schemars(extend("x-required" = true))]
    pub(super) key: Option<String>,
}

/// The operator's address.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Admin {
    /// IP address and port.
    #[schemars(extend("examples" = ["127.0.0.1:9090"]))]
    pub(super) address: String,
    /// Bearer token that the address asks for. Required unless the address is loopback.
    pub(super) token: Option<Secret>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: "127.0.0.1:9090".to_owned(), token: None }
    }
}

/// Where tasks are kept.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Store {
    /// The kind of store.
    #[schemars(extend("x-later" = "a store that outlives the process"))]
    pub(super) kind: StoreKind,
    /// The folder of a `disk` store.
    #[schemars(extend("x-later" = "a store on disk"))]
    pub(super) path: Option<String>,
    /// The server of a `redis` store.
    #[schemars(extend("x-later" = "a store in Redis"))]
    pub(super) url: Option<Secret>,
    /// What the keys of a `redis` store start with.
    #[schemars(extend("x-later" = "a store in Redis"))]
    pub(super) prefix: String,
}

impl Default for Store {
    fn default() -> Self {
        Self { kind: StoreKind::Memory, path: None, url: None, prefix: "taskgate".to_owned() }
    }
}

/// The kind of store.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoreKind {
    /// In the process; a restart forgets every task.
    Memory,
    /// In a folder.
    Disk,
    /// In a Redis or Valkey server.
    Redis,
}

/// This process among several that share a store.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Replica {
    /// Its name; `auto` makes one.
    pub(super) id: String,
    /// How long the others wait before they take over what it held.
    pub(super) lease: Duration,
    /// Where the others reach it.
    pub(super) address: Option<String>,
}

impl Default for Replica {
    fn default() -> Self {
        Self { id: "auto".to_owned(), lease: Duration::from("10s"), address: None }
    }
}

/// Keys that seal session ids and cursors.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Secrets {
    /// 32 bytes in base64, made for example with `openssl rand -base64 32`. Without it a random key is made at start, so
    /// that a restart ends every session.
    pub(super) key: Option<Secret>,
    /// Earlier keys: what they sealed can still be opened.
    pub(super) previous: Vec<Secret>,
}

/// Sessions of clients.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Sessions {
    /// A session without a request, an open stream or an unfinished task for this long is ended.
    pub(super) idle: Duration,
    /// How many sessions may be open.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) max: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { idle: Duration::from("30m"), max: 10_000 }
    }
}

/// What happens when the process is told to stop.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Shutdown {
    /// How long held calls may go on; what is left is cancelled upstream and its tasks fail.
    pub(super) drain: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain: Duration::from("30s") }
    }
}

/// How callers prove who they are.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Auth {
    /// Keys that callers send as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
    pub(super) api_keys: Vec<ApiKey>,
    /// Issuers whose tokens are accepted.
    #[schemars(extend("x-later" = "authentication by JWT"))]
    pub(super) jwt: Vec<Jwt>,
    /// A server that is asked about tokens (RFC 7662).
    #[schemars(extend("x-later" = "token introspection"))]
    pub(super) introspection: Option<Introspection>,
    /// Scopes that every token must have.
    #[schemars(extend("x-later" = "requiring scopes"))]
    pub(super) required_scopes: Vec<String>,
}

/// One caller with a fixed key.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ApiKey {
    /// SHA-256 of the key, 64 hex digits: `printf %s "$KEY" | sha256sum`. The key itself never stands in the file.
    #[schemars(extend("x-required" = true), regex(pattern = r"^[0-9A-Fa-f]{64}$|\$\{"))]
    pub(super) sha256: Option<String>,
    /// The tenant whose quotas the caller uses.
    pub(super) tenant: String,
    /// Who the caller is; tasks belong to tenant and subject.
    #[schemars(extend("x-required" = true))]
    pub(super) subject: Option<String>,
}

impl Default for ApiKey {
    fn default() -> Self {
        Self { sha256: None, tenant: "default".to_owned(), subject: None }
    }
}

/// An issuer whose tokens are accepted.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Jwt {
    /// The issuer; its discovery document names the keys unless `jwks_url` or `jwks_file` does.
    #[schemars(extend("x-required" = true))]
    pub(super) issuer: Option<String>,
    /// Where its keys are.
    pub(super) jwks_url: Option<String>,
    /// A file with its keys.
    pub(super) jwks_file: Option<String>,
    /// Accepted audiences. Without the key: the route's public URL.
    pub(super) audiences: Option<Vec<String>>,
    /// Accepted signature algorithms.
    pub(super) algorithms: Vec<String>,
    /// The claim that names the tenant.
    pub(super) tenant_claim: Option<String>,
    /// How far clocks may differ.
    pub(super) leeway: Duration,
}

impl Default for Jwt {
    fn default() -> Self {
        Self {
            issuer: None,
            jwks_url: None,
            jwks_file: None,
            audiences: None,
            algorithms: ["RS256", "ES256", "EdDSA"].map(str::to_owned).to_vec(),
            tenant_claim: None,
            leeway: Duration::from("30s"),
        }
    }
}

/// A server that is asked about tokens.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Introspection {
    /// Its endpoint.
    #[schemars(extend("x-required" = true))]
    pub(super) url: Option<String>,
    /// The name that taskgate has there.
    pub(super) client_id: Option<String>,
    /// The secret that goes with it.
    pub(super) client_secret: Option<Secret>,
}

/// Quotas by tenant.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Tenants {
    /// Quotas of every tenant that has no entry, and what the entries inherit.
    pub(super) default: DefaultTenant,
    /// Quotas of one tenant; what it doesn't set comes from `default`.
    #[serde(flatten)]
    pub(super) named: BTreeMap<String, Tenant>,
}

/// Quotas of every tenant that has no entry, and what the entries inherit.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DefaultTenant {
    /// Tasks whose call is held at the same time; more wait in the queue.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) running_tasks: u64,
    /// Tasks accepted that wait for a place.
    #[schemars(range(max = 10_000_000))]
    pub(super) queued_tasks: u64,
    /// Tasks in any state, until their ttl ends.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(super) kept_tasks: u64,
    /// Bytes of results kept.
    pub(super) kept_bytes: Size,
    /// Requests other than polls. Off unless set.
    pub(super) requests: Option<Limit>,
    /// Tasks created. Off unless set.
    pub(super) creates: Option<Limit>,
    /// `tasks/get`, `tasks/list` and `tasks/result`: over the limit a poll is delayed, then refused. Off unless set.
    pub(super) polls: Option<Limit>,
}

impl Default for DefaultTenant {
    fn default() -> Self {
        Self {
            running_tasks: 50,
            queued_tasks: 500,
            kept_tasks: 100_000,
            kept_bytes: Size::from("512MiB"),
            requests: None,
            creates: None,
            polls: None,
        }
    }
}

/// Quotas of one tenant.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tenant {
    /// As in `default`.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub(super) running_tasks: Option<u64>,
    /// As in `default`.
    #[schemars(range(max = 10_000_000))]
    pub(super) queued_tasks: Option<u64>,
    /// As in `default`.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(super) kept_tasks: Option<u64>,
    /// As in `default`.
    pub(super) kept_bytes: Option<Size>,
    /// As in `default`.
    pub(super) requests: Option<Limit>,
    /// As in `default`.
    pub(super) creates: Option<Limit>,
    /// As in `default`.
    pub(super) polls: Option<Limit>,
}

/// A limit on how often something may happen.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limit {
    /// How often, in the long run.
    #[schemars(extend("x-required" = true))]
    pub(super) rate: Option<Rate>,
    /// How many at once. Without the key: the number in `rate`.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) burst: Option<u32>,
}

/// An MCP endpoint in front of one server.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Route {
    /// Its name in logs and metrics: letters, digits, `_`, `-` and `.`, at most 64.
    #[schemars(extend("x-required" = true))]
    pub(super) name: Option<String>,
    /// Its path; clients use it as the URL of the server.
    #[schemars(extend("x-required" = true, "examples" = ["/reports/mcp"]))]
    pub(super) path: Option<String>,
    /// The server behind it: exactly one of `url`, `command` and `sse`.
    #[schemars(extend("x-required" = true))]
    pub(super) upstream: Option<Upstream>,
    /// Which tools clients see and may call.
    pub(super) tools: Tools,
    /// How calls become tasks.
    pub(super) tasks: Tasks,
}

/// The server behind a route.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Upstream {
    /// A server that speaks streamable HTTP.
    #[schemars(extend("examples" = ["http://10.0.0.7:9000/mcp"]))]
    pub(super) url: Option<String>,
    /// A server that speaks the HTTP with SSE of 2024-11-05.
    #[schemars(extend("x-later" = "the HTTP+SSE transport of 2024-11-05"))]
    pub(super) sse: Option<String>,
    /// A server that speaks stdio: a program and its arguments. It is started for each session.
    #[schemars(length(min = 1))]
    pub(super) command: Option<Vec<String>>,
    /// Which protocol versions the server speaks.
    #[schemars(extend("x-later" = "an upstream of protocol 2026-07-28", "x-accepted" = ["auto", "legacy"]))]
    pub(super) era: Era,
    /// Headers of every request to the server, such as taskgate's own credentials there.
    pub(super) headers: BTreeMap<String, Secret>,
    /// Client credentials for the server.
    #[schemars(extend("x-later" = "OAuth towards upstreams"))]
    pub(super) oauth: Option<OAuth>,
    /// Hand the caller's `Authorization` to the server.
    #[schemars(extend("x-later" = "passing `Authorization` on"))]
    pub(super) pass_authorization: bool,
    /// Certificates for the connection to the server.
    #[schemars(extend("x-later" = "choosing certificates for upstreams"))]
    pub(super) tls: Option<UpstreamTls>,
    /// Calls in flight at the same time, held and plain together; more wait, fairly between tenants.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(super) max_in_flight: u64,
    /// How long a connection may take to open.
    pub(super) connect_timeout: Duration,
    /// Plain calls that may wait; tasks wait under their tenant's limit.
    #[schemars(range(max = 1_000_000))]
    pub(super) queue: u64,
    /// How sessions of the server are shared by clients of the stateless protocol.
    #[schemars(extend("x-later" = "sharing upstream sessions"))]
    pub(super) sessions: UpstreamSessions,
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
pub(super) enum Era {
    /// Found out.
    Auto,
    /// 2025-11-25 and older.
    Legacy,
    /// 2026-07-28 and newer.
    Modern,
}

/// Client credentials for a server.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OAuth {
    /// Where tokens are made.
    #[schemars(extend("x-required" = true))]
    pub(super) token_url: Option<String>,
    /// The name that taskgate has there.
    #[schemars(extend("x-required" = true))]
    pub(super) client_id: Option<String>,
    /// The secret that goes with it.
    #[schemars(extend("x-required" = true))]
    pub(super) client_secret: Option<Secret>,
    /// The scope asked for.
    pub(super) scope: Option<String>,
    /// The resource asked for (RFC 8707).
    pub(super) resource: Option<String>,
}

/// Certificates for the connection to a server.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UpstreamTls {
    /// Certificate authorities, a PEM file.
    pub(super) ca: Option<String>,
    /// taskgate's own certificate, a PEM file.
    pub(super) cert: Option<String>,
    /// Its key, a PEM file.
    pub(super) key: Option<String>,
}

/// How sessions of a server are shared.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum UpstreamSessions {
    /// Pooled for authenticated callers, else one for each call.
    Auto,
    /// One for each call.
    PerCall,
    /// Shared by callers.
    Pooled,
    /// One for each caller.
    Pinned,
}

/// Which tools clients see and may call. Patterns know `*` (any characters) and `?` (one).
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tools {
    /// Patterns of tools that are there.
    pub(super) allow: Vec<String>,
    /// Patterns of tools that are not; they win over `allow`.
    pub(super) deny: Vec<String>,
}

impl Default for Tools {
    fn default() -> Self {
        Self { allow: vec!["*".to_owned()], deny: Vec::new() }
    }
}

/// How calls become tasks.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tasks {
    /// Who makes the tasks.
    #[schemars(extend("x-later" = "leaving tasks to the upstream"))]
    pub(super) mode: Mode,
    /// Whether clients may, must or must not call a tool as a task.
    pub(super) support: Support,
    /// For clients of protocol 2026-07-28: a call that takes longer becomes a task.
    #[schemars(extend("x-later" = "protocol 2026-07-28"))]
    pub(super) defer: Defer,
    /// For clients of protocol 2026-07-28: where a question goes that the server asks before the task exists.
    #[schemars(extend("x-later" = "protocol 2026-07-28"))]
    pub(super) questions: Questions,
    /// A call runs alone on its upstream session, so that questions which arrive there are surely its own.
    pub(super) exclusive: bool,
    /// How long a call may take from the creation of its task, waiting and questions included; then it is cancelled
    /// upstream and its task fails.
    pub(super) deadline: Duration,
    /// How long a question to the client may stay open.
    pub(super) input_timeout: Duration,
    /// How long tasks are kept, from their creation.
    pub(super) ttl: Ttl,
    /// How long a result can be read at least: no task is kept shorter than `deadline` + `retention`.
    pub(super) retention: Duration,
    /// How often clients are asked to poll.
    pub(super) poll_interval: Duration,
    /// What happens to a task whose process is gone.
    #[schemars(extend("x-later" = "running a lost task again"))]
    pub(super) on_lost: OnLost,
    /// A text that the client's model gets at once, in place of the result (`model-immediate-response`).
    #[schemars(extend("x-null" = true))]
    pub(super) immediate_response: Option<String>,
    /// Differences for single tools. The first entry that matches is used.
    pub(super) tools: Vec<Override>,
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
pub(super) enum Mode {
    /// taskgate does.
    Add,
    /// The server does, and its tasks pass untouched.
    Native,
}

/// Whether clients may, must or must not call a tool as a task.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Support {
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
pub(super) enum Questions {
    /// As the server's protocol suggests.
    Auto,
    /// The call becomes a task that asks.
    InTask,
    /// The answer to the call asks.
    InCall,
}

/// What happens to a task whose process is gone.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnLost {
    /// It fails.
    Fail,
    /// It runs again when the tool says that this does no harm.
    RetryIdempotent,
}

/// How long tasks are kept.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Ttl {
    /// When the client asks for nothing.
    pub(super) default: Duration,
    /// The most a client gets.
    pub(super) max: Duration,
}

impl Default for Ttl {
    fn default() -> Self {
        Self { default: Duration::from("1h"), max: Duration::from("24h") }
    }
}

/// Differences for the tools that match a pattern; what it doesn't set is the route's.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Override {
    /// Pattern of tool names: `*` is any characters, `?` one.
    #[serde(rename = "match")]
    #[schemars(extend("x-required" = true, "examples" = ["render_*"]))]
    pub(super) pattern: Option<String>,
    /// As for the route.
    pub(super) support: Option<Support>,
    /// As for the route.
    #[schemars(extend("x-later" = "protocol 2026-07-28", "x-accepted" = ["500ms"]))]
    pub(super) defer: Option<Defer>,
    /// As for the route.
    #[schemars(extend("x-later" = "protocol 2026-07-28", "x-accepted" = ["auto"]))]
    pub(super) questions: Option<Questions>,
    /// As for the route.
    pub(super) exclusive: Option<bool>,
    /// As for the route.
    pub(super) deadline: Option<Duration>,
    /// As for the route.
    pub(super) input_timeout: Option<Duration>,
    /// As for the route.
    pub(super) ttl: TtlOverride,
    /// As for the route.
    pub(super) retention: Option<Duration>,
    /// As for the route.
    pub(super) poll_interval: Option<Duration>,
    /// As for the route.
    #[schemars(extend("x-later" = "running a lost task again", "x-accepted" = ["fail"]))]
    pub(super) on_lost: Option<OnLost>,
    /// As for the route; null for none.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("x-null" = true))]
    pub(super) immediate_response: Option<Option<String>>,
}

/// How long tasks of some tools are kept.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TtlOverride {
    /// As for the route.
    pub(super) default: Option<Duration>,
    /// As for the route.
    pub(super) max: Option<Duration>,
}

/// Tells a null from a key that is absent.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A text that never stands in logs: in the file itself, or in a file that it names.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Secret {
    /// The text, usually `${NAME}` from the environment.
    Text(String),
    /// The name of a file that has the text; a line break at its end is dropped.
    File(SecretFile),
}

/// The name of a file that has a secret.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SecretFile {
    /// Path, relative to the configuration file.
    pub(super) file: String,
}

/// A text with a form of its own, which `units` reads. The patterns let `${NAME}` pass, for editors that know the schema.
macro_rules! texts {
    ($($name:ident $type:tt $pattern:literal $example:literal $description:literal;)+) => {$(
        #[doc = $description]
        #[derive(Clone, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(super) struct $name(pub(super) String);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": $type,
                    "pattern": $pattern,
                    "examples": [$example],
                    "description": $description,
                })
            }
        }
    )+};
}

texts! {
    Duration "string" r"^[0-9]+(ms|s|m|h)$|\$\{" "30s" "A number with `ms`, `s`, `m` or `h`.";
    Defer "string" r"^([0-9]+(ms|s|m|h)|never)$|\$\{" "500ms" "A duration, or `never`.";
    Size ["string", "integer"] r"^[0-9]+(B|KiB|MiB|GiB)?$|\$\{" "16MiB" "Bytes, or a number with `KiB`, `MiB` or `GiB`.";
    Rate "string" r"^[0-9]+/[sm]$|\$\{" "100/s" "A number for each second (`/s`) or minute (`/m`).";
}

/// The JSON Schema of a file, which is also what `shape` checks files against.
pub(super) fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let mut schema = schemars::schema_for!(File).to_value();
        tidy(&mut schema);
        schema
    });
    &SCHEMA
}

/// Takes out what the derive writes and a file may not: null for every optional key, and defaults of whole sections,
/// which only repeat those of their keys.
fn tidy(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    if members.remove("x-null").is_none() {
        without_null(members);
        members.retain(|key, value| key != "default" || !(value.is_null() || value.is_object()));
    }
    members.remove("format");
    if let Some(Value::String(description)) = members.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    let required = members.get_mut("properties").map(required_keys).unwrap_or_default();
    if !required.is_empty() {
        members.insert("required".to_owned(), required.into());
    }
    for (key, value) in members {
        match (key.as_str(), value) {
            ("properties" | "$defs", Value::Object(schemas)) => schemas.values_mut().for_each(tidy),
            ("anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter_mut().for_each(tidy),
            ("items" | "additionalProperties", schema) => tidy(schema),
            _ => {}
        }
    }
}

/// The keys marked `x-required`; the marks are taken off, and with them the defaults that stand in for a value.
fn required_keys(properties: &mut Value) -> Vec<String> {
    let marked = properties.as_object_mut().into_iter().flatten().filter_map(|(key, schema)| {
        let schema = schema.as_object_mut()?;
        schema.remove("x-required")?;
        schema.remove("default");
        Some(key.clone())
    });
    marked.collect()
}

fn without_null(members: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(alternatives)) = members.get_mut("anyOf") else { return };
    alternatives.retain(|alternative| alternative.get("type").is_none_or(|kind| kind != "null"));
    if let [Value::Object(only)] = alternatives.as_slice() {
        let only = only.clone();
        members.remove("anyOf");
        members.extend(only);
    }
}
