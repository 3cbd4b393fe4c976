//! A certificate authority of a test, and the files of what it issues.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore, client::WantsClientCert};

/// An authority with a folder.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, folder: TempDir::new().unwrap() };
        std::fs::write(authority.path("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file with its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for this machine and its key, as PEM, valid to the beginning of that year.
    pub(crate) fn issue(&self, until: i32) -> (String, String) {
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The same in the files `NAME.crt` and `NAME.key`.
    pub(crate) fn write(&self, name: &str, until: i32) {
        let (cert, key) = self.issue(until);
        std::fs::write(self.path(&format!("{name}.crt")), cert).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key).unwrap();
    }

    /// The inside of `tls` for those files.
    pub(crate) fn keys(&self, name: &str) -> String {
        let file = |ending: &str| shown(&self.path(&format!("{name}.{ending}")));
        format!("cert: {}, key: {}", file("crt"), file("key"))
    }

    /// What a server that trusts it, or a client, begins with.
    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.issuer.pem().as_bytes()).unwrap()).unwrap();
        Arc::new(roots)
    }

    /// A client that trusts it.
    pub(crate) fn trust(&self) -> ClientConfig {
        builder(self.roots()).with_no_client_auth()
    }

    /// A client that trusts nobody.
    pub(crate) fn nobodys() -> ClientConfig {
        builder(Arc::new(RootCertStore::empty())).with_no_client_auth()
    }
}

fn builder(roots: Arc<RootCertStore>) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots)
}

/// A path as YAML.
pub(crate) fn shown(path: &Path) -> String {
    format!("\"{}\"", path.display())
}
