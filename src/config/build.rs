//! From what a file says to what it means: every rule about values.
//!
//! A mistake is reported and leaves a hole (`None`); the rest goes on, so that all mistakes are found. Whatever comes
//! out of a file with mistakes is thrown away.

mod auth;
mod authorize;
mod credentials;
mod routes;
mod store;
mod tenants;
mod tls;

use std::{num::NonZeroU32, path::Path, time::Duration};

use super::{
    problem::Problems,
    raw,
    secret::{SealKey, Secret},
    settings::{AdminSettings, ListenSettings, SecretsSettings, SessionSettings, Settings, StoreSettings},
    tree::Place,
    units::{self, ByteSize, Rate, RateLimit},
    values,
};

use credentials::Callers;

/// Builds settings, noting what is wrong.
pub(super) struct Builder<'a> {
    pub(super) problems: &'a mut Problems,
    /// What relative paths start from.
    pub(super) base: &'a Path,
}

impl Builder<'_> {
    /// Settings without their warnings.
    pub(super) fn settings(&mut self, raw: raw::File, at: &Place<'_>) -> Option<Settings> {
        let listen = self.listen(raw.listen, &at.key("listen"));
        let admin = self.admin(raw.admin, &at.key("admin"));
        if let (Some(listen), Some(admin)) = (&listen, &admin)
            && listen.address == admin.address
            && admin.address.port() != 0
        {
            self.problems.error(&at.key("admin").key("address"), "the same as `listen.address`");
        }
        let secrets = self.secrets(raw.secrets, &at.key("secrets"));
        let store = self.store(raw.store, &secrets, at);
        let replica = self.replica(raw.replica, store.as_ref(), &at.key("replica"));
        let sessions = self.sessions(&raw.sessions, &at.key("sessions"));
        let drain = self.duration(&raw.shutdown.drain, &at.key("shutdown").key("drain"));
        let tenants = self.tenants(raw.tenants, raw.auth.as_ref(), &at.key("tenants"));
        let callers = Callers::of(raw.auth.as_ref());
        let auth = raw.auth.map(|auth| self.auth(auth, &at.key("auth")));
        if !callers.have_tokens {
            self.warn_scopes(&raw.routes, &at.key("routes"));
        }
        if let (Some(listen), Some(Some(auth))) = (&listen, &auth) {
            self.check_public_url(listen, auth, &at.key("auth"));
        }
        if let Some(StoreSettings::Memory) = store {
            self.warn_forgotten(&raw.routes, &at.key("routes"));
        }
        let routes = self.routes(raw.routes, callers, &at.key("routes"));
        Some(Settings {
            listen: listen?,
            admin: admin?,
            store: store?,
            replica: replica?,
            secrets,
            sessions: sessions?,
            drain: drain?,
            auth: match auth {
                Some(auth) => Some(auth?),
                None => None,
            },
            tenants: tenants?,
            routes,
            warnings: Vec::new(),
        })
    }

    fn listen(&mut self, raw: raw::Listen, at: &Place<'_>) -> Option<ListenSettings> {
        let address = self.check(values::address(&raw.address), &at.key("address"));
        let public_url = raw.public_url.and_then(|url| self.check(values::base_url(&url), &at.key("public_url")));
        let allowed_origins =
            raw.allowed_origins.map(|entries| self.each(&entries, &at.key("allowed_origins"), values::origin));
        let allowed_hosts =
            raw.allowed_hosts.map(|entries| self.each(&entries, &at.key("allowed_hosts"), values::allowed_host));
        let tls = raw.tls.and_then(|tls| self.identity(tls.cert, tls.key, &at.key("tls")));
        let trusted_proxies = self.each(&raw.trusted_proxies, &at.key("trusted_proxies"), values::network);
        let max_body = self.size(&raw.max_body, &at.key("max_body"))?;
        Some(ListenSettings {
            address: address?,
            tls,
            public_url,
            allowed_origins,
            allowed_hosts,
            trusted_proxies,
            max_body,
        })
    }

    fn admin(&mut self, raw: raw::Admin, at: &Place<'_>) -> Option<AdminSettings> {
        let address = self.check(values::address(&raw.address), &at.key("address"));
        let token_at = at.key("token");
        let token = raw.token.and_then(|token| self.secret(token, &token_at));
        if let Some(token) = &token
            && !token.reveal().bytes().all(|byte| byte.is_ascii_graphic())
        {
            self.problems.error(&token_at, "a token has only visible ASCII characters and no spaces");
        }
        let address = address?;
        if token.is_none() && !token_at.is_given() && !address.ip().is_loopback() {
            let message = "needed, because the admin address can be reached from other machines";
            self.problems.error(&token_at, message);
        }
        Some(AdminSettings { address, token })
    }

    fn secrets(&mut self, raw: raw::Secrets, at: &Place<'_>) -> SecretsSettings {
        let key_at = at.key("key");
        let key = raw.key.and_then(|key| self.seal_key(key, &key_at));
        let at = at.key("previous");
        if !raw.previous.is_empty() && !key_at.is_given() {
            self.problems.error(&at, "earlier keys without a `key`");
        }
        let mut previous = Vec::new();
        for (index, earlier) in raw.previous.into_iter().enumerate() {
            let at = at.item(index);
            let Some(earlier) = self.seal_key(earlier, &at) else { continue };
            if key.as_ref() == Some(&earlier) || previous.contains(&earlier) {
                self.problems.error(&at, "the same key again");
            }
            previous.push(earlier);
        }
        SecretsSettings { key, previous }
    }

    fn seal_key(&mut self, raw: raw::Secret, at: &Place<'_>) -> Option<SealKey> {
        let text = self.secret(raw, at)?;
        self.check(SealKey::parse(text.reveal()), at)
    }

    fn sessions(&mut self, raw: &raw::Sessions, at: &Place<'_>) -> Option<SessionSettings> {
        Some(SessionSettings { idle: self.positive(&raw.idle, &at.key("idle"))?, max: count(raw.max) })
    }

    /// The value, or a report of what is wrong with it.
    fn check<T>(&mut self, value: Result<T, impl Into<String>>, at: &Place<'_>) -> Option<T> {
        value.map_err(|message| self.problems.error(at, message)).ok()
    }

    fn each<T>(&mut self, entries: &[String], at: &Place<'_>, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let values = entries.iter().enumerate().map(|(index, entry)| self.check(parse(entry), &at.item(index)));
        values.flatten().collect()
    }

    /// A secret that isn't empty.
    fn secret(&mut self, raw: raw::Secret, at: &Place<'_>) -> Option<Secret> {
        let secret = match raw {
            raw::Secret::Text(text) => Secret::new(text),
            raw::Secret::File(raw::SecretFile { file }) => {
                self.check(Secret::read(&self.base.join(file)), &at.key("file"))?
            }
        };
        if secret.reveal().is_empty() {
            self.problems.error(at, "is empty");
            return None;
        }
        Some(secret)
    }

    fn duration(&mut self, raw: &raw::Duration, at: &Place<'_>) -> Option<Duration> {
        self.check(units::parse_duration(&raw.0), at)
    }

    /// A duration that isn't zero.
    fn positive(&mut self, raw: &raw::Duration, at: &Place<'_>) -> Option<Duration> {
        let duration = self.duration(raw, at)?;
        if duration.is_zero() {
            self.problems.error(at, "must be more than zero");
            return None;
        }
        Some(duration)
    }

    /// A size that isn't zero.
    fn size(&mut self, raw: &raw::Size, at: &Place<'_>) -> Option<ByteSize> {
        let size = self.check(ByteSize::parse(&raw.0), at)?;
        if size.bytes() == 0 {
            self.problems.error(at, "must be more than zero");
            return None;
        }
        Some(size)
    }

    fn limit(&mut self, raw: &raw::Limit, at: &Place<'_>) -> Option<RateLimit> {
        let rate = self.check(Rate::parse(&raw.rate.as_ref()?.0), &at.key("rate"))?;
        Some(RateLimit { rate, burst: raw.burst.and_then(NonZeroU32::new).unwrap_or(rate.count()) })
    }
}

/// A number that the schema bounds far below what memory can count.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
