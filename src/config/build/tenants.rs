//! Callers and their quotas.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Builder, count};
use crate::config::{
    raw,
    settings::{ApiKey, AuthSettings, TenantLimits, TenantSettings},
    tree::Place,
    values,
};

impl Builder<'_> {
    pub(super) fn auth(&mut self, raw: raw::Auth, at: &Place<'_>) -> Option<AuthSettings> {
        let keys_at = at.key("api_keys");
        if raw.api_keys.is_empty() && !self.problems.is_broken(&keys_at) {
            self.problems.error(at, "has no `api_keys`, so that nobody could call");
        }
        let mut api_keys: Vec<ApiKey> = Vec::new();
        let mut seen = HashMap::new();
        for (index, raw) in raw.api_keys.into_iter().enumerate() {
            let at = keys_at.item(index);
            let Some(key) = self.api_key(&raw, &at) else { continue };
            if let Some(first) = seen.insert(key.sha256, index) {
                self.problems.error(&at.key("sha256"), format!("the same key as `auth.api_keys[{first}]`"));
            }
            api_keys.push(key);
        }
        Some(AuthSettings { api_keys })
    }

    fn api_key(&mut self, raw: &raw::ApiKey, at: &Place<'_>) -> Option<ApiKey> {
        let sha256 = raw.sha256.as_ref().and_then(|hash| self.check(values::sha256(hash), &at.key("sha256")));
        let tenant = self.check(values::name(&raw.tenant), &at.key("tenant"));
        let subject = raw.subject.as_ref().and_then(|name| self.check(values::name(name), &at.key("subject")));
        Some(ApiKey { sha256: sha256?, tenant: tenant?, subject: subject? })
    }

    pub(super) fn tenants(
        &mut self,
        raw: raw::Tenants,
        auth: Option<&raw::Auth>,
        at: &Place<'_>,
    ) -> Option<TenantSettings> {
        let default = self.default_tenant(&raw.default, &at.key("default"));
        let used: BTreeSet<_> = auth.iter().flat_map(|auth| &auth.api_keys).map(|key| key.tenant.as_str()).collect();
        let mut named = BTreeMap::new();
        for (name, raw) in raw.named {
            let at = at.key(&name);
            self.check(values::name(&name), &at);
            if !used.contains(name.as_str()) {
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
