//! Patterns of tool names: `*` stands for any characters, `?` for one.

use std::fmt;

/// A pattern. Matching takes at most its length times the name's, and no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Longer than any tool name that clients take (2025-11-25 tools, "Tool Names": 128 characters).
    const LONGEST: usize = 256;

    /// A pattern from its text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a pattern must not be empty; `*` matches every tool".to_owned()),
            _ if text.len() > Self::LONGEST => Err(format!("a pattern has at most {} bytes", Self::LONGEST)),
            _ if text.contains(char::is_control) => Err("a pattern has no control characters".to_owned()),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// The pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every name matches.
    pub(super) fn is_everything(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.chars(), name.chars());
        // After the last star: what follows it, and the name where that was tried last.
        let mut star = None;
        loop {
            let name_here = name.clone();
            match (pattern.next(), name.next()) {
                (None, None) => return true,
                (Some('*'), _) => {
                    star = Some((pattern.clone(), name_here.clone()));
                    name = name_here;
                }
                (Some('?'), Some(_)) => {}
                (Some(wanted), Some(found)) if wanted == found => {}
                _ => {
                    // The star takes one character more.
                    let Some((after, tried)) = &mut star else { return false };
                    if tried.next().is_none() {
                        return false;
                    }
                    (pattern, name) = (after.clone(), tried.clone());
                }
            }
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
