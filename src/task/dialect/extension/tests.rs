//! Each shape of the extension, member by member.

use super::*;
use crate::clock::Timestamp;
use crate::jsonrpc::Id;
use crate::task::{Answer, Asked, Event, Progress, TaskId, sample};

const SEEN: &str = "\"createdAt\":\"2026-01-01T00:00:00.000Z\",\"lastUpdatedAt\":\"2026-01-01T00:00:01.000Z\",\"ttlMs\":3600000,\"pollIntervalMs\":1000";

fn task(state: State) -> Task {
    let created_at = Timestamp::from_millis(1_767_225_600_000);
    Task {
        id: TaskId::parse("0b9bfa3c-31d1-4c4e-9a0c-0d4f9d0c2b11").unwrap(),
        updated_at: created_at.plus(Duration::from_secs(1)),
        state,
        ..sample::task(sample::owner("t", "s"), created_at, Duration::from_secs(3600))
    }
}

fn shown(task: &Task, outcome: Option<&Outcome>) -> String {
    let text = get_result(task, outcome, None);
    let begin = "{\"resultType\":\"complete\",\"taskId\":\"0b9bfa3c-31d1-4c4e-9a0c-0d4f9d0c2b11\",";
    let rest = text.strip_prefix(begin).unwrap().to_owned();
    assert_eq!(detailed(task, outcome), text.replace("\"resultType\":\"complete\",\"taskId\"", "\"taskId\""));
    rest.replace(SEEN, "..")
}

fn result(text: &str) -> Outcome {
    Outcome::Result(text.into())
}

#[test]
fn a_handle_is_flat_and_says_nothing_but_the_task() {
    let text = create_result(&task(State::Queued), None);
    let id = "0b9bfa3c-31d1-4c4e-9a0c-0d4f9d0c2b11";
    assert_eq!(text, format!("{{\"resultType\":\"task\",\"taskId\":\"{id}\",\"status\":\"working\",{SEEN}}}"));
}

#[test]
fn results_name_the_server_and_notifications_do_not() {
    let (server, named) = (
        r#"{"name":"n","version":"1"}"#,
        r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"n","version":"1"}}"#,
    );
    let handle = create_result(&task(State::Queued), Some(server));
    assert!(handle.ends_with(&format!(",{named}}}")), "{handle}");
    let ended = task(State::Ended(Ending::Returned { is_error: false }));
    let outcome = result(r#"{"content":[]}"#);
    let got = get_result(&ended, Some(&outcome), Some(server));
    let inside = r#","result":{"content":[],"resultType":"complete"}"#;
    assert!(got.ends_with(&format!("{inside},{named}}}")), "{got}");
    assert!(detailed(&ended, Some(&outcome)).ends_with(&format!("{inside}}}")));
    assert_eq!(ACKNOWLEDGED, r#"{"resultType":"complete"}"#);
}

#[test]
fn the_status_dictates_what_is_inside() {
    assert_eq!(shown(&task(State::Queued), None), r#""status":"working",..}"#);
    assert_eq!(shown(&task(State::Held(Asked::default())), None), r#""status":"working",..}"#);
    assert_eq!(shown(&task(State::Ended(Ending::Cancelled)), None), r#""status":"cancelled",..}"#);
    // What a tool says of its own failure is a result.
    let mut failed = task(State::Ended(Ending::Returned { is_error: true }));
    failed.status_message = Some("no".into());
    assert_eq!(
        shown(&failed, Some(&result(r#"{"content":[],"isError":true,"resultType":"complete"}"#))),
        r#""status":"completed",..,"statusMessage":"no","result":{"content":[],"isError":true,"resultType":"complete"}}"#
    );
    let error = Outcome::Error(r#"{"code":-32000,"message":"broken","data":1.0}"#.into());
    assert_eq!(
        shown(&task(State::Ended(Ending::Errored)), Some(&error)),
        r#""status":"failed",..,"statusMessage":"broken","error":{"code":-32000,"message":"broken","data":1.0}}"#
    );
    assert_eq!(
        shown(&task(State::Ended(Ending::Errored)), None),
        r#""status":"failed",..,"statusMessage":"The call failed","error":{"code":-32603,"message":"The call failed"}}"#
    );
}

#[test]
fn results_of_either_era_are_inlined_as_this_ones() {
    let returned = task(State::Ended(Ending::Returned { is_error: false }));
    let related = r#""io.modelcontextprotocol/related-task":{"taskId":"x"}"#;
    let legacy = format!(r#"{{"content":[],"zz":1.10,"_meta":{{"a/b":1,{related}}}}}"#);
    assert_eq!(
        shown(&returned, Some(&result(&legacy))),
        r#""status":"completed",..,"result":{"content":[],"zz":1.10,"_meta":{"a/b":1},"resultType":"complete"}}"#
    );
    let info = r#""io.modelcontextprotocol/serverInfo":{"name":"n","version":"1"}"#;
    let modern = format!(r#"{{"content":[],"_meta":{{{info},{related}}},"resultType":"complete"}}"#);
    assert_eq!(
        shown(&returned, Some(&result(&modern))),
        format!(r#""status":"completed",..,"result":{{"content":[],"_meta":{{{info}}},"resultType":"complete"}}}}"#)
    );
    // A code that this era does not know.
    let error = Outcome::Error(r#"{"code":-32042,"message":"visit"}"#.into());
    let shown = shown(&task(State::Ended(Ending::Errored)), Some(&error));
    assert!(shown.contains(r#""error":{"code":-32603,"message":"visit""#), "{shown}");
}

#[test]
fn every_open_question_is_shown_under_a_key_that_never_comes_again() {
    let now = Timestamp::from_millis(0);
    let ask = |state: State, id: u64, method: &str, params: Option<&str>| {
        let event = Event::Ask { upstream_id: Id::number(id), method: method.into(), params: params.map(Into::into) };
        state.apply(event, now).unwrap()
    };
    let elicit = r#"{"mode":"url","message":"m","url":"u","elicitationId":"e","_meta":{"x":1}}"#;
    let state = ask(State::Held(Asked::default()), 1, "elicitation/create", Some(elicit));
    let state = ask(state, 2, "roots/list", None);
    let both = task(state.clone());
    assert_eq!(
        shown(&both, None),
        r#""status":"input_required",..,"inputRequests":{"q0":{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"u"}},"q1":{"method":"roots/list"}}}"#
    );
    assert_eq!(question_of(&both, "q1").unwrap().upstream_id, Id::number(2));
    for other in ["q2", "q01", "1", "", "q", "q+1"] {
        assert!(question_of(&both, other).is_none(), "{other}");
    }
    // What is answered is not shown, and neither is its key when the upstream asks the same again.
    let answer = Event::Answer { number: 0, answer: Answer::Result("{}".into()) };
    let state = state.apply(answer, now).unwrap();
    let state = state.apply(Event::Settle { upstream_id: Id::number(1) }, now).unwrap();
    let again = task(ask(state, 1, "elicitation/create", Some(elicit)));
    assert!(question_of(&again, "q0").is_none());
    assert_eq!(question_of(&again, "q2").unwrap().progress, Progress::Waiting);
    let mut answered = task(State::Held(Asked::default()));
    answered.status_message = Some("half".into());
    assert_eq!(shown(&answered, None), r#""status":"working",..,"statusMessage":"half"}"#);
}
