//! The tables of the specification and of SEP-2243, and what holds for every text.

use proptest::prelude::*;

use super::*;

fn read(header: &str) -> Result<String, Unreadable> {
    decode(header.as_bytes()).map(Cow::into_owned)
}

#[test]
fn values_are_written_as_the_specification_shows() {
    let table = [
        ("us-west1", "us-west1"),
        ("", ""),
        ("us west 1", "us west 1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        ("日本語", "=?base64?5pel5pys6Kqe?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?base64?x", "=?base64?x"),
    ];
    for (value, header) in table {
        assert_eq!(encode(value), header);
        assert_eq!(read(header).as_deref(), Ok(value));
    }
}

#[test]
fn what_is_marked_must_be_base64_and_what_is_not_stands_for_itself() {
    assert_eq!(read("=?base64?SGVsbG8=?=").as_deref(), Ok("Hello"));
    for bad in
        ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?_-8=?=", "=?base64?SGVsbG9=?=", "=?base64?/w==?="]
    {
        assert_eq!(read(bad), Err(Unreadable::Base64), "{bad}");
    }
    for literal in
        ["SGVsbG8=", "=?base64?SGVsbG8=", "SGVsbG8=?=", "=?BASE64?SGVsbG8=?=", "=?Base64?SGVsbG8=?=", "=?base64?="]
    {
        assert_eq!(read(literal).as_deref(), Ok(literal));
    }
    assert_eq!(read(" \t us-west1\t").as_deref(), Ok("us-west1"));
    assert_eq!(read("a\u{7f}"), Err(Unreadable::Character));
    assert_eq!(read("h\u{e9}"), Err(Unreadable::Character));
    assert_eq!(decode(b"\xff"), Err(Unreadable::Character));
}

#[test]
fn arguments_are_compared_by_what_they_mean() {
    for (value, argument) in [
        ("us", r#""us""#),
        ("a\"b", r#""a\"b""#),
        ("42", "42"),
        ("42.0", "42"),
        ("42", "4.2e1"),
        ("true", "true"),
        ("false", "false"),
        ("", r#""""#),
    ] {
        assert!(agrees(value, argument), "{value} {argument}");
    }
    for (value, argument) in [
        ("US", r#""us""#),
        ("43", "42"),
        ("True", "true"),
        ("042", "42"),
        ("", "0"),
        ("null", "null"),
        ("{}", "{}"),
        ("42", r#""42.0""#),
        ("9007199254740993", "9007199254740992"),
    ] {
        assert!(!agrees(value, argument), "{value} {argument}");
    }
}

const SCHEMA: &str = r#"{"type":"object","properties":{
    "region":{"type":"string","x-mcp-header":"Region"},
    "limits":{"type":"object","properties":{"count":{"type":"integer","x-mcp-header":"Count"}}},
    "x-mcp-header":{"type":"string"},
    "dry":{"type":"boolean","x-mcp-header":"Dry-Run","default":{"x-mcp-header":"data"}}}}"#;

#[test]
fn annotated_properties_are_found_wherever_properties_lead() {
    let mut found = annotations(SCHEMA).unwrap();
    found.sort_by(|a, b| a.header.cmp(&b.header));
    let shown: Vec<String> = found.iter().map(|found| format!("{} {}", found.header, found.path.join("/"))).collect();
    assert_eq!(shown, ["Mcp-Param-Count limits/count", "Mcp-Param-Dry-Run dry", "Mcp-Param-Region region"]);
    assert_eq!(annotations(r#"{"type":"object","properties":{"a":{"type":"string"}}}"#), Ok(Vec::new()));
    let escaped = r#"{"properties":{"a":{"type":"string","x\u002dmcp-header":"A"}}}"#;
    assert_eq!(annotations(escaped).map(|found| found.len()), Ok(1));
}

#[test]
fn a_tool_that_breaks_a_rule_is_invalid() {
    let property = |property: &str| annotations(&format!(r#"{{"properties":{{"a":{property}}}}}"#)).unwrap_err();
    for name in [r#""""#, r#""a b""#, r#""a:b""#, r#""a\r\nb""#, r#""é""#, "1", "null"] {
        assert_eq!(property(&format!(r#"{{"type":"string","x-mcp-header":{name}}}"#)), InvalidTool::Name, "{name}");
    }
    for of_type in [r#""number""#, r#""object""#, r#""array""#, r#""null""#, r#"["string","null"]"#, "7"] {
        let of_type = format!(r#"{{"type":{of_type},"x-mcp-header":"A"}}"#);
        assert_eq!(property(&of_type), InvalidTool::Type, "{of_type}");
    }
    assert_eq!(property(r#"{"x-mcp-header":"A"}"#), InvalidTool::Type);
    let annotated = r#"{"type":"string","x-mcp-header":"A"}"#;
    for place in [
        format!(r#"{{"items":{annotated}}}"#),
        format!(r#"{{"prefixItems":[{annotated}]}}"#),
        format!(r#"{{"anyOf":[{annotated}]}}"#),
        format!(r#"{{"allOf":[{{"properties":{{"b":{annotated}}}}}]}}"#),
        format!(r#"{{"not":{annotated}}}"#),
        format!(r#"{{"if":{{"properties":{{"b":{annotated}}}}}}}"#),
        format!(r#"{{"$defs":{{"b":{annotated}}}}}"#),
        format!(r#"{{"additionalProperties":{annotated}}}"#),
    ] {
        assert_eq!(property(&place), InvalidTool::Place, "{place}");
        assert_eq!(annotations(&place).unwrap_err(), InvalidTool::Place, "{place}");
    }
    assert_eq!(annotations(annotated).unwrap_err(), InvalidTool::Place);
    let twice = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#;
    assert_eq!(annotations(twice).unwrap_err(), InvalidTool::Repeated);
    let deep = format!("{}{}", r#"{"properties":{"x-mcp-header":"#.repeat(400), "}}".repeat(400));
    assert_eq!(annotations(&deep).unwrap_err(), InvalidTool::Schema);
}

/// The check of a call with these headers, which are names and values.
fn checked(arguments: &str, headers: &[(&str, &str)]) -> Result<(), Why> {
    let values = |name: &str| -> Vec<&[u8]> {
        headers
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_bytes())
            .collect()
    };
    check(&annotations(SCHEMA).unwrap(), Some(arguments), values).map_err(|mismatch| mismatch.why)
}

#[test]
fn headers_and_arguments_must_say_the_same() {
    let arguments = r#"{"region":"us","limits":{"count":42},"dry":null}"#;
    let (region, count) = (("mcp-param-region", "us"), ("Mcp-Param-Count", "42.0"));
    assert_eq!(checked(arguments, &[region, count, ("Mcp-Param-Unknown", "\u{1}")]), Ok(()));
    assert_eq!(checked(arguments, &[region, count, ("Mcp-Param-Dry-Run", "false")]), Err(Why::Unfounded));
    assert_eq!(checked(arguments, &[count]), Err(Why::Missing));
    assert_eq!(checked(arguments, &[region, count, region]), Err(Why::Repeated));
    assert_eq!(checked(arguments, &[("Mcp-Param-Region", "eu"), count]), Err(Why::Different));
    let unreadable = checked(arguments, &[("Mcp-Param-Region", "=?base64?!?="), count]);
    assert_eq!(unreadable, Err(Why::Unreadable(Unreadable::Base64)));
    assert_eq!(checked("{}", &[]), Ok(()));
    assert_eq!(checked(r#"{"limits":7}"#, &[]), Ok(()));
    let none = check(&annotations(SCHEMA).unwrap(), None, |_| None::<&[u8]>);
    assert_eq!(none, Ok(()));
}

#[test]
fn a_call_carries_what_its_tool_asks_for() {
    let mirrored = annotations(SCHEMA).unwrap();
    let sent = |arguments: &str| {
        let mut sent: Vec<String> =
            headers(&mirrored, Some(arguments)).map(|(name, value)| format!("{name}: {value}")).collect();
        sent.sort();
        sent
    };
    assert_eq!(
        sent(r#"{"region":"日本語","limits":{"count":4.2e1},"dry":true}"#),
        ["Mcp-Param-Count: 42", "Mcp-Param-Dry-Run: true", "Mcp-Param-Region: =?base64?5pel5pys6Kqe?="]
    );
    assert!(sent(r#"{"region":null,"limits":{"count":[1]}}"#).is_empty());
}

proptest! {
    #[test]
    fn every_text_survives_a_header(text in "\\PC*|[ -~]*|(\\s|=|\\?|base64|[a-z])*") {
        let header = encode(&text).into_owned();
        prop_assert!(header.bytes().all(|byte| matches!(byte, 0x20..=0x7e)));
        let padded = format!(" {header}\t");
        let decoded = decode(padded.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Ok(text.as_str()));
    }

    #[test]
    fn no_header_is_too_odd_to_be_read(bytes: Vec<u8>) {
        drop(decode(&bytes));
    }

    #[test]
    fn what_a_call_carries_passes_the_check(region in "\\PC*", count: i64, dry: Option<bool>) {
        let arguments = serde_json::json!({"region": region, "limits": {"count": count}, "dry": dry}).to_string();
        let mirrored = annotations(SCHEMA).unwrap();
        let sent: Vec<(&str, String)> = headers(&mirrored, Some(&arguments)).collect();
        let values = |name: &str| sent.iter().filter(|(other, _)| *other == name).map(|(_, value)| value.as_bytes()).collect::<Vec<_>>();
        prop_assert_eq!(check(&mirrored, Some(&arguments), values), Ok(()));
    }
}
