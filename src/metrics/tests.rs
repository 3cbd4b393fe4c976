//! What is exposed, under which names, and that no caller can add a series.

use super::*;

use std::collections::BTreeSet;

use super::label::{Era, Outcome, TakenUp, UpstreamOutcome};
use crate::mcp::method::Method;

fn metrics() -> Metrics {
    Metrics::new(&[Arc::from("reports"), Arc::from("maps")], &[Arc::from("default"), Arc::from("acme")])
}

/// The value of a series, by the line that starts with it.
fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = metrics.encode();
    let values = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    let values: Vec<f64> = values.collect();
    assert!(values.len() <= 1, "{series} is exposed more than once");
    values.first().copied()
}

/// Does everything that is counted once.
fn exercise(metrics: &Metrics) {
    let route = metrics.route("reports");
    let mut request = route.request();
    request.asked = Asked::Method(Method::ToolsCall);
    request.finish(Outcome::Ok);
    route.task_created();
    drop(route.task_held(TaskStatus::Queued));
    route.task_queued_for(Duration::from_millis(300));
    route.task_took(Duration::from_secs(20));
    metrics.task_ended(TaskStatus::Failed, EndReason::Deadline);
    route.upstream_request(UpstreamOutcome::Answered);
    route.unchecked_call();
    route.unnamed_request();
    metrics.rejected("acme", RejectReason::Creates);
    metrics.store(StoreOp::Get, Duration::from_micros(5));
    metrics.route("reports").task_taken_over(TakenUp::Resumed);
    metrics.set_store_bytes(4096);
    metrics.set_jobs(3);
}

#[test]
fn every_name_is_exposed_once_under_its_prefix() {
    let metrics = metrics();
    exercise(&metrics);
    let text = metrics.encode();
    let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let expected = [
        "taskgate_connections gauge",
        "taskgate_jobs gauge",
        "taskgate_rejected_total counter",
        "taskgate_request_seconds histogram",
        "taskgate_requests_total counter",
        "taskgate_sessions gauge",
        "taskgate_store_bytes gauge",
        "taskgate_store_seconds histogram",
        "taskgate_streams gauge",
        "taskgate_task_queue_seconds histogram",
        "taskgate_task_seconds histogram",
        "taskgate_tasks gauge",
        "taskgate_tasks_created_total counter",
        "taskgate_tasks_ended_total counter",
        "taskgate_tasks_taken_over_total counter",
        "taskgate_unchecked_calls_total counter",
        "taskgate_unnamed_requests_total counter",
        "taskgate_upstream_in_flight gauge",
        "taskgate_upstream_requests_total counter",
    ];
    assert_eq!(types.len(), expected.len());
    assert_eq!(types.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(expected));
}

#[test]
fn series_carry_their_labels() {
    let metrics = metrics();
    exercise(&metrics);
    for (series, expected) in [
        (r#"taskgate_requests_total{route="reports",method="tools/call",era="legacy",outcome="ok"}"#, 1.0),
        (r#"taskgate_request_seconds_count{route="reports",method="tools/call"}"#, 1.0),
        (r#"taskgate_tasks{route="reports",status="queued"}"#, 0.0),
        (r#"taskgate_tasks{route="reports",status="working"}"#, 0.0),
        (r#"taskgate_tasks_created_total{route="reports"}"#, 1.0),
        (r#"taskgate_tasks_created_total{route="maps"}"#, 0.0),
        (r#"taskgate_tasks_ended_total{status="failed",reason="deadline"}"#, 1.0),
        (r#"taskgate_tasks_taken_over_total{route="reports",how="resumed"}"#, 1.0),
        (r#"taskgate_task_seconds_bucket{route="reports",le="15"}"#, 0.0),
        (r#"taskgate_task_seconds_bucket{route="reports",le="30"}"#, 1.0),
        (r#"taskgate_task_queue_seconds_sum{route="reports"}"#, 0.3),
        (r#"taskgate_upstream_requests_total{route="reports",outcome="answered"}"#, 1.0),
        (r#"taskgate_rejected_total{tenant="acme",reason="creates"}"#, 1.0),
        (r#"taskgate_store_seconds_count{op="get"}"#, 1.0),
        ("taskgate_store_bytes", 4096.0),
        ("taskgate_jobs", 3.0),
    ] {
        assert_eq!(value(&metrics, series), Some(expected), "{series} in\n{}", metrics.encode());
    }
}

#[test]
fn a_request_counts_once_as_what_it_became() {
    let metrics = metrics();
    let route = metrics.route("maps");
    for (asked, label) in [
        (Asked::Unread, "unread"),
        (Asked::Listen, "GET"),
        (Asked::Close, "DELETE"),
        (Asked::Answer, "response"),
        (Asked::Method(Method::Initialize), "initialize"),
        (Asked::Method(Method::Other), "other"),
    ] {
        for outcome in Outcome::ALL {
            let mut request = route.request();
            request.asked = asked;
            request.era = Era::Modern;
            request.finish(*outcome);
            let series = format!(
                r#"taskgate_requests_total{{route="maps",method="{label}",era="modern",outcome="{}"}}"#,
                outcome.as_str()
            );
            assert_eq!(value(&metrics, &series), Some(1.0), "{series}");
        }
        let series = format!(r#"taskgate_request_seconds_count{{route="maps",method="{label}"}}"#);
        assert_eq!(value(&metrics, &series), Some(Outcome::ALL.len() as f64), "{series}");
    }
}

#[test]
fn a_request_that_nobody_finished_was_dropped() {
    let metrics = metrics();
    drop(metrics.route("maps").request());
    let series = r#"taskgate_requests_total{route="maps",method="unread",era="legacy",outcome="dropped"}"#;
    assert_eq!(value(&metrics, series), Some(1.0));
}

#[test]
fn every_way_to_ask_has_its_own_index() {
    let methods = Method::ALL.map(Asked::Method);
    let all = [Asked::Unread, Asked::Listen, Asked::Close, Asked::Answer].into_iter().chain(methods);
    let indices: Vec<_> = all.map(Asked::index).collect();
    assert_eq!(indices, (0..Asked::COUNT).collect::<Vec<_>>());
}

#[test]
fn names_that_the_configuration_does_not_have_become_no_labels() {
    let metrics = metrics();
    for number in 0..1000 {
        let stranger = format!("stranger-{number}");
        metrics.rejected(&stranger, RejectReason::Credentials);
        metrics.route(&stranger).request().finish(Outcome::Rejected);
        metrics.route(&stranger).upstream_request(UpstreamOutcome::Lost);
    }
    let text = metrics.encode();
    assert!(!text.contains("stranger"));
    for series in [
        r#"taskgate_rejected_total{tenant="other",reason="credentials"}"#,
        r#"taskgate_requests_total{route="other",method="unread",era="legacy",outcome="rejected"}"#,
        r#"taskgate_upstream_requests_total{route="other",outcome="lost"}"#,
    ] {
        assert_eq!(value(&metrics, series), Some(1000.0), "{series}");
    }
}

#[test]
fn names_are_escaped() {
    let metrics = Metrics::new(&[Arc::from("a\"b\\c\nd")], &[]);
    drop(metrics.route("a\"b\\c\nd").request());
    assert!(metrics.encode().contains(r#"taskgate_sessions{route="a\"b\\c\nd"} 0"#));
}

#[test]
fn gauges_return_to_zero_with_their_guards() {
    let metrics = metrics();
    let route = metrics.route("reports");
    let all = [
        "taskgate_connections",
        r#"taskgate_sessions{route="reports"}"#,
        r#"taskgate_streams{route="reports"}"#,
        r#"taskgate_upstream_in_flight{route="reports"}"#,
    ];
    let guards: Vec<_> = (0..2)
        .flat_map(|_| [metrics.connection(), route.session(), route.stream(), route.upstream_in_flight()])
        .collect();
    for series in all {
        assert_eq!(value(&metrics, series), Some(2.0), "{series}");
    }
    drop(guards);
    for series in all {
        assert_eq!(value(&metrics, series), Some(0.0), "{series}");
    }
}

#[test]
fn a_held_task_counts_where_it_stands_until_it_is_let_go() {
    let metrics = metrics();
    let route = metrics.route("reports");
    let standing = || {
        TaskStatus::ALL
            .iter()
            .map(|status| {
                let series = format!(r#"taskgate_tasks{{route="reports",status="{}"}}"#, status.as_str());
                value(&metrics, &series)
            })
            .collect::<Vec<_>>()
    };
    let (zero, one) = (Some(0.0), Some(1.0));
    let held = route.task_held(TaskStatus::Queued);
    assert_eq!(standing(), [one, zero, zero, None, None, None]);
    held.stands(Some(TaskStatus::Working));
    held.stands(Some(TaskStatus::InputRequired));
    held.stands(Some(TaskStatus::InputRequired));
    assert_eq!(standing(), [zero, zero, one, None, None, None]);
    // What has ended is counted nowhere, however often that is said.
    held.stands(Some(TaskStatus::Failed));
    held.stands(None);
    assert_eq!(standing(), [zero, zero, zero, None, None, None]);
    drop(held);
    drop(route.task_held(TaskStatus::Working));
    assert_eq!(standing(), [zero, zero, zero, None, None, None]);
}
