//! How one plain call's answer is to be passed on, and what is kept until then.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::gateway::forward::Registration;
use crate::gateway::held::is_error_object;
use crate::gateway::rejection::{Fault, Kind};
use crate::gateway::session::{CancelFlag, Session};
use crate::gateway::{Gate, Gateway, Route};
use crate::jsonrpc::{self, Defect, Id, Message, Outcome, Raw};
use crate::mcp::input::is_plainly_complete;
use crate::metrics::Counted;
use crate::tenant::fair::Permit;
use crate::upstream::Body;

/// An upstream's answer on its way. Everything that must be there before the client's answer can begin is waited for
/// here, so that the deadline, a cancel and the client's going away apply to all of it.
pub(in crate::gateway) type Sending = Pin<Box<dyn Future<Output = Result<(Begun, Places), Kind>> + Send>>;
/// What a call keeps as long as the upstream works on it.
pub(in crate::gateway) type Places = (Option<Permit>, Gate, Counted);
/// Looks at the outcome of the answer.
pub(in crate::gateway) type Rewrite = Arc<dyn Fn(&Outcome<'_>) -> Rewritten + Send + Sync>;

/// What becomes of an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) enum Rewritten {
    /// It passes as it is.
    Same,
    /// This `result` in its place, as JSON text.
    Result(String),
    /// This `error` in its place, as JSON text.
    Error(String),
}

impl Rewritten {
    /// The error that the client gets in place of what the upstream should not have sent.
    pub(in crate::gateway) fn fault(fault: Fault) -> Self {
        Self::Error(fault.to_error().to_json())
    }
}

/// An upstream's answer, as far as it has to be there before the client's can begin.
pub(in crate::gateway) enum Begun {
    /// All of it, as one message.
    Whole(Bytes),
    /// A long one, in pieces.
    Pieces(Vec<Bytes>),
    /// One message that is passed on as it comes.
    Json(Body),
    /// A stream of events.
    Events(Body),
    /// Messages, of which the first is there.
    Messages(Bytes, mpsc::Receiver<Bytes>),
}

/// What stands upstream for a request's id and progress token, where other clients' requests may be beside it.
pub(in crate::gateway) struct Minted {
    /// Both, as the upstream sees them.
    pub id: Id,
    /// The client's own token as JSON text.
    pub token: Option<Box<str>>,
}

/// How one plain call's answer is to be passed on.
pub(in crate::gateway) struct Plan {
    /// The client's request.
    pub id: Id,
    /// What the upstream knows it by, if not by that.
    pub minted: Option<Minted>,
    /// The longest event or message in bytes.
    pub limit: usize,
    /// Leave out events without data: the client would read them as JSON.
    pub drop_priming: bool,
    /// Split arrays: the client's version does not know them, or something inside is to be changed.
    pub split_batches: bool,
    /// What to do with the result.
    pub rewrite: Option<Rewrite>,
    /// It leaves out what the client must not see.
    pub filters: bool,
    /// It leaves complete results as they are.
    pub keeps_complete: bool,
    /// The pieces of a burst have to be joined ([`Upstream::needs_joining`]).
    ///
    /// [`Upstream::needs_joining`]: crate::upstream::Upstream::needs_joining
    pub needs_joining: bool,
    /// When to give up.
    pub deadline: Instant,
    /// How long the answer may be silent.
    pub keep_alive: Duration,
    /// Is set when the client cancels the request.
    pub cancelled: Arc<CancelFlag>,
    /// Runs what must outlive the client's connection.
    pub gateway: Arc<Gateway>,
    /// The call's registration in its session, until it is over.
    pub registration: Registration,
    /// Its places, once it has them.
    pub places: Option<Places>,
    /// Where a cancel goes when the deadline passes.
    pub cancels: Option<(Arc<Route>, Arc<Session>)>,
    /// The client is stateless: it gets no requests and no event ids, and its going away is a cancel (2026-07-28
    /// transports, "Cancellation").
    pub is_stateless: bool,
}

impl Plan {
    /// The request's id upstream.
    pub(in crate::gateway) fn upstream_id(&self) -> &Id {
        self.minted.as_ref().map_or(&self.id, |minted| &minted.id)
    }

    /// The message as the client gets it; `None` for one that it must not see.
    #[must_use]
    pub(in crate::gateway) fn rewritten(&self, message: Bytes) -> Option<Bytes> {
        match self.look(&message) {
            Look::Response(message) | Look::Progress(message) => Some(message),
            Look::Same => Some(message),
            Look::Withheld => None,
        }
    }

    /// The only message of an answer as the client gets it; `None` for one that its client could not tie to its request.
    #[must_use]
    pub(in crate::gateway) fn answer(&self, message: Bytes) -> Option<Bytes> {
        match self.look(&message) {
            Look::Response(message) => Some(message),
            Look::Same | Look::Progress(_) => self.minted.is_none().then_some(message),
            Look::Withheld => None,
        }
    }

    /// What the client gets of an array: the messages beside the answer, and that. `None` where nothing in it is one.
    pub(in crate::gateway) fn one_answer(
        &self,
        mut answers: Vec<Bytes>,
        others: Vec<Bytes>,
    ) -> Option<(Vec<Bytes>, Bytes)> {
        let (mut beside, mut instead) = (Vec::new(), None);
        for message in others {
            match self.look(&message) {
                Look::Same => beside.push(message),
                Look::Progress(message) => beside.push(message),
                // What would be the answer, were there no other.
                Look::Response(message) => instead = Some(message),
                Look::Withheld => {}
            }
        }
        // An error without an id may be about something else where another has the request's.
        answers.sort_by_key(|answer| matches!(Message::parse(answer), Ok(Message::Response { id: None, .. })));
        let last = match answers.into_iter().next() {
            Some(answer) => self.answer(answer),
            // A client whose own id stands upstream makes out by itself what answers it.
            None => instead.or_else(|| beside.pop().filter(|_| self.minted.is_none())),
        };
        Some((beside, last?))
    }

    /// Looks at a message, once for all there is to find out.
    pub(super) fn look(&self, message: &[u8]) -> Look {
        if self.rewrite.is_none() && self.minted.is_none() && !self.is_stateless {
            return Look::Same;
        }
        if let Some(message) = self.unread(message) {
            return Look::Response(message);
        }
        match Message::parse_with_id(message) {
            Ok((Message::Request { .. }, _)) if self.is_stateless => Look::Withheld,
            Ok((Message::Request { id, .. }, _)) => {
                self.registration.note_asked(&id);
                Look::Same
            }
            Ok((Message::Response { id: Some(answered), outcome }, id)) if answered == *self.upstream_id() => {
                self.response(message, id, &outcome).map_or(Look::Same, Look::Response)
            }
            Ok((Message::Notification { method, params: Some(params) }, _)) if method == PROGRESS_METHOD => {
                self.progress(message, params).map_or(Look::Same, Look::Progress)
            }
            // Split into its members, each of which comes here again.
            Err(Defect::Batch) if self.split_batches => Look::Same,
            // It could not tell what it answers; nothing else was asked on this exchange.
            Ok((Message::Response { id: None, outcome: outcome @ Outcome::Error(error) }, id))
                if self.minted.is_some() && is_error_object(error.get()) =>
            {
                self.response(message, id, &outcome).map_or(Look::Withheld, Look::Response)
            }
            // An answer to nobody here, or no message at all, with what only the gateway knows a request by.
            Ok((Message::Response { .. }, _)) | Err(_) if self.minted.is_some() => Look::Withheld,
            // A client may read as its answer what is none by the letter.
            Ok((Message::Response { outcome: Outcome::Result(_), .. }, _)) | Err(_) if self.filters => {
                Look::Response(jsonrpc::error_response(Some(&self.id), &Fault::UpstreamProtocol.to_error()))
            }
            _ => Look::Same,
        }
    }

    /// A result under the client's id, if nothing else in it can be to change. It is known by its two ends, as they are
    /// where members stand in the usual orders, and not read: most answers are such, and some are long.
    fn unread(&self, message: &[u8]) -> Option<Bytes> {
        let minted = self.minted.as_ref().filter(|_| self.keeps_complete)?;
        let (id, own) = (minted.id.as_json().as_bytes(), self.id.as_json().as_bytes());
        let (before, after) = match message.strip_prefix(BEFORE_ID).and_then(|rest| rest.strip_prefix(id)) {
            Some(rest) => (BEFORE_ID, rest),
            // The id is a number, so that what ends like this ends with the member itself and not with some text.
            None => (message.strip_suffix(b"}")?.strip_suffix(id)?, &b"}"[..]),
        };
        let is_result = (after.starts_with(BEFORE_RESULT) && after.ends_with(b"}}"))
            || (before.starts_with(b"{\"result\":{") && before.ends_with(b"},\"jsonrpc\":\"2.0\",\"id\":"));
        let is_kept = || self.rewrite.is_none() || begins_complete(after) || is_plainly_complete(message);
        (is_result && is_kept()).then(|| [before, own, after].concat().into())
    }

    /// The same for a message in pieces, whose usual beginning is in the first and whose end in the last.
    pub(in crate::gateway) fn unread_pieces(&self, pieces: &[Bytes]) -> Option<Vec<Bytes>> {
        let minted = self.minted.as_ref().filter(|_| self.keeps_complete)?;
        let ([first, between @ ..], last) = (pieces, pieces.last()?) else { return None };
        let after = first.strip_prefix(BEFORE_ID)?.strip_prefix(minted.id.as_json().as_bytes())?;
        if !after.starts_with(BEFORE_RESULT) || !last.ends_with(b"}}") || !begins_complete(after) {
            return None;
        }
        let begun: Bytes = [BEFORE_ID, self.id.as_json().as_bytes()].concat().into();
        let rest = first.slice(first.len() - after.len()..);
        Some([begun, rest].into_iter().chain(between.iter().cloned()).collect())
    }

    /// The response, if it is to be changed: at least in its id, whose text is given, where the upstream knows another.
    fn response(&self, message: &[u8], id: Option<&str>, outcome: &Outcome<'_>) -> Option<Bytes> {
        match self.rewrite.as_ref().map_or(Rewritten::Same, |rewrite| rewrite(outcome)) {
            Rewritten::Result(result) => Some(jsonrpc::response(&self.id, &result)),
            Rewritten::Error(error) => Some(jsonrpc::raw_error_response(Some(&self.id), &error)),
            Rewritten::Same => {
                self.minted.as_ref()?;
                match (id, outcome) {
                    (Some(id), _) => jsonrpc::spliced(message, [(id, self.id.as_json())]),
                    (None, Outcome::Error(error)) => Some(jsonrpc::raw_error_response(Some(&self.id), error.get())),
                    (None, Outcome::Result(_)) => None,
                }
            }
        }
    }

    /// A progress notification with the client's own token.
    fn progress(&self, message: &[u8], params: Raw<'_>) -> Option<Bytes> {
        let Minted { id, token } = self.minted.as_ref()?;
        let token = token.as_deref()?;
        let found = token_of(params.get())?;
        if found == id.as_json() { jsonrpc::spliced(message, [(found, token)]) } else { None }
    }

    /// A progress notification in a frame that is a plain message with these data, with the client's own token: what stands
    /// before it, the token, and what stands after.
    pub(super) fn plain_progress<'f>(&'f self, frame: &'f [u8], data: &'f [u8]) -> Option<[&'f [u8]; 3]> {
        let Minted { id, token: Some(token) } = self.minted.as_ref()? else { return None };
        let found = usual_progress(data).or_else(|| other_progress(data).map(str::as_bytes));
        let found = found.filter(|found| *found == id.as_json().as_bytes())?;
        let place = found.as_ptr().addr().checked_sub(frame.as_ptr().addr())?;
        Some([frame.get(..place)?, token.as_bytes(), frame.get(place + found.len()..)?])
    }

    /// Gives the places back at the deadline, even if the client reads so little that nobody asks for more until then.
    pub(super) fn watch_places(&mut self) -> Option<DropGuard> {
        let places = self.places.take()?;
        let (over, deadline) = (CancellationToken::new(), self.deadline);
        let watching = over.clone();
        self.gateway.jobs.spawn("places", async move {
            tokio::select! {
                () = watching.cancelled() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
            drop(places);
        });
        Some(over.drop_guard())
    }

    /// The deadline has passed: the upstream is told, if it has seen the request.
    pub(in crate::gateway) fn time_out(&mut self) -> Fault {
        let started = self.cancelled.is_dispatched();
        self.cancel_upstream("deadline");
        Fault::Deadline { started }
    }

    /// Tells an upstream that has seen the request to stop. Stateless ones on HTTP see it by the end of the connection, and
    /// nothing else would tell them (2026-07-28 transports, "Cancellation").
    pub(super) fn cancel_upstream(&mut self, reason: &str) {
        let started = self.cancelled.is_dispatched();
        let is_told = |session: &Session| session.terms.upstream.is_told_of_cancels();
        if let Some((route, session)) = self.cancels.take().filter(|(_, session)| started && is_told(session)) {
            let id = self.upstream_id().as_json();
            let params = format!("{{\"requestId\":{id},\"reason\":{}}}", jsonrpc::raw_string(reason));
            let gateway = Arc::clone(&self.gateway);
            self.gateway.jobs.spawn("cancel", async move {
                let body = jsonrpc::notification("notifications/cancelled", Some(&params));
                // Best effort, and logged.
                drop(gateway.post_upstream(&route, &session, body).await);
            });
        }
    }
}

/// What every message of the two usual orders of members begins with that begins with its id.
pub(in crate::gateway) const BEFORE_ID: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";

/// What follows the id then.
const BEFORE_RESULT: &[u8] = b",\"result\":{";

/// Whether what follows the id is a result whose first member says that it is complete. One that says something else
/// afterwards contradicts itself, and wins nothing: a state that was not sealed here is taken from nobody.
fn begins_complete(after_id: &[u8]) -> bool {
    after_id.strip_prefix(BEFORE_RESULT).is_some_and(|result| result.starts_with(b"\"resultType\":\"complete\""))
}

/// What a message of the upstream's is to the client.
pub(super) enum Look {
    /// It passes as it is, or is for others to look at.
    Same,
    /// One that this client must not see, or could make nothing of.
    Withheld,
    /// The response to its request, as it gets it.
    Response(Bytes),
    /// A progress notification, as it gets it.
    Progress(Bytes),
}

const PROGRESS_METHOD: &str = "notifications/progress";
/// What stands before and after `params` where servers write the members in one of the usual orders.
const USUAL_PROGRESS: [(&[u8], &[u8]); 2] = [
    (b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":", b"}"),
    (b"{\"method\":\"notifications/progress\",\"params\":", b",\"jsonrpc\":\"2.0\"}"),
];

/// The token of a progress notification in one of the usual orders.
fn usual_progress(message: &[u8]) -> Option<&[u8]> {
    let inside = |(before, after): &(&[u8], &[u8])| message.strip_prefix(*before)?.strip_suffix(*after);
    let params = USUAL_PROGRESS.iter().find_map(inside)?;
    flat_token(params).or_else(|| token_of(std::str::from_utf8(params).ok()?).map(str::as_bytes))
}

/// The token in `params` that have nothing inside them but numbers and plain text. Without braces they are one object, so
/// that there is no other member beside them; without escapes a name is spelled in one way, and its quotes are no text's.
/// Nothing else is read: reading each member was a quarter of what an event in a burst took.
fn flat_token(params: &[u8]) -> Option<&[u8]> {
    static TOKEN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"progressToken\":"));
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"progressToken\""));
    let members = params.strip_prefix(b"{")?.strip_suffix(b"}")?;
    if memchr::memchr3(b'{', b'}', b'\\', members).is_some() {
        return None;
    }
    // Mostly it comes first, and nothing else has the letter.
    let (before, value) = match members.strip_prefix(TOKEN.needle()) {
        Some(value) => (&b""[..], value),
        None => {
            let (before, value) = members.split_at_checked(TOKEN.find(members)?)?;
            (before, value.get(TOKEN.needle().len()..)?)
        }
    };
    // Of two, another reader could take the other one, which may have a space before its colon.
    let is_named = |text: &[u8]| memchr::memchr(b'T', text).is_some() && NAME.find(text).is_some();
    if is_named(before) || is_named(value) {
        return None;
    }
    value.get(..memchr::memchr(b',', value).unwrap_or(value.len()))
}

/// The same in any other spelling. Its method is looked for near the beginning, so that long messages are not searched.
fn other_progress(message: &[u8]) -> Option<&str> {
    const MOST_BEFORE_METHOD: usize = 64;
    // Made once: making one costs more than searching an event.
    static METHOD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"notifications/progress\""));
    METHOD.find(message.get(..message.len().min(MOST_BEFORE_METHOD))?)?;
    match Message::parse(message) {
        Ok(Message::Notification { method, params: Some(params) }) if method == PROGRESS_METHOD => {
            token_of(params.get())
        }
        _ => None,
    }
}

/// The token of a progress notification, where it stands. `None` where there is none, or more than one.
fn token_of(params: &str) -> Option<&str> {
    let mut token = None;
    let take = |name: &str, value| name != "progressToken" || token.replace(value).is_none();
    if jsonrpc::members(params, take) {
        return token.map(Raw::get);
    }
    serde_json::from_str::<Progress<'_>>(params).ok()?.token.map(Raw::get)
}

#[derive(Deserialize)]
struct Progress<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: Option<Raw<'a>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(params: &str) -> [Option<String>; 2] {
        USUAL_PROGRESS.map(|(before, after)| {
            let message = [before, params.as_bytes(), after].concat();
            usual_progress(&message).map(|token| String::from_utf8(token.to_vec()).unwrap())
        })
    }

    #[test]
    fn the_token_of_flat_params_is_found_unread() {
        for (params, token) in [
            (r#"{"progressToken":7,"progress":1,"message":"a, b"}"#, "7"),
            (r#"{"progress":1,"total":2,"progressToken":7}"#, "7"),
            (r#"{"progressToken":"seven"}"#, "\"seven\""),
        ] {
            assert_eq!(flat_token(params.as_bytes()), Some(token.as_bytes()), "{params}");
            assert_eq!(usual(params), [Some(token.to_owned()), Some(token.to_owned())], "{params}");
        }
    }

    #[test]
    fn other_params_are_read() {
        for (params, token) in [
            (r#"{"progressToken":7,"_meta":{"a":1}}"#, Some("7")),
            (r#"{"progressToken":7,"message":"\"progressToken\":8"}"#, Some("7")),
            // Text that looks like a name is none.
            (r#"{"message":"progressToken","progressToken":7}"#, Some("7")),
            (r#"{"progressToken":7,"progressToken":8}"#, None),
            (r#"{"progressToken" :7,"progressToken":8}"#, None),
            (r#"{"progressToken":7,"progressToken" :8}"#, None),
            (r#"{"progressToken":7,"progressTok\u0065n":8}"#, None),
            (r#"{"progress":1}"#, None),
            // Other members beside `params`.
            (r#"{"progressToken":7},"id":1,"result":{}"#, None),
            (r#"{"progressToken":7},"method":"roots/list","params":{"progressToken":7}"#, None),
            (r#"["progressToken":7]"#, None),
        ] {
            assert_eq!(flat_token(params.as_bytes()), None, "{params}");
            let token = token.map(str::to_owned);
            assert_eq!(usual(params), [token.clone(), token], "{params}");
        }
    }
}
