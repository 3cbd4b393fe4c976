//! Callers: keys, issuers of tokens, the server that is asked about tokens.

use std::collections::HashMap;
use std::time::Duration;

use super::Builder;
use crate::auth::algorithm::Algorithm;
use crate::auth::keys::{KeySet, Source};
use crate::config::{
    problem::quote,
    raw,
    settings::{ApiKey, AuthSettings, IntrospectionSettings, JwtSettings, ListenSettings},
    tree::Place,
    values,
};
use crate::oauth::discovery::{self, issuer_url};

/// More than clocks that are set at all differ by.
const MOST_LEEWAY: Duration = Duration::from_secs(300);

impl Builder<'_> {
    pub(super) fn auth(&mut self, raw: raw::Auth, at: &Place<'_>) -> Option<AuthSettings> {
        let keys = ["api_keys", "jwt", "introspection"].map(|key| at.key(key));
        let has_none = raw.api_keys.is_empty() && raw.jwt.is_empty() && raw.introspection.is_none();
        if has_none && !keys.iter().any(|key| self.problems.is_broken(key)) {
            self.problems.error(at, "has no `api_keys`, `jwt` or `introspection`, so that nobody could call");
        }
        let [keys_at, jwt_at, introspection_at] = keys;
        let api_keys = self.api_keys(&raw.api_keys, &keys_at);
        let jwt = self.issuers(&raw.jwt, &jwt_at);
        let introspection = raw.introspection.map(|raw| self.introspection(raw, &introspection_at));
        let required_at = at.key("required_scopes");
        let mut required_scopes = self.each(&raw.required_scopes, &required_at, values::scope);
        required_scopes.sort_unstable();
        required_scopes.dedup();
        let introspection = match introspection {
            Some(introspection) => Some(introspection?),
            None => None,
        };
        if !jwt.is_empty() && introspection.as_ref().is_some_and(|introspection| introspection.issuer.is_none()) {
            let message = "without `issuer` answers that name an issuer of `auth.jwt` are refused: if this server is one of \
                           theirs, name it";
            self.problems.warn(&introspection_at, message);
        }
        let auth = AuthSettings { api_keys, jwt, introspection, required_scopes };
        if !auth.required_scopes.is_empty() && !auth.has_tokens() {
            self.problems
                .warn(&required_at, "only tokens have scopes, and none are accepted: API keys have every scope");
        }
        Some(auth)
    }

    fn api_keys(&mut self, raw: &[raw::ApiKey], at: &Place<'_>) -> Vec<ApiKey> {
        let mut api_keys: Vec<ApiKey> = Vec::new();
        let mut seen = HashMap::new();
        for (index, raw) in raw.iter().enumerate() {
            let at = at.item(index);
            let Some(key) = self.api_key(raw, &at) else { continue };
            if let Some(first) = seen.insert(key.sha256, index) {
                self.problems.error(&at.key("sha256"), format!("the same key as `auth.api_keys[{first}]`"));
            }
            api_keys.push(key);
        }
        api_keys
    }

    fn api_key(&mut self, raw: &raw::ApiKey, at: &Place<'_>) -> Option<ApiKey> {
        let sha256 = raw.sha256.as_ref().and_then(|hash| self.check(values::sha256(hash), &at.key("sha256")));
        let tenant = self.check(values::name(&raw.tenant), &at.key("tenant"));
        let subject = raw.subject.as_ref().and_then(|name| self.check(values::name(name), &at.key("subject")));
        Some(ApiKey { sha256: sha256?, tenant: tenant?, subject: subject? })
    }

    fn issuers(&mut self, raw: &[raw::Jwt], at: &Place<'_>) -> Vec<JwtSettings> {
        let mut issuers: Vec<JwtSettings> = Vec::new();
        let mut seen = HashMap::new();
        for (index, raw) in raw.iter().enumerate() {
            let at = at.item(index);
            let Some(issuer) = self.issuer(raw, &at) else { continue };
            if let Some(first) = seen.insert(issuer.issuer.clone(), index) {
                self.problems.error(&at.key("issuer"), format!("the same as `auth.jwt[{first}].issuer`"));
            }
            issuers.push(issuer);
        }
        issuers
    }

    fn issuer(&mut self, raw: &raw::Jwt, at: &Place<'_>) -> Option<JwtSettings> {
        let issuer_at = at.key("issuer");
        let issuer = raw.issuer.as_ref().and_then(|issuer| self.check(values::audience(issuer), &issuer_at));
        let source = issuer.as_ref().and_then(|issuer| self.key_source(raw, issuer, at));
        let audiences_at = at.key("audiences");
        let audiences = raw.audiences.as_ref().map(|all| self.each(all, &audiences_at, values::audience));
        if raw.audiences.as_ref().is_some_and(Vec::is_empty) {
            self.problems
                .error(&audiences_at, "an empty list accepts no token; without the key it is the route's public URL");
        }
        let algorithms_at = at.key("algorithms");
        let algorithms = self.each(&raw.algorithms, &algorithms_at, algorithm);
        if raw.algorithms.is_empty() && !self.problems.is_broken(&algorithms_at) {
            self.problems.error(&algorithms_at, "an empty list accepts no token");
        }
        let tenant_claim = self.claim(raw.tenant_claim.as_deref(), &at.key("tenant_claim"));
        let leeway_at = at.key("leeway");
        let leeway = self.duration(&raw.leeway, &leeway_at)?;
        if leeway > MOST_LEEWAY {
            self.problems.error(&leeway_at, "at most 5m: what has expired must not be good for long");
        }
        Some(JwtSettings { issuer: issuer?, source: source?, audiences, algorithms, tenant_claim, leeway })
    }

    fn key_source(&mut self, raw: &raw::Jwt, issuer: &str, at: &Place<'_>) -> Option<Source> {
        match (&raw.jwks_url, &raw.jwks_file) {
            (Some(_), Some(_)) => {
                self.problems.error(&at.key("jwks_file"), "keys come from one place: `jwks_url` or `jwks_file`");
                None
            }
            (Some(url), None) => {
                let at = at.key("jwks_url");
                // Whoever can change what is sent there can make tokens.
                let url = self.check(values::secure_url(url), &at)?;
                Some(Source::Url(url.uri().clone()))
            }
            (None, Some(file)) => {
                let path = self.base.join(file);
                let read = KeySet::read(&path).map_err(|error| error.to_string());
                self.check(read, &at.key("jwks_file"))?;
                Some(Source::File(path))
            }
            (None, None) => {
                let expected = "without `jwks_url` or `jwks_file` the issuer is a URL with metadata";
                let url = issuer_url(issuer).map_err(|error| match error {
                    discovery::Error::Url { why, .. } => format!("{expected}, but {why}"),
                    _ => expected.to_owned(),
                });
                self.check(url, &at.key("issuer"))?;
                Some(Source::Discovery)
            }
        }
    }

    fn introspection(&mut self, raw: raw::Introspection, at: &Place<'_>) -> Option<IntrospectionSettings> {
        let url = raw.url.and_then(|url| self.check(values::secure_url(&url), &at.key("url")));
        let (client_at, secret_at) = (at.key("client_id"), at.key("client_secret"));
        let client = raw.client_id.as_ref().and_then(|client| self.check(values::audience(client), &client_at));
        let secret = raw.client_secret.and_then(|secret| self.secret(secret, &secret_at));
        if raw.client_id.is_none() && secret_at.is_given() {
            self.problems.error(&secret_at, "needs `client_id`, the name that it belongs to");
        }
        let issuer = raw.issuer.and_then(|issuer| self.check(values::audience(&issuer), &at.key("issuer")));
        let audiences = raw.audiences.map(|all| self.each(&all, &at.key("audiences"), values::audience));
        let tenant_claim = self.claim(raw.tenant_claim.as_deref(), &at.key("tenant_claim"));
        let client = client.map(|client| (client, secret));
        Some(IntrospectionSettings { url: url?, client, issuer, audiences, tenant_claim })
    }

    fn claim(&mut self, raw: Option<&str>, at: &Place<'_>) -> Option<String> {
        raw.and_then(|claim| self.check(values::name(claim), at))
    }

    /// Tokens are issued for a URL, so it should be the one that clients know.
    pub(super) fn check_public_url(&mut self, listen: &ListenSettings, auth: &AuthSettings, at: &Place<'_>) {
        if auth.has_tokens() && listen.public_url.is_none() {
            let url = listen.url("");
            let message = format!(
                "without `listen.public_url` tokens have to be issued for {url} and the route's path, and clients that \
                 know another URL refuse the metadata"
            );
            self.problems.warn(at, message);
        }
    }
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    if let Some(algorithm) = Algorithm::named(name) {
        return Ok(algorithm);
    }
    let known = Algorithm::ALL.map(Algorithm::as_str).join(", ");
    let upper = name.to_ascii_uppercase();
    Err(match upper.as_str() {
        "NONE" => format!("tokens without a signature are never accepted; expected one of {known}"),
        _ if upper.starts_with("HS") => {
            format!("algorithms with shared secrets are never accepted; expected one of {known}")
        }
        _ => format!("{} is none of {known}", quote(name)),
    })
}
