//! One upstream with one proxy before it, both fresh: a process that had a lucky start has it for one round only.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::json;
use taskgate::clock::Clock;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::child::{self, Child, End};
use crate::keys::Key;
use crate::plan::{Action, Era, Figure, Plan, Sample};
use crate::process::Tree;
use crate::{nginx, redis};

const READY_POLLS: u32 = 500;

/// What stands between the load and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Target {
    Direct,
    Floor,
    Nginx,
    Taskgate,
    /// The same, which takes signed tokens alone.
    TaskgateJwt,
    /// taskgate with rules for its tools.
    Ruled,
    /// taskgate with its tasks on disk.
    TaskgateDisk,
    /// taskgate with a disk that is full of tasks of earlier lives.
    TaskgateFull,
    /// taskgate with its tasks in Redis.
    TaskgateRedis,
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Direct => "direct",
            Self::Floor => "floor",
            Self::Nginx => "nginx",
            Self::Taskgate
            | Self::TaskgateJwt
            | Self::Ruled
            | Self::TaskgateDisk
            | Self::TaskgateFull
            | Self::TaskgateRedis => "taskgate",
        })
    }
}

/// How the proxies are set up for a case.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    /// taskgate with limits beyond the load, instead of its defaults.
    pub(crate) raised: bool,
    /// nginx passes on what it has at once, as event streams need.
    pub(crate) streaming: bool,
    /// Clients of taskgate have to say who they are.
    pub(crate) keyed: bool,
    /// taskgate has rules for its tools.
    pub(crate) ruled: bool,
    /// Two tenants, of which one may ask for little. Goes with `keyed`.
    pub(crate) shared: bool,
    /// So many tasks are on a full disk when taskgate starts.
    pub(crate) kept: usize,
    /// With two, there is another one that shares its Redis.
    pub(crate) replicas: usize,
    /// What the clients speak.
    pub(crate) clients: Era,
    /// What the upstream speaks.
    pub(crate) upstream: Era,
}

/// The key of all clients, where they have to say who they are.
const KEY: &str = "bench-key";
const KEYS: &str = "auth:
  api_keys:
    - sha256: b0962662e937d44c699c8305d90cbf190b3150c59b13863d1380b5cc3c711bb7
      subject: bench
";
/// What each replica has.
pub(crate) const LEASE_SECONDS: f64 = 1.0;
/// What replicas share; no secret here.
const SEAL_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The key of the tenant that may ask for little, and how many requests a second it may send.
pub(crate) const NOISY_KEY: &str = "noisy-key";
const NOISY_SHA256: &str = "74fe201963018d00550fa41ac5cdc12fada5e665a9de133d46990cbfe355a18e";
pub(crate) const NOISY_RATE: u32 = 100;

/// The processes of one run.
pub(crate) struct Stand {
    // The proxies end before what is behind them, and all before the folder of their logs.
    proxy: Option<Child>,
    other: Option<(Child, SocketAddr)>,
    redis: Option<Child>,
    _upstream: Child,
    address: SocketAddr,
    /// How long the proxy took until it took connections.
    start: Duration,
    upstream_address: SocketAddr,
    dir: TempDir,
    /// What all clients show, where they have to say who they are.
    credential: Option<String>,
}

impl Stand {
    pub(crate) async fn start(target: Target, setup: Setup, taskgate: &Path) -> Result<Self> {
        let dir = TempDir::new()?;
        let (upstream, upstream_address) = Child::role(&["upstream".to_owned(), era_name(setup.upstream)]).await?;
        let upstream_address: SocketAddr = upstream_address.parse().context("the upstream's address")?;
        let credential = setup.keyed.then(|| KEY.to_owned());
        let mut stand = Self {
            proxy: None,
            other: None,
            redis: None,
            _upstream: upstream,
            address: upstream_address,
            start: Duration::ZERO,
            upstream_address,
            dir,
            credential,
        };
        match target {
            Target::Direct => {}
            Target::Floor => {
                let (floor, address) = Child::role(&["floor".to_owned(), upstream_address.to_string()]).await?;
                stand.address = address.parse().context("the floor's address")?;
                stand.proxy = Some(floor);
            }
            Target::Nginx => stand.start_nginx(setup).await?,
            Target::Taskgate => stand.start_taskgate(setup, taskgate).await?,
            Target::TaskgateDisk => stand.start_on_disk(Setup { kept: 0, ..setup }, taskgate).await?,
            Target::TaskgateFull => stand.start_on_disk(setup, taskgate).await?,
            Target::TaskgateRedis => stand.start_on_redis(setup, taskgate).await?,
            Target::TaskgateJwt => stand.start_with_tokens(setup, taskgate).await?,
            Target::Ruled => stand.start_taskgate(Setup { ruled: true, ..setup }, taskgate).await?,
        }
        Ok(stand)
    }

    async fn start_nginx(&mut self, setup: Setup) -> Result<()> {
        self.address = free_address()?;
        let workers = std::thread::available_parallelism()?.get();
        let setup = nginx::Setup {
            listen: self.address,
            upstream: self.upstream_address,
            buffering: !setup.streaming,
            workers,
        };
        let path = self.dir.path().join("nginx.conf");
        std::fs::write(&path, nginx::config(setup, self.dir.path()))?;
        let error_log = self.dir.path().join("nginx.error.log");
        let arguments = ["-e".to_owned(), text(&error_log), "-c".to_owned(), text(&path)];
        self.start_proxy("nginx", Path::new("nginx"), &arguments, End::Ask).await
    }

    /// The token is as long as those that are in use: an RSA signature, and a few claims.
    async fn start_with_tokens(&mut self, setup: Setup, program: &Path) -> Result<()> {
        self.address = free_address()?;
        let key = Key::new("bench", "RS256");
        let keys = self.dir.path().join("keys.json");
        std::fs::write(&keys, json!({"keys": [key.jwk()]}).to_string())?;
        let now = Clock::system().now().as_millis() / 1000;
        let claims = json!({
            "iss": "bench", "sub": "0d5e7a9c-64f1-4a4b-9c53-4c1b1c1de1f0", "client_id": "bench-client",
            "aud": format!("http://{}/mcp", self.address), "iat": now, "exp": now + 24 * 3600,
            "jti": "6f1c2a54-9d2b-4a7e-8f0a-0a4d6d0b7a55", "scope": "mcp read write", "org": "acme",
        });
        self.credential = Some(key.sign(&key.header(), &claims));
        let auth = format!("auth:\n  jwt:\n    - issuer: bench\n      jwks_file: {}\n", keys.display());
        self.start_configured(setup, program, &auth, "").await
    }

    async fn start_taskgate(&mut self, setup: Setup, program: &Path) -> Result<()> {
        self.address = free_address()?;
        self.start_configured(setup, program, keys(setup), "").await
    }

    /// With tasks of earlier lives on its disk, where the case wants some.
    async fn start_on_disk(&mut self, setup: Setup, program: &Path) -> Result<()> {
        self.address = free_address()?;
        let folder = self.dir.path().join("store");
        if setup.kept > 0 {
            let mut fill = Command::new(std::env::current_exe()?);
            fill.arg("fill").arg(&folder).arg(setup.kept.to_string()).kill_on_drop(true);
            let filled = fill.status().await.context("a disk can't be filled")?;
            ensure!(filled.success(), "a disk could not be filled");
        }
        let store = format!("store:\n  kind: disk\n  path: {}\n", folder.display());
        self.start_configured(setup, program, keys(setup), &store).await
    }

    async fn start_on_redis(&mut self, setup: Setup, program: &Path) -> Result<()> {
        let redis = free_address()?;
        let log = self.log("redis");
        let arguments = redis::arguments(redis, self.dir.path());
        let child =
            self.redis.insert(Child::start("redis-server", Path::new("redis-server"), &arguments, &log, End::Ask)?);
        takes_connections("redis-server", child, redis, &log).await?;
        let store = || {
            let replica = free_address()?;
            Ok::<_, anyhow::Error>(format!(
                "store: {{kind: redis, url: \"redis://{redis}/0\"}}
replica: {{lease: {LEASE_SECONDS}s, address: \"{replica}\"}}
secrets: {{key: {SEAL_KEY}}}
"
            ))
        };
        self.address = free_address()?;
        self.start_configured(setup, program, keys(setup), &store()?).await?;
        if setup.replicas > 1 {
            let first = (self.proxy.take(), self.address);
            self.address = free_address()?;
            self.start_configured(setup, program, keys(setup), &store()?).await?;
            self.other = self.proxy.take().zip(Some(self.address));
            (self.proxy, self.address) = first;
        }
        Ok(())
    }

    async fn start_configured(&mut self, setup: Setup, program: &Path, auth: &str, store: &str) -> Result<()> {
        let admin = free_address()?;
        let mut arguments = vec!["serve".to_owned()];
        if setup.raised || setup.ruled || !auth.is_empty() || !store.is_empty() {
            let path = self.dir.path().join(format!("taskgate-{}.yaml", self.address.port()));
            let config = config(setup, auth, [self.address, admin, self.upstream_address]);
            std::fs::write(&path, [store, &config].concat())?;
            arguments.extend(["--config".to_owned(), text(&path)]);
        } else {
            let upstream = format!("http://{}/mcp", self.upstream_address);
            arguments.extend(["--upstream".to_owned(), upstream]);
            arguments.extend(["--listen".to_owned(), self.address.to_string()]);
            arguments.extend(["--admin".to_owned(), admin.to_string()]);
        }
        arguments.extend(["--log-level".to_owned(), "warn".to_owned()]);
        self.start_proxy("taskgate", program, &arguments, End::Kill).await
    }

    async fn start_proxy(&mut self, name: &str, program: &Path, arguments: &[String], end: End) -> Result<()> {
        let log = self.log(name);
        let begun = Instant::now();
        let child = self.proxy.insert(Child::start(name, program, arguments, &log, end)?);
        takes_connections(name, child, self.address, &log).await?;
        self.start = begun.elapsed();
        Ok(())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    /// Has a load generator carry out an errand against this stand.
    pub(crate) async fn load(&mut self, target: Target, mut plan: Plan) -> Result<Sample> {
        plan.proxy = self.address;
        plan.key.clone_from(&self.credential);
        plan.other = self.other.as_ref().map(|(_, address)| *address);
        plan.upstream = self.upstream_address;
        plan.watch = self.proxy.as_ref().map(Child::pid).transpose()?;
        let output = Command::new(std::env::current_exe()?)
            .args(["load", &serde_json::to_string(&plan)?])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output();
        let patience = plan.patience() * 4;
        let output = timeout(patience, output).await.context("the load generator does not end")??;
        if let Some(proxy) = self.proxy.as_mut().filter(|_| !matches!(plan.action, Action::Takeover { .. })) {
            let log = self.dir.path().join(format!("{target}.log"));
            proxy.still_runs(&log)?;
        }
        if !output.status.success() {
            let log = child::tail(&self.log(&target.to_string()));
            bail!("{} {log}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let mut sample: Sample = serde_json::from_slice(&output.stdout).context("the load generator's figures")?;
        if target == Target::TaskgateFull {
            let proxy = self.proxy.as_ref().context("no process to look at")?.pid()?;
            sample.insert(Figure::Start, self.start.as_secs_f64() * 1e3);
            sample.insert(Figure::Bytes, Tree::of(proxy)?.resident()?);
        }
        Ok(sample)
    }
}

/// What says who callers are, where they have to.
fn keys(setup: Setup) -> &'static str {
    if setup.keyed { KEYS } else { "" }
}

async fn takes_connections(name: &str, child: &mut Child, address: SocketAddr, log: &Path) -> Result<()> {
    for _ in 0..READY_POLLS {
        child.still_runs(log)?;
        if TcpStream::connect(address).await.is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("{name} does not listen on {address}: {}", child::tail(log))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// An address that nobody listens on; it could be taken before it is used, and then the run fails and says so.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

fn era_name(era: Era) -> String {
    era.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The configuration of a taskgate that needs one. Raised limits are such that no case reaches them: what is measured is
/// work and not a queue.
fn config(setup: Setup, auth: &str, [listen, admin, upstream]: [SocketAddr; 3]) -> String {
    let noisy = format!(
        "    - sha256: {NOISY_SHA256}
      tenant: noisy
      subject: noise
tenants:
  noisy:
    requests: {{rate: {NOISY_RATE}/s}}
    creates: {{rate: 20/s}}
"
    );
    let limits = "tenants:
  default:
    running_tasks: 20000
    queued_tasks: 20000
    kept_tasks: 2000000
    kept_bytes: 4096MiB
";
    let queue = "      max_in_flight: 20000
      queue: 20000
";
    // One that does not fit, one that looks at the caller, and one that reads the arguments.
    let rules = "    authorize:
      - {match: 'admin_*', allow: \"claims.role == 'admin'\", scopes: ['mcp:admin']}
      - {allow: \"principal.subject == 'bench' || claims.role == 'admin'\"}
      - {allow: \"tool != 'drop' && !has(arguments.force)\"}
";
    let only = |is_wanted: bool, text: &str| if is_wanted { text.to_owned() } else { String::new() };
    [
        format!("listen:\n  address: {listen}\nadmin:\n  address: {admin}\n"),
        auth.to_owned(),
        only(setup.shared, &noisy),
        only(setup.raised, limits),
        format!("routes:\n  - name: bench\n    path: /mcp\n    upstream:\n      url: http://{upstream}/mcp\n"),
        only(setup.raised, queue),
        only(setup.ruled, rules),
    ]
    .concat()
}
