//! `auth`: how callers prove who they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Secret};

/// How callers prove who they are.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Auth {
    /// Keys that callers send as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
    pub(crate) api_keys: Vec<ApiKey>,
    /// Issuers whose signed tokens (JWT) are accepted.
    pub(crate) jwt: Vec<Jwt>,
    /// A server that is asked about tokens that are no JWT, or about all when there is no `jwt` (RFC 7662).
    pub(crate) introspection: Option<Introspection>,
    /// Scopes that every token must have. API keys have every scope.
    pub(crate) required_scopes: Vec<String>,
}

/// One caller with a fixed key.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApiKey {
    /// SHA-256 of the key, 64 hex digits: `printf %s "$KEY" | sha256sum`. The key itself never stands in the file.
    #[schemars(extend("x-required" = true), regex(pattern = r"^[0-9A-Fa-f]{64}$|\$\{"))]
    pub(crate) sha256: Option<String>,
    /// The tenant whose quotas the caller uses.
    pub(crate) tenant: String,
    /// Who the caller is; tasks belong to tenant and subject.
    #[schemars(extend("x-required" = true))]
    pub(crate) subject: Option<String>,
}

impl Default for ApiKey {
    fn default() -> Self {
        Self { sha256: None, tenant: "default".to_owned(), subject: None }
    }
}

/// An issuer whose tokens are accepted.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Jwt {
    /// The issuer, exactly as `iss` in its tokens spells it. It is a URL whose metadata (RFC 8414 or OpenID Connect
    /// Discovery) say where the keys are, unless `jwks_url` or `jwks_file` does.
    #[schemars(extend("x-required" = true, "examples" = ["https://login.example.com"]))]
    pub(crate) issuer: Option<String>,
    /// Where its keys are (a JSON Web Key Set).
    pub(crate) jwks_url: Option<String>,
    /// A file with its keys (a JSON Web Key Set), relative to the configuration file. Read at start, and again when a token
    /// names a key that is not in it.
    pub(crate) jwks_file: Option<String>,
    /// Accepted audiences. Without the key: the route's public URL.
    pub(crate) audiences: Option<Vec<String>>,
    /// Accepted signature algorithms, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA.
    pub(crate) algorithms: Vec<String>,
    /// The claim that names the tenant; a token without it is refused. Without the key the tenant is `default`.
    pub(crate) tenant_claim: Option<String>,
    /// How far clocks may differ; at most 5m.
    pub(crate) leeway: Duration,
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
pub(crate) struct Introspection {
    /// Its endpoint.
    #[schemars(extend("x-required" = true))]
    pub(crate) url: Option<String>,
    /// The name that taskgate has there, for HTTP Basic.
    pub(crate) client_id: Option<String>,
    /// The secret that goes with it.
    pub(crate) client_secret: Option<Secret>,
    /// The issuer of the tokens. Clients are sent there for one, and an answer that names another one is refused. Without the
    /// key callers belong to the issuer that the answer names, or to the endpoint.
    pub(crate) issuer: Option<String>,
    /// Accepted audiences. Without the key: the route's public URL. With `[]` an answer without `aud` is accepted too: only
    /// for servers that know tokens for nobody else.
    pub(crate) audiences: Option<Vec<String>>,
    /// The member of the answer that names the tenant; a token without it is refused. Without the key the tenant is `default`.
    pub(crate) tenant_claim: Option<String>,
}
