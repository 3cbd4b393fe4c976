//! `taskgate call`: one call of a tool, plainly or through a task, for a person or a script.

use std::future::Future;
use std::io::{stderr, stdout};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use tokio::sync::mpsc;

use crate::client::{CallId, Client, Config, Connected, Era, Error, Event, Modern, connect};
use crate::jobs::Jobs;
use crate::jsonrpc::Object;

use super::login::{self, LoginArgs};
use super::screen::{Screen, harmless, write};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest message that is read.
const MAX_MESSAGE: usize = 256 * 1024 * 1024;
/// How long telling the server of a cancellation, and saying good-bye, may take.
const PARTING: Duration = Duration::from_secs(5);

/// Exit code: the tool failed or was cancelled.
const FAILED: u8 = 1;
/// Exit code: the arguments can't be used.
const USAGE: u8 = 2;
/// Exit code: the protocol or the network failed.
const BROKEN: u8 = 3;

/// Call a tool of an MCP server and print its result as JSON
#[derive(Debug, Clone, Args)]
pub(super) struct CallArgs {
    /// The server's endpoint, such as http://127.0.0.1:8080/mcp
    #[arg(value_parser = url)]
    pub url: Uri,
    /// The tool's name
    pub tool: String,
    /// The tool's arguments, a JSON object
    #[arg(long, value_parser = object, value_name = "JSON")]
    pub arguments: Option<String>,
    /// Call through a task: the server answers at once and the result is fetched when it is there. Where servers decide by
    /// themselves (protocol 2026-07-28), this only refuses to call one that has no tasks
    #[arg(long)]
    pub task: bool,
    /// Which era of the protocol to speak; `auto` asks the server
    #[arg(long, value_enum, default_value = "auto")]
    pub era: EraArg,
    /// Give up and cancel after so long, such as 30s or 10m
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub timeout: Option<Duration>,
    /// A header field for every request; may be given more than once
    #[arg(long = "header", value_parser = header, value_name = "NAME: VALUE")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    #[command(flatten)]
    pub login: LoginArgs,
}

/// An era, as it is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EraArg {
    /// What the server speaks, the newer where both
    Auto,
    /// Sessions: 2025-11-25 and older
    Legacy,
    /// Stateless: 2026-07-28
    Modern,
}

impl From<EraArg> for Era {
    fn from(era: EraArg) -> Self {
        match era {
            EraArg::Auto => Self::Auto,
            EraArg::Legacy => Self::Legacy,
            EraArg::Modern => Self::Modern,
        }
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|error| format!("not a URL: {error}"))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(_)) => Ok(url),
        _ => Err("give a URL with http:// or https://".to_owned()),
    }
}

fn object(text: &str) -> Result<String, String> {
    match Object::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(defect) => Err(defect.to_string()),
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| "the name is no header field's".to_owned())?;
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_| "the value can't stand in a header".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Makes the call at the terminal; Ctrl-C cancels it.
pub(super) async fn run(args: CallArgs) -> ExitCode {
    let jobs = Jobs::default();
    let mut screen = Screen::new();
    let ended = perform(args, &mut screen, &jobs, interrupted()).await;
    screen.clear();
    jobs.stop(PARTING).await;
    match ended {
        Ended::Result(result) => {
            write(&mut stdout(), &format!("{result}\n"));
            if is_error(&result) { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
        }
        Ended::Cancelled => complain("cancelled", FAILED),
        Ended::Broken(what) => complain(&what, BROKEN),
        Ended::Unusable(what) => complain(&what, USAGE),
    }
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// With this JSON text.
    Result(String),
    /// By the user.
    Cancelled,
    /// By something else, which this says.
    Broken(String),
    /// Before it began, by arguments that can't be used.
    Unusable(String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled(_) => Self::Cancelled,
            Error::OtherEra(era) => Self::Broken(format!("{error}; call it with `--era {era}`")),
            error => Self::Broken(error.with_causes()),
        }
    }
}

async fn perform(args: CallArgs, screen: &mut Screen, jobs: &Jobs, interrupt: impl Future<Output = ()>) -> Ended {
    let credentials = match login::credentials(&args) {
        Ok(credentials) => credentials,
        Err(what) => return Ended::Unusable(what),
    };
    let config = Config {
        url: args.url.clone(),
        headers: HeaderMap::from_iter(args.headers.iter().cloned()),
        credentials,
        tls: None,
        connect_timeout: CONNECT_TIMEOUT,
        max_message: MAX_MESSAGE,
        jobs: jobs.clone(),
    };
    let mut stop = std::pin::pin!(stopped(args.timeout, interrupt));
    let connected = tokio::select! {
        biased;
        why = &mut stop => return why,
        connected = connect(config, args.era.into(), jobs.clone()) => connected,
    };
    match connected {
        Ok((Connected::Legacy(client), mut events)) => {
            let ended = within(&client, &args, screen, &mut events, stop).await;
            client.close().await;
            ended
        }
        Ok((Connected::Modern(server), mut events)) => stateless(&server, &args, screen, &mut events, stop).await,
        Err(error) => error.into(),
    }
}

/// Makes the call in the modern era, and cancels it when it is to stop: by leaving, or, where it has come to a task, by
/// saying so.
async fn stateless(
    server: &Modern,
    args: &CallArgs,
    screen: &mut Screen,
    events: &mut mpsc::Receiver<Event>,
    stop: Pin<&mut impl Future<Output = Ended>>,
) -> Ended {
    if args.task
        && let Err(error) = server.require_tasks()
    {
        return error.into();
    }
    let why = tokio::select! {
        biased;
        outcome = server.call(&args.tool, args.arguments.as_deref()) => {
            return outcome.map_or_else(Ended::from, Ended::Result);
        }
        why = stop => why,
        () = screen.show(events) => Ended::Cancelled,
    };
    told(server.cancel(), why).await
}

/// Resolves when the user or the clock ends the call, with what that makes of it.
async fn stopped(limit: Option<Duration>, interrupt: impl Future<Output = ()>) -> Ended {
    let late = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = interrupt => Ended::Cancelled,
        () = late => {
            let limit = humantime::format_duration(limit.unwrap_or_default());
            Ended::Broken(format!("no result within {limit}; the call was cancelled"))
        }
    }
}

/// Makes the call, and cancels it when it is to stop.
async fn within(
    client: &Client,
    args: &CallArgs,
    screen: &mut Screen,
    events: &mut mpsc::Receiver<Event>,
    mut stop: Pin<&mut impl Future<Output = Ended>>,
) -> Ended {
    let call = client.new_call();
    let arguments = args.arguments.as_deref();
    let mut task = None;
    if args.task {
        let created = tokio::select! {
            biased;
            created = client.create_task(call, &args.tool, arguments, None) => created,
            why = &mut stop => return cancelled(client, call, None, why).await,
        };
        match created {
            Ok(created) => task = Some(created),
            Err(error) => return error.into(),
        }
    }
    let id = task.as_ref().map(|task| task.id.clone());
    if let Some(id) = &id {
        screen.say(&format!("task {id}"));
    }
    let outcome = async {
        match task {
            Some(task) => client.follow(call, task).await,
            None => client.call(call, &args.tool, arguments).await,
        }
    };
    let why = tokio::select! {
        biased;
        outcome = outcome => return outcome.map_or_else(Ended::from, Ended::Result),
        why = stop => why,
        () = screen.show(events) => Ended::Cancelled,
    };
    cancelled(client, call, id.as_deref(), why).await
}

/// Tells the server, within a short while.
async fn cancelled(client: &Client, call: CallId, task: Option<&str>, why: Ended) -> Ended {
    told(cancel(client, call, task), why).await
}

async fn told(cancelling: impl Future<Output = Result<(), Error>>, why: Ended) -> Ended {
    match tokio::time::timeout(PARTING, cancelling).await {
        Ok(Ok(())) => why,
        Ok(Err(error)) => error.into(),
        Err(_) => Ended::Broken("the server did not answer the cancellation".to_owned()),
    }
}

async fn cancel(client: &Client, call: CallId, task: Option<&str>) -> Result<(), Error> {
    match task {
        Some(id) => client.cancel_task(id).await.map(|_| ()),
        None => client.cancel(call, "the user gave up").await,
    }
}

fn is_error(result: &str) -> bool {
    Object::parse(result).is_ok_and(|result| result.get("isError") == Some("true"))
}

async fn interrupted() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::warn!(%error, "Ctrl-C can't be heard");
        std::future::pending::<()>().await;
    }
}

fn complain(what: &str, code: u8) -> ExitCode {
    write(&mut stderr(), &format!("taskgate call: {}\n", harmless(what)));
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;
    use tokio::sync::oneshot;

    use super::*;
    use crate::demo::server::{self, Fault, Options, Server};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: CallArgs,
    }

    fn parse(words: &[&str]) -> Result<CallArgs, clap::Error> {
        Command::try_parse_from([&["call"], words].concat()).map(|command| command.args)
    }

    async fn made(server: &Server, words: &[&str], lines: &[&str], interrupt: impl Future<Output = ()>) -> Ended {
        let (sender, keyboard) = mpsc::channel(64);
        for line in lines {
            sender.send((*line).to_owned()).await.unwrap();
        }
        drop(sender);
        let url = server.url();
        let args = parse(&[&[url.as_str()], words].concat()).unwrap();
        perform(args, &mut Screen::with_lines(keyboard), &Jobs::default(), interrupt).await
    }

    fn text(ended: &Ended) -> String {
        let Ended::Result(result) = ended else { panic!("{ended:?}") };
        let result: Value = serde_json::from_str(result).unwrap();
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    #[test]
    fn usage_is_checked() {
        let url = "http://localhost/mcp";
        assert!(parse(&[url, "echo", "--arguments", "{}", "--task", "--timeout", "3s", "--header", "A: b"]).is_ok());
        for wrong in [
            &["localhost:1", "echo"][..],
            &["ftp://localhost/", "echo"],
            &[url],
            &[url, "echo", "--arguments", "[]"],
            &[url, "echo", "--arguments", "{"],
            &[url, "echo", "--timeout", "soon"],
            &[url, "echo", "--era", "new"],
            &[url, "echo", "--header", "no colon"],
            &[url, "echo", "--client-id", "x"],
            &[url, "echo", "--login", "--client-secret-file", "x"],
            &[url, "echo", "--header", "a b: c"],
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_login_that_can_not_be_is_usage() {
        let server = Server::start_on_loopback(Options::default()).await.unwrap();
        let never = std::future::pending;
        for (words, why) in [
            (&["echo", "--login", "--header", "authorization: x"][..], "exclude each other"),
            (&["echo", "--login", "--client-metadata-url", "http://c.example/m"], "must be https"),
            (&["echo", "--login", "--client-id", "x", "--client-secret-file", "/nowhere"], "/nowhere"),
        ] {
            let Ended::Unusable(what) = made(&server, words, &[], never()).await else { panic!("{words:?}") };
            assert!(what.contains(why), "{what}");
        }
        assert_eq!(server.stats().sessions_opened, 0);
    }

    #[tokio::test]
    async fn results_questions_and_failures() {
        let server = Server::start_on_loopback(Options::default()).await.unwrap();
        let never = std::future::pending;
        let said =
            made(&server, &["echo", "--arguments", r#"{"text":"x"}"#, "--header", "X-Key: k"], &[], never()).await;
        assert_eq!(text(&said), "x");
        assert_eq!(text(&made(&server, &["ask_twice"], &["Ada", "2"], never()).await), "Hello, Ada; colour: green");
        assert_eq!(text(&made(&server, &["ask"], &[], never()).await), "No name was given (decline)");
        let Ended::Result(failed) = made(&server, &["fail"], &[], never()).await else { panic!("no result") };
        assert!(is_error(&failed));
        let Ended::Broken(what) = made(&server, &["broken"], &[], never()).await else { panic!("a result") };
        assert_eq!(what, "the server answered with an error: the server fell over (-32000)");
        let Ended::Broken(what) = made(&server, &["echo", "--task"], &[], never()).await else { panic!("a result") };
        assert!(what.contains("no tasks"), "{what}");
        server.fail("initialize", Fault::Html, 1);
        assert!(matches!(made(&server, &["echo"], &[], never()).await, Ended::Broken(_)));
        server.until(|stats| stats.sessions == 0 && stats.get_streams == 0).await;
    }

    #[tokio::test]
    async fn either_era_is_spoken() {
        let server =
            Server::start_on_loopback(Options { era: server::Era::Modern, ..Options::default() }).await.unwrap();
        let never = std::future::pending;
        assert_eq!(text(&made(&server, &["ask_twice"], &["Ada", "2"], never()).await), "Hello, Ada; colour: green");
        assert_eq!(text(&made(&server, &["ask"], &[], never()).await), "No name was given (decline)");
        let Ended::Broken(what) = made(&server, &["echo", "--task"], &[], never()).await else { panic!("a result") };
        assert!(what.contains("no tasks"), "{what}");
        let legacy = made(&server, &["echo", "--era", "legacy"], &[], never()).await;
        assert!(matches!(legacy, Ended::Broken(_)), "{legacy:?}");
        let late = made(&server, &["hold", "--timeout", "10ms"], &[], never()).await;
        assert_eq!(late, Ended::Broken("no result within 10ms; the call was cancelled".to_owned()));
        server.until(|stats| stats.tool("hold").cancelled == stats.tool("hold").started).await;
        assert_eq!(server.stats().sessions_opened, 0);
    }

    #[tokio::test]
    async fn the_user_and_the_clock_cancel() {
        let server = Server::start_on_loopback(Options::default()).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let call = made(&server, &["hold"], &[], async { stopped.await.unwrap() });
        let interrupt = async {
            server.until(|stats| stats.tool("hold").started == 1).await;
            stop.send(()).unwrap();
        };
        let (ended, ()) = tokio::join!(call, interrupt);
        assert_eq!(ended, Ended::Cancelled);
        server.until(|stats| stats.tool("hold").cancelled == 1).await;
        let Ended::Broken(what) = made(&server, &["hold", "--timeout", "10ms"], &[], std::future::pending()).await
        else {
            panic!("a result")
        };
        assert_eq!(what, "no result within 10ms; the call was cancelled");
        server.until(|stats| stats.tool("hold").cancelled == stats.tool("hold").started).await;
    }
}
