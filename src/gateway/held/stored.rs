//! What is kept with a task for the next holder of its call: the draft, written once with the task, and the trail, noted as
//! the call goes on. JSON, in which a member that is missing has a default and one that is unknown is passed over, since
//! processes of two versions may share a store.
//!
//! Nothing that a caller shows to the gateway is in it: what the upstream is shown is the route's, or what the caller shows
//! to the new holder.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::gateway::exchange::{Asking, Trace};
use crate::gateway::session::{Session, Terms};
use crate::jsonrpc::Id;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;
use crate::task::Task;
use crate::task::codec::halves;
use crate::upstream::SessionKey;

/// A call as the next holder of its task finds it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::gateway) struct StoredCall<'a> {
    /// `params` for the upstream as JSON text.
    pub(in crate::gateway) params: Cow<'a, str>,
    headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(in crate::gateway) wants_progress: bool,
    pub(in crate::gateway) exclusive: bool,
    /// The request id upstream as JSON text.
    id: Cow<'a, str>,
    /// The task was made when the call had been sent already.
    pub(in crate::gateway) was_sent: bool,
    /// On what kind of conversation it goes.
    pub(in crate::gateway) way: Way,
    /// The number of the client's session, in two halves.
    number: [u64; 2],
    /// The version spoken with the client.
    version: Cow<'a, str>,
    /// The conversation with the upstream, where it was known.
    upstream: Option<StoredSession<'a>>,
    /// What the client can answer, as bits.
    client: u8,
    /// What a modern upstream is told of the client, as JSON texts.
    pub(in crate::gateway) capabilities: Cow<'a, str>,
    pub(in crate::gateway) client_info: Cow<'a, str>,
    /// From which level on log messages are wanted of a modern upstream.
    pub(in crate::gateway) log_level: Option<Cow<'a, str>>,
}

/// On what kind of conversation a call goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::gateway) enum Way {
    /// The client's own session.
    #[default]
    Own,
    /// A session of the gateway's for clients that have none.
    Pooled,
    /// None: the upstream has no sessions, and neither has the client.
    Stateless,
}

/// A conversation with an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredSession<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    version: Cow<'a, str>,
}

/// How far a call had come.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::gateway) struct Trail<'a> {
    /// The request id upstream as JSON text.
    id: Option<Cow<'a, str>>,
    /// The last event id of its stream.
    event: Option<Cow<'a, str>>,
    /// The conversation on which it was sent.
    session: Option<StoredSession<'a>>,
    /// What a stateless upstream waits for, or waited.
    round: Option<StoredRound<'a>>,
}

/// A round of questions.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredRound<'a> {
    number: u32,
    count: usize,
    /// The upstream's `requestState` as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Cow<'a, str>>,
}

/// What is to be stored of a call.
#[derive(Debug, Clone, Copy)]
pub(in crate::gateway) struct Sent<'a> {
    pub(in crate::gateway) params: &'a str,
    pub(in crate::gateway) headers: &'a HeaderMap,
    pub(in crate::gateway) wants_progress: bool,
    pub(in crate::gateway) exclusive: bool,
    pub(in crate::gateway) id: &'a Id,
}

impl<'a> StoredCall<'a> {
    /// A call, without where it goes.
    pub(in crate::gateway) fn of(sent: Sent<'a>) -> Self {
        let Sent { params, headers, wants_progress, exclusive, id } = sent;
        // A value that is no text was never one that a server of this protocol reads.
        let header = |(name, value): (&'a HeaderName, &'a HeaderValue)| {
            Some((Cow::from(name.as_str()), Cow::from(value.to_str().ok()?)))
        };
        Self {
            params: params.into(),
            headers: headers.iter().filter_map(header).collect(),
            wants_progress,
            exclusive,
            id: id.as_json().into(),
            ..Self::default()
        }
    }

    /// The same on a client's own session.
    pub(in crate::gateway) fn on_session(mut self, session: &'a Session) -> Self {
        let declared = session.bridge.client(session.terms.client);
        self.capabilities = declared.capabilities.to_string().into();
        self.client_info = declared.info.to_string().into();
        self.log_level = session.bridge.level().map(|level| level.as_str().into());
        self.number = halves(session.number);
        self.on_terms(Way::Own, &session.terms)
    }

    /// The same on a conversation with these terms.
    pub(in crate::gateway) fn on_terms(mut self, way: Way, terms: &'a Terms) -> Self {
        self.way = way;
        self.version = terms.version.as_str().into();
        self.upstream = Some(StoredSession::of(&terms.upstream));
        self.client = terms.client.to_bits();
        self
    }

    /// The same on a conversation that is not there yet, for a client that can answer this.
    pub(in crate::gateway) fn on_any(mut self, way: Way, client: ClientCapabilities) -> Self {
        self.way = way;
        self.version = ProtocolVersion::LATEST_MODERN.as_str().into();
        self.client = client.to_bits();
        if way == Way::Stateless {
            self.upstream = Some(StoredSession { id: None, version: ProtocolVersion::LATEST_MODERN.as_str().into() });
        }
        self
    }

    /// As text for the store.
    pub(in crate::gateway) fn to_text(&self) -> Arc<str> {
        // Nothing in it can fail to be written.
        serde_json::to_string(self).unwrap_or_default().into()
    }

    /// What [`StoredCall::to_text`] wrote; `None` for anything else.
    pub(in crate::gateway) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|call: &Self| !call.params.is_empty())
    }

    pub(in crate::gateway) fn client(&self) -> ClientCapabilities {
        ClientCapabilities::from_bits(self.client)
    }

    pub(in crate::gateway) fn headers(&self) -> HeaderMap {
        let header = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers.iter().filter_map(header) {
            headers.append(name, value);
        }
        headers
    }

    /// Whether the client's own session is with a server that has sessions too.
    pub(in crate::gateway) fn upstream_has_sessions(&self) -> bool {
        let key = self.upstream.as_ref().and_then(StoredSession::key);
        key.is_some_and(|key| key.version.has_sessions())
    }

    /// The number of the client's session.
    pub(in crate::gateway) fn number(&self) -> u128 {
        let [high, low] = self.number;
        u128::from(high) << 64 | u128::from(low)
    }

    /// What was settled for the conversation on which the call was sent, as far as that is known.
    pub(in crate::gateway) fn terms(&self, task: &Task, trail: &Trail<'_>) -> Option<Terms> {
        let upstream = trail.session.as_ref().or(self.upstream.as_ref())?;
        Some(Terms {
            route: Arc::clone(&task.owner.route),
            principal: task.owner.principal,
            version: ProtocolVersion::parse(&self.version)?,
            upstream: upstream.key()?,
            client: self.client(),
        })
    }

    /// Under which id the call was sent last.
    pub(in crate::gateway) fn sent_as(&self, trail: &Trail<'_>) -> Option<Id> {
        Id::from_json(trail.id.as_ref().unwrap_or(&self.id)).ok()
    }
}

impl<'a> Trail<'a> {
    /// Where a call is.
    pub(in crate::gateway) fn of(trace: &'a Trace, session: &'a SessionKey) -> Self {
        Self {
            id: Some(trace.id.as_json().into()),
            event: trace.event.as_deref().map(Into::into),
            session: session.id.is_some().then(|| StoredSession::of(session)),
            round: trace.round.as_ref().map(|Asking { number, count, state }| StoredRound {
                number: *number,
                count: *count,
                state: state.as_deref().map(Into::into),
            }),
        }
    }

    pub(in crate::gateway) fn to_text(&self) -> Arc<str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }

    /// What [`Trail::to_text`] wrote; nothing is known by anything else.
    pub(in crate::gateway) fn read(text: Option<&'a str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// What a stateless upstream waited for last.
    pub(in crate::gateway) fn round(&self) -> Option<Asking> {
        let StoredRound { number, count, state } = self.round.as_ref()?;
        Some(Asking { number: *number, count: *count, state: state.as_deref().map(Into::into) })
    }

    /// After which event the stream can be taken up.
    pub(in crate::gateway) fn event(&self) -> Option<&str> {
        self.event.as_deref()
    }
}

impl<'a> StoredSession<'a> {
    fn of(key: &'a SessionKey) -> Self {
        Self { id: key.id.as_deref().map(Into::into), version: key.version.as_str().into() }
    }

    fn key(&self) -> Option<SessionKey> {
        let version = ProtocolVersion::parse(&self.version)?;
        Some(SessionKey { id: self.id.as_deref().map(Into::into), version, subject: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_unknown_does_no_harm() {
        let call = StoredCall::read(r#"{"params":"{\"name\":\"t\"}","zz":5,"id":"7"}"#).unwrap();
        assert_eq!((&*call.params, call.way, call.was_sent), (r#"{"name":"t"}"#, Way::Own, false));
        assert_eq!(call.sent_as(&Trail::read(None)), Id::from_json("7").ok());
        assert_eq!(call.sent_as(&Trail::read(Some(r#"{"id":"8","event":"e"}"#))), Id::from_json("8").ok());
        assert!(["[]", "{}", "no"].iter().all(|text| StoredCall::read(text).is_none()));
        assert_eq!(Trail::read(Some("no")).event(), None);
    }

    #[test]
    fn a_call_comes_back_as_it_was() {
        let headers = HeaderMap::from_iter([
            (HeaderName::from_static("x-a"), HeaderValue::from_static("1")),
            (HeaderName::from_static("x-b"), HeaderValue::from_bytes(&[0xe9]).unwrap()),
        ]);
        let id = Id::number(1 << 40);
        let params = r#"{"name":"t","arguments":{"n":1.10}}"#;
        let sent = Sent { params, headers: &headers, wants_progress: true, exclusive: false, id: &id };
        let client = ClientCapabilities { form: true, ..ClientCapabilities::default() };
        let text = StoredCall { number: halves(5 << 64 | 9), ..StoredCall::of(sent).on_any(Way::Pooled, client) };
        let text = text.to_text();
        let call = StoredCall::read(&text).unwrap();
        assert_eq!((&*call.params, call.way, call.client()), (params, Way::Pooled, client));
        assert_eq!((call.number(), call.headers().len()), (5 << 64 | 9, 1));
        let round = Asking { number: 2, count: 1, state: Some("\"s\"".into()) };
        let (trace, version) = (
            Trace { id: id.clone(), event: Some("e-1".into()), round: Some(round.clone()) },
            ProtocolVersion::LATEST_LEGACY,
        );
        let key = SessionKey { id: Some("s".into()), version, subject: None };
        let trail = Trail::of(&trace, &key).to_text();
        let trail = Trail::read(Some(&trail));
        assert_eq!((trail.event(), call.sent_as(&trail), trail.round()), (Some("e-1"), Some(id), Some(round)));
        assert_eq!(trail.session.as_ref().and_then(StoredSession::key), Some(key));
    }
}
