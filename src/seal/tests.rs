//! Tokens: what is sealed comes back, and nothing else is ever opened.

use super::*;

use proptest::prelude::*;

const PURPOSES: [Purpose; 6] =
    [Purpose::Session, Purpose::Cursor, Purpose::EventId, Purpose::ListCursor, Purpose::State, Purpose::Parked];

fn sealer() -> Sealer {
    Sealer::new([7; 32], [])
}

#[test]
fn a_token_opens_to_what_was_sealed() {
    for plain in [&b""[..], b"x", &[0; MAX_PLAIN]] {
        for purpose in PURPOSES {
            let token = sealer().seal(purpose, plain);
            assert!(token.len() <= MAX_TOKEN);
            assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
            assert_eq!(sealer().open(purpose, &token).as_deref(), Some(plain));
        }
    }
}

#[test]
fn the_longest_plain_makes_the_longest_token() {
    assert_eq!(sealer().seal(Purpose::Session, &[1; MAX_PLAIN]).len(), MAX_TOKEN);
    let over = sealer().seal(Purpose::Session, &[1; MAX_PLAIN + 1]);
    assert!(over.len() > MAX_TOKEN);
    assert_eq!(sealer().open(Purpose::Session, &over), None);
}

#[test]
fn what_an_upstream_gave_may_be_longer() {
    for (purpose, length) in [(Purpose::ListCursor, 8 * 1024), (Purpose::State, 1024 * 1024)] {
        let plain = vec![b'x'; length];
        let token = sealer().seal(purpose, &plain);
        assert_eq!(sealer().open(purpose, &token), Some(plain));
        assert_eq!(sealer().open(Purpose::Session, &token), None);
    }
}

#[test]
fn a_fingerprint_is_of_each_text_by_itself() {
    assert_eq!(fingerprint(&["a", "bc"]), fingerprint(&["a", "bc"]));
    assert_ne!(fingerprint(&["a", "bc"]), fingerprint(&["ab", "c"]));
}

#[test]
fn the_same_is_never_sealed_the_same() {
    let tokens: std::collections::HashSet<_> = (0..100).map(|_| sealer().seal(Purpose::Cursor, b"same")).collect();
    assert_eq!(tokens.len(), 100);
    assert!(tokens.iter().all(|token| !token.contains("same")));
}

#[test]
fn a_token_is_good_for_its_own_purpose_alone() {
    for sealed in PURPOSES {
        let token = sealer().seal(sealed, b"plain");
        for opened in PURPOSES {
            assert_eq!(sealer().open(opened, &token).is_some(), sealed == opened, "{sealed:?} {opened:?}");
        }
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let token = sealer().seal(Purpose::Session, b"a session of somebody");
    let mut refused = 0;
    for index in 0..token.len() {
        for bit in 0..8 {
            let mut bytes = token.clone().into_bytes();
            bytes[index] ^= 1 << bit;
            // What is no text can't come as a token.
            let Ok(flipped) = String::from_utf8(bytes) else { continue };
            assert_eq!(sealer().open(Purpose::Session, &flipped), None, "byte {index} bit {bit}");
            refused += 1;
        }
    }
    assert_eq!(refused, token.len() * 7);
    let raw = URL_SAFE_NO_PAD.decode(&token).unwrap();
    for bit in 0..raw.len() * 8 {
        let mut raw = raw.clone();
        raw[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(sealer().open(Purpose::Session, &URL_SAFE_NO_PAD.encode(raw)), None, "{bit}");
    }
}

#[test]
fn every_shortened_lengthened_or_padded_token_is_refused() {
    let token = sealer().seal(Purpose::Session, b"plain");
    for length in 0..token.len() {
        assert_eq!(sealer().open(Purpose::Session, &token[..length]), None, "{length}");
    }
    for other in [format!("{token}A"), format!("{token}="), format!(" {token}"), format!("{token}\n"), token.repeat(2)]
    {
        assert_eq!(sealer().open(Purpose::Session, &other), None, "{other:?}");
    }
}

#[test]
fn previous_keys_open_and_do_not_seal() {
    let old = Sealer::new([1; 32], []);
    let new = Sealer::new([2; 32], [[3; 32], [1; 32]]);
    let token = old.seal(Purpose::Session, b"plain");
    assert_eq!(new.open(Purpose::Session, &token).as_deref(), Some(&b"plain"[..]));
    assert_eq!(Sealer::new([2; 32], [[3; 32]]).open(Purpose::Session, &token), None);
    assert_eq!(old.open(Purpose::Session, &new.seal(Purpose::Session, b"plain")), None);
}

#[test]
fn random_keys_are_each_their_own() {
    let (one, other) = (Sealer::random(), Sealer::random());
    let token = one.seal(Purpose::Session, b"plain");
    assert!(one.open(Purpose::Session, &token).is_some());
    assert_eq!(other.open(Purpose::Session, &token), None);
}

#[test]
fn a_sealer_shows_nothing() {
    assert_eq!(format!("{:?}", sealer()), "Sealer { .. }");
}

proptest! {
    #[test]
    fn no_text_of_others_is_opened(text in ".*", symbols in "[A-Za-z0-9_-]{0,200}") {
        for purpose in PURPOSES {
            prop_assert_eq!(sealer().open(purpose, &text), None);
            prop_assert_eq!(sealer().open(purpose, &symbols), None);
        }
    }

    #[test]
    fn whatever_fits_comes_back(plain in prop::collection::vec(any::<u8>(), 0..=MAX_PLAIN)) {
        let token = sealer().seal(Purpose::EventId, &plain);
        prop_assert_eq!(sealer().open(Purpose::EventId, &token), Some(plain));
    }
}

#[test]
fn a_signature_is_good_for_its_text_under_each_key_in_use() {
    let (old, new) = (Sealer::new([7; 32], []), Sealer::new([8; 32], [[7; 32]]));
    let signed = old.sign(b"text");
    assert!(old.is_signed(b"text", &signed) && new.is_signed(b"text", &signed));
    assert!(!new.is_signed(b"texts", &signed) && !new.is_signed(b"text", &signed[1..]));
    assert!(!old.is_signed(b"text", &new.sign(b"text")) && !old.is_signed(b"text", &[]));
}
