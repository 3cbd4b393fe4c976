//! From when to when a certificate is valid (RFC 5280, 4.1.2.5). The TLS library checks it on the other side's certificates and
//! tells it of none, so the few fields before it are stepped over here.

use std::time::UNIX_EPOCH;

use crate::clock::Timestamp;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The version, which certificates of the first one lack.
const VERSION: u8 = 0xa0;

/// The two ends; `None` for bytes that are no certificate.
pub(super) fn of(certificate: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let mut outer = Values(certificate);
    let mut certificate = Values(outer.value(SEQUENCE)?);
    let mut body = Values(certificate.value(SEQUENCE)?);
    if body.0.first() == Some(&VERSION) {
        body.value(VERSION)?;
    }
    body.value(INTEGER)?;
    // The signature's algorithm and the issuer.
    body.value(SEQUENCE)?;
    body.value(SEQUENCE)?;
    let mut validity = Values(body.value(SEQUENCE)?);
    Some((validity.time()?, validity.time()?))
}

/// Values in DER, one after the other.
struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            // More than a file can have.
            if bytes.is_empty() || bytes.len() > 4 {
                return None;
            }
            length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn value(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, value)| value)
    }

    fn time(&mut self) -> Option<Timestamp> {
        let (tag, value) = self.next()?;
        let text = std::str::from_utf8(value).ok()?;
        let (year, rest) = match tag {
            // RFC 5280, 4.1.2.5.1: two digits, from 1950 to 2049.
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                let century = if year < "50" { "20" } else { "19" };
                (format!("{century}{year}"), rest)
            }
            GENERALIZED_TIME => text.split_at_checked(4).map(|(year, rest)| (year.to_owned(), rest))?,
            _ => return None,
        };
        let digits = rest.strip_suffix('Z').filter(|rest| rest.len() == 10)?;
        let (month, digits) = digits.split_at_checked(2)?;
        let (day, digits) = digits.split_at_checked(2)?;
        let (hour, digits) = digits.split_at_checked(2)?;
        let (minute, second) = digits.split_at_checked(2)?;
        let written = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
        let since = humantime::parse_rfc3339(&written).ok()?.duration_since(UNIX_EPOCH);
        // One from before 1970 has begun, or has ended, whenever it is looked at.
        Some(Timestamp::from_millis(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))))
    }
}
