//! What good files mean.

use crate::config::{ReplicaSettings, StoreSettings};
use std::{fs, num::NonZeroU32, time::Duration};

use super::{ROUTE, mistakes, read_with, route_with, settings, tasks_with, upstream_with};
use crate::config::{ByteSize, RateLimit, Settings, UpstreamTarget, describe, load, parse};
use crate::gateway::eras;
use crate::gateway::policy::{Questions, Support, ToolPolicy};
use crate::gateway::pool::SessionPolicy;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const HASH: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

#[test]
fn a_route_is_enough() {
    let Settings { listen, admin, store, replica, secrets, sessions, drain, auth, tenants, routes, warnings } =
        settings(ROUTE);
    assert_eq!(store, StoreSettings::Memory);
    assert_eq!(replica, ReplicaSettings { id: None, lease: Duration::from_secs(10), address: None });
    assert_eq!(listen.address.to_string(), "127.0.0.1:8080");
    assert_eq!((listen.public_url, listen.allowed_origins, listen.allowed_hosts), (None, None, None));
    assert_eq!(listen.max_body, ByteSize::new(16 << 20));
    assert_eq!((admin.address.to_string().as_str(), admin.token), ("127.0.0.1:9090", None));
    assert_eq!((secrets.key, secrets.previous.len()), (None, 0));
    assert_eq!((sessions.idle, sessions.max), (30 * MINUTE, 10_000));
    assert_eq!(drain, 30 * SECOND);
    assert_eq!(auth, None);
    assert!(warnings.is_empty());

    let limits = tenants.limits("anybody");
    assert_eq!((limits.running_tasks, limits.queued_tasks, limits.kept_tasks), (50, 500, 100_000));
    assert_eq!(limits.kept_bytes, ByteSize::new(512 << 20));
    assert_eq!((limits.requests, limits.creates, limits.polls), (None, None, None));

    let [route] = routes.as_slice() else { panic!("{routes:?}") };
    assert_eq!((route.name.as_str(), route.path.as_str()), ("a", "/mcp"));
    assert_eq!((route.upstream.max_in_flight, route.upstream.queue), (64, 1_000));
    assert_eq!(route.upstream.connect_timeout, 5 * SECOND);
    assert_eq!((route.upstream.era, route.upstream.sessions), (eras::Setting::Auto, SessionPolicy::Auto));
    assert!(!route.native);
    assert_eq!(route.tools, ToolPolicy::default());
    assert!(route.tools.permits("anything"));
    let policy = route.tools.of("anything");
    assert_eq!((policy.support, policy.exclusive), (Support::Optional, false));
    assert_eq!((policy.defer, policy.questions), (Some(Duration::from_millis(500)), Questions::Auto));
    assert_eq!((policy.deadline, policy.input_timeout, policy.retention), (30 * MINUTE, 10 * MINUTE, 10 * MINUTE));
    assert_eq!((policy.default_ttl, policy.max_ttl, policy.least_ttl()), (HOUR, 24 * HOUR, 40 * MINUTE));
    assert_eq!((policy.poll_interval, policy.immediate_response.as_deref()), (SECOND, None));
}

#[test]
fn a_whole_file_is_understood() {
    let text = format!(
        r#"
listen:
  address: 0.0.0.0:80
  public_url: https://MCP.example.com/base/
  allowed_origins: ["https://App.example.com:443", "http://a:8080", "vscode-webview://x1"]
  allowed_hosts: [MCP.example.com, "[::1]:80"]
  max_body: 65536
admin: {{address: 0.0.0.0:9090, token: hush}}
secrets: {{key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}}
sessions: {{idle: 1h, max: 5}}
shutdown: {{drain: 500ms}}
auth:
  api_keys:
  - {{sha256: {HASH}, tenant: acme, subject: ci-bot}}
"#
    );
    let Settings { listen, admin, secrets, sessions, drain, auth, .. } = settings(&(text + ROUTE));
    assert_eq!(listen.address.to_string(), "0.0.0.0:80");
    assert_eq!(listen.url("/mcp"), "https://MCP.example.com/base/mcp");
    assert_eq!(listen.allowed_origins.unwrap(), ["https://app.example.com", "http://a:8080", "vscode-webview://x1"]);
    assert_eq!(listen.allowed_hosts.unwrap(), ["mcp.example.com", "[::1]:80"]);
    assert_eq!(listen.max_body, ByteSize::new(65_536));
    assert_eq!(admin.token.unwrap().reveal(), "hush");
    assert_eq!(secrets.key.unwrap().reveal(), &std::array::from_fn(|index| u8::try_from(index).unwrap()));
    assert_eq!((sessions.idle, sessions.max, drain), (HOUR, 5, Duration::from_millis(500)));
    let keys = auth.unwrap().api_keys;
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].sha256[..9], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01]);
    assert_eq!((keys[0].tenant.as_str(), keys[0].subject.as_str()), ("acme", "ci-bot"));
}

#[test]
fn tenants_inherit_what_they_do_not_set() {
    let text = "tenants:\n  default: {running_tasks: 7, creates: {rate: 20/s, burst: 40}, polls: {rate: 30/m}}\n  \
                acme: {queued_tasks: 0, weight: 3, creates: {rate: 5/s}}\n  other: {}\n";
    let tenants = settings(&format!("{text}{ROUTE}")).tenants;
    let limit = |limit: Option<RateLimit>| limit.map(|limit| (limit.rate.to_string(), limit.burst.get()));
    let acme = tenants.limits("acme");
    assert_eq!((acme.running_tasks, acme.queued_tasks, acme.kept_tasks), (7, 0, 100_000));
    assert_eq!((acme.weight, tenants.default.weight), (3, 1));
    assert_eq!(limit(acme.creates), Some(("5/s".to_owned(), 5)));
    assert_eq!(limit(acme.polls), Some(("30/m".to_owned(), 30)));
    assert_eq!(acme.polls.unwrap().rate.interval(), 2 * SECOND);
    assert_eq!(acme.requests, None);
    assert_eq!(tenants.limits("other"), &tenants.default);
    assert_eq!(tenants.limits("nobody"), &tenants.default);
    assert_eq!(tenants.default.creates.map(|limit| limit.burst), NonZeroU32::new(40));
}

#[test]
fn the_first_entry_that_matches_decides() {
    let text = tasks_with(
        "    deadline: 1h\n    immediate_response: wait\n    tools:\n    - {match: render_*, support: required, deadline: 6h, \
         ttl: {default: 12h}}\n    - {match: render_now, support: forbidden}\n    - {match: p?ng, exclusive: true, \
         immediate_response: null, ttl: {max: 2h}, retention: 0s, poll_interval: 5s, input_timeout: 1m}\n",
    );
    let tools = settings(&text).routes.remove(0).tools;
    let render = tools.of("render_now");
    assert_eq!((render.support, render.deadline, render.default_ttl), (Support::Required, 6 * HOUR, 12 * HOUR));
    assert_eq!(
        (render.max_ttl, render.retention, render.immediate_response.as_deref()),
        (24 * HOUR, 10 * MINUTE, Some("wait"))
    );
    let ping = tools.of("pong");
    assert_eq!((ping.support, ping.exclusive, ping.deadline), (Support::Optional, true, HOUR));
    assert_eq!((ping.max_ttl, ping.retention, ping.poll_interval), (2 * HOUR, Duration::ZERO, 5 * SECOND));
    assert_eq!((ping.input_timeout, ping.immediate_response.as_deref()), (MINUTE, None));
    assert_eq!(tools.of("pooong"), &tools.otherwise);
    assert_eq!(tools.otherwise.deadline, HOUR);
}

#[test]
fn a_call_is_deferred_after_a_time_at_once_or_never() {
    let tasks = |lines: &str| settings(&tasks_with(lines)).routes.remove(0).tools;
    let tools = tasks(
        "    defer: 2s\n    questions: in_call\n    tools: [{match: a, defer: 0s}, {match: b, defer: never, questions: \
         in_task}, {match: c, questions: auto}]\n",
    );
    let of = |tool: &str| (tools.of(tool).defer, tools.of(tool).questions);
    assert_eq!(of("a"), (Some(Duration::ZERO), Questions::InCall));
    assert_eq!(of("b"), (None, Questions::InTask));
    assert_eq!(of("c"), (Some(2 * SECOND), Questions::Auto));
    assert_eq!(of("other"), (Some(2 * SECOND), Questions::InCall));
    let inherited = tasks("    defer: never\n    tools: [{match: a}, {match: b, defer: 1s}]\n");
    assert_eq!((inherited.of("a").defer, inherited.of("b").defer), (None, Some(SECOND)));
}

#[test]
fn a_route_says_what_its_server_speaks_and_who_makes_the_tasks() {
    let route = |upstream: &str| settings(&upstream_with(upstream)).routes.remove(0);
    for (word, era) in
        [("auto", eras::Setting::Auto), ("legacy", eras::Setting::Legacy), ("modern", eras::Setting::Modern)]
    {
        assert_eq!(route(&format!("    era: {word}\n")).upstream.era, era);
    }
    for (word, sharing) in [
        ("auto", SessionPolicy::Auto),
        ("per_call", SessionPolicy::PerCall),
        ("pooled", SessionPolicy::Pooled),
        ("pinned", SessionPolicy::Pinned),
    ] {
        assert_eq!(route(&format!("    sessions: {word}\n")).upstream.sessions, sharing);
    }
    assert!(route("  tasks: {mode: native, deadline: 1h}\n").native && !route("  tasks: {mode: add}\n").native);
}

#[test]
fn deny_wins_over_allow() {
    let tools = settings(&upstream_with("  tools: {allow: [a_*, b], deny: [\"*_x\"]}")).routes.remove(0).tools;
    let seen = |name| tools.permits(name);
    assert_eq!(["a_1", "b", "a_x", "c", "", "bb"].map(seen), [true, true, false, false, false, false]);
    let none = settings(&upstream_with("  tools: {allow: []}")).routes.remove(0).tools;
    assert!(!none.permits("a"));
}

#[test]
fn upstreams_are_urls_or_commands() {
    let url = settings(&upstream_with("    headers: {X-Api-Key: hush, Authorization: Bearer hush}"));
    let UpstreamTarget::Url { url, headers, .. } = &url.routes[0].upstream.target else { panic!() };
    assert_eq!(url.uri().to_string(), "http://u/mcp");
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(headers, [("authorization", "Bearer hush"), ("x-api-key", "hush")]);

    let command = settings(&route_with("  upstream: {command: [python, server.py, 5, \"\"]}"));
    let UpstreamTarget::Command { argv } = &command.routes[0].upstream.target else { panic!() };
    assert_eq!(argv, &["python", "server.py", "5", ""]);
}

#[test]
fn the_command_line_stands_in_for_a_file() {
    let url = Settings::for_upstream_url("http://127.0.0.1:9000/mcp").unwrap();
    let file = "routes: [{name: default, path: /mcp, upstream: {url: http://127.0.0.1:9000/mcp}}]";
    assert_eq!(url, settings(file));

    let argv = ["python", "server.py"].map(str::to_owned).to_vec();
    let file = "routes: [{name: default, path: /mcp, upstream: {command: [python, server.py]}}]";
    assert_eq!(Settings::for_command(argv).unwrap(), settings(file));

    let error = Settings::for_upstream_url("localhost:9000").unwrap_err().to_string();
    assert_eq!(error, "--upstream: a URL must start with `http://` or `https://`\n1 mistake");
    let error = Settings::for_command(Vec::new()).unwrap_err().to_string();
    assert_eq!(error, "the command: expected a program, and its arguments\n1 mistake");
}

#[test]
fn the_environment_is_filled_in() {
    let env = [("HOST", "10.0.0.1"), ("KEY", "a\"b: {c} # d"), ("EMPTY", ""), ("MAX", "7"), ("NAME", "a")];
    let text = r#"
listen: {address: ${HOST}:${PORT:-80}, public_url: ${URL:-https://m.example.com}}
sessions: {max: ${MAX}, idle: "${IDLE:-5m}"}
routes:
- name: ${NAME}${EMPTY}${EMPTY:-b}
  path: /${UNSET_:-}mcp
  upstream:
    url: http://u/mcp
    headers: {A: ${KEY}, B: $${KEY}, C: "$1 $", D: '${D:-x}$$${D:-y}'}
"#;
    let settings = read_with(text, &env).unwrap();
    assert_eq!(settings.listen.address.to_string(), "10.0.0.1:80");
    assert_eq!(settings.listen.url("/x"), "https://m.example.com/x");
    assert_eq!((settings.sessions.max, settings.sessions.idle), (7, 5 * MINUTE));
    assert_eq!((settings.routes[0].name.as_str(), settings.routes[0].path.as_str()), ("ab", "/mcp"));
    let UpstreamTarget::Url { headers, .. } = &settings.routes[0].upstream.target else { panic!() };
    let values: Vec<_> = headers.iter().map(|(_, value)| value.to_str().unwrap()).collect();
    assert_eq!(values, ["a\"b: {c} # d", "${KEY}", "$1 $", "x$${D:-y}"]);
}

#[test]
fn a_reference_that_cannot_be_filled_in_is_a_mistake() {
    let bad = |value: &str, expected: &str| {
        assert_eq!(
            mistakes(&format!("admin: {{token: \"{value}\"}}\n{ROUTE}")),
            [format!("1:16: admin.token: {expected}")]
        );
    };
    bad("a${UNSET}", "the environment variable UNSET is not set, and `${UNSET}` has no default");
    bad("${UNSET", "`${` without `}`; write `$${` for the text `${`");
    bad("${1A}", "`1A` is not the name of an environment variable; write `$${` for the text `${`");
    bad("${}", "`` is not the name of an environment variable; write `$${` for the text `${`");
    bad("${A-b}", "`A-b` is not the name of an environment variable; write `$${` for the text `${`");
    bad("${A:-${B}}", "a default has no `{`; references don't nest");
    // What a variable holds is never read as YAML, nor again.
    let text = format!("admin: {{token: ${{A}}}}\n{ROUTE}");
    assert_eq!(read_with(&text, &[("A", "${B}")]).unwrap().admin.token.unwrap().reveal(), "${B}");
    assert_eq!(read_with(&text, &[("A", "")]).unwrap_err().problems()[0].message, "is empty");
    // A key that does not exist asks for no variable.
    assert_eq!(
        mistakes(&format!("admn: {{token: ${{UNSET}}}}\n{ROUTE}")),
        ["1:1: admn: unknown key; did you mean `admin`?"]
    );
}

#[test]
fn secrets_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("secrets")).unwrap();
    fs::write(folder.path().join("secrets/token"), "hush\n").unwrap();
    fs::write(folder.path().join("key"), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\r\n").unwrap();
    fs::write(folder.path().join("header"), "two\nlines\n").unwrap();
    fs::write(folder.path().join("big"), vec![b'a'; (64 << 10) + 1]).unwrap();
    fs::write(folder.path().join("latin"), b"\xfc").unwrap();
    fs::write(folder.path().join("empty"), "\n").unwrap();
    let read = |text: &str| {
        let path = folder.path().join("taskgate.yaml");
        fs::write(&path, text).unwrap();
        load(&path, &|name| (name == "FILE").then(|| "key".to_owned()))
    };
    let good =
        read(&format!("admin: {{token: {{file: secrets/token}}}}\nsecrets: {{key: {{file: ${{FILE}}}}}}\n{ROUTE}"))
            .unwrap();
    assert_eq!(good.admin.token.unwrap().reveal(), "hush");
    assert!(good.secrets.key.is_some());

    let errors = read(&upstream_with(
        "    headers:\n      A: {file: header}\n      B: {file: big}\n      C: {file: latin}\n      D: {file: empty}\n      \
         E: {file: missing}\n      F: {}\n      G: {file: .}\n",
    ))
    .unwrap_err();
    let place = |key: &str| errors.problems().iter().find(|problem| problem.path.contains(key)).unwrap().to_string();
    let name = |file: &str| folder.path().join(file).display().to_string();
    assert_eq!(
        place("headers.A"),
        "7:10: routes[0].upstream.headers.A: a header's value has only visible ASCII characters"
    );
    assert_eq!(
        place("headers.B.file"),
        format!("8:17: routes[0].upstream.headers.B.file: `{}` has more than 64 KiB", name("big"))
    );
    assert!(place("headers.C.file").contains("cannot read"), "{errors}");
    assert_eq!(place("headers.D"), "10:10: routes[0].upstream.headers.D: is empty");
    assert!(place("headers.E.file").contains("cannot open"), "{errors}");
    assert_eq!(place("headers.F"), "12:10: routes[0].upstream.headers.F.file: `file` is missing");
    assert!(place("headers.G.file").contains("cannot read"), "{errors}");
    assert_eq!(errors.problems().len(), 7);
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let warnings = |text: &str| settings(text).warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
    let auth = format!("auth: {{api_keys: [{{sha256: {HASH}, tenant: acme, subject: a}}]}}\n");
    assert_eq!(
        warnings(&format!("{auth}tenants: {{acme: {{}}, amce: {{}}}}\n{ROUTE}")),
        ["2:27: tenants.amce: no caller belongs to this tenant"]
    );
    assert_eq!(
        warnings(&format!("tenants: {{acme: {{}}}}\n{ROUTE}")),
        ["1:17: tenants.acme: no caller belongs to this tenant"]
    );
    assert_eq!(
        warnings(&tasks_with("    tools: [{match: a}, {match: \"**\"}, {match: b}, {match: a}]")),
        [
            "7:48: routes[0].tasks.tools[2].match: never used: an earlier entry matches `**`",
            "7:60: routes[0].tasks.tools[3].match: never used: an earlier entry matches `a`"
        ]
    );
    assert_eq!(
        warnings(&tasks_with("    mode: native\n    defer: never\n    exclusive: true\n")),
        ["8:12: routes[0].tasks.defer: means nothing with `mode: native`: the server makes the tasks"]
    );
    let on_lost =
        "    on_lost: retry_idempotent\n    tools: [{match: a, on_lost: retry_idempotent}, {match: b, on_lost: fail}]";
    let nothing = "on_lost: means nothing with `store.kind: memory`: tasks go with the process";
    assert_eq!(
        warnings(&tasks_with(on_lost)),
        [format!("7:14: routes[0].tasks.{nothing}"), format!("8:33: routes[0].tasks.tools[0].{nothing}")]
    );
    let on_disk = format!("store: {{kind: disk, path: /d}}\n{}", tasks_with(on_lost));
    assert_eq!(warnings(&on_disk), Vec::<String>::new());
    for (sessions, warned) in [("auto", false), ("per_call", false), ("pooled", true), ("pinned", true)] {
        let route = route_with(&format!("  upstream: {{url: http://u/mcp, sessions: {sessions}}}\n"));
        let shared = warnings(&route);
        assert_eq!(shared.len(), usize::from(warned), "{sessions}: {shared:?}");
        assert!(shared.iter().all(|text| text.contains("upstream.sessions: unsafe without `auth`")), "{shared:?}");
        assert_eq!(warnings(&format!("{auth}{route}")), Vec::<String>::new());
    }
}

#[test]
fn aliases_stand_for_values() {
    let text = "routes:\n- {name: a, path: /a, upstream: &u {url: http://u}, tasks: &t {deadline: 2h, tools: []}}\n\
                - {name: b, path: /b, upstream: *u, tasks: *t}\n";
    let routes = settings(text).routes;
    assert_eq!(routes[1].tools, routes[0].tools);
    assert_eq!(routes[1].upstream, routes[0].upstream);
}

#[test]
fn neither_debug_nor_description_shows_a_secret() {
    let text = format!(
        "admin: {{token: hush-1}}\nsecrets: {{key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}}\n{}\
         - {{name: b, path: /b, upstream: {{command: [python, --token=hush-3]}}}}\n",
        route_with("  upstream: {url: http://u/mcp?key=hush-2, headers: {X-A: hush-4}}\n")
    );
    let settings = settings(&text);
    let debug = format!("{settings:?}{settings:#?}");
    let described = describe(&settings);
    for shown in [&debug, &described] {
        assert!(!shown.contains("hush") && !shown.contains("AAEC") && !shown.contains("1, 2, 3"), "{shown}");
    }
    assert!(described.contains("x-a") && described.contains("http://u/mcp?..."), "{described}");
    let token = settings.admin.token.unwrap();
    assert_eq!(format!("{token} {token:?}"), "*** ***");
}

#[test]
fn a_configuration_is_described() {
    let text = format!(
        r#"
listen: {{public_url: https://mcp.example.com, allowed_hosts: [mcp.example.com]}}
auth:
  api_keys:
  - {{sha256: {HASH}, tenant: acme, subject: ci-bot}}
tenants:
  default: {{creates: {{rate: 20/s, burst: 40}}}}
  acme: {{running_tasks: 400}}
  other: {{}}
routes:
- name: reports
  path: /reports/mcp
  upstream: {{url: http://10.0.0.7:9000/mcp, headers: {{X-Api-Key: hush}}}}
  tools: {{deny: [admin_*]}}
  tasks:
    tools:
    - {{match: render_*, support: required, deadline: 6h, ttl: {{default: 12h}}, exclusive: true}}
    - {{match: ping, support: forbidden}}
    - {{match: ask_*, defer: 0s, questions: in_task, on_lost: retry_idempotent}}
    - {{match: quick_*, defer: never, questions: in_call}}
- name: files
  path: /files
  upstream: {{command: [npx, server, /data], era: legacy, sessions: pinned}}
  tools: {{allow: [read_*, list]}}
  tasks: {{mode: native}}
- {{name: new, path: /new, upstream: {{url: "http://u/mcp", era: modern}}}}
"#
    );
    let expected = "\
listen       127.0.0.1:8080, bodies up to 16MiB; clients see https://mcp.example.com/; foreign origins: none; hosts: mcp.example.com
admin        127.0.0.1:9090, open to this machine
callers      by 1 API key, of acme
store        memory: a restart forgets every task
sessions     at most 10000, ended after 30m without use
seal         a random key: a restart ends every session
stop         held calls get 30s to finish
tenants      50 tasks running, 500 queued, 100000 kept with 512MiB of results; creates 20/s (burst 40)
  acme       400 tasks running, 500 queued, 100000 kept with 512MiB of results; creates 20/s (burst 40)
  other      50 tasks running, 500 queued, 100000 kept with 512MiB of results; creates 20/s (burst 40)

route        reports
  clients    https://mcp.example.com/reports/mcp
  upstream   http://10.0.0.7:9000/mcp, with x-api-key
  era        found out; sessions for clients that have none: pooled for each caller
  calls      64 in flight, 1000 more may wait; connections open within 5s
  tools      all, but not admin_*
  tasks      optional, deferred after 500ms; deadline 30m, questions 10m; kept 1h unless asked, 40m to 24h; polls every 1s
    render_* required; deadline 6h, questions 10m; kept 12h unless asked, 370m to 24h; polls every 1s; alone on its session
    ping     forbidden
    ask_*    optional, deferred at once; deadline 30m, questions 10m; kept 1h unless asked, 40m to 24h; polls every 1s; asks in the task; run again when lost, if idempotent
    quick_*  optional, never deferred; deadline 30m, questions 10m; kept 1h unless asked, 40m to 24h; polls every 1s; asks in the call

route        files
  clients    https://mcp.example.com/files
  upstream   the program `npx` with 2 arguments, for each session
  era        2025-11-25 and older; sessions for clients that have none: one for each caller
  calls      64 in flight, 1000 more may wait
  tools      read_*, list
  tasks      the upstream's own, untouched; deadline of a call 30m

route        new
  clients    https://mcp.example.com/new
  upstream   http://u/mcp
  era        2026-07-28 and newer
  calls      64 in flight, 1000 more may wait; connections open within 5s
  tools      all
  tasks      optional, deferred after 500ms; deadline 30m, questions 10m; kept 1h unless asked, 40m to 24h; polls every 1s

warning      9:10: tenants.other: no caller belongs to this tenant
warning      19:62: routes[0].tasks.tools[2].on_lost: means nothing with `store.kind: memory`: tasks go with the process
";
    assert_eq!(describe(&settings(&text)), expected);
}

#[test]
fn a_file_that_cannot_be_read_is_one_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing.yaml");
    let error = load(&path, &|_| None).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot read the file: ", path.display())), "{error}");
    assert!(load(folder.path(), &|_| None).unwrap_err().to_string().contains("cannot read the file"));

    let path = folder.path().join("latin.yaml");
    fs::write(&path, b"listen: {}\n# \xc3\xbc \xfc\n").unwrap();
    let error = load(&path, &|_| None).unwrap_err().to_string();
    assert_eq!(error, format!("{}:2:5: the file is not UTF-8\n1 mistake", path.display()));
    fs::write(&path, b"\xff\xfea\0").unwrap();
    assert!(load(&path, &|_| None).unwrap_err().to_string().contains("latin.yaml:1:1: the file is not UTF-8"));

    fs::write(&path, "# nothing\n").unwrap();
    let error = load(&path, &|_| None).unwrap_err().to_string();
    assert_eq!(error, format!("{}: the file is empty; it needs at least `routes`\n1 mistake", path.display()));
    assert!(parse("", "f", folder.path(), &|_| None).is_err());
}
