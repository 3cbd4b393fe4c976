//! A proxy for tests, between a process and its server: it can be cut, and swallow what it is given.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::jobs::Jobs;

/// What becomes of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// They are passed on.
    Fine,
    /// They are closed, and new ones at once.
    Cut,
    /// They stay, and nothing comes through.
    Swallowed,
    /// They stay, and what is asked is done, but no answer comes back from when something with this in it was asked.
    Unanswered(&'static str),
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    weather: Arc<watch::Sender<Weather>>,
}

impl Proxy {
    /// In front of a local port.
    pub(crate) async fn start(port: u16, jobs: &Jobs) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let weather = Arc::new(watch::Sender::new(Weather::Fine));
        let (told, inner) = (Arc::clone(&weather), jobs.clone());
        jobs.spawn("proxy", async move {
            while let Ok((client, _)) = listener.accept().await {
                inner.spawn("proxied", carry(client, port, told.subscribe()));
            }
        });
        Self { address, weather }
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

async fn carry(mut client: TcpStream, port: u16, mut weather: watch::Receiver<Weather>) {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut is_mute = false;
    loop {
        let now = *weather.borrow_and_update();
        match now {
            Weather::Cut => return,
            Weather::Swallowed => {
                if weather.changed().await.is_err() {
                    return;
                }
                // What was under way is lost with its connection.
                if *weather.borrow() == Weather::Fine {
                    return;
                }
            }
            Weather::Unanswered(after) => tokio::select! {
                changed = weather.changed() => if changed.is_err() || *weather.borrow() == Weather::Fine { return },
                read = client.read(&mut up) => match read {
                    Ok(read) if read > 0 => {
                        is_mute |= memchr::memmem::find(&up[..read], after.as_bytes()).is_some();
                        if server.write_all(&up[..read]).await.is_err() {
                            return;
                        }
                    }
                    _ => return,
                },
                read = server.read(&mut down) => match read {
                    Ok(read) if read > 0 && is_mute => {}
                    Ok(read) if read > 0 => if client.write_all(&down[..read]).await.is_err() { return },
                    _ => return,
                },
            },
            Weather::Fine => tokio::select! {
                changed = weather.changed() => if changed.is_err() { return },
                read = client.read(&mut up) => match read {
                    Ok(read) if read > 0 => if server.write_all(&up[..read]).await.is_err() { return },
                    _ => return,
                },
                read = server.read(&mut down) => match read {
                    Ok(read) if read > 0 => if client.write_all(&down[..read]).await.is_err() { return },
                    _ => return,
                },
            },
        }
    }
}
