//! Places, URLs and documents, and a server that has some of them.

use std::collections::HashMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn places(of: fn(&Uri) -> Vec<Uri>, url: &str) -> Vec<String> {
    of(&url.parse().unwrap()).iter().map(ToString::to_string).collect()
}

#[test]
fn places_stand_in_the_prescribed_order() {
    assert_eq!(
        places(resource_places, "https://example.com/public/mcp"),
        [
            "https://example.com/.well-known/oauth-protected-resource/public/mcp",
            "https://example.com/.well-known/oauth-protected-resource",
        ]
    );
    assert_eq!(
        places(resource_places, "https://example.com:8443/"),
        ["https://example.com:8443/.well-known/oauth-protected-resource"]
    );
    assert_eq!(
        places(server_places, "https://auth.example.com/tenant1/"),
        [
            "https://auth.example.com/.well-known/oauth-authorization-server/tenant1",
            "https://auth.example.com/.well-known/openid-configuration/tenant1",
            "https://auth.example.com/tenant1/.well-known/openid-configuration",
        ]
    );
    assert_eq!(
        places(server_places, "https://auth.example.com"),
        [
            "https://auth.example.com/.well-known/oauth-authorization-server",
            "https://auth.example.com/.well-known/openid-configuration",
        ]
    );
}

#[test]
fn credentials_cross_no_network_in_the_clear() {
    for good in [
        "https://a.example/x?y=z",
        "http://127.0.0.1:8080/",
        "http://[::1]:1/",
        "http://localhost",
        "http://LocalHost/",
    ] {
        assert!(secure(good, None).is_ok(), "{good}");
    }
    for (bad, why) in [
        ("http://a.example/", BadUrl::Insecure),
        ("http://127.0.0.1.a.example/", BadUrl::Insecure),
        ("http://localhost.a.example/", BadUrl::Insecure),
        ("ftp://localhost/", BadUrl::Insecure),
        ("https://user:word@a.example/", BadUrl::Parts),
        ("https://a.example/#x", BadUrl::Parts),
        ("/path", BadUrl::Malformed),
        ("", BadUrl::Malformed),
        ("https://a.example/\nx", BadUrl::Malformed),
        (&format!("https://a.example/{}", "x".repeat(LONGEST)), BadUrl::Malformed),
    ] {
        assert_eq!(secure(bad, None), Err(why), "{bad}");
    }
    let (elsewhere, here) = ("https://a.example/".parse().unwrap(), "http://127.0.0.1:1/".parse().unwrap());
    assert_eq!(secure("http://localhost/", Some(&elsewhere)), Err(BadUrl::Insecure));
    assert!(secure("http://localhost/", Some(&here)).is_ok());
    assert!(matches!(issuer_url("https://a.example/?x"), Err(Error::Url { why: BadUrl::Parts, .. })));
}

#[test]
fn a_document_speaks_for_the_url_that_was_called() {
    let called = "https://example.com/mcp".parse().unwrap();
    for (resource, is_root, expected) in [
        ("https://example.com/mcp", false, true),
        ("HTTPS://Example.COM:443/mcp/", false, true),
        ("https://example.com", true, true),
        ("https://example.com/", true, true),
        ("https://example.com", false, false),
        ("https://example.com/MCP", false, false),
        ("https://example.com/mcp/other", true, false),
        ("https://example.com/m", true, false),
        ("https://example.com:8443/mcp", false, false),
        ("http://example.com/mcp", false, false),
        ("https://evil.example/mcp", true, false),
        ("example.com/mcp", true, false),
        ("", true, false),
    ] {
        assert_eq!(describes(resource, &called, is_root), expected, "{resource} {is_root}");
    }
}

/// A server that has these documents, each with its status; `HOST` in them is its own address. It tells what it was asked
/// for.
async fn serving(
    documents: &[(&str, u16, &str)],
) -> (String, tokio::task::JoinHandle<()>, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let documents: HashMap<String, (u16, String)> = documents
        .iter()
        .map(|(path, status, text)| ((*path).to_owned(), (*status, text.replace("HOST", &host))))
        .collect();
    let (asked, hearing) = tokio::sync::mpsc::channel(64);
    let serving = crate::jobs::Jobs::default().spawn("documents", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await.unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let (status, text) = documents.get(&path).cloned().unwrap_or((404, String::new()));
            asked.send(path).await.unwrap();
            let head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", text.len());
            stream.write_all(format!("{head}{text}").as_bytes()).await.unwrap();
        }
    });
    (host, serving, hearing)
}

async fn server_at(path: &str, documents: &[(&str, u16, &str)]) -> (Result<ServerMetadata, Error>, Vec<String>) {
    let (host, job, mut hearing) = serving(documents).await;
    let found = server_metadata(&Fetcher::new(), &format!("http://{host}{path}")).await;
    job.abort();
    let mut asked = Vec::new();
    while let Ok(path) = hearing.try_recv() {
        asked.push(path);
    }
    (found, asked)
}

const GOOD: &str = r#"{"issuer":"http://HOST/t","token_endpoint":"http://HOST/token","x":[1],
    "authorization_response_iss_parameter_supported":true,"code_challenge_methods_supported":["S256"]}"#;
const FIRST: &str = "/.well-known/oauth-authorization-server/t";
const SECOND: &str = "/.well-known/openid-configuration/t";
const THIRD: &str = "/t/.well-known/openid-configuration";

#[tokio::test]
async fn the_next_place_is_asked_where_one_has_nothing() {
    let (found, asked) = server_at("/t", &[(FIRST, 200, GOOD), (SECOND, 200, GOOD)]).await;
    let found = found.unwrap();
    assert!(found.names_itself_in_responses && !found.takes_client_id_metadata, "{found:?}");
    assert_eq!(found.token_endpoint.unwrap().path(), "/token");
    assert_eq!(asked, [FIRST]);
    // A page for people, another's document, and a redirect are nothing.
    let other = r#"{"issuer":"https://honest.example"}"#;
    let (found, asked) = server_at("/t", &[(FIRST, 200, "<html>"), (SECOND, 200, other), (THIRD, 200, GOOD)]).await;
    assert!(found.is_ok(), "{found:?}");
    assert_eq!(asked, [FIRST, SECOND, THIRD]);
    let (found, asked) = server_at("/t", &[(FIRST, 302, ""), (SECOND, 200, other)]).await;
    assert!(matches!(found, Err(Error::OtherIssuer { .. })), "{found:?}");
    assert_eq!(asked, [FIRST, SECOND, THIRD]);
}

#[tokio::test]
async fn what_is_wrong_is_not_used() {
    // The issuer is compared as it is written: without the slash it is another.
    let (found, _) = server_at("/t/", &[(FIRST, 200, GOOD)]).await;
    assert!(matches!(found, Err(Error::OtherIssuer { .. })), "{found:?}");
    let (found, asked) = server_at("/t", &[(FIRST, 503, ""), (SECOND, 200, GOOD)]).await;
    assert!(matches!(found, Err(Error::Fetch { .. })), "{found:?}");
    assert_eq!(asked, [FIRST]);
    let plain = r#"{"issuer":"http://HOST/t","token_endpoint":"http://token.example/"}"#;
    let (found, _) = server_at("/t", &[(FIRST, 200, plain)]).await;
    assert!(matches!(found, Err(Error::Url { what: "the token endpoint", why: BadUrl::Insecure })), "{found:?}");
    let twice = r#"{"issuer":"http://HOST/t","issuer":"http://HOST/t"}"#;
    let (found, _) = server_at("/t", &[(FIRST, 200, twice)]).await;
    assert!(matches!(found, Err(Error::Fetch { source: fetch::Error::Json(_), .. })), "{found:?}");
}

#[tokio::test]
async fn a_resource_is_found_by_its_challenge_or_where_it_is_well_known() {
    let at = "/.well-known/oauth-protected-resource";
    let of = r#"{"resource":"http://HOST/mcp","authorization_servers":["https://a.example"],"scopes_supported":["x"]}"#;
    let root = r#"{"resource":"http://HOST","authorization_servers":["https://a.example"]}"#;
    let (host, job, mut hearing) = serving(&[
        ("/named", 200, of),
        ("/wrong", 200, root),
        (at, 200, root),
        ("/none", 200, r#"{"resource":"http://HOST/mcp"}"#),
    ])
    .await;
    let called = format!("http://{host}/mcp").parse().unwrap();
    let fetcher = Fetcher::new();
    let named = async |path: &str| resource_metadata(&fetcher, &called, Some(&format!("http://{host}{path}"))).await;
    assert_eq!(named("/named").await.unwrap().scopes_supported.unwrap(), ["x"]);
    assert!(matches!(named("/wrong").await, Err(Error::OtherResource { .. })));
    assert!(matches!(named("/none").await, Err(Error::NoServers { .. })));
    // A place that was named and has nothing is the end: no other is asked.
    assert!(matches!(named("/gone").await, Err(Error::Fetch { .. })));
    while hearing.try_recv().is_ok() {}
    assert_eq!(resource_metadata(&fetcher, &called, None).await.unwrap().resource, format!("http://{host}"));
    assert_eq!(hearing.recv().await.unwrap(), format!("{at}/mcp"));
    assert_eq!(hearing.recv().await.unwrap(), at);
    let far = "https://a.example/mcp".parse().unwrap();
    let sent_home = resource_metadata(&fetcher, &far, Some(&format!("http://{host}/named"))).await;
    assert!(matches!(sent_home, Err(Error::Url { why: BadUrl::Insecure, .. })));
    job.abort();
}
