//! The front that modern clients see where a call must be held: translated for servers with sessions, or made a task when it
//! takes long.
//!
//! A job owns the call with the upstream; the client's connection only waits for what comes of it. A client that goes away
//! before it has its answer, or the task's handle, has cancelled (2026-07-28 transports, "Cancellation").

mod again;
mod client;
mod course;
mod job;
mod lists;
mod parking;
mod ready;
mod refusal;
pub(super) mod state;
mod talk;
mod tasks;

use std::sync::Arc;

use http::HeaderMap;
use http::header::HeaderName;

use crate::jsonrpc::{Id, Object, Raw, string_value};
use crate::mcp::capabilities::{ClientCapabilities, for_upstream};
use crate::mcp::envelope::{Envelope, GATEWAY_INFO};
use crate::mcp::input;
use crate::mcp::level::Level;
use crate::mcp::method::Method;
use crate::mcp::project;
use crate::mcp::version::ProtocolVersion;

use super::access::tool_name;
use super::call::{Answer, Call};
use super::eras::Side;
use super::ladder::needs_task;
use super::modern::TasksOf;
use super::policy::{Support, TaskPolicy};
use super::pool::SessionPolicy;
use super::rejection::{Fault, Kind};
use super::{Gateway, Request, modern};

use client::{Client, Waiting};
use course::{Asked, Course, course};
use job::{Job, What};
use lists::{List, listed};
use state::Binding;

pub(super) use lists::listed_at;
pub(super) use parking::{Parking, parked_at};
pub(super) use ready::ask;
pub(super) use refusal::refusal;

impl Gateway {
    /// Answers a request of a modern client whose upstream has sessions, or whose call may become a task.
    pub(super) async fn fronted(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        side: Side,
    ) -> Result<Answer, Kind> {
        if side == Side::Legacy
            && let Some(state) = request.params.request_state
        {
            return self.retried(call, request, envelope, state).await;
        }
        check_wishes(envelope)?;
        let (client, waiting) = Client::new(self, call, request, envelope);
        let job = self.job_of(call, request, envelope, side)?;
        self.jobs.spawn("modern call", self.calls.track_future(job.run(client)));
        answered(waiting).await
    }

    /// Goes on with a call that has asked its client.
    async fn retried(
        self: &Arc<Self>,
        call: &Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        state: Raw<'_>,
    ) -> Result<Answer, Kind> {
        check_wishes(envelope)?;
        let claim = self.check_retry(call, request, state.get())?;
        let (client, waiting) = Client::new(self, call, request, envelope);
        self.claim(claim, client, envelope.has_tasks)?;
        answered(waiting).await
    }

    /// What is to be done, as far as it is known before anything is sent.
    fn job_of(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        side: Side,
    ) -> Result<Job, Kind> {
        let route = Arc::clone(&call.route);
        // Whether it may be called was asked before.
        let tool = if request.method == Method::ToolsCall { Some(tool_name(request)?) } else { None };
        let policy = tool.as_deref().map_or(&route.tools.otherwise, |tool| route.tools.of(tool)).clone();
        let asked = Asked {
            declares_tasks: envelope.has_tasks,
            is_modern: side != Side::Legacy,
            has_answers: request.params.input_responses.is_some(),
        };
        let course = if tool.is_some() && !route.native { course(&policy, asked) } else { Course::Plain };
        if course == Course::Refused {
            return Err(needs_task());
        }
        let headers = std::mem::take(&mut call.headers);
        let headers = if side == Side::Legacy { without_mirrors(headers) } else { headers };
        let mut params = match &side {
            Side::Legacy => params_for_legacy(request)?,
            Side::Modern(_) => self.params_for_modern(call, request, envelope)?,
        };
        let what = match (request.method, listed(request.method)) {
            (Method::Discover, _) => What::Discovery,
            (_, Some(member)) => {
                let position = (&mut params, request.params.cursor);
                What::List(List::begin(self, member, &request.name, call.caller.principal.digest(), position)?)
            }
            (_, None) => What::Call,
        };
        let may_ask = input::may_ask(&request.name);
        // One session for all that a caller does is one profile's, whatever the method.
        let is_one = route.sessions == SessionPolicy::Pinned;
        // Servers leave tools out of the list that their client could not answer the questions of.
        let is_of_tools = request.method == Method::ToolsList;
        let profile = if may_ask || is_one || is_of_tools { envelope.client } else { ClientCapabilities::default() };
        Ok(Job {
            gateway: Arc::clone(self),
            caller: Arc::clone(&call.caller),
            method: request.name.as_ref().into(),
            tool: tool.map(Into::into),
            side,
            params,
            wants_progress: envelope.progress_token.is_some(),
            headers,
            claims: claims_of(envelope),
            log_level: envelope.log_level.as_deref().map(Into::into),
            profile,
            may_ask,
            what,
            policy,
            course,
            route,
        })
    }

    /// `params` for a server of the same era: without what it must not see, and with its own state in place of what the
    /// client keeps of it.
    fn params_for_modern(&self, call: &Call, request: &Request<'_>, envelope: &Envelope<'_>) -> Result<String, Kind> {
        let whole = request.params.whole.map_or("{}", Raw::get);
        let state = self.brought_state(&Binding::of(call), request)?;
        Ok(modern::params_for_upstream(request, envelope, state).unwrap_or_else(|| whole.to_owned()))
    }
}

/// What a request may ask to be told (2026-07-28 logging, "Per-request Log Level"; progress, "Progress Flow").
fn check_wishes(envelope: &Envelope<'_>) -> Result<(), Kind> {
    if envelope.log_level.as_deref().is_some_and(|level| Level::parse(level).is_none()) {
        return Err(Kind::Params("`io.modelcontextprotocol/logLevel` must be one of the eight levels"));
    }
    if envelope.progress_token.is_some_and(|token| Id::from_json(token).is_err()) {
        return Err(Kind::Params("`progressToken` must be a string or an integer of at most 1024 bytes"));
    }
    Ok(())
}

/// Header fields without those that repeat the body for readers of this era.
fn without_mirrors(mut headers: HeaderMap) -> HeaderMap {
    let is_mirror = |name: &&HeaderName| name.as_str().starts_with("mcp-");
    let mirrors: Vec<HeaderName> = headers.keys().filter(is_mirror).cloned().collect();
    for name in mirrors {
        headers.remove(name);
    }
    headers
}

/// What a request says of its client, without what no upstream is told.
fn claims_of(envelope: &Envelope<'_>) -> (Box<str>, Box<str>) {
    let capabilities = for_upstream(envelope.capabilities, ProtocolVersion::LATEST_MODERN);
    let capabilities = capabilities.unwrap_or_else(|_| "{}".to_owned());
    (capabilities.into(), envelope.client_info.unwrap_or(GATEWAY_INFO).into())
}

/// Whether a call may become a task, so that somebody must be there who can make it one.
pub(super) fn may_be_task(policy: &TaskPolicy, envelope: &Envelope<'_>) -> bool {
    envelope.has_tasks && policy.support != Support::Forbidden
}

/// `params` for a server of the other era.
fn params_for_legacy(request: &Request<'_>) -> Result<String, Kind> {
    let whole = request.params.whole.map_or("{}", Raw::get);
    let params = project::params_for_legacy(whole).ok_or(Kind::Params("`params` must be an object"))?;
    let mut params = Object::parse(&params).map_err(|_| Kind::Params("`params` must be an object"))?;
    // The client's own token means nothing on this hop.
    if let Some(meta) = params.get("_meta").map(str::to_owned) {
        let mut meta = Object::parse(&meta).unwrap_or_default();
        meta.remove("progressToken");
        if meta.is_empty() {
            params.remove("_meta");
        } else {
            params.set("_meta", meta.to_json());
        }
    }
    Ok(params.to_json())
}

/// What comes of a call. A job that ends without a word was stopped.
async fn answered(waiting: Waiting) -> Result<Answer, Kind> {
    waiting.await.unwrap_or_else(|_| Err(Fault::Shutdown.into()))
}

/// The `server/discover` result of a server with sessions, out of what it said in its handshake (2026-07-28 discovery).
fn discovered(welcome: &str, native: bool) -> Option<String> {
    let welcome = Object::parse(welcome).ok()?;
    let mut result = Object::default();
    result.set("supportedVersions", "[]");
    result.set("capabilities", welcome.get("capabilities").unwrap_or("{}"));
    if let Some(instructions) = welcome.get("instructions").filter(|text| string_value(text).is_some()) {
        result.set("instructions", instructions);
    }
    let tasks = if native { TasksOf::Nobody } else { TasksOf::Gateway };
    let result = modern::discovered(&result.to_json(), tasks)?;
    project::result_for_modern("server/discover", &result, welcome.get("serverInfo"))
}

/// Whether a server of that version knows the `context` of `completion/complete`.
fn without_context(params: &str, version: ProtocolVersion) -> Option<String> {
    if version.has_completion_context() {
        return None;
    }
    let mut params = Object::parse(params).ok()?;
    params.get("context")?;
    Some(params.remove("context").to_json())
}
