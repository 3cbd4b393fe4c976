//! The modern era on pipes: one child for the calls of everybody, since nothing that a server says depends on the pipe it
//! came through (2026-07-28 stdio, "Unexpected Termination": started again when it died; what was in flight is lost).
//!
//! Whether a server is of that era is asked of a child that may be thrown away: some servers exit at a request that comes
//! before `initialize`. One that answers is kept as the one for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use tokio::time::{Instant, timeout};

use super::table::Manners;
use super::{Child, Stdio, new_key};
use crate::jsonrpc::{Id, Message, Outcome};
use crate::mcp::probe::{self, Finding};
use crate::upstream::{Error, Kind, Outgoing, Reply};

/// The child that all calls share, while it lives.
#[derive(Debug)]
pub(super) struct Shared {
    /// Stands for it, and for those that take its place.
    pub(super) key: Arc<str>,
    child: Mutex<Option<Arc<Child>>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { key: "shared".into(), child: Mutex::default() }
    }
}

impl Shared {
    fn child(&self) -> MutexGuard<'_, Option<Arc<Child>>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The child, unless it has ended.
    fn running(&self) -> Option<Arc<Child>> {
        self.child().as_ref().filter(|child| !child.conversation.has_ended()).cloned()
    }
}

impl Stdio {
    /// Asks `server/discover`, and gives the result.
    pub(super) async fn probe(&self, params: &str) -> Result<Box<str>, Error> {
        // One that serves already can say it once more.
        if let Some(child) = self.shared.running()
            && let Ok(result) = self.discover_from(&child, params).await
        {
            return Ok(result);
        }
        self.children.backoff().admit(Instant::now()).map_err(|soon| Error::Connect(soon.into()))?;
        let child = self.start(&new_key(), Manners::Modern)?;
        // Whether this fails or its caller goes away: a child that is not kept must end.
        let unused = child.stop.clone().drop_guard();
        let result = self.discover_from(&child, params).await?;
        let mut shared = self.shared.child();
        let is_of_use = matches!(probe::of_result(&result), Finding::Modern(_));
        if is_of_use && shared.as_ref().is_none_or(|child| child.conversation.has_ended()) {
            unused.disarm();
            *shared = Some(child);
        }
        Ok(result)
    }

    async fn discover_from(&self, child: &Child, params: &str) -> Result<Box<str>, Error> {
        let id = Id::string(&format!("tg.{}", new_key()));
        let asking = child.conversation.ask(&id, "server/discover", params);
        let broken = |what: &str| Err(Error::Protocol(what.to_owned()));
        let answer = match timeout(self.config.probe_timeout, asking).await {
            Err(_elapsed) => return broken("it did not answer `server/discover`"),
            Ok(None) => return broken("it ended at `server/discover`"),
            Ok(Some(answer)) => answer,
        };
        match Message::parse(&answer) {
            Ok(Message::Response { outcome: Outcome::Result(result), .. }) => Ok(result.get().into()),
            Ok(Message::Response { outcome: Outcome::Error(error), .. }) => {
                Err(Error::Refused { status: StatusCode::OK, error: error.get().into() })
            }
            _ => broken("its answer to `server/discover` is no response"),
        }
    }

    /// Sends a message to the shared child.
    pub(super) async fn send_shared(&self, message: Outgoing) -> Result<Reply, Error> {
        if message.kind == Kind::OneWay {
            // What it speaks of is gone with the child that it was meant for.
            return match self.shared.running() {
                None => Ok(Reply::Accepted),
                Some(child) => child.conversation.send(message).await.or(Ok(Reply::Accepted)),
            };
        }
        let again =
            Outgoing { kind: message.kind.clone(), body: message.body.clone(), headers: message.headers.clone() };
        match self.shared_child()?.conversation.send(message).await {
            // It ended before it was sent anything.
            Err(Error::SessionGone) => match self.shared_child()?.conversation.send(again).await {
                Err(Error::SessionGone) => Err(Error::Connect("the server ends as soon as it is started".into())),
                other => other,
            },
            other => other,
        }
    }

    /// The shared child, started if there is none.
    fn shared_child(&self) -> Result<Arc<Child>, Error> {
        let mut shared = self.shared.child();
        if let Some(child) = shared.as_ref().filter(|child| !child.conversation.has_ended()) {
            return Ok(Arc::clone(child));
        }
        self.note_death(shared.take().as_deref());
        self.children.backoff().admit(Instant::now()).map_err(|soon| Error::Connect(soon.into()))?;
        let child = self.start(&new_key(), Manners::Modern)?;
        *shared = Some(Arc::clone(&child));
        Ok(child)
    }

    /// A child that ended before it had said anything must not be started again and again.
    fn note_death(&self, child: Option<&Child>) {
        let Some(child) = child else { return };
        let mut backoff = self.children.backoff();
        if child.conversation.has_answered() {
            backoff.worked();
        } else {
            let how = child.ending.get().map_or_else(|| "it ended".to_owned(), ToString::to_string);
            backoff.failed(Instant::now(), how);
        }
    }
}

#[cfg(test)]
mod tests;
