//! Whether a tool says of itself that it may be run again. What can't be found out is no.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::value::RawValue;

use crate::gateway::front::ask;
use crate::gateway::schemas::says_harmless;
use crate::gateway::{Gateway, Route};
use crate::jsonrpc::{Object, raw_string, string_value};
use crate::mcp::capabilities::ClientCapabilities;
use crate::tenant::Principal;

/// How long all pages together may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Pages that are read.
const PAGES: usize = 100;

impl Gateway {
    /// Asks a server with sessions, as the caller sees it.
    pub(super) async fn is_harmless_on_session(
        self: &Arc<Self>,
        route: &Arc<Route>,
        principal: &Principal,
        profile: ClientCapabilities,
        tool: &str,
    ) -> bool {
        let looking = async {
            let lease = self.lease(route, principal, profile, false, &HeaderMap::new()).await.ok()?;
            let mut cursor: Option<String> = None;
            for _ in 0..PAGES {
                let params = cursor.map_or_else(|| "{}".to_owned(), |cursor| format!("{{\"cursor\":{cursor}}}"));
                let page = ask((self, route), &lease, &HeaderMap::new(), "tools/list", params).await?;
                let page = Object::parse(&page).ok()?;
                if let Some(is_harmless) = said_in(&page, tool) {
                    return Some(is_harmless);
                }
                cursor = Some(raw_string(&page.get("nextCursor").and_then(string_value)?));
            }
            None
        };
        tokio::time::timeout(LIMIT, looking).await.ok().flatten().unwrap_or(false)
    }
}

/// What a page says of a tool; `None` where it is not on it.
fn said_in(page: &Object<'_>, tool: &str) -> Option<bool> {
    let tools: Vec<&RawValue> = serde_json::from_str(page.get("tools")?).ok()?;
    tools.into_iter().find_map(|listed| {
        let listed = Object::parse(listed.get()).ok()?;
        (string_value(listed.get("name")?)? == tool).then(|| says_harmless(&listed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_tool_says_itself_counts() {
        let page = r#"{"tools":[{"name":"a","annotations":{"idempotentHint":true}},{"name":"b","annotations":
            {"readOnlyHint":true,"idempotentHint":false}},{"name":"c","annotations":{"idempotentHint":"true"}},{"name":"d"},5]}"#;
        let page = Object::parse(page).unwrap();
        let said = ["a", "b", "c", "d", "e"].map(|tool| said_in(&page, tool));
        assert_eq!(said, [Some(true), Some(true), Some(false), Some(false), None]);
    }
}
