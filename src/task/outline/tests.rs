//! What is shown of an outline is what is shown of the result.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;
use crate::mcp::RELATED_TASK;
use crate::mcp::envelope::SERVER_INFO;
use crate::task::dialect::core::{self, Payload};
use crate::task::dialect::extension;
use crate::task::{Ending, Outcome, State, Task, TaskId, sample};

const MARK: &str = "mark-of-this-test";

/// As it comes in pieces of that length, where values longer than `large` are left out.
fn outline(result: &str, large: usize, piece: usize) -> Option<Outline> {
    let mut outliner = Outliner { large, ..Outliner::new(MARK) };
    result.as_bytes().chunks(piece).for_each(|piece| outliner.push(piece));
    outliner.finish()
}

fn filled(outline: &Outline, made: &str, result: &str) -> Option<String> {
    let bytes = |part: Part<'_>| match part {
        Part::Text(text) => text.to_vec(),
        Part::Value(place) => {
            let [start, end] = [place.start, place.end].map(|at| usize::try_from(at).unwrap());
            result.as_bytes()[start..end].to_vec()
        }
    };
    let whole: Vec<u8> = outline.fill(made.as_bytes())?.into_iter().flat_map(bytes).collect();
    Some(String::from_utf8(whole).unwrap())
}

fn rendered(result: &str, id: TaskId, wraps: bool) -> String {
    match core::outcome(&Outcome::Result(result.into()), id, wraps) {
        Payload::Result(text) | Payload::Error(text) => text,
    }
}

/// The same for a client of the modern era.
fn rendered_modern(result: &str, task: &Task) -> String {
    extension::get_result(task, Some(&Outcome::Result(result.into())), Some("{\"name\":\"of the route\"}"))
}

fn task() -> Task {
    let created_at = Timestamp::from_millis(1_767_225_600_000);
    Task {
        state: State::Ended(Ending::Returned { is_error: false }),
        ..sample::task(sample::owner("t", "s"), created_at, Duration::from_secs(3600))
    }
}

/// What has to be taken out of metadata is found in them, however large they are and their name is written.
#[test]
fn large_metadata_are_looked_into() {
    let (text, pad, task) = ("x".repeat(100_000), "m".repeat(20_000), task());
    for (typed, name) in [("", "_meta"), ("", "_m\\u0065ta"), ("\"resultType\":\"complete\",", "_meta")] {
        let result = format!(
            "{{{typed}\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}],\"{name}\":{{\"pad\":\"{pad}\",\
             \"{RELATED_TASK}\":{{\"taskId\":\"foreign\"}},\"{SERVER_INFO}\":{{}},\"dev.mcp/x\":1}}}}"
        );
        let shown = outline(&result, LARGE, 1000).map(|outline| {
            let made = rendered_modern(outline.text(), &task);
            filled(&outline, &made, &result)
        });
        let whole = rendered_modern(&result, &task);
        assert!(!whole.contains("foreign"));
        assert!(shown.flatten().is_none_or(|shown| shown == whole), "{typed}{name}");
    }
    // A type that is a number is none.
    let digits = "1".repeat(LARGE + 1);
    assert_eq!(outline(&format!("{{\"resultType\":{digits}}}"), LARGE, 1000), None);
}

#[test]
fn large_values_are_left_out_and_come_back() {
    let (long, list) = ("x\\\"y".repeat(20), "[1, {\"a\" : \"}]\"},2 ]");
    let result = format!("{{ \"a\": \"{long}\" \n,\"b\":{list}\t , \"c\":1.50,\"d\":{{\"e\":\"{long}\"}} }} ");
    for piece in 1..result.len() {
        let outline = outline(&result, 15, piece).unwrap();
        let text =
            format!("{{ \"a\": \"{MARK}.0\" \n,\"b\":[\"{MARK}.1\"]\t , \"c\":1.50,\"d\":{{\"{MARK}.2\":0}} }} ");
        assert_eq!(outline.text(), text, "{piece}");
        assert_eq!(filled(&outline, outline.text(), &result).unwrap(), result);
        // What was left away leaves its value away, and nothing else.
        let fewer = format!("{{\"d\":{{\"{MARK}.2\":0}}}}");
        assert_eq!(filled(&outline, &fewer, &result).unwrap(), format!("{{\"d\":{{\"e\":\"{long}\"}}}}"));
        // A mark that was changed, or that comes too often or in another place, makes it useless.
        for changed in [
            format!("{{\"{MARK}.2\":0,\"more\":1}}"),
            format!("\"{{\\\"{MARK}.2\\\":0}}\""),
            format!("[\"{MARK}.0\",\"{MARK}.0\"]"),
            format!("[[\"{MARK}.1\"],\"{MARK}.0\"]"),
            format!("[\"{MARK}.3\"]"),
        ] {
            assert_eq!(outline.fill(changed.as_bytes()), None, "{changed}");
        }
    }
}

#[test]
fn what_has_no_large_value_is_all_there_and_what_is_no_object_has_no_outline() {
    for result in ["{}", " {\"a\":{} }", "{\"a\":\"b\",\"_meta\":null}"] {
        let outline = outline(result, 15, 1).unwrap();
        assert!(outline.is_all() && outline.text() == result, "{result}");
    }
    for result in ["", "5", "[1,2]", "\"{}\"", "{\"a\":1", "{\"a\":\"", "}{", "{\"a\":1}}"] {
        assert_eq!(outline(result, 15, 1), None, "{result}");
    }
    let many: Vec<String> = (0..MOST / 8).map(|number| format!("\"{number}\":12345")).collect();
    assert_eq!(outline(&format!("{{{}}}", many.join(",")), 15, 1000), None);
    // Nor may a name, or the space between two members, be what makes it large.
    assert_eq!(outline(&format!("{{\"{}\":1}}", "x".repeat(MOST)), 15, 1000), None);
    let spaces = " ".repeat(1000);
    let result = format!("{{\"a\":1{spaces},\"b\":\"{}\"{spaces}}}", "x".repeat(30));
    let outline = outline(&result, 15, 7).unwrap();
    assert_eq!(filled(&outline, outline.text(), &result).unwrap(), result);
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i32>().prop_map(Into::into),
        "[a-z\"\\\\{}:,é\n ]{0,40}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("[a-z]{1,3}", inner), 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Metadata with names that only the protocol may use.
fn meta() -> impl Strategy<Value = serde_json::Value> {
    let name = prop_oneof![
        Just(RELATED_TASK.to_owned()),
        Just(SERVER_INFO.to_owned()),
        Just("dev.mcp/x".to_owned()),
        "[a-z]{1,3}",
    ];
    prop::collection::vec((name, value()), 0..4)
        .prop_map(|members| serde_json::Value::Object(members.into_iter().collect()))
}

fn result() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("content".to_owned()),
        Just("structuredContent".to_owned()),
        Just("isError".to_owned()),
        "[a-z]{1,3}",
    ];
    let typed = prop_oneof![Just(""), Just("\"resultType\":\"complete\",")];
    let name_of_meta = prop_oneof![Just("_meta".to_owned()), Just("_m\\u0065ta".to_owned())];
    let member = prop_oneof![
        3 => (name, value(), "[ \n\t]{0,3}"),
        1 => (name_of_meta, prop_oneof![meta(), value()], "[ \n\t]{0,3}"),
    ];
    (typed, prop::collection::vec(member, 1..6), any::<bool>()).prop_map(|(typed, members, has_text)| {
        let mut members: Vec<String> = members
            .into_iter()
            .map(|(name, value, space)| format!("\"{name}\"{space}:{space}{value}{space}"))
            .collect();
        if has_text {
            members.push("\"content\":[{\"type\":\"text\",\"text\":\"t\"}]".to_owned());
        }
        format!("{{{typed}{}}}", members.join(","))
    })
}

proptest! {
    /// What is shown of an outline is, byte for byte, what is shown of the whole result, or can't be used.
    #[test]
    fn it_is_shown_as_the_whole_is(result in result(), large in 1..40_usize, piece in 1..20_usize, wraps: bool) {
        let task = task();
        // One with large metadata has no outline.
        if let Some(outline) = outline(&result, large, piece) {
            prop_assert_eq!(&filled(&outline, outline.text(), &result).unwrap(), &result);
            let shown = filled(&outline, &rendered(outline.text(), task.id, wraps), &result);
            prop_assert!(shown.is_none_or(|shown| shown == rendered(&result, task.id, wraps)));
            let shown = filled(&outline, &rendered_modern(outline.text(), &task), &result);
            prop_assert!(shown.is_none_or(|shown| shown == rendered_modern(&result, &task)));
        }
    }

    #[test]
    fn nothing_that_comes_makes_it_stumble(text in "[{}\\[\\]:,\"\\\\a1 ]{0,60}", large in 1..10_usize, piece in 1..20_usize) {
        if let Some(outline) = outline(&text, large, piece) {
            let _parts = outline.fill(outline.text().as_bytes());
        }
    }
}
