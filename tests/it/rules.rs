//! Who may call which tool: the rules of a route, over every way to a tool and to what it made.

use http::StatusCode;
use taskgate::demo::server::{Era, Options};

use crate::support::raw_upstream::{Heard, RawUpstream, json_body};
use crate::support::stateless::stateless;
use crate::support::{Answer, Client, Gateway, Issuer, Modern, Value, json, text_of};

const UNKNOWN: &str = r#"{"code":-32602,"message":"Unknown tool"}"#;

/// Alice may count; nobody deploys but on trial; `hold` is Bob's, and `stats` is everybody's who can say why.
const RULES: &str = r#"{match: count, allow: "principal.subject == 'alice' && principal.tenant == tenant"},
    {match: deploy, allow: "arguments.dry_run == true"},
    {match: "hol?", allow: "tool == 'hold' && principal.subject in ['bob']"},
    {match: stats, allow: "claims.why != ''"}"#;

async fn in_front_of(era: Era) -> Gateway {
    let options = Options { era, ..Options::default() };
    Gateway::setup()
        .server(options)
        .callers(&["acme/alice", "acme/bob"])
        .tools("deny: [big]")
        .authorize(RULES)
        .start()
        .await
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[track_caller]
fn assert_shown(list: &Value, is_alice: bool) {
    let names = names(list);
    let shown = |name| names.contains(&name);
    // What only the arguments decide is shown, since it may be called.
    assert!(shown("deploy") && shown("echo") && !shown("big") && !shown("stats"), "{names:?}");
    assert_eq!((shown("count"), shown("hold")), (is_alice, !is_alice), "{names:?}");
    assert_eq!(names.len(), 17, "{names:?}");
}

#[tokio::test]
async fn legacy_clients_see_and_call_what_the_rules_allow() {
    for era in [Era::Legacy, Era::Modern] {
        let gateway = in_front_of(era).await;
        let (alice, bob) = (gateway.open_as("alice").await, gateway.open_as("bob").await);
        assert_shown(&alice.result("tools/list", json!({})).await, true);
        assert_shown(&bob.result("tools/list", json!({})).await, false);
        assert_eq!(text_of(&alice.call("count", json!({})).await), "1");
        let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
        for params in [
            json!({"name": "count", "arguments": {}}),
            json!({"name": "count", "arguments": {}, "task": {}}),
            json!({"name": "stats"}),
            json!({"name": "holy"}),
            json!({"name": "deploy", "arguments": {"region": "eu"}}),
            json!({"name": "deploy", "arguments": {"region": "eu", "dry_run": false}, "task": {}}),
            json!({"name": "deploy", "arguments": {"region": "eu", "dry_run": "true"}}),
            json!({"name": "deploy"}),
            // As what the route denies to everybody.
            json!({"name": "big", "arguments": {"bytes": 1}}),
        ] {
            assert_eq!(bob.error("tools/call", params.clone()).await, unknown, "{params}");
        }
        assert_eq!(gateway.upstream.stats().method("tools/call"), 1);
        let trial = bob.call("deploy", json!({"region": "eu", "dry_run": true})).await;
        assert!(text_of(&trial).contains("eu"), "{trial}");
        let id = bob.start("deploy", json!({"region": "eu", "dry_run": true})).await;
        assert!(text_of(&bob.outcome(&id).await).contains("eu"));
        assert_eq!(bob.result("tasks/list", json!({})).await["tasks"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn modern_clients_see_and_call_what_the_rules_allow() {
    for era in [Era::Legacy, Era::Modern] {
        let gateway = in_front_of(era).await;
        let client = |name: &str| Modern::new(&gateway).caller(name);
        for (name, is_alice) in [("alice", true), ("bob", false)] {
            let list = client(name).result("tools/list", json!({})).await;
            assert_shown(&list, is_alice);
            // Nobody may keep it for others, whether or not something is missing.
            assert_eq!((&list["cacheScope"], &list["ttlMs"]), (&json!("private"), &json!(0)), "{name}");
        }
        assert_eq!(client("alice").text("count", json!({})).await, "1");
        let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
        for (tool, arguments) in [
            ("count", json!({})),
            ("stats", json!({})),
            ("deploy", json!({"region": "eu", "dry_run": false})),
            ("big", json!({"bytes": 1})),
        ] {
            for bob in [client("bob"), client("bob").with_tasks()] {
                let refused = bob.call(tool, arguments.clone()).await;
                assert_eq!((refused.status, &refused.error), (StatusCode::OK, &unknown), "{tool}");
            }
        }
        assert_eq!(gateway.upstream.stats().method("tools/call"), 1);
    }
}

#[tokio::test]
async fn every_page_of_a_list_is_filtered() {
    let options = Options { page_size: Some(3), ..Options::default() };
    let gateway = Gateway::setup()
        .server(options)
        .callers(&["acme/alice"])
        .authorize(r#"{allow: "tool.startsWith('ask') || tool == 'echo'"}"#);
    let gateway = gateway.start().await;
    let (legacy, modern) = (gateway.open_as("alice").await, Modern::new(&gateway).caller("alice"));
    for is_modern in [false, true] {
        let mut seen: Vec<String> = Vec::new();
        let mut params = json!({});
        loop {
            let page = match is_modern {
                false => legacy.result("tools/list", params).await,
                true => modern.result("tools/list", params).await,
            };
            seen.extend(names(&page).into_iter().map(str::to_owned));
            match page.get("nextCursor") {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => break,
            }
        }
        assert_eq!(seen, ["echo", "ask", "ask_two", "ask_twice", "ask_url"], "modern: {is_modern}");
    }
}

#[tokio::test]
async fn arguments_that_two_readers_could_read_differently_reach_nobody() {
    let gateway = in_front_of(Era::Legacy).await;
    let bob = gateway.open_as("bob").await;
    for arguments in [
        r#"{"region":"eu","dry_run":true,"dry_run":false}"#,
        r#"{"region":"eu","dry_run":true,"dry\u005frun":false}"#,
        r#"{"region":"eu","dry_run":true,"target":{"zone":"a","zone":"b"}}"#,
        r#"[true]"#,
        r#""dry_run""#,
    ] {
        for task in ["", r#","task":{}"#] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"deploy","arguments":{arguments}{task}}}}}"#
            );
            let error = bob.post(body).await.response().await["error"].take();
            assert_eq!(error["code"], -32602, "{arguments}");
            assert!(error["message"].as_str().unwrap().starts_with("`arguments` "), "{error}");
        }
    }
    assert_eq!(gateway.upstream.stats().method("tools/call"), 0);
}

#[tokio::test]
async fn each_call_of_a_batch_is_looked_at() {
    let gateway = in_front_of(Era::Legacy).await;
    let bob = gateway.client().caller("bob").version("2025-03-26").open().await;
    let call = |id: u32, tool: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {"text": "x"}}});
    let answer: Answer = bob.post(json!([call(1, "count"), call(2, "echo")]).to_string()).await;
    let mut answers = answer.messages().await;
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers[0]["error"].to_string(), UNKNOWN);
    assert_eq!(text_of(&answers[1]), "x");
    assert_eq!(gateway.upstream.stats().method("tools/call"), 1);
}

#[tokio::test]
async fn a_server_that_makes_its_tasks_itself_hears_of_no_call_that_is_refused() {
    for era in [Era::Legacy, Era::Modern] {
        let setup = Gateway::setup().server(Options { era, ..Options::default() }).callers(&["acme/bob"]);
        let gateway = setup.authorize(RULES).tasks("mode: native").start().await;
        let unknown: Value = serde_json::from_str(UNKNOWN).unwrap();
        let bob = gateway.open_as("bob").await;
        assert_eq!(bob.error("tools/call", json!({"name": "count", "task": {}})).await, unknown);
        assert_eq!(Modern::new(&gateway).caller("bob").with_tasks().call("count", json!({})).await.error, unknown);
        assert_eq!(gateway.upstream.stats().method("tools/call"), 0);
    }
}

/// A call that waits for its client's answer is not gone on with by arguments that a rule refuses.
#[tokio::test]
async fn a_call_that_goes_on_is_looked_at_again() {
    for era in [Era::Legacy, Era::Modern] {
        let setup = Gateway::setup().server(Options { era, ..Options::default() }).callers(&["acme/bob"]);
        let gateway = setup.authorize(r#"{match: ask, allow: "!has(arguments.message)"}"#).start().await;
        let bob = Modern::new(&gateway).caller("bob");
        let asked = bob.call("ask", json!({})).await;
        let answers = json!({asked.key().as_str(): {"action": "accept", "content": {"name": "Bob"}}});
        let other = bob.answer("ask", json!({"message": "?"}), &asked.result, answers.clone()).await;
        assert_eq!(other.error.to_string(), UNKNOWN);
        assert_eq!(bob.answer("ask", json!({}), &asked.result, answers).await.text(), "Hello, Bob");
    }
}

/// Without credentials there are no claims, and whoever calls is the same nobody.
#[tokio::test]
async fn rules_hold_where_nobody_is_authenticated() {
    let rules = r#"{match: count, allow: "principal.authenticated"}, {match: echo, allow: "!principal.authenticated && tenant == 'default'"},
        {match: ask, scopes: [mcp:ask]}"#;
    let gateway = Gateway::setup().authorize(rules).start().await;
    let client: Client = gateway.open().await;
    assert_eq!(client.error("tools/call", json!({"name": "count"})).await.to_string(), UNKNOWN);
    assert_eq!(text_of(&client.call("echo", json!({"text": "x"})).await), "x");
    let list = client.result("tools/list", json!({})).await;
    assert!(names(&list).contains(&"ask") && !names(&list).contains(&"count"));
    // Only tokens have scopes.
    assert!(!client.start("ask", json!({})).await.is_empty());
}

const AUDIENCE: &str = "https://mcp.example.com/mcp";

/// The scopes that a 403 asks for.
#[track_caller]
fn wanted(answer: &Answer) -> &str {
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let challenge = answer.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer ") && challenge.contains(r#"error="insufficient_scope""#), "{challenge}");
    assert!(challenge.contains("resource_metadata="), "{challenge}");
    challenge.split_once(r#"scope=""#).unwrap().1.split('"').next().unwrap()
}

/// A token that is good for too little is told once all that is needed, before there is a task; one that is good for it goes on.
#[tokio::test]
async fn scopes_can_be_had_and_are_asked_for_all_at_once() {
    let issuer = Issuer::start().await;
    let jwt = format!("jwt: [{{issuer: \"{}\", audiences: [\"{AUDIENCE}\"]}}], required_scopes: [mcp]", issuer.url());
    let rules = r#"{match: ask, allow: "claims.role == 'admin'", scopes: [ask, mcp]}, {scopes: [tools]}"#;
    let gateway = Gateway::setup().auth(&jwt).authorize(rules).tasks("defer: 0s").start().await;
    let token = |scopes: &str, role: &str| issuer.token(AUDIENCE, json!({"scope": scopes, "role": role}));
    let (poor, rich) = (token("mcp tools", "admin"), token("mcp ask tools", "admin"));
    let modern = |token: &str| Modern::new(&gateway).token(token).with_tasks();
    let mut legacy = gateway.client().token(&poor).open().await;
    let call = || json!({"name": "ask", "arguments": {}});
    assert_eq!(wanted(&modern(&poor).open("tools/call", call()).await), "mcp ask tools");
    assert_eq!(wanted(&legacy.request("tools/call", call()).await), "mcp ask tools");
    let as_task = json!({"name": "ask", "arguments": {}, "task": {}});
    assert_eq!(wanted(&legacy.request("tools/call", as_task.clone()).await), "mcp ask tools");
    // Whoever may never call it is not sent for a scope.
    let guest = modern(&token("mcp", "guest")).call("ask", json!({})).await;
    assert_eq!((guest.status, guest.error.to_string()), (StatusCode::OK, UNKNOWN.to_owned()));
    assert_eq!(gateway.upstream.stats().method("tools/call"), 0);
    assert_eq!(legacy.result("tasks/list", json!({})).await, json!({"tasks": []}));

    // With more scopes the same session goes on, and makes a task, which needs them later as well.
    legacy.set_token(&rich);
    let id = legacy.create_with(as_task).await["taskId"].as_str().unwrap().to_owned();
    legacy.until(&id, "input_required").await;
    legacy.set_token(&poor);
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        assert_eq!(wanted(&legacy.request(method, json!({"taskId": id})).await), "mcp ask tools", "{method}");
    }
    for (method, params) in [
        ("tasks/get", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": {}})),
        ("tasks/cancel", json!({"taskId": id})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})),
    ] {
        assert_eq!(wanted(&modern(&poor).open(method, params).await), "mcp ask tools", "{method}");
    }
    let question = json!(format!("tg.{id}.0"));
    let answer = || json!({"action": "accept", "content": {"name": "Ann"}});
    assert_eq!(wanted(&legacy.try_answer(&question, answer()).await), "mcp ask tools");
    let listed = legacy.result("tasks/list", json!({})).await;
    assert_eq!(listed["tasks"][0]["taskId"], id.as_str());
    assert!(listed["tasks"][0].get("statusMessage").is_none(), "{listed}");
    // One whose role was taken away has no such task, whatever the scopes.
    legacy.set_token(&token("mcp ask tools", "guest"));
    assert_eq!(legacy.error("tasks/get", json!({"taskId": id})).await["message"], "Task not found");
    assert_eq!(legacy.result("tasks/list", json!({})).await, json!({"tasks": []}));
    legacy.set_token(&rich);
    assert_eq!(legacy.try_answer(&question, answer()).await.status, StatusCode::ACCEPTED);
    assert_eq!(text_of(&legacy.outcome(&id).await), "Hello, Ann");
}

/// A list is filtered or refused, whatever a server makes of it, in both eras and where the client takes events or not.
#[tokio::test]
async fn what_cannot_be_filtered_does_not_pass() {
    let hidden = r#"{"name":"secret","inputSchema":{"type":"object"}}"#;
    let shown = r#"{"name":"a","inputSchema":{"type":"object"}}"#;
    let listing = move |heard: &Heard, typed: &str| -> String {
        let list = |tools: String| heard.answer(&format!("{{{typed}\"tools\":{tools}}}"));
        match heard.body["params"]["cursor"].as_str().unwrap_or_default() {
            "array" => format!("[{}]", list(format!("[{hidden}]"))),
            "pair" => {
                let other = list(format!("[{hidden}]")).replacen("\"id\":", "\"id\":1000", 1);
                format!("[{other},{}]", list(format!("[{shown}]")))
            }
            "doubt" => {
                let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"what?"}}"#;
                format!("[{error},{}]", list(format!("[{shown}]")))
            }
            "page" => list(hidden.to_owned()),
            "broken" => list(format!("[{hidden}]")).replace("\"result\"", "\"error\":1,\"result\""),
            "other" => list(format!("[{hidden}]")).replacen("\"id\":", "\"id\":1000", 1),
            "unnamed" => list(format!(r#"[{{"title":"secret"}},"secret",{shown}]"#)),
            _ => list(format!("[{hidden},{shown}]")),
        }
    };
    let legacy =
        RawUpstream::start(move |heard| (heard.method == "tools/list").then(|| vec![json_body(&listing(heard, ""))]))
            .await;
    let modern = |typed: &'static str| {
        stateless(json!({"tools": {}}), move |heard| {
            (heard.method == "tools/list").then(|| vec![json_body(&listing(heard, typed))])
        })
    };
    let (untyped, typed) = (modern("").await, modern("\"resultType\":\"complete\",").await);
    for (upstream, is_modern) in [(&legacy, false), (&untyped, true), (&typed, true)] {
        let gateway = Gateway::setup().in_front_of(&upstream.url()).tools("deny: [secret]").start().await;
        let (stateful, modern) = (gateway.open().await, Modern::new(&gateway));
        for cursor in ["", "unnamed", "array", "pair", "doubt", "page", "broken", "other"] {
            let params = json!({"cursor": cursor});
            let answer = if is_modern {
                let answer = modern.open("tools/list", params).await;
                answer.messages().await
            } else {
                stateful.request("tools/list", params).await.messages().await
            };
            let text = json!(answer).to_string();
            assert!(!text.contains("secret"), "{cursor}, modern: {is_modern}: {text}");
            assert_eq!(answer.len(), 1, "{cursor}, modern: {is_modern}: {text}");
            let is_list = ["", "unnamed", "pair", "doubt"].contains(&cursor);
            assert_eq!(is_list, text.contains(r#""name":"a""#), "{cursor}, modern: {is_modern}: {text}");
        }
    }
}
