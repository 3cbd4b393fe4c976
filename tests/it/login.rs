//! `taskgate call --login`: the client's whole way from a 401 to a token, with authorization servers that do it right and ones
//! that don't.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use taskgate::client::login::{self, Login, Options};
use taskgate::client::{self, Config, Connected, Era};
use taskgate::demo::server;
use taskgate::jobs::Jobs;
use taskgate::oauth::secret::Secret;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::support::authorization::{AuthServer, browse};
use crate::support::{Value, json, within};

/// A user, with a folder for their tokens, who agrees to everything.
struct User {
    folder: TempDir,
    client: Option<(String, Option<Secret>)>,
    metadata_url: Option<String>,
    scope: Option<String>,
    /// The URLs that were shown.
    shown: Arc<Mutex<Vec<String>>>,
}

impl User {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, client: None, metadata_url: None, scope: None, shown: Arc::default() }
    }

    fn options(&self, url: &str) -> Options {
        Options {
            url: url.parse().unwrap(),
            client: self.client.clone(),
            metadata_url: self.metadata_url.clone(),
            scope: self.scope.clone(),
            tokens: self.folder.path().join("state/tokens.json"),
        }
    }

    fn login(&self, url: &str) -> Result<Login, login::Error> {
        let shown = Arc::clone(&self.shown);
        let show = move |url: &str| {
            shown.lock().unwrap().push(url.to_owned());
            let url = url.to_owned();
            Jobs::default().spawn("browser", async move { browse(&url).await });
        };
        Login::new(self.options(url), Box::new(show))
    }

    /// Calls `echo`; its text, or what went wrong.
    async fn call(&self, url: &str) -> Result<String, String> {
        let config = Config {
            url: url.parse().unwrap(),
            headers: HeaderMap::new(),
            credentials: Some(Arc::new(self.login(url).unwrap())),
            tls: None,
            connect_timeout: Duration::from_secs(10),
            max_message: 1 << 24,
            jobs: Jobs::default(),
        };
        let arguments = r#"{"text":"hello"}"#;
        let called = async {
            let jobs = Jobs::default();
            let result = match client::connect(config, Era::Auto, jobs).await?.0 {
                Connected::Modern(server) => server.call("echo", Some(arguments)).await?,
                Connected::Legacy(session) => session.call(session.new_call(), "echo", Some(arguments)).await?,
            };
            Ok::<_, client::Error>(result)
        };
        let result = within(called).await.map_err(|error| error.with_causes())?;
        let result: Value = serde_json::from_str(&result).unwrap();
        Ok(result["content"][0]["text"].as_str().unwrap().to_owned())
    }

    fn shown(&self) -> usize {
        self.shown.lock().unwrap().len()
    }

    fn file(&self) -> Value {
        let text = std::fs::read_to_string(self.folder.path().join("state/tokens.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

async fn authority() -> AuthServer {
    AuthServer::start(server::Options { era: server::Era::Modern, ..server::Options::default() }).await
}

/// Has the call fail, for this reason, before a code is redeemed.
#[track_caller]
fn fails(authority: AuthServer, user: User, why: &'static str) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let failed = user.call(&authority.mcp()).await;
        let error = failed.expect_err("it failed");
        assert!(error.contains(why) && !error.contains("hush"), "{caller}: {error}");
        assert!(authority.asked("/token").is_empty(), "{caller}: a code was redeemed");
    }
}

#[tokio::test]
async fn the_whole_way_in_both_eras() {
    for era in [server::Era::Legacy, server::Era::Modern] {
        let authority = AuthServer::start(server::Options { era, ..server::Options::default() }).await;
        let user = User::new();
        assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
        let mut paths = authority.paths();
        paths.dedup();
        assert_eq!(
            paths,
            [
                "/.well-known/oauth-protected-resource/mcp",
                "/.well-known/oauth-authorization-server",
                "/register",
                "/authorize",
                "/token"
            ]
        );
        let registered = authority.asked("/register")[0].json();
        assert_eq!(registered["application_type"], "native");
        assert_eq!(registered["grant_types"], json!(["authorization_code", "refresh_token"]));
        let agreed = &authority.asked("/authorize")[0];
        assert_eq!(agreed.field("redirect_uri"), registered["redirect_uris"][0]);
        assert_eq!((agreed.field("resource"), agreed.field("scope")), (&*authority.mcp(), "tools"));
        assert_eq!(agreed.field("code_challenge_method"), "S256");
        assert_eq!(authority.asked("/token")[0].field("resource"), authority.mcp());
        let calls = authority.asked("/mcp");
        assert!(calls.iter().all(|call| call.fields.is_empty()), "no token stands in a URL");
        // The next call needs nobody.
        assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
        assert_eq!((user.shown(), authority.asked("/token").len()), (1, 1));
    }
}

#[tokio::test]
async fn tokens_are_kept_for_their_owner_alone() {
    let (authority, user) = (authority().await, User::new());
    user.call(&authority.mcp()).await.unwrap();
    let folder = user.folder.path().join("state");
    let file = folder.join("tokens.json");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let kept = &user.file()["logins"][0];
    assert_eq!((kept["issuer"].as_str(), kept["resource"].as_str()), (Some(authority.url()), Some(&*authority.mcp())));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o604)).unwrap();
    let error = user.call(&authority.mcp()).await.unwrap_err();
    assert!(error.contains("can be read by others"), "{error}");
}

#[tokio::test]
async fn a_token_that_has_ended_is_refreshed() {
    let (authority, user) = (authority().await, User::new());
    authority.change(|ways| ways.tokens = json!({"expires_in": 0}));
    // It has ended when it comes: it is shown all the same, since another would end as soon.
    assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
    assert_eq!((user.shown(), authority.asked("/token").len()), (1, 1));
    authority.change(|ways| ways.tokens = json!({}));
    let shown = user.shown();
    assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
    assert_eq!(user.shown(), shown, "nobody had to agree again");
    let asked = authority.asked("/token");
    let last = asked.last().unwrap();
    assert_eq!((last.field("grant_type"), last.field("resource")), ("refresh_token", &*authority.mcp()));
    // The one that was given with it is kept, and used the next time.
    let rotated = user.file()["logins"][0]["refresh_token"].as_str().unwrap().to_owned();
    assert_ne!(rotated, last.field("refresh_token"));
    authority.change(|ways| ways.revoked = (0..100).collect());
    let refused = user.call(&authority.mcp()).await.unwrap_err();
    assert!(refused.contains("just given"), "{refused}");
    assert_eq!(authority.asked("/token").last().unwrap().field("refresh_token"), rotated);
}

#[tokio::test]
async fn a_token_that_ends_soon_asks_the_user_once() {
    for life in [1, 10] {
        let (authority, user) = (authority().await, User::new());
        authority.change(|ways| ways.tokens = json!({"expires_in": life, "refresh_token": "of nobody"}));
        assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
        assert_eq!(user.shown(), 1, "{life}");
        authority.change(|ways| ways.revoked = (0..100).collect());
        let refused = user.call(&authority.mcp()).await.unwrap_err();
        assert!(refused.contains("just given"), "{refused}");
        assert_eq!(user.shown(), 2, "{life}");
    }
}

#[tokio::test]
async fn a_refresh_that_is_refused_comes_to_the_user() {
    let (authority, user) = (authority().await, User::new());
    authority.change(|ways| ways.tokens = json!({"refresh_token": "of nobody"}));
    user.call(&authority.mcp()).await.unwrap();
    authority.change(|ways| ways.revoked = vec![1]);
    assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
    assert_eq!(user.shown(), 2);
    // Whoever registered itself does not register again.
    assert!(authority.asked("/register").len() <= 2);
}

#[tokio::test]
async fn the_four_rows_of_issuer_identification() {
    for (advertised, iss, good) in [
        (true, Some(""), true),
        (true, None, false),
        (false, Some(""), true),
        (false, None, true),
        (true, Some("/"), false),
        (false, Some("/"), false),
    ] {
        let (authority, user) = (authority().await, User::new());
        authority.describe("authorization_response_iss_parameter_supported", json!(advertised));
        let named = iss.map(|ending| format!("{}{ending}", authority.url())).unwrap_or_default();
        authority.change(|ways| ways.response = vec![("iss", named)]);
        if good {
            assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello", "{advertised} {iss:?}");
        } else {
            fails(authority, user, "not come from the authorization server").await;
        }
    }
}

#[tokio::test]
async fn answers_of_others_are_not_acted_on() {
    let mine = authority().await;
    mine.change(|ways| ways.response = vec![("state", "other".to_owned())]);
    fails(mine, User::new(), "does not belong to this login").await;
    let mine = authority().await;
    let hush = || ("error", "hush".to_owned());
    mine.change(|ways| {
        ways.response = vec![hush(), ("iss", "https://evil.example".to_owned()), ("code", String::new())]
    });
    fails(mine, User::new(), "not come from the authorization server").await;
    let mine = authority().await;
    mine.change(|ways| ways.response = vec![("error", "access_denied".to_owned()), ("code", String::new())]);
    fails(mine, User::new(), "access_denied").await;
}

#[tokio::test]
async fn documents_that_are_not_right_are_not_used() {
    let mine = authority().await;
    mine.describe("issuer", json!("https://honest.example"));
    fails(mine, User::new(), "is that of another issuer").await;
    let mine = authority().await;
    mine.change(|ways| ways.resource["resource"] = json!("https://honest.example/mcp"));
    fails(mine, User::new(), "another resource").await;
    let mine = authority().await;
    mine.describe("code_challenge_methods_supported", json!(["plain"]));
    fails(mine, User::new(), "no PKCE").await;
    let mine = authority().await;
    mine.describe("code_challenge_methods_supported", Value::Null);
    fails(mine, User::new(), "no PKCE").await;
    let mine = authority().await;
    mine.describe("token_endpoint", json!("http://token.example/token"));
    fails(mine, User::new(), "the token endpoint can't be used").await;
    let mine = authority().await;
    mine.describe("x", json!("x".repeat(2 << 20)));
    fails(mine, User::new(), "too long").await;
    let mine = authority().await;
    mine.change(|ways| ways.resource = Value::Null);
    fails(mine, User::new(), "no metadata at").await;
    let mine = authority().await;
    mine.change(|ways| ways.resource["authorization_servers"] = json!(["http://auth.example"]));
    fails(mine, User::new(), "neither https").await;
}

#[tokio::test]
async fn metadata_is_looked_for_where_it_may_be() {
    let (authority, user) = (authority().await, User::new());
    // No challenge says where the resource's is, and the server's is at the last of the places.
    authority.change(|ways| {
        ways.challenge = Some("Basic realm=\"a, Bearer b=c\", Bearer".to_owned());
        let issuer = format!("{}/tenant", ways.resource["authorization_servers"][0].as_str().unwrap());
        ways.resource["authorization_servers"] = json!([issuer]);
        let metadata = &mut ways.metadata[0];
        metadata.0 = "/tenant/.well-known/openid-configuration".to_owned();
        metadata.1["issuer"] = json!(issuer);
        ways.response = vec![("iss", issuer)];
    });
    assert_eq!(user.call(&authority.mcp()).await.unwrap(), "hello");
    let mut paths = authority.paths();
    paths.dedup();
    assert_eq!(
        paths[..4],
        [
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-authorization-server/tenant",
            "/.well-known/openid-configuration/tenant",
            "/tenant/.well-known/openid-configuration",
        ]
    );
    // Without a challenge that names them, all scopes of the resource.
    assert_eq!(authority.asked("/authorize")[0].field("scope"), "all");
}

#[tokio::test]
async fn a_client_is_known_or_described_or_registers_in_this_order() {
    let (mine, mut user) = (authority().await, User::new());
    mine.describe("client_id_metadata_document_supported", json!(true));
    user.metadata_url = Some("https://client.example/metadata.json".to_owned());
    user.call(&mine.mcp()).await.unwrap();
    assert_eq!(mine.asked("/authorize")[0].field("client_id"), "https://client.example/metadata.json");
    user.client = Some(("known".to_owned(), Some("pass word".into())));
    user.call(&mine.mcp()).await.unwrap();
    assert_eq!(mine.asked("/authorize")[1].field("client_id"), "known");
    // `known:pass%20word`
    assert_eq!(mine.asked("/token")[1].authorization(), "Basic a25vd246cGFzcyUyMHdvcmQ=");
    assert!(mine.asked("/register").is_empty());
    // What is known of one issuer is not shown to another.
    mine.change(|ways| ways.resource["authorization_servers"] = json!(["http://127.0.0.1:1/other"]));
    mine.change(|ways| ways.revoked = (0..100).collect());
    let error = user.call(&mine.mcp()).await.unwrap_err();
    assert!(error.contains("another authorization server"), "{error}");

    let (mine, mut user) = (authority().await, User::new());
    user.metadata_url = Some("https://client.example/metadata.json".to_owned());
    user.call(&mine.mcp()).await.unwrap();
    assert_eq!(mine.asked("/register").len(), 1, "it takes no metadata");
    let mine = authority().await;
    mine.change(|ways| {
        ways.registration = Some((400, json!({"error": "invalid_redirect_uri", "error_description": "hush"})))
    });
    fails(mine, User::new(), "invalid_redirect_uri").await;
    let mine = authority().await;
    mine.describe("registration_endpoint", Value::Null);
    fails(mine, User::new(), "--client-id").await;
}

#[tokio::test]
async fn more_scopes_are_asked_for_with_those_that_were_there() {
    let (mine, user) = (authority().await, User::new());
    mine.change(|ways| ways.needed = vec!["write".to_owned()]);
    mine.describe("scopes_supported", json!(["tools", "write", "offline_access"]));
    assert_eq!(user.call(&mine.mcp()).await.unwrap(), "hello");
    let scopes: Vec<_> = mine.asked("/authorize").iter().map(|asked| asked.field("scope").to_owned()).collect();
    assert_eq!(scopes, ["tools offline_access", "tools offline_access write"]);
    // A server that never gives them is not asked for ever.
    let (mine, user) = (authority().await, User::new());
    mine.change(|ways| (ways.needed, ways.given) = (vec!["write".to_owned()], Some(vec!["tools".to_owned()])));
    let error = user.call(&mine.mcp()).await.unwrap_err();
    assert!(error.contains("403"), "{error}");
    assert_eq!(mine.asked("/authorize").len(), 2);
}

#[tokio::test]
async fn tokens_go_nowhere_in_the_clear() {
    let user = User::new();
    for url in ["http://mcp.example/mcp", "http://10.0.0.1/mcp"] {
        assert!(matches!(user.login(url), Err(login::Error::Url(_))), "{url}");
    }
    assert!(user.login("https://mcp.example/mcp").is_ok());
    for url in ["http://client.example/x", "https://client.example", "client"] {
        let user = User { metadata_url: Some(url.to_owned()), ..User::new() };
        assert!(matches!(user.login("https://mcp.example/mcp"), Err(login::Error::MetadataUrl)), "{url}");
    }
}

#[tokio::test]
async fn the_program_shows_the_url_and_prints_the_result() {
    let (authority, folder) = (authority().await, tempfile::tempdir().unwrap());
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"))
        .args(["call", &authority.mcp(), "echo", "--arguments", r#"{"text":"hello"}"#, "--login", "--no-browser"])
        .env("XDG_STATE_HOME", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let url = loop {
        let line = within(lines.next_line()).await.unwrap().expect("it shows a URL");
        if let Some(url) = line.trim().strip_prefix("http") {
            break format!("http{url}");
        }
    };
    let page = browse(&url).await;
    assert!(page.contains("close this page"), "{page}");
    let mut printed = String::new();
    within(child.stdout.take().unwrap().read_to_string(&mut printed)).await.unwrap();
    assert!(printed.contains("\"hello\""), "{printed}");
    assert!(within(child.wait()).await.unwrap().success());
    assert!(folder.path().join("taskgate/tokens.json").exists());
    // Without the word the stored login is not used, and the answer says what is missing.
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"))
        .args(["call", &authority.mcp(), "echo"])
        .env("XDG_STATE_HOME", folder.path())
        .output();
    let output = within(output).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("401") && said.contains("--login"), "{said}");
}

#[tokio::test]
async fn the_browser_that_is_named_gets_the_url() {
    let (authority, folder) = (authority().await, tempfile::tempdir().unwrap());
    let browser = folder.path().join("browser");
    std::fs::write(
        &browser,
        format!("#!/bin/sh\nprintf '%s' \"$1\" > {}/url.new && mv {0}/url.new {0}/url\n", folder.path().display()),
    )
    .unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"))
        .args(["call", &authority.mcp(), "echo", "--login", "--token-file"])
        .arg(folder.path().join("tokens.json"))
        .env("TASKGATE_BROWSER", &browser)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let shown = loop {
        let line = within(lines.next_line()).await.unwrap().expect("it shows a URL");
        if let Some(url) = line.trim().strip_prefix("http") {
            break format!("http{url}");
        }
    };
    let opened = within(async {
        loop {
            match std::fs::read_to_string(folder.path().join("url")) {
                Ok(url) => break url,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    assert_eq!(opened.await, shown);
}
