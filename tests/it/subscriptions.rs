//! `subscriptions/listen`: clients without sessions hear of changes, whatever their server is.

use std::time::Duration;

use http_body_util::BodyExt as _;
use taskgate::app::Timing;
use taskgate::demo::server::{Era, Options};

use crate::support::modern::{SERVER_KEY, SUBSCRIPTION_KEY, TASKS};
use crate::support::raw_upstream::bare;
use crate::support::{Answer, Gateway, Modern, RawUpstream, Value, json, within};

const TOOLS: &str = "notifications/tools/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const GREETING: &str = "demo://greeting";

async fn gateway(era: Era) -> Gateway {
    Gateway::setup().server(Options { era, ..Options::default() }).start().await
}

/// Announces until a message has come: nobody can see from outside when a server's stream is in place.
async fn next(gateway: &Gateway, stream: &mut Answer, method: &str, params: Option<&str>) -> Value {
    gateway.upstream.announce(method, params);
    stream.message().await
}

#[tokio::test]
async fn changes_come_under_the_id_of_the_request_and_nothing_else_comes() {
    for era in [Era::Modern, Era::Legacy] {
        let gateway = gateway(era).await;
        let client = Modern::new(&gateway);
        let wanted = json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": false,
            "resourceSubscriptions": [GREETING], "unknown": true});
        let id = json!("the \"stream\"");
        let params = json!({"notifications": wanted, "_meta": {"progressToken": 1}});
        let mut stream = client.open_with(&[], id.clone(), "subscriptions/listen", params).await;
        let acknowledged = stream.message().await;
        assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{era:?}");
        let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": [GREETING]});
        assert_eq!(acknowledged["params"], json!({"notifications": honoured, "_meta": {SUBSCRIPTION_KEY: id}}));
        // What was not asked for, what is not told of, and what never belongs here.
        for other in ["notifications/resources/list_changed", "notifications/prompts/list_changed"] {
            gateway.upstream.announce(other, None);
        }
        gateway.upstream.announce(UPDATED, Some(r#"{"uri":"demo://other"}"#));
        gateway.upstream.announce("notifications/message", Some(r#"{"level":"error","data":1}"#));
        let changed = next(&gateway, &mut stream, TOOLS, Some(r#"{"n":1.10}"#)).await;
        assert_eq!(changed["method"], TOOLS, "{era:?}");
        assert_eq!(changed["params"], json!({"n": 1.10, "_meta": {SUBSCRIPTION_KEY: id}}));
        let updated = next(&gateway, &mut stream, UPDATED, Some(&format!(r#"{{"uri":"{GREETING}"}}"#))).await;
        assert_eq!(updated["params"], json!({"uri": GREETING, "_meta": {SUBSCRIPTION_KEY: id}}), "{era:?}");
    }
}

#[tokio::test]
async fn a_lost_stream_is_opened_again_and_everything_counts_as_changed() {
    for era in [Era::Modern, Era::Legacy] {
        let gateway = gateway(era).await;
        let client = Modern::new(&gateway);
        let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": [GREETING]});
        let (mut stream, honoured) = client.listen(wanted.clone()).await;
        assert_eq!(honoured, wanted);
        for way in 0..3 {
            match (era, way) {
                (Era::Modern, _) => gateway.upstream.end_listens(way == 0),
                (_, 0) => gateway.upstream.forget_sessions(),
                _ => gateway.upstream.drop_get_streams(),
            }
            let mut told = [stream.message().await, stream.message().await];
            told.sort_by_key(|message| message["method"].to_string());
            assert_eq!((&told[0]["method"], &told[0]["params"]["uri"]), (&json!(UPDATED), &json!(GREETING)), "{era:?}");
            assert_eq!(told[1]["method"], TOOLS, "{era:?}");
            // It works as before.
            assert_eq!(next(&gateway, &mut stream, TOOLS, None).await["method"], TOOLS);
        }
    }
}

#[tokio::test]
async fn a_modern_server_hears_when_nobody_listens_any_more() {
    let gateway = gateway(Era::Modern).await;
    let client = Modern::new(&gateway);
    let (first, _) = client.listen(json!({"toolsListChanged": true})).await;
    let (mut second, _) = client.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(gateway.upstream.stats().listens, 2);
    drop(first);
    gateway.seen(|stats| stats.listens == 1).await;
    assert_eq!(next(&gateway, &mut second, TOOLS, None).await["method"], TOOLS);
    drop(second);
    gateway.seen(|stats| stats.listens == 0).await;
}

#[tokio::test]
async fn streams_of_a_caller_share_one_session_of_a_legacy_server_and_end_it() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).start().await;
    let alice = Modern::new(&gateway).caller("alice");
    let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": [GREETING]});
    let (first, _) = alice.listen(wanted.clone()).await;
    let (mut second, honoured) = alice.listen(wanted.clone()).await;
    assert_eq!(honoured, wanted);
    let stats = gateway.upstream.stats();
    assert_eq!((stats.sessions, stats.get_streams, stats.method("resources/subscribe")), (1, 1, 1));
    let (bobs, _) = Modern::new(&gateway).caller("bob").listen(wanted).await;
    assert_eq!(gateway.upstream.stats().sessions, 2);
    // What one stream still wants stays.
    drop((first, bobs));
    gateway.seen(|stats| stats.sessions == 1).await;
    assert_eq!(next(&gateway, &mut second, TOOLS, None).await["method"], TOOLS);
    assert_eq!(gateway.upstream.stats().method("resources/unsubscribe"), 0);
    // Another does not, while the session is needed.
    let (third, _) = alice.listen(json!({"toolsListChanged": true})).await;
    drop(second);
    gateway.seen(|stats| stats.method("resources/unsubscribe") == 1).await;
    drop(third);
    gateway.seen(|stats| stats.sessions == 0 && stats.get_streams == 0).await;
}

#[tokio::test]
async fn a_stream_that_can_tell_of_nothing_says_so_and_ends() {
    // A modern server that has no such method, and a legacy one without a stream of its own.
    for era in ["modern", "legacy"] {
        let server = RawUpstream::start(|heard| {
            let error = json!({"code": -32601, "message": "no such method"});
            (heard.method == "subscriptions/listen").then(|| vec![heard.refuses(404, &error)])
        })
        .await;
        let gateway = Gateway::setup().in_front_of(&server.url()).upstream(&format!("era: {era}")).start().await;
        for wanted in [json!({"toolsListChanged": true, "resourceSubscriptions": ["a:/"]}), json!({})] {
            let (stream, honoured) = Modern::new(&gateway).listen(wanted).await;
            assert_eq!(honoured, json!({}), "{era}");
            let last = stream.response().await;
            assert_eq!(last["result"]["resultType"], "complete");
            assert_eq!(last["result"]["_meta"][SUBSCRIPTION_KEY], last["id"]);
        }
    }
}

#[tokio::test]
async fn the_stop_of_the_gateway_ends_streams_with_a_result() {
    for era in [Era::Modern, Era::Legacy] {
        let mut gateway = gateway(era).await;
        let (stream, _) = Modern::new(&gateway).listen(json!({"toolsListChanged": true})).await;
        let (last, ()) = tokio::join!(stream.response(), gateway.stop());
        let server = &last["result"]["_meta"][SERVER_KEY];
        assert_eq!(server["name"], "taskgate-demo", "{era:?}");
        let meta = json!({SUBSCRIPTION_KEY: last["id"], SERVER_KEY: server});
        assert_eq!(last["result"], json!({"resultType": "complete", "_meta": meta}));
        assert_eq!((gateway.upstream.stats().listens, gateway.upstream.stats().sessions), (0, 0), "{era:?}");
    }
}

#[tokio::test]
async fn a_server_that_changes_its_era_ends_the_streams_so_that_clients_ask_anew() {
    let gateway = gateway(Era::Modern).await;
    let client = Modern::new(&gateway);
    let (stream, _) = client.listen(json!({"toolsListChanged": true})).await;
    gateway.upstream.set_era(Era::Legacy);
    gateway.upstream.end_listens(false);
    assert_eq!(stream.response().await["result"]["resultType"], "complete");
    let (mut stream, honoured) = client.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
    assert_eq!(next(&gateway, &mut stream, TOOLS, None).await["method"], TOOLS);
    gateway.upstream.set_era(Era::Modern);
    gateway.upstream.forget_sessions();
    assert_eq!(stream.response().await["result"]["resultType"], "complete");
    let (mut stream, _) = client.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(next(&gateway, &mut stream, TOOLS, None).await["method"], TOOLS);
}

#[tokio::test]
async fn filters_that_are_none_are_refused_before_anything_is_opened() {
    let gateway = gateway(Era::Modern).await;
    let client = Modern::new(&gateway);
    let many = vec!["a:/"; 1025];
    for wrong in [
        json!({}),
        json!({"notifications": []}),
        json!({"notifications": {"toolsListChanged": 1}}),
        json!({"notifications": {"resourceSubscriptions": "a:/"}}),
        json!({"notifications": {"resourceSubscriptions": many}}),
    ] {
        assert_eq!(client.request("subscriptions/listen", wrong).await.refusal(), (200, -32602));
    }
    let json_only = [("accept", "application/json")];
    let params = json!({"notifications": {}});
    assert_eq!(client.request_with(&json_only, "subscriptions/listen", params).await.refusal(), (400, -32600));
    assert_eq!(gateway.upstream.stats().listens_opened, 0);
}

#[tokio::test]
async fn a_silent_stream_is_kept_warm() {
    let timing = Timing { keep_alive: Duration::from_millis(20), ..Timing::default() };
    let gateway = Gateway::setup().server(Options { era: Era::Modern, ..Options::default() }).timing(timing);
    let gateway = gateway.start().await;
    let (stream, _) = Modern::new(&gateway).listen(json!({"toolsListChanged": true})).await;
    let frame = within(stream.into_body().frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), ":\n\n");
}

#[tokio::test]
async fn tasks_are_told_of_as_a_read_would_show_them() {
    let gateway = gateway(Era::Legacy).await;
    let legacy = gateway.open().await;
    let (running, ended) = (legacy.start("hold", json!({})).await, legacy.start("exact", json!({})).await);
    legacy.until(&ended, "completed").await;
    let client = Modern::new(&gateway).with_tasks();
    let stranger = "00000000-0000-4000-8000-000000000000";
    // Given a stream for tasks of which some were never there,
    let (mut stream, honoured) = client.listen(json!({"taskIds": [running, ended, stranger, "none"]})).await;
    let mut ids = honoured["taskIds"].as_array().unwrap().clone();
    ids.sort_by_key(Value::to_string);
    let mut expected = [json!(running), json!(ended)];
    expected.sort_by_key(Value::to_string);
    assert_eq!((honoured.as_object().unwrap().len(), ids), (1, expected.to_vec()));
    // then each is told of as it is,
    for _ in 0..2 {
        let told = stream.message().await;
        assert_eq!(told["method"], "notifications/tasks");
        let params = &told["params"];
        assert!(params["_meta"][SUBSCRIPTION_KEY].is_u64() && params.get("resultType").is_none(), "{told}");
        match params["taskId"] == json!(ended) {
            true => assert_eq!((&params["status"], params["result"].is_object()), (&json!("completed"), true)),
            false => assert_eq!((&params["status"], params.get("result")), (&json!("working"), None)),
        }
    }
    // and at its end, with the result.
    gateway.upstream.release();
    let told = stream.message().await;
    assert_eq!((&told["params"]["taskId"], &told["params"]["status"]), (&json!(running), &json!("completed")));
    assert!(told["params"]["result"]["content"].is_array());
}

#[tokio::test]
async fn tasks_can_be_listened_to_only_by_requests_that_declare_them_and_only_by_their_owner() {
    let gateway = Gateway::setup().callers(&["acme/alice", "acme/bob"]).start().await;
    let alice = gateway.open_as("alice").await;
    let id = alice.start("hold", json!({})).await;
    let client = Modern::new(&gateway).caller("alice");
    for ids in [json!([]), json!([id]), json!(["none"])] {
        let reply = client.request("subscriptions/listen", json!({"notifications": {"taskIds": ids}})).await;
        assert_eq!(reply.refusal(), (400, -32021));
        assert_eq!(reply.error["data"]["requiredCapabilities"], json!({"extensions": {TASKS: {}}}));
    }
    let bob = Modern::new(&gateway).caller("bob").with_tasks();
    let (stream, honoured) = bob.listen(json!({"taskIds": [id]})).await;
    assert_eq!(honoured, json!({"taskIds": []}));
    assert_eq!(stream.response().await["result"]["resultType"], "complete");
    let (mut stream, honoured) = client.with_tasks().listen(json!({"taskIds": [id]})).await;
    assert_eq!(honoured, json!({"taskIds": [id]}));
    assert_eq!(stream.message().await["params"]["taskId"], json!(id));
    gateway.upstream.release();
}

#[tokio::test]
async fn a_server_that_refuses_to_be_listened_to_is_no_fault_of_the_client() {
    let server = RawUpstream::start(|heard| (heard.method == "subscriptions/listen").then(|| vec![bare(403)])).await;
    let gateway = Gateway::setup().in_front_of(&server.url()).upstream("era: modern").start().await;
    let (_, honoured) = Modern::new(&gateway).listen(json!({"toolsListChanged": true})).await;
    assert_eq!(honoured, json!({}));
}
