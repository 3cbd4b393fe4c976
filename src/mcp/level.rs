//! Log levels, least to most severe (2026-07-28 logging, "Log Levels": those of RFC 5424).

use std::fmt;

use crate::jsonrpc::{Object, string_value};

/// How severe a log message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the level of that name in `Level::as_str`")]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl Level {
    /// Every level, the least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Reads a level as it stands in a message.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }

    /// The level of a `notifications/message`, by its `params`.
    #[must_use]
    pub fn of_message(params: &str) -> Option<Self> {
        let params = Object::parse(params).ok()?;
        Self::parse(&string_value(params.get("level")?)?)
    }

    /// The level as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_read_as_it_is_written_and_each_is_more_severe_than_the_one_before() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.as_str()), Some(level));
        }
        assert!(Level::ALL.is_sorted_by(|less, more| less < more));
        assert_eq!(["", "DEBUG", "warn", "trace", " info"].map(Level::parse), [None; 5]);
    }

    #[test]
    fn a_message_says_how_severe_it_is() {
        assert_eq!(Level::of_message(r#"{"level":"err\u006fr","data":1}"#), Some(Level::Error));
        assert_eq!([r#"{"data":1}"#, r#"{"level":3}"#, "[]"].map(Level::of_message), [None; 3]);
    }
}
