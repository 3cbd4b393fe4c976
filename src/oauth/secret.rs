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

/// What a caller showed in `Authorization`, kept where a route's upstream needs it. Two are equal if they are the same text.
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
        sha256.copy_from_slice(digest(&SHA256, header.as_bytes()).as_ref());
        Self { header, digest: sha256 }
    }

    /// The value as it came.
    #[must_use]
    pub fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// The token behind `Bearer`; `None` for another scheme. Schemes have no case (RFC 9110, 11.1).
    #[must_use]
    pub fn bearer(&self) -> Option<&str> {
        let (scheme, token) = self.header.to_str().ok()?.split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }

    /// SHA-256 of the value: stands for it in maps.
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
        assert!(token == shown("bEARER abc") && token != shown("Bearer abc"));
        assert_eq!(Secret::from("x").to_bearer().unwrap(), "Bearer x");
        assert!(Secret::from("x\ny").to_bearer().is_none());
    }
}
