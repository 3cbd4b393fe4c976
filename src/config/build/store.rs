//! Where tasks are kept, and who shares them.

use super::Builder;
use crate::config::{
    problem::quote,
    raw,
    settings::{RedisSettings, ReplicaSettings, SecretsSettings, StoreSettings},
    tree::Place,
    values,
};
use crate::hub::address::Address;

/// A prefix is before every key, so that a longer one costs memory for nothing.
const LONGEST_PREFIX: usize = 64;

impl Builder<'_> {
    pub(super) fn store(
        &mut self,
        raw: raw::Store,
        secrets: &SecretsSettings,
        root: &Place<'_>,
    ) -> Option<StoreSettings> {
        let at = root.key("store");
        let raw::Store { kind, path, url, prefix } = raw;
        let mut only_of = |key: &str, is_given: bool, of: &str| {
            if is_given {
                self.problems.error(&at.key(key), format!("means something only with `kind: {of}`"));
            }
        };
        if !matches!(kind, raw::StoreKind::Disk) {
            only_of("path", path.is_some(), "disk");
        }
        if !matches!(kind, raw::StoreKind::Redis) {
            only_of("url", url.is_some(), "redis");
            only_of("prefix", prefix != raw::Store::default().prefix, "redis");
        }
        match kind {
            raw::StoreKind::Memory => Some(StoreSettings::Memory),
            raw::StoreKind::Disk => match path {
                Some(path) if !path.is_empty() => Some(StoreSettings::Disk { path: self.base.join(path) }),
                _ => {
                    self.problems.error(&at.key("path"), "needed: the folder of the store");
                    None
                }
            },
            raw::StoreKind::Redis => {
                if secrets.key.is_none() {
                    let message = "needed with `store.kind: redis`, the same on every replica: `openssl rand -base64 32` makes one";
                    self.problems.error(&root.key("secrets").key("key"), message);
                }
                let Some(url) = url else {
                    self.problems.error(&at.key("url"), "needed: the server, such as `redis://127.0.0.1:6379/0`");
                    return None;
                };
                let url_at = at.key("url");
                let url = self.secret(url, &url_at)?;
                self.check(Address::parse(url.reveal()), &url_at)?;
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
                if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.bytes().all(is_plain) {
                    let message = format!(
                        "expected 1 to {LONGEST_PREFIX} letters, digits, `-`, `_`, `.` and `:`, found {}",
                        quote(&prefix)
                    );
                    self.problems.error(&at.key("prefix"), message);
                }
                Some(StoreSettings::Redis(RedisSettings { url, prefix }))
            }
        }
    }

    pub(super) fn replica(
        &mut self,
        raw: Option<raw::Replica>,
        store: Option<&StoreSettings>,
        at: &Place<'_>,
    ) -> Option<ReplicaSettings> {
        let is_alone = matches!(store, Some(StoreSettings::Memory | StoreSettings::Disk { .. }));
        if is_alone && raw.as_ref().is_some_and(|replica| *replica != raw::Replica::default()) {
            self.problems.error(at, "means something only with `store.kind: redis`, which replicas share");
        }
        let raw::Replica { id, lease, address } = raw.unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if id.is_empty() || id.len() > LONGEST_PREFIX || !id.bytes().all(is_plain) {
            let message = format!("expected `auto` or 1 to {LONGEST_PREFIX} letters, digits, `-`, `_` and `.`");
            self.problems.error(&at.key("id"), message);
        }
        let lease_at = at.key("lease");
        let lease = self.duration(&lease, &lease_at)?;
        if !(raw::SHORTEST_LEASE..=raw::LONGEST_LEASE).contains(&lease) {
            self.problems.error(&lease_at, "expected 1s to 5m");
        }
        let address = match address {
            Some(address) => Some(self.check(values::address(&address), &at.key("address"))?),
            None => None,
        };
        if address.is_some_and(|address| address.ip().is_unspecified()) {
            self.problems.error(&at.key("address"), "expected an address at which the others reach this replica alone");
        }
        if matches!(store, Some(StoreSettings::Redis(_))) && address.is_none() {
            let message = "without it each replica serves what lands at it: sessions with servers that taskgate starts are \
                           reached only by chance, and messages may come twice (docs/replicas.md)";
            self.problems.warn(&at.key("address"), message);
        }
        Some(ReplicaSettings { id: (id != "auto").then_some(id), lease, address })
    }
}
