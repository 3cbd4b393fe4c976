//! Who calls, and what each group of callers may take.
//!
//! A caller is a [`Principal`], decided once for each request by [`auth`]. [`quota`] bounds how often a tenant may ask,
//! [`fair`] shares an upstream's places between tenants. How many tasks a tenant may have is the store's business,
//! where the counters change together with the tasks.

pub mod auth;
pub mod fair;
pub mod quota;

use std::fmt;
use std::sync::Arc;

use ring::digest::{Context, SHA256};

/// The tenant of callers who are not authenticated.
pub const DEFAULT_TENANT: &str = "default";

/// A caller: whoever may see the same tasks is the same principal.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Principal {
    /// The group whose quotas count.
    pub tenant: Arc<str>,
    /// Who vouched for the caller; empty for API keys and unauthenticated callers.
    pub issuer: Arc<str>,
    /// The caller's name within the issuer; empty for unauthenticated callers.
    pub subject: Arc<str>,
    /// The OAuth client, where there is one.
    pub client: Arc<str>,
    /// Whether anybody vouched for the caller. Callers that are not authenticated can't be told apart.
    pub authenticated: bool,
    digest: [u8; 16],
}

impl Principal {
    /// Every caller of a gateway that authenticates nobody.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(Arc::from(DEFAULT_TENANT), [Arc::from(""), Arc::from(""), Arc::from("")], false)
    }

    /// A caller who has shown an API key.
    #[must_use]
    pub fn of_api_key(tenant: Arc<str>, subject: Arc<str>) -> Self {
        Self::of(tenant, [Arc::from(""), subject, Arc::from("")], true)
    }

    fn of(tenant: Arc<str>, [issuer, subject, client]: [Arc<str>; 3], authenticated: bool) -> Self {
        let digest = digest([&tenant, &issuer, &subject, &client], authenticated);
        Self { tenant, issuer, subject, client, authenticated, digest }
    }

    /// Stands for the principal in tokens that are bound to it. Computed once, when the principal was made.
    #[must_use]
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal")
            .field("tenant", &self.tenant)
            .field("issuer", &self.issuer)
            .field("subject", &self.subject)
            .field("client", &self.client)
            .field("authenticated", &self.authenticated)
            .finish_non_exhaustive()
    }
}

/// The first half of a SHA-256 over all members. Each is preceded by its length, so that no two principals are the
/// same bytes ("ab" + "c", "a" + "bc").
fn digest(members: [&str; 4], authenticated: bool) -> [u8; 16] {
    let mut context = Context::new(&SHA256);
    context.update(&[u8::from(authenticated)]);
    for member in members {
        context.update(&(member.len() as u64).to_be_bytes());
        context.update(member.as_bytes());
    }
    let whole = context.finish();
    *whole.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tenant: &str, others: [&str; 3], authenticated: bool) -> Principal {
        Principal::of(Arc::from(tenant), others.map(Arc::from), authenticated)
    }

    #[test]
    fn a_digest_tells_principals_apart_wherever_they_differ() {
        let all = [
            Principal::anonymous(),
            named("default", ["", "", ""], true),
            named("t", ["i", "s", "c"], true),
            named("ti", ["", "s", "c"], true),
            named("t", ["is", "", "c"], true),
            named("t", ["i", "sc", ""], true),
            named("t", ["i", "c", "s"], true),
            named("t", ["", "", ""], true),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert_ne!(one.digest(), other.digest(), "{one:?} {other:?}");
            }
        }
        assert_eq!(Principal::anonymous().digest(), Principal::anonymous().digest());
        assert_ne!(Principal::anonymous().digest(), [0; 16]);
    }

    #[test]
    fn anonymous_callers_have_the_default_tenant_and_no_name() {
        let anonymous = Principal::anonymous();
        assert_eq!(&*anonymous.tenant, "default");
        assert_eq!((&*anonymous.issuer, &*anonymous.subject, &*anonymous.client), ("", "", ""));
        assert!(!anonymous.authenticated);
    }
}
