//! The connection, against a real server.

pub(crate) mod cluster;
pub(crate) mod proxy;
pub(crate) mod sentinel;
pub(crate) mod server;

use super::*;
use server::{PATIENCE, Server};

#[tokio::test]
async fn runs_scripts_that_the_server_does_not_know() {
    let Some((hub, _jobs)) = server::shared() else { return };
    assert!(hub.arrives(PATIENCE).await);
    let script = Script::new(&["local key = KEYS[1] ", "return {key, ARGV[1], ARGV[2]}"]);
    for flush in [false, false, true] {
        if flush {
            hub.run(redis::cmd("SCRIPT").arg("FLUSH")).await.unwrap();
        }
        let done = hub.call(&script, &["a"], &[b"1", b"\xff"]).await.unwrap();
        let expected = [&b"a"[..], b"1", b"\xff"].map(|part| Value::BulkString(part.to_vec()));
        assert_eq!(done, Value::Array(expected.to_vec()));
    }
    let wrong = Script::new(&["return redis.error_reply('NO way')"]);
    assert!(matches!(hub.call(&wrong, &[], &[]).await, Err(HubError::Failed(_))));
    assert!(hub.is_there());
}

#[tokio::test]
async fn what_is_away_is_known_to_be_and_comes_back() {
    let Some(first) = Server::start() else { return };
    let jobs = Jobs::default();
    let hub = server::connected(&first.url(), &jobs);
    let mut renewals = hub.renewals();
    assert!(hub.arrives(PATIENCE).await);
    renewals.next().await;
    let port = first.port;
    drop(first);
    while hub.is_there() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(hub.run(&redis::cmd("PING")).await, Err(HubError::Away)));
    let second = Server::start_on(port, &[]).unwrap();
    renewals.next().await;
    hub.run(&redis::cmd("PING")).await.unwrap();
    // One that hangs is away as well.
    second.signal("STOP");
    assert!(matches!(hub.run(&redis::cmd("PING")).await, Err(HubError::Late | HubError::Away)));
    assert!(matches!(hub.run(&redis::cmd("PING")).await, Err(HubError::Away)));
    second.signal("CONT");
    renewals.next().await;
    hub.run(&redis::cmd("PING")).await.unwrap();
}

/// What has waited in vain fails alone: nobody else loses a connection, or an answer, by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_script_makes_nobody_else_fail() {
    let Some(server) = Server::start() else { return };
    let jobs = Jobs::default();
    let hub = server::connected(&server.url(), &jobs);
    assert!(hub.arrives(PATIENCE).await);
    let connection = hub.inner.link.borrow().number;
    let mut renewals = hub.renewals();
    // The server does nothing else meanwhile.
    let slow = Script::new(&[
        "local function now() local time = redis.call('TIME') return time[1] + time[2] / 1e6 end ",
        "local till = now() + 3 while now() < till do end return 'done'",
    ]);
    let slow = slow.within(LONG_COMMAND);
    hub.run(redis::cmd("SCRIPT").arg("LOAD").arg(&slow.text)).await.unwrap();
    let others = async {
        assert!(matches!(hub.run(&redis::cmd("PING")).await, Err(HubError::Late)));
        // As long as nothing is heard of it, nobody waits for it in vain any more.
        assert!(matches!(hub.run(&redis::cmd("PING")).await, Err(HubError::Away)));
        renewals.next().await;
        hub.run(&redis::cmd("PING")).await.unwrap();
    };
    let (done, ()) = tokio::join!(hub.call(&slow, &[], &[]), others);
    assert_eq!(done.unwrap(), Value::BulkString(b"done".to_vec()));
    assert_eq!(hub.inner.link.borrow().number, connection, "there was no need of another");
}
