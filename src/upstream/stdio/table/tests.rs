//! Whose each message of a child is.

use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

fn table() -> Table {
    Table::new(PATIENCE, Manners::Legacy)
}

fn id(json: &str) -> Id {
    Id::from_json(json).unwrap()
}

impl Table {
    fn call(&mut self, json: &str) -> mpsc::Receiver<Bytes> {
        self.register(&id(json), None, Role::Call).unwrap()
    }

    fn call_with_token(&mut self, json: &str, token: &str) -> mpsc::Receiver<Bytes> {
        self.register(&id(json), Some(token), Role::Call).unwrap()
    }

    fn line(&mut self, line: &str) -> Vec<String> {
        self.receive(&Bytes::copy_from_slice(line.as_bytes())).iter().map(text).collect()
    }

    /// Feeds a line that needs no answer from the gateway.
    fn quiet(&mut self, line: &str) {
        assert_eq!(self.line(line), Vec::<String>::new(), "{line}");
    }
}

fn text(message: &Bytes) -> String {
    String::from_utf8(message.to_vec()).unwrap()
}

/// What waits for a reader, and whether its channel is still open.
fn read(reader: &mut mpsc::Receiver<Bytes>) -> (Vec<String>, bool) {
    let mut messages = Vec::new();
    loop {
        match reader.try_recv() {
            Ok(message) => messages.push(text(&message)),
            Err(error) => return (messages, error == mpsc::error::TryRecvError::Empty),
        }
    }
}

fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}"#;
const LOG: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn progress(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

#[tokio::test]
async fn answers_in_reverse_order_reach_their_callers_unchanged_and_end_their_channels() {
    let mut table = table();
    let (mut first, mut second) = (table.call("1"), table.call("\"1\""));
    let odd = r#"{"result": {"big":12345678901234567890.10, "a":1,"a":2},"id": "1", "jsonrpc":"2.0", "more":null}"#;
    table.quiet(odd);
    table.quiet(&result("1"));
    assert_eq!(read(&mut first), (vec![result("1")], false));
    assert_eq!(read(&mut second), (vec![odd.to_owned()], false));
    assert!(table.calls.is_empty());
}

#[tokio::test]
async fn progress_goes_by_its_token_and_an_unknown_token_goes_nowhere() {
    let mut table = table();
    let mut stream = table.listen().unwrap();
    let (mut number, mut string) = (table.call_with_token("1", "7"), table.call_with_token("2", "\"7\""));
    for token in ["\"7\"", "7", "8", "null"] {
        table.quiet(&progress(token));
    }
    assert_eq!(read(&mut number), (vec![progress("7")], true));
    assert_eq!(read(&mut string), (vec![progress("\"7\"")], true));
    table.quiet(&result("1"));
    table.quiet(&progress("7"));
    assert_eq!(read(&mut number), (vec![result("1")], false));
    assert!(read(&mut stream).0.is_empty());
    assert_eq!(table.tokens.len(), 1);
}

#[tokio::test]
async fn ids_and_tokens_may_come_back_with_other_escapes() {
    let mut table = table();
    let mut reader = table.call_with_token("\"é/\"", "\"ü\"");
    table.quiet(&progress(r#""\u00fc""#));
    table.quiet(&result(r#""\u00e9\/""#));
    assert_eq!(read(&mut reader).0.len(), 2);
    let _reader = table.call(r#""\u00e9""#);
    assert_eq!(table.register(&id("\"é\""), None, Role::Call).unwrap_err(), Rejected::Duplicate);
}

#[tokio::test]
async fn a_lone_call_gets_what_is_not_marked() {
    let mut table = table();
    let mut stream = table.listen().unwrap();
    let mut call = table.call("1");
    table.quiet(LOG);
    table.quiet(QUESTION);
    assert_eq!(read(&mut call).0, [LOG, QUESTION]);
    assert!(read(&mut stream).0.is_empty());
}

#[tokio::test]
async fn with_none_or_several_in_flight_it_goes_to_the_session() {
    for calls in [0, 2, 3] {
        let mut table = table();
        let mut stream = table.listen().unwrap();
        let mut readers: Vec<_> = (0..calls).map(|number: u64| table.call(&number.to_string())).collect();
        table.quiet(QUESTION);
        table.quiet(LOG);
        assert_eq!(read(&mut stream).0, [QUESTION, LOG]);
        assert!(readers.iter_mut().all(|reader| read(reader).0.is_empty()));
    }
}

#[tokio::test]
async fn the_handshake_is_no_call() {
    let mut table = table();
    let mut handshake = table.register(&id("0"), None, Role::Handshake).unwrap();
    table.quiet(LOG);
    let mut call = table.call("1");
    table.quiet(QUESTION);
    assert_eq!(read(&mut call).0, [QUESTION]);
    assert!(read(&mut handshake).0.is_empty());
    assert_eq!(read(&mut table.listen().unwrap()).0, [LOG]);
}

#[tokio::test]
async fn a_stream_that_opens_later_gets_what_waited() {
    let mut table = table();
    table.quiet(LOG);
    table.quiet(QUESTION);
    assert_eq!(read(&mut table.listen().unwrap()).0, [LOG, QUESTION]);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_no_stream_takes_in_time_is_refused() {
    let mut table = table();
    table.quiet(QUESTION);
    tokio::time::sleep_until(table.next_overdue().unwrap()).await;
    let refusals = table.refuse_overdue();
    assert_eq!(refusals.len(), 1);
    assert!(text(&refusals[0]).starts_with(r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32603,"#));
    assert!(read(&mut table.listen().unwrap()).0.is_empty());
    assert!(table.questions.is_empty());
}

#[tokio::test]
async fn a_question_whose_caller_has_gone_is_refused_at_once() {
    let mut table = table();
    drop(table.call("1"));
    let answers = table.line(QUESTION);
    assert_eq!(answers.len(), 1);
    assert!(answers[0].contains("-32603"), "{answers:?}");
}

#[tokio::test]
async fn a_caller_that_has_gone_leaves_no_entry_once_it_is_answered() {
    let mut table = table();
    drop(table.call_with_token("1", "1"));
    table.quiet(&progress("1"));
    table.quiet(LOG);
    assert_eq!(table.calls.len(), 1);
    table.quiet(&result("1"));
    assert!(table.calls.is_empty() && table.tokens.is_empty());
}

#[tokio::test]
async fn a_cancelled_call_counts_until_its_caller_has_gone() {
    let mut table = table();
    let cancelled = table.call_with_token("\"a\"", "1");
    let mut other = table.call("2");
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061"}}"#;
    table.note(cancel.as_bytes()).unwrap();
    table.quiet(LOG);
    assert!(read(&mut other).0.is_empty());
    drop(cancelled);
    table.quiet(LOG);
    assert_eq!(read(&mut other).0, [LOG]);
    assert_eq!((table.calls.len(), table.tokens.len()), (1, 0));
    // Its late answer is nobody's.
    table.quiet(&result("\"a\""));
    assert!(read(&mut other).0.is_empty());
}

#[tokio::test]
async fn an_id_in_flight_is_refused_and_free_again_after_the_answer() {
    let mut table = table();
    let mut first = table.call("1");
    assert_eq!(table.register(&id("1"), None, Role::Call).unwrap_err(), Rejected::Duplicate);
    table.quiet(&result("1"));
    assert_eq!(read(&mut first).0.len(), 1);
    let mut second = table.call("1");
    table.quiet(&result("1"));
    assert_eq!(read(&mut second).0.len(), 1);
}

#[tokio::test]
async fn a_ping_is_answered_at_once_and_seen_by_nobody() {
    let mut table = table();
    let mut call = table.call("1");
    let answers = table.line(r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#);
    assert_eq!(answers, [r#"{"jsonrpc":"2.0","id":5,"result":{}}"#]);
    assert!(read(&mut call).0.is_empty());
}

#[tokio::test]
async fn a_withdrawal_goes_where_its_question_went() {
    let withdrawal = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;
    let mut table = table();
    let mut asked = table.call("1");
    table.quiet(QUESTION);
    let mut later = table.call("2");
    table.quiet(withdrawal);
    assert_eq!(read(&mut asked).0, [QUESTION, withdrawal]);
    assert!(read(&mut later).0.is_empty());
    // One that still waits for a stream is taken back and never shown.
    table.quiet(QUESTION);
    table.quiet(withdrawal);
    assert!(read(&mut table.listen().unwrap()).0.is_empty());
    assert!(table.questions.is_empty());
}

#[tokio::test]
async fn an_answered_question_is_forgotten() {
    let mut table = table();
    let _call = table.call("1");
    table.quiet(QUESTION);
    assert_eq!(table.questions.len(), 1);
    table.note(result("\"q\"").as_bytes()).unwrap();
    assert!(table.questions.is_empty());
}

#[tokio::test]
async fn remembered_questions_are_bounded() {
    let mut table = table();
    let _call = table.call("1");
    for number in 0..QUESTIONS + 10 {
        table.line(&QUESTION.replace("\"q\"", &number.to_string()));
    }
    assert!(table.questions.len() <= QUESTIONS);
}

#[tokio::test]
async fn what_concerns_the_session_goes_to_its_stream_if_one_is_open() {
    let mut table = table();
    let mut call = table.call("1");
    table.quiet(LIST_CHANGED);
    assert_eq!(read(&mut call).0, [LIST_CHANGED]);
    let mut stream = table.listen().unwrap();
    table.quiet(LIST_CHANGED);
    assert_eq!((read(&mut call).0.len(), read(&mut stream).0.len()), (0, 1));
}

#[tokio::test]
async fn a_batch_is_taken_apart() {
    let mut table = table();
    let (mut first, mut second) = (table.call("1"), table.call("2"));
    let batch = format!(r#" [{}, {},5,{{"jsonrpc":"2.0","id":9,"method":"ping"}}]"#, result("2"), result("1"));
    assert_eq!(table.line(&batch), [r#"{"jsonrpc":"2.0","id":9,"result":{}}"#]);
    assert_eq!(read(&mut first), (vec![result("1")], false));
    assert_eq!(read(&mut second), (vec![result("2")], false));
}

#[tokio::test]
async fn noise_is_skipped() {
    let mut table = table();
    let mut call = table.call("1");
    for noise in [
        "Server listening on stdio",
        "{",
        "{}",
        "[]",
        "null",
        "{\"id\":1,\"method\":\"x\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"x\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":99}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"\"}}",
    ] {
        table.quiet(noise);
    }
    assert!(table.receive(&Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\xff\xfe")).is_empty());
    assert_eq!(read(&mut call), (Vec::new(), true));
    table.quiet(&result("1"));
    assert_eq!(read(&mut call).0, [result("1")]);
}

#[tokio::test]
async fn a_broken_answer_ends_its_call_at_once() {
    for broken in [
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        let mut table = table();
        let mut call = table.call("1");
        table.quiet(broken);
        assert_eq!(read(&mut call), (vec![broken.to_owned()], false));
    }
}

#[tokio::test]
async fn a_reader_that_stands_still_still_gets_its_answer() {
    let mut table = table();
    let mut slow = table.call_with_token("1", "1");
    let mut other = table.call("2");
    for _ in 0..5000 {
        table.quiet(&progress("1"));
    }
    table.quiet(&result("2"));
    table.quiet(&result("1"));
    assert_eq!(read(&mut other).0, [result("2")]);
    let (messages, open) = read(&mut slow);
    assert!(!open && messages.len() < 5000);
    assert_eq!(messages.last(), Some(&result("1")));
}

#[tokio::test]
async fn the_end_ends_all_readers_and_refuses_what_comes_later() {
    let mut table = table();
    let (mut call, mut stream) = (table.call("1"), table.listen().unwrap());
    table.quiet(LOG);
    table.end();
    assert_eq!(read(&mut call), (vec![LOG.to_owned()], false));
    assert_eq!(read(&mut stream), (Vec::new(), false));
    assert_eq!(table.register(&id("2"), None, Role::Call).unwrap_err(), Rejected::Ended);
    assert_eq!(table.note(LOG.as_bytes()).unwrap_err(), Rejected::Ended);
    assert_eq!(table.listen().unwrap_err(), Rejected::Ended);
}

#[test]
fn in_the_modern_era_each_message_names_its_call_or_has_only_one() {
    let mut table = Table::new(PATIENCE, Manners::Modern);
    let listen = r#"{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{}}"#;
    assert_eq!(table.role_of(listen.as_bytes()), Role::Subscription);
    assert_eq!(table.role_of(br#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#), Role::Call);
    let mut stream = table.register(&id("7"), None, Role::Subscription).unwrap();
    let mut first = table.call_with_token("1", "11");
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}"#;
    let stranger = changed.replace(":7}", ":8}");
    // A subscription is no call that a log message could be of.
    for line in [changed, &stranger, LOG, LIST_CHANGED, &progress("11"), &progress("12")] {
        table.quiet(line);
    }
    assert_eq!(read(&mut stream), (vec![changed.to_owned()], true));
    assert_eq!(read(&mut first), (vec![LOG.to_owned(), progress("11")], true));
    let mut second = table.call("2");
    table.quiet(LOG);
    // Nobody may ask, nor be told so.
    table.quiet(QUESTION);
    table.quiet(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!((read(&mut first), read(&mut second)), ((vec![], true), (vec![], true)));
}

#[test]
fn a_modern_server_can_end_subscriptions_and_nothing_else() {
    let mut table = Table::new(PATIENCE, Manners::Modern);
    let mut stream = table.register(&id("7"), None, Role::Subscription).unwrap();
    let mut call = table.call("1");
    let cancelled =
        |id: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#);
    table.quiet(&cancelled("1"));
    assert_eq!(read(&mut call), (vec![], true));
    table.quiet(&cancelled("7"));
    assert_eq!(read(&mut stream), (vec![cancelled("7")], false));
    // The result that may follow is for nobody.
    table.quiet(&result("7"));
    assert!(table.has_answered() && !table.has_ended());
}
