//! Pairs of files, good and bad, and new ones in their place.

use std::fs;
use std::os::unix::fs::symlink;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

/// A self-signed certificate and its key, valid to the end of that year.
fn pair(until: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 12, 31);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn at(text: &str) -> Timestamp {
    let since = humantime::parse_rfc3339(text).unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap())
}

fn now() -> Timestamp {
    at("2026-01-01T00:00:00Z")
}

fn files(folder: &TempDir) -> Files {
    Files { cert: folder.path().join("tls.crt"), key: folder.path().join("tls.key") }
}

fn write(files: &Files, (cert, key): &(String, String)) {
    fs::write(&files.cert, cert).unwrap();
    fs::write(&files.key, key).unwrap();
}

#[test]
fn validity_is_read_in_both_forms_of_time() {
    for (until, expected) in
        [(2030, "2030-12-31T00:00:00Z"), (2049, "2049-12-31T00:00:00Z"), (2050, "2050-12-31T00:00:00Z")]
    {
        let pair = Pair::of(pair(until).0.as_bytes(), b"", now());
        // The key is looked at after the certificate.
        assert_eq!(pair.unwrap_err(), Defect::Key(no_key(b"").to_owned()));
        let (cert, key) = self::pair(until);
        let pair = Pair::of(cert.as_bytes(), key.as_bytes(), now()).unwrap();
        assert_eq!((pair.valid_from, pair.valid_until), (at("2020-01-01T00:00:00Z"), at(expected)));
    }
}

#[test]
fn what_is_no_certificate_has_no_validity() {
    let (cert, _) = pair(2030);
    let der = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap().to_vec();
    assert!(validity::of(&der).is_some());
    // Cut anywhere before its dates, or with any byte of its beginning changed, it is read to no harm.
    for length in 0..der.len() {
        assert!(validity::of(&der[..length]).is_none(), "{length}");
    }
    for index in 0..der.len().min(120) {
        for value in [0, 0x30, 0x80, 0x84, 0x89, 0xff] {
            let mut changed = der.clone();
            changed[index] = value;
            validity::of(&changed);
        }
    }
}

#[test]
fn each_defect_names_its_file_and_nothing_in_it() {
    let folder = TempDir::new().unwrap();
    let files = files(&folder);
    let (good, other) = (pair(2030), pair(2030));
    let defect = |cert: &str, key: &str| {
        write(&files, &(cert.to_owned(), key.to_owned()));
        Pair::read(&files, now()).unwrap_err().to_string()
    };
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let broken = format!("-----BEGIN PRIVATE KEY-----\ns3cret\n{}", good.1);
    for (cert, key, said) in [
        ("", good.1.as_str(), "the certificate has no certificate in PEM"),
        (&good.1, &good.1, "the certificate has no certificate in PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &good.1, "the certificate is no X.509"),
        (&pair(2025).0, &good.1, "the certificate expired at 2025-12-31T00:00:00"),
        (&good.0, "", "the key has no private key in PEM"),
        (&good.0, &good.0, "the key has no private key in PEM"),
        (&good.0, &broken, "the key "),
        (&good.0, encrypted, "the key is encrypted"),
        (&good.0, &other.1, "the key does not belong to the certificate"),
    ] {
        let defect = defect(cert, key);
        assert!(defect.starts_with(said), "{defect}");
        assert!(!defect.contains("s3cret"), "{defect}");
    }
    let absent = Files { key: folder.path().join("absent"), ..files.clone() };
    assert!(Pair::read(&absent, now()).unwrap_err().to_string().starts_with("the key can't be read: No such file"));
    let folder_instead = Files { cert: folder.path().to_owned(), ..files };
    assert_eq!(
        Pair::read(&folder_instead, now()).unwrap_err().to_string(),
        "the certificate can't be read: it is not a file"
    );
}

#[test]
fn new_files_are_taken_when_they_are_good() {
    let folder = TempDir::new().unwrap();
    let files = files(&folder);
    let (first, second) = (pair(2030), pair(2031));
    write(&files, &first);
    let identity = Identity::load(files.clone(), now()).unwrap();
    let until = || identity.pair().valid_until;
    assert_eq!(identity.look(now()), Ok(Look::Same));
    // Written in two steps: between them they don't fit, which is said once.
    fs::write(&files.cert, &second.0).unwrap();
    assert!(matches!(identity.look(now()), Err(Defect::Key(_))));
    assert_eq!(identity.look(now()), Ok(Look::Same));
    assert_eq!(until(), at("2030-12-31T00:00:00Z"));
    fs::write(&files.key, &second.1).unwrap();
    assert_eq!(identity.look(now()), Ok(Look::Replaced));
    assert_eq!(until(), at("2031-12-31T00:00:00Z"));
    // Gone for a while.
    fs::remove_file(&files.key).unwrap();
    assert!(matches!(identity.look(now()), Err(Defect::Key(_))));
    assert_eq!(identity.look(now()), Ok(Look::Same));
    write(&files, &second);
    assert_eq!(identity.look(now()), Ok(Look::Replaced));
}

/// As a mounted secret changes: files behind a link to a folder, which is swapped.
#[test]
fn a_swapped_link_is_noticed() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("1"), folder.path().join("2"));
    for (place, until) in [(&first, 2030), (&second, 2031)] {
        fs::create_dir(place).unwrap();
        write(&Files { cert: place.join("tls.crt"), key: place.join("tls.key") }, &pair(until));
    }
    symlink(&first, folder.path().join("data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        symlink(folder.path().join("data").join(name), folder.path().join(name)).unwrap();
    }
    let identity = Identity::load(files(&folder), now()).unwrap();
    symlink(&second, folder.path().join("new")).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("data")).unwrap();
    assert_eq!(identity.look(now()), Ok(Look::Replaced));
    assert_eq!(identity.pair().valid_until, at("2031-12-31T00:00:00Z"));
}

#[test]
fn authorities_are_certificates() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("ca.pem");
    let (cert, key) = pair(2030);
    fs::write(&path, format!("{cert}{}", pair(2030).0)).unwrap();
    assert_eq!(authorities(&path).unwrap().len(), 2);
    fs::write(&path, &key).unwrap();
    assert!(authorities(&path).unwrap_err().starts_with("has no certificate in PEM"));
}

#[test]
fn no_key_is_shown() {
    let (cert, key) = pair(2030);
    let shown = format!("{:?}", Pair::of(cert.as_bytes(), key.as_bytes(), now()).unwrap());
    assert!(shown.starts_with("Pair { valid_until: ") && shown.ends_with(".. }"), "{shown}");
    let folder = TempDir::new().unwrap();
    write(&files(&folder), &(cert, key));
    let identity = Identity::load(files(&folder), now()).unwrap();
    assert!(format!("{identity:?}").starts_with("Identity { files: Files { cert: "));
    let client = Client::new(None, Some(identity)).unwrap();
    assert_eq!(format!("{client:?}"), "Client");
}
