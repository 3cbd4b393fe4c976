//! How keys are named. What belongs to one tenant has one hash tag, and what belongs to all has another.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256};

use crate::hub::Hub;
use crate::task::{Holder, Owner};

/// So many bytes of a digest stand for a name: nobody finds two names with the same.
const DIGEST: usize = 16;

/// The keys of one prefix.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    /// Tenants by the earliest expiry of their tasks.
    pub(super) due: String,
    /// Who holds unfinished tasks, or did.
    pub(super) holders: String,
    /// What the keys of leases start with.
    pub(super) leases: String,
    /// The bytes of each tenant.
    pub(super) sizes: String,
    /// Their sum.
    pub(super) total: String,
    /// Where changes of tasks are told.
    pub(super) changes: String,
}

impl Keys {
    pub(super) fn new(hub: &Hub) -> Self {
        let prefix = hub.prefix();
        Self {
            due: format!("{{{prefix}}}:due"),
            holders: format!("{{{prefix}}}:holders"),
            leases: hub.lease(""),
            sizes: format!("{{{prefix}}}:sizes"),
            total: format!("{{{prefix}}}:total"),
            changes: format!("{prefix}:changes"),
            prefix: prefix.to_owned(),
        }
    }

    /// The tenants of which a holder has tasks, or had.
    pub(super) fn tenants_of(&self, holder: &str) -> String {
        format!("{{{}}}:of:{holder}", self.prefix)
    }

    /// A tenant's counters, from which its scripts derive its other keys.
    pub(super) fn counters(&self, tenant: &str) -> String {
        format!("{{{}:{tenant}}}:c", self.prefix)
    }

    /// A holder's unfinished tasks of a tenant.
    pub(super) fn held(&self, tenant: &str, holder: &Holder) -> String {
        format!("{{{}:{tenant}}}:h:{holder}", self.prefix)
    }
}

/// What stands for a tenant in keys.
pub(super) fn tenant(name: &str) -> String {
    digest(&[name.as_bytes()])
}

/// What stands for an owner in keys and records.
pub(super) fn owner(owner: &Owner) -> String {
    let Owner { tenant, issuer, subject, client, principal, route } = owner;
    digest(&[tenant.as_bytes(), issuer.as_bytes(), subject.as_bytes(), client.as_bytes(), principal, route.as_bytes()])
}

fn digest(parts: &[&[u8]]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let digest = context.finish();
    URL_SAFE_NO_PAD.encode(digest.as_ref().get(..DIGEST).unwrap_or_default())
}
