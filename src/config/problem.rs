//! Mistakes in a configuration file: where each is, which key it concerns, what is wrong.
//!
//! Reading a file goes on after a mistake, so that all of them are reported at once. `Problems` collects them and
//! remembers which keys have no usable value, so that one mistake is not reported twice in other words.

use std::{collections::HashSet, fmt};

use super::tree::Place;

/// More than anybody reads; keeps the memory for a hostile file bounded.
const MAX_REPORTED: usize = 100;

/// A place in a file, both counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One mistake, or something that deserves a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where in the file, when there is a file and the problem has a place in it.
    pub position: Option<Position>,
    /// The key, such as `routes[0].upstream.url`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Position { line, column }) = self.position {
            write!(f, "{line}:{column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Every mistake of a configuration, in the order of the file. Its `Display` is what `taskgate check` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    file: String,
    problems: Vec<Problem>,
    omitted: usize,
}

impl Errors {
    /// The mistakes; at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The same mistakes without their keys, where there is no file.
    pub(super) fn without_paths(mut self) -> Self {
        self.problems.iter_mut().for_each(|problem| problem.path.clear());
        self
    }

    /// The one mistake of a file.
    pub(super) fn of(file: &str, problem: Problem) -> Self {
        Self { file: file.to_owned(), problems: vec![problem], omitted: 0 }
    }

    /// Several mistakes, if there are any.
    pub(super) fn of_all(file: &str, mut problems: Vec<Problem>) -> Option<Self> {
        let omitted = problems.len().saturating_sub(MAX_REPORTED);
        problems.truncate(MAX_REPORTED);
        (!problems.is_empty()).then(|| Self { file: file.to_owned(), problems, omitted })
    }

    /// The one mistake of a file, as a whole.
    pub(super) fn of_file(file: &str, message: impl Into<String>) -> Self {
        Self::of(file, Problem { position: None, path: String::new(), message: message.into() })
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            let separator = if problem.position.is_some() { ":" } else { ": " };
            writeln!(f, "{}{separator}{problem}", self.file)?;
        }
        match self.problems.len() + self.omitted {
            1 => f.write_str("1 mistake"),
            count if self.omitted > 0 => write!(f, "{count} mistakes, the first {MAX_REPORTED} shown"),
            count => write!(f, "{count} mistakes"),
        }
    }
}

impl std::error::Error for Errors {}

/// Collects problems while a file is read.
#[derive(Debug, Default)]
pub(super) struct Problems {
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Keys whose value could not be used; what is said about them or below them is a consequence.
    broken: HashSet<String>,
    omitted: usize,
}

impl Problems {
    /// Reports a mistake whose place is known only by its position.
    pub(super) fn error_at(&mut self, position: Position, path: String, message: impl Into<String>) {
        self.push(Problem { position: Some(position), path, message: message.into() });
    }

    /// Reports a mistake in a value that can't be used.
    pub(super) fn error(&mut self, place: &Place<'_>, message: impl Into<String>) {
        if self.is_broken(place) {
            return;
        }
        self.broken.insert(place.path.clone());
        self.push(Problem { position: place.position, path: place.path.clone(), message: message.into() });
    }

    /// Notes something that works and is probably not meant.
    pub(super) fn warn(&mut self, place: &Place<'_>, message: impl Into<String>) {
        if self.warnings.len() < MAX_REPORTED {
            let (position, path) = (place.position, place.path.clone());
            self.warnings.push(Problem { position, path, message: message.into() });
        }
    }

    /// Whether the value here, or one that it is part of, has been reported as unusable.
    pub(super) fn is_broken(&self, place: &Place<'_>) -> bool {
        let path = &place.path;
        let mut above =
            path.match_indices(['.', '[']).filter_map(|(end, _)| path.get(..end)).chain([path.as_str(), ""]);
        above.any(|path| self.broken.contains(path))
    }

    /// The warnings, or everything that is wrong.
    pub(super) fn finish(mut self, file: &str) -> Result<Vec<Problem>, Errors> {
        if self.errors.is_empty() {
            return Ok(self.warnings);
        }
        self.errors.sort_by_key(|problem| problem.position);
        Err(Errors { file: file.to_owned(), problems: self.errors, omitted: self.omitted })
    }

    fn push(&mut self, problem: Problem) {
        if self.errors.len() < MAX_REPORTED {
            self.errors.push(problem);
        } else {
            self.omitted += 1;
        }
    }
}

/// A text of the file in a message: quoted, without control characters, and not endless.
pub(super) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    let dots = if text.chars().nth(LONGEST).is_some() { "..." } else { "" };
    format!("`{shown}{dots}`")
}

/// `; did you mean ...` when one of `known` is close to what the file says.
pub(super) fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text: String = text.chars().take(64).collect();
    let candidates = known.map(|known| (distance(&text, known), known));
    candidates.filter(|(distance, known)| *distance <= known.len().div_ceil(3)).min().map(|(_, known)| known)
}

/// Letters to change; case, and `-` for `_`, cost nothing.
fn distance(text: &str, known: &str) -> usize {
    let folded = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    strsim::damerau_levenshtein(&folded(text), &folded(known))
}
