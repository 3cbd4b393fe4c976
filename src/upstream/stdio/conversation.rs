//! The talk with one child over a pair of byte streams: one reader, one writer, any number of callers.
//!
//! Knows nothing of processes. The reader never waits for a caller and never for the writer, so that a child that waits
//! for us to read can always go on.

use std::io;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::lines::{Frame, Lines};
use super::table::{Manners, Rejected, Role, Table};
use crate::jsonrpc::{self, Id};
use crate::upstream::{Error, Kind, Outgoing, Reply};

/// Callers' messages that wait for the child to read. When full, callers wait, for as long as the child lives: their
/// own deadlines end that.
const QUEUE: usize = 8;
/// The gateway's own answers that wait for the child to read. When full they are dropped: a child that reads nothing
/// waits for no answer.
const OWN_QUEUE: usize = 64;

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The gateway wanted it.
    #[error("it was told to stop")]
    Stopped,
    /// The child's stdout came to its end.
    #[error("it closed its stdout")]
    Closed,
    /// The child wrote a line over the limit.
    #[error("it wrote a line that is longer than allowed")]
    TooLong,
    /// Reading failed.
    #[error("its stdout can't be read: {0}")]
    Read(io::Error),
    /// Writing failed, most often because the child closed its stdin.
    #[error("its stdin can't be written: {0}")]
    Write(io::Error),
}

/// The callers' side of a conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    table: Mutex<Table>,
    queue: mpsc::Sender<Bytes>,
    own: mpsc::Sender<Bytes>,
}

/// What is to be written, for [`Conversation::run`]. Dropping it wakes all callers that wait.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: mpsc::Receiver<Bytes>,
    own: mpsc::Receiver<Bytes>,
}

impl Conversation {
    /// `patience` is how long a question waits for a standalone stream.
    pub(super) fn new(patience: Duration, manners: Manners) -> (Self, Outbox) {
        let (queue, queued) = mpsc::channel(QUEUE);
        let (own, own_queued) = mpsc::channel(OWN_QUEUE);
        let table = Mutex::new(Table::new(patience, manners));
        (Self { table, queue, own }, Outbox { queue: queued, own: own_queued })
    }

    /// Sends `initialize` and gives the whole answer; `None` when the conversation ended before it came.
    pub(super) async fn initialize(&self, params: &str) -> Option<Bytes> {
        // Neither an integer nor a name that a client would choose: the session's next ids are the client's own.
        self.ask(&Id::string("tg.initialize"), "initialize", params).await
    }

    /// Sends a request of the gateway's own that concerns the child as a whole, and gives the whole answer, as
    /// [`Conversation::initialize`] does.
    pub(super) async fn ask(&self, id: &Id, method: &str, params: &str) -> Option<Bytes> {
        let place = self.queue.reserve().await.ok()?;
        let mut reader = self.table().register(id, None, Role::Handshake).ok()?;
        place.send(one_line(jsonrpc::request(id, method, Some(params))));
        reader.recv().await
    }

    /// Sends a message. Nothing is entered before there is a place in the queue, so a caller that gives up waiting
    /// leaves nothing behind.
    pub(super) async fn send(&self, message: Outgoing) -> Result<Reply, Error> {
        let place = self.queue.reserve().await.map_err(|_closed| Error::SessionGone)?;
        let reply = match &message.kind {
            Kind::Request { id, progress_token } => {
                let mut table = self.table();
                let role = table.role_of(&message.body);
                Reply::Messages(table.register(id, progress_token.as_deref(), role)?)
            }
            Kind::OneWay => {
                self.table().note(&message.body)?;
                Reply::Accepted
            }
        };
        place.send(one_line(message.body));
        Ok(reply)
    }

    /// Opens a standalone stream.
    pub(super) fn listen(&self) -> Result<mpsc::Receiver<Bytes>, Error> {
        Ok(self.table().listen()?)
    }

    /// Whether nothing can be sent any more.
    pub(super) fn has_ended(&self) -> bool {
        self.table().has_ended()
    }

    /// Whether the child has answered anything.
    pub(super) fn has_answered(&self) -> bool {
        self.table().has_answered()
    }

    /// Ends everything in flight and refuses what comes later.
    pub(super) fn end(&self) {
        self.table().end();
    }

    /// Moves messages until one of the streams ends. After a failed write, what the child has still to say is read for
    /// at most `last_words`: a child that exits closes its stdin before its answers are read.
    pub(super) async fn run<R, W>(&self, lines: &mut Lines<R>, stdin: W, outbox: Outbox, last_words: Duration) -> End
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut read = pin!(self.read(lines));
        let error = tokio::select! {
            end = &mut read => return end,
            error = write(stdin, outbox) => error,
        };
        // Whichever way the reading ends, the failed write is the reason.
        let _read_out = timeout(last_words, read).await;
        End::Write(error)
    }

    async fn read<R: AsyncRead + Unpin>(&self, lines: &mut Lines<R>) -> End {
        loop {
            let overdue = self.table().next_overdue();
            let answers = tokio::select! {
                frame = lines.next() => match frame {
                    Ok(Some(Frame::Line(line))) if line.trim_ascii().is_empty() => continue,
                    Ok(Some(Frame::Line(line))) => self.table().receive(&line),
                    Ok(Some(Frame::Cut(_))) => return End::TooLong,
                    Ok(None) => return End::Closed,
                    Err(error) => return End::Read(error),
                },
                () = sleep_until_some(overdue) => self.table().refuse_overdue(),
            };
            for answer in answers {
                if self.own.try_send(answer).is_err() {
                    tracing::debug!("an answer to the server is dropped: it does not read its stdin");
                }
            }
            // A burst is cut here, so that callers on this thread get a turn before their buffers are full.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// A panic while it is held is impossible to cause from outside, and leaves nothing half done that would matter.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Ended => Self::SessionGone,
            Rejected::Duplicate => Self::Protocol("a request with this id is already in flight".to_owned()),
        }
    }
}

/// Writes lines until that fails. Several that wait go out together.
async fn write<W: AsyncWrite + Unpin>(stdin: W, mut outbox: Outbox) -> io::Error {
    let mut stdin = BufWriter::new(stdin);
    loop {
        let message = tokio::select! {
            biased;
            Some(message) = outbox.own.recv() => message,
            Some(message) = outbox.queue.recv() => message,
            else => return io::ErrorKind::BrokenPipe.into(),
        };
        if let Err(error) = write_line(&mut stdin, &message).await {
            return error;
        }
        if outbox.own.is_empty()
            && outbox.queue.is_empty()
            && let Err(error) = stdin.flush().await
        {
            return error;
        }
    }
}

async fn write_line<W: AsyncWrite + Unpin>(stdin: &mut W, message: &[u8]) -> io::Result<()> {
    stdin.write_all(message).await?;
    stdin.write_all(b"\n").await
}

async fn sleep_until_some(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The message without line breaks (2025-11-25 transports, "stdio": messages must not contain any). In JSON they stand
/// only between tokens, where a space means the same.
fn one_line(message: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &message).is_none() {
        return message;
    }
    let mut line = BytesMut::with_capacity(message.len());
    for byte in message {
        line.put_u8(if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
    }
    line.freeze()
}

#[cfg(test)]
mod tests;
