//! The example with two replicas on one machine: its files as they stand in the document, on free ports, and one of the two
//! replicas stopped under a call.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::programs::{Running, taskgate};
use super::read;
use super::words::{blocks, lines, split};

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// Ports of the example: the server, Redis, the balancer, and of each replica for clients, operators, the other.
const PORTS: [&str; 9] = ["9000", "6379", "8080", "8081", "8082", "9091", "9092", "7071", "7072"];

/// A program of others, which ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts one; `None` where it is not installed, which is a failure in CI.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn program(name: &str, arguments: &[&str]) -> Option<Program> {
    match Command::new(name).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => Some(Program(child)),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{name} can't be started: {error}");
            eprintln!("skipped: {name} can't be started: {error}");
            None
        }
    }
}

/// Every port of the example in place of a free one.
struct Places(Vec<(&'static str, u16)>);

impl Places {
    fn draw() -> Self {
        let listeners: Vec<TcpListener> = PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let free = listeners.iter().map(|listener| listener.local_addr().unwrap().port());
        Self(PORTS.into_iter().zip(free).collect())
    }

    fn port(&self, told: &str) -> String {
        self.0.iter().find(|(port, _)| *port == told).unwrap().1.to_string()
    }

    fn real(&self, text: &str) -> String {
        PORTS
            .iter()
            .fold(text.to_owned(), |text, told| text.replace(&format!(":{told}"), &format!(":{}", self.port(told))))
    }
}

/// The configuration around the balancer's lines, as a distribution has it, in a folder of its own.
fn balancer(folder: &Path, lines: &str) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary.map(|name| format!("{name}_temp_path {folder}/{name};\n")).concat();
    format!(
        "daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{lines}\n}}\n"
    )
}

/// What a replica counts.
async fn counted(admin: &str, series: &str) -> f64 {
    let Some(answer) = get(admin, "/metrics").await else { return 0.0 };
    answer
        .lines()
        .filter(|line| line.starts_with(series))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

async fn get(address: &str, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_on_one_machine_work_as_the_page_says() {
    let page = read("docs/replicas.md");
    let (_, section) = page.split_once("\n## Two on one machine\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let places = Places::draw();
    let folder = tempfile::tempdir().unwrap();
    let configs = blocks(section, "yaml");
    assert_eq!(configs.len(), 2);
    let commands: Vec<String> = blocks(section, "sh").iter().flat_map(|block| lines(block)).collect();
    let told = |program: &str| -> Vec<Vec<String>> {
        let of = commands.iter().map(|line| split(&places.real(line))).filter(|words| words[0] == program);
        of.map(|words| words[1..].to_vec()).collect()
    };

    // What is behind them,
    let redis = ["--port", &places.port("6379"), "--bind", "127.0.0.1", "--dir", folder.path().to_str().unwrap()];
    assert_eq!(told("redis-server"), [["--appendonly", "yes"]]);
    let Some(_redis) = program("redis-server", &[&redis[..], &["--appendonly", "yes"]].concat()) else { return };
    let server = told("demo_server").remove(0);
    let server = Running::server(&server.iter().map(String::as_str).collect::<Vec<_>>()).await;
    // the two, each as its file says,
    let serving = told("taskgate").into_iter().filter(|words| words[0] == "serve").collect::<Vec<_>>();
    assert_eq!(serving.len(), 2);
    let mut replicas = Vec::new();
    for (words, config) in serving.iter().zip(&configs) {
        let name = words.last().unwrap();
        assert!(config.starts_with(&format!("# {name}\n")), "{config}");
        let path = folder.path().join(name);
        std::fs::write(&path, places.real(config)).unwrap();
        let path = path.to_str().unwrap();
        let checked = taskgate(&["check", "--config", path], &[("TASKGATE_KEY", KEY)]);
        assert_eq!(checked.code, 0, "{}", checked.errors);
        replicas.push(Running::configured(path, &[("TASKGATE_KEY", KEY)]).await);
    }
    // and the balancer before them.
    let lines = balancer(folder.path(), &places.real(&blocks(section, "nginx")[0]));
    let config = folder.path().join("nginx.conf");
    std::fs::write(&config, lines).unwrap();
    let Some(_balancer) = program("nginx", &["-p", folder.path().to_str().unwrap(), "-c", config.to_str().unwrap()])
    else {
        return;
    };
    let gateway = format!("127.0.0.1:{}", places.port("8080"));
    while tokio::net::TcpStream::connect(&gateway).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }

    // A call through both, and one that outlives the replica that it began at.
    let calls: Vec<Vec<String>> = told("taskgate").into_iter().filter(|words| words[0] == "call").collect();
    assert_eq!(calls.len(), 1);
    let quick: Vec<String> = calls[0].iter().map(|word| word.replace("\"seconds\": 20", "\"seconds\": 0.2")).collect();
    let ended = taskgate(&quick, &[]);
    assert_eq!((ended.code, ended.output.contains("4 sections")), (0, true), "{}", ended.errors);
    let admins = ["9091", "9092"].map(|port| format!("127.0.0.1:{}", places.port(port)));
    for admin in &admins {
        assert!(get(admin, "/readyz").await.unwrap().starts_with("HTTP/1.1 200 "));
        assert!(counted(admin, "taskgate_requests_total").await > 0.0, "both have a part in it");
    }
    let slow: Vec<String> = calls[0].iter().map(|word| word.replace("\"seconds\": 20", "\"seconds\": 4")).collect();
    let calling = tokio::task::spawn_blocking(move || taskgate(&slow, &[]));
    let holder = loop {
        let works = "taskgate_tasks{route=\"main\",status=\"working\"}";
        match (counted(&admins[0], works).await, counted(&admins[1], works).await) {
            (held, _) if held > 0.0 => break 0,
            (_, held) if held > 0.0 => break 1,
            _ => assert!(!calling.is_finished(), "the call was over before anybody held it"),
        }
    };
    replicas.remove(holder).stop().await;
    let ended = calling.await.unwrap();
    assert_eq!((ended.code, ended.output.contains("4 sections")), (0, true), "{}", ended.errors);
    for part in replicas.into_iter().chain([server]) {
        part.stop().await;
    }
}
