//! Key sets: what is read of them, and which key checks what.

use serde_json::{Value, json};

use super::signing::{Key, base64url};
use crate::auth::algorithm::Algorithm;
use crate::auth::keys::{Check, KeySet, Unusable};

fn set(keys: &[Value]) -> Result<KeySet, Unusable> {
    KeySet::of(&json!({"keys": keys}))
}

fn with(mut jwk: Value, changes: Value) -> Value {
    let Value::Object(changes) = changes else { panic!("{changes}") };
    let members = jwk.as_object_mut().unwrap();
    for (name, value) in changes {
        match value {
            Value::Null => members.remove(&name),
            value => members.insert(name, value),
        };
    }
    jwk
}

/// Checks a message that the key has signed, with a token's own words for key and algorithm.
fn check(set: &KeySet, signer: &Key, id: Option<&str>, algorithm: Algorithm) -> Check {
    let token = signer.sign(&json!({}), &json!({}));
    let (input, signature) = token.rsplit_once('.').unwrap();
    let signature = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, signature).unwrap();
    set.check(id, algorithm, input.as_bytes(), &signature)
}

#[test]
fn every_algorithm_checks_its_own_signatures_and_no_others() {
    let keys: Vec<(Algorithm, Key)> =
        Algorithm::ALL.iter().map(|algorithm| (*algorithm, Key::new("k", algorithm.as_str()))).collect();
    for (algorithm, signer) in &keys {
        let own = set(&[signer.jwk()]).unwrap();
        assert_eq!(check(&own, signer, Some("k"), *algorithm), Check::Good, "{algorithm:?}");
        // A key says nothing of its algorithm: its kind still does.
        let any = set(&[with(signer.jwk(), json!({"alg": null}))]).unwrap();
        assert_eq!(check(&any, signer, Some("k"), *algorithm), Check::Good, "{algorithm:?}");
        for (other, _) in keys.iter().filter(|(other, _)| other != algorithm) {
            assert_eq!(check(&own, signer, Some("k"), *other), Check::Bad, "{algorithm:?} {other:?}");
            assert_eq!(check(&any, signer, Some("k"), *other), Check::Bad, "{algorithm:?} {other:?}");
        }
    }
}

#[test]
fn a_token_without_a_name_may_use_the_only_key_that_fits() {
    let (one, two, other) = (Key::new("one", "ES256"), Key::new("two", "ES256"), Key::new("three", "EdDSA"));
    let nameless = with(one.jwk(), json!({"kid": null}));
    for keys in [vec![one.jwk(), other.jwk()], vec![nameless.clone()]] {
        assert_eq!(check(&set(&keys).unwrap(), &one, None, Algorithm::Es256), Check::Good);
    }
    assert_eq!(check(&set(&[one.jwk(), two.jwk()]).unwrap(), &one, None, Algorithm::Es256), Check::Bad);
    // A newer set might have it.
    assert_eq!(check(&set(&[two.jwk()]).unwrap(), &one, None, Algorithm::Es256), Check::Unknown);
    assert_eq!(check(&set(&[other.jwk()]).unwrap(), &one, None, Algorithm::Es256), Check::Unknown);
    assert_eq!(check(&set(&[nameless]).unwrap(), &one, Some("one"), Algorithm::Es256), Check::Unknown);
    assert_eq!(check(&set(&[one.jwk()]).unwrap(), &one, Some("ONE"), Algorithm::Es256), Check::Unknown);
}

#[test]
fn keys_of_one_name_are_all_tried() {
    let (one, two) = (Key::new("k", "ES256"), Key::new("k", "ES256"));
    let set = set(&[one.jwk(), two.jwk()]).unwrap();
    assert_eq!(check(&set, &one, Some("k"), Algorithm::Es256), Check::Good);
    assert_eq!(check(&set, &two, Some("k"), Algorithm::Es256), Check::Good);
    assert_eq!(check(&set, &Key::new("k", "ES256"), Some("k"), Algorithm::Es256), Check::Bad);
}

#[test]
fn keys_for_something_else_are_left_out() {
    let good = Key::new("good", "ES256").jwk();
    let rsa = Key::new("rsa", "RS256").jwk();
    let weak = base64url([0xff_u8; 255]);
    let huge = base64url([0xff_u8; 1025]);
    for bad in [
        with(good.clone(), json!({"use": "enc"})),
        with(good.clone(), json!({"use": 1})),
        with(good.clone(), json!({"use": null, "key_ops": ["encrypt"]})),
        with(good.clone(), json!({"key_ops": "verify"})),
        with(good.clone(), json!({"alg": "ES384"})),
        with(good.clone(), json!({"alg": "HS256"})),
        with(good.clone(), json!({"alg": null, "kty": "oct", "k": "c2VjcmV0"})),
        with(good.clone(), json!({"crv": "secp256k1"})),
        with(good.clone(), json!({"x": "AAAA"})),
        with(good.clone(), json!({"x": "not base64url"})),
        with(good.clone(), json!({"y": null})),
        with(rsa.clone(), json!({"n": weak})),
        with(rsa.clone(), json!({"n": huge})),
        with(rsa.clone(), json!({"n": ""})),
        with(rsa.clone(), json!({"e": null})),
        with(rsa.clone(), json!({"alg": "RSA-OAEP"})),
        json!({"kty": "OKP", "crv": "X25519", "x": base64url([1_u8; 32])}),
        json!({"kty": "OKP", "crv": "Ed25519", "x": base64url([1_u8; 31])}),
        json!({}),
        json!("key"),
        json!(null),
    ] {
        assert!(matches!(set(std::slice::from_ref(&bad)), Err(Unusable::Empty)), "{bad}");
        assert_eq!(set(&[bad, good.clone()]).unwrap(), set(std::slice::from_ref(&good)).unwrap());
    }
    assert!(set(&[with(good, json!({"use": null, "key_ops": ["verify"]}))]).is_ok());
    assert!(set(&[with(rsa, json!({"use": null}))]).is_ok());
}

#[test]
fn what_is_no_set_is_told_from_an_empty_one() {
    for bad in [json!([]), json!({}), json!({"keys": {}}), json!({"keys": null}), json!("keys")] {
        assert!(matches!(KeySet::of(&bad), Err(Unusable::Form)), "{bad}");
    }
    assert!(matches!(set(&[]), Err(Unusable::Empty)));
    assert!(matches!(KeySet::read("/nowhere".as_ref()), Err(Unusable::File(_))));
}
