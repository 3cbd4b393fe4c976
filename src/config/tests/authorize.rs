//! Rules for the callers of tools: what a file may say of them, and what it means.

use super::{ROUTE, mistakes, settings, upstream_with};
use crate::config::describe;
use crate::gateway::policy::Pattern;
use crate::gateway::rules::{Expression, Rule};

#[track_caller]
fn one(rules: &str, expected: &str) {
    let text = upstream_with(&format!("  authorize: {rules}"));
    assert_eq!(mistakes(&text), [expected], "{text}");
}

#[test]
fn rules_keep_their_order_and_their_defaults() {
    let text = upstream_with(
        "  authorize:
  - {match: \"admin_*\", allow: \"claims.role == 'admin'\", scopes: [mcp:admin, mcp:tools]}
  - allow: |
      tool != 'drop' ||
      arguments.dry_run == true
  - {scopes: [mcp:tools]}
",
    );
    let rule = |pattern, allow: Option<&str>, scopes: &[&str]| Rule {
        pattern: Pattern::parse(pattern).unwrap(),
        allow: allow.map(|allow| Expression::parse(allow).unwrap()),
        scopes: scopes.iter().map(|scope| (*scope).into()).collect(),
    };
    let read = settings(&text);
    assert_eq!(
        read.routes[0].rules,
        [
            rule("admin_*", Some("claims.role == 'admin'"), &["mcp:admin", "mcp:tools"]),
            rule("*", Some("tool != 'drop' ||\narguments.dry_run == true\n"), &[]),
            rule("*", None, &["mcp:tools"]),
        ]
    );
    let described = describe(&read);
    for line in [
        "  authorize  admin_*: claims.role == 'admin', and scopes mcp:admin, mcp:tools\n",
        "  authorize  *: tool != 'drop' || arguments.dry_run == true\n",
        "  authorize  *: scopes mcp:tools\n",
    ] {
        assert!(described.contains(line), "{described}");
    }
    assert_eq!(settings(ROUTE).routes[0].rules, []);
}

#[test]
fn a_rule_that_could_never_be_decided_is_a_mistake() {
    one("[{}]", "6:15: routes[0].authorize[0]: needs `allow`, `scopes` or both");
    one("[{match: a}]", "6:15: routes[0].authorize[0]: needs `allow`, `scopes` or both");
    one(
        "[{match: \"\", scopes: [a]}]",
        "6:23: routes[0].authorize[0].match: a pattern must not be empty; `*` matches every tool",
    );
    one(
        "[{allow: 5}]",
        "6:23: routes[0].authorize[0].allow: at 1:1 of the expression: gives neither true nor false, as a rule must",
    );
    one("[{allow: \"\"}]", "6:23: routes[0].authorize[0].allow: an expression must not be empty");
    one(
        "[{allow: \"true && clams.role == 'x'\"}]",
        "6:23: routes[0].authorize[0].allow: at 1:9 of the expression: unknown variable `clams`; there are `principal`, \
         `claims`, `tenant`, `tool`, `arguments`",
    );
    one("[{alow: \"true\", scopes: [a]}]", "6:16: routes[0].authorize[0].alow: unknown key; did you mean `allow`?");
    one(
        "[{scopes: [\"a b\"]}]",
        "6:25: routes[0].authorize[0].scopes[0]: a scope has 1 to 128 visible ASCII characters, no spaces, `\"` or `\\`; found \
         `a b`",
    );
    one("{}", "6:14: routes[0].authorize: expected a list, found a mapping");
    let many = format!("[{}]", "{allow: 'true'}, ".repeat(101));
    one(&many, "6:14: routes[0].authorize: a route has at most 100 rules");
}

#[test]
fn scopes_that_nobody_is_asked_for_are_warned_of() {
    let text = upstream_with("  authorize: [{match: \"a_*\", scopes: [x]}, {allow: 'true'}]");
    let warnings: Vec<_> = settings(&text).warnings.iter().map(ToString::to_string).collect();
    let warning = "scopes: ask nothing of anybody: only tokens have scopes, and none are accepted";
    assert_eq!(warnings, [format!("6:38: routes[0].authorize[0].{warning}")]);
    let key = "0".repeat(64);
    let keys = format!("auth: {{api_keys: [{{sha256: {key}, subject: s}}]}}\n{text}");
    assert_eq!(settings(&keys).warnings.len(), 1);
    let tokens = format!(
        "listen: {{public_url: https://mcp.example.com}}\nauth: {{jwt: [{{issuer: https://a, audiences: [x]}}]}}\n{text}"
    );
    assert_eq!(settings(&tokens).warnings, []);
}
