//! Who calls, and what each group of callers may take.
//!
//! A [`Caller`] is decided once for each request by `auth`; to whom things belong is its [`Principal`]. [`quota`] bounds
//! how often a tenant may ask, [`fair`] shares an upstream's places between tenants, [`refusals`] puts on record who was
//! refused. How many tasks a tenant may have is the store's business, where the counters change together with the tasks.

pub mod fair;
pub mod quota;
pub mod refusals;

use std::fmt;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use serde_json::Value;

use crate::clock::Timestamp;

/// The tenant of callers who are not authenticated.
pub const DEFAULT_TENANT: &str = "default";

/// What a caller has shown. The same names in another kind of credential are somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// None: nobody is authenticated.
    Nothing,
    /// A key that the configuration knows.
    ApiKey,
    /// A token for which an issuer vouches.
    Token,
    /// A token that only the upstream can judge.
    PassedToken,
}

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
    /// What they have shown.
    pub credential: Credential,
    /// Whether anybody vouched for the caller. Callers that are not authenticated can't be told apart.
    pub authenticated: bool,
    digest: [u8; 16],
}

impl Principal {
    /// Every caller of a gateway that authenticates nobody.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(Arc::from(DEFAULT_TENANT), [Arc::from(""), Arc::from(""), Arc::from("")], Credential::Nothing)
    }

    /// A caller who has shown an API key.
    #[must_use]
    pub fn of_api_key(tenant: Arc<str>, subject: Arc<str>) -> Self {
        Self::of(tenant, [Arc::from(""), subject, Arc::from("")], Credential::ApiKey)
    }

    /// A caller whose token is nobody's business here but their own server's: all that is known of them is which one they show.
    /// `sha256` is its digest.
    #[must_use]
    pub fn of_passed_token(sha256: &[u8; 32]) -> Self {
        let name: String = sha256.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let subject = format!("token:{name}").into();
        Self::of(Arc::from(DEFAULT_TENANT), [Arc::from(""), subject, Arc::from("")], Credential::PassedToken)
    }

    /// A caller for whom an issuer vouches; `client` is empty where there is none.
    #[must_use]
    pub fn of_token(tenant: Arc<str>, issuer: Arc<str>, subject: Arc<str>, client: Arc<str>) -> Self {
        Self::of(tenant, [issuer, subject, client], Credential::Token)
    }

    /// The caller of these names whose [`Principal::digest`] this is, whatever they have shown; `None` where there is none.
    #[must_use]
    pub fn recalled(names: [&Arc<str>; 4], digest: [u8; 16]) -> Option<Self> {
        let [tenant, issuer, subject, client] = names.map(Arc::clone);
        let of = |credential| {
            let others = [Arc::clone(&issuer), Arc::clone(&subject), Arc::clone(&client)];
            Self::of(Arc::clone(&tenant), others, credential)
        };
        let kinds = [Credential::Nothing, Credential::ApiKey, Credential::Token, Credential::PassedToken];
        kinds.into_iter().map(of).find(|principal| principal.digest == digest)
    }

    fn of(tenant: Arc<str>, [issuer, subject, client]: [Arc<str>; 3], credential: Credential) -> Self {
        let digest = digest([&tenant, &issuer, &subject, &client], credential);
        let authenticated = matches!(credential, Credential::ApiKey | Credential::Token);
        Self { tenant, issuer, subject, client, credential, authenticated, digest }
    }

    /// Stands for the principal in whatever is bound to it, the kind of credential included. Computed once, when the principal was made.
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
            .field("credential", &self.credential)
            .field("authenticated", &self.authenticated)
            .finish_non_exhaustive()
    }
}

/// Who sends a request, and what their credential says beside that. It lives as long as the credential is remembered: things
/// belong to its principal, never to it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Caller {
    /// To whom belongs what the request makes.
    pub principal: Arc<Principal>,
    /// What the credential is good for.
    pub scopes: Scopes,
    /// The claims of the token: an object, empty for other callers.
    pub claims: Arc<Value>,
    /// When the credential ends, leeway included; `None` for one that doesn't.
    pub expires: Option<Timestamp>,
}

/// What a credential is good for (RFC 6749, 3.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scopes {
    /// Everything: API keys have no scopes, and neither has a gateway that asks for no credentials.
    All,
    /// These, sorted.
    These(Arc<[Box<str>]>),
}

impl Scopes {
    /// Those that a token lists, separated by spaces.
    #[must_use]
    pub fn listed(scopes: &str) -> Self {
        let mut scopes: Vec<Box<str>> = scopes.split_ascii_whitespace().map(Into::into).collect();
        scopes.sort_unstable();
        scopes.dedup();
        Self::These(scopes.into())
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn contain(&self, scope: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(scopes) => scopes.binary_search_by(|known| (**known).cmp(scope)).is_ok(),
        }
    }
}

impl Caller {
    /// Somebody whose credential says nothing but who it is.
    #[must_use]
    pub fn of(principal: Arc<Principal>) -> Self {
        Self { principal, scopes: Scopes::All, claims: Arc::new(Value::Object(serde_json::Map::new())), expires: None }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("principal", &self.principal)
            .field("scopes", &self.scopes)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// The first half of a SHA-256 over all members. Each is preceded by its length, so that no two principals are the
/// same bytes ("ab" + "c", "a" + "bc").
fn digest(members: [&str; 4], credential: Credential) -> [u8; 16] {
    let mut context = Context::new(&SHA256);
    context.update(&[credential as u8]);
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

    fn named(tenant: &str, others: [&str; 3], credential: Credential) -> Principal {
        Principal::of(Arc::from(tenant), others.map(Arc::from), credential)
    }

    #[test]
    fn a_digest_tells_principals_apart_wherever_they_differ() {
        let all = [
            Principal::anonymous(),
            named("default", ["", "", ""], Credential::Token),
            named("t", ["i", "s", "c"], Credential::Token),
            named("ti", ["", "s", "c"], Credential::Token),
            named("t", ["is", "", "c"], Credential::Token),
            named("t", ["i", "sc", ""], Credential::Token),
            named("t", ["i", "c", "s"], Credential::Token),
            named("t", ["", "", ""], Credential::Token),
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
    fn the_same_names_in_another_kind_of_credential_are_somebody_else() {
        let kinds = [Credential::Nothing, Credential::ApiKey, Credential::Token, Credential::PassedToken];
        for one in kinds {
            for other in kinds {
                let (left, right) = (named("t", ["", "s", ""], one), named("t", ["", "s", ""], other));
                assert_eq!(left == right, one == other, "{left:?} {right:?}");
                assert_eq!(left.digest() == right.digest(), one == other, "{left:?} {right:?}");
            }
        }
        let (key, passed) = (Principal::of_api_key("t".into(), "s".into()), Principal::of_passed_token(&[0; 32]));
        assert!(key != Principal::of_token("t".into(), "".into(), "s".into(), "".into()));
        assert!(passed != Principal::of_api_key(passed.tenant.clone(), passed.subject.clone()));
        assert!(key.authenticated && !passed.authenticated);
    }

    #[test]
    fn scopes_are_told_apart_whole() {
        let scopes = Scopes::listed(" mcp:tools  read mcp:tools ");
        assert!(scopes.contain("mcp:tools") && scopes.contain("read"));
        assert!(!scopes.contain("mcp") && !scopes.contain("") && !scopes.contain("READ"));
        assert!(Scopes::All.contain("anything") && !Scopes::listed("").contain("anything"));
    }

    #[test]
    fn anonymous_callers_have_the_default_tenant_and_no_name() {
        let anonymous = Principal::anonymous();
        assert_eq!(&*anonymous.tenant, "default");
        assert_eq!((&*anonymous.issuer, &*anonymous.subject, &*anonymous.client), ("", "", ""));
        assert!(!anonymous.authenticated);
    }
}
