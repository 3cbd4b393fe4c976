//! What the gateway keeps of a session for a server that keeps none: what its client declared, the log level, open
//! questions, and the streams that may be taken up again. None of it outlives the process but what the token says.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::jsonrpc::Object;
use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::envelope::GATEWAY_INFO;
use crate::mcp::level::Level;

use super::listening::Listening;
use super::replay::{self, Replay};

/// Streams of one session that are kept for clients to come back to, those of running calls among them.
const MAX_REPLAYS: usize = 64;
/// So much is kept of those whose call has ended.
const MAX_REPLAY_BYTES: usize = 4 * replay::KEPT_BYTES;

/// What is kept for one session.
#[derive(Debug, Default)]
pub(in crate::gateway) struct State {
    kept: Mutex<Kept>,
    pub(super) listening: Listening,
}

#[derive(Debug, Default)]
struct Kept {
    client: Option<Arc<Declared>>,
    offer: Option<Arc<Offer>>,
    level: Option<Level>,
    roots: Option<Box<str>>,
    asked: HashMap<Box<str>, Asked>,
    replays: VecDeque<Arc<Replay>>,
}

/// What a client said of itself in `initialize`.
#[derive(Debug)]
pub(in crate::gateway) struct Declared {
    /// Its capabilities as a server of the modern era may see them, as JSON text.
    pub(in crate::gateway) capabilities: Box<str>,
    /// Its `clientInfo` as JSON text.
    pub(in crate::gateway) info: Box<str>,
    /// It tells when its roots change, so that they can be kept until then.
    pub(in crate::gateway) tells_of_roots: bool,
}

/// What of a server's capabilities the gateway must know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability that is there or not")]
pub(in crate::gateway) struct Offer {
    pub(in crate::gateway) logging: bool,
    pub(in crate::gateway) subscribe: bool,
    pub(in crate::gateway) tools_changed: bool,
    pub(in crate::gateway) prompts_changed: bool,
    pub(in crate::gateway) resources_changed: bool,
}

/// Where the answer to a question goes.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    pub(super) inputs: mpsc::Sender<Input>,
}

/// What a client says of a question.
#[derive(Debug)]
pub(super) enum Input {
    /// Its `result` as JSON text.
    Answered(u32, Box<str>),
    /// It answered with an error.
    Refused(u32),
    /// It works on it.
    Progressed(u32),
}

impl Declared {
    /// What is known of a client that began in an earlier process.
    fn of_token(client: ClientCapabilities) -> Self {
        Self { capabilities: client.to_json().into(), info: GATEWAY_INFO.into(), tells_of_roots: false }
    }
}

impl Offer {
    /// Reads a server's `capabilities`.
    pub(super) fn read(capabilities: &str) -> Self {
        let all = Object::parse(capabilities).unwrap_or_default();
        let has = |name: &str, member: &str| {
            let inside = Object::parse(all.get(name).unwrap_or("{}")).unwrap_or_default();
            inside.get(member) == Some("true")
        };
        Self {
            logging: all.get("logging").is_some(),
            subscribe: has("resources", "subscribe"),
            tools_changed: has("tools", "listChanged"),
            prompts_changed: has("prompts", "listChanged"),
            resources_changed: has("resources", "listChanged"),
        }
    }
}

impl State {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what `initialize` brought out.
    pub(in crate::gateway) fn begin(&self, client: Declared, offer: Offer) {
        let mut kept = self.kept();
        kept.client = Some(Arc::new(client));
        kept.offer = Some(Arc::new(offer));
    }

    /// What the client declared. A token from before a restart says only what can be asked.
    pub(in crate::gateway) fn client(&self, of_token: ClientCapabilities) -> Arc<Declared> {
        Arc::clone(self.kept().client.get_or_insert_with(|| Arc::new(Declared::of_token(of_token))))
    }

    /// What the server offers, if that is known.
    pub(super) fn offer(&self) -> Option<Offer> {
        self.kept().offer.as_deref().copied()
    }

    pub(super) fn set_offer(&self, offer: Offer) {
        self.kept().offer = Some(Arc::new(offer));
    }

    /// From which level on the client wants log messages.
    pub(in crate::gateway) fn level(&self) -> Option<Level> {
        self.kept().level
    }

    pub(in crate::gateway) fn set_level(&self, level: Level) {
        self.kept().level = Some(level);
    }

    /// The client's roots, if they were asked for before and have not changed since.
    pub(super) fn roots(&self) -> Option<Box<str>> {
        self.kept().roots.clone()
    }

    /// Keeps the client's roots, where it tells of changes.
    pub(super) fn keep_roots(&self, roots: &str) {
        let mut kept = self.kept();
        if kept.client.as_ref().is_some_and(|client| client.tells_of_roots) {
            kept.roots = Some(roots.into());
        }
    }

    /// They have changed.
    pub(super) fn forget_roots(&self) {
        self.kept().roots = None;
    }

    /// Notes a question whose answer is awaited.
    pub(super) fn ask(&self, id: &str, asked: Asked) {
        self.kept().asked.insert(id.into(), asked);
    }

    /// Takes a question out: each is answered once.
    pub(super) fn take(&self, id: &str) -> Option<Asked> {
        self.kept().asked.remove(id)
    }

    /// Where to tell that a question is worked on.
    pub(super) fn asked(&self, id: &str) -> Option<(u32, mpsc::Sender<Input>)> {
        self.kept().asked.get(id).map(|asked| (asked.number, asked.inputs.clone()))
    }

    /// Keeps a call's stream. Where there are too many, those that ended first are forgotten.
    pub(super) fn keep(&self, replay: Arc<Replay>) {
        let mut kept = self.kept();
        kept.replays.push_back(replay);
        kept.forget(Instant::now());
    }

    /// The stream that an event id names, if anything comes after that event.
    pub(super) fn find(&self, event_id: &str) -> Option<(Arc<Replay>, u64)> {
        let mut kept = self.kept();
        kept.forget(Instant::now());
        replay::find(&kept.replays, event_id)
    }

    /// Forgets streams whose time is over.
    pub(in crate::gateway) fn tidy(&self) {
        self.kept().forget(Instant::now());
    }
}

impl Kept {
    fn forget(&mut self, now: Instant) {
        self.replays.retain(|replay| !replay.is_stale(now));
        let ended = |replays: &VecDeque<Arc<Replay>>| {
            replays.iter().filter(|replay| replay.has_ended()).map(|replay| replay.bytes()).sum::<usize>()
        };
        while self.replays.len() > MAX_REPLAYS || ended(&self.replays) > MAX_REPLAY_BYTES {
            let Some(place) = self.replays.iter().position(|replay| replay.has_ended()) else { break };
            self.replays.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_true_is_offered() {
        let read = Offer::read(
            r#"{"logging":{},"tools":{"listChanged":true},"prompts":{"listChanged":false},"resources":{"subscribe":true}}"#,
        );
        let expected = Offer { logging: true, tools_changed: true, subscribe: true, ..Offer::default() };
        assert_eq!(read, expected);
        assert_eq!(Offer::read("5"), Offer::default());
    }
}
