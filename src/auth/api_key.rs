//! API keys, known by their digests alone.

use std::fmt;
use std::sync::Arc;

use crate::oauth::secret::same;
use crate::tenant::Caller;

/// A key, known by its digest alone.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// The tenant of whoever shows it.
    pub tenant: Arc<str>,
    /// The name of whoever shows it.
    pub subject: Arc<str>,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("tenant", &self.tenant).field("subject", &self.subject).finish_non_exhaustive()
    }
}

/// Looks at every key whether or not one was found, so that time does not tell which one it was.
pub(super) fn find(keys: &[([u8; 32], Arc<Caller>)], shown: &[u8; 32]) -> Option<Arc<Caller>> {
    let mut found = usize::MAX;
    for (index, (known, _)) in keys.iter().enumerate() {
        let mask = usize::from(same(known, shown)).wrapping_neg();
        found = (found & !mask) | (index & mask);
    }
    keys.get(found).map(|(_, caller)| Arc::clone(caller))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::secret::sha256;

    #[test]
    fn digests_are_not_shown() {
        let key = ApiKey { sha256: sha256(b"one"), tenant: "acme".into(), subject: "ci".into() };
        assert_eq!(format!("{key:?}"), r#"ApiKey { tenant: "acme", subject: "ci", .. }"#);
    }
}
