//! Texts and keys that never appear in logs: nothing here prints what it holds.

use std::{fmt, fs::File, io::Read, path::Path};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::problem::quote;

/// Far more than any token.
const LONGEST_FILE: u64 = 64 << 10;

/// A text that prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text. Whoever asks sees to it that it goes nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The text of a file, without the line break at its end.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = || quote(&path.to_string_lossy());
        let mut text = String::new();
        let file = File::open(path).map_err(|error| format!("cannot open {}: {error}", name()))?;
        let read = file.take(LONGEST_FILE + 1).read_to_string(&mut text);
        let read = read.map_err(|error| format!("cannot read {}: {error}", name()))?;
        if read as u64 > LONGEST_FILE {
            return Err(format!("{} has more than 64 KiB", name()));
        }
        let end = text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
        text.truncate(end);
        Ok(Self(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A key that seals session ids and cursors; prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey([u8; 32]);

impl SealKey {
    /// A key of these bytes, which somebody has drawn.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key in a file of its own; `None` where there is no file.
    ///
    /// # Errors
    /// Words for the operator, without what the file says.
    pub fn read_file(path: &Path) -> Result<Option<Self>, String> {
        // Whatever else is wrong with it is told by who reads it.
        if path.try_exists().is_ok_and(|exists| !exists) {
            return Ok(None);
        }
        let text = Secret::read(path)?;
        Ok(Some(Self::parse(text.reveal())?))
    }

    /// As [`SealKey::read_file`] reads it.
    pub fn to_text(&self) -> Secret {
        Secret(base64::engine::general_purpose::STANDARD.encode(self.0))
    }

    /// The 32 bytes.
    pub const fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// Base64 of either alphabet, with or without padding.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let alphabet = if text.contains(['-', '_']) { alphabet::URL_SAFE } else { alphabet::STANDARD };
        let bytes = GeneralPurpose::new(&alphabet, config).decode(text).ok();
        let Some(key) = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok()) else {
            return Err("expected 32 bytes in base64; `openssl rand -base64 32` makes one");
        };
        let [first, rest @ ..] = &key;
        if rest.iter().all(|byte| byte == first) {
            return Err("a key of one repeated byte is no secret; `openssl rand -base64 32` makes one");
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
