//! Each row of the projections, and what holds for every value.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn to_legacy(method: &str, result: &str) -> String {
    result_for_legacy(method, result, false).unwrap()
}

#[test]
fn legacy_clients_never_see_what_only_the_modern_era_has() {
    let modern = r#"{"resultType":"complete","tools":[{"name":"a","n":1.0}],"ttlMs":5,"cacheScope":"public","nextCursor":"c","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"x/y":1}}"#;
    assert_eq!(
        to_legacy("tools/list", modern),
        r#"{"tools":[{"name":"a","n":1.0}],"nextCursor":"c","_meta":{"x/y":1}}"#
    );
    let only = r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#;
    assert_eq!(to_legacy("tools/call", only), "{}");
    // Elsewhere these names are the server's own.
    assert_eq!(to_legacy("vendor/x", r#"{"ttlMs":1,"cacheScope":2}"#), r#"{"ttlMs":1,"cacheScope":2}"#);
    assert_eq!(result_for_legacy("tools/call", "[]", false), None);
}

#[test]
fn modern_clients_get_what_their_era_requires() {
    let info = Some(r#"{"name":"s","version":"1"}"#);
    let legacy = r#"{"contents":[{"uri":"a","text":"x"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"x/y":1}}"#;
    assert_eq!(
        result_for_modern("resources/read", legacy, info).unwrap(),
        r#"{"contents":[{"uri":"a","text":"x"}],"_meta":{"x/y":1,"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}},"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#
    );
    assert_eq!(result_for_modern("completion/complete", "{}", None).unwrap(), r#"{"resultType":"complete"}"#);
    for method in CACHEABLE {
        let result = result_for_modern(method, r#"{"ttlMs":60000,"cacheScope":"public"}"#, None).unwrap();
        assert_eq!(result, r#"{"ttlMs":0,"cacheScope":"private","resultType":"complete"}"#);
    }
}

#[test]
fn a_legacy_tool_is_listed_without_what_it_can_not_mean() {
    let page = r#"{"tools":[{"name":"a","execution":{"taskSupport":"required"},"inputSchema":{"type":"object","properties":{"x-mcp-header":{"type":"string","x-mcp-header":"A","maximum":1.0}}}},{"name":"b","inputSchema":{"a":1.0}}]}"#;
    assert_eq!(
        result_for_modern("tools/list", page, None).unwrap(),
        r#"{"tools":[{"name":"a","inputSchema":{"type":"object","properties":{"x-mcp-header":{"type":"string","maximum":1.0}}}},{"name":"b","inputSchema":{"a":1.0}}],"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#
    );
}

/// The output schema of a tool as legacy clients see it.
fn output(schema: &str) -> String {
    let page = format!(r#"{{"tools":[{{"name":"a","outputSchema":{schema}}}]}}"#);
    let page: Value = serde_json::from_str(&to_legacy("tools/list", &page)).unwrap();
    page["tools"][0]["outputSchema"].to_string()
}

#[test]
fn output_schemas_get_an_object_at_their_root() {
    let object = r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}}}"##;
    assert_eq!(
        to_legacy("tools/list", &format!(r#"{{"tools":[{{"outputSchema":{object}}}]}}"#)),
        format!(r#"{{"tools":[{{"outputSchema":{object}}}]}}"#)
    );
    let wrapped =
        |inner: Value| json!({"type": "object", "properties": {"result": inner}, "required": ["result"]}).to_string();
    assert_eq!(output(r#"{"type":"string"}"#), wrapped(json!({"type": "string"})));
    assert_eq!(output("true"), wrapped(json!(true)));
    assert_eq!(
        output(
            r##"{"type":"array","items":{"$ref":"#/$defs/n"},"$defs":{"n":{"anyOf":[{"$ref":"#"},{"$dynamicRef":"#here"}]},"$ref":{"type":"null"}}}"##
        ),
        wrapped(json!({
            "type": "array", "items": {"$ref": "#/properties/result/$defs/n"},
            "$defs": {"n": {"anyOf": [{"$ref": "#/properties/result"}, {"$dynamicRef": "#here"}]}, "$ref": {"type": "null"}}
        }))
    );
    // Data is no schema, a schema with an id is its own root, and other documents are elsewhere.
    let left = json!({
        "oneOf": [{"const": {"$ref": "#/a"}}, {"enum": [{"$ref": "#/a"}]}, {"$id": "https://a/b", "$ref": "#/a"}, {"$ref": "https://a/c#/d"}],
        "default": {"$ref": "#/a"}, "examples": [{"$ref": "#/a"}]
    });
    assert_eq!(output(&left.to_string()), wrapped(left));
    assert_eq!(
        output(r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"integer"}"#),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}).to_string()
    );
}

#[test]
fn a_wrapped_schema_accepts_what_the_schema_did() {
    let list = r##"{"type":["array","null"],"items":{"$ref":"#/$defs/item"},"$defs":{"item":{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]}}}"##;
    let (before, after): (Value, Value) =
        (serde_json::from_str(list).unwrap(), serde_json::from_str(&output(list)).unwrap());
    for value in
        [json!(null), json!([]), json!([{"next": [{"next": null}]}]), json!([{"next": 1}]), json!([1]), json!(1)]
    {
        let wrapped = json!({"result": value});
        assert_eq!(jsonschema::is_valid(&before, &value), jsonschema::is_valid(&after, &wrapped), "{value}");
    }
}

#[test]
fn structured_results_are_objects_with_a_text_beside_them() {
    let call = |result: &str, wraps| result_for_legacy("tools/call", result, wraps).unwrap();
    let object = r#"{"content":[],"structuredContent":{"a":1.0}}"#;
    assert_eq!(call(object, false), object);
    assert_eq!(
        call(object, true),
        r#"{"content":[{"type":"text","text":"{\"a\":1.0}"}],"structuredContent":{"result":{"a":1.0}}}"#
    );
    assert_eq!(
        call(r#"{"structuredContent":[1.0,"x"]}"#, false),
        r#"{"structuredContent":{"result":[1.0,"x"]},"content":[{"type":"text","text":"[1.0,\"x\"]"}]}"#
    );
    assert_eq!(
        call(r#"{"content":[{"type":"text","text":"seven"}],"structuredContent":7}"#, false),
        r#"{"content":[{"type":"text","text":"seven"}],"structuredContent":{"result":7}}"#
    );
    assert_eq!(call(r#"{"content":[],"isError":true}"#, true), r#"{"content":[],"isError":true}"#);
}

#[test]
fn tools_with_invalid_annotations_are_not_listed() {
    let mut dropped = Vec::new();
    let mut drop = |name: &str, why| dropped.push((name.to_owned(), why));
    let good = r#"{"name":"a","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}"#;
    let bad = r#"{"name":"b","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}}"#;
    let page = |tools: &[&str]| format!(r#"{{"tools":[{}],"ttlMs":5}}"#, tools.join(","));
    assert_eq!(without_invalid_tools(&page(&[good]), &mut drop), None);
    assert_eq!(without_invalid_tools(&page(&[bad, good]), &mut drop), Some(page(&[good])));
    assert_eq!(without_invalid_tools("[]", &mut drop), None);
    assert_eq!(dropped, [("b".to_owned(), mirror::InvalidTool::Type)]);
}

#[test]
fn params_for_a_legacy_server_keep_what_is_not_reserved() {
    let params = r#"{"name":"a","arguments":{"x":1.0},"inputResponses":{},"requestState":"s","task":{"ttl":1},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":7,"traceparent":"00-1","x/y":1}}"#;
    assert_eq!(
        params_for_legacy(params).unwrap(),
        r#"{"name":"a","arguments":{"x":1.0},"_meta":{"progressToken":7,"traceparent":"00-1","x/y":1}}"#
    );
    let only = r#"{"_meta":{"io.modelcontextprotocol/logLevel":"info"}}"#;
    assert_eq!(params_for_legacy(only).unwrap(), "{}");
}

#[test]
fn a_legacy_question_becomes_a_bare_one() {
    let ask = |method: &str, params: &str| input_request(method, Some(params));
    assert_eq!(
        ask("elicitation/create", r#"{"mode":"url","url":"u","message":"m","elicitationId":"1","_meta":{},"task":{}}"#)
            .unwrap(),
        r#"{"method":"elicitation/create","params":{"mode":"url","url":"u","message":"m"}}"#
    );
    assert_eq!(
        ask("sampling/createMessage", r#"{"maxTokens":1.0}"#).unwrap(),
        r#"{"method":"sampling/createMessage","params":{"maxTokens":1.0}}"#
    );
    assert_eq!(ask("roots/list", r#"{"_meta":{"progressToken":1}}"#).unwrap(), r#"{"method":"roots/list"}"#);
    assert_eq!(input_request("roots/list", None).unwrap(), r#"{"method":"roots/list"}"#);
    assert_eq!(input_request("elicitation/create", None), None);
    assert_eq!([ask("tools/call", "{}"), ask("ping", "{}"), ask("roots/list", "[]")], [None, None, None]);
}

#[test]
fn a_modern_question_and_its_answer_cross_back() {
    let url = r#"{"mode":"url","url":"u","message":"m"}"#;
    let ask = |method: &str, params: Option<&str>| question_params(method, params, || "id-1".to_owned());
    assert_eq!(
        ask("elicitation/create", Some(url)).unwrap(),
        r#"{"mode":"url","url":"u","message":"m","elicitationId":"id-1"}"#
    );
    assert_eq!(ask("elicitation/create", Some(r#"{"message":"m"}"#)).unwrap(), r#"{"message":"m"}"#);
    assert_eq!(ask("roots/list", None), None);
    assert_eq!(
        input_response(r#"{"action":"accept","content":{"n":1.0},"_meta":{"a":1},"resultType":"complete"}"#).unwrap(),
        r#"{"action":"accept","content":{"n":1.0}}"#
    );
    assert_eq!(input_response("null"), None);
}

#[test]
fn errors_keep_their_meaning_and_only_known_codes_pass() {
    let error = |code: i64| format!(r#"{{"code":{code},"message":"m","data":{{"uri":"a"}}}}"#);
    for code in [-32700, -32600, -32601, -32602, -32603, -32000, -32019, -32100, -1, 429] {
        assert_eq!(error_for_modern(&error(code)), error(code));
        assert_eq!(error_for_legacy(&error(code)), error(code));
    }
    assert_eq!(error_for_modern(&error(-32002)), error(-32602));
    assert_eq!(error_for_legacy(&error(-32002)), error(-32002));
    for code in [-32020, -32021, -32022, -32023, -32050, -32099] {
        let original = error(code);
        assert_eq!(
            error_for_modern(&original),
            format!(r#"{{"code":-32603,"message":"m","data":{{"upstream":{original}}}}}"#)
        );
        assert_eq!(error_for_legacy(&original), r#"{"code":-32603,"message":"m"}"#);
    }
    assert_eq!(code_of(&error_for_modern(&error(-32042))), Some(-32603));
    assert_eq!(error_for_legacy(&error(-32042)), error(-32042));
    assert_eq!(
        [-32019, -32020, -32021, -32022, -32023].map(|code| HopError::of(&error(code))),
        [
            None,
            Some(HopError::HeaderMismatch),
            Some(HopError::MissingCapability),
            Some(HopError::UnsupportedVersion),
            None
        ]
    );
}

#[test]
fn urls_that_must_be_visited_first_become_questions() {
    let error = r#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"1","url":"u","message":"a"},{"message":"no url"},{"url":"v","message":"b"}]}}"#;
    assert_eq!(
        url_elicitations(error).unwrap(),
        [r#"{"mode":"url","url":"u","message":"a"}"#, r#"{"url":"v","message":"b","mode":"url"}"#]
    );
    assert_eq!(url_elicitations(r#"{"code":-32042,"message":"m"}"#), Some(Vec::new()));
    assert_eq!(url_elicitations(r#"{"code":-32602,"message":"m"}"#), None);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let name = prop_oneof![
            Just("$ref".to_owned()),
            Just("properties".to_owned()),
            Just("x-mcp-header".to_owned()),
            "[a-z]{1,3}"
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(name, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_result_there_and_back_is_the_same(value in any_json()) {
        let legacy = json!({"contents": value}).to_string();
        let modern = result_for_modern("resources/read", &legacy, Some("{}")).unwrap();
        prop_assert_eq!(to_legacy("resources/read", &modern), legacy);
    }

    #[test]
    fn every_tool_stays_json(value in any_json(), method in prop_oneof![Just("tools/list"), Just("tools/call")]) {
        let result = json!({"tools": [{"name": "a", "inputSchema": value, "outputSchema": value}], "structuredContent": value, "content": value}).to_string();
        for projected in [result_for_legacy(method, &result, true), result_for_modern(method, &result, None)] {
            prop_assert!(serde_json::from_str::<Value>(&projected.unwrap()).is_ok());
        }
    }
}
