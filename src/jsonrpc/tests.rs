//! The envelope against good, bad and arbitrary input.

use proptest::prelude::*;

use super::*;

fn defect(text: &str) -> Defect {
    Message::parse(text.as_bytes()).expect_err("must be refused")
}

#[test]
fn tells_the_three_kinds_apart() {
    let request = Message::parse(br#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1.10}}"#).unwrap();
    assert!(
        matches!(&request, Message::Request { id, params: Some(p), .. } if id.as_json() == "1" && p.get() == r#"{"x":1.10}"#)
    );
    let notification = Message::parse(br#"{"method":"n\u0041","jsonrpc":"2.0"}"#).unwrap();
    assert_eq!(notification.method(), Some("nA"));
    let answer = Message::parse(br#"{"jsonrpc":"2.0","id":"a","result":null}"#).unwrap();
    assert!(matches!(answer, Message::Response { id: Some(_), outcome: Outcome::Result(r) } if r.get() == "null"));
}

#[test]
fn accepts_ids_that_are_strings_or_integers_and_keeps_their_spelling() {
    for id in ["1", "\"1\"", "0", "-7", "9007199254740993", "\"\\u00e9\""] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        let Message::Request { id: read, .. } = Message::parse(text.as_bytes()).unwrap() else { panic!("{id}") };
        assert_eq!(read.as_json(), id);
    }
}

#[test]
fn refuses_other_ids() {
    let long = format!("\"{}\"", "x".repeat(4096));
    for id in ["null", "1.5", "1e3", "true", "[1]", "{}", &long] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        assert_eq!(defect(&text).code(), code::INVALID_REQUEST, "{id}");
    }
}

#[test]
fn the_longest_id_is_taken_and_one_byte_more_is_not() {
    let of = |bytes: usize| Id::from_json(&format!("\"{}\"", "x".repeat(bytes - 2)));
    assert!(of(MAX_ID_BYTES - 1).is_ok());
    assert!(of(MAX_ID_BYTES).is_ok());
    assert!(of(MAX_ID_BYTES + 1).is_err());
}

#[test]
fn says_what_is_wrong() {
    for (text, code) in [
        ("", code::PARSE_ERROR),
        ("{", code::PARSE_ERROR),
        ("nonsense", code::PARSE_ERROR),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"} trailing", code::PARSE_ERROR),
        ("\"text\"", code::INVALID_REQUEST),
        ("7", code::INVALID_REQUEST),
        ("{}", code::INVALID_REQUEST),
        (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m","params":5}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","\u006dethod":"b"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","result":1}"#, code::INVALID_REQUEST),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#, code::INVALID_REQUEST),
    ] {
        assert_eq!(defect(text).code(), code, "{text}");
    }
    let utf16: Vec<u8> = "{\"jsonrpc\":\"2.0\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(Message::parse(&utf16).expect_err("not UTF-8").code(), code::PARSE_ERROR);
}

#[test]
fn ten_thousand_nested_arrays_are_carried_unread() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{deep}}}}}"#);
    let Message::Request { params: Some(params), .. } = Message::parse(text.as_bytes()).unwrap() else { panic!() };
    assert_eq!(Object::parse(params.get()).unwrap().get("a"), Some(deep.as_str()));
}

#[test]
fn an_object_changes_one_member_and_keeps_the_rest() {
    let text = r#"{"b":1.10,"a":{"z":1E3},"task":{"ttl":1},"a\u0062":9007199254740993}"#;
    let mut object = Object::parse(text).unwrap();
    object.remove("task").set("a", "[]").set("new", "null");
    assert_eq!(object.to_json(), r#"{"b":1.10,"a":[],"ab":9007199254740993,"new":null}"#);
    let mut repeated = Object::parse(r#"{"a":1,"b":2,"a":3}"#).unwrap();
    assert!(repeated.repeats("a") && !repeated.repeats("b"));
    assert_eq!(repeated.get("a"), Some("3"));
    assert_eq!(repeated.set("a", "4").to_json(), r#"{"a":4,"b":2}"#);
}

#[test]
fn a_batch_is_split_without_reading_its_members() {
    assert_eq!(
        split_batch(b"[{\"a\":1.0}, 2]").unwrap().iter().map(|m| m.get()).collect::<Vec<_>>(),
        ["{\"a\":1.0}", "2"]
    );
    assert!(matches!(split_batch(b"[]"), Err(Defect::Invalid(_))));
    assert!(matches!(split_batch(b"[1,"), Err(Defect::Syntax(_))));
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(Message::parse(&bytes));
        drop(split_batch(&bytes));
    }

    #[test]
    fn what_is_written_is_read_back(number in any::<u64>(), method in ".*", text in ".*") {
        let params = format!("{{\"t\":{}}}", raw_string(&text));
        let written = request(&Id::number(number), &method, Some(&params));
        let Message::Request { id, method: read, params: Some(back) } = Message::parse(&written).unwrap() else { panic!() };
        prop_assert_eq!(id, Id::number(number));
        prop_assert_eq!(read.as_ref(), method.as_str());
        prop_assert_eq!(back.get(), params.as_str());
        let id = Id::string(&text);
        let answer = response(&id, "{}");
        let is_answer = matches!(Message::parse(&answer).unwrap(), Message::Response { id: Some(read), .. } if read == id);
        prop_assert_eq!(is_answer, raw_string(&text).len() <= MAX_ID_BYTES);
    }

    #[test]
    fn an_untouched_object_keeps_its_values(keys in proptest::collection::vec("[a-z\"\\\\]{0,4}", 0..6)) {
        let text = format!("{{{}}}", keys.iter().enumerate().map(|(i, k)| format!("{}:{i}.0", raw_string(k))).collect::<Vec<_>>().join(","));
        prop_assert_eq!(Object::parse(&text).unwrap().to_json(), text);
    }
}

#[test]
fn ids_are_equal_however_they_are_spelled() {
    let of = |text: &str| Id::from_json(text).unwrap();
    assert_eq!(of(r#""\u0061\/""#), of(r#""a/""#));
    assert_eq!(of(r#""\u00e9""#), of("\"é\""));
    assert_eq!(of(r#""\u0061""#).as_json(), r#""\u0061""#, "and go out as they came");
    assert_ne!(of("1"), of("\"1\""));
    assert_ne!(of(r#""\\u0061""#), of(r#""a""#));
}

#[test]
fn parts_are_replaced_where_they_stand_and_all_else_stays() {
    let text = r#" {"id" : 7,"params":{"t":"x","id":7}} "#;
    let (message, id) = (text.as_bytes(), &text[9..10]);
    let token = &text[25..28];
    let whole = |changed: Option<Bytes>| changed.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    assert_eq!(whole(spliced(message, [])).as_deref(), Some(text));
    let expected = r#" {"id" : 81,"params":{"t":"","id":7}} "#;
    assert_eq!(whole(spliced(message, [(token, "\"\""), (id, "81")])).as_deref(), Some(expected));
    assert_eq!(spliced(message, [("7", "8")]), None, "it is another text's");
    assert_eq!(spliced(message, [(id, "8"), (&text[8..10], "9")]), None, "they overlap");
    let (_, found) = Message::parse_with_id(br#"{"method":"a","id" : 7,"jsonrpc":"2.0"}"#).unwrap();
    assert_eq!(found, Some("7"));
}
