//! Who calls: keys, refusals that tell nothing, and callers who don't exist for each other.

use http::{HeaderMap, Method, StatusCode};

use crate::support::{Client, Gateway, Value, json, text_of};

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

/// Two callers of one tenant and one of another, on two routes.
async fn gateway() -> Gateway {
    Gateway::setup().callers(&["acme/ann", "acme/bob", "umbrella/eve"]).second_route().start().await
}

#[tokio::test]
async fn a_key_is_taken_in_either_field() {
    let gateway = gateway().await;
    let client = gateway.open_as("ann").await;
    for changes in [
        [("authorization", "Bearer key-of-ann"), ("x-api-key", "")],
        [("authorization", "bearer key-of-ann"), ("x-api-key", "")],
        [("authorization", ""), ("x-api-key", "key-of-ann")],
        [("authorization", "Bearer key-of-ann"), ("x-api-key", "key-of-ann")],
        [("authorization", "Basic eDp5"), ("x-api-key", "key-of-ann")],
    ] {
        let answer = client.post_with(&changes, PING).await;
        assert_eq!(answer.status, StatusCode::OK, "{changes:?}");
    }
}

#[tokio::test]
async fn every_refusal_is_the_same() {
    let gateway = gateway().await;
    let client = gateway.open_as("ann").await;
    let missing = r#"Bearer realm="taskgate""#;
    let invalid = r#"Bearer realm="taskgate", error="invalid_token""#;
    let mut bodies = Vec::new();
    for (key, value, challenge) in [
        ("authorization", "", missing),
        ("authorization", "Basic eDp5", missing),
        ("authorization", "Bearer", invalid),
        ("authorization", "Bearer wrong", invalid),
        ("authorization", "Bearer key-of-ann x", invalid),
        ("authorization", "Bearer KEY-OF-ANN", invalid),
        ("authorization", "Bearer key-of-anné", invalid),
        ("x-api-key", "wrong", invalid),
    ] {
        for (method, body) in [
            (Method::POST, PING),
            (Method::POST, "no json"),
            (Method::POST, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
            (Method::GET, ""),
            (Method::DELETE, ""),
            (Method::PUT, ""),
        ] {
            // With a session of somebody's or without: it is no credential.
            for session in [client.session.as_deref().unwrap(), "", "x"] {
                let mut changes = vec![("authorization", ""), ("mcp-session-id", session)];
                changes.push((key, value));
                let answer = client.send(method.clone(), client.headers_with(&changes), body).await.unwrap();
                assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{method} {value}");
                assert_eq!(answer.header("www-authenticate"), Some(challenge), "{method} {value}");
                bodies.push(answer.text().await);
            }
        }
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1, "{bodies:?}");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.method("ping"), stats.sessions), (0, 1));
    // Two keys that contradict each other are none.
    let headers = client.headers_with(&[("x-api-key", "key-of-bob")]);
    assert_eq!(client.send(Method::POST, headers, PING).await.unwrap().status, StatusCode::UNAUTHORIZED);
    assert_eq!(client.post(PING).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_unknown_path_tells_nothing_without_a_key_either() {
    let gateway = gateway().await;
    let nobody = gateway.client().path("/nowhere").silent();
    let answer = nobody.send(Method::POST, HeaderMap::new(), "").await.unwrap();
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(answer.header("www-authenticate"), None);
}

/// Everything that a stranger may try on a task, and what came of it.
async fn tried(client: &Client, id: &str) -> Vec<Value> {
    let mut answers = Vec::new();
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let mut answer = client.response(method, json!({"taskId": id})).await;
        answer.as_object_mut().unwrap().remove("id");
        answers.push(answer);
    }
    let answer =
        client.try_answer(&json!(format!("tg.{id}.0")), json!({"action": "accept", "content": {"name": "Eve"}})).await;
    answers.push(json!(answer.status.as_u16()));
    answers.push(answer.json().await);
    answers
}

#[tokio::test]
async fn somebody_elses_task_does_not_exist() {
    let gateway = gateway().await;
    let ann = gateway.open_as("ann").await;
    let asking = ann.start("ask", json!({})).await;
    ann.until(&asking, "input_required").await;
    let done = ann.start("exact", json!({})).await;
    ann.until(&done, "completed").await;
    let cancelled = ann.start("hold", json!({})).await;
    ann.cancel(&cancelled).await;
    let known = [&asking, &done, &cancelled];
    let before: Vec<Value> = {
        let mut all = Vec::new();
        for id in known {
            all.push(ann.task(id).await);
        }
        all
    };
    // Given a colleague, a stranger, and Ann herself on another route,
    let strangers = [
        gateway.open_as("bob").await,
        gateway.open_as("eve").await,
        gateway.client().caller("ann").path("/second").open().await,
    ];
    for stranger in &strangers {
        // when they try her tasks, then each gets the words for a task that never was,
        let never = tried(stranger, "00000000-0000-4000-8000-000000000000").await;
        assert_eq!(never[0]["error"], json!({"code": -32602, "message": "Task not found"}));
        for id in known {
            assert_eq!(tried(stranger, id).await, never);
        }
        assert_eq!(stranger.result("tasks/list", json!({})).await, json!({"tasks": []}));
    }
    // and nothing has happened to them.
    for (id, before) in known.into_iter().zip(&before) {
        assert_eq!(ann.task(id).await, *before);
    }
    assert_eq!(gateway.upstream.stats().answers, 0);
    let own = gateway.open_as("ann").await;
    assert_eq!(own.result("tasks/list", json!({})).await["tasks"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn somebody_elses_session_does_not_exist() {
    let gateway = gateway().await;
    let ann = gateway.open_as("ann").await;
    let mut never = gateway.open_as("bob").await;
    never.session = Some("x".to_owned());
    let unknown = never.post(PING).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let unknown = unknown.text().await;
    for mut stranger in [
        gateway.open_as("bob").await,
        gateway.open_as("eve").await,
        gateway.client().caller("ann").path("/second").open().await,
    ] {
        stranger.session.clone_from(&ann.session);
        let answer = stranger.post(PING).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(answer.text().await, unknown);
        assert_eq!(stranger.get(None).await.status, StatusCode::NOT_FOUND);
        assert_eq!(stranger.delete().await, StatusCode::NOT_FOUND);
        let body = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        assert_eq!(stranger.post(body).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(ann.post(PING).await.status, StatusCode::OK);
    assert_eq!(gateway.upstream.stats().method("notifications/cancelled"), 0);
}

#[tokio::test]
async fn somebody_elses_event_ids_and_cursors_are_none() {
    let gateway = gateway().await;
    let ann = gateway.open_as("ann").await;
    let id = ann.start("hold", json!({})).await;
    let mut waiting = ann.wait_for(&id).await;
    let event = waiting.next().await.unwrap().unwrap().id.unwrap();
    for _ in 0..50 {
        ann.start("exact", json!({})).await;
    }
    let cursor = ann.result("tasks/list", json!({})).await["nextCursor"].take();
    for stranger in [
        gateway.open_as("bob").await,
        gateway.open_as("eve").await,
        gateway.client().caller("ann").path("/second").open().await,
    ] {
        let answer = stranger.get(Some(&event)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = stranger.error("tasks/list", json!({"cursor": cursor})).await;
        assert_eq!(error, stranger.error("tasks/list", json!({"cursor": "x"})).await);
    }
    // Another session of the same caller's may go on from there.
    let other = gateway.open_as("ann").await;
    let mut resumed = other.get(Some(&event)).await;
    assert!(resumed.next().await.unwrap().is_some());
    assert_eq!(other.result("tasks/list", json!({"cursor": cursor})).await["tasks"].as_array().unwrap().len(), 1);
    gateway.started("hold", 1).await;
    gateway.upstream.release();
    assert_eq!(text_of(&waiting.response().await), "held to the end");
    assert_eq!(text_of(&resumed.response().await), "held to the end");
}

#[tokio::test]
async fn questions_reach_only_their_caller() {
    let gateway = gateway().await;
    let (ann, bob) = (gateway.open_as("ann").await, gateway.open_as("bob").await);
    let (mut hers, his) = (ann.listen().await, bob.listen().await);
    let id = ann.start("ask", json!({})).await;
    let question = hers.until_method("elicitation/create").await;
    assert_eq!(bob.try_answer(&question["id"], json!({"action": "decline"})).await.status, StatusCode::BAD_REQUEST);
    ann.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&ann.outcome(&id).await), "Hello, Ann");
    bob.delete().await;
    assert_eq!(his.messages().await, Vec::<Value>::new());
}

#[tokio::test]
async fn without_authentication_all_callers_are_one_and_nobody_lists() {
    let gateway = Gateway::start().await;
    let (one, two) = (gateway.open().await, gateway.open().await);
    let id = one.start("exact", json!({})).await;
    one.until(&id, "completed").await;
    assert_eq!(two.task(&id).await["status"], "completed");
    assert_eq!(two.error("tasks/list", json!({})).await["code"], -32601);
}

#[tokio::test]
async fn a_key_in_the_address_is_none() {
    let gateway = gateway().await;
    for query in ["?api_key=key-of-ann", "?access_token=key-of-ann", "?x-api-key=key-of-ann"] {
        let client = gateway.client().path(&format!("/mcp{query}")).silent();
        assert_eq!(client.post(PING).await.status, StatusCode::UNAUTHORIZED, "{query}");
    }
}
