//! What rules let through, what they refuse, and what is no rule.

use serde_json::Value;

use crate::tenant::{Principal, Scopes};

use super::*;

fn caller(claims: Value) -> Arc<Caller> {
    let principal = Principal::of_api_key("acme".into(), "alice".into());
    Arc::new(Caller { claims: Arc::new(claims), ..Caller::of(Arc::new(principal)) })
}

fn rule(pattern: &str, allow: &str, scopes: &[&str]) -> Rule {
    Rule {
        pattern: Pattern::parse(pattern).unwrap(),
        allow: (!allow.is_empty()).then(|| Expression::parse(allow).unwrap_or_else(|why| panic!("{allow}: {why}"))),
        scopes: scopes.iter().map(|scope| (*scope).into()).collect(),
    }
}

/// Whether one rule lets a call of `t` through.
#[track_caller]
fn allows(allow: &str, claims: Value, arguments: &str) -> bool {
    let rules = Rules::new(vec![rule("*", allow, &[])]);
    match rules.check("r", &caller(claims), "t", Some(arguments)) {
        Ok(()) => true,
        Err(Refusal::Denied) => false,
        Err(other) => panic!("{allow}: {other:?}"),
    }
}

#[track_caller]
fn mistake(expression: &str) -> String {
    match Expression::parse(expression) {
        Ok(_) => panic!("{expression} was taken"),
        Err(why) => why,
    }
}

#[test]
fn expressions_see_the_caller_and_the_call() {
    let claims =
        || json!({"role": "admin", "groups": ["a", "b"], "n": 5, "deep": {"x": [{"y": null}]}, "big": u64::MAX});
    for allow in [
        "true",
        "principal.subject == 'alice' && principal.tenant == tenant && principal.authenticated",
        "principal.issuer == '' && principal.client == ''",
        "tenant == 'acme' && tool == 't'",
        "claims.role == 'admin' && 'a' in claims.groups && !('c' in claims.groups)",
        "claims['role'].startsWith('ad') && claims.role.endsWith('min') && claims.role.contains('dmi')",
        "size(claims.groups) == 2 && claims.groups.size() == 2 && claims.groups[1] == 'b'",
        "claims.n == 5 && claims.n == 5.0 && claims.n + 1 > 5 && claims.big == 18446744073709551615u",
        "has(claims.role) && !has(claims.other) && !has(claims.deep.z)",
        "claims.deep.x[0].y == null",
        "claims.groups.all(g, g != 'c') && claims.groups.exists(g, g == tool || g == 'a')",
        "claims.groups.exists_one(g, g == 'a') && arguments.list.all(tool, tool > 0)",
        "type(arguments.list) == list && type(arguments.text) == string && type(arguments.half) == double",
        "arguments.list == [1, 2, 3] && arguments.half < 1 && arguments.text == 'é\"'",
        "claims.role == 'admin' ? true : false",
        "int('5') == claims.n && string(claims.n) == '5' && bool('true')",
        // What one side settles, the other can't spoil.
        "claims.role == 'admin' || claims.missing == 1",
        "claims.missing == 1 || claims.role == 'admin'",
    ] {
        assert!(allows(allow, claims(), r#"{"list":[1,2,3],"half":0.5,"text":"\u00e9\""}"#), "{allow}");
    }
}

#[test]
fn whatever_can_not_be_decided_refuses() {
    for allow in [
        "false",
        "claims.missing == 'x'",
        "claims.role",
        "claims.role.x == 1",
        "claims[1] == 1",
        "arguments.missing",
        "arguments.n / 0 == 1",
        "arguments.n + claims.role == 'x'",
        "arguments.n > claims.role",
        "arguments.n.startsWith('a')",
        "arguments.list[7] == 1",
        "arguments.n.all(x, x > 0)",
        "arguments.list.all(x, x.y)",
        "int(claims.role) == 1",
        "!claims.role",
        "claims.missing == 1 && true",
        "9223372036854775807 + arguments.n == 0",
        "string(bytes('a')) == claims.missing",
        "-(-9223372036854775807 - arguments.n) == 0",
    ] {
        assert!(!allows(allow, json!({"role": "admin"}), r#"{"n":1,"list":[1]}"#), "{allow}");
    }
    // The same where there are no claims and no arguments.
    assert!(!allows("claims.role == 'admin'", json!({}), "{}"));
    let rules = Rules::new(vec![rule("*", "arguments.n == 1", &[])]);
    assert_eq!(rules.check("r", &caller(json!({})), "t", None), Err(Refusal::Denied));
    assert!(Rules::new(vec![rule("*", "size(arguments) == 0", &[])]).check("r", &caller(json!({})), "t", None).is_ok());
}

#[test]
fn every_entry_that_fits_must_hold_and_scopes_come_last() {
    let rules = Rules::new(vec![
        rule("admin_*", "principal.subject == 'alice'", &["mcp:admin", "mcp:tools"]),
        rule("*", "tool != 'drop' || arguments.dry_run == true", &["mcp:tools"]),
        rule("admin_bob", "principal.subject == 'bob'", &["mcp:bob"]),
    ]);
    let of = |scopes: &str| Arc::new(Caller { scopes: Scopes::listed(scopes), ..Caller::clone(&caller(json!({}))) });
    let check = |scopes, tool, arguments| rules.check("r", &of(scopes), tool, arguments);
    let lacks = |scopes: &str| Err(Refusal::Scopes(scopes.into()));
    assert_eq!(check("mcp:tools", "read", None), Ok(()));
    assert_eq!(check("", "read", None), lacks("mcp:tools"));
    assert_eq!(check("mcp:tools", "admin_x", None), lacks("mcp:admin mcp:tools"));
    assert_eq!(check("mcp:tools mcp:admin", "admin_x", None), Ok(()));
    assert_eq!(check("", "admin_bob", None), Err(Refusal::Denied));
    assert_eq!(check("", "drop", None), Err(Refusal::Denied));
    assert_eq!(check("", "drop", Some(r#"{"dry_run":true}"#)), lacks("mcp:tools"));
    // A list shows what the arguments or a scope could make possible.
    let shown = |tool| rules.shows("r", &of(""), tool);
    assert!(shown("drop") && shown("admin_x") && shown("read") && !shown("admin_bob"));
    let later = |scopes, tool| rules.check_later("r", &of(scopes), tool);
    assert_eq!(later("mcp:tools", "drop"), Ok(()));
    assert_eq!(later("", "drop"), lacks("mcp:tools"));
    assert_eq!(later("mcp:bob", "admin_bob"), Err(Refusal::Denied));
    assert!(Rules::default().check("r", &of(""), "any", Some("no json")).is_ok());
}

#[test]
fn arguments_that_two_readers_could_read_differently_are_refused() {
    let rules = Rules::new(vec![rule("*", "arguments.dry_run == true", &[])]);
    let check = |arguments: &str| rules.check("r", &caller(json!({})), "t", Some(arguments));
    assert_eq!(check(r#"{"dry_run":true}"#), Ok(()));
    let deep = |levels: usize| format!(r#"{{"dry_run":true,"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    assert_eq!(check(&deep(100)), Ok(()));
    for bad in [
        r#"{"dry_run":true,"dry_run":false}"#,
        r#"{"dry_run":true,"dry\u005frun":false}"#,
        r#"{"dry_run":true,"x":[{"a":1,"a":1}]}"#,
        r#"{"dry_run":true,"x":1e999}"#,
        &deep(200),
        "[]",
        "null",
        "\"dry_run\"",
    ] {
        assert!(matches!(check(bad), Err(Refusal::Arguments(_))), "{bad}");
    }
    let large = |bytes: usize| format!(r#"{{"dry_run":true,"x":"{}"}}"#, "x".repeat(bytes));
    assert_eq!(check(&large(MOST_ARGUMENTS.0 - 100)), Ok(()));
    assert!(matches!(check(&large(MOST_ARGUMENTS.0)), Err(Refusal::Arguments(_))));
    let many = |values: usize| format!(r#"{{"dry_run":true,"x":[{}0]}}"#, "0,".repeat(values));
    assert_eq!(check(&many(MOST_ARGUMENTS.1 - 10)), Ok(()));
    assert!(matches!(check(&many(MOST_ARGUMENTS.1)), Err(Refusal::Arguments(_))));
    // A rule that goes through lists takes less.
    let loops = Rules::new(vec![rule("*", "arguments.x.all(x, x == 0)", &[])]);
    let check = |arguments: &str| loops.check("r", &caller(json!({})), "t", Some(arguments));
    assert_eq!(check(&many(MOST_FOR_LOOPS.1 - 10)), Ok(()));
    assert!(matches!(check(&many(MOST_FOR_LOOPS.1)), Err(Refusal::Arguments(_))));
    assert!(matches!(check(&large(MOST_FOR_LOOPS.0)), Err(Refusal::Arguments(_))));
    // None is read where no rule asks, and a rule that has asked takes no excuse.
    for (allow, expected) in [
        ("tool == 't'", Ok(())),
        ("tool != 'drop' || arguments.dry_run == true", Ok(())),
        ("arguments.dry_run == true || tool == 't'", Err(Refusal::Arguments("`arguments` must be an object"))),
    ] {
        let other = Rules::new(vec![rule("*", allow, &[])]);
        assert_eq!(other.check("r", &caller(json!({})), "t", Some("[nonsense")), expected, "{allow}");
    }
}

#[test]
fn mistakes_are_found_before_any_call() {
    for (expression, expected) in [
        ("", "an expression must not be empty"),
        (
            "clams.role == 'x'",
            "at 1:1 of the expression: unknown variable `clams`; there are `principal`, `claims`, `tenant`, `tool`, `arguments`",
        ),
        (
            "tool == 'a' &&\n  rol == 'x'",
            "at 2:3 of the expression: unknown variable `rol`; there are `principal`, `claims`, `tenant`, `tool`, `arguments`",
        ),
        (
            "'é' == tool && x",
            "at 1:16 of the expression: unknown variable `x`; there are `principal`, `claims`, `tenant`, `tool`, `arguments`",
        ),
        ("tool", "at 1:1 of the expression: gives neither true nor false, as a rule must"),
        ("1 + 1", "at 1:3 of the expression: gives neither true nor false, as a rule must"),
        ("true ? 'a' : false", "at 1:8 of the expression: gives neither true nor false, as a rule must"),
        ("tool && true", "at 1:1 of the expression: gives neither true nor false, as a rule must"),
        (
            "claims.x.all(y, y == 1) && y == 1",
            "at 1:28 of the expression: unknown variable `y`; there are `principal`, `claims`, `tenant`, `tool`, `arguments`",
        ),
    ] {
        assert_eq!(mistake(expression), expected, "{expression}");
    }
    for (expression, part) in [
        ("tool ==", "of the expression: "),
        ("tool = 'x'", "of the expression: "),
        ("tool == 'x", "of the expression: "),
        ("tool.matches('a+')", "`matches` is not offered"),
        ("matches(tool, 'a+')", "`matches` is not offered"),
        ("tool.upper() == 'X'", "unknown function `upper`"),
        ("now() > 1", "unknown function `now`"),
        ("timestamp('2020-01-01T00:00:00Z') > 1", "unknown function `timestamp`"),
        ("optional.of(1) == optional.of(1)", "unknown function `of`"),
        ("claims.?x == 1", "of the expression: "),
        ("tool.startsWith('a', 'b')", "takes 1 arguments here, not 2"),
        ("arguments.l.map(x, x).size() == 1", "`map` and `filter` are not offered"),
        ("size(arguments.l.filter(x, x)) == 1", "`map` and `filter` are not offered"),
        ("arguments.l.all(x, arguments.l.all(y, x == y))", "can't be inside one another"),
        ("[arguments.l.all(x, x)].all(y, y)", "can't be inside one another"),
        ("has(claims)", "of the expression: "),
        ("claims.x.all(1, true)", "of the expression: "),
        ("Foo{a: 1} == Foo{a: 1}", "have no place in a rule"),
        (".unknown == 1", "unknown variable"),
        ("google.protobuf.Duration == 1", "unknown variable `google`"),
    ] {
        let why = mistake(expression);
        assert!(why.contains(part), "{expression}: {why}");
    }
    assert!(mistake(&format!("tool == '{}'", "x".repeat(5000))).contains("at most 4096 bytes"));
}

/// The parser and its tree are recursive: nothing that fits into a rule may end the process.
#[test]
fn expressions_that_nest_without_end_are_refused() {
    let fill = |before: &str, unit: &str, middle: &str, close: &str| {
        let count = (4000 - before.len() - middle.len()) / (unit.len() + close.len());
        format!("{before}{}{middle}{}", unit.repeat(count), close.repeat(count))
    };
    let hostile = [
        fill("", "(", "true", ")"),
        fill("", "[", "true", "]"),
        fill("", "{1:", "true", "}"),
        fill("1 == ", "1+", "1", ""),
        fill("1 == 1", "-1", "", ""),
        fill("", "true?true:", "true", ""),
        fill("", "true?", "true", ":true"),
        fill("claims", ".a", "", ""),
        fill("claims", "[0]", "", ""),
        fill("", "size(", "1", ")"),
        fill("tool", ".size()", "", ""),
        fill("", "1==", "1", ""),
        fill("", "has(", "claims.a", ")"),
        fill("", "claims.all(x,", "true", ")"),
        fill("", "(", "", ""),
        fill("", ")", "", ""),
        fill("", "\"", "", ""),
        fill("", "\\", "", ""),
        fill("", "`", "", ""),
        fill("", "\u{0}", "", ""),
        fill("", "é", "", ""),
        fill("", "a", "", ""),
        fill("", "\n", "x", ""),
    ];
    let taken = hostile.iter().filter(|hostile| Expression::parse(hostile).is_ok());
    assert_eq!(taken.map(|taken| taken.chars().take(20).collect()).collect::<Vec<String>>(), Vec::<String>::new());
    // Rows are not deep.
    assert!(Expression::parse(&fill("", "true&&", "true", "")).is_ok());
    assert!(Expression::parse(&fill("", "tool=='a'||", "true", "")).is_ok());
}

#[test]
fn a_rule_that_fails_is_told_of_once_a_minute() {
    let rules = Rules::new(vec![rule("*", "true", &[]), rule("*", "true", &[])]);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    assert!(rules.may_warn(0, start) && !rules.may_warn(0, after(59)) && rules.may_warn(1, after(59)));
    assert!(rules.may_warn(0, after(60)) && !rules.may_warn(0, after(61)));
    assert!(!rules.may_warn(7, start));
}

#[test]
fn callers_are_remembered_within_bounds_and_never_taken_for_each_other() {
    let rules = Rules::new(vec![rule("*", "claims.n % 2 == 0", &[])]);
    for n in 0..2 * MOST_CALLERS {
        let caller = caller(json!({"n": n}));
        for _ in 0..2 {
            assert_eq!(rules.check("r", &caller, "t", None).is_ok(), n % 2 == 0);
        }
    }
    let alive: Vec<Arc<Caller>> = (0..2 * MOST_CALLERS).map(|n| caller(json!({"n": n}))).collect();
    for (n, caller) in alive.iter().enumerate() {
        assert_eq!(rules.check("r", caller, "t", None).is_ok(), n % 2 == 0);
    }
    assert!(rules.known.lock().unwrap().len() <= MOST_CALLERS);
}

#[test]
fn decisions_are_remembered_for_each_tool_within_bounds() {
    let rules = Rules::new(vec![rule("*", "tool != 'a' && size(tool) < 1000", &[]), rule("b", "claims.x == 1", &[])]);
    let alice = caller(json!({}));
    for _ in 0..2 {
        assert_eq!(rules.check("r", &alice, "a", None), Err(Refusal::Denied));
        assert_eq!(rules.check("r", &alice, "b", None), Err(Refusal::Denied));
        assert_eq!(rules.check("r", &alice, "c", None), Ok(()));
        assert_eq!(rules.check("r", &alice, &"x".repeat(2000), None), Err(Refusal::Denied));
    }
    let remembered = || rules.identity(&alice).decided.lock().unwrap().clone();
    // Neither what can't be decided, which is to be told of again, nor long names.
    assert_eq!(remembered(), HashMap::from([("a".into(), false), ("c".into(), true)]));
    for n in 0..3 * MOST_DECIDED {
        assert_eq!(rules.check("r", &alice, &n.to_string(), None), Ok(()));
        assert_eq!(rules.check("r", &alice, "a", None), Err(Refusal::Denied));
    }
    assert!(remembered().len() <= MOST_DECIDED);
}
