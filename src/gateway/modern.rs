//! Requests of the modern era: each stands for itself, and a client that goes away has cancelled (2026-07-28 basic,
//! "Stateless"; transports, "Cancellation").

use std::sync::Arc;

use crate::jsonrpc::{Object, Outcome};
use crate::mcp::RELATED_TASK;
use crate::mcp::capabilities::{ClientCapabilities, for_upstream};
use crate::mcp::envelope::{CLIENT_CAPABILITIES, Envelope};
use crate::mcp::method::Method;
use crate::mcp::version::ProtocolVersion;
use crate::upstream::SessionKey;

use super::call::{Answer, Call};
use super::eras::Side;
use super::forward::Manner;
use super::policy::Support;
use super::rejection::{Fault, Kind};
use super::relay::{Rewrite, Rewritten};
use super::session::{Session, Terms};
use super::tools::called_tool;
use super::{Gateway, Request, ladder};

impl Gateway {
    /// The table of the modern era.
    pub(super) async fn modern_request(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
    ) -> Result<Answer, Kind> {
        let envelope = ladder::climb(call, request)?;
        match request.method {
            Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::Listen => Err(Kind::NoMethod),
            Method::ToolsCall => self.modern_tools_call(call, request, &envelope).await,
            _ => match self.side_of(&call.route).await? {
                Side::Modern(upstream) => {
                    self.modern_forward(call, request, &envelope, upstream, Manner::default()).await
                }
                Side::Legacy => Err(Kind::NoMethod),
            },
        }
    }

    /// Calls a tool: what the route says of it is settled before the upstream hears of it.
    async fn modern_tools_call(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
    ) -> Result<Answer, Kind> {
        let name = called_tool(&call.route, request)?;
        let route = Arc::clone(&call.route);
        let policy = route.tools.of(&name);
        if policy.support == Support::Required && !envelope.has_tasks {
            return Err(ladder::needs_tasks("This tool can only be called by requests that declare the extension"));
        }
        match self.side_of(&call.route).await? {
            Side::Modern(upstream) => {
                let manner = Manner { deadline: Some(policy.deadline), ..Manner::default() };
                self.modern_forward(call, request, envelope, upstream, manner).await
            }
            Side::Legacy => Err(Kind::NoMethod),
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
        let params = params_for_upstream(request, envelope);
        let manner = Manner { rewrite: Some(checked(manner.rewrite)), params, ..manner };
        self.forward(call, session, request, manner).await
    }

    /// A conversation for one request of a modern client.
    pub(super) fn conversation(&self, call: &Call, upstream: SessionKey, client: ClientCapabilities) -> Arc<Session> {
        let terms = Terms {
            route: Arc::clone(&call.route.name),
            principal: call.principal.digest(),
            version: ProtocolVersion::LATEST_MODERN,
            upstream,
            client,
        };
        self.sessions.unlisted(terms, None)
    }
}

/// `params` as a server without tasks may see them; `None` where nothing has to change.
fn params_for_upstream(request: &Request<'_>, envelope: &Envelope<'_>) -> Option<String> {
    if !envelope.has_tasks && !request.params.speaks_of_tasks() {
        return None;
    }
    let mut params = Object::parse(request.params.whole?.get()).ok()?;
    params.remove("task");
    let meta = params.get("_meta")?.to_owned();
    let mut meta = Object::parse(&meta).ok()?;
    meta.set(CLIENT_CAPABILITIES, for_upstream(envelope.capabilities, ProtocolVersion::LATEST_MODERN).ok()?);
    meta.remove(RELATED_TASK);
    Some(params.set("_meta", meta.to_json()).to_json())
}

/// What a server of the same era answers, as the client may see it.
fn checked(inner: Option<Rewrite>) -> Rewrite {
    Arc::new(move |outcome| {
        if let Outcome::Result(result) = outcome
            && is_task(result.get())
        {
            tracing::warn!("the upstream made a task, though no request declared the extension to it");
            return Rewritten::Error(Fault::UpstreamProtocol.to_error().to_json());
        }
        inner.as_ref().map_or(Rewritten::Same, |inner| inner(outcome))
    })
}

/// Whether a result is a task's handle. Most are known not to be without being read.
fn is_task(result: &str) -> bool {
    memchr::memmem::find(result.as_bytes(), b"\"task\"").is_some()
        && Object::parse(result).is_ok_and(|result| result.get("resultType") == Some("\"task\""))
}
