//! Real child processes: how they start, fail, hang and end.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::*;
use crate::jsonrpc::{self, Id};
use crate::upstream::Kind;

/// Long enough for a loaded machine; nothing waits for it to pass.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// A server in a POSIX shell: `initialize`, `echo`, and several ways to misbehave.
const SERVER: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}
  case $line in
    *'"method":"initialize"'*) answer "$id" "{\"protocolVersion\":\"2025-11-25\",\"pid\":$$}" ;;
    *'"method":"echo"'*) answer "$id" '{}' ;;
    *'"method":"die"'*) kill -9 $$ ;;
    *'"method":"leave"'*) answer "$id" '{}'; exit 0 ;;
    *'"method":"mute"'*) exec 1>&- ;;
  esac
done
"#;

fn stdio(script: &str) -> Stdio {
    stdio_with(script, |_| {})
}

pub(super) fn stdio_with(script: &str, change: impl FnOnce(&mut Config)) -> Stdio {
    let mut config = Config::new(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    config.connect_timeout = LIMIT;
    config.grace = LIMIT;
    change(&mut config);
    Stdio::new(config, Jobs::default())
}

async fn open(stdio: &Stdio) -> Result<Opened, Error> {
    timeout(LIMIT, stdio.open(r#"{"protocolVersion":"2025-11-25"}"#, HeaderMap::new(), None)).await.unwrap()
}

pub(super) async fn send(
    stdio: &Stdio,
    session: &SessionKey,
    id: u64,
    method: &str,
) -> Result<mpsc::Receiver<Bytes>, Error> {
    let id = Id::number(id);
    let body = jsonrpc::request(&id, method, Some("{}"));
    let message = Outgoing { kind: Kind::Request { id, progress_token: None }, body, headers: HeaderMap::new() };
    match stdio.send(session, message).await? {
        Reply::Messages(reader) => Ok(reader),
        other => panic!("{other:?}"),
    }
}

async fn next(reader: &mut mpsc::Receiver<Bytes>) -> Option<String> {
    let message = timeout(LIMIT, reader.recv()).await.unwrap()?;
    Some(String::from_utf8(message.to_vec()).unwrap())
}

/// Waits until the child of a session is reaped.
async fn reaped(child: &Child) {
    timeout(LIMIT, child.gone.cancelled()).await.unwrap();
}

fn process(opened: &Opened) -> PathBuf {
    let pid = Object::parse(&opened.result).unwrap().get("pid").unwrap().to_owned();
    Path::new("/proc").join(pid)
}

/// A named pipe that ends when the last process that has it open has ended: the event that says that all are gone.
struct Witness {
    folder: tempfile::TempDir,
    reader: pipe::Receiver,
}

impl Witness {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("witness");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = pipe::OpenOptions::new().open_receiver(path).unwrap();
        Self { folder, reader }
    }

    /// A script whose processes all hold the pipe.
    fn script(&self, rest: &str) -> String {
        format!("exec 9>'{}/witness'\n{rest}", self.folder.path().display())
    }

    async fn all_gone(mut self) {
        let mut nothing = Vec::new();
        timeout(LIMIT, self.reader.read_to_end(&mut nothing)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_session_is_a_child_that_answers_and_ends_with_its_close() {
    let stdio = stdio(SERVER);
    assert_eq!(stdio.running(), 0);
    let (first, second) = (open(&stdio).await.unwrap(), open(&stdio).await.unwrap());
    assert_ne!(first.session, second.session);
    assert_eq!(first.session.version, ProtocolVersion::V2025_11_25);
    assert_eq!(stdio.running(), 2);
    let mut reader = send(&stdio, &first.session, 1, "echo").await.unwrap();
    assert_eq!(next(&mut reader).await.as_deref(), Some(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
    assert_eq!(next(&mut reader).await, None);

    timeout(LIMIT, stdio.close(&first.session)).await.unwrap();
    assert!(!process(&first).exists(), "the child is reaped");
    assert_eq!(stdio.running(), 1);
    assert!(matches!(send(&stdio, &first.session, 2, "echo").await, Err(Error::SessionGone)));
    assert!(matches!(stdio.listen(&first.session, None).await, Err(Error::SessionGone)));
    stdio.close(&first.session).await;
    let mut reader = send(&stdio, &second.session, 2, "echo").await.unwrap();
    assert!(next(&mut reader).await.is_some());
    timeout(LIMIT, stdio.close(&second.session)).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_offered_but_never_resumed() {
    let stdio = stdio(SERVER);
    let session = open(&stdio).await.unwrap().session;
    assert!(matches!(stdio.listen(&session, None).await, Ok(Listening::Messages(_))));
    assert!(matches!(stdio.listen(&session, Some("1")).await, Ok(Listening::NotOffered)));
    timeout(LIMIT, stdio.close(&session)).await.unwrap();
}

#[tokio::test]
async fn the_whole_group_goes_with_the_session() {
    let witness = Witness::new();
    let stdio = stdio(&witness.script(&format!("sleep 1000 &\nexec /bin/sh -c '{}'", SERVER.replace('\'', "'\\''"))));
    let session = open(&stdio).await.unwrap().session;
    timeout(LIMIT, stdio.close(&session)).await.unwrap();
    witness.all_gone().await;
}

#[tokio::test]
async fn the_group_goes_when_the_leader_leaves_and_its_last_answer_is_read() {
    let witness = Witness::new();
    // The other process holds the leader's stdout too, which must not keep the session open.
    let stdio = stdio(&witness.script(&format!("sleep 1000 &\n{SERVER}")));
    let session = open(&stdio).await.unwrap().session;
    let mut reader = send(&stdio, &session, 1, "leave").await.unwrap();
    assert!(next(&mut reader).await.is_some());
    witness.all_gone().await;
}

#[tokio::test]
async fn one_that_ignores_the_end_of_stdin_and_sigterm_is_killed() {
    let witness = Witness::new();
    let script = witness.script(&format!("trap '' TERM\n{SERVER}\nsleep 1000"));
    let stdio = stdio_with(&script, |config| config.grace = Duration::from_millis(50));
    let opened = open(&stdio).await.unwrap();
    timeout(LIMIT, stdio.close(&opened.session)).await.unwrap();
    assert!(!process(&opened).exists());
    witness.all_gone().await;
}

#[tokio::test]
async fn a_child_that_ends_on_sigterm_is_not_waited_for_longer() {
    let witness = Witness::new();
    let script = witness.script(&format!("{SERVER}\nexec sleep 1000"));
    let stdio = stdio_with(&script, |config| config.grace = Duration::from_millis(50));
    let opened = open(&stdio).await.unwrap();
    let child = stdio.child(&opened.session).unwrap();
    timeout(LIMIT, stdio.close(&opened.session)).await.unwrap();
    witness.all_gone().await;
    let ending = child.ending.get().unwrap();
    assert!(matches!(ending.end, End::Stopped));
    let signal = std::os::unix::process::ExitStatusExt::signal(&ending.status.unwrap());
    assert_eq!(signal, Some(tokio::signal::unix::SignalKind::terminate().as_raw_value()));
}

#[tokio::test]
async fn a_killed_child_ends_its_calls_and_the_next_open_starts_another() {
    let stdio = stdio(SERVER);
    let opened = open(&stdio).await.unwrap();
    let child = stdio.child(&opened.session).unwrap();
    let mut hanging = send(&stdio, &opened.session, 1, "hang").await.unwrap();
    let mut deadly = send(&stdio, &opened.session, 2, "die").await.unwrap();
    let Ok(Listening::Messages(mut stream)) = stdio.listen(&opened.session, None).await else { panic!() };
    for reader in [&mut hanging, &mut deadly, &mut stream] {
        assert_eq!(next(reader).await, None);
    }
    assert!(matches!(send(&stdio, &opened.session, 3, "echo").await, Err(Error::SessionGone)));
    reaped(&child).await;
    assert!(!process(&opened).exists());
    assert_eq!(stdio.running(), 0);
    let again = open(&stdio).await.unwrap().session;
    let mut reader = send(&stdio, &again, 1, "echo").await.unwrap();
    assert!(next(&mut reader).await.is_some());
    timeout(LIMIT, stdio.close(&again)).await.unwrap();
}

#[tokio::test]
async fn a_child_that_closes_its_stdout_but_lives_is_ended() {
    let stdio = stdio(SERVER);
    let opened = open(&stdio).await.unwrap();
    let child = stdio.child(&opened.session).unwrap();
    let mut reader = send(&stdio, &opened.session, 1, "mute").await.unwrap();
    assert_eq!(next(&mut reader).await, None);
    assert!(matches!(send(&stdio, &opened.session, 2, "echo").await, Err(Error::SessionGone)));
    reaped(&child).await;
    assert!(!process(&opened).exists());
}

#[tokio::test]
async fn one_that_exits_at_once_is_reported_with_its_status_and_not_started_for_ever() {
    let stdio = stdio("exit 3");
    let mut reports = Vec::new();
    for _ in 0..20 {
        match open(&stdio).await {
            Err(Error::Connect(source)) => reports.push(source.to_string()),
            other => panic!("{other:?}"),
        }
    }
    assert!(reports[0].contains("exit status: 3"), "{reports:?}");
    assert!(reports[19].contains("not started again") && reports[19].contains("exit status: 3"), "{reports:?}");
}

#[tokio::test]
async fn calls_that_kill_their_child_keep_nobody_else_out() {
    let stdio = stdio(SERVER);
    for _ in 0..20 {
        let opened = open(&stdio).await.unwrap();
        let child = stdio.child(&opened.session).unwrap();
        let mut deadly = send(&stdio, &opened.session, 1, "die").await.unwrap();
        assert_eq!(next(&mut deadly).await, None);
        reaped(&child).await;
    }
    let session = open(&stdio).await.unwrap().session;
    timeout(LIMIT, stdio.close(&session)).await.unwrap();
}

#[tokio::test]
async fn a_command_that_is_not_there_is_no_connection() {
    let config = Config::new(vec!["/nonexistent/server".to_owned()]);
    let stdio = Stdio::new(config, Jobs::default());
    assert!(matches!(open(&stdio).await, Err(Error::Connect(_))));
    let stdio = Stdio::new(Config::new(Vec::new()), Jobs::default());
    assert!(matches!(open(&stdio).await, Err(Error::Connect(_))));
    assert_eq!(stdio.running(), 0);
}

#[tokio::test]
async fn one_that_never_answers_is_given_up_and_ended() {
    let witness = Witness::new();
    let script = witness.script("while read -r line; do :; done");
    let stdio = stdio_with(&script, |config| config.connect_timeout = Duration::from_millis(300));
    assert!(matches!(open(&stdio).await, Err(Error::Connect(_))));
    witness.all_gone().await;
}

#[tokio::test]
async fn an_open_that_is_given_up_leaves_no_child() {
    let witness = Witness::new();
    let script = witness.script("echo up >&9\nwhile read -r line; do :; done");
    let stdio = stdio(&script);
    let mut witness = witness;
    let mut up = [0; 3];
    tokio::select! {
        _ = stdio.open("{}", HeaderMap::new(), None) => panic!("it never answers"),
        () = async {
            // Until the child opens the pipe for writing, reading says that there is no writer.
            while witness.reader.read(&mut up).await.unwrap() == 0 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    witness.all_gone().await;
}

#[tokio::test]
async fn an_unusable_answer_to_initialize_ends_the_child() {
    for (result, is_protocol) in [
        (r#""result":{"protocolVersion":"1999-01-01"}"#, true),
        (r#""result":{}"#, true),
        (r#""result":5"#, true),
        (r#""error":{"code":-32602,"message":"no"}"#, false),
    ] {
        let witness = Witness::new();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":"tg.initialize",{result}}}"#);
        let script = witness.script(&format!("read -r line\necho '{answer}'\nread -r line"));
        let stdio = stdio(&script);
        match open(&stdio).await {
            Err(Error::Protocol(_)) => assert!(is_protocol, "{result}"),
            Err(Error::Refused { error, .. }) => {
                assert!(!is_protocol);
                assert_eq!(&*error, r#"{"code":-32602,"message":"no"}"#);
            }
            other => panic!("{other:?}"),
        }
        witness.all_gone().await;
    }
}

#[tokio::test]
async fn a_line_without_end_is_a_broken_protocol() {
    let stdio = stdio_with("while :; do printf 'xxxxxxxxxxxxxxxxxxxx'; done", |config| config.max_line = 10_000);
    assert!(matches!(open(&stdio).await, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn the_stop_of_the_gateway_ends_every_child() {
    let witness = Witness::new();
    let jobs = Jobs::default();
    let script = witness.script(&format!("sleep 1000 &\n{SERVER}"));
    let mut config = Config::new(["/bin/sh", "-c", &script].map(str::to_owned).to_vec());
    config.grace = LIMIT;
    let stdio = Stdio::new(config, jobs.clone());
    let (first, _second) = (open(&stdio).await.unwrap(), open(&stdio).await.unwrap());
    assert_eq!(jobs.stop(LIMIT).await, 0);
    assert_eq!(stdio.running(), 0);
    witness.all_gone().await;
    assert!(matches!(send(&stdio, &first.session, 1, "echo").await, Err(Error::SessionGone)));
    assert!(matches!(open(&stdio).await, Err(Error::Connect(_))));
}

#[test]
fn a_runtime_that_is_dropped_takes_the_group_with_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outer = runtime();
    let witness = outer.block_on(async { Witness::new() });
    let inner = runtime();
    let stdio = stdio(&witness.script(&format!("sleep 1000 &\n{SERVER}")));
    inner.block_on(open(&stdio)).unwrap();
    drop(inner);
    outer.block_on(witness.all_gone());
}

#[tokio::test]
async fn a_child_that_talks_on_stderr_without_end_is_read() {
    let noisy =
        "i=0; while [ $i -lt 20000 ]; do echo 'a line of fifty bytes for the log, and then some' >&2; i=$((i+1)); done";
    let stdio = stdio(&format!("{noisy}\n{SERVER}"));
    let session = open(&stdio).await.unwrap().session;
    timeout(LIMIT, stdio.close(&session)).await.unwrap();
}

#[tokio::test]
async fn the_gateways_secrets_stay_with_it() {
    const NAME: &str = "upstream::stdio::tests::the_gateways_secrets_stay_with_it";
    if std::env::var_os("TASKGATE_SECRET_OF_TEST").is_none() {
        // The environment of a process can't be changed safely while it has threads, so this test runs itself again.
        let again = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .envs([("TASKGATE_SECRET_OF_TEST", "1"), ("OTHER_OF_TEST", "2")])
            .output()
            .unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
        assert!(String::from_utf8_lossy(&again.stdout).contains("1 passed"));
        return;
    }
    let stdio = stdio("exit \"${TASKGATE_SECRET_OF_TEST:-0}${OTHER_OF_TEST}\"");
    match open(&stdio).await {
        Err(Error::Connect(source)) => assert!(source.to_string().contains("exit status: 2"), "{source}"),
        other => panic!("{other:?}"),
    }
}
