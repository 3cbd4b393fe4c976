//! Durations, sizes and rates: how they are written, and the types that code uses for them.

use std::{fmt, num::NonZeroU32, time::Duration};

use super::problem::quote;

/// Ten years: longer than anything waits, and in milliseconds still an exact JSON number.
const LONGEST: Duration = Duration::from_hours(87_600);
/// 1 TiB.
const BIGGEST: u64 = 1 << 40;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    /// That many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes, as far as memory can be counted.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// `64KiB`, or `65536` for bytes. More than 1 TiB is refused.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = || not_a("size such as `64KiB`, `16MiB` or `1GiB`", text);
        let (number, unit) = split(text).ok_or_else(expected)?;
        let factor = match unit {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(expected()),
        };
        match number.checked_mul(factor) {
            Some(bytes) if bytes <= BIGGEST => Ok(Self(bytes)),
            _ => Err(format!("{} is more than 1024GiB", quote(text))),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit = units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    per: Per,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Per {
    Second,
    Minute,
}

impl Rate {
    /// How many in each period.
    pub const fn count(self) -> NonZeroU32 {
        self.count
    }

    /// The period: a second or a minute.
    pub const fn period(self) -> Duration {
        match self.per {
            Per::Second => Duration::from_secs(1),
            Per::Minute => Duration::from_mins(1),
        }
    }

    /// The time from one to the next at this rate; never zero.
    pub fn interval(self) -> Duration {
        self.period() / self.count.get()
    }

    /// `100/s` or `100/m`, at most a million.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = || not_a("rate such as `100/s` or `20/m`", text);
        let (number, unit) = split(text).ok_or_else(expected)?;
        let per = match unit {
            "/s" => Per::Second,
            "/m" => Per::Minute,
            _ => return Err(expected()),
        };
        match u32::try_from(number).ok().filter(|number| *number <= 1_000_000).and_then(NonZeroU32::new) {
            Some(count) => Ok(Self { count, per }),
            None => Err(format!("{} is not between 1 and 1000000 {unit}", quote(text))),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = match self.per {
            Per::Second => "s",
            Per::Minute => "m",
        };
        write!(f, "{}/{per}", self.count)
    }
}

/// A rate, and how far it may be exceeded for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// In the long run.
    pub rate: Rate,
    /// At once.
    pub burst: NonZeroU32,
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (burst {})", self.rate, self.burst)
    }
}

/// `500ms`, `30s`, `15m` or `24h`; more than ten years is refused.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || not_a("duration such as `500ms`, `30s`, `15m` or `24h`", text);
    let (number, unit) = split(text).ok_or_else(expected)?;
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(expected()),
    };
    match number.checked_mul(milliseconds).map(Duration::from_millis) {
        Some(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(format!("{} is more than ten years", quote(text))),
    }
}

/// The shortest spelling that `parse_duration` reads back.
pub(super) fn show_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.into_iter().find(|(size, _)| milliseconds > 0 && milliseconds.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", milliseconds / size),
        None if milliseconds == 0 => "0s".to_owned(),
        None => format!("{milliseconds}ms"),
    }
}

/// The number at the beginning, saturated, and the unit after it.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())?;
    Some((digits.parse().unwrap_or(u64::MAX), unit))
}

fn not_a(what: &str, found: &str) -> String {
    format!("expected a {what}, found {}", quote(found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let read = |text| parse_duration(text).ok().map(|duration| duration.as_millis());
        assert_eq!(
            ["500ms", "30s", "15m", "24h", "0s", "007s"].map(read),
            [500, 30_000, 900_000, 86_400_000, 0, 7_000].map(Some)
        );
        assert_eq!(
            ["", "s", "1", "1d", "1 s", " 1s", "1s ", "1.5s", "+1s", "1S", "1h1m", "\u{661}s"].map(read),
            [None; 12]
        );
        let too_much = parse_duration("99999999999999999999999999h").unwrap_err();
        assert_eq!(too_much, "`99999999999999999999999999h` is more than ten years");
        assert!(parse_duration("87600h").is_ok() && parse_duration("87601h").is_err());
    }

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        let read = |text| ByteSize::parse(text).ok().map(ByteSize::bytes);
        assert_eq!(["0", "7", "7B", "64KiB", "16MiB", "1GiB"].map(read), [0, 7, 7, 65_536, 1 << 24, 1 << 30].map(Some));
        assert_eq!(["", "KiB", "1KB", "1k", "1 KiB", "-1", "1.5MiB", "1kib"].map(read), [None; 8]);
        assert_eq!(read("1024GiB"), Some(BIGGEST));
        assert!(ByteSize::parse("18446744073709551616KiB").is_err());
    }

    #[test]
    fn rates_have_a_period() {
        let rate = Rate::parse("20/m").unwrap();
        assert_eq!(
            (rate.count().get(), rate.period(), rate.interval()),
            (20, Duration::from_mins(1), Duration::from_secs(3))
        );
        assert_eq!(Rate::parse("1000000/s").unwrap().interval(), Duration::from_micros(1));
        for bad in ["", "5", "/s", "0/s", "1000001/s", "5/h", "5 /s", "1.5/s", "-1/s"] {
            assert!(Rate::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read(number in 0..u64::MAX) {
            let duration = Duration::from_millis(number % 315_360_000_000);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
            let size = ByteSize::new(number % BIGGEST);
            prop_assert_eq!(ByteSize::parse(&size.to_string()), Ok(size));
        }
    }
}
