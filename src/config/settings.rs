//! What a configuration means, as plain data that has been checked.
//!
//! The modules own their `Config`s; `Settings` is what those are made from, or holds them where the
//! file says the same. Its `Debug` shows no secret.

use std::{collections::BTreeMap, fmt, net::SocketAddr, time::Duration};

use http::{HeaderName, HeaderValue, Uri};

use super::{
    problem::Problem,
    secret::{SealKey, Secret},
    units::{ByteSize, RateLimit},
};
use crate::gateway::eras;
use crate::gateway::policy::ToolPolicy;
use crate::gateway::pool::SessionPolicy;
use crate::upstream::credentials;

/// Everything that a file, or the command line in its place, says.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where clients connect.
    pub listen: ListenSettings,
    /// The operator's address.
    pub admin: AdminSettings,
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
    /// The base URL as clients see it; no query, no `/` at its end.
    pub public_url: Option<HttpUrl>,
    /// Web origins that may call, in lower case, as browsers send them.
    pub allowed_origins: Option<Vec<String>>,
    /// Host names that requests may be addressed to, in lower case; an entry without a port stands for every port.
    pub allowed_hosts: Option<Vec<String>>,
    /// The biggest request body.
    pub max_body: ByteSize,
}

impl ListenSettings {
    /// The URL of a route's path as clients see it.
    pub fn url(&self, path: &str) -> String {
        match &self.public_url {
            Some(base) => format!("{}{path}", base.to_string().trim_end_matches('/')),
            None => format!("http://{}{path}", self.address),
        }
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

/// How callers prove who they are.
#[derive(Debug, Clone, PartialEq)]
pub struct AuthSettings {
    /// At least one; hashes are unique.
    pub api_keys: Vec<ApiKey>,
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
            Self::Url { url, headers } => f.debug_struct("Url").field("url", url).field("headers", headers).finish(),
            // Arguments may be credentials.
            Self::Command { argv } => write!(f, "Command({:?} and {} arguments)", argv.first(), argv.len().max(1) - 1),
        }
    }
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
