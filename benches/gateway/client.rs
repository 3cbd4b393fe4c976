//! An MCP client that costs as little as it can: HTTP/1.1 written and read by hand, one call at a time.
//!
//! It takes what an HTTP/1.1 server may send (a length or chunks, JSON or SSE) and refuses what it does not expect;
//! nothing here is measured, but whatever it burns is taken from the two sides that are.

#![expect(
    clippy::indexing_slicing,
    reason = "positions that the lines above found; a bench may end on a peer's nonsense"
)]

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::plan::Tool;

const BUFFER: usize = 128 << 10;
const LONGEST_HEAD: usize = 64 << 10;
const LONGEST_BODY: usize = 64 << 20;

/// One connection with its session.
pub(crate) struct Client {
    wire: Wire,
    address: SocketAddr,
    /// The request line and all headers, up to the value of the last: content-length.
    head: String,
    session: Option<String>,
    request: String,
    next_id: u32,
}

impl Client {
    /// Connects without a session: for one that another connection opened, or none at all.
    pub(crate) async fn connect(address: SocketAddr, session: Option<String>) -> Result<Self> {
        let wire = Wire::open(address).await?;
        let mut client = Self { wire, address, head: String::new(), session, request: String::new(), next_id: 1 };
        client.compose_head(&client.session_fields());
        Ok(client)
    }

    /// Connects to call one tool again and again in the modern era, where a header names it and no session is begun.
    pub(crate) async fn stateless(address: SocketAddr, tool: Tool, key: Option<&str>) -> Result<Self> {
        let mut client = Self::connect(address, None).await?;
        let key = key.map(key_field).unwrap_or_default();
        let name = tool.name();
        client.compose_head(&format!(
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {name}\r\n{key}"
        ));
        Ok(client)
    }

    /// Connects and initializes a session of its own.
    pub(crate) async fn initialize(address: SocketAddr, key: Option<&str>) -> Result<Self> {
        let mut client = Self::connect(address, None).await?;
        let key = key.map(key_field).unwrap_or_default();
        client.compose_head(&key);
        let params =
            r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
        client.call("initialize", params).await.context("initialize")?;
        client.session = client.wire.session.take();
        client.compose_head(&(client.session_fields() + &key));
        client.request.clear();
        client.compose(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        let status = client.wire.exchange(client.request.as_bytes()).await?;
        ensure!(status == 202, "notifications/initialized was answered with {status}");
        Ok(client)
    }

    pub(crate) fn session(&self) -> Option<String> {
        self.session.clone()
    }

    /// Makes the ids of this connection differ from those of another on the same session.
    pub(crate) fn count_from(&mut self, id: u32) {
        self.next_id = id;
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn call(&mut self, method: &str, params: &str) -> Result<Answer<'_>> {
        self.send_later(method, params);
        let status = self.wire.exchange(self.request.as_bytes()).await?;
        let answer = Answer { body: &self.wire.body };
        if status != 200 || !answer.has(b"\"result\":") {
            let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(500)]);
            bail!("{method} was answered with {status}: {body}");
        }
        Ok(answer)
    }

    /// Sends a request and reads its answer to the end; says whether it was a result.
    pub(crate) async fn attempt(&mut self, method: &str, params: &str) -> Result<bool> {
        self.send_later(method, params);
        let status = self.wire.exchange(self.request.as_bytes()).await?;
        ensure!(matches!(status, 200 | 429), "{method} was answered with {status}");
        Ok(Answer { body: &self.wire.body }.has(b"\"result\":"))
    }

    /// Calls a tool plainly and checks the answer.
    pub(crate) async fn call_tool(&mut self, tool: Tool, params: &str) -> Result<()> {
        let answer = self.call("tools/call", params).await?;
        ensure!(answer.body.len() >= tool.least_bytes(), "{tool:?}: only {} bytes", answer.body.len());
        if tool.events() > 0 {
            let events = memmem::find_iter(answer.body, b"\"notifications/progress\"").count();
            ensure!(events == tool.events(), "{tool:?}: {events} events instead of {}", tool.events());
        }
        Ok(())
    }

    /// Sends a request whose answer nobody waits for.
    pub(crate) async fn send(&mut self, method: &str, params: &str) -> Result<()> {
        self.send_later(method, params);
        Ok(self.wire.stream.write_all(self.request.as_bytes()).await?)
    }

    /// Asks for something that is not MCP.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer<'_>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let status = self.wire.exchange(request.as_bytes()).await?;
        ensure!(status == 200, "GET {path} was answered with {status}");
        Ok(Answer { body: &self.wire.body })
    }

    fn send_later(&mut self, method: &str, params: &str) {
        let mut id = [0; 10];
        let id = decimal(self.next_id, &mut id);
        self.next_id = self.next_id.wrapping_add(1);
        let parts = [r#"{"jsonrpc":"2.0","id":"#, id, r#","method":""#, method, r#"","params":"#, params, "}"];
        let length = parts.iter().map(|part| part.len()).sum();
        self.start(length);
        parts.iter().for_each(|part| self.request.push_str(part));
    }

    fn compose(&mut self, body: &str) {
        self.start(body.len());
        self.request.push_str(body);
    }

    fn start(&mut self, length: usize) {
        let mut digits = [0; 10];
        self.request.clear();
        self.request.push_str(&self.head);
        self.request.push_str(decimal(u32::try_from(length).unwrap_or(u32::MAX), &mut digits));
        self.request.push_str("\r\n\r\n");
    }

    fn session_fields(&self) -> String {
        let session = self.session.as_ref();
        session
            .map(|session| format!("MCP-Protocol-Version: 2025-11-25\r\nMCP-Session-Id: {session}\r\n"))
            .unwrap_or_default()
    }

    fn compose_head(&mut self, fields: &str) {
        self.head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{fields}Content-Length: ",
            self.address
        );
    }
}

fn key_field(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

/// The body of an answer.
#[derive(Clone, Copy)]
pub(crate) struct Answer<'a> {
    pub(crate) body: &'a [u8],
}

impl<'a> Answer<'a> {
    pub(crate) fn has(self, words: &[u8]) -> bool {
        memmem::find(self.body, words).is_some()
    }

    /// The value of a member that is a string without escapes.
    pub(crate) fn text(self, member: &str) -> Result<&'a str> {
        let start = [r#"""#, member, r#"":""#].concat();
        let at = memmem::find(self.body, start.as_bytes()).with_context(|| format!("no {member} in the answer"))?;
        let rest = &self.body[at + start.len()..];
        let end = memchr::memchr(b'"', rest).with_context(|| format!("{member} does not end"))?;
        Ok(std::str::from_utf8(&rest[..end])?)
    }
}

/// HTTP/1.1 on one socket.
struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    /// What of `input` is read and not yet used.
    start: usize,
    end: usize,
    body: Vec<u8>,
    session: Option<String>,
}

enum Length {
    Bytes(usize),
    Chunks,
}

impl Wire {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new(), start: 0, end: 0, body: Vec::new(), session: None })
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<u16> {
        self.stream.write_all(request).await?;
        let (status, length) = self.head().await?;
        self.body.clear();
        match length {
            Length::Bytes(bytes) => self.bytes(bytes).await?,
            Length::Chunks => self.chunks().await?,
        }
        Ok(status)
    }

    async fn head(&mut self) -> Result<(u16, Length)> {
        let end = loop {
            if let Some(at) = memmem::find(&self.input[self.start..self.end], b"\r\n\r\n") {
                break self.start + at;
            }
            ensure!(self.end - self.start < LONGEST_HEAD, "an endless response head");
            self.fill().await?;
        };
        let head = std::str::from_utf8(&self.input[self.start..end]).context("a response head that is not text")?;
        let status = head.get(9..12).and_then(|status| status.parse().ok()).context("no status")?;
        let mut length = Length::Bytes(0);
        for line in head.split("\r\n").skip(1) {
            // Only three headers matter, and their first letters leave little else.
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = Length::Bytes(value.trim().parse().context("content-length")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                length = Length::Chunks;
            } else if name.eq_ignore_ascii_case("mcp-session-id") && self.session.is_none() {
                self.session = Some(value.trim().to_owned());
            }
        }
        self.start = end + 4;
        Ok((status, length))
    }

    async fn bytes(&mut self, mut wanted: usize) -> Result<()> {
        ensure!(self.body.len() + wanted <= LONGEST_BODY, "an endless response body");
        loop {
            let taken = wanted.min(self.end - self.start);
            self.body.extend_from_slice(&self.input[self.start..self.start + taken]);
            self.start += taken;
            wanted -= taken;
            if wanted == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    async fn chunks(&mut self) -> Result<()> {
        loop {
            let size = self.line().await?;
            self.bytes(size).await?;
            // The line that ends a chunk, or the body: no proxy here sends trailers.
            ensure!(self.line().await? == 0, "a chunk without its end");
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Reads one line, which is a size in hexadecimal or empty.
    async fn line(&mut self) -> Result<usize> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.input[self.start..self.end]) {
                let line = std::str::from_utf8(&self.input[self.start..self.start + at])?;
                let digits = line.split(';').next().unwrap_or_default().trim();
                self.start += at + 1;
                return if digits.is_empty() { Ok(0) } else { Ok(usize::from_str_radix(digits, 16)?) };
            }
            ensure!(self.end - self.start < LONGEST_HEAD, "an endless line between chunks");
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.input.is_empty() {
            self.input.resize(BUFFER, 0);
        }
        let read = self.stream.read(&mut self.input[self.end..]).await?;
        ensure!(read > 0, "the connection was closed in an answer");
        self.end += read;
        Ok(())
    }
}

/// Spells a number without the formatting machinery, twice for every request.
fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &str {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[at..]).unwrap_or("0")
}
