//! What a modern upstream's tools say of themselves, as far as a gateway must obey it: which arguments their calls repeat
//! in headers, how their output looks to legacy clients, and whether they may be run again.
//!
//! Read with `tools/list` when it is first needed, by one job for all who wait; kept for a while, used a little longer
//! while it is read anew. Where it can't be read, calls pass unchecked and are counted: the upstream checks as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::jsonrpc::{self, Message, Object, Outcome, raw_string, string_value};
use crate::mcp::envelope::{Claim, GATEWAY_INFO, with_claim};
use crate::mcp::mirror::{self, Mirrored, Mismatch};
use crate::mcp::project;
use crate::upstream::messages::Messages;
use crate::upstream::{Error, Kind as MessageKind, Outgoing};

use super::exchange::Refresh;
use super::rejection::Chain;
use super::{Gateway, Route};

/// How long a listing is taken for true at least, whatever the upstream says: it would be asked before every call else.
const SHORTEST: Duration = Duration::from_secs(5);
/// And at most.
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// How long after one listing a client whose headers don't fit can cause the next.
const PAUSE: Duration = Duration::from_secs(1);
/// How long all pages together may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Pages that are read.
const PAGES: usize = 100;
/// Tools that are remembered. Only those that say something are.
const TOOLS: usize = 10_000;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const TOOLS_LIST: HeaderValue = HeaderValue::from_static("tools/list");

/// What one tool says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// The arguments that headers repeat.
    mirrored: Vec<Mirrored>,
    /// Legacy clients see its output schema wrapped.
    pub(super) wraps_output: bool,
    /// To run it twice does no more than to run it once.
    pub(super) is_harmless: bool,
}

impl Shape {
    /// Adds the headers that a call with these `arguments` (JSON text) carries, in place of whatever stood there.
    pub(super) fn add_headers(&self, arguments: Option<&str>, headers: &mut HeaderMap) {
        for mirrored in &self.mirrored {
            headers.remove(&*mirrored.header);
        }
        for (name, value) in mirror::headers(&self.mirrored, arguments) {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }

    fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// The tools of one upstream that say something, by name.
type Tools = HashMap<Box<str>, Arc<Shape>>;

/// What is known of the tools of one upstream.
#[derive(Debug, Default)]
pub struct Schemas {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    /// Not to be asked before this time, unless the upstream itself says that what is known is wrong.
    pause: Option<Instant>,
    /// Ends when the listing that is being read is there, or has failed.
    reading: Option<watch::Receiver<()>>,
}

#[derive(Debug)]
struct Known {
    tools: Arc<Tools>,
    /// When it was asked for.
    asked: Instant,
    /// When it is to be read anew.
    until: Instant,
}

/// How new knowledge has to be.
#[derive(Clone, Copy)]
enum Wanted {
    /// Whatever there is; it is read anew beside that when it is old.
    Any,
    /// Asked for after this time.
    Since(Instant),
    /// The same, whenever the last was read.
    Insisted(Instant),
}

/// What is to be done to get it.
enum Step {
    Use(Option<Arc<Tools>>),
    Wait(watch::Receiver<()>),
}

impl Schemas {
    /// The upstream's tools have changed: what is known is read anew at the next call.
    pub fn forget(&self) {
        if let Some(known) = &mut self.state().known {
            known.until = known.asked;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the tools have to be read, and what serves meanwhile.
    fn needs(&self, wanted: Wanted, now: Instant) -> Need {
        let tools = self.known.as_ref().map(|known| Arc::clone(&known.tools));
        let may_ask = self.pause.is_none_or(|pause| pause <= now);
        let is_new = |since: Instant| self.known.as_ref().is_some_and(|known| known.asked >= since);
        match (wanted, &self.known) {
            (Wanted::Any, Some(known)) if known.until <= now && may_ask => Need::Beside(tools),
            (Wanted::Any, Some(_)) => Need::Nothing(tools),
            (Wanted::Since(since) | Wanted::Insisted(since), _) if is_new(since) => Need::Nothing(tools),
            (Wanted::Insisted(_), _) => Need::First,
            (Wanted::Any | Wanted::Since(_), _) if may_ask => Need::First,
            (Wanted::Any | Wanted::Since(_), _) => Need::Nothing(tools),
        }
    }
}

enum Need {
    /// This will do.
    Nothing(Option<Arc<Tools>>),
    /// This will do, but is old.
    Beside(Option<Arc<Tools>>),
    /// They have to be read first.
    First,
}

impl Gateway {
    /// Checks what the headers of a modern client's call of a tool repeat of its `arguments` (2026-07-28 transports, "Server
    /// Behavior for Custom Headers"). A client that knows a newer schema than the gateway is not turned away for it.
    ///
    /// # Errors
    /// The header that does not fit.
    pub(super) async fn check_mirrored(
        self: &Arc<Self>,
        route: &Arc<Route>,
        tool: &str,
        arguments: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<(), Mismatch> {
        let began = Instant::now();
        let check = |shape: Option<Arc<Shape>>| match shape {
            Some(shape) => mirror::check(&shape.mirrored, arguments, |name| {
                headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>()
            }),
            None => Ok(()),
        };
        let Some(tools) = self.tools_of(route, Wanted::Any).await else {
            route.metrics.unchecked_call();
            return Ok(());
        };
        let first = check(tools.get(tool).cloned());
        if first.is_ok() {
            return first;
        }
        check(self.tools_of(route, Wanted::Since(began)).await.and_then(|tools| tools.get(tool).cloned()))
    }

    /// What a tool says of itself, as far as it is known or can be read.
    pub(super) async fn shape(self: &Arc<Self>, route: &Arc<Route>, tool: &str) -> Arc<Shape> {
        self.shape_wanted(route, tool, Wanted::Any).await
    }

    /// The same, after the upstream has found a header of the gateway's to be missing or wrong: what was known is not true
    /// any more ("Client Behavior").
    pub(super) async fn shape_anew(self: &Arc<Self>, route: &Arc<Route>, tool: &str) -> Arc<Shape> {
        self.shape_wanted(route, tool, Wanted::Insisted(Instant::now())).await
    }

    /// Adds to a call's headers what its tool wants to have repeated of `params` (JSON text), and gives a way to come by
    /// those headers anew.
    pub(super) async fn mirror_arguments(
        self: &Arc<Self>,
        route: &Arc<Route>,
        params: &str,
        headers: &mut HeaderMap,
    ) -> Option<Refresh> {
        let (tool, arguments) = called(params)?;
        match self.tools_of(route, Wanted::Any).await {
            Some(tools) => {
                if let Some(shape) = tools.get(&tool) {
                    shape.add_headers(arguments.as_deref(), headers);
                }
            }
            None => route.metrics.unchecked_call(),
        }
        self.mirror_anew(route, params)
    }

    /// A way to come by the headers that a call's tool wants, in case those that are there turn out to be wrong.
    pub(super) fn mirror_anew(self: &Arc<Self>, route: &Arc<Route>, params: &str) -> Option<Refresh> {
        let (tool, arguments) = called(params)?;
        let (gateway, route) = (Arc::clone(self), Arc::clone(route));
        Some(Box::new(move || {
            Box::pin(async move {
                let mut fresh = HeaderMap::new();
                gateway.shape_anew(&route, &tool).await.add_headers(arguments.as_deref(), &mut fresh);
                fresh
            })
        }))
    }

    async fn shape_wanted(self: &Arc<Self>, route: &Arc<Route>, tool: &str, wanted: Wanted) -> Arc<Shape> {
        self.tools_of(route, wanted).await.and_then(|tools| tools.get(tool).cloned()).unwrap_or_default()
    }

    /// The tools, as new as wanted if they can be read; else as they were known.
    async fn tools_of(self: &Arc<Self>, route: &Arc<Route>, wanted: Wanted) -> Option<Arc<Tools>> {
        match self.step(route, wanted) {
            Step::Use(tools) => tools,
            Step::Wait(mut reading) => {
                // Ends with an error, which is the sign: nothing is ever sent.
                drop(reading.changed().await);
                route.schemas.state().known.as_ref().map(|known| Arc::clone(&known.tools))
            }
        }
    }

    fn step(self: &Arc<Self>, route: &Arc<Route>, wanted: Wanted) -> Step {
        let mut state = route.schemas.state();
        match (state.needs(wanted, Instant::now()), &state.reading) {
            (Need::Nothing(tools), _) | (Need::Beside(tools), Some(_)) => Step::Use(tools),
            (Need::First, Some(reading)) => Step::Wait(reading.clone()),
            (Need::Beside(tools), None) => {
                self.read_tools(route, &mut state);
                Step::Use(tools)
            }
            (Need::First, None) => Step::Wait(self.read_tools(route, &mut state)),
        }
    }

    /// Reads the tools in a job: a client that goes away takes them from nobody.
    fn read_tools(self: &Arc<Self>, route: &Arc<Route>, state: &mut State) -> watch::Receiver<()> {
        let (over, reading) = watch::channel(());
        state.reading = Some(reading.clone());
        let (gateway, route) = (Arc::clone(self), Arc::clone(route));
        self.jobs.spawn("schemas", async move {
            let over = Over { route: &route, over };
            let asked = Instant::now();
            let listing = tokio::time::timeout(LIMIT, gateway.listed(&route));
            let listed = gateway.jobs.stopping().run_until_cancelled(listing).await;
            let late = || Err(Error::Lost("it did not list its tools in time".into()));
            match listed.map_or_else(late, |listed| listed.unwrap_or_else(|_| late())) {
                Ok((tools, ttl)) => {
                    let now = Instant::now();
                    let mut state = route.schemas.state();
                    state.pause = Some(now + PAUSE);
                    let until = now + ttl.clamp(SHORTEST, LONGEST);
                    state.known = Some(Known { tools: Arc::new(tools), asked, until });
                }
                Err(error) => {
                    tracing::warn!(route = %route.name, error = %Chain(&error), "the server's tools can't be listed; what their calls repeat in headers is not checked");
                    route.schemas.state().pause = Some(Instant::now() + SHORTEST);
                }
            }
            drop(over);
        });
        reading
    }

    /// Every page of `tools/list`, and how long the upstream lets it be kept.
    async fn listed(&self, route: &Route) -> Result<(Tools, Duration), Error> {
        let (mut tools, mut ttl, mut cursor) = (Tools::new(), LONGEST, None);
        for _ in 0..PAGES {
            let result = self.page(route, cursor.as_deref()).await?;
            let page = Page::read(&result).ok_or_else(|| Error::Protocol("its list of tools is none".into()))?;
            ttl = ttl.min(page.ttl);
            for (name, shape) in page.tools {
                if !shape.is_plain() && tools.len() < TOOLS {
                    tools.insert(name, Arc::new(shape));
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok((tools, ttl));
            }
        }
        Err(Error::Protocol("its list of tools has no end".into()))
    }

    async fn page(&self, route: &Route, cursor: Option<&str>) -> Result<Box<str>, Error> {
        let claim = Claim { capabilities: "{}", client_info: GATEWAY_INFO, log_level: None, progress_token: None };
        let params = cursor.map_or_else(|| "{}".to_owned(), |cursor| format!("{{\"cursor\":{cursor}}}"));
        let id = self.mint();
        let body = jsonrpc::request(&id, "tools/list", Some(&with_claim(&params, &claim)));
        let kind = MessageKind::Request { id: id.clone(), progress_token: None };
        let headers = HeaderMap::from_iter([(METHOD, TOOLS_LIST)]);
        let key = route.upstream.stateless().on_behalf_of(route.any_subject().as_ref());
        let reply = route.upstream.send(&key, Outgoing { kind, body, headers }).await?;
        let mut messages = Messages::of_reply(reply, route.max_message);
        while let Some(message) = messages.next().await? {
            match Message::parse(&message) {
                Ok(Message::Response { id: Some(answered), outcome: Outcome::Result(result) }) if answered == id => {
                    return Ok(result.get().into());
                }
                Ok(Message::Response { id: Some(answered), outcome: Outcome::Error(_) }) if answered == id => break,
                _ => {}
            }
        }
        Err(Error::Protocol("it did not list its tools".into()))
    }
}

/// A modern server's page of tools without those whose annotations are not valid; `None` when all are. Its clients, the
/// gateway among them, must not show those (2026-07-28 transports, "Schema Extension").
pub(super) fn without_invalid(result: &str) -> Option<String> {
    let dropped =
        |tool: &str, invalid| tracing::warn!(tool, %invalid, "a tool with unusable annotations is not listed");
    project::without_invalid_tools(result, dropped)
}

/// The tool that is called, and with what, by the `params` of the call (JSON text).
fn called(params: &str) -> Option<(Box<str>, Option<String>)> {
    let params = Object::parse(params).ok()?;
    Some((string_value(params.get("name")?)?.into(), params.get("arguments").map(str::to_owned)))
}

/// Lets those who wait go on, and the next one ask again, however the reading ends.
struct Over<'a> {
    route: &'a Route,
    #[expect(dead_code, reason = "ends the waiting when it is dropped")]
    over: watch::Sender<()>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.route.schemas.state().reading = None;
    }
}

/// One page.
struct Page {
    tools: Vec<(Box<str>, Shape)>,
    ttl: Duration,
    /// The cursor of the next as JSON text.
    next: Option<String>,
}

impl Page {
    fn read(result: &str) -> Option<Self> {
        let result = Object::parse(result).ok()?;
        let tools: Vec<&RawValue> = serde_json::from_str(result.get("tools")?).ok()?;
        let ttl = result.get("ttlMs").and_then(|ttl| ttl.parse().ok()).map_or(Duration::ZERO, Duration::from_millis);
        // The empty string is a cursor like any other (2026-07-28 pagination).
        let next = result.get("nextCursor").and_then(string_value).map(|cursor| raw_string(&cursor));
        Some(Self { tools: tools.into_iter().filter_map(|tool| shape_of(tool.get())).collect(), ttl, next })
    }
}

/// A tool's name and what it says. One with unusable annotations is not listed to anybody, and asks for no headers.
fn shape_of(tool: &str) -> Option<(Box<str>, Shape)> {
    let tool = Object::parse(tool).ok()?;
    let name = string_value(tool.get("name")?)?;
    let mirrored = mirror::annotations(tool.get("inputSchema").unwrap_or("{}")).unwrap_or_default();
    let wraps_output = tool.get("outputSchema").is_some_and(project::wraps_output);
    let is_harmless = says_harmless(&tool);
    Some((name.into(), Shape { mirrored, wraps_output, is_harmless }))
}

/// Whether a tool says of itself that it may be run again (2025-11-25 schema, "ToolAnnotations").
pub(super) fn says_harmless(tool: &Object<'_>) -> bool {
    let annotations = Object::parse(tool.get("annotations").unwrap_or("{}")).unwrap_or_default();
    ["idempotentHint", "readOnlyHint"].iter().any(|hint| annotations.get(hint) == Some("true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_its_tools_ask_for_and_how_long_that_holds() {
        let page = Page::read(
            r#"{"tools":[{"name":"a","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}},
                {"name":"b","inputSchema":{"properties":{"r":{"type":"number","x-mcp-header":"R"}}}},
                {"name":"c","outputSchema":{"type":"array"},"annotations":{"idempotentHint":true}},{"name":7},{"name":"d","outputSchema":{"type":"object"}}],
                "ttlMs":1500,"nextCursor":""}"#,
        )
        .unwrap();
        assert_eq!((page.ttl, page.next.as_deref()), (Duration::from_millis(1500), Some(r#""""#)));
        let [(a, asks), (b, invalid), (c, wraps), (d, plain)] = page.tools.as_slice() else { panic!() };
        assert_eq!([a, b, c, d].map(|name| &**name), ["a", "b", "c", "d"]);
        assert!(invalid.is_plain() && plain.is_plain() && wraps.wraps_output && !asks.wraps_output);
        assert!(wraps.is_harmless && !asks.is_harmless);
        let mut headers = HeaderMap::from_iter([
            (HeaderName::from_static("mcp-param-r"), HeaderValue::from_static("forged")),
            (HeaderName::from_static("mcp-param-x"), HeaderValue::from_static("kept")),
        ]);
        asks.add_headers(Some(r#"{"r":"eu"}"#), &mut headers);
        assert_eq!((headers["mcp-param-r"].as_bytes(), headers["mcp-param-x"].as_bytes()), (&b"eu"[..], &b"kept"[..]));
        asks.add_headers(None, &mut headers);
        assert_eq!(headers.len(), 1);
        let last = Page::read(r#"{"tools":[]}"#).unwrap();
        assert_eq!((last.ttl, last.next), (Duration::ZERO, None));
        assert!(Page::read(r#"{"tools":{}}"#).is_none() && Page::read("[]").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_serves_until_it_is_old_and_is_read_anew_when_it_was_wrong() {
        let now = Instant::now();
        let mut state = State::default();
        let kind = |state: &State, wanted, now| match state.needs(wanted, now) {
            Need::Nothing(tools) => {
                if tools.is_some() {
                    "use"
                } else {
                    "do without"
                }
            }
            Need::Beside(_) => "use and read",
            Need::First => "read",
        };
        assert_eq!(kind(&state, Wanted::Any, now), "read");
        // A failure.
        state.pause = Some(now + SHORTEST);
        assert_eq!(kind(&state, Wanted::Any, now), "do without");
        assert_eq!(kind(&state, Wanted::Any, now + SHORTEST), "read");
        // A success.
        state.known = Some(Known { tools: Arc::default(), asked: now, until: now + LONGEST });
        state.pause = Some(now + PAUSE);
        assert_eq!(kind(&state, Wanted::Any, now + PAUSE), "use");
        assert_eq!(kind(&state, Wanted::Any, now + LONGEST), "use and read");
        assert_eq!(kind(&state, Wanted::Since(now), now), "use");
        let later = now + Duration::from_millis(1);
        assert_eq!(kind(&state, Wanted::Since(later), later), "use");
        assert_eq!(kind(&state, Wanted::Insisted(later), later), "read");
        assert_eq!(kind(&state, Wanted::Since(later), now + PAUSE), "read");
    }
}
