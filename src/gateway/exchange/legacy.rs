//! What only calls with legacy upstreams need: streams that are taken up again, and a progress token in `_meta`.

use std::sync::Arc;
use std::time::Duration;

use crate::gateway::SHORTEST_PAUSE;
use crate::gateway::rejection::Fault;
use crate::jsonrpc::Object;
use crate::upstream::{Error, Listening, Reply};

use super::{End, Exchange, Sending, Source};

/// How often in a row taking up a stream again may fail.
const RESUMPTIONS: u32 = 5;
/// How long to wait before that, when the upstream does not say.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a stream that breaks off is taken up again.
#[derive(Default)]
pub(super) struct Resumption {
    failures: u32,
    /// The last event id that the upstream gave for this call.
    after: Option<String>,
    /// How long it asked to wait before that.
    retry: Option<Duration>,
}

impl Resumption {
    /// That of a stream whose last event is known.
    pub(super) fn after(event: Option<String>) -> Self {
        Self { after: event, ..Self::default() }
    }

    /// The last event id that the upstream gave for this call.
    pub(super) fn last_event_id(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// A message came.
    pub(super) fn works(&mut self) {
        self.failures = 0;
    }

    /// What comes next is no answer to the call but to an attempt to take its stream up again.
    pub(super) fn is_under_way(&self) -> bool {
        self.after.is_some()
    }
}

impl Exchange {
    /// A stream with event ids is taken up again; else nobody knows what became of the call (2025-11-25 transports,
    /// "Resumability and Redelivery").
    pub(super) fn resumed(&mut self, error: Option<Error>) -> Result<Sending, End> {
        // Whatever is wrong with the resumption says nothing of the call.
        let was_resuming = !matches!(self.source, Source::Reading(_));
        if !was_resuming && self.resumption.failures > 0 {
            // The stream was taken up again: a server may cut it as often as it likes. The deadline is the bound.
            self.resumption.failures = 0;
        }
        if self.is_modern() {
            // 2026-07-28 transports, "Receiving Messages": a broken stream loses the request.
            return Err(match error {
                Some(error) if !was_resuming => End::Fault(of_broken(&error)),
                None if self.saw_garbage => End::Fault(Fault::UpstreamProtocol),
                error => not_sent(error),
            });
        }
        if let Source::Reading(messages) = &self.source {
            self.resumption.retry = messages.retry().or(self.resumption.retry);
            self.resumption.after = messages.last_event_id().map(str::to_owned).or(self.resumption.after.take());
        } else if self.resumption.after.is_none() {
            return Err(not_sent(error));
        }
        let can_resume = matches!(error, None | Some(Error::Lost(_) | Error::Connect(_)));
        match &self.resumption.after {
            Some(last_event_id) if can_resume && self.resumption.failures < RESUMPTIONS => {
                let again = self.take_up_after(last_event_id.clone());
                self.resumption.failures += 1;
                Ok(again)
            }
            _ if matches!(error, Some(Error::TooLarge(_))) => Err(End::Fault(Fault::UpstreamTooLarge)),
            _ if matches!(error, Some(Error::Credentials(_))) => Err(End::Fault(Fault::Credentials)),
            _ if !was_resuming
                && (self.saw_garbage
                    || matches!(error, Some(Error::Protocol(_) | Error::Status(_) | Error::Denied(_)))) =>
            {
                Err(End::Fault(Fault::UpstreamProtocol))
            }
            _ => Err(End::Fault(Fault::OutcomeUnknown)),
        }
    }

    fn take_up_after(&self, last_event_id: String) -> Sending {
        let (upstream, key) = (Arc::clone(&self.route.upstream), self.route.key_of(&self.session).into_owned());
        let pause = self.resumption.retry.unwrap_or(RESUME_PAUSE) * (self.resumption.failures + 1);
        Box::pin(async move {
            tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
            match upstream.listen(&key, Some(&last_event_id)).await? {
                Listening::Events(body) => Ok(Reply::Events(body)),
                Listening::Messages(channel) => Ok(Reply::Messages(channel)),
                Listening::NotOffered => Err(Error::Protocol("it gives event ids but resumes nothing".into())),
            }
        })
    }
}

/// The call never got to where it could be resumed.
fn not_sent(error: Option<Error>) -> End {
    match error {
        Some(Error::Refused { status, error }) => End::Refused { status, error },
        Some(Error::SessionGone) => End::SessionGone,
        Some(Error::Denied(denied)) if denied.is_for_client => End::Denied(denied),
        Some(error) => End::Fault(Fault::from(&error)),
        None => End::Fault(Fault::OutcomeUnknown),
    }
}

/// What a stream that broke off says of its call.
fn of_broken(error: &Error) -> Fault {
    match error {
        Error::TooLarge(_) => Fault::UpstreamTooLarge,
        Error::Protocol(_) | Error::Status(_) | Error::Denied(_) => Fault::UpstreamProtocol,
        Error::Credentials(_) => Fault::Credentials,
        Error::Lost(_) | Error::Connect(_) | Error::SessionGone | Error::Refused { .. } => Fault::OutcomeUnknown,
    }
}

/// `params` with the call's own progress token in place of the client's.
pub(super) fn with_progress_token(params: &str, token: &str) -> String {
    let Ok(mut parsed) = Object::parse(params) else { return params.to_owned() };
    let meta = parsed.get("_meta").unwrap_or("{}").to_owned();
    let Ok(mut meta) = Object::parse(&meta) else { return params.to_owned() };
    let meta = meta.set("progressToken", token).to_json();
    parsed.set("_meta", meta).to_json()
}
