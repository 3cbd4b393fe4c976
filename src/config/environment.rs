//! `${NAME}` and `${NAME:-default}`.
//!
//! In YAML, braces end an unquoted text inside `{...}` and `[...]`, so that `{key: ${NAME}}` would not be YAML. Files
//! may say it all the same: before the file is read, the braces of references are swapped for two characters that no
//! text has; one character for one, so that positions stay true. Filling in happens after reading, value by value:
//! what a variable holds is text, and never becomes YAML.

use std::borrow::Cow;

use super::problem::quote;

/// Noncharacters, "intended for process-internal uses" (Unicode 16, 23.7).
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// Whether a text has the characters that stand for braces.
pub(super) fn is_masked(text: &str) -> bool {
    text.contains([OPEN, CLOSE])
}

/// Swaps the braces of every reference.
pub(super) fn mask(text: &str) -> Cow<'_, str> {
    if !text.contains("${") {
        return Cow::Borrowed(text);
    }
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        masked.push_str(before);
        masked.push('$');
        // A default ends at the first brace, and no reference goes over the end of a line.
        let inside = after.split(['{', '}', '\n']).next().unwrap_or_default();
        match after.get(inside.len()..).and_then(|tail| tail.strip_prefix('}')) {
            Some(tail) if Reference::parse(inside).is_ok() => {
                masked.push(OPEN);
                masked.push_str(inside);
                masked.push(CLOSE);
                rest = tail;
            }
            _ => {
                masked.push('{');
                rest = after;
            }
        }
    }
    masked.push_str(rest);
    Cow::Owned(masked)
}

/// Puts the braces back.
pub(super) fn unmask(text: &str) -> Cow<'_, str> {
    if is_masked(text) { Cow::Owned(text.replace(OPEN, "{").replace(CLOSE, "}")) } else { Cow::Borrowed(text) }
}

/// Fills in every reference of a value; `$${` stands for `${`.
pub(super) fn fill<'a>(text: &'a str, env: &dyn Fn(&str) -> Option<String>) -> Result<Cow<'a, str>, String> {
    let text = unmask(text);
    if !text.contains("${") {
        return Ok(text);
    }
    let mut filled = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        }
        filled.push_str(before);
        let Some((inside, tail)) = after.split_once('}') else {
            return Err("`${` without `}`; write `$${` for the text `${`".to_owned());
        };
        filled.push_str(&Reference::parse(inside)?.value(env)?);
        rest = tail;
    }
    filled.push_str(rest);
    Ok(Cow::Owned(filled))
}

/// What stands between the braces.
struct Reference<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

impl<'a> Reference<'a> {
    fn parse(inside: &'a str) -> Result<Self, String> {
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let mut chars = name.chars();
        let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return match default {
                Some(default) if default.contains('{') => Err("a default has no `{`; references don't nest".to_owned()),
                _ => Ok(Self { name, default }),
            };
        }
        Err(format!("{} is not the name of an environment variable; write `$${{` for the text `${{`", quote(name)))
    }

    fn value(&self, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
        match (env(self.name), self.default) {
            (Some(value), None) => Ok(value),
            // As in a shell, `:-` is also for a variable that is set and empty.
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(default)) => Ok(default.to_owned()),
            (None, None) => {
                Err(format!("the environment variable {} is not set, and `${{{0}}}` has no default", self.name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_braces_of_references_are_swapped() {
        assert_eq!(mask("{a: ${B}, c: ${D:-e f}}"), "{a: $\u{FDD0}B\u{FDD1}, c: $\u{FDD0}D:-e f\u{FDD1}}");
        for text in ["{a: b}", "${", "${a b}", "${A\n}", "${A:-{}}", "$ {A}"] {
            assert_eq!(mask(text), text);
        }
    }

    proptest! {
        #[test]
        fn masking_keeps_every_place(text in "[${}A:\\-\n ü]{0,40}") {
            let masked = mask(&text);
            prop_assert_eq!(masked.chars().count(), text.chars().count());
            prop_assert_eq!(masked.matches('\n').count(), text.matches('\n').count());
            prop_assert_eq!(unmask(&masked).into_owned(), text.clone());
        }
    }
}
