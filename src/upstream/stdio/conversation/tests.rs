//! One child's conversation, with the test in the place of the child.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, Lines as PeerLines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use super::*;
use crate::jobs::Jobs;
use crate::jsonrpc::Message;

const LIMIT: Duration = Duration::from_secs(20);
const MAX_LINE: usize = 100_000;

/// A server played by the test, at the other end of two pipes.
struct Peer {
    conversation: Arc<Conversation>,
    input: PeerLines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
    _unused: (WriteHalf<DuplexStream>, ReadHalf<DuplexStream>),
    end: JoinHandle<End>,
}

impl Peer {
    /// Pipes that hold `pipe` bytes each.
    fn new(pipe: usize) -> Self {
        let (conversation, outbox) = Conversation::new(Duration::from_secs(5), Manners::Legacy);
        let conversation = Arc::new(conversation);
        let ((stdin, input), (output, stdout)) = (tokio::io::duplex(pipe), tokio::io::duplex(pipe));
        let end = Jobs::default().spawn("conversation", {
            let conversation = Arc::clone(&conversation);
            async move {
                let mut lines = Lines::new(stdout, MAX_LINE);
                let end = conversation.run(&mut lines, stdin, outbox, Duration::from_secs(1)).await;
                conversation.end();
                end
            }
        });
        let ((input, unused_write), (unused_read, output)) = (tokio::io::split(input), tokio::io::split(output));
        let input = BufReader::new(input).lines();
        Self { conversation, input, output, _unused: (unused_write, unused_read), end }
    }

    async fn call(&self, id: u64) -> mpsc::Receiver<Bytes> {
        match self.conversation.send(request(id)).await.unwrap() {
            Reply::Messages(reader) => reader,
            other => panic!("{other:?}"),
        }
    }

    async fn say(&mut self, line: &str) {
        self.output.write_all(line.as_bytes()).await.unwrap();
        self.output.write_all(b"\n").await.unwrap();
    }

    async fn hear(&mut self) -> String {
        timeout(LIMIT, self.input.next_line()).await.unwrap().unwrap().unwrap()
    }

    /// Closes both pipes, as a process that ends does.
    fn leave(self) -> (Arc<Conversation>, JoinHandle<End>) {
        (self.conversation, self.end)
    }
}

fn request(id: u64) -> Outgoing {
    let id = Id::number(id);
    let body = jsonrpc::request(&id, "tools/call", Some(r#"{"name":"x"}"#));
    Outgoing { kind: Kind::Request { id, progress_token: None }, body, headers: http::HeaderMap::new() }
}

fn one_way(body: &str) -> Outgoing {
    Outgoing { kind: Kind::OneWay, body: Bytes::copy_from_slice(body.as_bytes()), headers: http::HeaderMap::new() }
}

fn result(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

async fn next(reader: &mut mpsc::Receiver<Bytes>) -> Option<String> {
    let message = timeout(LIMIT, reader.recv()).await.unwrap()?;
    Some(String::from_utf8(message.to_vec()).unwrap())
}

#[tokio::test]
async fn calls_are_answered_in_any_order() {
    let mut peer = Peer::new(4096);
    let (mut first, mut second) = (peer.call(1).await, peer.call(2).await);
    for id in [1, 2] {
        let line = peer.hear().await;
        let Ok(Message::Request { id: heard, .. }) = Message::parse(line.as_bytes()) else { panic!("{line}") };
        assert_eq!(heard, Id::number(id));
    }
    peer.say(&result(2)).await;
    peer.say(&result(1)).await;
    for (reader, id) in [(&mut first, 1), (&mut second, 2)] {
        assert_eq!(next(reader).await, Some(result(id)));
        assert_eq!(next(reader).await, None);
    }
}

#[tokio::test]
async fn characters_cut_by_one_byte_pipes_arrive_whole_both_ways() {
    let mut peer = Peer::new(1);
    let question = r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"text":"héllo 漢字 🦀"}}"#;
    peer.conversation.send(one_way(question)).await.unwrap();
    assert_eq!(peer.hear().await, question);
    let mut reader = peer.call(1).await;
    peer.hear().await;
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"text":"é漢字🦀👩‍👩‍👧"}}"#;
    peer.say(answer).await;
    assert_eq!(next(&mut reader).await.as_deref(), Some(answer));
}

#[tokio::test]
async fn a_message_in_several_lines_is_written_as_one() {
    let mut peer = Peer::new(4096);
    peer.conversation.send(one_way("{\n  \"jsonrpc\":\"2.0\",\r\n\"method\":\"a\\nb\"}")).await.unwrap();
    assert_eq!(peer.hear().await, "{   \"jsonrpc\":\"2.0\",  \"method\":\"a\\nb\"}");
}

#[tokio::test]
async fn noise_and_blank_lines_between_messages_hurt_nobody() {
    let mut peer = Peer::new(4096);
    let mut reader = peer.call(1).await;
    for noise in ["", "  ", "Starting...", "{not json}", "\u{feff}", "[1,2"] {
        peer.say(noise).await;
    }
    peer.say(&format!("{}\r", result(1))).await;
    assert_eq!(next(&mut reader).await, Some(result(1)));
}

#[tokio::test]
async fn a_line_without_end_ends_the_conversation() {
    let mut peer = Peer::new(4096);
    let mut reader = peer.call(1).await;
    let junk = vec![b'x'; MAX_LINE];
    while peer.output.write_all(&junk).await.is_ok() {}
    assert_eq!(next(&mut reader).await, None);
    assert!(matches!(peer.end.await.unwrap(), End::TooLong));
}

#[tokio::test]
async fn the_end_of_stdout_ends_every_call_and_the_session() {
    let mut peer = Peer::new(4096);
    let (mut first, mut second) = (peer.call(1).await, peer.call(2).await);
    drop((peer.hear().await, peer.hear().await));
    let mut stream = peer.conversation.listen().unwrap();
    let (conversation, end) = peer.leave();
    for reader in [&mut first, &mut second, &mut stream] {
        assert_eq!(next(reader).await, None);
    }
    assert!(matches!(timeout(LIMIT, end).await.unwrap().unwrap(), End::Closed));
    assert!(matches!(conversation.send(request(3)).await, Err(Error::SessionGone)));
    assert!(matches!(conversation.send(one_way("{}")).await, Err(Error::SessionGone)));
    assert!(matches!(conversation.listen(), Err(Error::SessionGone)));
    assert!(conversation.initialize("{}").await.is_none());
}

#[tokio::test]
async fn a_duplicate_id_is_refused_and_not_written() {
    let mut peer = Peer::new(4096);
    let _first = peer.call(1).await;
    assert!(matches!(peer.conversation.send(request(1)).await, Err(Error::Protocol(_))));
    let _second = peer.call(2).await;
    assert!(peer.hear().await.contains("\"id\":1,"));
    assert!(peer.hear().await.contains("\"id\":2,"));
}

#[tokio::test]
async fn a_server_that_reads_nothing_is_still_heard_and_callers_wait_for_it() {
    let mut peer = Peer::new(64);
    let mut readers = Vec::new();
    let conversation = Arc::clone(&peer.conversation);
    let waiting = loop {
        let id = readers.len() as u64;
        let mut send = Box::pin(conversation.send(request(id)));
        match (&mut send).now_or_never() {
            Some(Ok(Reply::Messages(reader))) => readers.push(reader),
            Some(other) => panic!("{other:?}"),
            None => break send,
        }
        assert!(readers.len() < 1000, "the queue has a bound");
    };
    // The way back is open, also for what needs an answer of the gateway's own.
    for _ in 0..200 {
        peer.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    }
    peer.say(&result(0)).await;
    assert_eq!(next(&mut readers[0]).await, Some(result(0)));
    for _ in 0..readers.len() {
        peer.hear().await;
    }
    assert!(matches!(timeout(LIMIT, waiting).await.unwrap(), Ok(Reply::Messages(_))));
}

#[tokio::test]
async fn a_caller_that_waits_is_released_by_the_end() {
    let peer = Peer::new(64);
    let conversation = Arc::clone(&peer.conversation);
    let mut readers = Vec::new();
    let waiting = loop {
        let mut send = Box::pin(conversation.send(request(readers.len() as u64)));
        match (&mut send).now_or_never() {
            Some(reply) => readers.push(reply.unwrap()),
            None => break send,
        }
    };
    drop(peer.leave());
    assert!(matches!(timeout(LIMIT, waiting).await.unwrap(), Err(Error::SessionGone)));
}

#[tokio::test]
async fn a_caller_that_gives_up_waiting_leaves_nothing() {
    let mut peer = Peer::new(64);
    let conversation = Arc::clone(&peer.conversation);
    let mut count = 0;
    while conversation.send(request(count)).now_or_never().is_some() {
        count += 1;
    }
    // The one that gave up is `count`: its id is free, and nothing of it is written.
    for id in 0..count {
        assert!(peer.hear().await.contains(&format!("\"id\":{id},")));
    }
    let _again = peer.call(count).await;
    assert!(peer.hear().await.contains(&format!("\"id\":{count},")));
}

#[tokio::test]
async fn readers_that_are_gone_or_stand_still_stop_nobody() {
    let mut peer = Peer::new(4096);
    drop(peer.call(1).await);
    let mut still = match peer
        .conversation
        .send(Outgoing { kind: Kind::Request { id: Id::number(2), progress_token: Some("2".into()) }, ..request(2) })
        .await
        .unwrap()
    {
        Reply::Messages(reader) => reader,
        other => panic!("{other:?}"),
    };
    let mut other = peer.call(3).await;
    for _ in 0..3000 {
        peer.say(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}"#)
            .await;
    }
    for id in 1..=3 {
        peer.say(&result(id)).await;
    }
    assert_eq!(next(&mut other).await, Some(result(3)));
    let mut last = None;
    while let Some(message) = next(&mut still).await {
        last = Some(message);
    }
    assert_eq!(last, Some(result(2)));
}

#[tokio::test]
async fn a_burst_reaches_a_reader_that_reads() {
    let mut peer = Peer::new(1 << 20);
    let mut reader = peer.call(1).await;
    let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    let mut burst = format!("{log}\n").repeat(5000);
    burst.push_str(&result(1));
    let (count, ()) = tokio::join!(
        async {
            let mut count = 0;
            while next(&mut reader).await.is_some() {
                count += 1;
            }
            count
        },
        peer.say(&burst)
    );
    assert_eq!(count, 5001);
}

#[tokio::test]
async fn a_question_with_two_calls_goes_to_the_stream() {
    let mut peer = Peer::new(4096);
    let mut stream = peer.conversation.listen().unwrap();
    let (mut first, mut second) = (peer.call(1).await, peer.call(2).await);
    let question = r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}"#;
    peer.say(question).await;
    assert_eq!(next(&mut stream).await.as_deref(), Some(question));
    peer.say(&result(1)).await;
    assert_eq!(next(&mut first).await, Some(result(1)));
    peer.say(question).await;
    assert_eq!(next(&mut second).await.as_deref(), Some(question));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_takes_is_refused() {
    let mut peer = Peer::new(4096);
    peer.say(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    let refusal = peer.hear().await;
    assert!(refusal.starts_with(r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32603,"#), "{refusal}");
}

#[tokio::test]
async fn a_ping_is_answered() {
    let mut peer = Peer::new(4096);
    peer.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    assert_eq!(peer.hear().await, r#"{"jsonrpc":"2.0","id":"p","result":{}}"#);
}

#[tokio::test]
async fn answers_that_were_written_before_stdin_closed_are_read() {
    let (conversation, outbox) = Conversation::new(Duration::from_secs(5), Manners::Legacy);
    let (stdin, closed) = tokio::io::duplex(64);
    let (mut output, stdout) = tokio::io::duplex(4096);
    drop(closed);
    let mut reader = match conversation.send(request(1)).await.unwrap() {
        Reply::Messages(reader) => reader,
        other => panic!("{other:?}"),
    };
    output.write_all(format!("{}\n", result(1)).as_bytes()).await.unwrap();
    drop(output);
    let mut lines = Lines::new(stdout, MAX_LINE);
    let end = timeout(LIMIT, conversation.run(&mut lines, stdin, outbox, LIMIT)).await.unwrap();
    assert_eq!(next(&mut reader).await, Some(result(1)));
    assert!(matches!(end, End::Write(_) | End::Closed), "{end:?}");
    // Whoever comes now is refused, though nobody has said that it is over.
    assert!(matches!(conversation.send(request(2)).await, Err(Error::SessionGone)));
}
