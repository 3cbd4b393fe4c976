//! `taskgate demo`: a server without tasks, the gateway in front of it, and one slow call through a task.

use std::future::Future;
use std::io::{stderr, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::HeaderMap;
use serde_json::json;
use tokio::time::Instant;

use crate::client::{Client, Config};
use crate::demo::server::{Era, Options, Server};
use crate::jobs::Jobs;

use super::screen::{Screen, write};

/// How long the parts may take to stop.
const PARTING: Duration = Duration::from_secs(5);
/// How many sections the report has.
const SECTIONS: u32 = 8;

/// Show what taskgate does: a server without tasks, the gateway in front of it, one slow call through a task
#[derive(Debug, Clone, Args)]
pub(super) struct DemoArgs {
    /// Exit after the call instead of staying up
    #[arg(long)]
    pub once: bool,
    /// Which eras of the protocol the server speaks; the gateway speaks both
    #[arg(long, value_enum, default_value_t)]
    pub era: Era,
    /// How long the call takes
    #[arg(long, default_value = "4", hide = true)]
    pub seconds: f64,
}

/// Runs the demo. `start_gateway` puts the gateway in front of a server's URL and gives the gateway's own URL and what
/// keeps it running.
pub(super) async fn run<G, F>(args: DemoArgs, start_gateway: impl FnOnce(String) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<(String, G)>>,
{
    match show(&args, start_gateway).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            write(&mut stderr(), &format!("taskgate demo: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn show<G, F>(args: &DemoArgs, start_gateway: impl FnOnce(String) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<(String, G)>>,
{
    let server = Server::start_on_loopback(Options { era: args.era, ..Options::default() }).await?;
    let (gateway_url, _gateway) = start_gateway(server.url()).await?;
    say(&format!("A plain MCP server, which has no tasks:  {}", server.url()));
    say(&format!("taskgate in front of it, which has:      {gateway_url}\n"));
    let call = first_call(&gateway_url, args.seconds);
    tokio::select! {
        called = call => called?,
        stopped = tokio::signal::ctrl_c() => return Ok(stopped?),
    }
    let seen = server.stats();
    let calls = seen.tool("report").started;
    let word = if seen.task_seen { "a task" } else { "no task" };
    say(&format!("\nThe server saw {calls} ordinary call and {word}.\n"));
    if args.once {
        server.stop().await;
        return Ok(());
    }
    say(&next_steps(&program(), &gateway_url, &server.url()));
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}

/// One slow call through a task, told as it goes.
async fn first_call(url: &str, seconds: f64) -> anyhow::Result<()> {
    let jobs = Jobs::default();
    let config = Config {
        url: url.parse()?,
        headers: HeaderMap::new(),
        credentials: None,
        tls: None,
        connect_timeout: PARTING,
        max_message: 16 * 1024 * 1024,
        jobs: jobs.clone(),
    };
    let (client, mut events) = Client::connect(config, jobs.clone()).await?;
    let arguments = json!({"seconds": seconds, "sections": SECTIONS}).to_string();
    say(&format!("Calling its tool `report` with {arguments} through a task ..."));
    let call = client.new_call();
    let asked = Instant::now();
    let task = client.create_task(call, "report", Some(&arguments), None).await?;
    let took = asked.elapsed().as_millis();
    say(&format!("The handle came after {took} ms: task {}, {}.", task.id, task.status.as_str()));
    say("The client could leave now and fetch the result later; this one stays and watches.");
    let mut screen = Screen::new();
    let result = tokio::select! {
        result = client.follow(call, task) => result?,
        () = screen.show(&mut events) => anyhow::bail!("the events ended"),
    };
    screen.clear();
    say(&format!(
        "The result, as the server wrote it, {:.1} s after the call:\n{result}",
        asked.elapsed().as_secs_f32()
    ));
    client.close().await;
    jobs.stop(PARTING).await;
    Ok(())
}

fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "taskgate".to_owned())
}

/// What to try next, with commands that can be copied.
fn next_steps(program: &str, gateway: &str, server: &str) -> String {
    format!(
        r#"Everything stays up until Ctrl-C. Try in another terminal:

  A longer call through a task; Ctrl-C there cancels it on the server too:
    {program} call {gateway} report --task --arguments '{{"seconds": 20, "sections": 20}}'

  A tool that asks you something on the way:
    {program} call {gateway} ask --task

  The same server without the gateway has no tasks:
    {program} call {server} report --task

  The protocol by hand:
    curl -i {gateway} -H 'Content-Type: application/json' \
      -H 'Accept: application/json, text/event-stream' \
      -d '{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"curl","version":"1"}}}}}}'

  The gateway in front of a server of your own:
    {program} serve --upstream http://127.0.0.1:9000/mcp
"#
    )
}

fn say(text: &str) {
    write(&mut stdout(), &format!("{text}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_goes_wrong_is_told() {
        let args = DemoArgs { once: true, era: Era::Legacy, seconds: 0.0 };
        let failing = show(&args, |_| async { anyhow::bail!("no port") as anyhow::Result<(String, ())> }).await;
        assert_eq!(failing.unwrap_err().to_string(), "no port");
        // Without a gateway in front the server has no tasks, and the demo says so.
        let plain = show(&args, |url| async { Ok((url, ())) }).await;
        assert!(plain.unwrap_err().to_string().contains("has no tasks"));
    }

    #[test]
    fn next_steps_name_the_real_places() {
        let text = next_steps("./taskgate", "http://127.0.0.1:1/mcp", "http://127.0.0.1:2/mcp");
        assert!(text.contains("./taskgate call http://127.0.0.1:1/mcp ask --task"));
        assert!(text.contains("./taskgate call http://127.0.0.1:2/mcp report --task"));
    }
}
