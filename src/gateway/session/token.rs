//! What a sealed session id says: all that another process needs to go on with the session.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::version::ProtocolVersion;
use crate::task::{Holder, SessionNumber};
use crate::upstream::SessionKey;

use super::Terms;

/// The layout's number, so that a later one can be told apart.
const LAYOUT: u8 = 2;

/// What an id says.
#[derive(Debug, Clone)]
pub(in crate::gateway) struct Sealed {
    /// The session's number.
    pub(in crate::gateway) number: SessionNumber,
    /// When it was made.
    pub(in crate::gateway) issued: Timestamp,
    /// Who made it, where that matters.
    pub(in crate::gateway) maker: Option<Holder>,
    /// What was settled for it.
    pub(in crate::gateway) terms: Terms,
}

pub(super) fn encode(number: SessionNumber, issued: Timestamp, maker: Option<&Holder>, terms: &Terms) -> Vec<u8> {
    let mut out = vec![LAYOUT];
    out.extend(number.to_be_bytes());
    out.extend(issued.as_millis().to_be_bytes());
    out.extend(terms.principal);
    out.push(terms.version as u8);
    out.push(terms.upstream.version as u8);
    out.push(terms.client.to_bits());
    out.push(u8::from(terms.upstream.id.is_some()));
    for text in [&*terms.route, maker.map_or("", Holder::as_str)] {
        out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend(text.as_bytes());
    }
    out.extend(terms.upstream.id.as_deref().unwrap_or_default().as_bytes());
    out
}

pub(super) fn decode(plain: &[u8]) -> Option<Sealed> {
    let (layout, rest) = plain.split_first()?;
    if *layout != LAYOUT {
        return None;
    }
    let (number, rest) = rest.split_first_chunk::<16>()?;
    let (issued, rest) = rest.split_first_chunk::<8>()?;
    let (principal, rest) = rest.split_first_chunk::<16>()?;
    let ([version, upstream, client, has_id], rest) = rest.split_first_chunk::<4>()?;
    let (route, rest) = text(rest)?;
    let (maker, id) = text(rest)?;
    let spoken = |number: u8| ProtocolVersion::ALL.get(usize::from(number)).copied();
    let id = (*has_id == 1).then(|| std::str::from_utf8(id).map(Arc::from)).transpose().ok()?;
    let terms = Terms {
        route: route.into(),
        principal: *principal,
        version: spoken(*version)?,
        upstream: SessionKey { id, version: spoken(*upstream)?, subject: None },
        client: ClientCapabilities::from_bits(*client),
    };
    Some(Sealed {
        number: u128::from_be_bytes(*number),
        issued: Timestamp::from_millis(u64::from_be_bytes(*issued)),
        maker: (!maker.is_empty()).then(|| Holder::from_text(maker)),
        terms,
    })
}

/// A text after its length.
fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}
