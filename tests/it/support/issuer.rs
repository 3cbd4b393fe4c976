//! An authorization server in this process: it publishes keys and what else a test says, and can rotate, go down, be slow
//! and lie.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use taskgate::clock::Clock;
use taskgate::jobs::Jobs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::keys::Key;
use super::{Value, json, within};

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

/// The server. It stops when it is dropped.
pub(crate) struct Issuer {
    address: SocketAddr,
    shared: Arc<Shared>,
    key: Mutex<Arc<Key>>,
    jobs: Jobs,
}

struct Shared {
    /// By path: status, further header lines, body.
    answers: Mutex<HashMap<String, (u16, String, String)>>,
    asked: watch::Sender<Vec<Asked>>,
    is_down: AtomicBool,
    is_open: watch::Sender<bool>,
}

impl Issuer {
    /// One with a key `one` for ES256, which is published as usual.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            answers: Mutex::default(),
            asked: watch::Sender::default(),
            is_down: AtomicBool::new(false),
            is_open: watch::Sender::new(true),
        });
        let key = Arc::new(Key::new("one", "ES256"));
        let address = listener.local_addr().unwrap();
        let issuer = Self { address, shared, key: Mutex::new(Arc::clone(&key)), jobs: Jobs::default() };
        let metadata = json!({"issuer": issuer.url(), "jwks_uri": issuer.at("/keys"),
            "authorization_endpoint": issuer.at("/authorize"), "token_endpoint": issuer.at("/token"),
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]});
        issuer.answer("/.well-known/oauth-authorization-server", 200, &metadata);
        issuer.publish(&[key.jwk()]);
        let (shared, jobs) = (Arc::clone(&issuer.shared), issuer.jobs.clone());
        issuer.jobs.spawn("issuer", async move {
            while let Some(Ok((stream, _))) = jobs.stopping().run_until_cancelled(listener.accept()).await {
                let (shared, stopping) = (Arc::clone(&shared), jobs.stopping().clone());
                jobs.spawn("issuer's connection", async move {
                    stopping.run_until_cancelled(serve(stream, &shared)).await;
                });
            }
        });
        issuer
    }

    /// Its name.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A URL of its.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers so at a path from now on. Where nothing has been said the answer is 404.
    pub(crate) fn answer(&self, path: &str, status: u16, body: &Value) {
        self.answer_with(path, status, "", &body.to_string());
    }

    /// The same with header lines (each with its `\r\n`) and a body that may be no JSON.
    pub(crate) fn answer_with(&self, path: &str, status: u16, headers: &str, body: &str) {
        let answer = (status, headers.to_owned(), body.to_owned());
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), answer);
    }

    /// Publishes these keys and no other.
    pub(crate) fn publish(&self, keys: &[Value]) {
        self.answer("/keys", 200, &json!({"keys": keys}));
    }

    /// The key that it signs with.
    pub(crate) fn key(&self) -> Arc<Key> {
        Arc::clone(&self.key.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Signs with another key from now on, and publishes it alone.
    pub(crate) fn rotate(&self, key: Key) {
        self.publish(&[key.jwk()]);
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
    }

    /// Breaks every connection without an answer, or serves again.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Answers only when it is told to go on, or answers again.
    pub(crate) fn set_held(&self, is_held: bool) {
        self.shared.is_open.send_replace(!is_held);
    }

    /// The requests that came to a path.
    pub(crate) fn asked(&self, path: &str) -> Vec<Asked> {
        self.shared.asked.borrow().iter().filter(|asked| asked.path == path).cloned().collect()
    }

    /// Waits for so many requests at a path.
    #[track_caller]
    pub(crate) fn until_asked(&self, path: &'static str, count: usize) -> impl Future<Output = ()> {
        let mut asked = self.shared.asked.subscribe();
        within(async move {
            let of = |all: &Vec<Asked>| all.iter().filter(|asked| asked.path == path).count() >= count;
            asked.wait_for(of).await.unwrap();
        })
    }

    /// What a good token for an audience says.
    pub(crate) fn claims(&self, audience: &str) -> Value {
        let now = Clock::system().now().as_millis() / 1000;
        json!({"iss": self.url(), "sub": "ann", "aud": audience, "client_id": "app", "iat": now, "exp": now + 3600})
    }

    /// A token that says this, signed with its key.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        let key = self.key();
        key.sign(&key.header(), claims)
    }

    /// A good token for an audience, whose claims are changed so; `null` takes one away.
    pub(crate) fn token(&self, audience: &str, changes: Value) -> String {
        let mut claims = self.claims(audience);
        let all = claims.as_object_mut().unwrap();
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => all.remove(name),
                value => all.insert(name.clone(), value.clone()),
            };
        }
        self.sign(&claims)
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

/// Answers one request.
async fn serve(mut stream: TcpStream, shared: &Shared) {
    let Some(asked) = read(&mut stream).await else { return };
    let path = asked.path.clone();
    shared.asked.send_modify(|all| all.push(asked));
    if shared.is_open.subscribe().wait_for(|is_open| *is_open).await.is_err() || shared.is_down.load(Ordering::SeqCst) {
        return;
    }
    let answer = shared.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
    let (status, headers, body) = answer.unwrap_or_else(|| (404, String::new(), "{}".to_owned()));
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    // Whoever asked may have gone.
    drop(stream.write_all((head + &body).as_bytes()).await);
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut read = BytesMut::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(read.split_to(end).to_vec()).unwrap();
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    }
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    while read.len() < length {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { path, headers, body: String::from_utf8(read.to_vec()).unwrap() })
}
