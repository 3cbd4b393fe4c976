//! Files made to hurt: each ends in a clear error, soon, with little memory.

use std::path::Path;

use proptest::prelude::*;

use super::{ROUTE, mistakes, read_with, settings};
use crate::config::{load, parse};

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let previous = level - 1;
        text.push_str(&format!("a{level}: &a{level} [{}]\n", format!("*a{previous},").repeat(10)));
    }
    let found = mistakes(&text);
    assert_eq!(found, ["5:10: a4[0]: more than 20000 values, with aliases written out"]);
}

#[test]
fn a_chain_of_aliases_is_refused() {
    let mut text = "a0: &a0 x\n".to_owned();
    for level in 1..5_000 {
        text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert_eq!(mistakes(&text), ["33:12: a32[0]: aliases nest deeper than 32 levels"]);
}

#[test]
fn an_alias_of_itself_is_refused() {
    assert_eq!(mistakes("a: &a [*a]\n"), ["1:8: a[0]: an alias inside the value that it stands for"]);
    assert_eq!(mistakes("a: *b\n").len(), 1);
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in
        [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[{a: ", "}]"), ("!!seq [", "]"), ("&a [", "]")]
    {
        for depth in [40, 10_000] {
            let text = format!("{}x{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(mistakes(&text).len(), 1, "{open}");
        }
    }
    // Each colon opens a mapping inside the one before, without a bracket or a column.
    let found = mistakes(&format!("[{}]", ": ".repeat(100_000)));
    assert!(found[0].ends_with("values nest deeper than 32 levels") && found.len() == 1, "{found:?}");
}

#[test]
fn size_is_bounded() {
    let text = format!("{ROUTE}#{}", "x".repeat(1 << 20));
    assert_eq!(mistakes(&text), ["1:1: the file is bigger than 1 MiB"]);
    let values = format!("a: [{}]\n", "x,".repeat(30_000));
    assert_eq!(mistakes(&values), ["1:39999: a[19997]: more than 20000 values, with aliases written out"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.yaml");
    std::fs::write(&path, text).unwrap();
    assert!(load(&path, &|_| None).unwrap_err().to_string().contains("bigger than 1 MiB"));
    // A file that never ends.
    assert!(load(Path::new("/dev/zero"), &|_| None).unwrap_err().to_string().contains("bigger than 1 MiB"));
}

#[test]
fn mistakes_are_counted_and_not_all_shown() {
    let keys: String = (0..5_000).map(|key| format!("k{key}zzzzzz: 1\n")).collect();
    let errors = read_with(&(keys + ROUTE), &[]).unwrap_err();
    assert_eq!(errors.problems().len(), 100);
    assert!(errors.to_string().ends_with("5000 mistakes, the first 100 shown"));
}

#[test]
fn keys_are_given_once_and_are_text() {
    assert_eq!(
        mistakes(&format!("listen: {{}}\nlisten: {{address: x}}\nadmin: {{token: a, \"token\": b}}\n{ROUTE}")),
        ["2:1: listen: given twice; the first is at 1:1", "3:19: admin.token: given twice; the first is at 3:9"]
    );
    assert_eq!(mistakes(&format!("[a]: b\n{ROUTE}")), ["1:1: a key must be text"]);
    assert_eq!(mistakes(&format!("? {{a: b}}\n: c\n{ROUTE}")), ["1:3: a key must be text"]);
    assert_eq!(
        mistakes(&format!("<<: {{}}\n{ROUTE}")),
        ["1:1: [\"<<\"]: merge keys are not supported; an alias can stand for a whole value"]
    );
}

#[test]
fn the_rest_of_yaml_is_refused() {
    assert_eq!(mistakes(&format!("{ROUTE}---\n{ROUTE}")), ["2:1: the file has a second document"]);
    assert_eq!(
        mistakes(&format!("sessions: {{max: !!int \"5\"}}\n{ROUTE}")),
        ["1:23: sessions.max: tags (`!...`) are not supported"]
    );
    assert_eq!(mistakes(&format!("sessions: !x {{}}\n{ROUTE}")), ["1:14: sessions: tags (`!...`) are not supported"]);
    assert_eq!(mistakes("a: [\n").len(), 1);
    assert_eq!(mistakes("a: \"\u{FDD0}\"\n"), ["1:1: the file has the noncharacter U+FDD0 or U+FDD1"]);
}

#[test]
fn marks_and_line_endings_of_other_systems_are_fine() {
    let plain = settings(ROUTE);
    assert_eq!(settings(&format!("\u{FEFF}{ROUTE}")), plain);
    assert_eq!(settings(&format!("---\r\n{}...\r\n", ROUTE.replace('\n', "\r\n"))), plain);
    let found = mistakes("listen: {}\r\nädmin: 1\r\nroutes: [{}, ü]\r\n");
    assert_eq!(found[0], "2:1: [\"ädmin\"]: unknown key; did you mean `admin`?");
    assert!(found[4].starts_with("3:14: routes[1]:"), "{found:?}");
}

#[test]
fn a_report_has_no_control_characters() {
    let text = format!("\"\\e[31m\\r\": 1\nlisten: {{address: \"\\e[2J\\u202e\"}}\n{ROUTE}");
    let report = read_with(&text, &[]).unwrap_err().to_string();
    assert!(!report.contains(|c: char| c.is_control() && c != '\n'), "{report:?}");
    assert!(report.contains(r"found `\u{1b}[2J"), "{report}");
}

/// Whatever it is, it ends, and what is wrong has a place.
fn survives(text: &str) {
    let env = |name: &str| name.len().is_multiple_of(2).then(|| format!("${{{name}}}\n: ["));
    if let Err(errors) = parse(text, "f", Path::new("/nowhere"), &env) {
        assert!(!errors.problems().is_empty());
        for problem in errors.problems() {
            assert!(problem.position.is_some() || problem.message.contains("is empty"), "{problem} in {text:?}");
            assert_ne!(problem.message, "cannot be used");
            assert!(!problem.message.contains(char::is_control), "{problem:?} in {text:?}");
        }
        assert!(errors.to_string().lines().count() <= 101);
    }
}

const EXAMPLE: &str = include_str!("../../../config/taskgate.yaml");

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        match crate::config::utf8(&bytes) {
            Ok(text) => survives(text),
            Err(problem) => prop_assert!(problem.position.is_some()),
        }
    }

    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}") {
        survives(&text);
    }

    #[test]
    fn any_yaml_like_text_is_survived(parts in proptest::collection::vec(
        prop_oneof![
            Just("routes: "), Just("- "), Just("\n"), Just("  "), Just("{"), Just("}"), Just("["), Just("]"), Just(", "),
            Just("name: "), Just("path: "), Just("upstream: "), Just("url: "), Just("http://u"), Just("${A}"), Just("${AB"),
            Just("$${"), Just(":-"), Just("&a "), Just("*a"), Just("!!str "), Just("? "), Just(": "), Just("\""), Just("'"),
            Just("|\n"), Just(">"), Just("#"), Just("---\n"), Just("tasks: "), Just("tools: "), Just("match: "), Just("0s"),
            Just("null"), Just("~"), Just("\t"), Just("ü"), Just("listen: "), Just("auth: "), Just("tenants: "), Just("<<: "),
        ],
        0..60,
    )) {
        survives(&parts.concat());
    }

    #[test]
    fn any_slip_in_a_good_file_is_survived(at in 0..EXAMPLE.len(), cut in 0..40_usize, insert in "[ -~\n]{0,6}") {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, insert.into_bytes());
        survives(&String::from_utf8_lossy(&bytes));
    }
}
