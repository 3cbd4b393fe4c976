//! `initialize`: each hop agrees on a version of its own, and the client gets a session that ties the two together.

use std::sync::Arc;

use http::HeaderMap;

use crate::jsonrpc::{self, Object, Raw, raw_string, string_value};
use crate::mcp::capabilities::{ClientCapabilities, TaskCapability, for_client, for_native_upstream, for_upstream};
use crate::mcp::envelope::GATEWAY_INFO;
use crate::mcp::version::ProtocolVersion;
use crate::oauth::secret::SubjectToken;
use crate::tenant::Principal;
use crate::upstream::{Error, Opened};

use super::call::{Answer, Call};
use super::eras::Side;
use super::rejection::{Chain, Fault, Kind, QUOTA_RETRY};
use super::session::{NoRoom, Room, Session, Terms};
use super::{Gateway, Request, Route, bridge};

impl Gateway {
    /// Opens a session.
    pub(super) async fn initialize(self: &Arc<Self>, call: &mut Call, request: &Request<'_>) -> Result<Answer, Kind> {
        if call.session.is_some() {
            return Err(Kind::Unusable(
                "This session is initialized already; a new one is asked for without MCP-Session-Id",
            ));
        }
        if self.is_draining() {
            return Err(Fault::Shutdown.into());
        }
        let wrong = |message| move |_| Kind::Params(message);
        let params = request.params.whole.map_or("{}", Raw::get);
        let params = Object::parse(params).map_err(wrong("`params` must be an object"))?;
        let requested = request.params.protocol_version.and_then(|version| string_value(version.get()));
        let requested = requested.ok_or(Kind::Params("`protocolVersion` must be a string"))?;
        let capabilities = params.get("capabilities").unwrap_or("{}").to_owned();
        let client = ClientCapabilities::read(&capabilities).map_err(wrong("`capabilities` must be an object"))?;
        // 2025-11-25 lifecycle, "Version Negotiation": the same version if it is spoken, else the latest.
        let version = ProtocolVersion::parse_legacy(&requested).unwrap_or(ProtocolVersion::LATEST_LEGACY);
        let offer = Offer { params: params.to_json(), capabilities, version, native: call.route.native };
        let room = self.room_for(&call.caller.principal).map_err(|no_room| refusal(&no_room))?;
        // A client that goes away must not leave an upstream session that nobody knows.
        let (gateway, route, principal) =
            (Arc::clone(self), Arc::clone(&call.route), Arc::clone(&call.caller.principal));
        let headers = std::mem::take(&mut call.headers);
        let opening = self.jobs.spawn("initialize", async move {
            let opened = gateway.open_either(&route, &principal.digest(), &offer, headers).await?;
            let adds_tasks = version.has_tasks() && !route.native;
            let tasks = adds_tasks.then_some(TaskCapability { list: principal.authenticated });
            let upstream = opened.session;
            let is_bridged = !upstream.version.has_sessions();
            let welcome = match (is_bridged, route.native) {
                (true, _) => bridge::welcome,
                (false, true) => result_of_native,
                (false, false) => result_for_client,
            };
            let result = match welcome(&opened.result, version, tasks) {
                Ok(result) => result,
                Err(kind) => {
                    route.upstream.close(&upstream).await;
                    return Err(kind);
                }
            };
            let terms = Terms {
                route: Arc::clone(&route.name),
                principal: principal.digest(),
                version,
                upstream: upstream.clone(),
                client: if is_bridged { bridge::askable(&offer.capabilities, version) } else { client },
            };
            match gateway.sessions.create(room, terms, &route.metrics) {
                Ok(session) => {
                    if is_bridged {
                        bridge::begin(&session, &offer.params, &opened.result);
                    }
                    Ok((session, result))
                }
                Err(no_room) => {
                    route.upstream.close(&upstream).await;
                    Err(refusal(&no_room))
                }
            }
        });
        let (session, result): (Arc<Session>, String) = opening.await.map_err(|_| Fault::Shutdown)??;
        Ok(Answer::Json { message: jsonrpc::response(&request.id, &result), session: Some(Arc::clone(&session.token)) })
    }
}

impl Gateway {
    /// Room for a client's session: those that are only kept for later calls make way for it.
    fn room_for(&self, principal: &Principal) -> Result<Room, NoRoom> {
        loop {
            match self.sessions.reserve(Some(principal)) {
                Err(NoRoom::Full(_)) if self.pool.evict() => {}
                reserved => return reserved,
            }
        }
    }
}

fn refusal(no_room: &NoRoom) -> Kind {
    match no_room {
        NoRoom::Full(max) | NoRoom::Share(max) => {
            let limit = u64::try_from(*max).unwrap_or(u64::MAX);
            Kind::Quota { reason: "sessions", limit, retry_after: QUOTA_RETRY }
        }
        NoRoom::TooLong => {
            tracing::warn!("the upstream's session id is too long to be carried");
            Fault::UpstreamProtocol.into()
        }
    }
}

/// What the client asked for, or the gateway itself.
pub(super) struct Offer {
    params: String,
    capabilities: String,
    version: ProtocolVersion,
    /// The upstream does tasks itself, and so may see the client's word on them.
    native: bool,
}

impl Offer {
    /// The gateway's own, for sessions that serve requests of many clients: their names don't tell whose it is.
    pub(super) fn of_gateway(profile: ClientCapabilities) -> Self {
        let (capabilities, version) = (profile.to_json(), ProtocolVersion::LATEST_LEGACY);
        let params = format!(
            "{{\"protocolVersion\":\"{version}\",\"capabilities\":{capabilities},\"clientInfo\":{GATEWAY_INFO}}}"
        );
        Self { params, capabilities, version, native: false }
    }

    /// `params` for the upstream, at a version: what that version can't carry is left out.
    fn at(&self, version: ProtocolVersion) -> Option<(String, String)> {
        let seen = if self.native { for_native_upstream } else { for_upstream };
        let capabilities = seen(&self.capabilities, version).ok()?;
        let mut params = Object::parse(&self.params).ok()?;
        params.set("protocolVersion", raw_string(version.as_str())).set("capabilities", capabilities.clone());
        Some((params.to_json(), capabilities))
    }
}

/// Why no session was opened.
enum Failure {
    Upstream(Error),
    Gateway(Kind),
}

impl From<Failure> for Kind {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Upstream(error) => of_opening(error),
            Failure::Gateway(kind) => kind,
        }
    }
}

impl Gateway {
    /// Opens the upstream's session; of a server that turns out to have none, what it says of itself instead.
    async fn open_either(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &[u8; 16],
        offer: &Offer,
        headers: HeaderMap,
    ) -> Result<Opened, Kind> {
        let subject = route.subject_of(principal);
        let session = match self.side_of_handshake(route, subject.as_ref()) {
            Side::Modern(session) => session,
            Side::Legacy => match opened(route, offer, headers, subject.as_ref()).await {
                Ok(opened) => {
                    route.eras.welcomed(&opened.result);
                    return Ok(opened);
                }
                Err(Failure::Upstream(error)) => match self.legacy_refused(route, subject.as_ref(), &error).await {
                    Some(Side::Modern(session)) => session,
                    Some(Side::Legacy) | None => return Err(of_opening(error)),
                },
                Err(Failure::Gateway(kind)) => return Err(kind),
            },
        };
        let discovered = self.discovered(route, subject.as_ref()).await?;
        let result = discovered.result.clone().ok_or(Fault::UpstreamProtocol)?;
        Ok(Opened { session, result })
    }

    /// Opens a session of the upstream's for clients that have none.
    ///
    /// # Errors
    /// [`Kind::OtherEra`] where the upstream turns out to have no sessions.
    pub(super) async fn open_for_stateless(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &[u8; 16],
        offer: &Offer,
        headers: HeaderMap,
    ) -> Result<Opened, Kind> {
        let subject = route.subject_of(principal);
        match opened(route, offer, headers, subject.as_ref()).await {
            Err(Failure::Upstream(error)) => match self.legacy_refused(route, subject.as_ref(), &error).await {
                Some(_) => Err(Kind::OtherEra),
                None => Err(of_opening(error)),
            },
            other => {
                let opened = other?;
                route.eras.welcomed(&opened.result);
                Ok(opened)
            }
        }
    }
}

/// Opens the upstream's session. A server that chooses an older version has by then been told capabilities in a form
/// that it may misread (a client that takes only URLs looks like one that takes forms): it is asked once more.
async fn opened(
    route: &Route,
    offer: &Offer,
    headers: HeaderMap,
    subject: Option<&Arc<SubjectToken>>,
) -> Result<Opened, Failure> {
    let unusable = || Failure::Gateway(Kind::Params("`params` must be an object"));
    let (params, told) = offer.at(offer.version).ok_or_else(unusable)?;
    let opened = route.upstream.open(&params, headers.clone(), subject).await.map_err(Failure::Upstream)?;
    let chosen = opened.session.version;
    let (params, readable) = offer.at(chosen.min(offer.version)).ok_or_else(unusable)?;
    if readable == told {
        return Ok(opened);
    }
    route.upstream.close(&opened.session).await;
    let again = route.upstream.open(&params, headers, subject).await.map_err(Failure::Upstream)?;
    if again.session.version == chosen {
        Ok(again)
    } else {
        route.upstream.close(&again.session).await;
        tracing::warn!(%chosen, second = %again.session.version, "the upstream changed its mind about the version");
        Err(Failure::Gateway(Fault::UpstreamProtocol.into()))
    }
}

/// There is no session yet that could be gone, nor a tool that could have run.
fn of_opening(error: Error) -> Kind {
    match error {
        Error::SessionGone => Fault::UpstreamProtocol.into(),
        Error::Lost(_) => {
            tracing::warn!(error = %Chain(&error), "upstream failed");
            Fault::UpstreamUnreachable.into()
        }
        other => other.into(),
    }
}

/// The upstream's `initialize` result as the client gets it: the version of this hop, and the gateway's tasks.
fn result_for_client(result: &str, version: ProtocolVersion, tasks: Option<TaskCapability>) -> Result<String, Kind> {
    let mut result = Object::parse(result).map_err(|_| Fault::UpstreamProtocol)?;
    let capabilities =
        for_client(result.get("capabilities").unwrap_or("{}"), tasks).map_err(|_| Fault::UpstreamProtocol)?;
    result.set("protocolVersion", raw_string(version.as_str())).set("capabilities", capabilities);
    Ok(result.to_json())
}

/// The same of an upstream that does tasks itself: only the version is this hop's.
fn result_of_native(result: &str, version: ProtocolVersion, _: Option<TaskCapability>) -> Result<String, Kind> {
    let mut result = Object::parse(result).map_err(|_| Fault::UpstreamProtocol)?;
    Ok(result.set("protocolVersion", raw_string(version.as_str())).to_json())
}
