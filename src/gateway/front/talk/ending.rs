//! What comes of the upstream's answer.

use bytes::Bytes;
use http::StatusCode;

use crate::gateway::exchange::End;
use crate::gateway::front::lists::Page;
use crate::gateway::front::{
    job::{Job, What},
    state::Binding,
};
use crate::gateway::held::is_error_object;
use crate::gateway::modern;
use crate::gateway::pool::Lease;
use crate::gateway::rejection::{Fault, Kind};
use crate::jsonrpc::{Message, Object, Outcome, code};
use crate::mcp::input::{ResultType, is_typed};
use crate::mcp::project;

use super::{Step, Talk};

/// What servers in the field say, beside -32600, to a request that lacks the session which they want.
const SESSION_WANTED: i64 = -32000;

impl Talk<'_> {
    /// The call is over upstream.
    pub(super) fn ended(&mut self, end: End) -> Step {
        self.exchange = None;
        self.asked.clear();
        match end {
            End::Answered(message) => self.answered(&message),
            End::Refused { status, error } => {
                if let Some(lease) = self.lease.as_mut().filter(|_| status == StatusCode::BAD_REQUEST) {
                    match project::code_of(&error) {
                        Some(code::INVALID_REQUEST | SESSION_WANTED) => lease.doubt(),
                        // So says a server that has changed its era meanwhile and misses the claims of the other: a new
                        // greeting tells. Of one that has not, it is nothing but another greeting.
                        Some(code::INVALID_PARAMS) => lease.spoil(),
                        _ => {}
                    }
                }
                self.failed(status, &error)
            }
            End::SessionGone => self.session_gone(),
            End::Denied(denied) => Step::Answer(Err(Kind::Denied(denied))),
            End::Fault(fault) => Step::Answer(Err(fault.into())),
        }
    }

    /// It ran nothing. A list that was half read can't be gone on with elsewhere.
    fn session_gone(&mut self) -> Step {
        self.job.gateway.end_session(&self.job.route, &self.session);
        self.job.gateway.pool.forget_idle(&self.job.route);
        match &self.job.what {
            What::List(list) if !list.may_begin_anew() => Step::Answer(Err(Fault::UpstreamUnreachable.into())),
            _ => Step::SessionGone,
        }
    }

    fn answered(&mut self, message: &Bytes) -> Step {
        let Ok(Message::Response { outcome, .. }) = Message::parse(message) else {
            return Step::Answer(Err(Fault::UpstreamProtocol.into()));
        };
        match outcome {
            Outcome::Error(error) => self.failed(StatusCode::OK, error.get()),
            Outcome::Result(result) => match self.returned(result.get()) {
                Ok(step) => step,
                Err(kind) => Step::Answer(Err(kind)),
            },
        }
    }

    /// The upstream answered with an error.
    fn failed(&mut self, status: StatusCode, error: &str) -> Step {
        if !is_error_object(error) {
            return Step::Answer(Err(Fault::UpstreamProtocol.into()));
        }
        // Of a client that can have URLs visited it would have been asked.
        if self.is_legacy() && self.job.may_ask && !self.job.profile.url && project::url_elicitations(error).is_some() {
            return Step::Answer(Err(Kind::MissingCapability {
                required: r#"{"elicitation":{"url":{}}}"#.into(),
                message: "The server needs its user to visit a URL, which this client can't have done",
            }));
        }
        let kind = Kind::Upstream { status, error: error.into() };
        Step::Answer(Err(match (self.is_legacy(), project::code_of(error)) {
            (false, _) => modern::of_stateless(kind),
            (true, Some(code::METHOD_NOT_FOUND)) if self.job.tool.is_none() => Kind::UpstreamNoMethod(error.into()),
            (true, _) => Kind::Upstream { status, error: project::error_for_modern(error).into() },
        }))
    }

    /// The upstream answered with a result.
    fn returned(&mut self, result: &str) -> Result<Step, Kind> {
        if !self.is_legacy() {
            return self.returned_modern(result);
        }
        if self.job.tool.is_some() && is_handle(result) {
            tracing::warn!("the upstream made a task, though no request asked for one");
            return Err(Fault::UpstreamProtocol.into());
        }
        let page;
        let mut result = result;
        if let What::List(list) = &mut self.job.what {
            let is_kept = self.lease.as_ref().is_some_and(Lease::is_kept);
            let read = (result, &*self.job.params, self.job.route.max_message);
            match list.take(&self.job.gateway, self.session.number, is_kept, read)? {
                Page::More(params) => {
                    self.job.params = params;
                    return Ok(Step::Again);
                }
                Page::Last(whole) => page = whole,
            }
            result = &page;
        }
        let Job { route, caller, method, .. } = &*self.job;
        let permitted = (**method == *"tools/list").then(|| route.only_shown(caller, result)).transpose()?;
        let result = permitted.flatten().unwrap_or_else(|| result.to_owned());
        let projected = project::result_for_modern(&self.job.method, &result, self.server_info().as_deref());
        Ok(Step::Answer(Ok(projected.ok_or(Fault::UpstreamProtocol)?)))
    }

    fn returned_modern(&self, result: &str) -> Result<Step, Kind> {
        match ResultType::of(result) {
            ResultType::Complete if is_typed(result) => Ok(Step::Answer(Ok(result.to_owned()))),
            // A server of the other era has executed it: what it says stands (2026-07-28 basic, "Result").
            ResultType::Complete => {
                let projected = project::result_for_modern(&self.job.method, result, None);
                Ok(Step::Answer(Ok(projected.ok_or(Fault::UpstreamProtocol)?)))
            }
            ResultType::InputRequired if self.job.may_ask => {
                let mut asking = Object::parse(result).map_err(|_| Fault::UpstreamProtocol)?;
                if let Some(state) = asking.get("requestState").map(str::to_owned) {
                    asking.set(
                        "requestState",
                        Binding::of_terms(&self.session.terms).wrap(&self.job.gateway.sealer, &state),
                    );
                }
                Ok(Step::Answer(Ok(asking.to_json())))
            }
            ResultType::InputRequired | ResultType::Task | ResultType::Unknown => {
                tracing::warn!("the upstream answered with a result of a type that was not negotiated");
                Err(Fault::UpstreamProtocol.into())
            }
        }
    }

    /// Who the server says that it is.
    pub(super) fn server_info(&self) -> Option<String> {
        let welcome = Object::parse(self.lease.as_ref()?.welcome()).ok()?;
        welcome.get("serverInfo").filter(|info| info.starts_with('{')).map(str::to_owned)
    }
}

/// Whether a result is a task's handle of the core dialect.
fn is_handle(result: &str) -> bool {
    result.contains("\"task\"")
        && Object::parse(result).is_ok_and(|result| result.get("task").is_some() && result.get("content").is_none())
}
