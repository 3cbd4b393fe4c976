//! Gateways that are broken and pass the official suite all the same: each of them is caught here, in both dialects. The
//! suite has nothing at all on tasks of the core dialect.
//!
//! 1. `tasks/get` without `createdAt`, `lastUpdatedAt` or a ttl: every message that any test reads is looked at, in
//!    `support::answer`; `times_are_in_every_task`.
//! 2. One dialect's capability taken for the other's: `routing::no_word_of_tasks_reaches_the_server` declares the
//!    extension on a session of the core dialect; `the_other_dialects_capability_declares_nothing`.
//! 3. A header checked on one method and not on the others: `the_name_is_checked_on_each_method`; the headers of the core
//!    dialect in `sessions` and `transport`, on each method.
//! 4. A cancelled task overwritten by a late result: `faults::a_result_that_comes_after_the_cancel_is_dropped`,
//!    `killing::a_cancel_against_a_completion_has_one_winner`; `a_late_result_does_not_undo_a_cancel`.
//! 5. A task deleted before its ttl: `tasks::every_read_says_the_same_until_the_end_of_the_ttl`;
//!    `a_task_is_there_until_its_ttl_has_passed`.
//! 6. Guessable ids: `ids_can_t_be_guessed`.
//! 7. An answer to an unknown question acknowledged: `questions::answers_that_fit_nothing_are_told_apart`,
//!    `routing::only_the_owner_answers_a_task_s_question`; an update of an unknown task:
//!    `no_method_acknowledges_an_unknown_task`.
//! 8. A cancel of an unknown id acknowledged: `tasks::unknown_ids_are_one_answer`,
//!    `callers::somebody_elses_task_does_not_exist`; `no_method_acknowledges_an_unknown_task`.
//! 9. A cancel that never reaches the upstream: `killing::a_cancelled_task_is_cancelled_upstream_by_the_id_of_its_call`,
//!    `stdio::a_cancelled_task_is_cancelled_in_the_server`; `a_cancel_reaches_the_server_whatever_its_era`.

use std::collections::HashSet;
use std::time::Duration;

use taskgate::demo::server::{Era, Options};

use crate::support::{Gateway, Modern, Value, json, within};

/// A task at once.
const AT_ONCE: &str = "defer: 0s, questions: in_task";
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

async fn gateway(era: Era) -> Gateway {
    Gateway::setup().server(Options { era, ..Options::default() }).tasks(AT_ONCE).start().await
}

fn client(gateway: &Gateway) -> Modern {
    Modern::new(gateway).with_tasks()
}

/// Ids are random in all their random bits: none is used twice, and no bit is the same in all.
#[tokio::test]
async fn ids_can_t_be_guessed() {
    let setup = Gateway::setup().tenants("default: {kept_tasks: 1000, queued_tasks: 1000}");
    let gateway = setup.tasks(AT_ONCE).start().await;
    let (session, modern) = (gateway.open().await, client(&gateway));
    let mut ids = HashSet::new();
    let (mut all, mut any) = (u128::MAX, 0);
    for number in 0..200 {
        let id = match number % 2 {
            0 => session.start("echo", json!({"text": ""})).await,
            _ => modern.start("echo", json!({"text": ""})).await,
        };
        let number = u128::from_str_radix(&id.replace('-', ""), 16).unwrap();
        (all, any) = (all & number, any | number);
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "{id} is no version 4 UUID");
        assert!(ids.insert(id));
    }
    // The six bits that say which kind of UUID it is.
    let fixed = (0xf << 76) | (0b11 << 62);
    assert_eq!((all & !fixed, !any & !fixed), (0, 0), "some bits never change");
}

#[tokio::test]
async fn times_are_in_every_task() {
    for era in [Era::Legacy, Era::Modern] {
        let gateway = gateway(era).await;
        let client = client(&gateway);
        let members = |task: &Value| {
            let of = |name: &str| task[name].as_str().unwrap_or_else(|| panic!("no {name} in {task}")).to_owned();
            let span = |name: &str| task[name].as_u64().unwrap_or_else(|| panic!("no {name} in {task}"));
            let (created, updated) = (of("createdAt"), of("lastUpdatedAt"));
            assert!(humantime::parse_rfc3339(&created).unwrap() <= humantime::parse_rfc3339(&updated).unwrap());
            (created, span("ttlMs"), span("pollIntervalMs"))
        };
        for (tool, end) in [("ask", "input_required"), ("fail", "completed"), ("broken", "failed"), ("hold", "working")]
        {
            let handle = client.create(tool, json!({})).await;
            let id = handle["taskId"].as_str().unwrap();
            let seen = client.until(id, end).await;
            assert_eq!(members(&seen), members(&handle), "{era:?} {tool}");
            client.cancel(id).await;
            assert_eq!(members(&client.task(id).await), members(&handle), "{era:?} {tool}");
        }
    }
}

#[tokio::test]
async fn the_other_dialects_capability_declares_nothing() {
    for era in [Era::Legacy, Era::Modern] {
        let gateway = gateway(era).await;
        let tasks = json!({"requests": {"tools": {"call": {}}}, "list": {}, "cancel": {}});
        for declared in [json!({"tasks": tasks}), json!({"extensions": {"tasks": {}}}), json!({"experimental": {}})] {
            let client = Modern::new(&gateway).declares(declared.clone());
            let params = json!({"name": "echo", "arguments": {"text": "x"}, "task": {"ttl": 60000}});
            let reply = client.request("tools/call", params).await;
            assert_eq!((reply.text(), &reply.result["resultType"]), ("x", &json!("complete")), "{declared}");
            for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
                let reply = client.request(method, json!({"taskId": UNKNOWN, "inputResponses": {}})).await;
                assert_eq!(reply.refusal(), (400, -32021), "{method}");
            }
            let listen = json!({"notifications": {"taskIds": [UNKNOWN]}});
            assert_eq!(client.request("subscriptions/listen", listen).await.refusal(), (400, -32021));
        }
        assert!(!gateway.upstream.stats().task_seen);
    }
}

#[tokio::test]
async fn the_name_is_checked_on_each_method() {
    let gateway = gateway(Era::Modern).await;
    let client = client(&gateway);
    let id = client.start("ask", json!({})).await;
    let asked = client.until(&id, "input_required").await;
    let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let answers = json!({key: {"action": "accept", "content": {"name": "Ada"}}});
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for wrong in [UNKNOWN, "=?base64?!?=", &id.to_uppercase()] {
            let params = json!({"taskId": id, "inputResponses": answers});
            let reply = client.request_with(&[("mcp-name", wrong)], method, params).await;
            assert_eq!(reply.refusal(), (400, -32020), "{method} {wrong}");
        }
    }
    // Nothing of it was done.
    assert_eq!(client.task(&id).await, asked);
    assert_eq!(gateway.upstream.stats().answers, 0);
}

#[tokio::test]
async fn a_late_result_does_not_undo_a_cancel() {
    for era in [Era::Legacy, Era::Modern] {
        let gateway = gateway(era).await;
        let client = client(&gateway);
        let id = client.start("stubborn", json!({})).await;
        gateway.started("stubborn", 1).await;
        client.cancel(&id).await;
        let cancelled = client.task(&id).await;
        assert_eq!(cancelled["status"], "cancelled");
        gateway.upstream.release();
        gateway.seen(|stats| stats.tool("stubborn").finished == 1).await;
        assert_eq!(Modern::new(&gateway).text("count", json!({})).await, "1");
        assert_eq!(client.task(&id).await, cancelled, "{era:?}");
    }
}

#[tokio::test]
async fn a_task_is_there_until_its_ttl_has_passed() {
    let keys = "defer: 0s, deadline: 1s, retention: 1s, ttl: {default: 2s, max: 2s}";
    let gateway = Gateway::setup().tasks(keys).start().await;
    let client = client(&gateway);
    let handle = client.create("echo", json!({"text": "x"})).await;
    let created = humantime::parse_rfc3339(handle["createdAt"].as_str().unwrap()).unwrap();
    let ttl = Duration::from_millis(handle["ttlMs"].as_u64().unwrap());
    let gone = within(async {
        loop {
            let reply = client.request("tasks/get", json!({"taskId": handle["taskId"]})).await;
            if !reply.error.is_null() {
                return reply;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(gone.await.refusal(), (200, -32602));
    // The clock that the gateway wrote `createdAt` from has reached the end that it promised.
    assert!(created.elapsed().is_ok_and(|age| age >= ttl), "gone after {:?} of {ttl:?}", created.elapsed());
}

#[tokio::test]
async fn no_method_acknowledges_an_unknown_task() {
    let gateway = gateway(Era::Legacy).await;
    let client = client(&gateway);
    for id in [UNKNOWN, "", "x", "\u{e9}", "tg.1"] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": id, "inputResponses": {"q1": {"action": "decline"}}});
            // A header could not say every one of them.
            let reply = client.request_with(&[("mcp-name", "")], method, params).await;
            assert_eq!(reply.refusal(), (200, -32602), "{method} {id:?}");
        }
    }
}

#[tokio::test]
async fn a_cancel_reaches_the_server_whatever_its_era() {
    for era in [Era::Legacy, Era::Modern] {
        for tool in ["hold", "ask", "ask_two"] {
            let gateway = gateway(era).await;
            let client = client(&gateway);
            let id = client.start(tool, json!({})).await;
            let status = if tool == "hold" { "working" } else { "input_required" };
            gateway.started(tool, 1).await;
            client.until(&id, status).await;
            assert!(client.cancel(&id).await.error.is_null());
            // Acknowledged again and again, and cancelled once.
            assert!(client.cancel(&id).await.error.is_null());
            assert_eq!(client.task(&id).await["status"], "cancelled");
            // A modern server that has asked has no call to cancel: the next round is what does not come.
            let cancels = u64::from(era == Era::Legacy || tool == "hold");
            gateway.seen(|stats| stats.tool(tool).cancelled == cancels).await;
        }
    }
}
