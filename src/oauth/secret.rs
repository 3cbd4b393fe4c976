//! Tokens and passwords in memory: they are sent where they belong and printed nowhere.

use std::fmt;
use std::hash::{Hash, Hasher};

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
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(
            digest(&SHA256, bearer_of(header.as_bytes()).map_or(header.as_bytes(), str::as_bytes)).as_ref(),
        );
        Self { header, digest: sha256 }
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

#[cfg(test)]
mod tests {
    use super::*;

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
