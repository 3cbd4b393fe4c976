//! A gateway in this process, in front of a server in this process.

use std::net::SocketAddr;
use std::path::Path;

use taskgate::app::{App, Timing};
use taskgate::auth::sha256;
use taskgate::config::{self, Settings};
use taskgate::demo::server::{Options, Server, Stats};
use taskgate::replica::Replicas;
use taskgate::seal::{Purpose, Sealer};
use taskgate::task::{Store as _, Usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::replicas::{Balancer, Common, Replica};
use super::{Client, Exposition, Opening, json, within};

/// What is to be started. Each method takes the inside of a YAML flow mapping, as in `max_body: 1KiB, ...`.
pub(crate) struct Setup {
    options: Options,
    in_front_of: Option<String>,
    listen: String,
    admin: String,
    top: String,
    upstream: String,
    tools: String,
    authorize: String,
    tasks: String,
    callers: Vec<(String, String)>,
    auth: String,
    tenants: String,
    has_second_route: bool,
    command: Option<String>,
    timing: Timing,
    replicas: usize,
    lease: String,
    has_no_internal_address: bool,
}

/// The key of gateways that share a store.
const SHARED_KEY: &[u8; 32] = b"0123456789abcdef0123456789abcdef";

/// The number of a client's session, as its id says to whoever has the key.
fn number_of(client: &Client) -> u128 {
    let sealer = Sealer::new(*SHARED_KEY, []);
    let plain = sealer.open(Purpose::Session, client.session.as_deref().unwrap()).expect("it is ours");
    u128::from_be_bytes(*plain[1..].first_chunk().unwrap())
}

/// How many gateways there are behind the address of each, where a test does not say; the suite of tests can be run over
/// several.
fn usual_replicas() -> usize {
    std::env::var("TASKGATE_TEST_REPLICAS").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The API key of a caller.
pub(super) fn key_of(subject: &str) -> String {
    format!("key-of-{subject}")
}

impl Setup {
    /// How the server behind it behaves.
    pub(crate) fn server(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Puts another server behind it; the fixture runs all the same.
    pub(crate) fn in_front_of(self, url: &str) -> Self {
        Self { in_front_of: Some(url.to_owned()), ..self }
    }

    /// `listen`
    pub(crate) fn listen(self, keys: &str) -> Self {
        Self { listen: format!(", {keys}"), ..self }
    }

    /// `admin`
    pub(crate) fn admin(self, keys: &str) -> Self {
        Self { admin: format!(", {keys}"), ..self }
    }

    /// Whole sections, one a line.
    pub(crate) fn sections(self, sections: &str) -> Self {
        Self { top: sections.to_owned(), ..self }
    }

    /// The route's `upstream`
    pub(crate) fn upstream(self, keys: &str) -> Self {
        Self { upstream: format!(", {keys}"), ..self }
    }

    /// The route's `tools`
    pub(crate) fn tools(self, keys: &str) -> Self {
        Self { tools: keys.to_owned(), ..self }
    }

    /// The route's `authorize`: the inside of a list.
    pub(crate) fn authorize(self, rules: &str) -> Self {
        Self { authorize: rules.to_owned(), ..self }
    }

    /// The route's `tasks`
    pub(crate) fn tasks(self, keys: &str) -> Self {
        Self { tasks: keys.to_owned(), ..self }
    }

    /// Callers as `tenant/subject`; nobody else may call then. One whose key has another's name is `tenant/subject@name`.
    pub(crate) fn callers(self, callers: &[&str]) -> Self {
        let split = |caller: &&str| {
            let (tenant, subject) = caller.split_once('/').expect("tenant/subject");
            (tenant.to_owned(), subject.to_owned())
        };
        Self { callers: callers.iter().map(split).collect(), ..self }
    }

    /// Keys of `auth` beside the callers.
    pub(crate) fn auth(self, keys: &str) -> Self {
        Self { auth: keys.to_owned(), ..self }
    }

    /// `tenants`
    pub(crate) fn tenants(self, keys: &str) -> Self {
        Self { tenants: keys.to_owned(), ..self }
    }

    /// A second route `second` at `/second` in front of the same server.
    pub(crate) fn second_route(self) -> Self {
        Self { has_second_route: true, ..self }
    }

    /// Puts a server behind it that it starts itself: the fixture's program over stdio, with these arguments.
    pub(crate) fn stdio(self, arguments: &[&str]) -> Self {
        let program = [env!("CARGO_BIN_EXE_demo_server"), "--stdio"];
        self.command(&[&program, arguments].concat())
    }

    /// Puts a server behind it that it starts with this command.
    pub(crate) fn command(self, argv: &[&str]) -> Self {
        Self { command: Some(json!(argv).to_string()), ..self }
    }

    /// Changes times that no configuration changes.
    pub(crate) fn timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// So many gateways that share a store, and a balancer before them that takes another for each request.
    pub(crate) fn replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    /// How long each takes another for alive that says nothing.
    pub(crate) fn lease(self, lease: &str) -> Self {
        Self { lease: lease.to_owned(), ..self }
    }

    /// They can't reach each other.
    pub(crate) fn apart(self) -> Self {
        Self { has_no_internal_address: true, ..self }
    }

    fn to_yaml(&self, url: &str) -> String {
        let Self { listen, admin, top, upstream, tools, authorize, tasks, tenants, .. } = self;
        let mut yaml = format!(
            "listen: {{address: \"127.0.0.1:0\"{listen}}}\nadmin: {{address: \"127.0.0.1:0\"{admin}}}\n{top}\n\
             tenants: {{{tenants}}}\n"
        );
        let key = |(tenant, caller): &(String, String)| {
            let (subject, name) = caller.split_once('@').unwrap_or((caller, caller));
            let hash: String = sha256(key_of(name).as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{{sha256: \"{hash}\", tenant: {tenant}, subject: {subject}}}")
        };
        let keys: Vec<String> = self.callers.iter().map(key).collect();
        if !keys.is_empty() || !self.auth.is_empty() {
            yaml.push_str(&format!("auth: {{api_keys: [{}], {}}}\n", keys.join(", "), self.auth));
        }
        let target = match &self.command {
            Some(argv) => format!("command: {argv}"),
            None => format!("url: \"{url}\""),
        };
        if self.replicas > 0 {
            let address = if self.has_no_internal_address { "" } else { ", address: \"127.0.0.1:0\"" };
            yaml.push_str(&format!(
                "store: {{kind: redis, url: \"redis://127.0.0.1:1/0\"}}\nreplica: {{lease: {}{address}}}\n",
                self.lease
            ));
            if !self.top.contains("secrets:") {
                yaml.push_str("secrets: {key: \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"}\n");
            }
        }
        yaml.push_str("routes:\n");
        let second = self.has_second_route.then_some(("second", "/second"));
        for (name, path) in [("main", "/mcp")].into_iter().chain(second) {
            yaml.push_str(&format!(
                "  - name: {name}\n    path: {path}\n    upstream: {{{target}{upstream}}}\n    \
                 tools: {{{tools}}}\n    authorize: [{authorize}]\n    tasks: {{{tasks}}}\n"
            ));
        }
        yaml
    }

    /// Starts both.
    pub(crate) async fn start(self) -> Gateway {
        let upstream = Server::start_on_loopback(self.options.clone()).await.unwrap();
        let yaml = self.to_yaml(self.in_front_of.as_deref().unwrap_or(&upstream.url()));
        let settings = config::parse(&yaml, "test.yaml", Path::new(""), &|_| None);
        let settings = settings.unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        if self.replicas > 0 {
            let common = Common::new();
            let mut replicas = Vec::new();
            for _ in 0..self.replicas {
                replicas.push(Replica::start(&common, settings.clone(), self.timing).await);
            }
            let balancer = Balancer::start(replicas.iter().map(|replica| replica.address).collect()).await;
            let (address, admin) = (balancer.address, replicas[0].admin);
            let again = Some((common, settings, self.timing));
            return Gateway { app: None, upstream, address, admin, replicas, balancer: Some(balancer), again };
        }
        let app = App::start_with(&settings, self.timing).await.unwrap();
        let (address, admin) = (app.address, app.admin_address);
        Gateway { app: Some(app), upstream, address, admin, replicas: Vec::new(), balancer: None, again: None }
    }
}

/// A gateway that runs until the test is over.
pub(crate) struct Gateway {
    app: Option<App>,
    /// The server behind it.
    pub(crate) upstream: Server,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Where there are several.
    pub(crate) replicas: Vec<Replica>,
    balancer: Option<Balancer>,
    /// What another of several is started with.
    again: Option<(Common, Settings, Timing)>,
}

impl Gateway {
    /// What is to be started, with every default.
    pub(crate) fn setup() -> Setup {
        Setup {
            options: Options::default(),
            in_front_of: None,
            listen: String::new(),
            admin: String::new(),
            top: String::new(),
            upstream: String::new(),
            tools: String::new(),
            authorize: String::new(),
            tasks: String::new(),
            callers: Vec::new(),
            auth: String::new(),
            tenants: String::new(),
            has_second_route: false,
            command: None,
            timing: Timing::default(),
            replicas: usual_replicas(),
            lease: "30s".to_owned(),
            has_no_internal_address: false,
        }
    }

    /// Waits until one of those has claimed the client's session: then it is not served by another that stands in for a
    /// home which may be alive.
    pub(crate) async fn claimed(&self, client: &Client, others: &[usize]) {
        let number = number_of(client);
        within(async {
            let Some(other) = others.first() else { return };
            while !matches!(self.replicas[*other].neighbour.home_of(number).await, Ok(Some(_))) {
                // One that is under way when the home is found dead is lost.
                drop(client.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await.bytes().await);
            }
        })
        .await;
    }

    /// A client that is yet to open its session at one of several.
    pub(crate) fn moved_opening(&self, number: usize) -> Opening {
        Opening::at(self.replicas[number].address)
    }

    /// The home of a client's session, as one of several sees it.
    pub(crate) async fn home_of(&self, client: &Client, number: usize) -> Option<taskgate::task::Holder> {
        self.replicas[number].neighbour.home_of(number_of(client)).await.unwrap()
    }

    /// Whether the lease of one of several runs, as another sees it.
    pub(crate) async fn lives(&self, number: usize, as_seen_by: usize) -> bool {
        let me = self.replicas[number].neighbour.me();
        !self.replicas[as_seen_by].neighbour.standing(me).await.unwrap().is_gone()
    }

    /// Waits until one of several says with this status whether it is ready.
    pub(crate) async fn ready(&self, number: usize, status: u16) {
        let admin = self.replicas[number].admin;
        let wanted = format!("HTTP/1.1 {status} ");
        within(async {
            loop {
                let mut stream = TcpStream::connect(admin).await.unwrap();
                stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                if answer.starts_with(&wanted) {
                    return;
                }
            }
        })
        .await;
    }

    /// The balancer asks only those that are there.
    pub(crate) fn forget_stopped(&self) {
        let there = self.replicas.iter().filter(|replica| replica.is_there());
        let there = there.map(|replica| replica.address).collect();
        self.balancer.as_ref().expect("there are several").use_only(there);
    }

    /// The balancer asks each whether it is ready, and sends requests to those that say so.
    pub(crate) fn check_health(&self) {
        self.balancer.as_ref().expect("there are several").check(&self.replicas);
    }

    /// Waits until requests go to one of several, or do not.
    pub(crate) async fn is_asked(&self, number: usize, is_asked: bool) {
        let (balancer, address) = (self.balancer.as_ref().expect("there are several"), self.replicas[number].address);
        within(async {
            while balancer.asks(address) != is_asked {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// What all of several count, for callers without credentials.
    pub(crate) async fn usage(&self) -> Usage {
        let (common, _, _) = self.again.as_ref().expect("there are several");
        common.store.usage("default").await.unwrap()
    }

    /// One of several dies, and the balancer asks it no more.
    pub(crate) async fn kill(&mut self, number: usize) {
        self.replicas[number].die().await;
        self.forget_stopped();
    }

    /// Another one takes the place of one of several.
    pub(crate) async fn restart(&mut self, number: usize) {
        self.restart_with(number, |_| {}).await;
    }

    /// The same with other settings.
    pub(crate) async fn restart_with(&mut self, number: usize, change: impl FnOnce(&mut Settings)) {
        let (common, settings, timing) = self.again.as_ref().expect("there are several");
        let mut settings = settings.clone();
        change(&mut settings);
        self.replicas[number] = Replica::start(common, settings, *timing).await;
    }

    /// What one of several counts.
    pub(crate) async fn metrics_of(&self, number: usize) -> Exposition {
        Exposition::fetch(self.replicas[number].admin, None).await
    }

    /// A client of one of several alone, with the session that another has.
    pub(crate) fn moved(&self, client: &Client, number: usize) -> Client {
        Opening::at(self.replicas[number].address).with_session_of(client)
    }

    /// One with every default.
    pub(crate) async fn start() -> Self {
        Self::setup().start().await
    }

    /// A client that is yet to open its session.
    pub(crate) fn client(&self) -> Opening {
        Opening::at(self.address)
    }

    /// A client of the newest version that can answer everything.
    pub(crate) async fn open(&self) -> Client {
        self.client().open().await
    }

    /// The same as one of the callers.
    pub(crate) async fn open_as(&self, subject: &str) -> Client {
        self.client().caller(subject).open().await
    }

    /// Waits until what the server has seen is as wanted.
    #[track_caller]
    pub(crate) fn seen(&self, condition: impl FnMut(&Stats) -> bool) -> impl Future<Output = Stats> {
        within(self.upstream.until(condition))
    }

    /// Waits until so many calls of a tool have begun at the server.
    #[track_caller]
    pub(crate) fn started(&self, tool: &'static str, calls: u64) -> impl Future<Output = Stats> {
        self.seen(move |stats| stats.tool(tool).started >= calls)
    }

    /// What the gateway counts.
    pub(crate) async fn metrics(&self) -> Exposition {
        Exposition::fetch(self.admin, None).await
    }

    /// Waits until what the gateway counts is as wanted.
    #[track_caller]
    pub(crate) fn counted(&self, condition: impl Fn(&Exposition) -> bool) -> impl Future<Output = Exposition> {
        within(async move {
            loop {
                let metrics = self.metrics().await;
                if condition(&metrics) {
                    return metrics;
                }
                tokio::task::yield_now().await;
            }
        })
    }

    /// Takes the gateway out, for a test that stops it by itself.
    pub(crate) fn take_app(&mut self) -> App {
        self.app.take().expect("the gateway is there")
    }

    /// Stops the gateway as a signal does.
    pub(crate) async fn stop(&mut self) {
        for replica in &mut self.replicas {
            within(replica.stop()).await;
        }
        if let Some(app) = self.app.take() {
            within(app.run_until(async {})).await;
        }
    }
}
