//! Sessions: begun, carried, ended, and never somebody else's.

use http::StatusCode;
use taskgate::demo::server::Options;

use crate::support::{Client, Gateway, json, text_of};

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

#[tokio::test]
async fn a_session_that_is_missing_or_not_there_is_told_apart() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let session = client.session.clone().unwrap();
    // A cut, lengthened or changed token is no token.
    let other = if session.ends_with('A') { 'B' } else { 'A' };
    let changed = format!("{}{other}", &session[..session.len() - 1]);
    let unknown = ["x", "00000000-0000-0000-0000-000000000000", &session[1..], &format!("{session}x"), &changed];
    for body in [
        PING,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"count"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"taskId":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
    ] {
        // 2025-11-25 transports, "Session Management" 2 and 3.
        let missing = client.post_with(&[("mcp-session-id", "")], body).await;
        assert_eq!(missing.status, StatusCode::BAD_REQUEST, "{body}");
        let error = missing.json().await;
        assert_eq!(error["error"]["code"], -32600, "{body}");
        let is_request = body.contains("\"id\"") && body.contains("\"method\"");
        assert_eq!(error.get("id"), is_request.then_some(&json!(7)), "{body}");
        for session in unknown {
            let answer = client.post_with(&[("mcp-session-id", session)], body).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{session} {body}");
            assert_eq!(answer.json().await["error"]["code"], -32600);
        }
    }
    for (session, status) in [("", StatusCode::BAD_REQUEST), ("x", StatusCode::NOT_FOUND)] {
        for method in [http::Method::GET, http::Method::DELETE] {
            let headers = client.headers_with(&[("mcp-session-id", session), ("content-type", "")]);
            assert_eq!(client.send(method.clone(), headers, "").await.unwrap().status, status, "{method} {session:?}");
        }
    }
    assert_eq!(gateway.upstream.stats().counter, 0);
    assert_eq!(client.post(PING).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_ended_session_is_gone_for_good() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    // Then its stream ends, nothing knows it any more, and the server's session ends too.
    assert!(stream.next().await.unwrap().is_none());
    assert_eq!(client.post(PING).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.delete().await, StatusCode::NOT_FOUND);
    gateway.seen(|stats| stats.deleted == 1 && stats.sessions == 0).await;
}

#[tokio::test]
async fn a_session_is_initialized_once() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let answer = client.request("initialize", params).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = answer.json().await;
    assert_eq!(error["error"]["code"], -32600);
    assert!(error["id"].is_u64());
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
    assert_eq!(client.post(PING).await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_initialize_lacks_is_said() {
    let gateway = Gateway::start().await;
    let client = gateway.client().silent();
    for params in [
        json!({}),
        json!({"capabilities": {}}),
        json!({"protocolVersion": 5, "capabilities": {}}),
        json!({"protocolVersion": null, "capabilities": {}}),
        json!({"protocolVersion": "2025-11-25", "capabilities": []}),
        json!({"protocolVersion": "2025-11-25", "capabilities": 5}),
        json!([]),
    ] {
        let error = client.error("initialize", params.clone()).await;
        assert_eq!(error["code"], -32602, "{params}");
    }
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#;
    assert_eq!(client.post(body).await.response().await["error"]["code"], -32602);
    // As a notification it is nothing that opens a session.
    let body = r#"{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
    assert_eq!(client.post(body).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(gateway.upstream.stats().sessions_opened, 0);
    gateway.counted(|metrics| metrics.value("taskgate_sessions", &[]) == 0.0).await;
}

#[tokio::test]
async fn a_version_header_must_name_a_version_that_is_served() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for version in ["2024-10-07", "latest", "2025-11-25x", "1"] {
        let answer = client.post_with(&[("mcp-protocol-version", version)], PING).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{version}");
        let error = answer.json().await;
        // Nothing that a client could take for a server of a later era.
        assert_eq!((&error["error"]["code"], &error["id"]), (&json!(-32600), &json!(7)), "{version}");
    }
    // Another one that is served is taken, and so is none; the session's own counts.
    for version in ["2025-06-18", "2025-03-26", "2024-11-05", ""] {
        let answer = client.post_with(&[("mcp-protocol-version", version)], PING).await;
        assert_eq!(answer.status, StatusCode::OK, "{version}");
        assert_eq!(gateway.upstream.stats().header("mcp-protocol-version"), Some("2025-11-25"));
    }
}

#[tokio::test]
async fn an_event_id_after_which_nothing_follows_is_refused() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    for id in ["x", "t.", "t.x", "u.", "u.x", "u.é", "u.1.0\t1", "u.1.99", "g.x", "v.1", "-1", "0", &"x".repeat(5000)]
    {
        let answer = client.get(Some(id)).await;
        // 2025-11-25 transports: an empty stream would be asked for again and again.
        if id == "g.x" {
            // The standalone stream has no end that could be missed.
            continue;
        }
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{id}");
        assert_eq!(answer.json().await["error"]["code"], -32600, "{id}");
    }
    assert_eq!(client.post(PING).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_finished_stream_is_not_resumed() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    let mut stream = client.wait_for(&id).await;
    // Given a stream of tasks/result that began with an id and came to its end,
    let first = stream.next().await.unwrap().unwrap();
    assert!(first.data.is_empty() && first.retry.is_some(), "{first:?}");
    gateway.started("hold", 1).await;
    gateway.upstream.release();
    let events = stream.events().await;
    let last = events.last().unwrap();
    assert_eq!(text_of(&last.message()), "held to the end");
    // when the client asks for what comes after its end, then that is refused;
    let answer = client.get(last.id.as_deref()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    // what comes after its beginning is the answer, for the request that asked.
    let again = client.get(first.id.as_deref()).await;
    let again = again.events().await;
    assert_eq!(again.last().unwrap().message(), last.message());
}

#[tokio::test]
async fn sessions_are_each_others_strangers() {
    let gateway = Gateway::start().await;
    let (one, two) = (gateway.open().await, gateway.open().await);
    assert_ne!(one.session, two.session);
    assert_eq!(gateway.upstream.stats().sessions_opened, 2);
    assert_eq!(one.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(two.post(PING).await.status, StatusCode::OK);
}

/// Lets go of a session that has a task at work.
async fn end_with_a_task(gateway: &Gateway, client: &Client) -> String {
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    id
}

#[tokio::test]
async fn a_task_outlives_its_session_and_so_does_the_servers() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = end_with_a_task(&gateway, &client).await;
    // Then another session of the same caller sees the task at work,
    let next = gateway.open().await;
    assert_eq!(next.task(&id).await["status"], "working");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.deleted, stats.sessions, stats.tool("hold").cancelled), (0, 2, 0));
    // and the server's session ends when the last call on it has.
    gateway.upstream.release();
    assert_eq!(text_of(&next.outcome(&id).await), "held to the end");
    gateway.seen(|stats| stats.deleted == 1 && stats.sessions == 1).await;
}

#[tokio::test]
async fn the_servers_404_ends_the_session_and_its_tasks() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    gateway.upstream.forget_sessions();
    let answer = client.post(PING).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.json().await["error"]["code"], -32600);
    let next = gateway.open().await;
    let task = next.until(&id, "failed").await;
    assert!(task["statusMessage"].is_string(), "{task}");
    let error = &next.outcome(&id).await["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("outcome_unknown")), "{error}");
}

#[tokio::test]
async fn what_was_missed_on_the_sessions_stream_can_be_asked_for() {
    for event_ids in [true, false] {
        let gateway = Gateway::setup().server(Options { event_ids, ..Options::default() }).start().await;
        let client = gateway.open().await;
        let mut stream = client.listen().await;
        gateway.seen(|stats| stats.get_streams == 1).await;
        gateway.upstream.announce("notifications/vendor", Some("{\"n\":1}"));
        let seen = stream.next().await.unwrap().unwrap();
        assert_eq!(seen.message()["params"]["n"], 1);
        assert_eq!(seen.id.is_some(), event_ids, "{seen:?}");
        // Given a client whose stream breaks, when something happens meanwhile,
        drop(stream);
        gateway.seen(|stats| stats.get_streams == 0).await;
        gateway.upstream.announce("notifications/vendor", Some("{\"n\":2}"));
        // then it gets that, once, when it comes back.
        let mut stream = client.get(seen.id.as_deref()).await;
        assert_eq!(stream.message().await["params"]["n"], 2);
        gateway.upstream.announce("notifications/vendor", Some("{\"n\":3}"));
        assert_eq!(stream.message().await["params"]["n"], 3);
    }
}

#[tokio::test]
async fn an_event_id_that_the_server_has_forgotten_costs_no_stream() {
    let gateway = Gateway::setup().server(Options { event_ids: true, ..Options::default() }).start().await;
    let client = gateway.open().await;
    let mut stream = client.get(Some("g.0.999")).await;
    assert_eq!(stream.status, StatusCode::OK);
    gateway.seen(|stats| stats.get_streams == 1).await;
    gateway.upstream.announce("notifications/vendor", None);
    assert_eq!(stream.message().await["method"], "notifications/vendor");
}
