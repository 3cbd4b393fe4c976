//! Processes that share a Redis: what one was told is true at the other, also when the first is killed or the server goes.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use taskgate::auth::sha256;
use taskgate::demo::server::{Options, Server};

use crate::support::{Authority, Binary, Client, Mute, Value, json, within};

/// A server of the test's own, which ends with it.
struct Redis {
    child: Child,
    /// With what it begins again.
    options: Vec<String>,
    folder: tempfile::TempDir,
    url: String,
}

impl Redis {
    /// `None` where there is no program for it, which is a failure in CI.
    fn start() -> Option<Self> {
        Self::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// One that has everything again when it begins again.
    fn that_keeps() -> Option<Self> {
        Self::start_with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
    }

    fn start_with(options: &[&str]) -> Option<Self> {
        let port = free_port().to_string();
        let options = [&["--port", &port, "--bind", "127.0.0.1"], options].concat();
        Self::begin(options.into_iter().map(str::to_owned).collect(), format!("redis://127.0.0.1:{port}"))
    }

    /// One that wants TLS, and a user with a password.
    fn that_is_careful(authority: &Authority) -> Option<Self> {
        let port = free_port();
        authority.write("redis", 2050);
        let file = authority.path("redis.conf");
        let at = |name: &str| authority.path(name).display().to_string();
        let text = format!(
            "port 0\ntls-port {port}\nbind 127.0.0.1\nsave \"\"\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
             tls-auth-clients no\nuser default off\nuser taskgate on >p@ss/word ~* &* +@all\n",
            at("redis.crt"),
            at("redis.key"),
            at("ca.pem")
        );
        std::fs::write(&file, text).unwrap();
        let url = format!("rediss://taskgate:p%40ss%2Fword@localhost:{port}");
        Self::begin(vec![file.display().to_string()], url)
    }

    #[expect(clippy::print_stderr, reason = "who reads the test's output is to know")]
    fn begin(options: Vec<String>, url: String) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match spawn(&options, &folder) {
            Ok(child) => Some(Self { child, options, folder, url }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "redis-server can't be started: {error}");
                eprintln!("skipped: redis-server can't be started: {error}");
                None
            }
        }
    }

    /// Kills it, and begins it again with the data that it kept.
    fn begin_again(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.options, &self.folder).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A replica's configuration, but for its addresses.
    fn sections(&self, upstream: &Server, creates: &str) -> String {
        Self::sections_at(&self.url, upstream, creates)
    }

    /// The same, with the server reached elsewhere.
    fn sections_at(url: &str, upstream: &Server, creates: &str) -> String {
        let digest: String = sha256(b"key-of-alice").iter().map(|byte| format!("{byte:02x}")).collect();
        let internal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        format!(
            "store: {{kind: redis, url: \"{url}\"}}\n\
             replica: {{lease: 1s, address: \"{internal}\"}}\n\
             secrets: {{key: \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"}}\ntenants: {{default: {{kept_tasks: 100{creates}}}}}\n\
             auth: {{api_keys: [{{sha256: \"{digest}\", tenant: acme, subject: alice}}]}}\n\
             routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]\n",
            upstream.url()
        )
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(options: &[String], folder: &tempfile::TempDir) -> std::io::Result<Child> {
    let mut server = Command::new("redis-server");
    server.args(options).arg("--dir").arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn upstream() -> Server {
    Server::start_on_loopback(Options::default()).await.unwrap()
}

async fn open(gateway: &Binary) -> Client {
    gateway.client().caller("alice").open().await
}

/// The answer to `tasks/result`, but for the id of the request.
async fn result(client: &Client, id: &str) -> Vec<u8> {
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/result", "params": {"taskId": id}});
    client.post(request.to_string()).await.bytes().await.to_vec()
}

#[tokio::test]
async fn what_one_was_told_is_true_at_the_other() {
    let Some(redis) = Redis::start() else { return };
    let upstream = upstream().await;
    let mut first = Binary::start(&redis.sections(&upstream, "")).await;
    let second = Binary::start(&redis.sections(&upstream, "")).await;
    let (here, there) = (open(&first).await, open(&second).await);
    // Given a task that has ended and one that runs, at one replica,
    let small = here.start("echo", json!({"text": "sm\u{f6}ll"})).await;
    let held = here.start("hold", json!({})).await;
    here.until(&small, "completed").await;
    // then the other shows both, the result byte for byte.
    assert_eq!(result(&there, &small).await, result(&here, &small).await);
    assert_eq!(there.task(&held).await["status"], "working");
    // A wait at one hears of what is done at the other.
    let (waited, _) = tokio::join!(result(&there, &held), here.cancel(&held));
    assert!(String::from_utf8(waited).unwrap().contains("cancelled"));
    // When a replica is killed, what it held ends, by the other.
    let held = here.start("hold", json!({})).await;
    first.signal(Signal::KILL);
    assert!(!first.exit().await.success());
    there.until(&held, "failed").await;
    let text = String::from_utf8(result(&there, &held).await).unwrap();
    assert!(text.contains("replica_lost"), "{text}");
    assert!(String::from_utf8(result(&there, &small).await).unwrap().contains("sm\u{f6}ll"));
}

#[tokio::test]
async fn creations_count_for_all_replicas() {
    let Some(redis) = Redis::start() else { return };
    let upstream = upstream().await;
    let sections = |redis: &Redis| redis.sections(&upstream, ", creates: {rate: 1/m, burst: 2}");
    let (first, second) = (Binary::start(&sections(&redis)).await, Binary::start(&sections(&redis)).await);
    let clients = [open(&first).await, open(&second).await];
    for client in &clients {
        client.start("exact", json!({})).await;
    }
    for client in &clients {
        let refused = client.error("tools/call", json!({"name": "exact", "task": {}})).await;
        assert_eq!((&refused["data"]["reason"], &refused["data"]["limit"]), (&json!("creates"), &json!(2)));
    }
}

/// The word that a takeover was done is lost: the calls are that replica's, and it does not know.
#[tokio::test]
async fn a_takeover_whose_answer_is_lost_strands_nothing() {
    let Some(redis) = Redis::start() else { return };
    let (upstream, mute) = (upstream().await, Mute::start(&redis.url).await);
    let last = Binary::start(&Redis::sections_at(&mute.url(), &upstream, "")).await;
    let there = open(&last).await;
    for is_lost in [false, true] {
        // (The first takeover makes the script known to the server, so that the second is one request.)
        let mut first = Binary::start(&redis.sections(&upstream, "")).await;
        let here = open(&first).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(here.start("hold", json!({})).await);
        }
        if is_lost {
            mute.lose_the_answer_to("\r\n64\r\n");
        }
        first.signal(Signal::KILL);
        assert!(!first.exit().await.success());
        for id in &held {
            let text = once_it_is_back(&there, id).await;
            assert!(text.contains("replica_lost"), "{text}");
        }
        assert!(mute.has_lost_it());
    }
    // They were taken over by a second word, and each has ended once.
    let log = last.log();
    assert!(log.contains("calls that this replica did not know it held were taken up"), "{log}");
    assert!(unfinished(&there).await.is_empty());
}

#[tokio::test]
async fn nothing_hangs_while_the_server_does() {
    let Some(redis) = Redis::start() else { return };
    let upstream = upstream().await;
    let gateway = Binary::start(&redis.sections(&upstream, "")).await;
    let client = open(&gateway).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(client.start("hold", json!({"seconds": 0.5})).await);
    }
    // The last of them has hardly begun.
    redis.signal(Signal::STOP);
    // Refused, and a plain call is none of the store's business.
    let refused = within(client.error("tools/call", json!({"name": "exact", "task": {}}))).await;
    assert_eq!(refused["data"]["reason"], "store", "{refused}");
    assert!(within(client.call("exact", json!({}))).await["result"].is_object());
    redis.signal(Signal::CONT);
    // Whatever the calls were at, they went on, and their ends waited for the server.
    for id in &held {
        let text = once_it_is_back(&client, id).await;
        assert!(text.contains("held to the end"), "{text}");
    }
    // What was refused is not there, and counts for nothing.
    within(async { while !unfinished(&client).await.is_empty() {} }).await;
    let log = gateway.log();
    assert!(log.matches("calls under way").count() <= 2, "{log}");
}

/// The answer to `tasks/result`, when it is another than that the store is away.
async fn once_it_is_back(client: &Client, id: &str) -> String {
    within(async {
        loop {
            let text = String::from_utf8(result(client, id).await).unwrap();
            if !text.contains("\"reason\":\"store\"") {
                return text;
            }
        }
    })
    .await
}

async fn unfinished(client: &Client) -> Vec<Value> {
    let listed = client.result("tasks/list", json!({})).await;
    listed["tasks"].as_array().unwrap().iter().filter(|task| task["status"] == "working").cloned().collect()
}

#[tokio::test]
async fn a_server_that_kept_everything_is_killed_and_nobody_notices() {
    let Some(mut redis) = Redis::that_keeps() else { return };
    let upstream = upstream().await;
    let gateway = Binary::start(&redis.sections(&upstream, "")).await;
    let (client, other) = (open(&gateway).await, open(&gateway).await);
    let small = client.start("exact", json!({})).await;
    client.until(&small, "completed").await;
    let before = result(&client, &small).await;
    let held = client.start("hold", json!({})).await;
    within(upstream.until(|stats| stats.tool("hold").started == 1)).await;
    // Given somebody who waits while the server is killed,
    let waiting = other.wait_for(&held).await;
    redis.begin_again();
    // when it is back, then what was is as it was,
    once_it_is_back(&client, &small).await;
    assert_eq!(result(&client, &small).await, before);
    // and the wait has its end.
    client.call("release", json!({})).await;
    let text = String::from_utf8(waiting.bytes().await.to_vec()).unwrap();
    assert!(text.contains("held to the end"), "{text}");
}

#[tokio::test]
async fn a_server_that_forgot_everything_ends_who_waits() {
    let Some(mut redis) = Redis::start() else { return };
    let upstream = upstream().await;
    let gateway = Binary::start(&redis.sections(&upstream, "")).await;
    let (client, other) = (open(&gateway).await, open(&gateway).await);
    let held = client.start("hold", json!({})).await;
    within(upstream.until(|stats| stats.tool("hold").started == 1)).await;
    let waiting = other.wait_for(&held).await;
    redis.begin_again();
    let text = String::from_utf8(waiting.bytes().await.to_vec()).unwrap();
    assert!(text.contains("-32602") && text.contains("not found"), "{text}");
    // The call of it is stopped, and new ones are taken.
    let again = client.start("exact", json!({})).await;
    client.until(&again, "completed").await;
    within(upstream.until(|stats| stats.tool("hold").cancelled == 1)).await;
}

/// Nobody dies by that: what goes on in a session goes on where it did.
#[tokio::test]
async fn a_server_that_forgot_everything_makes_nobody_s_session_another_s() {
    let Some(mut redis) = Redis::start() else { return };
    let upstream = upstream().await;
    let sections = |redis: &Redis| redis.sections(&upstream, "").replace("lease: 1s", "lease: 3s");
    let (first, second) = (Binary::start(&sections(&redis)).await, Binary::start(&sections(&redis)).await);
    let mut third = Binary::start(&sections(&redis)).await;
    let (here, dead) = (open(&first).await, open(&third).await);
    let (there, dead) = (second.client().with_session_of(&here), second.client().with_session_of(&dead));
    // Given one that has taken another for dead, so that it would do so again,
    third.signal(Signal::KILL);
    assert!(!third.exit().await.success());
    let taken = |gateway: &Binary| gateway.log().matches("a session of a replica that is gone").count();
    within(async {
        while taken(&second) == 0 {
            drop(dead.call("exact", json!({})).await);
        }
    })
    .await;
    for _ in 0..3 {
        // when the server begins again with nothing, more quickly than a lease is renewed,
        redis.begin_again();
        within(async {
            while !there
                .post(r#"{"jsonrpc":"2.0","id":7,"method":"tasks/list"}"#)
                .await
                .text()
                .await
                .contains("\"tasks\":")
            {}
        })
        .await;
        for _ in 0..20 {
            assert!(there.call("exact", json!({})).await["result"].is_object());
        }
    }
    // then both sessions are where they were.
    assert_eq!((taken(&first), taken(&second)), (0, 1), "{}", second.log());
}

#[tokio::test]
async fn a_server_with_tls_of_a_private_authority_and_a_user_is_used() {
    let authority = Authority::new();
    let Some(redis) = Redis::that_is_careful(&authority) else { return };
    let upstream = upstream().await;
    let gateway = Binary::start_trusting(&authority.file(), &redis.sections(&upstream, "")).await;
    let client = open(&gateway).await;
    let small = client.start("exact", json!({})).await;
    client.until(&small, "completed").await;
    // Another that does not trust it can't use it.
    let other = Binary::start(&redis.sections(&upstream, "")).await;
    assert!(other.log().contains("started without its store"), "{}", other.log());
}
