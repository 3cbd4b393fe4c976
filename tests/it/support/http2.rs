//! HTTP/2 frame by frame, for what no HTTP library would send (RFC 9113; header fields as plain literals of RFC 7541).

use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::within;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;

/// For HEADERS and DATA.
pub(crate) const END_STREAM: u8 = 1;
/// For HEADERS and CONTINUATION.
pub(crate) const END_HEADERS: u8 = 4;

/// A frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Bytes,
}

/// A frame as bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as a block of headers.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// A string without Huffman's code: its length with a prefix of seven bits, and its bytes.
fn text(block: &mut Vec<u8>, text: &str) {
    if text.len() < 127 {
        block.push(u8::try_from(text.len()).unwrap());
    } else {
        block.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap());
    }
    block.extend_from_slice(text.as_bytes());
}

/// A connection.
pub(crate) struct Http2 {
    stream: TcpStream,
    read: BytesMut,
    next: u32,
}

impl Http2 {
    /// Says what clients begin with.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = within(TcpStream::connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut connection = Self { stream, read: BytesMut::new(), next: 1 };
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        connection.send(&frame(SETTINGS, 0, 0, &[])).await;
        connection
    }

    /// Sends bytes; whether the other side still takes them.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        within(self.stream.write_all(bytes)).await.is_ok()
    }

    /// The number of a stream that was not used.
    pub(crate) fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Begins a request; its stream. These fields come after those of a POST to the endpoint.
    pub(crate) async fn request(&mut self, flags: u8, fields: &[(&str, &str)]) -> u32 {
        let stream = self.next_stream();
        let usual = [(":method", "POST"), (":scheme", "http"), (":path", "/mcp"), (":authority", "localhost")];
        let block = block(&[&usual, fields].concat());
        self.send(&frame(HEADERS, flags | END_HEADERS, stream, &block)).await;
        stream
    }

    /// The next frame; `None` at the end, however it comes.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        self.fill(9).await?;
        let length = usize::try_from(u32::from_be_bytes([0, self.read[0], self.read[1], self.read[2]])).unwrap();
        self.fill(9 + length).await?;
        let mut head = self.read.split_to(9);
        head.advance(3);
        let (kind, _, stream) = (head.get_u8(), head.get_u8(), head.get_u32());
        Some(Frame { kind, stream, payload: self.read.split_to(length).freeze() })
    }

    async fn fill(&mut self, length: usize) -> Option<()> {
        while self.read.len() < length {
            if within(self.stream.read_buf(&mut self.read)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
        Some(())
    }

    /// The next frame of one of these kinds on that stream; 0 is the connection's.
    pub(crate) async fn until(&mut self, kinds: &[u8], stream: u32) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.stream == stream && kinds.contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    /// The code of the frame that gives the connection up; `None` where it just ends.
    pub(crate) async fn given_up(&mut self) -> Option<u32> {
        loop {
            let frame = self.next().await?;
            if frame.kind == GOAWAY {
                return Some((&frame.payload[4..8]).get_u32());
            }
        }
    }
}
