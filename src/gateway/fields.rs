//! Header fields of which one is meant.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A field that is given more than once where one is meant: two readers could take different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated;

/// The one value of a header field.
///
/// # Errors
/// [`Repeated`]
pub fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Repeated> {
    // In most heads nothing is given more than once.
    if headers.keys_len() == headers.len() {
        return Ok(headers.get(name));
    }
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(Repeated) } else { Ok(first) }
}
