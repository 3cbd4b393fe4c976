//! Numbers by their value, exactly, however they are spelled and however large they are.

/// A decimal number: `digits` without zeros at either end, times ten to the power of `exponent`. Zero has no digits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

/// The longest integer that is written out, in digits: far beyond what mirrored integers may have.
const LONGEST: usize = 40;

impl Decimal {
    /// Reads a number in JSON's spelling.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(place) => {
                let (mantissa, exponent) = rest.split_at(place);
                (mantissa, read_exponent(exponent.get(1..)?)?)
            }
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_whole = is_digits(whole) && (whole == "0" || !whole.starts_with('0'));
        if !is_whole || !fraction.is_none_or(is_digits) {
            return None;
        }
        let fraction = fraction.unwrap_or_default();
        let all = format!("{whole}{fraction}");
        let all = all.trim_start_matches('0');
        let digits = all.trim_end_matches('0');
        if digits.is_empty() {
            return Some(Self { negative: false, digits: String::new(), exponent: 0 });
        }
        let (zeros, places) = (i64::try_from(all.len() - digits.len()).ok()?, i64::try_from(fraction.len()).ok()?);
        let exponent = exponent.checked_add(zeros)?.checked_sub(places)?;
        Some(Self { negative, digits: digits.to_owned(), exponent })
    }

    /// The number as an integer, if it is one and not too long.
    pub(super) fn to_integer(&self) -> Option<String> {
        if self.digits.is_empty() {
            return Some("0".to_owned());
        }
        let zeros = usize::try_from(self.exponent).ok()?;
        let length = self.digits.len().checked_add(zeros).filter(|length| *length <= LONGEST)?;
        let sign = if self.negative { "-" } else { "" };
        Some(format!("{sign}{:0<length$}", self.digits))
    }
}

fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.strip_prefix('+').unwrap_or(text).parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn integer(text: &str) -> Option<String> {
        Decimal::parse(text)?.to_integer()
    }

    #[test]
    fn a_number_is_its_value() {
        let same = [
            ["42", "42.0", "4.2e1", "420E-1", "42.000e+0"],
            ["0", "-0", "0.0", "0e99", "-0.00"],
            ["-7", "-7.0", "-0.7e1", "-70e-1", "-7e0"],
            [
                "9007199254740993",
                "9007199254740993.0",
                "9.007199254740993e15",
                "900719925474099300e-2",
                "9007199254740993E0",
            ],
        ];
        for spellings in same {
            for spelling in spellings {
                assert_eq!(Decimal::parse(spelling), Decimal::parse(spellings[0]), "{spelling}");
            }
        }
        assert_ne!(Decimal::parse("9007199254740993"), Decimal::parse("9007199254740992"));
        assert_ne!(Decimal::parse("-1"), Decimal::parse("1"));
    }

    #[test]
    fn only_what_json_calls_a_number_is_one() {
        for bad in [
            "",
            "-",
            "+1",
            "042",
            ".5",
            "1.",
            "1e",
            "1e+",
            "0x1",
            " 1",
            "1 ",
            "NaN",
            "1e99999999999999999999",
            "--1",
            "1.-1",
        ] {
            assert_eq!(Decimal::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_integer_is_written_without_fraction_or_exponent() {
        assert_eq!(
            ["42.0", "4.2e3", "-0", "-70e-1"].map(integer),
            ["42", "4200", "0", "-7"].map(|text| Some(text.to_owned()))
        );
        assert_eq!(["4.5", "1e-1", "1e41", "1e9223372036854775807"].map(integer), [None, None, None, None]);
    }

    proptest! {
        #[test]
        fn every_integer_is_itself(number: i64, zeros in 0_usize..5) {
            prop_assert_eq!(integer(&number.to_string()), Some(number.to_string()));
            let spelled = format!("{number}.{}", "0".repeat(zeros + 1));
            prop_assert_eq!(integer(&spelled), Some(number.to_string()));
        }

        #[test]
        fn nothing_is_too_odd_to_be_read(text in "\\PC*", digits in "[-+0-9eE.]{0,40}") {
            for text in [text, digits] {
                let is_json = serde_json::from_str::<serde_json::Number>(&text).is_ok();
                prop_assert!(!is_json || Decimal::parse(&text).is_some() || text.contains(['e', 'E', ' ', '\n', '\r', '\t']));
            }
        }
    }
}
