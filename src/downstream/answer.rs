//! Answers as HTTP responses, and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use ::http::{Response, StatusCode};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::gateway::call::{Accept, Answer};
use crate::sse;
use crate::upstream::{Body, Error};

use super::headers::SESSION_ID;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, no-transform");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(super) fn response_of(answer: Answer, accept: Accept) -> Response<ResponseBody> {
    match answer {
        Answer::Accepted => empty(StatusCode::ACCEPTED),
        Answer::SessionEnded => empty(StatusCode::NO_CONTENT),
        Answer::Json { message, session } => {
            let mut response = if accept.json {
                json(StatusCode::OK, message)
            } else {
                let event = sse::write_event(None, &message);
                with_type(StatusCode::OK, EVENTS, ResponseBody::Whole(Some(event)))
            };
            if let Some(value) = session.and_then(|session| HeaderValue::from_str(&session).ok()) {
                response.headers_mut().insert(SESSION_ID, value);
            }
            response
        }
        Answer::Pieces(pieces) if accept.json => {
            with_type(StatusCode::OK, JSON, ResponseBody::Pieces(pieces.into_iter()))
        }
        Answer::Pieces(pieces) => {
            let event = sse::write_event(None, &pieces.concat());
            with_type(StatusCode::OK, EVENTS, ResponseBody::Whole(Some(event)))
        }
        Answer::JsonBody(body) => with_type(StatusCode::OK, JSON, ResponseBody::Passing(body)),
        Answer::Events(body) => {
            let mut response = with_type(StatusCode::OK, EVENTS, ResponseBody::Passing(body));
            // Proxies in front must not collect events until they are many.
            response.headers_mut().insert(CACHE_CONTROL, NO_CACHE);
            response.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
            response
        }
    }
}

pub(super) fn empty(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(None));
    *response.status_mut() = status;
    response
}

pub(super) fn with_type(status: StatusCode, content_type: HeaderValue, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(super) fn json(status: StatusCode, message: Bytes) -> Response<ResponseBody> {
    with_type(status, JSON, ResponseBody::Whole(Some(message)))
}

pub(super) fn text(status: StatusCode, message: &'static str) -> Response<ResponseBody> {
    with_type(status, TEXT, ResponseBody::Whole(Some(Bytes::from_static(message.as_bytes()))))
}

/// The body of an answer: there already, or still arriving.
pub enum ResponseBody {
    /// All of it; `None` when there is nothing (any more).
    Whole(Option<Bytes>),
    /// All of it, in pieces.
    Pieces(std::vec::IntoIter<Bytes>),
    /// As it comes.
    Passing(Body),
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Pieces(_) => "Pieces",
            Self::Passing(_) => "Passing",
        })
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut *self {
            Self::Whole(message) => Poll::Ready(message.take().map(|message| Ok(Frame::data(message)))),
            Self::Pieces(pieces) => Poll::Ready(pieces.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Passing(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(message) => message.is_none(),
            Self::Pieces(pieces) => pieces.as_slice().is_empty(),
            Self::Passing(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(message) => SizeHint::with_exact(
                message.as_ref().map_or(0, |message| u64::try_from(message.len()).unwrap_or(u64::MAX)),
            ),
            Self::Pieces(pieces) => SizeHint::with_exact(
                pieces.as_slice().iter().map(|piece| u64::try_from(piece.len()).unwrap_or(u64::MAX)).sum(),
            ),
            Self::Passing(body) => body.size_hint(),
        }
    }
}
