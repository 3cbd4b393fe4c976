//! What a login can't be guessed or taken over by: the verifier of PKCE (RFC 7636) and the state (RFC 6749, 10.12).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::secret::Secret;

/// A text of 256 random bits: a verifier (RFC 7636, 4.1) or a state.
///
/// # Errors
/// When the system has no randomness to give.
pub fn random() -> Result<Secret, NoRandomness> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes).into())
}

/// The system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("the system has no randomness to give")]
pub struct NoRandomness;

/// The challenge of a verifier by the method `S256` (RFC 7636, 4.2).
#[must_use]
pub fn challenge(verifier: &Secret) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.reveal().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_rfc_7636() {
        let verifier = Secret::from("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        assert_eq!(challenge(&verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_eq!(one.reveal().len(), 43);
        assert!(one != other);
    }
}
