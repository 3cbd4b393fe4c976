//! A call whose client is asked: it waits for the retry, while the upstream waits for the answers.

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::gateway::exchange::Happening;
use crate::gateway::front::client::Client;
use crate::gateway::front::course::{self, Asked, Course};
use crate::gateway::front::job::Job;
use crate::gateway::front::parking::{Place, Retry, input_required, subject_of};
use crate::gateway::rejection::Fault;
use crate::jsonrpc::Object;
use crate::mcp::envelope::SERVER_INFO;
use crate::mcp::input::InputResponse;
use crate::task::Answer;

use super::{GONE, Talk};

impl Talk<'_> {
    /// Answers the client with what is asked, and waits until it calls again. The client of the call that goes on; `None`
    /// when there is none any more.
    pub(super) async fn ask(&mut self, mut client: Client) -> Option<Client> {
        if self.place.is_none() {
            let Job { gateway, route, caller, method, params, .. } = &*self.job;
            let principal = &caller.principal;
            match Place::take(gateway, route, principal.digest(), subject_of(&route.name, method, params)) {
                Ok(place) => self.place = Some(place),
                Err(kind) => {
                    tokio::join!(client.answer(Err(kind)), self.abandon("too many calls wait for this client"));
                    return None;
                }
            }
        }
        loop {
            let expires = self.job.gateway.clock.now().plus(self.job.policy.input_timeout);
            let (result, round) = self.round(expires)?;
            let is_taken = tokio::select! {
                is_taken = client.deliver(&result) => is_taken,
                () = tokio::time::sleep_until(self.deadline) => false,
                () = self.job.gateway.kill.cancelled() => false,
            };
            if !is_taken {
                self.abandon(GONE).await;
                return None;
            }
            let retry = match self.parked(expires).await {
                Ok(retry) => retry,
                Err(fault) => {
                    self.abandon(fault.reason()).await;
                    return None;
                }
            };
            client = retry.client;
            // Otherwise the client is asked again, or asked what came in the meantime.
            if self.take_answers(&round, &retry.answers) && self.asked.is_empty() {
                self.set_course(retry.declares_tasks);
                return Some(client);
            }
        }
    }

    /// Begins a round: the `InputRequiredResult`, and the keys in it.
    fn round(&mut self, expires: Timestamp) -> Option<(String, Vec<Box<str>>)> {
        let keys: Vec<Box<str>> = self.asked.iter().map(|question| question.key.clone()).collect();
        let asked = self.asked.iter().map(|question| (question.key.clone(), question.method.clone())).collect();
        let state = self.place.as_mut()?.ask(asked, expires);
        let requests = self.asked.iter().map(|question| (&*question.key, &*question.request));
        let result = input_required(requests, &state);
        let Some(info) = self.server_info() else { return Some((result, keys)) };
        let mut named = Object::parse(&result).ok()?;
        let named = named.set("_meta", format!("{{\"{SERVER_INFO}\":{info}}}")).to_json();
        Some((named, keys))
    }

    /// Waits for the retry. What the upstream does meanwhile is kept for it.
    async fn parked(&mut self, expires: Timestamp) -> Result<Retry, Fault> {
        let expires = self.job.gateway.clock.instant(expires);
        loop {
            let Some(place) = &mut self.place else { return Err(Fault::InputTimeout) };
            let happening = async {
                match &mut self.exchange {
                    Some(exchange) => exchange.next().await,
                    None => std::future::pending().await,
                }
            };
            let happening = tokio::select! {
                retry = place.retry() => return retry.ok_or(Fault::Shutdown),
                happening = happening => happening,
                () = tokio::time::sleep_until(expires) => return Err(Fault::InputTimeout),
                () = tokio::time::sleep_until(self.deadline) => return Err(Fault::Deadline { started: true }),
                () = self.job.gateway.kill.cancelled() => return Err(Fault::Shutdown),
            };
            match happening {
                Happening::Asked { id, method, params } => drop(self.take_question(id, method, params)),
                Happening::Withdrawn(id) => {
                    self.asked.retain(|question| question.id != id);
                }
                Happening::Ended(end) => {
                    self.exchange = None;
                    self.asked.clear();
                    self.ended = Some(end);
                }
                // Nobody listens.
                Happening::Notified { .. }
                | Happening::Undeclared { .. }
                | Happening::Settled(_)
                | Happening::Moved(_) => {}
            }
        }
    }

    /// Gives the upstream the answers to the questions of a round that it still waits for, if all of them are there.
    fn take_answers(&mut self, round: &[Box<str>], answers: &[InputResponse]) -> bool {
        let answer_to = |key: &str| answers.iter().find(|answer| *answer.key == *key).map(|answer| &answer.value);
        let is_missing = |key: &str| round.iter().any(|asked| **asked == *key) && answer_to(key).is_none();
        if self.asked.iter().any(|question| is_missing(&question.key)) {
            return false;
        }
        let Some(exchange) = &mut self.exchange else { return true };
        self.asked.retain(|question| {
            let Some(answer) = answer_to(&question.key) else { return true };
            exchange.answer(&question.id, &Answer::Result(answer.clone()));
            false
        });
        true
    }

    /// What becomes of the call from here on: its client has answered, and may declare something else than before.
    fn set_course(&mut self, declares_tasks: bool) {
        if self.job.tool.is_none() {
            return;
        }
        let asked = Asked { declares_tasks, is_modern: false, has_answers: true };
        let now = Instant::now();
        (self.due, self.on_question) = match course::course(&self.job.policy, asked) {
            Course::Open { after, on_question } => (after.map(|after| now + after), on_question),
            Course::AtOnce => (Some(now), true),
            Course::Refused | Course::Plain => (None, false),
        };
    }
}
