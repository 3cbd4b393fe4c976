//! Where a protected resource sends its clients, and what an authorization server can do: RFC 9728 and RFC 8414 as MCP
//! asks for them (2025-11-25 and 2026-07-28 authorization, "Authorization Server Discovery").
//!
//! A document counts only if it says of itself what it was asked for: else whoever serves one could send a client's
//! credentials elsewhere.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use http::Uri;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fetch::{self, Fetcher};

/// The longest URL or issuer that is taken from a document, in bytes.
const LONGEST: usize = 2048;

/// Why there is no metadata. Holds no text of the other side's but URLs that were checked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A URL that is not followed.
    #[error("{what} can't be used: {why}")]
    Url {
        /// Which URL it is.
        what: &'static str,
        /// What is wrong with it.
        why: BadUrl,
    },
    /// The document at a place is not there, or can't be read.
    #[error("no metadata at {place}")]
    Fetch {
        /// Where it was looked for.
        place: Uri,
        /// What happened there.
        source: fetch::Error,
    },
    /// The resource's metadata is that of another one (RFC 9728, 3.3).
    #[error("the metadata at {place} describes another resource than the one that was called")]
    OtherResource {
        /// Where the document is.
        place: Uri,
    },
    /// The resource names no authorization server (MCP: at least one).
    #[error("the metadata at {place} names no authorization server")]
    NoServers {
        /// Where the document is.
        place: Uri,
    },
    /// The authorization server's metadata is that of another one (RFC 8414, 3.3).
    #[error("the metadata at {place} is that of another issuer")]
    OtherIssuer {
        /// Where the document is.
        place: Uri,
    },
}

/// What is wrong with a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// It is none, has no host, or is longer than 2 KiB.
    #[error("it is not a URL")]
    Malformed,
    /// It has a fragment or a password, or a query where none may be.
    #[error("it has parts that it must not have")]
    Parts,
    /// Credentials would cross a network in the clear (OAuth 2.1, 1.5).
    #[error("it is neither https nor, between programs of this machine, on a loopback address")]
    Insecure,
}

/// What is said about a protected resource (RFC 9728, 2).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourceMetadata {
    /// Its identifier, which goes into `resource` as it is (RFC 8707).
    pub resource: String,
    /// The issuers whose tokens it takes.
    #[serde(default)]
    pub authorization_servers: Vec<String>,
    /// The scopes for what it does usually.
    pub scopes_supported: Option<Vec<String>>,
}

/// What an authorization server says about itself (RFC 8414, 2), checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerMetadata {
    /// Its name: exactly the issuer that it was looked for by.
    pub issuer: String,
    /// Where users agree.
    pub authorization_endpoint: Option<Uri>,
    /// Where tokens come from.
    pub token_endpoint: Option<Uri>,
    /// Where clients register themselves (RFC 7591).
    pub registration_endpoint: Option<Uri>,
    /// Where its keys are.
    pub jwks_uri: Option<Uri>,
    /// The scopes that it knows.
    pub scopes_supported: Option<Vec<String>>,
    /// The PKCE methods; `None` means that it has no PKCE (MCP, "Authorization Code Protection").
    pub code_challenge_methods_supported: Option<Vec<String>>,
    /// How clients may authenticate at the token endpoint; `None` means `client_secret_basic`.
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    /// Whether its authorization responses name it (RFC 9207, 3).
    pub names_itself_in_responses: bool,
    /// Whether a client's id may be the URL of its metadata.
    pub takes_client_id_metadata: bool,
}

/// The document as it comes. A member twice, or of another type, makes it no document at all.
#[derive(Debug, Deserialize)]
struct ServerDocument {
    issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    jwks_uri: Option<String>,
    scopes_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    authorization_response_iss_parameter_supported: Option<bool>,
    client_id_metadata_document_supported: Option<bool>,
}

/// The metadata of the resource that was called: at the place which its challenge names, else at the well-known ones, the
/// one with the path first.
///
/// # Errors
/// Any [`Error`].
pub async fn resource_metadata(
    fetcher: &Fetcher,
    called: &Uri,
    named: Option<&str>,
) -> Result<ResourceMetadata, Error> {
    let called = secure(&called.to_string(), None).map_err(|why| Error::Url { what: "the server's URL", why })?;
    let places = match named {
        Some(named) => vec![
            secure(named, Some(&called)).map_err(|why| Error::Url { what: "the URL of the server's metadata", why })?,
        ],
        None => resource_places(&called),
    };
    let mut search = Search::default();
    for place in places {
        if let Some(found) = search.settled(resource_at(fetcher, &called, place).await) {
            return found;
        }
    }
    Err(search.nothing())
}

async fn resource_at(fetcher: &Fetcher, called: &Uri, place: Uri) -> Result<ResourceMetadata, Error> {
    let document: ResourceMetadata = get(fetcher, &place).await?;
    let is_root = place == well_known(called, RESOURCE, "");
    match () {
        () if !describes(&document.resource, called, is_root) => Err(Error::OtherResource { place }),
        () if document.authorization_servers.is_empty() => Err(Error::NoServers { place }),
        () => Ok(document),
    }
}

/// The metadata of an authorization server, by RFC 8414 and by OpenID Connect Discovery, in the order that MCP prescribes.
///
/// # Errors
/// Any [`Error`].
pub async fn server_metadata(fetcher: &Fetcher, issuer: &str) -> Result<ServerMetadata, Error> {
    let url = issuer_url(issuer)?;
    let mut search = Search::default();
    for place in server_places(&url) {
        if let Some(found) = search.settled(server_at(fetcher, issuer, &url, place).await) {
            return found;
        }
    }
    Err(search.nothing())
}

async fn server_at(fetcher: &Fetcher, issuer: &str, url: &Uri, place: Uri) -> Result<ServerMetadata, Error> {
    let document: ServerDocument = get(fetcher, &place).await?;
    if document.issuer != issuer {
        return Err(Error::OtherIssuer { place });
    }
    document.checked(url)
}

/// An issuer's URL (RFC 8414, 2): no query, no fragment.
///
/// # Errors
/// [`Error::Url`].
pub fn issuer_url(issuer: &str) -> Result<Uri, Error> {
    let url = secure(issuer, None).and_then(|url| if url.query().is_some() { Err(BadUrl::Parts) } else { Ok(url) });
    url.map_err(|why| Error::Url { what: "the issuer", why })
}

/// A URL to which credentials may go: https, or http on a loopback address. Where another document named it, plain http is
/// taken only if that one's own URL is plain as well: no server elsewhere may send a client around on its own machine.
///
/// # Errors
/// [`BadUrl`].
pub fn secure(url: &str, named_by: Option<&Uri>) -> Result<Uri, BadUrl> {
    if url.len() > LONGEST {
        return Err(BadUrl::Malformed);
    }
    // `Uri` drops fragments without a word.
    if url.contains('#') {
        return Err(BadUrl::Parts);
    }
    let uri: Uri = url.parse().map_err(|_| BadUrl::Malformed)?;
    let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or(BadUrl::Malformed)?;
    if authority.as_str().contains('@') {
        return Err(BadUrl::Parts);
    }
    let may_be_plain = is_loopback(authority.host()) && named_by.is_none_or(is_plain);
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if may_be_plain => Ok(uri),
        _ => Err(BadUrl::Insecure),
    }
}

fn is_plain(url: &Uri) -> bool {
    url.scheme_str() == Some("http")
}

/// Whether a host is this machine (RFC 8252, 7.3 and 8.3).
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl ServerDocument {
    /// With each endpoint checked: what a document names is not safer than what was typed.
    fn checked(self, issuer: &Uri) -> Result<ServerMetadata, Error> {
        let endpoint = |url: Option<String>, what| {
            url.map(|url| secure(&url, Some(issuer)).map_err(|why| Error::Url { what, why })).transpose()
        };
        Ok(ServerMetadata {
            authorization_endpoint: endpoint(self.authorization_endpoint, "the authorization endpoint")?,
            token_endpoint: endpoint(self.token_endpoint, "the token endpoint")?,
            registration_endpoint: endpoint(self.registration_endpoint, "the registration endpoint")?,
            jwks_uri: endpoint(self.jwks_uri, "the URL of the issuer's keys")?,
            issuer: self.issuer,
            scopes_supported: self.scopes_supported,
            code_challenge_methods_supported: self.code_challenge_methods_supported,
            token_endpoint_auth_methods_supported: self.token_endpoint_auth_methods_supported,
            names_itself_in_responses: self.authorization_response_iss_parameter_supported.unwrap_or_default(),
            takes_client_id_metadata: self.client_id_metadata_document_supported.unwrap_or_default(),
        })
    }
}

async fn get<T: DeserializeOwned>(fetcher: &Fetcher, place: &Uri) -> Result<T, Error> {
    fetcher.get(place).await.map_err(|source| Error::Fetch { place: place.clone(), source })
}

/// One place after the other, until one has something.
#[derive(Default)]
struct Search {
    told: Option<Error>,
}

impl Search {
    /// What a place has, if that ends the search.
    fn settled<T>(&mut self, found: Result<T, Error>) -> Option<Result<T, Error>> {
        match found {
            Err(error) if error.is_passed_over() => {
                // A document that is there and wrong says more than one that is not there.
                let says_more = !matches!(error, Error::Fetch { .. });
                if self.told.is_none() || says_more {
                    self.told = Some(error);
                }
                None
            }
            found => Some(found),
        }
    }

    /// What says most about why there is nothing.
    fn nothing(self) -> Error {
        self.told.unwrap_or(Error::Url { what: "the server's URL", why: BadUrl::Malformed })
    }
}

impl Error {
    /// Whether the next place may have what this one has not. A server that fails is not asked elsewhere: who can disturb
    /// one place must not choose another.
    fn is_passed_over(&self) -> bool {
        match self {
            Self::Fetch { source: fetch::Error::Status(status), .. } => !status.is_server_error(),
            Self::Fetch { source, .. } => matches!(source, fetch::Error::Json(_)),
            Self::OtherIssuer { .. } | Self::OtherResource { .. } => true,
            Self::Url { .. } | Self::NoServers { .. } => false,
        }
    }
}

const RESOURCE: &str = "oauth-protected-resource";
const SERVER: &str = "oauth-authorization-server";
const OPENID: &str = "openid-configuration";

/// Where a resource's metadata is looked for when no challenge names the place (MCP, "Protected Resource Metadata Discovery
/// Requirements" 2).
#[must_use]
pub fn resource_places(called: &Uri) -> Vec<Uri> {
    let path = path_of(called);
    let mut places = vec![well_known(called, RESOURCE, &path)];
    if !path.is_empty() {
        places.push(well_known(called, RESOURCE, ""));
    }
    places
}

/// Where an authorization server's metadata is looked for (MCP, "Authorization Server Metadata Discovery").
#[must_use]
pub fn server_places(issuer: &Uri) -> Vec<Uri> {
    let path = path_of(issuer);
    let mut places = vec![well_known(issuer, SERVER, &path), well_known(issuer, OPENID, &path)];
    if !path.is_empty() {
        places.push(at(issuer, &format!("{path}/.well-known/{OPENID}")));
    }
    places
}

/// The path without a terminating slash (RFC 8414, 3.1), and with its query where it has one (RFC 9728, 3.1).
fn path_of(url: &Uri) -> String {
    let path = url.path().trim_end_matches('/');
    url.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

fn well_known(url: &Uri, name: &str, path: &str) -> Uri {
    at(url, &format!("/.well-known/{name}{path}"))
}

fn at(url: &Uri, path: &str) -> Uri {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// Whether a document's `resource` is the URL that was called (RFC 9728, 3.3). The one at the root may speak for the whole
/// host, since it belongs to whoever has the host. Schemes and hosts have no case, and a slash at the end means nothing (MCP,
/// "Canonical Server URI").
fn describes(resource: &str, called: &Uri, is_root: bool) -> bool {
    let Ok(resource) = resource.parse::<Uri>() else { return false };
    let same_origin = origin(&resource).is_some_and(|it| origin(called).is_some_and(|called| it == called));
    let path = path_of(&resource);
    same_origin && (path == path_of(called) || (is_root && path.is_empty()))
}

/// Scheme, host and port as they are compared.
fn origin(url: &Uri) -> Option<(String, String, u16)> {
    let scheme = url.scheme_str()?.to_ascii_lowercase();
    let port = url.port_u16().or(match &*scheme {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    })?;
    Some((scheme, url.host()?.to_ascii_lowercase(), port))
}
