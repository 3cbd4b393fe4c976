//! A route as a protected resource: its name, the document that tells clients where to get a token for it (RFC 9728), and
//! the challenges that lead to that document (RFC 6750, 3; RFC 9728, 5.1).

use std::collections::HashSet;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Uri};
use serde_json::{Map, Value, json};

use super::Refused;

/// Where a resource's metadata is, before its path (RFC 9728, 3.1).
pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// What a route is to clients.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Its URL as clients see it.
    pub url: String,
    /// Its name, for people.
    pub name: String,
    /// Where tokens for it come from. With none it has no metadata.
    pub authorization_servers: Vec<String>,
    /// The scopes that every token must have.
    pub required_scopes: Vec<String>,
    /// Further scopes that it knows.
    pub other_scopes: Vec<String>,
}

/// A route as its callers' credentials see it.
#[derive(Debug)]
pub struct Resource {
    /// Tells it from the others of this process.
    number: u32,
    url: String,
    metadata: Option<Metadata>,
    required: Vec<String>,
    missing: HeaderValue,
    invalid: HeaderValue,
}

/// The metadata of a resource.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// The path of the resource's URL; empty without one.
    pub path: String,
    /// The document.
    pub document: Bytes,
    url: String,
}

impl Resource {
    /// The resource; `number` tells it from the others.
    #[must_use]
    pub fn new(number: u32, config: &Config) -> Self {
        let url = canonical(&config.url);
        let metadata = (!config.authorization_servers.is_empty()).then(|| Metadata::of(&url, config));
        let challenge = |error: &str| {
            let pointers = [
                metadata.as_ref().map(|metadata| quoted("resource_metadata", &metadata.url)),
                (metadata.is_some() && !config.required_scopes.is_empty())
                    .then(|| quoted("scope", &config.required_scopes.join(" "))),
            ];
            header(&format!("{REALM}{error}{}", pointers.into_iter().flatten().collect::<String>()))
        };
        let (missing, invalid) = (challenge(""), challenge(r#", error="invalid_token""#));
        Self { number, metadata, required: config.required_scopes.clone(), missing, invalid, url }
    }

    /// Its canonical URL: what tokens are issued for (RFC 8707, 2).
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its metadata, where there is somebody who issues tokens for it.
    #[must_use]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether an audience is this resource. A slash at its end makes no other one of it.
    pub(super) fn is_named(&self, audience: &str) -> bool {
        audience.strip_suffix('/').unwrap_or(audience) == self.url
    }

    /// The value of `WWW-Authenticate` for a request that is refused; none where nothing is wrong with the credentials.
    /// RFC 6750, 3: the scheme is followed by at least one parameter; 3.1: no error where there were no credentials.
    #[must_use]
    pub fn challenge(&self, refused: Refused) -> Option<HeaderValue> {
        match refused {
            Refused::Missing => Some(self.missing.clone()),
            Refused::Invalid => Some(self.invalid.clone()),
            Refused::Scopes => Some(self.insufficient_scope("")),
            Refused::Unavailable => None,
        }
    }

    /// The value of `WWW-Authenticate` for a credential that is valid and lacks scopes (RFC 6750, 3.1). It names all that the
    /// request needs, those that every request needs among them: what is not asked for again may be lost.
    #[must_use]
    pub fn insufficient_scope(&self, needed: &str) -> HeaderValue {
        let mut scopes: Vec<&str> = self.required.iter().map(String::as_str).collect();
        scopes.extend(needed.split_ascii_whitespace().filter(|scope| !self.required.iter().any(|one| one == scope)));
        let metadata = self.metadata.as_ref().map(|metadata| quoted("resource_metadata", &metadata.url));
        let scope = quoted("scope", &scopes.join(" "));
        header(&format!(r#"{REALM}, error="insufficient_scope"{}{scope}"#, metadata.unwrap_or_default()))
    }
}

impl Metadata {
    fn of(resource: &str, config: &Config) -> Self {
        let path = resource.split_once("://").and_then(|(_, rest)| rest.find('/').and_then(|at| rest.get(at..)));
        let path = path.unwrap_or_default().to_owned();
        let origin = resource.strip_suffix(path.as_str()).unwrap_or(resource);
        // Scopes of the authorization server's own are none of a resource's (2026-07-28 authorization, "Scope selection").
        let mut scopes: Vec<&str> =
            config.required_scopes.iter().chain(&config.other_scopes).map(String::as_str).collect();
        scopes.retain(|scope| *scope != "offline_access");
        let mut seen = HashSet::new();
        scopes.retain(|scope| seen.insert(*scope));
        let mut document = Map::from_iter([
            ("resource".to_owned(), resource.into()),
            ("authorization_servers".to_owned(), config.authorization_servers.clone().into()),
            ("bearer_methods_supported".to_owned(), json!(["header"])),
            ("resource_name".to_owned(), config.name.as_str().into()),
        ]);
        if !scopes.is_empty() {
            document.insert("scopes_supported".to_owned(), scopes.into());
        }
        Self { url: format!("{origin}{WELL_KNOWN}{path}"), document: Value::Object(document).to_string().into(), path }
    }
}

const REALM: &str = r#"Bearer realm="taskgate""#;

/// A parameter of a challenge, after the others (RFC 9110, 5.6.4).
fn quoted(name: &str, value: &str) -> String {
    format!(r#", {name}="{}""#, value.replace('\\', r"\\").replace('"', "\\\""))
}

/// Configured URLs and scopes have nothing that a header can't hold; the realm alone is a challenge too.
fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(REALM))
}

/// The one spelling of a URL: scheme and host in lower case, no port that the scheme implies, no slash at its end,
/// no query (MCP, "Canonical Server URI").
#[must_use]
pub fn canonical(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return url.to_owned() };
    let scheme = uri.scheme_str().unwrap_or("http").to_ascii_lowercase();
    let authority = uri.authority().map(Authority::as_str).unwrap_or_default().to_ascii_lowercase();
    let own_port = if scheme == "https" { ":443" } else { ":80" };
    let authority = authority.strip_suffix(own_port).unwrap_or(&authority);
    format!("{scheme}://{authority}{}", uri.path().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        let server = "https://login.example.com/".to_owned();
        Config {
            url: url.to_owned(),
            name: "reports".to_owned(),
            authorization_servers: vec![server],
            ..Config::default()
        }
    }

    #[test]
    fn one_url_has_one_spelling() {
        for (url, expected) in [
            ("https://MCP.Example.com:443/Reports/mcp", "https://mcp.example.com/Reports/mcp"),
            ("http://a:80/", "http://a"),
            ("http://a:8080/x/", "http://a:8080/x"),
            ("https://a:80/x", "https://a:80/x"),
            ("http://[::1]:80/mcp", "http://[::1]/mcp"),
        ] {
            assert_eq!(Resource::new(0, &config(url)).url(), expected, "{url}");
        }
        let resource = Resource::new(0, &config("https://a/mcp"));
        assert!(resource.is_named("https://a/mcp") && resource.is_named("https://a/mcp/"));
        for other in ["https://a/mcp//", "https://a/mcp2", "https://a", "http://a/mcp", "HTTPS://a/mcp", ""] {
            assert!(!resource.is_named(other), "{other}");
        }
    }

    #[test]
    fn the_metadata_say_where_tokens_come_from() {
        let scopes = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect();
        let config = Config {
            required_scopes: scopes(&["mcp"]),
            other_scopes: scopes(&["write", "mcp", "offline_access"]),
            ..config("https://a/base/mcp")
        };
        let resource = Resource::new(0, &config);
        let metadata = resource.metadata().unwrap();
        assert_eq!(
            (metadata.path.as_str(), metadata.url.as_str()),
            ("/base/mcp", "https://a/.well-known/oauth-protected-resource/base/mcp")
        );
        assert_eq!(
            serde_json::from_slice::<Value>(&metadata.document).unwrap(),
            json!({"resource": "https://a/base/mcp", "authorization_servers": ["https://login.example.com/"],
                "bearer_methods_supported": ["header"], "resource_name": "reports", "scopes_supported": ["mcp", "write"]})
        );
        let at_root = Resource::new(0, &Config { url: "https://a/".to_owned(), ..config });
        assert_eq!(at_root.metadata().unwrap().url, "https://a/.well-known/oauth-protected-resource");
    }

    #[test]
    fn challenges_lead_to_the_metadata() {
        let config = Config { required_scopes: vec!["mcp".to_owned(), "read".to_owned()], ..config("https://a/mcp") };
        let resource = Resource::new(0, &config);
        let of = |refused| resource.challenge(refused).map(|value| value.to_str().unwrap().to_owned());
        let metadata = r#"resource_metadata="https://a/.well-known/oauth-protected-resource/mcp""#;
        let start = r#"Bearer realm="taskgate""#;
        assert_eq!(of(Refused::Missing).unwrap(), format!(r#"{start}, {metadata}, scope="mcp read""#));
        assert_eq!(
            of(Refused::Invalid).unwrap(),
            format!(r#"{start}, error="invalid_token", {metadata}, scope="mcp read""#)
        );
        assert_eq!(
            of(Refused::Scopes).unwrap(),
            format!(r#"{start}, error="insufficient_scope", {metadata}, scope="mcp read""#)
        );
        assert_eq!(
            resource.insufficient_scope("read files:write"),
            format!(r#"{start}, error="insufficient_scope", {metadata}, scope="mcp read files:write""#)
        );
        assert_eq!(of(Refused::Unavailable), None);
        // Keys have no server that issues them.
        let plain = Resource::new(0, &Config { authorization_servers: Vec::new(), ..config });
        assert_eq!(plain.challenge(Refused::Invalid).unwrap(), r#"Bearer realm="taskgate", error="invalid_token""#);
    }
}
