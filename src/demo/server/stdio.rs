//! The stdio transport: one session, a message a line.

mod modern_pipe;

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use crate::jsonrpc::{self, ErrorObject, Message};

use super::fault;
use super::modern;
use super::options::Options;
use super::protocol;
use super::session::{Session, Terms};
use super::stream::Stream;
use super::{STOP_LIMIT, Shared};

/// The longest line that is read.
const MAX_LINE: usize = 64 * 1024 * 1024;

/// Serves one client until its end closes, or until a call of `fault` with `exit` asks to stop at once.
///
/// # Errors
/// When a pipe breaks.
pub async fn serve(
    input: impl AsyncRead + Send + Unpin,
    output: impl AsyncWrite + Send + Unpin + 'static,
    options: Options,
) -> io::Result<()> {
    let shared = Shared::new(options);
    let stream = Arc::new(Stream::new(0, false, None));
    let writer = shared.jobs.spawn("demo stdout", write(Arc::clone(&stream), output));
    let read = read(&shared, &stream, BufReader::new(input)).await;
    shared.jobs.stopping().cancel();
    stream.end();
    let written = writer.await;
    shared.jobs.stop(STOP_LIMIT).await;
    read?;
    written.map_err(io::Error::other)?
}

async fn write(stream: Arc<Stream>, mut output: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut cursor = stream.read(None);
    while let Some(event) = stream.next(&mut cursor).await {
        output.write_all(&event.message).await?;
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    Ok(())
}

async fn read(shared: &Arc<Shared>, stream: &Arc<Stream>, mut input: impl AsyncBufReadExt + Unpin) -> io::Result<()> {
    let mut session: Option<Arc<Session>> = None;
    let mut requests = modern_pipe::Requests::default();
    let mut line = Vec::new();
    while next_line(&mut input, &mut line).await? {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        shared.note(|stats| stats.note_body(&line));
        let message = match Message::parse(&line) {
            Ok(message) => message,
            Err(defect) => {
                let error = ErrorObject::new(defect.code(), defect.to_string());
                stream.push(jsonrpc::error_response(None, &error));
                continue;
            }
        };
        match fault::kind_asked(&message).as_deref() {
            Some("exit") => return Ok(()),
            Some("silent") => continue,
            // Servers print what they should not (2025-11-25 transports, "stdio": MUST NOT).
            Some("noise") => stream.push("Listening on stdio... {not a message".into()),
            _ => {}
        }
        if modern::concerns(shared.era(), Some(&message), None) {
            requests.take(shared, &message, stream);
            continue;
        }
        // A notification without a claim may be about a request that had one.
        if requests.cancel(&message) {
            continue;
        }
        match &session {
            None => session = first(shared, message, stream),
            Some(session) => protocol::take(session, message, stream),
        }
    }
    Ok(())
}

/// Before `initialize` nothing but that and `ping` is answered.
fn first(shared: &Arc<Shared>, message: Message<'_>, stream: &Arc<Stream>) -> Option<Arc<Session>> {
    let Message::Request { id, method, params } = message else { return None };
    if method == "ping" {
        stream.settle(Some(jsonrpc::response(&id, "{}")));
        return None;
    }
    if method != "initialize" {
        let error = ErrorObject::new(jsonrpc::code::INVALID_REQUEST, "the session is not initialized");
        stream.settle(Some(jsonrpc::error_response(Some(&id), &error)));
        return None;
    }
    shared.note(|stats| *stats.methods.entry("initialize").or_default() += 1);
    match protocol::negotiate(shared, params) {
        Ok(terms) => Some(welcome(shared, &id, terms, stream)),
        Err(error) => {
            stream.settle(Some(jsonrpc::error_response(Some(&id), &error)));
            None
        }
    }
}

fn welcome(shared: &Arc<Shared>, id: &jsonrpc::Id, terms: Terms, stream: &Arc<Stream>) -> Arc<Session> {
    stream.settle(Some(jsonrpc::response(id, &protocol::welcome(&terms))));
    shared.note(|stats| {
        stats.sessions += 1;
        stats.sessions_opened += 1;
    });
    Session::on_pipe(shared, terms, Arc::clone(stream))
}

/// Reads a line of bounded length; `false` at the end.
async fn next_line(input: &mut (impl AsyncBufReadExt + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        let chunk = input.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = memchr::memchr(b'\n', chunk);
        let (taken, used) = chunk
            .split_at_checked(end.unwrap_or(chunk.len()))
            .map_or((chunk, chunk.len()), |(head, _)| (head, head.len() + usize::from(end.is_some())));
        line.extend_from_slice(taken);
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
        if line.len() > MAX_LINE {
            return Err(io::Error::other("a line is longer than 64 MiB"));
        }
    }
}
