//! Tenants and their quotas.

use std::collections::{BTreeMap, BTreeSet};

use super::{Builder, count};
use crate::config::{
    raw,
    settings::{TenantLimits, TenantSettings},
    tree::Place,
    values,
};

impl Builder<'_> {
    pub(super) fn tenants(
        &mut self,
        raw: raw::Tenants,
        auth: Option<&raw::Auth>,
        at: &Place<'_>,
    ) -> Option<TenantSettings> {
        let default = self.default_tenant(&raw.default, &at.key("default"));
        let used: BTreeSet<_> = auth.iter().flat_map(|auth| &auth.api_keys).map(|key| key.tenant.as_str()).collect();
        // Tokens may name any tenant.
        let by_introspection = auth.and_then(|auth| auth.introspection.as_ref()?.tenant_claim.as_ref());
        let by_jwt = auth.and_then(|auth| auth.jwt.iter().find_map(|jwt| jwt.tenant_claim.as_ref()));
        let is_open = by_introspection.or(by_jwt).is_some();
        let mut named = BTreeMap::new();
        for (name, raw) in raw.named {
            let at = at.key(&name);
            self.check(values::name(&name), &at);
            if !is_open && !used.contains(name.as_str()) {
                self.problems.warn(&at, "no caller belongs to this tenant");
            }
            let limits = self.tenant(&raw, default.as_ref(), &at);
            named.extend(limits.map(|limits| (name, limits)));
        }
        Some(TenantSettings { default: default?, named })
    }

    fn default_tenant(&mut self, raw: &raw::DefaultTenant, at: &Place<'_>) -> Option<TenantLimits> {
        let kept_bytes = self.size(&raw.kept_bytes, &at.key("kept_bytes"));
        let mut rate = |raw: &Option<raw::Limit>, key| raw.as_ref().and_then(|raw| self.limit(raw, &at.key(key)));
        let (requests, creates, polls) =
            (rate(&raw.requests, "requests"), rate(&raw.creates, "creates"), rate(&raw.polls, "polls"));
        Some(TenantLimits {
            weight: raw.weight,
            running_tasks: count(raw.running_tasks),
            queued_tasks: count(raw.queued_tasks),
            kept_tasks: count(raw.kept_tasks),
            kept_bytes: kept_bytes?,
            requests,
            creates,
            polls,
        })
    }

    /// What an entry sets, and the rest from `default`.
    fn tenant(&mut self, raw: &raw::Tenant, default: Option<&TenantLimits>, at: &Place<'_>) -> Option<TenantLimits> {
        let kept_bytes = raw.kept_bytes.as_ref().and_then(|raw| self.size(raw, &at.key("kept_bytes")));
        let mut rate = |raw: &Option<raw::Limit>, key| raw.as_ref().and_then(|raw| self.limit(raw, &at.key(key)));
        let (requests, creates, polls) =
            (rate(&raw.requests, "requests"), rate(&raw.creates, "creates"), rate(&raw.polls, "polls"));
        let default = default?;
        Some(TenantLimits {
            weight: raw.weight.unwrap_or(default.weight),
            running_tasks: raw.running_tasks.map_or(default.running_tasks, count),
            queued_tasks: raw.queued_tasks.map_or(default.queued_tasks, count),
            kept_tasks: raw.kept_tasks.map_or(default.kept_tasks, count),
            kept_bytes: kept_bytes.unwrap_or(default.kept_bytes),
            requests: requests.or(default.requests),
            creates: creates.or(default.creates),
            polls: polls.or(default.polls),
        })
    }
}
