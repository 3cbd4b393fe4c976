//! Which era a server speaks: found out by asking once, remembered, and mended when the server is not what it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;
use rustix::process::Signal;
use taskgate::demo::server::{Era, Options};

use crate::support::processes::{signal, until_there_are};
use crate::support::raw_upstream::{Heard, Step, json_body};
use crate::support::{Connection, Gateway, Modern, RawUpstream, Value, json, text_of, within};

fn of(era: Era) -> Options {
    Options { era, ..Options::default() }
}

/// What a modern server says of itself.
fn discovered(heard: &Heard) -> Step {
    json_body(&heard.completes(json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
        "ttlMs": 0, "cacheScope": "private"})))
}

/// A server that answers the first question so, and is a modern one from then on.
async fn at_first(answer: impl Fn(&Heard) -> Step + Send + Sync + 'static) -> RawUpstream {
    let asked = AtomicUsize::new(0);
    RawUpstream::start(move |heard| match heard.method.as_str() {
        "server/discover" if asked.fetch_add(1, Ordering::Relaxed) == 0 => Some(vec![answer(heard)]),
        "server/discover" => Some(vec![discovered(heard)]),
        "tools/call" => Some(vec![json_body(&heard.tells("done"))]),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn however_many_call_first_the_server_is_asked_once() {
    let gateway = Gateway::setup().server(of(Era::Modern)).start().await;
    let client = Modern::new(&gateway);
    let texts = join_all((0..20).map(|number| client.text("echo", json!({"text": number.to_string()})))).await;
    assert!(texts.iter().enumerate().all(|(number, text)| *text == number.to_string()), "{texts:?}");
    assert_eq!(gateway.upstream.stats().method("server/discover"), 1);
}

#[tokio::test]
async fn a_server_of_both_eras_serves_each_client_in_its_own() {
    let gateway = Gateway::setup().server(of(Era::Both)).start().await;
    let legacy = gateway.open().await;
    assert_eq!(text_of(&legacy.call("echo", json!({"text": "l"})).await), "l");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.method("initialize"), stats.method("server/discover")), (1, 0));
    assert_eq!(Modern::new(&gateway).text("echo", json!({"text": "m"})).await, "m");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.method("initialize"), stats.method("server/discover")), (1, 1));
}

#[tokio::test]
async fn a_handshake_that_a_modern_server_refuses_is_not_tried_again_and_again() {
    let gateway = Gateway::setup().server(of(Era::Modern)).start().await;
    for _ in 0..3 {
        let client = gateway.open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "x"})).await), "x");
    }
    assert_eq!(gateway.upstream.stats().method("initialize"), 1);
}

#[tokio::test]
async fn an_answer_that_says_nothing_of_the_era_is_not_remembered() {
    for status in [401, 429, 503] {
        let error = json!({"code": -32000, "message": "not now"});
        let server = at_first(move |heard| heard.refuses(status, &error)).await;
        let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
        let client = Modern::new(&gateway);
        assert_eq!(client.call("x", json!({})).await.refusal(), (200, -32603), "{status}");
        assert_eq!((server.count("initialize"), server.count("tools/call")), (0, 0), "{status}");
        assert_eq!(client.text("x", json!({})).await, "done", "{status}");
    }
    let server = at_first(|_| Step::Reset).await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    assert_eq!(Modern::new(&gateway).call("x", json!({})).await.refusal(), (200, -32603));
    assert_eq!(Modern::new(&gateway).text("x", json!({})).await, "done");
}

#[tokio::test]
async fn versions_that_are_not_spoken_here_are_no_reason_to_fall_back() {
    let error =
        json!({"code": -32022, "message": "no", "data": {"supported": ["2027-05-05"], "requested": "2026-07-28"}});
    let server =
        RawUpstream::start(move |heard| (heard.method == "server/discover").then(|| vec![heard.refuses(400, &error)]))
            .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    for _ in 0..3 {
        assert_eq!(client.call("x", json!({})).await.refusal(), (200, -32603));
    }
    assert_eq!((server.count("server/discover"), server.count("initialize"), server.count("tools/call")), (1, 0, 0));
}

#[tokio::test]
async fn a_route_is_not_ready_while_its_server_shares_no_version_and_is_so_again_when_it_takes_somebody() {
    // Given a server that speaks only what is not spoken here, to clients of either era,
    let serves = Arc::new(AtomicBool::new(false));
    let taken = Arc::clone(&serves);
    let server = RawUpstream::start(move |heard| {
        let error = json!({"code": -32022, "message": "no", "data": {"supported": ["2027-05-05"], "requested": ""}});
        let is_refused =
            heard.method == "server/discover" || heard.method == "initialize" && !taken.load(Ordering::Relaxed);
        is_refused.then(|| vec![heard.refuses(400, &error)])
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).second_route().start().await;
    let readiness = async || {
        let mut connection = Connection::open(gateway.admin).await;
        connection.send("GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let answer = connection.answer().await;
        (answer.status, answer.text())
    };
    assert_eq!(readiness().await.0, 200);
    // when a client of the older era finds that out, then its route is named, and no other.
    let (_, refused) = gateway.client().initialize().await;
    assert_eq!(refused.json().await["error"]["code"], -32022);
    let (status, said) = readiness().await;
    assert_eq!((status, said.lines().count()), (503, 1));
    assert!(said.starts_with("route main: "), "{said}");
    assert_eq!(Modern::new(&gateway).path("/second").call("x", json!({})).await.refusal(), (200, -32603));
    let (status, said) = readiness().await;
    assert_eq!((status, said.lines().count()), (503, 2), "{said}");
    // When it takes handshakes again, then both are ready as soon as one was taken.
    serves.store(true, Ordering::Relaxed);
    gateway.open().await;
    let (status, said) = readiness().await;
    assert_eq!((status, said.lines().count()), (503, 1), "{said}");
    assert!(said.starts_with("route second: "), "{said}");
    gateway.client().path("/second").open().await;
    assert_eq!(readiness().await, (200, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_modern_server_that_misreads_the_question_is_not_taken_for_a_legacy_one() {
    let error = json!({"code": -32020, "message": "headers and body differ"});
    let server = at_first(move |heard| heard.refuses(400, &error)).await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    assert_eq!(Modern::new(&gateway).text("x", json!({})).await, "done");
    assert_eq!(server.count("initialize"), 0);
}

#[tokio::test]
async fn a_call_that_a_legacy_server_has_executed_stands_and_is_not_sent_again() {
    // Given a server that lets a later one behind the same address answer for it,
    let server = Arc::new(
        RawUpstream::start(|heard| match heard.method.as_str() {
            "server/discover" => Some(vec![discovered(heard)]),
            "tools/call" => Some(vec![json_body(&heard.says("run"))]),
            _ => None,
        })
        .await,
    );
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    // when a call comes back without `resultType`, then its result is passed on,
    assert_eq!(client.text("x", json!({})).await, "run");
    assert_eq!((server.count("tools/call"), server.count("server/discover")), (1, 1));
    // and the next call is preceded by a question, but not each one after it.
    for calls in 2..5 {
        assert_eq!(client.text("x", json!({})).await, "run");
        assert_eq!((server.count("tools/call"), server.count("server/discover")), (calls, 2));
    }
}

#[tokio::test]
async fn a_refusal_that_modern_servers_give_as_well_asks_no_question() {
    let server = RawUpstream::start(|heard| match heard.method.as_str() {
        "server/discover" => Some(vec![discovered(heard)]),
        "tools/call" => Some(vec![heard.refuses(400, &json!({"code": -32602, "message": "no"}))]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    for calls in 1..4 {
        assert_eq!(client.call("x", json!({})).await.error["code"], -32602);
        assert_eq!((server.count("tools/call"), server.count("server/discover")), (calls, 1));
    }
}

#[tokio::test]
async fn a_false_alarm_asks_once_and_the_refusal_is_passed_on() {
    let server = RawUpstream::start(|heard| match heard.method.as_str() {
        "server/discover" => Some(vec![discovered(heard)]),
        "tools/call" => Some(vec![heard.refuses(400, &json!({"code": -32000, "message": "odd"}))]),
        _ => None,
    })
    .await;
    let gateway = Gateway::setup().in_front_of(&server.url()).start().await;
    let client = Modern::new(&gateway);
    for calls in 1..4 {
        assert_eq!(client.call("x", json!({})).await.error["code"], -32000);
        assert_eq!((server.count("tools/call"), server.count("server/discover")), (calls, 2));
    }
    assert_eq!(server.count("initialize"), 0);
}

#[tokio::test]
async fn what_is_configured_is_not_asked() {
    let gateway = Gateway::setup().server(of(Era::Both)).upstream("era: modern").start().await;
    assert_eq!(Modern::new(&gateway).text("echo", json!({"text": "m"})).await, "m");
    assert_eq!(gateway.upstream.stats().method("server/discover"), 0);
    let legacy = gateway.open().await;
    assert_eq!(text_of(&legacy.call("echo", json!({"text": "l"})).await), "l");
    assert_eq!(gateway.upstream.stats().method("initialize"), 0);

    let gateway = Gateway::setup().server(of(Era::Both)).upstream("era: legacy").start().await;
    assert_eq!(Modern::new(&gateway).text("echo", json!({"text": "m"})).await, "m");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.method("server/discover"), stats.method("initialize")), (0, 1));
}

#[tokio::test]
async fn a_server_may_change_its_era_under_a_running_gateway() {
    let gateway = Gateway::setup().server(of(Era::Modern)).start().await;
    let client = Modern::new(&gateway);
    let legacy = || async {
        let client = gateway.open().await;
        assert_eq!(text_of(&client.call("echo", json!({"text": "l"})).await), "l");
    };
    assert_eq!(client.text("echo", json!({"text": "1"})).await, "1");
    legacy().await;
    for (era, text) in [(Era::Legacy, "2"), (Era::Modern, "3"), (Era::Both, "4"), (Era::Legacy, "5")] {
        gateway.upstream.set_era(era);
        let before = gateway.upstream.stats().tool("echo").started;
        assert_eq!(client.text("echo", json!({"text": text})).await, text, "{era:?}");
        assert_eq!(gateway.upstream.stats().tool("echo").started, before + 1, "{era:?}");
        legacy().await;
    }
}

/// What a server on a pipe has seen.
async fn stats(client: &Modern, wanted: impl Fn(&Value) -> bool) -> Value {
    within(async {
        loop {
            let stats = client.call("stats", json!({})).await.result["structuredContent"].take();
            if wanted(&stats) {
                return stats;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_modern_server_on_pipes_is_one_process_for_all_and_is_replaced_when_it_dies() {
    let marker = "921s";
    let gateway = Gateway::setup().stdio(&["--era", "modern", "--answer-timeout", marker]).start().await;
    let (first, second, legacy) = (Modern::new(&gateway), Modern::new(&gateway), gateway.open().await);
    assert_eq!(first.text("count", json!({})).await, "1");
    assert_eq!(second.text("count", json!({})).await, "2");
    assert_eq!(text_of(&legacy.call("count", json!({})).await), "3");
    let [pid] = until_there_are(1, marker).await[..] else { unreachable!() };
    // What is in flight is lost with it,
    let killing = async {
        stats(&second, |stats| stats["tools"]["hold"]["started"] == 1).await;
        signal(pid, Signal::KILL);
    };
    let (lost, ()) = tokio::join!(first.call("hold", json!({})), killing);
    assert_eq!((lost.refusal(), &lost.error["data"]["reason"]), ((200, -32603), &json!("outcome_unknown")));
    // and the next call meets another.
    assert_eq!(first.text("count", json!({})).await, "1");
    until_there_are(1, marker).await;
}

#[tokio::test]
async fn a_modern_server_on_pipes_is_told_what_nobody_waits_for_any_more() {
    let gateway = Gateway::setup().stdio(&["--era", "modern"]).start().await;
    let (client, other) = (Modern::new(&gateway), Modern::new(&gateway));
    tokio::select! {
        reply = client.call("hold", json!({})) => panic!("{reply:?}"),
        _ = stats(&other, |stats| stats["tools"]["hold"]["started"] == 1) => {}
    }
    stats(&other, |stats| {
        stats["tools"]["hold"]["cancelled"] == 1 && stats["cancelled"].as_array().unwrap().len() == 1
    })
    .await;
    let (stream, honoured) = client.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
    stats(&other, |stats| stats["listens"] == 1).await;
    drop(stream);
    stats(&other, |stats| stats["listens"] == 0 && stats["cancelled"].as_array().unwrap().len() == 2).await;
}

#[tokio::test]
async fn a_legacy_server_on_pipes_serves_modern_clients() {
    let gateway = Gateway::setup().stdio(&[]).start().await;
    let client = Modern::new(&gateway);
    assert_eq!(client.text("echo", json!({"text": "x"})).await, "x");
    let (_stream, honoured) = client.listen(json!({"toolsListChanged": true, "promptsListChanged": true})).await;
    assert_eq!(honoured, json!({"toolsListChanged": true}));
}
