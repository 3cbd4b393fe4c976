//! The server as its clients see it.

mod bad_input;
mod faults;
mod http;
mod modern;
mod modern_pipe;
mod peer;
mod stdio;
mod tools;

use serde_json::{Value, json};

use super::{Options, Server};
use peer::Peer;

/// A client that offers everything.
fn everything() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}})
}

async fn start(options: Options) -> Server {
    Server::start_on_loopback(options).await.unwrap()
}

/// A server of the newest version with a session of a client that offers everything.
async fn pair(options: Options) -> (Server, Peer) {
    let version = options.version.as_str();
    let server = start(options).await;
    let peer = Peer::open(&server, version, &everything()).await;
    (server, peer)
}
