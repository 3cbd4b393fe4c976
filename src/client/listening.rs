//! The session's GET stream: opened at the start, opened again when it drops.

use std::sync::Arc;

use crate::jsonrpc::Message;
use crate::upstream::Upstream;
use crate::upstream::messages::Messages;

use super::error::Error;
use super::{Inner, Resume, TRIES};

/// Listens until the session is closed or the server offers no stream.
pub(super) async fn listen(inner: Arc<Inner>) {
    let closed = inner.closed.clone();
    tokio::select! {
        biased;
        () = closed.cancelled() => {}
        () = again_and_again(&inner) => {}
    }
}

async fn again_and_again(inner: &Arc<Inner>) {
    let mut resume = Resume::default();
    while resume.tries < TRIES {
        match inner.http.listen(&inner.session, resume.after.as_deref()).await.map_err(Error::from) {
            Ok(listening) => {
                let Some(mut messages) = Messages::of_listening(listening, inner.max_message) else { return };
                read(inner, &mut messages, &mut resume).await;
            }
            Err(error) if error.is_passing() => {}
            // The place is not known any more: from now on, then.
            Err(_) if resume.after.is_some() => resume.after = None,
            Err(error) => {
                tracing::debug!(%error, "no stream for what the server says by itself");
                return;
            }
        }
        resume.tries += 1;
        tokio::time::sleep(resume.wait).await;
    }
}

async fn read(inner: &Arc<Inner>, messages: &mut Messages, resume: &mut Resume) {
    loop {
        match messages.next().await {
            Ok(Some(message)) => {
                resume.note(messages);
                match Message::parse(&message) {
                    Ok(message) => inner.take(message).await,
                    Err(error) => tracing::debug!(%error, "skipped what is no message"),
                }
            }
            Ok(None) => {
                // The server may close a stream at any time; that is no failure.
                resume.note(messages);
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "the stream dropped");
                resume.see(messages);
                return;
            }
        }
    }
}
