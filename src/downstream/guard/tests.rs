//! Who is let in between replicas: whoever has the key, now, for this one, and once.

use ::http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::*;

const NOW: u64 = 1_700_000_000_000;

fn sealer(key: u8) -> Arc<Sealer> {
    Arc::new(Sealer::new([key; 32], []))
}

/// The head of a request for `to`, passed on at a time by whoever has that key.
fn head(key: u8, to: &str, at: u64, nonce: u8) -> Parts {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = "/mcp?x=1".parse().unwrap();
    let headers = request.headers_mut();
    headers.insert(PEER, HeaderValue::from_static("192.0.2.7"));
    headers.insert("mcp-session-id", HeaderValue::from_static("s"));
    headers.insert("authorization", HeaderValue::from_static("Bearer t"));
    let mut parts = request.into_parts().0;
    seal(&mut parts, key, to, at, nonce);
    parts
}

fn seal(parts: &mut Parts, key: u8, to: &str, at: u64, nonce: u8) {
    let target = parts.uri.path_and_query().unwrap().as_str();
    let passage = Passage { to, method: &parts.method, target, at, nonce: [nonce; 16], body: digest(b"{}") };
    let signature = sealer(key).sign(&passage.to_signed(&parts.headers));
    parts.headers.insert(SEAL, passage.to_seal(&signature).unwrap());
}

fn guard() -> (Guard, u64) {
    let clock = Clock::system();
    (Guard::new("me", sealer(1), clock), clock.now().as_millis())
}

fn is_in(guard: &Guard, parts: &Parts) -> bool {
    matches!(guard.admit(parts), Admission::Taken(..))
}

/// Whoever passed it on knows it by its name of before, and has the key.
#[tokio::test(start_paused = true)]
async fn what_is_for_one_who_was_here_before_is_told_apart() {
    let (guard, now) = guard();
    let named = |key, to: &str, named: &'static str| {
        let mut parts = head(key, to, now, 1);
        parts.headers.remove(SEAL);
        parts.headers.insert(TO, HeaderValue::from_static(named));
        seal(&mut parts, key, to, now, 1);
        parts
    };
    assert_eq!(guard.admit(&named(1, "before", "before")), Admission::ForAnother);
    assert_eq!(guard.admit(&named(2, "before", "before")), Admission::Refused, "another key");
    assert_eq!(guard.admit(&named(1, "before", "me")), Admission::Refused, "another name");
    assert!(is_in(&guard, &named(1, "me", "me")), "none of them was noted");
}

#[tokio::test(start_paused = true)]
async fn who_has_the_key_is_let_in_once() {
    let (guard, now) = guard();
    let taken = Admission::Taken("192.0.2.7".parse().unwrap(), digest(b"{}"));
    assert_eq!(guard.admit(&head(1, "me", now, 1)), taken);
    assert_eq!(guard.admit(&head(1, "me", now, 1)), Admission::Refused, "the same again");
    assert!(is_in(&guard, &head(1, "me", now, 2)));
}

#[tokio::test(start_paused = true)]
async fn clocks_may_differ_by_a_little() {
    let (guard, now) = guard();
    for (nonce, (at, is_good)) in (1_u8..).zip([
        (now - 5_000, true),
        (now + 5_000, true),
        (now - 29_000, true),
        (now + 29_000, true),
        (now - 31_000, false),
        (now + 31_000, false),
        (0, false),
        (u64::MAX, false),
    ]) {
        assert_eq!(is_in(&guard, &head(1, "me", at, nonce)), is_good, "{at}");
    }
    // One that is so old that it may have been forgotten is not new.
    let old = now - 20_000;
    assert!(is_in(&guard, &head(1, "me", old, 99)));
    tokio::time::advance(Duration::from_secs(40)).await;
    assert_eq!(guard.admit(&head(1, "me", old, 99)), Admission::Refused);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_let_in() {
    let (guard, now) = guard();
    let changed = |change: &dyn Fn(&mut Parts)| {
        let mut parts = head(1, "me", now, 1);
        change(&mut parts);
        parts
    };
    let set = |name: &'static str, value: &'static str| {
        changed(&|parts| {
            parts.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        })
    };
    for (parts, what) in [
        (head(2, "me", now, 1), "another key"),
        (head(1, "another", now, 1), "for another replica"),
        (changed(&|parts| drop(parts.headers.remove(SEAL))), "no seal"),
        (changed(&|parts| parts.method = Method::DELETE), "another method"),
        (changed(&|parts| parts.uri = "/mcp?x=2".parse().unwrap()), "another query"),
        (changed(&|parts| parts.uri = "/other?x=1".parse().unwrap()), "another path"),
        (set("mcp-session-id", "t"), "another session"),
        (set("authorization", "Bearer u"), "other credentials"),
        (set("taskgate-peer", "192.0.2.8"), "another client"),
        (set("x-api-key", "k"), "one field more"),
        (changed(&|parts| drop(parts.headers.remove("authorization"))), "one field less"),
        (set("taskgate-passage", "1.2.3.4"), "no signature"),
        (
            changed(&|parts| {
                let seal = parts.headers[SEAL].clone();
                parts.headers.append(SEAL, seal);
            }),
            "two seals",
        ),
        (
            changed(&|parts| {
                let text = parts.headers[SEAL].to_str().unwrap().replacen(&now.to_string(), &(now + 1).to_string(), 1);
                parts.headers.insert(SEAL, HeaderValue::from_str(&text).unwrap());
            }),
            "another time",
        ),
    ] {
        assert_eq!(guard.admit(&parts), Admission::Refused, "{what}");
    }
    assert!(is_in(&guard, &head(1, "me", now, 1)), "none of them was noted");
}

#[tokio::test(start_paused = true)]
async fn a_former_key_is_good_while_it_is_known() {
    let clock = Clock::system();
    let guard = Guard::new("me", Arc::new(Sealer::new([2; 32], [[1; 32]])), clock);
    let now = clock.now().as_millis();
    assert!(is_in(&guard, &head(1, "me", now, 1)));
    assert!(is_in(&guard, &head(2, "me", now, 2)));
    assert!(!is_in(&guard, &head(3, "me", now, 3)));
}

#[test]
fn what_is_remembered_is_bounded_and_nothing_is_taken_twice() {
    let (mut taken, now) = (Taken::default(), Timestamp::from_millis(NOW));
    for at in 0..100 {
        assert!(taken.note(NOW + at, [1; 16], now, 10));
        assert!(taken.nonces.len() <= 10);
    }
    for at in 0..100 {
        assert!(!taken.note(NOW + at, [1; 16], now, 10), "{at}");
    }
}

#[test]
fn fields_can_t_be_moved_into_each_other() {
    let text = |fields: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let passage = Passage { to: "me", method: &Method::GET, target: "/mcp", at: 1, nonce: [0; 16], body: [0; 32] };
        passage.to_signed(&headers)
    };
    assert_eq!(text(&[("a", "1"), ("b", "2")]), text(&[("b", "2"), ("a", "1")]));
    assert_ne!(text(&[("a", "1"), ("a", "2")]), text(&[("a", "2"), ("a", "1")]));
    assert_ne!(text(&[("a", "1b")]), text(&[("a1", "b")]));
    assert_ne!(text(&[("a", "12")]), text(&[("a", "1"), ("a", "2")]));
}
