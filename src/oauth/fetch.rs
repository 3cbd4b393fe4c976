//! Small JSON documents from other servers: one request, one bounded answer, no redirects.
//!
//! A redirect is an error and is never followed: whoever could bend one would choose where credentials go (RFC 9700, 4.11).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::de::DeserializeOwned;

/// How long a whole exchange may take.
pub const LIMIT: Duration = Duration::from_secs(10);
/// The longest document in bytes. Key sets and metadata have a few KiB.
pub const LONGEST: usize = 1 << 20;

/// A client for documents. A cheap handle.
#[derive(Clone)]
pub struct Fetcher {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetcher")
    }
}

/// Why there is no document. Says nothing of what was sent, so it may be logged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing was reached, or the connection broke.
    #[error("the server could not be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It took longer than [`LIMIT`].
    #[error("the server did not answer in time")]
    Late,
    /// It answered with another status than was asked for.
    #[error("the server answered with HTTP status {}", .0.as_u16())]
    Status(StatusCode),
    /// The document is longer than [`LONGEST`], or broke off.
    #[error("the server's document is too long or broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The document is not the JSON that was asked for.
    #[error("the server's document is not what it should be: {0}")]
    Json(String),
}

/// An answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// All of the body.
    pub body: Bytes,
}

impl Answer {
    /// The body of a successful answer, read as JSON.
    ///
    /// # Errors
    /// [`Error::Status`] for any status but 2xx, [`Error::Json`] for a body that is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if !self.status.is_success() {
            return Err(Error::Status(self.status));
        }
        // Where a value stands is told, never the value.
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::Json(format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()))
        })
    }
}

impl Default for Fetcher {
    fn default() -> Self {
        Self::new()
    }
}

impl Fetcher {
    /// A client that trusts the certificate authorities that browsers trust.
    #[must_use]
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(LIMIT / 2));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(4))
            .build(connector);
        Self { client }
    }

    /// GETs a JSON document.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn get<T: DeserializeOwned>(&self, url: &Uri) -> Result<T, Error> {
        self.exchange(Method::GET, url, HeaderMap::new(), Bytes::new()).await?.json()
    }

    /// POSTs a form and gives whatever comes back: token endpoints say in a 400 what was wrong (RFC 6749, 5.2).
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::Status`] and [`Error::Json`].
    pub async fn post_form(
        &self,
        url: &Uri,
        authorization: Option<HeaderValue>,
        fields: &[(&str, &str)],
    ) -> Result<Answer, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        if let Some(mut authorization) = authorization {
            authorization.set_sensitive(true);
            headers.insert(AUTHORIZATION, authorization);
        }
        self.exchange(Method::POST, url, headers, form(fields).into()).await
    }

    /// Sends one request and reads all of its answer.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::Status`] and [`Error::Json`].
    pub async fn exchange(
        &self,
        method: Method,
        url: &Uri,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, Error> {
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = url.clone();
        *request.headers_mut() = headers;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| Error::Unreachable(Box::new(error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, LONGEST).collect().await.map_err(Error::Body)?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(LIMIT, exchange).await.map_err(|_| Error::Late)?
    }
}

/// Fields as `application/x-www-form-urlencoded` (RFC 6749, appendix B).
#[must_use]
pub fn form(fields: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in fields {
        if !out.is_empty() {
            out.push('&');
        }
        push_encoded(&mut out, name);
        out.push('=');
        push_encoded(&mut out, value);
    }
    out
}

/// One text as part of a form or a query.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_encoded(&mut out, text);
    out
}

fn push_encoded(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0').to_ascii_uppercase();
                out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn forms_hold_any_text() {
        assert_eq!(form(&[("grant_type", "a b"), ("x", "é&=+~")]), "grant_type=a%20b&x=%C3%A9%26%3D%2B~");
        assert_eq!(form(&[]), "");
    }

    /// A server that answers one request with these bytes: its address, and what it was asked.
    async fn answering(answer: &'static str) -> (Uri, impl Future<Output = String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap()).parse().unwrap();
        let serving = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 4096];
            let length = stream.read(&mut asked).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        };
        (url, serving)
    }

    async fn got(answer: &'static str) -> Result<serde_json::Value, Error> {
        let (url, serving) = answering(answer).await;
        tokio::join!(async { Fetcher::new().get(&url).await }, serving).0
    }

    #[tokio::test]
    async fn a_document_is_read_and_anything_else_is_an_error() {
        let document = got("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"keys\":[]}").await.unwrap();
        assert_eq!(document["keys"], serde_json::json!([]));
        let error = got("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n\"secret").await.unwrap_err();
        assert!(matches!(&error, Error::Json(_)) && !error.to_string().contains("secret"), "{error}");
        let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
        let error = got(moved).await.unwrap_err();
        assert!(matches!(error, Error::Status(StatusCode::FOUND)), "{error}");
        let error = got("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n[").await.unwrap_err();
        assert!(matches!(error, Error::Body(_)), "{error}");
    }

    #[tokio::test]
    async fn a_form_is_posted_with_its_credentials() {
        let (url, serving) = answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}").await;
        let basic = HeaderValue::from_static("Basic eDp5");
        let fetcher = Fetcher::new();
        let (answer, asked) = tokio::join!(fetcher.post_form(&url, Some(basic), &[("a", "b c")]), serving);
        assert_eq!(answer.unwrap().status, StatusCode::BAD_REQUEST);
        let asked = asked.to_ascii_lowercase();
        assert!(asked.contains("authorization: basic edp5") && asked.ends_with("\r\n\r\na=b%20c"), "{asked}");
    }
}
