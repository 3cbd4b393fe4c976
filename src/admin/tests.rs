//! The admin address over real sockets: who is answered, what, and who is not.

use super::*;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::metrics::label::RejectReason;

/// A served address and what stands behind it.
struct Admin {
    address: SocketAddr,
    state: Arc<AdminState>,
    jobs: Jobs,
    serving: JoinHandle<()>,
}

impl Admin {
    async fn start(token: Option<&str>) -> Self {
        let metrics = Arc::new(Metrics::new(&[Arc::from("reports")], &[]));
        let state = Arc::new(AdminState::new(metrics, token.map(Token::new)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let jobs = Jobs::default();
        let serving = jobs.spawn("admin", serve(listener, Arc::clone(&state), jobs.clone()));
        Self { address, state, jobs, serving }
    }

    /// Sends bytes and reads until the other side closes.
    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let answer = self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost:9090\r\n{headers}\r\n")).await;
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

#[tokio::test]
async fn alive_and_ready_until_it_is_stopping() {
    let admin = Admin::start(None).await;
    assert_eq!(admin.get("/livez", "").await.0, 200);
    assert_eq!(admin.get("/readyz", "").await.0, 200);

    admin.state.set_store_available(false);
    let (status, answer) = admin.get("/readyz", "").await;
    assert_eq!(status, 503);
    assert!(answer.ends_with("store unavailable\n"), "{answer}");
    admin.state.set_store_available(true);
    admin.state.set_key_differs(true);
    let (status, answer) = admin.get("/readyz", "").await;
    assert!(status == 503 && answer.ends_with("secrets.key is not that of the other replicas\n"), "{answer}");
    admin.state.set_key_differs(false);
    assert_eq!(admin.get("/readyz?verbose", "").await.0, 200);

    admin.state.stopping();
    let (status, answer) = admin.get("/readyz", "").await;
    assert_eq!(status, 503);
    assert!(answer.ends_with("stopping\n"), "{answer}");
    assert_eq!(admin.get("/livez", "").await.0, 200);
}

#[tokio::test]
async fn not_ready_while_routes_can_serve_nobody() {
    let names = Arc::new(std::sync::Mutex::new(Vec::<Arc<str>>::new()));
    let (shown, metrics) = (Arc::clone(&names), Arc::new(Metrics::new(&[], &[])));
    let state = AdminState::new(metrics, None).cut_off_by(move || shown.lock().unwrap().clone());
    assert_eq!(state.not_ready(), None);
    *names.lock().unwrap() = vec!["reports".into(), "mail".into()];
    let why = state.not_ready().unwrap();
    let routes: Vec<&str> = why.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(routes, ["route reports", "route mail"]);
    names.lock().unwrap().clear();
    assert_eq!(state.not_ready(), None);
}

#[tokio::test]
async fn metrics_are_exposed() {
    let admin = Admin::start(None).await;
    admin.state.metrics.rejected("", RejectReason::Credentials);
    let (status, answer) = admin.get("/metrics", "").await;
    assert_eq!(status, 200);
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains("taskgate_rejected_total{tenant=\"other\",reason=\"credentials\"} 1\n"), "{answer}");
    // The accepting job and the connection's own.
    assert!(answer.contains("taskgate_jobs 2\n"), "{answer}");
}

#[tokio::test]
async fn metrics_want_the_token_where_there_is_one() {
    let admin = Admin::start(Some("secret")).await;
    for headers in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer Secret\r\n",
        "Authorization: Bearer secret2\r\n",
        "Authorization: Basic secret\r\n",
        "Authorization: secret\r\n",
        "X-API-Key: secret\r\n",
        "Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n",
    ] {
        let (status, answer) = admin.get("/metrics", headers).await;
        assert_eq!(status, 401, "{headers}");
        assert!(answer.contains("www-authenticate: Bearer realm="), "{answer}");
        assert!(!answer.contains("taskgate_"), "{answer}");
    }
    assert_eq!(admin.get("/metrics", "Authorization: bearer secret\r\n").await.0, 200);
    assert_eq!(admin.get("/livez", "").await.0, 200);
    assert_eq!(admin.get("/readyz", "").await.0, 200);
    assert!(!format!("{:?}", admin.state).contains("secret"));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let admin = Admin::start(None).await;
    for path in ["/", "/livez/", "/metrics/x", "/mcp", "//livez", "/LIVEZ"] {
        assert_eq!(admin.get(path, "").await.0, 404, "{path}");
    }
    for method in ["POST", "DELETE", "OPTIONS", "PROPFIND"] {
        let answer =
            admin.send(&format!("{method} /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.contains("allow: GET, HEAD"), "{answer}");
    }
    let answer = admin.send("HEAD /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn foreign_hosts_are_refused_on_a_loopback_address() {
    let admin = Admin::start(None).await;
    let answer = async |host: &str| admin.send(&format!("GET /livez HTTP/1.1\r\n{host}\r\n")).await;
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.2:9090", "[::1]:9090"] {
        let answer = answer(&format!("Host: {host}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.evil.example", "", "a b"] {
        let answer = answer(&format!("Host: {host}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    let two = answer("Host: localhost\r\nHost: localhost\r\n").await;
    assert!(two.starts_with("HTTP/1.1 403 "), "{two}");
    assert!(admin.send("GET /livez HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 200 "));
}

#[tokio::test]
async fn garbage_and_endless_headers_end_the_connection_alone() {
    let admin = Admin::start(None).await;
    let endless = format!("GET /livez HTTP/1.1\r\nX: {}", "x".repeat(64 * 1024));
    for bytes in ["\u{1}\u{2}\u{3}\r\n\r\n", "GET\r\n\r\n", "{\"jsonrpc\":\"2.0\"}\r\n\r\n"] {
        assert!(admin.send(bytes).await.starts_with("HTTP/1.1 400 "), "{bytes:?}");
    }
    let mut stream = TcpStream::connect(admin.address).await.unwrap();
    // The other side may close while this is being written.
    let written = stream.write_all(endless.as_bytes()).await;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 431 ") || written.is_err() || read.is_err(), "{answer:?}");
    assert_eq!(admin.get("/livez", "").await.0, 200);
}

#[tokio::test]
async fn one_more_connection_than_there_are_slots_waits_for_one() {
    let admin = Admin::start(None).await;
    let mut silent = Vec::new();
    for _ in 1..MAX_CONNECTIONS {
        silent.push(TcpStream::connect(admin.address).await.unwrap());
    }
    assert_eq!(admin.get("/livez", "").await.0, 200);

    silent.push(TcpStream::connect(admin.address).await.unwrap());
    // One job accepts, and each connection has one.
    while admin.jobs.running() < MAX_CONNECTIONS + 1 {
        tokio::task::yield_now().await;
    }
    let waiting = TcpStream::connect(admin.address).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(admin.jobs.running(), MAX_CONNECTIONS + 1);
    drop((waiting, silent));
    assert_eq!(admin.get("/livez", "").await.0, 200);
}

#[tokio::test]
async fn it_ends_with_the_jobs() {
    let admin = Admin::start(None).await;
    assert_eq!(admin.get("/livez", "").await.0, 200);
    assert_eq!(admin.jobs.stop(Duration::from_secs(10)).await, 0);
    admin.serving.await.unwrap();
    assert!(TcpStream::connect(admin.address).await.is_err());
}

#[test]
fn a_token_is_needed_wherever_others_can_reach() {
    let lacks = |address: &str, token: Option<&str>| {
        Config { address: address.parse().unwrap(), token: token.map(Token::new) }.lacks_token()
    };
    assert!(!lacks("127.0.0.1:9090", None));
    assert!(!lacks("[::1]:9090", None));
    assert!(lacks("0.0.0.0:9090", None));
    assert!(lacks("10.0.0.5:9090", None));
    assert!(lacks("[::]:9090", None));
    assert!(!lacks("0.0.0.0:9090", Some("secret")));
}

#[tokio::test]
async fn pages_read_nothing() {
    let admin = Admin::start(None).await;
    for path in ["/livez", "/metrics"] {
        let origin = "Origin: http://localhost:3000\r\n";
        let answer = admin.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{origin}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(!answer.to_ascii_lowercase().contains("access-control"), "{answer}");
    }
}
