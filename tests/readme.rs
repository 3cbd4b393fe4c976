//! What the README and the documents beside it say is tried: every command is run, every feature has a test, the container
//! files start what is there, and the pages for operators name what is served.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic that says where"
)]

#[path = "readme/containers.rs"]
mod containers;
#[path = "readme/programs.rs"]
mod programs;
#[path = "readme/replicas.rs"]
mod replicas;
#[path = "readme/words.rs"]
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use programs::{Running, taskgate};
use words::{blocks, split};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The address that the documents use for each part.
const SERVER: &str = "127.0.0.1:9000";
const GATEWAY: &str = "127.0.0.1:8080";

/// What the commands before have started.
#[derive(Default)]
struct Stage {
    server: Option<Running>,
    gateway: Option<Running>,
}

impl Stage {
    /// Runs one command of a document as it stands there, but on free ports, in less time, and without waiting at the end.
    async fn run(&mut self, line: &str) {
        let words = split(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["make", target] => assert!(read("Makefile").contains(&format!("\n{target}:")), "no target `{target}`"),
            ["cargo", "install", "--path", "."] => {}
            ["cargo", "run", "--release", "--", "demo"] => demo(),
            ["docker", "compose", "up"] => assert!(root().join("docker-compose.yml").is_file()),
            ["demo_server", arguments @ ..] => {
                self.server = Some(Running::server(&[arguments, &["--listen", "127.0.0.1:0"]].concat()).await);
            }
            ["taskgate", "serve", arguments @ ..] => self.serve(arguments).await,
            ["taskgate", arguments @ ..] => {
                let arguments: Vec<String> = arguments.iter().map(|word| self.real(word)).collect();
                let ended = taskgate(&arguments, &[]);
                assert_eq!(ended.code, 0, "{line}\n{}", ended.errors);
                assert!(!ended.output.is_empty(), "{line}");
            }
            _ => panic!("the test does not know how to run `{line}`"),
        }
    }

    /// Starts the gateway in the place of the one before, and calls a tool through it.
    async fn serve(&mut self, arguments: &[&str]) {
        if let Some(before) = self.gateway.take() {
            before.stop().await;
        }
        let arguments: Vec<String> = arguments.iter().map(|word| self.real(word)).collect();
        let upstream = self.server.as_ref().map(|server| server.url.clone()).unwrap_or_default();
        let gateway = Running::gateway(&arguments, &[("TASKGATE_UPSTREAM", &upstream)]).await;
        let call = ["call", &gateway.url, "report", "--task", "--arguments", r#"{"seconds": 0, "sections": 2}"#];
        let ended = taskgate(&call, &[]);
        assert_eq!((ended.code, ended.output.contains("2 sections")), (0, true), "{arguments:?}\n{}", ended.errors);
        self.gateway = Some(gateway);
    }

    /// A word with real addresses and short times.
    fn real(&self, word: &str) -> String {
        let address = |running: &Option<Running>| running.as_ref().map(|running| running.address().to_owned());
        let mut word = word.replace("\"seconds\": 20", "\"seconds\": 0.2");
        if let Some(server) = address(&self.server) {
            word = word.replace(SERVER, &server);
        }
        if let Some(gateway) = address(&self.gateway) {
            word = word.replace(GATEWAY, &gateway);
        }
        word
    }
}

/// `taskgate demo`, which ends by itself with `--once`.
fn demo() {
    let ended = taskgate(&["demo", "--once", "--seconds", "0.2"], &[]);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    for shown in ["which has no tasks", "The handle came after", "The result, as the server wrote it", "no task."] {
        assert!(ended.output.contains(shown), "{}", ended.output);
    }
}

#[tokio::test]
async fn every_command_of_the_readme_works() {
    let mut stage = Stage::default();
    let commands: Vec<String> = blocks(&read("README.md"), "sh").iter().flat_map(|block| words::lines(block)).collect();
    assert!(commands.len() >= 10, "{commands:?}");
    for command in &commands {
        stage.run(command).await;
    }
    for part in [stage.gateway, stage.server].into_iter().flatten() {
        part.stop().await;
    }
}

#[test]
fn the_first_two_commands_are_the_two() {
    let first = blocks(&read("README.md"), "sh").remove(0);
    assert_eq!(words::lines(&first), ["cargo run --release -- demo", "make test"]);
}

#[tokio::test]
async fn exit_codes_are_those_of_the_documents() {
    let server = Running::server(&["--listen", "127.0.0.1:0"]).await;
    let gateway = Running::gateway(&["--upstream", &server.url], &[]).await;
    let url = gateway.url.as_str();
    let nobody = "http://127.0.0.1:1/mcp";
    for (arguments, code) in [
        (&["call", url, "echo", "--arguments", r#"{"text":"x"}"#][..], 0),
        (&["call", url, "echo", "--task", "--arguments", r#"{"text":"x"}"#], 0),
        (&["call", url, "fail"], 1),
        (&["call", url, "fail", "--task"], 1),
        (&["call", "nowhere", "echo"], 2),
        (&["call", url, "echo", "--arguments", "[]"], 2),
        (&["call", url, "no_such_tool"], 3),
        (&["call", nobody, "echo"], 3),
        (&["check", "--config", "no-such-file.yaml"], 1),
        (&["check"], 2),
        (&["serve", "--config", "no-such-file.yaml"], 78),
        (&["serve", "--upstream", "nowhere"], 78),
        (&["serve", "--upstream", nobody, "--admin", "0.0.0.0:0"], 78),
        (&["serve", "--", "no_such_program"], 78),
        (&["serve", "--", "./no/such/program"], 78),
        (&["serve", "--", "./README.md"], 78),
        (&["serve"], 2),
        (&["no-such-command"], 2),
    ] {
        let ended = taskgate(arguments, &[]);
        assert_eq!(ended.code, code, "{arguments:?}\n{}", ended.errors);
        // Whoever reads the output reads results, and nothing else.
        let has_result = arguments[0] == "call" && code <= 1;
        assert_eq!(ended.output.is_empty(), !has_result, "{arguments:?}\n{}", ended.output);
    }
    let ended = taskgate(&["call", &format!("{url}/elsewhere"), "echo"], &[]);
    assert!(ended.code == 3 && ended.errors.contains("no MCP endpoint at this path"), "{}", ended.errors);
    // SIGTERM is a clean stop: 0.
    gateway.stop().await;
    server.stop().await;
}

#[test]
fn the_examples_can_be_checked() {
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let needed = [("TASKGATE_ADMIN_TOKEN", "x"), ("TASKGATE_KEY", key), ("TASKGATE_REPORTS_KEY", "y")];
    let ended = taskgate(&["check", "--config", "config/taskgate.yaml"], &needed);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    assert!(ended.output.contains("a restart forgets every task") && !ended.output.contains(key), "{}", ended.output);
    let ended = taskgate(&["check", "--config", "config/taskgate.yaml"], &[]);
    assert_eq!(ended.code, 1);
    for (name, _) in needed {
        assert!(ended.errors.contains(name), "{}", ended.errors);
    }
}

/// Each thing that the README says clients get, and the tests that show it.
const FEATURES: &[(&str, &[&str])] = &[
    ("A handle at once.", &["a_task_works_until_its_call_is_over", "a_task_outlives_the_connection_that_made_it"]),
    (
        "Every operation on it.",
        &[
            "the_capability_is_exactly_what_is_served",
            "without_credentials_there_is_no_list",
            "lists_go_page_by_page_and_miss_nothing",
        ],
    ),
    ("A task without asking.", &["a_slow_call_becomes_a_task_and_a_quick_one_does_not"]),
    ("Any client on any server.", &["every_pairing_of_eras_works"]),
    ("One task in both eras.", &["a_task_of_one_era_is_read_answered_and_cancelled_from_the_other"]),
    ("The result as it was.", &["a_tasks_result_is_the_same_bytes_with_the_task_named"]),
    ("A cancel that arrives.", &["a_cancel_reaches_the_server_and_stays"]),
    (
        "Questions.",
        &[
            "each_kind_of_question_has_its_answer",
            "a_question_comes_at_once_where_a_stream_is_open",
            "without_a_stream_it_waits_for_tasks_result",
        ],
    ),
    ("Progress.", &["the_same_token_in_two_tasks_and_a_call_stays_with_each"]),
    ("Old servers.", &["every_pair_of_versions_works"]),
    ("Old clients.", &["older_sessions_see_the_tools_untouched"]),
    (
        "Callers and tenants.",
        &[
            "only_the_owner_answers_a_task_s_question",
            "the_capability_is_exactly_what_is_served",
            "a_token_is_taken_in_both_eras_and_its_successor_is_the_same_caller",
            "clients_are_told_where_tokens_come_from",
        ],
    ),
    (
        "Credentials of its own.",
        &[
            "the_gateways_own_token_goes_with_every_message",
            "callers_tokens_are_exchanged_each_for_one_of_its_own",
            "what_the_caller_shows_goes_on_as_it_is",
        ],
    ),
    (
        "Authorization per tool.",
        &[
            "legacy_clients_see_and_call_what_the_rules_allow",
            "modern_clients_see_and_call_what_the_rules_allow",
            "scopes_can_be_had_and_are_asked_for_all_at_once",
        ],
    ),
];

#[test]
fn every_feature_of_the_readme_has_its_test() {
    let readme = read("README.md");
    let (_, section) = readme.split_once("\n## What clients get\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let told: Vec<&str> =
        section.lines().filter_map(|line| line.strip_prefix("* **")?.split_once("**")).map(|(name, _)| name).collect();
    let tested: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
    assert_eq!(told, tested, "README.md and FEATURES tell of different things");
    let tests: String = std::fs::read_dir(root().join("tests/it"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(read)
        .collect();
    for test in FEATURES.iter().flat_map(|(_, tests)| *tests) {
        assert!(tests.contains(&format!("async fn {test}(")), "there is no test `{test}` in tests/it");
    }
}

#[test]
fn the_page_for_operators_names_every_metric_and_reason() {
    use taskgate::metrics::Metrics;
    use taskgate::metrics::label::{
        EndReason, Outcome, PassedOn, RejectReason, Reload, StoreOp, TakenUp, TaskStatus, UpstreamOutcome,
    };
    let page = read("docs/operations.md");
    let metrics = Metrics::new(&["r".into()], &["t".into()]);
    // What has labels of its own is served once it has been used.
    metrics.route("r").request().finish(Outcome::Ok);
    metrics.route("r").upstream_request(UpstreamOutcome::Answered);
    metrics.route("r").unchecked_call();
    metrics.route("r").unnamed_request();
    metrics.rejected("t", RejectReason::Params);
    metrics.task_ended(TaskStatus::Completed, EndReason::Returned);
    metrics.route("r").task_taken_over(TakenUp::ALL[0]);
    metrics.store(StoreOp::Get, std::time::Duration::ZERO);
    metrics.set_certificate_expiry("r", 1);
    metrics.certificate_reload(Reload::ALL[0]);
    metrics.passed_on(PassedOn::ALL[0]);
    let exposition = metrics.encode();
    let mut served = BTreeSet::new();
    for line in exposition.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else { continue };
        served.insert(if kind == "counter" && !name.ends_with("_total") {
            format!("{name}_total")
        } else {
            name.to_owned()
        });
    }
    let told: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `taskgate_")?.split_once("` |"))
        .map(|(name, _)| format!("taskgate_{name}"))
        .collect();
    assert_eq!(told, served);
    let words = (EndReason::ALL.iter().map(|value| value.as_str()))
        .chain(RejectReason::ALL.iter().map(|value| value.as_str()))
        .chain(UpstreamOutcome::ALL.iter().map(|value| value.as_str()))
        .chain(Outcome::ALL.iter().map(|value| value.as_str()))
        .chain(PassedOn::ALL.iter().map(|value| value.as_str()));
    for word in words {
        assert!(page.contains(&format!("`{word}`")), "docs/operations.md does not name `{word}`");
    }
}
