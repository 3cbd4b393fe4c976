//! TLS on both sides: what clients and servers see, certificates that change, and peers that never finish what they began.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use taskgate::app::Timing;
use taskgate::demo::server::{Options, Server};
use taskgate::downstream::patience::Patience;
use taskgate::jobs::Jobs;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, ServerConfig, version};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use crate::support::{Authority, Binary, Connection, Gateway, Setup, json, text_of, within};

const SHORT: Duration = Duration::from_millis(50);
const ASK: &str = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn secured(authority: &Authority) -> Setup {
    Gateway::setup().listen(&format!("tls: {{{}}}", authority.keys("tls")))
}

/// An authority that has issued `tls`.
fn authority() -> Authority {
    let authority = Authority::new();
    authority.write("tls", 2090);
    authority
}

async fn shake(gateway: &Gateway, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// The certificate that is shown now.
async fn shown(gateway: &Gateway, authority: &Authority) -> CertificateDer<'static> {
    let stream = shake(gateway, authority.trust()).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn der(cert: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()
}

#[tokio::test]
async fn both_versions_of_http_are_spoken_over_tls() {
    let authority = authority();
    let gateway = secured(&authority).start().await;
    for http2_only in [false, true] {
        let client = gateway.client().secure(&authority, http2_only).open().await;
        let mut stream = client.listen().await;
        let id = client.start("ask", json!({})).await;
        let question = stream.until_method("elicitation/create").await;
        client.accept(&question, json!({"name": "Ann"})).await;
        assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
        let big = client.call("big", json!({"bytes": 4 * 1024 * 1024})).await;
        assert!(text_of(&big).len() >= 4 * 1024 * 1024);
        assert_eq!(client.post_with(&[("host", "evil.example")], "{}").await.status, 403);
    }
}

#[tokio::test]
async fn the_client_chooses_among_versions_and_protocols() {
    let authority = authority();
    let gateway = secured(&authority).start().await;
    for (version, offered, chosen) in [
        (&version::TLS13, &["h2", "http/1.1"][..], Some("h2")),
        (&version::TLS12, &["h2", "http/1.1"], Some("h2")),
        (&version::TLS13, &["http/1.1"], Some("http/1.1")),
        (&version::TLS12, &[], None),
    ] {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let mut config = builder.with_root_certificates(authority.roots()).with_no_client_auth();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = shake(&gateway, config).await.unwrap();
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(version.version));
        assert_eq!(session.alpn_protocol(), chosen.map(str::as_bytes));
    }
    let mut config = authority.trust();
    config.alpn_protocols = vec![b"smtp".to_vec()];
    assert!(shake(&gateway, config).await.is_err());
    assert!(shake(&gateway, Authority::nobodys()).await.is_err());
}

#[tokio::test]
async fn a_new_certificate_is_taken_and_a_bad_one_is_not() {
    let authority = authority();
    let gateway = secured(&authority).timing(Timing { certificates: SHORT, ..Timing::default() }).start().await;
    let mut config = authority.trust();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut open = Connection::on(shake(&gateway, config).await.unwrap());
    open.send(ASK).await;
    assert_eq!(open.answer().await.status, 404);
    let first = shown(&gateway, &authority).await;
    let looked = |outcome: &'static str| {
        let name = "taskgate_certificate_reloads_total";
        gateway.counted(move |metrics| metrics.value(name, &[("outcome", outcome)]) >= 1.0)
    };
    // Given new files, then new connections see the new certificate,
    let (cert, key) = authority.issue(2080);
    fs::write(authority.path("tls.key"), &key).unwrap();
    fs::write(authority.path("tls.crt"), &cert).unwrap();
    let metrics = looked("replaced").await;
    let second = shown(&gateway, &authority).await;
    assert_eq!(second, der(&cert));
    assert_ne!(second, first);
    assert_eq!(metrics.value("taskgate_certificate_expires_seconds", &[("route", "")]), 3_471_292_800.0);
    // and the old ones live on.
    open.send(ASK).await;
    assert_eq!(open.answer().await.status, 404);
    // Given files that are none, or a certificate whose time is over, then nothing changes.
    let before = metrics.value("taskgate_certificate_reloads_total", &[("outcome", "refused")]);
    fs::write(authority.path("tls.crt"), authority.issue(2021).0).unwrap();
    gateway
        .counted(|metrics| metrics.value("taskgate_certificate_reloads_total", &[("outcome", "refused")]) > before)
        .await;
    assert_eq!(shown(&gateway, &authority).await, second);
    open.send(ASK).await;
    assert_eq!(open.answer().await.status, 404);
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_let_go() {
    let authority = authority();
    let patience = Patience { handshake: SHORT, ..Patience::default() };
    let gateway = secured(&authority).timing(Timing { patience, ..Timing::default() }).start().await;
    let (mut silent, mut begun) = (Connection::open(gateway.address).await, Connection::open(gateway.address).await);
    // The beginning of a record that says that it will be a long hello.
    begun.send([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await;
    silent.closed().await;
    begun.closed().await;
    let client = gateway.client().secure(&authority, false).open().await;
    assert_eq!(text_of(&client.call("echo", json!({"text": "served"})).await), "served");
}

/// After the handshake the clock of the head runs, whatever TLS itself has sent.
#[tokio::test]
async fn silence_inside_tls_is_let_go() {
    let authority = authority();
    let patience = Patience { head: SHORT, ..Patience::default() };
    let gateway = secured(&authority).timing(Timing { patience, ..Timing::default() }).start().await;
    for begun in ["", "P", "PRI * HTTP/2", "POST /mcp HTTP/1.1\r\nx: "] {
        let mut connection = Connection::on(shake(&gateway, authority.trust()).await.unwrap());
        connection.send(begun).await;
        connection.closed().await;
    }
    gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) == 0.0).await;
}

/// What is left in TLS when the last bytes have been taken from HTTP counts as well: nobody else waits for it.
#[tokio::test]
async fn a_client_that_stops_reading_inside_tls_is_let_go() {
    let authority = authority();
    let patience = Patience { reader: SHORT, ..Patience::default() };
    let gateway = secured(&authority).timing(Timing { patience, ..Timing::default() }).start().await;
    let client = gateway.client().secure(&authority, false).open().await;
    let params = json!({"name": "big", "arguments": {"bytes": 32 * 1024 * 1024}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut stalled = Connection::on(shake(&gateway, authority.trust()).await.unwrap());
    stalled.send(format!("{head}\r\n{body}")).await;
    gateway.started("big", 1).await;
    gateway.counted(|metrics| metrics.value("taskgate_upstream_in_flight", &[]) == 0.0).await;
    gateway.counted(|metrics| metrics.value("taskgate_connections", &[]) == 1.0).await;
}

#[tokio::test]
async fn plain_http_gets_an_alert_and_a_clean_end() {
    let authority = authority();
    let gateway = secured(&authority).start().await;
    for bytes in [ASK.to_owned(), "x".repeat(20_000)] {
        let mut connection = Connection::open(gateway.address).await;
        connection.send(bytes).await;
        let rest = connection.rest().await.expect("the connection was reset");
        // A fatal alert, in TLS' own form.
        assert_eq!((rest.first(), rest.get(5)), (Some(&0x15), Some(&2)), "{rest:?}");
    }
}

#[tokio::test]
async fn no_more_connections_than_may_be() {
    let gateway = Gateway::setup().timing(Timing { connections: 2, ..Timing::default() }).start().await;
    let (first, mut second) = (Connection::open(gateway.address).await, Connection::open(gateway.address).await);
    second.send(ASK).await;
    assert_eq!(second.answer().await.status, 404);
    let mut third = Connection::open(gateway.address).await;
    third.send(ASK).await;
    // Whoever came first is served on,
    for _ in 0..20 {
        second.send(ASK).await;
        assert_eq!(second.answer().await.status, 404);
        assert!(gateway.metrics().await.value("taskgate_connections", &[]) <= 2.0);
    }
    // and whoever waits, when there is a place.
    drop(first);
    assert_eq!(third.answer().await.status, 404);
}

/// A TLS end in front of a server, which takes only clients that show a certificate.
async fn guarded(authority: &Authority, server: &Server, jobs: &Jobs) -> String {
    let (cert, key) = authority.issue(2090);
    let provider = Arc::new(default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(authority.roots(), Arc::clone(&provider)).build().unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = builder.with_client_cert_verifier(verifier).with_single_cert(vec![der(&cert)], key).unwrap();
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (address, behind, spawner) = (listener.local_addr().unwrap(), server.addr(), jobs.clone());
    jobs.spawn("guard", async move {
        while let Some(Ok((stream, _))) = spawner.stopping().run_until_cancelled(listener.accept()).await {
            let acceptor = acceptor.clone();
            spawner.spawn("guarded", async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut server = TcpStream::connect(behind).await.unwrap();
                drop(copy_bidirectional(&mut stream, &mut server).await);
            });
        }
    });
    format!("https://localhost:{}/mcp", address.port())
}

#[tokio::test]
async fn servers_are_trusted_and_shown_certificates_as_configured() {
    let (authority, other, jobs) = (authority(), Authority::new(), Jobs::default());
    other.write("tls", 2090);
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let url = guarded(&authority, &server, &jobs).await;
    let ca = |authority: &Authority| format!("ca: \"{}\"", authority.file().display());
    for (tls, is_served) in [
        (format!("{}, {}", ca(&authority), authority.keys("tls")), true),
        // Not shown, shown from a stranger, not trusted, and trusted by browsers alone.
        (ca(&authority), false),
        (format!("{}, {}", ca(&authority), other.keys("tls")), false),
        (format!("{}, {}", ca(&other), authority.keys("tls")), false),
        (authority.keys("tls"), false),
    ] {
        let gateway = Gateway::setup().in_front_of(&url).upstream(&format!("tls: {{{tls}}}")).start().await;
        let (_, answer) = gateway.client().initialize().await;
        let message = answer.response().await;
        assert_eq!(message["result"].is_object(), is_served, "{message}");
        assert!(is_served || message["error"]["data"]["reason"] == "upstream_unreachable", "{message}");
    }
    jobs.stopping().cancel();
}

/// With TLS pieces are handed over by a job, and others join them: they stay in order and complete.
#[tokio::test]
async fn a_burst_inside_tls_arrives_in_order() {
    let (authority, jobs) = (authority(), Jobs::default());
    let server = Server::start_on_loopback(Options::default()).await.unwrap();
    let url = guarded(&authority, &server, &jobs).await;
    let tls = format!("tls: {{ca: \"{}\", {}}}", authority.file().display(), authority.keys("tls"));
    let gateway = Gateway::setup().in_front_of(&url).upstream(&tls).start().await;
    let client = gateway.open().await;
    let call = client.request("tools/call", json!({"name": "log", "arguments": {"messages": 2000}})).await;
    let messages = call.messages().await;
    let numbers: Vec<u64> =
        messages.iter().filter_map(|message| message["params"]["data"]["number"].as_u64()).collect();
    assert_eq!(numbers, (1..=2000).collect::<Vec<_>>());
    assert_eq!(text_of(messages.last().unwrap()), "logged");
    jobs.stopping().cancel();
}

#[tokio::test]
async fn sighup_takes_new_certificates() {
    let (authority, server) = (authority(), Server::start_on_loopback(Options::default()).await.unwrap());
    let routes = format!(
        "routes: [{{name: a, path: /mcp, upstream: {{url: \"{}\", tls: {{}}}}}}, {{name: b, path: /b, upstream: {{url: \
         \"https://localhost:1/mcp\", tls: {{{}}}}}}}]",
        server.url(),
        authority.keys("tls")
    );
    let mut binary = Binary::start(&routes.replace(", tls: {}", "")).await;
    binary.signal(Signal::HUP);
    binary.says("the certificate is the same as before").await;
    authority.write("tls", 2085);
    binary.signal(Signal::HUP);
    binary.says("a new certificate is in use route=\"b\" valid_until=2085-01-01T00:00:00.000Z").await;
    fs::write(authority.path("tls.key"), "s3cret").unwrap();
    binary.signal(Signal::HUP);
    binary.says("a new certificate is not taken").await;
    assert_eq!(binary.metrics().await.value("taskgate_certificate_reloads_total", &[]), 2.0);
}
