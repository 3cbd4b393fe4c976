//! The listener: accepts connections, gives each to one of the threads in a job of its own, and lets them finish when it is
//! told to stop.

use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::jobs::Jobs;
use crate::threads::Threads;

use super::http::Endpoints;
use super::patience::Stream;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// The longest head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// How long to wait after a failed accept: most failures are a lack of files, which others give back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until `stop` is cancelled, then lets connections finish for at most `grace`.
pub async fn serve(
    listener: TcpListener,
    endpoints: Arc<Endpoints>,
    jobs: Jobs,
    threads: Arc<Threads>,
    stop: CancellationToken,
    grace: Duration,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    let head = endpoints.patience.head;
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(MAX_HEAD).half_close(false);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS).keep_alive_interval(head);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => {
                let served = connection(builder.clone(), stream, Arc::clone(&endpoints), graceful.watcher());
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

async fn connection(
    builder: Builder<TokioExecutor>,
    stream: std::net::TcpStream,
    endpoints: Arc<Endpoints>,
    watcher: Watcher,
) {
    let _counted = endpoints.metrics.connection();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "a connection could not be served"),
    };
    let stream = Stream::new(stream, endpoints.patience);
    let service = service_fn(|request| Arc::clone(&endpoints).handle(request));
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(serving).await {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
