//! Protocol versions and what each one permits. Nobody else compares versions.
#![deny(clippy::wildcard_enum_match_arm)]

use std::fmt;

use crate::jsonrpc::{Object, string_value};

/// A revision of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
    /// 2026-07-28
    V2026_07_28,
}

impl ProtocolVersion {
    /// Every version that is spoken, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];
    /// Those that begin with a handshake, oldest first.
    pub const LEGACY: [Self; 4] = [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];
    /// The version offered to whoever asks for an unknown one in a handshake.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;
    /// The newest version without a handshake.
    pub const LATEST_MODERN: Self = Self::V2026_07_28;

    /// Reads a version as it stands in a header or in `_meta`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Reads a version as it stands in the `protocolVersion` of a handshake, where only those with handshakes can stand.
    #[must_use]
    pub fn parse_legacy(text: &str) -> Option<Self> {
        Self::LEGACY.into_iter().find(|version| version.as_str() == text)
    }

    /// Whether text names a version of the modern era, known or not: a date, and not before the era began. Dates of this
    /// form are in the order of their text.
    #[must_use]
    pub fn is_modern_name(text: &str) -> bool {
        let is_date = text.len() == 10
            && text.bytes().enumerate().all(|(place, byte)| match place {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        is_date && text >= Self::V2026_07_28.as_str()
    }

    /// The version that a server chose in its `initialize` result (JSON text); `None` for one that is not spoken here.
    #[must_use]
    pub fn of_initialize_result(result: &str) -> Option<Self> {
        let result = Object::parse(result).ok()?;
        Self::parse_legacy(&string_value(result.get("protocolVersion")?)?)
    }

    /// The version as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// A conversation begins with `initialize` and lasts as a session. Without, each request stands for itself (2026-07-28
    /// basic, "Stateless").
    #[must_use]
    pub const fn has_sessions(self) -> bool {
        !matches!(self, Self::V2026_07_28)
    }

    /// Core tasks, `execution.taskSupport` and related-task metadata exist.
    #[must_use]
    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// A stream may start with an event that has an id and no data. Older clients read the empty data as JSON and fail.
    #[must_use]
    pub const fn has_priming_events(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// Messages may come in arrays. 2024-11-05 does not speak of them; its servers are plain JSON-RPC and may send some.
    #[must_use]
    pub const fn has_batches(self) -> bool {
        matches!(self, Self::V2024_11_05 | Self::V2025_03_26)
    }

    /// `elicitation/create` exists.
    #[must_use]
    pub const fn has_elicitation(self) -> bool {
        matches!(self, Self::V2025_06_18 | Self::V2025_11_25 | Self::V2026_07_28)
    }

    /// Elicitation has modes (`form`, `url`) and sampling may use tools.
    #[must_use]
    pub const fn has_url_elicitation(self) -> bool {
        matches!(self, Self::V2025_11_25 | Self::V2026_07_28)
    }

    /// `completion/complete` has a `context`.
    #[must_use]
    pub const fn has_completion_context(self) -> bool {
        matches!(self, Self::V2025_06_18 | Self::V2025_11_25 | Self::V2026_07_28)
    }

    /// The `MCP-Protocol-Version` header exists.
    #[must_use]
    pub const fn has_version_header(self) -> bool {
        matches!(self, Self::V2025_06_18 | Self::V2025_11_25 | Self::V2026_07_28)
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_read_as_it_is_written() {
        for version in ProtocolVersion::ALL {
            assert_eq!(ProtocolVersion::parse(version.as_str()), Some(version));
        }
        for unknown in ["", "2025-11-26", "2026-07-29", "2025-11-25 ", "2024-10-07"] {
            assert_eq!(ProtocolVersion::parse(unknown), None, "{unknown}");
        }
        for version in ProtocolVersion::LEGACY {
            assert_eq!(ProtocolVersion::parse_legacy(version.as_str()), Some(version));
        }
        assert_eq!(ProtocolVersion::parse_legacy("2026-07-28"), None);
    }

    #[test]
    fn names_of_the_modern_era_are_told_by_their_date() {
        for modern in ["2026-07-28", "2026-07-29", "2030-01-01", "9999-99-99"] {
            assert!(ProtocolVersion::is_modern_name(modern), "{modern}");
        }
        for other in ["2025-11-25", "v2026-07-28", "2026-07-28 ", "2026/07/28", "DRAFT-2026", "", "2026-7-28"] {
            assert!(!ProtocolVersion::is_modern_name(other), "{other}");
        }
    }
}
