//! Servers of the modern era as real processes: how they are told apart, shared, and replaced.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc;

use super::*;
use crate::jobs::Jobs;
use crate::jsonrpc::{self, Object};
use crate::mcp::version::ProtocolVersion;
use crate::upstream::stdio::Config;
use crate::upstream::stdio::tests::{LIMIT, send as send_on, stdio_with};
use crate::upstream::{Listening, SessionKey, Upstream};

/// A modern server in a POSIX shell.
const SERVER: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}
  case $line in
    *'"method":"server/discover"'*) answer "$id" "{\"supportedVersions\":[\"2026-07-28\"],\"pid\":$$}" ;;
    *'"method":"echo"'*) answer "$id" "{\"pid\":$$}" ;;
    *'"method":"ask"'*) printf '{"jsonrpc":"2.0","id":"q","method":"roots/list"}\n'; answer "$id" '{}' ;;
    *'"method":"notifications/cancelled"'*) printf '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"heard"}}\n' ;;
    *'"method":"die"'*) kill -9 $$ ;;
    *'"id":"q"'*) exit 9 ;;
  esac
done
"#;

fn stdio(script: &str) -> Stdio {
    stdio_with(script, |config| config.probe_timeout = LIMIT)
}

async fn send(stdio: &Stdio, id: u64, method: &str) -> Result<mpsc::Receiver<Bytes>, Error> {
    send_on(stdio, &stdio.stateless(), id, method).await
}

async fn next(reader: &mut mpsc::Receiver<Bytes>) -> Option<Bytes> {
    timeout(LIMIT, reader.recv()).await.unwrap()
}

/// The process that answers.
async fn pid(stdio: &Stdio, id: u64) -> String {
    let answer = next(&mut send(stdio, id, "echo").await.unwrap()).await.unwrap();
    let Ok(Message::Response { outcome: Outcome::Result(result), .. }) = Message::parse(&answer) else { panic!() };
    Object::parse(result.get()).unwrap().get("pid").unwrap().to_owned()
}

async fn until_none_runs(stdio: &Stdio) {
    let over = async {
        while stdio.running() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, over).await.unwrap();
}

#[tokio::test]
async fn all_calls_share_the_child_that_answered_the_question() {
    let stdio = stdio(SERVER);
    let opened = timeout(LIMIT, stdio.discover("{}", None)).await.unwrap().unwrap();
    assert_eq!(opened.session.version, ProtocolVersion::LATEST_MODERN);
    let asked = Object::parse(&opened.result).unwrap().get("pid").unwrap().to_owned();
    assert_eq!((pid(&stdio, 1).await, pid(&stdio, 2).await), (asked.clone(), asked.clone()));
    let again = timeout(LIMIT, stdio.discover("{}", None)).await.unwrap().unwrap();
    assert_eq!((again.session, again.result), (opened.session.clone(), opened.result));
    assert_eq!(stdio.running(), 1);
    // There is no session, so there is nothing to end and no stream beside the calls.
    stdio.close(&opened.session).await;
    assert!(matches!(stdio.listen(&opened.session, None).await, Ok(Listening::NotOffered)));
    assert_eq!(pid(&stdio, 3).await, asked);
}

#[tokio::test]
async fn a_child_that_died_loses_its_calls_and_is_replaced() {
    let stdio = stdio(SERVER);
    let first = pid(&stdio, 1).await;
    let mut hanging = send(&stdio, 2, "hang").await.unwrap();
    let mut deadly = send(&stdio, 3, "die").await.unwrap();
    assert_eq!((next(&mut hanging).await, next(&mut deadly).await), (None, None));
    // What is told to one that is gone is for nobody.
    let cancel = jsonrpc::notification("notifications/cancelled", Some(r#"{"requestId":2}"#));
    let message = Outgoing { kind: Kind::OneWay, body: cancel, headers: HeaderMap::new() };
    assert!(matches!(stdio.send(&stdio.stateless(), message).await, Ok(Reply::Accepted)));
    assert_ne!(pid(&stdio, 4).await, first);
}

#[tokio::test]
async fn a_server_that_asks_is_not_answered() {
    let stdio = stdio(SERVER);
    let mut reader = send(&stdio, 1, "ask").await.unwrap();
    let only = next(&mut reader).await.unwrap();
    assert!(matches!(Message::parse(&only), Ok(Message::Response { .. })));
    assert_eq!(next(&mut reader).await, None);
    // It would have ended at an answer.
    let first = pid(&stdio, 2).await;
    assert_eq!(pid(&stdio, 3).await, first);
}

#[tokio::test]
async fn a_cancel_is_told_to_the_child() {
    let stdio = stdio(SERVER);
    let mut hanging = send(&stdio, 1, "hang").await.unwrap();
    let cancel = jsonrpc::notification("notifications/cancelled", Some(r#"{"requestId":1}"#));
    let message = Outgoing { kind: Kind::OneWay, body: cancel, headers: HeaderMap::new() };
    assert!(matches!(stdio.send(&stdio.stateless(), message).await, Ok(Reply::Accepted)));
    let heard = next(&mut hanging).await.unwrap();
    assert!(heard.ends_with(b"{\"data\":\"heard\"}}"), "{heard:?}");
}

#[tokio::test]
async fn a_server_of_the_other_era_is_told_by_its_silence_its_end_or_its_answer_and_its_child_goes() {
    let error = r#"read -r line; echo '{"jsonrpc":"2.0","id":"other","result":{}}'; exit 1"#;
    let unknown = r#"
        read -r line; id=${line#*'"id":'}; id=${id%%,*}
        printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id"; read -r line"#;
    for (script, refuses) in
        [("while read -r line; do :; done", false), ("exit 3", false), (error, false), (unknown, true)]
    {
        let mut stdio = stdio(script);
        if script.contains("do :;") {
            Arc::get_mut(&mut stdio.config).unwrap().probe_timeout = Duration::from_millis(50);
        }
        let answer = timeout(LIMIT, stdio.discover("{}", None)).await.unwrap();
        assert!(matches!(answer, Err(Error::Refused { .. } | Error::Protocol(_))), "{script}: {answer:?}");
        assert_eq!(matches!(answer, Err(Error::Refused { .. })), refuses, "{script}");
        until_none_runs(&stdio).await;
    }
}

#[tokio::test]
async fn a_child_whose_result_is_not_a_modern_servers_is_not_kept() {
    let stdio = stdio(&SERVER.replace("2026-07-28", "2025-11-25"));
    assert!(timeout(LIMIT, stdio.discover("{}", None)).await.unwrap().is_ok());
    until_none_runs(&stdio).await;
}

#[tokio::test]
async fn one_that_ends_before_it_says_anything_is_not_started_for_ever() {
    let stdio = stdio("exit 3");
    let mut reports = Vec::new();
    for number in 0..20 {
        match send(&stdio, number, "echo").await {
            Ok(mut reader) => assert_eq!(next(&mut reader).await, None),
            Err(Error::Connect(source)) => reports.push(source.to_string()),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(reports.iter().any(|report| report.contains("not started again")), "{reports:?}");
}

#[tokio::test]
async fn a_command_that_is_not_there_says_nothing_of_its_era() {
    let stdio = Stdio::new(Config::new(vec!["/nonexistent/server".to_owned()]), Jobs::default());
    assert!(matches!(stdio.discover("{}", None).await, Err(Error::Connect(_))));
    let key = SessionKey { id: None, version: ProtocolVersion::LATEST_MODERN, subject: None };
    let message = Outgoing {
        kind: Kind::Request { id: Id::number(1), progress_token: None },
        body: jsonrpc::request(&Id::number(1), "echo", None),
        headers: HeaderMap::new(),
    };
    assert!(matches!(stdio.send(&key, message).await, Err(Error::Connect(_))));
}
