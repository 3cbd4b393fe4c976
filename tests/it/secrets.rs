//! Secrets stay where they are: nothing that the gateway writes, on any channel, at any level, has one in it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use taskgate::auth::sha256;
use taskgate::demo::server::{Options, Server};
use tokio::process::Command;

use crate::support::{Authority, Binary, Client, Connection, json, within};

/// In everything that must not be seen, but for what is no text of ours.
const MARK: &str = "s3cret";
const ADMIN: &str = "s3cret-admin-token";
const KEY: &str = "s3cret-key";

/// A configuration with a secret in every place that takes one.
struct Marked {
    authority: Authority,
    file: PathBuf,
    /// What must not be seen and has no mark.
    others: Vec<String>,
}

impl Marked {
    fn new(server: &Server) -> Self {
        let authority = Authority::new();
        authority.write("tls", 2090);
        let hash: String = sha256(KEY.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let (seal, earlier) = (STANDARD.encode([7, 8].repeat(16)), STANDARD.encode([9, 8].repeat(16)));
        let private = std::fs::read_to_string(authority.path("tls.key")).unwrap();
        let private = private.lines().nth(1).unwrap().to_owned();
        std::fs::write(authority.path("token"), ADMIN).unwrap();
        std::fs::write(authority.path("header"), "s3cret-header-in-a-file\n").unwrap();
        let (url, program) = (server.url(), env!("CARGO_BIN_EXE_demo_server"));
        let yaml = format!(
            "listen: {{tls: {{{keys}}}}}
admin: {{token: {{file: token}}}}
secrets: {{key: \"{seal}\", previous: [\"{earlier}\"]}}
auth:
  api_keys: [{{sha256: {hash}, tenant: acme, subject: ann}}]
  introspection: {{url: \"http://127.0.0.1:1/introspect\", client_id: gate, client_secret: s3cret-client}}
routes:
- name: main
  path: /mcp
  upstream:
    url: \"{url}?key=s3cret-query\"
    headers: {{Authorization: Bearer s3cret-header, X-Other: {{file: header}}}}
- name: granted
  path: /granted
  upstream:
    url: \"{url}\"
    oauth: {{token_url: \"http://127.0.0.1:1/token\", client_id: gate, client_secret: s3cret-oauth}}
- name: command
  path: /command
  upstream: {{command: [sh, -c, \"exec {program} --stdio\", s3cret-argument]}}
- name: away
  path: /away
  upstream: {{url: \"https://localhost:1/mcp?s3cret-path\", headers: {{X-Key: s3cret-away}}, tls: {{{keys}}}}}
",
            keys = authority.keys("tls")
        );
        let file = authority.path("taskgate.yaml");
        std::fs::write(&file, yaml).unwrap();
        Self { authority, file, others: vec![hash, seal, earlier, private] }
    }

    #[track_caller]
    fn is_clean(&self, what: &str, text: &str) {
        for secret in self.others.iter().map(String::as_str).chain([MARK]) {
            let leaks: Vec<&str> = text.lines().filter(|line| line.contains(secret)).collect();
            assert!(leaks.is_empty(), "{what} has `{secret}`: {leaks:#?}");
        }
    }
}

async fn client(binary: &Binary, authority: &Authority, path: &str) -> Client {
    binary.client().secure(authority, false).token(KEY).path(path).open().await
}

/// The whole of an answer of the admin address.
async fn asked(binary: &Binary, path: &str, token: &str) -> String {
    let mut connection = Connection::open(binary.admin).await;
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    connection.send(format!("{head}authorization: Bearer {token}\r\n\r\n")).await;
    String::from_utf8(connection.rest().await.unwrap().to_vec()).unwrap()
}

/// Something of everything; what clients were told by the gateway itself.
async fn busy(binary: &Binary, authority: &Authority) -> Vec<String> {
    let mut told = Vec::new();
    for path in ["/mcp", "/command"] {
        let client = client(binary, authority, path).await;
        let mut stream = client.listen().await;
        client.call("echo", json!({"text": "s3cret-text"})).await;
        let id = client.start("ask", json!({"message": "s3cret-question"})).await;
        let question = stream.until_method("elicitation/create").await;
        client.accept(&question, json!({"name": "s3cret-answer"})).await;
        client.outcome(&id).await;
        let id = client.start("fail", json!({"text": "s3cret-failure"})).await;
        client.until(&id, "failed").await;
        let id = client.start("hold", json!({"x": "s3cret-held"})).await;
        client.cancel(&id).await;
        told.push(client.error("tasks/get", json!({"taskId": "s3cret-task"})).await.to_string());
        told.push(client.error("tools/call", json!({"name": "x", "task": {"ttl": "s3cret"}})).await.to_string());
    }
    for path in ["/away", "/granted"] {
        let known = binary.client().secure(authority, true).token(KEY);
        told.push(known.path(path).initialize().await.1.text().await);
    }
    let silent = binary.client().secure(authority, false).silent();
    for (name, value) in [
        ("authorization", "Bearer s3cret-wrong"),
        ("authorization", "Basic s3cret-basic"),
        ("x-api-key", "s3cret-wrong"),
        ("cookie", "session=s3cret-cookie"),
        ("mcp-session-id", "s3cret-session"),
        ("mcp-protocol-version", "s3cret-version"),
        ("origin", "https://s3cret.example"),
        ("host", "s3cret.example"),
        ("x-forwarded-for", "s3cret"),
    ] {
        told.push(silent.post_with(&[(name, value)], r#"{"s3cret":"s3cret-body"}"#).await.text().await);
    }
    told
}

async fn check(file: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(["--log-level", "trace", "check", "--config"]).arg(file).stdin(Stdio::null());
    let output = within(command.output()).await.unwrap();
    [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_anything_that_is_written() {
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let marked = Marked::new(&server);
    for format in ["text", "json"] {
        let arguments = ["--log-level", "trace", "--log-format", format];
        let binary = Binary::start_on(&arguments, &marked.file).await;
        for told in busy(&binary, &marked.authority).await {
            marked.is_clean("an answer", &told);
        }
        for path in ["/livez", "/readyz", "/metrics", "/s3cret"] {
            for token in [ADMIN, "s3cret-wrong-token"] {
                marked.is_clean(path, &asked(&binary, path, token).await);
            }
        }
        let log = binary.log();
        assert!(log.lines().count() > 100 && log.contains("refused"), "{log}");
        marked.is_clean("the log", &log);
    }
}

#[tokio::test]
async fn no_secret_is_in_what_check_says() {
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let marked = Marked::new(&server);
    let said = check(&marked.file).await;
    assert!(said.contains("route        main"), "{said}");
    marked.is_clean("`check`", &said);
    // Wherever the rest of the file is wrong as well.
    let good = std::fs::read_to_string(&marked.file).unwrap();
    for (from, to) in [
        ("admin: {token: {file: token}}", "admin: {token: [s3cret-list]}"),
        ("admin: {token: {file: token}}", "admin: {token: \"s3cret with spaces\"}"),
        ("admin: {token: {file: token}}", "admin: {token: {flie: s3cret}}"),
        ("Bearer s3cret-header", "\"s3cret\\u0001and more\""),
        ("Bearer s3cret-header", "\"s3cret \""),
        ("client_secret: s3cret-client", "client_secret: {s3cret: s3cret}"),
        ("client_secret: s3cret-oauth", "client_secret: [s3cret]"),
        ("http://127.0.0.1:1/token", "ftp://s3cret:s3cret@127.0.0.1/"),
        ("?key=s3cret-query", "?key=s3cret-query#s3cret"),
        ("http://127.0.0.1:1/introspect", "http://s3cret:s3cret@127.0.0.1/"),
        ("previous: [", "previous: [s3cret, "),
        ("secrets: {key: ", "secrets: {key: s3cret-key-of-no-size, previous: [], x: "),
        ("command: [sh,", "command: [[s3cret],"),
    ] {
        let broken = good.replace(from, to);
        assert_ne!(broken, good, "{from}");
        std::fs::write(&marked.file, broken).unwrap();
        let said = check(&marked.file).await;
        assert!(said.contains("mistake"), "{to}: {said}");
        // A key that is not known is named, as it must be; `flie` and `x` have no secret in their names.
        let said = said.replace("client_secret.s3cret", "client_secret.KEY");
        marked.is_clean(to, &said);
    }
}

/// As they would be in a core dump's strings of what was formatted, or in somebody's `dbg!`.
#[tokio::test]
async fn no_secret_is_in_the_debug_form_of_settings() {
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let marked = Marked::new(&server);
    let settings = taskgate::config::load(&marked.file, &|_| None).unwrap();
    for shown in [format!("{settings:?}"), format!("{settings:#?}")] {
        marked.is_clean("Debug", &shown);
    }
}
