//! A wire to a store of which one answer is lost: a TCP proxy that passes everything on, until it is told to lose the answer to the
//! next request with something in it, and all that comes after on that connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use taskgate::jobs::Jobs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxy. It stops when it is dropped.
pub(crate) struct Mute {
    address: SocketAddr,
    /// What is waited for; nothing any more once it has come.
    awaited: Arc<Mutex<Option<String>>>,
    jobs: Jobs,
}

impl Mute {
    /// In front of a local Redis.
    pub(crate) async fn start(url: &str) -> Self {
        let port = url.rsplit(':').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mute = Self { address: listener.local_addr().unwrap(), awaited: Arc::default(), jobs: Jobs::default() };
        let (awaited, jobs) = (Arc::clone(&mute.awaited), mute.jobs.clone());
        mute.jobs.spawn("proxy", async move {
            while let Some(Ok((near, _))) = jobs.stopping().run_until_cancelled(listener.accept()).await {
                let (awaited, stopping) = (Arc::clone(&awaited), jobs.stopping().clone());
                jobs.spawn("proxied", async move { stopping.run_until_cancelled(carry(near, port, awaited)).await });
            }
        });
        mute
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on the answer to the next request with this in it is lost.
    pub(crate) fn lose_the_answer_to(&self, part: &str) {
        *self.awaited.lock().unwrap() = Some(part.to_owned());
    }

    /// Whether one was lost since.
    pub(crate) fn has_lost_it(&self) -> bool {
        self.awaited.lock().unwrap().is_none()
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.jobs.stopping().cancel();
    }
}

async fn carry(near: TcpStream, port: u16, awaited: Arc<Mutex<Option<String>>>) {
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let (is_mute, hears) = watch::channel(false);
    tokio::select! {
        () = ask(near_in, far_out, &awaited, is_mute) => {}
        () = answer(far_in, near_out, hears) => {}
    }
}

async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    awaited: &Mutex<Option<String>>,
    is_mute: watch::Sender<bool>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let text = String::from_utf8_lossy(&piece[..length]).into_owned();
        if awaited.lock().unwrap().take_if(|part| text.contains(&**part)).is_some() {
            is_mute.send_replace(true);
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_mute: watch::Receiver<bool>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if !*is_mute.borrow() && to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
