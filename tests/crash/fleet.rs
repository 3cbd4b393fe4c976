//! The gateways, as processes that can be killed at any moment and started again.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use taskgate::auth::sha256;
use taskgate::jobs::Jobs;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::client::KEY;
use super::redis::held;
use super::within;

/// What each tenant may have at the same time.
pub(crate) const RUNNING: usize = 8;
pub(crate) const QUEUED: usize = 8;

/// How often other ports are tried when somebody else was faster to take one.
const PORTS: usize = 5;

/// What makes a process's clock go wrong (the package libfaketime), below `/usr/lib/ARCHITECTURE`; and how wrong.
const FAKE_CLOCK: &str = "faketime/libfaketimeMT.so.1";
const AHEAD: &str = "+5s";

/// Where tasks are kept.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// In the process.
    Memory,
    /// In a folder.
    Disk(String),
    /// In a Redis, which each gateway reaches at an address of its own.
    Redis(Vec<SocketAddr>),
}

/// The addresses at which the gateways are, in turn.
#[derive(Debug)]
pub(crate) struct Places {
    all: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Places {
    /// Each by itself.
    pub(crate) fn each(&self) -> Vec<(SocketAddr, Arc<Self>)> {
        let alone = |place: &SocketAddr| Self { all: Mutex::new(vec![*place]), turn: AtomicUsize::new(0) };
        self.all.lock().unwrap().iter().map(|place| (*place, alone(place).into())).collect()
    }

    /// The next one, be it alive or not.
    pub(crate) fn next(&self) -> SocketAddr {
        let all = self.all.lock().unwrap();
        all[self.turn.fetch_add(1, Ordering::Relaxed) % all.len()]
    }
}

/// All gateways of a round.
pub(crate) struct Fleet {
    gateways: Vec<Gateway>,
    kept: Kept,
    upstream: SocketAddr,
    pub(crate) places: Arc<Places>,
}

struct Gateway {
    child: Child,
    log: watch::Receiver<Vec<String>>,
}

impl Fleet {
    pub(crate) async fn start(kept: Kept, upstream: SocketAddr) -> Self {
        let size = if let Kept::Redis(addresses) = &kept { addresses.len() } else { 1 };
        let places = Places { all: Mutex::new(vec![([127, 0, 0, 1], 0).into(); size]), turn: AtomicUsize::new(0) };
        let mut fleet = Self { gateways: Vec::new(), kept, upstream, places: places.into() };
        for number in 0..size {
            let gateway = fleet.launch(number).await;
            fleet.gateways.push(gateway);
        }
        fleet
    }

    pub(crate) fn size(&self) -> usize {
        self.gateways.len()
    }

    /// Kills one as nothing else does: it has no time to write a byte.
    pub(crate) async fn kill(&mut self, number: usize) {
        self.gateways[number].child.kill().await.unwrap();
    }

    /// Starts one again that was killed, as another life of the same replica.
    pub(crate) async fn restart(&mut self, number: usize) {
        self.gateways[number] = self.launch(number).await;
    }

    /// Who holds what, where the store can be asked.
    pub(crate) async fn held(&self) -> String {
        match &self.kept {
            Kept::Redis(addresses) => held(addresses[0]).await,
            Kept::Memory | Kept::Disk(_) => String::new(),
        }
    }

    /// What all of them have logged in their present lives.
    pub(crate) fn logs(&self) -> String {
        let tail = |gateway: &Gateway| {
            let log = gateway.log.borrow();
            log[log.len().saturating_sub(40)..].join("\n")
        };
        self.gateways.iter().map(tail).collect::<Vec<_>>().join("\n---\n")
    }

    fn yaml(&self, number: usize) -> String {
        let (store, replica) = match &self.kept {
            Kept::Memory => ("{kind: memory}".to_owned(), String::new()),
            Kept::Disk(path) => (format!("{{kind: disk, path: \"{path}\"}}"), String::new()),
            Kept::Redis(addresses) => {
                let replica = format!("replica: {{id: r{number}, lease: 1s, address: \"{}\"}}\n", free());
                (format!("{{kind: redis, url: \"redis://{}/0\"}}", addresses[number]), replica)
            }
        };
        let hash: String = sha256(KEY.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut yaml = format!(
            "store: {store}\n{replica}secrets: {{key: \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"}}\n\
             auth: {{api_keys: [{{sha256: \"{hash}\", tenant: acme, subject: crash}}]}}\n\
             tenants: {{acme: {{running_tasks: {RUNNING}, queued_tasks: {QUEUED}}}}}\nroutes:\n"
        );
        for era in ["legacy", "modern"] {
            yaml.push_str(&format!(
                "  - name: {era}\n    path: /{era}\n    upstream: {{url: \"http://{}/{era}\", era: {era}}}\n    \
                 tasks: {{defer: 0s, questions: in_task, deadline: 60s{}}}\n",
                self.upstream,
                if matches!(self.kept, Kept::Memory) {
                    ""
                } else {
                    ", tools: [{match: again, on_lost: retry_idempotent}]"
                },
            ));
        }
        yaml
    }

    /// Every other replica's clock goes wrong, where there is what makes it so; in CI there must be.
    fn clock(&self, number: usize) -> Vec<(&'static str, String)> {
        let is_wrong = matches!(self.kept, Kept::Redis(_)) && number % 2 == 1;
        if !is_wrong {
            return Vec::new();
        }
        let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let library = folders.map(|folder| folder.path().join(FAKE_CLOCK)).find(|library| library.exists());
        assert!(library.is_some() || std::env::var("CI").as_deref() != Ok("true"), "CI needs libfaketime");
        let Some(library) = library else { return Vec::new() };
        vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME", AHEAD.to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    async fn launch(&self, number: usize) -> Gateway {
        for _ in 0..PORTS {
            let (address, admin) = (free(), free());
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), self.yaml(number)).unwrap();
            if let Some(gateway) = Gateway::start(file.path(), address, admin, self.clock(number)).await {
                self.places.all.lock().unwrap()[number] = address;
                return gateway;
            }
        }
        panic!("no port stays free until a gateway listens on it");
    }
}

impl Gateway {
    /// `None` where somebody else has taken one of its ports meanwhile.
    async fn start(
        file: &Path,
        address: SocketAddr,
        admin: SocketAddr,
        clock: Vec<(&'static str, String)>,
    ) -> Option<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_taskgate"))
            .envs(clock)
            .args(["--log-level", "warn,taskgate=info,audit=warn"])
            .args(["serve", "--listen", &address.to_string(), "--admin", &admin.to_string(), "--config"])
            .arg(file)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (heard, mut log) = watch::channel(Vec::new());
        Jobs::default().spawn("log", async move {
            while let Ok(Some(line)) = lines.next_line().await {
                heard.send_modify(|heard: &mut Vec<String>| heard.push(line));
            }
        });
        let serves =
            within("a gateway that serves", log.wait_for(|log| log.iter().any(|line| line.contains("serving"))));
        let is_up = serves.await.is_ok();
        let is_taken = log.borrow().iter().any(|line| line.contains("Address already in use"));
        assert!(is_up || is_taken, "it does not serve: {:#?}", *log.borrow());
        is_up.then_some(Self { child, log })
    }
}

/// An address that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
