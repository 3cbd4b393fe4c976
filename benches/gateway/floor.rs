//! The floor: the smallest hyper server with the hyper-util client behind it that reads nothing.
//!
//! What every figure of the bench is divided by. It does nothing that a proxy may leave out: no logs, no limits, no
//! session, no look at a body. Whatever taskgate costs more than this is the price of what it does.

#![expect(
    clippy::disallowed_methods,
    reason = "the floor is not the gateway: its connections have no job to belong to"
)]

use std::net::SocketAddr;

use anyhow::Result;
use http::{Request, Uri, uri::Authority};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::listen;

/// Serves until its starter is gone.
pub(crate) async fn run(upstream: SocketAddr) -> Result<()> {
    let listener = listen::listen()?;
    tokio::select! {
        ended = serve(listener, upstream) => ended,
        () = listen::starter_gone() => Ok(()),
    }
}

async fn serve(listener: TcpListener, upstream: SocketAddr) -> Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build::<_, Incoming>(connector);
    let authority: Authority = upstream.to_string().parse()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (client, authority) = (client.clone(), authority.clone());
        tokio::spawn(async move {
            let service = service_fn(move |mut request: Request<Incoming>| {
                let mut parts = std::mem::take(request.uri_mut()).into_parts();
                parts.scheme = Some(http::uri::Scheme::HTTP);
                parts.authority = Some(authority.clone());
                *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
                client.request(request)
            });
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
        });
    }
}
