//! What a legacy client hears of changes of a server of the modern era: its GET stream, and the resources that it
//! subscribed to.

use http::StatusCode;
use taskgate::demo::server::{Era, Options};

use crate::support::raw_upstream::{Heard, Step};
use crate::support::raw_upstream::{bare, event, events_head, gate, last_chunk};
use crate::support::stateless::stateless;
use crate::support::{Gateway, Value, json};

const GREETING: &str = "demo://greeting";
const UPDATED: &str = "notifications/resources/updated";
const TOOLS: &str = "notifications/tools/list_changed";

async fn in_front_of_modern() -> Gateway {
    Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).start().await
}

fn updated(uri: &str) -> String {
    json!({"uri": uri}).to_string()
}

#[tokio::test]
async fn changes_of_lists_come_on_the_sessions_stream_without_the_subscriptions_name() {
    let gateway = in_front_of_modern().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    gateway.seen(|stats| stats.listens == 1).await;
    gateway.upstream.announce(TOOLS, None);
    let message = stream.message().await;
    assert_eq!(message, json!({"jsonrpc": "2.0", "method": TOOLS}));
    // One subscription, however many streams.
    let second = client.listen().await;
    client.result("ping", json!({})).await;
    assert_eq!(gateway.upstream.stats().listens_opened, 1);
    drop((stream, second));
    // The end of the session ends it.
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    gateway.seen(|stats| stats.listens == 0).await;
}

#[tokio::test]
async fn resources_are_subscribed_to_one_by_one_and_the_answer_waits_for_the_server() {
    let gateway = in_front_of_modern().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    gateway.seen(|stats| stats.listens == 1).await;
    assert_eq!(client.result("resources/subscribe", json!({"uri": GREETING})).await, json!({}));
    gateway.upstream.announce(UPDATED, Some(&updated(GREETING)));
    let message = stream.message().await;
    assert_eq!(message, json!({"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": GREETING}}));
    // The new stream was there before the old one was gone.
    gateway.seen(|stats| stats.listens == 1 && stats.listens_opened == 2).await;
    assert_eq!(client.result("resources/subscribe", json!({"uri": GREETING})).await, json!({}));
    assert_eq!(gateway.upstream.stats().listens_opened, 2);
    // What the server does not tell of can't be subscribed to.
    assert_eq!(client.error("resources/subscribe", json!({"uri": "demo://other"})).await["code"], -32602);
    assert_eq!(client.error("resources/subscribe", json!({"uri": 5})).await["code"], -32602);
    assert_eq!(client.result("resources/unsubscribe", json!({"uri": GREETING})).await, json!({}));
    assert_eq!(client.result("resources/unsubscribe", json!({"uri": "demo://other"})).await, json!({}));
    gateway.upstream.announce(UPDATED, Some(&updated(GREETING)));
    gateway.upstream.announce(TOOLS, None);
    assert_eq!(stream.message().await["method"], TOOLS);
    let seen = gateway.upstream.stats();
    assert_eq!((seen.method("resources/subscribe"), seen.method("resources/unsubscribe")), (0, 0));
}

#[tokio::test]
async fn the_newest_of_each_change_waits_for_a_client_without_a_stream() {
    let gateway = in_front_of_modern().await;
    let client = gateway.open().await;
    client.result("resources/subscribe", json!({"uri": GREETING})).await;
    for _ in 0..5 {
        gateway.upstream.announce(UPDATED, Some(&updated(GREETING)));
        gateway.upstream.announce(TOOLS, None);
    }
    let mut stream = client.listen().await;
    let mut methods = [stream.message().await, stream.message().await].map(|mut message| message["method"].take());
    methods.sort_by_key(Value::to_string);
    assert_eq!(methods, [json!(UPDATED), json!(TOOLS)]);
}

#[tokio::test]
async fn a_subscription_that_breaks_is_opened_again_and_everything_counts_as_changed() {
    let gateway = in_front_of_modern().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    gateway.seen(|stats| stats.listens == 1).await;
    gateway.upstream.end_listens(false);
    assert_eq!(stream.message().await["method"], TOOLS);
    gateway.seen(|stats| stats.listens == 1 && stats.listens_opened == 2).await;
}

#[tokio::test]
async fn a_server_without_subscriptions_has_none_here() {
    let upstream = stateless(json!({"resources": {}, "tools": {}}), |_| None).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        assert_eq!(client.error(method, json!({"uri": "a:/"})).await["code"], -32601);
    }
    // There is a stream all the same, for tasks.
    drop(client.listen().await);
    assert_eq!(upstream.count("subscriptions/listen"), 0);
    // One that says it has them and has not.
    let upstream = stateless(json!({"resources": {"subscribe": true}}), |_| None).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    assert_eq!(client.error("resources/subscribe", json!({"uri": "a:/"})).await["code"], -32601);
    // And one that fails.
    let failing = |heard: &Heard| (heard.method == "subscriptions/listen").then(|| vec![bare(503)]);
    let upstream = stateless(json!({"resources": {"subscribe": true}}), failing).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    assert_eq!(client.error("resources/subscribe", json!({"uri": "a:/"})).await["code"], -32603);
}

#[tokio::test]
async fn a_slow_acknowledgement_keeps_only_its_own_request_waiting() {
    let open = gate();
    let held = open.clone();
    let upstream = stateless(json!({"resources": {"subscribe": true}, "tools": {}}), move |heard| {
        if heard.method != "subscriptions/listen" {
            return None;
        }
        let notifications = &heard.body["params"]["notifications"];
        let ack = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": notifications,
                "_meta": {"io.modelcontextprotocol/subscriptionId": heard.body["id"]}}});
        Some(vec![events_head(), Step::Gate(held.clone()), event(&ack.to_string()), Step::Stall, last_chunk()])
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let subscribing = client.request("resources/subscribe", json!({"uri": "a:/"}));
    let calling = async {
        upstream.heard("subscriptions/listen", 1).await;
        let answer = client.call("a", json!({})).await;
        open.add_permits(1);
        answer
    };
    let (subscribed, called) = tokio::join!(subscribing, calling);
    assert!(called.get("result").is_some());
    assert_eq!(subscribed.response().await["result"], json!({}));
}

#[tokio::test]
async fn a_server_that_changes_its_era_makes_its_clients_begin_anew() {
    let gateway = in_front_of_modern().await;
    let client = gateway.open().await;
    assert!(client.call("echo", json!({"text": "x"})).await.get("result").is_some());
    // When the server speaks only the older era,
    gateway.upstream.set_era(Era::Legacy);
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "x"}}});
    assert_eq!(client.post(call.to_string()).await.status, StatusCode::NOT_FOUND);
    // then a new session is one with the server itself,
    let client = gateway.open().await;
    assert!(client.call("echo", json!({"text": "x"})).await.get("result").is_some());
    // and the same the other way round.
    gateway.upstream.set_era(Era::Modern);
    let answer = client.post(call.to_string()).await;
    assert_ne!(answer.status, StatusCode::OK);
    let client = gateway.open().await;
    assert!(client.call("echo", json!({"text": "x"})).await.get("result").is_some());
}
