//! Each way to break, and that the next call is served all the same.

use http::{Method, StatusCode};
use serde_json::json;

use super::super::{Fault, Options};
use super::pair;
use super::peer::text_of;

#[tokio::test]
async fn faults_that_come_before_the_call() {
    let (server, mut peer) = pair(Options::default()).await;
    let count = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count"}}"#;
    let break_with = async |fault| {
        server.fail("tools/call", fault, 1);
        peer.post(count).await
    };
    assert_eq!(break_with(Fault::Status(503)).await.status, StatusCode::SERVICE_UNAVAILABLE);
    let page = break_with(Fault::Html).await;
    assert_eq!(page.header("content-type").as_deref(), Some("text/html"));
    let redirect = break_with(Fault::Redirect).await;
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (StatusCode::TEMPORARY_REDIRECT, Some("/elsewhere".into()))
    );
    let cut = break_with(Fault::CutJson).await.bytes().await;
    assert!(serde_json::from_slice::<serde_json::Value>(&cut).is_err());
    assert_eq!(server.stats().counter, 0);
    assert_eq!(break_with(Fault::SessionGone).await.status, StatusCode::NOT_FOUND);
    assert_eq!(peer.post(count).await.status, StatusCode::NOT_FOUND);
    peer.session = None;
    assert_eq!(server.stats().sessions, 0);
}

#[tokio::test]
async fn faults_that_come_after_the_call_began() {
    let (server, peer) = pair(Options::default()).await;
    let count = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count"}}"#;
    server.fail("tools/call", Fault::Close, 1);
    assert!(peer.send(Method::POST, peer.headers(), count).await.is_err());
    server.until(|stats| stats.counter == 1).await;

    server.fail("tools/call", Fault::Silent, 1);
    let silent = peer.send(Method::POST, peer.headers(), count);
    tokio::select! {
        _ = silent => panic!("it answered"),
        _ = server.until(|stats| stats.counter == 2) => {}
    }

    server.fail("tools/call", Fault::Gzip, 1);
    let zipped = peer.post(count).await;
    assert_eq!(zipped.header("content-encoding").as_deref(), Some("gzip"));
    assert!(zipped.bytes().await.starts_with(&[0x1f, 0x8b]));

    server.fail("tools/call", Fault::WrongId, 1);
    assert_eq!(peer.post(count).await.messages().await[0]["id"], "not yours");

    server.fail("tools/call", Fault::Twice, 1);
    assert_eq!(peer.post(count).await.messages().await.len(), 2);

    server.fail("tools/call", Fault::Garbage, 1);
    let mut garbage = peer.post(count).await;
    assert_eq!(garbage.next().await.unwrap().unwrap().data, "{this is no JSON");
    assert_eq!(text_of(&garbage.message().await), "6");
}

#[tokio::test]
async fn a_call_can_ask_for_its_fault() {
    let (_server, peer) = pair(Options::default()).await;
    let mut reset = peer.call(1, "fault", json!({"kind": "reset"})).await;
    assert_eq!(reset.message().await["method"], "notifications/progress");
    assert!(reset.next().await.is_err());
    let early = peer.call(2, "fault", json!({"kind": "end_early"})).await.messages().await;
    assert_eq!(early.len(), 1);
    let mut flood = peer.call(3, "fault", json!({"kind": "flood"})).await;
    // The event has no end: a reader that waits for it would only fill its memory.
    let mut bytes = 0;
    while bytes < 1 << 20 {
        bytes += flood.chunk().await;
    }
    assert_eq!(peer.call(4, "fault", json!({"kind": "http_500"})).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(peer.text(5, "fault", json!({"kind": "unknown"})).await, "nothing broke");
}

#[tokio::test]
async fn other_messages_break_as_planned() {
    let (server, peer) = pair(Options::default()).await;
    server.fail("GET", Fault::Status(500), 1);
    assert_eq!(peer.get(None).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    server.fail("response", Fault::Status(500), 1);
    let answer = peer.post(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    server.fail("DELETE", Fault::Status(405), 1);
    let kept = peer.send(Method::DELETE, peer.headers(), "").await.unwrap();
    assert_eq!(kept.status, StatusCode::METHOD_NOT_ALLOWED);
    server.fail("initialize", Fault::Status(500), 2);
    let init = peer
        .send(
            Method::POST,
            super::peer::Peer::silent(&server).headers(),
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#,
        )
        .await
        .unwrap();
    assert_eq!(init.status, StatusCode::INTERNAL_SERVER_ERROR);
    server.forget_sessions();
    assert_eq!(peer.get(None).await.status, StatusCode::NOT_FOUND);
}
