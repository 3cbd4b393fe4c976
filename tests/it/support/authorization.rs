//! An authorization server in this process, and an MCP endpoint that takes its tokens alone. What they do otherwise than they
//! should, the test says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use taskgate::demo::server::{Options, Server};
use taskgate::jobs::Jobs;
use taskgate::oauth::fetch::{Fetcher, encoded};
use taskgate::oauth::pkce;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{Value, json, within};

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Of the query, or of the form.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Request {
    /// A field; empty where it is not there.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// What `Authorization` says; empty without it.
    pub(crate) fn authorization(&self) -> &str {
        self.headers.get("authorization").map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What the two servers do.
pub(crate) struct Ways {
    /// The resource's metadata; `Null` where there is none.
    pub(crate) resource: Value,
    /// The authorization server's metadata, by the path at which it is served.
    pub(crate) metadata: Vec<(String, Value)>,
    /// The challenge of a 401, if any.
    pub(crate) challenge: Option<String>,
    /// Where `/authorize` sends the browser: fields of the response that are other than they should be. An empty one is left out.
    pub(crate) response: Vec<(&'static str, String)>,
    /// Whether the response names the issuer.
    pub(crate) names_itself: bool,
    /// What `/register` answers instead of a registration.
    pub(crate) registration: Option<(u16, Value)>,
    /// What `/token` answers instead of tokens.
    pub(crate) token: Option<(u16, Value)>,
    /// Members of its answer that are other than they should be.
    pub(crate) tokens: Value,
    /// Scopes that every call needs.
    pub(crate) needed: Vec<String>,
    /// Scopes that are given at most.
    pub(crate) given: Option<Vec<String>>,
    /// Calls of these methods (`GET` and `DELETE` are some) are refused with that status, whatever they show.
    pub(crate) refused: Vec<(&'static str, u16)>,
    /// Tokens of these numbers are not taken any more, from 1.
    pub(crate) revoked: Vec<u32>,
    given_tokens: Vec<Given>,
    codes: Vec<Code>,
    /// Names the next token, client or code.
    next: u32,
}

struct Given {
    access: String,
    refresh: String,
    number: u32,
    scope: String,
}

struct Code {
    code: String,
    challenge: String,
    redirect_uri: String,
    client_id: String,
    scope: String,
}

/// Both servers. They stop when this is dropped.
pub(crate) struct AuthServer {
    shared: Arc<Shared>,
    jobs: Jobs,
}

struct Shared {
    url: String,
    ways: Mutex<Ways>,
    asked: watch::Sender<Vec<Request>>,
    /// The server without any credentials.
    server: Option<Server>,
    fetcher: Fetcher,
}

impl Shared {
    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const SERVER: &str = "/.well-known/oauth-authorization-server";

impl AuthServer {
    /// Ones that do everything right, in front of a demo server.
    pub(crate) async fn start(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}");
        let metadata = json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "registration_endpoint": format!("{url}/register"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["plain", "S256"],
            "authorization_response_iss_parameter_supported": true,
        });
        let resource =
            json!({"resource": format!("{url}/mcp"), "authorization_servers": [url], "scopes_supported": ["all"]});
        let ways = Ways {
            resource,
            metadata: vec![(SERVER.to_owned(), metadata)],
            challenge: Some(format!("Bearer resource_metadata=\"{url}{RESOURCE}/mcp\", scope=\"tools\"")),
            response: Vec::new(),
            names_itself: true,
            registration: None,
            token: None,
            tokens: json!({}),
            needed: Vec::new(),
            given: None,
            refused: Vec::new(),
            revoked: Vec::new(),
            given_tokens: Vec::new(),
            codes: Vec::new(),
            next: 0,
        };
        let server = Some(Server::start_on_loopback(options).await.unwrap());
        let shared = Arc::new(Shared {
            url,
            ways: Mutex::new(ways),
            asked: watch::Sender::default(),
            server,
            fetcher: Fetcher::new(),
        });
        let authority = Self { shared: Arc::clone(&shared), jobs: Jobs::default() };
        let jobs = authority.jobs.clone();
        authority.jobs.spawn("authority", async move {
            while let Some(Ok((stream, _))) = jobs.stopping().run_until_cancelled(listener.accept()).await {
                let (shared, stopping) = (Arc::clone(&shared), jobs.stopping().clone());
                jobs.spawn("authority's connection", async move {
                    stopping.run_until_cancelled(serve(stream, &shared)).await;
                });
            }
        });
        authority
    }

    /// The issuer, and where everything else is.
    pub(crate) fn url(&self) -> &str {
        &self.shared.url
    }

    /// The endpoint that takes tokens.
    pub(crate) fn mcp(&self) -> String {
        format!("{}/mcp", self.shared.url)
    }

    /// Has them do something otherwise from now on.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Ways)) {
        change(&mut self.shared.ways());
    }

    /// Sets a member of the authorization server's metadata; `null` takes it away.
    pub(crate) fn describe(&self, member: &str, value: Value) {
        let mut ways = self.shared.ways();
        let metadata = ways.metadata[0].1.as_object_mut().unwrap();
        if value.is_null() {
            metadata.remove(member);
        } else {
            metadata.insert(member.to_owned(), value);
        }
    }

    /// What came to a path.
    pub(crate) fn asked(&self, path: &str) -> Vec<Request> {
        self.shared.asked.borrow().iter().filter(|request| request.path == path).cloned().collect()
    }

    /// The paths of everything that came but calls, in their order.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.shared.asked.borrow().iter().map(|request| request.path.clone()).filter(|path| path != "/mcp").collect()
    }

    /// A token, as if somebody had logged in.
    pub(crate) fn token(&self, scope: &str) -> String {
        let mut ways = self.shared.ways();
        let (access, refresh) = (ways.name("access"), ways.name("refresh"));
        let number = u32::try_from(ways.given_tokens.len()).unwrap() + 1;
        ways.given_tokens.push(Given { access: access.clone(), refresh, number, scope: scope.to_owned() });
        access
    }

    /// What `Authorization` said of each call of a method.
    pub(crate) fn shown(&self, method: &str) -> Vec<String> {
        let is_of = |request: &Request| {
            let body = request.json();
            body["method"].as_str().unwrap_or(&request.method) == method
        };
        self.asked("/mcp")
            .iter()
            .filter(|request| is_of(request))
            .map(|request| request.authorization().to_owned())
            .collect()
    }

    /// Waits for so many calls of a method.
    #[track_caller]
    pub(crate) fn until_called(&self, method: &'static str, count: usize) -> impl Future<Output = ()> {
        let mut asked = self.shared.asked.subscribe();
        within(async move {
            let is_of = |request: &&Request| request.json()["method"].as_str().unwrap_or(&request.method) == method;
            asked.wait_for(|all| all.iter().filter(is_of).count() >= count).await.unwrap();
        })
    }

    /// The server behind the endpoint.
    pub(crate) fn server(&self) -> &Server {
        self.shared.server.as_ref().unwrap()
    }
}

impl Drop for AuthServer {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

/// What a user's browser does with a URL: it goes where it is sent. Gives the last page.
pub(crate) async fn browse(url: &str) -> String {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let (host, target) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        let mut stream = TcpStream::connect(host).await.unwrap();
        let request = format!("GET /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        match page.lines().find_map(|line| line.strip_prefix("location: ")) {
            Some(next) => url = next.to_owned(),
            None => return page,
        }
    }
    panic!("it is sent around in a circle");
}

/// Serves one connection, a request after the other.
async fn serve(mut stream: TcpStream, shared: &Arc<Shared>) {
    let mut buffer = BytesMut::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        shared.asked.send_modify(|asked| asked.push(request.clone()));
        let (status, headers, body) = answer(&request, shared).await;
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        let is_last = request.headers.get("connection").is_some_and(|value| value == "close");
        if stream.write_all(&[head.as_bytes(), &body].concat()).await.is_err() || is_last {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut BytesMut) -> Option<Request> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|end| end == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.split_to(end).to_vec()).unwrap();
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: HeaderMap = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.trim().parse::<HeaderValue>().unwrap()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer.split_to(length).freeze();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let form = if headers.get("content-type").is_some_and(|kind| kind == "application/x-www-form-urlencoded") {
        String::from_utf8(body.to_vec()).unwrap()
    } else {
        query.to_owned()
    };
    let fields = form
        .split('&')
        .filter_map(|field| field.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect();
    Some(Request { method, path: path.to_owned(), fields, headers, body })
}

fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(&part[..2], 16).unwrap());
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(out).unwrap()
}

type Answer = (u16, String, Bytes);

fn document(status: u16, document: &Value) -> Answer {
    (status, "content-type: application/json\r\n".to_owned(), document.to_string().into())
}

fn nothing(status: u16, headers: String) -> Answer {
    (status, headers, Bytes::new())
}

async fn answer(request: &Request, shared: &Arc<Shared>) -> Answer {
    let known = {
        let ways = shared.ways();
        let metadata = ways.metadata.iter().find(|(path, _)| *path == request.path);
        metadata.map(|(_, metadata)| document(200, metadata))
    };
    if let Some(known) = known {
        return known;
    }
    match &*request.path {
        "/authorize" => shared.ways().authorize(request, &shared.url),
        "/token" => shared.ways().grant(request),
        "/register" => shared.ways().register(request),
        "/mcp" => {
            let refusal = shared.ways().refusal(request);
            match refusal {
                Some(refusal) => refusal,
                None => passed_on(request, shared).await,
            }
        }
        path if path.starts_with(RESOURCE) => {
            let ways = shared.ways();
            if ways.resource.is_null() { nothing(404, String::new()) } else { document(200, &ways.resource) }
        }
        _ => nothing(404, String::new()),
    }
}

async fn passed_on(request: &Request, shared: &Shared) -> Answer {
    if request.method == "GET" {
        return nothing(405, String::new());
    }
    let url = shared.server.as_ref().unwrap().url().parse().unwrap();
    let mut headers = request.headers.clone();
    for name in ["host", "content-length", "authorization"] {
        headers.remove(name);
    }
    let method: Method = request.method.parse().unwrap();
    let answer = shared.fetcher.exchange(method, &url, headers, request.body.clone()).await.unwrap();
    let mut lines = String::new();
    for name in ["content-type", "mcp-session-id"] {
        if let Some(value) = answer.headers.get(name) {
            lines.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
    }
    (answer.status.as_u16(), lines, answer.body)
}

impl Ways {
    fn name(&mut self, what: &str) -> String {
        self.next += 1;
        format!("{what}-{}", self.next)
    }

    fn authorize(&mut self, request: &Request, issuer: &str) -> Answer {
        let code = self.name("code");
        self.codes.push(Code {
            code: code.clone(),
            challenge: request.field("code_challenge").to_owned(),
            redirect_uri: request.field("redirect_uri").to_owned(),
            client_id: request.field("client_id").to_owned(),
            scope: request.field("scope").to_owned(),
        });
        let mut fields = vec![("code", code), ("state", request.field("state").to_owned())];
        if self.names_itself {
            fields.push(("iss", issuer.to_owned()));
        }
        for (name, value) in &self.response {
            fields.retain(|(known, _)| known != name);
            if !value.is_empty() {
                fields.push((name, value.clone()));
            }
        }
        let query: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        nothing(302, format!("location: {}?{}\r\n", request.field("redirect_uri"), query.join("&")))
    }

    fn grant(&mut self, request: &Request) -> Answer {
        if let Some((status, refusal)) = &self.token {
            return document(*status, refusal);
        }
        let refused = |error: &str| document(400, &json!({"error": error, "error_description": "hush"}));
        let scope = match request.field("grant_type") {
            "authorization_code" => {
                let Some(place) = self.codes.iter().position(|code| code.code == request.field("code")) else {
                    return refused("invalid_grant");
                };
                // Good for once.
                let code = self.codes.remove(place);
                let challenge = pkce::challenge(&request.field("code_verifier").into());
                let is_good = code.challenge == challenge && code.redirect_uri == request.field("redirect_uri");
                let is_client = request.field("client_id") == code.client_id || !request.authorization().is_empty();
                if !is_good || !is_client {
                    return refused("invalid_grant");
                }
                code.scope
            }
            "refresh_token" => {
                let token = request.field("refresh_token");
                let Some(place) = self.given_tokens.iter().position(|given| given.refresh == token) else {
                    return refused("invalid_grant");
                };
                self.given_tokens.remove(place).scope
            }
            "client_credentials" | "urn:ietf:params:oauth:grant-type:token-exchange" => {
                request.field("scope").to_owned()
            }
            _ => return refused("unsupported_grant_type"),
        };
        let scope: Vec<_> = scope
            .split(' ')
            .filter(|scope| self.given.as_ref().is_none_or(|given| given.iter().any(|known| known == scope)))
            .collect();
        let scope = scope.join(" ");
        let (access, refresh) = (self.name("access"), self.name("refresh"));
        let number = u32::try_from(self.given_tokens.len()).unwrap() + 1;
        let mut tokens =
            json!({"access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh});
        for (member, value) in self.tokens.as_object().unwrap() {
            tokens[member] = value.clone();
        }
        self.given_tokens.push(Given { access, refresh, number, scope });
        document(200, &tokens)
    }

    fn register(&mut self, request: &Request) -> Answer {
        if let Some((status, refusal)) = &self.registration {
            return document(*status, refusal);
        }
        let mut client = request.json();
        client["client_id"] = json!(self.name("client"));
        document(201, &client)
    }

    /// What a call without a good token gets.
    fn refusal(&self, request: &Request) -> Option<Answer> {
        let body = request.json();
        let method = body["method"].as_str().unwrap_or(&request.method);
        if let Some((_, status)) = self.refused.iter().find(|(refused, _)| *refused == method) {
            return Some(nothing(*status, "www-authenticate: Bearer realm=\"theirs\"\r\n".to_owned()));
        }
        let token = request.authorization().strip_prefix("Bearer ").unwrap_or_default();
        let given =
            self.given_tokens.iter().find(|given| given.access == token && !self.revoked.contains(&given.number));
        let Some(given) = given else {
            let challenge = self.challenge.as_ref().map(|challenge| format!("www-authenticate: {challenge}\r\n"));
            return Some(nothing(401, challenge.unwrap_or_default()));
        };
        let has = |scope: &String| given.scope.split(' ').any(|given| given == scope);
        if self.needed.iter().all(has) {
            return None;
        }
        let scope = self.needed.join(" ");
        Some(nothing(403, format!("www-authenticate: Bearer error=\"insufficient_scope\", scope=\"{scope}\"\r\n")))
    }
}
