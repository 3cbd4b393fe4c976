//! Much at once: big results and arguments, bursts, slow readers, bytes that come one by one.

use serde_json::Value;
use taskgate::demo::server::Options;

use crate::support::raw_upstream::{Heard, Step, events_head, json_body, last_chunk};
use crate::support::{Connection, Gateway, RawUpstream, json, text_of};

const KIB: usize = 1024;
const SIZES: [usize; 5] = [64 * KIB, 1024 * KIB, 2048 * KIB, 4096 * KIB, 16 * 1024 * KIB];

/// B94: whatever the size, whatever the form of the answer, plainly and in a task.
#[tokio::test]
async fn big_results_and_arguments_pass() {
    for options in [Options::default(), Options { always_sse: true, ..Options::default() }] {
        let gateway = Gateway::setup().server(options).listen("max_body: 20MiB").start().await;
        let client = gateway.open().await;
        for size in SIZES {
            let response = client.call("big", json!({"bytes": size})).await;
            assert_eq!(text_of(&response).len(), size);
            let id = client.start("big", json!({"bytes": size})).await;
            assert_eq!(text_of(&client.outcome(&id).await).len(), size);

            let text = "é".repeat(size / 2);
            let response = client.call("echo", json!({"text": text})).await;
            assert!(text_of(&response) == text, "{size}");
            let id = client.start("echo", json!({"text": text})).await;
            assert!(text_of(&client.outcome(&id).await) == text, "{size}");
        }
    }
}

/// Over the limit the task fails in words, others are unhurt, and a body that is too big is refused before it is read.
#[tokio::test]
async fn what_is_over_the_limit_fails_clearly_and_alone() {
    for options in [Options::default(), Options { always_sse: true, ..Options::default() }] {
        let is_sse = options.always_sse;
        let gateway = Gateway::setup().server(options).listen("max_body: 128KiB").start().await;
        let client = gateway.open().await;
        let other = client.start("hold", json!({})).await;
        gateway.started("hold", 1).await;
        let id = client.start("big", json!({"bytes": 256 * KIB})).await;
        let error = client.outcome(&id).await["error"].take();
        assert_eq!(error["data"]["reason"], "upstream_protocol");
        assert!(error["message"].as_str().unwrap().contains("larger"), "{error}");
        assert_eq!(client.task(&id).await["statusMessage"], error["message"]);
        if is_sse {
            // A plain answer in an event is read whole; one in JSON passes, whatever its size.
            let response = client.call("big", json!({"bytes": 256 * KIB})).await;
            assert!(response["error"]["message"].as_str().unwrap().contains("larger"), "{response}");
        } else {
            assert_eq!(text_of(&client.call("big", json!({"bytes": 256 * KIB})).await).len(), 256 * KIB);
        }
        let params = json!({"name": "echo", "arguments": {"text": "x".repeat(128 * KIB)}});
        let refused = client.request("tools/call", params).await;
        assert_eq!(refused.status, 413);
        assert_eq!(refused.json().await["error"]["code"], -32600);
        assert_eq!(text_of(&client.call("echo", json!({"text": "small"})).await), "small");
        gateway.upstream.release();
        assert_eq!(text_of(&client.outcome(&other).await), "held to the end");
    }
}

/// A burst of events passes in order and complete, also where it comes as many small writes.
#[tokio::test]
async fn a_burst_arrives_in_order() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let numbers = |messages: &[Value]| -> Vec<u64> {
        messages.iter().filter_map(|message| message["params"]["data"]["number"].as_u64()).collect()
    };
    let expected: Vec<u64> = (1..=5000).collect();
    let call = client.request("tools/call", json!({"name": "log", "arguments": {"messages": 5000}})).await;
    assert_eq!(numbers(&call.messages().await), expected);
}

/// Towards a reader that stands still notifications of a task are dropped, its questions and its end are not.
#[tokio::test]
async fn a_slow_reader_of_a_task_loses_notifications_and_nothing_else() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let hold = client.start("hold", json!({})).await;
    let mut stalled = stalled_get(&gateway, &client).await;
    let id = client.start("log", json!({"messages": 9000, "text": "x".repeat(4000)})).await;
    let wait = client.wait_for(&id).await;
    // The task's own end waits for no reader.
    assert_eq!(client.until(&id, "completed").await["taskId"], json!(id));
    let messages = wait.messages().await;
    assert_eq!(text_of(messages.last().unwrap()), "logged");
    let numbers: Vec<u64> = messages.iter().filter_map(|m| m["params"]["data"]["number"].as_u64()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    // Others of the same session are served meanwhile.
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&hold).await), "held to the end");
    // A question that the server asks meanwhile comes when the reader has caught up.
    let id = client.start("ask", json!({})).await;
    client.until(&id, "input_required").await;
    let question = stalled.line_with("elicitation/create").await;
    let question: Value = serde_json::from_str(question.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(crate::support::related(&question), Some(&*id));
    client.accept(&question, json!({"name": "Ann"})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "Hello, Ann");
}

/// What waits for a reader that stands still is bounded in bytes as well: of many big notifications few are kept.
#[tokio::test]
async fn big_notifications_do_not_pile_up_for_a_slow_reader() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("log", json!({"messages": 100, "text": "x".repeat(1024 * KIB)})).await;
    let wait = client.wait_for(&id).await;
    client.until(&id, "completed").await;
    let messages = wait.messages().await;
    assert_eq!(text_of(messages.last().unwrap()), "logged");
    // What the connection itself took is not the gateway's.
    assert!(messages.len() < 30, "{}", messages.len());
}

/// A GET stream whose client reads nothing after the head.
async fn stalled_get(gateway: &Gateway, client: &crate::support::Client) -> Connection {
    let mut connection = Connection::open(gateway.address).await;
    let mut head = String::from("GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    for (name, value) in &client.headers_with(&[("content-type", "")]) {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    connection.send(format!("{head}\r\n")).await;
    gateway.counted(|metrics| metrics.value("taskgate_streams", &[]) >= 1.0).await;
    connection
}

fn trickled(heard: &Heard) -> Vec<Step> {
    let event = |data: &str| {
        let event = format!("data: {data}\r\n\r\n");
        format!("{:x}\r\n{event}\r\n", event.len())
    };
    let first = event(&heard.progress(1));
    let second = event(&heard.says("日本語 😀 żółw \u{2028} ende"));
    vec![events_head(), Step::Trickle(format!("{first}{second}").into()), last_chunk()]
}

/// B92: bytes that come one by one, cut within characters, line ends and chunk sizes.
#[tokio::test]
async fn bytes_that_come_one_by_one_make_whole_characters() {
    let upstream = RawUpstream::calling(trickled).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let params = json!({"name": "x", "_meta": {"progressToken": 1}});
    let messages = client.request("tools/call", params).await.messages().await;
    assert_eq!(messages[0]["params"]["progress"], 1);
    assert_eq!(text_of(&messages[1]), "日本語 😀 żółw \u{2028} ende");
    let id = client.start("x", json!({})).await;
    assert_eq!(text_of(&client.outcome(&id).await), "日本語 😀 żółw \u{2028} ende");
}

/// The same in requests: the gateway takes a body as it comes.
#[tokio::test]
async fn a_request_that_comes_byte_by_byte_is_taken() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let params = json!({"name": "echo", "arguments": {"text": "日本語 😀"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut head = format!("POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in &client.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    let mut connection = Connection::open(gateway.address).await;
    for byte in format!("{head}\r\n{body}").into_bytes() {
        connection.send([byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(text_of(&connection.answer().await.json()), "日本語 😀");
}

/// B95: an event goes out when it comes, not when there are more: the server waits for the client's reaction to it.
#[tokio::test]
async fn a_lone_event_is_not_kept_back() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let mut answer = client.request("tools/call", json!({"name": "ask_twice", "arguments": {}})).await;
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert!(answer.header("cache-control").unwrap().contains("no-cache"));
    for content in [json!({"name": "Ann"}), json!({"colour": "red"})] {
        let question = answer.message().await;
        client.accept(&question, content).await;
    }
    assert_eq!(text_of(&answer.message().await), "Hello, Ann; colour: red");
}

/// B84, B15: what the gateway does not own keeps its spelling.
#[tokio::test]
async fn a_big_answer_keeps_its_bytes() {
    let result =
        format!("{{\"n\":[1E3,-0,1.10,9007199254740993],\"content\":[],\"pad\":\"{}\"}}", "y".repeat(200 * KIB));
    let expected = result.clone();
    let upstream = RawUpstream::calling(move |heard| vec![json_body(&heard.answer(&result))]).await;
    let gateway = Gateway::setup().in_front_of(&upstream.url()).start().await;
    let client = gateway.open().await;
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "x"}}).to_string();
    let text = client.post(body).await.text().await;
    assert!(text == format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{expected}}}"));
}
