//! Three gateways behind a balancer that takes another for each request: all that works with one works with them, whichever
//! of them a session is at home in, and whichever dies.

use http::StatusCode;
use taskgate::config::{SealKey, Settings};
use taskgate::demo::server::{Era, Options};
use taskgate::replica::Replicas as _;

use crate::support::modern::Reply;
use crate::support::{Client, Gateway, Modern, Opening, Setup, json, related, text_of, within};

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
    // Two thirds of them were passed on, which is counted.
    let mut passed_on = 0.0;
    for number in 0..3 {
        let metrics = gateway.metrics_of(number).await;
        passed_on += metrics.value("taskgate_passed_on_total", &[("outcome", "answered")]);
        assert_eq!(metrics.value("taskgate_passed_on_total", &[("outcome", "lost")]), 0.0);
    }
    assert!(passed_on >= 6.0, "{passed_on}");
    // It ends everywhere.
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    for _ in 0..3 {
        assert_eq!(client.post(PING).await.status, StatusCode::NOT_FOUND);
    }
    gateway.seen(|stats| stats.deleted == 1).await;
    while stream.next().await.unwrap().is_some() {}
}

/// Waits until a request is served: one may have been on its way to the one that died.
async fn served(client: &Client) {
    within(async { while client.post(PING).await.json().await.get("result").is_none() {} }).await;
}

#[tokio::test]
async fn a_session_outlives_its_home() {
    for home in 0..3 {
        let mut gateway = three().lease("1s").start().await;
        // Given a session that was opened at one of them,
        let opened = gateway.moved_opening(home).open().await;
        let client = gateway.client().with_session_of(&opened);
        let done = client.start("exact", json!({})).await;
        let outcome = client.outcome(&done).await;
        // when that one dies, then the others go on at once, though it is not known yet to be gone,
        gateway.kill(home).await;
        served(&client).await;
        for text in ["a", "b", "c", "d"] {
            assert_eq!(text_of(&client.call("echo", json!({"text": text})).await), text);
        }
        // with the results that were there, and with streams and questions where the session is at home from then on.
        assert_eq!(client.outcome(&done).await["result"], outcome["result"]);
        let others: Vec<usize> = (0..3).filter(|other| *other != home).collect();
        gateway.claimed(&client, &others).await;
        let mut stream = client.listen().await;
        let id = client.start("ask", json!({})).await;
        let question = stream.until_method(ELICIT).await;
        client.accept(&question, json!({"name": "Ann"})).await;
        assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
        assert_eq!(gateway.upstream.stats().sessions_opened, 1);
        // It ends everywhere.
        assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
        for _ in 0..3 {
            assert_eq!(client.post(PING).await.status, StatusCode::NOT_FOUND);
        }
        gateway.seen(|stats| stats.deleted == 1).await;
    }
}

#[tokio::test]
async fn a_process_s_session_is_reached_through_it_and_goes_with_it() {
    let mut gateway = three().lease("5s").stdio(&[]).start().await;
    let opened = gateway.moved_opening(0).open().await;
    let client = gateway.client().with_session_of(&opened);
    for _ in 0..3 {
        client.call("count", json!({})).await;
    }
    let count = client.call("count", json!({})).await;
    assert_eq!(text_of(&count), "4", "{count}");
    let id = client.start("ask", json!({})).await;
    let mut waiting = client.wait_for(&id).await;
    let question = waiting.until_method(ELICIT).await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(waiting.messages().await.last().unwrap()), "Hello, Ann");
    gateway.kill(0).await;
    // Until its lease is over it may be back; nobody else can serve it.
    let refused = within(async {
        loop {
            let answer = client.post(PING).await;
            if answer.status != StatusCode::OK {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.header("retry-after").is_some());
    let refused = refused.json().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32603)), "{refused}");
    assert_eq!(refused["error"]["data"]["reason"], "replica_lost");
    within(async {
        while client.post(PING).await.status != StatusCode::NOT_FOUND {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A new one is another's.
    assert_eq!(text_of(&gateway.open().await.call("count", json!({})).await), "1");
}

#[tokio::test]
async fn a_stop_ends_nobody_s_session() {
    let mut gateway = three().start().await;
    let opened = gateway.moved_opening(0).open().await;
    let id = opened.start("exact", json!({})).await;
    let outcome = opened.outcome(&id).await;
    let mut stream = opened.listen().await;
    within(gateway.replicas[0].stop()).await;
    gateway.forget_stopped();
    // Its stream ends; what was begun is there, and the session goes on at once: nobody waits for a lease.
    while stream.next().await.unwrap().is_some() {}
    let client = gateway.client().with_session_of(&opened);
    assert_eq!(client.outcome(&id).await["result"], outcome["result"]);
    // Also where those who are left have not been there for a lease: who gives its lease up is gone for certain.
    gateway.claimed(&client, &[1]).await;
    let mut stream = client.listen().await;
    let id = client.start("ask", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
    let stats = gateway.upstream.stats();
    assert_eq!((stats.sessions_opened, stats.deleted), (1, 0));
}

#[tokio::test]
async fn a_call_that_waits_for_its_client_is_found_wherever_the_next_call_lands() {
    let gateway = three().start().await;
    let client = Modern::new(&gateway).declares(json!({"elicitation": {"form": {}}}));
    let (plain, escaped) = ("requestState", "request\\u0053tate");
    for (name, spelt) in [("Ann", plain), ("Bob", plain), ("Cy", plain), ("Di", escaped), ("Ed", escaped)] {
        let asked = client.call("ask", json!({})).await;
        let answer = json!({"action": "accept", "content": {"name": name}});
        let params = json!({"name": "ask", "arguments": {}, "requestState": asked.result["requestState"],
            "inputResponses": {asked.key(): answer}});
        let params = client.params(params);
        let id = json!(client.next_id());
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
        let headers = client.headers("tools/call", &params);
        let answer = client.send(headers, &[], body.replace(plain, spelt)).await.unwrap();
        let done = Reply::read(answer, "tools/call", &id).await;
        assert_eq!(done.text(), format!("Hello, {name}"));
    }
    assert_eq!(gateway.upstream.stats().tool("ask").started, 5);
}

#[tokio::test]
async fn a_list_is_read_on_wherever_the_next_page_is_asked_for() {
    let options = Options { page_size: Some(3), ..Options::default() };
    let setup = three().server(options).upstream("sessions: pooled").callers(&["acme/alice"]);
    let gateway = setup.start().await;
    let client = Modern::new(&gateway).declares(json!({})).caller("alice");
    let mut names = Vec::new();
    let mut params = json!({});
    loop {
        let page = client.result("tools/list", params).await;
        names.extend(page["tools"].as_array().unwrap().iter().map(|tool| tool["name"].to_string()));
        if page["nextCursor"].is_null() {
            break;
        }
        params = json!({"cursor": page["nextCursor"]});
    }
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 15, "{names:?}");
}

#[tokio::test]
async fn a_call_that_waited_in_one_that_is_gone_is_like_any_that_is_over() {
    let mut gateway = three().start().await;
    let client = Modern::at(gateway.replicas[0].address).declares(json!({"elicitation": {"form": {}}}));
    let asked = client.result_of("ask", json!({})).await;
    gateway.kill(0).await;
    let client = Modern::new(&gateway).declares(json!({"elicitation": {"form": {}}}));
    let params = json!({"name": "ask", "arguments": {}, "requestState": asked["requestState"], "inputResponses": {}});
    let (status, error) = client.error("tools/call", params).await;
    assert_eq!((status, &error["code"]), (StatusCode::OK, &json!(-32602)), "{error}");
    assert_eq!(error["message"], "This `requestState` is not valid, or not any more; call again without it");
}

/// Replicas that can't reach each other: whoever gets a request serves it.
#[tokio::test]
async fn apart_they_serve_what_lands_at_each() {
    let gateway = three().apart().start().await;
    let client = gateway.open().await;
    for round in 0..6 {
        assert_eq!(text_of(&client.call("echo", json!({"text": round.to_string()})).await), round.to_string());
    }
    // A question finds the stream, be it elsewhere, and an answer its call.
    let mut stream = client.listen().await;
    for name in ["Ann", "Bob", "Cy"] {
        let id = client.start("ask", json!({})).await;
        let question = stream.until_method(ELICIT).await;
        client.accept(&question, json!({"name": name})).await;
        assert_eq!(text_of(&client.outcome(&id).await), format!("Hello, {name}"));
    }
    drop(stream);
    for name in ["Ann", "Bob", "Cy"] {
        let id = client.start("ask", json!({})).await;
        let mut waiting = client.wait_for(&id).await;
        let question = waiting.until_method(ELICIT).await;
        client.accept(&question, json!({"name": name})).await;
        assert_eq!(text_of(waiting.messages().await.last().unwrap()), format!("Hello, {name}"));
    }
    // Progress too.
    let params = json!({"name": "report", "arguments": {"sections": 2}, "task": {}, "_meta": {"progressToken": "p"}});
    for _ in 0..3 {
        let calls = gateway.upstream.stats().tool("report").started;
        let id = client.create_with(params.clone()).await["taskId"].as_str().unwrap().to_owned();
        let mut waiting = client.wait_for(&id).await;
        gateway.started("report", calls + 1).await;
        // One that came before the stream was known is lost to it.
        within(async {
            loop {
                client.call("release", json!({})).await;
                let message = waiting.message().await;
                if message["method"] == "notifications/progress" {
                    assert_eq!(message["params"]["progressToken"], "p");
                    break;
                }
            }
        })
        .await;
        client.cancel(&id).await;
    }
    let stats = gateway.upstream.stats();
    assert_eq!((stats.sessions_opened, stats.stray_answers), (1, 0));
    assert_eq!(client.delete().await, StatusCode::NO_CONTENT);
    gateway.seen(|stats| stats.deleted == 1).await;
    within(async {
        for number in 0..3 {
            while gateway.moved(&client, number).post(PING).await.status != StatusCode::NOT_FOUND {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_task_outlives_its_holder_and_is_heard_of_where_its_client_is() {
    let options = Options { event_ids: true, priming: true, ..Options::default() };
    let mut gateway = three().lease("1s").server(options).tasks("on_lost: retry_idempotent").start().await;
    let opened = gateway.moved_opening(0).open().await;
    let mut stream = opened.listen().await;
    let report = json!({"name": "report", "arguments": {"sections": 9}, "task": {}, "_meta": {"progressToken": "p"}});
    let telling = opened.create_with(report).await["taskId"].as_str().unwrap().to_owned();
    gateway.started("report", 1).await;
    opened.call("release", json!({})).await;
    stream.until_method("notifications/progress").await;
    let asking = opened.start("ask_twice", json!({})).await;
    let question = stream.until_method(ELICIT).await;
    opened.accept(&question, json!({"name": "Ann"})).await;
    stream.until_method(ELICIT).await;
    gateway.kill(0).await;
    drop(stream);
    // The question was shown on a stream that is gone: it is asked again where the client is, whoever holds the call now.
    let client = gateway.client().with_session_of(&opened);
    served(&client).await;
    let mut stream = client.listen().await;
    let task = client.task(&asking).await;
    assert!(task["status"] == "working" || task["status"] == "input_required", "{task}");
    let answering = async {
        loop {
            let question = stream.until_method(ELICIT).await;
            client.accept(&question, json!({"name": "Ann", "colour": "red"})).await;
        }
    };
    tokio::select! {
        _ = client.until(&asking, "completed") => {}
        () = answering => {}
    }
    assert_eq!(text_of(&client.outcome(&asking).await), "Hello, Ann; colour: red");
    // Both were read on: how far they were was noted with the first that was heard of them.
    let stats = gateway.upstream.stats();
    assert_eq!((stats.tool("ask_twice").started, stats.tool("report").started), (1, 1));
    // So is what the other call tells.
    let progress = within(async {
        loop {
            client.call("release", json!({})).await;
            let message = stream.message().await;
            if message["method"] == "notifications/progress" {
                return message;
            }
        }
    })
    .await;
    assert_eq!((&progress["params"]["progressToken"], related(&progress)), (&json!("p"), Some(&*telling)));
    client.cancel(&telling).await;
}

#[tokio::test]
async fn one_that_can_t_reach_the_store_says_so_and_goes_on_with_what_it_has() {
    let gateway = three().lease("1s").start().await;
    let opened = gateway.moved_opening(0).open().await;
    let mut stream = opened.listen().await;
    gateway.replicas[0].neighbour.cut_off(true);
    let ready = |status: u16| gateway.ready(0, status);
    ready(503).await;
    // What needs no store goes on.
    assert_eq!(text_of(&opened.call("echo", json!({"text": "x"})).await), "x");
    gateway.upstream.announce("notifications/tools/list_changed", None);
    stream.until_method("notifications/tools/list_changed").await;
    gateway.replicas[0].neighbour.cut_off(false);
    ready(200).await;
    let client = gateway.client().with_session_of(&opened);
    for text in ["a", "b", "c"] {
        assert_eq!(text_of(&client.call("echo", json!({"text": text})).await), text);
    }
}

/// Its lease was over for the others, and it did not know: another may have claimed its session, which then goes on there.
#[tokio::test]
async fn one_that_was_taken_for_dead_gives_up_what_others_claimed() {
    let gateway = three().lease("1s").start().await;
    let opened = gateway.moved_opening(0).open().await;
    gateway.replicas[0].neighbour.cut_off(true);
    let others = [gateway.moved(&opened, 1), gateway.moved(&opened, 2)];
    gateway.claimed(&others[0], &[1]).await;
    // It knows by itself that its lease may be over, before any renewal has failed or succeeded.
    gateway.replicas[0].neighbour.cut_off(false);
    // A stream at one, what belongs on it at another: the home is one again.
    let mut stream = others[1].listen().await;
    for name in ["Ann", "Bob"] {
        let id = opened.start("ask", json!({})).await;
        let question = stream.until_method(ELICIT).await;
        others[0].accept(&question, json!({"name": name})).await;
        assert_eq!(text_of(&opened.outcome(&id).await), format!("Hello, {name}"));
    }
    assert_eq!(gateway.upstream.stats().sessions_opened, 1);
}

/// Until its next renewal, too: what it opens for a session that goes on elsewhere would hear nothing.
#[tokio::test]
async fn one_whose_lease_may_be_over_asks_before_it_serves() {
    let gateway = three().lease("3s").start().await;
    let opened = gateway.moved_opening(0).open().await;
    gateway.replicas[0].neighbour.cut_off(true);
    let other = gateway.moved(&opened, 1);
    gateway.claimed(&other, &[1]).await;
    gateway.replicas[0].neighbour.cut_off(false);
    let mut stream = opened.listen().await;
    let report = json!({"name": "report", "arguments": {"sections": 9}, "task": {}, "_meta": {"progressToken": "p"}});
    let id = other.create_with(report).await["taskId"].as_str().unwrap().to_owned();
    gateway.started("report", 1).await;
    other.call("release", json!({})).await;
    stream.until_method("notifications/progress").await;
    other.cancel(&id).await;
}

/// Its home was another one for a while, which is gone now: it is no stranger where it began.
#[tokio::test]
async fn a_session_comes_back_to_where_it_began() {
    let mut gateway = three().lease("1s").start().await;
    let (opened, other) = (gateway.moved_opening(0).open().await, gateway.moved_opening(1).open().await);
    gateway.replicas[0].neighbour.cut_off(true);
    gateway.claimed(&gateway.moved(&opened, 1), &[1]).await;
    gateway.replicas[0].neighbour.cut_off(false);
    gateway.ready(0, 200).await;
    assert_eq!(opened.post(PING).await.status, StatusCode::OK);
    gateway.kill(1).await;
    // When the first one knows that the second is gone,
    let (me, other) = (gateway.replicas[0].neighbour.me().clone(), gateway.moved(&other, 0));
    within(async {
        while gateway.home_of(&other, 0).await.as_ref() != Some(&me) {
            drop(other.post(PING).await.bytes().await);
        }
    })
    .await;
    // then the session goes on with its next request.
    assert_eq!(opened.post(PING).await.status, StatusCode::OK);
    assert_eq!(gateway.home_of(&opened, 0).await, Some(me));
}

/// All were without what they share for longer than a lease: that is nobody's death, neither then nor as they come back.
#[tokio::test]
async fn an_outage_for_all_is_the_death_of_none() {
    let gateway = three().lease("1s").start().await;
    let mut held = Vec::new();
    for number in 0..3 {
        let client = gateway.moved_opening(number).open().await;
        held.push((client.start("hold", json!({})).await, client));
    }
    gateway.started("hold", 3).await;
    for _ in 0..3 {
        for (is_away, status) in [(true, 503), (false, 200)] {
            gateway.replicas.iter().for_each(|replica| replica.neighbour.cut_off(is_away));
            for number in 0..3 {
                gateway.ready(number, status).await;
            }
        }
    }
    held[0].1.call("release", json!({})).await;
    for (id, client) in &held {
        let outcome = client.outcome(id).await;
        assert!(outcome["error"].is_null(), "{outcome}");
    }
}

/// What they share has lost everything between two renewals: that is nobody's death either, and a session that one has claimed
/// is still its.
#[tokio::test]
async fn what_is_lost_between_two_renewals_is_the_death_of_none() {
    let mut gateway = three().lease("3s").start().await;
    let (made, claimed) = (gateway.moved_opening(0).open().await, gateway.moved_opening(2).open().await);
    // Given a session that one has made, and one that it has claimed of a dead one, so that the others may be taken for dead,
    gateway.kill(2).await;
    gateway.claimed(&gateway.moved(&claimed, 0), &[0]).await;
    let me = Some(gateway.replicas[0].neighbour.me().clone());
    let held = made.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    let waiting = gateway.moved(&made, 1).wait_for(&held).await;
    // when it is all forgotten, and the other one is asked at once,
    gateway.replicas[0].neighbour.forget_all();
    let others = [gateway.moved(&made, 1), gateway.moved(&claimed, 1)];
    within(async {
        loop {
            for other in &others {
                assert_eq!(other.post(PING).await.status, StatusCode::OK);
            }
            // then no session is anybody else's, until it is on record again that they are its.
            let homes = (gateway.home_of(&made, 1).await, gateway.home_of(&claimed, 1).await);
            assert!(homes.0.is_none() && (homes.1.is_none() || homes.1 == me), "{homes:?}");
            if homes.1 == me && gateway.lives(0, 1).await {
                break;
            }
        }
    })
    .await;
    // Nor was what waits there given up.
    assert!(text_of(&made.call("release", json!({})).await).len() < 100);
    let messages = waiting.messages().await;
    assert!(text_of(messages.last().unwrap()).contains("held to the end"), "{messages:?}");
}

/// What one holds that does not know yet that its session goes on elsewhere.
#[tokio::test]
async fn a_question_of_one_that_was_taken_for_dead_finds_the_stream() {
    let gateway = three().lease("1s").start().await;
    let opened = gateway.moved_opening(0).open().await;
    gateway.replicas[0].neighbour.cut_off(true);
    let other = gateway.moved(&opened, 1);
    gateway.claimed(&other, &[1]).await;
    let mut stream = other.listen().await;
    loop {
        // Given a task that is made where the session was,
        let id = opened.start("ask", json!({})).await;
        gateway.replicas[0].neighbour.cut_off(false);
        // then its question comes to the stream, though no request of the session comes to its holder any more.
        let asked = async {
            let mut question = stream.until_method(ELICIT).await;
            while related(&question) != Some(&*id) {
                question = stream.until_method(ELICIT).await;
            }
            other.accept(&question, json!({"name": "Ann"})).await;
        };
        tokio::select! {
            () = asked => {}
            _ = other.until(&id, "failed") => {}
        }
        let outcome = other.outcome(&id).await;
        if outcome["error"].is_null() {
            assert_eq!(text_of(&outcome), "Hello, Ann");
            return;
        }
        // Others have taken the call over before the wire was whole again.
        assert_eq!(outcome["error"]["data"]["reason"], "replica_lost", "{outcome}");
    }
}

/// Requests at the internal address by whoever has not the key.
#[tokio::test]
async fn between_replicas_nobody_else_is_let_in() {
    let gateway = three().start().await;
    let opened = gateway.moved_opening(0).open().await;
    let inside = Opening::at(gateway.replicas[0].internal.unwrap()).with_session_of(&opened);
    let seal = format!("1.{}.{}.{}", "00".repeat(16), "00".repeat(32), "00".repeat(32));
    for changes in [&[][..], &[("taskgate-passage", seal.as_str()), ("taskgate-peer", "192.0.2.1")]] {
        let refused = inside.post_with(changes, PING).await;
        assert_eq!((refused.status, refused.bytes().await.len()), (StatusCode::UNAUTHORIZED, 0));
    }
    let refused = inside.get(None).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.bytes().await.len(), 0);
    assert_eq!(inside.delete().await, StatusCode::UNAUTHORIZED);
    assert_eq!(opened.post(PING).await.status, StatusCode::OK);
    // What replicas tell each other in fields means nothing from a client.
    let answer = opened.post_with(&[("taskgate-passage", seal.as_str()), ("taskgate-peer", "192.0.2.1")], PING).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_stream_is_taken_up_again_wherever_its_client_comes_back() {
    let gateway = three().start().await;
    let client = gateway.open().await;
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    let mut waiting = client.wait_for(&id).await;
    let event = waiting.next().await.unwrap().unwrap().id.unwrap();
    waiting.until_method(ELICIT).await;
    for _ in 0..3 {
        drop(waiting);
        waiting = client.get(Some(&event)).await;
        waiting.until_method(ELICIT).await;
    }
    drop(waiting);
    let mut waiting = client.get(Some(&event)).await;
    let question = waiting.until_method(ELICIT).await;
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(waiting.messages().await.last().unwrap()), "Hello, Ann");
}

#[tokio::test]
async fn what_is_kept_for_a_session_is_kept_once() {
    let gateway = three().server(Options { era: Era::Modern, ..Options::default() }).start().await;
    let client = gateway.open().await;
    for (level, heard) in [("error", 0), ("debug", 1), ("error", 0)] {
        client.result("logging/setLevel", json!({"level": level})).await;
        for _ in 0..3 {
            let call = json!({"name": "log", "arguments": {"level": "info", "messages": 1}});
            let messages = client.request("tools/call", call).await.messages().await;
            let logged = messages.iter().filter(|message| message["method"] == "notifications/message").count();
            assert_eq!(logged, heard, "{level}");
        }
    }
}

/// One that is started with another key is not ready, as long as others have theirs; nobody else minds.
#[tokio::test]
async fn one_with_another_key_says_so() {
    let mut gateway = three().lease("1s").start().await;
    within(gateway.replicas[0].stop()).await;
    let other = SealKey::new([7; 32]);
    gateway.restart_with(0, |settings| settings.secrets.key = Some(other.clone())).await;
    gateway.ready(0, 503).await;
    gateway.ready(1, 200).await;
    gateway.ready(2, 200).await;
    // A new key that knows the old one is none that is strange.
    within(gateway.replicas[0].stop()).await;
    let change = |settings: &mut Settings| {
        let before = settings.secrets.key.replace(other);
        settings.secrets.previous.extend(before);
    };
    gateway.restart_with(0, change).await;
    gateway.ready(0, 200).await;
    gateway.ready(1, 200).await;
}
