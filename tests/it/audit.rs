//! The audit log: who did what to which task, and never what they said.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use taskgate::app::Timing;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::support::{Gateway, Modern, Value, json};

/// Everything that is logged on this thread, on which the whole test runs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged on other threads goes elsewhere.
fn on_this_thread() -> Timing {
    Timing { threads: 0, ..Timing::default() }
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let layer = fmt::layer().json().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new("trace")).with(layer);
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
    }

    /// The fields of the audit lines.
    fn audit(&self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["target"] == "audit").map(|mut line| line["fields"].take()).collect()
    }
}

#[tokio::test]
async fn each_change_of_a_task_and_its_first_read_is_one_line() {
    let (log, _guard) = Log::start();
    let gateway = Gateway::setup().callers(&["acme/ann"]).timing(on_this_thread()).start().await;
    let client = gateway.open_as("ann").await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({"message": "s3cret-question"})).await;
    let question = stream.until_method("elicitation/create").await;
    client.accept(&question, json!({"name": "s3cret-answer"})).await;
    for _ in 0..3 {
        client.outcome(&id).await;
    }
    let cancelled = client.start("hold", json!({"x": "s3cret-argument"})).await;
    client.cancel(&cancelled).await;
    let failed = client.start("fail", json!({"text": "s3cret-failure"})).await;
    client.until(&failed, "failed").await;
    // In the other era the result comes with the task.
    let modern = Modern::new(&gateway).with_tasks().caller("ann");
    modern.task(&failed).await;
    modern.task(&failed).await;
    let lines = log.audit();
    let of = |id: &str| -> Vec<Value> { lines.iter().filter(|line| line["task"] == id).cloned().collect() };
    let steps = |id: &str| -> Vec<(String, String)> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        of(id)
            .iter()
            .filter(|line| line.get("from").is_some())
            .map(|line| (word(&line["from"]), word(&line["to"])))
            .collect()
    };
    let pairs = |steps: &[(&str, &str)]| -> Vec<(String, String)> {
        steps.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
    };
    assert_eq!(
        steps(&id),
        pairs(&[
            ("none", "working"),
            ("working", "input_required"),
            ("input_required", "working"),
            ("working", "completed")
        ])
    );
    assert_eq!(steps(&cancelled), pairs(&[("none", "working"), ("working", "cancelled")]));
    assert_eq!(steps(&failed), pairs(&[("none", "working"), ("working", "failed")]));
    for line in of(&id) {
        assert_eq!((&line["tenant"], &line["subject"]), (&json!("acme"), &json!("ann")), "{line}");
        assert_eq!((&line["route"], &line["tool"]), (&json!("main"), &json!("ask")), "{line}");
    }
    assert_eq!(of(&id).iter().filter(|line| line["event"] == "result_read").count(), 1, "{lines:?}");
    assert_eq!(of(&failed).iter().filter(|line| line["event"] == "result_read").count(), 1, "{lines:?}");
    // In no line at all, whatever its level, is what anybody said, or how they showed who they are.
    let text = log.text();
    assert!(text.lines().count() > 20);
    for secret in ["s3cret", "key-of-ann", client.session.as_deref().unwrap()] {
        let leaks: Vec<&str> = text.lines().filter(|line| line.contains(secret)).collect();
        assert_eq!(leaks, Vec::<&str>::new(), "{secret}");
    }
}

#[tokio::test]
async fn each_refused_access_is_one_line() {
    let (log, _guard) = Log::start();
    let gateway = Gateway::setup()
        .callers(&["acme/ann", "umbrella/eve"])
        .tools("deny: [hold]")
        .timing(on_this_thread())
        .start()
        .await;
    let ann = gateway.open_as("ann").await;
    let id = ann.start("exact", json!({})).await;
    let mut eve = gateway.open_as("eve").await;
    let before = log.audit().len();
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        eve.error(method, json!({"taskId": id})).await;
    }
    eve.error("tools/call", json!({"name": "hold"})).await;
    eve.session.clone_from(&ann.session);
    assert_eq!(eve.delete().await, StatusCode::NOT_FOUND);
    let body = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
    assert_eq!(ann.post_with(&[("authorization", "Bearer s3cret")], body).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(ann.post_with(&[("origin", "http://s3cret.example")], body).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ann.post_with(&[("host", "s3cret.example")], body).await.status, StatusCode::FORBIDDEN);
    let lines: Vec<Value> = log.audit().into_iter().skip(before).filter(|line| line.get("from").is_none()).collect();
    let reasons: Vec<&str> = lines.iter().map(|line| line["reason"].as_str().unwrap_or_default()).collect();
    assert_eq!(reasons, ["task", "task", "task", "tool", "session", "credentials", "origin", "host"], "{lines:?}");
    for line in &lines[..5] {
        assert_eq!(
            (&line["tenant"], &line["subject"], &line["route"]),
            (&json!("umbrella"), &json!("eve"), &json!("main"))
        );
    }
    assert!(lines.iter().all(|line| line["peer"] == "127.0.0.1"), "{lines:?}");
    assert!(!log.text().contains("s3cret"));
}

/// In a batch each member is one, as it would be alone.
#[tokio::test]
async fn each_refused_member_of_a_batch_is_one_line() {
    let (log, _guard) = Log::start();
    let setup = Gateway::setup().callers(&["umbrella/eve"]).tools("deny: [hold]");
    let gateway = setup.timing(on_this_thread()).start().await;
    let eve = gateway.client().caller("eve").version("2025-03-26").open().await;
    let before = log.audit().len();
    let member =
        |id: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let batch = json!([
        member(1, "tools/call", json!({"name": "hold"})),
        member(2, "tools/call", json!({"name": "echo", "arguments": {"text": "x"}})),
        member(3, "tools/call", json!({"name": "hold"})),
    ]);
    assert_eq!(eve.post(batch.to_string()).await.messages().await.len(), 3);
    let lines: Vec<Value> = log.audit().into_iter().skip(before).filter(|line| line["event"] == "refused").collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in &lines {
        assert_eq!(
            (&line["subject"], &line["tool"], &line["reason"], &line["peer"]),
            (&json!("eve"), &json!("hold"), &json!("tool"), &json!("127.0.0.1"))
        );
    }
    let labels = [("reason", "tool")];
    gateway.counted(|counted| counted.value("taskgate_rejected_total", &labels) == 2.0).await;
}

/// Whose address stands in a line: what a proxy says only where the proxy is trusted, and to nobody else.
#[tokio::test]
async fn only_trusted_proxies_say_who_asked() {
    for (listen, expected) in [("", "127.0.0.1"), ("trusted_proxies: [127.0.0.0/8]", "192.0.2.1")] {
        let (log, _guard) = Log::start();
        let gateway = Gateway::setup().listen(listen).callers(&["acme/ann"]).timing(on_this_thread()).start().await;
        let ann = gateway.open_as("ann").await;
        let forwarded = ("x-forwarded-for", "6.6.6.6, 192.0.2.1");
        let answer = ann.post_with(&[("authorization", "Bearer wrong"), forwarded], "{}").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        let refused = log.audit().into_iter().find(|line| line["event"] == "refused").unwrap();
        assert_eq!(refused["peer"], expected, "{refused}");
        assert_eq!(ann.post_with(&[forwarded], r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#).await.status, 200);
        let stats = gateway.upstream.stats();
        assert_eq!((stats.header("x-forwarded-for"), stats.header("forwarded")), (None, None));
    }
}

#[tokio::test]
async fn refusals_without_end_are_counted_instead() {
    let (log, _guard) = Log::start();
    let mut gateway = Gateway::setup().callers(&["acme/ann", "acme/eve"]).timing(on_this_thread()).start().await;
    let ann = gateway.open_as("ann").await;
    let id = ann.start("exact", json!({})).await;
    let eve = gateway.open_as("eve").await;
    for _ in 0..90 {
        eve.error("tasks/get", json!({"taskId": id})).await;
    }
    // What a stream leaves out is on record too.
    let modern = Modern::new(&gateway).with_tasks().caller("eve");
    drop(modern.listen(json!({"taskIds": [id, "none"]})).await);
    gateway.stop().await;
    let lines: Vec<Value> = log.audit().into_iter().filter(|line| line["reason"] == "task").collect();
    let (counts, each): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["event"] == "refused_more");
    let counted: u64 = counts.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert!(each.len() >= 50 && counted > 0, "{lines:?}");
    assert_eq!(each.len() as u64 + counted, 92);
    assert!(each.iter().chain(&counts).all(|line| line["subject"] == "eve"), "{lines:?}");
}
