//! The rules of the tree that no compiler checks: which module may use which, where a dependency may be named, how long a
//! file may be, what every file and every decision must have. Read by text, so each rule is as simple as it looks.
//!
//! A message says what to do. A rule that stands in the way is changed here, with a decision note that says why.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic that says where"
)]

#[path = "tidy/tree.rs"]
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use tree::{File, Findings, crate_paths, files, names, read, sources};

/// Who may use whom, from the bottom to the top. `crate::` paths outside of tests may name only what stands here.
const MODULES: &[(&str, &[&str])] = &[
    ("jsonrpc", &[]),
    ("sse", &[]),
    ("clock", &[]),
    ("jobs", &[]),
    ("seal", &[]),
    ("hub", &["jobs"]),
    ("threads", &["jobs"]),
    ("waits", &["threads"]),
    ("mcp", &["jsonrpc"]),
    ("metrics", &["mcp"]),
    ("oauth", &["clock", "jobs"]),
    ("tls", &["clock", "jobs", "metrics"]),
    ("tenant", &["clock", "jobs", "metrics"]),
    ("auth", &["clock", "jobs", "metrics", "oauth", "tenant"]),
    ("task", &["jsonrpc", "mcp", "clock", "hub", "jobs", "metrics"]),
    ("replica", &["clock", "hub", "task"]),
    ("upstream", &["jsonrpc", "sse", "mcp", "clock", "jobs", "metrics", "oauth", "threads", "tls"]),
    (
        "gateway",
        &[
            "jsonrpc", "sse", "mcp", "clock", "jobs", "metrics", "oauth", "replica", "seal", "tenant", "task",
            "upstream", "waits",
        ],
    ),
    (
        "downstream",
        &[
            "auth", "jsonrpc", "sse", "mcp", "clock", "jobs", "metrics", "oauth", "seal", "tenant", "threads", "tls",
            "upstream", "gateway", "waits",
        ],
    ),
    ("admin", &["auth", "clock", "jobs", "metrics", "oauth"]),
    ("client", &["jsonrpc", "sse", "mcp", "clock", "jobs", "oauth", "upstream"]),
    ("demo", &["jsonrpc", "sse", "mcp", "clock", "jobs"]),
    ("config", &["auth", "clock", "gateway", "hub", "oauth", "tls", "upstream"]),
    (
        "app",
        &[
            "admin",
            "auth",
            "clock",
            "config",
            "downstream",
            "gateway",
            "hub",
            "jobs",
            "metrics",
            "oauth",
            "replica",
            "seal",
            "task",
            "tenant",
            "threads",
            "tls",
            "upstream",
        ],
    ),
    ("cli", &["app", "client", "config", "demo", "jobs", "jsonrpc", "oauth"]),
    ("main", &["cli"]),
    ("bin", &["demo"]),
    ("lib", &[]),
];

/// What a specification decides is a pure function: these name no runtime, no socket, no file and no clock.
const PURE: &[&str] =
    &["src/jsonrpc", "src/sse", "src/mcp", "src/task/state", "src/task/dialect", "src/gateway/policy"];
const IMPURE: &[&str] = &[
    "async fn",
    "clock::Clock",
    "hyper",
    "Instant",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "SystemTime",
    "tokio",
];

/// Where a dependency may be named. Those that are a language of the whole tree stand in `EVERYWHERE`.
const DOORS: &[(&str, &[&str])] = &[
    ("anyhow", &["src/app", "src/cli"]),
    (
        "base64",
        &[
            "src/auth",
            "src/config/secret.rs",
            "src/demo/server/modern/mirror.rs",
            "src/mcp/mirror.rs",
            "src/oauth",
            "src/seal.rs",
            "src/task/store/redis/keys.rs",
        ],
    ),
    ("cel", &["src/gateway/rules", "src/gateway/rules.rs"]),
    ("clap", &["src/bin", "src/cli", "src/demo/server/options.rs"]),
    ("dashmap", &["src/gateway/deliver", "src/gateway/deliver.rs", "src/gateway/session", "src/task/store/memory.rs"]),
    ("governor", &["src/tenant/quota"]),
    ("granit_parser", &["src/config/tree.rs"]),
    ("humantime", &["src/cli", "src/clock.rs", "src/demo/server/options.rs", "src/tls", "src/upstream/stdio.rs"]),
    ("hyper", &["src/admin.rs", "src/demo", "src/downstream", "src/upstream/http", "src/waits.rs"]),
    ("hyper_rustls", &["src/oauth/fetch.rs", "src/tls.rs", "src/upstream/http.rs"]),
    ("hyper_util", &["src/admin.rs", "src/demo", "src/downstream", "src/oauth/fetch.rs", "src/upstream/http"]),
    ("ipnet", &["src/config", "src/downstream/forwarded.rs"]),
    ("indicatif", &["src/cli/screen.rs"]),
    ("process_wrap", &["src/upstream/stdio/process.rs"]),
    ("prometheus_client", &["src/metrics"]),
    ("redb", &["src/task/store/disk", "src/task/store/disk.rs"]),
    ("redis", &["src/hub", "src/replica/redis.rs", "src/task/store/redis"]),
    (
        "ring",
        &[
            "src/auth",
            "src/oauth",
            "src/demo/server/modern/state.rs",
            "src/seal.rs",
            "src/task/store/disk",
            "src/task/store/redis/keys.rs",
            "src/tenant.rs",
            "src/tls.rs",
        ],
    ),
    ("rustix", &["src/app.rs", "src/cli/serve.rs", "src/task/store/disk"]),
    ("schemars", &["src/config"]),
    ("strsim", &["src/config"]),
    ("tikv_jemallocator", &["src/main.rs"]),
    ("tokio_rustls", &["src/tls.rs"]),
    ("tower_service", &["src/upstream/http/pool.rs"]),
    ("tracing_subscriber", &["src/cli.rs"]),
    (
        "uuid",
        &[
            "src/demo",
            "src/gateway.rs",
            "src/gateway/bridge/talk.rs",
            "src/gateway/session.rs",
            "src/task.rs",
            "src/upstream/stdio.rs",
        ],
    ),
];
const EVERYWHERE: &[&str] = &[
    "async_trait",
    "bytes",
    "futures_util",
    "http",
    "http_body",
    "http_body_util",
    "memchr",
    "serde",
    "serde_json",
    "thiserror",
    "tokio",
    "tokio_util",
    "tracing",
];

/// Lines of a file without its tests; of a file of tests.
const LONGEST: usize = 600;
const LONGEST_TESTS: usize = 800;
/// Lines of tests at the bottom of a file; more go into a file of their own.
const LONGEST_BOTTOM: usize = 150;
/// Lines of a file's header.
const LONGEST_HEADER: usize = 16;

#[test]
fn modules_look_down_only() {
    let mut findings = Findings::default();
    let allowed: BTreeMap<&str, &[&str]> = MODULES.iter().copied().collect();
    for file in sources().iter().filter(|file| !file.is_test) {
        let module = file.module();
        let Some(allowed) = allowed.get(module) else {
            findings.add(&file.path, &format!("`{module}` has no line in MODULES; give it its place"));
            continue;
        };
        for used in crate_paths(&file.code) {
            if used != module && !allowed.contains(&used.as_str()) && used.chars().all(|c| !c.is_uppercase()) {
                findings.add(
                    &file.path,
                    &format!(
                        "`{module}` must not use `crate::{used}`: hand it in from above, or move what both need down"
                    ),
                );
            }
        }
        if file.code.contains(&"super::".repeat(file.depth())) {
            findings.add(&file.path, "`super::` up to the crate's root: write `crate::`, so that it can be checked");
        }
    }
    findings.none();
}

#[test]
fn pure_modules_are_pure() {
    let mut findings = Findings::default();
    for file in sources().iter().filter(|file| !file.is_test && file.is_in(PURE)) {
        for word in IMPURE.iter().filter(|word| names(&file.code, word)) {
            findings.add(&file.path, &format!("names `{word}`: take what it needs as an argument"));
        }
    }
    findings.none();
}

#[test]
fn each_dependency_has_its_door_and_its_reason() {
    let mut findings = Findings::default();
    let dependencies = dependencies("[dependencies]");
    let doors: BTreeMap<&str, &[&str]> = DOORS.iter().copied().collect();
    let files = sources();
    for dependency in &dependencies {
        let name = dependency.replace('-', "_");
        let users: Vec<&File> = files.iter().filter(|file| !file.is_test && file.uses_crate(&name)).collect();
        if users.is_empty() {
            findings.add("Cargo.toml", &format!("nothing uses `{dependency}`: remove it"));
        }
        if EVERYWHERE.contains(&name.as_str()) {
            continue;
        }
        let Some(doors) = doors.get(name.as_str()) else {
            findings.add("tests/tidy.rs", &format!("`{dependency}` is in neither DOORS nor EVERYWHERE"));
            continue;
        };
        for file in users.iter().filter(|file| !file.is_in(doors)) {
            findings.add(&file.path, &format!("must not name `{name}`; its doors are {doors:?}"));
        }
        for door in doors.iter().filter(|door| !users.iter().any(|file| file.is_in(&[door]))) {
            findings.add("tests/tidy.rs", &format!("{door} does not use `{name}`: shut the door"));
        }
    }
    let known = dependencies.iter().map(|dependency| dependency.replace('-', "_")).collect::<BTreeSet<_>>();
    for gone in DOORS.iter().map(|(name, _)| name).chain(EVERYWHERE).filter(|name| !known.contains(**name)) {
        findings.add("tests/tidy.rs", &format!("`{gone}` is no dependency any more"));
    }
    let note = read("docs/decisions/0002-dependencies.md");
    let told: BTreeSet<&str> =
        note.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).map(|(name, _)| name).collect();
    let all: BTreeSet<String> = dependencies.into_iter().chain(self::dependencies("[dev-dependencies]")).collect();
    for missing in all.iter().filter(|name| !told.contains(name.as_str())) {
        findings.add("docs/decisions/0002-dependencies.md", &format!("say why it is `{missing}` and not another"));
    }
    for gone in told.iter().filter(|name| !all.contains(**name)) {
        findings.add("docs/decisions/0002-dependencies.md", &format!("`{gone}` is no dependency any more"));
    }
    findings.none();
}

/// The names in a section of Cargo.toml.
fn dependencies(section: &str) -> Vec<String> {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once(section).expect("Cargo.toml has the section");
    let lines = rest.lines().skip(1).take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| Some(line.split_once(" = ")?.0.trim().to_owned())).collect()
}

#[test]
fn files_are_short_and_begin_with_what_they_are_for() {
    let mut findings = Findings::default();
    for file in sources() {
        let limit = if file.is_test { LONGEST_TESTS } else { LONGEST };
        let (lines, bottom) = (file.own.lines().count(), file.text.lines().count() - file.own.lines().count());
        if lines > limit {
            findings.add(&file.path, &format!("{lines} lines; at most {limit}: split it by what it does"));
        }
        if bottom > LONGEST_BOTTOM {
            findings.add(&file.path, &format!("{bottom} lines of tests at its bottom: move them to a file beside it"));
        }
        let header = file.text.lines().take_while(|line| line.starts_with("//!")).count();
        if !(1..=LONGEST_HEADER).contains(&header) && file.path != "src/lib.rs" {
            findings.add(
                &file.path,
                &format!("a header of {header} lines; say in 1 to {LONGEST_HEADER} lines of `//!` what it is for"),
            );
        }
        if file.path.ends_with("/mod.rs") {
            findings.add(&file.path, "a module is `name.rs` beside the folder `name`");
        }
    }
    findings.none();
}

#[test]
fn nothing_is_unfinished_and_nothing_names_a_machine() {
    // In two parts, so that this file holds none of them and is looked at like all others.
    let words: &[(&str, &str)] = &[
        (concat!("to", "do!"), "finish it"),
        (concat!("unimple", "mented!"), "finish it"),
        (concat!("#[ig", "nore"), "a test that does not run tests nothing"),
        (concat!("FIX", "ME"), "fix it, or write an issue"),
        (concat!("XX", "X"), "fix it, or write an issue"),
        (concat!("/ho", "me/"), "a path of somebody's machine"),
    ];
    let mut findings = Findings::default();
    for file in &files() {
        for (word, why) in words.iter().filter(|(word, _)| file.text.contains(word)) {
            findings.add(&file.path, &format!("`{word}`: {why}"));
        }
    }
    findings.none();
}

#[test]
fn the_crate_doc_is_the_map_of_the_tree() {
    let mut findings = Findings::default();
    let library = read("src/lib.rs");
    for module in library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')) {
        for (document, entry) in
            [("src/lib.rs", format!("//! | [`{module}`] |")), ("ARCHITECTURE.md", format!("| `{module}` |"))]
        {
            if !read(document).contains(&entry) {
                findings.add(document, &format!("`{module}` has no line that begins with `{entry}`"));
            }
        }
    }
    findings.none();
}

#[test]
fn decisions_are_numbered_linked_and_whole() {
    let mut findings = Findings::default();
    let index = read("docs/decisions/README.md");
    let notes: Vec<File> = files().into_iter().filter(|file| file.path.starts_with("docs/decisions/0")).collect();
    for (number, note) in (1..).zip(&notes) {
        let name = note.path.rsplit('/').next().unwrap_or_default();
        if !name.starts_with(&format!("{number:04}-")) {
            findings.add(&note.path, &format!("the next number is {number:04}"));
        }
        if !index.contains(&format!("]({name})")) {
            findings.add("docs/decisions/README.md", &format!("does not link {name}"));
        }
        for section in ["\n## Context\n", "\n## Choice\n", "\n## Cost\n"] {
            if !note.text.contains(section) {
                findings.add(&note.path, &format!("has no section `{}`", section.trim()));
            }
        }
        if note.text.lines().count() > 80 {
            findings.add(&note.path, "longer than a page: 80 lines");
        }
    }
    let links = index.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: Vec<&str> = links.filter(|link| link.starts_with('0')).collect();
    let names: Vec<&str> = notes.iter().filter_map(|note| note.path.rsplit('/').next()).collect();
    if listed != names {
        findings.add("docs/decisions/README.md", "does not list each note once, in the order of their numbers");
    }
    assert!(!notes.is_empty());
    findings.none();
}

/// Two branches that both add a line to a table leave it there twice.
#[test]
fn each_file_of_the_gateway_is_once_in_its_table() {
    let mut findings = Findings::default();
    let text = read("ARCHITECTURE.md");
    let (_, table) = text.split_once("Inside `gateway`").expect("no table of the gateway's files");
    let (table, _) = table.split_once("Inside `auth`").expect("no end of that table");
    let cells: Vec<&str> = table.lines().filter_map(|line| line.split('|').nth(1)).collect();
    for file in files().iter().filter(|file| file.path.starts_with("src/gateway/")) {
        let name = &file.path["src/gateway/".len()..];
        let times: usize = cells.iter().map(|cell| cell.matches(&format!("`{name}`")).count()).sum();
        if !name.contains('/') && times != 1 {
            findings.add("ARCHITECTURE.md", &format!("names {} {times} times in its table", file.path));
        }
    }
    assert!(cells.len() > 10, "{}", cells.len());
    findings.none();
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Findings::default();
    for file in files().iter().filter(|file| file.path.ends_with(".md")) {
        for link in file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let is_local = !target.is_empty() && !target.contains("://") && !target.contains(' ');
            if is_local && !file.beside(target).exists() {
                findings.add(&file.path, &format!("links to {target}, which is not there"));
            }
        }
    }
    findings.none();
}

/// A threat whose test has gone is not held any more.
#[test]
fn the_tests_that_hold_threats_are_there() {
    let mut findings = Findings::default();
    let model = read("docs/threat-model.md");
    let named = model.split('`').filter_map(|quoted| quoted.split_once(".rs::")).collect::<Vec<_>>();
    for (file, test) in &named {
        let path = format!("{file}.rs");
        let found = files().into_iter().find(|found| found.path == path);
        if !found.is_some_and(|found| found.text.contains(&format!("fn {test}("))) {
            findings.add("docs/threat-model.md", &format!("there is no test `{test}` in {path}"));
        }
    }
    assert!(named.len() > 30, "{}", named.len());
    findings.none();
}

#[test]
fn the_lock_file_is_what_deny_allows() {
    let mut findings = Findings::default();
    let deny = read("deny.toml");
    let quoted = |section: &str, key: &str| -> Vec<String> {
        let (_, rest) = deny.split_once(&format!("\n{section} = [")).expect("deny.toml has the list");
        let list = rest.split("\n]").next().unwrap_or_default();
        list.split(key).skip(1).filter_map(|rest| rest.split('"').nth(1)).map(str::to_owned).collect()
    };
    let (banned, skipped) = (quoted("deny", "crate ="), quoted("skip", "crate ="));
    let lock = read("Cargo.lock");
    let field = |package: &str, name: &str| -> Option<String> {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let (name, version) = (field(package, "name").unwrap(), field(package, "version").unwrap());
        if banned.contains(&name) {
            findings.add("Cargo.lock", &format!("`{name}` is banned in deny.toml"));
        }
        if field(package, "source")
            .is_some_and(|source| source != "registry+https://github.com/rust-lang/crates.io-index")
        {
            findings.add("Cargo.lock", &format!("`{name}` is not from crates.io"));
        }
        versions.entry(name).or_default().push(version);
    }
    for (name, versions) in &versions {
        let kept = versions.iter().filter(|version| !skipped.contains(&format!("{name}@{version}"))).count();
        if kept > 1 {
            findings.add(
                "Cargo.lock",
                &format!("`{name}` is there as {versions:?}: make it one, or say in deny.toml why not"),
            );
        }
    }
    for skip in &skipped {
        let (name, version) = skip.split_once('@').expect("a skip names a version");
        if versions.get(name).is_none_or(|all| all.len() < 2 || !all.iter().any(|one| one == version)) {
            findings.add("deny.toml", &format!("`{skip}` is no duplicate any more"));
        }
    }
    assert!(banned.len() > 3 && versions.len() > 100);
    findings.none();
}
