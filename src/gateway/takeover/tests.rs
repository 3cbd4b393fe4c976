//! One gateway stands still, another takes up what it held. The upstream counts what has run.

mod process;

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::demo::server::{Era, Options};
use crate::gateway::policy::{OnLost, Questions, TaskPolicy};
use crate::task::Limits;

use process::{Client, World};

fn policy(on_lost: OnLost) -> TaskPolicy {
    TaskPolicy { defer: Some(Duration::ZERO), questions: Questions::InTask, on_lost, ..TaskPolicy::default() }
}

fn resumable() -> Options {
    Options { event_ids: true, always_sse: true, ..Options::default() }
}

/// How often a call was taken up in that way.
fn counted(replica: &process::Replica, how: &str) -> bool {
    let line = format!("taskgate_tasks_taken_over_total{{route=\"r\",how=\"{how}\"}} 1");
    replica.metrics.encode().contains(&line)
}

/// How many tasks a process holds, queued, working and asking.
fn held(replica: &process::Replica) -> [Option<i64>; 3] {
    let text = replica.metrics.encode();
    ["queued", "working", "input_required"].map(|status| {
        let series = format!("taskgate_tasks{{route=\"r\",status=\"{status}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&*series)?.parse().ok())
    })
}

/// What answers the one question of a task.
#[track_caller]
fn answered(id: &str, asking: &Value) -> Value {
    let requests: Vec<&String> = asking["inputRequests"].as_object().unwrap().keys().collect();
    let [key] = requests[..] else { panic!("one question: {asking}") };
    json!({"taskId": id, "inputResponses": {key: {"action": "accept", "content": {"name": "Ada"}}}})
}

#[track_caller]
fn assert_lost(task: &Value, reason: &str) {
    assert_eq!(task["error"]["data"]["reason"], reason, "{task}");
}

#[tokio::test]
async fn an_answer_is_read_on_and_the_holder_that_wakes_up_says_nothing() {
    for client in [Client::Legacy, Client::Modern] {
        let world = World::new(resumable(), policy(OnLost::Fail)).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.report_on(&first, client, 3).await;
        let frozen = first.freeze().await;
        assert_eq!((held(&first), held(&second)), ([Some(0), Some(1), Some(0)], [Some(0); 3]));
        assert_eq!(second.take_up(&first).await, 1);
        world.upstream.until(|stats| stats.resumed == 1).await;
        assert_eq!(held(&second), [Some(0), Some(1), Some(0)]);
        world.upstream.release();
        world.upstream.release();
        let task = second.until(&id, "completed").await;
        assert_eq!(task["result"]["structuredContent"]["sections"], 3, "{task}");
        drop(frozen);
        // It is through with everything when it has nothing left to do.
        first.gateway.calls_over().await;
        second.gateway.calls_over().await;
        assert_eq!(second.until(&id, "completed").await, task);
        // Whoever loses a task holds it no more, and whoever ends it neither.
        assert_eq!((held(&first), held(&second)), ([Some(0); 3], [Some(0); 3]), "{client:?}");
        let stats = world.upstream.stats();
        assert_eq!((stats.tool("report").started, stats.cancelled.len()), (1, 0), "{client:?}");
        assert!(counted(&second, "resumed"));
        if client == Client::Modern {
            // The session was the gateway's own, and nobody needs it any more.
            world.upstream.until(|stats| stats.deleted == 1).await;
        }
    }
}

#[tokio::test]
async fn a_call_that_became_a_task_under_way_is_read_on() {
    let defer = Some(Duration::from_millis(1));
    let world = World::new(resumable(), TaskPolicy { defer, ..policy(OnLost::Fail) }).await;
    let (first, second) = (world.process("first"), world.replica("second"));
    let id = world.report_on(&first, Client::Modern, 2).await;
    let _frozen = first.freeze().await;
    assert_eq!(second.take_up(&first).await, 1);
    world.upstream.until(|stats| stats.resumed == 1).await;
    world.upstream.release();
    assert_eq!(second.until(&id, "completed").await["result"]["structuredContent"]["sections"], 2);
    assert_eq!(world.upstream.stats().tool("report").started, 1);
}

#[tokio::test]
async fn questions_that_are_open_and_answers_that_were_not_posted_go_on() {
    for client in [Client::Legacy, Client::Modern] {
        for is_answered_before in [true, false] {
            let world = World::new(resumable(), policy(OnLost::Fail)).await;
            let (first, second) = (world.process("first"), world.replica("second"));
            let id = first.start(client, "ask", json!({})).await;
            let asking = first.until(&id, "input_required").await;
            world.store.noted("\"event\":\"").await;
            let frozen = first.freeze().await;
            let update = answered(&id, &asking);
            if is_answered_before {
                second.modern("tasks/update", update.clone()).await;
            }
            assert_eq!(second.take_up(&first).await, 1);
            if !is_answered_before {
                world.upstream.until(|stats| stats.resumed == 1).await;
                second.modern("tasks/update", update).await;
            }
            let task = second.until(&id, "completed").await;
            assert!(task["result"].to_string().contains("Ada"), "{task}");
            drop(frozen);
            first.gateway.calls_over().await;
            let stats = world.upstream.stats();
            assert_eq!((stats.answers, stats.tool("ask").started, stats.cancelled.len()), (1, 1, 0));
        }
    }
}

#[tokio::test]
async fn a_round_that_waits_for_answers_goes_on() {
    for client in [Client::Legacy, Client::Modern] {
        for is_answered_before in [true, false] {
            let options = Options { era: Era::Modern, ..Options::default() };
            let world = World::new(options, policy(OnLost::Fail)).await;
            let (first, second) = (world.process("first"), world.replica("second"));
            let id = first.start(client, "ask", json!({})).await;
            let asking = first.until(&id, "input_required").await;
            world.store.noted("\"round\":{").await;
            let frozen = first.freeze().await;
            let update = answered(&id, &asking);
            if is_answered_before {
                second.modern("tasks/update", update.clone()).await;
            }
            assert_eq!(second.take_up(&first).await, 1);
            if !is_answered_before {
                second.modern("tasks/update", update).await;
            }
            let task = second.until(&id, "completed").await;
            assert!(task["result"].to_string().contains("Ada"), "{task}");
            assert!(counted(&second, "resumed"));
            drop(frozen);
            first.gateway.calls_over().await;
            // Each round is a call (2026-07-28), and there were two.
            assert_eq!(world.upstream.stats().tool("ask").started, 2, "{client:?}");
        }
    }
}

#[tokio::test]
async fn what_cant_be_read_on_has_failed_and_the_upstream_is_told() {
    for client in [Client::Legacy, Client::Modern] {
        let world = World::new(Options::default(), policy(OnLost::Fail)).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.begin_on(&first, client, "hold", json!({})).await;
        let frozen = first.freeze().await;
        assert_eq!(second.take_up(&first).await, 1);
        assert_lost(&second.until(&id, "failed").await, "replica_lost");
        let stats = world.upstream.until(|stats| stats.tool("hold").cancelled == 1).await;
        assert_eq!((stats.tool("hold").started, stats.cancelled.len()), (1, 1), "{client:?}");
        assert!(counted(&second, "failed"));
        drop(frozen);
        first.gateway.calls_over().await;
        assert_eq!(world.upstream.stats().cancelled.len(), 1);
    }
}

#[tokio::test]
async fn only_what_says_that_it_may_is_run_again() {
    for era in [Era::Legacy, Era::Modern] {
        for client in [Client::Legacy, Client::Modern] {
            for (tool, runs) in [("hold", 2), ("stubborn", 1)] {
                let options = Options { era, ..Options::default() };
                let world = World::new(options, policy(OnLost::RetryIdempotent)).await;
                let (first, second) = (world.process("first"), world.replica("second"));
                let id = world.begin_on(&first, client, tool, json!({})).await;
                let frozen = first.freeze().await;
                assert_eq!(second.take_up(&first).await, 1);
                if runs == 2 {
                    world.upstream.until(|stats| stats.tool(tool).started == 2).await;
                    world.upstream.release();
                    second.until(&id, "completed").await;
                    assert!(counted(&second, "again"));
                } else {
                    assert_lost(&second.until(&id, "failed").await, "replica_lost");
                    world.upstream.release();
                }
                drop(frozen);
                first.gateway.calls_over().await;
                second.gateway.calls_over().await;
                assert_eq!(world.upstream.stats().tool(tool).started, runs, "{era:?} {client:?} {tool}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_the_upstream_does_not_know_any_more_is_not_waited_for() {
    for (on_lost, runs) in [(OnLost::Fail, 1), (OnLost::RetryIdempotent, 2)] {
        let world = World::new(resumable(), policy(on_lost)).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.report_on(&first, Client::Legacy, 2).await;
        let _frozen = first.freeze().await;
        world.upstream.forget_sessions();
        assert_eq!(second.take_up(&first).await, 1);
        if runs == 1 {
            assert_lost(&second.until(&id, "failed").await, "replica_lost");
        } else {
            world.upstream.until(|stats| stats.tool("report").started == 2).await;
            world.upstream.release();
            world.upstream.release();
            second.until(&id, "completed").await;
        }
        assert_eq!(world.upstream.stats().tool("report").started, runs);
    }
}

#[tokio::test]
async fn what_waits_for_its_place_is_sent_as_if_nothing_had_been() {
    for era in [Era::Legacy, Era::Modern] {
        for client in [Client::Legacy, Client::Modern] {
            let options = Options { era, ..Options::default() };
            let mut world = World::new(options, policy(OnLost::Fail)).await;
            world.limits = Limits { running_tasks: 1, ..world.limits };
            let (first, second) = (world.process("first"), world.replica("second"));
            let running = first.start(client, "hold", json!({})).await;
            world.upstream.until(|stats| stats.tool("hold").started == 1).await;
            let queued = first.start(client, "echo", json!({"text": "late"})).await;
            let frozen = first.freeze().await;
            assert_eq!(second.take_up(&first).await, 2);
            assert_lost(&second.until(&running, "failed").await, "replica_lost");
            let task = second.until(&queued, "completed").await;
            assert!(task["result"].to_string().contains("late"), "{task}");
            assert!(counted(&second, "sent"), "{era:?} {client:?}");
            drop(frozen);
            first.gateway.calls_over().await;
            second.gateway.calls_over().await;
            assert_eq!(world.upstream.stats().tool("echo").started, 1, "{era:?} {client:?}");
        }
    }
}

#[tokio::test]
async fn of_three_one_runs_it_again() {
    let world = World::new(Options::default(), policy(OnLost::RetryIdempotent)).await;
    let first = world.process("first");
    let others = ["a", "b", "c"].map(|name| world.replica(name));
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(first.start(Client::Modern, "hold", json!({})).await);
    }
    world.upstream.until(|stats| stats.tool("hold").started == 8).await;
    let _frozen = first.freeze().await;
    let [a, b, c] = &others;
    let (of_a, of_b, of_c) = tokio::join!(a.take_up(&first), b.take_up(&first), c.take_up(&first));
    assert_eq!(of_a + of_b + of_c, 8);
    world.upstream.until(|stats| stats.tool("hold").started == 16).await;
    world.upstream.release();
    for id in &ids {
        a.until(id, "completed").await;
    }
    assert_eq!(world.upstream.stats().tool("hold").started, 16);
}

#[tokio::test]
async fn a_holder_that_is_awake_lets_go_at_once() {
    for client in [Client::Legacy, Client::Modern] {
        let world = World::new(resumable(), policy(OnLost::Fail)).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.report_on(&first, client, 2).await;
        assert_eq!(second.take_up(&first).await, 1);
        first.gateway.calls_over().await;
        world.upstream.until(|stats| stats.resumed >= 1).await;
        world.upstream.release();
        second.until(&id, "completed").await;
        let stats = world.upstream.stats();
        assert_eq!((stats.tool("report").started, stats.cancelled.len()), (1, 0), "{client:?}");
    }
}

#[tokio::test]
async fn an_outcome_waits_for_a_store_that_is_away() {
    for client in [Client::Legacy, Client::Modern] {
        let world = World::new(Options::default(), policy(OnLost::Fail)).await;
        let first = world.replica("first");
        let id = world.begin_on(&first, client, "hold", json!({})).await;
        world.store.failing_changes.store(3, Ordering::SeqCst);
        world.upstream.release();
        first.until(&id, "completed").await;
        assert_eq!(world.upstream.stats().cancelled.len(), 0, "{client:?}");
    }
}

#[tokio::test]
async fn a_takeover_that_was_not_answered_is_gone_on_with() {
    for client in [Client::Legacy, Client::Modern] {
        let world = World::new(resumable(), policy(OnLost::Fail)).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.report_on(&first, client, 2).await;
        assert_eq!(first.take_up_strays().await, 0);
        let frozen = first.freeze().await;
        // Given a takeover that was done, and nobody was told,
        world.store.lost_takeovers.store(1, Ordering::SeqCst);
        let routes = [second.route.clone()];
        assert!(second.gateway.take_up(&routes, &first.holder, super::Lost::Replica).await.is_err());
        assert_eq!(second.take_up(&first).await, 0);
        // then its holder finds what it did not know it had, once, and goes on with it.
        assert_eq!((second.take_up_strays().await, second.take_up_strays().await), (1, 0));
        world.upstream.until(|stats| stats.resumed == 1).await;
        assert_eq!(second.take_up_strays().await, 0);
        world.upstream.release();
        assert_eq!(second.until(&id, "completed").await["result"]["structuredContent"]["sections"], 2);
        drop(frozen);
        first.gateway.calls_over().await;
        assert_eq!(world.upstream.stats().tool("report").started, 1, "{client:?}");
    }
}

#[tokio::test]
async fn a_question_that_may_stand_in_the_record_is_waited_for() {
    for client in [Client::Legacy, Client::Modern] {
        for is_written in [true, false] {
            let world = World::new(Options::default(), policy(OnLost::Fail)).await;
            let first = world.replica("first");
            // Given a question whose record the store takes without a word, or not at all,
            let failing = if is_written { &world.store.lost_replies } else { &world.store.failing_changes };
            failing.store(1, Ordering::SeqCst);
            let id = first.start(client, "ask", json!({})).await;
            let asking = first.until(&id, "input_required").await;
            assert_eq!(failing.load(Ordering::SeqCst), 0);
            // then it is asked once, and its answer is what the server waits for.
            first.modern("tasks/update", answered(&id, &asking)).await;
            let task = first.until(&id, "completed").await;
            assert!(task["result"].to_string().contains("Ada"), "{task}");
            assert_eq!(world.upstream.stats().answers, 1, "{client:?}");
        }
    }
}

#[tokio::test]
async fn what_is_late_or_has_no_route_has_failed_in_its_own_words() {
    let deadline = Duration::from_millis(200);
    for (deadline, reason) in [(Duration::from_secs(600), "outcome_unknown"), (deadline, "deadline")] {
        let policy = TaskPolicy { deadline, ..policy(OnLost::RetryIdempotent) };
        let world = World::new(Options::default(), policy).await;
        let (first, second) = (world.process("first"), world.replica("second"));
        let id = world.begin_on(&first, Client::Legacy, "hold", json!({})).await;
        let _frozen = first.freeze().await;
        let is_late = reason == "deadline";
        if is_late {
            tokio::time::sleep(deadline).await;
        }
        let routes = if is_late { vec![second.route.clone()] } else { Vec::new() };
        assert_eq!(second.gateway.take_up(&routes, &first.holder, super::Lost::Restart).await.unwrap(), 1);
        let task = second.until(&id, "failed").await;
        assert_lost(&task, reason);
        assert_eq!(task["error"]["message"].as_str().unwrap().contains("no longer serves"), !is_late, "{task}");
        assert_eq!(world.upstream.stats().tool("hold").started, 1);
    }
}

/// A process that leaves lets what came before begin; it waits for no answer.
#[tokio::test]
async fn what_has_begun_to_wait_keeps_no_process_from_leaving() {
    let world = World::new(Options::default(), policy(OnLost::Fail)).await;
    let replica = world.replica("first");
    let session = replica.session().await;
    let created = replica.legacy(&session, "tools/call", json!({"name": "hold", "arguments": {}, "task": {}})).await;
    let wait = ("tasks/result", json!({"taskId": created["task"]["taskId"]}));
    let plain = ("tools/call", json!({"name": "hold", "arguments": {}}));
    for (method, params) in [wait, plain] {
        let placed = TaskTracker::new();
        let posted = replica.placed(&session, method, params, placed.token());
        placed.close();
        tokio::select! {
            () = posted => panic!("{method} was answered"),
            () = placed.wait() => {}
        }
    }
}
