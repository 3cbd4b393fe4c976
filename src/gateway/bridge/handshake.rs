//! `initialize` of a legacy client whose server has no sessions: answered from the server's `server/discover`.

use std::sync::Arc;

use crate::jsonrpc::{Object, raw_string};
use crate::mcp::capabilities::{ClientCapabilities, TaskCapability, for_client, for_upstream};
use crate::mcp::envelope::{self, GATEWAY_INFO};
use crate::mcp::version::ProtocolVersion;

use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::Session;
use crate::gateway::{Gateway, Route};

use super::state::{Declared, Offer};

/// A server's `server/discover` result as the result of `initialize`: the version of this hop, the gateway's tasks, and
/// the server's name from where the other era has it.
pub(in crate::gateway) fn welcome(
    discovered: &str,
    version: ProtocolVersion,
    tasks: Option<TaskCapability>,
) -> Result<String, Kind> {
    let discovered = Object::parse(discovered).map_err(|_| Fault::UpstreamProtocol)?;
    let capabilities =
        for_client(discovered.get("capabilities").unwrap_or("{}"), tasks).map_err(|_| Fault::UpstreamProtocol)?;
    let meta = Object::parse(discovered.get("_meta").unwrap_or("{}")).unwrap_or_default();
    let mut result = Object::default();
    result
        .set("protocolVersion", raw_string(version.as_str()))
        .set("capabilities", capabilities)
        .set("serverInfo", server_info(meta.get(envelope::SERVER_INFO)));
    if let Some(instructions) = discovered.get("instructions").filter(|text| text.starts_with('"')) {
        result.set("instructions", instructions);
    }
    Ok(result.to_json())
}

/// Legacy clients insist on a name and a version; servers of the other era need not say them.
fn server_info(said: Option<&str>) -> &str {
    let is_whole = |info: &&str| {
        let is_text = |info: &Object<'_>, name: &str| info.get(name).is_some_and(|value| value.starts_with('"'));
        Object::parse(info).is_ok_and(|info| is_text(&info, "name") && is_text(&info, "version"))
    };
    said.filter(is_whole).unwrap_or(GATEWAY_INFO)
}

/// Notes in a new session what its client and its server said.
pub(in crate::gateway) fn begin(session: &Session, params: &str, discovered: &str) {
    let discovered = Object::parse(discovered).unwrap_or_default();
    if let Some(declared) = Declared::of_params(params, session.terms.version) {
        session.bridge.begin(declared, Offer::read(discovered.get("capabilities").unwrap_or("{}")));
    }
}

/// What a client of that version can be asked, given what it declared.
pub(in crate::gateway) fn askable(capabilities: &str, version: ProtocolVersion) -> ClientCapabilities {
    let known = for_upstream(capabilities, version).ok();
    known.and_then(|known| ClientCapabilities::read(&known).ok()).unwrap_or_default()
}

impl Gateway {
    /// What the session's server offers; asked for once more where the session is from before a restart.
    pub(super) async fn offer(self: &Arc<Self>, route: &Arc<Route>, session: &Session) -> Result<Offer, Kind> {
        if let Some(offer) = session.bridge.offer() {
            return Ok(offer);
        }
        let key = route.key_of(session);
        let discovered = self.discovered(route, key.subject.as_ref()).await?;
        let discovered = Object::parse(discovered.result.as_deref().unwrap_or("{}")).unwrap_or_default();
        let offer = Offer::read(discovered.get("capabilities").unwrap_or("{}"));
        session.bridge.set_offer(offer);
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discovered_server_welcomes_like_one_with_sessions() {
        let discovered = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"do","ttlMs":5,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"n","version":"1"}}}"#;
        let tasks = Some(TaskCapability { list: false });
        assert_eq!(
            welcome(discovered, ProtocolVersion::V2025_11_25, tasks).unwrap(),
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"n","version":"1"},"instructions":"do"}"#
        );
        let nameless = welcome(r#"{"capabilities":{}}"#, ProtocolVersion::V2025_03_26, None).unwrap();
        assert!(nameless.contains(GATEWAY_INFO), "{nameless}");
        assert!(welcome("[]", ProtocolVersion::V2025_03_26, None).is_err());
    }
}
