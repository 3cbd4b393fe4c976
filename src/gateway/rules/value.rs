//! JSON as CEL sees it. How much of it there may be is bounded, and a key that is given twice is refused: the server behind
//! the gateway could read the other one.

use std::collections::{HashMap, hash_map::Entry};
use std::fmt;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::Val;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A value that borrows nothing.
pub(super) type Owned = Box<dyn Val>;

/// Reads JSON text, or a value that is there already. What nests deeper than 128 levels serde_json refuses to read.
///
/// # Errors
/// What is no JSON, has more than `most` values, or gives a key twice.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D, most: usize) -> Result<Owned, D::Error> {
    let mut left = most;
    Reader { left: &mut left }.deserialize(from)
}

/// An object with nothing in it.
pub(super) fn empty() -> Owned {
    Box::new(CelMap::default())
}

/// Reads one value and counts it.
struct Reader<'a> {
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Owned;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Owned, D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| D::Error::custom("too many values"))?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Owned;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Owned, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Owned, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Owned, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Owned, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelUInt::from(value)),
        })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Owned, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Owned, E> {
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Owned, A::Error> {
        let mut list: Vec<Owned> = Vec::new();
        while let Some(item) = items.next_element_seed(Reader { left: self.left })? {
            list.push(item);
        }
        Ok(Box::new(CelList::from(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Owned, A::Error> {
        let mut map: HashMap<CelMapKey<'static>, Owned> = HashMap::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Reader { left: self.left })?;
            match map.entry(CelMapKey::from(key)) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(_) => return Err(A::Error::custom("a key is given twice")),
            }
        }
        Ok(Box::new(CelMap::from(map)))
    }
}
