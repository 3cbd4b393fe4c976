//! A cluster of three nodes, for the whole test process.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Nodes hear each other on a port so much higher.
const BUS: u16 = 10_000;

/// Some of its nodes; `None` where there are no programs for it, which is a failure in CI.
pub(crate) fn shared_url() -> Option<String> {
    static SHARED: OnceLock<Option<[u16; 3]>> = OnceLock::new();
    let [first, second, _] = SHARED.get_or_init(start).as_ref()?;
    Some(format!("redis-cluster://127.0.0.1:{first},127.0.0.1:{second}"))
}

fn start() -> Option<[u16; 3]> {
    for program in ["redis-server", "redis-cli"] {
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("CI").is_none(), "{program} is not installed");
            eprintln!("skipped: {program} is not installed");
            return None;
        }
    }
    let ports = free_ports();
    for port in ports {
        run_node(port);
    }
    let is_up = |port: &u16| cli(*port, &["ping"]).is_some_and(|said| said.contains("PONG"));
    until(|| ports.iter().all(is_up));
    let nodes = ports.map(|port| format!("127.0.0.1:{port}"));
    let [first, second, third] = &nodes;
    let made = cli(ports[0], &["--cluster", "create", first, second, third, "--cluster-yes"]);
    assert!(made.is_some(), "the cluster can't be made");
    let is_ready = |port: &u16| cli(*port, &["cluster", "info"]).is_some_and(|info| info.contains("cluster_state:ok"));
    until(|| ports.iter().all(is_ready));
    Some(ports)
}

/// A node that ends when this process has.
#[expect(clippy::zombie_processes, reason = "it outlives the process by a moment, so that nobody can wait for it")]
fn run_node(port: u16) {
    let script = format!(
        "folder=$(mktemp -d); redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no --cluster-enabled yes \
         --dir $folder >/dev/null 2>&1 & server=$!; cat >/dev/null; kill $server; rm -rf $folder"
    );
    let mut child = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    // Held open until the process ends.
    std::mem::forget(child.stdin.take());
}

fn cli(port: u16, arguments: &[&str]) -> Option<String> {
    let done = Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output().unwrap();
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The ports for the bus are above those that systems give out by themselves, so that few others want them.
fn free_ports() -> [u16; 3] {
    let is_free = |port: &u16| [*port, *port + BUS].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let first = 20_000 + u16::try_from(std::process::id() % 2_000).unwrap();
    let mut free = (first..first + 2_000).filter(is_free);
    std::array::from_fn(|_| free.next().unwrap())
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        wait_a_moment();
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing asynchronous runs here: it is the start of a program")]
pub(super) fn wait_a_moment() {
    std::thread::sleep(Duration::from_millis(50));
}
