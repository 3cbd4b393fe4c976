//! What replicas tell each other: small messages that may be lost. Nothing depends on one that is: what must not be lost is
//! in the store, and is looked at again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::task::{Holder, Owner, SessionNumber, Task, TaskId};

use crate::gateway::{Gateway, Route};

/// A message. Holders, tasks and sessions are written as texts; a member that an older version does not know is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in crate::gateway) enum Message {
    /// A process is there.
    Alive { from: String },
    /// A session has ended.
    Ended { session: String },
    /// A session is in use.
    Seen { session: String },
    /// Who has a stream for the task?
    Who { task: String, session: String, from: String },
    /// I have one.
    Mine { task: String, to: String, from: String },
    /// I have none any more.
    NotMine { task: String, to: String, from: String },
    /// An event for that stream.
    Event { task: String, session: String, to: String, from: String, event: String },
    /// The task has questions that wait for a stream.
    Offer { task: String, session: String, owner: Box<Whose> },
    /// A question that was written to a stream is void.
    Void { task: String, session: String, number: u32, stream: u64 },
}

/// An [`Owner`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::gateway) struct Whose {
    tenant: String,
    issuer: String,
    subject: String,
    client: String,
    principal: [u8; 16],
    route: String,
}

impl From<&Owner> for Whose {
    fn from(owner: &Owner) -> Self {
        let Owner { tenant, issuer, subject, client, principal, route } = owner;
        let text = |text: &Arc<str>| text.as_ref().to_owned();
        Self {
            tenant: text(tenant),
            issuer: text(issuer),
            subject: text(subject),
            client: text(client),
            principal: *principal,
            route: text(route),
        }
    }
}

impl From<Whose> for Owner {
    fn from(whose: Whose) -> Self {
        let Whose { tenant, issuer, subject, client, principal, route } = whose;
        Self {
            tenant: tenant.into(),
            issuer: issuer.into(),
            subject: subject.into(),
            client: client.into(),
            principal,
            route: route.into(),
        }
    }
}

impl Message {
    pub(in crate::gateway) fn who(task: &Task, from: &Holder) -> Self {
        Self::Who { task: task.id.to_string(), session: number_text(task.session), from: from.to_string() }
    }

    pub(in crate::gateway) fn mine(task: TaskId, to: &Holder, from: &Holder) -> Self {
        Self::Mine { task: task.to_string(), to: to.to_string(), from: from.to_string() }
    }

    pub(in crate::gateway) fn event(
        (task, session): (TaskId, SessionNumber),
        to: &Holder,
        from: &Holder,
        event: &Bytes,
    ) -> Self {
        let event = String::from_utf8_lossy(event).into_owned();
        let (task, session) = (task.to_string(), number_text(session));
        Self::Event { task, session, to: to.to_string(), from: from.to_string(), event }
    }

    pub(in crate::gateway) fn offer(task: &Task) -> Self {
        let session = number_text(task.session);
        Self::Offer { task: task.id.to_string(), session, owner: Box::new(Whose::from(&*task.owner)) }
    }

    pub(in crate::gateway) fn void(task: &Task, number: u32, stream: u64) -> Self {
        Self::Void { task: task.id.to_string(), session: number_text(task.session), number, stream }
    }

    pub(super) fn ended(session: SessionNumber) -> Self {
        Self::Ended { session: number_text(session) }
    }

    pub(super) fn seen(session: SessionNumber) -> Self {
        Self::Seen { session: number_text(session) }
    }
}

fn number_text(session: SessionNumber) -> String {
    format!("{session:032x}")
}

fn number_of(text: &str) -> Option<SessionNumber> {
    SessionNumber::from_str_radix(text, 16).ok()
}

impl Gateway {
    /// Listens to the others and tells them what is to be told, until jobs are told to stop.
    pub async fn hear_others(self: Arc<Self>, routes: Vec<Arc<Route>>) {
        let Some(homes) = &self.homes else { return };
        let Some(mut outgoing) = self.deliveries.take_outgoing() else { return };
        let routes: HashMap<Arc<str>, Arc<Route>> =
            routes.into_iter().map(|route| (Arc::clone(&route.name), route)).collect();
        let mut incoming = homes.sharing.replicas.subscribe();
        let mut tick = tokio::time::interval(homes.sharing.lease.max(Duration::from_millis(1)));
        loop {
            tokio::select! {
                () = self.jobs.stopping().cancelled() => return,
                message = outgoing.recv() => match message {
                    Some(message) => homes.tell(&message).await,
                    None => return,
                },
                message = heard(&mut incoming) => match serde_json::from_slice(&message) {
                    Ok(message) => self.take(message, &routes).await,
                    Err(error) => tracing::debug!(%error, "a message of another replica can't be read"),
                },
                _ = tick.tick() => {
                    homes.tell(&Message::Alive { from: homes.replicas().me().to_string() }).await;
                    self.tell_seen(homes).await;
                }
            }
        }
    }

    /// Tells the homes of sessions that are used here that they are.
    async fn tell_seen(&self, homes: &super::Homes) {
        let limit = homes.sharing.lease;
        for session in self.sessions.all().into_iter().filter(|session| session.is_elsewhere()) {
            if !session.is_idle(self.clock.now(), limit) {
                homes.tell(&Message::seen(session.number)).await;
            }
        }
    }

    async fn take(self: &Arc<Self>, message: Message, routes: &HashMap<Arc<str>, Arc<Route>>) {
        let (Some(homes), Some(far)) = (&self.homes, self.deliveries.far()) else { return };
        let me = homes.replicas().me();
        match message {
            // From now on it is looked after.
            Message::Alive { from } => {
                let from = Holder::from_text(&from);
                far.note_alive(&from);
                drop(homes.cache.gone(&from));
            }
            Message::Ended { session } => {
                let Some(number) = number_of(&session) else { return };
                homes.cache.forget_home(number);
                let Some(session) = self.sessions.by_number(number) else { return };
                if session.is_elsewhere() {
                    self.sessions.forget(&session);
                } else if self.sessions.end(&session)
                    && session.live().unfinished == 0
                    && let Some(route) = routes.get(&session.terms.route)
                {
                    self.close_upstream(route, &session);
                }
            }
            Message::Seen { session } => {
                if let Some(session) = number_of(&session).and_then(|number| self.sessions.by_number(number)) {
                    session.touch(self.clock.now());
                }
            }
            Message::Who { task, session, from } => {
                let (Some(id), Some(session)) = (TaskId::parse(&task), number_of(&session)) else { return };
                if self.deliveries.has_stream_of(id, session) {
                    homes.tell(&Message::Mine { task, to: from, from: me.to_string() }).await;
                }
            }
            Message::Mine { task, to, from } if to == me.as_str() => {
                if let Some(task) = TaskId::parse(&task) {
                    far.hears(task, &Holder::from_text(&from));
                }
            }
            Message::NotMine { task, to, from } if to == me.as_str() => {
                if let Some(task) = TaskId::parse(&task) {
                    far.hears_no_more(task, &Holder::from_text(&from));
                }
            }
            Message::Event { task, session, to, from, event } if to == me.as_str() => {
                let (id, session) = (TaskId::parse(&task), number_of(&session));
                let is_heard =
                    id.zip(session).is_some_and(|(id, session)| self.deliveries.deliver(id, session, &event.into()));
                if !is_heard {
                    homes.tell(&Message::NotMine { task, to: from, from: me.to_string() }).await;
                }
            }
            Message::Mine { .. } | Message::NotMine { .. } | Message::Event { .. } => {}
            Message::Offer { task, session, owner } => {
                let (Some(id), Some(session)) = (TaskId::parse(&task), number_of(&session)) else { return };
                // Most replicas have no stream for it, and read nothing.
                if !self.deliveries.has_stream_of(id, session) {
                    return;
                }
                let owner = Owner::from(*owner);
                let gateway = Arc::clone(self);
                self.jobs.spawn("offer", async move {
                    if let Ok(Some(task)) = gateway.ledger.get(&owner, id).await {
                        gateway.deliveries.offer_here(&gateway.ledger, &task).await;
                    }
                });
            }
            Message::Void { task, session, number, stream } => {
                if let (Some(task), Some(session)) = (TaskId::parse(&task), number_of(&session)) {
                    self.deliveries.void_here(task, session, number, stream);
                }
            }
        }
    }
}

/// The next message; never, once there can be none.
async fn heard(incoming: &mut mpsc::Receiver<Bytes>) -> Bytes {
    match incoming.recv().await {
        Some(message) => message,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
