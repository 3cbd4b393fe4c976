//! Connections against a server that says when what happens.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A request under way.
type Asked = tokio::task::JoinHandle<Result<Response<Arriving>, Error>>;

/// A server that does what a test says, connection by connection.
struct Server {
    listener: TcpListener,
    pool: Arc<Pool>,
    jobs: Jobs,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let jobs = Jobs::default();
        Self { listener, pool: Pool::new(HttpConnector::new(), url, jobs.clone()), jobs }
    }

    async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// Sends a request in a job of its own.
    fn ask(&self, body: &'static str) -> Asked {
        let pool = Arc::clone(&self.pool);
        self.jobs.spawn("ask", async move { pool.request(request(body)).await })
    }

    /// Sends a request that comes in on a new connection.
    async fn asked(&self, body: &'static str) -> (Asked, TcpStream) {
        let asked = self.ask(body);
        let mut socket = self.accept().await;
        heard(&mut socket, body).await;
        (asked, socket)
    }

    /// A connection that has been used and waits.
    async fn used(&self) -> TcpStream {
        let (asked, mut socket) = self.asked("first").await;
        say(&mut socket, SHORT).await;
        assert_eq!(text(asked.await.unwrap().unwrap()).await.unwrap(), "ok");
        assert_eq!(self.idle(), 1);
        socket
    }

    fn idle(&self) -> usize {
        self.pool.idle().connections.len()
    }
}

fn request(body: &'static str) -> Box<Sent> {
    Box::new(Request::post("/mcp").header("host", "here").body(Full::from(body)).unwrap())
}

/// Reads a request whose body is that.
async fn heard(socket: &mut TcpStream, body: &str) {
    let (mut read, mut buffer) = (Vec::new(), [0; 1024]);
    while !read.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
        let length = socket.read(&mut buffer).await.unwrap();
        assert_ne!(length, 0, "the client closed");
        read.extend_from_slice(&buffer[..length]);
    }
    assert!(read.starts_with(b"POST /mcp HTTP/1.1\r\n"), "{}", String::from_utf8_lossy(&read));
}

async fn say(socket: &mut TcpStream, text: &str) {
    socket.write_all(text.as_bytes()).await.unwrap();
}

async fn is_closed(socket: &mut TcpStream) -> bool {
    // A reset, where something was unread.
    socket.read(&mut [0]).await.map_or(true, |length| length == 0)
}

async fn text(response: Response<Arriving>) -> Result<Bytes, Error> {
    Ok(response.into_body().collect().await?.to_bytes())
}

const SHORT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = Server::start().await;
    let mut socket = server.used().await;
    let asked = server.ask("second");
    heard(&mut socket, "second").await;
    assert_eq!(server.idle(), 0);
    say(&mut socket, "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    assert_eq!(text(asked.await.unwrap().unwrap()).await.unwrap(), "");
    assert_eq!(server.idle(), 0, "what the server closes is not kept");
}

#[tokio::test]
async fn a_body_brings_its_connection_back_at_its_end() {
    let server = Server::start().await;
    let (asked, mut socket) = server.asked("pieces").await;
    say(&mut socket, CHUNKED).await;
    let mut body = asked.await.unwrap().unwrap().into_body();
    for piece in ["one", "two", "six"] {
        say(&mut socket, &format!("3\r\n{piece}\r\n")).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), piece);
        assert_eq!(server.idle(), 0);
    }
    // Several at once are there one by one.
    say(&mut socket, "1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n").await;
    assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
    assert_eq!(server.idle(), 1);
}

#[tokio::test]
async fn whoever_takes_many_pieces_lets_others_run() {
    let server = Server::start().await;
    let (asked, mut socket) = server.asked("pieces").await;
    say(&mut socket, CHUNKED).await;
    let mut body = asked.await.unwrap().unwrap().into_body();
    say(&mut socket, &"1\r\n.\r\n".repeat(1000)).await;
    body.frame().await.unwrap().unwrap();
    // As one does who never waits: all that there is in one turn,
    let first = poll_fn(|cx| {
        let mut taken = 0;
        while Pin::new(&mut body).poll_frame(cx).is_ready() {
            taken += 1;
        }
        Poll::Ready(taken)
    });
    let first = first.await;
    assert!((1..500).contains(&first), "{first}");
    // and the rest is there in the next ones.
    for _ in first + 1..1000 {
        body.frame().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn whoever_asked_last_hears_of_the_next_piece() {
    let server = Server::start().await;
    let (asked, mut socket) = server.asked("pieces").await;
    say(&mut socket, CHUNKED).await;
    let mut body = asked.await.unwrap().unwrap().into_body();
    for piece in ["one", "two"] {
        let bells = [(); 4].map(|()| Arc::new(Bell::default()));
        for bell in &bells {
            let waker = Waker::from(Arc::clone(bell));
            assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
        }
        say(&mut socket, &format!("3\r\n{piece}\r\n")).await;
        let [.., third, last] = &bells;
        let ringing = async {
            while !last.rang.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ringing).await.expect("the last one is woken");
        assert!(!third.rang.load(Ordering::Acquire));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), piece);
    }
}

#[tokio::test]
async fn an_answer_given_up_closes_its_connection_unless_its_end_is_here() {
    let server = Server::start().await;
    let (asked, mut socket) = server.asked("head").await;
    asked.abort();
    assert!(is_closed(&mut socket).await, "before the head");
    let (asked, mut socket) = server.asked("body").await;
    say(&mut socket, &format!("{CHUNKED}1\r\na\r\n")).await;
    drop(asked.await.unwrap().unwrap());
    assert!(is_closed(&mut socket).await, "before the end");
    assert_eq!(server.idle(), 0);
    let (asked, mut socket) = server.asked("end").await;
    say(&mut socket, &format!("{CHUNKED}1\r\na\r\n0\r\n\r\n")).await;
    drop(asked.await.unwrap().unwrap());
    assert_eq!(server.idle(), 1);
}

#[tokio::test]
async fn what_an_idle_connection_did_not_take_goes_out_on_another() {
    let server = Server::start().await;
    let socket = server.used().await;
    let bell = Arc::clone(&server.pool.idle().connections[0].1.bell);
    bell.rang.store(false, Ordering::Relaxed);
    drop(socket);
    // Until its end is here.
    while !bell.rang.load(Ordering::Acquire) {
        tokio::task::yield_now().await;
    }
    let (asked, mut socket) = server.asked("second").await;
    say(&mut socket, SHORT).await;
    assert_eq!(text(asked.await.unwrap().unwrap()).await.unwrap(), "ok");
}

#[tokio::test]
async fn what_was_sent_is_not_sent_again() {
    let server = Server::start().await;
    for is_used in [false, true] {
        let (asked, socket) = if is_used {
            let mut socket = server.used().await;
            let asked = server.ask("second");
            heard(&mut socket, "second").await;
            (asked, socket)
        } else {
            server.asked("first").await
        };
        drop(socket);
        assert!(matches!(asked.await.unwrap(), Err(Error::Lost(_))), "{is_used}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_fails() {
    let server = Server::start().await;
    let (asked, mut socket) = server.asked("cut").await;
    say(&mut socket, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab").await;
    let response = asked.await.unwrap().unwrap();
    drop(socket);
    assert!(text(response).await.is_err());
    assert_eq!(server.idle(), 0);
}

#[tokio::test]
async fn nobody_there_is_told_apart() {
    let server = Server::start().await;
    drop(server.listener);
    assert!(matches!(server.pool.request(request("any")).await, Err(Error::Connect(_))));
}

#[tokio::test]
async fn idle_connections_are_dropped() {
    let server = Server::start().await;
    let mut socket = server.used().await;
    assert_eq!(server.jobs.running(), 1);
    tokio::time::pause();
    tokio::time::advance(IDLE_LIMIT + Duration::from_secs(1)).await;
    assert!(is_closed(&mut socket).await);
    assert_eq!(server.idle(), 0);
    assert_eq!(server.jobs.stop(Duration::from_secs(10)).await, 0);
}
