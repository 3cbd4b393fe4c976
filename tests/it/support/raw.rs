//! A bare connection, for what no HTTP library would send.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::within;

/// Bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A TCP connection, or what is spoken on one.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    read: BytesMut,
}

/// An answer as it stood on the wire.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl RawAnswer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// The status and the fields of a head.
pub(crate) fn parse_head(head: &str) -> (u16, Vec<(String, String)>) {
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    (status.unwrap_or_else(|| panic!("no status: {head}")), lines.filter_map(field).collect())
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = within(TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::on(stream)
    }

    /// On what is there already.
    pub(crate) fn on(stream: impl Stream + 'static) -> Self {
        Self { stream: Box::new(stream), read: BytesMut::new() }
    }

    /// Sends bytes. A peer that has closed meanwhile shows in its answer.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(within(self.stream.write_all(bytes.as_ref())).await);
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish(&mut self) {
        drop(within(self.stream.shutdown()).await);
    }

    /// Reads one answer.
    pub(crate) async fn answer(&mut self) -> RawAnswer {
        self.try_answer().await.expect("the connection was closed without an answer")
    }

    /// Reads one answer; `None` when the connection closes before there is one.
    pub(crate) async fn try_answer(&mut self) -> Option<RawAnswer> {
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if self.fill().await == 0 {
                return None;
            }
        };
        let head = self.read.split_to(end + 4);
        let (status, fields) = parse_head(std::str::from_utf8(&head).unwrap());
        let mut answer = RawAnswer { status, fields, body: Bytes::new() };
        if let Some(length) = answer.field("content-length") {
            let length: usize = length.parse().unwrap();
            while self.read.len() < length {
                assert_ne!(self.fill().await, 0, "the body was cut");
            }
            answer.body = self.read.split_to(length).freeze();
        } else if answer.field("transfer-encoding").is_some() {
            let end = loop {
                if let Some(end) = self.read.windows(5).position(|window| window == b"0\r\n\r\n") {
                    break end;
                }
                assert_ne!(self.fill().await, 0, "the body was cut");
            };
            answer.body = self.read.split_to(end + 5).freeze();
        }
        Some(answer)
    }

    /// Reads to the first line that holds a text, and gives it; what came before it is dropped.
    pub(crate) async fn line_with(&mut self, text: &str) -> String {
        loop {
            while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                let line = String::from_utf8_lossy(&line);
                if line.contains(text) {
                    return line.trim_end().to_owned();
                }
            }
            assert_ne!(self.fill().await, 0, "the stream ended before {text:?} came");
        }
    }

    /// Everything up to the peer's end; `Err` where it did not close cleanly.
    pub(crate) async fn rest(&mut self) -> std::io::Result<Bytes> {
        while within(self.stream.read_buf(&mut self.read)).await? > 0 {}
        Ok(self.read.split().freeze())
    }

    /// Waits until the peer closes; what came before that is dropped.
    pub(crate) async fn closed(&mut self) {
        while self.fill().await > 0 {}
    }

    /// Reads what is there, or waits for some; 0 at the end.
    async fn fill(&mut self) -> usize {
        within(self.stream.read_buf(&mut self.read)).await.unwrap_or(0)
    }
}
