//! The listener: accepts connections, shakes hands where TLS is spoken, gives each connection to one of the threads in a job
//! of its own, and lets them finish when it is told to stop.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::jobs::Jobs;
use crate::threads::Threads;
use crate::tls::{Acceptor, TlsStream};
use crate::waits::ConnectionTimer;

use super::answer::ResponseBody;
use super::guard::Guard;
use super::http::Endpoints;
use super::patience::{Patience, Stream};
use super::readers::Readers;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// The longest head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// The same as HTTP/2 counts it: names and values and 32 bytes for each field (RFC 9113, 6.5.2).
const MAX_FIELDS: u32 = 64 * 1024;
/// Fields of a head.
const MAX_FIELD_COUNT: usize = 100;
/// Streams that an HTTP/2 client may have reset before they were taken: more is an attack, and ends the connection.
const MAX_RESETS: usize = 20;
/// Streams that the gateway may have reset for their faults; more ends the connection.
const MAX_FAULTY_STREAMS: usize = 100;
/// How long to wait after a failed accept: most failures are a lack of files, which others give back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// What is read and thrown away of a connection that does not speak TLS, so that it ends without a reset.
const DISCARDED: u64 = 64 * 1024;
/// How long that may take.
const DISCARD_LIMIT: Duration = Duration::from_secs(1);

/// Where clients come in.
#[derive(Debug)]
pub struct Entrance {
    /// The address.
    pub listener: TcpListener,
    /// TLS, where it is spoken.
    pub tls: Option<Acceptor>,
    /// How many connections may be open; more wait to be accepted.
    pub connections: usize,
    /// Who is let in, where it is no client but another replica.
    pub guard: Option<Arc<Guard>>,
}

/// What every connection needs.
struct Door {
    builder: Builder<TokioExecutor>,
    endpoints: Arc<Endpoints>,
    tls: Option<Acceptor>,
    guard: Option<Arc<Guard>>,
    stop: CancellationToken,
}

/// Serves until `stop` is cancelled, then lets connections finish for at most `grace`.
pub async fn serve(
    entrance: Entrance,
    endpoints: Arc<Endpoints>,
    jobs: Jobs,
    threads: Arc<Threads>,
    stop: CancellationToken,
    grace: Duration,
) {
    let Entrance { listener, tls, connections, guard } = entrance;
    let builder = builder(endpoints.patience);
    let door = Arc::new(Door { builder, endpoints, tls, guard, stop: stop.clone() });
    let places = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    while let Some((accepted, place)) = stop.run_until_cancelled(accept(&listener, &places)).await {
        match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                let served = Arc::clone(&door).connection(stream, peer.ip(), graceful.watcher(), place);
                threads.spawn(&jobs, "connection", served);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were still open when the time to stop had come");
    }
}

/// The limits of both versions. Those that are the library's own today are said all the same: a later one may have others.
fn builder(patience: Patience) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(ConnectionTimer)
        .header_read_timeout(patience.head)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELD_COUNT)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_FIELDS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_FAULTY_STREAMS)
        .keep_alive_interval(patience.head);
    builder
}

/// The next connection, when there is a place for one.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (std::io::Result<(TcpStream, SocketAddr)>, Option<OwnedSemaphorePermit>) {
    if places.available_permits() == 0 {
        tracing::warn!("as many connections are open as may be: the next ones wait until others end");
    }
    // Nobody closes the semaphore.
    let place = Arc::clone(places).acquire_owned().await.ok();
    (listener.accept().await, place)
}

impl Door {
    async fn connection(
        self: Arc<Self>,
        stream: std::net::TcpStream,
        peer: IpAddr,
        watcher: Watcher,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let _counted = self.endpoints.metrics.connection();
        let _place = place;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "a connection could not be served"),
        };
        match &self.tls {
            None => self.serve(stream, peer, watcher).await,
            // Boxed: the states of both would stand side by side in every connection.
            Some(tls) => match Box::pin(self.shake_hands(tls, stream)).await {
                Some(stream) => Box::pin(self.serve(stream, peer, watcher)).await,
                None => drop(watcher),
            },
        }
    }

    /// Begins TLS, for which a client has as long as the gateway's patience lasts.
    async fn shake_hands(&self, tls: &Acceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let shaking = async {
            match tls.accept(stream).await {
                Ok(stream) => Some(stream),
                Err((error, stream)) => {
                    tracing::debug!(%error, "a TLS handshake failed");
                    part(stream).await;
                    None
                }
            }
        };
        let limited = tokio::time::timeout(self.endpoints.patience.handshake, shaking);
        // A handshake is no request, so there is nothing to finish.
        let shaken = self.stop.run_until_cancelled(limited).await?;
        shaken.inspect_err(|_| tracing::debug!("a TLS handshake took too long")).ok().flatten()
    }

    fn serve<I>(&self, stream: I, peer: IpAddr, watcher: Watcher) -> impl Future<Output = ()>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Stream::new(stream, self.endpoints.patience);
        let endpoints = Arc::clone(&self.endpoints);
        let (readers, builder, limit) = (Arc::new(Readers::default()), self.builder.clone(), endpoints.patience.reader);
        let (watching, guard) = (Arc::clone(&readers), self.guard.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (watching, is_watched) = (Arc::clone(&watching), request.version() == Version::HTTP_2);
            if is_watched {
                watching.begin();
            }
            // Boxed: it is moved three times before it is first polled, and each connection would keep its room.
            let answering: BoxFuture<'static, Result<Response<ResponseBody>, Infallible>> = match &guard {
                None => Box::pin(Arc::clone(&endpoints).handle(peer, request)),
                Some(guard) => Box::pin(Arc::clone(guard).handle(Arc::clone(&endpoints), request)),
            };
            answering.map_ok(move |answer| answer.map(|body| watching.watch(body, is_watched)))
        });
        async move {
            let mut serving = pin!(watcher.watch(builder.serve_connection(TokioIo::new(stream), service)));
            let mut stalled = pin!(readers.stalled(limit));
            let ended = poll_fn(|cx| match serving.as_mut().poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                // On HTTP/1 nobody is watched, and this is polled with each event that passes.
                Poll::Pending if readers.have_begun() => stalled.as_mut().poll(cx).map(|()| None),
                Poll::Pending => Poll::Pending,
            });
            match ended.await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "a connection ended with an error"),
                None => tracing::debug!("a connection ended because its client did not read"),
            }
        }
    }
}

/// Closes a connection so that the other side reads what it was sent last (an alert of TLS) and then its end: closed with
/// bytes unread, it would be reset.
async fn part(mut stream: TcpStream) {
    let parting = async {
        stream.shutdown().await?;
        let mut rest = (&mut stream).take(DISCARDED);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    if let Ok(Err(error)) = tokio::time::timeout(DISCARD_LIMIT, parting).await {
        tracing::debug!(%error, "a connection without TLS ended by itself");
    }
}
