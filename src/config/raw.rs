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

mod auth;
mod routes;
mod schema;
mod text;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use self::{
    auth::{ApiKey, Auth, Introspection, Jwt},
    routes::{
        Authorize, Era, Exchange, Mode, OAuth, OnLost, Override, Questions, Route, Support, Tasks, Upstream,
        UpstreamSessions, UpstreamTls,
    },
    schema::schema,
    text::{Defer, Duration, Rate, Secret, SecretFile, Size},
};

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
    /// Certificate and key for TLS 1.2 and 1.3. New ones in the same files are taken within 10 seconds, and on SIGHUP at once.
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
    /// Proxies whose `X-Forwarded-For` and `Forwarded` are believed, as networks such as `10.0.0.0/8` or as addresses. The
    /// client's address, which is only logged, is then the last one that is not a proxy's.
    #[schemars(extend("examples" = [["10.0.0.0/8", "fd00::/8"]]))]
    pub(super) trusted_proxies: Vec<String>,
    /// The biggest request body. Also the biggest message of a server that has to be read whole, the biggest result of a
    /// task, and the longest line of a server that speaks stdio.
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
    pub(super) kind: StoreKind,
    /// The folder of a `disk` store, made for this user alone where there is none.
    pub(super) path: Option<String>,
    /// The server of a `redis` store: `redis://USER:PASSWORD@HOST:PORT/DB`, `redis-sentinel://HOST,HOST/PRIMARY` or
    /// `redis-cluster://HOST,HOST`; with `rediss` for TLS.
    pub(super) url: Option<Secret>,
    /// What the keys of a `redis` store start with.
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
    /// In a file in a folder, of this process alone; a restart finds what was acknowledged.
    Disk,
    /// In a Redis or Valkey server.
    Redis,
}

/// Bounds of `replica.lease`.
pub(super) const SHORTEST_LEASE: std::time::Duration = std::time::Duration::from_secs(1);
pub(super) const LONGEST_LEASE: std::time::Duration = std::time::Duration::from_secs(300);

/// This process among several that share a store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Replica {
    /// Its name; `auto` makes one.
    pub(super) id: String,
    /// How long the others wait before they take over what it held; 1s to 5m.
    pub(super) lease: Duration,
    /// IP address and port where the others reach it; it is listened on for them alone.
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
    /// 32 bytes in base64, made for example with `openssl rand -base64 32`. Needed with a `redis` store, where all replicas have the
    /// same. With it sessions can go on after a crash; without it a random key is made at start, so that every restart ends them; a
    /// `disk` store keeps one in its folder. With a `memory` store a clean stop ends sessions in any case.
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
    /// How many sessions may be open. Where callers are authenticated, one tenant has half of them at most.
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
    /// The tenant's share where several wait for places at a server (`max_in_flight`): a tenant of weight 3 gets three of them
    /// for each one that a tenant of weight 1 gets, held and plain calls together. Places that nobody else wants are
    /// anybody's.
    #[schemars(range(min = 1, max = 100))]
    pub(super) weight: u32,
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
    /// Requests other than polls, counted by each process for itself. Off unless set.
    pub(super) requests: Option<Limit>,
    /// Tasks created, whatever makes them; what is refused is not counted. Off unless set.
    pub(super) creates: Option<Limit>,
    /// `tasks/get`, `tasks/list` and `tasks/result`, counted by each process for itself: over the limit a poll is delayed,
    /// then refused. Off unless set.
    pub(super) polls: Option<Limit>,
}

impl Default for DefaultTenant {
    fn default() -> Self {
        Self {
            weight: 1,
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
    #[schemars(range(min = 1, max = 100))]
    pub(super) weight: Option<u32>,
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
