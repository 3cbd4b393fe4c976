//! Processes that share a Redis: what one was told is true at the other, also when the first is killed or the server goes.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use taskgate::auth::sha256;
use taskgate::demo::server::{Options, Server};

use crate::support::{Binary, Client, Mute, Value, json, within};

/// A server of the test's own, which ends with it.
struct Redis {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// `None` where there is no program for it, which is a failure in CI.
    #[expect(clippy::print_stderr, reason = "who reads the test's output is to know")]
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let mut server = Command::new("redis-server");
        server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        match server.arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self { child, port, _folder: folder }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "redis-server can't be started: {error}");
                eprintln!("skipped: redis-server can't be started: {error}");
                None
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A replica's configuration, but for its addresses.
    fn sections(&self, upstream: &Server, creates: &str) -> String {
        Self::sections_at(self.port, upstream, creates)
    }

    /// The same, with the server reached at another port.
    fn sections_at(port: u16, upstream: &Server, creates: &str) -> String {
        let digest: String = sha256(b"key-of-alice").iter().map(|byte| format!("{byte:02x}")).collect();
        let internal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        format!(
            "store: {{kind: redis, url: \"redis://127.0.0.1:{}\"}}\n\
             replica: {{lease: 1s, address: \"{internal}\"}}\n\
             secrets: {{key: \"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"}}\ntenants: {{default: {{kept_tasks: 100{creates}}}}}\n\
             auth: {{api_keys: [{{sha256: \"{digest}\", tenant: acme, subject: alice}}]}}\n\
             routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]\n",
            port,
            upstream.url()
        )
    }
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
    let (upstream, mute) = (upstream().await, Mute::start(redis.port).await);
    let last = Binary::start(&Redis::sections_at(mute.address.port(), &upstream, "")).await;
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
