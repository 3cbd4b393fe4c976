//! `WWW-Authenticate` (RFC 9110, 11.6.1): which credentials a server asks for.
//!
//! The list is ambiguous by design: commas stand between challenges and between the parameters of one. Whatever can't be
//! read ends the reading; what came before counts.

use http::HeaderValue;

/// So many bytes of all fields together are read.
const LONGEST: usize = 16 * 1024;
/// So many challenges are read, and as many parameters of each.
const MOST: usize = 32;

/// One challenge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Its scheme in lower case.
    pub scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// A parameter by its name, which has no case; the first where there are several.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// The challenge for bearer tokens (RFC 6750, 3): the one that says where the resource's metadata is, if there are several.
#[must_use]
pub fn bearer(fields: &[HeaderValue]) -> Option<Challenge> {
    let mut bearers: Vec<Challenge> =
        read(fields).into_iter().filter(|challenge| challenge.scheme == "bearer").collect();
    let best = bearers.iter().position(|challenge| challenge.parameter("resource_metadata").is_some());
    (!bearers.is_empty()).then(|| bearers.swap_remove(best.unwrap_or_default()))
}

/// Every challenge of the fields.
#[must_use]
pub fn read(fields: &[HeaderValue]) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    let mut left = LONGEST;
    for field in fields {
        let Some(rest) = left.checked_sub(field.len()) else { break };
        left = rest;
        Reader { rest: field.as_bytes() }.read_into(&mut challenges);
    }
    challenges
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn read_into(&mut self, challenges: &mut Vec<Challenge>) {
        let first = challenges.len();
        loop {
            self.skip(|byte| matches!(byte, b' ' | b'\t' | b','));
            let Some(word) = self.token() else { return };
            self.skip_space();
            let is_parameter = self.rest.first() == Some(&b'=') && challenges.len() > first;
            if is_parameter {
                self.take();
                self.skip_space();
                let Some(value) = self.value() else { return };
                let Some(challenge) = challenges.last_mut().filter(|challenge| challenge.parameters.len() < MOST)
                else {
                    return;
                };
                challenge.parameters.push((word, value));
            } else {
                if challenges.len() == MOST {
                    return;
                }
                challenges.push(Challenge { scheme: word, parameters: Vec::new() });
                self.skip_token68();
            }
        }
    }

    /// Credentials without names, as `Negotiate` has them, mean nothing here. They end at a comma or at the end; a name does
    /// not, since its value follows.
    fn skip_token68(&mut self) {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(byte);
        let length = self.rest.iter().take_while(|byte| is_part(byte)).count();
        let padding = self.rest.iter().skip(length).take_while(|byte| **byte == b'=').count();
        let after = self.rest.get(length + padding..).unwrap_or_default();
        if length > 0 && after.trim_ascii_start().first().is_none_or(|byte| *byte == b',') {
            self.rest = after;
        }
    }

    /// A name, in lower case.
    fn token(&mut self) -> Option<String> {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        let length = self.rest.iter().take_while(|byte| is_part(byte)).count();
        let (word, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        (length > 0).then(|| String::from_utf8_lossy(word).to_ascii_lowercase())
    }

    fn value(&mut self) -> Option<String> {
        if self.rest.first() == Some(&b'"') {
            self.take();
            return self.quoted();
        }
        // URLs without quotes are common and wrong, and clear enough.
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_graphic() && !b",\"\\".contains(byte)).count();
        let (word, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        (length > 0).then(|| String::from_utf8_lossy(word).into_owned())
    }

    /// The rest of a quoted string (RFC 9110, 5.6.4); `None` for one without an end.
    fn quoted(&mut self) -> Option<String> {
        let mut text = Vec::new();
        loop {
            match self.take()? {
                b'"' => return String::from_utf8(text).ok(),
                b'\\' => text.push(self.take()?),
                byte => text.push(byte),
            }
        }
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip_space(&mut self) {
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
    }

    fn skip(&mut self, is_skipped: fn(u8) -> bool) {
        let length = self.rest.iter().take_while(|byte| is_skipped(**byte)).count();
        self.rest = self.rest.get(length..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(fields: &[&str]) -> Vec<Challenge> {
        let fields: Vec<_> = fields.iter().map(|field| HeaderValue::from_bytes(field.as_bytes()).unwrap()).collect();
        read(&fields)
    }

    fn schemes(field: &str) -> Vec<String> {
        read_all(&[field]).into_iter().map(|challenge| challenge.scheme).collect()
    }

    #[test]
    fn schemes_and_parameters_are_told_apart() {
        let read = read_all(&[
            r#"Basic realm="a, b", Bearer Scope="x y" ,error=invalid_token, NEW, Negotiate YWI=, Last a=b"#,
        ]);
        let schemes: Vec<_> = read.iter().map(|challenge| &*challenge.scheme).collect();
        assert_eq!(schemes, ["basic", "bearer", "new", "negotiate", "last"]);
        assert_eq!(read[0].parameter("realm"), Some("a, b"));
        assert_eq!(read[1].parameter("scope"), Some("x y"));
        assert_eq!(read[1].parameter("error"), Some("invalid_token"));
        assert_eq!(read[4].parameter("a"), Some("b"));
    }

    #[test]
    fn quotes_hold_anything() {
        let read =
            read_all(&[r#"Bearer realm="say \"Basic x=y\", Bearer \\", resource_metadata=https://a.example/x?y=z"#]);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].parameter("realm"), Some(r#"say "Basic x=y", Bearer \"#));
        assert_eq!(read[0].parameter("resource_metadata"), Some("https://a.example/x?y=z"));
    }

    #[test]
    fn the_challenge_that_leads_on_is_taken() {
        let fields = [r#"Basic realm="x""#, r#"Bearer realm="a", bearer resource_metadata="https://m.example/""#];
        let fields: Vec<_> = fields.iter().map(|field| HeaderValue::from_str(field).unwrap()).collect();
        assert_eq!(bearer(&fields).unwrap().parameter("resource_metadata"), Some("https://m.example/"));
        assert_eq!(bearer(&fields[..1]), None);
        assert_eq!(
            bearer(&[HeaderValue::from_static("Bearer")]).unwrap(),
            Challenge { scheme: "bearer".to_owned(), parameters: vec![] }
        );
    }

    #[test]
    fn nonsense_ends_the_reading() {
        assert_eq!(schemes(r#"Bearer a="b" "c", Basic"#), ["bearer"]);
        assert_eq!(schemes(r#"Bearer a="never ends"#), ["bearer"]);
        assert_eq!(schemes("=, , ;"), Vec::<String>::new());
        assert_eq!(schemes("Bearer a="), ["bearer"]);
        assert_eq!(schemes("Bearer \u{e9}"), ["bearer"]);
        // A field is a list of its own: it does not go on with the one before.
        assert_eq!(read_all(&["Bearer a=b", "c=d, Basic"]).len(), 2);
        assert_eq!(read_all(&[&format!("Bearer a=\"{}\"", "x".repeat(LONGEST)), "Basic"]).len(), 0);
        assert_eq!(read_all(&[&"A,".repeat(1000)]).len(), MOST);
        assert!(read_all(&[&format!("A {}", "b=c,".repeat(1000))])[0].parameters.len() <= MOST);
    }
}
