//! TLS: certificates and keys from PEM files, what is wrong with them, and new ones in their place while the process runs.
//!
//! Versions 1.2 and 1.3 on both sides, with ring. No key, and no part of one, is in any error or `Debug`.

mod validity;
mod watch;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use hyper_rustls::ConfigBuilderExt;
use ring::digest::{Context, SHA256};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring as provider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};

use crate::clock::Timestamp;

pub use tokio_rustls::server::TlsStream;
pub use watch::{Watch, Watched};

/// Far more than any chain.
const LONGEST_FILE: u64 = 1 << 20;

/// Where a certificate and its key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The certificate chain, PEM.
    pub cert: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// What is wrong with a certificate or its key, by the file that is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The certificate's file.
    #[error("the certificate {0}")]
    Cert(String),
    /// The key's file.
    #[error("the key {0}")]
    Key(String),
}

/// A certificate chain and its key, as they stood in the files.
pub struct Pair {
    certified: Arc<CertifiedKey>,
    /// From when the certificate is valid.
    pub valid_from: Timestamp,
    /// The last moment at which it is.
    pub valid_until: Timestamp,
    digest: [u8; 32],
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("valid_until", &self.valid_until).finish_non_exhaustive()
    }
}

impl Pair {
    /// Reads a pair that can be used at that time.
    ///
    /// # Errors
    /// [`Defect`] when a file can't be read, is no PEM, the two don't belong together, or the certificate has expired.
    pub fn read(files: &Files, now: Timestamp) -> Result<Self, Defect> {
        let (cert, key) = contents(files)?;
        Self::of(&cert, &key, now)
    }

    fn of(cert: &[u8], key: &[u8], now: Timestamp) -> Result<Self, Defect> {
        let of_cert = |message: &str| Defect::Cert(message.to_owned());
        let chain = certificates(cert).map_err(Defect::Cert)?;
        let (valid_from, valid_until) = chain
            .first()
            .and_then(|first| validity::of(first))
            .ok_or_else(|| of_cert("is no X.509 certificate that can be read"))?;
        if valid_until < now {
            return Err(Defect::Cert(format!("expired at {valid_until}")));
        }
        // The library's words could repeat a line of the file.
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|_| Defect::Key(no_key(key).to_owned()))?;
        let private = crypto().key_provider.load_private_key(private).map_err(|_| {
            Defect::Key("can't be used; it must be an ECDSA P-256 or P-384, Ed25519 or RSA key".to_owned())
        })?;
        let certified = CertifiedKey::new(chain, private);
        certified.keys_match().map_err(|_| Defect::Key("does not belong to the certificate".to_owned()))?;
        Ok(Self { certified: Arc::new(certified), valid_from, valid_until, digest: digest(cert, key) })
    }
}

fn no_key(text: &[u8]) -> &'static str {
    if text.windows(9).any(|window| window == b"ENCRYPTED") {
        "is encrypted, and taskgate has no passphrase for it"
    } else {
        "has no private key in PEM (`-----BEGIN PRIVATE KEY-----`)"
    }
}

fn contents(files: &Files) -> Result<(Vec<u8>, Vec<u8>), Defect> {
    Ok((read(&files.cert).map_err(Defect::Cert)?, read(&files.key).map_err(Defect::Key)?))
}

/// One digest over both, each with its length before it.
fn digest(cert: &[u8], key: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in [cert, key] {
        context.update(&part.len().to_be_bytes());
        context.update(part);
    }
    *context.finish().as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// The bytes of a file, which is one: opening a pipe would wait for its writer.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error| format!("can't be read: {error}");
    if !path.metadata().map_err(cannot)?.is_file() {
        return Err("can't be read: it is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut bytes));
    if read.map_err(cannot)? as u64 > LONGEST_FILE {
        return Err("has more than 1 MiB".to_owned());
    }
    Ok(bytes)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err("has no certificate in PEM (`-----BEGIN CERTIFICATE-----`)".to_owned()),
    }
}

/// Certificate authorities from a file.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&read(path)?)? {
        roots.add(certificate).map_err(|_| "has a certificate that is no authority".to_owned())?;
    }
    Ok(roots)
}

fn crypto() -> Arc<CryptoProvider> {
    Arc::new(provider::default_provider())
}

/// A certificate and key in use. New ones take their place; connections keep what they began with.
pub struct Identity {
    files: Files,
    current: RwLock<State>,
}

struct State {
    pair: Arc<Pair>,
    /// What stood in the files when they were last looked at, good or bad.
    seen: Option<[u8; 32]>,
}

/// What a look at the files brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// They say what they said the last time.
    Same,
    /// A new pair is in use.
    Replaced,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// As [`Pair::read`].
    pub fn load(files: Files, now: Timestamp) -> Result<Arc<Self>, Defect> {
        let pair = Pair::read(&files, now)?;
        let seen = Some(pair.digest);
        Ok(Arc::new(Self { files, current: RwLock::new(State { pair: Arc::new(pair), seen }) }))
    }

    /// The pair in use.
    #[must_use]
    pub fn pair(&self) -> Arc<Pair> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).pair)
    }

    /// Reads the files again. By content, because a mounted secret changes by a link to another folder, and a pair that was
    /// written in two steps is good after the second.
    ///
    /// # Errors
    /// As [`Pair::read`], once for each content; the pair in use stays.
    pub fn look(&self, now: Timestamp) -> Result<Look, Defect> {
        let read = contents(&self.files);
        let seen = read.as_ref().ok().map(|(cert, key)| digest(cert, key));
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if seen == current.seen {
            return Ok(Look::Same);
        }
        current.seen = seen;
        let (cert, key) = read?;
        let pair = Pair::of(&cert, &key, now)?;
        current.pair = Arc::new(pair);
        Ok(Look::Replaced)
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.pair().certified))
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.pair().certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// How connections of clients begin: with this identity, and HTTP/2 or HTTP/1.1 as they choose.
///
/// # Errors
/// When the cryptography has none of the versions, which it has.
pub fn acceptor(identity: Arc<Identity>) -> Result<Acceptor, tokio_rustls::rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
}

/// Begins TLS on connections of clients.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl Acceptor {
    /// Shakes hands, for as long as the client takes.
    ///
    /// # Errors
    /// When the client speaks no TLS, or none that is spoken here: with its connection, on which an alert has been sent.
    pub async fn accept(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, (io::Error, TcpStream)> {
        self.0.accept(stream).into_fallible().await
    }
}

/// How connections to one server begin.
#[derive(Clone)]
pub struct Client(ClientConfig);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Trusts these authorities, or without any those that browsers trust, and shows this identity where one is asked for.
    ///
    /// # Errors
    /// As [`acceptor`].
    pub fn new(
        authorities: Option<RootCertStore>,
        identity: Option<Arc<Identity>>,
    ) -> Result<Self, tokio_rustls::rustls::Error> {
        let builder = ClientConfig::builder_with_provider(crypto()).with_safe_default_protocol_versions()?;
        let builder = match authorities {
            Some(authorities) => builder.with_root_certificates(authorities),
            None => builder.with_webpki_roots(),
        };
        Ok(Self(match identity {
            Some(identity) => builder.with_client_cert_resolver(identity),
            None => builder.with_no_client_auth(),
        }))
    }

    /// The library's form of it.
    #[must_use]
    pub fn config(&self) -> ClientConfig {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests;
