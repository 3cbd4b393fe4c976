//! Listening, for the roles: an address nobody chose, and a queue that holds a burst of connections.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};

/// Ten thousand held calls arrive in one burst; with the usual 1024 some would wait a second for a second SYN.
const QUEUE: u32 = 4096;

/// Binds a free port of the loopback address and says which, on stdout, to whoever started this process.
#[expect(clippy::print_stdout, reason = "the starter reads the address there")]
pub(crate) fn listen() -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let listener = socket.listen(QUEUE)?;
    println!("{}", listener.local_addr()?);
    Ok(listener)
}

/// Ends when the starter does, whatever ended it: the other end of stdin closes then.
pub(crate) async fn starter_gone() {
    let mut byte = [0];
    while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
}
