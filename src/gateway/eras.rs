//! Which era the server behind a route speaks.

use std::sync::Arc;

use crate::mcp::envelope::{Claim, GATEWAY_INFO, with_claim};
use crate::upstream::{Error, SessionKey};

use super::rejection::Kind;
use super::{Gateway, Route};

/// How a modern client's request goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Side {
    /// The server is stateless too; the key stands for it.
    Modern(SessionKey),
    /// It must be translated for a server with sessions.
    Legacy,
}

impl Gateway {
    /// How the requests of modern clients go on at this route.
    pub(super) async fn side_of(&self, route: &Arc<Route>) -> Result<Side, Kind> {
        let claim = Claim { capabilities: "{}", client_info: GATEWAY_INFO, log_level: None, progress_token: None };
        match route.upstream.discover(&with_claim("{}", &claim)).await {
            Ok(opened) => Ok(Side::Modern(opened.session)),
            Err(Error::Refused { .. } | Error::Protocol(_)) => Ok(Side::Legacy),
            Err(error) => Err(error.into()),
        }
    }
}
