//! The authorization request and its response (RFC 6749, 4.1.1 and 4.1.2), the latter checked before anything of it counts.

use http::Uri;

use super::fetch::form;
use super::secret::{Secret, same};

/// The longest value of a response that is kept, in bytes.
const LONGEST: usize = 8 * 1024;

/// What the user's browser is sent to.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The client's id.
    pub client_id: &'a str,
    /// Where the response is to come.
    pub redirect_uri: &'a str,
    /// PKCE's challenge, by `S256`.
    pub code_challenge: &'a str,
    /// What the response must repeat.
    pub state: &'a Secret,
    /// The resource that the token is for (RFC 8707).
    pub resource: &'a str,
    /// The scopes that are wanted.
    pub scope: Option<&'a str>,
}

impl Request<'_> {
    /// The URL for the browser. The endpoint's own query stays (RFC 6749, 3.1).
    #[must_use]
    pub fn url(&self, endpoint: &Uri) -> String {
        let mut fields = vec![
            ("response_type", "code"),
            ("client_id", self.client_id),
            ("redirect_uri", self.redirect_uri),
            ("code_challenge", self.code_challenge),
            ("code_challenge_method", "S256"),
            ("state", self.state.reveal()),
            ("resource", self.resource),
        ];
        fields.extend(self.scope.map(|scope| ("scope", scope)));
        let joint = if endpoint.query().is_some() { '&' } else { '?' };
        format!("{endpoint}{joint}{}", form(&fields))
    }
}

/// What came back, as it was written.
#[derive(Debug, Clone, Default)]
pub struct Response {
    state: Option<Secret>,
    issuer: Option<String>,
    code: Option<Secret>,
    error: Option<String>,
}

/// A response that is not acted on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no response at all.
    #[error("the answer of the authorization server can't be read")]
    Malformed,
    /// It answers another request, or none.
    #[error("an answer came that does not belong to this login")]
    OtherState,
    /// It names another issuer, or none where it must (RFC 9207, 2.4). Nothing else of it is told.
    #[error("the answer does not come from the authorization server that was asked")]
    OtherIssuer,
    /// The server refused, and this is its word for it.
    #[error("the authorization server refused: {0}")]
    Refused(String),
}

/// What is kept from the request until its response comes.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The state that was sent.
    pub state: &'a Secret,
    /// The issuer of the metadata that was used.
    pub issuer: &'a str,
    /// Whether that issuer says that its responses name it.
    pub names_itself: bool,
}

impl Response {
    /// Reads a query.
    ///
    /// # Errors
    /// [`Error::Malformed`] for one that is not text, says something twice (RFC 6749, 3.1) or is too long.
    pub fn read(query: &str) -> Result<Self, Error> {
        let mut response = Self::default();
        for (name, value) in query.split('&').map(|field| field.split_once('=').unwrap_or((field, ""))) {
            let value = || decoded(value).filter(|value| value.len() <= LONGEST).ok_or(Error::Malformed);
            let is_first = match &*decoded(name).ok_or(Error::Malformed)? {
                "state" => response.state.replace(value()?.into()).is_none(),
                "iss" => response.issuer.replace(value()?).is_none(),
                "code" => response.code.replace(value()?.into()).is_none(),
                "error" => response.error.replace(value()?).is_none(),
                _ => true,
            };
            if !is_first {
                return Err(Error::Malformed);
            }
        }
        Ok(response)
    }

    /// The code, if the response answers the request and comes from whom was asked: all four rows of the table in 2026-07-28
    /// authorization, "Authorization Response Validation". The issuer is compared as it is written.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn code(self, expected: &Expected<'_>) -> Result<Secret, Error> {
        if !self.state.is_some_and(|state| same(state.reveal().as_bytes(), expected.state.reveal().as_bytes())) {
            return Err(Error::OtherState);
        }
        match &self.issuer {
            Some(issuer) if issuer != expected.issuer => return Err(Error::OtherIssuer),
            None if expected.names_itself => return Err(Error::OtherIssuer),
            Some(_) | None => {}
        }
        match (self.error, self.code) {
            (Some(error), _) => Err(Error::Refused(word(&error))),
            (None, Some(code)) if !code.reveal().is_empty() => Ok(code),
            (None, _) => Err(Error::Malformed),
        }
    }
}

/// The letters that an error's name is made of, and no more of them than names have.
fn word(error: &str) -> String {
    error.chars().filter(|letter| letter.is_ascii_alphanumeric() || "_-.".contains(*letter)).take(64).collect()
}

/// A part of a form as text (RFC 6749, appendix B).
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                (digit()? << 4) | digit()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(query: &str, names_itself: bool) -> Result<Secret, Error> {
        let state = Secret::from("s");
        Response::read(query)?.code(&Expected { state: &state, issuer: "https://a.example/x", names_itself })
    }

    #[test]
    fn the_four_rows_of_issuer_identification() {
        let right = "state=s&code=c&iss=https%3A%2F%2Fa.example%2Fx";
        let absent = "state=s&code=c";
        assert!(code(right, true).is_ok());
        assert_eq!(code(absent, true).unwrap_err(), Error::OtherIssuer);
        assert!(code(right, false).is_ok());
        assert!(code(absent, false).is_ok());
        // As it is written: no case, no port, no slash, no second decoding.
        for other in [
            "https://A.example/x",
            "https://a.example:443/x",
            "https://a.example/x/",
            "https%253A%2F%2Fa.example%2Fx",
            "",
        ] {
            for names_itself in [true, false] {
                let query = format!("state=s&code=c&iss={other}");
                assert_eq!(code(&query, names_itself).unwrap_err(), Error::OtherIssuer, "{other}");
            }
        }
    }

    #[test]
    fn errors_are_told_only_by_whom_was_asked() {
        let refused = "state=s&error=access_denied&iss=";
        assert_eq!(
            code(&format!("{refused}https://a.example/x"), true).unwrap_err(),
            Error::Refused("access_denied".into())
        );
        assert_eq!(code(&format!("{refused}https://evil.example"), true).unwrap_err(), Error::OtherIssuer);
        assert_eq!(code("error=access_denied&state=other", false).unwrap_err(), Error::OtherState);
        assert_eq!(code("state=s&error=%1b[2Jx<y>", false).unwrap_err(), Error::Refused("2Jxy".into()));
    }

    #[test]
    fn anything_else_is_no_answer() {
        assert_eq!(code("code=c", false).unwrap_err(), Error::OtherState);
        assert_eq!(code("state=&code=c", false).unwrap_err(), Error::OtherState);
        assert_eq!(code("state=ss&code=c", false).unwrap_err(), Error::OtherState);
        for malformed in [
            "state=s",
            "state=s&code=",
            "state=s&state=s&code=c",
            "state=s&code=%zz",
            "state=s&code=%ff",
            "state=s&code=%4",
        ] {
            assert_eq!(code(malformed, false).unwrap_err(), Error::Malformed, "{malformed}");
        }
        assert_eq!(code(&format!("state=s&code={}", "c".repeat(LONGEST + 1)), false).unwrap_err(), Error::Malformed);
        assert_eq!(code("state=s&code=a+b%2Bc", false).unwrap().reveal(), "a b+c");
    }

    #[test]
    fn the_url_keeps_the_query_of_the_endpoint() {
        let state = Secret::from("s");
        let request = Request {
            client_id: "https://c.example/m.json",
            redirect_uri: "http://127.0.0.1:1/callback",
            code_challenge: "h",
            state: &state,
            resource: "https://r.example/mcp",
            scope: Some("x y"),
        };
        let url = request.url(&"https://a.example/authorize?tenant=1".parse().unwrap());
        assert!(
            url.starts_with("https://a.example/authorize?tenant=1&response_type=code&client_id=https%3A%2F%2Fc."),
            "{url}"
        );
        assert!(
            url.ends_with("code_challenge_method=S256&state=s&resource=https%3A%2F%2Fr.example%2Fmcp&scope=x%20y"),
            "{url}"
        );
    }
}
