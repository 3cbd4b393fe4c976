//! Where the browser comes back to (RFC 8252, 7.3): a listener on the loopback address that takes one answer and ends.
//!
//! Browsers open connections without saying anything and ask for icons; none of that may keep the answer out.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::authorization::{Error as Unreadable, Response};

/// How long the user has.
pub const LIMIT: Duration = Duration::from_secs(300);
/// How long one connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of a request, in bytes.
const LONGEST: usize = 32 * 1024;
/// So many connections are read at the same time.
const MOST: usize = 16;

const PATH: &str = "/callback";

/// A listener for one answer.
#[derive(Debug)]
pub struct Redirect {
    listener: TcpListener,
    port: u16,
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no place to listen.
    #[error("this machine has no port for the browser to come back to")]
    Bind(#[from] io::Error),
    /// Nobody came within [`LIMIT`].
    #[error("the browser did not come back within {} minutes", LIMIT.as_secs() / 60)]
    Late,
    /// What came can't be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl Redirect {
    /// Listens, on the port that a registration names if that is free.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub async fn bind(preferred: Option<u16>) -> Result<Self, Error> {
        let on = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = match on(preferred.unwrap_or_default()).await {
            Err(_) if preferred.is_some() => on(0).await?,
            bound => bound?,
        };
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The redirect URI.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("http://127.0.0.1:{}{PATH}", self.port)
    }

    /// Waits for the answer. The first one counts, whatever it says.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Unreadable`].
    pub async fn answer(self) -> Result<Response, Error> {
        tokio::time::timeout(LIMIT, self.first()).await.map_err(|_| Error::Late)?
    }

    async fn first(&self) -> Result<Response, Error> {
        let host = format!("127.0.0.1:{}", self.port);
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if open.len() < MOST => {
                    // One that failed was that peer's; the next is another.
                    if let Ok((stream, _)) = accepted {
                        open.push(tokio::time::timeout(PATIENCE, served(stream, &host)));
                    }
                }
                Some(served) = open.next() => {
                    if let Ok(Some(query)) = served {
                        return Ok(Response::read(&query)?);
                    }
                }
            }
        }
    }
}

/// Reads one request and answers it; its query, if it is the one that is waited for.
async fn served(mut stream: TcpStream, host: &str) -> Option<String> {
    let head = head(&mut stream).await?;
    let (status, found) = match query(&head, host) {
        Some(query) => ("200 OK", Some(query.to_owned())),
        None => ("404 Not Found", None),
    };
    let said = if found.is_some() { "Back to the terminal: you can close this page." } else { "Nothing is here." };
    let page = format!("<!doctype html><meta charset=utf-8><title>taskgate</title><p>{said}</p>");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    // A browser that does not read its page has answered all the same.
    if let Err(error) = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }
    .await
    {
        tracing::debug!(%error, "the browser did not read its page");
    }
    found
}

async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= LONGEST || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    String::from_utf8(head).ok()
}

/// The query of a `GET /callback?..` for this host. Pages elsewhere whose name was made to lead here name another one.
fn query<'a>(head: &'a str, host: &str) -> Option<&'a str> {
    let mut lines = head.split("\r\n");
    let target = lines.next()?.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?;
    let mut hosts = lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let is_ours = hosts.next().is_some_and(|(_, value)| value.trim() == host) && hosts.next().is_none();
    let (path, query) = target.split_once('?')?;
    (is_ours && path == PATH).then_some(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(port: u16, text: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_answer_comes_through_whatever_else_comes() {
        let redirect = Redirect::bind(None).await.unwrap();
        let (port, uri) = (redirect.port(), redirect.uri());
        assert_eq!(uri, format!("http://127.0.0.1:{port}/callback"));
        let silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let visits = async {
            for refused in [
                format!("GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"),
                format!("POST /callback?state=s HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"),
                "GET /callback?state=s HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
                "GET /callback?state=s HTTP/1.1\r\n\r\n".to_owned(),
                "nonsense\r\n\r\n".to_owned(),
            ] {
                let answer = said(port, &refused).await;
                assert!(answer.starts_with("HTTP/1.1 404 "), "{refused} {answer}");
            }
            said(port, &format!("GET /callback?state=s&code=<c> HTTP/1.1\r\nhOST: 127.0.0.1:{port}\r\n\r\n")).await
        };
        let (response, page) = tokio::join!(redirect.answer(), visits);
        assert!(page.starts_with("HTTP/1.1 200 ") && !page.contains("<c>"), "{page}");
        let state = super::super::secret::Secret::from("s");
        let expected = super::super::authorization::Expected { state: &state, issuer: "x", names_itself: false };
        assert_eq!(response.unwrap().code(&expected).unwrap().reveal(), "<c>");
        drop(silent);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_for_ever() {
        let redirect = Redirect::bind(None).await.unwrap();
        let again = Redirect::bind(Some(redirect.port())).await.unwrap();
        assert_ne!(again.port(), redirect.port());
        assert!(matches!(redirect.answer().await, Err(Error::Late)));
    }
}
