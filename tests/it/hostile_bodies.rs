//! Bodies that cost their sender little and a careless reader much. Each is answered as what it is, others are served meanwhile,
//! and the memory is given back.

use std::fmt::Write;

use futures_util::future::join_all;
use taskgate::demo::server::{Era, Options, Server};

use crate::support::modern::{CAPABILITIES_KEY, MODERN, Modern, VERSION_KEY};
use crate::support::{Binary, Client, Value, json, text_of};

const MANY: usize = 1_000_000;
/// Of what is bigger for each piece.
const FEWER: usize = 200_000;

/// `{"k0":0,"k1":0...}` with so many keys.
fn keys(count: usize) -> String {
    let mut text = String::from("{");
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(text, "{comma}\"k{number}\":0").unwrap();
    }
    text + "}"
}

/// The same key again and again.
fn same_key(key: &str, count: usize) -> String {
    format!("{{{}}}", vec![format!("\"{key}\":0"); count].join(","))
}

fn list(member: &str, count: usize) -> String {
    format!("[{}]", vec![member; count].join(","))
}

fn request(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#)
}

/// What is sent, and the error's code, where there must be one.
fn bodies() -> Vec<(&'static str, String, Option<i64>)> {
    let (many, digits, escapes) = (keys(MANY), "9".repeat(FEWER), "\\u0041".repeat(FEWER));
    let deep = format!("{}1{}", "{\"a\":".repeat(FEWER), "}".repeat(FEWER));
    vec![
        ("keys in params of a call", request("tools/call", &format!(r#"{{"name":"exact",{}"#, &many[1..])), None),
        ("keys in arguments", request("tools/call", &format!(r#"{{"name":"exact","arguments":{many}}}"#)), None),
        ("keys in _meta", request("tools/call", &format!(r#"{{"name":"exact","_meta":{many}}}"#)), None),
        (
            "keys in arguments of a task",
            request("tools/call", &format!(r#"{{"name":"exact","arguments":{many},"task":{{}}}}"#)),
            None,
        ),
        ("keys in task", request("tools/call", &format!(r#"{{"name":"exact","task":{many}}}"#)), None),
        ("keys in the envelope", format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping",{}"#, &many[1..]), None),
        ("one key again and again", request("ping", &same_key("k", MANY)), None),
        ("a deciding key again and again", same_key("id", MANY), Some(-32600)),
        ("an id of digits", format!(r#"{{"jsonrpc":"2.0","id":{digits},"method":"ping"}}"#), Some(-32600)),
        ("an id of escapes", format!(r#"{{"jsonrpc":"2.0","id":"{escapes}","method":"ping"}}"#), Some(-32600)),
        ("a method of escapes", request(&escapes, "{}"), Some(-32601)),
        ("a tool of escapes", request("tools/call", &format!(r#"{{"name":"{escapes}"}}"#)), Some(-32602)),
        (
            "a tool of escapes for a task",
            request("tools/call", &format!(r#"{{"name":"{escapes}","task":{{}}}}"#)),
            Some(-32602),
        ),
        ("a task id of escapes", request("tasks/get", &format!(r#"{{"taskId":"{escapes}"}}"#)), Some(-32602)),
        ("a cursor of escapes", request("tasks/list", &format!(r#"{{"cursor":"{escapes}"}}"#)), None),
        ("a ttl of digits", request("tools/call", &format!(r#"{{"name":"exact","task":{{"ttl":{digits}}}}}"#)), None),
        (
            "a number of digits",
            request("tools/call", &format!(r#"{{"name":"exact","arguments":{{"x":{digits}.{digits}e{digits}}}}}"#)),
            None,
        ),
        ("members of a batch", list(r#"{"jsonrpc":"2.0","method":"ping"}"#, FEWER), Some(-32600)),
        ("numbers in a batch", list("1", MANY), Some(-32600)),
        ("objects in objects", request("ping", &deep), None),
        ("an object without an end", request("ping", &"{\"a\":".repeat(FEWER)), Some(-32700)),
        ("arrays without an end", "[".repeat(5 * MANY), None),
        ("a string without an end", format!("{{\"jsonrpc\":\"{}", "x".repeat(5 * MANY)), Some(-32700)),
        ("nothing but space", " ".repeat(5 * MANY), Some(-32700)),
    ]
}

async fn start(era: Era) -> (Server, Binary) {
    let server = Server::start_on_loopback(Options { era, ..Options::default() }).await.unwrap();
    let route = format!("routes: [{{name: main, path: /mcp, upstream: {{url: \"{}\"}}}}]", server.url());
    let binary = Binary::start(&route).await;
    (server, binary)
}

/// Serves somebody else until the attack is over, and once more.
async fn beside<T>(client: &Client, attack: impl Future<Output = T>) -> T {
    let mut attack = std::pin::pin!(attack);
    loop {
        let served = async { assert_eq!(text_of(&client.call("echo", json!({"text": "served"})).await), "served") };
        let mut served = std::pin::pin!(served);
        tokio::select! {
            outcome = &mut attack => {
                served.await;
                return outcome;
            }
            () = &mut served => {}
        }
    }
}

/// The error's code in an answer, whatever its form.
async fn code_of(answer: crate::support::Answer) -> Option<i64> {
    let status = answer.status;
    let text = answer.text().await;
    let json = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
    let message: Value =
        serde_json::from_str(json).unwrap_or_else(|_| panic!("{status}: {}", &text[..text.len().min(200)]));
    message["error"]["code"].as_i64()
}

/// The bound on memory is far above what a few bodies of 16 MiB need at the same time, and far below what any of them would
/// need if each key, number or level became an object.
const MOST: u64 = 512 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_the_older_era_that_explode_do_not() {
    let (_server, binary) = start(Era::Legacy).await;
    let (client, other) = (binary.client().open().await, binary.client().open().await);
    for (what, body, expected) in bodies() {
        let answer = beside(&other, client.post(body)).await;
        assert!(answer.status == 200 || answer.status == 400, "{what}: {}", answer.status);
        let code = code_of(answer).await;
        assert!(expected.is_none() || code == expected, "{what}: {code:?}");
    }
    assert!(binary.resident() < MOST, "{} KiB", binary.resident());
    // The same from a client whose version has batches.
    let old = binary.client().version("2025-03-26").open().await;
    for (what, body, _) in bodies().into_iter().filter(|(what, ..)| what.ends_with("in a batch")) {
        assert_eq!(code_of(beside(&other, old.post(body)).await).await, Some(-32600), "{what}");
    }
    assert!(binary.resident() < MOST, "{} KiB", binary.resident());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_the_newer_era_that_explode_do_not() {
    let (_server, binary) = start(Era::Both).await;
    let other = binary.client().open().await;
    let client = Modern::at(binary.address).with_tasks();
    let (many, escapes) = (keys(MANY), "\\u0041".repeat(FEWER));
    let claims = format!(r#""{VERSION_KEY}":"{MODERN}","{CAPABILITIES_KEY}":{{}}"#);
    let meta = format!(r#""_meta":{{{claims}}}"#);
    let ids = format!("[{}]", vec!["\"a\""; FEWER].join(","));
    for (what, method, params) in [
        ("keys in _meta", "tools/list", format!(r#"{{"_meta":{{{claims},{}}}"#, &many[1..])),
        (
            "keys in capabilities",
            "tools/list",
            format!(r#"{{"_meta":{{"{VERSION_KEY}":"{MODERN}","{CAPABILITIES_KEY}":{many}}}}}"#),
        ),
        ("keys in arguments", "tools/call", format!(r#"{{"name":"exact","arguments":{many},{meta}}}"#)),
        ("keys in answers", "tools/call", format!(r#"{{"name":"exact","inputResponses":{many},{meta}}}"#)),
        ("a state of escapes", "tools/call", format!(r#"{{"name":"exact","requestState":"{escapes}",{meta}}}"#)),
        ("keys in an update", "tasks/update", format!(r#"{{"taskId":"a","inputResponses":{many},{meta}}}"#)),
        ("a task of escapes", "tasks/get", format!(r#"{{"taskId":"{escapes}",{meta}}}"#)),
        (
            "ids of tasks to listen to",
            "subscriptions/listen",
            format!(r#"{{"notifications":{{"taskIds":{ids},"resourceSubscriptions":{ids}}},{meta}}}"#),
        ),
    ] {
        let head = client.headers(method, &json!({"name": "exact", "taskId": "a"}));
        let sent = client.send(head, &[], request(method, &params));
        let answer = beside(&other, sent).await.unwrap();
        let status = answer.status.as_u16();
        assert!(matches!(status, 200 | 400 | 404), "{what}: {status}");
    }
    assert!(binary.resident() < MOST, "{} KiB", binary.resident());
}

/// Several at once: what one body may cost, each of them may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_such_bodies_at_once_leave_room_for_others() {
    let (_server, binary) = start(Era::Legacy).await;
    let (client, other) = (binary.client().open().await, binary.client().open().await);
    let body = bytes::Bytes::from(request("ping", &keys(FEWER)));
    let attack = join_all((0..16).map(|_| async { client.post(body.clone()).await.status }));
    assert!(beside(&other, attack).await.iter().all(|status| *status == 200));
}
