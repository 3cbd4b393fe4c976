//! A YAML file as a tree in which every value knows its place.
//!
//! serde stops at the first mistake and forgets positions; this tree keeps both, and does no more: scalars stay text
//! until something says what they are meant to be. Only the part of YAML that a configuration needs is let in, and
//! everything has a bound: bytes, depth, values (aliases counted as often as they are used).

use std::{
    collections::{HashMap, hash_map},
    rc::Rc,
};

use granit_parser::{self, Event, Marker, Parser, ScalarStyle};

use super::{
    environment,
    problem::{Position, Problems},
};

/// The most bytes of a file.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// The deepest value; the deepest key that exists is at 8.
const MAX_DEPTH: usize = 32;
/// The most values, aliases written out.
const MAX_VALUES: usize = 20_000;

/// A value and where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Text as it stands; `plain` when it is not in quotes. `environment` fills it in.
    Scalar { text: String, plain: bool },
    /// `[...]` or lines with `-`.
    List(Vec<Rc<Node>>),
    /// `{...}` or lines with `key:`.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_position: Position,
    pub(super) value: Rc<Node>,
}

impl Node {
    /// Nothing at all, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }
}

/// A key path together with the value there, if the file has one.
#[derive(Debug, Clone)]
pub(super) struct Place<'a> {
    pub(super) node: Option<&'a Node>,
    /// Of the value, its key, or the nearest value above that the file has.
    pub(super) position: Option<Position>,
    pub(super) path: String,
}

impl<'a> Place<'a> {
    pub(super) fn root(node: Option<&'a Node>) -> Self {
        Self { node, position: node.map(|node| node.position), path: String::new() }
    }

    /// The value of a key of this mapping.
    pub(super) fn key(&self, key: &str) -> Self {
        let path = join(&self.path, key);
        let entry = match self.node.map(|node| &node.kind) {
            Some(Kind::Map(entries)) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        };
        let Some(entry) = entry else { return Self { node: None, position: self.position, path } };
        // An empty value has no place of its own, and what is wrong with a section of lines is said at its key.
        let at_key = entry.value.is_null() || entry.value.position.line > entry.key_position.line;
        let position = if at_key { entry.key_position } else { entry.value.position };
        Self { node: Some(&entry.value), position: Some(position), path }
    }

    /// An item of this list.
    pub(super) fn item(&self, index: usize) -> Self {
        let node = match self.node.map(|node| &node.kind) {
            Some(Kind::List(items)) => items.get(index).map(Rc::as_ref),
            _ => None,
        };
        let position = node.map(|node| node.position).or(self.position);
        Self { node, position, path: format!("{}[{index}]", self.path) }
    }

    /// Whether the file says something here.
    pub(super) fn is_given(&self) -> bool {
        self.node.is_some()
    }
}

/// `parent.key`, with a key that could be misread in quotes.
pub(super) fn join(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    match (plain, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => {
            let shown: String = key.chars().take(60).flat_map(char::escape_debug).collect();
            format!("{parent}[\"{shown}\"]")
        }
    }
}

/// Reads a file. Nothing comes back when it isn't YAML or goes over a bound, which is then reported.
pub(super) fn read(text: &str, problems: &mut Problems) -> Option<Rc<Node>> {
    let refused = match text {
        _ if text.len() > MAX_BYTES => Some("the file is bigger than 1 MiB"),
        _ if environment::is_masked(text) => Some("the file has the noncharacter U+FDD0 or U+FDD1"),
        _ => None,
    };
    if let Some(message) = refused {
        problems.error_at(Position { line: 1, column: 1 }, String::new(), message);
        return None;
    }
    let masked = environment::mask(text);
    let mut options = granit_parser::Options::default();
    options.emit_comments = false;
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    let mut reader =
        Reader { problems, open: Vec::new(), anchors: HashMap::new(), values: 0, documents: 0, root: None };
    for event in Parser::new_from_str_with_options(&masked, options) {
        let read = match event {
            Ok((event, span)) => reader.event(event, position(&span.start)),
            Err(error) => Err((position(error.marker()), format!("not YAML: {}", error.info()))),
        };
        if let Err((position, message)) = read {
            let path = reader.path();
            reader.problems.error_at(position, path, message);
            return None;
        }
    }
    reader.root
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}

/// What ends the reading, and where.
type Fatal = (Position, String);

/// Builds the tree from the parser's events.
struct Reader<'a> {
    problems: &'a mut Problems,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    values: usize,
    documents: usize,
    root: Option<Rc<Node>>,
}

/// A collection whose end has not come yet.
struct Open {
    position: Position,
    anchor: usize,
    content: Content,
    /// How many values there were before it.
    values_before: usize,
    /// How deep the values in it go.
    height: usize,
}

enum Content {
    List(Vec<Rc<Node>>),
    Map { entries: Vec<Entry>, seen: HashMap<String, Position>, key: Option<Key> },
}

/// The key that waits for its value; one that can't be used has been reported and takes its value with it.
struct Key {
    text: String,
    position: Position,
    usable: bool,
}

/// A value that aliases can stand for.
#[derive(Clone)]
struct Anchored {
    node: Rc<Node>,
    values: usize,
    height: usize,
}

impl Reader<'_> {
    fn event(&mut self, event: Event<'_>, position: Position) -> Result<(), Fatal> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err((position, "the file has a second document".to_owned()));
                }
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, position)?;
                self.refuse_tag(tag.is_some(), position);
                let kind = Kind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain };
                self.complete(Anchored { node: Rc::new(Node { position, kind }), values: 1, height: 0 }, anchor);
                Ok(())
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.is_some(), position);
                self.start(Content::List(Vec::new()), anchor, position)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.is_some(), position);
                self.start(Content::Map { entries: Vec::new(), seen: HashMap::new(), key: None }, anchor, position)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.end();
                Ok(())
            }
            Event::Alias(anchor) => self.alias(anchor, position),
            _ => Ok(()),
        }
    }

    fn start(&mut self, content: Content, anchor: usize, position: Position) -> Result<(), Fatal> {
        self.count(1, position)?;
        // The parser bounds brackets and indentation; `[: : :` nests without either.
        if self.open.len() >= MAX_DEPTH {
            return Err((position, format!("values nest deeper than {MAX_DEPTH} levels")));
        }
        let values_before = self.values - 1;
        self.open.push(Open { position, anchor, content, values_before, height: 0 });
        Ok(())
    }

    fn end(&mut self) {
        let Some(Open { position, anchor, content, values_before, height }) = self.open.pop() else { return };
        let kind = match content {
            Content::List(items) => Kind::List(items),
            Content::Map { entries, .. } => Kind::Map(entries),
        };
        let node = Rc::new(Node { position, kind });
        self.complete(Anchored { node, values: self.values - values_before, height: height + 1 }, anchor);
    }

    fn alias(&mut self, anchor: usize, position: Position) -> Result<(), Fatal> {
        let Some(value) = self.anchors.get(&anchor).cloned() else {
            return Err((position, "an alias inside the value that it stands for".to_owned()));
        };
        self.count(value.values, position)?;
        if self.open.len() + value.height > MAX_DEPTH {
            return Err((position, format!("aliases nest deeper than {MAX_DEPTH} levels")));
        }
        self.complete(value, 0);
        Ok(())
    }

    /// A value is complete: it becomes an item, a key, a key's value, or the file.
    fn complete(&mut self, value: Anchored, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        let path = self.path();
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(value.node);
            return;
        };
        parent.height = parent.height.max(value.height);
        let node = value.node;
        match &mut parent.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, seen, key } => match key.take() {
                Some(Key { text, position, usable: true }) => {
                    entries.push(Entry { key: text, key_position: position, value: node });
                }
                Some(Key { usable: false, .. }) => {}
                None => *key = Some(read_key(&node, seen, &path, self.problems)),
            },
        }
    }

    fn count(&mut self, values: usize, position: Position) -> Result<(), Fatal> {
        self.values += values;
        if self.values > MAX_VALUES {
            return Err((position, format!("more than {MAX_VALUES} values, with aliases written out")));
        }
        Ok(())
    }

    fn refuse_tag(&mut self, tagged: bool, position: Position) {
        if tagged {
            let path = self.path();
            self.problems.error_at(position, path, "tags (`!...`) are not supported");
        }
    }

    /// The path of the value that comes next.
    fn path(&self) -> String {
        self.open.iter().fold(String::new(), |path, open| match &open.content {
            Content::List(items) => format!("{path}[{}]", items.len()),
            Content::Map { key: Some(key), .. } => join(&path, &key.text),
            Content::Map { key: None, .. } => path,
        })
    }
}

fn read_key(node: &Node, seen: &mut HashMap<String, Position>, path: &str, problems: &mut Problems) -> Key {
    let position = node.position;
    let Kind::Scalar { text, .. } = &node.kind else {
        problems.error_at(position, path.to_owned(), "a key must be text");
        return Key { text: String::new(), position, usable: false };
    };
    let text = environment::unmask(text).into_owned();
    let usable = match seen.entry(text.clone()) {
        hash_map::Entry::Vacant(entry) => {
            entry.insert(position);
            true
        }
        hash_map::Entry::Occupied(first) => {
            let first = first.get();
            let message = format!("given twice; the first is at {}:{}", first.line, first.column);
            problems.error_at(position, join(path, &text), message);
            false
        }
    };
    Key { text, position, usable }
}
