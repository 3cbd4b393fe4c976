//! What a request of the modern era says of itself: the claims in `params._meta` (2026-07-28 basic, "Per-request
//! metadata"). Nothing of them is ever taken from another request.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

use crate::jsonrpc::{self, Object, Raw, present, raw_string, string_value};

use super::capabilities::ClientCapabilities;
use super::version::ProtocolVersion;
use super::{RELATED_TASK, TASKS_EXTENSION, may_hold};

/// The key of the protocol version.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The key of what the client can do.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The key of who the client is.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// The key of the least level of log messages that the client wants.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The key, in results, of who the server is.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// The key that names a subscription on everything that it delivers.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// Who the gateway is where it speaks for itself, as an `Implementation` in JSON.
pub const GATEWAY_INFO: &str = concat!("{\"name\":\"taskgate\",\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}");

/// The claims of one request.
#[derive(Debug, Clone)]
pub struct Envelope<'a> {
    /// The version that it names, spoken here or not.
    pub version: Cow<'a, str>,
    /// The capabilities as JSON text: an object.
    pub capabilities: &'a str,
    /// What of them concerns questions.
    pub client: ClientCapabilities,
    /// It declares the tasks extension.
    pub has_tasks: bool,
    /// The level that it asks log messages from, as it is written.
    pub log_level: Option<Cow<'a, str>>,
    /// The client's `Implementation` as JSON text.
    pub client_info: Option<&'a str>,
    /// The progress token as JSON text.
    pub progress_token: Option<&'a str>,
}

/// What is wrong with the claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// `_meta` is no object, or repeats a claim.
    Meta,
    /// A required claim is missing.
    Missing(&'static str),
    /// A claim is of the wrong type.
    Malformed(&'static str),
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta => f.write_str("`params._meta` must be an object that names each key once"),
            Self::Missing(key) => write!(f, "`params._meta` lacks `{key}`"),
            Self::Malformed(key) => write!(f, "`{key}` in `params._meta` has the wrong type or an unknown value"),
        }
    }
}

/// The members of `_meta` that decide, as they are written. A repeated one is refused: two readers could take different
/// ones.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
pub struct Claims<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion", deserialize_with = "present")]
    version: Option<Raw<'a>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities", deserialize_with = "present")]
    capabilities: Option<Raw<'a>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientInfo", deserialize_with = "present")]
    client_info: Option<Raw<'a>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/logLevel", deserialize_with = "present")]
    log_level: Option<Raw<'a>>,
    #[serde(borrow, default, rename = "progressToken", deserialize_with = "present")]
    progress_token: Option<Raw<'a>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/related-task", deserialize_with = "present")]
    related_task: Option<Raw<'a>>,
}

impl<'a> Claims<'a> {
    fn read(meta: &'a str) -> Result<Self, Defect> {
        // serde's derive would take an array for one.
        if !meta.starts_with('{') {
            return Err(Defect::Meta);
        }
        Self::scan(meta).map_or_else(|| serde_json::from_str(meta).map_err(|_| Defect::Meta), Ok)
    }

    fn scan(meta: &'a str) -> Option<Self> {
        let mut read = Self::default();
        jsonrpc::members(meta, |name, value| read.take(name, value)).then_some(read)
    }

    /// Takes a member of `_meta`, whatever it is; `false` where it is a second one of its name.
    pub fn take(&mut self, name: &str, value: Raw<'a>) -> bool {
        let member = match name {
            PROTOCOL_VERSION => &mut self.version,
            CLIENT_CAPABILITIES => &mut self.capabilities,
            CLIENT_INFO => &mut self.client_info,
            LOG_LEVEL => &mut self.log_level,
            RELATED_TASK => &mut self.related_task,
            "progressToken" => &mut self.progress_token,
            _ => return true,
        };
        member.replace(value).is_none()
    }

    /// Whether they claim a version, whatever it is: that they do selects the modern era.
    #[must_use]
    pub fn name_version(&self) -> bool {
        self.version.is_some()
    }

    /// Whether a task is named to which the message belongs.
    #[must_use]
    pub fn name_task(&self) -> bool {
        self.related_task.is_some()
    }

    /// The progress token as JSON text, where it stands.
    #[must_use]
    pub fn progress_token(&self) -> Option<&'a str> {
        self.progress_token.map(Raw::get)
    }
}

/// Whether a request claims a version, whatever it claims: that it does selects the modern era.
#[must_use]
pub fn is_claimed(meta: Option<Raw<'_>>) -> bool {
    let Some(meta) = meta.map(Raw::get) else { return false };
    // Most metadata of the other era has neither the key's letters nor any escape.
    may_hold(meta, "protocolVersion") && Object::parse(meta).is_ok_and(|meta| meta.get(PROTOCOL_VERSION).is_some())
}

impl<'a> Envelope<'a> {
    /// Reads the claims of a request.
    ///
    /// # Errors
    /// [`Defect`]: a required claim is missing or of the wrong type.
    pub fn read(meta: Option<Raw<'a>>) -> Result<Self, Defect> {
        let Some(meta) = meta else { return Err(Defect::Missing(PROTOCOL_VERSION)) };
        Self::of(&Claims::read(meta.get())?)
    }

    /// The claims of a request whose `_meta` is an object.
    ///
    /// # Errors
    /// [`Defect`]: a required claim is missing or of the wrong type.
    pub fn of(claims: &Claims<'a>) -> Result<Self, Defect> {
        let version = claims.version.ok_or(Defect::Missing(PROTOCOL_VERSION))?;
        let version = string_value(version.get()).ok_or(Defect::Malformed(PROTOCOL_VERSION))?;
        let capabilities = claims.capabilities.ok_or(Defect::Missing(CLIENT_CAPABILITIES))?.get();
        let client = ClientCapabilities::read(capabilities).map_err(|_| Defect::Malformed(CLIENT_CAPABILITIES))?;
        let log_level = claims.log_level.map(|level| string_value(level.get()).ok_or(Defect::Malformed(LOG_LEVEL)));
        Ok(Self {
            version,
            capabilities,
            client,
            has_tasks: declares_tasks(capabilities),
            log_level: log_level.transpose()?,
            client_info: claims.client_info.map(Raw::get),
            progress_token: claims.progress_token.map(Raw::get),
        })
    }

    /// The version, if it is one of this era that is spoken here.
    #[must_use]
    pub fn spoken(&self) -> Option<ProtocolVersion> {
        ProtocolVersion::parse(&self.version).filter(|version| !version.has_sessions())
    }
}

/// Whether capabilities, of a client or a server, declare the tasks extension: an object under its name, and nothing else, least of all the `tasks`
/// of the core dialect (tasks extension, "Capability negotiation").
#[must_use]
pub fn declares_tasks(capabilities: &str) -> bool {
    if !may_hold(capabilities, "modelcontextprotocol") {
        return false;
    }
    let Ok(all) = Object::parse(capabilities) else { return false };
    let Ok(extensions) = Object::parse(all.get("extensions").unwrap_or("{}")) else { return false };
    extensions.get(TASKS_EXTENSION).is_some_and(|settings| settings.starts_with('{'))
}

/// What the gateway claims of a request that it sends on its own behalf or in translation.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The capabilities as JSON text.
    pub capabilities: &'a str,
    /// Who asks, as an `Implementation` in JSON.
    pub client_info: &'a str,
    /// From which level on log messages are wanted.
    pub log_level: Option<&'a str>,
    /// The progress token as JSON text.
    pub progress_token: Option<&'a str>,
}

/// `params` (an object as JSON text) with these claims in place of all reserved metadata. What other names stand in
/// `_meta` stays. Text that is no object stays as it is: it has no place for claims.
#[must_use]
pub fn with_claim(params: &str, claim: &Claim<'_>) -> String {
    let Ok(mut params) = Object::parse(params) else { return params.to_owned() };
    let meta = params.get("_meta").unwrap_or("{}").to_owned();
    let mut meta = without_reserved(&meta);
    meta.remove("progressToken");
    meta.set(PROTOCOL_VERSION, raw_string(ProtocolVersion::LATEST_MODERN.as_str()))
        .set(CLIENT_INFO, claim.client_info)
        .set(CLIENT_CAPABILITIES, claim.capabilities);
    if let Some(level) = claim.log_level {
        meta.set(LOG_LEVEL, raw_string(level));
    }
    if let Some(token) = claim.progress_token {
        meta.set("progressToken", token);
    }
    let meta = meta.to_json();
    params.set("_meta", meta);
    params.to_json()
}

/// Metadata without the keys that the protocol reserves for itself: on the next hop they would be the gateway's claims.
#[must_use]
pub fn without_reserved(meta: &str) -> Object<'_> {
    let mut meta = Object::parse(meta).unwrap_or_default();
    let reserved: Vec<String> =
        meta.iter().map(|(key, _)| key).filter(|key| is_reserved(key)).map(str::to_owned).collect();
    for key in reserved {
        meta.remove(&key);
    }
    meta
}

/// Whether a metadata key is one that only the protocol may give a meaning: the second label of its prefix is `mcp` or
/// `modelcontextprotocol` (2026-07-28 basic, "`_meta`").
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else { return false };
    matches!(prefix.split('.').nth(1), Some("mcp" | "modelcontextprotocol"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Raw<'_> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn claims_are_read_and_their_absence_is_named() {
        let meta = raw(
            r#"{"progressToken":7,"io.modelcontextprotocol\/protocolVersion":"2026-07-28","x":1,"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"io.modelcontextprotocol/logLevel":"info"}"#,
        );
        assert!(is_claimed(Some(meta)));
        let envelope = Envelope::read(Some(meta)).unwrap();
        assert_eq!(envelope.spoken(), Some(ProtocolVersion::V2026_07_28));
        assert!(envelope.has_tasks && envelope.client.form && !envelope.client.url);
        assert_eq!((envelope.progress_token, envelope.log_level.as_deref()), (Some("7"), Some("info")));
        let defect = |text: &'static str| Envelope::read(Some(raw(text))).unwrap_err();
        assert_eq!(Envelope::read(None).unwrap_err(), Defect::Missing(PROTOCOL_VERSION));
        assert_eq!(defect("{}"), Defect::Missing(PROTOCOL_VERSION));
        assert_eq!(defect("5"), Defect::Meta);
        assert_eq!(defect(r#"["2026-07-28",{}]"#), Defect::Meta);
        assert_eq!(defect(r#"{"progressToken":1,"progressToken":2}"#), Defect::Meta);
        let version = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
        let with = |rest: &str| Envelope::read(Some(raw(&format!("{{{version}{rest}}}")))).unwrap_err();
        assert_eq!(with(""), Defect::Missing(CLIENT_CAPABILITIES));
        assert_eq!(with(r#","io.modelcontextprotocol/clientCapabilities":[]"#), Defect::Malformed(CLIENT_CAPABILITIES));
        let level = r#","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":3"#;
        assert_eq!(with(level), Defect::Malformed(LOG_LEVEL));
        assert_eq!(defect(r#"{"io.modelcontextprotocol/protocolVersion":1}"#), Defect::Malformed(PROTOCOL_VERSION));
    }

    #[test]
    fn only_the_extension_itself_declares_tasks() {
        assert!(declares_tasks(r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#));
        assert!(declares_tasks(r#"{"extensions":{"io.modelcontextprotocol\/tasks":{"x":1}}}"#));
        assert!(declares_tasks(r#"{"extensions":{"io.m\u006fdelcontextprotocol/tasks":{}}}"#));
        for other in [
            "{}",
            r#"{"tasks":{}}"#,
            r#"{"extensions":{}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":true}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{}},"tasks":{"io.modelcontextprotocol/tasks":{}}}"#,
        ] {
            assert!(!declares_tasks(other), "{other}");
        }
    }

    #[test]
    fn the_next_hop_sees_the_gateways_claims_and_what_nobody_reserved() {
        let params = r#"{"name":"x","_meta":{"io.modelcontextprotocol/related-task":{},"dev.mcp/x":1,"com.example/y":1.10,"traceparent":"t","progressToken":"p"}}"#;
        let claim = Claim { capabilities: "{}", client_info: GATEWAY_INFO, log_level: None, progress_token: Some("9") };
        let sent = with_claim(params, &claim);
        let meta = Object::parse(&sent).unwrap().get("_meta").unwrap().to_owned();
        let envelope = Envelope::read(Some(raw(&meta))).unwrap();
        assert_eq!((envelope.capabilities, envelope.progress_token), ("{}", Some("9")));
        assert!(meta.starts_with(r#"{"com.example/y":1.10,"traceparent":"t","#), "{meta}");
        assert_eq!(with_claim("[1]", &claim), "[1]");
        assert!(is_reserved("dev.mcp/x") && !is_reserved("mcp.dev/x") && !is_reserved("progressToken"));
    }
}
