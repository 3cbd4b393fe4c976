//! Requests of the modern era: each stands for itself, and a client that goes away has cancelled (2026-07-28 basic,
//! "Stateless"; transports, "Cancellation").

use std::sync::Arc;

use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::envelope::Envelope;
use crate::mcp::method::Method;
use crate::mcp::version::ProtocolVersion;
use crate::upstream::SessionKey;

use super::call::{Answer, Call};
use super::eras::Side;
use super::forward::Manner;
use super::rejection::Kind;
use super::session::{Session, Terms};
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
            _ => match self.side_of(&call.route).await? {
                Side::Modern(upstream) => self.modern_forward(call, request, &envelope, upstream).await,
                Side::Legacy => Err(Kind::NoMethod),
            },
        }
    }

    /// Passes a request on to a server of the same era.
    async fn modern_forward(
        self: &Arc<Self>,
        call: &mut Call,
        request: &Request<'_>,
        envelope: &Envelope<'_>,
        upstream: SessionKey,
    ) -> Result<Answer, Kind> {
        let session = self.conversation(call, upstream, envelope.client);
        self.forward(call, session, request, Manner::default()).await
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
