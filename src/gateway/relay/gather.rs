//! The rest of a stream that comes in a burst, joined into few pieces.
//!
//! Whoever reads from an upstream's connection hands over one small piece at a time and has to run before there can be
//! another. A job that does nothing else takes them for a fraction of what it costs to wake the client's connection for
//! each.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::jobs::Jobs;
use crate::upstream::{Body, Error};

/// As much is joined into one piece. Two of them may wait for a slow reader.
const PIECE: usize = 32 * 1024;
/// Room for the events of a short burst.
const FIRST_ROOM: usize = 4 * 1024;

/// The same body, whose first piece is there already, joined by a job of its own. That ends with the body, and with whoever
/// reads it.
pub(super) fn gathered(jobs: &Jobs, first: &Bytes, body: Body) -> Body {
    let (pieces, joined) = mpsc::channel(1);
    let mut begun = BytesMut::with_capacity(FIRST_ROOM.max(first.len()));
    begun.extend_from_slice(first);
    jobs.spawn("gather", gather(body, begun, pieces));
    Gathered { joined }.boxed_unsync()
}

async fn gather(mut body: Body, mut joined: BytesMut, pieces: mpsc::Sender<Result<Bytes, Error>>) {
    loop {
        let mut end = None;
        while joined.len() < PIECE && end.is_none() {
            match soon(&mut body).await {
                Soon::Piece(piece) => joined.extend_from_slice(&piece),
                Soon::Nothing => break,
                Soon::End(ended) => end = Some(ended),
            }
        }
        let piece = std::mem::take(&mut joined).freeze();
        if !piece.is_empty() && pieces.send(Ok(piece)).await.is_err() {
            return;
        }
        match end {
            None => {}
            Some(Ok(())) => return,
            // Nobody is there to hear of it any more, or it is heard.
            Some(Err(error)) => return drop(pieces.send(Err(error)).await),
        }
        let next = tokio::select! {
            next = body.frame() => next,
            () = pieces.closed() => return,
        };
        match next {
            None => return,
            Some(Ok(frame)) => joined.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return drop(pieces.send(Err(error)).await),
        }
    }
}

/// What is there now, or as soon as others have run.
enum Soon {
    Piece(Bytes),
    Nothing,
    End(Result<(), Error>),
}

async fn soon(body: &mut Body) -> Soon {
    let mut others_ran = false;
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(Some(Ok(frame))) => Poll::Ready(Soon::Piece(frame.into_data().unwrap_or_default())),
        Poll::Ready(Some(Err(error))) => Poll::Ready(Soon::End(Err(error))),
        Poll::Ready(None) => Poll::Ready(Soon::End(Ok(()))),
        Poll::Pending if others_ran => Poll::Ready(Soon::Nothing),
        Poll::Pending => {
            others_ran = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// What the job has joined.
struct Gathered {
    joined: mpsc::Receiver<Result<Bytes, Error>>,
}

impl HttpBody for Gathered {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.joined.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that has one piece at a time, each after its reader asked twice.
    fn slow(pieces: Vec<Result<Bytes, Error>>) -> Body {
        struct Slow(std::vec::IntoIter<Result<Bytes, Error>>, bool);
        impl HttpBody for Slow {
            type Data = Bytes;
            type Error = Error;

            fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
                self.1 = !self.1;
                if self.1 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(self.0.next().map(|piece| piece.map(Frame::data)))
            }
        }
        Slow(pieces.into_iter(), false).boxed_unsync()
    }

    async fn read(mut body: Body) -> Vec<Result<Bytes, Error>> {
        let mut pieces = Vec::new();
        while let Some(piece) = body.frame().await {
            pieces.push(piece.map(|frame| frame.into_data().unwrap()));
        }
        pieces
    }

    #[tokio::test]
    async fn small_pieces_are_joined_in_order_up_to_a_bound() {
        let pieces: Vec<Bytes> = (0..3000_u32).map(|number| Bytes::from(format!("{number:>40}\n"))).collect();
        let first = Bytes::from_static(b"first\n");
        let whole: Vec<u8> = [&first].into_iter().chain(&pieces).flatten().copied().collect();
        let body = gathered(&Jobs::default(), &first, slow(pieces.into_iter().map(Ok).collect()));
        let joined: Vec<Bytes> = read(body).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(joined.concat(), whole);
        assert!(joined.len() <= whole.len() / PIECE + 1, "{}", joined.len());
        assert!(joined.iter().all(|piece| piece.len() < PIECE + 64));
    }

    #[tokio::test]
    async fn a_failure_comes_after_what_was_there() {
        let failing = vec![Ok(Bytes::from_static(b"b")), Err(Error::Lost("gone".into()))];
        let pieces = read(gathered(&Jobs::default(), &Bytes::from_static(b"a"), slow(failing))).await;
        let [Ok(piece), Err(Error::Lost(_))] = &pieces[..] else { panic!("{pieces:?}") };
        assert_eq!(&piece[..], b"ab");
    }

    #[tokio::test]
    async fn the_job_ends_with_its_reader() {
        let jobs = Jobs::default();
        let (endless, body) = mpsc::channel(1);
        drop(gathered(&jobs, &Bytes::new(), Gathered { joined: body }.boxed_unsync()));
        endless.closed().await;
        assert_eq!(jobs.stop(std::time::Duration::from_secs(10)).await, 0);
    }
}
