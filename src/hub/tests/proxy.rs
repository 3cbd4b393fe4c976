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
    /// So many commands with this in them are passed on and done; the next one never comes, as when the process that sends it
    /// dies. From then on all is swallowed.
    Last(usize, &'static str),
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
                inner.spawn("proxied", carry(client, port, Arc::clone(&told)));
            }
        });
        Self { address, weather }
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Until it is so.
    pub(crate) async fn until(&self, weather: Weather) {
        self.weather.subscribe().wait_for(|now| *now == weather).await.unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

async fn carry(mut client: TcpStream, port: u16, told: Arc<watch::Sender<Weather>>) {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let (mut is_mute, mut weather) = (false, told.subscribe());
    let (mut passed, mut begun) = (0, Vec::new());
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
            Weather::Last(count, of) => tokio::select! {
                changed = weather.changed() => if changed.is_err() { return },
                read = client.read(&mut up) => match read {
                    Ok(read) if read > 0 => {
                        begun.extend_from_slice(&up[..read]);
                        while let Some(length) = command_length(&begun) {
                            let command: Vec<u8> = begun.drain(..length).collect();
                            if memchr::memmem::find(&command, of.as_bytes()).is_some() {
                                if passed == count {
                                    all_is_done(&mut server).await;
                                    told.send_replace(Weather::Swallowed);
                                    break;
                                }
                                passed += 1;
                            }
                            server.write_all(&command).await.unwrap();
                        }
                    }
                    _ => return,
                },
                read = server.read(&mut down) => match read {
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

/// How long the command is that begins there, if all of it is: an array of strings (RESP2).
fn command_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let number = |at: &mut usize| -> Option<usize> {
        let end = *at + memchr::memmem::find(bytes.get(*at..)?, b"\r\n")?;
        let number = std::str::from_utf8(&bytes[*at + 1..end]).unwrap().parse().unwrap();
        *at = end + 2;
        Some(number)
    };
    for _ in 0..number(&mut at)? {
        at += number(&mut at)? + 2;
    }
    (at <= bytes.len()).then_some(at)
}

/// Waits until the server has done what it was given.
async fn all_is_done(server: &mut TcpStream) {
    const WORD: &[u8] = b"all-is-done";
    server.write_all(b"*2\r\n$4\r\nECHO\r\n$11\r\nall-is-done\r\n").await.unwrap();
    let mut answers = Vec::new();
    while memchr::memmem::find(&answers, WORD).is_none() {
        assert_ne!(server.read_buf(&mut answers).await.unwrap(), 0);
    }
}
