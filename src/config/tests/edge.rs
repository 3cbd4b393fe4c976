//! Certificates and proxies: what is wrong with them, and what they mean.

use std::{fs, path::Path, time::Duration};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::{ROUTE, mistakes, settings, upstream_with};
use crate::clock::Clock;
use crate::config::{Errors, Settings, UpstreamTarget, describe, parse};
use crate::tls::Files;

/// A folder with pairs: `good`, `old` whose time is over, and `soon` whose time is over soon.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("good", (2099, 1, 1));
        folder.write("old", (2021, 1, 1));
        // `YYYY-MM-DD...`
        let soon = Clock::system().now().plus(Duration::from_hours(5 * 24)).to_string();
        let number = |place: std::ops::Range<usize>| soon[place].parse::<i32>().unwrap();
        let part = |place| u8::try_from(number(place)).unwrap();
        folder.write("soon", (number(0..4), part(5..7), part(8..10)));
        folder
    }

    fn write(&self, name: &str, until: (i32, u8, u8)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        fs::write(self.path().join(format!("{name}.crt")), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(self.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn read(&self, text: &str) -> Result<Settings, Errors> {
        parse(text, "taskgate.yaml", self.0.path(), &|_| None)
    }

    fn mistakes(&self, text: &str) -> Vec<String> {
        match self.read(text) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.problems().iter().map(ToString::to_string).collect(),
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn upstream(tls: &str) -> String {
    upstream_with(&format!("    tls: {tls}\n")).replace("http://u", "https://u")
}

#[test]
fn certificates_are_found_beside_the_file() {
    let folder = Folder::new();
    let files = |name: &str| Files {
        cert: folder.path().join(format!("{name}.crt")),
        key: folder.path().join(format!("{name}.key")),
    };
    let listen = folder.read(&format!("listen: {{tls: {{cert: good.crt, key: good.key}}}}\n{ROUTE}")).unwrap();
    assert_eq!(listen.listen.tls, Some(files("good")));
    assert!(listen.warnings.is_empty());
    assert_eq!(listen.listen.url("/mcp"), "https://127.0.0.1:8080/mcp");
    assert!(describe(&listen).contains("127.0.0.1:8080 with TLS, bodies"), "{}", describe(&listen));
    let settings = folder.read(&upstream("{ca: good.crt, cert: soon.crt, key: soon.key}")).unwrap();
    let UpstreamTarget::Url { tls, .. } = &settings.routes[0].upstream.target else { panic!() };
    assert_eq!((&tls.authorities, &tls.identity), (&Some(folder.path().join("good.crt")), &Some(files("soon"))));
    let said = describe(&settings);
    assert!(said.contains("https://u/mcp; trusts its own authorities and shows a certificate\n"), "{said}");
    assert!(said.contains("warning      6:31: routes[0].upstream.tls.cert: expires soon: at 2"), "{said}");
}

#[test]
fn certificates_that_cannot_be_used_are_mistakes() {
    let folder = Folder::new();
    let listen = |tls: &str| folder.mistakes(&format!("listen: {{tls: {{{tls}}}}}\n{ROUTE}"));
    for (tls, expected) in [
        ("cert: good.crt", "1:15: listen.tls.key: `key` is missing"),
        ("key: good.key", "1:15: listen.tls.cert: `cert` is missing"),
        ("cert: no.crt, key: good.key", "1:22: listen.tls.cert: can't be read: No such file or directory (os error 2)"),
        ("cert: good.crt, key: no.key", "1:37: listen.tls.key: can't be read: No such file or directory (os error 2)"),
        ("cert: good.crt, key: old.key", "1:37: listen.tls.key: does not belong to the certificate"),
        ("cert: old.crt, key: old.key", "1:22: listen.tls.cert: expired at 2021-01-01T00:00:00.000Z"),
        (
            "cert: good.key, key: good.key",
            "1:22: listen.tls.cert: has no certificate in PEM (`-----BEGIN CERTIFICATE-----`)",
        ),
    ] {
        assert_eq!(listen(tls), [expected], "{tls}");
    }
    for (tls, expected) in [
        ("{cert: good.crt}", "6:10: routes[0].upstream.tls: `cert` without `key`"),
        ("{key: good.key}", "6:10: routes[0].upstream.tls: `key` without `cert`"),
        (
            "{ca: good.key}",
            "6:15: routes[0].upstream.tls.ca: has no certificate in PEM (`-----BEGIN CERTIFICATE-----`)",
        ),
    ] {
        assert_eq!(folder.mistakes(&upstream(tls)), [expected], "{tls}");
    }
    assert_eq!(
        folder.mistakes(&upstream_with("    tls: {ca: good.crt}\n")),
        ["6:10: routes[0].upstream.tls: means nothing for a server without TLS: its URL starts with `http://`"]
    );
    assert_eq!(
        mistakes("routes:\n- name: a\n  path: /mcp\n  upstream: {command: [x], tls: {ca: ca.pem}}\n"),
        ["4:33: routes[0].upstream.tls: means nothing for a `command`"]
    );
}

#[test]
fn proxies_are_networks_or_addresses() {
    let text = |proxies: &str| format!("listen: {{trusted_proxies: [{proxies}]}}\n{ROUTE}");
    let listen = settings(&text("10.0.0.0/8, 192.0.2.7, \"fd00::/8\", \"::1\"")).listen;
    let proxies: Vec<String> = listen.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(proxies, ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8", "::1/128"]);
    for (proxy, said) in [
        ("10.0.0.0/33", "expected a network such as `10.0.0.0/8` or an address, found `10.0.0.0/33`"),
        ("proxy.example", "expected a network such as `10.0.0.0/8` or an address, found `proxy.example`"),
        ("10.0.0.1/8", "`10.0.0.1/8` has more than the network in it; did you mean `10.0.0.0/8`?"),
    ] {
        assert_eq!(mistakes(&text(proxy)), [format!("1:28: listen.trusted_proxies[0]: {said}")]);
    }
}
