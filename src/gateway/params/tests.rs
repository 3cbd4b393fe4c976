//! What is read with a message is what would be read by itself.

use proptest::prelude::*;

use crate::jsonrpc::{Message, Raw};

use super::{Params, read_message};

/// Everything that is decided by.
type Decides<'a> = (Vec<Option<&'a str>>, Option<Box<str>>, Option<&'a str>, bool, bool, Result<String, String>);

fn decides<'a>(params: &Params<'a>) -> Decides<'a> {
    let Params { meta, name, uri, task_id, protocol_version, task, .. } = params;
    let Params { arguments, cursor, request_state, input_responses, whole, .. } = params;
    let members = [meta, name, uri, task_id, protocol_version, task, arguments, cursor, request_state, input_responses];
    let members = members.into_iter().chain([whole]).map(|member| member.map(Raw::get)).collect();
    let envelope = params.envelope().map(|envelope| format!("{envelope:?}")).map_err(|defect| format!("{defect:?}"));
    let (token, place) = (params.progress_token(), params.only_progress_token());
    (members, token, place, params.is_claimed(), params.speaks_of_tasks(), envelope)
}

/// Whether a body holds a request; if so, it is read alike in one pass and by itself.
fn agrees(body: &str) -> bool {
    let mut read = None;
    let Ok((Message::Request { params: Some(whole), .. }, id)) = read_message(body.as_bytes(), &mut read) else {
        return false;
    };
    assert_eq!(Message::parse_with_id(body.as_bytes()).unwrap().1, id, "{body}");
    let was_read = read.is_some();
    let together = Params::of(Some(whole), &mut read).copied();
    match (together, Params::read(whole)) {
        (Ok(together), Ok(apart)) => assert_eq!(decides(&together), decides(&apart), "{body}"),
        (Err(together), Err(apart)) => assert_eq!(together.to_string(), apart.to_string(), "{body}"),
        (together, apart) => panic!("{body}: {together:?}, {apart:?}"),
    }
    was_read
}

fn request(params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"ä","method":"tools/call","params":{params}}}"#)
}

const CLAIMS: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

#[test]
fn usual_requests_are_read_in_one_pass() {
    for params in [
        "{}".to_owned(),
        "[1]".to_owned(),
        r#"{"name":"x","arguments":{"_meta":{"progressToken":1},"params":{"name":2}}}"#.to_owned(),
        r#"{"_meta":{"progressToken":"t"},"name":"x","task":{},"cursor":null}"#.to_owned(),
        format!(r#"{{"name":"x","_meta":{{{CLAIMS},"progressToken":7}},"requestState":"s"}}"#),
        r#"{"_meta":5}"#.to_owned(),
        r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#.to_owned(),
        r#"{"_meta":{"x":"related-task","y":{"io.modelcontextprotocol/related-task":{}}}}"#.to_owned(),
    ] {
        assert!(agrees(&request(&params)), "{params}");
    }
}

#[test]
fn what_is_written_otherwise_is_read_by_itself_and_alike() {
    for params in [
        r#"{"name":"x","name":"y"}"#.to_owned(),
        r#"{"_meta":{},"_meta":{"progressToken":1}}"#.to_owned(),
        r#"{"_meta":{"progressToken":1,"progressToken":2}}"#.to_owned(),
        r#"{"_m\u0065ta":{"progressToken":1}}"#.to_owned(),
        r#"{"_meta":{"io.modelcontextprotocol\/related-task":{}}}"#.to_owned(),
        r#"{"_m\u0065ta":{"x":"related-task"}}"#.to_owned(),
        r#"{"_meta":["2026-07-28",{}],"n\u0061me":1}"#.to_owned(),
        r#"{"_meta":{"io.modelcontextprotocol/related-task":1,"io.modelcontextprotocol/related-task":2}}"#.to_owned(),
        format!(r#"{{"_meta":{{{CLAIMS},"io.modelcontextprotocol\/logLevel":"info"}}}}"#),
    ] {
        assert!(!agrees(&request(&params)), "{params}");
    }
}

#[test]
fn a_token_is_found_however_its_key_is_escaped() {
    let body = request(r#"{"_meta":{"progressT\u006fken":7}}"#);
    let mut read = None;
    let Ok((Message::Request { params, .. }, _)) = read_message(body.as_bytes(), &mut read) else { panic!("{body}") };
    assert_eq!(Params::of(params, &mut read).unwrap().progress_token().as_deref(), Some("7"));
}

#[test]
fn a_task_is_named_however_its_key_is_escaped() {
    for key in ["related-task", "related\\u002dtask", "r\\u0065lated-task"] {
        let body = request(&format!(r#"{{"_meta":{{"io.modelcontextprotocol/{key}":{{"taskId":"t"}}}}}}"#));
        let mut read = None;
        let Ok((Message::Request { params, .. }, _)) = read_message(body.as_bytes(), &mut read) else {
            panic!("{body}")
        };
        assert!(Params::of(params, &mut read).unwrap().speaks_of_tasks(), "{body}");
    }
}

proptest! {
    #[test]
    fn changed_requests_are_never_read_otherwise(
        changes in prop::collection::vec((any::<prop::sample::Index>(), r#"[{}\[\]",:\\/u0-9a-z_]{0,2}"#, 0..3usize), 1..4)
    ) {
        let mut text = request(&format!(r#"{{"name":"x","arguments":{{"a":[1]}},"_meta":{{{CLAIMS},"progressToken":7,"x":{{}}}}}}"#));
        for (place, new, old) in changes {
            let place = place.index(text.len());
            let end = (place + old).min(text.len());
            if text.is_char_boundary(place) && text.is_char_boundary(end) {
                text.replace_range(place..end, &new);
            }
        }
        agrees(&text);
    }
}
