//! Streams of legacy clients in front of servers of the modern era: a lost connection cancels nothing and can be taken up
//! again, a cancel closes the upstream's stream, and the end of a session closes all of them.

use std::sync::Arc;

use http::StatusCode;
use tokio::sync::Semaphore;

use crate::support::raw_upstream::{Step, chunk, event, events_head, gate, json_body, last_chunk};
use crate::support::stateless::{calling, form};
use crate::support::{Answer, Client, Gateway, RawUpstream, Value, json, text_of, within};

async fn in_front_of(upstream: &RawUpstream) -> Gateway {
    Gateway::setup().in_front_of(&upstream.url()).start().await
}

fn said(text: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/vendor", "params": {"text": text}}).to_string()
}

/// A server that says something and stalls until the gateway closes the connection, which it tells.
async fn stalling() -> (RawUpstream, Arc<Semaphore>) {
    let gone = gate();
    let tell = Arc::clone(&gone);
    let upstream = calling(move |_| {
        let first = said("first");
        vec![events_head(), event(&first), Step::Stall, Step::Tell(Arc::clone(&tell))]
    });
    (upstream.await, gone)
}

/// Calls a tool with an id of its own; what comes of it, and the id.
async fn begin(client: &Client, params: Value) -> (Answer, u64) {
    let id = client.next_id();
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    (client.post(call.to_string()).await, id)
}

/// Reads events up to the first with a message; the id of that event, and the message.
async fn next_message(answer: &mut Answer) -> (String, Value) {
    loop {
        let seen = answer.next().await.unwrap().expect("the stream goes on");
        if !seen.data.is_empty() {
            return (seen.id.clone().expect("an event has an id"), seen.message());
        }
    }
}

#[tokio::test]
async fn a_lost_connection_cancels_nothing_and_the_rest_can_be_fetched() {
    let open = gate();
    let held = open.clone();
    let upstream = calling(move |heard| {
        let (first, second) = (said("first"), said("second"));
        vec![
            events_head(),
            event(&first),
            Step::Gate(held.clone()),
            event(&second),
            event(&heard.tells("done")),
            last_chunk(),
        ]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (mut answer, id) = begin(&client, json!({"name": "a"})).await;
    // 2025-11-25 transports, "Sending Messages to the Server" 6: something to come back with before anything is said.
    let priming = answer.next().await.unwrap().unwrap();
    assert!(priming.data.is_empty() && priming.id.is_some() && priming.retry.is_some(), "{priming:?}");
    let (event_id, first) = next_message(&mut answer).await;
    assert_eq!(first["params"]["text"], "first");
    drop(answer);
    open.add_permits(1);
    // Whether the connection comes back before or after the end, nothing is lost.
    for from in [event_id.clone(), event_id.clone()] {
        let mut rest = client.get(Some(&from)).await;
        let (_, second) = next_message(&mut rest).await;
        assert_eq!(second["params"]["text"], "second");
        let (last_id, response) = next_message(&mut rest).await;
        assert_eq!((&response["id"], text_of(&response)), (&json!(id), "done"));
        assert!(rest.next().await.unwrap().is_none());
        // An empty stream would be asked for again and again.
        assert_eq!(client.get(Some(&last_id)).await.status, StatusCode::BAD_REQUEST);
    }
    let whole = client.get(priming.id.as_deref()).await.messages().await;
    assert_eq!(whole.len(), 3);
    assert_eq!(upstream.count("tools/call"), 1);
    // Nobody else's, and nothing that was never sent.
    let other = gateway.open().await;
    assert_eq!(other.get(Some(&event_id)).await.status, StatusCode::BAD_REQUEST);
    for id in ["c.1.1", "c.", "c.x.y", "c.1", "c.18446744073709551616.1"] {
        assert_eq!(client.get(Some(id)).await.status, StatusCode::BAD_REQUEST, "{id}");
    }
}

#[tokio::test]
async fn a_client_that_comes_back_answers_what_it_was_asked() {
    let upstream = calling(|heard| {
        if heard.given("k").is_null() {
            return vec![json_body(&heard.asks(&json!({"k": form("?")}), "s"))];
        }
        vec![json_body(&heard.tells(&heard.given("k").to_string()))]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (mut answer, _) = begin(&client, json!({"name": "a"})).await;
    let priming = answer.next().await.unwrap().unwrap().id.unwrap();
    let question = answer.until_method("elicitation/create").await;
    drop(answer);
    // Asked again under the same id, since it is the same question; by then the old connection reads no more.
    let mut rest = client.get(Some(&priming)).await;
    let again = rest.until_method("elicitation/create").await;
    assert_eq!(again, question);
    client.answer(&question, json!({"action": "decline"})).await;
    assert_eq!(text_of(&rest.response().await), r#"{"action":"decline"}"#);
    // Answered, it is not asked again.
    let messages = client.get(Some(&priming)).await.messages().await;
    assert_eq!(messages.len(), 1, "{messages:?}");
}

#[tokio::test]
async fn older_clients_get_no_event_without_a_message() {
    let upstream = calling(|heard| {
        let first = said("first");
        vec![events_head(), event(&first), event(&heard.tells("done")), last_chunk()]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let client = gateway.client().version(version).open().await;
        let (answer, _) = begin(&client, json!({"name": "a"})).await;
        let events = answer.events().await;
        assert!(events.iter().all(|seen| !seen.data.is_empty() && seen.id.is_some()), "{events:?}");
        assert_eq!(events.len(), 2);
    }
}

#[tokio::test]
async fn a_cancel_closes_the_upstreams_stream_and_nothing_more_is_said() {
    let (upstream, gone) = stalling().await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (mut answer, id) = begin(&client, json!({"name": "a"})).await;
    next_message(&mut answer).await;
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "changed my mind"})).await;
    assert_eq!(answer.messages().await, Vec::<Value>::new());
    within(gone.acquire()).await.unwrap().forget();
    assert_eq!(upstream.count("notifications/cancelled"), 0);
    // A cancel of what is not there is nobody's concern.
    client.notify("notifications/cancelled", json!({"requestId": 12345})).await;
}

#[tokio::test]
async fn the_end_of_a_session_drops_its_calls() {
    let (upstream, gone) = stalling().await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (mut answer, _) = begin(&client, json!({"name": "a"})).await;
    let (event_id, _) = next_message(&mut answer).await;
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    assert_eq!(answer.messages().await, Vec::<Value>::new());
    within(gone.acquire()).await.unwrap().forget();
    assert_eq!(client.get(Some(&event_id)).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn large_results_come_as_json_or_whole_on_their_stream() {
    let upstream = calling(|heard| {
        let text = "x".repeat(3 * 1024 * 1024);
        if heard.body["params"]["name"] == "plain" {
            return vec![json_body(&heard.tells(&text))];
        }
        let first = said("first");
        vec![events_head(), event(&first), event(&heard.tells(&text)), last_chunk()]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (answer, _) = begin(&client, json!({"name": "plain"})).await;
    assert!(answer.is_json());
    assert_eq!(text_of(&answer.response().await).len(), 3 * 1024 * 1024);
    let (mut answer, id) = begin(&client, json!({"name": "streamed"})).await;
    let (event_id, _) = next_message(&mut answer).await;
    assert_eq!(text_of(&answer.response().await).len(), 3 * 1024 * 1024);
    // It is too large to be kept for a second reader, who is told so.
    let rest = client.get(Some(&event_id)).await.response().await;
    assert_eq!((&rest["id"], &rest["error"]["code"]), (&json!(id), &json!(-32603)));
}

#[tokio::test]
async fn everything_of_a_long_stream_reaches_a_client_that_reads_it() {
    const LINES: usize = 20_000;
    let upstream = calling(|heard| {
        let text = "x".repeat(200);
        let lines: String = (0..LINES).map(|_| format!("data: {}\n\n", said(&text))).collect();
        vec![events_head(), chunk(&lines), event(&heard.tells("done")), last_chunk()]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let (answer, _) = begin(&client, json!({"name": "a"})).await;
    let messages = answer.messages().await;
    assert_eq!(messages.len(), LINES + 1);
    assert_eq!(text_of(messages.last().unwrap()), "done");
}

#[tokio::test]
async fn a_client_that_takes_no_json_gets_events() {
    let upstream = calling(|heard| vec![json_body(&heard.tells("done"))]).await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "a"}});
    let answer = client.post_with(&[("accept", "text/event-stream")], call.to_string()).await;
    assert!(answer.is_events());
    assert_eq!(text_of(&answer.response().await), "done");
}

#[tokio::test]
async fn what_is_said_beside_a_json_answer_goes_to_the_sessions_stream() {
    let upstream = calling(|heard| {
        let first = said("first");
        vec![events_head(), event(&first), event(&heard.tells("done")), last_chunk()]
    })
    .await;
    let gateway = in_front_of(&upstream).await;
    let client = gateway.open().await;
    let mut stream = client.listen().await;
    let call = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "a"}});
    let answer = client.post_with(&[("accept", "application/json")], call.to_string()).await;
    assert_eq!(text_of(&answer.json().await), "done");
    assert_eq!(stream.message().await["params"]["text"], "first");
}
