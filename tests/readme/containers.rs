//! The container files, without an engine: what they start is there and takes these arguments, and what they mount is good.

use std::collections::BTreeMap;

use serde_json::Value;

use super::programs::{Running, taskgate};
use super::{read, root};

const PROGRAMS: [&str; 2] = ["taskgate", "demo_server"];

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
}

/// A list that a Dockerfile's instruction gives in JSON.
fn instruction(dockerfile: &str, name: &str) -> Vec<String> {
    let line = dockerfile.lines().filter_map(|line| line.strip_prefix(name)).next_back().unwrap();
    serde_json::from_str(line.trim()).unwrap()
}

/// `${NAME:-default}` as an environment without the variable fills it in.
fn filled(text: &str) -> String {
    match text.split_once("${") {
        None => text.to_owned(),
        Some((before, rest)) => {
            let (inside, after) = rest.split_once('}').unwrap();
            let (_, default) = inside.split_once(":-").expect("a variable of the compose file has a default");
            format!("{before}{default}{}", filled(after))
        }
    }
}

#[tokio::test]
async fn the_compose_file_starts_what_is_there() {
    let compose: Value = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    let dockerfile = read("Dockerfile");
    let services = compose["services"].as_object().unwrap();
    for (name, service) in services {
        assert_eq!(service["build"], ".", "{name}");
        for other in texts(&service["depends_on"]) {
            assert!(services.contains_key(other), "{name} depends on {other}");
        }
    }

    // The demo server takes its arguments and serves.
    let demo = &services["demo"];
    assert_eq!((texts(&demo["entrypoint"]), &demo["stop_signal"]), (vec!["demo_server"], &Value::from("SIGINT")));
    let arguments = texts(&demo["command"]);
    let port = arguments.iter().find_map(|word| word.rsplit_once(':')).unwrap().1;
    let arguments: Vec<String> = arguments.iter().map(|word| word.replace(&format!(":{port}"), ":0")).collect();
    let server = Running::server(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;

    // The gateway's configuration is the one that is mounted where its command looks for it.
    let gateway = &services["gateway"];
    assert_eq!(instruction(&dockerfile, "ENTRYPOINT"), ["taskgate"]);
    let command = texts(&gateway["command"]);
    assert_eq!(command[..2], ["serve", "--config"]);
    let mounts: BTreeMap<&str, &str> = texts(&gateway["volumes"])
        .into_iter()
        .map(|mount| mount.strip_prefix("./").unwrap().split_once(':').unwrap())
        .map(|(here, there)| (there.trim_end_matches(":ro"), here))
        .collect();
    let config = mounts[command[2]];
    assert!(root().join(config).is_file());

    // It loads with the environment of the service, and reaches the other one by its name.
    let mut environment: BTreeMap<&str, String> = gateway["environment"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, text)| (&**name, filled(text.as_str().unwrap())))
        .collect();
    assert_eq!(environment["TASKGATE_UPSTREAM"], format!("http://demo:{port}/mcp"));
    let pairs: Vec<(&str, &str)> = environment.iter().map(|(name, text)| (*name, &**text)).collect();
    let ended = taskgate(&["check", "--config", config], &pairs);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    for port in texts(&gateway["ports"]) {
        let inside = port.rsplit(':').next().unwrap();
        assert!(ended.output.contains(&format!("0.0.0.0:{inside}")), "nothing listens on {inside}:\n{}", ended.output);
        assert!(dockerfile.lines().any(|line| line.starts_with("EXPOSE") && line.contains(inside)), "{inside}");
    }

    // And the two work together.
    environment.insert("TASKGATE_UPSTREAM", server.url.replace("0.0.0.0", "127.0.0.1"));
    let pairs: Vec<(&str, &str)> = environment.iter().map(|(name, text)| (*name, &**text)).collect();
    let gateway = Running::gateway(&["--config", config], &pairs).await;
    let call = ["call", &gateway.url, "report", "--task", "--arguments", r#"{"seconds": 0, "sections": 1}"#];
    let ended = taskgate(&call, &[]);
    assert_eq!(ended.code, 0, "{}", ended.errors);
    gateway.stop().await;
    server.stop().await;
}

#[test]
fn the_image_has_both_programs_and_what_they_are_built_from() {
    let dockerfile = read("Dockerfile");
    let manifest = read("Cargo.toml");
    for program in PROGRAMS {
        assert!(dockerfile.contains(&format!("/src/target/release/{program}")), "{program}");
    }
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(dockerfile.contains(&format!("FROM rust:{version}-")), "not built with the Rust that the package asks for");
    let ignored = read(".dockerignore");
    let copied =
        dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--"));
    for copied in copied.flat_map(|line| line.split_whitespace().rev().skip(1)) {
        assert!(root().join(copied).exists(), "{copied} is copied and not there");
        assert!(ignored.lines().any(|line| line == format!("!{copied}")), "{copied} is copied and ignored");
    }
    assert_eq!(instruction(&dockerfile, "CMD")[0], "serve");
}
