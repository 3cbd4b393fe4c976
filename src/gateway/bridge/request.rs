//! A legacy client's request as a server of the modern era takes it: with an envelope in place of what a session would
//! say, and with headers that legacy clients never send.

use http::HeaderMap;

use crate::jsonrpc::{Id, Object, Raw, string_value};
use crate::mcp::capabilities::for_upstream;
use crate::mcp::envelope::GATEWAY_INFO;
use crate::mcp::version::ProtocolVersion;

use crate::gateway::Request;

use super::state::Declared;

/// A request as it was understood.
#[derive(Debug)]
pub(super) struct Sent {
    /// The client's id.
    pub(super) id: Id,
    pub(super) method: Box<str>,
    /// The tool, where one is called.
    pub(super) tool: Option<Box<str>>,
    /// `params`, without task vocabulary.
    pub(super) params: String,
    /// The client's progress token as JSON text.
    pub(super) token: Option<Box<str>>,
    /// The fields of the client's that may be passed on, and those that repeat arguments.
    pub(super) headers: HeaderMap,
}

impl Sent {
    pub(super) fn new(request: &Request<'_>, headers: HeaderMap) -> Self {
        let params = request.params.whole.map_or("{}", Raw::get);
        let params = match (request.params.task, Object::parse(params)) {
            (Some(_), Ok(mut params)) => params.remove("task").to_json(),
            _ => params.to_owned(),
        };
        Self {
            id: request.id.clone(),
            method: (*request.name).into(),
            tool: request.params.name.and_then(|name| string_value(name.get())).map(Into::into),
            params,
            token: request.params.progress_token().filter(|token| Id::from_json(token).is_ok()),
            headers,
        }
    }
}

impl Declared {
    /// What a client of that version said in `initialize`, whose `params` these are. What its version does not have, or has
    /// otherwise, it can't be asked for.
    pub(super) fn of_params(params: &str, version: ProtocolVersion) -> Option<Self> {
        let params = Object::parse(params).ok()?;
        let all = params.get("capabilities").unwrap_or("{}");
        let roots = Object::parse(all).ok()?.get("roots").unwrap_or("{}").to_owned();
        let tells_of_roots = Object::parse(&roots).is_ok_and(|roots| roots.get("listChanged") == Some("true"));
        let capabilities = for_upstream(all, version).ok()?;
        let mut capabilities = Object::parse(&capabilities).ok()?;
        if let Ok(mut roots) = Object::parse(&roots)
            && capabilities.get("roots").is_some()
        {
            // 2026-07-28 has no such notification.
            capabilities.set("roots", roots.remove("listChanged").to_json());
        }
        let info = params.get("clientInfo").filter(|info| info.starts_with('{')).unwrap_or(GATEWAY_INFO);
        Some(Self { capabilities: capabilities.to_json().into(), info: info.into(), tells_of_roots })
    }
}
