//! Registering at an authorization server (RFC 7591), for servers that know no other way.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Uri};
use serde::Deserialize;
use serde_json::json;

use super::fetch::{self, Fetcher};
use super::token::{Client, Method};

/// Why there is no registration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server gave no usable answer, or refused without saying why.
    #[error("the authorization server did not register this client")]
    Fetch(#[from] fetch::Error),
    /// It refused (RFC 7591, 3.2.2).
    #[error("the authorization server refused to register this client: {0}")]
    Refused(&'static str),
    /// The registration asks for what is not done here.
    #[error("the authorization server registered a client of another kind than was asked for")]
    OtherKind,
}

#[derive(Deserialize)]
struct Registered {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<String>,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
}

/// Registers a native client with one redirect URI. 2026-07-28, "Application Type and Redirect URI Constraints": without its
/// type it would be taken for a web application, which may have no loopback redirect.
///
/// # Errors
/// Any [`Error`].
pub async fn register(
    fetcher: &Fetcher,
    endpoint: &Uri,
    redirect_uri: &str,
    scope: Option<&str>,
) -> Result<Client, Error> {
    let mut metadata = json!({
        "client_name": "taskgate call",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    });
    if let (Some(metadata), Some(scope)) = (metadata.as_object_mut(), scope) {
        metadata.insert("scope".to_owned(), json!(scope));
    }
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let answer = fetcher.exchange(HttpMethod::POST, endpoint, headers, metadata.to_string().into()).await?;
    if answer.status.is_client_error()
        && let Ok(refused) = serde_json::from_slice::<Refused>(&answer.body)
    {
        return Err(Error::Refused(known(&refused.error)));
    }
    client(answer.json()?)
}

/// A server may give a password although none was asked for (RFC 7591, 3.2.1).
fn client(registered: Registered) -> Result<Client, Error> {
    let Registered { client_id: id, client_secret, token_endpoint_auth_method } = registered;
    let is_usable = |text: &str| (1..=2048).contains(&text.len());
    if !is_usable(&id) || !client_secret.as_deref().is_none_or(is_usable) {
        return Err(Error::OtherKind);
    }
    let secret = client_secret.map(Into::into);
    match token_endpoint_auth_method.as_deref() {
        Some("none") => Ok(Client { id, secret: None, method: Method::default() }),
        None | Some("client_secret_basic") => Ok(Client { id, secret, method: Method::Basic }),
        Some("client_secret_post") => Ok(Client { id, secret, method: Method::Post }),
        Some(_) => Err(Error::OtherKind),
    }
}

/// Words of RFC 7591; others are not repeated.
fn known(error: &str) -> &'static str {
    match error {
        "invalid_redirect_uri" => "invalid_redirect_uri (it takes no loopback redirect; use --client-id)",
        "invalid_client_metadata" => "invalid_client_metadata",
        "invalid_software_statement" => "invalid_software_statement",
        "unapproved_software_statement" => "unapproved_software_statement",
        "access_denied" => "access_denied",
        _ => "with an error of its own",
    }
}
