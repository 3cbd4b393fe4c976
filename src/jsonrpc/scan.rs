//! Members of a JSON object as the slices that they are, checked in one pass.
//!
//! It takes less than JSON allows (no member's name with an escape, no deep nesting) and nothing more: whatever it
//! refuses is read by serde_json, which has the last word and says what is wrong. So it never needs to.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Values inside values that are followed, on the stack: serde_json needs none for those that it leaves unread.
const DEPTH: u32 = 96;

/// JSON text that was found to be some value, and is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a>(&'a str);

impl<'a> Raw<'a> {
    /// The text.
    #[must_use]
    pub fn get(self) -> &'a str {
        self.0
    }
}

impl<'a> From<&'a RawValue> for Raw<'a> {
    fn from(value: &'a RawValue) -> Self {
        Self(value.get())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Keeps a member that is `null` apart from one that is absent: serde's derive would take both for the latter.
///
/// # Errors
/// As the deserializer has them.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Raw<'de>>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

/// Gives each member of the object that a text is to `take`, as its name and its value, in order. `false` where `take`
/// says so, and where the text has to be read otherwise.
pub fn members<'a>(text: &'a str, mut take: impl FnMut(&'a str, Raw<'a>) -> bool) -> bool {
    members_along(text, &[], |_, name, value| take(name, value))
}

/// The same, with the members of the objects that a path leads to: each with the number of objects that it stands in beside
/// the first, and before the object that it stands in.
pub fn members_along<'a>(text: &'a str, path: &[&str], mut take: impl FnMut(usize, &'a str, Raw<'a>) -> bool) -> bool {
    let mut scan = Scan { text, at: 0 };
    scan.object(0, path, &mut take).is_some() && scan.blank().is_none()
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is no space.
    fn blank(&mut self) -> Option<u8> {
        loop {
            match self.peek()? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Takes one byte, after spaces.
    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.blank()? == wanted).then(|| self.at += 1)
    }

    /// Takes a comma, and says so, or else the end.
    fn goes_on(&mut self, end: u8) -> Option<bool> {
        let byte = self.blank()?;
        self.at += 1;
        if byte == b',' { Some(true) } else { (byte == end).then_some(false) }
    }

    fn object(
        &mut self,
        depth: usize,
        path: &[&str],
        take: &mut impl FnMut(usize, &'a str, Raw<'a>) -> bool,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.blank()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            let name = self.name()?;
            self.take(b':')?;
            let first = self.blank()?;
            let start = self.at;
            match path.split_first() {
                Some((next, rest)) if name == *next && first == b'{' => self.object(depth + 1, rest, take)?,
                _ => self.value(DEPTH)?,
            }
            if !take(depth, name, Raw(self.text.get(start..self.at)?)) {
                return None;
            }
            if !self.goes_on(b'}')? {
                return Some(());
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let start = self.at;
        self.plain();
        let name = self.text.get(start..self.at)?;
        (self.peek()? == b'"').then(|| self.at += 1)?;
        Some(name)
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        match self.blank()? {
            b'"' => self.string(),
            b'{' => self.nested(b'}', depth.checked_sub(1)?),
            b'[' => self.nested(b']', depth.checked_sub(1)?),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    /// An object or array.
    fn nested(&mut self, end: u8, depth: u32) -> Option<()> {
        self.at += 1;
        if self.blank()? == end {
            self.at += 1;
            return Some(());
        }
        loop {
            if end == b'}' {
                self.take(b'"')?;
                self.at -= 1;
                self.string()?;
                self.take(b':')?;
            }
            self.value(depth)?;
            if !self.goes_on(end)? {
                return Some(());
            }
        }
    }

    /// A string, whose first quote is next.
    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.plain();
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        self.at += match self.rest() {
            [_, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            // Any four digits: what they mean is asked by whoever reads the value.
            [_, b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()) => 6,
            _ => return None,
        };
        Some(())
    }

    /// Goes to the next quote, backslash or control character, or to the end.
    fn plain(&mut self) {
        while let Some(eight) = self.rest().first_chunk::<8>() {
            let found = specials(u64::from_le_bytes(*eight));
            self.at += found.trailing_zeros() as usize / 8;
            if found != 0 {
                return;
            }
        }
        while self.peek().is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
            self.at += 1;
        }
    }

    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.rest().starts_with(word).then(|| self.at += word.len())
    }
}

/// Eight bytes of text, the first one lowest: a bit is set in the first one that is a quote, a backslash or a control
/// character, and none below. (The usual search for a zero byte: what a subtraction borrows it borrows from above.)
fn specials(eight: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let zeros = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
    let quotes = zeros(eight ^ (ONES * u64::from(b'"')));
    let backslashes = zeros(eight ^ (ONES * u64::from(b'\\')));
    let controls = eight.wrapping_sub(ONES * 0x20) & !eight;
    (quotes | backslashes | controls) & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::jsonrpc::Object;

    fn scanned(text: &str) -> Option<Vec<(String, String)>> {
        let mut members = Vec::new();
        let whole = super::members(text, |name, value| {
            members.push((name.to_owned(), value.get().to_owned()));
            true
        });
        whole.then_some(members)
    }

    /// What serde_json reads, without the scanner.
    fn read(text: &str) -> Option<Vec<(String, String)>> {
        let object: Object<'_> = serde_json::from_str(text).ok()?;
        Some(object.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// It may refuse what serde_json reads, but reads nothing else, and nothing otherwise.
    fn agrees(text: &str) {
        if let Some(scanned) = scanned(text) {
            assert_eq!(Some(scanned), read(text), "{text}");
        }
    }

    #[test]
    fn usual_messages_are_read_whole() {
        for text in [
            "{}",
            " {\r\n\t} ",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,-0.5e+3,"\u00e9\\\"\/"]}}}"#,
            r#"{ "a" : [ ] , "b" : { } , "c":[[1],{"d":null}],"ä":true,"e":false,"f":0,"g":-1.25E-2,"":"" }"#,
            r#"{"a":1,"a":2}"#,
            r#"{"lone":"\ud800","more than eight bytes":"0123456789 ä 0123456789"}"#,
        ] {
            assert_eq!(scanned(text), Some(read(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[]",
            "5",
            "{}x",
            "{}{}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{,"a":1}"#,
            r#"{a:1}"#,
            r#"{"a":01}"#,
            r#"{"a":1.}"#,
            r#"{"a":.5}"#,
            r#"{"a":-}"#,
            r#"{"a":1e}"#,
            r#"{"a":+1}"#,
            r#"{"a":tru}"#,
            r#"{"a":nulll}"#,
            r#"{"a":"\x"}"#,
            r#"{"a":"\u12g4"}"#,
            r#"{"a":"\u12"#,
            r#"{"a":"b}"#,
            "{\"a\":\"\u{1}\"}",
            "{\"a\":\"01234567\n\"}",
            "{\"a\n\":1}",
            r#"{"a":[1,]}"#,
            r#"{"a":[1}"#,
            r#"{"a":{1:2}}"#,
            "{\"a\":1\u{a0}}",
        ] {
            assert_eq!(scanned(text), None, "{text}");
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_left_to_others() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        for text in [r#"{"\u0061":1}"#.to_owned(), nested(100)] {
            assert_eq!(scanned(&text), None);
            assert!(read(&text).is_some());
        }
        assert!(scanned(&nested(90)).is_some());
        assert_eq!(scanned(&nested(100_000)), None);
        assert!(!super::members(r#"{"a":1}"#, |_, _| false));
    }

    fn json() -> impl Strategy<Value = String> {
        let text = prop::string::string_regex(r#"([ -!#-\[\]-~äß€😀]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,24}"#).unwrap();
        let leaf = prop_oneof![
            text.prop_map(|text| format!("\"{text}\"")),
            prop::string::string_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?").unwrap(),
            prop::sample::select(vec!["true", "false", "null", "{}", "[ ]"]).prop_map(str::to_owned),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let space = prop::sample::select(vec!["", " ", "\n", "\t\r"]);
            let members = prop::collection::vec(("[a-zA-Z_/ä]{0,12}", space, inner.clone()), 0..4);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
                members.prop_map(|members| {
                    let member = |(name, space, value): &(String, &str, String)| {
                        format!("{space}\"{name}\"{space}:{space}{value}{space}")
                    };
                    format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn valid_objects_are_read_as_serde_json_reads_them(text in json()) {
            let object = format!("{{\"member\":{text}}}");
            prop_assert_eq!(scanned(&object), read(&object));
            agrees(&text);
        }

        #[test]
        fn changed_objects_are_never_read_otherwise(text in json(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..4)) {
            let mut bytes = format!("{{\"member\":{text},\"other\":1}}").into_bytes();
            for (place, byte, change) in changes {
                let place = place.index(bytes.len());
                match change {
                    0 => bytes[place] = byte,
                    1 => bytes.insert(place, byte),
                    _ => drop(bytes.remove(place)),
                }
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                agrees(text);
            }
        }

        #[test]
        fn any_text_is_survived(text in any::<String>(), noise in r#"[{}\[\]",:\\u0-9eE.+\-tfn ]{0,40}"#) {
            agrees(&text);
            agrees(&noise);
            agrees(&format!("{{\"a\":{noise}}}"));
        }
    }
}
