//! What a configuration means, as plain data that has been checked.
//!
//! The modules own their `Config`s; `Settings` is what those are made from, or holds them where the
//! file says the same. Its `Debug` shows no secret.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue, Uri};
use ipnet::IpNet;

use super::{
    problem::Problem,
    secret::{SealKey, Secret},
    units::{ByteSize, RateLimit},
};
use crate::auth::algorithm::Algorithm;
use crate::auth::keys::Source;
use crate::gateway::eras;
use crate::gateway::policy::ToolPolicy;
use crate::gateway::pool::SessionPolicy;
use crate::gateway::rules::Rule;
use crate::tls::Files;
use crate::upstream::credentials;

/// Everything that a file, or the command line in its place, says.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where clients connect.
    pub listen: ListenSettings,
    /// The operator's address.
    pub admin: AdminSettings,
    /// Where tasks are kept.
    pub store: StoreSettings,
    /// This process among those that share the store.
    pub replica: ReplicaSettings,
    /// Keys that seal session ids and cursors.
    pub secrets: SecretsSettings,
    /// Sessions of clients.
    pub sessions: SessionSettings,
    /// How long held calls may go on once the process is told to stop.
    pub drain: Duration,
    /// How callers prove who they are; without it they are not authenticated.
    pub auth: Option<AuthSettings>,
    /// Quotas.
    pub tenants: TenantSettings,
    /// At least one; names and paths are unique.
    pub routes: Vec<RouteSettings>,
    /// What works and is probably not meant.
    pub warnings: Vec<Problem>,
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenSettings {
    /// IP address and port.
    pub address: SocketAddr,
    /// Certificate and key, which were there and fit each other when this was read; without them no TLS.
    pub tls: Option<Files>,
    /// The base URL as clients see it; no query, no `/` at its end.
    pub public_url: Option<HttpUrl>,
    /// Web origins that may call, in lower case, as browsers send them.
    pub allowed_origins: Option<Vec<String>>,
    /// Host names that requests may be addressed to, in lower case; an entry without a port stands for every port.
    pub allowed_hosts: Option<Vec<String>>,
    /// Proxies that are believed about whom they speak for.
    pub trusted_proxies: Vec<IpNet>,
    /// The biggest request body.
    pub max_body: ByteSize,
}

impl ListenSettings {
    /// The URL of a route's path as clients see it.
    pub fn url(&self, path: &str) -> String {
        match &self.public_url {
            Some(base) => format!("{}{path}", base.to_string().trim_end_matches('/')),
            None => self.url_at(self.address, path),
        }
    }

    /// The URL of a route's path at an address, whatever clients see.
    pub fn url_at(&self, address: SocketAddr, path: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}{path}")
    }
}

/// The operator's address.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminSettings {
    /// IP address and port.
    pub address: SocketAddr,
    /// Asked for when set; set unless the address is loopback.
    pub token: Option<Secret>,
}

/// Where tasks are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreSettings {
    /// In the process.
    Memory,
    /// In a folder, of this process alone.
    Disk {
        /// The folder.
        path: PathBuf,
    },
    /// In a server that replicas share.
    Redis(RedisSettings),
}

impl StoreSettings {
    /// The kind's name in the configuration.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk { .. } => "disk",
            Self::Redis(_) => "redis",
        }
    }
}

/// A Redis or Valkey server.
#[derive(Debug, Clone, PartialEq)]
pub struct RedisSettings {
    /// Where it is, with what it asks for.
    pub url: Secret,
    /// What its keys start with.
    pub prefix: String,
}

/// This process among those that share the store.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaSettings {
    /// Its name; `None` for one that is made up.
    pub id: Option<String>,
    /// How long the others wait before they take over what it held.
    pub lease: Duration,
    /// Where the others reach it.
    pub address: Option<SocketAddr>,
}

/// Keys that seal session ids and cursors.
#[derive(Debug, Clone, PartialEq)]
pub struct SecretsSettings {
    /// The key that seals; without it a random one.
    pub key: Option<SealKey>,
    /// Earlier keys, which only open.
    pub previous: Vec<SealKey>,
}

/// Sessions of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    /// Without use for this long a session is ended.
    pub idle: Duration,
    /// How many may be open.
    pub max: usize,
}

/// How callers prove who they are; in at least one way.
#[derive(Debug, Clone, PartialEq)]
pub struct AuthSettings {
    /// Hashes are unique.
    pub api_keys: Vec<ApiKey>,
    /// Names are unique.
    pub jwt: Vec<JwtSettings>,
    /// The server that is asked about tokens.
    pub introspection: Option<IntrospectionSettings>,
    /// Scopes that every token must have, each once.
    pub required_scopes: Vec<String>,
}

impl AuthSettings {
    /// Whether tokens are taken beside keys.
    pub fn has_tokens(&self) -> bool {
        !self.jwt.is_empty() || self.introspection.is_some()
    }

    /// Whether callers may belong to tenants that the file does not name.
    pub fn has_open_tenants(&self) -> bool {
        let by_introspection = self.introspection.iter().map(|introspection| &introspection.tenant_claim);
        self.jwt.iter().map(|jwt| &jwt.tenant_claim).chain(by_introspection).any(Option::is_some)
    }

    /// Where clients get tokens, each once: the issuers that are URLs.
    pub fn authorization_servers(&self) -> Vec<String> {
        let by_introspection = self.introspection.iter().filter_map(|introspection| introspection.issuer.as_ref());
        let mut servers: Vec<String> = Vec::new();
        for issuer in self.jwt.iter().map(|jwt| &jwt.issuer).chain(by_introspection) {
            let is_url = issuer.starts_with("https://") || issuer.starts_with("http://");
            if is_url && !servers.contains(issuer) {
                servers.push(issuer.clone());
            }
        }
        servers
    }
}

/// An issuer whose tokens are accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct JwtSettings {
    /// As its tokens spell it.
    pub issuer: String,
    /// Where its keys are.
    pub source: Source,
    /// At least one when it is there; otherwise the route's public URL.
    pub audiences: Option<Vec<String>>,
    /// At least one.
    pub algorithms: Vec<Algorithm>,
    /// The claim that names the tenant.
    pub tenant_claim: Option<String>,
    /// How far clocks may differ.
    pub leeway: Duration,
}

/// A server that is asked about tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct IntrospectionSettings {
    /// Its endpoint.
    pub url: HttpUrl,
    /// Name and secret, which may be empty.
    pub client: Option<(String, Option<Secret>)>,
    /// The issuer of its tokens.
    pub issuer: Option<String>,
    /// Accepted audiences; with an empty list answers without one will do.
    pub audiences: Option<Vec<String>>,
    /// The member that names the tenant.
    pub tenant_claim: Option<String>,
}

/// One caller with a fixed key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// The tenant whose quotas the caller uses.
    pub tenant: String,
    /// Who the caller is.
    pub subject: String,
}

/// Quotas by tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantSettings {
    /// For a tenant that has no entry.
    pub default: TenantLimits,
    /// For these; what their entries don't set has been filled in from `default`.
    pub named: BTreeMap<String, TenantLimits>,
}

impl TenantSettings {
    /// The limits of a tenant.
    pub fn limits(&self, tenant: &str) -> &TenantLimits {
        self.named.get(tenant).unwrap_or(&self.default)
    }
}

/// Quotas of one tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantLimits {
    /// Its share of places for which others wait too: 1 to 100.
    pub weight: u32,
    /// Tasks whose call is held at the same time.
    pub running_tasks: usize,
    /// Tasks that wait for a place.
    pub queued_tasks: usize,
    /// Tasks in any state.
    pub kept_tasks: usize,
    /// Results kept.
    pub kept_bytes: ByteSize,
    /// Requests other than polls.
    pub requests: Option<RateLimit>,
    /// Tasks created.
    pub creates: Option<RateLimit>,
    /// `tasks/get`, `tasks/list` and `tasks/result`.
    pub polls: Option<RateLimit>,
}

/// An MCP endpoint in front of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteSettings {
    /// Fit to be a metric's label.
    pub name: String,
    /// Starts with `/`; matched whole.
    pub path: String,
    /// The server behind it.
    pub upstream: UpstreamSettings,
    /// Which tools clients see and may call, and how calls become tasks.
    pub tools: ToolPolicy,
    /// Who may call which tool, in the order of the file.
    pub rules: Vec<Rule>,
    /// The server makes its tasks itself.
    pub native: bool,
}

/// The server behind a route.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamSettings {
    /// How it is reached.
    pub target: UpstreamTarget,
    /// Calls in flight at the same time.
    pub max_in_flight: usize,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// Plain calls that may wait.
    pub queue: usize,
    /// What is known of its era.
    pub era: eras::Setting,
    /// How its sessions serve clients that have none.
    pub sessions: SessionPolicy,
    /// What it is shown beside the fixed headers.
    pub credentials: UpstreamCredentials,
}

/// What a server is shown in `Authorization`.
#[derive(Debug, Clone, PartialEq)]
pub enum UpstreamCredentials {
    /// What its fixed headers say, if anything.
    Headers,
    /// A token of the gateway's own.
    Own(credentials::Config),
    /// A token for each caller, in exchange for theirs.
    Exchanged(credentials::Config),
    /// What the caller showed.
    Passed,
}

/// How a server is reached.
#[derive(Clone, PartialEq)]
pub enum UpstreamTarget {
    /// By streamable HTTP.
    Url {
        /// Its endpoint.
        url: HttpUrl,
        /// Headers of every request; the values are marked sensitive.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// Certificates of the connection; only with `https`.
        tls: UpstreamTls,
    },
    /// By stdio, as a child process.
    Command {
        /// The program and its arguments; never empty.
        argv: Vec<String>,
    },
}

impl fmt::Debug for UpstreamTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url, headers, tls } => {
                f.debug_struct("Url").field("url", url).field("headers", headers).field("tls", tls).finish()
            }
            // Arguments may be credentials.
            Self::Command { argv } => write!(f, "Command({:?} and {} arguments)", argv.first(), argv.len().max(1) - 1),
        }
    }
}

/// Certificates of the connection to a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Authorities to trust instead of those that browsers trust.
    pub authorities: Option<PathBuf>,
    /// taskgate's own certificate and key.
    pub identity: Option<Files>,
}

/// An `http` or `https` URL with a host, without user, password or fragment. Prints without its query, which may hold a
/// credential.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(Uri);

impl HttpUrl {
    pub(super) fn new(uri: Uri) -> Self {
        Self(uri)
    }

    /// The whole URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host) = (self.0.scheme_str().unwrap_or_default(), self.0.authority().map(|host| host.as_str()));
        let query = if self.0.query().is_some() { "?..." } else { "" };
        write!(f, "{scheme}://{}{}{query}", host.unwrap_or_default(), self.0.path())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
