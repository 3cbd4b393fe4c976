//! Batches, which clients of 2025-03-26 may send: each member is a message of its own, and so are the answers.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::jsonrpc::{self, Defect, Message};
use crate::mcp::method::Method;
use crate::metrics::Asked;
use crate::sse;
use crate::tenant::Caller;
use crate::tenant::refusals::RefusedAccess;
use crate::upstream::Reply;
use crate::upstream::messages::Messages;

use super::call::{Answer, Call};
use super::counted::{is_of_access, named_in, reject_reason};
use super::params;
use super::rejection::{Kind, Rejection};
use super::relay::EventStream;
use super::{Gateway, Route};

/// More members than this are refused.
const MAX_MEMBERS: usize = 100;
/// Events that wait for a slow reader; then the members' answers wait.
const WAITING_EVENTS: usize = 64;

impl Gateway {
    /// Takes a batch (2025-03-26 basic, "Batching"; transports, "Sending Messages to the Server" 4).
    pub(super) async fn batch(self: &Arc<Self>, call: &mut Call, body: &Bytes) -> Result<Answer, Rejection> {
        let session = self.session(call)?;
        if !session.terms.version.has_batches() {
            return Err(Kind::Malformed(Defect::Batch).into());
        }
        let members = jsonrpc::split_batch(body).map_err(Kind::Malformed)?;
        if members.len() > MAX_MEMBERS {
            return Err(Kind::Unusable("A batch has at most 100 members").into());
        }
        let members: Vec<Bytes> =
            members.iter().map(|member| Bytes::copy_from_slice(member.get().as_bytes())).collect();
        let (requests, others): (Vec<Bytes>, Vec<Bytes>) =
            members.into_iter().partition(|member| expects_answer(member));
        for member in others {
            self.post_member(call.member(member)).await?;
        }
        if requests.is_empty() {
            return Ok(Answer::Accepted);
        }
        let (answers, mut receiver) = mpsc::channel(WAITING_EVENTS);
        let accept = call.accept;
        let limit = call.route.max_message;
        let calls: Vec<Call> = requests.into_iter().map(|member| call.member(member)).collect();
        let gateway = Arc::clone(self);
        self.jobs.spawn("batch", async move {
            let mut running: FuturesUnordered<_> =
                calls.into_iter().map(|call| gateway.answer_member(call, limit, answers.clone())).collect();
            drop(answers);
            while running.next().await.is_some() {}
        });
        if accept.events {
            let (events, stream) = mpsc::channel(WAITING_EVENTS);
            self.jobs.spawn("batch events", async move {
                while let Some(message) = receiver.recv().await {
                    if events.send(sse::write_event(None, &message)).await.is_err() {
                        // The members' answers are read to their end all the same.
                        while receiver.recv().await.is_some() {}
                    }
                }
            });
            return Ok(Answer::Events(
                EventStream::new(stream, pending(), self.keep_alive, Arc::default(), Box::new(())).boxed_unsync(),
            ));
        }
        let mut all = Vec::new();
        while let Some(message) = receiver.recv().await {
            if matches!(Message::parse(&message), Ok(Message::Response { .. })) {
                all.push(String::from_utf8_lossy(&message).into_owned());
            }
        }
        Ok(Answer::json(Bytes::from(format!("[{}]", all.join(",")))))
    }

    /// Runs one request of a batch and hands on every message of its answer.
    async fn answer_member(self: &Arc<Self>, call: Call, limit: usize, answers: mpsc::Sender<Bytes>) {
        let id = match Message::parse(&call.body) {
            Ok(Message::Request { id, .. }) => Some(id),
            _ => None,
        };
        let who = (call.peer, Arc::clone(&call.caller), Arc::clone(&call.route));
        let answer = match Box::pin(self.post_member(call)).await {
            Ok(answer) => answer,
            Err(rejection) => {
                self.member_refused(who, &rejection.kind);
                drop(answers.send(rejection.to_message()).await);
                return;
            }
        };
        let reply = match answer {
            Answer::Json { message, .. } => {
                drop(answers.send(message).await);
                return;
            }
            Answer::Pieces(pieces) => {
                drop(answers.send(pieces.concat().into()).await);
                return;
            }
            Answer::Accepted | Answer::SessionEnded => return,
            Answer::JsonBody(body) => Reply::Json(body),
            Answer::Events(body) => Reply::Events(body),
        };
        let mut messages = Messages::of_reply(reply, limit);
        loop {
            let message = match messages.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return,
                Err(error) => Rejection { id: id.clone(), kind: error.into() }.to_message(),
            };
            if answers.send(message).await.is_err() {
                return;
            }
        }
    }

    /// Counts a refused member and puts it on record as what it would have been alone: the batch itself is not refused.
    fn member_refused(&self, (peer, caller, route): (Option<IpAddr>, Arc<Caller>, Arc<Route>), kind: &Kind) {
        let Some(reason) = reject_reason(kind) else { return };
        self.metrics.rejected(&caller.principal.tenant, reason);
        if !is_of_access(reason) {
            return;
        }
        let (task, tool) = named_in(kind);
        self.refusals.note(&RefusedAccess {
            principal: Some(&caller.principal),
            peer,
            route: &route.name,
            tool,
            task: &task,
            reason: reason.as_str(),
        });
    }

    async fn post_member(self: &Arc<Self>, mut call: Call) -> Result<Answer, Rejection> {
        let body = std::mem::take(&mut call.body);
        let mut asked = Asked::Unread;
        let mut params = None;
        match params::read_message(&body, &mut params) {
            // 2025-03-26 lifecycle, "Initialization": never part of a batch.
            Ok((Message::Request { id, method, .. }, _)) if Method::parse(&method) == Method::Initialize => {
                Err(Kind::Unusable("`initialize` can't be part of a batch").answering(&id))
            }
            Ok((message, id_text)) => self.message(&mut call, &body, (message, id_text, &mut params), &mut asked).await,
            Err(defect) => Err(Kind::Malformed(defect).into()),
        }
    }
}

/// Whether something comes back for a member: requests, and what is no message at all.
fn expects_answer(member: &[u8]) -> bool {
    !matches!(Message::parse(member), Ok(Message::Notification { .. } | Message::Response { .. }))
}
