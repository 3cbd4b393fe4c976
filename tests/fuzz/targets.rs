//! Fuzz targets: plain functions over bytes that panic where a promise is broken. Used by tests/fuzz.rs and by cargo-fuzz.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a broken promise is told by a panic"
)]

mod machine;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};
use serde_json::Value;
use serde_json::value::RawValue;
use taskgate::config;
use taskgate::downstream::forwarded::Trusted;
use taskgate::downstream::{headers as fields, origin};
use taskgate::gateway::policy::Pattern;
use taskgate::gateway::rules::{Expression, Rule, Rules};
use taskgate::jsonrpc::{self, Id, Message, Object, Outcome};
use taskgate::mcp::envelope::Envelope;
use taskgate::mcp::mirror;
use taskgate::oauth::{authorization, challenge};
use taskgate::seal::{Purpose, Sealer};
use taskgate::sse::{self, Event, Framer};
use taskgate::tenant::{Caller, Principal};

pub(crate) use machine::machine;

/// What servers say about credentials, to clients: not more is read than may be, and names are names.
fn answers_of_authorization(data: &[u8]) {
    if let Ok(field) = HeaderValue::from_bytes(data) {
        let read = challenge::read(&[field.clone(), field]);
        assert!(read.len() <= 32);
        assert!(
            read.iter().all(|one| !one.scheme.is_empty() && !one.scheme.bytes().any(|byte| byte.is_ascii_uppercase()))
        );
    }
    if let Ok(query) = std::str::from_utf8(data) {
        // An answer that says nothing of a state belongs to nobody.
        let state = "state".into();
        let expected = authorization::Expected { state: &state, issuer: "https://a.example", names_itself: true };
        let code = authorization::Response::read(query).and_then(|answer| answer.code(&expected));
        let shortest = "state=state&iss=https://a.example&code=c".len();
        assert!(code.is_err() || query.len() >= shortest, "an answer that does not say all that it must");
    }
}

/// The envelope: what is read is JSON, says what serde_json reads in it, and is read back as it was written.
pub(crate) fn jsonrpc(data: &[u8]) {
    let syntax = serde_json::from_slice::<&RawValue>(data);
    if let Ok(message) = Message::parse(data) {
        assert!(syntax.is_ok(), "a message that is no JSON");
        if let Ok(value) = serde_json::from_slice::<Value>(data) {
            agrees(&message, &value);
        }
        assert_eq!(written(&message), written(&Message::parse(written(&message).as_bytes()).unwrap()));
    }
    if let Ok(members) = jsonrpc::split_batch(data) {
        let joined: Vec<&str> = members.iter().map(|member| member.get()).collect();
        let again = format!("[{}]", joined.join(","));
        assert_eq!(jsonrpc::split_batch(again.as_bytes()).unwrap().len(), members.len());
    }
    if let Ok(text) = std::str::from_utf8(data) {
        object(text, syntax.is_ok());
        if syntax.is_ok() && text.trim_matches([' ', '\t', '\n', '\r']) == text {
            value(text);
        }
    }
}

/// What a message says is what any other reader finds there.
fn agrees(message: &Message<'_>, value: &Value) {
    let same = |text: &str, member: &Value| serde_json::from_str::<Value>(text).is_ok_and(|text| text == *member);
    match message {
        Message::Request { id, method, params } => {
            assert_eq!(value["method"], **method);
            assert!(same(id.as_json(), &value["id"]));
            assert!(params.is_none_or(|params| same(params.get(), &value["params"])));
        }
        Message::Notification { method, params } => {
            assert_eq!(value["method"], **method);
            assert!(value.get("id").is_none() && params.is_none_or(|params| same(params.get(), &value["params"])));
        }
        Message::Response { outcome, .. } => match outcome {
            Outcome::Result(result) => assert!(same(result.get(), &value["result"])),
            Outcome::Error(error) => assert!(same(error.get(), &value["error"])),
        },
    }
}

fn written(message: &Message<'_>) -> String {
    let bytes = match message {
        Message::Request { id, method, params } => jsonrpc::request(id, method, params.map(|params| params.get())),
        Message::Notification { method, params } => jsonrpc::notification(method, params.map(|params| params.get())),
        Message::Response { id: Some(id), outcome: Outcome::Result(result) } => jsonrpc::response(id, result.get()),
        Message::Response { id, outcome: Outcome::Error(error) | Outcome::Result(error) } => {
            jsonrpc::raw_error_response(id.as_ref(), error.get())
        }
    };
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Members of an object, by both of their readers.
fn object(text: &str, is_json: bool) {
    let mut scanned = Vec::new();
    if jsonrpc::members(text, |name, value| {
        scanned.push((name.to_owned(), value.get().to_owned()));
        true
    }) {
        let object = Object::parse(text).expect("what the scanner takes is an object");
        let read: Vec<_> = object.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(read, scanned);
    }
    if let Ok(object) = Object::parse(text) {
        assert!(is_json, "an object that is no JSON");
        let again = object.to_json();
        let again = Object::parse(&again).unwrap();
        assert!(object.iter().eq(again.iter()), "{text}");
    }
    if let Ok(meta) = serde_json::from_str::<&RawValue>(text) {
        drop(Envelope::read(Some(meta.into())));
    }
}

/// One value, as an id and as a text.
fn value(text: &str) {
    if let Ok(id) = Id::from_json(text) {
        assert_eq!(Id::from_json(id.as_json()).unwrap(), id);
    }
    let read = serde_json::from_str::<String>(text).ok();
    assert_eq!(jsonrpc::string_value(text).map(Cow::into_owned), read);
    if let Some(read) = read {
        let raw = jsonrpc::raw_string(&read);
        assert_eq!(jsonrpc::string_value(&raw).as_deref(), Some(&*read));
        // Named in a header, it is the same argument still.
        assert!(mirror::agrees(&read, text));
    }
}

/// Event streams: the same events however they are cut, and what is written is read.
pub(crate) fn sse(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let size = usize::from(cut & 0x7f).max(1);
    let whole = frames(data, data.len().max(1), 1 << 20);
    let cut_up = frames(data, size, 1 << 20);
    // Where a cut goes through CR LF, the second half is of no frame.
    let events =
        |(frames, _): &(Vec<Bytes>, bool)| frames.iter().map(|frame| owned(Event::parse(frame))).collect::<Vec<_>>();
    assert_eq!(events(&whole), events(&cut_up));
    assert!(frames(data, size, 64).0.iter().all(|frame| frame.len() <= 64), "a frame over the limit");
    for frame in &whole.0 {
        let event = Event::parse(frame);
        let prefixed = sse::prefix_ids(frame.clone(), "u.");
        let after = Event::parse(&prefixed);
        if !frame.starts_with(b"\xef\xbb\xbf") {
            assert_eq!((&after.data, &after.name, after.retry), (&event.data, &event.name, event.retry));
        }
        let Some(data) = &event.data else { continue };
        let again = sse::write_event(Some("1"), data);
        let (again, _) = frames(&again, 7, 1 << 20);
        let [again] = again.as_slice() else { panic!("one event became {}", again.len()) };
        assert_eq!(Event::parse(again).data.as_ref(), Some(data));
    }
    if sse::plain_events(data) == Some(true) {
        let any = whole.0.iter().any(|frame| Event::parse(frame).has_message());
        assert!(any, "plain events without a message");
    }
    drop(sse::last_message(Bytes::copy_from_slice(data)));
}

/// What an event says, apart from the bytes that it stands in.
fn owned(event: Event<'_>) -> (Option<String>, Option<Vec<u8>>, Option<String>, Option<u64>) {
    let Event { name, data, id, retry } = event;
    (name.map(Cow::into_owned), data.map(Cow::into_owned), id.map(Cow::into_owned), retry)
}

/// The frames, and whether one was too long.
fn frames(data: &[u8], size: usize, limit: usize) -> (Vec<Bytes>, bool) {
    let (mut framer, mut frames) = (Framer::new(limit), Vec::new());
    for chunk in data.chunks(size) {
        framer.push(Bytes::copy_from_slice(chunk));
        loop {
            match framer.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

/// Header fields: values in their encoding, lists of them, names that decide, and what goes on to a server.
pub(crate) fn headers(data: &[u8]) {
    answers_of_authorization(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let encoded = mirror::encode(text);
        assert!(HeaderValue::from_str(&encoded).is_ok(), "an encoded value that is no field's");
        assert_eq!(mirror::decode(encoded.as_bytes()).as_deref(), Ok(text));
    }
    drop(mirror::decode(data));
    let (mut map, mut last) = (HeaderMap::new(), None);
    for line in data.split(|byte| *byte == b'\n') {
        let (name, value) = line.iter().position(|byte| *byte == b':').map_or((&b"accept"[..], line), |place| {
            (line.get(..place).unwrap_or_default(), line.get(place + 1..).unwrap_or_default())
        });
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii())) else {
            continue;
        };
        last = Some(value.clone());
        map.append(name, value);
    }
    let accept = fields::accept(&map);
    assert!(map.contains_key("accept") || (accept.json && accept.events));
    let _version = fields::version(&map);
    let _is_json = fields::is_json(&map);
    let peer = [10, 0, 0, 1].into();
    let client = Trusted(vec!["10.0.0.0/8".parse().unwrap()]).client(peer, &map);
    assert_eq!(Trusted::default().client(peer, &map), peer);
    assert!(map.contains_key("forwarded") || map.contains_key("x-forwarded-for") || client == peer);
    if let Some(host) = last {
        loopback(&host);
    }
    let kept = fields::for_upstream(map);
    for name in ["authorization", "cookie", "host", "x-api-key", "connection", "transfer-encoding", "forwarded"] {
        assert!(!kept.contains_key(name), "{name} goes on");
    }
    assert!(kept.keys().all(|name| !name.as_str().starts_with("x-forwarded-")));
}

/// A name that passes for one of this machine is one to a reader of URLs as well.
fn loopback(host: &HeaderValue) {
    let config = origin::Config { is_loopback: true, ..origin::Config::default() };
    let is_this_machine = |text: &str| {
        let host = text.parse::<Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        host.eq_ignore_ascii_case("localhost")
            || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let allows = |name: HeaderName, value: &HeaderValue| {
        let headers = HeaderMap::from_iter([(name, value.clone())]);
        config.check(&headers, &Uri::from_static("/mcp")).is_ok()
    };
    let text = host.to_str().unwrap_or_default().to_owned();
    assert!(!allows(HOST, host) || is_this_machine(&text), "Host: {text}");
    let page = text.split_once("://").map_or("", |(_, page)| page).trim_end_matches('/');
    assert!(!allows(ORIGIN, host) || is_this_machine(page), "Origin: {text}");
}

/// Sealed tokens: open for their purpose, and never when anything in them is another.
pub(crate) fn tokens(data: &[u8]) {
    const PURPOSES: [Purpose; 6] =
        [Purpose::Session, Purpose::Cursor, Purpose::EventId, Purpose::ListCursor, Purpose::State, Purpose::Parked];
    let sealer = Sealer::new([7; 32], [[8; 32]]);
    for purpose in PURPOSES {
        assert_eq!(sealer.open(purpose, &String::from_utf8_lossy(data)), None, "nobody sealed this");
    }
    let (Some(&place), Some(&bit)) = (data.first(), data.get(1)) else { return };
    let plain = data.get(..data.len().min(1000)).unwrap_or_default();
    let purpose = PURPOSES[usize::from(place) % PURPOSES.len()];
    let token = sealer.seal(purpose, plain);
    assert_eq!(sealer.open(purpose, &token).as_deref(), Some(plain));
    for other in PURPOSES.into_iter().filter(|other| *other != purpose) {
        assert_eq!(sealer.open(other, &token), None, "for {other:?}");
    }
    assert_eq!(Sealer::new([9; 32], []).open(purpose, &token), None, "under another key");
    let mut changed = token.clone().into_bytes();
    let place = (usize::from(place) << 8 | usize::from(bit)) % changed.len();
    changed[place] ^= 1 << (bit % 7);
    let changed = String::from_utf8(changed).unwrap();
    assert_eq!(sealer.open(purpose, &changed), None, "with character {place} changed");
    assert_eq!(sealer.open(purpose, &token[..place]), None, "cut at {place}");
}

/// Rules: an expression before a zero byte, a call's arguments after it. The same question has the same answer, and nothing is
/// both true and false.
pub(crate) fn cel(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (source, arguments) = text.split_once('\0').unwrap_or((text, "{}"));
    let Ok(expression) = Expression::parse(source) else { return };
    assert_eq!(expression.as_str(), source);
    let caller = Arc::new(Caller::of(Arc::new(Principal::of_api_key("acme".into(), "ann".into()))));
    let rules = |allow| {
        let pattern = Pattern::parse("*").unwrap();
        Rules::new(vec![Rule { pattern, allow: Some(allow), scopes: Vec::new() }])
    };
    let allowed = rules(expression.clone()).allow(&caller, "tool", Some(arguments));
    assert_eq!(rules(expression).allow(&caller, "tool", Some(arguments)), allowed, "{source}");
    if let Ok(opposite) = Expression::parse(&format!("!({source}\n)")) {
        assert!(!allowed || !rules(opposite).allow(&caller, "tool", Some(arguments)), "both: {source}");
    }
}

/// The configuration: every mistake has words and a place, and what is good can be described.
pub(crate) fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let env = |name: &str| (name.len().is_multiple_of(2)).then(|| name.to_lowercase());
    match config::parse(text, "f.yaml", Path::new("/nonexistent"), &env) {
        Ok(settings) => {
            assert!(!config::describe(&settings).is_empty());
            drop(format!("{settings:?}"));
        }
        Err(errors) => {
            assert!(!errors.problems().is_empty());
            for problem in errors.problems() {
                assert!(!problem.message.is_empty());
                assert!(problem.position.is_some() || problem.path.is_empty(), "{problem} has no place");
                let lines = text.split(['\n', '\r']).count();
                assert!(problem.position.is_none_or(|position| (1..=lines + 1).contains(&position.line)), "{problem}");
            }
            drop(errors.to_string());
        }
    }
}
