//! Reads what came back for a request as whole messages, whatever carried them.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::jsonrpc;
use crate::sse::{Event, Framer};

use super::{Body, Error, Listening, Reply};

/// Messages as they come. Reading is bounded: one message of at most the given size is held at a time.
#[derive(Debug)]
pub struct Messages {
    source: Source,
    /// Members of a batch that was split (2025-03-26 servers may send arrays).
    ready: VecDeque<Bytes>,
    limit: usize,
    last_event_id: Option<String>,
    retry: Option<Duration>,
}

/// What came on a stream.
#[derive(Debug)]
pub enum Came {
    /// A message.
    Message(Bytes),
    /// An event without one; [`Messages::last_event_id`] may have changed.
    Mark,
}

#[derive(Debug)]
enum Source {
    Json(Body, Vec<u8>),
    Events(Body, Framer),
    Channel(mpsc::Receiver<Bytes>),
    Ended,
}

impl Messages {
    /// The messages of a reply to a request.
    #[must_use]
    pub fn of_reply(reply: Reply, limit: usize) -> Self {
        Self::new(
            match reply {
                Reply::Accepted => Source::Ended,
                Reply::Json(body) => Source::Json(body, Vec::new()),
                Reply::Events(body) => Source::Events(body, Framer::new(limit)),
                Reply::Messages(channel) => Source::Channel(channel),
            },
            limit,
        )
    }

    /// The messages of a standalone stream; `None` where there is none.
    #[must_use]
    pub fn of_listening(listening: Listening, limit: usize) -> Option<Self> {
        let source = match listening {
            Listening::Events(body) => Source::Events(body, Framer::new(limit)),
            Listening::Messages(channel) => Source::Channel(channel),
            Listening::NotOffered => return None,
        };
        Some(Self::new(source, limit))
    }

    fn new(source: Source, limit: usize) -> Self {
        Self { source, ready: VecDeque::new(), limit, last_event_id: None, retry: None }
    }

    /// The id after which the stream can be resumed, if the upstream gave one.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// How long the upstream asks to wait before resuming.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Whether all that came with the last event id has been given out: what comes after it is all that is missing.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next message; `None` when the stream has ended. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Lost`] when the connection broke, [`Error::Protocol`] for bytes that can't be messages, [`Error::TooLarge`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.advance().await? {
                Some(Came::Message(message)) => return Ok(Some(message)),
                Some(Came::Mark) => {}
                None => return Ok(None),
            }
        }
    }

    /// The same, for whoever wants to know of event ids as soon as they come. Cancel-safe.
    ///
    /// # Errors
    /// As [`Messages::next`].
    pub async fn advance(&mut self) -> Result<Option<Came>, Error> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(Came::Message(message)));
            }
            let data = match &mut self.source {
                Source::Ended => return Ok(None),
                Source::Channel(channel) => match channel.recv().await {
                    Some(message) => message,
                    None => return Ok(None),
                },
                Source::Json(body, read) => {
                    read_to_end(body, read, self.limit).await?;
                    let whole = Bytes::from(std::mem::take(read));
                    self.source = Source::Ended;
                    whole
                }
                Source::Events(body, framer) => match next_event(body, framer).await? {
                    None => {
                        self.source = Source::Ended;
                        return Ok(None);
                    }
                    Some(frame) => {
                        let event = Event::parse(&frame);
                        if let Some(id) = &event.id {
                            self.last_event_id = (!id.is_empty()).then(|| id.clone().into_owned());
                        }
                        self.retry = event.retry.map(Duration::from_millis).or(self.retry);
                        if !event.has_message() {
                            return Ok(Some(Came::Mark));
                        }
                        event.data.map(|data| Bytes::copy_from_slice(&data)).unwrap_or_default()
                    }
                },
            };
            self.take(data)?;
        }
    }

    fn take(&mut self, data: Bytes) -> Result<(), Error> {
        if data.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            let members = jsonrpc::split_batch(&data).map_err(|defect| Error::Protocol(defect.to_string()))?;
            self.ready.extend(members.into_iter().map(|member| Bytes::copy_from_slice(member.get().as_bytes())));
        } else {
            self.ready.push_back(data);
        }
        Ok(())
    }
}

async fn next_event(body: &mut Body, framer: &mut Framer) -> Result<Option<Bytes>, Error> {
    loop {
        if let Some(frame) = framer.next_frame().map_err(|error| Error::TooLarge(error.limit))? {
            return Ok(Some(frame));
        }
        match body.frame().await {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(data) = frame?.into_data() {
                    framer.push(data);
                }
            }
        }
    }
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// [`Error::TooLarge`] for a longer body, or as the body fails.
pub async fn collect(body: &mut Body, limit: usize) -> Result<Bytes, Error> {
    let first = body.frame().await.transpose()?.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
    if first.len() > limit {
        return Err(Error::TooLarge(limit));
    }
    // Most are in one piece, which is passed on as it came.
    if body.is_end_stream() {
        return Ok(first);
    }
    // As much as is announced, so that nothing is moved while it grows.
    let rest = body.size_hint().exact().and_then(|rest| usize::try_from(rest).ok()).unwrap_or(0);
    let mut read = Vec::with_capacity(first.len().saturating_add(rest).min(limit));
    read.extend_from_slice(&first);
    read_to_end(body, &mut read, limit).await?;
    Ok(Bytes::from(read))
}

/// Pieces of at least this many bytes are kept as they came. A smaller one may hold a buffer that is many times its size.
const KEPT_PIECE: usize = 4 * 1024;

/// Reads a body of at most `limit` bytes as the large pieces in which it comes, none of them empty.
///
/// # Errors
/// As [`collect`].
pub async fn collect_pieces(body: &mut Body, limit: usize) -> Result<Vec<Bytes>, Error> {
    let (mut pieces, mut small, mut length) = (Vec::new(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        length += data.len();
        if length > limit {
            return Err(Error::TooLarge(limit));
        }
        // What is the whole of it is never small.
        if data.len() >= KEPT_PIECE || (length == data.len() && body.is_end_stream()) {
            pieces.extend([Bytes::from(std::mem::take(&mut small)), data]);
        } else {
            small.extend_from_slice(&data);
        }
    }
    pieces.push(small.into());
    pieces.retain(|piece| !piece.is_empty());
    Ok(pieces)
}

/// Adds the rest of a body to what was read of it, so that a cancelled wait loses nothing.
async fn read_to_end(body: &mut Body, read: &mut Vec<u8>, limit: usize) -> Result<(), Error> {
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if read.len() + data.len() > limit {
            return Err(Error::TooLarge(limit));
        }
        read.extend_from_slice(&data);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    async fn collected(lengths: &[usize], limit: usize) -> Result<Vec<usize>, Error> {
        let (mut sent, mut frames) = (Vec::new(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let piece = vec![u8::try_from(number).unwrap(); *length];
            sent.extend_from_slice(&piece);
            frames.push(Ok(Frame::data(Bytes::from(piece))));
        }
        let mut body = StreamBody::new(stream::iter(frames)).boxed_unsync();
        let pieces = collect_pieces(&mut body, limit).await?;
        assert_eq!(pieces.concat(), sent);
        Ok(pieces.iter().map(Bytes::len).collect())
    }

    #[tokio::test]
    async fn large_pieces_are_kept_and_small_ones_joined() {
        let large = KEPT_PIECE;
        for (sent, kept) in [
            (vec![], vec![]),
            (vec![5], vec![5]),
            (vec![0, 1, 2, 3], vec![6]),
            (vec![large], vec![large]),
            (vec![1, 2, large, 3, 4, large + 1, large, 5], vec![3, large, 7, large + 1, large, 5]),
        ] {
            assert_eq!(collected(&sent, 1 << 20).await.unwrap(), kept, "{sent:?}");
        }
        assert!(collected(&[large, 10], large + 10).await.is_ok());
        assert!(matches!(collected(&[large, 10], large + 9).await, Err(Error::TooLarge(_))));
    }
}
