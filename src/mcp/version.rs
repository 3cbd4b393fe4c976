//! Protocol versions and what each one permits. Nobody else compares versions.
#![deny(clippy::wildcard_enum_match_arm)]

use std::fmt;

use crate::jsonrpc::{Object, string_value};

/// A revision of the protocol in the handshake era.
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
}

impl ProtocolVersion {
    /// Every version that is spoken, oldest first.
    pub const ALL: [Self; 4] = [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25];
    /// The version offered to whoever asks for an unknown one.
    pub const LATEST: Self = Self::V2025_11_25;

    /// Reads a version as it stands in a header or in `protocolVersion`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The version that a server chose in its `initialize` result (JSON text); `None` for one that is not spoken here.
    #[must_use]
    pub fn of_initialize_result(result: &str) -> Option<Self> {
        let result = Object::parse(result).ok()?;
        Self::parse(&string_value(result.get("protocolVersion")?)?)
    }

    /// The version as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
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
        matches!(self, Self::V2025_06_18 | Self::V2025_11_25)
    }

    /// Elicitation has modes (`form`, `url`) and sampling may use tools.
    #[must_use]
    pub const fn has_url_elicitation(self) -> bool {
        matches!(self, Self::V2025_11_25)
    }

    /// The `MCP-Protocol-Version` header exists.
    #[must_use]
    pub const fn has_version_header(self) -> bool {
        matches!(self, Self::V2025_06_18 | Self::V2025_11_25)
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
        for unknown in ["", "2025-11-26", "2026-07-28", "2025-11-25 ", "2024-10-07"] {
            assert_eq!(ProtocolVersion::parse(unknown), None, "{unknown}");
        }
    }
}
