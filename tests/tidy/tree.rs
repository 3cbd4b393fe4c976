//! Reads the tree's files as text, and finds names in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the project.
pub(crate) struct File {
    /// Its path from the root.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
    /// Without the tests at its bottom.
    pub(crate) own: String,
    /// That, without comments.
    pub(crate) code: String,
    /// It holds nothing but tests.
    pub(crate) is_test: bool,
}

impl File {
    fn new(path: String, text: String) -> Self {
        let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        let code = own.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        let is_test = path.ends_with("/tests.rs")
            || path.ends_with("/contract.rs")
            || path.contains("/tests/")
            || path.starts_with("tests/");
        Self { path, text, own, code, is_test }
    }

    /// The top-level module it belongs to.
    pub(crate) fn module(&self) -> &str {
        let below = self.path.strip_prefix("src/").unwrap_or(&self.path);
        below.split(['/', '.']).next().unwrap_or_default()
    }

    /// How many modules lie between it and the crate's root, itself included.
    pub(crate) fn depth(&self) -> usize {
        self.path.matches('/').count()
    }

    /// Whether it is one of these files, or in one of these folders: `src/a` is both `src/a.rs` and `src/a/`.
    pub(crate) fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            let rest = self.path.strip_prefix(place);
            rest.is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
        })
    }

    /// Whether its code says `name::`, or the name alone in an attribute or `use`.
    pub(crate) fn uses_crate(&self, name: &str) -> bool {
        let mut rest = self.code.as_str();
        while let Some(at) = rest.find(name) {
            let (before, after) = (&rest[..at], &rest[at + name.len()..]);
            let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && (!before.ends_with("::") || before.ends_with(" ::") || before.ends_with("(::"));
            if begins && after.starts_with("::") {
                return true;
            }
            rest = after;
        }
        false
    }

    /// The file that a relative path in this one names.
    pub(crate) fn beside(&self, target: &str) -> PathBuf {
        root().join(&self.path).parent().expect("a file is in a folder").join(target)
    }
}

/// What is wrong, collected so that one run tells all.
#[derive(Default)]
pub(crate) struct Findings(Vec<String>);

impl Findings {
    pub(crate) fn add(&mut self, path: &str, message: &str) {
        self.0.push(format!("{path}: {message}"));
    }

    pub(crate) fn none(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.join("\n"));
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Rust files of the package itself.
pub(crate) fn sources() -> Vec<File> {
    let sources: Vec<File> = files().into_iter().filter(|file| file.path.starts_with("src/")).collect();
    assert!(sources.len() > 50, "the sources were not found");
    sources
}

/// Every file that people write: code, documents, configuration.
pub(crate) fn files() -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // What is built, installed or recorded is nobody's writing.
            if path.is_dir() {
                if !matches!(&*name, "target" | "node_modules" | "__pycache__")
                    && (!name.starts_with('.') || name == ".ci")
                {
                    folders.push(path);
                }
            } else if is_written(&name) {
                let path = path.strip_prefix(root()).expect("found below the root").to_string_lossy().into_owned();
                found.push(path);
            }
        }
    }
    found.sort();
    found.into_iter().map(|path| File::new(path.clone(), read(&path))).collect()
}

fn is_written(name: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".yaml", ".yml", ".mjs", ".py"];
    endings.iter().any(|ending| name.ends_with(ending)) || matches!(name, "Makefile" | "Dockerfile" | "run" | "count")
}

/// Whether the code names this, as a whole word.
pub(crate) fn names(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(is_part) && !code[at + word.len()..].starts_with(is_part))
}

/// The top-level modules that the code names by `crate::` or `taskgate::`, in `crate::{a, b}` as well.
pub(crate) fn crate_paths(code: &str) -> Vec<String> {
    let ident = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for prefix in ["crate::", "taskgate::"] {
        for (at, _) in code.match_indices(prefix) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &code[at + prefix.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                found.push(ident(rest));
                continue;
            };
            let mut depth = 0_usize;
            let mut begins = true;
            for (at, c) in group.char_indices() {
                match c {
                    '}' if depth == 0 => break,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => begins = true,
                    _ if begins && depth == 0 && !c.is_whitespace() => {
                        found.push(ident(&group[at..]));
                        begins = false;
                    }
                    _ => {}
                }
            }
        }
    }
    found
}

#[test]
fn names_are_found_where_they_are() {
    assert_eq!(
        crate_paths("use crate::{\n a::{b, c},\n d,\n}; crate::e::f; mycrate::g; taskgate::h"),
        ["a", "d", "e", "h"]
    );
    assert!(names("use tokio::net", "tokio") && !names("tokio_util", "tokio") && !names("InstantX", "Instant"));
    let file = |code: &str| File::new("src/a/b.rs".into(), code.into());
    assert!(file("use ::http::Uri;").uses_crate("http") && file("x(http::Uri)").uses_crate("http"));
    assert!(!file("crate::upstream::http::Config").uses_crate("http") && !file("http.url").uses_crate("http"));
    assert!(!file("// hyper::x").uses_crate("hyper"));
    assert_eq!((file("").module(), file("").depth()), ("a", 2));
    assert!(file("").is_in(&["src/a"]) && file("").is_in(&["src/a/b.rs"]) && !file("").is_in(&["src/a/bc"]));
    let tested = file("one\n#[cfg(test)]\nmod tests {\n two\n}\n");
    assert_eq!(tested.own.trim(), "one");
}
