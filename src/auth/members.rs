//! The members of a JSON object that decides: each name once, and nothing after the object.
//!
//! Readers differ in which of two members of one name they take, so an object that has two is no object (RFC 7519, 4).

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Reads an object.
pub(super) fn read(text: &[u8]) -> Option<Map<String, Value>> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let members = reader.deserialize_map(Once).ok()?;
    reader.end().ok()?;
    Some(members)
}

struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a member is there twice"));
            }
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_and_nothing_else() {
        assert_eq!(read(br#" {"a": [1, {"b": null}]} "#).unwrap().len(), 1);
        assert_eq!(read(b"{}").unwrap().len(), 0);
        for bad in
            ["", "[]", "1", "\"{}\"", "{} {}", "{}x", r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, "{\"a\":\"\u{7f}"]
        {
            assert!(read(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(read(b"{\"a\":\"\xff\"}").is_none());
        assert!(read("[".repeat(10_000).as_bytes()).is_none() && read(r#"{"a":"#.repeat(10_000).as_bytes()).is_none());
    }
}
