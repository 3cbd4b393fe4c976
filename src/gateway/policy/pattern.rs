//! Patterns of tool names: `*` stands for any characters, `?` for one.

use std::fmt;

/// A pattern. Matching takes at most its length times the name's, and no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Longer than any tool name that clients take (2025-11-25 tools, "Tool Names": 128 characters).
    const LONGEST: usize = 256;

    /// The pattern that every name matches.
    #[must_use]
    pub fn everything() -> Self {
        Self("*".to_owned())
    }

    /// A pattern from its text.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a pattern must not be empty; `*` matches every tool".to_owned()),
            _ if text.len() > Self::LONGEST => Err(format!("a pattern has at most {} bytes", Self::LONGEST)),
            _ if text.contains(char::is_control) => Err("a pattern has no control characters".to_owned()),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// The pattern as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether every name matches.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether a name matches.
    #[must_use]
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

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(name)
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "abc"),
            ("a*", "a"),
            ("a*c", "abbc"),
            ("a?c", "a\u{fc}c"),
            ("*b*", "abc"),
            ("**", ""),
            ("a*a*a", "aaa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "b"), ("a", "ab"), ("?", ""), ("a*c", "abb"), ("a*a*a", "aa"), ("A", "a"), ("[a]", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches(&"*a".repeat(128), &format!("{}b", "a".repeat(100_000))));
    }

    proptest! {
        #[test]
        fn as_the_definition_says(pattern in "[ab*?]{1,8}", name in "[ab]{0,8}") {
            fn defined(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern, name) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| defined(rest, &name[skip..])),
                    ([b'?', rest @ ..], [_, name @ ..]) => defined(rest, name),
                    ([first, rest @ ..], [letter, name @ ..]) => first == letter && defined(rest, name),
                    _ => false,
                }
            }
            prop_assert_eq!(matches(&pattern, &name), defined(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
