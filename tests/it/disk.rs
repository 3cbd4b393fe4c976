//! A store on a disk: what a client was told is true after the process was killed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use rustix::process::Signal;
use taskgate::auth::sha256;
use taskgate::demo::server::{Options, Server};

use crate::support::{Binary, Client, Modern, Value, json, text_of, within};

/// A gateway with its store in that folder, and a caller.
fn sections(folder: &Path, upstream: &Server) -> String {
    let digest: String = sha256(b"key-of-alice").iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "store: {{kind: disk, path: \"{}\"}}\ntenants: {{default: {{kept_tasks: 4}}}}\n\
         auth: {{api_keys: [{{sha256: \"{digest}\", tenant: acme, subject: alice}}]}}\n\
         routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]\n",
        folder.display(),
        upstream.url()
    )
}

async fn killed(mut gateway: Binary) {
    gateway.signal(Signal::KILL);
    assert!(!gateway.exit().await.success());
}

/// The same session at another process.
fn moved(client: &Client, gateway: &Binary) -> Client {
    let mut moved = gateway.client().caller("alice").silent();
    moved.session.clone_from(&client.session);
    moved.version.clone_from(&client.version);
    moved
}

/// The whole answer, under an id that is always the same.
async fn legacy_bytes(client: &Client, id: &str) -> Bytes {
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/result", "params": {"taskId": id}});
    client.post(request.to_string()).await.bytes().await
}

async fn modern_bytes(gateway: &Binary, id: &str) -> Bytes {
    let client = Modern::at(gateway.address).caller("alice").with_tasks();
    client.open("tasks/get", json!({"taskId": id})).await.bytes().await
}

#[tokio::test]
async fn what_was_told_is_true_after_a_kill() {
    let (folder, upstream) =
        (tempfile::tempdir().unwrap(), Server::start_on_loopback(Options::default()).await.unwrap());
    let folder = folder.path().join("store");
    let gateway = Binary::start(&sections(&folder, &upstream)).await;
    let client = gateway.client().caller("alice").open().await;
    // Given a small result, a big one, one that is an error and a cancelled task,
    let small = client.start("echo", json!({"text": "sm\u{f6}ll"})).await;
    let big = client.start("echo", json!({"text": "b\u{ed}g ".repeat(60_000)})).await;
    client.until(&small, "completed").await;
    client.until(&big, "completed").await;
    let bad = client.start("fail", json!({})).await;
    client.until(&bad, "failed").await;
    let cancelled = client.start("hold", json!({})).await;
    client.cancel(&cancelled).await;
    let ids = [&small, &big, &bad, &cancelled];
    let mut before = Vec::new();
    for id in ids {
        before.push((legacy_bytes(&client, id).await, modern_bytes(&gateway, id).await));
    }
    let listed = client.result("tasks/list", json!({})).await;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 4);
    // when the process is killed,
    killed(gateway).await;
    let gateway = Binary::start(&sections(&folder, &upstream)).await;
    // then the session is still one, and every answer is the same, byte for byte, in both dialects.
    let client = moved(&client, &gateway);
    // The server's name, which goes into modern answers, is known once somebody has asked for it.
    assert_eq!(gateway.client().caller("alice").open().await.delete().await, StatusCode::NO_CONTENT);
    for (id, (legacy, modern)) in ids.into_iter().zip(before) {
        assert!(legacy_bytes(&client, id).await == legacy, "{id} has changed");
        assert!(modern_bytes(&gateway, id).await == modern, "{id} has changed");
    }
    assert_eq!(client.result("tasks/list", json!({})).await, listed);
    // What is kept counts on.
    let call = json!({"name": "echo", "arguments": {"text": "x"}, "task": {}});
    let refused = client.error("tools/call", call).await;
    assert_eq!(refused["data"]["reason"], "kept_tasks", "{refused}");
    assert_eq!(text_of(&client.call("echo", json!({"text": "plain"})).await), "plain");
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    within(upstream.until(|stats| stats.deleted == 2)).await;
    // A stop in good order leaves the same, and the file to the next.
    let mut gateway = gateway;
    gateway.signal(Signal::TERM);
    assert!(gateway.exit().await.success());
    let gateway = Binary::start(&sections(&folder, &upstream)).await;
    let client = gateway.client().caller("alice").open().await;
    assert_eq!(client.result("tasks/list", json!({})).await, listed);
    // The key is this user's alone.
    let mode = std::fs::metadata(folder.join("secrets.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_ends_the_start() {
    let upstream = Server::start_on_loopback(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let running = Binary::start(&sections(folder.path(), &upstream)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    for (path, code, words) in [(folder.path(), 1, "belongs to another process"), (file.path(), 78, "can't be used")] {
        let (exit, said) = within(Binary::fails(&sections(path, &upstream))).await;
        assert_eq!(exit, Some(code), "{said}");
        assert!(said.contains(words) && said.contains(&path.display().to_string()), "{said}");
    }
    assert_eq!(running.client().caller("alice").open().await.delete().await, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn what_has_ended_and_what_is_held_is_known_after_a_restart() {
    let (folder, upstream) =
        (tempfile::tempdir().unwrap(), Server::start_on_loopback(Options::default()).await.unwrap());
    let is_over = async |client: &Client, gateway: &Binary| {
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        moved(client, gateway).post(ping.to_string()).await.status == StatusCode::NOT_FOUND
    };
    let mut gateway = Binary::start(&sections(folder.path(), &upstream)).await;
    // Given a session that its client has ended, and one that it has not,
    let ended = gateway.client().caller("alice").open().await;
    let open = gateway.client().caller("alice").open().await;
    assert_eq!(ended.delete().await, StatusCode::NO_CONTENT);
    gateway.signal(Signal::TERM);
    assert!(gateway.exit().await.success());
    // then the next process knows, however it comes to an end itself.
    let gateway = Binary::start(&sections(folder.path(), &upstream)).await;
    assert!(is_over(&ended, &gateway).await);
    let client = moved(&open, &gateway);
    let id = client.start("hold", json!({})).await;
    within(upstream.until(|stats| stats.tool("hold").started == 1)).await;
    killed(gateway).await;
    let gateway = Binary::start(&sections(folder.path(), &upstream)).await;
    assert!(is_over(&ended, &gateway).await);
    let client = moved(&open, &gateway);
    client.until(&id, "failed").await;
    // What it does not hold is not counted, neither up nor down.
    let held = within(async {
        loop {
            let metrics = gateway.metrics().await;
            let held = ["queued", "working", "input_required"]
                .map(|status| metrics.value("taskgate_tasks", &[("route", "main"), ("status", status)]));
            if held.iter().sum::<f64>() <= 0.0 {
                return held;
            }
        }
    })
    .await;
    assert_eq!(held, [0.0; 3]);
}

/// Without what differs from task to task.
fn general(bytes: &[u8], id: &str) -> (Value, usize) {
    let mut message: Value = serde_json::from_slice(bytes).unwrap();
    if let Some(result) = message["result"].as_object_mut().filter(|result| result.contains_key("createdAt")) {
        result["createdAt"] = Value::Null;
        result["lastUpdatedAt"] = Value::Null;
    }
    (serde_json::from_str(&message.to_string().replace(id, "the task")).unwrap(), bytes.len())
}

/// It is not held for its readers, and they get what those of a store get that holds it.
#[tokio::test]
async fn a_large_result_is_told_as_by_any_store_in_every_way() {
    let upstream = Server::start_on_loopback(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (on_disk, tenants) = (sections(folder.path(), &upstream), "tenants: {default: {running_tasks: 1}}");
    let (_, routes) = on_disk.split_once("auth:").unwrap();
    let disk = format!("store: {{kind: disk, path: \"{}\"}}\n{tenants}\nauth:{routes}", folder.path().display());
    let memory = format!("{tenants}\nauth:{routes}");
    let mut told = Vec::new();
    for config in [disk, memory] {
        let gateway = Binary::start(&config).await;
        let client = gateway.client().caller("alice").open().await;
        let modern = Modern::at(gateway.address).caller("alice").with_tasks();
        // Given a task that waits for its place, whose end others wait for,
        let hold = client.start("hold", json!({})).await;
        let id = client.start("big", json!({"bytes": 15 << 20})).await;
        let waiting = client.wait_for(&id).await;
        let (mut listening, _) = modern.listen(json!({"taskIds": [id]})).await;
        upstream.release();
        client.until(&hold, "completed").await;
        client.until(&id, "completed").await;
        // then all of them get the same.
        let response = waiting.response().await;
        assert_eq!(text_of(&response).len(), 15 << 20);
        let heard = listening.until(|message| message["params"]["status"] == "completed").await.pop().unwrap();
        assert_eq!(heard["params"]["result"]["content"], response["result"]["content"]);
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/result", "params": {"taskId": id}});
        let events = client.post_with(&[("accept", "text/event-stream")], request.to_string()).await;
        assert!(events.is_events());
        assert_eq!(events.response().await["result"], response["result"]);
        let answer = client.post(request.to_string()).await;
        let length: usize = answer.header("content-length").unwrap().parse().unwrap();
        let legacy = answer.bytes().await;
        assert_eq!(legacy.len(), length);
        told.push((general(&legacy, &id), general(&modern_bytes(&gateway, &id).await, &id)));
    }
    assert!(told[0] == told[1], "another answer of another length");
}

/// A client that takes its time over a large end of `tasks/result` can still cancel the request.
#[tokio::test]
async fn a_large_end_that_is_cancelled_breaks_off() {
    let upstream = Server::start_on_loopback(Options::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let limited = "tenants: {default: {running_tasks: 1}}";
    let config = sections(folder.path(), &upstream).replace("tenants: {default: {kept_tasks: 4}}", limited);
    let gateway = Binary::start(&config).await;
    let client = gateway.client().caller("alice").open().await;
    // Given a task whose end is waited for, and of whose large result the reader has taken a little,
    let hold = client.start("hold", json!({})).await;
    let id = client.start("big", json!({"bytes": 15 << 20})).await;
    let request = json!({"jsonrpc": "2.0", "id": "slow", "method": "tasks/result", "params": {"taskId": id}});
    let mut body = client.post(request.to_string()).await.into_body();
    upstream.release();
    client.until(&hold, "completed").await;
    let mut taken = Vec::new();
    while taken.len() < 100_000 {
        let frame = within(body.frame()).await.unwrap().unwrap();
        taken.extend_from_slice(&frame.into_data().unwrap());
    }
    // when it cancels the request,
    client.notify("notifications/cancelled", json!({"requestId": "slow"})).await;
    // then what it has is all there is but what was on its way, and the event has no end.
    taken.extend_from_slice(&within(body.collect()).await.unwrap().to_bytes());
    assert!(taken.len() < 15 << 20 && !taken.ends_with(b"\n\n"), "{}", taken.len());
    assert_eq!(text_of(&client.outcome(&id).await).len(), 15 << 20);
}

/// Spoils a text in the store's file, wherever it is.
fn spoil(folder: &Path, text: &str) {
    let file = folder.join("tasks.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let places: Vec<usize> = {
        let found = |(place, part): (usize, &[u8])| (part == text.as_bytes()).then_some(place);
        bytes.windows(text.len()).enumerate().filter_map(found).collect()
    };
    assert!(!places.is_empty());
    places.into_iter().for_each(|place| bytes[place] ^= 1);
    std::fs::write(&file, bytes).unwrap();
}

#[tokio::test]
async fn what_the_disk_has_spoilt_is_refused_at_once_and_told_once() {
    let (folder, upstream) =
        (tempfile::tempdir().unwrap(), Server::start_on_loopback(Options::default()).await.unwrap());
    let mut gateway = Binary::start(&sections(folder.path(), &upstream)).await;
    let client = gateway.client().caller("alice").open().await;
    let mut ids = Vec::new();
    for text in ["small and spoilt".to_owned(), format!("{} large and spoilt {}", "x".repeat(200_000), "y".repeat(9))] {
        let id = client.start("echo", json!({"text": text})).await;
        client.until(&id, "completed").await;
        ids.push(id);
    }
    let good = client.start("echo", json!({"text": "good"})).await;
    client.until(&good, "completed").await;
    gateway.signal(Signal::TERM);
    assert!(gateway.exit().await.success());
    spoil(folder.path(), "small and spoilt");
    spoil(folder.path(), "large and spoilt");
    let gateway = Binary::start(&sections(folder.path(), &upstream)).await;
    let client = moved(&client, &gateway);
    let modern = Modern::at(gateway.address).caller("alice").with_tasks();
    for id in &ids {
        for _ in 0..2 {
            let refused = client.error("tasks/result", json!({"taskId": id})).await;
            assert_eq!((&refused["code"], &refused["data"]["reason"]), (&json!(-32603), &json!("store")));
            assert!(refused["message"].as_str().unwrap().contains("damaged"), "{refused}");
            let refused = modern.open("tasks/get", json!({"taskId": id})).await.response().await;
            assert_eq!(refused["error"]["data"]["reason"], "store", "{refused}");
        }
        // The record is another matter.
        assert_eq!(client.task(id).await["status"], "completed");
    }
    assert_eq!(text_of(&client.outcome(&good).await), "good");
    let log = gateway.log();
    assert_eq!(log.matches("what is kept of a task is spoilt").count(), ids.len(), "{log}");
}
