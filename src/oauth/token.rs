//! The token endpoint (RFC 6749, 3.2): a request for each grant that is used here, and what comes back.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use serde::Deserialize;
use serde_json::Value;

use super::fetch::{self, Answer, Fetcher, encoded};
use super::secret::Secret;

/// The longest token that is taken, in bytes: it has to stand in a header.
const LONGEST: usize = 16 * 1024;

/// The URN of an access token (RFC 8693, 3).
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

/// A client as its authorization server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its id.
    pub id: String,
    /// Its password; a public client has none.
    pub secret: Option<Secret>,
    /// How it shows the password.
    pub method: Method,
}

/// How a client authenticates (RFC 7591, 2). Without a password none of them matters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// In `Authorization: Basic`; what a server must take (RFC 6749, 2.3.1).
    #[default]
    Basic,
    /// In the form.
    Post,
}

impl Method {
    /// The one to use, of those that the server says it takes.
    #[must_use]
    pub fn among(supported: Option<&[String]>) -> Self {
        let takes = |name: &str| supported.is_some_and(|supported| supported.iter().any(|known| known == name));
        if !takes("client_secret_basic") && takes("client_secret_post") { Self::Post } else { Self::Basic }
    }
}

/// What is given for a token.
#[derive(Debug, Clone, Copy)]
pub enum Grant<'a> {
    /// What a user's agreement gave (RFC 6749, 4.1.3; RFC 7636, 4.5).
    Code {
        /// The code.
        code: &'a Secret,
        /// The redirect URI that it was sent to.
        redirect_uri: &'a str,
        /// Whose challenge was sent along.
        verifier: &'a Secret,
    },
    /// A refresh token (RFC 6749, 6).
    Refresh(&'a Secret),
    /// Nothing but the client itself (RFC 6749, 4.4).
    ClientCredentials,
    /// The token of whoever it is on behalf of (RFC 8693, 2.1).
    Exchange {
        /// That token.
        subject: &'a str,
        /// The name of the service that the new one is for.
        audience: Option<&'a str>,
    },
}

/// A request for a token.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What is given.
    pub grant: Grant<'a>,
    /// The scopes that are wanted, separated by spaces.
    pub scope: Option<&'a str>,
    /// The resource that the token is for (RFC 8707).
    pub resource: Option<&'a str>,
}

/// What a token endpoint gave (RFC 6749, 5.1).
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The access token: a bearer token that can stand in a header.
    pub access: Secret,
    /// For how long it is good, if the server says.
    pub expires_in: Option<Duration>,
    /// Gets the next one.
    pub refresh: Option<Secret>,
    /// The scopes that it has; `None`: those that were asked for.
    pub scope: Option<String>,
}

/// Why there is no token. Holds nothing that was sent, nor the server's own words, which may repeat it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint gave no usable answer.
    #[error("the token endpoint gave no answer that can be used")]
    Fetch(#[from] fetch::Error),
    /// It refused (RFC 6749, 5.2).
    #[error("the token endpoint refused: {0}")]
    Refused(Refusal),
    /// What it gave can't be used.
    #[error("the token endpoint gave a token that can't be used: {0}")]
    Unusable(&'static str),
}

/// What a token endpoint refuses with (RFC 6749, 5.2; RFC 8707, 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is malformed.
    #[error("invalid_request")]
    InvalidRequest,
    /// The client did not authenticate.
    #[error("invalid_client")]
    InvalidClient,
    /// The code or token that was given is not good, or not any more.
    #[error("invalid_grant")]
    InvalidGrant,
    /// The client may not use this grant.
    #[error("unauthorized_client")]
    UnauthorizedClient,
    /// The server does not know this grant.
    #[error("unsupported_grant_type")]
    UnsupportedGrantType,
    /// A scope is not known or not given.
    #[error("invalid_scope")]
    InvalidScope,
    /// The resource or audience is not known or not given.
    #[error("invalid_target")]
    InvalidTarget,
    /// Anything else.
    #[error("with an error of its own")]
    Other,
}

impl Refusal {
    fn named(error: &str) -> Self {
        match error {
            "invalid_request" => Self::InvalidRequest,
            "invalid_client" => Self::InvalidClient,
            "invalid_grant" => Self::InvalidGrant,
            "unauthorized_client" => Self::UnauthorizedClient,
            "unsupported_grant_type" => Self::UnsupportedGrantType,
            "invalid_scope" => Self::InvalidScope,
            "invalid_target" => Self::InvalidTarget,
            _ => Self::Other,
        }
    }
}

/// Asks for a token.
///
/// # Errors
/// Any [`Error`].
pub async fn request(
    fetcher: &Fetcher,
    endpoint: &Uri,
    client: &Client,
    request: &Request<'_>,
) -> Result<Tokens, Error> {
    let (authorization, fields) = message(client, request);
    tokens(&fetcher.post_form(endpoint, authorization, &fields).await?)
}

type Fields<'a> = Vec<(&'static str, &'a str)>;

/// The header and the form of a request.
fn message<'a>(client: &'a Client, request: &Request<'a>) -> (Option<HeaderValue>, Fields<'a>) {
    let mut fields = match request.grant {
        Grant::Code { code, redirect_uri, verifier } => vec![
            ("grant_type", "authorization_code"),
            ("code", code.reveal()),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier.reveal()),
        ],
        Grant::Refresh(token) => vec![("grant_type", "refresh_token"), ("refresh_token", token.reveal())],
        Grant::ClientCredentials => vec![("grant_type", "client_credentials")],
        Grant::Exchange { subject, audience } => {
            let mut fields = vec![
                ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
                ("subject_token", subject),
                ("subject_token_type", ACCESS_TOKEN),
                ("requested_token_type", ACCESS_TOKEN),
            ];
            fields.extend(audience.map(|audience| ("audience", audience)));
            fields
        }
    };
    fields.extend(request.scope.map(|scope| ("scope", scope)));
    fields.extend(request.resource.map(|resource| ("resource", resource)));
    match (&client.secret, client.method) {
        (Some(secret), Method::Basic) => (basic(&client.id, secret.reveal()), fields),
        (Some(secret), Method::Post) => {
            fields.extend([("client_id", &*client.id), ("client_secret", secret.reveal())]);
            (None, fields)
        }
        // RFC 6749, 3.2.1: a public client says who it is.
        (None, _) => {
            fields.push(("client_id", &client.id));
            (None, fields)
        }
    }
}

/// `Authorization: Basic` of a client (RFC 6749, 2.3.1: both parts are encoded as in a form first).
#[must_use]
pub fn basic(id: &str, secret: &str) -> Option<HeaderValue> {
    let pair = format!("{}:{}", encoded(id), encoded(secret));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
}

fn tokens(answer: &Answer) -> Result<Tokens, Error> {
    if !answer.status.is_success() {
        let refused: Result<Refused, _> = serde_json::from_slice(&answer.body);
        return Err(match refused {
            Ok(refused) if answer.status.is_client_error() => Error::Refused(Refusal::named(&refused.error)),
            _ => Error::Fetch(fetch::Error::Status(answer.status)),
        });
    }
    let granted: Granted = answer.json()?;
    if !granted.token_type.eq_ignore_ascii_case("bearer") {
        return Err(Error::Unusable("it is no bearer token"));
    }
    let is_token =
        |token: &str| (1..=LONGEST).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token(&granted.access_token) {
        return Err(Error::Unusable("it can't stand in a header"));
    }
    Ok(Tokens {
        access: granted.access_token.into(),
        expires_in: granted.expires_in.as_ref().and_then(seconds),
        refresh: granted.refresh_token.filter(|token| (1..=LONGEST).contains(&token.len())).map(Secret::from),
        scope: granted.scope,
    })
}

/// A number of seconds; some servers write it as a string. Whoever says 0 or less gave a token that is good now at most.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    // More than a year is as good as for ever.
    seconds.is_finite().then(|| Duration::from_secs_f64(seconds.clamp(0.0, 366.0 * 86_400.0)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn client(secret: Option<&str>, method: Method) -> Client {
        Client { id: "a b".to_owned(), secret: secret.map(Secret::from), method }
    }

    fn form(client: &Client, grant: Grant<'_>) -> (Option<HeaderValue>, String) {
        let request = Request { grant, scope: Some("x y"), resource: Some("https://r.example/mcp") };
        let (header, fields) = message(client, &request);
        (header, fetch::form(&fields))
    }

    const COMMON: &str = "scope=x%20y&resource=https%3A%2F%2Fr.example%2Fmcp";

    #[test]
    fn each_grant_has_its_form() {
        let public = client(None, Method::Basic);
        let (code, verifier) = (Secret::from("c"), Secret::from("v"));
        let grant = Grant::Code { code: &code, redirect_uri: "http://127.0.0.1:1/callback", verifier: &verifier };
        let (header, text) = form(&public, grant);
        assert_eq!(header, None);
        let redirect = "redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback&code_verifier=v";
        assert_eq!(text, format!("grant_type=authorization_code&code=c&{redirect}&{COMMON}&client_id=a%20b"));
        let (header, text) = form(&client(Some("p:w"), Method::Basic), Grant::Refresh(&code));
        assert_eq!(header.unwrap(), format!("Basic {}", STANDARD.encode("a%20b:p%3Aw")));
        assert_eq!(text, format!("grant_type=refresh_token&refresh_token=c&{COMMON}"));
        let (header, text) = form(&client(Some("p"), Method::Post), Grant::ClientCredentials);
        assert_eq!(header, None);
        assert_eq!(text, format!("grant_type=client_credentials&{COMMON}&client_id=a%20b&client_secret=p"));
        let (_, text) = form(&public, Grant::Exchange { subject: "s", audience: Some("o") });
        assert!(
            text.contains("token-exchange&subject_token=s&subject_token_type=urn%3A") && text.contains("audience=o")
        );
    }

    #[test]
    fn the_client_authenticates_as_the_server_takes_it() {
        let of = |names: &[&str]| Method::among(Some(&names.iter().map(ToString::to_string).collect::<Vec<_>>()));
        assert_eq!(Method::among(None), Method::Basic);
        assert_eq!(of(&["client_secret_post"]), Method::Post);
        assert_eq!(of(&["client_secret_post", "client_secret_basic"]), Method::Basic);
        assert_eq!(of(&[]), Method::Basic);
    }

    fn read(status: u16, body: &str) -> Result<Tokens, Error> {
        let status = StatusCode::from_u16(status).unwrap();
        tokens(&Answer { status, headers: HeaderMap::new(), body: body.to_owned().into() })
    }

    #[test]
    fn tokens_are_read() {
        let body = r#"{"access_token":"t","token_type":"BEARER","expires_in":3600,"refresh_token":"r","scope":"x"}"#;
        let given = read(200, body).unwrap();
        assert_eq!((given.access.reveal(), given.expires_in), ("t", Some(Duration::from_secs(3600))));
        assert!(!format!("{given:?}").contains("\"t\""), "{given:?}");
        let given = read(200, r#"{"access_token":"t","token_type":"Bearer","expires_in":"60"}"#).unwrap();
        assert_eq!(given.expires_in, Some(Duration::from_secs(60)));
        for unknown in ["null", "\"soon\"", "[]"] {
            let body = format!(r#"{{"access_token":"t","token_type":"Bearer","expires_in":{unknown}}}"#);
            assert_eq!(read(200, &body).unwrap().expires_in, None);
        }
        let body = r#"{"access_token":"t","token_type":"Bearer","expires_in":-1e300}"#;
        assert_eq!(read(200, body).unwrap().expires_in, Some(Duration::ZERO));
    }

    #[test]
    fn what_can_not_be_used_is_an_error_without_secrets() {
        for (status, body, expected) in [
            (400, r#"{"error":"invalid_grant","error_description":"hush"}"#, "refused: invalid_grant"),
            (401, r#"{"error":"hush"}"#, "an error of its own"),
            (503, r#"{"error":"invalid_grant"}"#, "no answer"),
            (302, "", "no answer"),
            (200, r#"{"access_token":"hush","token_type":"DPoP"}"#, "no bearer token"),
            (200, r#"{"access_token":"hush hush","token_type":"Bearer"}"#, "stand in a header"),
            (200, r#"{"access_token":"","token_type":"Bearer"}"#, "stand in a header"),
            (200, r#"{"access_token":"hush"}"#, "no answer"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.to_string().contains(expected) && !format!("{error:?}").contains("hush"), "{error:?}");
        }
    }
}
