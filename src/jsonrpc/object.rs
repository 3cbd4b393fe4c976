//! A JSON object whose members stay raw text in their order, so that one can be changed and all others kept.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Defect;
use super::scan::{self, Raw};

/// A JSON object's members, in order, with unread values.
#[derive(Debug, Clone, Default)]
pub struct Object<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Object<'a> {
    /// Reads an object's members without reading their values.
    ///
    /// # Errors
    /// [`Defect::Invalid`] when the text is JSON but no object, [`Defect::Syntax`] when it is not JSON.
    pub fn parse(text: &'a str) -> Result<Self, Defect> {
        if let Some(object) = Self::scan(text) {
            return Ok(object);
        }
        if !text.trim_start().starts_with('{') {
            return Err(Defect::Invalid("expected a JSON object"));
        }
        serde_json::from_str(text).map_err(|error| Defect::from_serde(&error))
    }

    fn scan(text: &'a str) -> Option<Self> {
        let mut members = Vec::with_capacity(4);
        let is_whole = scan::members(text, |name, value| {
            members.push((Cow::Borrowed(name), Cow::Borrowed(value.get())));
            true
        });
        is_whole.then_some(Self { members })
    }

    /// Reads an object, or gives an empty one for an absent value.
    ///
    /// # Errors
    /// As [`Object::parse`].
    pub fn parse_optional(text: Option<Raw<'a>>) -> Result<Self, Defect> {
        text.map_or_else(|| Ok(Self::default()), |text| Self::parse(text.get()))
    }

    /// The value of a member as JSON text; of a repeated one the last, as most readers take it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.members.iter().rev().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// The same as it stands in the text that was read; `None` also where it was set since.
    #[must_use]
    pub fn original(&self, name: &str) -> Option<&'a str> {
        match self.members.iter().rev().find(|(key, _)| key == name) {
            Some((_, Cow::Borrowed(value))) => Some(value),
            _ => None,
        }
    }

    /// Whether a member occurs more than once.
    #[must_use]
    pub fn repeats(&self, name: &str) -> bool {
        self.members.iter().filter(|(key, _)| key == name).nth(1).is_some()
    }

    /// Whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The members in order, as names and JSON texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// Takes a member out, wherever it stands.
    pub fn remove(&mut self, name: &str) -> &mut Self {
        self.members.retain(|(key, _)| key != name);
        self
    }

    /// Sets a member to JSON text: in place where it stands, else at the end. Text that is not JSON changes nothing.
    pub fn set(&mut self, name: &str, json: impl Into<String>) -> &mut Self {
        let Ok(value) = RawValue::from_string(json.into()) else {
            debug_assert!(false, "a member's new value is JSON");
            return self;
        };
        let value = Cow::Owned(String::from(Box::<str>::from(value)));
        match self.members.iter().position(|(key, _)| key == name) {
            Some(place) => {
                let mut kept = 0..;
                self.members.retain(|(key, _)| kept.next() <= Some(place) || key != name);
                if let Some(member) = self.members.get_mut(place) {
                    member.1 = value;
                }
            }
            None => self.members.push((Cow::Owned(name.to_owned()), value)),
        }
        self
    }

    /// The object as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let size = self.members.iter().map(|(key, value)| key.len() + value.len() + 4).sum::<usize>();
        let mut out = String::with_capacity(size + 2);
        out.push('{');
        for (index, (key, value)) in self.members.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            push_string(&mut out, key);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
        out
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(map.size_hint().unwrap_or(4));
                while let Some(Name(key)) = map.next_key()? {
                    members.push((key, Cow::Borrowed(map.next_value::<&RawValue>()?.get())));
                }
                Ok(Object { members })
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A member's name, borrowed unless it is written with escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A string as JSON text.
#[must_use]
pub fn raw_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

/// Writes a string as JSON text.
pub(super) fn push_string(out: &mut String, text: &str) {
    let is_plain = text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if is_plain {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned()));
    }
}

/// The text of a JSON string; `None` for any other JSON. Borrowed unless it is written with escapes.
#[must_use]
pub fn string_value(json: &str) -> Option<Cow<'_, str>> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') {
        serde_json::from_str::<String>(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inside))
    }
}
