//! A plain MCP server without tasks, to try the gateway on.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use taskgate::demo::server::{Options, Server, serve_stdio};
use tokio::net::TcpListener;

/// A plain MCP server without tasks
#[derive(Debug, Parser)]
#[command(disable_version_flag = true)]
struct Arguments {
    /// The address to listen on; the endpoint is /mcp
    #[arg(long, default_value = "127.0.0.1:9000", conflicts_with = "stdio")]
    listen: SocketAddr,
    /// Serve one client over standard input and output
    #[arg(long)]
    stdio: bool,
    #[command(flatten)]
    options: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> std::io::Result<()> {
    if arguments.stdio {
        return serve_stdio(tokio::io::stdin(), tokio::io::stdout(), arguments.options).await;
    }
    let server = Server::start(TcpListener::bind(arguments.listen).await?, arguments.options)?;
    announce(&server);
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the program's only word before it waits")]
fn announce(server: &Server) {
    eprintln!("demo_server listens on {}", server.url());
}

#[expect(clippy::print_stderr, reason = "the program's last word")]
fn complain(error: &std::io::Error) {
    eprintln!("demo_server: {error}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
        let words =
            ["demo_server", "--version", "2025-03-26", "--batches", "--page-size", "3", "--listen", "127.0.0.1:0"];
        let arguments = Arguments::try_parse_from(words).unwrap();
        assert_eq!(arguments.options.version.as_str(), "2025-03-26");
        assert!(Arguments::try_parse_from(["demo_server", "--version", "2026-07-28"]).is_err());
        assert!(Arguments::try_parse_from(["demo_server", "--stdio", "--listen", "127.0.0.1:0"]).is_err());
    }
}
