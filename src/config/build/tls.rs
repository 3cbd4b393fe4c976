//! Certificates and keys: whether they are there, fit each other and are still valid.

use std::{path::PathBuf, time::Duration};

use super::Builder;
use crate::clock::{Clock, Timestamp};
use crate::config::{
    raw,
    settings::{HttpUrl, UpstreamTls},
    tree::Place,
};
use crate::tls::{self, Defect, Files, Pair};

/// So long before a certificate's end somebody should know.
const SOON: Duration = Duration::from_hours(30 * 24);

impl Builder<'_> {
    /// A certificate and its key, which can be used now.
    pub(super) fn identity(&mut self, cert: Option<String>, key: Option<String>, at: &Place<'_>) -> Option<Files> {
        // What is missing where both must be has been reported.
        let files = Files { cert: self.base.join(cert?), key: self.base.join(key?) };
        let now = Clock::system().now();
        match Pair::read(&files, now) {
            Ok(pair) => {
                self.warn_of_times(&pair, now, &at.key("cert"));
                Some(files)
            }
            Err(Defect::Cert(message)) => {
                self.problems.error(&at.key("cert"), message);
                None
            }
            Err(Defect::Key(message)) => {
                self.problems.error(&at.key("key"), message);
                None
            }
        }
    }

    fn warn_of_times(&mut self, pair: &Pair, now: Timestamp, at: &Place<'_>) {
        if pair.valid_from > now {
            self.problems.warn(at, format!("not valid before {}", pair.valid_from));
        }
        if pair.valid_until < now.plus(SOON) {
            self.problems.warn(at, format!("expires soon: at {}", pair.valid_until));
        }
    }

    /// Certificates of the connection to a server.
    pub(super) fn upstream_tls(&mut self, raw: Option<raw::UpstreamTls>, url: &HttpUrl, at: &Place<'_>) -> UpstreamTls {
        let Some(raw::UpstreamTls { ca, cert, key }) = raw else { return UpstreamTls::default() };
        if url.uri().scheme_str() != Some("https") {
            self.problems.error(at, "means nothing for a server without TLS: its URL starts with `http://`");
        }
        match (&cert, &key) {
            (Some(_), None) => self.problems.error(at, "`cert` without `key`"),
            (None, Some(_)) => self.problems.error(at, "`key` without `cert`"),
            _ => {}
        }
        let authorities = ca.and_then(|ca| self.authorities(self.base.join(ca), &at.key("ca")));
        UpstreamTls { authorities, identity: self.identity(cert, key, at) }
    }

    fn authorities(&mut self, path: PathBuf, at: &Place<'_>) -> Option<PathBuf> {
        self.check(tls::authorities(&path), at).map(|_| path)
    }
}
