//! Tokens and passwords in memory: they are sent where they belong and printed nowhere.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::hint::black_box;

use http::HeaderValue;
use ring::digest::{SHA256, digest};

/// A text that no log and no error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// The text itself, to be sent.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// `Authorization: Bearer` with it (RFC 6750, 2.1); `None` for what can't stand in a header.
    #[must_use]
    pub fn to_bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl<T: Into<Box<str>>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The token of an `Authorization` value; `None` for another scheme, and for what can be no token (RFC 6750, 2.1). Schemes have
/// no case, and any spaces may follow them (RFC 9110, 11.1 and 11.4).
#[must_use]
pub fn bearer_of(value: &[u8]) -> Option<&str> {
    let (scheme, rest) = value.trim_ascii().split_at_checked(6)?;
    let token = std::str::from_utf8(rest.strip_prefix(b" ")?.trim_ascii()).ok()?;
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case(b"bearer") && is_token).then_some(token)
}

/// What a caller showed in `Authorization`, kept where a route's upstream needs it. Two are equal if they are the same token,
/// however it is written; of other schemes, if they are the same text.
#[derive(Clone)]
pub struct SubjectToken {
    header: HeaderValue,
    digest: [u8; 32],
}

impl SubjectToken {
    /// The value of a request's `Authorization`.
    #[must_use]
    pub fn new(mut header: HeaderValue) -> Self {
        header.set_sensitive(true);
        let digest = sha256(bearer_of(header.as_bytes()).map_or(header.as_bytes(), str::as_bytes));
        Self { header, digest }
    }

    /// The value as it came.
    #[must_use]
    pub fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// The token behind `Bearer`; see [`bearer_of`].
    #[must_use]
    pub fn bearer(&self) -> Option<&str> {
        bearer_of(self.header.as_bytes())
    }

    /// SHA-256 of the token, or of the whole value where its scheme is another: stands for it in maps.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl PartialEq for SubjectToken {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for SubjectToken {}

impl Hash for SubjectToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl fmt::Debug for SubjectToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The SHA-256 of a secret.
#[must_use]
pub fn sha256(secret: &[u8]) -> [u8; 32] {
    *digest(&SHA256, secret).as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// Compares secrets or their digests in a time that does not depend on where they differ.
#[must_use]
pub fn same(left: &[u8], right: &[u8]) -> bool {
    let difference = left.iter().zip(right).fold(0, |difference, (left, right)| difference | (left ^ right));
    black_box(difference) == 0 && left.len() == right.len()
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
    fn secrets_differ_wherever_they_differ() {
        let digest = sha256(b"x");
        assert!(same(&digest, &digest) && same(b"", b""));
        assert!(!same(&digest, &digest[1..]) && !same(&digest[..31], &digest) && !same(b"", b"x"));
        for bit in 0..256 {
            let mut other = digest;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!same(&digest, &other), "{bit}");
        }
    }

    #[test]
    fn nothing_is_printed_and_only_bearers_are_tokens() {
        let shown = |text: &str| SubjectToken::new(HeaderValue::from_str(text).unwrap());
        let token = shown("bEARER abc");
        assert_eq!(format!("{:?} {token:?} {:?}", Secret::from("abc"), token.header()), "*** *** Sensitive");
        assert_eq!(token.bearer(), Some("abc"));
        assert_eq!(shown("Basic abc").bearer(), None);
        assert_eq!(shown("Bearer ").bearer(), None);
        for same in ["bEARER abc", "Bearer abc", "bearer   abc", "Bearer \tabc "] {
            assert_eq!((&token, token.digest()), (&shown(same), shown(same).digest()), "{same}");
        }
        for other in ["Bearer abcd", "Bearer ABC", "Basic abc", "basic abc", "Bearerabc", "Bearer a bc"] {
            assert_ne!(token, shown(other), "{other}");
        }
        for none in ["Bearer", "Bearer ", "Bearer a b", "Bearerx abc", "", "Bear abc"] {
            assert_eq!(bearer_of(none.as_bytes()), None, "{none}");
        }
        assert_eq!(bearer_of("Bearer \u{e9}".as_bytes()), None);
        assert_eq!(Secret::from("x").to_bearer().unwrap(), "Bearer x");
        assert!(Secret::from("x\ny").to_bearer().is_none());
    }
}
