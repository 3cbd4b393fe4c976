//! The ownership matrix: every operation on what belongs to somebody, tried by everybody else. What they get is compared
//! whole (status, names of header fields, body) with what they get for something that was never there.

use http::{Method, StatusCode};
use taskgate::demo::server::{Era, Options};

use crate::support::raw_upstream::{Step, event, events_head, gate, json_body, last_chunk};
use crate::support::stateless::{calling, form};
use crate::support::{Answer, Client, Gateway, Issuer, Modern, RawUpstream, Setup, Value, json, text_of};

const NEVER: &str = "00000000-0000-4000-8000-000000000000";
const AUDIENCE: &str = "https://mcp.example.com/mcp";

/// A gateway that takes the tokens of two issuers, and a key.
struct World {
    gateway: Gateway,
    issuers: [Issuer; 2],
}

/// Somebody who is not the owner: who, their credential, and the path of the route.
type Stranger = (&'static str, String, &'static str);

impl World {
    async fn start(setup: impl FnOnce(Setup) -> Setup) -> Self {
        let issuers = [Issuer::start().await, Issuer::start().await];
        let jwt = |issuer: &Issuer| {
            format!("{{issuer: \"{}\", audiences: [\"{AUDIENCE}\"], tenant_claim: org}}", issuer.url())
        };
        let auth = format!("jwt: [{}, {}]", jwt(&issuers[0]), jwt(&issuers[1]));
        let setup = setup(Gateway::setup().callers(&["acme/alice"]).auth(&auth).second_route());
        Self { gateway: setup.start().await, issuers }
    }

    fn token(&self, issuer: usize, [tenant, subject, client]: [&str; 3]) -> String {
        self.issuers[issuer].token(AUDIENCE, json!({"org": tenant, "sub": subject, "client_id": client}))
    }

    /// The owner's credential: another one each time, of the same principal.
    fn owner(&self) -> String {
        self.token(0, ["acme", "alice", "app"])
    }

    fn strangers(&self) -> Vec<Stranger> {
        vec![
            ("a colleague", self.token(0, ["acme", "bob", "app"]), "/mcp"),
            ("another tenant's", self.token(0, ["other", "alice", "app"]), "/mcp"),
            ("another issuer's", self.token(1, ["acme", "alice", "app"]), "/mcp"),
            ("another client's", self.token(0, ["acme", "alice", "other"]), "/mcp"),
            ("one with a key", "key-of-alice".to_owned(), "/mcp"),
            ("the owner on another route", self.owner(), "/second"),
        ]
    }

    async fn legacy(&self, (_, credential, path): &Stranger) -> Client {
        self.gateway.client().token(credential).path(path).open().await
    }

    async fn alice(&self) -> Client {
        self.gateway.client().token(&self.owner()).open().await
    }

    fn modern(&self, (_, credential, path): &Stranger) -> Modern {
        Modern::new(&self.gateway).token(credential).path(path)
    }

    fn modern_alice(&self) -> Modern {
        Modern::new(&self.gateway).token(&self.owner())
    }
}

/// All that a client can tell an answer by. Of a stream its first message. `named` is what the request itself has said.
async fn seen(mut answer: Answer, named: &str, is_read: bool) -> String {
    let mut names: Vec<String> = answer.headers.keys().map(ToString::to_string).collect();
    names.sort_unstable();
    let status = answer.status;
    let body = match (is_read, answer.is_events()) {
        (false, _) => String::new(),
        (true, true) => answer.message().await.to_string(),
        (true, false) => answer.text().await,
    };
    format!("{status} {names:?} {body}").replace(named, "NAMED")
}

/// What is asked of something that belongs to somebody.
#[derive(Debug)]
struct Try {
    what: &'static str,
    method: Method,
    changes: Vec<(&'static str, String)>,
    body: String,
    /// The thing's name.
    named: String,
    /// An answer that goes on is not read.
    is_read: bool,
}

impl Try {
    fn request(what: &'static str, named: &str, params: Value) -> Self {
        let method = what.split(' ').next().unwrap();
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        Self::post(what, named, body)
    }

    fn post(what: &'static str, named: &str, body: Value) -> Self {
        let (method, body, named) = (Method::POST, body.to_string(), named.to_owned());
        Self { what, method, changes: Vec::new(), body, named, is_read: true }
    }

    fn get(what: &'static str, event_id: &str, is_read: bool) -> Self {
        let changes = vec![("last-event-id", event_id.to_owned()), ("content-type", String::new())];
        Self { what, method: Method::GET, changes, body: String::new(), named: event_id.to_owned(), is_read }
    }

    async fn by(&self, client: &Client) -> String {
        let changes: Vec<_> = self.changes.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = client.send(self.method.clone(), client.headers_with(&changes), self.body.clone()).await.unwrap();
        seen(answer, &self.named, self.is_read).await
    }
}

/// Tries everything as everybody else, against what was never there.
#[track_caller]
fn assert_like_never(tries: &[(Try, Try)], stranger: &str, answers: &[(String, String)]) {
    for ((theirs, never), (to_theirs, to_never)) in tries.iter().zip(answers) {
        assert_eq!(theirs.what, never.what);
        assert_eq!(to_theirs, to_never, "{}: {stranger}", theirs.what);
    }
}

async fn all_tried(tries: &[(Try, Try)], client: &Client) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    for (theirs, never) in tries {
        answers.push((theirs.by(client).await, never.by(client).await));
    }
    answers
}

/// What may be done to a task.
fn on_task(id: &str) -> Vec<Try> {
    let named = || json!({"taskId": id});
    let answer = json!({"action": "accept", "content": {"name": "Eve"}});
    vec![
        Try::request("tasks/get", id, named()),
        Try::request("tasks/result", id, named()),
        Try::post("answer", id, json!({"jsonrpc": "2.0", "id": format!("tg.{id}.0"), "result": answer})),
        Try::post(
            "refusal",
            id,
            json!({"jsonrpc": "2.0", "id": format!("tg.{id}.0"), "error": {"code": 1, "message": "no"}}),
        ),
        Try::request("tasks/cancel", id, named()),
    ]
}

#[tokio::test]
async fn tasks_of_legacy_sessions() {
    let world = World::start(|setup| setup).await;
    let alice = world.alice().await;
    let asking = alice.start("ask", json!({})).await;
    alice.until(&asking, "input_required").await;
    let done = alice.start("exact", json!({})).await;
    alice.until(&done, "completed").await;
    let mut waiting = alice.wait_for(&asking).await;
    let event = waiting.next().await.unwrap().unwrap().id.unwrap();
    drop(waiting);
    for _ in 0..50 {
        alice.start("echo", json!({"text": "x"})).await;
    }
    let cursor = alice.result("tasks/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
    let list = |cursor: &str| Try::request("tasks/list", cursor, json!({"cursor": cursor}));
    let mut tries: Vec<(Try, Try)> = Vec::new();
    for id in [&asking, &done] {
        tries.extend(on_task(id).into_iter().zip(on_task(NEVER)));
    }
    tries.push((list(&cursor), list("never")));
    tries.push((Try::get("tasks/result again", &event, true), Try::get("tasks/result again", "t.never", true)));
    for who in world.strangers() {
        let name = who.0;
        let stranger = world.legacy(&who).await;
        let answers = all_tried(&tries, &stranger).await;
        assert_like_never(&tries, name, &answers);
        assert_eq!(stranger.result("tasks/list", json!({})).await, json!({"tasks": []}), "{name}");
    }
    // None of it has happened, and the owner is served, whatever her session.
    assert_eq!(world.gateway.upstream.stats().answers, 0);
    let own = world.alice().await;
    assert_eq!(
        (&own.task(&asking).await["status"], &own.task(&done).await["status"]),
        (&json!("input_required"), &json!("completed"))
    );
    for (theirs, never) in &tries {
        // Her answer is hers to give only once, and a task that has ended can't be cancelled: the words differ all the same.
        assert_ne!(theirs.by(&own).await, never.by(&own).await, "{}", theirs.what);
    }
}

/// The same in requests of the modern era.
fn tasks_in_modern(id: &str) -> [(&'static str, Value); 5] {
    let answers = json!({"q": {"action": "accept", "content": {"name": "Eve"}}});
    [
        ("tasks/get", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": answers})),
        ("tasks/update", json!({"taskId": id})),
        ("tasks/cancel", json!({"taskId": id})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})),
    ]
}

#[tokio::test]
async fn tasks_of_modern_requests() {
    let world = World::start(|setup| setup.tasks("defer: 0s")).await;
    let alice = world.modern_alice().with_tasks();
    let asking = alice.start("ask", json!({})).await;
    alice.until(&asking, "input_required").await;
    let done = alice.start("exact", json!({})).await;
    alice.until(&done, "completed").await;
    let get = |client: Modern, method: &'static str, params: Value, id: String| async move {
        seen(client.open_with(&[], json!(7), method, params).await, &id, true).await
    };
    for who in world.strangers() {
        let name = who.0;
        let stranger = || world.modern(&who).with_tasks();
        for id in [&asking, &done] {
            for ((method, theirs), (_, never)) in tasks_in_modern(id).into_iter().zip(tasks_in_modern(NEVER)) {
                let theirs = get(stranger(), method, theirs, id.clone()).await;
                assert_eq!(theirs, get(stranger(), method, never, NEVER.to_owned()).await, "{method}: {name}");
            }
        }
        // The same record from the other era.
        let legacy = world.legacy(&who).await;
        let both: Vec<(Try, Try)> = on_task(&asking).into_iter().zip(on_task(NEVER)).collect();
        let answers = all_tried(&both, &legacy).await;
        assert_like_never(&both, name, &answers);
    }
    assert_eq!(world.gateway.upstream.stats().answers, 0);
    let own = || world.modern_alice().with_tasks();
    assert_eq!(own().task(&asking).await["status"], "input_required");
    for ((method, theirs), (_, never)) in tasks_in_modern(&asking).into_iter().zip(tasks_in_modern(NEVER)) {
        if theirs.get("taskId").is_none() || method != "tasks/update" || theirs.get("inputResponses").is_some() {
            let theirs = get(own(), method, theirs, asking.clone()).await;
            assert_ne!(theirs, get(own(), method, never, NEVER.to_owned()).await, "{method}");
        }
    }
}

#[tokio::test]
async fn sessions() {
    let world = World::start(|setup| setup).await;
    let alice = world.alice().await;
    let session = alice.session.clone().unwrap();
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let tries = |session: &str| {
        let mut tries = vec![
            Try::post("request", session, ping.clone()),
            Try::post("notification", session, json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})),
            Try::post("response", session, json!({"jsonrpc": "2.0", "id": 1, "result": {}})),
            Try::get("stream", "", true),
            Try::get("end", "", true),
        ];
        tries[4].method = Method::DELETE;
        for tried in &mut tries {
            tried.named = session.to_owned();
            tried.changes.push(("mcp-session-id", session.to_owned()));
        }
        tries
    };
    let both: Vec<(Try, Try)> = tries(&session).into_iter().zip(tries("never")).collect();
    for who in world.strangers() {
        let name = who.0;
        let stranger = world.legacy(&who).await;
        let answers = all_tried(&both, &stranger).await;
        assert!(answers.iter().all(|(answer, _)| answer.starts_with("404 ")), "{answers:?}");
        assert_like_never(&both, name, &answers);
    }
    assert_eq!(alice.post(ping.to_string()).await.status, StatusCode::OK);
}

/// Without credentials nothing is anybody's: one answer, whatever is named.
#[tokio::test]
async fn nobody() {
    let world = World::start(|setup| setup).await;
    let alice = world.alice().await;
    let id = alice.start("ask", json!({})).await;
    let nobody = world.gateway.client().silent();
    let mut tries: Vec<Try> = on_task(&id).into_iter().chain(on_task(NEVER)).collect();
    tries.push(Try::request("tasks/list", "x", json!({})));
    tries.push(Try::request("tools/list", "x", json!({})));
    tries.push(Try::get("stream", "t.never", true));
    tries.iter_mut().for_each(|tried| tried.changes.push(("mcp-session-id", alice.session.clone().unwrap())));
    let mut answers = Vec::new();
    for tried in &tries {
        answers.push(tried.by(&nobody).await);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[0].starts_with("401 "), "{answers:?}");
    let mut modern = Vec::new();
    for id in [id.as_str(), NEVER] {
        let requests = tasks_in_modern(id).into_iter().chain([
            ("server/discover", json!({})),
            ("tools/list", json!({})),
            ("tools/call", json!({"name": "ask", "arguments": {}, "requestState": id})),
        ]);
        for (method, params) in requests {
            let nobody = Modern::new(&world.gateway).with_tasks();
            modern.push(seen(nobody.open_with(&[], json!(7), method, params).await, id, true).await);
        }
    }
    modern.dedup();
    assert_eq!(modern.len(), 1, "{modern:?}");
    assert!(modern[0].starts_with("401 "), "{modern:?}");
    assert_eq!(alice.until(&id, "input_required").await["taskId"], id.as_str());
}

/// A cursor of a list means something only to the one who got it.
#[tokio::test]
async fn cursors_of_lists() {
    let options = Options { page_size: Some(3), ..Options::default() };
    for policy in ["pooled", "pinned"] {
        let (server, sessions) = (options.clone(), format!("sessions: {policy}"));
        let world = World::start(|setup| setup.server(server).upstream(&sessions)).await;
        let first = world.modern_alice().result("tools/list", json!({})).await;
        let cursor = first["nextCursor"].as_str().unwrap();
        let page = |client: Modern, cursor: String| async move {
            seen(client.open_with(&[], json!(7), "tools/list", json!({"cursor": cursor})).await, &cursor, true).await
        };
        for who in world.strangers() {
            let name = who.0;
            let stranger = || world.modern(&who);
            let theirs = page(stranger(), cursor.to_owned()).await;
            assert_eq!(theirs, page(stranger(), "never".to_owned()).await, "{name}");
        }
        let own = page(world.modern_alice(), cursor.to_owned()).await;
        assert!(own.starts_with("200 ") && own.contains("\"tools\""), "{own}");
    }
}

/// `requestState`, that of a call which is parked here and that of a server's own.
#[tokio::test]
async fn states_of_calls_that_ask() {
    for era in [Era::Legacy, Era::Modern] {
        let world = World::start(|setup| setup.server(Options { era, ..Options::default() })).await;
        let asked = world.modern_alice().call("ask", json!({})).await;
        let (state, key) = (asked.result["requestState"].as_str().unwrap().to_owned(), asked.key());
        let retry = |client: Modern, state: String| {
            let answers = json!({key.as_str(): {"action": "accept", "content": {"name": "Eve"}}});
            let params = json!({"name": "ask", "arguments": {}, "inputResponses": answers, "requestState": state});
            async move { seen(client.open_with(&[], json!(7), "tools/call", params).await, &state, true).await }
        };
        for who in world.strangers() {
            let name = who.0;
            let stranger = || world.modern(&who);
            let theirs = retry(stranger(), state.clone()).await;
            assert!(theirs.contains("-32602"), "{theirs}");
            assert_eq!(theirs, retry(stranger(), "never".to_owned()).await, "{era:?}: {name}");
        }
        let own = retry(world.modern_alice(), state).await;
        assert!(own.contains("Hello, Eve"), "{own}");
    }
}

/// A cancel on one session is nothing to a call on another.
#[tokio::test]
async fn cancels() {
    for options in [
        Options::default(),
        Options { stateless: true, ..Options::default() },
        Options { era: Era::Modern, ..Options::default() },
    ] {
        let server = options.clone();
        let world = World::start(|setup| setup.server(server)).await;
        let alice = world.alice().await;
        let call =
            json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "hold", "arguments": {}}});
        let (held, ()) = tokio::join!(async { alice.post(call.to_string()).await.response().await }, async {
            world.gateway.started("hold", 1).await;
            for who in world.strangers() {
                let name = who.0;
                let stranger = world.legacy(&who).await;
                let cancel = |id: u64| {
                    let params = json!({"requestId": id, "reason": "x"});
                    Try::post(
                        "cancel",
                        "-",
                        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}),
                    )
                };
                let both = [(cancel(77), cancel(78))];
                let answers = all_tried(&both, &stranger).await;
                assert_like_never(&both, name, &answers);
            }
            world.alice().await.call("release", json!({})).await;
        });
        assert!(held.get("result").is_some(), "{options:?}: {held}");
        assert_eq!(world.gateway.upstream.stats().tool("hold").cancelled, 0);
    }
}

/// Event ids: of a server's own streams, of its standalone stream, and of calls in translation.
#[tokio::test]
async fn event_ids() {
    let options = Options { event_ids: true, always_sse: true, ..Options::default() };
    let world = World::start(|setup| setup.server(options)).await;
    let alice = world.alice().await;
    let answer = alice.request("tools/call", json!({"name": "log", "arguments": {"messages": 2}})).await;
    let id = answer.events().await[0].id.clone().unwrap();
    assert!(id.starts_with("u."), "{id}");
    for who in world.strangers() {
        let name = who.0;
        let stranger = world.legacy(&who).await;
        let both = [
            (Try::get("u.", &id, true), Try::get("u.", "u.never", true)),
            (Try::get("g.", "g.1", false), Try::get("g.", "g.never", false)),
            (Try::get("c.", "c.1.1", true), Try::get("c.", "c.never", true)),
        ];
        let answers = all_tried(&both, &stranger).await;
        assert_like_never(&both, name, &answers);
    }
    let own = alice.get(Some(&id)).await;
    assert_eq!(own.status, StatusCode::OK);

    let open = gate();
    let held = open.clone();
    let upstream = calling(move |heard| {
        let said = json!({"jsonrpc": "2.0", "method": "notifications/vendor", "params": {}}).to_string();
        vec![events_head(), event(&said), Step::Gate(held.clone()), event(&heard.tells("done")), last_chunk()]
    })
    .await;
    let world = World::start(|setup| setup.in_front_of(&upstream.url())).await;
    let alice = world.alice().await;
    let mut answer = alice.request("tools/call", json!({"name": "a"})).await;
    let id = answer.next().await.unwrap().unwrap().id.unwrap();
    assert!(id.starts_with("c."), "{id}");
    for who in world.strangers() {
        let name = who.0;
        let stranger = world.legacy(&who).await;
        let both = [(Try::get("c.", &id, true), Try::get("c.", "c.never", true))];
        let answers = all_tried(&both, &stranger).await;
        assert_like_never(&both, name, &answers);
    }
    drop(answer);
    open.add_permits(1);
    let rest = alice.get(Some(&id)).await.messages().await;
    assert_eq!(text_of(rest.last().unwrap()), "done");
}

/// Sessions with the server are shared by the calls of one caller on one route, and by nobody else's.
#[tokio::test]
async fn sessions_with_the_server() {
    for policy in ["pooled", "pinned"] {
        let sessions = format!("sessions: {policy}");
        let world = World::start(|setup| setup.upstream(&sessions)).await;
        for _ in 0..2 {
            for who in world.strangers().into_iter().chain([("the owner", world.owner(), "/mcp")]) {
                assert_eq!(world.modern(&who).text("echo", json!({"text": who.0})).await, who.0);
            }
        }
        assert_eq!(world.gateway.upstream.stats().sessions_opened, 7, "{policy}");
    }
}

/// A server that gives out no session ids: whom it has asked only the gateway knows.
#[tokio::test]
async fn answers_to_a_server_that_knows_no_sessions() {
    let gate = gate();
    let asked = gate.clone();
    let upstream = RawUpstream::start(move |heard| match heard.method.as_str() {
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "0"}});
            Some(vec![json_body(&heard.answer(&result.to_string()))])
        }
        "tools/call" => {
            let question =
                json!({"jsonrpc": "2.0", "id": 5, "method": "elicitation/create", "params": form("who?")["params"]});
            let said = heard.says("done");
            Some(vec![
                events_head(),
                event(&question.to_string()),
                Step::Gate(asked.clone()),
                event(&said),
                last_chunk(),
            ])
        }
        _ => None,
    })
    .await;
    let world = World::start(|setup| setup.in_front_of(&upstream.url())).await;
    let alice = world.alice().await;
    let mut call = alice.request("tools/call", json!({"name": "a"})).await;
    let question = call.message().await;
    assert_eq!((&question["id"], &question["method"]), (&json!(5), &json!("elicitation/create")));
    let answer =
        |id: u64| Try::post("answer", "-", json!({"jsonrpc": "2.0", "id": id, "result": {"action": "decline"}}));
    for who in world.strangers() {
        let name = who.0;
        let stranger = world.legacy(&who).await;
        let both = [(answer(5), answer(6))];
        let answers = all_tried(&both, &stranger).await;
        assert_like_never(&both, name, &answers);
        assert!(answers[0].0.starts_with("400 "), "{answers:?}");
        // An event id that was never given out to anybody, since it could be anybody's.
        assert_eq!(stranger.get(Some("u.1")).await.status, StatusCode::BAD_REQUEST);
    }
    let answers = |heard: &[crate::support::raw_upstream::Heard]| {
        heard.iter().filter(|heard| !heard.body["result"].is_null()).count()
    };
    alice.answer(&question, json!({"action": "accept", "content": {}})).await;
    let heard = upstream.until(move |heard| answers(heard) > 0).await;
    assert_eq!(answers(&heard), 1);
    assert!(heard.iter().all(|heard| heard.headers.get("last-event-id").is_none()));
    gate.add_permits(1);
    assert_eq!(text_of(&call.messages().await.pop().unwrap()), "done");
}
