//! One request of a modern client, from when it is read to its end.

use std::sync::Arc;

use http::HeaderMap;
use tokio::time::Instant;

use crate::gateway::eras::Side;
use crate::gateway::policy::TaskPolicy;
use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::{Gateway, Route};
use crate::mcp::capabilities::ClientCapabilities;
use crate::tenant::Caller;

use super::client::Client;
use super::course::Course;
use super::lists::List;
use super::talk::{Left, Talk};

/// A request as a job has it.
pub(super) struct Job {
    pub(super) gateway: Arc<Gateway>,
    pub(super) route: Arc<Route>,
    /// Whose request it is.
    pub(super) caller: Arc<Caller>,
    pub(super) method: Box<str>,
    /// The tool that is called, if one is.
    pub(super) tool: Option<Box<str>>,
    pub(super) side: Side,
    /// `params` for the upstream, without a progress token.
    pub(super) params: String,
    /// The client wants to hear of progress.
    pub(super) wants_progress: bool,
    pub(super) headers: HeaderMap,
    /// What the request says of its client: capabilities and `Implementation`, as an upstream of its era may see them.
    pub(super) claims: (Box<str>, Box<str>),
    /// From which level on it wants log messages.
    pub(super) log_level: Option<Box<str>>,
    /// What its client can be asked.
    pub(super) profile: ClientCapabilities,
    /// Its answer may be questions.
    pub(super) may_ask: bool,
    pub(super) what: What,
    pub(super) policy: TaskPolicy,
    pub(super) course: Course,
}

/// What kind of request it is.
#[derive(Debug)]
pub(super) enum What {
    Call,
    List(List),
    Discovery,
}

/// Why a wait ended before what was waited for.
pub(super) enum Stop {
    /// The client went away.
    Gone,
    /// The gateway gives up.
    Fault(Fault),
}

impl Job {
    /// Runs it to its end.
    pub(super) async fn run(mut self, mut client: Client) {
        if self.course == Course::AtOnce {
            return self.begin_task(client).await;
        }
        let deadline = Instant::now() + self.policy.deadline;
        // A session that the upstream has forgotten is opened anew, once: it ran nothing.
        for is_last in [false, true] {
            let ready = self.get_ready(&client);
            let ready = match unless_stopped(&self.gateway, &mut client, deadline, ready).await {
                Ok(Ok(ready)) => ready,
                Ok(Err(kind)) => return client.answer(Err(kind)).await,
                Err(Stop::Gone) => return,
                Err(Stop::Fault(fault)) => return client.answer(Err(fault.into())).await,
            };
            if let What::List(list) = &self.what
                && let Err(kind) = list.check(ready.session.number)
            {
                return client.answer(Err(kind)).await;
            }
            if let What::Discovery = self.what {
                let welcome = ready.lease.as_ref().map_or("{}", Lease::welcome);
                let result = super::discovered(welcome, self.route.native).ok_or(Kind::from(Fault::UpstreamProtocol));
                let answer = result.map(|result| client.response(&result));
                return client.answer(answer).await;
            }
            match Talk::new(&mut self, ready, deadline).run(client).await {
                Left::Nothing => return,
                // Nothing but an upstream that has sessions now knows nothing of a conversation without: the request goes
                // the other way.
                Left::SessionGone(left) if self.side != Side::Legacy => return left.answer(Err(Kind::OtherEra)).await,
                Left::SessionGone(left) if is_last => {
                    return left.answer(Err(Kind::from(Fault::UpstreamUnreachable))).await;
                }
                Left::SessionGone(left) => client = left,
            }
        }
    }
}

/// Waits for something as long as its client does, and the gateway.
pub(super) async fn unless_stopped<T>(
    gateway: &Gateway,
    client: &mut Client,
    deadline: Instant,
    work: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::select! {
        done = work => Ok(done),
        () = client.gone() => Err(Stop::Gone),
        () = tokio::time::sleep_until(deadline) => Err(Stop::Fault(Fault::Deadline { started: false })),
        () = gateway.kill.cancelled() => Err(Stop::Fault(Fault::Shutdown)),
    }
}
