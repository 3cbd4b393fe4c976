//! Every rule about what a file may say: the words, and the place.

use super::{ROUTE, mistakes, read_with, route_with, settings, tasks_with, upstream_with};

#[track_caller]
fn one(text: &str, expected: &str) {
    assert_eq!(mistakes(text), [expected], "{text}");
}

/// The same for a section beside a complete route.
#[track_caller]
pub(super) fn beside_route(section: &str, expected: &str) {
    one(&format!("{section}\n{ROUTE}"), expected);
}

#[test]
fn all_mistakes_of_a_file_are_found_at_once() {
    let text = "\
listen:
  adress: 127.0.0.1:8080
  max_body: 16MB
secrets: {key: ${KEY}}
routes:
- name: reports
  path: reports
  upstream:
    url: ftp://10.0.0.7/mcp
    era: modrn
  tools: {deny: admin_*}
  tasks:
    deadline: 30h
    tools:
    - match: render_*
      support: requird
- 5
- name: reports
  upstream: {}
";
    assert_eq!(
        mistakes(text),
        [
            "2:3: listen.adress: unknown key; did you mean `address`?",
            "3:13: listen.max_body: expected a size such as `64KiB`, `16MiB` or `1GiB`, found `16MB`",
            "4:16: secrets.key: the environment variable KEY is not set, and `${KEY}` has no default",
            "7:9: routes[0].path: a path starts with `/`; found `reports`",
            "9:10: routes[0].upstream.url: a URL must start with `http://` or `https://`",
            "10:10: routes[0].upstream.era: `modrn` is none of `auto`, `legacy`, `modern`; did you mean `modern`?",
            "11:17: routes[0].tools.deny: expected a list, found a single value",
            "13:15: routes[0].tasks.deadline: `deadline` (30h) + `retention` (10m) is more than `ttl.max` (24h): a task \
             could be gone before its result",
            "16:16: routes[0].tasks.tools[0].support: `requird` is none of `optional`, `required`, `forbidden`; did you \
             mean `required`?",
            "17:3: routes[1]: expected a mapping of keys to values, found a single value",
            "18:3: routes[2].path: `path` is missing",
            "18:9: routes[2].name: the same as `routes[0].name`",
            "19:13: routes[2].upstream: needs one of `url`, `command` and `sse`",
        ]
    );
}

#[test]
fn the_report_names_the_file_and_counts() {
    let report = read_with("admin: 5\n", &[]).unwrap_err().to_string();
    let expected = "taskgate.yaml:1:1: routes: `routes` is missing\n\
                    taskgate.yaml:1:8: admin: expected a mapping of keys to values, found a single value\n2 mistakes";
    assert_eq!(report, expected);
}

#[test]
fn unknown_keys_name_the_nearest() {
    beside_route("lisen: {}", "1:1: lisen: unknown key; did you mean `listen`?");
    beside_route("listen: {public-url: x}", "1:10: listen.public-url: unknown key; did you mean `public_url`?");
    beside_route("listen: {MAX_BODY: 1}", "1:10: listen.MAX_BODY: unknown key; did you mean `max_body`?");
    beside_route(
        "tenants: {acme: {runing_tasks: 1}}",
        "1:18: tenants.acme.runing_tasks: unknown key; did you mean `running_tasks`?",
    );
    beside_route("sessions: {zzz: 1}", "1:12: sessions.zzz: unknown key; known here: `idle`, `max`");
    one(
        &route_with("  url: http://u\n  upstream: {url: http://u}"),
        "4:3: routes[0].url: unknown key; did you mean `upstream.url`?",
    );
    one(
        &tasks_with("    tools: [{match: a, dedline: 1s}]"),
        "7:24: routes[0].tasks.tools[0].dedline: unknown key; did you mean `deadline`?",
    );
}

#[test]
fn what_concerns_a_section_of_lines_is_said_at_its_key() {
    one(
        &route_with("  upstream:\n    max_in_flight: 1"),
        "4:3: routes[0].upstream: needs one of `url`, `command` and `sse`",
    );
    beside_route(
        "replica:\n  id: a",
        "1:1: replica: means something only with `store.kind: redis`, which replicas share",
    );
}

#[test]
fn missing_keys_are_named() {
    assert_eq!(
        mistakes(&format!("admin: {{token: {{flie: x}}}}\n{ROUTE}")),
        ["1:16: admin.token.file: `file` is missing", "1:17: admin.token.flie: unknown key; did you mean `file`?"]
    );
    one("listen: {}\n", "1:1: routes: `routes` is missing");
    one("routes: []\n", "1:9: routes: needs at least 1 entry");
    assert_eq!(
        mistakes("routes:\n- {}\n"),
        [
            "2:3: routes[0].name: `name` is missing",
            "2:3: routes[0].path: `path` is missing",
            "2:3: routes[0].upstream: `upstream` is missing"
        ]
    );
    one(&tasks_with("    tools: [{deadline: 1s}]"), "7:13: routes[0].tasks.tools[0].match: `match` is missing");
    beside_route("tenants: {default: {polls: {burst: 1}}}", "1:28: tenants.default.polls.rate: `rate` is missing");
    assert_eq!(
        mistakes(&format!("auth: {{api_keys: [{{}}]}}\n{ROUTE}")),
        ["1:19: auth.api_keys[0].sha256: `sha256` is missing", "1:19: auth.api_keys[0].subject: `subject` is missing"]
    );
}

#[test]
fn wrong_kinds_of_values_are_refused() {
    one("5\n", "1:1: expected a mapping of keys to values, found a single value");
    one("- a\n", "1:1: expected a mapping of keys to values, found a list");
    one("~\n", "1:1: expected a mapping of keys to values, found nothing");
    beside_route("listen:", "1:1: listen: expected a mapping of keys to values, found nothing");
    // Half a section must not switch authentication off.
    beside_route("auth:", "1:1: auth: expected a mapping of keys to values, found nothing");
    beside_route("sessions: {max: many}", "1:17: sessions.max: expected a whole number, found `many`");
    beside_route("sessions: {max: 1.5}", "1:17: sessions.max: expected a whole number, found `1.5`");
    beside_route("sessions: {max: -1}", "1:17: sessions.max: expected a whole number, found `-1`");
    beside_route("sessions: {max: 0}", "1:17: sessions.max: `0` is not between 1 and 10000000");
    beside_route("sessions: {max:}", "1:12: sessions.max: expected a whole number, found nothing");
    beside_route(
        "sessions: {max: 99999999999999999999999}",
        "1:17: sessions.max: `99999999999999999999999` is not between 1 and 10000000",
    );
    beside_route("sessions: {idle: [1s]}", "1:18: sessions.idle: expected a value such as `30s`, found a list");
    beside_route("admin: {token: [a]}", "1:16: admin.token: expected a text or `{file: PATH}`, found a list");
    one(&tasks_with("    exclusive: yes"), "7:16: routes[0].tasks.exclusive: expected `true` or `false`, found `yes`");
    one(&tasks_with("    support: ~"), "7:5: routes[0].tasks.support: expected a single value, found nothing");
    one(
        &upstream_with("    headers: [a]"),
        "6:14: routes[0].upstream.headers: expected a mapping of keys to values, found a list",
    );
    one(
        &route_with("  upstream: {command: python}"),
        "4:23: routes[0].upstream.command: expected a list, found a single value",
    );
}

#[test]
fn an_item_that_does_not_fit_leaves_the_others_in_their_places() {
    one(
        &route_with("  upstream: {url: http://u}\n  tools: {allow: [[], \"\", a]}").replace("\"\"", "b"),
        "5:19: routes[0].tools.allow[0]: expected a single value, found a list",
    );
    assert_eq!(
        mistakes(&tasks_with("    tools: [3, {match: a, deadline: 0s}]")),
        [
            "7:13: routes[0].tasks.tools[0]: expected a mapping of keys to values, found a single value",
            "7:37: routes[0].tasks.tools[1].deadline: must be more than zero"
        ]
    );
}

#[test]
fn durations_sizes_and_rates_are_checked() {
    let duration = "expected a duration such as `500ms`, `30s`, `15m` or `24h`, found";
    for bad in ["5", "5d", "1.5h", "-1s", "s", "1 s", "1h30m", "\"\""] {
        let found = bad.trim_matches('"');
        beside_route(&format!("sessions: {{idle: {bad}}}"), &format!("1:18: sessions.idle: {duration} `{found}`"));
    }
    beside_route("sessions: {idle: 0s}", "1:18: sessions.idle: must be more than zero");
    beside_route("sessions: {idle: 87601h}", "1:18: sessions.idle: `87601h` is more than ten years");
    beside_route("listen: {max_body: 0}", "1:20: listen.max_body: must be more than zero");
    beside_route("listen: {max_body: 1025GiB}", "1:20: listen.max_body: `1025GiB` is more than 1024GiB");
    beside_route(
        "tenants: {default: {polls: {rate: 5}}}",
        "1:35: tenants.default.polls.rate: expected a rate such as `100/s` or `20/m`, found `5`",
    );
    beside_route(
        "tenants: {default: {polls: {rate: 0/s}}}",
        "1:35: tenants.default.polls.rate: `0/s` is not between 1 and 1000000 /s",
    );
    beside_route(
        "tenants: {default: {polls: {rate: 1/s, burst: 0}}}",
        "1:47: tenants.default.polls.burst: `0` is not between 1 and 1000000",
    );
    for key in ["deadline", "input_timeout", "poll_interval"] {
        one(
            &tasks_with(&format!("    {key}: 0s")),
            &format!("7:{}: routes[0].tasks.{key}: must be more than zero", key.len() + 7),
        );
    }
    one(&tasks_with("    ttl: {default: 0s}"), "7:20: routes[0].tasks.ttl.default: must be more than zero");
    one(&upstream_with("    connect_timeout: 0ms"), "6:22: routes[0].upstream.connect_timeout: must be more than zero");
    // No time at all is a choice here.
    settings(&format!("shutdown: {{drain: 0s}}\n{}", tasks_with("    retention: 0s")));
}

#[test]
fn features_that_come_later_are_refused_by_name() {
    one(
        &route_with("  upstream: {sse: http://u/sse}"),
        "4:19: routes[0].upstream.sse: the HTTP+SSE transport of 2024-11-05 is not supported yet",
    );
}

#[test]
fn what_a_later_feature_does_by_default_may_be_said() {
    let text = format!(
        "listen: {{trusted_proxies: []}}\nstore: {{kind: memory}}\n{}",
        upstream_with(
            "    pass_authorization: false\n  tasks: {on_lost: fail, immediate_response: null, tools: [{match: a, on_lost: fail}]}\n"
        )
    );
    let said = settings(&text);
    assert_eq!(said.routes[0].tools.otherwise, settings(ROUTE).routes[0].tools.otherwise);
    assert_eq!(said.routes[0].upstream, settings(ROUTE).routes[0].upstream);
}

#[test]
fn a_wrong_word_is_told_with_the_right_ones() {
    one(
        &tasks_with("    defer: soon"),
        "7:12: routes[0].tasks.defer: expected a duration such as `500ms`, `30s`, `15m` or `24h`, found `soon`; or `never`",
    );
    one(
        &upstream_with("    sessions: shared"),
        "6:15: routes[0].upstream.sessions: `shared` is none of `auto`, `per_call`, `pooled`, `pinned`",
    );
    one(
        &tasks_with("    on_lost: retry"),
        "7:14: routes[0].tasks.on_lost: `retry` is none of `fail`, `retry_idempotent`",
    );
    one(
        &tasks_with("    mode: nativ"),
        "7:11: routes[0].tasks.mode: `nativ` is none of `add`, `native`; did you mean `native`?",
    );
}

#[test]
fn addresses_are_checked() {
    let expected = "expected an IP address and a port such as `127.0.0.1:8080` or `[::1]:8080`, found";
    for bad in ["8080", "localhost:8080", "127.0.0.1", "127.0.0.1:99999", ":8080", "::1:8080x"] {
        beside_route(&format!("listen: {{address: \"{bad}\"}}"), &format!("1:19: listen.address: {expected} `{bad}`"));
        beside_route(&format!("admin: {{address: \"{bad}\"}}"), &format!("1:18: admin.address: {expected} `{bad}`"));
    }
    beside_route("admin: {address: 127.0.0.1:8080}", "1:18: admin.address: the same as `listen.address`");
    settings(&format!("listen: {{address: 127.0.0.1:0}}\nadmin: {{address: 127.0.0.1:0}}\n{ROUTE}"));
}

#[test]
fn the_admin_address_needs_a_token_unless_it_is_loopback() {
    let needed = "admin.token: needed, because the admin address can be reached from other machines";
    beside_route("admin: {address: 0.0.0.0:9090}", &format!("1:8: {needed}"));
    beside_route("admin: {address: \"[::]:9090\"}", &format!("1:8: {needed}"));
    settings(&format!("admin: {{address: \"[::1]:9090\"}}\n{ROUTE}"));
    settings(&format!("admin: {{address: 10.0.0.1:9090, token: secret}}\n{ROUTE}"));
    beside_route("admin: {address: 10.0.0.1:9090, token: \"\"}", "1:40: admin.token: is empty");
    beside_route("admin: {token: a b}", "1:16: admin.token: a token has only visible ASCII characters and no spaces");
}

#[test]
fn urls_are_checked() {
    let bad = |url: &str, why: &str| {
        one(&route_with(&format!("  upstream: {{url: \"{url}\"}}")), &format!("4:19: routes[0].upstream.url: {why}"));
    };
    for url in ["10.0.0.7", "/mcp", "ftp://u/mcp", "u:80"] {
        bad(url, "a URL must start with `http://` or `https://`");
    }
    for url in ["", "http://", "http://u u/", "http:///mcp", "http://ü/"] {
        bad(url, "expected a URL such as `http://10.0.0.7:9000/mcp`");
    }
    bad("http://u/mcp#top", "a URL must not have a fragment (`#`)");
    bad("http://me:secret@u/mcp", "a URL must not have a user or password; credentials belong in `headers`");
    bad("http://u:0/", "not a port");
    bad("http://u:99999/", "not a port");
    bad("http://a!/", "not a host name");
    for url in ["http://u", "https://u:8443/mcp?x=1", "http://[::1]:9000/mcp", "http://my_service:80/"] {
        settings(&route_with(&format!("  upstream: {{url: \"{url}\"}}")));
    }
    beside_route(
        "listen: {public_url: mcp.example.com}",
        "1:22: listen.public_url: a URL must start with `http://` or `https://`",
    );
    beside_route(
        "listen: {public_url: https://m.example.com/?a}",
        "1:22: listen.public_url: the public URL must not have a query (`?`)",
    );
}

#[test]
fn origins_and_hosts_are_checked() {
    let origin = |text: &str, why: &str| {
        beside_route(
            &format!("listen: {{allowed_origins: [\"{text}\"]}}"),
            &format!(
                "1:28: listen.allowed_origins[0]: {why}; expected an origin such as `https://app.example.com`, found `{text}`"
            ),
        );
    };
    origin("app.example.com", "an origin has a scheme");
    origin("null", "an origin has a scheme");
    origin("https://app.example.com/", "an origin has no path");
    origin("https://*.example.com", "not a host name");
    origin("https://app.example.com:0", "not a port");
    origin("1s://a", "not a scheme");
    let host = |text: &str, why: &str| {
        beside_route(
            &format!("listen: {{allowed_hosts: [ok, \"{text}\"]}}"),
            &format!("1:30: listen.allowed_hosts[1]: {why}; expected a host such as `mcp.example.com`, found `{text}`"),
        );
    };
    host("https://mcp.example.com", "not a port");
    host("mcp.example.com/x", "not a host name");
    host("[::1", "not a host name");
    host("[::1]x", "not a host name");
    host("", "not a host name");
    host("a:", "not a port");
}

#[test]
fn routes_are_told_apart() {
    let route = |name: &str, path: &str| format!("- {{name: {name}, path: {path}, upstream: {{url: http://u}}}}\n");
    let two = |second: String, expected: &str| one(&format!("routes:\n{}{second}", route("a", "/a")), expected);
    two(route("a", "/b"), "3:10: routes[1].name: the same as `routes[0].name`");
    two(route("b", "/a"), "3:19: routes[1].path: the same as `routes[0].path`");
    settings(&format!("routes:\n{}{}", route("a", "/a"), route("b", "/a/b")));
}

#[test]
fn paths_of_routes_are_plain() {
    let bad = |path: &str, why: &str| {
        one(
            &format!("routes: [{{name: a, upstream: {{url: http://u}}, path: \"{path}\"}}]"),
            &format!("1:53: routes[0].path: {why}; found `{path}`"),
        );
    };
    bad("", "a path starts with `/`");
    bad("mcp", "a path starts with `/`");
    bad("/mcp?x", "a path has no query or fragment");
    bad("/mcp#x", "a path has no query or fragment");
    bad("/mcp/", "a path doesn't end with `/`");
    bad("/a//b", "a path has no empty parts (`//`)");
    bad("/a/../b", "a path has no `.` or `..`");
    bad("/.well-known/x", "paths under `/.well-known` are for metadata");
    bad("/a b", "a path has only letters, digits and -._~!$&'()*+,;=:@");
    bad("/%6dcp", "a path has only letters, digits and -._~!$&'()*+,;=:@");
    let long = format!("/{}", "a".repeat(256));
    let found = mistakes(&format!("routes: [{{name: a, upstream: {{url: http://u}}, path: {long}}}]"));
    assert_eq!(found, [format!("1:53: routes[0].path: a path has at most 256 characters; found `{}...`", &long[..60])]);
}

#[test]
fn names_of_routes_fit_metrics() {
    for bad in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
        let found = mistakes(&format!("routes: [{{name: \"{bad}\", path: /a, upstream: {{url: http://u}}}}]"));
        assert!(
            found[0].starts_with("1:17: routes[0].name: a name has 1 to 64 letters, digits, `_`, `-` or `.`"),
            "{found:?}"
        );
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn an_upstream_is_reached_one_way() {
    one(&route_with("  upstream: {}"), "4:13: routes[0].upstream: needs one of `url`, `command` and `sse`");
    one(
        &upstream_with("    command: [python]"),
        "6:14: routes[0].upstream.command: only one of `url`, `command` and `sse`",
    );
    one(&route_with("  upstream: {command: []}"), "4:23: routes[0].upstream.command: needs at least 1 entry");
    one(
        &route_with("  upstream: {command: [\"\"]}"),
        "4:23: routes[0].upstream.command: expected a program, and its arguments",
    );
    one(
        &route_with("  upstream: {command: [a, \"\\0\"]}"),
        "4:23: routes[0].upstream.command: an argument has no NUL characters",
    );
    assert_eq!(
        mistakes(&route_with("  upstream: {command: [a], headers: {A: b}, connect_timeout: 5s}")),
        [
            "4:37: routes[0].upstream.headers: means nothing for a `command`",
            "4:62: routes[0].upstream.connect_timeout: means nothing for a `command`"
        ]
    );
}

#[test]
fn headers_that_taskgate_sets_are_refused() {
    let own = [
        "Host",
        "Content-Length",
        "Connection",
        "Transfer-Encoding",
        "MCP-Session-Id",
        "MCP-Protocol-Version",
        "Accept",
        "Content-Type",
        "Mcp-Name",
        "mcp-anything",
        "Last-Event-ID",
        "TE",
        "Upgrade",
    ];
    for name in own {
        let column = 17 + name.len();
        one(
            &upstream_with(&format!("    headers: {{{name}: x}}")),
            &format!("6:{column}: routes[0].upstream.headers.{name}: taskgate sets this header itself"),
        );
    }
    settings(&upstream_with("    headers: {Authorization: Bearer x, X-Api-Key: y, Mcpx: z}"));
}

#[test]
fn headers_are_checked() {
    let bad = |header: &str, expected: &str| one(&upstream_with(&format!("    headers: {{{header}}}")), expected);
    bad("\"a b\": x", "6:22: routes[0].upstream.headers[\"a b\"]: `a b` is not a header name");
    bad("A: \"x\\ny\"", "6:18: routes[0].upstream.headers.A: a header's value has only visible ASCII characters");
    bad("A: ü", "6:18: routes[0].upstream.headers.A: a header's value has only visible ASCII characters");
    bad("A: \" x\"", "6:18: routes[0].upstream.headers.A: a header's value must not begin or end with spaces");
    bad("A: \"\"", "6:18: routes[0].upstream.headers.A: is empty");
    bad(
        "X-A: a, x-a: b",
        "6:28: routes[0].upstream.headers.x-a: given twice; names of headers differ in more than case",
    );
}

#[test]
fn tasks_outlive_their_calls_and_results() {
    let late = |deadline, retention, max| {
        format!(
            "`deadline` ({deadline}) + `retention` ({retention}) is more than `ttl.max` ({max}): a task could be gone before \
             its result"
        )
    };
    one(&tasks_with("    deadline: 24h"), &format!("7:15: routes[0].tasks.deadline: {}", late("24h", "10m", "24h")));
    one(&tasks_with("    retention: 24h"), &format!("7:16: routes[0].tasks.retention: {}", late("30m", "24h", "24h")));
    one(
        &tasks_with("    ttl: {default: 1m, max: 39m}"),
        &format!("7:29: routes[0].tasks.ttl.max: {}", late("30m", "10m", "39m")),
    );
    settings(&tasks_with("    ttl: {default: 1m, max: 40m}"));
    settings(&tasks_with("    deadline: 1430m"));

    // An entry is checked with what it inherits, and not again for what the route has wrong.
    one(
        &tasks_with(
            "    retention: 1h\n    tools:\n    - {match: a, deadline: 23h}\n    - {match: b, deadline: 1381m}",
        ),
        &format!("10:28: routes[0].tasks.tools[1].deadline: {}", late("1381m", "1h", "24h")),
    );
    one(
        &tasks_with("    tools:\n    - match: a\n      ttl: {max: 1h, default: 1h}\n      retention: 31m"),
        &format!("10:18: routes[0].tasks.tools[0].retention: {}", late("30m", "31m", "1h")),
    );
    one(
        &tasks_with("    deadline: 24h\n    tools: [{match: a, support: required}]"),
        &format!("7:15: routes[0].tasks.deadline: {}", late("24h", "10m", "24h")),
    );
    one(
        &tasks_with("    ttl: {default: 25h}"),
        "7:20: routes[0].tasks.ttl.default: `ttl.default` (25h) is more than `ttl.max` (24h)",
    );
    one(
        &tasks_with("    tools: [{match: a, ttl: {max: 50m}}]"),
        "7:35: routes[0].tasks.tools[0].ttl.max: `ttl.default` (1h) is more than `ttl.max` (50m)",
    );
    // Nothing is said about a sum whose parts are wrong.
    one(
        &tasks_with("    deadline: 24\n    retention: 24h").replace("24\n", "x\n"),
        "7:15: routes[0].tasks.deadline: expected a duration such as `500ms`, `30s`, `15m` or `24h`, found `x`",
    );
}

#[test]
fn patterns_are_checked() {
    let bad = |pattern: &str, why: &str| {
        one(
            &tasks_with(&format!("    tools: [{{match: \"{pattern}\"}}]")),
            &format!("7:21: routes[0].tasks.tools[0].match: {why}"),
        );
        one(
            &upstream_with(&format!("  tools: {{allow: [\"{pattern}\"]}}")),
            &format!("6:19: routes[0].tools.allow[0]: {why}"),
        );
    };
    bad("", "a pattern must not be empty; `*` matches every tool");
    bad("a\\tb", "a pattern has no control characters");
    bad(&"a".repeat(257), "a pattern has at most 256 bytes");
}

const HASH: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

#[test]
fn api_keys_are_checked() {
    let nobody = "1:7: auth: has no `api_keys`, `jwt` or `introspection`, so that nobody could call";
    beside_route("auth: {}", nobody);
    beside_route("auth: {api_keys: []}", nobody);
    let hash = |text: &str| {
        beside_route(
            &format!("auth: {{api_keys: [{{subject: a, sha256: \"{text}\"}}]}}"),
            "1:40: auth.api_keys[0].sha256: expected 64 hex digits: `printf %s \"$KEY\" | sha256sum`",
        );
    };
    // What was meant to be a hash may be the key, so it is not repeated.
    hash("my-secret-key");
    hash("");
    hash(&HASH[1..]);
    hash(&format!("{HASH}0"));
    hash(&HASH.replace('0', "g"));
    hash(&HASH.replacen("01", "+1", 1));
    let two = format!(
        "auth:\n  api_keys:\n  - {{sha256: {HASH}, subject: a}}\n  - {{sha256: {}, subject: b}}",
        HASH.to_lowercase()
    );
    beside_route(&two, "4:14: auth.api_keys[1].sha256: the same key as `auth.api_keys[0]`");
    let named = |key: &str| {
        format!("auth: {{api_keys: [{{sha256: {HASH}, subject: s, {key}}}]}}").replace("subject: s, subject", "subject")
    };
    let name = "a name has 1 to 128 bytes and no control characters";
    beside_route(&named("subject: \"\""), &format!("1:103: auth.api_keys[0].subject: {name}"));
    beside_route(&named("tenant: \"a\\nb\""), &format!("1:114: auth.api_keys[0].tenant: {name}"));
    beside_route(&named(&format!("tenant: {}", "a".repeat(129))), &format!("1:114: auth.api_keys[0].tenant: {name}"));
}

#[test]
fn seal_keys_are_checked() {
    let expected = "expected 32 bytes in base64; `openssl rand -base64 32` makes one";
    for bad in ["short", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==", "not base64!"] {
        beside_route(&format!("secrets: {{key: \"{bad}\"}}"), &format!("1:16: secrets.key: {expected}"));
    }
    let zero = "A".repeat(43);
    beside_route(
        &format!("secrets: {{key: {zero}}}"),
        "1:16: secrets.key: a key of one repeated byte is no secret; `openssl rand -base64 32` makes one",
    );
    let (one, two) = ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "_-ECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8");
    settings(&format!("secrets: {{key: {one}, previous: [{two}]}}\n{ROUTE}"));
    beside_route(&format!("secrets: {{previous: [{one}]}}"), "1:21: secrets.previous: earlier keys without a `key`");
    beside_route(
        &format!("secrets: {{key: {one}, previous: [{two}, {one}]}}"),
        "1:118: secrets.previous[1]: the same key again",
    );
    beside_route("secrets: {key: \"\", previous: []}", "1:16: secrets.key: is empty");
}

#[test]
fn no_mistake_shows_a_secret() {
    let text = format!(
        "admin: {{address: 0.0.0.0:1, token: \"hush hush\"}}\nsecrets: {{key: hushhush, previous: [hush]}}\n\
         auth: {{api_keys: [{{sha256: hush, subject: \"\"}}]}}\n{}",
        route_with(
            "  upstream:\n    url: http://u:hush@u/\n    headers: {A: \"hush\\n\", Host: hush, B: [hush]}\n    oauth: {client_secret: hush}"
        )
    );
    let report = read_with(&text, &[]).unwrap_err();
    assert_eq!(report.problems().len(), 11, "{report}");
    assert!(!report.to_string().contains("hush"), "{report}");
}
