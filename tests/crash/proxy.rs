//! A wire that can be cut: a TCP proxy between one gateway and its store.

use std::net::SocketAddr;
use std::time::Duration;

use taskgate::jobs::Jobs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Whole,
    /// Each piece comes that much later.
    Slow(Duration),
    /// Connections break, and new ones break at once.
    Cut,
    /// Connections stay, and nothing arrives until it is whole again.
    Silent,
}

/// The proxy. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    wire: watch::Sender<Wire>,
    jobs: Jobs,
}

impl Proxy {
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            target: watch::Sender::new(target),
            wire: watch::Sender::new(Wire::Whole),
            jobs: Jobs::default(),
        };
        let (target, wire, jobs) = (proxy.target.subscribe(), proxy.wire.clone(), proxy.jobs.clone());
        proxy.jobs.spawn("proxy", async move {
            while let Some(Ok((near, _))) = jobs.stopping().run_until_cancelled(listener.accept()).await {
                let (target, wire, stopping) = (*target.borrow(), wire.subscribe(), jobs.stopping().clone());
                jobs.spawn("proxied", async move { stopping.run_until_cancelled(carry(near, target, wire)).await });
            }
        });
        proxy
    }

    /// Leads to another place, as a failover does; what is connected stays where it is.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    pub(crate) fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut wire: watch::Receiver<Wire>) {
    let mut is_cut = wire.clone();
    let carried = async {
        carries(&mut wire).await?;
        let far = TcpStream::connect(target).await.ok()?;
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        // Where either way ends the other has nobody to talk to.
        tokio::select! {
            () = pump(near_in, far_out, wire.clone()) => {}
            () = pump(far_in, near_out, wire.clone()) => {}
        }
        Some(())
    };
    tokio::select! {
        _ = carried => {}
        _ = is_cut.wait_for(|wire| *wire == Wire::Cut) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut wire: watch::Receiver<Wire>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if carries(&mut wire).await.is_none() || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// Waits until the wire carries something; `None` when it never will.
async fn carries(wire: &mut watch::Receiver<Wire>) -> Option<()> {
    let now = *wire.wait_for(|wire| matches!(wire, Wire::Whole | Wire::Slow(_))).await.ok()?;
    if let Wire::Slow(late) = now {
        tokio::time::sleep(late).await;
    }
    Some(())
}

/// A server that sends back what it gets.
#[cfg(test)]
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    Jobs::default().spawn("echo", async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            Jobs::default().spawn("echoed", async move {
                let (mut from, mut to) = socket.split();
                tokio::io::copy(&mut from, &mut to).await.ok()
            });
        }
    });
    address
}

#[tokio::test]
async fn a_wire_is_cut_silent_slow_and_whole() {
    let proxy = Proxy::start(echo().await).await;
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    let mut byte = [0];
    socket.write_all(b"a").await.unwrap();
    socket.read_exact(&mut byte).await.unwrap();
    // What is sent into the silence arrives after it,
    proxy.set(Wire::Silent);
    socket.write_all(b"b").await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(50), socket.read_exact(&mut byte)).await;
    assert!(silent.is_err(), "{byte:?}");
    proxy.set(Wire::Slow(Duration::from_millis(1)));
    socket.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"b");
    // and a cut ends all, what is new as well.
    proxy.set(Wire::Cut);
    assert_eq!(socket.read(&mut byte).await.unwrap_or(0), 0);
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    assert_eq!(socket.read(&mut byte).await.unwrap_or(0), 0);
    proxy.set(Wire::Whole);
    let mut socket = TcpStream::connect(proxy.address).await.unwrap();
    socket.write_all(b"c").await.unwrap();
    socket.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"c");
}
