//! Requests of the modern era: each stands for itself, and a client that goes away has cancelled (2026-07-28 basic,
//! "Stateless"; transports, "Cancellation").

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use crate::jsonrpc::{Id, Message, Object, Outcome, Raw, code, raw_string};
use crate::mcp::RELATED_TASK;
use crate::mcp::capabilities::{ClientCapabilities, for_modern_client, for_upstream, name_tasks};
use crate::mcp::envelope::{CLIENT_CAPABILITIES, Envelope};
use crate::mcp::input::{ResultType, is_plainly_complete, is_typed};
use crate::mcp::method::Method;
use crate::mcp::project::{self, HopError};
use crate::mcp::version::ProtocolVersion;
use crate::tenant::Caller;
use crate::upstream::SessionKey;

use super::access::called_tool;
use super::call::{Answer, Call};
use super::eras::Side;
use super::forward::Manner;
use super::front::{may_be_task, state::Binding};
use super::policy::Support;
use super::rejection::{Fault, Kind};
use super::relay::{BEFORE_ID, Rewrite, Rewritten};
use super::session::{Session, Terms};
use super::{Gateway, Request, Route, ladder, schemas};

impl Gateway {
    /// The table of the modern era.
    pub(super) async fn modern_request(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let envelope = ladder::climb(call, request)?;
        match request.method {
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel if call.route.native => {
                self.native_task(call, request, &envelope).await
            }
            Method::TasksGet => self.extension_get(call, request).await,
            Method::TasksUpdate => self.extension_update(call, request).await,
            Method::TasksCancel => self.extension_cancel(call, request).await,
            Method::Listen => self.subscriptions_listen(call, request, &envelope).await,
            _ => {
                let side = self.side_of(&call.route, call.subject.as_ref()).await?;
                // For a request that has to go the other way; the ones that pass as they are do without.
                let headers = if side == Side::Legacy { call.headers.clone() } else { HeaderMap::new() };
                match self.modern_sided(call, request, &envelope, side).await {
                    Err(Kind::OtherEra) => {
                        call.headers = headers;
                        let side = self.side_of(&call.route, call.subject.as_ref()).await?;
                        // Rare: every request would have room for it.
                        Box::pin(self.modern_sided(call, request, &envelope, side)).await
                    }
                    answered => answered,
                }
            }
        }
    }

    /// A request that goes on to a server of this kind.
    async fn modern_sided(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        side: Side,
    ) -> Result<Answer, Kind> {
        match (request.method, side) {
            (Method::ToolsCall, side) => self.modern_tools_call(call, request, envelope, side).await,
            (method, Side::Modern(upstream)) => {
                let filters = method == Method::ToolsList && !call.route.shows_all_tools();
                let manner = Manner { rewrite: rewrite_of(method, call), filters, ..Manner::default() };
                self.modern_forward(call, request, envelope, upstream, manner).await
            }
            (_, Side::Legacy) => self.fronted(call, request, envelope, Side::Legacy).await,
        }
    }

    /// Passes on what is asked of a task that the upstream made. A server of the other era has none in this dialect.
    async fn native_task(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
    ) -> Result<Answer, Kind> {
        match self.side_of(&call.route, call.subject.as_ref()).await? {
            Side::Modern(upstream) => self.modern_forward(call, request, envelope, upstream, Manner::default()).await,
            Side::Legacy => Err(Kind::NoMethod),
        }
    }

    /// Calls a tool: what the route says of it is settled before the upstream hears of it.
    async fn modern_tools_call(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        side: Side,
    ) -> Result<Answer, Kind> {
        let name = called_tool(call, request)?;
        let route = Arc::clone(&call.route);
        let policy = route.tools.of(&name);
        if !route.native && policy.support == Support::Required && !envelope.has_tasks {
            return Err(ladder::needs_task());
        }
        if let Side::Modern(_) = &side {
            let arguments = request.params.arguments.map(Raw::get);
            let checked = self.check_mirrored(&route, &name, arguments, &call.headers).await;
            checked.map_err(|mismatch| Kind::HeaderMismatch(mismatch.to_string().into()))?;
        }
        match side {
            Side::Modern(upstream) if route.native || !may_be_task(policy, envelope) => {
                let manner = Manner { deadline: Some(policy.deadline), ..Manner::default() };
                self.modern_forward(call, request, envelope, upstream, manner).await
            }
            side => self.fronted(call, request, envelope, side).await,
        }
    }

    /// Passes a request on to a server of the same era.
    async fn modern_forward(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        upstream: SessionKey,
        manner: Manner,
    ) -> Result<Answer, Kind> {
        let session = self.conversation(call, upstream, envelope.client);
        let binding = request.method.may_ask().then(|| Binding::of(call));
        let state = binding.as_ref().map(|binding| self.brought_state(binding, request)).transpose()?.flatten();
        let params = if call.route.native {
            state.and_then(|state| with_state(request, state))
        } else {
            params_for_upstream(request, envelope, state)
        };
        let checks = Checks {
            gateway: Arc::clone(self),
            route: Arc::clone(&call.route),
            method: request.method,
            binding,
            inner: manner.rewrite,
        };
        let keeps_complete = checks.inner.is_none();
        let rewrite: Rewrite = Arc::new(move |outcome| checks.look(outcome));
        let manner = Manner { rewrite: Some(rewrite), keeps_complete, params, ..manner };
        let route = Arc::clone(&call.route);
        let answered = self.forward(call, session, request, manner).await;
        if matches!(&answered, Err(Kind::Upstream { error, .. }) if is_header_mismatch(error)) {
            route.schemas.forget();
        }
        answered.and_then(|answer| with_its_status(answer, &request.id)).map_err(of_stateless)
    }

    /// The upstream's state that a client brings back, as the upstream gave it.
    pub(super) fn brought_state(&self, binding: &Binding, request: &Request<'_>) -> Result<Option<String>, Kind> {
        let Some(state) = request.params.request_state else { return Ok(None) };
        let state = binding.unwrap(&self.sealer, state.get());
        state
            .map(Some)
            .ok_or(Kind::Params("`requestState` is not one that was given to this caller here, or it has expired"))
    }

    /// A conversation for one request of a modern client.
    fn conversation(&self, call: &Call, upstream: SessionKey, client: ClientCapabilities) -> Arc<Session> {
        let terms = Terms {
            route: Arc::clone(&call.route.name),
            principal: call.caller.principal.digest(),
            version: ProtocolVersion::LATEST_MODERN,
            upstream,
            client,
        };
        self.sessions.passing(terms)
    }
}

/// `params` as a server without tasks may see them; `None` where nothing has to change.
pub(super) fn params_for_upstream(
    request: &Request<'_>,
    envelope: &Envelope<'_>,
    state: Option<String>,
) -> Option<String> {
    // The capability of the core dialect means nothing here, but is there to be seen.
    if !name_tasks(envelope.capabilities) && !request.params.speaks_of_tasks() && state.is_none() {
        return None;
    }
    let mut params = Object::parse(request.params.whole?.get()).ok()?;
    params.remove("task");
    if let Some(state) = state {
        params.set("requestState", state);
    }
    let meta = params.get("_meta")?.to_owned();
    let mut meta = Object::parse(&meta).ok()?;
    meta.set(CLIENT_CAPABILITIES, for_upstream(envelope.capabilities, ProtocolVersion::LATEST_MODERN).ok()?);
    meta.remove(RELATED_TASK);
    Some(params.set("_meta", meta.to_json()).to_json())
}

/// `params` with the upstream's own state in place of what its client keeps of it, and nothing else changed.
fn with_state(request: &Request<'_>, state: String) -> Option<String> {
    let mut params = Object::parse(request.params.whole?.get()).ok()?;
    Some(params.set("requestState", state).to_json())
}

/// Changes a `result`, or says why it can't pass.
type Change = fn(&str, &Route, &Arc<Caller>) -> Result<Option<String>, Fault>;

/// What is changed in a server's answer to a method, beside what is checked in all.
fn rewrite_of(method: Method, call: &Call) -> Option<Rewrite> {
    let (route, caller) = (Arc::clone(&call.route), Arc::clone(&call.caller));
    let change: Change = match method {
        Method::Discover => |result, route, _| {
            route.eras.introduced(result);
            Ok(discovered(result, if route.native { TasksOf::Upstream } else { TasksOf::Gateway }))
        },
        Method::ToolsList => permitted_tools,
        _ => return None,
    };
    Some(Arc::new(move |outcome| match outcome {
        Outcome::Result(result) => match change(result.get(), &route, &caller) {
            Ok(changed) => changed.map_or(Rewritten::Same, Rewritten::Result),
            Err(fault) => Rewritten::fault(fault),
        },
        Outcome::Error(_) => Rewritten::Same,
    }))
}

/// Whose tasks a modern client is told of.
#[derive(Clone, Copy)]
pub(super) enum TasksOf {
    Gateway,
    Upstream,
    /// The upstream's are of the other dialect.
    Nobody,
}

/// A server's `DiscoverResult` as the gateway's own: its versions, and its tasks where there are tools.
pub(super) fn discovered(result: &str, tasks: TasksOf) -> Option<String> {
    let mut result = Object::parse(result).ok()?;
    let capabilities = result.get("capabilities").unwrap_or("{}");
    let capabilities = match tasks {
        TasksOf::Gateway => for_modern_client(capabilities, true).ok()?,
        TasksOf::Nobody => for_modern_client(capabilities, false).ok()?,
        TasksOf::Upstream => capabilities.to_owned(),
    };
    let versions = format!("[{}]", raw_string(ProtocolVersion::LATEST_MODERN.as_str()));
    Some(result.set("supportedVersions", versions).set("capabilities", capabilities).to_json())
}

/// A page of tools without those that the caller may not know of and those whose annotations are not valid; `None` when it
/// can pass as it is. What was filtered may not be kept for others (2026-07-28 caching, "Cache Scope"), and neither may what
/// others would see filtered.
///
/// # Errors
/// Something is to be left out of what can't be read.
fn permitted_tools(result: &str, route: &Route, caller: &Arc<Caller>) -> Result<Option<String>, Fault> {
    let valid = schemas::without_invalid(result);
    let shown = route.only_shown(caller, valid.as_deref().unwrap_or(result))?;
    let shown = match shown.or(valid) {
        Some(shown) => shown,
        None if route.rules.is_empty() => return Ok(None),
        None => result.to_owned(),
    };
    let mut shown = Object::parse(&shown).map_err(|_| Fault::UpstreamProtocol)?;
    Ok(Some(shown.set("ttlMs", "0").set("cacheScope", "\"private\"").to_json()))
}

/// What is looked at in every answer of a server of the same era.
struct Checks {
    gateway: Arc<Gateway>,
    route: Arc<Route>,
    method: Method,
    /// Of methods that may answer with questions.
    binding: Option<Binding>,
    /// What is changed for this method alone.
    inner: Option<Rewrite>,
}

impl Checks {
    fn look(&self, outcome: &Outcome<'_>) -> Rewritten {
        match outcome {
            Outcome::Error(error) => {
                if is_header_mismatch(error.get()) {
                    self.route.schemas.forget();
                }
                match error_for_client(error.get()) {
                    Cow::Owned(error) => Rewritten::Error(error),
                    Cow::Borrowed(_) => Rewritten::Same,
                }
            }
            Outcome::Result(result) => {
                self.look_at_result(result.get(), outcome).unwrap_or_else(|| self.changed(outcome))
            }
        }
    }

    /// What the method alone makes of an outcome.
    fn changed(&self, outcome: &Outcome<'_>) -> Rewritten {
        self.inner.as_ref().map_or(Rewritten::Same, |inner| inner(outcome))
    }

    /// `None` for a result that is complete. Most are, and are known to be without being read.
    fn look_at_result(&self, result: &str, outcome: &Outcome<'_>) -> Option<Rewritten> {
        if is_plainly_complete(result.as_bytes()) {
            return None;
        }
        if !is_typed(result) {
            // A server of the other era has executed it: what it says stands (2026-07-28 basic, "Result").
            self.gateway.looked_legacy(&self.route);
            let complete = |result: &str| project::result_for_modern(self.method.as_str(), result, None);
            return Some(match self.changed(outcome) {
                Rewritten::Same => complete(result).map_or(Rewritten::Same, Rewritten::Result),
                Rewritten::Result(changed) => Rewritten::Result(complete(&changed).unwrap_or(changed)),
                refused @ Rewritten::Error(_) => refused,
            });
        }
        let broken = || Some(Rewritten::Error(Fault::UpstreamProtocol.to_error().to_json()));
        match (ResultType::of(result), &self.binding) {
            (ResultType::Complete, _) => None,
            (ResultType::InputRequired, Some(binding)) => {
                let mut round = Object::parse(result).ok()?;
                let state = round.get("requestState")?;
                let wrapped = binding.wrap(&self.gateway.sealer, state);
                Some(Rewritten::Result(round.set("requestState", wrapped).to_json()))
            }
            (ResultType::InputRequired, None) => broken(),
            (ResultType::Task, _) if self.route.native => None,
            (ResultType::Task, _) => {
                tracing::warn!("the upstream made a task, though no request declared the extension to it");
                broken()
            }
            // What this one means nobody here knows, and the client may.
            (ResultType::Unknown, _) => None,
        }
    }
}

/// A stateless server's error as its client may see it. What the client is said to lack it does lack, since that was passed
/// on; and headers that are said not to fit are its own, made from a schema that is no longer true: it can mend that.
fn error_for_client(error: &str) -> Cow<'_, str> {
    match HopError::of(error) {
        Some(HopError::MissingCapability | HopError::HeaderMismatch) => Cow::Borrowed(error),
        Some(HopError::UnsupportedVersion) | None => project::error_for_modern(error),
    }
}

fn is_header_mismatch(error: &str) -> bool {
    HopError::of(error) == Some(HopError::HeaderMismatch)
}

/// A refusal of a stateless server, with the status that the error has in this era.
pub(super) fn of_stateless(kind: Kind) -> Kind {
    match kind {
        Kind::Upstream { error, .. } if project::code_of(&error) == Some(code::METHOD_NOT_FOUND) => {
            Kind::UpstreamNoMethod(error)
        }
        Kind::Upstream { error, .. } if is_of_this_era(&error) => {
            Kind::Upstream { status: StatusCode::BAD_REQUEST, error }
        }
        Kind::Upstream { status, error } => Kind::Upstream { status, error: error_for_client(&error).into() },
        other => other,
    }
}

/// Whether an error is one that this era brought and that a client may see: over HTTP it is a 400.
fn is_of_this_era(error: &str) -> bool {
    matches!(HopError::of(error), Some(HopError::MissingCapability | HopError::HeaderMismatch))
}

/// An error becomes a refusal where it has a status of its own (2026-07-28 basic, "Error Codes"): over stdio a server
/// can't say it.
fn with_its_status(answer: Answer, id: &Id) -> Result<Answer, Kind> {
    let Answer::Json { message, .. } = &answer else { return Ok(answer) };
    let is_result = message.starts_with(b"{\"result\":")
        || message
            .strip_prefix(BEFORE_ID)
            .and_then(|rest| rest.strip_prefix(id.as_json().as_bytes()))
            .is_some_and(|rest| rest.starts_with(b",\"result\":"));
    if is_result {
        return Ok(answer);
    }
    let may_be = |code: &[u8]| memchr::memmem::find(message, code).is_some();
    if !may_be(b"-3202") && !may_be(b"-32601") {
        return Ok(answer);
    }
    let Ok(Message::Response { outcome: Outcome::Error(error), .. }) = Message::parse(message) else {
        return Ok(answer);
    };
    let error: Box<str> = error.get().into();
    let is_refusal = is_of_this_era(&error) || project::code_of(&error) == Some(code::METHOD_NOT_FOUND);
    if is_refusal { Err(Kind::Upstream { status: StatusCode::OK, error }) } else { Ok(answer) }
}
