//! How long a client may keep the gateway waiting. None of it bounds a tool's work: it is about clients that neither
//! send, nor read, nor go.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A body that comes in drops takes at most as long as so many pauses.
pub const PAUSES: u32 = 20;

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long a request's head may take, and a connection may be idle.
    pub head: Duration,
    /// How long a request's body may pause; all of it may take [`PAUSES`] times as long.
    pub body: Duration,
    /// How long a client may read nothing while there is something to be read. Whoever comes back later resumes.
    pub reader: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let (head, body) = (Duration::from_secs(60), Duration::from_secs(30));
        Self { head, body, reader: Duration::from_secs(300), handshake: Duration::from_secs(10) }
    }
}

/// As many bytes tell HTTP/1 and HTTP/2 apart. The servers of both have a clock of their own; before them nobody has.
const PREFACE: usize = 24;

/// A connection that ends when it does not begin, or when its reader stands still: nobody else notices, since a body that is not written is not
/// asked for more, and what it holds (a place upstream, a claimed question) would be held for ever.
#[derive(Debug)]
pub(super) struct Stream<S> {
    /// What HTTP is spoken on. Over TLS these are the bytes inside, since only those begin a request.
    socket: S,
    patience: Patience,
    /// Runs until the connection has begun.
    silent: Option<Pin<Box<Sleep>>>,
    heard: usize,
    /// Runs while a write waits, or what was written waits to go out: TLS takes bytes before it can send them.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Stream<S> {
    pub(super) fn new(socket: S, patience: Patience) -> Self {
        let silent = Some(Box::pin(tokio::time::sleep(patience.head)));
        Self { socket, patience, silent, heard: 0, stalled: None }
    }

    fn written<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let limit = self.patience.reader;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        std::task::ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        let Some(silent) = &mut self.silent else { return read };
        if read.is_pending() {
            std::task::ready!(silent.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")));
        }
        self.heard += buf.filled().len() - before;
        if self.heard >= PREFACE {
            self.silent = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.written(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.written(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
