//! A legacy client's request as a server of the modern era takes it: with an envelope in place of what a session would
//! say, and with headers that legacy clients never send.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

use crate::jsonrpc::{Id, Object, string_value};
use crate::mcp::capabilities::for_upstream;
use crate::mcp::envelope::{Claim, GATEWAY_INFO, with_claim};
use crate::mcp::mirror;
use crate::mcp::version::ProtocolVersion;

use crate::gateway::Request;
use crate::gateway::session::Session;

use super::state::Declared;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// A request as it was understood.
#[derive(Debug)]
pub(super) struct Sent {
    /// The client's id.
    pub(super) id: Id,
    pub(super) method: Box<str>,
    /// The tool, where one is called.
    pub(super) tool: Option<Box<str>>,
    /// `params` for the upstream, with the claims.
    pub(super) params: String,
    /// The client's progress token as JSON text.
    pub(super) token: Option<Box<str>>,
    /// The client takes questions.
    pub(super) takes_questions: bool,
    /// The fields of the client's that may be passed on, and those that repeat the body.
    pub(super) headers: HeaderMap,
}

/// The claims in the name of a client; it can be asked only where it `takes_questions`.
pub(in crate::gateway) fn claimed(
    session: &Session,
    params: &str,
    takes_questions: bool,
    token: Option<&str>,
) -> String {
    let declared = session.bridge.client(session.terms.client);
    let level = session.bridge.level();
    let claim = Claim {
        capabilities: if takes_questions { &declared.capabilities } else { "{}" },
        client_info: &declared.info,
        log_level: level.map(|level| level.as_str()),
        progress_token: token,
    };
    with_claim(params, &claim)
}

/// Adds the fields that repeat a request's method and name.
pub(in crate::gateway) fn mirror_into(headers: &mut HeaderMap, request: &Request<'_>) {
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(&mirror::encode(value)) {
            headers.insert(name, value);
        }
    };
    set(METHOD, &request.name);
    let name = match request.method.named_by() {
        Some("name") => request.params.name,
        Some("uri") => request.params.uri,
        _ => None,
    };
    if let Some(name) = name.and_then(|name| string_value(name.get())) {
        set(NAME, &name);
    }
}

impl Sent {
    pub(super) fn new(session: &Session, request: &Request<'_>, mut headers: HeaderMap, takes_questions: bool) -> Self {
        let token = request.params.progress_token().filter(|token| Id::from_json(token).is_ok());
        let params = request.params.whole.map_or("{}", RawValue::get);
        let mut without_task = Object::parse(params).unwrap_or_default();
        let params = match request.params.task {
            Some(_) => without_task.remove("task").to_json(),
            None => params.to_owned(),
        };
        mirror_into(&mut headers, request);
        Self {
            id: request.id.clone(),
            method: (*request.name).into(),
            tool: request.params.name.and_then(|name| string_value(name.get())).map(Into::into),
            params: claimed(session, &params, takes_questions, token.as_deref()),
            token,
            takes_questions,
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
