//! Three gateways behind a balancer that takes another for each request: all that works with one works with them, whichever
//! of them a session is at home in, and whichever dies.

use http::StatusCode;

use crate::support::{Gateway, Setup, json, text_of};

const ELICIT: &str = "elicitation/create";
const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;

fn three() -> Setup {
    Gateway::setup().replicas(3)
}

#[tokio::test]
async fn a_session_is_one_wherever_its_requests_land() {
    let gateway = three().start().await;
    let client = gateway.open().await;
    for round in 0..6 {
        assert_eq!(text_of(&client.call("echo", json!({"text": round.to_string()})).await), round.to_string());
    }
    // Its stream, its questions, their answers, what waits for the result.
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    client.until(&id, "input_required").await;
    client.accept(&question, json!({"name": "Bob"})).await;
    client.until(&id, "completed").await;
    let held = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    assert_eq!(client.cancel(&held).await["status"], "cancelled");
    let stats = gateway.seen(|stats| stats.tool("hold").cancelled == 1).await;
    assert_eq!((stats.sessions_opened, stats.stray_answers), (1, 0));
    // It ends everywhere.
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    for _ in 0..3 {
        assert_eq!(client.post(PING).await.status, StatusCode::NOT_FOUND);
    }
    gateway.seen(|stats| stats.deleted == 1).await;
    while stream.next().await.unwrap().is_some() {}
}
