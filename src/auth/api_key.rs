//! API keys, known by their digests alone.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

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

/// The SHA-256 of a secret.
#[must_use]
pub fn sha256(secret: &[u8]) -> [u8; 32] {
    *digest(&SHA256, secret).as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// Compares digests in a time that does not depend on where they differ.
#[must_use]
pub fn same_digest(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right));
    black_box(difference) == 0
}

/// Looks at every key whether or not one was found, so that time does not tell which one it was.
pub(super) fn find(keys: &[([u8; 32], Arc<Caller>)], shown: &[u8; 32]) -> Option<Arc<Caller>> {
    let mut found = usize::MAX;
    for (index, (known, _)) in keys.iter().enumerate() {
        let mask = usize::from(same_digest(known, shown)).wrapping_neg();
        found = (found & !mask) | (index & mask);
    }
    keys.get(found).map(|(_, caller)| Arc::clone(caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha_256_is_the_one_that_people_compute() {
        let hex: String = sha256(b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn digests_differ_wherever_they_differ() {
        let digest = sha256(b"x");
        assert!(same_digest(&digest, &digest));
        for bit in 0..256 {
            let mut other = digest;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!same_digest(&digest, &other), "{bit}");
        }
    }

    #[test]
    fn digests_are_not_shown() {
        let key = ApiKey { sha256: sha256(b"one"), tenant: "acme".into(), subject: "ci".into() };
        assert_eq!(format!("{key:?}"), r#"ApiKey { tenant: "acme", subject: "ci", .. }"#);
    }
}
